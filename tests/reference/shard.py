"""Sections 1 and 2 of docs/model.md: what one rank stores, reads in a step, and has left for KV."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

Row = Mapping[str, float | None]

BLOCK = 16
SIXTEEN_BIT = 2.0


def field(row: Row, name: str) -> float:
    """A field that must be there."""
    value = row[name]
    assert value is not None, name
    return float(value)


def given(row: Row, name: str) -> float | None:
    """A point's field, or None where it is absent, None or NaN."""
    value = row.get(name)
    return None if value is None or math.isnan(value) else float(value)


def default(row: Row, name: str, otherwise: float) -> float:
    """A point's field, or its default."""
    value = given(row, name)
    return otherwise if value is None else value


def block_floor(tokens: float) -> float:
    """Tokens rounded down to whole 16-token blocks, never below zero."""
    return max(0.0, BLOCK * math.floor(tokens / BLOCK))


@dataclass(frozen=True)
class Shard:
    """One rank's part of the model. Bytes, parameters, bytes per token."""

    weight_bytes: float  # the whole checkpoint
    weight_shard_bytes: float
    weight_read_bytes: float
    layer_params: float
    head_params: float
    kv_bytes_per_token: float  # the whole model
    kv_bytes_per_token_rank: float


def parallelism_is_valid(row: Row) -> bool:
    """Query heads split evenly; KV heads split evenly or are replicated evenly."""
    tp, heads, kv_heads = (int(field(row, name)) for name in ("tp", "attention_heads", "kv_heads"))
    return heads % tp == 0 and (kv_heads % tp == 0 or tp % kv_heads == 0)


def shard(row: Row) -> Shard:
    """The table of section 1, whole and per rank."""
    layers, hidden, head_dim = field(row, "layers"), field(row, "hidden_size"), field(row, "head_dim")
    kv_heads, tp = field(row, "kv_heads"), field(row, "tp")
    query_output = layers * 2 * hidden * field(row, "attention_heads") * head_dim
    key_value = layers * 2 * hidden * kv_heads * head_dim
    mlp = layers * field(row, "mlp_matrices") * hidden * field(row, "intermediate_size")
    vectors = layers * field(row, "layer_vector_params") + field(row, "final_norm_params")
    embedding = field(row, "vocab_size") * hidden
    separate_head = 0.0 if field(row, "tied_embeddings") else embedding

    per_param = field(row, "weight_bits") / 8
    layer_params = (query_output + mlp) / tp + key_value / min(tp, kv_heads)
    resident = per_param * layer_params + SIXTEEN_BIT * vectors
    kv_element = 2 * layers * head_dim * field(row, "kv_bytes_per_element")
    return Shard(
        weight_bytes=per_param * (query_output + key_value + mlp) + SIXTEEN_BIT * (vectors + embedding + separate_head),
        weight_shard_bytes=resident + SIXTEEN_BIT * (embedding + separate_head) / tp,
        weight_read_bytes=resident + SIXTEEN_BIT * embedding / tp,
        layer_params=layer_params,
        head_params=embedding / tp,
        kv_bytes_per_token=kv_element * kv_heads,
        kv_bytes_per_token_rank=kv_element * max(kv_heads / tp, 1.0),
    )


def kv_pool_tokens(row: Row, point: Row, part: Shard) -> float:
    """Tokens of KV that a rank has room for; zero or less if its weights alone do not fit."""
    memory = default(point, "memory_bytes", field(row, "accelerator_memory_bytes"))
    utilization = default(point, "memory_utilization", field(row, "default_memory_utilization"))
    reserved = default(point, "reserved_bytes", field(row, "default_reserved_bytes"))
    left = memory * utilization - reserved - part.weight_shard_bytes
    return BLOCK * math.floor(left / (BLOCK * part.kv_bytes_per_token_rank))
