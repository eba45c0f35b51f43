"""Maps: which option wins where, and by how much; what binds where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from lambdamax.catalog import Catalog
from lambdamax.chunks import Source
from lambdamax.frames import REPLICA_COLUMNS
from lambdamax.frontier import frontier

_CHOICES: Final = (*REPLICA_COLUMNS[1:], "max_num_seqs", "max_num_batched_tokens")


def winner_map(
    source: Source,
    *,
    maximize: str | None = None,
    minimize: str | None = None,
    by: Sequence[str] | None = None,
    compare: str | None = None,
    catalog: Catalog | None = None,
) -> pl.DataFrame:
    """Which `compare` value wins in each group, and by how much.

    The arguments, and what is raised, are those of `frontier`. One row per group in which anything is ok: `by`,
    `winner`, the objective (its value), `runner_up` and its value (null where nothing else is ok), `lead` (how many
    times as good the winner is: the ratio of the two values, 1 or more), `binding_limit` and `next_limit` of the
    winner, and what the operator chose for it.
    """
    asked: dict[str, Any] = {"maximize": maximize, "minimize": minimize, "compare": compare, "catalog": catalog}
    table = frontier(source, by=by, **asked)
    keys, competing, objective = parts_of(table)
    first, second = (table.filter(pl.col("rank") == rank) for rank in (1, 2))
    runner_up = second.select(
        *keys,
        pl.col(competing).alias("runner_up"),
        pl.col(objective).alias(f"runner_up_{objective}"),
        (1 / pl.col("share_of_best")).alias("lead"),
    )
    chosen = [name for name in _CHOICES if name in table.columns and name not in (*keys, competing, objective)]
    front = [*keys, pl.col(competing).alias("winner"), objective, "binding_limit", "next_limit", *chosen]
    present = [name for name in front if not isinstance(name, str) or name in table.columns]
    joined = _beside(first.select(present), runner_up, keys)
    told = [*keys, "winner", objective, "runner_up", f"runner_up_{objective}", "lead"]
    return joined.select(*told, *(name for name in joined.columns if name not in told))


def binding_map(
    source: Source,
    *,
    maximize: str | None = None,
    minimize: str | None = None,
    by: Sequence[str] | None = None,
    compare: str | None = None,
    catalog: Catalog | None = None,
) -> pl.DataFrame:
    """What binds the best point of each group and `compare` value, and what would bind next.

    The arguments, and what is raised, are those of `frontier`. One row per group and `compare` value: `by`, `compare`,
    `binding_limit`, `next_limit`, the objective (all null where nothing is ok) and `refused` (why not).
    """
    asked: dict[str, Any] = {"maximize": maximize, "minimize": minimize, "compare": compare, "catalog": catalog}
    table = frontier(source, by=by, **asked)
    keys, competing, objective = parts_of(table)
    told = (*keys, competing, "binding_limit", "next_limit", objective, "refused")
    return table.select(name for name in told if name in table.columns)


def parts_of(table: pl.DataFrame) -> tuple[list[str], str, str]:
    """Of a table that `frontier` made: the columns of a group, what competes, the objective."""
    rank = table.columns.index("rank")
    return table.columns[: rank - 1], table.columns[rank - 1], table.columns[rank + 1]


def _beside(left: pl.DataFrame, right: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Each group's row of `left` with that of `right`; with no keys there is one group."""
    if keys:
        return left.join(right, on=keys, how="left", nulls_equal=True, maintain_order="left")
    one = pl.lit(0).alias("_group")
    return left.with_columns(one).join(right.with_columns(one), on="_group", how="left").drop("_group")
