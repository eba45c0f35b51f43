"""From solved points to winners: the best point of each group, and what stops each of the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Final

import polars as pl

from lambdamax import columns
from lambdamax.catalog import Catalog, load_catalog
from lambdamax.exceptions import Fault, FrameError, UnknownName
from lambdamax.frames import REPLICA_COLUMNS
from lambdamax.replicas import Deployment
from lambdamax.store import part_columns, read_parts

_CHUNK_ROWS: Final = 262_144
# Roots are good to twelve digits: points that differ only beyond these are as good as each other.
_DIGITS: Final = 9
_SHARE: Final = "share_of_best"
_BECAUSE: Final = "unsupported_because"
_WHY: Final = ("points", "points_ok", "refused", _BECAUSE)


def frontier(
    source: str | Path | pl.LazyFrame | pl.DataFrame,
    *,
    maximize: str = "requests_per_usd",
    by: Sequence[str] | None = None,
    compare: str = "gpu",
    catalog: Catalog | None = None,
) -> pl.DataFrame:
    """The best point of every group and, ranked below it, the best that each other `compare` value can do there.

    `source` is the directory of a sweep, or solved points. A group shares the values of the columns `by`; None is every
    column that the customer brings: model, workload, SLO and price plan. Only points with status `ok` can win. Values
    that agree in nine significant digits are a tie, which goes to the smaller value of the first column of the
    dictionary in which the points differ (text by its letters, null last).

    One row per group and `compare` value: `by`, `compare`, `rank` (1 wins; null where nothing is ok), `maximize`,
    `share_of_best` (of the winner's value), `binding_limit` and `next_limit` of that row's point (what stops it),
    `points`, `points_ok`, `refused` (the statuses of the others, with their counts), `unsupported_because` (the
    catalogue's reasons for that status, a list, null for none), then the point's other columns.
    Parts are read one by one: memory grows with the answer, not with the source. `catalog` is the one that the points
    were solved with, None the shipped one. Raises StoreError if the directory is
    not a finished sweep, FrameError if a column is not there.
    """
    keys = _keys(_columns(source), maximize, by, compare)
    reduced = partial(_reduced, keys=keys, maximize=maximize, catalog=catalog or load_catalog())
    best: pl.DataFrame | None = None
    counts: pl.DataFrame | None = None
    refused: pl.DataFrame | None = None
    for found, counted, without in map(reduced, _chunks(source)):
        best = _best(_stacked(best, found), keys, maximize)
        counts = _summed(_stacked(counts, counted), keys)
        refused = _stacked(refused, without).unique(maintain_order=True)
    if best is None or counts is None or refused is None:
        raise FrameError((Fault("frontier", "source", "no rows", "solved points"),))
    because = refused.group_by(keys, maintain_order=True).agg(pl.col(_BECAUSE))
    reasons = _reasons(counts, keys).join(because, on=keys, how="left", nulls_equal=True)
    return _table(best, reasons, keys, maximize)


def _columns(source: str | Path | pl.LazyFrame | pl.DataFrame) -> list[str]:
    if isinstance(source, pl.DataFrame | pl.LazyFrame):
        return source.lazy().collect_schema().names()
    return part_columns(source)


def _chunks(source: str | Path | pl.LazyFrame | pl.DataFrame) -> Iterator[pl.DataFrame]:
    if isinstance(source, pl.DataFrame):
        return source.iter_slices(_CHUNK_ROWS)
    if isinstance(source, pl.LazyFrame):
        return iter(source.collect_batches(chunk_size=_CHUNK_ROWS))
    return read_parts(source)


def _keys(present: list[str], maximize: str, by: Sequence[str] | None, compare: str) -> list[str]:
    """The columns of a group and `compare`, which is last; FrameError if one of them is not there."""
    objectives = [column.name for column in columns.point_columns() if column.type == "f64" and column.role == "answer"]
    given = [column.name for column in columns.inputs() if column.role == "given" and column.name in present]
    inputs = [column.name for column in columns.inputs() if column.name in present]
    faults = [Fault("frontier", "by", name, f"one of {', '.join(inputs)}") for name in by or () if name not in inputs]
    if compare not in inputs:
        faults.append(Fault("frontier", "compare", compare, f"one of {', '.join(inputs)}"))
    if maximize not in objectives or maximize not in present:
        faults.append(Fault("frontier", "maximize", maximize, f"one of {', '.join(objectives)}"))
    if "status" not in present:
        faults.append(Fault("frontier", "status", "nothing", "solved points, with a column status"))
    if faults:
        raise FrameError(tuple(faults))
    return [*(name for name in dict.fromkeys(given if by is None else by) if name != compare), compare]


def _reduced(
    chunk: pl.DataFrame, *, keys: list[str], maximize: str, catalog: Catalog
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """What a chunk adds to the answer; the chunk itself is dropped before the next one is read."""
    return _best(chunk, keys, maximize), _counted(chunk, keys), _unsupported(chunk, keys, catalog)


def _best(points: pl.DataFrame, keys: list[str], maximize: str) -> pl.DataFrame:
    """The best ok point for each combination of `keys`."""
    value = _value(maximize)
    top = points.filter(pl.col("status") == "ok").filter(value == value.max().over(keys))
    return top.sort(_tie_order(top, maximize), nulls_last=True).unique(keys, keep="first", maintain_order=True)


def _value(maximize: str) -> pl.Expr:
    """The objective without the digits that depend on how a root was approached."""
    return pl.col(maximize).round_sig_figs(_DIGITS)


def _tie_order(points: pl.DataFrame, maximize: str) -> list[pl.Expr]:
    known = [column.name for column in columns.point_columns() if column.name in points.columns]
    return [-_value(maximize), *(_comparable(points, name) for name in known)]


def _comparable(points: pl.DataFrame, name: str) -> pl.Expr:
    return pl.col(name) if points.schema[name].is_numeric() else pl.col(name).cast(pl.String)


def _counted(chunk: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    return chunk.group_by(*keys, "status").agg(pl.len().cast(pl.UInt64).alias("points"))


def _unsupported(chunk: pl.DataFrame, keys: list[str], catalog: Catalog) -> pl.DataFrame:
    """For each combination of `keys` the reasons why points of it are not supported, one row each."""
    refused = chunk.filter(pl.col("status") == "unsupported")
    if not set(REPLICA_COLUMNS) <= set(chunk.columns):
        refused = refused.clear()
    names = [name for name in REPLICA_COLUMNS if name in refused.columns]
    refused = refused.select(list(dict.fromkeys((*keys, *names)))).unique(maintain_order=True)
    reasons = [_reason(catalog, Deployment(*replica)) for replica in refused.select(names).iter_rows()]
    told = refused.select(keys).with_columns(pl.Series(_BECAUSE, reasons, dtype=pl.String))
    return told.unique(maintain_order=True)


@cache
def _reason(catalog: Catalog, at: Deployment) -> str | None:
    try:
        return catalog.replica(at).unsupported
    except UnknownName:
        if at.model in catalog.models:
            return f"{at.gpu}: not in this catalogue; the one that the sweep used knows why"
        return f"{at.model}: its config.json describes a model that cannot be sized"


def _summed(counts: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    return counts.group_by(*keys, "status").agg(pl.col("points").sum())


def _stacked(above: pl.DataFrame | None, below: pl.DataFrame) -> pl.DataFrame:
    return below if above is None else pl.concat([above, below])


def _table(best: pl.DataFrame, reasons: pl.DataFrame, keys: list[str], maximize: str) -> pl.DataFrame:
    ranked = _ranked(best, keys[:-1], maximize)
    table = reasons.join(ranked, on=keys, how="left", nulls_equal=True)
    front = [*keys, "rank", maximize, _SHARE, "binding_limit", "next_limit", *_WHY]
    rest = [name for name in best.columns if name not in front]
    order = [*(_comparable(table, name) for name in keys[:-1]), pl.col("rank"), _comparable(table, keys[-1])]
    present = [name for name in (*front, *rest) if name in table.columns]
    return table.sort(order, nulls_last=True).select(present)


def _ranked(best: pl.DataFrame, group: list[str], maximize: str) -> pl.DataFrame:
    """`best` with the place of each point in its group, and its value as a share of the winner's."""
    ordered = best.sort(_tie_order(best, maximize), nulls_last=True)
    rank = pl.int_range(1, pl.len() + 1, dtype=pl.UInt32)
    value, best_value = pl.col(maximize), pl.col(maximize).first()
    share = pl.when(value == best_value).then(1.0).otherwise(value / best_value)
    if group:
        rank, share = rank.over(group), share.over(group)
    return ordered.with_columns(rank.alias("rank"), share.alias(_SHARE))


def _reasons(counts: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Per combination of `keys` the number of points, of ok points, and the other statuses, most frequent first."""
    is_ok = pl.col("status") == "ok"
    status = pl.col("status").cast(pl.String)
    ordered = counts.with_columns(status).sort(["points", "status"], descending=[True, False])
    reason = pl.format("{} {}", pl.col("status"), pl.col("points")).filter(~is_ok)
    return ordered.group_by(keys, maintain_order=True).agg(
        pl.col("points").sum(),
        pl.col("points").filter(is_ok).sum().alias("points_ok"),
        reason.str.join(", ").replace("", None).alias("refused"),
    )
