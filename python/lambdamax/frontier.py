"""From solved points to winners: the best of each group, or those that no other beats, and what stops the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lambdamax import columns
from lambdamax.catalog import Catalog, load_catalog
from lambdamax.chunks import Chunk, Points, Source, opened
from lambdamax.exceptions import Fault, FrameError, StoreError, UnknownName
from lambdamax.frames import REPLICA_COLUMNS
from lambdamax.objectives import (
    DEFAULT_COMPARE,
    DEFAULT_OBJECTIVE,
    Goal,
    Objective,
    checked,
    given_columns,
    objectives_of,
)
from lambdamax.reducing import (
    GROUP,
    Outcome,
    Reducer,
    Summary,
    first_within,
    in_order,
    place_within,
    rounded,
    rounded_names,
    stretches,
    value_names,
)
from lambdamax.replicas import Deployment
from lambdamax.store import WEIGHT, write_frames, written

_SHARE: Final = "share_of_best"
_BECAUSE: Final = "unsupported_because"
_CONTEST, _PLACE, _COUNTED = "_contest", "_place", "_counted"
_LAST: Final = 2**32 - 1
_NOBODY: Final = pl.DataFrame(schema={GROUP: pl.UInt32, "rank": pl.UInt32, _SHARE: pl.Float64})
_WHY: Final = ("points", "points_ok", "refused", _BECAUSE)


def frontier(
    source: Source,
    *,
    maximize: str | None = None,
    minimize: str | None = None,
    by: Sequence[str] | None = None,
    compare: str | None = None,
    best: int = 1,
    catalog: Catalog | None = None,
) -> pl.DataFrame:
    """The best point of every group and, ranked below it, the best that each other `compare` value can do there.

    `source` is the directory of a sweep, or solved points. What is best is the largest `maximize` (None:
    requests_per_usd) or, where that is given in its place, the smallest `minimize`. A group shares the values of the
    columns `by`; None is every column that the customer brings: model, workload, SLO and price plan. `compare` None is
    gpu. Only points with status `ok` can win. Values that agree in nine significant digits are a tie, which goes to the
    smaller value of the first column of the dictionary in which the points differ (text by its letters, null last).

    Up to `best` rows per group and `compare` value: `by`, `compare`, `rank` (1 wins; null where nothing is ok), the
    objective, `share_of_best` (of the winner's value; where small is best the winner's value over this),
    `binding_limit` and `next_limit` of that row's point (what stops it), `points`, `points_ok`, `refused` (the statuses
    of the others, with their counts), `unsupported_because` (the catalogue's reasons for that status, a list, null for
    none), then the point's other columns.
    Parts are read one by one: memory grows with the answer, not with the source. `catalog` is the one that the points
    were solved with, None the shipped one. Raises StoreError if the directory is not a finished sweep, or kept too few
    of its points, FrameError if a column is not there.
    """
    asked = {"by": by, "compare": compare, "best": best}
    return _ranking(source, _objective(maximize, minimize), asked, catalog).table()


@dataclass(frozen=True)
class Written:
    """What `write_frontier` wrote: the rows of the table, and how many points and ok points its groups have."""

    path: Path
    rows: int
    points: int
    points_ok: int


def write_frontier(
    source: Source,
    out: str | Path,
    *,
    maximize: str | None = None,
    minimize: str | None = None,
    by: Sequence[str] | None = None,
    compare: str | None = None,
    best: int = 1,
    catalog: Catalog | None = None,
) -> Written:
    """Write the table that `frontier` gives for the same arguments as the Parquet file `out`, whole or not at all.

    Its rows pass through memory by some ten thousand, put by on the way beside `out`, which takes about as much room as
    the file: memory grows with the keys of the answer, not with its columns. Raises what `frontier` raises, and
    StoreError if the file cannot be written.
    """
    path, asked = Path(out), {"by": by, "compare": compare, "best": best}
    ranking = _ranking(source, _objective(maximize, minimize), asked, catalog)
    temporary = path.with_name(f"{path.name}.tmp")
    with written(path, temporary), TemporaryDirectory(prefix=f"{path.name}.", dir=path.parent) as folder:
        write_frames(ranking.blocks(Path(folder)), temporary)
    return Written(path, ranking.rows.height, *ranking.totals)


def pareto(
    source: Source,
    objectives: Mapping[str, str],
    *,
    by: Sequence[str] | None = None,
) -> pl.DataFrame:
    """The points of each group that no other point of it beats: as good in every objective, and better in one.

    `objectives` are columns with `max` or `min`, such as {"requests_per_usd": "max", "tpot_mean_s": "min"}; `source`,
    `by`, ties and what is raised are as for `frontier`. Points that tie in every objective are one.

    One row per point of a set, sorted by the group, then from the best to the worst of the first objective: `by`, the
    objectives, `gpu`, `binding_limit` and `next_limit`, then the point's other columns.
    """
    points = opened(source)
    goal = pareto_goal(points.names, points.kept, objectives_of(objectives), by)
    _refuse_beyond(points.kept, goal, source)
    winners = _reduced(points, goal).winners()
    named = [each.column for each in goal.objectives]
    front = dict.fromkeys((*goal.keys, *named, "gpu", "binding_limit", "next_limit", *points.names))
    shown = [name for name in front if name in points.names and name != WEIGHT]
    return points.told(pl.DataFrame() if winners is None else winners, shown)


def kept_goal(
    *,
    maximize: str | None = None,
    minimize: str | None = None,
    by: Sequence[str] | None = None,
    compare: str | None = None,
    best: int = 1,
    pareto: Mapping[str, str] | None = None,
) -> Goal:
    """What `sweep` shall keep of all points: the winners that `frontier`, or with `pareto` the function of that name,
    finds with the same arguments. FrameError names every fault.
    """
    present = [column.name for column in columns.point_columns()]
    if pareto is None:
        return ranking_goal(present, None, _objective(maximize, minimize), by=by, compare=compare, best=best)
    faults = [("maximize", maximize), ("minimize", minimize), ("compare", compare)]
    if taken := [Fault("frontier", name, value, "nothing beside pareto") for name, value in faults if value]:
        raise FrameError(tuple(taken))
    return pareto_goal(present, None, objectives_of(pareto), by)


def ranking_goal(
    present: Sequence[str],
    kept: Goal | None,
    asked: Objective | None,
    *,
    by: Sequence[str] | None,
    compare: str | None,
    best: int = 1,
) -> Goal:
    """The goal of a ranking; what is not said is as in `kept`, else the default. FrameError names every fault."""
    ranked = kept if kept is not None and kept.best else None
    objective = asked or (ranked.objectives[0] if ranked else Objective(DEFAULT_OBJECTIVE))
    competing = compare or (ranked.keys[-1] if ranked else DEFAULT_COMPARE)
    group = by if by is not None else ranked.keys if ranked else given_columns(present)
    goal = Goal.ranking(objective, group, competing, best)
    if not best:
        raise FrameError((Fault("frontier", "best", "0", "a whole number from 1"),))
    return checked(goal, present, compare=competing)


def _objective(maximize: str | None, minimize: str | None) -> Objective | None:
    if maximize is not None and minimize is not None:
        raise FrameError((Fault("frontier", "minimize", minimize, "one of maximize and minimize, not both"),))
    return Objective(minimize, "min") if minimize is not None else Objective(maximize) if maximize is not None else None


def pareto_goal(
    present: Sequence[str], kept: Goal | None, objectives: Sequence[Objective], by: Sequence[str] | None
) -> Goal:
    """The goal of a Pareto set; None is every column that the customer brings. FrameError names every fault."""
    group = by if by is not None else given_columns(present) if kept is None else kept.keys
    return checked(Goal.pareto(objectives, group), present)


def _refuse_beyond(kept: Goal | None, goal: Goal, source: Source) -> None:
    if kept is not None and not kept.answers(goal):
        allowed = "ask for that, or for fewer columns of its groups, or sweep again without --keep"
        raise StoreError(f"{source}: it holds {kept} alone, not {goal}: {allowed}")


def _reduced(points: Points, goal: Goal, because: _Because | None = None) -> Reducer:
    """All points taken in; `because` looks at each as well."""
    reducer = Reducer(goal, points.apart)
    weighed = [] if points.kept is None else [WEIGHT]

    def look(chunk: Chunk) -> tuple[Summary, pl.DataFrame | None]:
        weights = chunk.columns([WEIGHT])[WEIGHT].to_numpy() if weighed else None
        return reducer.summary(chunk, weights), None if because is None else because.look(chunk)

    for summary, told in points.each([*reducer.wanted, *weighed], look):
        reducer.take(summary)
        if because is not None and told is not None:
            because.take(told)
    if not reducer.has_points:
        raise FrameError((Fault("frontier", "source", "no rows", "solved points"),))
    return reducer


class _Because:
    """For each combination of the keys, why points of it are not supported."""

    def __init__(self, goal: Goal, catalog: Catalog, is_known: bool) -> None:
        self._keys, self._catalog, self._is_known = list(goal.keys), catalog, is_known
        self._told: list[pl.DataFrame] = []

    def look(self, chunk: Chunk) -> pl.DataFrame | None:
        """The keys of points that are not supported, with the reasons; None where there is none."""
        if not self._is_known or not (chunk.columns(["status"])["status"] == "unsupported").any():
            return None
        names = list(dict.fromkeys((*self._keys, "status", *REPLICA_COLUMNS)))
        refused = chunk.columns(names).filter(pl.col("status") == "unsupported").unique(maintain_order=True)
        replicas = refused.select(REPLICA_COLUMNS).iter_rows()
        reasons = [_reason(self._catalog, Deployment(*replica)) for replica in replicas]
        told = refused.select(self._keys).with_columns(pl.Series(_BECAUSE, reasons, dtype=pl.String))
        return told.unique(maintain_order=True)

    def take(self, told: pl.DataFrame) -> None:
        """Take in what `look` made of a chunk."""
        self._told.append(told)

    def told(self, groups: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
        """Of each of `groups`, which have the keys, the place of its reasons in the second, which is lists, or null."""
        if not self._told:
            nothing = pl.Series([None], dtype=pl.UInt32).new_from_index(0, max(groups.height, 1))
            return nothing, pl.Series(_BECAUSE, [], dtype=pl.List(pl.String))
        every = pl.concat(self._told).unique(maintain_order=True)
        if not self._keys:
            return pl.Series([0], dtype=pl.UInt32), every.select(pl.col(_BECAUSE).implode()).to_series()
        listed = every.group_by(self._keys, maintain_order=True).agg(pl.col(_BECAUSE)).with_row_index(_PLACE)
        placed = groups.join(listed, on=self._keys, how="left", nulls_equal=True, maintain_order="left")
        return placed[_PLACE], listed[_BECAUSE]


@cache
def _reason(catalog: Catalog, at: Deployment) -> str | None:
    try:
        return catalog.replica(at).unsupported
    except UnknownName:
        if at.model in catalog.models:
            return f"{at.gpu}: not in this catalogue; the one that the sweep used knows why"
        return f"{at.model}: its config.json describes a model that cannot be sized"


@dataclass(frozen=True)
class _Ranking:
    """The answer before its points are read: what is known of groups once for each, by number."""

    points: Points
    goal: Goal
    groups: pl.DataFrame
    """Keys, and the places of what is told of the group in `counts` and `because`."""
    counts: pl.DataFrame
    because: pl.Series
    rows: pl.DataFrame
    """In their order: `GROUP`, rank, share, and what the chunk told of the point."""

    def table(self) -> pl.DataFrame:
        """All of it."""
        rows = self._about(self.rows)
        return self.points.told(rows, self._arranged(rows.columns))

    def blocks(self, folder: Path) -> Iterator[pl.DataFrame]:
        """All of it, some rows at a time, the others in `folder`, which is empty."""
        known = self._about(self.rows.clear()).columns
        shown = self._arranged(known)
        for rows, told in self.points.in_blocks(self.rows, [name for name in shown if name not in known], folder):
            yield self._about(rows).hstack(told).select(shown)

    @property
    def totals(self) -> tuple[int, int]:
        """How many points there are, and how many of them are ok."""
        each = self.counts[self.groups[_COUNTED]]
        return int(each["points"].sum()), int(each["points_ok"].sum())

    def _about(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Some of the rows with all that is known of their groups."""
        groups = self.groups[rows[GROUP]]
        told = groups.hstack(self.counts[groups[_COUNTED]]).with_columns(self.because.gather(groups[_BECAUSE]))
        rest = [name for name in rows.columns if name not in told.columns]
        return told.drop(_COUNTED).hstack(rows.select(rest)).drop(GROUP)

    def _arranged(self, known: Sequence[str]) -> list[str]:
        """The columns of the answer, of which some are known."""
        given, objective = self.points.names, self.goal.objectives[0].column
        front = [*self.goal.keys, "rank", objective, _SHARE, "binding_limit", "next_limit", *_WHY]
        rest = [name for name in given if name not in front and name != WEIGHT]
        return [name for name in (*front, *rest) if name in known or name in given]


def _ranking(
    source: Source, objective: Objective | None, asked: Mapping[str, Any], catalog: Catalog | None
) -> _Ranking:
    points = opened(source)
    goal = ranking_goal(points.names, points.kept, objective, **asked)
    _refuse_beyond(points.kept, goal, source)
    because = _Because(goal, catalog or load_catalog(), set(REPLICA_COLUMNS) <= set(points.names))
    outcome = _reduced(points, goal, because).outcome()
    told, listed = because.told(outcome.keys)
    groups = outcome.keys.hstack([outcome.counted.alias(_COUNTED), told.alias(_BECAUSE)])
    return _Ranking(points, goal, groups, _reasons(outcome.counts), listed, _rows(outcome, points))


def _rows(outcome: Outcome, points: Points) -> pl.DataFrame:
    """Group, rank and share of each row of the answer, in their order, and what its chunk told of it."""
    order, contests = outcome.order, np.empty(len(outcome.counted), dtype=np.uint32)
    contests[order] = _contests(outcome.keys, order, outcome.goal.keys[:-1])
    standings = outcome.standings
    ranked = _NOBODY if standings is None else _ranked(standings, contests, outcome.goal, points)
    is_ranked = np.zeros(len(order), dtype=bool)
    is_ranked[ranked[GROUP].to_numpy()] = True
    others = pl.DataFrame({GROUP: order[~is_ranked[order]]})
    rows = pl.concat([ranked, others], how="diagonal")
    places = contests[rows[GROUP].to_numpy()].astype(np.uint64) << np.uint64(32)
    return rows[np.argsort(places + rows["rank"].fill_null(_LAST).to_numpy(), kind="stable")]


def _contests(keys: pl.DataFrame, order: NDArray[np.uint32], shared: Sequence[str]) -> NDArray[np.uint32]:
    """Of the groups in their `order` the number of the contest: those that share values in the columns `shared`."""
    differs = np.zeros(len(order), dtype=np.bool_)
    for name in shared:
        column = keys[name].gather(order)
        differs |= column.ne_missing(column.shift()).to_numpy()
    return np.cumsum(differs, dtype=np.uint32)


def _ranked(standings: pl.DataFrame, contests: NDArray[np.uint32], goal: Goal, points: Points) -> pl.DataFrame:
    """The winners with the place of each in its contest, and its value as a share of the first's."""
    contested = standings.with_columns(pl.Series(_CONTEST, contests[standings[GROUP].to_numpy()]))
    return pl.concat([_ranked_of(some, goal, points) for some in stretches([contested], _CONTEST)])


def _ranked_of(contested: pl.DataFrame, goal: Goal, points: Points) -> pl.DataFrame:
    """The same of some contests."""
    ordered = in_order(contested.with_columns(rounded(goal)), [_CONTEST, *rounded_names(goal)], points.apart)
    value = pl.col(value_names(goal)[0])
    best_value = first_within(_CONTEST, value)
    # By the reciprocal: the bits are then the same however polars spreads the one value over the others.
    ratio = value * (1 / best_value) if goal.objectives[0].sign > 0 else best_value / value
    share = pl.when(value == best_value).then(1.0).otherwise(ratio)
    found = ordered.with_columns((1 + place_within(_CONTEST)).alias("rank"), share.alias(_SHARE))
    return found.drop(_CONTEST, *value_names(goal), *rounded_names(goal))


def _reasons(counts: pl.DataFrame) -> pl.DataFrame:
    """The number of points, of ok points, and the other statuses, most frequent first."""
    others = [{name: count for name, count in row.items() if count and name != "ok"} for row in counts.to_dicts()]
    ok = pl.col("ok") if "ok" in counts.columns else pl.lit(0, pl.UInt64)
    summed = [pl.sum_horizontal(counts.columns).alias("points"), ok.alias("points_ok")]
    return counts.select(*summed, pl.Series("refused", map(_refused, others), dtype=pl.String))


def _refused(counts: Mapping[str, int]) -> str | None:
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{status} {count}" for status, count in ordered) or None
