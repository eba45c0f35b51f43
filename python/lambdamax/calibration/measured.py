"""Measured CSV files, of the long and of the short header, as one table in SI units."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import polars as pl

from lambdamax.exceptions import Fault, MeasurementError
from lambdamax.facts import read_text

MILLI: Final = 1e-3
TEXTS: Final = ("model", "gpu", "weight_dtype", "kv_dtype", "engine", "engine_version")
ORIGIN: Final = ("source", "source_url", "date", "notes")
COUNTS: Final = ("gpus", "tp", "pp", "ep", "isl", "osl", "concurrency", "request_rate")
RESULTS: Final = ("ttft_mean_s", "ttft_p50_s", "tpot_mean_s", "tpot_p50_s", "output_tok_s", "request_throughput")
SCHEMA: Final = {
    **dict.fromkeys(TEXTS, pl.String),
    **dict.fromkeys((*COUNTS, *RESULTS), pl.Float64),
    **dict.fromkeys(ORIGIN, pl.String),
}
# Columns of the files by those of the table: the long header's, else the short one's.
_NUMBERS: Final[Mapping[str, tuple[tuple[str, ...], float]]] = {
    **{name: ((name,), 1.0) for name in COUNTS},
    "ttft_mean_s": (("ttft_mean_ms", "ttft_ms"), MILLI),
    "ttft_p50_s": (("ttft_p50_ms",), MILLI),
    "tpot_mean_s": (("tpot_mean_ms", "tpot_ms"), MILLI),
    "tpot_p50_s": (("tpot_p50_ms",), MILLI),
    "output_tok_s": (("output_tok_s_total",), 1.0),
    "request_throughput": (("request_throughput",), 1.0),
}
NEEDED: Final = ("model", "gpu", "engine", "isl", "osl", "dtype")
_DATE: Final = re.compile(r"measured=(\d{4}-\d{2}-\d{2})")


def read_measured(paths: Iterable[Path]) -> pl.DataFrame:
    """Every row of the files, with the columns of `SCHEMA`: tokens, seconds, requests/s, tokens/s; blank is null.

    `engine` is a name; what follows a space in it is `engine_version`, where that has no column. A TTFT or TPOT whose
    statistic is not stated counts as a mean. Raises MeasurementError naming every column that is missing and every cell
    that is not a number.
    """
    faults: list[Fault] = []
    rows = [row for path in paths for row in _read(path, faults)]
    if faults:
        raise MeasurementError(tuple(faults))
    return pl.DataFrame(rows, schema=SCHEMA)


def _read(path: Path, faults: list[Fault]) -> list[dict[str, str | float | None]]:
    text, _ = read_text(path)
    lines = csv.DictReader(io.StringIO(text, newline=""))
    missing = [name for name in NEEDED if name not in (lines.fieldnames or ())]
    if missing:
        faults.append(Fault(str(path), "header", f"without {', '.join(missing)}", f"the columns {', '.join(NEEDED)}"))
        return []
    return [_row(line, f"{path}:{place}", faults) for place, line in enumerate(lines, 2)]


def _row(line: Mapping[str, str | None], where: str, faults: list[Fault]) -> dict[str, str | float | None]:
    engine, _, version = (line["engine"] or "").partition(" ")
    if line.get("engine_version") is not None:
        engine, version = line["engine"] or "", line["engine_version"] or ""
    notes = line.get("notes") or ""
    dated = _DATE.search(notes)
    return {
        **{name: line.get(name) or None for name in (*ORIGIN, "gpu", "kv_dtype")},
        "model": line.get("hf_id") or line["model"] or None,
        "weight_dtype": line["dtype"] or None,
        "engine": engine.strip() or None,
        "engine_version": version.strip() or None,
        "date": line.get("date") or (dated and dated[1]) or None,
        **{name: _number(line, names, unit, where, faults) for name, (names, unit) in _NUMBERS.items()},
    }


def _number(
    line: Mapping[str, str | None], names: tuple[str, ...], unit: float, where: str, faults: list[Fault]
) -> float | None:
    name = next((name for name in names if line.get(name)), None)
    if name is None:
        return None
    try:
        return float(line[name] or "") * unit
    except ValueError:
        faults.append(Fault(where, name, repr(line[name]), "a number, or nothing"))
        return None
