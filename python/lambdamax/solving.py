"""Frames of points in, the same frames with answers out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import polars as pl

from lambdamax import columns, frames
from lambdamax.bands import COLUMNS as BAND_COLUMNS
from lambdamax.bands import Bands
from lambdamax.catalog import Catalog, load_catalog
from lambdamax.columns import Column
from lambdamax.engine import Arrays, Replicas
from lambdamax.frames import Points
from lambdamax.replicas import ReplicaRow
from lambdamax.series import series


def solve(frame: pl.DataFrame | pl.LazyFrame, *, threads: int = 0, catalog: Catalog | None = None) -> pl.DataFrame:
    """Solve every row of `frame`, a point: its columns, in its order, with the answers appended.

    The columns are inputs of the dictionary, in its units (SI, USD/h). `model` and `gpu` are required in every row, and
    `isl_tokens` and `osl_tokens` or `lengths`; any other takes its default where it is missing or null. The answers are
    the dictionary's groups answer, operating and money; where a point has none they are null and `status` says why: a
    point that cannot be solved raises nothing. `threads` 0 uses every core; answers do not depend on it. A LazyFrame is
    collected first.

    Raises FrameError, naming every column that is unknown, missing or of the wrong type and, for each column with
    values that are not allowed, the first of them with its row and how many more rows there are.
    """
    points = frames.points(frame, catalog or load_catalog())
    result = Replicas.of(points.rows, points.lengths).solve(points.replica, points.numbers, threads)
    bands = Bands.of(points.rows)
    answers = columns.of_groups("answer", "operating", "money")
    found = {name: bands.column(name, result, points.replica) for name in BAND_COLUMNS}
    return _with_answers(points, result, answers, found)


def load(frame: pl.DataFrame | pl.LazyFrame, *, threads: int = 0, catalog: Catalog | None = None) -> pl.DataFrame:
    """The operating point of every row of `frame` under a given load, as `solve` gives the one at the largest rate.

    Beside the inputs of `solve`, `frame` has `rate_rps` [requests/s] (open loop), or `concurrency` [requests] and
    perhaps `think_time_s` [s] (closed loop), the first two with a value in every row. The answers are the dictionary's
    group operating, as far as it depends on the load, and of its group load what is not in `frame`; `load_status` says
    what became of the load. Raises FrameError as `solve` does.
    """
    points = frames.loaded_points(frame, catalog or load_catalog())
    result = Replicas.of(points.rows, points.lengths).load(points.replica, points.numbers, threads)
    result["load_status"] = result.pop("status")
    return _with_answers(points, result, columns.of_groups("answer", "operating", "load"))


def facts(rows: Sequence[ReplicaRow]) -> pl.DataFrame:
    """What the engine derives from each replica alone: bytes, parameters and KV bytes per token, one row each."""
    found = Replicas.of(rows).facts()
    return pl.DataFrame([pl.Series(name, values, nan_to_null=True) for name, values in found.items()])


def _with_answers(
    points: Points, result: Arrays, answers: Iterable[Column], made: Mapping[str, pl.Series] | None = None
) -> pl.DataFrame:
    """The frame with `answers` appended: those that are `made`, else those in `result`."""
    made = made or {}
    held = points.frame.columns
    wanted = [
        column for column in answers if column.name not in held and (column.name in made or column.name in result)
    ]
    return points.frame.with_columns(
        [made[column.name] if column.name in made else _answer(column, result) for column in wanted]
    )


def _answer(column: Column, result: Arrays) -> pl.Series:
    return series(column, result[column.name], column.values)
