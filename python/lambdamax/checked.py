"""What the fluid balance says of a spike or of a finite run, beside runs of the simulator."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from lambdamax.ages import Pace, surge
from lambdamax.backlog import service_of
from lambdamax.case import Case
from lambdamax.explain import plain
from lambdamax.finite_run import PERCENTILES, FiniteRun, run_phases
from lambdamax.fluid import Phase
from lambdamax.operating import Operating
from lambdamax.played import Estimate, Played, play
from lambdamax.spike import Spike, drain_s

_WARM_UP_RESIDENCES: Final = 10
_LAST_TENTH: Final = 0.9
_FOLLOWED: Final = 1.6
_LONGEST_DRAIN_S: Final = 3600.0
_SAMPLES: Final = 4000
_OF_SPIKE: Final = (
    ("waiting", "waiting when the spike ends", ""),
    ("ttft_s", "TTFT in the spike's last tenth", "s"),
    ("drain_s", "until nobody waits", "s"),
)


@dataclass(frozen=True)
class Compared:
    """One number by the fluid balance and by the simulator, NaN where the runs were not followed so far."""

    name: str
    label: str
    unit: str
    fluid: float
    simulated: Estimate

    def as_json(self) -> dict[str, Any]:
        """By name; null for none."""
        simulated = {name: plain(value) for name, value in asdict(self.simulated).items()}
        return {"name": self.name, "fluid": plain(self.fluid), "simulated": simulated}


def check_spike(case: Case, shape: Spike, rate_rps: float) -> tuple[Compared, ...]:
    """The backlog at the end of the spike, TTFT of those that come in its last tenth, and the time to drain."""
    operating = Operating.of(case)
    service = service_of(case)
    flow = surge(service, Pace.of(case, operating), rate_rps, shape.factor * rate_rps, shape.duration_s)
    backlog = float(flow.waiting[-1])
    drain = drain_s(service, rate_rps, backlog)
    margin = _WARM_UP_RESIDENCES * service.full / service.limit_rps
    followed = Phase(min(_FOLLOWED * drain, _LONGEST_DRAIN_S) + margin, rate_rps)
    runs = play(case, (Phase(margin, rate_rps), Phase(shape.duration_s, shape.factor * rate_rps), followed))
    late = float(flow.at(shape.duration_s * np.linspace(_LAST_TENTH, 1, 101)).ttft_s.mean())
    by_simulator = _of_spike(runs, margin, shape.duration_s, service.full)
    return tuple(
        Compared(*line, fluid, estimate)
        for line, fluid, estimate in zip(_OF_SPIKE, (backlog, late, drain), by_simulator, strict=True)
    )


def _of_spike(runs: tuple[Played, ...], start_s: float, duration_s: float, full: float) -> Iterator[Estimate]:
    """The numbers of `_OF_SPIKE` of a spike that begins at `start_s`."""
    end, late = start_s + duration_s, start_s + _LAST_TENTH * duration_s
    yield _over(runs, lambda run: max(float(run.in_flight(np.array([end]))[0]) - full, 0.0))
    yield _over(runs, lambda run: float(run.between(late, end).mean()))
    yield _over(runs, lambda run: _drained_s(run, end, full))


def _drained_s(run: Played, end_s: float, full: float) -> float:
    """From the end of the spike until no more than `full` are in flight; NaN if arrivals end before."""
    times = np.linspace(end_s, run.arrival_s[-1], _SAMPLES)
    free = np.flatnonzero(run.in_flight(times) <= full)
    return float(times[free[0]]) - end_s if free.size else math.nan


def check_finite_run(case: Case, run: FiniteRun) -> tuple[Compared, ...]:
    """Served rate and requests inside at the end of the window, and TTFT over those that arrive in it."""
    each = run.rate_rps / run.replicas
    service = service_of(case)
    runs = play(case, run_phases(service, run.duration_s, each, run.startup_s))
    return tuple(_of_run(runs, run))


def _of_run(runs: tuple[Played, ...], run: FiniteRun) -> Iterator[Compared]:
    end = run.duration_s

    def served(one: Played) -> float:
        return run.replicas * float((one.last_s <= end).sum()) / end

    def inside(one: Played) -> float:
        return run.replicas * float(one.in_flight(np.array([end]))[0])

    yield Compared("served_rps", "served in the window", "req/s", run.served_rps, _over(runs, served))
    yield Compared("backlog", "inside when it ends", "", run.backlog, _over(runs, inside))
    mean = _over(runs, lambda one: float(one.ttft_s.mean()))
    yield Compared("ttft_mean_s", "TTFT, mean", "s", run.ttft_mean_s, mean)
    for which in PERCENTILES:
        name = f"ttft_p{which}_s"
        yield Compared(name, f"TTFT, p{which}", "s", getattr(run, name), _over(runs, _percentile(which)))


def _percentile(which: float) -> Callable[[Played], float]:
    return lambda run: float(np.percentile(run.ttft_s, which))


def _over(runs: tuple[Played, ...], value: Callable[[Played], float]) -> Estimate:
    return Estimate.of([value(run) for run in runs])
