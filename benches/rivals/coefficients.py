"""What every rival knows of a replica: sections 1 to 3 of docs/model.md as one row of coefficients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from lambdamax.replicas import ReplicaRow

Floats = NDArray[np.float64]
Fields = Mapping[str, float]
Amount = TypeVar("Amount", float, Floats)

BLOCK: Final = 16.0
SIXTEEN_BIT: Final = 2.0
# Given with every point, so that a rival's pool does not depend on its seats and budget.
RESERVED_BYTES: Final = 5e9
COEFFICIENTS: Final = (
    "weights_s",  # w
    "layer_s",  # projections and MLP, per token
    "head_s",  # output head, per row
    "exponent",  # q
    "fixed_s",
    "sequence_s",  # per decode, all-reduce included
    "kappa_s",  # per token of context
    "link_s",  # r
    "attention_s",  # a
    "half_tokens",  # c_1/2
    "overhead_s",  # psi, in an iteration with prompt tokens
    "host_s",
    "host_token_s",
    "async_scheduling",
    "pool_tokens",
    "weight_bytes",
    "tpot_floor_s",
    "gpus",
)


def coefficients(row: ReplicaRow) -> Floats:
    """The row of a dense model of equal layers, tensor-parallel, with a profile of kind `full`; as COEFFICIENTS."""
    fields, (block,) = row.fields, row.blocks
    shard = _shard(fields, block)
    bandwidth = fields["memory_bandwidth_bytes_per_s"]
    efficiency = fields["gemm_flops_efficiency"]
    latency, link = _all_reduce(fields, block)
    attention_flops = fields["prefill_attention_flops_efficiency"] * fields["attention_flops"]
    reading_s = shard["kv_bytes"] / (fields["attention_bandwidth_efficiency"] * bandwidth)
    pair_s = 2 * block["count"] * block["score_width"] / fields["tp"] / attention_flops
    mixers_s, mlps_s = (shard[f"{part}_params"] / fields[f"{part}_flops"] for part in ("mixer", "mlp"))
    found = {
        "weights_s": shard["read_bytes"] / (fields["gemm_bandwidth_efficiency"] * bandwidth),
        "layer_s": 2 * (mixers_s + mlps_s) / efficiency,
        "head_s": 2 * shard["head_params"] / (efficiency * fields["attention_flops"]),
        "exponent": fields["roofline_exponent"],
        "fixed_s": fields["step_overhead_s"] + block["count"] * fields["layer_floor_s"] + latency,
        "sequence_s": fields["sequence_overhead_s"] + link,
        "kappa_s": max(reading_s, pair_s),
        "link_s": link,
        "attention_s": pair_s,
        "half_tokens": fields["prefill_attention_half_tokens"],
        "overhead_s": block["count"] * fields["prefill_layer_overhead_s"],
        "host_s": fields["host_latency_s"],
        "host_token_s": fields["host_latency_per_token_s"],
        "async_scheduling": fields["async_scheduling"],
        "pool_tokens": _pool_tokens(fields, shard),
        "weight_bytes": shard["whole_bytes"],
        "tpot_floor_s": shard["read_bytes"] / bandwidth,
        "gpus": fields["tp"],
    }
    return np.array([found[name] for name in COEFFICIENTS])


def _shard(fields: Fields, block: Fields) -> dict[str, float]:
    """Parameters and bytes of one rank, and of the whole checkpoint."""
    layers, tp, kv_heads = block["count"], fields["tp"], block["kv_heads"]
    split, key_value, mlp = (layers * block[f"{part}_params"] for part in ("mixer_split", "mixer_kv", "mlp"))
    sixteen = SIXTEEN_BIT * (layers * block["vector_params"] + fields["final_norm_params"])
    embedding = fields["vocab_size"] * fields["hidden_size"]
    own_head = 0.0 if fields["tied_embeddings"] else embedding
    mixer_bytes, mlp_bytes = fields["mixer_bits"] / 8, fields["mlp_bits"] / 8
    mixer_rank = split / tp + key_value / min(tp, kv_heads)
    read = mixer_bytes * mixer_rank + mlp_bytes * mlp / tp + sixteen + SIXTEEN_BIT * embedding / tp
    whole = mixer_bytes * (split + key_value) + mlp_bytes * mlp + sixteen + SIXTEEN_BIT * (embedding + own_head)
    cached = layers * block["kv_elements_per_token"] * fields["kv_bytes_per_element"]
    return {
        "mixer_params": mixer_rank,
        "mlp_params": mlp / tp,
        "head_params": embedding / tp,
        "read_bytes": read,
        "rank_bytes": read + SIXTEEN_BIT * own_head / tp,
        "whole_bytes": whole,
        "kv_bytes": cached / min(tp, kv_heads),
    }


def _pool_tokens(fields: Fields, shard: Mapping[str, float]) -> float:
    memory = fields["accelerator_memory_bytes"] * fields["default_memory_utilization"]
    left = memory - RESERVED_BYTES - shard["rank_bytes"]
    return BLOCK * math.floor(left / (BLOCK * shard["kv_bytes"]))


def _all_reduce(fields: Fields, block: Fields) -> tuple[float, float]:
    """Latency of all of a step's all-reduces [s], and their time per token [s]."""
    tp, count = fields["tp"], 2 * block["count"]
    if tp == 1:
        return 0.0, 0.0
    domain = fields["scaleup_domain_size"]
    near = tp <= domain and fields["scaleup_bytes_per_s"] > 0
    prefix = "allreduce" if near else "pcie_allreduce"
    efficiency = fields["allreduce_bandwidth_efficiency" if near else "pcie_bandwidth_efficiency"]
    links = (tp - 1) / (domain - 1) if near and fields["scaleup_mesh"] else 1.0
    bus = efficiency * links * fields["scaleup_bytes_per_s" if near else "pcie_bytes_per_s"]
    latency = fields[f"{prefix}_latency_s"] + fields[f"{prefix}_latency_per_doubling_s"] * math.log2(tp)
    return count * latency, count * 2 * (tp - 1) / tp * fields["hidden_size"] * SIXTEEN_BIT / bus


def pool_variations(isl: Amount, osl: Amount, isl_cv: Amount, osl_cv: Amount) -> tuple[Amount, Amount]:
    """Squared CVs of the KV that a running sequence keeps, and of KV times steps that a request takes of a pool."""
    growth = 1.0 + osl_cv**2
    o2, o3, o4 = osl**2 * growth, osl**3 * growth**3, osl**4 * growth**6
    prompt, age = (isl * isl_cv) ** 2, o2 / (2.0 * osl)
    kept = (prompt + o3 / (3.0 * osl) - age**2) / (isl + age) ** 2
    time = (o2 * (isl**2 + prompt) + o3 * isl + o4 / 4.0) / (osl * isl + o2 / 2.0) ** 2 - 1.0
    return kept, time
