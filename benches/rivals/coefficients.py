"""What every rival knows of a replica: sections 1 to 3 of docs/model.md as one row of coefficients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Fields = Mapping[str, float]

BLOCK: Final = 16.0
SIXTEEN_BIT: Final = 2.0
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
    "host_s",
    "host_token_s",
    "async_scheduling",
    "pool_tokens",
    "weight_bytes",
    "tpot_floor_s",
    "gpus",
)


def coefficients(fields: Fields) -> Floats:
    """The row of a replica with a profile of kind `full`, in the order of COEFFICIENTS."""
    shard = _shard(fields)
    bandwidth = fields["memory_bandwidth_bytes_per_s"]
    flops = fields["gemm_flops_efficiency"] * fields["gemm_flops"]
    latency, link = _all_reduce(fields)
    width = fields["layers"] * fields["attention_heads"] * fields["head_dim"] / fields["tp"]
    attention_flops = fields["prefill_attention_flops_efficiency"] * fields["attention_flops"]
    found = {
        "weights_s": shard["read_bytes"] / (fields["gemm_bandwidth_efficiency"] * bandwidth),
        "layer_s": 2 * shard["layer_params"] / flops,
        "head_s": 2 * shard["head_params"] / flops,
        "exponent": fields["roofline_exponent"],
        "fixed_s": fields["step_overhead_s"] + fields["layers"] * fields["layer_floor_s"] + latency,
        "sequence_s": fields["sequence_overhead_s"] + link,
        "kappa_s": shard["kv_bytes"] / (fields["attention_bandwidth_efficiency"] * bandwidth),
        "link_s": link,
        "attention_s": 4 * width / attention_flops,
        "half_tokens": fields["prefill_attention_half_tokens"],
        "host_s": fields["host_latency_s"],
        "host_token_s": fields["host_latency_per_token_s"],
        "async_scheduling": fields["async_scheduling"],
        "pool_tokens": _pool_tokens(fields, shard),
        "weight_bytes": shard["whole_bytes"],
        "tpot_floor_s": shard["read_bytes"] / bandwidth,
        "gpus": fields["tp"],
    }
    return np.array([found[name] for name in COEFFICIENTS])


def _shard(fields: Fields) -> dict[str, float]:
    """Parameters and bytes of one rank, and of the whole checkpoint."""
    layers, hidden, kv_heads, tp = (fields[name] for name in ("layers", "hidden_size", "kv_heads", "tp"))
    query_output = layers * 2 * hidden * fields["attention_heads"] * fields["head_dim"]
    key_value = layers * 2 * hidden * kv_heads * fields["head_dim"]
    mlp = layers * fields["mlp_matrices"] * hidden * fields["intermediate_size"]
    vectors = layers * fields["layer_vector_params"] + fields["final_norm_params"]
    embedding = fields["vocab_size"] * hidden
    own_head = 0.0 if fields["tied_embeddings"] else embedding
    per_param = fields["weight_bits"] / 8
    layer_params = (query_output + mlp) / tp + key_value / min(tp, kv_heads)
    read = per_param * layer_params + SIXTEEN_BIT * (vectors + embedding / tp)
    whole = per_param * (query_output + key_value + mlp) + SIXTEEN_BIT * (vectors + embedding + own_head)
    kv_element = 2 * layers * fields["head_dim"] * fields["kv_bytes_per_element"]
    return {
        "layer_params": layer_params,
        "head_params": embedding / tp,
        "read_bytes": read,
        "rank_bytes": read + SIXTEEN_BIT * own_head / tp,
        "whole_bytes": whole,
        "kv_bytes": kv_element * max(kv_heads / tp, 1.0),
    }


def _pool_tokens(fields: Fields, shard: Mapping[str, float]) -> float:
    memory = fields["accelerator_memory_bytes"] * fields["default_memory_utilization"]
    left = memory - fields["default_reserved_bytes"] - shard["rank_bytes"]
    return BLOCK * math.floor(left / (BLOCK * shard["kv_bytes"]))


def _all_reduce(fields: Fields) -> tuple[float, float]:
    """Latency of all of a step's all-reduces [s], and their time per token [s]."""
    tp, count = fields["tp"], 2 * fields["layers"]
    if tp == 1:
        return 0.0, 0.0
    near = tp <= fields["scaleup_domain_size"] and fields["scaleup_bytes_per_s"] > 0
    prefix = "allreduce" if near else "pcie_allreduce"
    efficiency = fields["allreduce_bandwidth_efficiency" if near else "pcie_bandwidth_efficiency"]
    bus = efficiency * fields["scaleup_bytes_per_s" if near else "pcie_bytes_per_s"]
    latency = fields[f"{prefix}_latency_s"] + fields[f"{prefix}_latency_per_doubling_s"] * math.log2(tp)
    return count * latency, count * 2 * (tp - 1) / tp * fields["hidden_size"] * SIXTEEN_BIT / bus
