"""Calibrations and validations as tables in the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rich.console import Console

from lambdamax.calibration.calibrating import Calibration
from lambdamax.calibration.errors import GROUPS, summary
from lambdamax.calibration.validating import Validation
from lambdamax.plot import Panel, draw
from lambdamax.render import print_lines, print_pairs, print_table
from lambdamax.units import number

_HEADINGS: Final = ("rows", "mean\nerror", "median\nerror", "bias", "within\n10 %", "in band")
_PLOT_WIDTH: Final = 78
_PLOT_HEIGHT: Final = 10
_PERCENT: Final = 100.0


def print_calibration(found: Calibration, console: Console) -> None:
    """What a fit did: constants, errors before, after and held out, and the errors of all rows drawn."""
    print_lines(console, [f"{found.name}: {found.kind}, {found.rows} rows, {found.curves} curves"])
    _print_skipped(found.skipped, console)
    rows = [
        (each.name, number(each.start), number(each.value), each.unit, "measured" if each.told else "not told")
        for each in found.constants
    ]
    print_table(console, ("constant", "start", "fitted", "unit", "the rows"), rows, (0, 3, 4))
    errors = {"before": found.before, "after": found.after, "held out": found.held_out}
    lines = [(when, row["metric"], *_cells(row)) for when, each in errors.items() for row in each]
    console.print()
    print_table(console, ("", "metric", *_HEADINGS), lines, (0, 1))
    band = f"±{_percent(found.uncertainty)} of a rate"
    ttft = "" if math.isnan(found.ttft_uncertainty) else f", ±{_percent(found.ttft_uncertainty)} of a TTFT"
    print_pairs(console, [("80 % band", band + ttft), *_of_run(found)])
    if len(found.residuals) > 1:
        console.print()
        for line in draw(_panel(found.residuals), _PLOT_WIDTH, _PLOT_HEIGHT):
            console.print(line)


def print_validation(found: Validation, console: Console, rows: int) -> None:
    """Errors by metric and by group, at most `rows` groups."""
    print_lines(console, [f"on {found.on}: {found.used} of {found.rows} rows"])
    _print_skipped(found.skipped, console)
    whole = [(row["metric"], *_cells(row)) for row in summary(found.table, ["metric"])]
    print_table(console, ("metric", *_HEADINGS), whole, (0,))
    console.print()
    groups = sorted(summary(found.table, GROUPS), key=lambda row: -row["n"])
    lines = [(*(row[name] for name in GROUPS), *_cells(row)) for row in groups[:rows]]
    print_table(console, (*GROUPS, *_HEADINGS), lines, (0, 1, 2, 3))
    if len(groups) > rows:
        print_lines(console, [f"{len(groups) - rows} more groups with fewer rows: --rows, or --json for all"])


def _print_skipped(skipped: Mapping[str, int], console: Console) -> None:
    if skipped:
        print_pairs(console, [("skipped", f"{count}: {reason}") for reason, count in skipped.items()])


def _of_run(found: Calibration) -> list[tuple[str, str]]:
    gathered = f"{_percent(found.run.gathered_share)} of the prompts of others come before the first token"
    return [("in these runs", f"{gathered}; {number(found.run.handover)} intervals of wait for a seat")]


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    shares = (row[name] for name in ("mape", "median_ape", "bias", "within_10pct", "band_coverage"))
    return (str(row["n"]), *map(_percent, shares))


def _percent(share: float | None) -> str:
    return "" if share is None or math.isnan(share) else f"{_PERCENT * share:.3g} %"


def _panel(residuals: Iterable[float]) -> Panel:
    """Errors in the order of their size against the share of rows that are as good."""
    sizes = sorted(_PERCENT * abs(math.expm1(each)) for each in residuals)
    shares = [_PERCENT * (place + 1) / len(sizes) for place in range(len(sizes))]
    return Panel("error, % of measured, over % of rows", "%", shares, sizes, level=10.0, level_name="ten percent")
