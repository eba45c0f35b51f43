"""The numbers of a report as one JSON object: lists by place, in which text stands once, rounded as they are shown.

A group is a place in the product of the axes, the last fastest; a cell is a group and an option, the option fastest.
Times are in milliseconds. What page, charts and words say of a selection, they look up here (`views`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import polars as pl

from lambdamax import columns
from lambdamax.bands import HIGH, LOW, PROVENANCE
from lambdamax.catalog import DEFAULT_PROFILE, Catalog
from lambdamax.elasticity import FACTS
from lambdamax.exceptions import Fault, FrameError, UnknownName
from lambdamax.ranking import LIMITS, decided, said
from lambdamax.report.gathered import COMPARE, CURVE_SHARES, DRAWS, GROUP, LATENCIES, TRADED, TTFT, Axis, Gathered
from lambdamax.units import DASH, number

Packed = dict[str, Any]
"""The object; `report/assets/report.js` reads the same."""

_DIGITS: Final = 4
_FEWER: Final = 3
_FEWEST: Final = 2
_MS: Final = 1000.0
_NEEDED: Final = ("osl_tokens", "slo_ttft_s", "slo_tpot_s", "slo_e2e_s", "slo_percentile")
_HEADINGS: Final = {
    "model": "model",
    "isl_tokens": "prompt (ISL)",
    "osl_tokens": "output (OSL)",
    "slo_ttft_s": "TTFT SLO",
    "slo_tpot_s": "TPOT SLO",
    "slo_e2e_s": "E2E SLO",
    "price_plan": "price plan",
    "utilization_cap": "utilisation cap",
    "isl_cv": "spread of ISL",
    "osl_cv": "spread of OSL",
    "prefix_tokens": "shared prefix",
    "prefix_hit_share": "prefix hits",
}


def pack(found: Gathered, catalog: Catalog, at: Mapping[str, str] | None = None) -> Packed:
    """The object of `found`; `at` says at which values of the axes a reader starts (numbers: at the nearest).

    Raises FrameError for an `at` that is not a value of the sweep.
    """
    configs = _Configs(found, catalog)
    return {
        "name": str(found.manifest.get("name", "")),
        "question": str(found.manifest.get("question", "")),
        "points": found.manifest["rows"],
        "axes": [_axis(axis) for axis in found.axes],
        "fixed": _fixed(found),
        "options": list(found.options),
        "limits": list(LIMITS.values()),
        "facts": list(FACTS),
        "shares": [float(f"{share:.6g}") for share in CURVE_SHARES],
        "draws": DRAWS,
        "statistics": _statistics(found),
        "start": _start(found.axes, at or {}),
        "absent": dict(found.absent),
        "cells": _cells(found, configs),
        "origins": _origins(found),
        "refused": _refused(found),
        "groups": _groups(found),
        "pareto": _pareto(found, configs),
        "curves": _curves(found),
        "configs": configs.told,
    }


class _Configs:
    """What an operator decides, each combination once."""

    def __init__(self, found: Gathered, catalog: Catalog) -> None:
        chosen = [column.name for column in columns.inputs() if column.role == "chosen"]
        self._keys = [name for name in chosen if name in found.ranking.columns]
        both = [found.ranking.drop_nulls("rank"), *([found.pareto] if found.pareto.height else [])]
        points = pl.concat([each.select("model", *self._keys, "gpus") for each in both])
        shown = {"tp", *decided(points.with_columns(pl.lit(1).alias("rank")), COMPARE)} - {COMPARE}
        rows = points.drop("model").unique(maintain_order=True)
        self._rows = rows.with_row_index("_config")
        told = [name for name in self._keys if name in shown]
        places = {option: place for place, option in enumerate(found.options)}
        self.told = [_config(row, told, places, catalog) for row in rows.iter_rows(named=True)]

    def placed(self, frame: pl.DataFrame) -> pl.DataFrame:
        """`frame` with the place of each row's combination, null where there is none."""
        return frame.join(self._rows.drop("gpus"), on=self._keys, how="left", nulls_equal=True, maintain_order="left")


def _config(row: dict[str, Any], shown: Sequence[str], places: Mapping[str, int], catalog: Catalog) -> dict[str, Any]:
    name, status, uncertainty = _profile(catalog, row.get("profile") or DEFAULT_PROFILE, row[COMPARE])
    return {
        "option": places[row[COMPARE]],
        "text": ", ".join(said(row, shown, short=True)),
        "gpus": row["gpus"],
        "usd": row["usd_per_accelerator_hour"],
        "profile": name,
        "status": status,
        "factor": None if uncertainty is None else _rounded(1 + uncertainty, _FEWER),
    }


def _profile(catalog: Catalog, name: str, gpu: str) -> tuple[str, str, float | None]:
    try:
        profile = catalog.profile(name, gpu)
    except UnknownName:
        return name, "not in this catalogue", None
    status = "uncalibrated" if not profile.measured_points else f"{profile.status} on {profile.measured_points} points"
    return profile.name, status, profile.relative_uncertainty.value


def _axis(axis: Axis) -> dict[str, Any]:
    column = columns.column(axis.name)
    labels = [next(said({axis.name: value}, [axis.name]), "not asked for") for value in axis.values]
    return {
        "name": axis.name,
        "heading": _HEADINGS.get(axis.name, axis.name.replace("_", " ")),
        "unit": "" if column.unit == "1" else column.unit,
        "values": list(axis.values),
        "labels": labels,
        "ticks": [_tick(column, value) for value in axis.values],
        "swept": axis.swept,
    }


def _tick(column: columns.Column, value: Any) -> str:
    return DASH if value is None else str(value) if column.is_text else number(float(value))


def _fixed(found: Gathered) -> dict[str, Any]:
    """What is the same in all points and that words or charts need."""
    varying = {axis.name for axis in found.axes}
    names = [name for name in _NEEDED if name in found.ranking.columns and name not in varying]
    values = {name: found.ranking.drop_nulls("rank")[name].unique().to_list() for name in names}
    return {name: each[0] if len(each) == 1 else None for name, each in values.items()}


def _start(axes: Sequence[Axis], at: Mapping[str, str]) -> list[int]:
    """The place on each axis at which a reader starts: as said, else the middle of numbers and the first of names."""
    faults = [
        Fault("report", "at", name, f"one of {', '.join(axis.name for axis in axes)}")
        for name in at
        if name not in {axis.name for axis in axes}
    ]
    places = []
    for axis in axes:
        place = _nearest(axis, at[axis.name]) if axis.name in at else _middle(axis)
        if place is None:
            faults.append(
                Fault("report", f"at.{axis.name}", at[axis.name], f"one of {', '.join(map(str, axis.values))}")
            )
        places.append(place or 0)
    if faults:
        raise FrameError(tuple(faults))
    return places


def _middle(axis: Axis) -> int:
    return 0 if columns.column(axis.name).is_text else len(axis.values) // 2


def _nearest(axis: Axis, text: str) -> int | None:
    if columns.column(axis.name).is_text:
        return axis.values.index(text) if text in axis.values else None
    try:
        asked = float(text)
    except ValueError:
        return None
    if not math.isfinite(asked):
        return None
    return min(range(len(axis.values)), key=lambda place: abs((axis.values[place] or math.inf) - asked))


def _cells(found: Gathered, configs: _Configs) -> Packed:
    table = configs.placed(found.ranking).with_columns(_cell(found))
    size = math.prod(len(axis.values) for axis in found.axes) * len(found.options)
    told = {
        "config": pl.col("_config"),
        "rpu": pl.col("requests_per_usd").round_sig_figs(_DIGITS),
        "tpot_ms": (pl.col("tpot_mean_s") * _MS).round_sig_figs(_DIGITS),
        "ttft_ms": (_ttft(found) * _MS).round_sig_figs(_FEWER),
        "limit": _code("binding_limit"),
        "next": _code("next_limit"),
        "break_even": pl.col("break_even_usd_per_hour").round_sig_figs(_DIGITS),
        "cheapest_percent": (pl.col("cheapest_share") * 100).round(),
        "regret_percent": (pl.col("expected_regret") * 100).round_sig_figs(_FEWEST),
        "rank": pl.col("rank"),
    }
    if {LOW, HIGH} <= set(table.columns):
        rate = pl.col("max_rate_rps")
        told |= {
            "low": (pl.col(LOW) / rate).round_sig_figs(_FEWER),
            "high": (pl.col(HIGH) / rate).round_sig_figs(_FEWER),
        }
    if origins := _origins(found):
        codes = {origin: place for place, origin in enumerate(origins)}
        told["origin"] = pl.col(PROVENANCE).cast(pl.String).replace_strict(codes, default=None, return_dtype=pl.Int64)
    frame = table.select("_cell", **told)
    lists = {name: _dense(frame["_cell"], frame[name], size) for name in told}
    return lists


def _origins(found: Gathered) -> list[str]:
    """Where the constants of ranked points are from, as their rows say; none in sweeps of before there were bands."""
    if PROVENANCE not in found.ranking.columns:
        return []
    return (
        found.ranking.drop_nulls("rank")[PROVENANCE].cast(pl.String).drop_nulls().unique(maintain_order=True).to_list()
    )


def _cell(found: Gathered) -> pl.Expr:
    places = {option: place for place, option in enumerate(found.options)}
    option = pl.col(COMPARE).cast(pl.String).replace_strict(places, return_dtype=pl.Int64)
    return (pl.col(GROUP) * len(places) + option).alias("_cell")


def _refused(found: Gathered) -> Packed:
    """Why a cell without an answer has none: the place of its reason among `reasons`, by cell."""
    table = found.ranking.filter(pl.col("rank").is_null()).with_columns(_cell(found), pl.col("refused").fill_null(DASH))
    reasons = table["refused"].unique(maintain_order=True).to_list()
    places = {reason: place for place, reason in enumerate(reasons)}
    cells = {str(cell): places[reason] for cell, reason in table.select("_cell", "refused").iter_rows()}
    return {"reasons": [reason.replace("_", " ") for reason in reasons], "cells": cells}


def _code(name: str) -> pl.Expr:
    codes = {limit: place for place, limit in enumerate(LIMITS)}
    return pl.col(name).cast(pl.String).replace_strict(codes, default=None, return_dtype=pl.Int64)


def _groups(found: Gathered) -> Packed:
    """Of each group its winner's curve, elasticities by fact, and which of them switch a limit, as bits."""
    size = math.prod(len(axis.values) for axis in found.axes)
    facts = [found.elasticities.filter(pl.col("fact") == fact) for fact in FACTS]
    places = facts[0][GROUP]
    bits = pl.Series("switches", [0]).new_from_index(0, len(places))
    for place, rows in enumerate(facts):
        bits = bits + rows["switches"].cast(pl.Int64) * 2**place
    return {
        "curve": _dense(found.winners[GROUP], found.winners["_curve"], size),
        "elasticity": [_dense(rows[GROUP], rows["elasticity"].round(2), size) for rows in facts],
        "switches": _dense(places, bits, size),
    }


def _pareto(found: Gathered, configs: _Configs) -> Packed:
    """The points of all sets one after the other: those of group g from `start[g]` to before `start[g + 1]`."""
    size = math.prod(len(axis.values) for axis in found.axes if axis.name != TRADED)
    if not found.pareto.height:
        return {"start": [0] * (size + 1), "config": [], "rpu": [], "tpot_ms": []}
    rows = configs.placed(found.pareto).sort(GROUP, COMPARE, "tpot_mean_s", maintain_order=True)
    counts = rows.group_by(GROUP).agg(pl.len().alias("count"))
    dense = pl.DataFrame({GROUP: range(size)}).join(counts, on=GROUP, how="left", maintain_order="left")
    start = [0, *dense["count"].fill_null(0).cum_sum().to_list()]
    rpu = rows["requests_per_usd"].round_sig_figs(_FEWER)
    tpot = (rows["tpot_mean_s"] * _MS).round_sig_figs(_FEWER)
    return {"start": start, "config": rows["_config"].to_list(), "rpu": _short(rpu), "tpot_ms": _short(tpot)}


def _curves(found: Gathered) -> Packed:
    curves = found.curves
    limits = _short(curves["limit_rps"].round_sig_figs(_DIGITS))
    told = {
        f"{name}_ms": {used: _times(curves, LATENCIES[name][used]) for used in sorted(set(by_percent.values()))}
        for name, by_percent in _statistics(found).items()
    }
    return {"limit_rps": limits, "tpot_ms": _times(curves, "tpot_mean_s"), **told}


def _times(curves: pl.DataFrame, name: str) -> list[list[Any]]:
    """Of each curve the times in a column [ms]."""
    return [_short(each) for each in curves[name].list.eval((pl.element() * _MS).round_sig_figs(_FEWER)).to_list()]


def _statistics(found: Gathered) -> dict[str, dict[str, str]]:
    """By the percentile of SLOs the statistic told of TTFT, and of end-to-end latency where an SLO bounds it."""
    told = ["ttft", *(["e2e"] if _is_bounded(found) else [])]
    return {name: _by_percent(found, LATENCIES[name]) for name in told}


def _is_bounded(found: Gathered) -> bool:
    """Whether there is an SLO on end-to-end latency."""
    return "slo_e2e_s" in found.ranking.columns and found.ranking["slo_e2e_s"].count() > 0


def _by_percent(found: Gathered, columns_of: Mapping[str, str]) -> dict[str, str]:
    if "slo_percentile" not in found.ranking.columns:
        return {"0": "mean"}
    percents = found.ranking.drop_nulls("rank")["slo_percentile"].drop_nulls().unique().sort()
    told = {f"{percent:g}": statistic(percent, columns_of) for percent in percents}
    return {"0": "mean"} | {
        percent: name for percent, name in told.items() if columns_of[name] in found.ranking.columns
    }


def statistic(percent: float, columns_of: Mapping[str, str]) -> str:
    """The statistic of a latency that tells whether an SLO on this percentile is kept: 0 is the mean.

    Of the percentiles that there are it is the least that is not below, else the largest.
    """
    if not percent:
        return "mean"
    return next((name for name in list(columns_of)[1:] if float(name[1:]) >= percent), list(columns_of)[-1])


def _ttft(found: Gathered) -> pl.Expr:
    """TTFT at the statistic that its SLO is on [s]."""
    told = pl.col(TTFT["mean"])
    for percent, name in _statistics(found)["ttft"].items():
        if name != "mean":
            told = pl.when(pl.col("slo_percentile") == float(percent)).then(pl.col(TTFT[name])).otherwise(told)
    return told


def _dense(places: pl.Series, values: pl.Series, size: int) -> list[Any]:
    found: list[Any] = [None] * size
    for place, value in zip(places, _short(values), strict=True):
        found[place] = value
    return found


def _short(values: Iterable[Any]) -> list[Any]:
    """Numbers in as few characters as JSON allows."""
    return list(_shortest(values))


def _shortest(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        yield int(value) if isinstance(value, float) and value.is_integer() else value


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")
