"""Columns in, columns out: frames and grids put to the compiled engine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, Final, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lambdamax import _engine, columns, frames, names
from lambdamax.catalog import Catalog, ReplicaRow, load_catalog
from lambdamax.columns import Column
from lambdamax.frames import REPLICA_COLUMNS, Points
from lambdamax.spec import Spec

Floats = NDArray[np.float64]
VERSION: Final = _engine.__version__
_PRICE_COLUMNS: Final = ("price_plan", "provider")
_GIVEN_PRICE: Final = "usd_per_accelerator_hour"
_NULL: Final = 255
_DTYPES: Final = {"f64": pl.Float64(), "u32": pl.UInt32(), "u16": pl.UInt16()}


def build_profile() -> str:
    """How the engine was compiled: `release` or `debug`."""
    return _engine.build_profile()


# Frames


def solve(frame: pl.DataFrame | pl.LazyFrame, *, threads: int = 0) -> pl.DataFrame:
    """Solve every row of `frame`: its columns, in its order, with the answers appended.

    The columns are inputs of the dictionary; `model`, `gpu`, `isl_tokens` and `osl_tokens` are required, and a column
    or a value that is missing takes its default. `threads` 0 uses every core. Raises FrameError naming every column
    that is unknown and every value that is not allowed, with its row.
    """
    points = frames.points(frame, load_catalog())
    result = _engine.solve(_replicas(points.rows), points.replica, points.numbers, threads)
    return _with_answers(points, result, columns.of_groups("answer", "operating", "money"))


def load(frame: pl.DataFrame | pl.LazyFrame, *, threads: int = 0) -> pl.DataFrame:
    """The operating point of every row of `frame` under a given load, as `solve` does for the largest one.

    Beside the inputs, `frame` has `rate_rps` (open loop), or `concurrency` and perhaps `think_time_s` (closed loop).
    """
    points = frames.loaded_points(frame, load_catalog())
    result = _engine.load(_replicas(points.rows), points.replica, points.numbers, threads)
    result["load_status"] = result.pop("status")
    return _with_answers(points, result, columns.of_groups("answer", "operating", "load"))


def facts(rows: Sequence[ReplicaRow]) -> pl.DataFrame:
    """What the engine derives from each replica alone: bytes, parameters and KV bytes per token, one row each."""
    found = _replicas(rows).facts()
    return pl.DataFrame([pl.Series(name, values, nan_to_null=True) for name, values in found.items()])


def one_number(row: ReplicaRow, **inputs: float) -> dict[str, float]:
    """The chain that holds one measured/floor ratio and prefill for free; inputs as `_engine.one_number` names them."""
    return _engine.one_number(_replicas([row]), 0, **inputs)


def _replicas(rows: Sequence[ReplicaRow]) -> _engine.Replicas:
    return _engine.Replicas(_replica_table(rows))


def _replica_table(rows: Sequence[ReplicaRow]) -> dict[str, Floats]:
    return {name: np.array([row.fields[name] for row in rows], dtype=np.float64) for name in _engine.REPLICA_FIELDS}


def _with_answers(points: Points, result: Mapping[str, NDArray[Any]], answers: Iterable[Column]) -> pl.DataFrame:
    held = points.frame.columns
    wanted = [column for column in answers if column.name in result and column.name not in held]
    return points.frame.with_columns([_series(column, result[column.name], column.values) for column in wanted])


# Grids


@dataclass(frozen=True, eq=False)
class Grid:
    """The product of `axes`, slowest first, with what the catalogue says about it.

    `replicas` has one entry for each combination of the replica axes. `prices` [USD/h] is indexed by gpu, price_plan
    and provider (or the price that was given), NaN where there is none. `categories` are the names that a text column
    may hold. A grid is an index: no row exists before `solve`.
    """

    axes: Mapping[str, tuple[str | float, ...]]
    replicas: Mapping[str, Floats]
    prices: Floats
    categories: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, spec: Spec, catalog: Catalog) -> Self:
        """The grid of `spec`."""
        axes = spec.axes
        rows = [catalog.replica(*combination) for combination in _combinations(axes)]
        labels = {name: _labels(columns.column(name), values, catalog) for name, values in axes.items()}
        texts = [column for column in columns.point_columns() if column.is_text]
        categories = {column.name: column.values or labels[column.name] for column in texts}
        return cls(labels, _replica_table(rows), _price_table(axes, catalog), categories)

    @property
    def points(self) -> int:
        """The number of rows."""
        return math.prod(map(len, self.axes.values()))

    @cached_property
    def schema(self) -> dict[str, pl.DataType]:
        """The types of a solved row, in the order of the dictionary."""
        return {column.name: self._dtype(column) for column in columns.point_columns()}

    def solve(self, start: int, stop: int, *, threads: int = 0) -> pl.DataFrame:
        """The rows from `start` to before `stop`, solved, with every column of the dictionary."""
        result = _engine.solve_grid(self._compiled, self._arrays, self.prices.ravel(), start, stop, threads)
        return pl.DataFrame([self._column(column, result, stop - start) for column in columns.point_columns()])

    def inputs(self, start: int, stop: int, only: Iterable[str]) -> pl.DataFrame:
        """The columns `only`, axes all, of the rows from `start` to before `stop`; nothing is solved."""
        rows = np.arange(start, stop)
        return pl.DataFrame([self._axis_column(columns.column(name), rows) for name in only], height=stop - start)

    def values(self, axis: str) -> pl.Series:
        """The values of one axis as a column."""
        return self._decoded(columns.column(axis), np.arange(len(self.axes[axis])))

    def restricted(self, kept: Mapping[str, NDArray[np.intp]]) -> Grid:
        """The grid of only the `kept` values (by their index) of some axes; rows keep their order and their answers."""
        index = [kept.get(name, np.arange(len(values))) for name, values in self.axes.items()]
        picks = dict(zip(self.axes, index, strict=True))
        axes = {name: tuple(values[i] for i in picks[name]) for name, values in self.axes.items()}
        chosen = np.ix_(*(picks[name] for name in REPLICA_COLUMNS))
        shape = [len(self.axes[name]) for name in REPLICA_COLUMNS]
        replicas = {name: table.reshape(shape)[chosen].ravel() for name, table in self.replicas.items()}
        prices = self.prices[np.ix_(*(picks[name] for name in _offer_axes(self.axes)))]
        return replace(self, axes=axes, replicas=replicas, prices=prices)

    @cached_property
    def _compiled(self) -> _engine.Replicas:
        return _engine.Replicas(dict(self.replicas))

    @cached_property
    def _arrays(self) -> list[tuple[str, Floats]]:
        """The axes as the engine knows them: prices that were given stand in the place of providers."""
        arrays = {name: _axis_array(columns.column(name), values) for name, values in self.axes.items()}
        if _GIVEN_PRICE in arrays:
            arrays["provider"] = arrays.pop(_GIVEN_PRICE)
        return list(arrays.items())

    @cached_property
    def _strides(self) -> dict[str, int]:
        sizes = [len(values) for values in self.axes.values()]
        return {name: math.prod(sizes[place + 1 :]) for place, name in enumerate(self.axes)}

    def _dtype(self, column: Column) -> pl.DataType:
        return pl.Enum(self.categories[column.name]) if column.is_text else _DTYPES[column.type]

    def _column(self, column: Column, result: Mapping[str, NDArray[Any]], height: int) -> pl.Series:
        if column.name == "provider" and _GIVEN_PRICE in self.axes:
            return self._decoded(column, np.zeros(height, dtype=np.uint32))
        if column.name in (*REPLICA_COLUMNS, *_PRICE_COLUMNS):
            return self._decoded(column, result[column.name])
        if column.name in result:
            return _series(column, result[column.name], column.values)
        return pl.Series(column.name, [None], dtype=self._dtype(column)).new_from_index(0, height)

    def _axis_column(self, column: Column, rows: NDArray[np.int64]) -> pl.Series:
        return self._decoded(column, rows // self._strides[column.name] % len(self.axes[column.name]))

    def _decoded(self, column: Column, codes: NDArray[Any]) -> pl.Series:
        """The values at the places `codes` of an axis."""
        values = self.axes[column.name]
        if not column.is_text:
            return _series(column, _axis_array(column, values)[codes], ())
        categories = self.categories[column.name]
        if tuple(values) != categories:
            places = {name: place for place, name in enumerate(categories)}
            codes = np.array([places.get(str(value), _NULL) for value in values])[codes]
        return _coded(column, codes, categories)


def _combinations(axes: Mapping[str, tuple[Any, ...]]) -> Iterable[tuple[Any, ...]]:
    return product(*(axes[name] for name in REPLICA_COLUMNS))


def _labels(column: Column, values: tuple[Any, ...], catalog: Catalog) -> tuple[Any, ...]:
    return tuple(names.label(column, value, catalog) for value in values) if column.is_text else values


def _offer_axes(axes: Mapping[str, object]) -> tuple[str, str, str]:
    """The axes of the price table."""
    return "gpu", "price_plan", _GIVEN_PRICE if _GIVEN_PRICE in axes else "provider"


def _price_table(axes: Mapping[str, tuple[Any, ...]], catalog: Catalog) -> Floats:
    offers = [axes[name] for name in _offer_axes(axes)]
    given = _GIVEN_PRICE in axes
    found = [offer[-1] if given else frames.price(catalog, *offer) for offer in product(*offers)]
    return np.array(found, dtype=np.float64).reshape([len(values) for values in offers])


def _axis_array(column: Column, values: Sequence[Any]) -> Floats:
    return np.zeros(len(values)) if column.is_text else np.array(values, dtype=np.float64)


# Series


def _series(column: Column, values: NDArray[Any], categories: Sequence[str]) -> pl.Series:
    """`values` as a column of the dictionary's type; floats share their memory with it, NaN becomes null."""
    if column.is_text:
        return _coded(column, values, categories)
    series = pl.Series(column.name, values, nan_to_null=True)
    return series if column.type == "f64" else series.cast(_DTYPES[column.type])


def _coded(column: Column, codes: NDArray[Any], categories: Sequence[str]) -> pl.Series:
    """Names by their place in `categories`; a code beyond them is null."""
    dtype = pl.Enum(categories)
    physical = np.uint8 if len(categories) < 255 else np.uint16 if len(categories) < 65_535 else np.uint32
    return pl.Series(column.name, codes.astype(physical, copy=False)).cat.to(dtype, strict=False)
