"""Solved points chunk by chunk, whatever they come from: some columns of all, every column of the rows that matter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lambdamax.columns import inputs
from lambdamax.objectives import Goal
from lambdamax.store import WEIGHT, PartFile, kept_goal, part_files

Source = str | Path | pl.LazyFrame | pl.DataFrame
"""The directory of a sweep, or solved points."""

_CHUNK_ROWS: Final = 262_144
_PART, _ROW, _ORDER = "_part", "_row", "_order"


class Chunk(Protocol):
    """Neighbouring points."""

    def columns(self, names: Sequence[str]) -> pl.DataFrame:
        """All rows, these columns."""

    def rows(self, places: NDArray[Any], names: Sequence[str]) -> pl.DataFrame:
        """The rows at `places`: all columns, or inputs, the columns `names` and where to find the others (`whole`)."""


class InMemory:
    """Points in a frame."""

    def __init__(self, frame: pl.DataFrame) -> None:
        """All of `frame`."""
        self._frame = frame

    def columns(self, names: Sequence[str]) -> pl.DataFrame:
        """All rows, these columns."""
        return self._frame.select(names)

    def rows(self, places: NDArray[Any], names: Sequence[str]) -> pl.DataFrame:
        """The rows at `places`, all columns."""
        return self._frame[places]


class OnDisk:
    """The points of a part. Inputs tell them apart, so that the other columns are read of the winners alone."""

    def __init__(self, parts: Sequence[PartFile], place: int, ahead: Sequence[str]) -> None:
        """Check the part at `place` and read the columns `ahead`. StoreError if it is not what the sweep wrote."""
        self._part, self._place = parts[place], place
        self._ahead = self._part.checked().read(ahead)

    def columns(self, names: Sequence[str]) -> pl.DataFrame:
        """All rows, these columns."""
        return self._ahead.select(names) if set(names) <= set(self._ahead.columns) else self._part.read(names)

    def rows(self, places: NDArray[Any], names: Sequence[str]) -> pl.DataFrame:
        """The rows at `places`: inputs, the columns `names`, and where the others are."""
        wanted = dict.fromkeys((*(column.name for column in inputs()), *names))
        lacking = [name for name in wanted if name not in self._ahead.columns]
        known = [name for name in (*wanted, WEIGHT) if name in self._ahead.columns]
        told = self._ahead.select(known)[places].hstack(self._part.read(lacking)[places])
        found = pl.Series(_PART, [self._place], dtype=pl.UInt32).new_from_index(0, told.height)
        return told.with_columns(found, pl.Series(_ROW, places.astype(np.uint32)))


def whole(points: pl.DataFrame, source: Source) -> pl.DataFrame:
    """`points`, made of what `rows` of the chunks of `source` gave, with every column; null where that is null."""
    if isinstance(source, pl.DataFrame | pl.LazyFrame) or _PART not in points.columns:
        return points
    parts, found = part_files(source), []
    lacking = [name for name in parts[0].columns if name not in (*points.columns, WEIGHT)]
    places = points.select(_PART, _ROW).with_row_index(_ORDER).drop_nulls().sort(_PART, _ROW)
    for (place,), rows in places.group_by(_PART, maintain_order=True):
        found.append(parts[int(str(place))].rows(rows[_ROW], lacking))
    read = pl.concat(found) if found else parts[0].read(lacking).clear()
    order = pl.Series(_ORDER, [None], dtype=pl.UInt32).new_from_index(0, points.height)
    order = order.scatter(places[_ORDER], pl.int_range(places.height, dtype=pl.UInt32, eager=True))
    return points.drop(_PART, _ROW).hstack(read.select(pl.all().gather(order)))


def column_names(source: Source) -> list[str]:
    """The columns of the points. StoreError if a directory is not that of a finished sweep."""
    if isinstance(source, pl.DataFrame | pl.LazyFrame):
        return source.lazy().collect_schema().names()
    return part_files(source)[0].checked().columns


def kept_of(source: Source) -> Goal | None:
    """What a sweep kept in its directory, None where that is every point."""
    return None if isinstance(source, pl.DataFrame | pl.LazyFrame) else kept_goal(source)


def chunks(source: Source, ahead: Sequence[str]) -> Iterator[Chunk]:
    """The points in order, one chunk in memory while the next is read; the columns `ahead` are those wanted of all."""
    if isinstance(source, pl.DataFrame):
        return map(InMemory, source.iter_slices(_CHUNK_ROWS))
    if isinstance(source, pl.LazyFrame):
        return map(InMemory, source.collect_batches(chunk_size=_CHUNK_ROWS))
    return _read_ahead(part_files(source), list(dict.fromkeys(ahead)))


def _read_ahead(parts: Sequence[PartFile], ahead: Sequence[str]) -> Iterator[Chunk]:
    with ThreadPoolExecutor(1, "lambdamax-reader") as reader:
        reading = reader.submit(OnDisk, parts, 0, ahead)
        for following in range(1, len(parts)):
            chunk, reading = reading.result(), reader.submit(OnDisk, parts, following, ahead)
            yield chunk
        yield reading.result()
