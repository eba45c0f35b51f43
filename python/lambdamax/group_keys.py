"""Keys of groups as numbers: columns of a chunk as bits, and those of all chunks as codes, which take half the room."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

_NO_CODE: Final = 2**64 - 1
# Codes of two columns share a number.
_CODE_BITS: Final = np.uint64(32)
_ONE_CODE: Final = np.uint64(2**32 - 1)
_MOST_PLACES: Final = 2**63

Numbers = NDArray[np.uint64]


class GroupKeys:
    """The values that key columns have, each known by a code: what stands for a group while points stream by."""

    def __init__(self, names: Sequence[str]) -> None:
        """Columns of these names; no value is known yet."""
        self._columns = {name: _Column() for name in names}

    @property
    def width(self) -> int:
        """How many numbers stand for a group."""
        return (len(self._columns) + 1) // 2

    def numbers(self, keys: pl.DataFrame) -> list[Numbers]:
        """The numbers of each row of `keys`, the same for the same values."""
        codes = [column.codes(keys[name]) for name, column in self._columns.items()]
        paired = [first | (second << _CODE_BITS) for first, second in zip(codes[::2], codes[1::2], strict=False)]
        return paired if len(paired) == self.width else [*paired, codes[-1]]

    def frame(self, numbers: Sequence[Numbers]) -> pl.DataFrame:
        """The keys that have these `numbers`."""
        return pl.DataFrame([column.values(codes).alias(name) for name, column, codes in self._codes(numbers)])

    def order(self, numbers: Sequence[Numbers], count: int) -> NDArray[np.uint32]:
        """The places of `count` rows as the keys sort that have these `numbers`: text by its letters, null last."""
        places, size = np.zeros(count, dtype=np.uint64), 1
        for _, column, codes in self._codes(numbers):
            ranks = column.ranks()
            if size * len(ranks) > _MOST_PLACES:
                places = np.unique(places, return_inverse=True)[1].astype(np.uint64)
                size = int(places.max()) + 1
            places *= np.uint64(len(ranks))
            places += ranks[codes]
            size *= len(ranks)
        return np.argsort(places, kind="stable").astype(np.uint32)

    def _codes(self, numbers: Sequence[Numbers]) -> Iterator[tuple[str, _Column, NDArray[np.uint32]]]:
        for place, (name, column) in enumerate(self._columns.items()):
            held = numbers[place // 2]
            yield name, column, (held >> _CODE_BITS if place % 2 else held & _ONE_CODE).astype(np.uint32)


class _Column:
    """The values of one column, in the order in which they were learnt."""

    def __init__(self) -> None:
        self._values: list[pl.Series] = []
        self._texts: dict[str, int] = {}
        # Bits of the known values as they sort, and the code of each.
        self._sorted, self._codes = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.uint64)

    def codes(self, series: pl.Series) -> Numbers:
        """The code of each value."""
        bits = bits_of(series, self._texts)
        places, known = self._found(bits)
        if not known.all():
            fresh, first = np.unique(bits[~known], return_index=True)
            self._learn(fresh, series[np.flatnonzero(~known)[first]])
            places, _ = self._found(bits)
        return self._codes[places]

    def values(self, codes: NDArray[np.uint32]) -> pl.Series:
        """The values of codes."""
        return pl.concat(self._values)[codes]

    def ranks(self) -> Numbers:
        """Of each code the place of its value among all as they sort, null last."""
        every = pl.concat(self._values)
        comparable = every if every.dtype.is_numeric() else every.cast(pl.String)
        return whole(comparable.rank("dense").fill_null(len(every)) - 1)

    def _found(self, bits: Numbers) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        if not len(self._sorted):
            return np.zeros(len(bits), dtype=np.intp), np.zeros(len(bits), dtype=np.bool_)
        places = np.minimum(np.searchsorted(self._sorted, bits), len(self._sorted) - 1)
        return places, self._sorted[places] == bits

    def _learn(self, bits: Numbers, values: pl.Series) -> None:
        every = np.concatenate([self._sorted, bits])
        codes = np.concatenate([self._codes, np.arange(len(self._codes), len(every), dtype=np.uint64)])
        order = np.argsort(every)
        self._sorted, self._codes = every[order], codes[order]
        self._values.append(values)


def bits_of(series: pl.Series, texts: dict[str, int]) -> Numbers:
    """A number for each value, the same for the same value wherever `texts`, which grows, is the same."""
    if isinstance(series.dtype, pl.Enum):
        return whole(series.to_physical())
    if series.dtype.is_float():
        values = series.cast(pl.Float64).fill_null(math.nan).to_numpy() + 0.0
        return (np.where(np.isnan(values), math.nan, values) if np.isnan(values.max(initial=0.0)) else values).view(
            np.uint64
        )
    return whole(series if series.dtype.is_numeric() else _coded(series.cast(pl.String), texts))


def whole(series: pl.Series) -> NDArray[Any]:
    """Whole numbers, null as the largest there is."""
    return np.ascontiguousarray(series.cast(pl.UInt64).fill_null(_NO_CODE).to_numpy())


def _coded(names: pl.Series, texts: dict[str, int]) -> pl.Series:
    for name in names.unique(maintain_order=True).drop_nulls():
        texts.setdefault(name, len(texts))
    return names.replace_strict(list(texts), list(texts.values()), default=None, return_dtype=pl.UInt64)
