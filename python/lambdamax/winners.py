"""The winners of a frontier, each simulated at its largest rate, beside what the solver says of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import polars as pl

from lambdamax import columns, frames
from lambdamax.catalog import Catalog, load_catalog
from lambdamax.engine import SIM_STATUSES, Control, Replicas
from lambdamax.frames import Points
from lambdamax.replicas import ReplicaRow
from lambdamax.series import series

STATUS: Final = "sim_status"
BECAUSE: Final = "sim_unsupported_because"
_UNSUPPORTED: Final = "unsupported"
_PLACE: Final = "_place"
_PREFIX: Final = "sim_"
_NUMBERS: Final = [each for each in columns.of_groups("simulated") if not each.is_text]


def check_frontier(
    table: pl.DataFrame,
    *,
    seed: int = 0,
    requests: int = 400_000,
    precision: float = 0.02,
    threads: int = 0,
    catalog: Catalog | None = None,
) -> pl.DataFrame:
    """The `table` of `frontier`, with what a simulation of each row with a rank, at `max_rate_rps`, comes to.

    Arrivals are Poisson; `seed`, `requests`, `precision` and `threads` are as in `simulate`. Added are the
    columns of the dictionary's group simulated: `sim_status` (`steady`, `saturated`, `unsettled`, or why nothing was
    simulated), `sim_unsupported_because`, and numbers in SI units; all null without a rank. `catalog` is the one that
    the points were solved with. Raises FrameError for names that it does not know.
    """
    ranked = table.with_row_index(_PLACE).filter(pl.col("rank").is_not_null())
    asked = [column.name for column in columns.inputs() if column.name in ranked.columns]
    points = frames.points(ranked.select(asked), catalog or load_catalog())
    control = Control(requests=requests, precision=precision, replications=4, seed=seed)
    numbers = {**points.numbers, "rate_rps": ranked["max_rate_rps"].to_numpy().astype(np.float64)}
    found = Replicas.of(points.rows, points.lengths).simulate(points.replica, numbers, control, threads)
    status = [SIM_STATUSES[code] for code in found["status"]]
    added = ranked.select(_PLACE).with_columns(
        pl.Series(STATUS, status, dtype=pl.String),
        pl.Series(BECAUSE, list(_reasons(points, status)), dtype=pl.String),
        *(series(each, found[each.name.removeprefix(_PREFIX)], ()) for each in _NUMBERS),
    )
    places = table.with_row_index(_PLACE)
    return places.join(added, on=_PLACE, how="left", maintain_order="left").drop(_PLACE)


def _reasons(points: Points, status: list[str]) -> Iterator[str | None]:
    for place, found in zip(points.replica, status, strict=True):
        yield _not_simulated(points.rows[place]) if found == _UNSUPPORTED else None


def _not_simulated(row: ReplicaRow) -> str:
    """What of a replica the simulator does not know."""
    parts: list[str] = []
    if any(block["span_kind"] or block["attended_tokens"] for block in row.blocks):
        parts.append("attention that does not see every token")
    if any(block["state_bytes"] for block in row.blocks):
        parts.append("recurrent states")
    if row.fields["pp"] > 1:
        parts.append("pipeline stages")
    if row.fields["dp"] > 1 and not _has_experts(row.blocks):
        parts.append("data-parallel ranks that share no experts")
    return f"not simulated: {', '.join(parts) or 'such a replica'}"


def _has_experts(blocks: tuple[Mapping[str, Any], ...]) -> bool:
    return any(block["experts"] for block in blocks)
