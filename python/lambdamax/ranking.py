"""A sweep's outcome and its frontier on a terminal, one block for each group of points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl
from rich.console import Console

from lambdamax import columns
from lambdamax.columns import Column
from lambdamax.render import print_lines, print_pairs, print_table
from lambdamax.simulated import difference
from lambdamax.store import kept_goal, write_frame, written
from lambdamax.sweep import SweepResult
from lambdamax.units import DASH, cell, quantity
from lambdamax.verdict import NAME_OF_LIMIT

_UNITS: Final = {
    "bytes": "B",
    "requests/s": "req/s",
    "tokens/s": "tok/s",
    "requests/USD": "req/USD",
    "1": "",
    "requests": "",
}
_EXACT_DIGITS: Final = 12
_SHARES: Final = ("prefix_hit_share", "memory_utilization", "utilization_cap")
_BARE: Final = ("max_num_batched_tokens",)
_SILENT_AT_ZERO: Final = ("isl_cv", "osl_cv", "prefix_tokens", "prefix_hit_share")
_SILENT_AT_ONE: Final = ("pp", "dp", "ep")
# What the engine's reserve follows from, beside the replica.
_SETTINGS: Final = ("max_num_seqs", "max_num_batched_tokens", "memory_utilization")
_SHARE: Final = "share_of_best"

LIMITS: Final = {**NAME_OF_LIMIT, "utilization": "utilisation"}
"""What binds, in words."""

Row = Mapping[str, Any]
"""A row of a frame."""


def print_sweep(result: SweepResult, console: Console) -> None:
    """What a sweep left behind."""
    solved = f"{result.solved_parts} of {result.parts} parts solved now, in {quantity(result.seconds, 's', 3)}"
    print_pairs(console, [("points", f"{result.rows:,}"), ("parts", solved), ("in", str(result.directory))])
    console.print()
    print_table(console, ("status", "points"), ((name, f"{count:,}") for name, count in result.status.items() if count))
    if result.unsupported:
        console.print("\n  unsupported, because", style="bold")
        print_table(console, ("points", ""), ((f"{n:,}", why) for why, n in result.unsupported.items()), (1,))


def write_table(table: pl.DataFrame, path: Path) -> None:
    """Write `table` as Parquet, whole or not at all; StoreError if that is not possible."""
    temporary = path.with_name(f"{path.name}.tmp")
    with written(path, temporary):
        write_frame(table, temporary)


def print_kept(directory: Path, console: Console) -> None:
    """What the sweep kept in `directory`, where that is not every point."""
    if (kept := kept_goal(directory)) is not None:
        print_pairs(console, [("holds", f"{kept}; the other points are counted, not there")])


def print_pareto(table: pl.DataFrame, objectives: Mapping[str, str], console: Console, most_rows: int) -> None:
    """The points of each group that no other beats, with what the operator decides."""
    named = list(objectives)
    keys = table.columns[: table.columns.index(named[0])]
    varying = [name for name in keys if table[name].n_unique() > 1]
    about = ", ".join(f"{name} {'large' if direction == 'max' else 'small'}" for name, direction in objectives.items())
    print_pairs(console, [("unbeaten in", about), ("points", f"{table.height:,}")])
    choices = [column.name for column in columns.inputs() if column.role == "chosen" and column.name in table.columns]
    chosen = [name for name in choices if name not in ("gpu", *keys) and table[name].n_unique() > 1]
    for _, group in table.head(most_rows).group_by(varying or [pl.lit(0)], maintain_order=True):
        console.print()
        if varying:
            console.print(", ".join(said(group.row(0, named=True), varying)), style="bold")
        lines = [_pareto_line(row, named, chosen) for row in group.to_dicts()]
        print_table(console, ("gpu", "with", *named, "binds"), lines, (0, 1, len(named) + 2))
    print_more(table.height, most_rows, console)


def _pareto_line(row: Row, named: Sequence[str], chosen: list[str]) -> tuple[str, ...]:
    values = (cell(float(row[name]), "") for name in named)
    limit = LIMITS.get(row["binding_limit"], DASH)
    return str(row["gpu"]), ", ".join(said(row, chosen, short=True)), *values, limit


def print_more(height: int, most_rows: int, console: Console) -> None:
    """How many rows of a table are not shown."""
    if height > most_rows:
        console.print(f"\n  {height - most_rows:,} more rows: --rows, or --out FILE for all of them")


def print_frontier(
    table: pl.DataFrame | pl.LazyFrame, console: Console, most_rows: int, totals: tuple[int, int] | None = None
) -> None:
    """The ranking within each group. Columns that have one value throughout are told once.

    A lazy `table` is asked for what is shown alone. `totals` are its points and ok points, None to be counted.
    """
    every = table.lazy()
    shown, winners = every.head(most_rows).collect(), every.drop_nulls("rank")
    rank = shown.columns.index("rank")
    keys, compare, maximize = shown.columns[: rank - 1], shown.columns[rank - 1], shown.columns[rank + 1]
    different, chosen = _distinct(every, keys), decided(table, compare)
    varying = [name for name in keys if different[name] > 1]
    same = [name for name in keys if name not in varying and not is_neutral(shown, name)]
    print_pairs(console, _about(said(shown.row(0, named=True), same), winners, maximize, totals or _counted(table)))
    for _, group in shown.group_by(varying or [pl.lit(0)], maintain_order=True):
        console.print()
        if varying:
            console.print(", ".join(said(group.row(0, named=True), varying)), style="bold")
        _print_group(group.to_dicts(), console, compare, chosen, maximize)
        if "sim_status" in shown.columns:
            _print_checked(group.drop_nulls("rank").to_dicts(), console, compare)
    print_more(every.select(pl.len()).collect().item(), most_rows, console)
    _print_because(every, console)


def _print_because(table: pl.LazyFrame, console: Console) -> None:
    reasons = table.select(pl.col("unsupported_because").drop_nulls().explode().unique(maintain_order=True))
    if because := reasons.collect().to_series().drop_nulls().to_list():
        console.print("\nunsupported, because", style="bold")
        print_lines(console, because)


def _about(
    common: Iterator[str], winners: pl.LazyFrame, maximize: str, totals: tuple[int, int]
) -> Iterator[tuple[str, str]]:
    column = columns.column(maximize)
    yield "ranked by", f"{maximize}, {column.meaning[0].lower()}{column.meaning[1:]}"
    if in_all := ", ".join(common):
        yield "in all", in_all
    first = winners.head(1).collect().to_dicts()
    if first and (agreed := ", ".join(said(first[0], _agreed(winners)))):
        yield "all winners", agreed
    yield "points", f"{totals[0]:,}, of which {totals[1]:,} are ok"


def _counted(table: pl.DataFrame | pl.LazyFrame) -> tuple[int, int]:
    """The points and ok points of all groups, each of which may have several rows."""
    every = table.lazy()
    names = every.collect_schema().names()
    once = every.unique(names[: names.index("rank")])
    points, ok = once.select(pl.col("points", "points_ok").sum()).collect().row(0)
    return points, ok


def _agreed(winners: pl.LazyFrame) -> list[str]:
    """What the operator decides, where every winner has the same of it."""
    names = ("gpu", "tp", "pp", "dp", "ep", "weight_dtype", "kv_dtype", "engine")
    different = _distinct(winners, [name for name in names if name in winners.collect_schema()])
    agreed = [name for name, count in different.items() if count == 1]
    one = winners.select(agreed).head(1).collect().row(0, named=True)
    return [name for name in agreed if name not in _SILENT_AT_ONE or one[name] != 1]


def _distinct(table: pl.LazyFrame, names: Sequence[str]) -> dict[str, int]:
    """How many values each column has, null among them."""
    counted = table.select(pl.col(name).n_unique() for name in names).collect()
    return counted.row(0, named=True) if names else {}


def is_neutral(table: pl.DataFrame, name: str) -> bool:
    """Whether a column says only that there is nothing to say: no variation of lengths, no prefix."""
    return name in _SILENT_AT_ZERO and table[name][0] == 0


def _print_group(rows: Sequence[Row], console: Console, compare: str, chosen: list[str], maximize: str) -> None:
    """The winners as a table, then each of the others with why no point of it is ok."""
    unit = _UNITS.get(columns.column(maximize).unit, columns.column(maximize).unit)
    winners = [row for row in rows if row["rank"] is not None]
    if winners:
        rate = () if maximize == "max_rate_rps" else ("req/s",)
        headings = (compare, "with" if chosen else "", unit, "of best", *rate, "binds", "binds next")
        lines = [_line(row, compare, chosen, maximize) for row in winners]
        print_table(console, headings, lines, (0, 1, len(headings) - 2, len(headings) - 1))
    others = [row for row in rows if row["rank"] is None]
    print_pairs(console, ((_named(row, compare), f"no point is ok: {_refused(row)}") for row in others))


def _print_checked(rows: Sequence[Row], console: Console, compare: str) -> None:
    """The solver and the simulator side by side, at the largest rate of each winner."""
    console.print()
    lines = [line for row in rows if row["sim_ttft_mean_s"] is not None for line in _checked(row, compare)]
    if lines:
        headings = (compare, "verdict", "at that rate", "solved", "simulated", "± 95 %", "difference")
        print_table(console, headings, lines, (0, 1, 2))
    others = [row for row in rows if row["sim_ttft_mean_s"] is None]
    print_pairs(console, ((_named(row, compare), _because(row)) for row in others))


def _checked(row: Row, compare: str) -> Iterator[tuple[str, ...]]:
    about = _named(row, compare), str(row["sim_status"])
    for label, name, width, unit in _CHECKED:
        solved, simulated = row[name], row[f"sim_{name}"]
        half = quantity(row.get(width), unit, 2)
        yield *about, label, cell(solved, unit), cell(simulated, unit), half, difference(solved, simulated)
        about = "", ""


def _because(row: Row) -> str:
    return str(row["sim_unsupported_because"] or row["sim_status"]).replace("_", " ")


_CHECKED: Final = (
    ("TTFT", "ttft_mean_s", "sim_ttft_half_width_s", "s"),
    ("TPOT", "tpot_mean_s", "sim_tpot_half_width_s", "s"),
    ("in flight", "in_flight", "sim_in_flight_half_width", ""),
    ("KV use", "kv_use", "", "share"),
)


def decided(table: pl.DataFrame | pl.LazyFrame, compare: str) -> list[str]:
    """What the operator decides, where the winners differ in it and it is not just a default of the device and TP."""
    left_out, present = (compare, "usd_per_accelerator_hour"), table.lazy().collect_schema().names()
    names = (column.name for column in columns.inputs() if column.role == "chosen" and column.name not in left_out)
    winners = table.lazy().drop_nulls("rank")
    there = [name for name in names if name in present]
    different = _distinct(winners, there)
    return [name for name in there if different[name] > 1 and _is_decided(winners, name, compare, present)]


def _is_decided(winners: pl.LazyFrame, name: str, compare: str, present: Sequence[str]) -> bool:
    """Of a column in which the winners differ, whether they do so where what it may follow from is the same."""
    if columns.column(name).group == "replica":
        return True
    follows = [*(each.name for each in columns.of_groups("replica")), *_SETTINGS] if name == "reserved_bytes" else []
    by = [key for key in dict.fromkeys((compare, "gpu", "tp", "engine", *follows)) if key in present]
    counted = winners.group_by(by).agg(pl.col(name).n_unique().alias("_different"))
    return bool(counted.select(pl.col("_different").gt(1).any()).collect().item())


def _line(row: Row, compare: str, chosen: list[str], maximize: str) -> tuple[str, ...]:
    limits = (LIMITS.get(row[limit], DASH) for limit in ("binding_limit", "next_limit"))
    rate = () if maximize == "max_rate_rps" else (cell(row.get("max_rate_rps"), ""),)
    value, share = cell(row[maximize], ""), quantity(row[_SHARE], "share")
    return _named(row, compare), ", ".join(said(row, chosen, short=True)), value, share, *rate, *limits


def _named(row: Row, compare: str) -> str:
    return str(row[compare]) if columns.column(compare).is_text else quantity(row[compare], "")


def _refused(row: Row) -> str:
    return str(row["refused"] or DASH).replace("_", " ")


def said(row: Row, names: Sequence[str], short: bool = False) -> Iterator[str]:
    """The columns `names` of a row in words, those without a value left out."""
    told = columns.MOMENTS if "lengths" in names and row["lengths"] is not None else ()
    for name in names:
        if row[name] is not None and name not in told:
            yield _value(columns.column(name), row[name], short)


def _value(column: Column, value: Any, short: bool) -> str:
    if column.is_text:
        label = "" if short and column.name == "weight_dtype" else _LABELS.get(column.name, "")
        return f"{label} {value}".lstrip()
    label = _LABELS.get(column.name, column.name.replace("_", " "))
    unit = "share" if column.name in _SHARES else "" if column.name in _BARE else _UNITS.get(column.unit, column.unit)
    return f"{label} {quantity(float(value), unit, _EXACT_DIGITS if column.counts else 4)}"


_LABELS: Final = {
    "weight_dtype": "weights",
    "kv_dtype": "KV",
    "lengths": "lengths",
    "tp": "TP",
    "pp": "PP",
    "dp": "DP",
    "ep": "EP",
    "isl_tokens": "ISL",
    "osl_tokens": "OSL",
    "isl_cv": "ISL CV",
    "osl_cv": "OSL CV",
    "slo_ttft_s": "TTFT ≤",
    "slo_tpot_s": "TPOT ≤",
    "slo_e2e_s": "E2E ≤",
    "prefix_tokens": "shared prefix",
    "prefix_hit_share": "prefix hits",
    "utilization_cap": "utilisation ≤",
    "max_num_seqs": "seats",
    "max_num_batched_tokens": "budget",
    "kv_cache_tokens": "KV pool",
}
