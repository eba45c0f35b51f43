"""Break-even prices: at which price of an accelerator hour a loser wins, and up to which the winner stays one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import polars as pl
from numpy.typing import NDArray

from lambdamax.catalog import Catalog
from lambdamax.chunks import Chunk, Source, opened
from lambdamax.exceptions import Fault, FrameError
from lambdamax.frontier import frontier
from lambdamax.maps import parts_of
from lambdamax.objectives import DEFAULT_OBJECTIVE, Goal, Objective
from lambdamax.reducing import Reducer
from lambdamax.store import WEIGHT

_HOUR_S: Final = 3600.0
_PRICE: Final = "usd_per_accelerator_hour"
_NEEDED: Final = (DEFAULT_OBJECTIVE, "max_rate_rps", "gpus", _PRICE)
_SIZES: Final = ("tp", "pp", "dp", "ep", "weight_dtype", "kv_dtype")


def break_even(
    source: Source,
    *,
    by: Sequence[str] | None = None,
    compare: str | None = None,
    catalog: Catalog | None = None,
) -> pl.DataFrame:
    """The price of an accelerator hour at which each `compare` value is exactly as good as the best of the others.

    A replica's requests per dollar are 3600·rate/(gpus·price) [requests/USD], so with the replica held its break-even
    price is 3600·rate/gpus over the requests per dollar of the best other. What has no price has one too: of its points
    the one with the most requests per accelerator. Where every replica of an option has one price, as with one plan and
    one provider, no price changes which of its replicas is the best, and the answer holds for the option.

    The arguments, and what is raised, are those of `frontier`. One row per group and `compare` value that has an answer
    and another to be compared with: `by`, `compare`, `rank`, `usd_per_accelerator_hour` [USD/h] (null where there is
    none), `requests_per_usd` at it, `against` (the best other), `break_even_usd_per_hour` [USD/h], `price_ratio` (that
    over the price: below 1 the option must become cheaper to win, above 1 it stays ahead up to there), the rate, the
    devices and the degrees of its replica.
    """
    if missing := [name for name in _NEEDED if name not in opened(source).names]:
        allowed = "solved points, with rates, devices and prices"
        raise FrameError(tuple(Fault("break-even", name, "nothing", allowed) for name in missing))
    table = frontier(source, by=by, compare=compare, maximize=DEFAULT_OBJECTIVE, catalog=catalog)
    keys, competing, _ = parts_of(table)
    ranked = table.filter(pl.col("rank").is_not_null())
    rows = _with_unpriced(ranked, _unpriced(source, table, [*keys, competing]), [*keys, competing])
    return _compared(rows, keys, competing)


def _unpriced(source: Source, table: pl.DataFrame, keys: list[str]) -> pl.DataFrame | None:
    """Of each option without any price, the point with the most requests per accelerator."""
    if not table.filter(pl.col("refused").str.contains("no_price", literal=True)).height:
        return None
    points = opened(source)
    reducer = Reducer(Goal((Objective(DEFAULT_OBJECTIVE),), tuple(keys), 1), points.apart)
    for summary in points.each([*reducer.wanted, *_NEEDED], lambda chunk: reducer.summary(_AtOneDollar(chunk))):
        reducer.take(summary)
    winners = reducer.winners()
    return None if winners is None else points.told(winners, [name for name in points.names if name != WEIGHT])


class _AtOneDollar:
    """The points without a price, at one dollar an hour; the others do not count."""

    def __init__(self, chunk: Chunk) -> None:
        self._chunk = chunk

    def columns(self, names: Sequence[str]) -> pl.DataFrame:
        """All rows, these columns."""
        needed = dict.fromkeys((*names, "status", "max_rate_rps", "gpus"))
        return _repriced(self._chunk.columns(list(needed))).select(names)

    def rows(self, places: NDArray[Any]) -> pl.DataFrame:
        """The rows at `places`, as the chunk tells them, without their price."""
        return self._chunk.rows(places)


def _repriced(points: pl.DataFrame) -> pl.DataFrame:
    unpriced = pl.col("status") == "no_price"
    status = pl.when(unpriced).then(pl.lit("ok")).otherwise(pl.lit("no_price"))
    per_usd = pl.when(unpriced).then(_HOUR_S * pl.col("max_rate_rps") / pl.col("gpus")).alias(DEFAULT_OBJECTIVE)
    return points.with_columns(status.alias("status"), per_usd)


def _with_unpriced(ranked: pl.DataFrame, unpriced: pl.DataFrame | None, keys: list[str]) -> pl.DataFrame:
    """The best point of each option, with or without a price."""
    if unpriced is None:
        return ranked
    others = unpriced.join(ranked, on=keys, how="anti", nulls_equal=True).with_columns(
        pl.lit(None, pl.UInt32).alias("rank"), pl.lit(None, pl.Float64).alias(DEFAULT_OBJECTIVE)
    )
    common = [name for name in ranked.columns if name in others.columns and name != "status"]
    return pl.concat([ranked.select(common), others.select(common)])


def _compared(rows: pl.DataFrame, keys: list[str], competing: str) -> pl.DataFrame:
    group = [pl.col(name) for name in keys] or [pl.lit(0)]
    per_hour = _HOUR_S * pl.col("max_rate_rps") / pl.col("gpus")
    found = rows.with_columns(*(_of_place(group, place, competing) for place in (1, 2)))
    best, second = pl.col("_first"), pl.col("_second")
    other = pl.when(pl.col("rank") == 1).then(second).otherwise(best)
    found = found.with_columns(
        other.struct.field(competing).alias("against"),
        (per_hour / other.struct.field(DEFAULT_OBJECTIVE)).alias("break_even_usd_per_hour"),
    ).filter(pl.col("break_even_usd_per_hour").is_not_null())
    ratio = (pl.col("break_even_usd_per_hour") / pl.col(_PRICE)).alias("price_ratio")
    told = [*keys, competing, "rank", _PRICE, DEFAULT_OBJECTIVE, "against", "break_even_usd_per_hour"]
    replica = [name for name in ("max_rate_rps", "gpus", *_SIZES) if name in found.columns and name not in told]
    closest = pl.col("break_even_usd_per_hour")
    order = [*(pl.col(name) for name in keys), pl.col("rank"), -closest]
    return found.sort(order, nulls_last=True).select(*told, ratio, *replica)


def _of_place(group: list[pl.Expr], place: int, competing: str) -> pl.Expr:
    """The option of a rank in its group, with its value."""
    named = pl.struct(competing, DEFAULT_OBJECTIVE).filter(pl.col("rank") == place).first()
    return named.over(group).alias("_first" if place == 1 else "_second")
