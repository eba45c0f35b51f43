"""A curve drawn in characters: braille dots, horizontal levels, vertical marks, and a shaded part without a value."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from rich.text import Text

from lambdamax.units import quantity

# Dots of a braille cell by row and column, as bits of its code point.
_DOTS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_BRAILLE: Final = 0x2800
_LABEL_WIDTH: Final = 9
_LEVEL: Final = ("┄", "yellow")
_SHADE: Final = ("░", "red")
_CURVE: Final = "cyan"
_ROOM: Final = 1.05


@dataclass(frozen=True)
class Mark:
    """A vertical line at `x`, by its character and colour."""

    x: float
    sign: str
    style: str


@dataclass(frozen=True)
class Panel:
    """One curve. Points are in the order of `x`; NaN in `y` is no point. `level` is a line to hold it against.

    From `end` on, where the curve has no value, the panel is shaded.
    """

    title: str
    unit: str
    x: Sequence[float]
    y: Sequence[float]
    level: float | None = None
    level_name: str = ""
    marks: Sequence[Mark] = ()
    end: float = math.inf


def draw(panel: Panel, width: int, height: int) -> list[Text]:
    """`panel` in lines of `width` characters, of which `height` are for the curve; y begins at 0."""
    canvas = _Canvas(panel, width - _LABEL_WIDTH - 1, height, _top(panel))
    scale = {row: canvas.top * (1 - (row + 0.5) / height) for row in (0, height // 2)}
    lines = [canvas.heading()]
    for row in range(height):
        label = quantity(scale[row], panel.unit, 3) if row in scale else ""
        lines.append(Text(f"{label:>{_LABEL_WIDTH}}{'┤' if label else '│'}") + canvas.row(row))
    lines.append(Text(f"{'0':>{_LABEL_WIDTH}}└{'─' * canvas.columns}"))
    return lines


def _top(panel: Panel) -> float:
    """The largest y, and the level where it is not far above."""
    largest = max((y for y in panel.y if not math.isnan(y)), default=1.0) or 1.0
    if panel.level is not None and panel.level <= 2 * largest:
        largest = max(largest, panel.level)
    return _ROOM * largest


class _Canvas:
    """The cells of a panel, `columns` across and `height` down, from 0 to `top`."""

    def __init__(self, panel: Panel, columns: int, height: int, top: float) -> None:
        self.panel, self.columns, self.height, self.top = panel, columns, height, top
        self.span = panel.x[-1]
        self.dots = [[0] * columns for _ in range(height)]
        for x, y in _path(panel, 2 * columns):
            across = min(int(x / self.span * 2 * columns), 2 * columns - 1)
            down = min(int((1 - y / top) * 4 * height), 4 * height - 1)
            self.dots[down // 4][across // 2] |= _DOTS[down % 4][across % 2]

    def heading(self) -> Text:
        """The title, and the level's name and value."""
        panel, found = self.panel, Text(self.panel.title, style="bold")
        if panel.level is not None:
            beyond = ", above the picture" if panel.level > self.top else ""
            level = f"  {_LEVEL[0]} {panel.level_name} {quantity(panel.level, panel.unit)}{beyond}"
            found.append(level, _LEVEL[1])
        return found

    def row(self, row: int) -> Text:
        """One line: the curve before marks, marks before the shade, the shade before the level."""
        marks = {self._column(mark.x): (mark.sign, mark.style) for mark in self.panel.marks if mark.x <= self.span}
        blank = _LEVEL if self._has_level(row) else (" ", "")
        found = Text()
        for column, dots in enumerate(self.dots[row]):
            shaded = column > self._column(min(self.panel.end, self.span))
            other = marks.get(column, _SHADE if shaded else blank)
            found.append(*((chr(_BRAILLE + dots), _CURVE) if dots else other))
        return found

    def _column(self, x: float) -> int:
        return min(int(x / self.span * self.columns), self.columns - 1)

    def _has_level(self, row: int) -> bool:
        level = self.panel.level
        return level is not None and level <= self.top and int((1 - level / self.top) * self.height) == row


def _path(panel: Panel, pieces: int) -> Iterator[tuple[float, float]]:
    """Points along the straight lines between neighbours that both have a value."""
    for (x, y), (next_x, next_y) in pairwise(zip(panel.x, panel.y, strict=True)):
        if not (math.isnan(y) or math.isnan(next_y)):
            for piece in range(pieces + 1):
                part = piece / pieces
                yield x + part * (next_x - x), y + part * (next_y - y)
