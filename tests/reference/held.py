"""Section 4 of docs/model.md: the KV that requests keep, in tokens that every layer would keep."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reference.attended import attended
from reference.fields import BLOCK
from reference.shard import Shard
from reference.spans import FULL, Span
from reference.workload import Floats, Workload


@dataclass(frozen=True)
class Held:
    """Tokens of the pool; for a model that caches nothing per token, bytes."""

    decoding: float  # H: of a decoding sequence
    prefilling: Floats  # H_i: of a prompt of every node
    shared: float  # P_s: the common prefix, once


def held(part: Shard, load: Workload) -> Held:
    """The share of each span times the tokens that it keeps, and what every sequence takes besides."""
    per_token = part.pool_bytes_per_token
    shares = [(span.kept_bytes / per_token, span) for span in part.spans]
    besides = part.state_bytes / per_token + BLOCK / 2
    prompts = [share * kept_of_prompt(span, load) for share, span in shares]
    once = sum(share * min(load.shared_blocks, span.tokens) for share, span in shares)
    return Held(
        decoding=besides + sum(share * kept_decoding(span, load) for share, span in shares),
        prefilling=besides + sum(prompts, start=np.zeros(len(load.prompt))),
        shared=once / part.cut.pp,
    )


def kept_decoding(span: Span, load: Workload) -> float:
    """What a decoding sequence keeps for itself: a shared prefix counts elsewhere, a window is its own."""
    mean = attended(span, load).decoding
    return mean - float(load.weight @ load.shared) if span.kind == FULL else mean


def kept_of_prompt(span: Span, load: Workload) -> Floats:
    """What a prompt keeps while it is prefilled: all of it, or the window and the chunk that slides it on."""
    if span.kind == FULL:
        return load.prompt - load.shared
    return np.minimum(load.prompt, span.tokens + load.budget)
