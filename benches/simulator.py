"""Iterations and requests per second of the simulator on one core, with about 64 running, against Python and Numba.

The rivals play the same rules on the same Poisson requests, and must agree on the times of each.
Run: python benches/simulator.py [--quick]
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lambdamax.catalog import load_catalog
from lambdamax.engine import Control, Replicas
from lambdamax.replicas import Deployment
from rivals import engine_loop
from rivals.coefficients import COEFFICIENTS, RESERVED_BYTES, coefficients
from timing import interleaved, verdict

CONTROL: Final = Control(requests=1, precision=0.0, replications=1, seed=0)
BLOCK: Final = 16
RESERVE: Final = {"reserved_bytes": RESERVED_BYTES}
ROUNDS: Final = 5
AIMS: Final = {"iterations": 1e6, "requests": 3e5}


@dataclass(frozen=True)
class Traffic:
    """Poisson requests with lengths that vary, and the rate that keeps about 64 of them running."""

    title: str
    isl: float
    osl: float
    rate_rps: float

    def requests(self, count: int) -> tuple[NDArray[np.float64], ...]:
        """Arrivals [s], input tokens and output tokens."""
        random = np.random.Generator(np.random.PCG64(1))
        arrivals = np.cumsum(random.exponential(1 / self.rate_rps, count))
        lengths = (np.maximum(2, np.round(mean * random.gamma(4.0, 0.25, count))) for mean in (self.isl, self.osl))
        return arrivals, *lengths


TRAFFIC: Final = (
    Traffic("chat, 300 in, 200 out", 300.0, 200.0, 29.0),
    Traffic("long answers, 500 in, 1000 out", 500.0, 1000.0, 5.9),
    Traffic("long prompts, 2000 in, 200 out", 2000.0, 200.0, 11.0),
)


class Contest:
    """One kind of traffic on one replica."""

    def __init__(self, traffic: Traffic, count: int) -> None:
        """Draw the requests once for all."""
        row = load_catalog().replica(Deployment("llama-3.1-8b-instruct", "h100-sxm"))
        fields = {**row.fields, "host_latency_s": 0.0, "host_latency_per_token_s": 0.0}
        row = replace(row, fields=fields)
        self.replicas = Replicas.of([row])
        self.costs = coefficients(row)
        self.trace = traffic.requests(count)
        settings = {"max_num_seqs": "default_max_num_seqs", "max_num_batched_tokens": "default_max_num_batched_tokens"}
        self.settings = {name: fields[default] for name, default in settings.items()}
        self.blocks = int(self.costs[COEFFICIENTS.index("pool_tokens")]) // BLOCK

    def engine(self, count: int) -> dict[str, Any]:
        """Replay the first `count` requests."""
        inputs = {"isl_tokens": 2.0, "osl_tokens": 2.0, **self.settings, "async_scheduling": 0.0, **RESERVE}
        points = {name: np.array([value]) for name, value in inputs.items()}
        rows = tuple(column[:count] for column in self.trace)
        return self.replicas.simulate(np.zeros(1, dtype=np.uint32), points, CONTROL, 1, rows)

    def rival(self, count: int, *, compiled: bool) -> tuple[Any, ...]:
        """Replay the first `count` requests."""
        limits = (int(self.settings["max_num_batched_tokens"]), int(self.settings["max_num_seqs"]), self.blocks)
        rows = tuple(column[:count] for column in self.trace)
        return engine_loop.replay(rows, self.costs[:11], limits, compiled=compiled)

    def agrees(self, count: int) -> bool:
        """Whether every request has the same times."""
        found, (first, last, steps) = self.engine(count), self.rival(count, compiled=True)
        arrivals = self.trace[0][:count]
        same = [np.allclose(found["request_ttft_s"], first - arrivals, rtol=1e-7)]
        same += [np.allclose(found["request_e2e_s"], last - arrivals, rtol=1e-7), found["iterations"][0] == steps]
        return all(same)


def run(traffic: Traffic, count: int, slow_count: int) -> bool:
    """Print one table; whether all agree."""
    contest = Contest(traffic, count)
    agrees = contest.agrees(count)
    found, slow_steps = contest.engine(count), contest.rival(slow_count, compiled=True)[2]
    contestants = {
        "engine": lambda: contest.engine(count),
        "numba": lambda: contest.rival(count, compiled=True),
        "python": lambda: contest.rival(slow_count, compiled=False),
    }
    times = interleaved(contestants, ROUNDS)
    work = {"iterations": float(found["iterations"][0]), "requests": float(count)}
    slow_work = {"iterations": float(slow_steps), "requests": float(slow_count)}
    running, verdict_ = found["running"][0], "agree" if agrees else "DIFFER"
    print(f"\n{traffic.title}: {count} requests, {running:.0f} running; times {verdict_}")
    for name in contestants:
        of = slow_work if name == "python" else work
        print(f"  {name:8}" + ", ".join(f"{of[what] / times.median(name):12,.0f} {what}/s" for what in of))
    for what, aim in AIMS.items():
        rate = work[what] / times.median("engine")
        print(f"  engine, {what}/s: {rate:,.0f} ({verdict(rate, aim)})")
    share = work["iterations"] / slow_work["iterations"]
    over_python = times.ratio("python", "engine") * share
    print(f"  engine over numba {times.ratio('numba', 'engine'):.1f}, over python {over_python:,.0f} (iterations/s)")
    return agrees


def main() -> int:
    """Every kind of traffic; 1 if a rival disagrees."""
    count, slow_count = (5_000, 100) if "--quick" in sys.argv[1:] else (200_000, 1_000)
    agree = [run(traffic, count, slow_count) for traffic in TRAFFIC]
    return 0 if all(agree) else 1


if __name__ == "__main__":
    sys.exit(main())
