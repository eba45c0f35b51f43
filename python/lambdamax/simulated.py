"""A simulation on a terminal: what it says of the load, and its numbers beside the solver's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from rich.console import Console

from lambdamax.render import print_lines, print_pairs, print_table
from lambdamax.simulate import Simulation
from lambdamax.units import DASH, cell, number, quantity

_BOTH: Final = (
    ("rate served", "rate_rps", "req/s"),
    ("TTFT, mean", "ttft_mean_s", "s"),
    ("TPOT, mean over requests", "tpot_mean_s", "s"),
    ("TPOT, mean over tokens", "tpot_token_mean_s", "s"),
    ("whole request, mean", "e2e_mean_s", "s"),
    ("in flight (L)", "in_flight", ""),
    ("waiting", "waiting", ""),
    ("running", "running", ""),
    ("decoding (L_d)", "decoding", ""),
    ("KV held", "kv_in_flight_tokens", "tokens"),
    ("share of the KV pool", "kv_use", "share"),
    ("output", "output_tok_s", "tok/s"),
)
_HALF_WIDTHS: Final = {
    "ttft_mean_s": "ttft_half_width_s",
    "tpot_mean_s": "tpot_half_width_s",
    "e2e_mean_s": "e2e_half_width_s",
    "in_flight": "in_flight_half_width",
}
_LAWS: Final = (("TTFT", "ttft"), ("TPOT", "tpot"), ("gap between tokens", "itl"), ("whole request", "e2e"))
_VERDICTS: Final = {
    "steady": "the replica carries this load",
    "saturated": "the replica does not carry this load: the queue grows, or is always there; times depend on the run",
    "unsettled": "the run was too short to be sure; give it more --requests",
}


def print_simulation(found: Simulation, console: Console) -> None:
    """Write `found` to `console`, at its width."""
    print_pairs(console, _verdict(found))
    if math.isnan(found.numbers["rate_rps"]):
        return
    console.print()
    print_table(
        console, ("", "simulated", "± 95 %", "mean field", "difference"), (_row(found, *line) for line in _BOTH)
    )
    console.print()
    headings = ("", "mean", "p50", "p90", "p99")
    print_table(console, headings, (_law(found, *law) for law in _LAWS))
    console.print()
    print_lines(console, _run(found))


def _verdict(found: Simulation) -> Iterator[tuple[str, str]]:
    yield found.status, _VERDICTS.get(found.status, "there is nothing to simulate")
    if found.mean_field_status not in (None, "ok", found.status):
        yield "mean field", f"{found.mean_field_status}"


def _row(found: Simulation, label: str, name: str, unit: str) -> tuple[str, ...]:
    simulated = found.numbers[name]
    solved = (found.mean_field or {}).get(name, math.nan)
    width = found.numbers.get(_HALF_WIDTHS.get(name, ""), math.nan)
    return label, cell(simulated, unit), quantity(width, unit, 2), cell(solved, unit), difference(solved, simulated)


def difference(solved: float, simulated: float) -> str:
    """How far the solver is from the simulation."""
    return DASH if math.isnan(solved) or simulated == 0 else f"{100 * (solved / simulated - 1):+.1f} %"


def _law(found: Simulation, label: str, name: str) -> tuple[str, ...]:
    return label, *(cell(found.numbers[f"{name}_{which}_s"], "s") for which in ("mean", "p50", "p90", "p99"))


def _run(found: Simulation) -> Iterator[str]:
    n = found.numbers
    measured, left_out = number(n["requests"], 9), number(n["warm_up_requests"], 9)
    steps, seconds = number(n["iterations"], 9), quantity(n["simulated_s"], "s")
    yield f"{measured} requests measured after {left_out} of warm-up: {steps} iterations, {seconds} of simulated time."
    if n["preemptions_per_request"] > 0:
        yield f"{quantity(n['preemptions_per_request'], '')} preemptions per request."
    if n["cached_share"] > 0:
        yield f"{quantity(n['cached_share'], 'share')} of prompt tokens found in the cache."
    if n["clipped_requests"] > 0:
        yield f"{number(n['clipped_requests'], 9)} requests were cut to what the KV pool can hold."
