"""What a sweep writes of a part when it keeps the frontier alone: winners, and one row for all the others of a kind."""

from __future__ import annotations

from typing import Final

import polars as pl

from lambdamax.chunks import InMemory
from lambdamax.frames import REPLICA_COLUMNS
from lambdamax.objectives import Goal
from lambdamax.reducing import Reducer
from lambdamax.store import WEIGHT

_PER_GPU: Final = "_rate_per_gpu"
_PLACE: Final = "_place"


def kept_rows(points: pl.DataFrame, goal: Goal) -> pl.DataFrame:
    """The winners of `goal` among `points`, then one point for each other status of a group, with the column `points`.

    It says how many points a row stands for: the first winner for all that lost to it, a point that has no answer for
    all of its group that have none for the same reason (where it is not supported, on the same replica). Of points
    without a price it is the one with the most requests per accelerator, so that break-even prices can be told.
    """
    reducer = Reducer(goal)
    reducer.add(InMemory(points))
    winners, wins = reducer.winners(), points.select(_can_win(goal)).to_series()
    others = _others(points, ~wins, goal)
    if winners is None:
        return others
    standing = _weighed(winners, points.select(goal.keys), wins, goal)
    return pl.concat([standing, others.select(standing.columns)])


def _can_win(goal: Goal) -> pl.Expr:
    answered = [pl.col(each.column).is_not_null() for each in goal.objectives]
    return pl.all_horizontal(pl.col("status") == "ok", *answered)


def _weighed(winners: pl.DataFrame, keys: pl.DataFrame, wins: pl.Series, goal: Goal) -> pl.DataFrame:
    """The first winner of a group stands for all that lost."""
    if not goal.keys:
        first, lost = pl.int_range(pl.len()) == 0, wins.sum() - winners.height
        return winners.with_columns(pl.when(first).then(1 + lost).otherwise(1).cast(pl.UInt64).alias(WEIGHT))
    counted = keys.filter(wins).group_by(goal.keys).agg(pl.len().cast(pl.UInt64).alias(WEIGHT))
    held = winners.join(counted, on=goal.keys, how="left", nulls_equal=True)
    first, size = pl.int_range(pl.len()).over(goal.keys) == 0, pl.len().over(goal.keys)
    standing = pl.when(first).then(pl.col(WEIGHT) + 1 - size).otherwise(1)
    return held.with_columns(standing.cast(pl.UInt64))


def _others(points: pl.DataFrame, rest: pl.Series, goal: Goal) -> pl.DataFrame:
    """One point for all of a kind: of those without a price the one with the most requests per accelerator."""
    rate = (pl.col("max_rate_rps") / pl.col("gpus")).alias(_PER_GPU)
    unsupported = pl.when(pl.col("status") == "unsupported").then(pl.struct(REPLICA_COLUMNS)).alias("_replica")
    kinds = list(dict.fromkeys((*goal.keys, "status", "_replica")))
    named = [name for name in kinds if name != "_replica"]
    told = dict.fromkeys((*named, *REPLICA_COLUMNS, "max_rate_rps", "gpus"))
    narrow = points.select(list(told)).with_row_index(_PLACE).filter(rest)
    narrow = narrow.select(_PLACE, *named, unsupported, rate)
    ordered = narrow.sort(_PER_GPU, descending=True, nulls_last=True, maintain_order=True)
    count = pl.len().cast(pl.UInt64).alias(WEIGHT)
    found = ordered.group_by(kinds, maintain_order=True).agg(pl.col(_PLACE).first(), count)
    return points[found[_PLACE]].with_columns(found[WEIGHT])
