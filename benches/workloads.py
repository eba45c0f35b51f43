"""The points of the benchmarks: random ones, and a grid whose SLO axes share curves."""

from __future__ import annotations

from itertools import product
from typing import Final

import numpy as np

from lambdamax import _engine
from lambdamax.catalog import load_catalog
from lambdamax.replicas import Deployment, ReplicaRow
from rivals import with_numpy
from rivals.coefficients import COEFFICIENTS, RESERVED_BYTES, Floats, coefficients
from rivals.points import Points, SharedGrid

MODELS: Final = ("llama-3.1-8b-instruct", "qwen3-14b", "mistral-small-24b-instruct-2501", "llama-3.3-70b-instruct")
GPUS: Final = ("a100-80-sxm", "h100-sxm", "h200-sxm", "b200-sxm", "mi300x", "l40s", "rtx-pro-6000-server")
TP: Final = (1, 2, 4, 8)
DTYPES: Final = (("bf16", "bf16"), ("fp8", "fp8"), ("fp8", "bf16"))
BUDGETS: Final = (2048.0, 8192.0, 16384.0)
SLOS: Final = ("slo_ttft_s", "slo_tpot_s", "slo_e2e_s")
SMALLEST_POOL: Final = 4096.0
POOL: Final = COEFFICIENTS.index("pool_tokens")


def random_points(count: int, *, seed: int, varying: bool) -> Points:
    """Independent points from one stream of PCG64 on every replica that fits; all limits asked for.

    SLOs are log-uniform from 1.1 times what an idle replica does, so that most are reachable and many bind.
    """
    random = np.random.Generator(np.random.PCG64(seed))
    rows = _fitting_rows()
    pools = np.array([coefficients(row)[POOL] for row in rows])
    replica = random.integers(len(rows), size=count).astype(np.uint32)
    longest = np.minimum(32768.0, pools[replica] / 2)
    isl = np.round(np.exp(random.uniform(np.log(64.0), np.log(longest))))
    osl = np.round(_log_uniform(random, 16.0, 2048.0, count))
    fields = {name: np.full(count, np.nan) for name in _engine.POINT_FIELDS}
    cv = (random.uniform(0.3, 1.5, count), random.uniform(0.3, 1.2, count)) if varying else np.zeros((2, count))
    fields |= {"isl_tokens": isl, "osl_tokens": osl, "isl_cv": cv[0], "osl_cv": cv[1]}
    fields["max_num_seqs"] = np.round(_log_uniform(random, 8.0, 1024.0, count))
    fields["max_num_batched_tokens"] = random.choice(BUDGETS, count)
    fields["utilization_cap"] = np.minimum(1.0, random.uniform(0.6, 1.2, count))
    fields["reserved_bytes"] = np.full(count, RESERVED_BYTES)
    fields["usd_per_accelerator_hour"] = random.uniform(1.0, 8.0, count)
    points = Points(rows, replica, fields)
    for name, idle in zip(SLOS, with_numpy.idle(points), strict=True):
        fields[name] = idle * _log_uniform(random, 1.1, 50.0, count)
    return points


def _fitting_rows() -> tuple[ReplicaRow, ...]:
    """Replicas of all models, devices, TP and dtypes that exist and hold some requests."""
    catalog = load_catalog()
    combinations = product(MODELS, GPUS, TP, DTYPES)
    rows = [
        catalog.replica(Deployment(model, gpu, tp, weight_dtype=weights, kv_dtype=kv))
        for model, gpu, tp, (weights, kv) in combinations
    ]
    return tuple(row for row in rows if row.unsupported is None and coefficients(row)[POOL] >= SMALLEST_POOL)


def _log_uniform(random: np.random.Generator, low: float, high: float, count: int) -> Floats:
    return np.exp(random.uniform(np.log(low), np.log(high), count))


def shared_grid(isl_count: int, osl_count: int, *, cv: float = 0.0) -> SharedGrid:
    """gpu x tp x dtype x isl x osl, times 4 TTFT x 4 TPOT x 4 E2E SLOs x 2 utilization caps: 128 rows a curve."""
    gpus, dtypes = ("h100-sxm", "h200-sxm", "b200-sxm", "mi300x"), ("bf16", "fp8")
    catalog = load_catalog()
    combinations = list(product(gpus, TP, dtypes))
    rows = tuple(catalog.replica(Deployment(MODELS[0], gpu, tp, weight_dtype=dtype)) for gpu, tp, dtype in combinations)
    isl, osl = np.round(np.geomspace(128, 16384, isl_count)), np.round(np.geomspace(32, 2048, osl_count))
    slos = {
        "slo_ttft_s": np.array([0.25, 0.5, 1.0, 2.0]),
        "slo_tpot_s": np.array([0.015, 0.025, 0.05, 0.1]),
        "slo_e2e_s": np.array([5.0, 10.0, 20.0, 60.0]),
        "utilization_cap": np.array([0.8, 0.9]),
    }
    one = np.zeros(1)
    axes = (
        *(("model", one), ("gpu", np.zeros(len(gpus))), ("tp", np.array(TP, dtype=np.float64))),
        *(("pp", one + 1), ("dp", one + 1), ("ep", one + 1)),
        *(("weight_dtype", np.zeros(len(dtypes))), ("kv_dtype", one), ("engine", one), ("profile", one)),
        *(("isl_tokens", isl), ("osl_tokens", osl), ("isl_cv", one + cv), ("osl_cv", one + cv)),
        ("reserved_bytes", one + RESERVED_BYTES),
        *slos.items(),
        *(("price_plan", one), ("provider", one)),
    )
    prices = np.linspace(2.0, 6.0, len(gpus))
    gpu_of_row = np.repeat(np.arange(len(gpus)), len(TP) * len(dtypes))
    return SharedGrid(_curves(rows, isl, osl, cv, prices[gpu_of_row]), axes, prices, slos)


def _curves(rows: tuple[ReplicaRow, ...], isl: Floats, osl: Floats, cv: float, prices: Floats) -> Points:
    replica, prompt, output = (a.ravel() for a in np.meshgrid(np.arange(len(rows)), isl, osl, indexing="ij"))
    fields = {name: np.full(len(replica), np.nan) for name in _engine.POINT_FIELDS}
    fields |= {"isl_tokens": prompt, "osl_tokens": output}
    fields |= {"isl_cv": np.full(len(replica), cv), "osl_cv": np.full(len(replica), cv)}
    fields["reserved_bytes"] = np.full(len(replica), RESERVED_BYTES)
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        fields[name] = np.array([row.fields[f"default_{name}"] for row in rows])[replica]
    fields["usd_per_accelerator_hour"] = prices[replica]
    return Points(rows, replica.astype(np.uint32), fields)
