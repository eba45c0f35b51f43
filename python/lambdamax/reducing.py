"""Points in, winners out: the engine drops what cannot win while chunks stream by; a total order settles ties."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lambdamax import columns
from lambdamax.chunks import Chunk, whole_points
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
GROUP: Final = "_group"
_STATUS, _COUNT = "_status", "_count"


@dataclass(frozen=True)
class Summary:
    """A chunk, reduced on its own."""

    keys: pl.DataFrame
    """Of each of its groups, in the order of their first rows."""
    counts: pl.DataFrame
    """Points by group (its number) and status code."""
    groups: NDArray[np.uint32]
    """Of each candidate, by number."""
    values: list[NDArray[np.float64]]
    """Of the candidates, for each objective; larger is better."""
    rows: pl.DataFrame
    """The candidates, as the chunk tells them."""


class Reducer:
    """The winners of a goal among the points so far.

    A chunk is reduced on its own, which `summary` may do to several at once, then taken in, one after another. Memory
    grows with the winners and the groups, not with the points. The answer does not depend on how the points are cut
    into chunks, nor on their order.
    """

    def __init__(self, goal: Goal, apart: Callable[[pl.DataFrame], pl.DataFrame] = whole_points) -> None:
        """None so far. `apart` gives the columns that tell candidates apart: see `Points`."""
        self.goal, self._apart = goal, apart
        self._state = Winners(len(goal.keys), len(goal.objectives), goal.best, _MARGIN)
        self._codes: dict[str, dict[str, int]] = {}
        self._opened: list[pl.DataFrame] = []
        self._kept: list[pl.DataFrame] = []
        self._rows = self._settled_rows = 0

    @cached_property
    def wanted(self) -> list[str]:
        """The columns that are needed of every point."""
        return list(dict.fromkeys((*self.goal.keys, "status", *(each.column for each in self.goal.objectives))))

    def summary(self, chunk: Chunk, weights: NDArray[np.uint64] | None = None) -> Summary:
        """A chunk reduced on its own; nothing else changes. FrameError if a status is unknown."""
        narrow = chunk.columns(self.wanted)
        status = status_codes(narrow["status"])
        may_win = status == 0
        varying = [name for name in self.goal.keys if not _is_constant(narrow[name])]
        keys = [_bits(narrow[name], {}) for name in varying]
        values = [_values(narrow[each.column], each, may_win) for each in self.goal.objectives]
        state = Winners(len(keys), len(values), self.goal.best, _MARGIN)
        candidates, groups, opened = state.add(keys, values, status, weights)
        counts = pl.concat(_counts(state, code) for code in range(len(_STATUSES)))
        best = [column[candidates] for column in values]
        return Summary(narrow.select(self.goal.keys)[opened], counts, groups, best, chunk.rows(candidates))

    def take(self, summary: Summary) -> None:
        """Take in a chunk."""
        counts = summary.counts.sort(GROUP, maintain_order=True)
        place = np.concatenate([counts[GROUP].to_numpy(), summary.groups])
        nothing = np.full(counts.height, math.nan)
        candidates, groups, opened = self._state.add(
            [_bits(summary.keys[name], self._codes.setdefault(name, {}))[place] for name in self.goal.keys],
            [np.concatenate([nothing, values]) for values in summary.values],
            np.concatenate([counts[_STATUS].to_numpy(), np.zeros(len(summary.groups), np.uint8)]),
            np.concatenate([counts[_COUNT].to_numpy(), np.zeros(len(summary.groups), np.uint64)]),
        )
        if len(opened) and self.goal.keys:
            self._opened.append(summary.keys[place[opened]])
        if len(candidates):
            kept = candidates - np.uint32(counts.height)
            values = zip(value_names(self.goal), summary.values, strict=True)
            held = [pl.Series(GROUP, groups), *(pl.Series(name, column[kept]) for name, column in values)]
            self._keep(pl.DataFrame(held).hstack(summary.rows[kept]))

    def add(self, chunk: Chunk, weights: NDArray[np.uint64] | None = None) -> None:
        """Take in a chunk at once. FrameError if a status is unknown."""
        self.take(self.summary(chunk, weights))

    def standings(self) -> pl.DataFrame | None:
        """The winners by group, in each from the best; None where no point can win.

        `GROUP` is the number of the group, `value_names` of the goal are the values, larger is better; then what the
        chunks told of each.
        """
        if not self._kept:
            return None
        self._settle()
        return self._kept[0]

    def winners(self) -> pl.DataFrame | None:
        """What the chunks told of the winners, sorted by group and in each from the best; None where no point can win.
        """
        found = self.standings()
        if found is None:
            return None
        place = np.argsort(in_order_of_keys(self.groups(), self.goal.keys)).astype(np.uint32)
        return found.sort(pl.Series(place).gather(found[GROUP]), maintain_order=True).drop(GROUP, *value_names(self.goal))

    def groups(self) -> pl.DataFrame:
        """The keys of each group, by number; without keys there is one group and no column."""
        return pl.concat(self._opened) if self._opened else pl.DataFrame()

    def counts(self) -> pl.DataFrame:
        """For each group, by number, its points of each status that any point has."""
        counted = {name: self._state.counts(code) for code, name in enumerate(_STATUSES)}
        return pl.DataFrame({name: counts for name, counts in counted.items() if len(counts)})

    def _keep(self, candidates: pl.DataFrame) -> None:
        self._kept.append(candidates)
        self._rows += candidates.height
        if self._rows > 2 * self._settled_rows + _SETTLE_ROWS:
            self._settle()

    def _settle(self) -> None:
        settled = settle(pl.concat(self._kept, rechunk=True), self.goal, self._apart)
        self._kept, self._rows, self._settled_rows = [settled], settled.height, settled.height


def value_names(goal: Goal) -> list[str]:
    """The columns of standings that hold the values of the objectives."""
    return [f"_value_{place}" for place in range(len(goal.objectives))]


def rounded_names(goal: Goal) -> list[str]:
    """The columns that `rounded` adds."""
    return [f"_rounded_{place}" for place in range(len(goal.objectives))]


def rounded(goal: Goal) -> list[pl.Expr]:
    """The values without the digits that depend on how a root was approached."""
    names = zip(value_names(goal), rounded_names(goal), strict=True)
    return [pl.col(value).round_sig_figs(_DIGITS).alias(name) for value, name in names]


def settle(candidates: pl.DataFrame, goal: Goal, apart: Callable[[pl.DataFrame], pl.DataFrame]) -> pl.DataFrame:
    """The winners among points that all can win, by group, in each the best ahead.

    Values that agree in nine significant digits are a tie, which goes to the smaller value of the first column of the
    dictionary in which the points differ (text by its letters, null last). Of points that tie in every objective a
    Pareto set has the first.
    """
    values = rounded_names(goal)
    alive = _unbeaten(candidates.with_columns(rounded(goal)), values, goal.best)
    alive = alive.with_columns(ties(alive, [GROUP, *values], apart))
    alive = alive.sort(GROUP, *(-pl.col(name) for name in values), TIE)
    if goal.best:
        alive = alive.filter(place_within(GROUP) < goal.best)
    else:
        alive = alive.filter(pl.struct(GROUP, *values).is_first_distinct())
    return alive.drop(TIE, *values)


def place_within(name: str) -> pl.Expr:
    """Of each row its place among those with the same number in the column `name`, which is sorted."""
    place, is_first = pl.int_range(pl.len(), dtype=pl.UInt32), pl.col(name).is_first_distinct()
    return place - pl.when(is_first).then(place).forward_fill()


def _unbeaten(candidates: pl.DataFrame, values: Sequence[str], best: int) -> pl.DataFrame:
    """What stays when all candidates are looked at together, by nine digits; all that tie for the last place do."""
    reducer = Winners(1, len(values), best, 0.0)
    numbers = [np.ascontiguousarray(candidates[name].to_numpy()) for name in values]
    status = np.zeros(candidates.height, dtype=np.uint8)
    alive, _, _ = reducer.add([_whole(candidates[GROUP])], numbers, status)
    return candidates[alive]


def ties(points: pl.DataFrame, equal: Sequence[str], apart: Callable[[pl.DataFrame], pl.DataFrame]) -> pl.Series:
    """The place of each point among those that have the values of another in the columns `equal`, by the total order;
    else 0.
    """
    tied = points.select(pl.struct(equal).is_duplicated()).to_series()
    places = np.zeros(points.height, dtype=np.uint32)
    if tied.any():
        few = apart(points.filter(tied))
        order = few.select(pl.arg_sort_by([comparable(few, name) for name in few.columns], nulls_last=True)).to_series()
        places[np.flatnonzero(tied.to_numpy())[order.to_numpy()]] = np.arange(few.height, dtype=np.uint32)
    return pl.Series(TIE, places)


def in_order_of_keys(groups: pl.DataFrame, keys: Sequence[str]) -> NDArray[np.uint32]:
    """The numbers of the groups, sorted by their keys: text by its letters, null last."""
    if not keys:
        return np.zeros(1, dtype=np.uint32)
    order = groups.select(pl.arg_sort_by([comparable(groups, name) for name in keys], nulls_last=True))
    return order.to_series().cast(pl.UInt32).to_numpy()


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


def _counts(state: Winners, code: int) -> pl.DataFrame:
    counts = state.counts(code)
    groups = np.flatnonzero(counts).astype(np.uint32)
    status = pl.Series(_STATUS, [code], dtype=pl.UInt8).new_from_index(0, len(groups))
    return pl.DataFrame([pl.Series(GROUP, groups), status, pl.Series(_COUNT, counts[groups])])


def _is_constant(series: pl.Series) -> bool:
    nulls = series.null_count()
    return nulls == len(series) or (not nulls and bool((series == series.head(1)).all()))


def _bits(series: pl.Series, codes: dict[str, int]) -> NDArray[np.uint64]:
    """A number for each value, the same for the same value wherever `codes`, which grows, is the same."""
    if isinstance(series.dtype, pl.Enum):
        return _whole(series.to_physical())
    if series.dtype.is_float():
        values = series.cast(pl.Float64).fill_null(math.nan).to_numpy() + 0.0
        return np.where(np.isnan(values), math.nan, values).view(np.uint64)
    return _whole(series if series.dtype.is_numeric() else _coded(series.cast(pl.String), codes))


def _coded(names: pl.Series, codes: dict[str, int]) -> pl.Series:
    for name in names.unique(maintain_order=True).drop_nulls():
        codes.setdefault(name, len(codes))
    return names.replace_strict(list(codes), list(codes.values()), default=None, return_dtype=pl.UInt64)


def _whole(series: pl.Series) -> NDArray[Any]:
    return np.ascontiguousarray(series.cast(pl.UInt64).fill_null(_NO_CODE).to_numpy())
