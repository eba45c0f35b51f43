"""A load that changes over time, played by the simulator: runs of Poisson arrivals, to check the fluid balance."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from lambdamax.case import Case
from lambdamax.engine import Control, Floats, Trace
from lambdamax.exceptions import Fault, SimulationError
from lambdamax.fluid import Phase

RUNS: Final = 8
# Student's t for 95 % and RUNS − 1 degrees of freedom.
_T_95: Final = 2.3646
_MOST_REQUESTS: Final = 400_000
_PLAYED: Final = ("steady", "saturated", "unsettled")


@dataclass(frozen=True)
class Estimate:
    """A mean over runs, and half of its 95 % confidence interval."""

    mean: float
    half_width: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """The mean of independent runs."""
        spread = float(np.std(values, ddof=1)) / math.sqrt(len(values))
        return cls(float(np.mean(values)), _T_95 * spread)


@dataclass(frozen=True)
class Played:
    """The requests of one run, in order of arrival [s]: when they came, had their first and their last token."""

    arrival_s: Floats
    first_s: Floats
    last_s: Floats

    @property
    def ttft_s(self) -> Floats:
        """Of every request."""
        return self.first_s - self.arrival_s

    def in_flight(self, times: Floats) -> Floats:
        """Requests that are there at each of `times`."""
        arrived = np.searchsorted(self.arrival_s, times, side="right")
        left = np.searchsorted(np.sort(self.last_s), times, side="right")
        return (arrived - left).astype(np.float64)

    def between(self, start_s: float, stop_s: float) -> Floats:
        """TTFT of those that arrive from `start_s` to `stop_s`."""
        return self.ttft_s[(self.arrival_s >= start_s) & (self.arrival_s < stop_s)]


def play(case: Case, phases: Sequence[Phase], seed: int = 0) -> tuple[Played, ...]:
    """`RUNS` runs of one replica; requests that come while it does not serve reach it when it does.

    SimulationError where the simulator does not know such a replica, or the runs would be very long.
    """
    expected = sum(phase.duration_s * phase.rate_rps for phase in phases)
    if expected > _MOST_REQUESTS:
        allowed = f"at most {_MOST_REQUESTS:,} requests in a run: a shorter or slower one, or no --check"
        raise SimulationError((Fault("check", "requests", f"{expected:,.0f}", allowed),))
    return tuple(_run(case, phases, seed * RUNS + run) for run in range(RUNS))


def _run(case: Case, phases: Sequence[Phase], seed: int) -> Played:
    draws = random.Random(seed)
    arrivals, reached = (np.array(times) for times in zip(*_arrivals(phases, draws), strict=True))
    lengths = _pairs(case, draws, reached.size)
    trace: Trace = (reached.tolist(), lengths[0], lengths[1])
    found = case.simulate({}, Control(requests=reached.size, precision=0.0, replications=1, seed=seed), trace)
    if found.status not in _PLAYED:
        allowed = "a replica that the simulator knows; no --check for this one"
        raise SimulationError((Fault("check", "status", found.status, allowed),))
    times = [reached + np.array(found.requests[f"request_{name}_s"]) for name in ("ttft", "e2e")]
    return Played(arrivals, *times)


def _arrivals(phases: Sequence[Phase], draws: random.Random) -> Iterator[tuple[float, float]]:
    """When each request comes, and when it reaches the replica: at the next phase that serves."""
    start = 0.0
    for place, phase in enumerate(phases):
        ready = start + sum(phase.duration_s for phase in _until_serving(phases[place:]))
        time = start + _gap(phase.rate_rps, draws)
        while time < start + phase.duration_s:
            yield time, max(time, ready)
            time += _gap(phase.rate_rps, draws)
        start += phase.duration_s


def _until_serving(phases: Sequence[Phase]) -> Iterator[Phase]:
    for phase in phases:
        if phase.serving:
            return
        yield phase


def _gap(rate_rps: float, draws: random.Random) -> float:
    return draws.expovariate(rate_rps) if rate_rps > 0 else math.inf


def _pairs(case: Case, draws: random.Random, count: int) -> tuple[list[float], list[float]]:
    if case.lengths is not None:
        return case.lengths.drawn(count, draws)
    return _lengths(case, draws, "isl", count), _lengths(case, draws, "osl", count)


def _lengths(case: Case, draws: random.Random, name: str, count: int) -> list[float]:
    mean, cv = case.point(f"{name}_tokens"), case.point(f"{name}_cv")
    if not cv > 0:
        return [float(round(mean))] * count
    spread = math.log1p(cv * cv)
    return [max(1.0, round(draws.lognormvariate(math.log(mean) - spread / 2, math.sqrt(spread)))) for _ in range(count)]
