"""The table of measured operating points: its columns, and a frame of rows that readers made."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import polars as pl

from lambdamax.facts import DATA

DICTIONARY: Final = "measured_columns.csv"
FACTS: Final = ("model", "gpu", "gpus", "tp", "pp", "ep", "weight_dtype", "kv_dtype", "engine", "engine_version")
LOADS: Final = ("closed", "open", "burst", "static", "offline")
_TYPES: Final[dict[str, Any]] = {"text": pl.String, "f64": pl.Float64, "bool": pl.Boolean}

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MeasuredColumn:
    """One column: `type` is `text`, `f64` or `bool`; `unit` is empty for text."""

    name: str
    type: str
    unit: str
    meaning: str


@cache
def measured_columns() -> Mapping[str, MeasuredColumn]:
    """Every column by name, in the order of the table."""
    with (DATA / DICTIONARY).open(encoding="utf-8", newline="") as stream:
        return {row["name"]: MeasuredColumn(**row) for row in csv.DictReader(stream)}


def schema() -> dict[str, Any]:
    """The Polars types of the table."""
    return {column.name: _TYPES[column.type] for column in measured_columns().values()}


def measured_frame(rows: Iterable[Row]) -> pl.DataFrame:
    """The table of `rows`, null where a row has nothing."""
    names = tuple(measured_columns())
    columns = [[row.get(name) for name in names] for row in rows]
    return pl.DataFrame(columns, schema=schema(), orient="row")


def token_mean(e2e_mean_s: float | None, ttft_mean_s: float | None, osl_mean_tokens: float | None) -> float | None:
    """Mean TPOT over tokens [s] from means over requests: sum(E2E - TTFT)/sum(OSL - 1) is their ratio.

    None where one of the means [s, s, tokens] is not known or there is no decode phase.
    """
    if e2e_mean_s is None or ttft_mean_s is None or osl_mean_tokens is None or osl_mean_tokens <= 1:
        return None
    found = (e2e_mean_s - ttft_mean_s) / (osl_mean_tokens - 1)
    return found if found > 0 else None


def ratio(over: float | None, under: float | None) -> float | None:
    """`over`/`under`, None where it has no value."""
    return over / under if over is not None and under else None


def scaled(value: float | None, factor: float | None) -> float | None:
    """`value` times `factor`, None where one of them is."""
    return None if value is None or factor is None else value * factor


def noted(*parts: str | None) -> str | None:
    """The parts that say something, as one note."""
    return "; ".join(part for part in parts if part) or None
