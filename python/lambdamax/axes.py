"""An axis of a sweep file: one value, a list, or a range, turned into its values or into what is wrong with it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic_core import PydanticCustomError

from lambdamax import names
from lambdamax.catalog import Catalog
from lambdamax.columns import Column

Names = tuple[str, ...]
Counts = tuple[int, ...]
Numbers = tuple[float, ...]
Values = tuple[str | float, ...]

MAX_AXIS_VALUES: Final = 1_000_000
_SIGNIFICANT_DIGITS: Final = 12


class Mistake(NamedTuple):
    """A fault whose file and key are not known yet; `suffix` ends the key."""

    suffix: str
    value: str
    allowed: str


def refuse(mistakes: Sequence[Mistake]) -> None:
    """Tell pydantic about `mistakes`, if there are any."""
    if mistakes:
        raise PydanticCustomError("mistakes", "{count} mistakes", {"count": len(mistakes), "mistakes": mistakes})


def numbers(column: Column, value: object) -> Numbers:
    """The values of a numeric axis."""
    if isinstance(value, dict):
        return _range(column, value)
    items = _items(value, allowed_axis(column))
    wrong = [(suffix, item) for suffix, item in items if not _is_number(item) or not column.admits(item)]
    refuse([Mistake(suffix, show(item), _allowed(column, suffix, item)) for suffix, item in wrong])
    found = tuple(_number(column, item) for _, item in items)
    refuse(_repeats(found))
    return found


def _items(value: object, allowed: str) -> list[tuple[str, Any]]:
    """The values of an axis, each with the suffix of its key."""
    if not isinstance(value, list | tuple):
        return [("", value)]
    if not value:
        refuse([Mistake("", "[]", f"at least one value: {allowed}")])
    return [(f"[{index}]", item) for index, item in enumerate(value)]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(column: Column, value: float) -> float:
    return int(value) if column.is_whole else float(value)


def _repeats(values: Iterable[str | float]) -> list[Mistake]:
    return [Mistake("", f"{show(value)} twice", "each value once") for value, n in Counter(values).items() if n > 1]


def _range(column: Column, table: dict[str, Any]) -> Numbers:
    shape = "{ log = [lo, hi, n] } or { linear = [lo, hi, n] }"
    if len(table) != 1 or not set(table) <= {"log", "linear"}:
        refuse([Mistake("", show(table), shape)])
    ((kind, arguments),) = table.items()
    if not isinstance(arguments, list) or len(arguments) != 3:
        refuse([Mistake(f".{kind}", show(arguments), f"three numbers: {shape}")])
    low, high, count = arguments
    refuse(_range_mistakes(column, kind, low, high, count))
    return _rounded(column, kind, _log(low, high, count) if kind == "log" else _linear(low, high, count))


def _range_mistakes(column: Column, kind: str, low: Any, high: Any, count: Any) -> list[Mistake]:
    mistakes = []
    for index, end in enumerate((low, high)):
        if not _is_number(end) or not column.admits(end):
            mistakes.append(Mistake(f".{kind}[{index}]", show(end), column.allowed))
    if not _is_number(count) or not 2 <= count <= MAX_AXIS_VALUES or count != int(count):
        mistakes.append(Mistake(f".{kind}[2]", show(count), f"a whole number from 2 to {MAX_AXIS_VALUES}"))
    if not mistakes and not low < high:
        mistakes.append(Mistake(f".{kind}", show([low, high, count]), "lo smaller than hi"))
    if not mistakes and kind == "log" and low <= 0:
        mistakes.append(Mistake(f".{kind}[0]", show(low), "a number larger than 0 in a log range"))
    return mistakes


def _log(low: float, high: float, count: float) -> list[float]:
    steps = int(count) - 1
    return [low * (high / low) ** (step / steps) for step in range(steps)] + [high]


def _linear(low: float, high: float, count: float) -> list[float]:
    steps = int(count) - 1
    return [low + (high - low) * (step / steps) for step in range(steps)] + [high]


def _rounded(column: Column, kind: str, values: list[float]) -> Numbers:
    """Whole numbers where the column counts; else 12 digits, which no platform's `pow` can change."""
    if not column.counts:
        return tuple(float(f"{value:.{_SIGNIFICANT_DIGITS}g}") for value in values)
    whole = tuple(_number(column, round(value)) for value in values)
    left = len(set(whole))
    if left < len(whole):
        advice = f"at most as many points as there are whole numbers: only {left} are left after rounding"
        refuse([Mistake(f".{kind}[2]", str(len(values)), f"{advice}; ask for fewer or widen the range")])
    return whole


def texts(column: Column, value: object, catalog: Catalog, folder: Path) -> Names:
    """The values of an axis of names; files are relative to `folder`."""
    items = _items(value, names.allowed(column, catalog))
    untyped = [(suffix, item) for suffix, item in items if not isinstance(item, str) or not item]
    refuse([Mistake(suffix, show(item), names.allowed(column, catalog)) for suffix, item in untyped])
    found = [(suffix, _resolved(column, item, folder)) for suffix, item in items]
    refuse(list(_name_mistakes(column, found, catalog)))
    refuse(_repeats(names.label(column, name, catalog) for _, name in found))
    return tuple(name for _, name in found)


def _resolved(column: Column, name: str, folder: Path) -> str:
    return str(folder / name) if names.is_path(column, name, folder) else name


def _name_mistakes(column: Column, found: list[tuple[str, str]], catalog: Catalog) -> Iterator[Mistake]:
    for suffix, name in found:
        refusal = names.refusal(column, name, catalog)
        if refusal is not None:
            yield Mistake(suffix, show(name), refusal)


def _allowed(column: Column, suffix: str, item: object) -> str:
    return column.allowed if suffix or _is_number(item) else allowed_axis(column)


def allowed_axis(column: Column) -> str:
    """What a numeric axis may be, for people."""
    return f"{column.allowed}, a list of them, {{ log = [lo, hi, n] }} or {{ linear = [lo, hi, n] }}"


def show(value: object) -> str:
    """`value` much as TOML writes it, cut to a readable length."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except ValueError:
        text = "a number of more digits than can be shown"
    return text if len(text) <= 80 else text[:77] + "..."
