"""Seeded random points, realistic and nasty, some of them steered so that a chosen limit binds.

A steered point first gets loose limits; then a number decoding is picked on its curve and one limit is set to what its
quantity is there, with the others out of reach. Which limit binds in the end is the solver's business: the tests
count what it says.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from reference.architectures import KINDS, Fields, Random, decoder
from reference.curve import Curve, State, curve
from reference.empirical import TABLES, table
from reference.examples import NO_MEMORY_MODEL
from reference.latency import e2e, first_token, ttft
from reference.parallelism import parallelism_is_valid
from reference.shard import shard
from reference.step import step
from reference.waiting import no_wait, spread
from reference.workload import Floats, workload

HUGE = 1e18
ARRIVAL_CVS = (1.0, 1.0, 1.0, 1.0, 0.0, 0.5, 2.0, 4.0, 13.0)
PERCENTILES = (0.0, 50.0, 90.0, 95.0, 99.0)


@dataclass(frozen=True)
class Case:
    """A replica row with its model's blocks, a point (or load) row, and what the generator steered for."""

    row: Fields
    blocks: tuple[Fields, ...]
    point: Fields
    aim: str


def log_uniform(random: Random, low: float, high: float) -> float:
    """Uniform in the logarithm."""
    return float(math.exp(random.uniform(math.log(low), math.log(high))))


def sometimes(random: Random, chance: float, value: float, otherwise: float) -> float:
    """`value` with this chance."""
    return value if random.random() < chance else otherwise


def replica(random: Random, kind: str, point: Fields, *, ratio: bool) -> tuple[Fields, tuple[Fields, ...]]:
    """A replica for the lengths of a point: model, formats, device, parallelism, engine defaults, profile."""
    plain = kind == "dense"
    model = decoder(random, "dense" if kind == "spread" else kind, point["isl_tokens"] or 0, point["osl_tokens"] or 0)
    row = model.fields | device(random) | {"supported": 1.0}
    row |= formats(random, row["attention_flops"] or 0, alike=plain)
    row |= placement(random, row, model.blocks, tensor_only=plain)
    row["kv_padding"] = 1.0 if plain else sometimes(random, 0.6, 1.0, random.uniform(1.0, 1.3))
    weights = shard(row, model.blocks).weight_shard_bytes
    row["accelerator_memory_bytes"] = weights * log_uniform(random, 1.3, 20) + 8e9
    row |= {
        "default_max_num_seqs": float(random.choice([128, 256, 1024])),
        "default_max_num_batched_tokens": float(random.choice([2048, 8192, 16384])),
        "default_memory_utilization": float(random.choice([0.9, 0.92])),
    }
    row |= NO_MEMORY_MODEL
    return row | (ratio_profile(random) if ratio else full_profile(random)), model.blocks


def formats(random: Random, peak: float, *, alike: bool) -> Fields:
    """Bits of each kind of matrix, the peaks of their formats, and bytes of a cached element."""
    choices = [(16.0, 1.0), (8.0, 2.0), (8.0, 1.0), (4.5, 4.0), (4.25, 1.0)]
    found: Fields = {"kv_bytes_per_element": float(random.choice([2.0, 1.0])), "head_bits": 16.0}
    bits, faster = choices[random.integers(len(choices))]
    for kind in ("mixer", "mlp", "expert"):
        if not alike:
            bits, faster = choices[random.integers(len(choices))]
        found |= {f"{kind}_bits": bits, f"{kind}_flops": peak * faster}
    return found if alike else found | {"head_bits": float(random.choice([16.0, 16.0, 8.0]))}


def placement(random: Random, row: Fields, blocks: tuple[Fields, ...], *, tensor_only: bool) -> Fields:
    """A valid tp, pp, dp and ep, and the block of weight scales that a shard may not cut."""
    while True:
        found = {"tp": random.choice([1, 2, 4, 8]), "pp": 1, "dp": 1, "ep": 1, "weight_block": 1}
        if not tensor_only:
            found |= {"pp": random.choice([1, 1, 1, 2, 3, 4, 8]), "dp": random.choice([1, 1, 1, 2, 4, 8])}
            found["weight_block"] = random.choice([1, 1, 1, 16, 32, 128])
            found["ep"] = found["tp"] * found["dp"] if random.random() < 0.5 else 1
        placed: Fields = {name: float(value) for name, value in found.items()}
        if parallelism_is_valid(row | placed, blocks):
            return placed


def device(random: Random) -> Fields:
    """Bandwidth 0.3 to 8 TB/s, 100 to 600 FLOP per byte, a scale-up domain that the tp may exceed."""
    bandwidth = log_uniform(random, 0.3e12, 8e12)
    attention_flops = bandwidth * random.uniform(100, 600)
    return {
        "memory_bandwidth_bytes_per_s": bandwidth,
        "attention_flops": attention_flops,
        "scaleup_bytes_per_s": log_uniform(random, 50e9, 900e9),
        "scaleup_domain_size": float(random.choice([1, 2, 8, 8, 72])),
        "scaleup_mesh": float(random.random() < 0.25),
        "pcie_bytes_per_s": log_uniform(random, 16e9, 64e9),
    }


def full_profile(random: Random) -> Fields:
    """Constants of kind `full`; the last has a stream of its own, so that the cases of before stay what they were."""
    constants: Fields = {
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
        "latent_layer_floor_s": sometimes(random, 0.3, 0.0, log_uniform(random, 1e-6, 2e-5)),
        "allreduce_latency_s": log_uniform(random, 2e-6, 3e-5),
        "allreduce_latency_per_doubling_s": log_uniform(random, 1e-7, 1e-5),
        "allreduce_bandwidth_efficiency": random.uniform(0.3, 0.9),
        "pcie_allreduce_latency_s": log_uniform(random, 1e-5, 1e-4),
        "pcie_allreduce_latency_per_doubling_s": log_uniform(random, 1e-6, 3e-5),
        "pcie_bandwidth_efficiency": random.uniform(0.3, 0.9),
        "host_latency_s": sometimes(random, 0.15, 0.0, log_uniform(random, 1e-4, 5e-2)),
        "host_latency_per_token_s": sometimes(random, 0.15, 0.0, log_uniform(random, 1e-7, 1e-5)),
        "async_scheduling": float(random.integers(2)),
        "expert_load_imbalance": sometimes(random, 0.3, 1.0, random.uniform(1.0, 2.0)),
        "measured_over_floor_ratio": None,
        "ttft_s": None,
    }
    aside = np.random.default_rng(zlib.adler32(str(constants).encode()))
    return constants | {"prefill_layer_overhead_s": sometimes(aside, 0.5, 0.0, log_uniform(aside, 1e-6, 1e-3))}


def ratio_profile(random: Random) -> Fields:
    """Constants of kind `ratio`; those of kind `full` are not there."""
    absent: Fields = dict.fromkeys(full_profile(random))
    return absent | {
        "kind": 1.0,
        "measured_over_floor_ratio": random.uniform(1.0, 3.0),
        "ttft_s": log_uniform(random, 1e-3, 3.0),
    }


def empirical_lengths(random: Random, prefix: Fields) -> Fields:
    """Lengths by a table, with the prefix cache of parametric ones; the means are told to the generator alone."""
    number = int(random.integers(TABLES))
    law = table(number)
    cached = {name: value for name, value in prefix.items() if name.startswith("prefix")}
    return cached | {"lengths": float(number), "isl_tokens": law.mean_prompt, "osl_tokens": law.mean_output}


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
        "reserved_bytes": log_uniform(random, 1e6, 6e9),
        "utilization_cap": optional(random, 0.2, sometimes(random, 0.3, 1.0, random.uniform(0.5, 1.0))),
        "usd_per_accelerator_hour": optional(random, 0.2, log_uniform(random, 0.1, 100)),
    }


def optional(random: Random, chance: float, value: float) -> float | None:
    """None (the default) with this chance."""
    return None if random.random() < chance else float(value)


def arrivals(random: Random, *, symmetric: bool) -> Fields:
    """How arrivals cluster, and which latencies the SLOs mean; now and then as they are by default.

    Half of an even number of symmetric prompt nodes lies on each side of their median, where the tail of TTFT is flat
    at a half: whether it is past an SLO there is a matter of rounding, so such points have another percentile.
    """
    arrival_cv = optional(random, 0.2, ARRIVAL_CVS[random.integers(len(ARRIVAL_CVS))])
    percent = optional(random, 0.1, PERCENTILES[random.integers(len(PERCENTILES))])
    return {"arrival_cv": arrival_cv, "slo_percentile": 60.0 if symmetric and percent == 50 else percent}


def unsteered(random: Random, kind: str, *, ratio: bool, peaked: bool, empirical: bool = False) -> Case:
    """A point with nothing steered and no SLOs: limits where they fall."""
    (apart,) = random.spawn(1)  # leaves the stream of all else as it was
    of_request = lengths(random, peaked=peaked)
    of_request = empirical_lengths(random, of_request) if empirical else of_request
    symmetric = of_request.get("isl_cv") is not None
    point = of_request | scheduler(random, peaked=peaked) | arrivals(apart, symmetric=symmetric)
    row, blocks = replica(random, kind, point, ratio=ratio)
    return Case(row, blocks, point, "free")


def with_slos(random: Random, case: Case) -> Case:
    """The same point with SLOs scattered over all that its curve spans, and a little beyond."""
    state = curve_samples(case)
    slos: Fields = {}
    first, whole = latencies(case, state)
    for name, values in (("tpot", state.tpot), ("ttft", first), ("e2e", whole)):
        floor, ceiling = 0.8 * float(values.min()), 1.2 * float(values.max())
        slos[f"slo_{name}_s"] = optional(random, 0.4, log_uniform(random, floor, max(ceiling, floor * 1.01)))
    return replace(case, point=case.point | slos)


def loose(case: Case) -> Case:
    """The same point with every limit but compute out of reach."""
    out_of_reach: Fields = {"max_num_seqs": 1e9, "memory_bytes": HUGE, "utilization_cap": 1.0}
    return replace(case, point=case.point | out_of_reach)


def curve_of(case: Case) -> Curve:
    """The curve of a case, whether or not it fits."""
    part = shard(case.row, case.blocks)
    return curve(case.row, part, step(case.row, case.blocks, part), workload(case.row, case.point))


def curve_samples(case: Case, count: int = 60) -> State:
    """The curve on a logarithmic grid up to its highest sample."""
    its_curve = curve_of(case)
    state = its_curve.at(its_curve.load.b_cap * np.logspace(-5, 0, count))
    best = int(np.argmax(state.rate)) + 1
    return State(**{name: values[:best] for name, values in vars(state).items()})


def latencies(case: Case, state: State) -> tuple[Floats, Floats]:
    """TTFT and end-to-end latency of seated requests in the case's percentile, or in the mean."""
    percent, its = case.point["slo_percentile"] or 0.0, curve_of(case)
    if percent == 0:
        return state.ttft, state.e2e
    seated = no_wait(state)
    first = ttft(first_token(its, state), seated).percentile(percent)
    return first, e2e(its, state, spread(its, state), seated, percent)


def steer(random: Random, case: Case, aim: str) -> Case:
    """Set one limit to its quantity at a random place on the rising curve, the others out of reach."""
    case = loose(case)
    state = curve_samples(case)
    place = int(random.integers(len(state.b)))
    stages = case.row["pp"] or 1
    there = State(**{name: values[[place]] for name, values in vars(state).items()})
    settings: dict[str, Callable[[], Fields]] = {
        "compute": lambda: {},
        "kv_pool": lambda: {"memory_bytes": memory_for(case, stages * float(state.kv[place]))},
        "seats": lambda: {"max_num_seqs": max(2.0, round(stages * float(state.running[place])))},
        "tpot_slo": lambda: {"slo_tpot_s": float(state.tpot[place])},
        "ttft_slo": lambda: {"slo_ttft_s": float(latencies(case, there)[0][0])},
        "e2e_slo": lambda: {"slo_e2e_s": float(latencies(case, there)[1][0])},
        "utilization": lambda: {"utilization_cap": random.uniform(0.5, 0.99)},
    }
    return replace(case, point=case.point | settings[aim](), aim=aim)


def memory_for(case: Case, tokens: float) -> float:
    """Device memory in which a rank's pool is about this many tokens, and no less than one mean request."""
    row, point = case.row, case.point
    part, load = shard(row, case.blocks), workload(row, point)
    tokens = max(tokens, load.mean_prompt + load.mean_output + load.shared_blocks + 37.5)
    utilization = point.get("memory_utilization") or row["default_memory_utilization"] or 0
    token_bytes = part.cut.stage * part.pool_bytes_per_token * (row["kv_padding"] or 1)
    return (tokens * token_bytes + part.weight_shard_bytes + (point["reserved_bytes"] or 0)) / utilization


def picked(random: Random, kind: str | None) -> str:
    """The kind asked for, or any: those of `architectures`, and dense models cut in every way (`spread`)."""
    return kind or str(random.choice(["dense", "spread", *KINDS]))


def cases(
    seed: int,
    count: int,
    aim: str = "free",
    *,
    kind: str | None = None,
    peaked: bool = False,
    ratio: bool = False,
    empirical: bool = False,
) -> list[Case]:
    """`count` points from one stream of PCG64."""
    random = np.random.Generator(np.random.PCG64(seed))
    found = []
    for _ in range(count):
        case = unsteered(random, picked(random, kind), ratio=ratio, peaked=peaked, empirical=empirical)
        found.append(with_slos(random, case) if aim == "free" else steer(random, case, aim))
    return found


def jumps(seed: int, count: int, kind: str | None = None) -> list[Case]:
    """Points whose TTFT steps over its SLO where prompts need one chunk more."""
    random = np.random.Generator(np.random.PCG64(seed))
    found: list[Case] = []
    while len(found) < count:
        case = loose(unsteered(random, picked(random, kind), ratio=False, peaked=random.random() < 0.3))
        case = replace(case, point=case.point | {"slo_percentile": 0.0})
        its_curve = curve_of(case)
        edges = its_curve.edges()
        edges = edges[edges > 1]  # at 1 the room begins to shrink; nothing jumps there
        edges = edges[edges < curve_samples(case).b[-1] / 2]  # far below the ceiling, where nobody waits for a seat
        if not len(edges):
            continue
        edge = edges[random.integers(len(edges))] * np.array([1 - 1e-9, 1 + 1e-9])
        before, after = its_curve.at(edge).ttft
        slo = float((before + after) / 2)
        if its_curve.at(np.linspace(0.0, edge[0], 400)).ttft.max() < slo:
            found.append(replace(case, point=case.point | {"slo_ttft_s": slo}, aim="ttft_jump"))
    return found


def loads(seed: int, count: int, *, closed: bool, kind: str | None = None, empirical: bool = False) -> list[Case]:
    """Points with a given rate, or with clients who think between requests; some beyond what the replica can do."""
    random = np.random.Generator(np.random.PCG64(seed))
    found = []
    for number in range(count):
        ratio, peaked = number % 10 == 9, number % 10 < 2
        case = unsteered(random, picked(random, kind), ratio=ratio, peaked=peaked, empirical=empirical)
        state, slots = curve_samples(case), shard(case.row, case.blocks).cut.slots
        place = int(random.integers(len(state.b)))
        rate, residence = slots * float(state.rate[place]), float(state.e2e[place])
        think = sometimes(random, 0.4, 0.0, residence * log_uniform(random, 0.01, 100))
        clients = rate * (residence + think) * random.uniform(0.9, 1.1)
        closed_fields: Fields = {"concurrency": clients, "think_time_s": think}
        point = case.point | (closed_fields if closed else {"rate_rps": rate * random.uniform(0.3, 1.15)})
        found.append(replace(case, point=point, aim="closed" if closed else "open"))
    return found
