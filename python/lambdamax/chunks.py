"""Solved points chunk by chunk, whatever they come from: some columns first, the rows that matter in full later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import polars as pl
from numpy.typing import NDArray

from lambdamax.objectives import Goal
from lambdamax.store import PartFile, kept_goal, part_files

Source = str | Path | pl.LazyFrame | pl.DataFrame
"""The directory of a sweep, or solved points."""

_CHUNK_ROWS: Final = 262_144


class Chunk(Protocol):
    """Neighbouring points."""

    def columns(self, names: Sequence[str]) -> pl.DataFrame:
        """All rows, these columns."""

    def rows(self, places: NDArray[Any]) -> pl.DataFrame:
        """The rows at `places`, all columns."""


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
    """The points of a part; the columns that are wanted of all rows are read at once, the others where rows matter."""

    def __init__(self, part: PartFile, ahead: Sequence[str]) -> None:
        """Check the part and read the columns `ahead`. StoreError if it is not what the sweep wrote."""
        self._part = part
        self._ahead = part.checked().read(ahead)

    def columns(self, names: Sequence[str]) -> pl.DataFrame:
        """All rows, these columns."""
        return self._ahead.select(names) if set(names) <= set(self._ahead.columns) else self._part.read(names)

    def rows(self, places: NDArray[Any]) -> pl.DataFrame:
        """The rows at `places`, all columns."""
        return self._part.read(self._part.columns)[places]


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
        reading = reader.submit(partial(OnDisk, parts[0], ahead))
        for following in parts[1:]:
            chunk, reading = reading.result(), reader.submit(partial(OnDisk, following, ahead))
            yield chunk
        yield reading.result()
