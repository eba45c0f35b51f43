"""Replicas for a rate, and the TTFT budget, on a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from rich.console import Console

from lambdamax.budget import Budget
from lambdamax.demand import Sizing, Way
from lambdamax.render import print_lines, print_table
from lambdamax.units import cell, number, quantity

_TINY: Final = 1e-9


def print_sizing(found: Sizing, console: Console) -> None:
    """The ways side by side, and what they mean for money."""
    u = quantity(found.utilization, "share")
    demand = quantity(found.demand_rps, "req/s")
    console.print(f"\nFrom {demand} to replicas, {u} of the requests in flight at the SLO in use", style="bold")
    print_table(console, ("", *(way.name for way in found.ways)), _rows(found))
    console.print()
    print_lines(console, _told(found))


def _rows(found: Sizing) -> Iterator[tuple[str, ...]]:
    u = number(found.utilization)
    yield "W, time in the system", *(cell(way.residence_s, "s") for way in found.ways)
    yield "in flight, rate·W", *(cell(way.in_flight, "") for way in found.ways)
    yield "N, of one replica at the SLO", *(cell(way.in_flight_each, "") for way in found.ways)
    yield f"{u}·N, in use", *(cell(way.used_each, "") for way in found.ways)
    yield "rate of one replica so used", *(cell(way.rate_each_rps, "req/s") for way in found.ways)
    yield "  share of its largest rate", *(quantity(way.rate_share, "share") for way in found.ways)
    yield "replicas, before rounding", *(cell(way.replicas_exact, "") for way in found.ways)
    yield "replicas", *(f"{way.replicas:,}" for way in found.ways)
    yield "GPUs", *(f"{way.gpus:,}" for way in found.ways)
    if not math.isnan(found.usd_per_hour_each):
        yield "an hour", *(f"${number(way.replicas * found.usd_per_hour_each)}" for way in found.ways)


def _told(found: Sizing) -> Iterator[str]:
    yield f"W of the first column is {_from(found)}; N is {_n(found)}."
    for way in found.ways:
        yield f"{way.name[0].upper()}{way.name[1:]}: {_rounding(way)}{_carried(found, way)}."
    u, share = found.utilization, found.ways[1].rate_share
    if u < 1:
        yield (
            f"{quantity(u, 'share')} of N in flight is {quantity(share, 'share')} of the largest rate, because time in "
            f"the system grows with the load: {quantity(1 / share - 1, 'share')} more traffic takes the "
            f"{quantity(1 - u, 'share')} of N that look free."
        )


def _from(found: Sizing) -> str:
    return {"given": "as given", "measured": "as measured"}.get(found.residence_from, found.residence_from)


def _n(found: Sizing) -> str:
    return "as given" if found.binds is None else f"where {found.binds} binds, no utilisation cap"


def _rounding(way: Way) -> str:
    exact = f"{number(way.replicas_exact)} replicas"
    if abs(way.replicas - way.replicas_exact) < _TINY * way.replicas:
        return f"{exact}, a whole number"
    spare = quantity(way.replicas / way.replicas_exact - 1, "share")
    return f"{exact}, rounded up to {way.replicas:,} ({spare} more than asked for)"


def _carried(found: Sizing, way: Way) -> str:
    """A warning where so many replicas cannot carry the demand by the full model."""
    each = found.demand_rps / way.replicas
    if each <= found.limit_rps:
        return ""
    most = quantity(found.limit_rps, "req/s")
    return f"; by the full model they cannot carry it: {quantity(each, 'req/s')} each, and {most} is the most"


def print_budget(found: Budget, console: Console) -> None:
    """Link by link, with the share of each."""
    rate = quantity(found.rate_rps, "req/s")
    console.print(f"\nThe TTFT budget at {rate}: mean of each link, and what it adds to the p99", style="bold")
    total, high = found.total_mean_s, found.total_p99_s
    rows = [
        (link.label, cell(link.mean_s, "s"), _share(link.mean_s, total), cell(link.p99_s, "s"), link.formula)
        for link in found.links
    ]
    whole = ("TTFT", cell(total, "s"), _share(total, total), cell(high, "s"), "the sums")
    print_table(console, ("", "mean", "share", "p99", "how"), (*rows, whole), (0, 4))


def _share(part: float, total: float) -> str:
    return quantity(part / total, "share") if total > 0 else ""
