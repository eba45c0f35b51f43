"""An explanation on a terminal: verdict first, then limits, both models side by side, the chain, the mistakes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from lambdamax.explain import Explanation
from lambdamax.replicas import DEGREES
from lambdamax.units import DASH, cell, number, quantity
from lambdamax.verdict import NAME_OF_LIMIT, RATE_OF_LIMIT, Mistake

_OPERATING: Final = (
    ("rate", "max_rate_rps", "req/s"),
    ("TTFT, mean", "ttft_mean_s", "s"),
    ("TTFT, p50", "ttft_p50_s", "s"),
    ("TTFT, p90", "ttft_p90_s", "s"),
    ("TTFT, p99", "ttft_p99_s", "s"),
    ("  of the mean, wait for a seat", "seat_wait_s", "s"),
    ("TPOT, mean", "tpot_mean_s", "s"),
    ("gap between tokens, p99", "itl_p99_s", "s"),
    ("whole request, mean", "e2e_mean_s", "s"),
    ("whole request, p99", "e2e_p99_s", "s"),
    ("in flight (L)", "in_flight", ""),
    ("waiting, without a seat", "waiting", ""),
    ("running", "running", ""),
    ("decoding (L_d)", "decoding", ""),
    ("KV held", "kv_in_flight_tokens", "tokens"),
    ("share of the KV pool", "kv_use", "share"),
    ("time lost to prefill", "prefill_share", "share"),
    ("output", "output_tok_s", "tok/s"),
    ("share of sustainable rate", "utilization", "share"),
)


def print_explanation(found: Explanation, console: Console) -> None:
    """Write everything in `found` to `console`, at its width."""
    print_verdict(found, console)
    for part in _SECTIONS:
        part(found, console)


def print_verdict(found: Explanation, console: Console) -> None:
    """The point, and what is to be said of it in words."""
    print_lines(console, _header(found))
    console.print()
    print_pairs(console, (*found.verdict.items(), *_cost(found)))


def print_table(
    console: Console, headings: Sequence[str], rows: Iterable[Sequence[str]], text: Iterable[int] = (0,)
) -> None:
    """A table without lines. Columns `text` are aligned left and may wrap, the first only if it is very wide."""
    lines = [tuple(row) for row in rows]
    widest = [_widest(cells) for cells in zip(headings, *lines, strict=True)]
    width = sum(widest)
    folds = widest[0] > console.width // 2
    gap = 1 if folds or len(headings) + width < console.width < 2 * len(headings) + width else 2
    table = Table(box=None, padding=(0, gap, 0, 0), header_style="dim", show_edge=False, pad_edge=False)
    left = set(text)
    for index, heading in enumerate(headings):
        wraps = index in left and (index > 0 or folds)
        table.add_column(heading, justify="left" if index in left else "right", no_wrap=not wraps, overflow="fold")
    for row in lines:
        table.add_row(*row)
    console.print(Padding(table, (0, 0, 0, 2), expand=False), highlight=False)


def _widest(cells: tuple[str, ...]) -> int:
    return max(len(line) for cell in cells for line in cell.split("\n"))


def print_pairs(console: Console, pairs: Iterable[tuple[str, str]]) -> None:
    """What and then the sentence about it, in two columns."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, show_edge=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in pairs:
        table.add_row(label, text)
    console.print(Padding(table, (0, 0, 0, 2), expand=False), highlight=False)


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """Sentences, each on lines of its own."""
    for line in lines:
        console.print(Padding(line, (0, 0, 0, 2), expand=False), highlight=False)


def _section(console: Console, title: str) -> None:
    console.print()
    console.print(title, style="bold")


def _header(found: Explanation) -> Iterator[str]:
    c, asked = found.columns, found.question
    degrees = [(name.upper(), getattr(asked, name)) for name in DEGREES]
    ranks = ", ".join(f"{name} {degree}" for name, degree in degrees if degree > 1 or name == "TP")
    native = f" ({found.native_formats})" if c["weight_dtype"] == "native" else ""
    weights = f"weights {c['weight_dtype']}{native}, KV {c['kv_dtype']}, {c['engine']}"
    yield f"{c['model']} on {asked.tp * asked.pp * asked.dp} × {c['gpu']} ({ranks}), {weights}"
    yield ", ".join(_workload(found))


def _workload(found: Explanation) -> Iterator[str]:
    table = found.columns["lengths"]
    if table is not None:
        yield f"lengths as in {table}"
    for name, words in (("isl", "tokens in"), ("osl", "out")):
        spread = _value(found, f"{name}_cv")
        law = f" ({'' if table else 'lognormal, '}CV {number(spread)})" if spread else ""
        yield f"{number(_value(found, f'{name}_tokens'), 4 if table else 9)} {words}{law}"
    if share := _value(found, "prefix_hit_share"):
        prefix = _value(found, "prefix_tokens")
        yield f"{quantity(share, 'share')} of " + (
            f"prompts share {number(prefix)} tokens" if prefix else "each prompt cached"
        )
    for name in ("ttft", "tpot", "e2e"):
        if not math.isnan(limit := _value(found, f"slo_{name}_s")):
            yield f"mean {name.upper()} ≤ {quantity(limit, 's')}"
    yield f"utilisation ≤ {quantity(_value(found, 'utilization_cap'), 'share')}"


def _cost(found: Explanation) -> Iterator[tuple[str, str]]:
    hour, per_million = _value(found, "cost_usd_per_hour"), _value(found, "usd_per_mtok_output")
    if math.isnan(hour):
        return
    plan = f"{found.columns['provider']} {found.columns['price_plan'] or 'price'}"
    requests = f"{number(_value(found, 'requests_per_usd'))} requests per dollar, "
    served = "" if math.isnan(per_million) else f": {requests}${number(per_million, 3)} per million output tokens"
    yield "cost", f"${number(hour)} an hour ({plan}){served}"


def _print_limits(found: Explanation, console: Console) -> None:
    if found.columns["binding_limit"] is not None:
        _section(console, "Limits of one replica")
        print_table(
            console, ("limit", "largest rate", ""), (_limit_row(found, limit) for limit in RATE_OF_LIMIT), (0, 2)
        )


def _limit_row(found: Explanation, limit: str) -> tuple[str, str, str]:
    rate = _value(found, RATE_OF_LIMIT[limit])
    marks = {found.columns["next_limit"]: "← binds next", found.columns["binding_limit"]: "← binds"}
    near = "just below compute" if limit in found.near_compute else ""
    mark = "not asked for" if math.isnan(rate) else marks.get(limit, near)
    return NAME_OF_LIMIT[limit], cell(rate, "req/s"), mark


def _print_both_models(found: Explanation, console: Console) -> None:
    if found.one_number is not None:
        _section(console, "One measured number, and the full model")
        print_table(console, ("", "one number", "full model"), _both_models(found, found.one_number))
        _section(console, "TPOT and requests in flight by rate")
        headings = ("rate", "one number", "in flight", "full model", "in flight")
        print_table(console, headings, map(_curve_row, found.one_number["curve"]), ())
        print_lines(console, _twice(found.one_number["twice_the_output"]))


def _both_models(found: Explanation, one: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    names = (("TPOT SLO holds up to", "rate_at_tpot_rps"), ("KV memory is full at", "rate_at_kv_rps"))
    for label, name in names:
        yield label, cell(one[name], "req/s"), cell(_value(found, name), "req/s")
    yield "  TPOT there", cell(one["tpot_at_kv_s"], "s"), ""
    yield "  in flight there", cell(one["in_flight_at_kv"], ""), ""
    yield "compute ends at", "not modelled", cell(_value(found, "rate_at_compute_rps"), "req/s")
    yield "decode loop tends to", cell(one["asymptote_rps"], "req/s"), ""
    at = found.at_rate or {}
    yield "TPOT at the load asked", cell(one["tpot_at_rate_s"], "s"), _or_status(at, "tpot_mean_s", "s")
    yield "in flight there", cell(one["in_flight"], ""), _or_status(at, "in_flight", "")


def _or_status(at: dict[str, Any], name: str, unit: str) -> str:
    return str(at.get("status", DASH)) if at.get(name) is None else cell(at[name], unit)


def _curve_row(point: dict[str, float | None]) -> tuple[str, ...]:
    full = cell(point["full_model_tpot_s"], "s") if point["full_model_tpot_s"] else "unstable"
    rate, one = quantity(point["rate_rps"], "req/s"), cell(point["tpot_s"], "s")
    return rate, one, cell(point["in_flight"], ""), full, cell(point["full_model_in_flight"], "")


def _twice(twice: dict[str, float | None]) -> Iterator[str]:
    held, kv_held, moved, kv_moved, end = (
        quantity(twice[name], unit)
        for name, unit in (
            ("in_flight_ratio_held", "ratio"),
            ("kv_in_flight_bytes_ratio_held", "ratio"),
            ("in_flight_ratio_with_feedback", "ratio"),
            ("kv_in_flight_bytes_ratio_with_feedback", "ratio"),
            ("asymptote_rps", "req/s"),
        )
    )
    yield (
        f"Answers twice as long at the same rate: with TPOT held L grows {held} and KV {kv_held}; but TPOT answers to "
        f"the load: L {moved}, KV {kv_moved}, and no equilibrium above {end}."
    )


def _print_operating_point(found: Explanation, console: Console) -> None:
    if found.columns["running"] is None:
        return
    at = found.at_rate if (found.at_rate or {}).get("running") is not None else None
    _section(console, "Operating point, full model")
    headings = ("", "at the largest rate", *(("at the load asked",) if at else ()))
    lines = [_operating_row(found, at, *line) for line in _OPERATING]
    print_table(console, headings, [*lines, *_load_rows(found, at)])


def _operating_row(found: Explanation, at: dict[str, Any] | None, label: str, name: str, unit: str) -> tuple[str, ...]:
    asked = () if at is None else (cell(at["rate_rps" if name == "max_rate_rps" else name], unit),)
    return label, cell(_value(found, name), unit), *asked


def _load_rows(found: Explanation, at: dict[str, Any] | None) -> Iterator[tuple[str, str, str]]:
    """What only a load has: clients."""
    if at is not None and at["concurrency"] is not None:
        yield "clients, rate·(W + think time)", cell(at["clients_at_max_rate"], ""), cell(at["concurrency"], "")


def _print_chain(found: Explanation, console: Console) -> None:
    if not found.chain:
        return
    _section(console, "The chain, step by step")
    rows = ((step.label, cell(step.value, step.unit), step.formula) for step in found.chain)
    print_table(console, ("", "value", "how"), rows, (0, 2))


def _print_assumptions(found: Explanation, console: Console) -> None:
    if found.assumptions:
        _section(console, "Taken for granted")
        print_lines(console, found.assumptions)


def _print_mistakes(found: Explanation, console: Console) -> None:
    if found.mistakes:
        _section(console, "Usual mistakes, at this point")
        print_pairs(console, map(_mistake, found.mistakes))


def _mistake(mistake: Mistake) -> tuple[str, str]:
    wrong, right = quantity(mistake.wrong, mistake.unit), quantity(mistake.right, mistake.unit)
    return mistake.label, f"gives {wrong} in place of {right}: {mistake.why}"


def _value(found: Explanation, name: str) -> float:
    value = found.columns[name]
    return math.nan if value is None else float(value)


_SECTIONS: Final = (
    _print_assumptions,
    _print_limits,
    _print_both_models,
    _print_operating_point,
    _print_chain,
    _print_mistakes,
)
