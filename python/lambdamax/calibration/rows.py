"""One measured row in the words of the engine: a deployment, a load, and what was measured there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lambdamax.fitted import family_of
from lambdamax.replicas import Deployment, ReplicaRow

Row = Mapping[str, Any]
CLOSED, OPEN, STATIC = "closed", "open", "static"
METRICS: Final = ("tpot", "ttft", "output_tok_s", "request_rate")


@dataclass(frozen=True)
class Load:
    """What a benchmark asked of a server: `kind`, mean lengths [tokens], and clients or a rate [requests/s].

    `seats` is the most sequences that the server ran at once, None for the engine's default; `unsplit` says that its
    attention read each of them with a part of the device only.
    """

    kind: str
    isl_tokens: float
    osl_tokens: float
    concurrency: float | None
    rate_rps: float | None
    seats: float | None = None
    unsplit: bool = False


@dataclass(frozen=True)
class Measured:
    """One measured row. `curve` is the same for rows that differ in load alone; `results` is by metric, in SI units."""

    at: Deployment
    replica: ReplicaRow
    version: str
    load: Load
    results: Mapping[str, float]
    curve: str
    origin: Row

    @property
    def weight_dtype(self) -> str:
        """The format by name, where `native` was asked for too."""
        return self.replica.weight_dtype

    @property
    def family(self) -> str:
        """The family of models that it is of, as profiles are."""
        return family_of(self.replica.fields, self.replica.blocks)

    @property
    def notes(self) -> str:
        """What the table says of the run."""
        return self.origin["notes"] or ""

    @property
    def engine(self) -> str:
        """The engine without a version."""
        return re.sub(r"-[\d.]+$", "", self.at.engine)


def curves(rows: Iterable[Measured]) -> int:
    """How many curves there are among `rows`."""
    return len({row.curve for row in rows})
