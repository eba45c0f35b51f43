"""A frame of points, checked in full and turned into what the engine takes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lambdamax import columns, names
from lambdamax.catalog import Catalog
from lambdamax.columns import Column
from lambdamax.exceptions import Fault, FrameError
from lambdamax.lengths import LengthTable
from lambdamax.replicas import DEGREES, Deployment, ReplicaRow
from lambdamax.spec import GIVEN

REPLICA_COLUMNS: Final = tuple(column.name for column in columns.of_groups("replica"))
REQUIRED: Final = ("model", "gpu")
LENGTHS: Final = "lengths"
MEANS: Final = ("isl_tokens", "osl_tokens")
_PRICE_KEYS: Final = ("gpu", "price_plan", "provider")
_PRICE: Final = "usd_per_accelerator_hour"
_FILE: Final = "frame"
# Moments of a law agree to this share: sums may be taken in another order.
_SAME: Final = 1e-9


@dataclass(frozen=True)
class Points:
    """Checked points: the `frame` as given, its distinct replicas as `rows`, each point's place in them as `replica`,
    the numeric inputs as arrays, NaN where not given, and the empirical laws, of which `numbers` has the places.
    """

    frame: pl.DataFrame
    rows: list[ReplicaRow]
    replica: NDArray[np.uint32]
    numbers: dict[str, NDArray[np.float64]]
    lengths: list[LengthTable]


def points(frame: pl.DataFrame | pl.LazyFrame, catalog: Catalog) -> Points:
    """The points of `frame`; FrameError naming every fault."""
    return _points(_collected(frame), columns.inputs(), [], catalog)


def loaded_points(frame: pl.DataFrame | pl.LazyFrame, catalog: Catalog) -> Points:
    """The points of `frame` with the load that each is asked about; FrameError naming every fault."""
    frame = _collected(frame)
    asked = tuple(column for column in columns.of_groups("load") if column.role == "asked")
    return _points(frame, (*columns.inputs(), *asked), list(_load_faults(frame)), catalog)


def price(catalog: Catalog, gpu: str, plan: str, provider: str) -> float:
    """Price of one accelerator [USD/h], NaN if the catalogue has none."""
    found = None if GIVEN in (plan, provider) else catalog.price(gpu, plan, provider)
    return math.nan if found is None else found.usd_per_accelerator_hour


def _points(frame: pl.DataFrame, known: tuple[Column, ...], faults: list[Fault], catalog: Catalog) -> Points:
    faults += [*_column_faults(frame, known), *_value_faults(frame, known, catalog)]
    faults += [] if faults else _length_faults(frame, catalog)
    if faults:
        raise FrameError(tuple(faults))
    texts = frame.select(_text(frame, column) for column in known if column.is_text)
    rows, replica = _replicas(texts.with_columns(_degree(frame, name) for name in DEGREES), catalog)
    numbers = {column.name: _floats(frame[column.name]) for column in known if _has_number(frame, column)}
    numbers[_PRICE] = _prices(texts, numbers.get(_PRICE), catalog)
    lengths, numbers[LENGTHS] = _lengths(texts[LENGTHS], catalog)
    return Points(frame, rows, replica, numbers, lengths)


def _collected(frame: pl.DataFrame | pl.LazyFrame) -> pl.DataFrame:
    """The streaming engine does not promise the order of rows, the in-memory engine does."""
    return frame.collect(engine="in-memory") if isinstance(frame, pl.LazyFrame) else frame


# Checks


def _column_faults(frame: pl.DataFrame, known: tuple[Column, ...]) -> Iterator[Fault]:
    allowed = [column.name for column in known]
    for name in frame.columns:
        if name not in allowed:
            yield Fault(_FILE, name, "an unknown column", f"the columns {', '.join(allowed)}")
    for name in REQUIRED if LENGTHS in frame.columns else (*REQUIRED, *MEANS):
        if name not in frame.columns:
            yield Fault(_FILE, name, "nothing", f"{columns.column(name).meaning} (required)")


def _load_faults(frame: pl.DataFrame) -> Iterator[Fault]:
    if ("rate_rps" in frame.columns) == ("concurrency" in frame.columns):
        yield Fault(_FILE, "rate_rps, concurrency", "", "exactly one of them as a column")
    if "think_time_s" in frame.columns and "concurrency" not in frame.columns:
        yield Fault(_FILE, "think_time_s", "a column", "only beside concurrency")


def _value_faults(frame: pl.DataFrame, known: Iterable[Column], catalog: Catalog) -> Iterator[Fault]:
    for column in known:
        if column.name in frame.columns:
            check = _text_faults if column.is_text else _number_faults
            yield from check(column, frame[column.name], catalog)


def _text_faults(column: Column, series: pl.Series, catalog: Catalog) -> Iterator[Fault]:
    if series.dtype not in (pl.String, pl.Enum, pl.Categorical, pl.Null):
        yield Fault(_FILE, column.name, f"type {series.dtype}", "text")
        return
    yield from _null_fault(column, series.is_null())
    for name in series.unique(maintain_order=True).drop_nulls().cast(pl.String):
        refusal = None if _is_given(column, name) else names.refusal(column, name, catalog)
        if refusal is not None:
            yield _fault(column, series.cast(pl.String) == name, repr(name), refusal)


def _number_faults(column: Column, series: pl.Series, catalog: Catalog) -> Iterator[Fault]:
    if not (series.dtype.is_numeric() or series.dtype == pl.Null):
        yield Fault(_FILE, column.name, f"type {series.dtype}", f"numbers: {column.allowed}")
        return
    numbers = pl.Series(_floats(series), nan_to_null=True)
    yield from _null_fault(column, numbers.is_null())
    refused = ~_admitted(column, numbers)
    if refused.any():
        yield _fault(column, refused, f"{numbers.filter(refused)[0]:.15g}", column.allowed)


def _admitted(column: Column, numbers: pl.Series) -> pl.Series:
    fits = numbers.is_between(column.minimum, column.maximum)
    return (fits & (numbers == numbers.round()) if column.is_whole else fits).fill_null(value=True)


def _null_fault(column: Column, missing: pl.Series) -> Iterator[Fault]:
    if column.name in (*REQUIRED, "rate_rps", "concurrency") and missing.any():
        yield _fault(column, missing, "null", "a value in every row")


def _length_faults(frame: pl.DataFrame, catalog: Catalog) -> Iterator[Fault]:
    """Lengths are told by their means or by a law, in every row; moments beside a law must be its own."""
    told = frame[LENGTHS].is_not_null() if LENGTHS in frame.columns else pl.repeat(False, frame.height, eager=True)
    for column in map(columns.column, columns.MOMENTS):
        given = pl.Series(_floats(frame[column.name]), nan_to_null=True) if column.name in frame.columns else None
        if given is None:
            given = pl.repeat(None, frame.height, dtype=pl.Float64, eager=True)
        if column.name in MEANS and (missing := given.is_null() & ~told).any():
            yield _fault(column, missing, "null", f"a value in every row without {LENGTHS}")
        if (refused := given.is_not_null() & told & ~_is_of_law(frame, column, given, catalog)).any():
            yield _fault(
                column, refused, f"{given.filter(refused)[0]:.15g}", f"null, or the law's own, beside {LENGTHS}"
            )


def _is_of_law(frame: pl.DataFrame, column: Column, given: pl.Series, catalog: Catalog) -> pl.Series:
    """Whether a moment is that of the row's law, as in rows that were solved before."""
    if LENGTHS not in frame.columns:
        return pl.repeat(False, frame.height, eager=True)
    laws = frame[LENGTHS].cast(pl.String)
    own = {name: catalog.length_table(name).moments[column.name] for name in laws.unique().drop_nulls()}
    expected = laws.replace_strict(own, default=None, return_dtype=pl.Float64)
    return ((given - expected).abs() <= _SAME * expected.abs()).fill_null(value=False)


def _fault(column: Column, refused: pl.Series, value: str, allowed: str) -> Fault:
    """The first refused row, and how many others there are."""
    others = int(refused.sum()) - 1
    more = f" (and {others} more rows)" if others > 0 else ""
    return Fault(_FILE, f"{column.name}[{refused.arg_max()}]", value + more, allowed)


def _is_given(column: Column, name: str) -> bool:
    return column.name == "provider" and name == GIVEN


# Conversion


def _text(frame: pl.DataFrame, column: Column) -> pl.Expr:
    found = pl.col(column.name).cast(pl.String) if column.name in frame.columns else pl.lit(None, pl.String)
    return (found.fill_null(column.default) if column.default else found).alias(column.name)


def _degree(frame: pl.DataFrame, name: str) -> pl.Series:
    """A degree of parallelism, 1 where it is not given."""
    found = frame[name] if name in frame.columns else pl.Series([None], dtype=pl.UInt32).new_from_index(0, frame.height)
    return found.cast(pl.Float64).fill_nan(None).fill_null(1).cast(pl.UInt32).alias(name)


def _replicas(texts: pl.DataFrame, catalog: Catalog) -> tuple[list[ReplicaRow], NDArray[np.uint32]]:
    keys, place = _distinct(texts.select(REPLICA_COLUMNS))
    return [catalog.replica(Deployment(**key)) for key in keys.iter_rows(named=True)], place


def _lengths(names: pl.Series, catalog: Catalog) -> tuple[list[LengthTable], NDArray[np.float64]]:
    """The laws that rows name, and each row's place among them, NaN where it names none."""
    known = names.unique(maintain_order=True).drop_nulls().to_list()
    places = names.replace_strict(known, range(len(known)), default=None, return_dtype=pl.Float64)
    return [catalog.length_table(name) for name in known], _floats(places)


def _prices(texts: pl.DataFrame, given: NDArray[np.float64] | None, catalog: Catalog) -> NDArray[np.float64]:
    offers, place = _distinct(texts.select(_PRICE_KEYS))
    listed = np.array([price(catalog, *offer) for offer in offers.iter_rows()], dtype=np.float64)[place]
    return listed if given is None else np.where(np.isnan(given), listed, given)


def _distinct(keys: pl.DataFrame) -> tuple[pl.DataFrame, NDArray[np.uint32]]:
    """The distinct rows of `keys` in order of appearance, and each row's place among them."""
    distinct = keys.unique(maintain_order=True)
    places = keys.join(distinct.with_row_index("place"), on=keys.columns, how="left", maintain_order="left")
    return distinct, places["place"].to_numpy()


def _has_number(frame: pl.DataFrame, column: Column) -> bool:
    return column.name in frame.columns and column.name not in REPLICA_COLUMNS and not column.is_text


def _floats(series: pl.Series) -> NDArray[Any]:
    return np.ascontiguousarray(series.cast(pl.Float64).fill_null(math.nan).to_numpy())
