"""What shipped profiles are worth: on measurements of your own, or on the shipped ones, each held out of its fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from lambdamax.calibration.errors import GROUPS, compared, summary
from lambdamax.calibration.families import key_of
from lambdamax.calibration.matched import match
from lambdamax.calibration.measured import read_measured
from lambdamax.calibration.predicted import Floats, Predictor, Run
from lambdamax.calibration.rows import METRICS, Measured
from lambdamax.catalog import Catalog, load_catalog
from lambdamax.facts import DATA
from lambdamax.fitted import DEFAULT, Choice, Fitted, choice, fallback_band
from lambdamax.profiles import CONSTANTS

HELD_OUT_FILE: Final = "held_out.parquet"
ON_HELD_OUT: Final = "shipped measurements, each predicted by a fit that has not seen its curve"
ON_FILES: Final = "the given files, by the shipped profiles"


@dataclass(frozen=True)
class Validation:
    """Errors on what was `used` of `rows`; `table` has a line for each value, `skipped` counts rows by reason."""

    on: str
    rows: int
    used: int
    skipped: Mapping[str, int]
    table: pl.DataFrame

    def as_json(self) -> dict[str, Any]:
        """The errors in all and by engine, accelerator, model and metric, as fractions."""
        return {
            "rows": self.rows,
            "used": self.used,
            "skipped": dict(self.skipped),
            "overall": summary(self.table, ["metric"]),
            "by": summary(self.table, GROUPS),
        }


def validate(files: Iterable[str | Path] = (), *, catalog: Catalog | None = None) -> Validation:
    """Errors of predictions on the measured CSV `files`, or without any on the shipped measurements, held out.

    The files have the header of the shipped measurements, long or short. A weight format that is blank is that of the
    checkpoint; a row without clients and rate, or that the engine does not cover, is skipped and counted. Raises
    MeasurementError if a file is not of that kind.
    """
    paths = [Path(file) for file in files]
    if not paths:
        table = pl.read_parquet(DATA / HELD_OUT_FILE)
        used = int(table["row"].n_unique())
        return Validation(ON_HELD_OUT, used, used, {}, table)
    catalog = catalog or load_catalog()
    matching = match(read_measured(paths), catalog)
    table = predicted_by_shipped(matching.rows, catalog)
    used = int(table["row"].n_unique())
    skipped = dict(matching.skipped)
    if used < len(matching.rows):
        skipped["the engine has no answer under the shipped profile"] = len(matching.rows) - used
    return Validation(ON_FILES, matching.read, used, skipped, table)


def predicted_by_shipped(rows: tuple[Measured, ...], catalog: Catalog) -> pl.DataFrame:
    """A line for each value of `rows`, as `errors.compared` makes it, by the nearest shipped profile; `row` counts."""
    architectures = {name: catalog.accelerator(name).architecture for name in catalog.accelerators}
    chosen = [choice(key_of(row), architectures) for row in rows]
    names = [DEFAULT if found is None else found.provenance for found in chosen]
    predicted = {metric: np.full(len(rows), np.nan) for metric in METRICS}
    uncertainty = {metric: np.full(len(rows), np.nan) for metric in METRICS}
    for name in dict.fromkeys(names):
        places = [place for place, other in enumerate(names) if other == name]
        its = Predictor([rows[place] for place in places])
        found = chosen[places[0]]
        answers = its.predict([_constants(found)] * len(its.replicas), _run(found)).metrics
        for metric in METRICS:
            predicted[metric][places] = answers[metric]
            uncertainty[metric][places] = _uncertainty(found, metric)
    return numbered(compared(rows, predicted, uncertainty, names), rows, predicted)


def run_of(fitted: Fitted) -> Run:
    """What the benchmark runs behind a profile add; what it does not say is as usual."""
    return Run(**{name: fitted.value(name, usual) for name, usual in vars(Run()).items()})


def numbered(table: pl.DataFrame, rows: tuple[Measured, ...], predicted: Mapping[str, Floats]) -> pl.DataFrame:
    """`table` with the place of each line's row among `rows`."""
    places = [
        place
        for place, row in enumerate(rows)
        for metric in METRICS
        if metric in row.results and np.isfinite(predicted[metric][place])
    ]
    return table.with_columns(row=pl.Series(places, dtype=pl.UInt32))


def _constants(found: Choice | None) -> dict[str, float]:
    if found is None:
        return {}
    own = found.fitted.profile().constants
    return {name: own[name].value for name in CONSTANTS["full"]}


def _run(found: Choice | None) -> Run:
    return Run() if found is None else run_of(found.fitted)


def _uncertainty(found: Choice | None, metric: str) -> float:
    if found is None:
        return fallback_band(DEFAULT, metric == "ttft")
    return found.ttft_uncertainty if metric == "ttft" else found.uncertainty
