"""A fitted profile as a TOML file that `read_profile` reads, each number with unit, source, date and note."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from lambdamax.profiles import Constant


def written(about: str, header: dict[str, Any], uncertainty: Constant, constants: dict[str, Constant]) -> str:
    """The text of the file; `header` holds the profile's own keys."""
    lines = [f"# {about}", *(f"{key} = {_value(value)}" for key, value in header.items())]
    lines += ["", "[relative_uncertainty]", *_fact(uncertainty)]
    for name, constant in constants.items():
        lines += ["", f"[constants.{name}]", *_fact(constant)]
    return "\n".join(lines) + "\n"


def _fact(constant: Constant) -> Iterator[str]:
    yield f"value = {constant.value!r}"
    for key in ("unit", "source", "date", "note"):
        yield f"{key} = {_value(getattr(constant, key))}"


def _value(value: str | float | Iterable[str]) -> str:
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(char if char.isprintable() else " " for char in escaped) + '"'
    if isinstance(value, int | float):
        return repr(value)
    return f"[{', '.join(map(_value, value))}]"
