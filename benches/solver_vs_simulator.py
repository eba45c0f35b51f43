"""How far the solver's means and percentiles are from the simulator, on random points below saturation.

Both take the same step times, lengths and arrivals; all that differs is the queueing, which one plays and the other
approximates. A sixth of the points has few seats, a sixth a small KV pool, an eighth each a small token budget with
short answers, and long prompts. Loads are shares of what the solver says is sustainable. Bars are for Poisson arrivals.

Run: python benches/solver_vs_simulator.py [--points N] [--seed S] [--requests N] [--arrival-cv CV]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from lambdamax.catalog import load_catalog
from lambdamax.engine import SIM_STATUSES, Arrays, Control, Floats, Replicas
from lambdamax.replicas import Deployment

REPLICAS: Final = (
    ("llama-3.1-8b-instruct", "h100-sxm", 1),
    ("llama-3.1-8b-instruct", "a100-80-sxm", 2),
    ("qwen3-8b", "a100-80-sxm", 2),
    ("qwen3-8b", "l40s", 1),
    ("llama-3.3-70b-instruct", "h100-sxm", 4),
    ("llama-3.3-70b-instruct", "h200-sxm", 8),
    ("qwen3-32b", "h100-sxm", 2),
    ("qwen3-14b", "h200-sxm", 1),
    ("mistral-small-24b-instruct-2501", "h100-sxm", 2),
    ("qwen3-30b-a3b", "h100-sxm", 2),
)
KINDS: Final = (("any", 0.4), ("seats", 0.17), ("pool", 0.17), ("budget", 0.13), ("prefill", 0.13))
BUDGETS: Final = (2048.0, 4096.0, 8192.0, 16384.0)
# Largest median error below 70 % of the sustainable rate; twice as much above.
BARS: Final = {"ttft_mean_s": 0.04, "tpot_mean_s": 0.025, "ttft_p99_s": 0.10, "in_flight": 0.03}
SHOWN: Final = (*BARS, "ttft_p50_s", "ttft_p90_s", "itl_p99_s", "e2e_p99_s")
HIGH_LOAD: Final = 0.7
# A regime's median may be so many times the bar.
REGIME_SLACK: Final = 3
WORST: Final = 12
COMPUTE: Final = 0


@dataclass(frozen=True)
class Points:
    """Random points: the replica of each, its inputs by column, and its share of the sustainable rate."""

    replica: np.ndarray
    inputs: Mapping[str, Floats]
    share: Floats


def draw(rng: np.random.Generator, count: int) -> Points:
    """Points of every kind."""
    kind = rng.choice([name for name, _ in KINDS], size=count, p=[part for _, part in KINDS])
    log = lambda low, high: np.round(np.exp(rng.uniform(np.log(low), np.log(high), count)))  # noqa: E731
    cv = lambda: np.where(rng.random(count) < 2 / 3, 0.0, rng.uniform(0.3, 1.2, count))  # noqa: E731
    isl = np.select([kind == "budget", kind == "prefill"], [log(2000, 12000), log(1500, 8000)], log(50, 8000))
    osl = np.select([kind == "budget", kind == "prefill"], [log(16, 120), log(60, 400)], log(16, 1200))
    inputs = {
        "isl_tokens": isl,
        "osl_tokens": osl,
        "isl_cv": cv(),
        "osl_cv": cv(),
        "max_num_batched_tokens": np.where(kind == "budget", 2048.0, rng.choice(BUDGETS, count)),
        "max_num_seqs": np.where(kind == "seats", log(8, 96), rng.choice([128.0, 256.0, 512.0, 1024.0], count)),
    }
    longest = 1 + 2 * np.maximum(inputs["isl_cv"], inputs["osl_cv"])
    pool = 16 * np.round(np.maximum(log(12, 100), 6 * longest) * (isl + osl) / 16)
    inputs["kv_cache_tokens"] = np.where(kind == "pool", pool, np.inf)
    return Points(rng.integers(len(REPLICAS), size=count).astype(np.uint32), inputs, rng.uniform(0.2, 0.9, count))


def with_loads(replicas: Replicas, points: Points, arrival_cv: float) -> tuple[Points, Arrays]:
    """The same with pools no larger than the replica's, and rates; and the solver's limits."""
    inputs = {name: values for name, values in points.inputs.items() if name != "kv_cache_tokens"}
    own = replicas.solve(points.replica, inputs, 0)["kv_pool_tokens"]
    inputs["kv_cache_tokens"] = np.minimum(points.inputs["kv_cache_tokens"], own)
    inputs["arrival_cv"] = np.full(len(points.share), arrival_cv)
    limits = replicas.solve(points.replica, inputs, 0)
    inputs["rate_rps"] = points.share * limits["max_rate_rps"] / limits["utilization"]
    return Points(points.replica, inputs, points.share), limits


def regimes(points: Points, limits: Arrays, solved: Arrays) -> dict[str, np.ndarray]:
    """Which points belong to which regime."""
    rates = np.array([limits[f"rate_at_{name}_rps"] for name in ("compute", "kv", "seats")])
    first = rates.argmin(axis=0)
    uncached = points.inputs["isl_tokens"]
    steps = points.inputs["osl_tokens"] - 1
    full = points.inputs["max_num_batched_tokens"] * steps / (uncached + steps)
    bound = (first == COMPUTE) & (uncached > points.inputs["max_num_batched_tokens"])
    return {
        "token-budget-bound": bound | (solved["decoding"] > 0.5 * full),
        "decode-bound": solved["prefill_share"] < 0.1,
        "prefill share above 0.3": solved["prefill_share"] > 0.3,
        "near the seats": first == 2,
        "near the pool": (first == 1) & np.isfinite(points.inputs["kv_cache_tokens"]),
        "with experts": points.replica == len(REPLICAS) - 1,
    }


def table(errors: Mapping[str, Floats], groups: Mapping[str, np.ndarray], high: np.ndarray) -> Iterator[str]:
    """Median and 90th percentile of the absolute errors in percent, a star where the median is above its bar."""
    yield f"{'':26} {'load':>5} {'n':>4}  " + "  ".join(f"{name.removesuffix('_s'):>16}" for name in SHOWN)
    for name, belongs in groups.items():
        for label, side in (("<70%", ~high), (">70%", high)):
            chosen = belongs & side
            if not chosen.any():
                continue
            slack = (2 if label[0] == ">" else 1) * (1 if name == "all" else REGIME_SLACK)
            cells = (_cell(errors[column][chosen], slack * BARS.get(column, np.inf)) for column in SHOWN)
            yield f"{name:26} {label:>5} {chosen.sum():4}  " + "  ".join(cells)


def _cell(errors: Floats, bar: float) -> str:
    off = np.abs(errors[np.isfinite(errors)])
    median, tail = np.median(off), np.percentile(off, 90)
    return f"{100 * median:6.2f}{'*' if median > bar else ' '} p90{100 * tail:5.1f}"


def worst(points: Points, errors: Mapping[str, Floats], solved: Arrays, played: Arrays) -> Iterator[str]:
    """The points with the largest error of mean TTFT, and what happens there."""
    order = np.argsort(-np.nan_to_num(np.abs(errors["ttft_mean_s"])))[:WORST]
    for place in order:
        model, gpu, tp = REPLICAS[points.replica[place]]
        lengths = "/".join(f"{points.inputs[name][place]:.0f}" for name in ("isl_tokens", "osl_tokens"))
        off = " ".join(f"{name} {100 * errors[name][place]:+.0f} %" for name in BARS)
        cvs = "/".join(f"{points.inputs[name][place]:.1f}" for name in ("isl_cv", "osl_cv"))
        what = f"{model[:12]} {gpu} tp{tp} {lengths} cv {cvs} at {points.share[place]:.0%}"
        yield f"{what}: {off}; {_reason(place, solved, played)}"


def _reason(place: int, solved: Arrays, played: Arrays) -> str:
    seen = {name: float(played[name][place]) for name in ("preemptions_per_request", "blocked_share", "ttft_mean_s")}
    if seen["preemptions_per_request"] > 0.01:
        return f"{seen['preemptions_per_request']:.2f} preemptions a request, which the solver does not know"
    if seen["blocked_share"] > 0.02:
        wait, whole = float(solved["seat_wait_s"][place]), seen["ttft_mean_s"]
        return f"the queue is blocked in {seen['blocked_share']:.0%} of steps; seat wait {wait / whole:.0%} of TTFT"
    return f"time lost to prefill {float(solved['prefill_share'][place]):.0%}: how prompts cluster"


def arguments() -> argparse.Namespace:
    """Options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--arrival-cv", type=float, default=1.0)
    parser.add_argument("--quick", action="store_true", help="a few points, for a smoke test")
    return parser.parse_args()


def main() -> None:
    """Draw, solve, simulate, and print."""
    asked = arguments()
    count, requests = (24, 20_000) if asked.quick else (asked.points, asked.requests)
    catalog = load_catalog()
    replicas = Replicas.of([catalog.replica(Deployment(*which)) for which in REPLICAS])
    points, limits = with_loads(replicas, draw(np.random.default_rng(asked.seed), count), asked.arrival_cv)
    solved = replicas.load(points.replica, points.inputs, 0)
    control = Control(requests=requests, precision=0.007, replications=4, seed=asked.seed)
    played = replicas.simulate(points.replica, points.inputs, control, 0)
    steady = np.array([SIM_STATUSES[code] != "saturated" for code in played["status"]])
    print(
        f"{count} points, seed {asked.seed}, arrival CV {asked.arrival_cv:g}; {(~steady).sum()} saturated when played"
    )
    errors = {name: np.where(steady, solved[name] / played[name] - 1, np.nan) for name in SHOWN}
    groups: dict[str, np.ndarray] = {"all": np.ones(count, dtype=bool), **regimes(points, limits, solved)}
    for line in (*table(errors, groups, points.share >= HIGH_LOAD), *worst(points, errors, solved, played)):
        print(line)


if __name__ == "__main__":
    main()
