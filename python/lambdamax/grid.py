"""The product of axes as an index: rows by their place, solved when asked for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, Final, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lambdamax import columns, frames, names
from lambdamax.bands import COLUMNS as BAND_COLUMNS
from lambdamax.bands import PROVENANCE, Bands
from lambdamax.catalog import Catalog
from lambdamax.columns import Column
from lambdamax.engine import Arrays, Floats, Memory, Replicas, ReplicaTable
from lambdamax.frames import LENGTHS, REPLICA_COLUMNS
from lambdamax.lengths import LengthTable
from lambdamax.replicas import Deployment
from lambdamax.series import DTYPES, coded, series
from lambdamax.spec import Spec

_PRICE_COLUMNS: Final = ("price_plan", "provider")
_GIVEN_PRICE: Final = "usd_per_accelerator_hour"
_NO_CODE: Final = 255


@dataclass(frozen=True, eq=False)
class Grid:
    """The product of `axes`, slowest first, with what the catalogue says about it.

    `replicas` has one entry for each combination of the replica axes. `prices` [USD/h] is indexed by gpu, price_plan
    and provider (or the price that was given), NaN where there is none. `lengths` are the laws of that axis, if any.
    `categories` are the names that a text column may hold. `reasons` says of each replica why it is not supported. A
    grid is an index: no row exists before `solve`.
    """

    axes: Mapping[str, tuple[str | float, ...]]
    replicas: ReplicaTable
    prices: Floats
    lengths: tuple[LengthTable, ...]
    categories: Mapping[str, tuple[str, ...]]
    reasons: tuple[str | None, ...]
    bands: Bands

    @classmethod
    def of(cls, spec: Spec, catalog: Catalog) -> Self:
        """The grid of `spec`."""
        axes = spec.axes
        rows = [catalog.replica(at) for at in _deployments(axes)]
        labels = {name: _labels(columns.column(name), values, catalog) for name, values in axes.items()}
        bands = Bands.of(rows)
        texts = [column for column in columns.point_columns() if column.is_text]
        named = {LENGTHS: catalog.lengths, **labels, PROVENANCE: bands.names}
        categories = {column.name: column.values or named[column.name] for column in texts}
        laws = tuple(map(catalog.length_table, map(str, axes.get(LENGTHS, ()))))
        reasons = tuple(row.unsupported for row in rows)
        return cls(labels, ReplicaTable.of(rows), _price_table(axes, catalog), laws, categories, reasons, bands)

    @property
    def points(self) -> int:
        """The number of rows."""
        return math.prod(map(len, self.axes.values()))

    @property
    def unsupported(self) -> dict[str, int]:
        """The reasons why rows are not supported, each with the number of its rows."""
        rows = self.points // len(self.reasons) if self.reasons else 0
        return {reason: rows * count for reason, count in Counter(filter(None, self.reasons)).items()}

    @cached_property
    def schema(self) -> dict[str, pl.DataType]:
        """The types of a solved row, in the order of the dictionary."""
        return {column.name: self._dtype(column) for column in columns.point_columns()}

    def solve(self, start: int, stop: int, *, threads: int = 0, memory: Memory | None = None) -> pl.DataFrame:
        """The rows from `start` to before `stop`, solved, with every column of the dictionary; in `memory`, if any."""
        result = self._compiled.solve_grid(self._arrays, self.prices, (start, stop), threads, memory)
        replica = np.arange(start, stop) // (self.points // max(len(self.reasons), 1))
        answers = [column for column in columns.point_columns() if column.name not in BAND_COLUMNS]
        found = {column.name: self._column(column, result, stop - start) for column in answers}
        found |= {name: self.bands.column(name, result, replica) for name in BAND_COLUMNS}
        return pl.DataFrame([found[column.name] for column in columns.point_columns()])

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
        shape = [len(self.axes[name]) for name in REPLICA_COLUMNS]
        places = np.arange(len(self.reasons)).reshape(shape)
        chosen = places[np.ix_(*(picks[name] for name in REPLICA_COLUMNS))].ravel()
        replicas = self.replicas.only(chosen)
        reasons = tuple(self.reasons[place] for place in chosen)
        prices = self.prices[np.ix_(*(picks[name] for name in _offer_axes(self.axes)))]
        laws = tuple(self.lengths[place] for place in picks.get(LENGTHS, ()))
        bands = self.bands.only(chosen)
        return replace(self, axes=axes, replicas=replicas, prices=prices, lengths=laws, reasons=reasons, bands=bands)

    @cached_property
    def _compiled(self) -> Replicas:
        return Replicas(self.replicas, self.lengths)

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
        return pl.Enum(self.categories[column.name]) if column.is_text else DTYPES[column.type]

    def _column(self, column: Column, result: Arrays, height: int) -> pl.Series:
        given = column.name == "provider" and _GIVEN_PRICE in self.axes
        if column.name in (*REPLICA_COLUMNS, *_PRICE_COLUMNS) or (column.name == LENGTHS and self.lengths):
            if given or len(self.axes[column.name]) == 1:
                return self.values(column.name).new_from_index(0, height)
            codes = result[column.name]
            return self._decoded(column, codes.astype(np.intp) if column.name == LENGTHS else codes)
        if column.name in result and column.name != LENGTHS:
            return series(column, result[column.name], column.values)
        return pl.Series(column.name, [None], dtype=self._dtype(column)).new_from_index(0, height)

    def _axis_column(self, column: Column, rows: NDArray[np.int64]) -> pl.Series:
        return self._decoded(column, rows // self._strides[column.name] % len(self.axes[column.name]))

    def _decoded(self, column: Column, codes: NDArray[Any]) -> pl.Series:
        """The values at the places `codes` of an axis."""
        values = self.axes[column.name]
        if not column.is_text:
            return series(column, _axis_array(column, values)[codes], ())
        categories = self.categories[column.name]
        if tuple(values) != categories:
            places = {name: place for place, name in enumerate(categories)}
            codes = np.array([places.get(str(value), _NO_CODE) for value in values])[codes]
        return coded(column, codes, categories)


def _deployments(axes: Mapping[str, tuple[Any, ...]]) -> Iterable[Deployment]:
    for parts in product(*(axes[name] for name in REPLICA_COLUMNS)):
        yield Deployment(**dict(zip(REPLICA_COLUMNS, parts, strict=True)))


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
    if column.name == LENGTHS:
        return np.arange(len(values), dtype=np.float64)
    return np.zeros(len(values)) if column.is_text else np.array(values, dtype=np.float64)
