"""What a solver is given: rows of named numbers, some of them absent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

Row = Mapping[str, float | None]
Blocks = Sequence[Row]  # a model's groups of equal layers

BLOCK = 16  # tokens that the KV cache hands out at once


def field(row: Row, name: str) -> float:
    """A field that must be there."""
    value = given(row, name)
    assert value is not None, name
    return value


def given(row: Row, name: str) -> float | None:
    """A field, or None where it is absent, None or NaN."""
    value = row.get(name)
    return None if value is None or math.isnan(value) else float(value)


def default(row: Row, name: str, otherwise: float) -> float:
    """A field, or its default."""
    value = given(row, name)
    return otherwise if value is None else value


def block_floor(tokens: float) -> float:
    """Tokens rounded down to whole 16-token blocks, never below zero."""
    return max(0.0, BLOCK * math.floor(tokens / BLOCK))
