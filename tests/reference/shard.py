"""Sections 1 and 2 of docs/model.md: what one rank stores, reads in a step, and has left for KV."""

from __future__ import annotations

import math
from dataclasses import dataclass

from reference.fields import BLOCK, Blocks, Row, default, field
from reference.parallelism import Parallelism, parallelism
from reference.spans import Span, cached_bytes, has_cache, spans

SIXTEEN_BIT = 2.0


@dataclass(frozen=True)
class Shard:
    """One rank's part of the model, all layers of it whatever the stage. Bytes, parameters, bytes per token."""

    cut: Parallelism
    spans: tuple[Span, ...]
    weight_bytes: float  # the whole checkpoint
    weight_shard_bytes: float  # of the fullest stage
    layer_read_bytes: float  # of layers, what every step reads: all but experts
    table_read_bytes: float  # final norm and head
    expert_bytes: float  # of all experts
    token_expert_bytes: float  # of the experts that one token passes
    mixer_params: float  # that a token is multiplied with
    mlp_params: float
    token_expert_params: float
    head_params: float
    untouched: float  # 1 - k/E: the chance that a token leaves an expert alone; 0 without experts
    state_bytes: float  # of one sequence
    kv_bytes_per_token: float  # the whole model
    kv_bytes_per_token_rank: float  # sum of b

    @property
    def active_params(self) -> float:
        """Parameters of layers that a rank multiplies a token with."""
        return self.mixer_params + self.mlp_params + self.token_expert_params

    @property
    def weight_read_bytes(self) -> float:
        """What one token alone has a rank read."""
        return self.layer_read_bytes + self.table_read_bytes + self.token_expert_bytes

    @property
    def pool_bytes_per_token(self) -> float:
        """The sum of b, or 1 for a model that caches nothing per token: its pool is counted in bytes."""
        return self.kv_bytes_per_token_rank or 1.0


def shard(row: Row, blocks: Blocks) -> Shard:
    """Everything that a rank's bytes and parameters add up to."""
    cut, its_spans = parallelism(row, blocks), tuple(spans(row, blocks))
    parts = [rank_part(row, block, cut) for block in blocks]
    head, head_bytes = rank_head(row, cut.tp)
    resident = SIXTEEN_BIT * (field(row, "final_norm_params") + default(row, "other_params", 0.0))
    layer_bytes = total(parts, "dense_bytes") + total(parts, "expert_bytes")
    return Shard(
        cut=cut,
        spans=its_spans,
        weight_bytes=checkpoint_bytes(row, blocks),
        weight_shard_bytes=cut.stage * layer_bytes + resident + tables_bytes(row, cut),
        layer_read_bytes=total(parts, "dense_bytes"),
        table_read_bytes=SIXTEEN_BIT * field(row, "final_norm_params") + head_bytes,
        expert_bytes=total(parts, "expert_bytes"),
        token_expert_bytes=total(parts, "token_expert_bytes"),
        mixer_params=total(parts, "mixer_params"),
        mlp_params=total(parts, "mlp_params"),
        token_expert_params=total(parts, "token_expert_params"),
        head_params=head,
        untouched=untouched_share(blocks),
        state_bytes=total(parts, "state_bytes"),
        kv_bytes_per_token=sum(whole_cache(row, block) for block in blocks),
        kv_bytes_per_token_rank=sum(span.kept_bytes for span in its_spans),
    )


def total(parts: list[dict[str, float]], name: str) -> float:
    """One number over all blocks."""
    return sum(part[name] for part in parts)


def per_param(row: Row, kind: str) -> float:
    """Bytes per parameter of a kind of matrix."""
    return field(row, f"{kind}_bits") / 8


def rank_part(row: Row, block: Row, cut: Parallelism) -> dict[str, float]:
    """A block's layers on one rank: the table of section 1."""
    count, tp, ranks = field(block, "count"), cut.tp, cut.tp * cut.dp
    key_value = field(block, "mixer_kv_params") / max(1.0, min(tp, field(block, "kv_heads")))
    mixer = field(block, "mixer_split_params") / tp + key_value + field(block, "mixer_whole_params")
    mlp = (field(block, "mlp_params") + field(block, "expert_outer_params")) / tp
    sixteen = field(block, "router_params") + field(block, "vector_params")
    one_expert, per_token = field(block, "expert_params"), field(block, "experts_per_token")
    expert = one_expert / ranks * per_param(row, "expert")
    dense = mixer * per_param(row, "mixer") + mlp * per_param(row, "mlp") + SIXTEEN_BIT * sixteen
    return {
        "dense_bytes": count * dense,
        "expert_bytes": count * field(block, "experts") * expert,
        "token_expert_bytes": count * per_token * expert,
        "mixer_params": count * mixer,
        "mlp_params": count * mlp,
        "token_expert_params": count * per_token * one_expert / tp,  # dp ranks send theirs, dp ranks share the experts
        "state_bytes": count * field(block, "state_bytes") / tp,
    }


def checkpoint_bytes(row: Row, blocks: Blocks) -> float:
    """Every matrix once."""
    embedding = field(row, "vocab_size") * field(row, "hidden_size")
    outside = field(row, "final_norm_params") + default(row, "other_params", 0.0) + embedding
    head = 0.0 if field(row, "tied_embeddings") else embedding * per_param(row, "head")
    return SIXTEEN_BIT * outside + head + sum(block_bytes(row, block) for block in blocks)


def block_bytes(row: Row, block: Row) -> float:
    """A block's layers in the checkpoint."""
    mixer = sum(field(block, f"mixer_{shards}_params") for shards in ("split", "kv", "whole"))
    mlp = field(block, "mlp_params") + field(block, "expert_outer_params")
    experts = field(block, "experts") * field(block, "expert_params")
    sixteen = field(block, "router_params") + field(block, "vector_params")
    matrices = mixer * per_param(row, "mixer") + mlp * per_param(row, "mlp") + experts * per_param(row, "expert")
    return field(block, "count") * (matrices + SIXTEEN_BIT * sixteen)


def rank_head(row: Row, tp: int) -> tuple[float, float]:
    """Parameters and bytes of a rank's slice of the output head, which is the 16-bit embedding where tied."""
    params = field(row, "vocab_size") * field(row, "hidden_size") / tp
    return params, params * (SIXTEEN_BIT if field(row, "tied_embeddings") else per_param(row, "head"))


def tables_bytes(row: Row, cut: Parallelism) -> float:
    """Embedding and head on the rank that has most of them: both on a single stage, once if tied; else the larger."""
    params, head = rank_head(row, cut.tp)
    embedding = SIXTEEN_BIT * params
    if field(row, "tied_embeddings"):
        return embedding
    return embedding + head if cut.pp == 1 else max(embedding, head)


def untouched_share(blocks: Blocks) -> float:
    """1 - k/E, on which all blocks with experts agree."""
    shares = {1 - field(b, "experts_per_token") / field(b, "experts") for b in blocks if field(b, "experts") > 0}
    assert len(shares) <= 1, shares
    return shares.pop() if shares else 0.0


def whole_cache(row: Row, block: Row) -> float:
    """Bytes that a block's layers cache of one token, over all ranks and without replicas."""
    if not has_cache(block):
        return 0.0
    once = cached_bytes(dict(row) | {"tp": 1.0}, block)
    return field(block, "count") * (once + default(block, "index_bytes_per_token", 0.0))


def rank_pool_tokens(row: Row, point: Row, part: Shard) -> float:
    """Tokens of KV that a rank has room for; zero or less if its weights alone do not fit."""
    memory = default(point, "memory_bytes", field(row, "accelerator_memory_bytes"))
    utilization = default(point, "memory_utilization", field(row, "default_memory_utilization"))
    left = memory * utilization - field(point, "reserved_bytes") - part.weight_shard_bytes
    token_bytes = part.cut.stage * part.pool_bytes_per_token * default(row, "kv_padding", 1.0)
    return BLOCK * math.floor(left / (BLOCK * token_bytes))


def kv_pool_tokens(row: Row, point: Row, part: Shard) -> float:
    """The same of the whole replica."""
    return part.cut.dp * rank_pool_tokens(row, point, part)
