"""From solved points to winners: the best of each group, or those that no other beats, and what stops the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Final

import polars as pl

from lambdamax import columns
from lambdamax.catalog import Catalog, load_catalog
from lambdamax.chunks import Chunk, Source, chunks, column_names, kept_of, whole
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
from lambdamax.reducing import Reducer, comparable, in_order
from lambdamax.replicas import Deployment
from lambdamax.store import WEIGHT, part_files

_SHARE: Final = "share_of_best"
_BECAUSE: Final = "unsupported_because"
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
    kept = kept_of(source)
    objective = _objective(maximize, minimize)
    goal = ranking_goal(column_names(source), kept, objective, by=by, compare=compare, best=best)
    _refuse_beyond(kept, goal, source)
    because = _Because(goal, catalog or load_catalog(), set(REPLICA_COLUMNS) <= set(column_names(source)))
    reducer = _reduced(source, goal, kept, because)
    winners = reducer.winners()
    told = because.told(reducer.counts())
    reasons = _reasons(reducer.counts(), goal).join(told, on=goal.keys, how="left", nulls_equal=True)
    table = _table(_points_of(source) if winners is None else winners, reasons, goal)
    return _arranged(whole(table, source), column_names(source), goal)


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
    kept = kept_of(source)
    goal = pareto_goal(column_names(source), kept, objectives_of(objectives), by)
    _refuse_beyond(kept, goal, source)
    winners = _reduced(source, goal, kept).winners()
    found = _points_of(source) if winners is None else whole(winners, source)
    named = [each.column for each in goal.objectives]
    front = dict.fromkeys((*goal.keys, *named, "gpu", "binding_limit", "next_limit", *column_names(source)))
    return found.select(name for name in front if name in found.columns and name != WEIGHT)


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


def _points_of(source: Source) -> pl.DataFrame:
    """No points, in the columns of `source`."""
    if isinstance(source, pl.DataFrame | pl.LazyFrame):
        return source.lazy().head(0).collect()
    first = part_files(source)[0]
    return first.read(first.columns).clear()


def _reduced(source: Source, goal: Goal, kept: Goal | None, because: _Because | None = None) -> Reducer:
    """All points taken in, a chunk dropped before the next is read; `because` looks at each as well."""
    reducer = Reducer(goal)
    weighed = [] if kept is None else [WEIGHT]
    for chunk in chunks(source, [*reducer.wanted, *weighed]):
        reducer.add(chunk, chunk.columns([WEIGHT])[WEIGHT].to_numpy() if weighed else None)
        if because is not None:
            because.add(chunk)
    if not reducer.counts().height:
        raise FrameError((Fault("frontier", "source", "no rows", "solved points"),))
    return reducer


class _Because:
    """For each combination of the keys, why points of it are not supported."""

    def __init__(self, goal: Goal, catalog: Catalog, is_known: bool) -> None:
        self._keys, self._catalog, self._is_known = list(goal.keys), catalog, is_known
        self._told: list[pl.DataFrame] = []

    def add(self, chunk: Chunk) -> None:
        if not self._is_known or not (chunk.columns(["status"])["status"] == "unsupported").any():
            return
        names = list(dict.fromkeys((*self._keys, "status", *REPLICA_COLUMNS)))
        refused = chunk.columns(names).filter(pl.col("status") == "unsupported").unique(maintain_order=True)
        replicas = refused.select(REPLICA_COLUMNS).iter_rows()
        reasons = [_reason(self._catalog, Deployment(*replica)) for replica in replicas]
        told = refused.select(self._keys).with_columns(pl.Series(_BECAUSE, reasons, dtype=pl.String))
        self._told.append(told.unique(maintain_order=True))

    def told(self, groups: pl.DataFrame) -> pl.DataFrame:
        """The keys of `groups`, and the reasons as a list; no row for a combination without any."""
        if not self._told:
            return pl.DataFrame(schema={**groups.select(self._keys).schema, _BECAUSE: pl.List(pl.String)})
        every = pl.concat(self._told).unique(maintain_order=True)
        return every.group_by(self._keys, maintain_order=True).agg(pl.col(_BECAUSE))


@cache
def _reason(catalog: Catalog, at: Deployment) -> str | None:
    try:
        return catalog.replica(at).unsupported
    except UnknownName:
        if at.model in catalog.models:
            return f"{at.gpu}: not in this catalogue; the one that the sweep used knows why"
        return f"{at.model}: its config.json describes a model that cannot be sized"


def _table(best: pl.DataFrame, reasons: pl.DataFrame, goal: Goal) -> pl.DataFrame:
    objective, keys = goal.objectives[0], list(goal.keys)
    ranked = _ranked(best.drop(WEIGHT, strict=False), keys[:-1], objective)
    table = reasons.join(ranked, on=keys, how="left", nulls_equal=True)
    order = [*(comparable(table, name) for name in keys[:-1]), pl.col("rank"), comparable(table, keys[-1])]
    return table.sort(order, nulls_last=True)


def _arranged(table: pl.DataFrame, given: Sequence[str], goal: Goal) -> pl.DataFrame:
    front = [*goal.keys, "rank", goal.objectives[0].column, _SHARE, "binding_limit", "next_limit", *_WHY]
    rest = [name for name in given if name not in front and name != WEIGHT]
    return table.select(name for name in (*front, *rest) if name in table.columns)


def _ranked(best: pl.DataFrame, group: list[str], objective: Objective) -> pl.DataFrame:
    """`best` with the place of each point in its group, and its value as a share of the winner's."""
    ordered = in_order(best, group, (objective,))
    rank = pl.int_range(1, pl.len() + 1, dtype=pl.UInt32)
    value, best_value = pl.col(objective.column), pl.col(objective.column).first()
    ratio = value / best_value if objective.sign > 0 else best_value / value
    share = pl.when(value == best_value).then(1.0).otherwise(ratio)
    if group:
        rank, share = rank.over(group), share.over(group)
    return ordered.with_columns(rank.alias("rank"), share.alias(_SHARE))


def _reasons(counts: pl.DataFrame, goal: Goal) -> pl.DataFrame:
    """Per combination of the keys the number of points, of ok points, and the other statuses, most frequent first."""
    statuses = [name for name in counts.columns if name not in goal.keys]
    patterns = counts.select(statuses).unique()
    told = [_refused({name: count for name, count in row.items() if count and name != "ok"}) for row in _rows(patterns)]
    words = patterns.with_columns(pl.Series("refused", told, dtype=pl.String))
    summed = [pl.sum_horizontal(statuses).alias("points"), pl.col("ok").alias("points_ok"), pl.col("refused")]
    return counts.join(words, on=statuses, how="left", maintain_order="left").select(*goal.keys, *summed)


def _rows(frame: pl.DataFrame) -> Iterator[dict[str, int]]:
    return frame.iter_rows(named=True)


def _refused(counts: Mapping[str, int]) -> str | None:
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{status} {count}" for status, count in ordered) or None
