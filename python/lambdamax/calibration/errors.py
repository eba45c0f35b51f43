"""How far predictions are from measurements: errors by engine, accelerator, model and metric."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from lambdamax.calibration.predicted import Floats
from lambdamax.calibration.rows import METRICS, Measured

WITHIN: Final = 0.1
GROUPS: Final = ("engine", "gpu", "model", "metric")
SCHEMA: Final = {
    **dict.fromkeys(
        ("engine", "engine_version", "gpu", "model", "weight_dtype", "family", "curve", "source", "profile"), pl.String
    ),
    "metric": pl.String,
    "measured": pl.Float64,
    "predicted": pl.Float64,
    "uncertainty": pl.Float64,
}


def compared(
    rows: Sequence[Measured],
    predicted: Mapping[str, Floats],
    uncertainty: Mapping[str, Floats],
    profiles: Sequence[str],
) -> pl.DataFrame:
    """One line for each measured value that has a prediction, with the columns of `SCHEMA`.

    `predicted` and `uncertainty` (u of the 80 % band, predicted/(1 + u) to predicted*(1 + u)) are by metric, in SI
    units, in the order of `rows`.
    """
    lines = [
        {
            **dict(zip(SCHEMA, (*_names(row), profile), strict=False)),
            "metric": metric,
            "measured": row.results[metric],
            "predicted": float(predicted[metric][place]),
            "uncertainty": float(uncertainty[metric][place]),
        }
        for place, (row, profile) in enumerate(zip(rows, profiles, strict=True))
        for metric in METRICS
        if metric in row.results and np.isfinite(predicted[metric][place])
    ]
    return pl.DataFrame(lines, schema=SCHEMA)


def _names(row: Measured) -> tuple[str, ...]:
    return (
        row.engine,
        row.version,
        row.at.gpu,
        row.at.model,
        row.weight_dtype,
        row.family,
        row.curve,
        str(row.origin["source"]),
    )


def summary(table: pl.DataFrame, by: Iterable[str]) -> list[dict[str, Any]]:
    """Errors of `table`, grouped `by` some of `GROUPS`, as fractions of what was measured; the others are null.

    `mape` and `median_ape` are the mean and the median of |predicted/measured - 1|, `bias` is the mean of
    predicted/measured - 1, `band_coverage` the share of measured values within the stated band.
    """
    by = list(by)
    ratio = pl.col("predicted") / pl.col("measured")
    off = (ratio - 1.0).abs()
    inside = ratio.log().abs() <= pl.col("uncertainty").log1p()
    found = table.group_by(by, maintain_order=True).agg(
        n=pl.len(),
        mape=off.mean(),
        median_ape=off.median(),
        bias=(ratio - 1.0).mean(),
        within_10pct=(off <= WITHIN).mean(),
        band_coverage=inside.mean(),
    )
    rows = found.sort([name for name in GROUPS if name in by]).to_dicts()
    return [{**{name: row.get(name) for name in GROUPS}, **row} for row in rows]
