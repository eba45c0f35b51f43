"""A sweep's outcome and its frontier on a terminal, one block for each group of points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import polars as pl
from rich.console import Console

from lambdamax import columns
from lambdamax.columns import Column
from lambdamax.exceptions import StoreError
from lambdamax.render import print_pairs, print_table
from lambdamax.store import write_frame
from lambdamax.sweep import SweepResult
from lambdamax.units import DASH, cell, quantity
from lambdamax.verdict import NAME_OF_LIMIT

_UNITS: Final = {"bytes": "B", "requests/s": "req/s", "tokens/s": "tok/s", "1": "", "requests": ""}
_SHARE: Final = "share_of_best"

_LIMITS: Final = {**NAME_OF_LIMIT, "utilization": "utilisation"}

Row = Mapping[str, Any]


def print_sweep(result: SweepResult, console: Console) -> None:
    """What a sweep left behind."""
    solved = f"{result.solved_parts} of {result.parts} parts solved now, in {quantity(result.seconds, 's', 3)}"
    print_pairs(console, [("points", f"{result.rows:,}"), ("parts", solved), ("in", str(result.directory))])
    console.print()
    print_table(console, ("status", "points"), ((name, f"{count:,}") for name, count in result.status.items() if count))


def write_table(table: pl.DataFrame, path: Path) -> None:
    """Write `table` as Parquet, whole or not at all; StoreError if that is not possible."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        write_frame(table, temporary)
        temporary.replace(path)
    except OSError as error:
        raise StoreError(f"{path}: allowed: a file that can be written ({error.strerror or error})") from None


def print_frontier(table: pl.DataFrame, console: Console, most_rows: int) -> None:
    """The ranking within each group. Columns that have one value throughout are told once."""
    rank = table.columns.index("rank")
    keys, compare, maximize = table.columns[: rank - 1], table.columns[rank - 1], table.columns[rank + 1]
    varying = [name for name in keys if table[name].n_unique() > 1]
    same = ", ".join(_said(table.row(0, named=True), [name for name in keys if name not in varying]))
    ranked = f"{maximize} [{columns.column(maximize).unit}]"
    print_pairs(console, [("ranked by", ranked), *([("in all", same)] if same else [])])
    chosen = _chosen(table, compare)
    for _, group in table.head(most_rows).group_by(varying or [pl.lit(0)], maintain_order=True):
        console.print("\n" + ", ".join(_said(group.row(0, named=True), varying)), style="bold")
        headings = (compare, "with", "value", "of best", "req/s", "binds", "binds next")
        lines = [_line(row, compare, chosen, maximize) for row in group.to_dicts()]
        print_table(console, headings, lines, (0, 1, 5, 6))
    if table.height > most_rows:
        console.print(f"\n  {table.height - most_rows:,} more rows: --rows, or --out FILE for all of them")


def _chosen(table: pl.DataFrame, compare: str) -> list[str]:
    """What the operator decides, where the winners differ in it and it is not just a default of the device and TP."""
    left_out = (compare, "usd_per_accelerator_hour")
    names = (column.name for column in columns.inputs() if column.role == "chosen" and column.name not in left_out)
    return [name for name in names if name in table.columns and _is_decided(table.drop_nulls("rank"), name, compare)]


def _is_decided(winners: pl.DataFrame, name: str, compare: str) -> bool:
    if columns.column(name).is_text or name == "tp":
        return winners[name].n_unique() > 1
    by = [key for key in dict.fromkeys((compare, "gpu", "tp")) if key in winners.columns]
    return bool(winners.group_by(by).agg(pl.col(name).n_unique())[name].gt(1).any())


def _line(row: Row, compare: str, chosen: list[str], maximize: str) -> tuple[str, ...]:
    name = str(row[compare]) if columns.column(compare).is_text else quantity(row[compare], "")
    if row["rank"] is None:
        return name, str(row["refused"] or DASH).replace("_", " "), DASH, DASH, DASH, "", ""
    limits = (_LIMITS.get(row[limit], DASH) for limit in ("binding_limit", "next_limit"))
    share, rate = quantity(row[_SHARE], "share"), cell(row.get("max_rate_rps"), "")
    return name, ", ".join(_said(row, chosen)), cell(row[maximize], ""), share, rate, *limits


def _said(row: Row, names: list[str]) -> Iterator[str]:
    for name in names:
        if row[name] is not None:
            yield _value(columns.column(name), row[name])


def _value(column: Column, value: Any) -> str:
    if column.is_text:
        return str(value)
    label = _LABELS.get(column.name, column.name.replace("_", " "))
    return f"{label} {quantity(float(value), _UNITS.get(column.unit, column.unit))}"


_LABELS: Final = {
    "tp": "TP",
    "isl_tokens": "ISL",
    "osl_tokens": "OSL",
    "isl_cv": "ISL CV",
    "osl_cv": "OSL CV",
    "slo_ttft_s": "TTFT ≤",
    "slo_tpot_s": "TPOT ≤",
    "slo_e2e_s": "E2E ≤",
    "utilization_cap": "utilisation ≤",
    "max_num_seqs": "seats",
    "max_num_batched_tokens": "budget",
}
