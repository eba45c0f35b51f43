"""Points in, winners out: the engine drops what cannot win while chunks stream by; a total order settles ties."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lambdamax import columns
from lambdamax.chunks import Chunk
from lambdamax.engine import Winners
from lambdamax.exceptions import Fault, FrameError
from lambdamax.objectives import Goal, Objective

# Roots are good to twelve digits: points that differ only beyond these are as good as each other.
_DIGITS: Final = 9
# Two values with the same digits differ by less than this share of the larger.
_MARGIN: Final = 2e-8
_SETTLE_ROWS: Final = 65_536
_STATUSES: Final = columns.column("status").values
_NO_CODE: Final = 2**64 - 1
TIE: Final = "_tie"


class Reducer:
    """The winners of a goal among the points so far.

    A chunk is dropped before the next is read: memory grows with the winners and the groups, not with the points. The
    answer does not depend on how the points are cut into chunks, nor on their order.
    """

    def __init__(self, goal: Goal) -> None:
        """None so far."""
        self.goal = goal
        self._state = Winners(len(goal.keys), len(goal.objectives), goal.best, _MARGIN)
        self._codes: dict[str, dict[str, int]] = {}
        self._opened: list[pl.DataFrame] = []
        self._kept: list[pl.DataFrame] = []
        self._rows = self._settled_rows = 0

    @cached_property
    def wanted(self) -> list[str]:
        """The columns that are needed of every point."""
        return list(dict.fromkeys((*self.goal.keys, "status", *(each.column for each in self.goal.objectives))))

    def add(self, chunk: Chunk, weights: NDArray[np.uint64] | None = None) -> None:
        """Take in a chunk. FrameError if a status is unknown."""
        narrow = chunk.columns(self.wanted)
        status = status_codes(narrow["status"])
        may_win = status == 0
        keys = [self._bits(narrow[name]) for name in self.goal.keys]
        values = [_values(narrow[each.column], each, may_win) for each in self.goal.objectives]
        candidates, opened = self._state.add(keys, values, status, weights)
        if len(opened) and self.goal.keys:
            self._opened.append(narrow.select(self.goal.keys)[opened])
        if len(candidates):
            self._keep(chunk.rows(candidates, self.wanted))

    def winners(self) -> pl.DataFrame | None:
        """The winners, sorted by group and in each from the best; None where no point can win."""
        if not self._kept:
            return None
        self._settle()
        return self._kept[0]

    def counts(self) -> pl.DataFrame:
        """One row per group: the keys, and for each status its number of points."""
        counted = self._state.counts().reshape(-1, len(_STATUSES))
        groups = pl.concat(self._opened).get_columns() if self._opened else []
        return pl.DataFrame([*groups, *(pl.Series(name, counted[:, code]) for code, name in enumerate(_STATUSES))])

    def _keep(self, candidates: pl.DataFrame) -> None:
        self._kept.append(candidates)
        self._rows += candidates.height
        if self._rows > 2 * self._settled_rows + _SETTLE_ROWS:
            self._settle()

    def _settle(self) -> None:
        settled = settle(pl.concat(self._kept, rechunk=True), self.goal)
        self._kept, self._rows, self._settled_rows = [settled], settled.height, settled.height

    def _bits(self, series: pl.Series) -> NDArray[np.uint64]:
        """A number for each value, the same for the same value in every chunk."""
        if isinstance(series.dtype, pl.Enum):
            return _whole(series.to_physical())
        if series.dtype.is_float():
            values = series.cast(pl.Float64).fill_null(math.nan).to_numpy() + 0.0
            return np.where(np.isnan(values), math.nan, values).view(np.uint64)
        return _whole(series if series.dtype.is_numeric() else self._coded(series.cast(pl.String)))

    def _coded(self, names: pl.Series) -> pl.Series:
        known = self._codes.setdefault(names.name, {})
        for name in names.unique(maintain_order=True).drop_nulls():
            known.setdefault(name, len(known))
        return names.replace_strict(list(known), list(known.values()), default=None, return_dtype=pl.UInt64)


def settle(candidates: pl.DataFrame, goal: Goal) -> pl.DataFrame:
    """The winners among points that all can win.

    Values that agree in nine significant digits are a tie, which goes to the smaller value of the first column of the
    dictionary in which the points differ (text by its letters, null last). Of points that tie in every objective a
    Pareto set has the first.
    """
    alive = _unbeaten(candidates, goal)
    alive = alive.with_columns(ties(alive, goal.keys, goal.objectives))
    keys = [comparable(alive, name) for name in goal.keys]
    alive = alive.sort([*keys, *_best_first(goal.objectives), pl.col(TIE)], nulls_last=True)
    if goal.best:
        place = pl.int_range(pl.len(), dtype=pl.UInt32)
        alive = alive.filter((place.over(goal.keys) if goal.keys else place) < goal.best)
    else:
        equal = [value_of(each.column) for each in goal.objectives]
        alive = alive.filter(pl.struct(*goal.keys, *equal).is_first_distinct())
    return alive.drop(TIE)


def _unbeaten(candidates: pl.DataFrame, goal: Goal) -> pl.DataFrame:
    """What stays when all candidates are looked at together, by nine digits; all that tie for the last place do."""
    reducer = Winners(len(goal.keys), len(goal.objectives), goal.best, 0.0)
    rounded = candidates.select(value_of(each.column) * each.sign for each in goal.objectives)
    keys = [_whole(_places(candidates[name])) for name in goal.keys]
    values = [np.ascontiguousarray(rounded[each.column].to_numpy()) for each in goal.objectives]
    best, _ = reducer.add(keys, values, np.zeros(candidates.height, dtype=np.uint8), None)
    return candidates[best]


def ties(points: pl.DataFrame, keys: Sequence[str], objectives: Sequence[Objective]) -> pl.Series:
    """The place of each point among those that tie with another of its group, by the total order; else 0."""
    equal = [value_of(each.column) for each in objectives]
    tied = points.select(pl.struct(*keys, *equal).is_duplicated()).to_series()
    places = np.zeros(points.height, dtype=np.uint32)
    if tied.any():
        known = [column.name for column in columns.point_columns() if column.name in points.columns]
        few = points.select(known).with_row_index(TIE).filter(tied)
        ordered = few.sort([comparable(few, name) for name in known], nulls_last=True)
        places[ordered[TIE].to_numpy()] = np.arange(ordered.height, dtype=np.uint32)
    return pl.Series(TIE, places)


def value_of(column: str) -> pl.Expr:
    """A value without the digits that depend on how a root was approached."""
    return pl.col(column).cast(pl.Float64).round_sig_figs(_DIGITS)


def in_order(points: pl.DataFrame, keys: Sequence[str], objectives: Sequence[Objective]) -> pl.DataFrame:
    """`points`, in each group the best of the objectives ahead, by the total order."""
    ordered = points.with_columns(ties(points, keys, objectives))
    return ordered.sort([*_best_first(objectives), pl.col(TIE)], nulls_last=True).drop(TIE)


def _best_first(objectives: Sequence[Objective]) -> list[pl.Expr]:
    return [-each.sign * value_of(each.column) for each in objectives]


def comparable(points: pl.DataFrame, name: str) -> pl.Expr:
    """A column as it sorts: text by its letters."""
    return pl.col(name) if points.schema[name].is_numeric() else pl.col(name).cast(pl.String)


def status_codes(status: pl.Series) -> NDArray[np.uint8]:
    """The place of each status in the dictionary. FrameError for one that is not there."""
    if status.dtype != pl.Enum(_STATUSES):
        known = status.cast(pl.String).is_in(_STATUSES)
        if not known.all():
            found = repr(status.filter(~known.fill_null(value=False))[0])
            raise FrameError((Fault("frontier", "status", found, f"one of {', '.join(_STATUSES)}"),))
        status = status.cast(pl.String).cast(pl.Enum(_STATUSES))
    return np.ascontiguousarray(status.to_physical().cast(pl.UInt8).to_numpy())


def _values(series: pl.Series, objective: Objective, may_win: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Larger is better; NaN for points that cannot win."""
    values = series.cast(pl.Float64).fill_null(math.nan).to_numpy()
    return np.where(may_win, objective.sign * values, math.nan)


def _places(series: pl.Series) -> pl.Series:
    """The place of each value among the sorted ones."""
    return series.rank("dense")


def _whole(series: pl.Series) -> NDArray[Any]:
    return np.ascontiguousarray(series.cast(pl.UInt64).fill_null(_NO_CODE).to_numpy())
