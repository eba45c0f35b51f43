"""A saturation curve on a terminal: a panel for each number, with SLOs and limits marked, then the same in figures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import polars as pl
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table

from lambdamax.explain import Explanation
from lambdamax.plot import Mark, Panel, draw
from lambdamax.render import print_lines, print_table
from lambdamax.units import cell, quantity
from lambdamax.verdict import NAME_OF_LIMIT, RATE_OF_LIMIT

_HEIGHT: Final = 7
# Narrower than this, panels stand below each other.
_TWO_ABREAST: Final = 96
_WIDEST: Final = 160
_ROWS: Final = 12
_PHYSICAL: Final = ("compute", "kv_pool", "seats")
_PANELS: Final = (
    ("time to first token, mean", "ttft_mean_s", "s", "slo_ttft_s"),
    ("time per output token, mean", "tpot_mean_s", "s", "slo_tpot_s"),
    ("whole request, mean", "e2e_mean_s", "s", "slo_e2e_s"),
    ("in flight", "in_flight", "", ""),
    ("share of the KV pool", "kv_use", "share", ""),
    ("time lost to prefill", "prefill_share", "share", ""),
)
_TABLE: Final = (
    ("TTFT", "ttft_mean_s", "s"),
    ("TPOT", "tpot_mean_s", "s"),
    ("E2E", "e2e_mean_s", "s"),
    ("in flight", "in_flight", ""),
    ("running", "running", ""),
    ("decoding", "decoding", ""),
    ("waiting", "waiting", ""),
    ("KV", "kv_use", "share"),
    ("prefill", "prefill_share", "share"),
)
_P99: Final = ("TTFT p99", "ttft_p99_s", "s")


def print_curve(frame: pl.DataFrame, found: Explanation, console: Console) -> None:
    """Draw `frame`, the curve of the point that `found` explains, and print some of its rows."""
    console.print("\nThe saturation curve", style="bold")
    limit, allowed = _limit(found), float(found.columns["max_rate_rps"] or 0)
    print_lines(console, _legend(found, limit, allowed, frame["rate_rps"][-1]))
    console.print()
    panels = [_panel(frame, found, limit, allowed, *line) for line in _PANELS]
    _print_panels(panels, console)
    console.print()
    _print_rows(frame, console)


def _limit(found: Explanation) -> float:
    return min(float(found.columns[RATE_OF_LIMIT[name]] or math.inf) for name in _PHYSICAL)


def _legend(found: Explanation, limit: float, allowed: float, last: float) -> Iterator[str]:
    ends = min(_PHYSICAL, key=lambda name: float(found.columns[RATE_OF_LIMIT[name]] or math.inf))
    yield f"Across: requests per second, from 0 to {quantity(last, 'req/s')}."
    if 0 < allowed < limit:
        binds = NAME_OF_LIMIT[str(found.columns["binding_limit"])]
        yield f"┊ {quantity(allowed, 'req/s')}: the largest rate that respects everything asked for ({binds})."
    yield (
        f"│ {quantity(limit, 'req/s')}: the limit ({NAME_OF_LIMIT[ends]}). ░ Past it the load is unstable: the queue "
        "grows as long as the load lasts, so no time or number there is a steady one."
    )


def _panel(frame: pl.DataFrame, found: Explanation, limit: float, allowed: float, *line: str) -> Panel:
    title, name, unit, slo = line
    level = found.columns[slo] if slo else None
    values = [math.nan if value is None else float(value) for value in frame[name]]
    marks = [Mark(limit, "│", "red")]
    if 0 < allowed < limit:
        marks.append(Mark(allowed, "┊", "green"))
    told = None if level is None else float(level)
    return Panel(title, unit, frame["rate_rps"].to_list(), values, told, "SLO", marks, limit)


def _print_panels(panels: list[Panel], console: Console) -> None:
    across = 2 if console.width >= _TWO_ABREAST else 1
    width = (min(console.width, _WIDEST) - 2) // across - 2
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(across):
        table.add_column(width=width, no_wrap=True)
    drawn = [Group(*draw(panel, width, _HEIGHT)) for panel in panels]
    for start in range(0, len(drawn), across):
        table.add_row(*drawn[start : start + across])
    console.print(Padding(table, (0, 0, 0, 2), expand=False), highlight=False)


def _print_rows(frame: pl.DataFrame, console: Console) -> None:
    """Rows spread over the curve, the last that is carried and the first that is not among them."""
    carried = frame.filter(pl.col("load_status") == "ok").height
    spread = {round(place * (carried - 1) / (_ROWS - 2)) for place in range(_ROWS - 1)}
    shown = sorted(spread | ({carried} if carried < frame.height else set()))
    lines = [*_TABLE[:1], *([_P99] if _P99[1] in frame.columns else ()), *_TABLE[1:]]
    rows = (_figures(frame.row(place, named=True), lines) for place in shown)
    print_table(console, ("req/s", *(label for label, _, _ in lines)), rows, ())


def _figures(row: dict[str, float | str | None], lines: list[tuple[str, str, str]]) -> tuple[str, ...]:
    rate = cell(float(row["rate_rps"] or 0), "")
    if row["load_status"] != "ok":
        return rate, str(row["load_status"]), *("" for _ in lines[1:])
    return rate, *(_brief(row[name], unit) for _, name, unit in lines)


def _brief(value: float | str | None, unit: str) -> str:
    return quantity(None if value is None else float(value), unit, 3, pad=True)
