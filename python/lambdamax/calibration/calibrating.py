"""A profile of your own from measurements: constants drawn to the default profile's, and how good they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from math import isnan
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from lambdamax.calibration import held_out
from lambdamax.calibration.errors import compared, summary
from lambdamax.calibration.fitting import Fit, fit, start
from lambdamax.calibration.matched import Matching, match
from lambdamax.calibration.measured import read_measured
from lambdamax.calibration.predicted import Floats, Predictor, Run
from lambdamax.calibration.profile_file import written
from lambdamax.calibration.rows import METRICS, Measured, curves
from lambdamax.catalog import Catalog, load_catalog
from lambdamax.exceptions import Fault, MeasurementError
from lambdamax.profiles import CONSTANTS, KINDS, Constant, Profile

RATES: Final = ("tpot", "output_tok_s", "request_rate")
# Rows too few for errors of their own keep at least the band of a fit that is good.
LEAST_BAND: Final = 0.1
FEWEST_FOR_A_FIT: Final = 2
SETTLED_AFTER: Final = 40
_RATIO: Final = {"kind": float(KINDS.index("ratio"))}
_U: Final = "u in rate/(1 + u) to rate*(1 + u)"


@dataclass(frozen=True)
class Moved:
    """One constant: where it started, where it is, and whether the rows told it; untold ones stay where they were."""

    name: str
    unit: str
    start: float
    value: float
    told: bool


@dataclass(frozen=True)
class Calibration:
    """A fitted profile: `text` is its file. Errors are fractions by metric; `held_out` is empty with a single curve.

    `residuals` are ln(predicted/measured) of the first of TPOT, throughput and rate of each row, after the fit.
    """

    name: str
    kind: str
    rows: int
    curves: int
    skipped: Mapping[str, int]
    constants: tuple[Moved, ...]
    run: Run
    uncertainty: float
    ttft_uncertainty: float
    before: list[dict[str, Any]]
    after: list[dict[str, Any]]
    held_out: list[dict[str, Any]]
    residuals: tuple[float, ...]
    text: str

    def as_json(self) -> dict[str, Any]:
        """Everything but the file."""
        return {
            "profile": self.name,
            "kind": self.kind,
            "rows": self.rows,
            "curves": self.curves,
            "skipped": dict(self.skipped),
            "relative_uncertainty": self.uncertainty,
            "ttft_relative_uncertainty": None if isnan(self.ttft_uncertainty) else self.ttft_uncertainty,
            "run": vars(self.run),
            "constants": [vars(each) for each in self.constants],
            "before": self.before,
            "after": self.after,
            "held_out": self.held_out,
        }


def calibrate(
    files: Iterable[str | Path],
    *,
    name: str = "calibrated",
    only: Mapping[str, str] | None = None,
    catalog: Catalog | None = None,
) -> Calibration:
    """Fit a profile to the measured CSV `files`; `only` picks an engine, gpu or weight_dtype where they hold several.

    Each constant is drawn to that of the default profile of the accelerator. A single row gives a profile of kind
    `ratio`: what was measured over the bandwidth floor. Raises MeasurementError if the files cannot be read, hold
    nothing that can be compared, or are of more than one engine, accelerator or format.
    """
    catalog = catalog or load_catalog()
    paths = [Path(file) for file in files]
    matching = match(read_measured(paths), catalog)
    rows = _one_kind(matching, only or {}, paths)
    parent = catalog.profile("default", rows[0].at.gpu)
    if len(rows) < FEWEST_FOR_A_FIT:
        return _ratio(rows[0], name, parent, matching)
    return _full(rows, name, parent, matching)


def _one_kind(matching: Matching, only: Mapping[str, str], paths: Sequence[Path]) -> tuple[Measured, ...]:
    rows = [row for row in matching.rows if all(_kind(row)[key] == value for key, value in only.items())]
    where = ", ".join(map(str, paths))
    if not rows:
        said = "; ".join(f"{count} rows: {reason}" for reason, count in matching.skipped.items()) or "no rows"
        raise MeasurementError((Fault(where, "rows", said, "at least one row that can be compared"),))
    found = Counter(tuple(_kind(row).values()) for row in rows)
    if len(found) > 1:
        said = "; ".join(f"{' '.join(kind)} ({count} rows)" for kind, count in found.most_common())
        allowed = "one engine, gpu and weight_dtype; pick with --engine, --gpu, --weight-dtype"
        raise MeasurementError((Fault(where, "rows", said, allowed),))
    return tuple(rows)


def _kind(row: Measured) -> dict[str, str]:
    return {"engine": row.engine, "gpu": row.at.gpu, "weight_dtype": row.weight_dtype}


def _full(rows: tuple[Measured, ...], name: str, parent: Profile, matching: Matching) -> Calibration:
    its = Predictor(rows)
    every = np.ones(len(rows), dtype=bool)
    begin, found = start(its), fit(its, every)
    after = found.predict(its).metrics
    unseen = _unseen(its) if curves(rows) > 1 else {}
    uncertainty = _band(rows, unseen or after, parent, held=bool(unseen))
    constants = _moved(found, its, parent)
    ttft = held_out.band(np.log((unseen or after)["ttft"] / its.measured("ttft")))
    return Calibration(
        name=name,
        kind="full",
        rows=len(rows),
        curves=curves(rows),
        skipped=matching.skipped,
        constants=constants,
        run=found.run,
        uncertainty=uncertainty,
        ttft_uncertainty=ttft,
        before=_errors(rows, begin.predict(its).metrics, parent.relative_uncertainty.value),
        after=_errors(rows, after, uncertainty, ttft),
        held_out=_errors(rows, unseen, uncertainty, ttft) if unseen else [],
        residuals=tuple(_logs(rows, after)[np.isfinite(_logs(rows, after))]),
        text=_file(rows, name, parent, constants, uncertainty),
    )


def _unseen(its: Predictor) -> dict[str, Floats]:
    return held_out.predicted(its, held_out.folds(its.rows), lambda of: fit(its, of))


def _band(rows: Sequence[Measured], predicted: Mapping[str, Floats], parent: Profile, *, held: bool) -> float:
    """u of the band: from curves held out; without any, half of the default's, since something was measured."""
    found = held_out.band(_logs(rows, predicted))
    return (
        max(found, LEAST_BAND if len(rows) < 10 else 0.0) if held else max(found, parent.relative_uncertainty.value / 2)
    )


def _logs(rows: Sequence[Measured], predicted: Mapping[str, Floats]) -> Floats:
    found = np.full(len(rows), np.nan)
    for metric in reversed(RATES):
        measured = np.array([row.results.get(metric, np.nan) for row in rows])
        found = np.where(np.isnan(measured), found, np.log(predicted[metric] / measured))
    return found


def _errors(
    rows: tuple[Measured, ...], predicted: Mapping[str, Floats], uncertainty: float, ttft: float | None = None
) -> list[dict[str, Any]]:
    """Errors by metric; the band of TTFT is that of a rate where it has none of its own."""
    own = {"ttft": uncertainty if ttft is None else ttft}
    bands = {metric: np.full(len(rows), own.get(metric, uncertainty)) for metric in METRICS}
    table: pl.DataFrame = compared(rows, predicted, bands, [""] * len(rows))
    return summary(table, ["metric"])


def _moved(found: Fit, its: Predictor, parent: Profile) -> tuple[Moved, ...]:
    values = found.freedom.moved(found.moves, its.replicas[0])
    return tuple(
        Moved(name, CONSTANTS["full"][name].unit, parent.constants[name].value, value, found.told[name])
        for name, value in values.items()
    )


def _ratio(row: Measured, name: str, parent: Profile, matching: Matching) -> Calibration:
    """One measured point: what it took over the bandwidth floor."""
    its = Predictor([row])
    ttft = row.results.get("ttft", float(its.predict([{}], Run()).metrics["ttft"][0]))
    constants = (
        Moved("measured_over_floor_ratio", "1", 1.0, _measured_over_floor(its, ttft), told=True),
        Moved("ttft_s", "s", ttft, ttft, told="ttft" in row.results),
    )
    after = its.predict([_RATIO | {each.name: each.value for each in constants}], Run(0.0, 0.0)).metrics
    uncertainty = parent.relative_uncertainty.value
    return Calibration(
        name=name,
        kind="ratio",
        rows=1,
        curves=1,
        skipped=matching.skipped,
        constants=constants,
        run=Run(0.0, 0.0),
        uncertainty=uncertainty,
        ttft_uncertainty=uncertainty,
        before=_errors((row,), its.predict([{}], Run()).metrics, uncertainty),
        after=_errors((row,), after, uncertainty),
        held_out=[],
        residuals=tuple(_logs([row], after)),
        text=_file((row,), name, parent, constants, uncertainty),
    )


def _measured_over_floor(its: Predictor, ttft_s: float) -> float:
    """The ratio that gives back the row; the batch, and so the floor, depends on it a little."""
    (row,) = its.rows
    metric = next((metric for metric in RATES if metric in row.results), None)
    ratio = 1.0
    for _ in range(SETTLED_AFTER if metric else 0):
        own = _RATIO | {"measured_over_floor_ratio": ratio, "ttft_s": ttft_s}
        off = row.results[metric or ""] / float(its.predict([own], Run(0.0, 0.0)).metrics[metric or ""][0])
        ratio *= off if metric == "tpot" else 1.0 / off
    return ratio


def _file(rows: Sequence[Measured], name: str, parent: Profile, constants: Sequence[Moved], uncertainty: float) -> str:
    ratio = constants[0].name == "measured_over_floor_ratio"
    sources = sorted({str(row.origin["source_url"] or row.origin["source"] or "measured") for row in rows})
    source = ", ".join(sources[:3]) + (f" and {len(sources) - 3} more" if len(sources) > 3 else "")
    when = max((row.origin["date"] or "" for row in rows), default="") or date.today().isoformat()
    note = f"fitted to {len(rows)} rows, {curves(rows)} curves"
    kept = {
        each.name: Constant(each.value, each.unit, source, when, note, name) for each in constants if each.told or ratio
    }
    header = {
        "name": name,
        "kind": "ratio" if ratio else "full",
        "status": "calibrated",
        "engine": rows[0].engine,
        "architectures": list(parent.architectures),
        **({} if ratio else {"inherits": parent.name}),
        "measured_points": len(rows),
    }
    about = f"Constants of {rows[0].engine} on {rows[0].at.gpu} in {rows[0].weight_dtype}, fitted to measurements."
    return written(about, header, Constant(uncertainty, _U, source, when, note, name), kept)
