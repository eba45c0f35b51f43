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
from lambdamax.freed import give_back
from lambdamax.objectives import Goal
from lambdamax.store import PartFile, kept_goal, part_files, point_names

Source = str | Path | pl.LazyFrame | pl.DataFrame
"""The directory of a sweep, or solved points."""

_CHUNK_ROWS: Final = 262_144
# Each chunk at work is in memory; parts are large.
_MOST_ABREAST: Final = 4
BLOCK_ROWS: Final = 32_768
"""Rows of an answer that are in memory at a time where it goes to a file."""
_PART, _ROW, _ORDER, _BLOCK = "_part", "_row", "_order", "_block"

Block = tuple[pl.DataFrame, pl.DataFrame]
"""Rows, and more columns of the same."""

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
        self._part, self._place = part, place
        self._ahead = part.read(ahead, part.content())

    def columns(self, names: Sequence[str]) -> pl.DataFrame:
        """All rows, these columns."""
        ahead = set(names) <= set(self._ahead.columns)
        return self._ahead.select(names) if ahead else self._part.read(names)

    def rows(self, places: NDArray[Any]) -> pl.DataFrame:
        """Where the rows at `places` are."""
        part = pl.Series(_PART, [self._place], dtype=pl.UInt32).new_from_index(0, len(places))
        return pl.DataFrame([part, pl.Series(_ROW, places.astype(np.uint32))])


class Points(Protocol):
    """Points that are read as often as need be."""

    @property
    def names(self) -> Sequence[str]:
        """Their columns."""

    @property
    def kept(self) -> Goal | None:
        """What a sweep kept of them, None where that is every point."""

    def each(self, ahead: Sequence[str], look: Callable[[Chunk], T]) -> Iterator[T]:
        """What `look` makes of each chunk, in their order, several at work at a time; `ahead` is wanted of all rows."""

    def told(self, rows: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
        """The columns `names` of what `rows` of the chunks gave; null where that is null."""

    def in_blocks(self, rows: pl.DataFrame, names: Sequence[str], folder: Path) -> Iterator[Block]:
        """`BLOCK_ROWS` neighbouring rows at a time, and what is `told` of them; `folder`, empty, is for the others."""

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
        if isinstance(self._source, pl.DataFrame):
            slices = self._source.iter_slices(_CHUNK_ROWS)
        else:
            slices = self._source.collect_batches(chunk_size=_CHUNK_ROWS)
        return abreast(lambda frame: look(InMemory(frame)), slices)

    def told(self, rows: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
        """The columns `names` of `rows`, which has all where it has any."""
        lacking = [name for name in names if name not in rows.columns]
        absent = self._source.lazy().select(lacking).head(0).collect().clear(rows.height if lacking else 0)
        return rows.hstack(absent).select(names)

    def in_blocks(self, rows: pl.DataFrame, names: Sequence[str], folder: Path) -> Iterator[Block]:
        """Neighbouring rows, and what is `told` of them."""
        return ((block, self.told(block, names)) for block in rows.iter_slices(BLOCK_ROWS))

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
        places = _in_order_of_parts(rows)
        held = places.partition_by(_PART, maintain_order=True)
        read = [self._nothing(lacking), *abreast(lambda each: self._rows(each, lacking), held)]
        stacks = [frame.get_columns()[::-1] for frame in read]
        del read
        order = _order(places[_ORDER], rows.height)
        # Column by column, so that no more than one is there twice.
        columns = ([stack.pop() for stack in stacks] for _ in lacking)
        return rows.hstack(list(abreast(lambda pieces: _joined(pieces).gather(order), columns))).select(names)

    def in_blocks(self, rows: pl.DataFrame, names: Sequence[str], folder: Path) -> Iterator[Block]:
        """Neighbouring rows, and what is `told` of them: each part is read once, its rows put by for their blocks."""
        by_part = _in_order_of_parts(rows).partition_by(_PART, maintain_order=True)
        give_back()
        _put_by((self._rows(held, names).hstack([held[_ORDER]]) for held in by_part), folder)
        del by_part
        give_back()
        nothing = self._nothing(names).with_columns(pl.lit(0, pl.UInt32).alias(_ORDER))
        for number, block in enumerate(rows.iter_slices(BLOCK_ROWS)):
            pieces = [pl.read_ipc(path) for path in folder.glob(f"{number}-*.arrow")]
            found = pl.concat([nothing, *pieces], rechunk=True)
            order = _order(found[_ORDER] - number * BLOCK_ROWS, block.height)
            yield block, found.select(pl.all().exclude(_ORDER).gather(order))

    def apart(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The inputs."""
        return self.told(rows, [column.name for column in inputs() if column.name in self.names])

    def _nothing(self, names: Sequence[str]) -> pl.DataFrame:
        return self._parts[0].read(names).clear()

    def _rows(self, places: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
        part: PartFile = self._parts[places.item(0, _PART)]
        return part.rows(places[_ROW], names)


def opened(source: Source) -> Points:
    """The points of `source`. StoreError if it is a directory that is not that of a finished sweep."""
    return InFrames(source) if isinstance(source, pl.DataFrame | pl.LazyFrame) else InParts(source)


def whole_points(rows: pl.DataFrame) -> pl.DataFrame:
    """Those columns of `rows` that are a point's, in the order of the dictionary."""
    return rows.select(column.name for column in point_columns() if column.name in rows.columns)


def _in_order_of_parts(rows: pl.DataFrame) -> pl.DataFrame:
    """Where the points of `rows` are, and of which of them; those without a point left out."""
    where = [rows[name] if name in rows.columns else _unset(name, rows.height) for name in (_PART, _ROW)]
    return pl.DataFrame(where).with_row_index(_ORDER).drop_nulls().sort(_PART, _ROW)


def _order(places: pl.Series, height: int) -> pl.Series:
    """Of each of `height` rows which of those at `places` it is, null for none."""
    return _unset(_ORDER, height).scatter(places, pl.int_range(len(places), dtype=pl.UInt32, eager=True))


def _joined(pieces: list[pl.Series]) -> pl.Series:
    return pl.concat(pieces, rechunk=True)


def _put_by(frames: Iterable[pl.DataFrame], folder: Path) -> None:
    """Write rows into files of `folder` by the block that they are of."""
    for number, frame in enumerate(_of_a_block(frames)):
        blocks = frame.with_columns((pl.col(_ORDER) // BLOCK_ROWS).alias(_BLOCK)).partition_by(_BLOCK, as_dict=True)
        for (block,), found in blocks.items():
            found.drop(_BLOCK).write_ipc(folder / f"{block}-{number}.arrow", compression="lz4")


def _of_a_block(frames: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Neighbouring `frames` put together until they have the rows of a block."""
    held: list[pl.DataFrame] = []
    for frame in frames:
        held.append(frame)
        if sum(each.height for each in held) >= BLOCK_ROWS:
            yield pl.concat(held)
            held = []
    if held:
        yield pl.concat(held)


def _unset(name: str, height: int) -> pl.Series:
    return pl.Series(name, [None], dtype=pl.UInt32).new_from_index(0, height)


def abreast(work: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
    """`work` of each item in their order, on several threads; no more of them are ahead of what is taken."""
    workers = min(_MOST_ABREAST, pl.thread_pool_size())
    with ThreadPoolExecutor(workers, "lambdamax-reader") as pool:
        ahead: deque[Future[T]] = deque()
        for item in items:
            if len(ahead) == workers:
                yield ahead.popleft().result()
            ahead.append(pool.submit(work, item))
        while ahead:
            yield ahead.popleft().result()
