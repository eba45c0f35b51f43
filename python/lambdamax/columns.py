"""The column dictionary: what every column of a point means, in which unit, and which values it may hold.

The dictionary is data (`data/columns.csv`). It drives the checks of sweep files and frames, the help of the command
line, the documentation and the field metadata of Parquet files.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

INPUT_GROUPS: Final = ("replica", "workload", "scheduler", "slo", "price")
# What an empirical law of lengths tells, and nobody else beside it.
MOMENTS: Final = ("isl_tokens", "osl_tokens", "isl_cv", "osl_cv")
POINT_GROUPS: Final = (*INPUT_GROUPS, "answer", "operating", "money")
_WHOLE_TYPES: Final = frozenset({"u16", "u32"})
_WHOLE_UNITS: Final = frozenset({"tokens", "requests"})


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    `role` is `given` (what the customer brings: model, workload, SLO), `chosen` (what the operator decides), `asked`
    (a load), or `answer`. `type` is `text`, `f64`, `u32` or `u16`. `default` is empty where the column is required,
    optional without a default, or defaulted by the serving engine.
    """

    name: str
    type: str
    unit: str
    group: str
    role: str
    default: str
    minimum: float | None
    maximum: float | None
    values: tuple[str, ...]
    meaning: str

    @property
    def key(self) -> str:
        """The key of a sweep file that sets this column, such as `slo.ttft_s` for `slo_ttft_s`."""
        return f"{self.group}.{self.name.removeprefix(self.group + '_')}"

    @property
    def is_text(self) -> bool:
        """Whether the values are names."""
        return self.type == "text"

    @property
    def is_whole(self) -> bool:
        """Whether only whole numbers are allowed."""
        return self.type in _WHOLE_TYPES

    @property
    def counts(self) -> bool:
        """Whether a range over this column is rounded to whole numbers: it counts tokens, requests or ranks."""
        return self.is_whole or self.unit in _WHOLE_UNITS

    @property
    def allowed(self) -> str:
        """What is allowed, for people."""
        if self.values:
            return "one of " + ", ".join(self.values)
        if self.is_text:
            return "a name"
        kind = "a whole number" if self.is_whole else "a number"
        unit = "" if self.unit == "1" else f" {self.unit}"
        return f"{kind} from {self.minimum:.15g} to {self.maximum:.15g}{unit}"

    def admits(self, value: float) -> bool:
        """Whether the number `value` is allowed."""
        low, high = self.minimum, self.maximum
        in_range = (low is None or value >= low) and (high is None or value <= high)
        return in_range and math.isfinite(value) and (not self.is_whole or value == int(value))


@cache
def dictionary() -> Mapping[str, Column]:
    """Every column by name, in the order of the schema."""
    rows = csv.DictReader(_source().splitlines())
    return {row["name"]: _column(row) for row in rows}


def column(name: str) -> Column:
    """The column `name`; KeyError if there is none."""
    return dictionary()[name]


def of_groups(*groups: str) -> tuple[Column, ...]:
    """The columns of `groups`, in the order of the schema."""
    return tuple(column for column in dictionary().values() if column.group in groups)


def inputs() -> tuple[Column, ...]:
    """The columns that describe a point: everything but the answers."""
    return of_groups(*INPUT_GROUPS)


def point_columns() -> tuple[Column, ...]:
    """The columns of a solved point, in the order of the schema."""
    return of_groups(*POINT_GROUPS)


@cache
def digest() -> str:
    """SHA-256 of the dictionary."""
    import hashlib  # takes as long to load as all that `--help` needs of this module

    return hashlib.sha256(_source().encode()).hexdigest()


def _source() -> str:
    return (Path(__file__).parent / "data" / "columns.csv").read_text(encoding="utf-8")


def _column(row: dict[str, str]) -> Column:
    return Column(
        name=row["name"],
        type=row["type"],
        unit=row["unit"],
        group=row["group"],
        role=row["role"],
        default=row["default"],
        minimum=_number(row["minimum"]),
        maximum=_number(row["maximum"]),
        values=tuple(row["values"].split()),
        meaning=row["meaning"],
    )


def _number(text: str) -> float | None:
    return float(text) if text else None
