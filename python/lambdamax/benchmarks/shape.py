"""What readers expect of a file, as pydantic models that take what they know and leave the rest."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from lambdamax.benchmarks.content import Found
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
    raises ValidationError, or Refused for what the types cannot say.
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


def faults_of(error: ValidationError | Refused, file: str, found: Found) -> Iterator[Fault]:
    """Every fault of the value that could not be read."""
    if isinstance(error, Refused):
        yield Fault(file, _key(found, error.key), reprlib.repr(error.value), error.allowed)
        return
    for one in error.errors(include_url=False):
        key = ".".join(map(str, one["loc"]))
        missing = one["type"] == "missing"
        allowed = "present" if missing else one["msg"].removeprefix(_SAID)
        yield Fault(file, _key(found, key), "nothing" if missing else reprlib.repr(one["input"]), allowed)


def _key(found: Found, key: str) -> str:
    return ": ".join(part for part in (found.place, key) if part)


def has(value: Any, *keys: str) -> bool:
    """Whether `value` is an object with all of `keys`."""
    return isinstance(value, Mapping) and all(key in value for key in keys)
