"""Spikes and finite runs on a terminal, with the simulator's runs beside the fluid balance where asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Console

from lambdamax.checked import Compared
from lambdamax.finite_run import FiniteRun
from lambdamax.played import RUNS
from lambdamax.render import print_lines, print_table
from lambdamax.spike import BACKLOG, Outcome, SpikeAnswer
from lambdamax.units import DASH, cell, number, quantity

_HOURS: Final = 3600.0
_MINUTES: Final = 600.0
# For the sensitivity of the time to drain.
_SLOWER: Final = 0.05


def print_spike(found: SpikeAnswer, console: Console) -> None:
    """The spike at the rate asked about, then the approach to saturation."""
    shape = found.spike
    title = f"A spike of {number(shape.factor)} times the rate for {quantity(shape.duration_s, 's')}"
    console.print(f"\n{title}, one replica", style="bold")
    print_lines(console, _told(found))
    console.print("\nWhat happens as saturation comes near", style="bold")
    tails = not math.isnan(found.table[0].steady_ttft_p99_s)
    headings = ("of the limit", "rate", "TTFT", *(("p99",) if tails else ()), "waiting", "worst TTFT", "drains in")
    rows = (_row(row, tails) for row in found.table)
    print_table(console, (*headings, f"{BACKLOG:g} waiting drain in"), rows, ())
    print_lines(console, [_why(found)])


def _told(found: SpikeAnswer) -> Iterator[str]:
    asked, limit = found.asked, quantity(found.limit_rps, "req/s")
    top = asked.rate_rps * found.spike.factor
    share = quantity(asked.share, "share")
    yield (
        f"{quantity(asked.rate_rps, 'req/s')} is {share} of the {limit} that the replica sustains with "
        f"{number(found.full)} in flight; the spike brings {quantity(top, 'req/s')}."
    )
    if asked.waiting == 0:
        yield (
            f"Nobody waits for a seat: {number(asked.in_flight)} are in flight at most, and mean TTFT rises from "
            f"{quantity(asked.steady_ttft_s, 's')} to {quantity(asked.ttft_s, 's')}."
        )
        return
    yield (
        f"When it ends {number(asked.waiting)} requests wait for a seat, and whoever arrives then has the first token "
        f"after {quantity(asked.ttft_s, 's')} in place of {quantity(asked.steady_ttft_s, 's')}."
    )
    yield from _queued(found)
    yield _drain(found)


def _queued(found: SpikeAnswer) -> Iterator[str]:
    """What a queue behind a full pool costs."""
    if found.backlog_rps < found.limit_rps:
        less = quantity(1 - found.backlog_rps / found.limit_rps, "share")
        yield (
            f"With a queue behind the full KV pool running requests are thrown out and computed again: a simulation "
            f"serves {quantity(found.backlog_rps, 'req/s')} then, {less} less than the limit."
        )
    elif found.pool_is_first:
        yield "The KV pool is the limit; that requests are thrown out of it and computed again is not in these numbers."


def _served(found: SpikeAnswer) -> str:
    """What arrivals must stay below."""
    if found.backlog_rps < found.limit_rps:
        return f"the {quantity(found.backlog_rps, 'req/s')} that are served while others wait"
    return "the limit"


def _drain(found: SpikeAnswer) -> str:
    asked = found.asked
    if asked.drain_s == math.inf:
        return f"That backlog never drains: the rate itself is not below {_served(found)}."
    spare = quantity(found.backlog_rps - asked.rate_rps, "req/s")
    longer = number(asked.drain_s / found.spike.duration_s, 3)
    return (
        f"It drains at the {spare} that are spare, in {_time(asked.drain_s)}: {longer} times as long as the spike, and "
        f"all who come meanwhile wait too. {_sensitivity(found)}"
    )


def _sensitivity(found: SpikeAnswer) -> str:
    """What a replica a little slower than the model says would make of the drain."""
    spare = (1 - _SLOWER) * found.backlog_rps - found.asked.rate_rps
    slower = f"A replica that sustains {quantity(_SLOWER, 'share')} less than the model says"
    return f"{slower} takes {_time(found.asked.waiting / spare)}." if spare > 0 else f"{slower} never drains it."


def _row(row: Outcome, tails: bool) -> tuple[str, ...]:
    p99 = (cell(row.steady_ttft_p99_s, "s"),) if tails else ()
    steady = (quantity(row.share, "share"), cell(row.rate_rps, "req/s"), cell(row.steady_ttft_s, "s"), *p99)
    waiting = number(row.waiting) if row.waiting else DASH
    return *steady, waiting, cell(row.ttft_s, "s"), _time(row.drain_s), _time(row.backlog_drain_s)


def _why(found: SpikeAnswer) -> str:
    first, last = found.table[0], found.table[-1]
    ratio = last.backlog_drain_s / first.backlog_drain_s
    share, least = quantity(last.share, "share"), quantity(first.share, "share")
    longer = f"takes {number(ratio, 3)} times as long" if math.isfinite(ratio) else "never does"
    return (
        f"A backlog drains in backlog/(μ − λ), μ served while others wait: what drains at {least} {longer} at {share}. "
        "TTFT here is the mean of a steady load, before the spike. By a fluid balance, which knows no chance: --check "
        "plays the spike."
    )


def _time(seconds: float) -> str:
    """Seconds, or minutes or hours where they are many; a dash for none, `never` without end."""
    if seconds in (0.0, math.inf):
        return "never" if seconds else DASH
    if seconds >= 2 * _HOURS:
        return f"{number(seconds / _HOURS, 3)} h"
    return f"{number(seconds / 60, 3)} min" if seconds >= _MINUTES else quantity(seconds, "s", 3)


def print_finite_run(found: FiniteRun, console: Console) -> None:
    """The verdict, the window's numbers, and the course of time."""
    each = f"{found.replicas:,} replica{'s' if found.replicas > 1 else ''}"
    start = f", ready after {quantity(found.startup_s, 's')}" if found.startup_s else ""
    run = f"{quantity(found.rate_rps, 'req/s')} for {quantity(found.duration_s, 's')} on {each}{start}"
    console.print(f"\nA finite run: {run}", style="bold")
    print_lines(console, (*_feasible(found), *_window(found), *_short(found)))
    console.print()
    headings = ("at", "offered", "served", "in flight", "waiting", "TTFT of arrivals")
    print_table(console, headings, _moments(found), ())
    note = "Served is per second since the row before. Fluid balance: percentiles are over arrival times, not chance."
    print_lines(console, [note])


def _feasible(found: FiniteRun) -> Iterator[str]:
    limit, rate = quantity(found.limit_rps, "req/s"), quantity(found.rate_rps, "req/s")
    if not found.feasible:
        yield (
            f"Infeasible at this many replicas: they sustain {limit}, {rate} is offered, and the backlog grows as long "
            f"as it is. {found.needed:,} replicas sustain it."
        )
    elif found.rate_rps > found.slo_rps:
        slo = quantity(found.slo_rps, "req/s")
        yield f"Carried, but not as asked for: they sustain {limit}, and {slo} within SLOs and utilisation cap."
    else:
        yield f"Feasible: the replicas sustain {limit}, {quantity(found.rate_rps / found.limit_rps, 'share')} is used."


def _window(found: FiniteRun) -> Iterator[str]:
    p50, p90, p99 = (quantity(value, "s") for value in (found.ttft_p50_s, found.ttft_p90_s, found.ttft_p99_s))
    yield (
        f"In the window {quantity(found.served_rps, 'req/s')} come out of {quantity(found.rate_rps, 'req/s')} that go "
        f"in; when arrivals end {number(found.backlog)} requests are inside, {number(found.waiting)} of them without a "
        f"seat{f', for {_time(found.drain_s)} more' if found.drain_s else ''}."
    )
    yield f"TTFT over all that arrive: mean {quantity(found.ttft_mean_s, 's')}, p50 {p50}, p90 {p90}, p99 {p99}."


def _short(found: FiniteRun) -> Iterator[str]:
    if found.hides_backlog:
        yield (
            f"The window is short: {quantity(found.duration_s - found.startup_s, 's')} of service against "
            f"{quantity(found.residence_s, 's')} in the system. L = λW does not hold over it, and what is still inside "
            "is not in the numbers of a benchmark that stops here."
        )
    if not found.feasible and found.waiting == 0:
        yield "Its TTFT looks harmless only because the run ends before the last seat is taken: it is not a steady one."
    seen = found.seen_ttft_mean_s
    if math.isnan(seen):
        yield "Nobody has a first token within the window."
    elif seen < 0.9 * found.ttft_mean_s:
        yield (
            f"Who counts only first tokens within the window sees a mean TTFT of {quantity(seen, 's')} in place of "
            f"{quantity(found.ttft_mean_s, 's')}: the backlog is hidden."
        )


def _moments(found: FiniteRun) -> Iterator[tuple[str, ...]]:
    for row in found.moments:
        rates = (cell(row.offered_rps, "req/s"), cell(row.served_rps, "req/s"))
        people = (cell(row.in_flight, ""), number(row.waiting) if row.waiting else DASH)
        yield quantity(row.time_s, "s"), *rates, *people, cell(row.ttft_s, "s")


def print_check(rows: Sequence[Compared], console: Console) -> None:
    """The fluid's numbers beside the simulator's."""
    console.print(f"\nChecked: {RUNS} runs of the simulator, Poisson arrivals", style="bold")
    print_table(console, ("", "fluid", "simulated", "± 95 %", "difference"), map(_compared, rows))


def _compared(row: Compared) -> tuple[str, ...]:
    mean, width = row.simulated.mean, quantity(row.simulated.half_width, row.unit, 2)
    off = DASH if math.isnan(mean) or mean == 0 else f"{100 * (row.fluid / mean - 1):+.1f} %"
    simulated = "not so far" if math.isnan(mean) else cell(mean, row.unit)
    return row.label, cell(row.fluid, row.unit), simulated, width, off
