"""One thing that an audit found: the law, what each side of it says, and what the data really show."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from lambdamax.units import quantity

SEVERITIES: Final = ("error", "warning", "note")
# A factor of 1000 between two sides is a unit taken for another; either side may be off by this factor besides, as
# drain, medians and nominal lengths make them.
UNIT_STEP: Final = 1000.0
UNIT_SLACK: Final = 2.0


@dataclass(frozen=True)
class Side:
    """One side of a law: what it is in words and its value [`unit`]."""

    said: str
    value: float
    unit: str = ""

    def __str__(self) -> str:
        """Such as `rate x E2E 96.2`."""
        return f"{self.said} {quantity(self.value, self.unit)}"


@dataclass(frozen=True)
class Finding:
    """A law that a row breaks or a number that means something else; `column` is the number that is wrong or misread.

    `error`: numbers that cannot all be true. `warning`: a number that is not what its name says, or a run that is not
    steady. `note`: true, and easily misread.
    """

    severity: str
    law: str
    column: str
    left: Side
    right: Side
    verdict: str

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def is_unit_slip(left: float, right: float) -> bool:
    """Whether the sides differ by a factor of about 1000: milliseconds taken for seconds, or the reverse."""
    if left <= 0 or right <= 0:
        return False
    apart = max(left, right) / min(left, right)
    return UNIT_STEP / UNIT_SLACK <= apart <= UNIT_STEP * UNIT_SLACK


def unit_slip(column: str, left: Side, right: Side) -> Finding:
    """The finding that `column` is in another unit."""
    verdict = f"{column} is in another unit: the two sides differ by a factor of about 1000 (ms and s)"
    return Finding("error", "unit", column, left, right, verdict)
