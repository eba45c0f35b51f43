"""Freed memory, given back to the system: where millions of rows pass, glibc keeps some hundred megabytes of it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache


def give_back() -> None:
    """Give freed memory back, where the C library has a function for it; takes some milliseconds."""
    _trim()(0)


@cache
def _trim() -> Callable[[int], int]:
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return lambda _: 0
    return trim
