"""The fluid balance of one replica, dN/dt = λ(t) − μ(N): requests in flight where Little's law has no say yet.

μ(N) is the rate that the solver's curve carries with N in flight, and constant past the limit, where the rest wait for
a seat: μ_Q requests a second leave, μ where nothing else is known, so a backlog Q drains in Q/(μ_Q − λ). A request that
arrives at t waits Q(t)/μ_Q for its seat and then as long for its first token as the curve says. Requests are a fluid
here: no chance, no iterations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np

from lambdamax.engine import Floats
from lambdamax.operating import Operating

_CURVE_POINTS: Final = 512
_STEPS_PER_RESIDENCE: Final = 32
# In flight within this of the equilibrium is there.
_SETTLED: Final = 1e-6


@dataclass(frozen=True)
class Service:
    """How fast a replica works: `rate_rps` [req/s] and `ttft_s` by requests in flight, up to `full` at `limit_rps`.

    `prompt_s` is the time that one prompt takes of an idle replica, `backlog_rps` μ_Q, what leaves while others wait.
    """

    in_flight: Floats
    rate_rps: Floats
    ttft_s: Floats
    prompt_s: float
    backlog_rps: float

    @classmethod
    def of(cls, operating: Operating) -> Self:
        """Read off the solver's curve; N grows with the rate."""
        found = operating.at(operating.limit_rps * np.linspace(0, 1, _CURVE_POINTS)[1:])
        seated = found["seated_ttft_s"]
        return cls(
            in_flight=np.concatenate([[0.0], np.maximum.accumulate(found["served"])]),
            rate_rps=np.concatenate([[0.0], found["rate_rps"]]),
            ttft_s=np.concatenate([seated[:1], seated]),
            prompt_s=float(found["prefill_share"][0] / found["rate_rps"][0]),
            backlog_rps=float(found["rate_rps"][-1]),
        )

    def with_backlog(self, rate_rps: float) -> Service:
        """The same replica, of which so many a second leave while others wait; NaN for as many as at the limit."""
        return self if math.isnan(rate_rps) else replace(self, backlog_rps=rate_rps)

    @property
    def full(self) -> float:
        """Requests in flight at the limit: those beyond wait for a seat."""
        return float(self.in_flight[-1])

    @property
    def limit_rps(self) -> float:
        """μ, the largest rate."""
        return float(self.rate_rps[-1])

    def rate_at(self, in_flight: float) -> float:
        """μ(N)."""
        return float(np.interp(in_flight, self.in_flight, self.rate_rps))

    def in_flight_at(self, rate_rps: float) -> float:
        """N at the equilibrium of `rate_rps`; infinite past the limit."""
        return float(np.interp(rate_rps, self.rate_rps, self.in_flight)) if rate_rps <= self.limit_rps else math.inf


@dataclass(frozen=True)
class Phase:
    """`duration_s` with `rate_rps` of arrivals; nobody is served where not `serving`."""

    duration_s: float
    rate_rps: float
    serving: bool = True


@dataclass(frozen=True)
class Flow:
    """The balance at times `time_s`, between which everything is a straight line: requests in flight and served.

    The replica takes requests from `ready_s` on, and for `fresh_s` more none of those is done.
    """

    service: Service
    time_s: Floats
    in_flight: Floats
    finished: Floats
    ready_s: float = 0.0
    fresh_s: float = 0.0

    @property
    def waiting(self) -> Floats:
        """Requests without a seat: beyond the limit, and everybody before the replica is ready."""
        return np.where(self.time_s < self.ready_s, self.in_flight, np.maximum(self.in_flight - self.service.full, 0.0))

    @property
    def ttft_s(self) -> Floats:
        """Mean TTFT of a request that arrives at each time.

        Those that find the replica not ready are computed together once it is, one prompt after another; those that
        find no seat then wait for the first of them to be done.
        """
        service = self.service
        seated = np.minimum(self.in_flight, service.full)
        beyond = (self.in_flight - seated) / service.backlog_rps
        first_seat_s = self.ready_s + np.where(beyond > 0, self.fresh_s, 0.0)
        late = np.maximum(first_seat_s - self.time_s, 0.0)
        together = np.where(self.time_s < self.ready_s, seated * service.prompt_s, 0.0)
        return late + beyond + together + np.interp(seated, service.in_flight, service.ttft_s)

    def at(self, times: Floats) -> Flow:
        """This flow at other times."""
        in_flight, finished = (np.interp(times, self.time_s, values) for values in (self.in_flight, self.finished))
        return replace(self, time_s=times, in_flight=in_flight, finished=finished)


def balance(service: Service, phases: Sequence[Phase], in_flight: float) -> Flow:
    """The balance over `phases`, one after another, from `in_flight` requests on."""
    time, finished = 0.0, 0.0
    rows = [(time, in_flight, finished)]
    for phase in phases:
        left = phase.duration_s
        while left > 0:
            step, after = _step(service, phase, in_flight, left)
            left, time = left - step, time + step
            finished, in_flight = finished + in_flight + phase.rate_rps * step - after, after
            rows.append((time, in_flight, finished))
    times, counts, done = (np.array(values) for values in zip(*rows, strict=True))
    return Flow(service, times, counts, done)


def _step(service: Service, phase: Phase, in_flight: float, left_s: float) -> tuple[float, float]:
    """How long the next step is, and N after it: exact where μ is constant, midpoint rule elsewhere."""
    if not phase.serving:
        return left_s, in_flight + phase.rate_rps * left_s
    slope = phase.rate_rps - service.rate_at(in_flight)
    if in_flight > service.full or (in_flight == service.full and slope > 0):
        slope = phase.rate_rps - service.backlog_rps
        drained_s = (in_flight - service.full) / -slope if slope < 0 else math.inf
        return (drained_s, service.full) if drained_s <= left_s else (left_s, in_flight + slope * left_s)
    if abs(in_flight - service.in_flight_at(phase.rate_rps)) <= _SETTLED * max(in_flight, 1.0):
        return left_s, in_flight
    return _below(service, phase, in_flight, slope, left_s)


def _below(service: Service, phase: Phase, in_flight: float, slope: float, left_s: float) -> tuple[float, float]:
    """A step below the limit; one that would pass it ends there."""
    idle_s = float(service.in_flight[1] / service.rate_rps[1])
    step = min(left_s, idle_s / _STEPS_PER_RESIDENCE)
    middle = min(max(in_flight + slope * step / 2, 0.0), service.full)
    slope = phase.rate_rps - service.rate_at(middle)
    after = max(in_flight + slope * step, 0.0)
    if after > service.full:
        return (service.full - in_flight) / slope, service.full
    return step, after
