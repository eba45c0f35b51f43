"""Points in, winners out: the engine drops what cannot win while chunks stream by; a total order settles ties."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lambdamax import columns
from lambdamax.chunks import Chunk, whole_points
from lambdamax.engine import Winners
from lambdamax.exceptions import Fault, FrameError
from lambdamax.freed import give_back
from lambdamax.group_keys import GroupKeys, bits_of
from lambdamax.objectives import Goal, Objective

# Roots are good to twelve digits: points that differ only beyond these are as good as each other.
_DIGITS: Final = 9
# Two values with the same digits differ by less than this share of the larger.
_MARGIN: Final = 2e-8
# Numbers that are held before winners are told from candidates.
_SETTLE_CELLS: Final = 4_194_304
# Rows of which copies are made at a time.
_AT_ONCE: Final = 524_288
# Groups from which memory is given back on the way.
_MANY: Final = 262_144
_STATUSES: Final = columns.column("status").values
_TIE: Final = "_tie"
GROUP: Final = "_group"


@dataclass(frozen=True)
class Summary:
    """A chunk, reduced on its own."""

    keys: pl.DataFrame
    """Of each of its groups, in the order of their first rows."""
    counted: NDArray[Any]
    """Groups, by number, once for each status of a point of it."""
    status: NDArray[np.uint8]
    """The codes of these statuses."""
    counts: NDArray[np.uint64]
    """How many points each of them has."""
    candidates: pl.DataFrame
    """`GROUP`, the values (larger is better), and what the chunk tells of each."""


@dataclass(frozen=True)
class Outcome:
    """What came of all points, by groups, which have numbers."""

    goal: Goal
    keys: pl.DataFrame
    """Of each group, by number; without keys there is one group and no column."""
    order: NDArray[np.uint32]
    """The numbers of the groups, sorted by their keys: text by its letters, null last."""
    counted: pl.Series
    """Of each group, by number, the place of its `counts`."""
    counts: pl.DataFrame
    """How many points of each status a group may have."""
    standings: pl.DataFrame | None
    """The winners by group, in each from the best; None where no point can win.

    `GROUP` is the number of the group, `value_names` of the goal are the values, larger is better; then what the chunks
    told of each.
    """


class Reducer:
    """The winners of a goal among the points so far.

    A chunk is reduced on its own, which `summary` may do to several at once, then taken in, one after another. Memory
    grows with the winners and the groups, not with the points. The answer does not depend on how the points are cut
    into chunks, nor on their order.
    """

    def __init__(self, goal: Goal, apart: Callable[[pl.DataFrame], pl.DataFrame] = whole_points) -> None:
        """None so far. `apart` gives the columns that tell candidates apart: see `Points`."""
        self.goal, self._apart = goal, apart
        self._begin()

    def _begin(self) -> None:
        self._keys = GroupKeys(self.goal.keys)
        self._state = Winners(self._keys.width, len(self.goal.objectives), self.goal.best, _MARGIN)
        self._kept: list[pl.DataFrame] = []
        self._rows = self._settled_rows = 0

    @property
    def has_points(self) -> bool:
        """Whether there was any point."""
        return any(len(self._state.counts(code)) for code in range(len(_STATUSES)))

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
        keys = [bits_of(narrow[name], {}) for name in varying]
        values = [_values(narrow[each.column], each, may_win) for each in self.goal.objectives]
        state = Winners(len(keys), len(values), self.goal.best, _MARGIN)
        candidates, groups, opened = state.add(keys, values, status, weights)
        best = [pl.Series(name, column[candidates]) for name, column in self._named(values)]
        held = pl.DataFrame([pl.Series(GROUP, groups), *best]).hstack(chunk.rows(candidates))
        if len(groups) and np.bincount(groups).max() > max(self.goal.best, 1):
            held = settle(held, self.goal, self._apart)
        opened_keys = narrow.select(self.goal.keys)[opened] if self.goal.keys else pl.DataFrame()
        return Summary(opened_keys, *_counts(state), held)

    def _named(self, values: Sequence[NDArray[np.float64]]) -> Iterator[tuple[str, NDArray[np.float64]]]:
        return zip(value_names(self.goal), values, strict=True)

    def take(self, summary: Summary) -> None:
        """Take in a chunk."""
        held, ahead = summary.candidates, len(summary.counted)
        places = np.concatenate([summary.counted, held[GROUP].to_numpy()])
        values = [held[name].to_numpy() for name in value_names(self.goal)]
        candidates, groups, _ = self._state.add(
            [numbers[places] for numbers in self._keys.numbers(summary.keys)],
            [np.concatenate([np.full(ahead, math.nan), column]) for column in values],
            np.concatenate([summary.status, np.zeros(held.height, np.uint8)]),
            np.concatenate([summary.counts, np.zeros(held.height, np.uint64)]),
        )
        if len(candidates):
            self._keep(held[candidates - np.uint32(ahead)].with_columns(pl.Series(GROUP, groups)))

    def add(self, chunk: Chunk, weights: NDArray[np.uint64] | None = None) -> None:
        """Take in a chunk at once. FrameError if a status is unknown."""
        self.take(self.summary(chunk, weights))

    def outcome(self) -> Outcome:
        """What has come of the points; the reducer holds none of them any longer."""
        counted, counts = self._counts()
        if len(counted) > _MANY:
            give_back()
        numbers = [self._state.keys(place) for place in range(self._keys.width)]
        keys, kept = self._keys, self._kept
        self._begin()
        order, every = keys.order(numbers, len(counted)), keys.frame(numbers)
        del numbers
        if len(counted) > _MANY:
            give_back()
        standings = pl.concat(self._settled(kept), rechunk=True) if kept else None
        return Outcome(self.goal, every, order, counted, counts, standings)

    def _counts(self) -> tuple[pl.Series, pl.DataFrame]:
        counts = {name: self._state.counts(code) for code, name in enumerate(_STATUSES)}
        return _once(pl.DataFrame({name: column for name, column in counts.items() if len(column)}))

    def winners(self) -> pl.DataFrame | None:
        """What the chunks told of the winners, sorted by group and in each from the best; None where none can win."""
        outcome = self.outcome()
        if outcome.standings is None:
            return None
        place = pl.Series(np.argsort(outcome.order)).gather(outcome.standings[GROUP])
        return outcome.standings.sort(place, maintain_order=True).drop(GROUP, *value_names(self.goal))

    def _keep(self, candidates: pl.DataFrame) -> None:
        self._kept.append(candidates)
        self._rows += candidates.height
        most = max(_SETTLE_CELLS // candidates.width, self._settled_rows // 4)
        if self._rows > self._settled_rows + most:
            self._kept = self._settled(self._kept)
            self._rows = self._settled_rows = sum(frame.height for frame in self._kept)

    def _settled(self, kept: list[pl.DataFrame]) -> list[pl.DataFrame]:
        """The winners among the candidates `kept`, sorted by group, some groups at a time: it takes several copies."""
        settled = [settle(some, self.goal, self._apart) for some in stretches(kept, GROUP)]
        if sum(frame.height for frame in settled) > _MANY:
            give_back()
        return settled


def _once(frame: pl.DataFrame) -> tuple[pl.Series, pl.DataFrame]:
    """For each row of whole numbers its place among the different ones, and these."""
    every, same = Winners(frame.width, 1, 1, 0.0), np.zeros(frame.height)
    _, places, opened = every.add([column.to_numpy() for column in frame], [same], same.astype(np.uint8))
    return pl.Series(places), frame[opened]


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
    # Of one for each group none stays but those that tie.
    alive = in_order(alive, [GROUP] if goal.best == 1 else [GROUP, *values], apart)
    kept = place_within(GROUP) < goal.best if goal.best else ~_follows([GROUP, *values])
    return alive.filter(kept).drop(values)


def in_order(points: pl.DataFrame, by: Sequence[str], apart: Callable[[pl.DataFrame], pl.DataFrame]) -> pl.DataFrame:
    """`points` by the numbers in the columns `by`, the first one up, the others down; then by the total order."""
    ordered = points.sort(by, descending=[False, *([True] * (len(by) - 1))], maintain_order=True)
    follows = ordered.select(_follows(by)).to_series()
    if not follows.any():
        return ordered
    tied = follows | follows.shift(-1, fill_value=False)
    few = apart(ordered.filter(tied))
    numbered = ordered.filter(tied).select((~_follows(by)).cum_sum().alias(_TIE)).to_series()
    names = [comparable(few, name) for name in few.columns]
    order = few.select(pl.arg_sort_by([numbered, *names], nulls_last=True)).to_series()
    places = np.arange(ordered.height)
    settled = np.flatnonzero(tied.to_numpy())
    places[settled] = settled[order.to_numpy()]
    return ordered[places]


def stretches(frames: Sequence[pl.DataFrame], name: str) -> Iterator[pl.DataFrame]:
    """The rows of `frames`, some at a time by the whole numbers in a column: what is made of them takes copies."""
    rows = sum(frame.height for frame in frames)
    if rows <= _AT_ONCE:
        yield pl.concat(frames, rechunk=True)
        return
    numbers, count = 1 + max(frame[name].to_numpy().max() for frame in frames), math.ceil(rows / _AT_ONCE)
    for start, stop in pairwise(int(numbers) * place // count for place in range(count + 1)):
        mine = pl.col(name).is_between(start, stop, closed="left")
        found = pl.concat([frame.filter(mine) for frame in frames], rechunk=True)
        if found.height:
            yield found


def _follows(names: Sequence[str]) -> pl.Expr:
    """Whether a row has the numbers of the one before it."""
    return pl.all_horizontal(pl.col(name) == pl.col(name).shift() for name in names).fill_null(value=False)


def place_within(name: str) -> pl.Expr:
    """Of each row its place among those with the same number in the column `name`, which is sorted."""
    place = pl.int_range(pl.len(), dtype=pl.UInt32)
    return place - first_within(name, place)


def first_within(name: str, value: pl.Expr) -> pl.Expr:
    """Of each row the `value` of the first with the same number in the column `name`, which is sorted."""
    return pl.when(~_follows([name])).then(value).forward_fill()


def _unbeaten(candidates: pl.DataFrame, values: Sequence[str], best: int) -> pl.DataFrame:
    """What stays when all candidates are looked at together, by nine digits; all that tie for the last place do."""
    groups, numbers = candidates[GROUP].to_numpy(), [candidates[name].to_numpy() for name in values]
    if best == 1:
        most = np.full(int(groups.max()) + 1, -math.inf)
        np.maximum.at(most, groups, numbers[0])
        return candidates.filter(pl.Series(numbers[0] == most[groups]))
    reducer = Winners(1, len(values), best, 0.0)
    status = np.zeros(candidates.height, dtype=np.uint8)
    alive, _, _ = reducer.add([groups.astype(np.uint64)], list(map(np.ascontiguousarray, numbers)), status)
    return candidates[alive]


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


def _counts(state: Winners) -> tuple[NDArray[Any], NDArray[np.uint8], NDArray[np.uint64]]:
    """Group, status code and number of all points of a group that share a status, group after group."""
    counted = [(code, state.counts(code)) for code in range(len(_STATUSES))]
    there = [(code, counts) for code, counts in counted if len(counts)]
    table = np.stack([counts for _, counts in there], axis=1)
    groups, places = np.nonzero(table)
    codes = np.array([code for code, _ in there], dtype=np.uint8)
    return groups, codes[places], table[groups, places]


def _is_constant(series: pl.Series) -> bool:
    nulls = series.null_count()
    return nulls == len(series) or (not nulls and bool((series == series.head(1)).all()))
