"""Groups by number: the same numbers for the same values, chunk after chunk, and the values back from them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lambdamax.group_keys import GroupKeys

TYPES = {"f": pl.Float64(), "e": pl.Enum(["b", "a", "c"]), "s": pl.String(), "u": pl.UInt32(), "b": pl.Boolean()}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "f": st.sampled_from([0.0, -0.0, 1.5, -2.0, 1e300, math.inf]),
    "e": st.sampled_from(["b", "a", "c"]),
    "s": st.sampled_from(["", "b", "a", "ä"]),
    "u": st.integers(0, 4),
    "b": st.booleans(),
}
ROWS = st.lists(st.fixed_dictionaries({name: st.none() | values for name, values in VALUES.items()}), max_size=30)


@given(chunks=st.lists(ROWS, min_size=1, max_size=4), names=st.permutations(list(TYPES)), width=st.integers(0, 5))
def test_numbers_stand_for_values(chunks: list[list[dict[str, Any]]], names: list[str], width: int) -> None:
    names = names[:width]
    keys = GroupKeys(names)
    frames = [pl.DataFrame(rows, schema=TYPES).select(names) for rows in chunks]
    every = pl.concat(frames)
    numbers = [np.concatenate(pieces) for pieces in zip(*map(keys.numbers, frames), strict=True)]
    assert len(numbers) == keys.width == math.ceil(width / 2)
    if every.height and names:
        assert keys.frame(numbers).equals(every)
        same = pl.DataFrame([pl.Series(str(place), column) for place, column in enumerate(numbers)])
        assert same.n_unique() == every.n_unique()
        order = keys.order(numbers, every.height)
        plain = every.with_columns(
            pl.col(name).cast(pl.String) for name in names if not every.schema[name].is_numeric()
        )
        assert plain[order].equals(plain.sort(names, nulls_last=True, maintain_order=True))


def test_no_number_and_null_are_one_group() -> None:
    keys = GroupKeys(["f"])
    (numbers,) = keys.numbers(pl.DataFrame({"f": [None, math.nan, 1.0]}))
    assert numbers[0] == numbers[1] != numbers[2]


@pytest.mark.parametrize("columns", [7, 12])
def test_order_of_more_values_than_fit_a_number(columns: int) -> None:
    rng = np.random.Generator(np.random.PCG64(3))
    frame = pl.DataFrame({f"k{place}": rng.integers(0, 2**32, 3000) for place in range(columns)})
    frame = pl.concat([frame, frame.head(50)])
    keys = GroupKeys(frame.columns)
    order = keys.order(keys.numbers(frame), frame.height)
    assert frame[order].equals(frame.sort(frame.columns, maintain_order=True))
