"""A finite run, such as a stage of a benchmark: backlog, served rate and TTFT over time, start-up included."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from lambdamax.backlog import service_of
from lambdamax.case import Case, Question
from lambdamax.catalog import Catalog
from lambdamax.demand import whole
from lambdamax.exceptions import Fault, QuestionError
from lambdamax.explain import plain
from lambdamax.fluid import Flow, Phase, Service, balance

PERCENTILES: Final = (50, 90, 99)
_SAMPLES: Final = 4001
# Steps that sum to the window may end a last digit before it.
_ROUNDING: Final = 1e-12
_ROWS: Final = 12
_FORM: Final = "a time above 0, such as 120s"


@dataclass(frozen=True)
class Moment:
    """The whole service at one time: what was offered and served per second since the last row, who is there, TTFT."""

    time_s: float
    offered_rps: float
    served_rps: float
    in_flight: float
    waiting: float
    ttft_s: float


@dataclass(frozen=True)
class FiniteRun:
    """A run of `duration_s` at `rate_rps` on `replicas` that are ready after `startup_s`.

    `limit_rps` and `slo_rps` are what all replicas together sustain, and serve within the SLOs; `needed` is how many
    replicas sustain the rate. `served_rps` and `backlog` are those of the window: what came out per second, and who is
    still inside when arrivals end. `ttft_*` are over the requests that arrive in the window, `seen_ttft_mean_s` over
    those of them that have their first token in it. `drain_s` is from the end of the window until nobody waits.
    """

    rate_rps: float
    duration_s: float
    startup_s: float
    replicas: int
    limit_rps: float
    slo_rps: float
    needed: int
    residence_s: float
    served_rps: float
    backlog: float
    waiting: float
    drain_s: float
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    seen_ttft_mean_s: float
    moments: tuple[Moment, ...]

    @property
    def feasible(self) -> bool:
        """Whether the replicas sustain the rate at all."""
        return self.rate_rps <= self.limit_rps

    @property
    def hides_backlog(self) -> bool:
        """Whether the window is too short for Little's law: shorter than a few times in the system, start-up aside."""
        return self.duration_s - self.startup_s < 3 * self.residence_s

    def as_json(self) -> dict[str, Any]:
        """Everything by name; null for none."""
        numbers = {name: plain(value) for name, value in asdict(self).items() if name != "moments"}
        return {
            **numbers,
            "feasible": self.feasible,
            "hides_backlog": self.hides_backlog,
            "moments": [{name: plain(value) for name, value in asdict(row).items()} for row in self.moments],
        }


def finite_run(
    question: Question,
    duration_s: float,
    rate_rps: float,
    *,
    replicas: int = 1,
    startup_s: float = 0.0,
    catalog: Catalog | None = None,
) -> FiniteRun:
    """Offer `rate_rps` for `duration_s` to `replicas` of `question`, all empty, ready after `startup_s`.

    Requests are spread evenly; those that come before the replicas are ready wait. By the fluid balance of one
    replica. Raises QuestionError where the point has no operating point.
    """
    case = Case(question, catalog)
    service = service_of(case)
    each = rate_rps / replicas
    flow = run_flow(service, duration_s, each, startup_s, case.point("osl_cv"))
    arrived = flow.at(np.linspace(0, duration_s, _SAMPLES))
    ttft, last = arrived.ttft_s, flow.at(np.array([duration_s]))
    seen = ttft[arrived.time_s + ttft <= duration_s]
    over = np.percentile(ttft, PERCENTILES)
    return FiniteRun(
        rate_rps=rate_rps,
        duration_s=duration_s,
        startup_s=startup_s,
        replicas=replicas,
        limit_rps=replicas * service.limit_rps,
        slo_rps=replicas * case.answer["max_rate_rps"],
        needed=whole(rate_rps / service.limit_rps),
        residence_s=_residence_s(service, each),
        served_rps=replicas * float(last.finished[0]) / duration_s,
        backlog=replicas * float(last.in_flight[0]),
        waiting=replicas * float(last.waiting[0]),
        drain_s=_drain_s(flow, duration_s),
        ttft_mean_s=float(ttft.mean()),
        **{f"ttft_p{which}_s": float(value) for which, value in zip(PERCENTILES, over, strict=True)},
        seen_ttft_mean_s=float(seen.mean()) if seen.size else math.nan,
        moments=_moments(flow, duration_s, each, replicas),
    )


def read_duration(text: str) -> float:
    """`120s` in seconds; QuestionError if it is no time."""
    try:
        found = float(text.strip().removesuffix("s"))
    except ValueError:
        found = math.nan
    if not 0 < found <= 1e7:
        raise QuestionError((Fault("finite_run", "finite-run", repr(text), _FORM),))
    return found


def run_flow(service: Service, duration_s: float, rate_rps: float, startup_s: float, osl_cv: float) -> Flow:
    """The balance of one replica, empty at first, through `run_phases`."""
    fresh = _fresh_s(service, rate_rps * min(startup_s, duration_s), osl_cv)
    phases = run_phases(service, duration_s, rate_rps, startup_s, fresh)
    return replace(balance(service, phases, 0.0), ready_s=startup_s, fresh_s=fresh)


def _fresh_s(service: Service, backlog: float, osl_cv: float) -> float:
    """How much later than in the balance those are done that start all at once.

    The balance has requests of all ages, of which (1 + cv²)/2 of the time in the system is left in the mean; of those
    that start together all of it is.
    """
    seated = min(backlog, service.full)
    return max(0.0, (1 - osl_cv**2) / 2) * seated / service.rate_at(seated) if seated > 0 else 0.0


def run_phases(
    service: Service, duration_s: float, rate_rps: float, startup_s: float, fresh_s: float = 0.0
) -> tuple[Phase, ...]:
    """Nobody is served or done until `startup_s + fresh_s`, arrivals end at `duration_s`, then it nearly empties."""
    begin = startup_s + fresh_s
    idle = min(begin, duration_s)
    after = 2 * (rate_rps * duration_s + 2 * service.full) / service.backlog_rps
    starting, late = Phase(idle, rate_rps, serving=False), Phase(begin - idle, 0.0, serving=False)
    return starting, Phase(duration_s - idle, rate_rps), late, Phase(after, 0.0)


def _residence_s(service: Service, rate_rps: float) -> float:
    """Mean time in the system at the rate, or at the limit where that is less."""
    rate = min(rate_rps, service.limit_rps)
    return service.in_flight_at(rate) / rate


def _drain_s(flow: Flow, duration_s: float) -> float:
    """From the end of the window, or the start of service where that is later, until nobody waits for a seat."""
    waits = flow.time_s[flow.waiting > 0]
    later = waits[waits >= duration_s * (1 - _ROUNDING)]
    if not later.size:
        return 0.0
    last = int(np.searchsorted(flow.time_s, later[-1], side="right"))
    return float(flow.time_s[min(last, flow.time_s.size - 1)]) - duration_s


def _moments(flow: Flow, duration_s: float, rate_rps: float, replicas: int) -> tuple[Moment, ...]:
    rows = flow.at(np.linspace(0, duration_s, _ROWS + 1))
    served = replicas * np.diff(rows.finished) / np.diff(rows.time_s)
    people = (replicas * rows.in_flight[1:], replicas * rows.waiting[1:])
    columns = (rows.time_s[1:], served, *people, rows.ttft_s[1:])
    return tuple(
        Moment(float(time), replicas * rate_rps, *map(float, others)) for time, *others in zip(*columns, strict=True)
    )
