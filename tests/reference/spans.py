"""Section 1 of docs/model.md: what the attention of each block of layers reads, multiplies and keeps on one rank."""

from __future__ import annotations

import math
from dataclasses import dataclass

from reference.fields import Blocks, Row, default, field

FULL, SLIDING, CHUNKED = 0, 1, 2


@dataclass(frozen=True)
class Span:
    """One set of tokens that all layers of a block attend to. Bytes and multiply-adds of all these layers on a rank."""

    kind: int
    tokens: float  # w, infinite for `full`
    read_bytes: float  # of one attended token in a decode step
    decode_width: float  # multiply-adds of one attended token in a decode step
    pair_width: float  # multiply-adds of one query-key pair in prefill
    kept_bytes: float  # b: of one token


def spans(row: Row, blocks: Blocks) -> list[Span]:
    """All spans. Those of equal kind and tokens are not merged: every use of them is a sum."""
    return [span for block in blocks if has_cache(block) for span in block_spans(row, block)]


def has_cache(block: Row) -> bool:
    """Whether a block's layers attend to anything."""
    return field(block, "kv_elements_per_token") > 0


def cached_bytes(row: Row, block: Row) -> float:
    """Bytes that a rank caches of one token for one layer, without index keys."""
    whole = field(block, "kv_elements_per_token") * field(row, "kv_bytes_per_element")
    return whole / min(field(row, "tp"), field(block, "kv_heads"))


def block_spans(row: Row, block: Row) -> list[Span]:
    """The one span of a block, or the two of sparse attention: what it reads, and what it keeps and scores."""
    count, tp = field(block, "count"), field(row, "tp")
    cached = count * cached_bytes(row, block)
    decode, pair = count * field(block, "decode_score_width") / tp, count * field(block, "score_width") / tp
    attended = default(block, "attended_tokens", 0.0)
    if attended == 0:
        kind = int(field(block, "span_kind"))
        tokens = math.inf if kind == FULL else field(block, "span_tokens")
        return [Span(kind, tokens, cached, decode, pair, cached)]
    index, scored = count * field(block, "index_bytes_per_token"), count * field(block, "index_score_width")
    return [
        Span(SLIDING, attended, cached, decode, pair, 0.0),
        Span(FULL, math.inf, index, scored, scored, cached + index),
    ]
