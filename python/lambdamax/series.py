"""What the engine returns as columns of the dictionary's types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lambdamax.columns import Column

DTYPES: Final = {"f64": pl.Float64(), "u32": pl.UInt32(), "u16": pl.UInt16()}
_WHOLE: Final = {"u32": np.uint32, "u16": np.uint16}


def series(column: Column, values: NDArray[Any], categories: Sequence[str]) -> pl.Series:
    """`values` as a column of the dictionary's type; floats share their memory with it, NaN becomes null."""
    if column.is_text:
        return coded(column, values, categories)
    if column.type != "f64" and not np.isnan(values).any():
        return pl.Series(column.name, values.astype(_WHOLE[column.type]))
    found = pl.Series(column.name, values, nan_to_null=True)
    return found if column.type == "f64" else found.cast(DTYPES[column.type])


def coded(column: Column, codes: NDArray[Any], categories: Sequence[str]) -> pl.Series:
    """Names by their place in `categories`; a code beyond them is null."""
    physical = "uint8" if len(categories) < 255 else "uint16" if len(categories) < 65_535 else "uint32"
    return pl.Series(column.name, codes.astype(physical, copy=False)).cat.to(pl.Enum(categories), strict=False)
