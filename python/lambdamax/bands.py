"""The 80 % band around a largest rate, and where the constants behind it are from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lambdamax.columns import column
from lambdamax.replicas import ReplicaRow
from lambdamax.series import coded, series

RATE: Final = "max_rate_rps"
LOW: Final = "max_rate_low_rps"
HIGH: Final = "max_rate_high_rps"
PROVENANCE: Final = "provenance"
COLUMNS: Final = (LOW, HIGH, PROVENANCE)


@dataclass(frozen=True, eq=False)
class Bands:
    """Of each replica: the factor 1 + u of its rates, and the place of its provenance among `names`."""

    factor: NDArray[np.float64]
    code: NDArray[np.uint32]
    names: tuple[str, ...]

    @classmethod
    def of(cls, rows: Iterable[ReplicaRow]) -> Self:
        """The bands of `rows`."""
        rows = tuple(rows)
        names = tuple(dict.fromkeys(row.provenance for row in rows))
        places = {name: place for place, name in enumerate(names)}
        factor = np.array([1.0 + row.uncertainty for row in rows], dtype=np.float64)
        return cls(factor, np.array([places[row.provenance] for row in rows], dtype=np.uint32), names)

    def only(self, kept: NDArray[np.intp]) -> Bands:
        """Those of the replicas `kept`; the names stay."""
        return replace(self, factor=self.factor[kept], code=self.code[kept])

    def column(self, name: str, result: Mapping[str, NDArray[Any]], replica: NDArray[Any]) -> pl.Series:
        """One of `COLUMNS` for points on `replica`, whose largest rates are in `result`."""
        about = column(name)
        if name == PROVENANCE:
            return coded(about, self.code[replica], self.names)
        factor = self.factor[replica]
        return series(about, result[RATE] / factor if name == LOW else result[RATE] * factor, ())
