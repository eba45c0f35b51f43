"""Solved points chunk by chunk, whatever they come from: some columns of all, every column of the rows that matter."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lambdamax.columns import inputs, point_columns
from lambdamax.objectives import Goal
from lambdamax.store import PartFile, kept_goal, part_files, point_names

Source = str | Path | pl.LazyFrame | pl.DataFrame
"""The directory of a sweep, or solved points."""

_CHUNK_ROWS: Final = 262_144
# Each chunk at work is in memory; parts are large.
_MOST_ABREAST: Final = 4
_PART, _ROW, _ORDER = "_part", "_row", "_order"

S = TypeVar("S")
T = TypeVar("T")


class Chunk(Protocol):
    """Neighbouring points."""

    def columns(self, names: Sequence[str]) -> pl.DataFrame:
        """All rows, these columns."""

    def rows(self, places: NDArray[Any]) -> pl.DataFrame:
        """The rows at `places`: whole, or by where `Points.told` finds them."""


class InMemory:
    """Points in a frame."""

    def __init__(self, frame: pl.DataFrame) -> None:
        """All of `frame`."""
        self._frame = frame

    def columns(self, names: Sequence[str]) -> pl.DataFrame:
        """All rows, these columns."""
        return self._frame.select(names)

    def rows(self, places: NDArray[Any]) -> pl.DataFrame:
        """The rows at `places`, all columns."""
        return self._frame[places]


class OnDisk:
    """The points of a part, read from bytes that are what the sweep wrote."""

    def __init__(self, part: PartFile, place: int, ahead: Sequence[str]) -> None:
        """Check the part, which is at `place`, and read the columns `ahead`. StoreError if it is damaged."""
        self._part, self._place, self._content = part, place, part.content()
        self._ahead = part.read(ahead, self._content)

    def columns(self, names: Sequence[str]) -> pl.DataFrame:
        """All rows, these columns."""
        ahead = set(names) <= set(self._ahead.columns)
        return self._ahead.select(names) if ahead else self._part.read(names, self._content)

    def rows(self, places: NDArray[Any]) -> pl.DataFrame:
        """Where the rows at `places` are."""
        part = pl.Series(_PART, [self._place], dtype=pl.UInt32).new_from_index(0, len(places))
        return pl.DataFrame([part, pl.Series(_ROW, places.astype(np.uint32))])


class Points(Protocol):
    """Points that are read as often as need be."""

    names: Sequence[str]
    """Their columns."""
    kept: Goal | None
    """What a sweep kept of them, None where that is every point."""

    def each(self, ahead: Sequence[str], look: Callable[[Chunk], T]) -> Iterator[T]:
        """What `look` makes of each chunk, in their order, several at work at a time; `ahead` is wanted of all rows."""

    def told(self, rows: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
        """The columns `names` of what `rows` of the chunks gave; null where that is null."""

    def apart(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The columns that tell points apart, in the order of the dictionary, of what `rows` of the chunks gave."""


class InFrames:
    """Points in a frame, or lazy ones."""

    kept = None

    def __init__(self, source: pl.LazyFrame | pl.DataFrame) -> None:
        """The points of `source`."""
        self._source = source
        self.names: Sequence[str] = source.lazy().collect_schema().names()

    def each(self, ahead: Sequence[str], look: Callable[[Chunk], T]) -> Iterator[T]:
        """What `look` makes of each chunk."""
        is_there = isinstance(self._source, pl.DataFrame)
        slices = self._source.iter_slices(_CHUNK_ROWS) if is_there else self._source.collect_batches(chunk_size=_CHUNK_ROWS)
        return abreast(lambda frame: look(InMemory(frame)), slices)

    def told(self, rows: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
        """The columns `names` of `rows`, which has all where it has any."""
        lacking = [name for name in names if name not in rows.columns]
        absent = self._source.lazy().select(lacking).head(0).collect().clear(rows.height if lacking else 0)
        return rows.hstack(absent).select(names)

    def apart(self, rows: pl.DataFrame) -> pl.DataFrame:
        """All columns of a point."""
        return whole_points(rows)


class InParts:
    """The parts of a sweep. Inputs tell points apart, so that the other columns are read of the winners alone."""

    def __init__(self, directory: str | Path) -> None:
        """The parts in `directory`. StoreError if it is not that of a finished sweep."""
        self.kept = kept_goal(directory)
        self._parts = part_files(directory)
        self.names: Sequence[str] = point_names(directory)

    def each(self, ahead: Sequence[str], look: Callable[[Chunk], T]) -> Iterator[T]:
        """What `look` makes of each part. StoreError, which names it, if one is not what the sweep wrote."""
        wanted = list(dict.fromkeys(ahead))
        return abreast(lambda place: look(OnDisk(self._parts[place], place, wanted)), range(len(self._parts)))

    def told(self, rows: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
        """The columns `names` of `rows`, read from the parts where they are not there."""
        lacking = [name for name in names if name not in rows.columns]
        if not lacking:
            return rows.select(names)
        if _PART not in rows.columns:
            rows = rows.hstack([_nothing(name, rows.height) for name in (_PART, _ROW)])
        places = rows.select(_PART, _ROW).with_row_index(_ORDER).drop_nulls().sort(_PART, _ROW)
        found = list(abreast(lambda held: self._rows(held, lacking), places.partition_by(_PART, maintain_order=True)))
        read = pl.concat(found) if found else self._parts[0].read(lacking).clear()
        order = _nothing(_ORDER, rows.height).scatter(places[_ORDER], pl.int_range(places.height, dtype=pl.UInt32, eager=True))
        return rows.hstack(read.select(pl.all().gather(order))).select(names)

    def apart(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The inputs."""
        return self.told(rows, [column.name for column in inputs() if column.name in self.names])

    def _rows(self, places: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
        return self._parts[places[_PART][0]].rows(places[_ROW], names)


def opened(source: Source) -> Points:
    """The points of `source`. StoreError if it is a directory that is not that of a finished sweep."""
    return InFrames(source) if isinstance(source, pl.DataFrame | pl.LazyFrame) else InParts(source)


def whole_points(rows: pl.DataFrame) -> pl.DataFrame:
    """Those columns of `rows` that are a point's, in the order of the dictionary."""
    return rows.select(column.name for column in point_columns() if column.name in rows.columns)


def _nothing(name: str, height: int) -> pl.Series:
    return pl.Series(name, [None], dtype=pl.UInt32).new_from_index(0, height)


def abreast(work: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
    """`work` of each item in their order, done on several threads, no more than a few ahead of what is taken."""
    workers = min(_MOST_ABREAST, pl.thread_pool_size())
    with ThreadPoolExecutor(workers, "lambdamax-reader") as pool:
        ahead: deque[Future[T]] = deque()
        for item in items:
            ahead.append(pool.submit(work, item))
            if len(ahead) > workers:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
