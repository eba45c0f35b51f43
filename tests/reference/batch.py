"""Cases as the columns that lambdamax._engine takes, and its answers as rows to compare."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lambdamax import _engine
from reference.empirical import TABLES, table
from reference.fields import Row
from reference.points import Case

Columns = dict[str, NDArray[Any]]
STATUSES: tuple[str, ...] = _engine.STATUSES
LOAD_STATUSES: tuple[str, ...] = _engine.LOAD_STATUSES
ANSWERS: tuple[str, ...] = _engine.ANSWER_FIELDS
MOMENTS = ("isl_tokens", "osl_tokens", "isl_cv", "osl_cv")
LOAD_FIELDS = ("rate_rps", "concurrency", "think_time_s")


def column(rows: Sequence[Row], name: str) -> NDArray[np.float64]:
    """One field of all rows; NaN where it is not given."""
    values = (row.get(name) for row in rows)
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def replicas(cases: Sequence[Case]) -> _engine.Replicas:
    """One replica per case; cases with the same blocks have one model."""
    models: dict[tuple[tuple[tuple[str, float | None], ...], ...], int] = {}
    numbers = [models.setdefault(tuple(tuple(block.items()) for block in case.blocks), len(models)) for case in cases]
    used = [case.row | {"model": float(number)} for case, number in zip(cases, numbers, strict=True)]
    layers = [dict(block) | {"model": float(number)} for blocks, number in models.items() for block in blocks]
    return _engine.Replicas(
        {name: column(used, name) for name in _engine.REPLICA_FIELDS},
        {name: column(layers, name) for name in _engine.BLOCK_FIELDS},
        [(law.prompt, law.output, law.weight) for law in map(table, range(TABLES))],
    )


def points(cases: Sequence[Case], fields: Sequence[str]) -> Columns:
    """The numeric inputs of all cases; what a law tells is left to it."""
    found = {name: column([case.point for case in cases], name) for name in fields}
    for name in MOMENTS:
        found[name][~np.isnan(found["lengths"])] = math.nan
    return found


def solve(cases: Sequence[Case], threads: int = 1) -> Columns:
    """The engine's answers to all cases."""
    index = np.arange(len(cases), dtype=np.uint32)
    return _engine.solve(replicas(cases), index, points(cases, _engine.POINT_FIELDS), threads)


def load(cases: Sequence[Case], threads: int = 1) -> Columns:
    """The engine's operating points of all cases at their loads."""
    index = np.arange(len(cases), dtype=np.uint32)
    return _engine.load(replicas(cases), index, points(cases, (*_engine.POINT_FIELDS, *LOAD_FIELDS)), threads)


def rows(answers: Columns) -> list[dict[str, float]]:
    """Columns as one dictionary per row."""
    lists = {name: values.tolist() for name, values in answers.items()}
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


def name_of(code: float, names: Sequence[str]) -> str | None:
    """The name of a code, None for null."""
    return names[int(code)] if code < len(names) else None
