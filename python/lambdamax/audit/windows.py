"""Laws on the run as a whole: long enough to be steady, and serving what it was offered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lambdamax.audit.finding import Finding, Side, is_unit_slip, unit_slip
from lambdamax.audit.point import MEANS_TOLERANCE, Point
from lambdamax.audit.populations import SERVED_SHARE

# Ramp and drain each last about one E2E; over five of them they take a fifth of the window.
LEAST_WINDOWS: Final = 5.0
# Random arrivals: standard errors of the realised rate that are still chance.
STANDARD_ERRORS: Final = 3.0


def long_enough(point: Point) -> Iterator[Finding]:
    """Means of a window much longer than the time in system are of a steady state."""
    duration, e2e = point.duration_s, point.e2e_s
    if duration is None or e2e is None or point.load in ("static", "offline") or duration >= LEAST_WINDOWS * e2e:
        return
    left, right = Side("window", duration, "s"), Side("E2E", e2e, "s")
    if point.load == "burst":
        verdict = "every request came at once: TTFT is the wait in a backlog, the rate that of working it off"
        yield Finding("note", "window longer than E2E", "ttft_mean_s", left, right, verdict)
        return
    verdict = "ramp and drain fill the run: the rate is below that of a steady state, and in flight is no mean"
    yield Finding("warning", "window longer than E2E", "request_rate_rps", left, right, verdict)


def counted(point: Point) -> Iterator[Finding]:
    """Requests served per second are requests over the length of the run."""
    rate, requests, duration = point.get("request_rate_rps"), point.get("requests"), point.get("duration_s")
    if rate is None or requests is None or duration is None:
        return
    left, right = Side("requests / window", requests / duration, "req/s"), Side("served", rate, "req/s")
    if is_unit_slip(left.value, right.value):
        yield unit_slip("duration_s", left, right)
    elif abs(left.value / right.value - 1) > max(MEANS_TOLERANCE, point.rate_rounding):
        verdict = "the rate, the number of requests or the length of the run is of another run, or one counts failures"
        yield Finding("error", "rate = requests / window", "request_rate_rps", left, right, verdict)


def served(point: Point) -> Iterator[Finding]:
    """In a stable run what is offered is served, up to chance and to the drain of a finite run."""
    offered, found, requests = (
        point.get("request_rate_offered_rps"),
        point.get("request_rate_rps"),
        point.get("requests"),
    )
    if offered is None or found is None:
        return
    left, right = Side("served", found, "req/s"), Side("offered", offered, "req/s")
    chance = STANDARD_ERRORS / requests**0.5 if requests else 0.0
    if is_unit_slip(found, offered):
        yield unit_slip("request_rate_offered_rps", left, right)
    elif found < _expected(point, offered, requests) * min(SERVED_SHARE, 1 - chance):
        verdict = f"overloaded, or held by the client: {found:.4g} req/s is what it serves; TTFT grows with the run"
        yield Finding("warning", "served = offered", "request_rate_offered_rps", left, right, verdict)
    elif found > offered * max(2 - SERVED_SHARE, 1 + chance):
        verdict = "more served than offered: the offered rate is of another run"
        yield Finding("error", "served = offered", "request_rate_offered_rps", left, right, verdict)


def _expected(point: Point, offered: float, requests: float | None) -> float:
    """Completed requests over the time from the first arrival to the last reply, if nobody waits for a seat.

    The drain is the decode time of the last reply: its TTFT is what overload would hide in.
    """
    drain = point.decode_s
    return offered if requests is None or drain is None else requests / (requests / offered + drain)
