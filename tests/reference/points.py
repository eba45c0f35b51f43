"""Seeded random points, realistic and nasty, some of them steered so that a chosen limit binds.

A steered point first gets loose limits; then a number decoding is picked on its curve and one limit is set to what its
quantity is there, with the others out of reach. Which limit binds in the end is the solver's business: the tests
count what it says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from reference.curve import State, curve
from reference.shard import shard
from reference.step import step
from reference.workload import workload

Fields = dict[str, float | None]
Random = np.random.Generator

# layers, hidden, heads, kv heads, head dim, MLP width, MLP matrices, vocabulary, tied: shapes from 1B to 405B
SHAPES = (
    (16, 2048, 32, 8, 64, 8192, 3, 128256, 1),
    (28, 3584, 28, 4, 128, 18944, 3, 152064, 0),
    (32, 4096, 32, 8, 128, 14336, 3, 128256, 0),
    (32, 4096, 32, 32, 128, 11008, 3, 32000, 0),
    (40, 5120, 40, 10, 128, 17920, 3, 100352, 0),
    (64, 5120, 64, 8, 128, 25600, 3, 151936, 0),
    (48, 6144, 48, 1, 128, 24576, 2, 49152, 1),
    (80, 8192, 64, 8, 128, 28672, 3, 128256, 0),
    (96, 12288, 96, 96, 128, 49152, 2, 50257, 1),
    (126, 16384, 128, 8, 128, 53248, 3, 128256, 0),
)
SHAPE_FIELDS = (
    "layers",
    "hidden_size",
    "attention_heads",
    "kv_heads",
    "head_dim",
    "intermediate_size",
    "mlp_matrices",
    "vocab_size",
    "tied_embeddings",
)
HUGE = 1e18


@dataclass(frozen=True)
class Case:
    """A replica row and a point (or load) row, and what the generator steered for."""

    row: Fields
    point: Fields
    aim: str


def log_uniform(random: Random, low: float, high: float) -> float:
    """Uniform in the logarithm."""
    return float(math.exp(random.uniform(math.log(low), math.log(high))))


def sometimes(random: Random, chance: float, value: float, otherwise: float) -> float:
    """`value` with this chance."""
    return value if random.random() < chance else otherwise


def replica_row(random: Random, *, ratio: bool = False) -> Fields:
    """A replica: model, dtypes, device, tp, engine defaults, profile."""
    row: Fields = dict(zip(SHAPE_FIELDS, map(float, SHAPES[random.integers(len(SHAPES))]), strict=True))
    hidden, heads, kv_heads = row["hidden_size"] or 0, row["attention_heads"] or 0, row["kv_heads"] or 0
    row |= {"layer_vector_params": 2 * hidden, "final_norm_params": hidden, "supported": 1.0}
    row["weight_bits"] = float(random.choice([16.0, 8.0, 4.5, 4.25]))
    row["kv_bytes_per_element"] = float(random.choice([2.0, 1.0]))
    fits = [tp for tp in (1, 2, 4, 8) if heads % tp == 0 and (kv_heads % tp == 0 or tp % kv_heads == 0)]
    row["tp"] = float(random.choice(fits))
    row |= device(random)
    weights = shard(row).weight_shard_bytes
    row["accelerator_memory_bytes"] = weights * log_uniform(random, 1.3, 20) + 8e9
    row |= {
        "default_max_num_seqs": float(random.choice([128, 256, 1024])),
        "default_max_num_batched_tokens": float(random.choice([2048, 8192, 16384])),
        "default_memory_utilization": float(random.choice([0.9, 0.92])),
        "default_reserved_bytes": log_uniform(random, 1e8, 4e9),
    }
    return row | (ratio_profile(random) if ratio else full_profile(random))


def device(random: Random) -> Fields:
    """Bandwidth 0.3 to 8 TB/s, 100 to 600 FLOP per byte, a scale-up domain that the tp may exceed."""
    bandwidth = log_uniform(random, 0.3e12, 8e12)
    attention_flops = bandwidth * random.uniform(100, 600)
    return {
        "memory_bandwidth_bytes_per_s": bandwidth,
        "attention_flops": attention_flops,
        "gemm_flops": attention_flops * float(random.choice([1.0, 2.0, 4.0])),
        "scaleup_bytes_per_s": log_uniform(random, 50e9, 900e9),
        "scaleup_domain_size": float(random.choice([1, 2, 8, 8, 72])),
        "pcie_bytes_per_s": log_uniform(random, 16e9, 64e9),
    }


def full_profile(random: Random) -> Fields:
    """Constants of kind `full`."""
    return {
        "kind": 0.0,
        "gemm_bandwidth_efficiency": random.uniform(0.5, 0.95),
        "gemm_flops_efficiency": random.uniform(0.4, 0.9),
        "roofline_exponent": sometimes(random, 0.15, 1.0, random.uniform(1.0, 1.7)),
        "attention_bandwidth_efficiency": random.uniform(0.3, 0.9),
        "prefill_attention_flops_efficiency": random.uniform(0.2, 0.8),
        "prefill_attention_half_tokens": sometimes(random, 0.15, 0.0, random.uniform(0, 1000)),
        "step_overhead_s": log_uniform(random, 1e-4, 1e-2),
        "sequence_overhead_s": sometimes(random, 0.15, 0.0, log_uniform(random, 1e-6, 1e-4)),
        "layer_floor_s": sometimes(random, 0.15, 0.0, log_uniform(random, 1e-6, 5e-5)),
        "allreduce_latency_s": log_uniform(random, 2e-6, 3e-5),
        "allreduce_latency_per_doubling_s": log_uniform(random, 1e-7, 1e-5),
        "allreduce_bandwidth_efficiency": random.uniform(0.3, 0.9),
        "pcie_allreduce_latency_s": log_uniform(random, 1e-5, 1e-4),
        "pcie_allreduce_latency_per_doubling_s": log_uniform(random, 1e-6, 3e-5),
        "pcie_bandwidth_efficiency": random.uniform(0.3, 0.9),
        "host_latency_s": sometimes(random, 0.15, 0.0, log_uniform(random, 1e-4, 5e-2)),
        "host_latency_per_token_s": sometimes(random, 0.15, 0.0, log_uniform(random, 1e-7, 1e-5)),
        "async_scheduling": float(random.integers(2)),
        "measured_over_floor_ratio": None,
        "ttft_s": None,
    }


def ratio_profile(random: Random) -> Fields:
    """Constants of kind `ratio`; those of kind `full` are not there."""
    absent: Fields = dict.fromkeys(full_profile(random))
    return absent | {
        "kind": 1.0,
        "measured_over_floor_ratio": random.uniform(1.0, 3.0),
        "ttft_s": log_uniform(random, 1e-3, 3.0),
    }


def lengths(random: Random, *, peaked: bool = False) -> Fields:
    """Prompt and output lengths, their spread, and the prefix cache."""
    low, high = (2000, 30_000) if peaked else (16, 100_000)
    point: Fields = {
        "isl_tokens": float(round(log_uniform(random, low, high))),
        "osl_tokens": float(round(log_uniform(random, 2, 32 if peaked else 8000))),
    }
    if random.random() < 0.1:
        point["isl_tokens"] = (point["isl_tokens"] or 0) + random.random()
    if random.random() < 0.5:
        point["isl_cv"] = random.uniform(0.05, 3.0)
    if random.random() < 0.5:
        point["osl_cv"] = random.uniform(0.05, 3.0)
    mode = random.integers(5)
    if mode == 1:
        point["prefix_hit_share"] = sometimes(random, 0.2, 1.0, random.random())
    elif mode >= 2:
        point["prefix_tokens"] = float(round(log_uniform(random, 1, 2 * (point["isl_tokens"] or 0))))
        point["prefix_hit_share"] = None if mode == 2 else sometimes(random, 0.1, 0.0, random.random())
    return point


def scheduler(random: Random, *, peaked: bool = False) -> Fields:
    """Token budget, seats and memory settings; now and then the engine's defaults."""
    return {
        "max_num_batched_tokens": optional(random, 0.1, round(log_uniform(random, 512, 4096 if peaked else 131_072))),
        "max_num_seqs": optional(random, 0.1, round(log_uniform(random, 4, 2048))),
        "memory_utilization": optional(random, 0.3, random.uniform(0.6, 0.98)),
        "reserved_bytes": optional(random, 0.3, log_uniform(random, 1e6, 6e9)),
        "utilization_cap": optional(random, 0.2, sometimes(random, 0.3, 1.0, random.uniform(0.5, 1.0))),
        "usd_per_accelerator_hour": optional(random, 0.2, log_uniform(random, 0.1, 100)),
    }


def optional(random: Random, chance: float, value: float) -> float | None:
    """None (the default) with this chance."""
    return None if random.random() < chance else float(value)


def unsteered(random: Random, *, ratio: bool, peaked: bool) -> Case:
    """A point with nothing steered and no SLOs: limits where they fall."""
    point = lengths(random, peaked=peaked) | scheduler(random, peaked=peaked)
    return Case(replica_row(random, ratio=ratio), point, "free")


def with_slos(random: Random, case: Case) -> Case:
    """The same point with SLOs scattered over all that its curve spans, and a little beyond."""
    state = curve_samples(case.row, case.point)
    slos: Fields = {}
    for name, values in (("tpot", state.tpot), ("ttft", state.ttft), ("e2e", state.e2e)):
        floor, ceiling = 0.8 * float(values.min()), 1.2 * float(values.max())
        slos[f"slo_{name}_s"] = optional(random, 0.4, log_uniform(random, floor, max(ceiling, floor * 1.01)))
    return replace(case, point=case.point | slos)


def loose(case: Case) -> Case:
    """The same point with every limit but compute out of reach."""
    out_of_reach: Fields = {"max_num_seqs": 1e9, "memory_bytes": HUGE, "utilization_cap": 1.0}
    return replace(case, point=case.point | out_of_reach)


def curve_samples(row: Fields, point: Fields, count: int = 60) -> State:
    """The curve on a logarithmic grid up to its highest sample."""
    load = workload(row, point)
    its_curve = curve(row, step(row, shard(row)), load)
    state = its_curve.at(load.b_cap * np.logspace(-5, 0, count))
    best = int(np.argmax(state.rate)) + 1
    return State(**{name: values[:best] for name, values in vars(state).items()})


def steer(random: Random, case: Case, aim: str) -> Case:
    """Set one limit to its quantity at a random place on the rising curve, the others out of reach."""
    point = dict(loose(case).point)
    state = curve_samples(case.row, point)
    place = int(random.integers(len(state.b)))
    settings: dict[str, Callable[[], Fields]] = {
        "compute": lambda: {},
        "kv_pool": lambda: {"memory_bytes": memory_for(case.row, point, float(state.kv[place]))},
        "seats": lambda: {"max_num_seqs": max(2.0, round(float(state.running[place])))},
        "tpot_slo": lambda: {"slo_tpot_s": float(state.tpot[place])},
        "ttft_slo": lambda: {"slo_ttft_s": float(state.ttft[place])},
        "e2e_slo": lambda: {"slo_e2e_s": float(state.e2e[place])},
        "utilization": lambda: {"utilization_cap": random.uniform(0.5, 0.99)},
    }
    return Case(case.row, point | settings[aim](), aim)


def memory_for(row: Fields, point: Fields, tokens: float) -> float:
    """Device memory whose pool is about this many tokens, and no less than one mean request."""
    part = shard(row)
    load = workload(row, point)
    tokens = max(tokens, load.mean_prompt + load.mean_output + load.shared_blocks + 32)
    utilization = point.get("memory_utilization") or row["default_memory_utilization"] or 0
    reserved = point.get("reserved_bytes") or row["default_reserved_bytes"] or 0
    return (tokens * part.kv_bytes_per_token_rank + part.weight_shard_bytes + reserved) / utilization


def cases(seed: int, count: int, aim: str = "free", *, peaked: bool = False, ratio: bool = False) -> list[Case]:
    """`count` points from one stream of PCG64."""
    random = np.random.Generator(np.random.PCG64(seed))
    found = []
    for _ in range(count):
        case = unsteered(random, ratio=ratio, peaked=peaked)
        found.append(with_slos(random, case) if aim == "free" else steer(random, case, aim))
    return found


def jumps(seed: int, count: int) -> list[Case]:
    """Points whose TTFT steps over its SLO where prompts need one chunk more."""
    random = np.random.Generator(np.random.PCG64(seed))
    found: list[Case] = []
    while len(found) < count:
        case = loose(unsteered(random, ratio=False, peaked=random.random() < 0.3))
        its_curve = curve(case.row, step(case.row, shard(case.row)), workload(case.row, case.point))
        edges = its_curve.edges()
        edges = edges[edges > 1]  # at 1 the room begins to shrink; nothing jumps there
        if not len(edges):
            continue
        edge = edges[random.integers(len(edges))] * np.array([1 - 1e-9, 1 + 1e-9])
        before, after = its_curve.at(edge).ttft
        found.append(Case(case.row, case.point | {"slo_ttft_s": float((before + after) / 2)}, "ttft_jump"))
    return found


def loads(seed: int, count: int, *, closed: bool) -> list[Case]:
    """Points with a given rate, or with clients who think between requests; some beyond what the replica can do."""
    random = np.random.Generator(np.random.PCG64(seed))
    found = []
    for number in range(count):
        case = unsteered(random, ratio=number % 10 == 9, peaked=number % 10 < 2)
        state = curve_samples(case.row, case.point)
        place = int(random.integers(len(state.b)))
        rate, residence = float(state.rate[place]), float(state.e2e[place])
        think = sometimes(random, 0.4, 0.0, residence * log_uniform(random, 0.01, 100))
        clients = rate * (residence + think) * random.uniform(0.9, 1.1)
        closed_fields: Fields = {"concurrency": clients, "think_time_s": think}
        point = case.point | (closed_fields if closed else {"rate_rps": rate * random.uniform(0.3, 1.15)})
        found.append(Case(case.row, point, "closed" if closed else "open"))
    return found
