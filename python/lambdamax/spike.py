"""A spike of arrivals on one replica: how many wait, how long the worst, and how long the backlog takes to drain."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from lambdamax.ages import Pace, surge
from lambdamax.backlog import pool_is_first, service_of
from lambdamax.case import Case, Question
from lambdamax.catalog import Catalog
from lambdamax.exceptions import Fault, QuestionError
from lambdamax.explain import plain
from lambdamax.fluid import Service
from lambdamax.operating import Operating

SHARES: Final = (0.70, 0.80, 0.90, 0.95)
# The backlog whose drain time the table tells, so that loads compare.
BACKLOG: Final = 100.0
_FORM: Final = "FACTORxSECONDSs with a factor above 1, such as 3x60s"
_PATTERN: Final = re.compile(r"([0-9.eE+]+)x([0-9.eE+]+)s?")


@dataclass(frozen=True)
class Spike:
    """`factor` times the rate for `duration_s`."""

    factor: float
    duration_s: float

    def __str__(self) -> str:
        """As it is written on a command line."""
        return f"{self.factor:g}x{self.duration_s:g}s"


@dataclass(frozen=True)
class Outcome:
    """What a spike does at one load, by the fluid balance.

    `share` is of the largest rate; `waiting` and `ttft_s` are the worst; `drain_s` is from the end of the spike until
    nobody waits for a seat, infinite where the rate itself is not carried; `backlog_drain_s` is the same for `BACKLOG`
    requests. `steady_ttft_p99_s` is NaN where the engine has none.
    """

    share: float
    rate_rps: float
    steady_ttft_s: float
    steady_ttft_p99_s: float
    in_flight: float
    waiting: float
    ttft_s: float
    drain_s: float
    backlog_drain_s: float


@dataclass(frozen=True)
class SpikeAnswer:
    """The spike at the rate asked about, and at shares of the largest rate that the replica sustains.

    At that limit `full` requests are in flight; `backlog_rps` leave while others wait, fewer where the KV pool is the
    limit (`pool_is_first`), if the simulator knows the replica.
    """

    spike: Spike
    limit_rps: float
    backlog_rps: float
    pool_is_first: bool
    full: float
    asked: Outcome
    table: tuple[Outcome, ...]

    def as_json(self) -> dict[str, Any]:
        """Everything by name; null for none, and for a queue that never drains."""
        table = [_plain(row) for row in self.table]
        head = {
            "spike": str(self.spike),
            "limit_rps": self.limit_rps,
            "backlog_rps": self.backlog_rps,
            "in_flight_at_limit": self.full,
        }
        return {**head, "asked": _plain(self.asked), "table": table}


def spike(question: Question, shape: str | Spike, *, catalog: Catalog | None = None) -> SpikeAnswer:
    """What a spike such as `3x60s` does to one replica at the rate of `question`, or at its largest without one.

    Raises QuestionError where the spike cannot be read, or the point has no operating point.
    """
    found = read_spike(shape) if isinstance(shape, str) else shape
    case = Case(question, catalog)
    operating = Operating.of(case)
    service, pace = service_of(case), Pace.of(case, operating)
    asked = rate_of(case)
    table = tuple(outcome(operating, service, pace, found, share * service.limit_rps) for share in SHARES)
    answer = outcome(operating, service, pace, found, asked)
    return SpikeAnswer(found, service.limit_rps, service.backlog_rps, pool_is_first(case), service.full, answer, table)


def read_spike(text: str) -> Spike:
    """`3x60s` as a spike; QuestionError if it is none."""
    matched = _PATTERN.fullmatch(text.strip())
    try:
        factor, duration = (float(number) for number in matched.groups()) if matched else (0.0, 0.0)
    except ValueError:
        factor, duration = 0.0, 0.0
    if not (1 < factor <= 1e6 and 0 < duration <= 1e6):
        raise QuestionError((Fault("spike", "spike", repr(text), _FORM),))
    return Spike(factor, duration)


def rate_of(case: Case) -> float:
    """The rate asked about, else the largest."""
    asked = case.question.rate_rps
    if asked is None and not case.answer["max_rate_rps"] > 0:
        raise QuestionError((Fault("spike", "rate", "none", f"a --rate, as the largest is none ({case.status})"),))
    return case.answer["max_rate_rps"] if asked is None else asked


def outcome(operating: Operating, service: Service, pace: Pace, shape: Spike, rate_rps: float) -> Outcome:
    """The spike at one rate."""
    during = surge(service, pace, rate_rps, shape.factor * rate_rps, shape.duration_s)
    steady = operating.point(rate_rps)
    backlog = float(during.waiting[-1])
    return Outcome(
        share=rate_rps / service.limit_rps,
        rate_rps=rate_rps,
        steady_ttft_s=steady["ttft_mean_s"],
        steady_ttft_p99_s=steady.get("ttft_p99_s", math.nan),
        in_flight=float(np.max(during.in_flight)),
        waiting=backlog,
        ttft_s=float(np.max(during.ttft_s)),
        drain_s=drain_s(service, rate_rps, backlog),
        backlog_drain_s=drain_s(service, rate_rps, BACKLOG),
    )


def drain_s(service: Service, rate_rps: float, backlog: float) -> float:
    """Until `backlog` waiting requests are gone: backlog/(μ_Q − λ), infinite where λ is not below μ_Q."""
    spare = service.backlog_rps - rate_rps
    return 0.0 if backlog == 0 else backlog / spare if spare > 0 else math.inf


def _plain(row: Outcome) -> dict[str, Any]:
    return {name: None if value == math.inf else plain(value) for name, value in asdict(row).items()}
