"""A grid as a LazyFrame: rows are solved only when a query asks for them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.io.plugins import register_io_source

from lambdamax.catalog import Catalog
from lambdamax.grid import Grid
from lambdamax.spec import Spec, catalog_of, read_spec

_FIRST_BLOCK_ROWS: Final = 16_384
_LARGEST_BLOCK_ROWS: Final = 131_072
_LARGEST_PRODUCT: Final = 1_048_576


def scan(spec: str | Path | Spec, *, catalog: Catalog | None = None) -> pl.LazyFrame:
    """The rows of `spec` (a sweep file, or a Spec) as a LazyFrame: one per point of the grid, solved when asked for.

    Its columns are those of the dictionary but for the load: the inputs, each given or with what the engine took in its
    place, then the answers; units are SI and USD/h, an answer that a point does not have is null, and `status` says
    why. Rows are in the order of the grid, the last axis the fastest, where the query keeps order (polars' streaming
    engine does not). Names are Enums.

    A query solves what it needs: a filter on axes rules out values, and thus rows, beforehand; a query of axes alone
    solves nothing; any other filter and the choice of columns are applied block by block, so memory does not grow with
    the grid. Every collect solves anew. Names are looked up in `catalog` (`load_catalog(directory)`), else in the one
    that the spec names, else in the shipped one.

    Raises SpecError, naming every fault of the file. A point that cannot be solved raises nothing.
    """
    spec = spec if isinstance(spec, Spec) else read_spec(spec, catalog=catalog)
    grid = Grid.of(spec, catalog or catalog_of(spec))
    size = f"{grid.points} points"
    return register_io_source(_Source(grid), schema=grid.schema, is_pure=True, explain_name="GRID", explain_detail=size)


class _Source:
    """Answers one query: polars calls it with what it pushed down."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def __call__(
        self, with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        """Blocks of rows in order. `n_rows` counts rows before `predicate` takes any away."""
        grid, wanted = self.grid, with_columns or list(self.grid.schema)
        conjuncts = [] if predicate is None else list(_conjuncts(predicate))
        on_axes = [part for part in conjuncts if set(part.meta.root_names()) <= set(grid.axes)]
        if n_rows is None:
            grid = grid.restricted(_kept(grid, on_axes))
        stop = grid.points if n_rows is None else min(n_rows, grid.points)
        for block in _blocks(stop):
            rows = _matching(grid, on_axes, *block)
            frame = _rows(grid, {*wanted, *_roots(conjuncts)}, *rows)
            yield (frame if predicate is None else frame.filter(predicate)).select(wanted)


def _blocks(stop: int) -> Iterator[tuple[int, int]]:
    """Consecutive ranges, small at first: a query may stop early."""
    start, size = 0, _FIRST_BLOCK_ROWS
    while start < stop:
        yield start, min(start + size, stop)
        start, size = start + size, min(2 * size, _LARGEST_BLOCK_ROWS)


def _rows(grid: Grid, needed: set[str], start: int, stop: int) -> pl.DataFrame:
    """The rows with at least the columns `needed`; axes alone need no solving."""
    if start == stop or needed <= set(grid.axes):
        axes = grid.inputs(start, stop, [name for name in grid.axes if name in needed])
        return axes if needed <= set(grid.axes) else pl.DataFrame(schema=grid.schema)
    return grid.solve(start, stop)


def _conjuncts(predicate: pl.Expr) -> Iterator[pl.Expr]:
    """The parts of a conjunction, each of which every row must satisfy."""
    inputs = predicate.meta.pop()
    for left, right in (inputs, inputs[::-1]) if len(inputs) == 2 else ():
        if predicate.meta.eq(left & right):
            yield from _conjuncts(left)
            yield from _conjuncts(right)
            return
    yield predicate


def _kept(grid: Grid, on_axes: list[pl.Expr]) -> dict[str, NDArray[np.intp]]:
    """By axis, the places of the values that no predicate on axes rules out, whatever the values of the others."""
    open_places = {axis: np.ones(len(values), dtype=np.bool_) for axis, values in grid.axes.items()}
    for predicate in on_axes:
        axes = [axis for axis in grid.axes if axis in predicate.meta.root_names()]
        shape = [len(grid.axes[axis]) for axis in axes]
        if axes and math.prod(shape) <= _LARGEST_PRODUCT:
            true = _mask(_product([grid.values(axis) for axis in axes]), [predicate]).reshape(shape)
            for place, axis in enumerate(axes):
                open_places[axis] &= true.any(axis=tuple(other for other in range(len(axes)) if other != place))
    return {axis: np.flatnonzero(places) for axis, places in open_places.items()}


def _product(values: list[pl.Series]) -> pl.DataFrame:
    """Every combination of `values`, the first the slowest."""
    return reduce(lambda left, right: left.join(right, how="cross"), map(pl.Series.to_frame, values))


def _matching(grid: Grid, on_axes: list[pl.Expr], start: int, stop: int) -> tuple[int, int]:
    """The smallest range of rows between `start` and `stop` outside of which no row can match."""
    if not on_axes:
        return start, stop
    axes = [axis for axis in grid.axes if axis in _roots(on_axes)]
    true = np.flatnonzero(_mask(grid.inputs(start, stop, axes), on_axes))
    return (start + int(true[0]), start + int(true[-1]) + 1) if len(true) else (start, start)


def _mask(frame: pl.DataFrame, predicates: list[pl.Expr]) -> NDArray[np.bool_]:
    found = frame.select(pl.all_horizontal(predicates).fill_null(value=False)).to_series().to_numpy()
    return np.broadcast_to(found, frame.height)


def _roots(predicates: list[pl.Expr]) -> set[str]:
    return {name for predicate in predicates for name in predicate.meta.root_names()}
