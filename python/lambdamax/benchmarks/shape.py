"""What readers expect of a file, as pydantic models that take what they know and leave the rest."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from lambdamax.benchmarks.content import Cells, Found
from lambdamax.benchmarks.measured import Row
from lambdamax.exceptions import Fault

MS: Final = 1e-3
_NOTHING: Final = frozenset({"", "none", "null", "n/a", "nan"})
_ENDLESS: Final = frozenset({"inf", "infinity", "+inf", "unlimited"})
_SAID: Final = "Input should be "


class Shape(BaseModel):
    """Base of what is expected: unknown keys are left alone, numbers are finite."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False, coerce_numbers_to_str=True)


def _endless(value: Any) -> Any:
    """No limit, as tools write it, is None."""
    if isinstance(value, str) and value.strip().casefold() in _ENDLESS:
        return None
    return None if isinstance(value, float) and math.isinf(value) else value


def _blank(value: Any) -> Any:
    """A cell or a word that says nothing is None."""
    return None if isinstance(value, str) and value.strip().casefold() in _NOTHING else value


Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
MaybePositive = Annotated[float | None, Field(gt=0), BeforeValidator(_blank)]
MaybeNotNegative = Annotated[float | None, Field(ge=0), BeforeValidator(_blank)]
MaybeText = Annotated[str | None, BeforeValidator(_blank)]
OfferedRate = Annotated[float | None, Field(gt=0), BeforeValidator(_endless), BeforeValidator(_blank)]


@dataclass(frozen=True)
class Format:
    """A format that can be read: its `name`, whether a value `is_of` it, and the `rows` of a value.

    `groups` says that the values of a file belong to one operating point (a file of requests, one a line). `rows`
    raises ValidationError, Refused for what the types cannot say, or SeveralRefused.
    """

    name: str
    is_of: Callable[[Any], bool]
    rows: Callable[[Any], list[Row]]
    groups: bool = False


class Refused(Exception):  # noqa: N818
    """A value that a reader cannot use: `key`, what was found and what is allowed."""

    def __init__(self, key: str, value: object, allowed: str) -> None:
        """Say that `key` holds `value` and not what is `allowed`."""
        super().__init__(key)
        self.key, self.value, self.allowed = key, value, allowed


class SeveralRefused(Exception):  # noqa: N818
    """Faults of several parts of one value: key, what was found and what is allowed, of each."""

    def __init__(self, faults: tuple[tuple[str, str, str], ...]) -> None:
        """Hold `faults`."""
        super().__init__(f"{len(faults)} faults")
        self.faults = faults


Unusable = (ValidationError, Refused, SeveralRefused)


def gathered(parts: Iterable[tuple[str, Callable[[], Row]]]) -> list[Row]:
    """The row of each part at its place; raises SeveralRefused with every fault of every part."""
    rows, faults = list[Row](), list[tuple[str, str, str]]()
    for place, made in parts:
        try:
            rows.append({**made(), "place": place})
        except (ValidationError, Refused) as error:
            faults += ((_joined(place, key), value, allowed) for key, value, allowed in _told(error))
    if faults:
        raise SeveralRefused(tuple(faults))
    return rows


def rows_of_lines(cells: Cells, made: Callable[[dict[Any, str]], Row], header_lines: int = 1) -> list[Row]:
    """What is `made` of each line under the header, cells by name; where the header has several lines, by tuple.

    Raises SeveralRefused with every fault of every line, one of them that it has not as many cells as the header.
    """
    above = cells.lines[:header_lines]
    header: list[Any] = list(above[0]) if header_lines == 1 else list(zip(*above, strict=False))
    lines = zip(cells.numbers[header_lines:], cells.lines[header_lines:], strict=True)
    return gathered((f"line {number}", partial(_of_line, header, line, made)) for number, line in lines if any(line))


def _of_line(header: list[Any], line: tuple[str, ...], made: Callable[[dict[Any, str]], Row]) -> Row:
    if len(line) != len(header):
        raise Refused("", f"{len(line)} cells", f"{len(header)} cells, as in the header")
    return made(dict(zip(header, line, strict=True)))


def faults_of(error: Exception, file: str, found: Found) -> Iterator[Fault]:
    """Every fault of the value that could not be read, for one of the errors that `Unusable` lists."""
    for key, value, allowed in _told(error):
        yield Fault(file, _joined(found.place, key), value, allowed)


def _told(error: Exception) -> Iterator[tuple[str, str, str]]:
    if isinstance(error, SeveralRefused):
        yield from error.faults
    elif isinstance(error, Refused):
        yield error.key, reprlib.repr(error.value), error.allowed
    elif isinstance(error, ValidationError):
        for one in error.errors(include_url=False):
            missing = one["type"] == "missing"
            allowed = "present" if missing else one["msg"].removeprefix(_SAID)
            yield ".".join(map(str, one["loc"])), "nothing" if missing else reprlib.repr(one["input"]), allowed


def _joined(place: str, key: str) -> str:
    return ": ".join(part for part in (place, key) if part)


def has(value: Any, *keys: str) -> bool:
    """Whether `value` is an object with all of `keys`."""
    return isinstance(value, Mapping) and all(key in value for key in keys)
