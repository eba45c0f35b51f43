"""The shipped profiles, fitted to the shipped measurements, with their errors: `python benches/fit_profiles.py`.

Writes `fitted_profiles.csv`, `fitted_constants.csv` and `held_out.parquet` of the package data, and the tables and the
plot of docs/calibration.md. With measured CSV files as arguments it first makes the table of measurements of them:
every row that can be compared, with its source, address and date; where none is stated, that of reading.
"""

from __future__ import annotations

import csv
import datetime
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

import calibration_page
import size_transfer
from lambdamax.calibration.errors import compared
from lambdamax.calibration.families import Group, key_of
from lambdamax.calibration.held_out import band, pooled_band
from lambdamax.calibration.matched import match
from lambdamax.calibration.measured import read_measured
from lambdamax.calibration.predicted import Predictor, Run
from lambdamax.calibration.rows import METRICS, Measured
from lambdamax.calibration.shipping import Everything, Shipped, fit_all
from lambdamax.calibration.validating import HELD_OUT_FILE, numbered, run_of
from lambdamax.catalog import Catalog, load_catalog
from lambdamax.facts import DATA
from lambdamax.fitted import (
    DEFAULT,
    DENSE,
    FALLBACKS,
    KEYS_FILE,
    LEVELS,
    POINTS,
    TTFT_UNCERTAINTY,
    UNCERTAINTY,
    VALUES_FILE,
    Fitted,
    Key,
    nearest,
)
from lambdamax.profiles import CONSTANTS, Constant

Floats = NDArray[np.float64]
TABLE: Final = DATA / "measured_rows.parquet"
SOURCE: Final = "measured_rows.parquet, by python benches/fit_profiles.py"
DIGITS: Final = 4
SUPERSEDED: Final = ("argonne_llm_inference_bench", ("h100-sxm", "gh200-96"))
UNITS: Final = {
    "gathered_share": "share of the time lost to the prompts of others",
    "handover": "intervals between completions",
    "unsplit_share": "share of the bandwidth of attention where it does not split a sequence",
}
BAND: Final = "u in rate/(1 + u) to rate*(1 + u)"
OF_RATE: Final = ("tpot", "output_tok_s", "request_rate")


class Errors:
    """ln(predicted/measured) of each row held out, of its rate and of its TTFT, NaN where there is none."""

    def __init__(self, rows: Iterable[Measured], predicted: Mapping[str, Floats]) -> None:
        """Compare the first of TPOT, throughput and rate that a row has, and its TTFT."""
        rows = tuple(rows)
        self.by_metric = {
            metric: np.log(predicted[metric] / np.array([row.results.get(metric, np.nan) for row in rows]))
            for metric in METRICS
        }
        self.rate = np.full(len(rows), np.nan)
        for metric in reversed(OF_RATE):
            self.rate = np.where(np.isnan(self.by_metric[metric]), self.rate, self.by_metric[metric])
        self.ttft = self.by_metric["ttft"]

    def of(self, metric: str) -> Floats:
        """Those that the band of a metric is read off."""
        return self.ttft if metric == "ttft" else self.rate


class Bands:
    """u of each group's band, from its errors and those of its kin, of all folds or all but one."""

    def __init__(self, found: Everything, errors: Errors) -> None:
        """Sort the rows by group, pool and kind of models."""
        self._errors, self._fold = errors, found.fold
        groups = [one.group for one in found.shipped]
        self._pool = labels(len(found.rows), groups, [group.pool for group in groups])
        self._kind = labels(len(found.rows), groups, [group.key.family == DENSE for group in groups])

    def of(self, metric: str, group: Group, left: int | None = None) -> float:
        """The band of a metric, without the errors of the fold `left`."""
        places = np.array(group.places)
        own = np.zeros(len(self._fold), dtype=bool)
        own[places] = True
        alike = (own, self._pool == self._pool[places[0]], self._kind == self._kind[places[0]])
        seen = self._fold != left if left is not None else np.ones(len(own), dtype=bool)
        return pooled_band(self._errors.of(metric), [circle & seen for circle in alike])


def labels(count: int, groups: Iterable[Group], names: Iterable[object]) -> NDArray[np.object_]:
    """The name that each group has, by row."""
    found = np.full(count, None, dtype=object)
    for group, name in zip(groups, names, strict=True):
        found[list(group.places)] = name
    return found


def main(files: list[str]) -> None:
    """Fit everything and write it."""
    catalog = load_catalog()
    if files:
        write_table(files, catalog)
    table = pl.read_parquet(TABLE)
    rows = match(table, catalog).rows
    found = fit_all(rows, lambda said: print(said, file=sys.stderr))
    errors = Errors(rows, found.held_out)
    bands = Bands(found, errors)
    made = [fitted(one, rows, errors, bands, catalog) for one in found.shipped if one.is_own]
    write_profiles(made, fallback_bands(made, rows, errors, catalog), latest(rows))
    held = held_out_table(found, bands)
    held.write_parquet(DATA / HELD_OUT_FILE, compression="zstd")
    calibration_page.write(held, "\n".join(size_transfer.table(rows, catalog)))


def write_table(files: Iterable[str], catalog: Catalog) -> None:
    """The rows of `files` that can be compared, in the order of their source."""
    whole = read_measured(map(Path, files))
    kept = match(whole.with_row_index("place"), catalog).rows
    places = [row.origin["place"] for row in kept if not superseded(row)]
    dated = pl.col("date").fill_null(datetime.date.today().isoformat())
    whole[places].with_columns(dated).write_parquet(TABLE, compression="zstd", compression_level=19)


def superseded(row: Measured) -> bool:
    """Whether newer engines were measured on that accelerator: engines of 2024, whose version is not even stated."""
    source, gpus = SUPERSEDED
    return row.origin["source"] == source and row.at.gpu in gpus


def latest(rows: Iterable[Measured]) -> str:
    """The newest date of a measurement."""
    return max(row.origin["date"] or "" for row in rows)


def fitted(one: Shipped, rows: tuple[Measured, ...], errors: Errors, bands: Bands, catalog: Catalog) -> Fitted:
    """A group's fit as a profile."""
    places = np.array(one.group.places)
    parent = catalog.accelerator(one.group.key.gpu).default_profile
    its = Predictor([rows[place] for place in places])
    constants = one.fit.freedom.moved(one.fit.moves, its.replicas[0])
    told = {name: value for name, value in constants.items() if one.fit.told[name]}
    run = one.fit.run
    values = {**told, **{name: value for name, value in vars(run).items() if name in one.fit.freedom.of_run}}
    numbers = {POINTS: float(len(places)), UNCERTAINTY: bands.of("tpot", one.group)}
    if np.isfinite(errors.ttft[places]).any():
        numbers[TTFT_UNCERTAINTY] = bands.of("ttft", one.group)
    date = latest(rows[place] for place in places)
    every = {**numbers, **values}
    return Fitted(
        one.group.key,
        parent,
        date,
        {name: constant(one.group.key.name, name, each, date) for name, each in every.items()},
    )


def constant(profile: str, name: str, value: float, date: str) -> Constant:
    """A number with its unit and where it is from."""
    allowed = CONSTANTS["full"].get(name)
    unit = allowed.unit if allowed else UNITS.get(name, "rows" if name == POINTS else BAND)
    return Constant(float(f"{value:.{DIGITS}g}"), unit, SOURCE, date, "", profile)


def fallback_bands(
    made: list[Fitted], rows: tuple[Measured, ...], errors: Errors, catalog: Catalog
) -> dict[str, float]:
    """u of each fallback, from every group predicted as if its own profile, and the nearer ones, were not there."""
    architectures = {name: catalog.accelerator(name).architecture for name in catalog.accelerators}
    members: dict[Key, list[int]] = {}
    for place, row in enumerate(rows):
        members.setdefault(key_of(row), []).append(place)
    logs: dict[str, list[float]] = {}
    for key, places in members.items():
        its = Predictor([rows[place] for place in places])
        for level, constants, run in others(key, made, architectures):
            answers = its.predict([constants] * len(its.replicas), run).metrics
            off = Errors(its.rows, answers)
            logs.setdefault(level, []).extend(off.rate)
            logs.setdefault(f"ttft_{level}", []).extend(off.ttft)
    return {level: band(np.array(values)) for level, values in logs.items()}


def others(
    key: Key, made: list[Fitted], architectures: Mapping[str, str]
) -> Iterator[tuple[str, dict[str, float], Run]]:
    """For each level of fallback the nearest profile of it, and the default constants."""
    yield DEFAULT, {}, Run()
    for level in LEVELS[1:]:
        fit = [one for one in made if at_level(key, one, architectures) == level]
        found = nearest(key, fit, architectures)
        if found is not None:
            own = found.fitted.profile().constants
            constants = {name: own[name].value for name in CONSTANTS["full"]}
            yield level, constants, run_of(found.fitted)


def at_level(key: Key, one: Fitted, architectures: Mapping[str, str]) -> str | None:
    """How near a profile is to what is wanted, None if it is not near at all."""
    found = nearest(key, [one], architectures)
    return None if found is None else found.level


def write_profiles(made: Iterable[Fitted], bands: Mapping[str, float], date: str) -> None:
    """The two tables of fitted profiles."""
    made = sorted(made, key=lambda one: one.key.name)
    keys = [(*one.key, one.inherits, SOURCE, one.date) for one in made]
    write_csv(DATA / KEYS_FILE, (*Key._fields, "inherits", "source", "date"), keys)
    every = [constant(FALLBACKS, level, value, date) for level, value in sorted(bands.items()) if np.isfinite(value)]
    named = [(each, level) for each, level in zip(every, sorted(bands), strict=False)]
    lines = [(FALLBACKS, level, each.value, each.unit, each.source, each.date, "") for each, level in named]
    for one in made:
        for name, each in one.values.items():
            lines.append((one.key.name, name, each.value, each.unit, each.source, each.date, ""))
    write_csv(DATA / VALUES_FILE, ("profile", "constant", "value", "unit", "source", "date", "note"), lines)


def write_csv(path: Path, header: tuple[str, ...], lines: Iterable[tuple[object, ...]]) -> None:
    """A CSV file of the package data."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(lines)


def held_out_table(found: Everything, bands: Bands) -> pl.DataFrame:
    """A line for each measured value: what the fit of the other folds says, and the band that their errors give."""
    count = len(found.rows)
    widths = {metric: np.full(count, np.nan) for metric in METRICS}
    names = [""] * count
    for one in found.shipped:
        places = np.array(one.group.places)
        for place in places:
            names[place] = one.group.key.name if one.is_own else DEFAULT
        for left in np.unique(found.fold[places]):
            held = places[found.fold[places] == left]
            for metric, values in widths.items():
                values[held] = bands.of(metric, one.group, int(left))
    table = compared(found.rows, found.held_out, widths, names)
    return numbered(table, found.rows, found.held_out).with_columns(pl.col("uncertainty").fill_nan(None))


if __name__ == "__main__":
    main(sys.argv[1:])
