"""Numbers as people read them: four significant digits and a unit that suits the size."""

from __future__ import annotations

import math
from typing import Final

DASH: Final = "–"
_EXACT_BYTES: Final = 1e6
_NO_SHARE: Final = 5e-6
_SCALED: Final = frozenset({"FLOP", "FLOP/s", "B", "B/s"})
_SCALES: Final = (
    (1e15, "P"),
    (1e12, "T"),
    (1e9, "G"),
    (1e6, "M"),
    (1e3, "k"),
    (1.0, ""),
    (1e-3, "m"),
    (1e-6, "µ"),
    (1e-9, "n"),
    (1e-12, "p"),
)


def number(value: float, digits: int = 4, pad: bool = False) -> str:
    """`value` with `digits` significant digits and thousands separated; `pad` keeps trailing zeros, for columns."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    text = f"{round(value, places):,.{max(0, places)}f}"
    return text.rstrip("0").rstrip(".") if "." in text and not pad else text


def quantity(value: float | None, unit: str, digits: int = 4, pad: bool = False) -> str:
    """`value` [SI `unit`] for reading: `0.02505, "s"` gives `25.05 ms`; a dash if there is no value."""
    if value is None or math.isnan(value):
        return DASH
    if unit == "share":
        return f"{number(0.0 if abs(value) < _NO_SHARE else 100 * value, 3, pad)} %"
    if unit == "ratio":
        return f"{number(value, digits, pad)}×"
    if unit in _SCALED or (unit == "s" and abs(value) < 1):
        return _scaled(value, unit, digits, pad)
    return f"{number(value, digits, pad)} {unit}".rstrip()


def cell(value: float | None, unit: str) -> str:
    """`quantity` for a column of a table: trailing zeros are kept, so that the decimals line up."""
    return quantity(value, unit, pad=True)


def _scaled(value: float, unit: str, digits: int, pad: bool) -> str:
    if unit == "B" and abs(value) < _EXACT_BYTES:
        return f"{value:,.0f} B"
    size = abs(value) / (1 - 0.5 * 10.0**-digits)
    scale, prefix = next((step for step in _SCALES if size >= step[0]), (math.inf, ""))
    return f"{number(value / scale, digits, pad)} {prefix}{unit}"
