"""What a sweep says to a buyer, on a terminal: maps, break-even prices, elasticities, how sure a choice is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import polars as pl
from rich.console import Console

from lambdamax import columns
from lambdamax.elasticity import FACTS
from lambdamax.exceptions import Fault, FrameError
from lambdamax.ranking import LIMITS, Row, is_neutral, print_more, said
from lambdamax.render import print_lines, print_pairs, print_table
from lambdamax.units import DASH, cell, number, quantity

_AXES: Final = ("isl_tokens", "osl_tokens")
_SHORT: Final = {
    "TPOT SLO": "TPOT",
    "TTFT SLO": "TTFT",
    "E2E SLO": "E2E",
    "KV memory": "KV",
    "utilisation": "load cap",
}


def axes_of(table: pl.DataFrame, keys: Sequence[str], asked: Sequence[str] | None) -> tuple[str, str] | None:
    """The columns that a map of `table` is drawn over: as asked, else prompt and output length, else the first two of
    `keys` that vary; None where fewer than two do. FrameError if what is asked for is not two of the keys.
    """
    if asked is not None:
        if len(asked) != 2 or not set(asked) <= set(keys):
            raise FrameError((Fault("frontier", "map", ",".join(asked), f"two of {', '.join(keys)}"),))
        return asked[0], asked[1]
    varying = [name for name in keys if table[name].n_unique() > 1]
    first = [*(name for name in _AXES if name in varying), *(name for name in varying if name not in _AXES)]
    return (first[0], first[1]) if len(first) > 1 else None


def print_winner_map(table: pl.DataFrame, axes: tuple[str, str] | None, console: Console, most_rows: int) -> None:
    """The winner of each group with its lead, as a map over two of the columns or as a list."""
    keys = table.columns[: table.columns.index("winner")]
    objective = table.columns[len(keys) + 1]
    print_pairs(console, [("won by", f"{_objective_words(objective)}; × says how far the second is behind")])
    if axes is not None:
        print_map(table, keys, axes, _won, console)
        return
    for where, rows in _blocks(table, keys, console, most_rows):
        lines = [(*_list_row(row, where), row["binding_limit"]) for row in rows]
        told = [(*line[:-1], _limit(line[-1])) for line in lines]
        print_table(console, (*map(_heading, where), "winner", "lead", "over", "binds"), told, range(len(where) + 4))
    print_more(table.height, most_rows, console)


def _list_row(row: Row, where: Sequence[str]) -> tuple[str, ...]:
    over = DASH if row["runner_up"] is None else str(row["runner_up"])
    return *(_at(name, row[name]) for name in where), str(row["winner"]), quantity(row["lead"], "ratio", 3), over


def _won(row: Row) -> str:
    lead = "alone" if row["lead"] is None else quantity(row["lead"], "ratio", 3)
    return f"{row['winner']} {lead}"


def print_binding_map(table: pl.DataFrame, axes: tuple[str, str] | None, console: Console, most_rows: int) -> None:
    """What binds the best of each option, as a map for each, or as a list."""
    keys = table.columns[: table.columns.index("binding_limit")]
    print_pairs(console, [("binds", "what stops the best point of each; – is where none is ok")])
    if axes is not None:
        print_map(table, keys, axes, lambda row: _limit(row["binding_limit"], short=True), console)
        return
    for where, rows in _blocks(table, keys[:-1], console, most_rows):
        lines = [
            (
                *(_at(name, row[name]) for name in (*where, keys[-1])),
                _limit(row["binding_limit"]),
                _limit(row["next_limit"]),
                row["refused"] or "",
            )
            for row in rows
        ]
        headings = (*map(_heading, where), keys[-1], "binds", "binds next", "not ok")
        print_table(console, headings, lines, range(len(headings)))
    print_more(table.height, most_rows, console)


def print_break_even(table: pl.DataFrame, console: Console, most_rows: int) -> None:
    """For each option the price at which it is as good as the best of the others."""
    place = table.columns.index("rank")
    keys, competing = table.columns[: place - 1], table.columns[place - 1]
    told = "USD an accelerator hour; below its break-even price an option has the most requests per dollar"
    print_pairs(console, [("price", told)])
    for _, rows in _blocks(table, keys, console, most_rows, all_said=True):
        lines = [
            (
                _at(competing, row[competing]),
                cell(row["usd_per_accelerator_hour"], ""),
                cell(row["break_even_usd_per_hour"], ""),
                DASH if row["price_ratio"] is None else f"{100 * (row['price_ratio'] - 1):+.1f} %",
                _at(competing, row["against"]),
            )
            for row in rows
        ]
        print_table(console, (competing, "price", "break-even", "change", "against"), lines, (0, 4))
    print_more(table.height, most_rows, console)


def print_elasticities(table: pl.DataFrame, keys: Sequence[str], console: Console, most_rows: int) -> None:
    """For each point of a ranking, percent of requests per dollar for a percent of each fact."""
    print_pairs(console, [("elasticity", "% more requests per dollar for 1 % more of the fact; * a limit switches")])
    facts = [fact for fact in FACTS if fact in table["fact"].unique()]
    grouped = {fact: table.filter(pl.col("fact") == fact) for fact in facts}
    points = grouped[facts[0]].with_row_index("_place")
    for _, rows in _blocks(points, keys, console, most_rows, all_said=True):
        lines = [
            (
                str(row["gpu"]),
                f"TP {row.get('tp', 1)}",
                *(_elasticity(grouped[fact].row(row["_place"], named=True)) for fact in facts),
                _limit(row["binding_limit"]),
            )
            for row in rows
        ]
        print_table(console, ("gpu", "with", *facts, "binds"), lines, (0, 1, len(facts) + 2))
    print_more(grouped[facts[0]].height, most_rows, console)


def _elasticity(row: Row) -> str:
    value = DASH if row["elasticity"] is None else f"{row['elasticity']:.2f}"
    return f"{value}{'*' if row['switches'] else ''}"


def print_robustness(table: pl.DataFrame, keys: Sequence[str], console: Console, most_rows: int) -> None:
    """How often each option is the cheapest, and what choosing it costs on average."""
    told = "errors of the rates and ranges of the prices, drawn together; regret is cost over that of the cheapest"
    print_pairs(console, [("by", told)])
    for _, rows in _blocks(table, keys, console, most_rows, all_said=True):
        lines = [
            (
                str(row["gpu"]),
                f"TP {row.get('tp', 1)}",
                quantity(row["cheapest_share"], "share"),
                f"+{quantity(row['expected_regret'], 'share')}",
                f"×÷ {number(math.exp(row['rate_sigma']), 3)}",
                f"{number(row['usd_per_hour_low'])} – {number(row['usd_per_hour_high'])}",
            )
            for row in rows
        ]
        print_table(console, ("gpu", "with", "cheapest", "regret", "rate", "USD/h"), lines, (0, 1))
    print_more(table.height, most_rows, console)


def print_map(
    table: pl.DataFrame, keys: Sequence[str], axes: tuple[str, str], told: Callable[[Row], str], console: Console
) -> None:
    """`told` of each row over two columns, a block for each combination of the other `keys`."""
    down, across = axes
    values = [table[name].unique().sort().to_list() for name in axes]
    for _, rows in _blocks(table, [name for name in keys if name not in axes], console, table.height, all_said=True):
        at = {(row[down], row[across]): told(row) for row in rows}
        heading = f"{_heading(down)} ↓  {_heading(across)} →"
        lines = [(_at(down, y), *(at.get((y, x), DASH) for x in values[1])) for y in values[0]]
        print_table(console, (heading, *(_at(across, x) for x in values[1])), lines, range(len(values[1]) + 1))


def _blocks(
    table: pl.DataFrame, keys: Sequence[str], console: Console, most_rows: int, *, all_said: bool = False
) -> Iterator[tuple[list[str], list[dict[str, Any]]]]:
    """The groups of the first rows of `table` by those of `keys` that vary, each under a line that says which.

    Where not `all_said` the varying ones are left to the caller, and there is one group.
    """
    varying = [name for name in keys if table[name].n_unique() > 1]
    same = [name for name in keys if name not in varying and not is_neutral(table, name)]
    if common := ", ".join(said(table.row(0, named=True), same)):
        print_pairs(console, [("in all", common)])
    split = varying if all_said else []
    for _, group in table.head(most_rows).group_by(split or [pl.lit(0)], maintain_order=True):
        console.print()
        if split:
            print_lines(console, [", ".join(said(group.row(0, named=True), split))])
        yield varying, group.to_dicts()


def _objective_words(name: str) -> str:
    meaning = columns.column(name).meaning
    return f"{name}, {meaning[0].lower()}{meaning[1:]}"


def _heading(name: str) -> str:
    return {"isl_tokens": "ISL", "osl_tokens": "OSL"}.get(name, name)


def _at(name: str, value: object) -> str:
    if value is None:
        return DASH
    return str(value) if columns.column(name).is_text else number(float(str(value)))


def _limit(limit: str | None, short: bool = False) -> str:
    words = DASH if limit is None else LIMITS[limit]
    return _SHORT.get(words, words) if short else words
