"""Seeded random decoders of every kind, as the model fields of a row and its blocks of layers.

Counts follow from shapes as docs/model.md section 1 says: matrices by how they shard, what a token caches, and how wide
a query-key pair is. Windows are placed around the lengths of the workload that will be solved.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from reference.spans import CHUNKED, FULL, SLIDING

Fields = dict[str, float | None]
Part = dict[str, float]
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
# hidden, heads of attention, KV heads, head dim, expert width, vocabulary: shapes of everything that is not dense
WIDTHS = (
    (2048, 32, 4, 128, 768, 151936),
    (2880, 64, 8, 64, 2880, 201088),
    (4096, 32, 8, 128, 1536, 102400),
    (5120, 40, 8, 128, 8192, 202048),
    (6144, 48, 8, 128, 2048, 154880),
    (7168, 128, 16, 128, 2048, 129280),
)
BLOCK_FIELDS = (
    "count",
    "vector_params",
    "mlp_params",
    "mlp_width",
    "mixer_split_params",
    "mixer_kv_params",
    "mixer_whole_params",
    "query_heads",
    "kv_heads",
    "kv_elements_per_token",
    "span_kind",
    "span_tokens",
    "attended_tokens",
    "score_width",
    "decode_score_width",
    "index_bytes_per_token",
    "index_score_width",
    "latent_elements",
    "state_bytes",
    "experts",
    "experts_per_token",
    "expert_params",
    "expert_width",
    "expert_hidden",
    "expert_outer_params",
    "router_params",
)


@dataclass(frozen=True)
class Decoder:
    """A model: fields of its row, and its blocks."""

    fields: Fields
    blocks: tuple[Fields, ...]


@dataclass(frozen=True)
class Shape:
    """Sizes that the layers of one model share, the lengths it will be asked for, and its routed experts."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    expert_width: int
    vocabulary: int
    prompt: float
    output: float
    experts: int
    per_token: int
    latent: int  # hidden size around the experts, the model's own if it has no latent space

    @property
    def routed(self) -> Part:
        """The experts of one layer."""
        outer = 2 * self.hidden * self.latent if self.latent < self.hidden else 0
        return {
            "experts": self.experts,
            "experts_per_token": self.per_token,
            "expert_params": 3 * self.latent * self.expert_width,
            "expert_width": self.expert_width,
            "expert_hidden": self.latent,
            "expert_outer_params": outer,
            "router_params": self.experts * self.hidden,
        }


def shape(random: Random, prompt: float, output: float) -> Shape:
    """A random shape."""
    hidden, heads, kv_heads, head_dim, width, vocabulary = WIDTHS[random.integers(len(WIDTHS))]
    experts = int(random.choice([8, 16, 32, 128, 256]))
    per_token = int(random.choice([1, 2, 4, 8]))
    latent = hidden if random.random() < 0.8 else 1024
    return Shape(
        hidden, heads, kv_heads, head_dim, width, vocabulary, prompt, output, experts, min(per_token, experts), latent
    )


def block(count: int, *parts: Part) -> Fields:
    """`count` layers made of these parts, with nothing of any other."""
    fields: Fields = dict.fromkeys(BLOCK_FIELDS, 0.0)
    for part in parts:
        fields |= {name: float(value) for name, value in part.items()}
    return fields | {"count": float(count)}


def norms(its: Shape) -> Part:
    """Norms and other small tensors."""
    return {"vector_params": 2 * its.hidden}


def mlp(its: Shape, width: int, matrices: int = 3) -> Part:
    """A dense MLP, or shared experts."""
    return {"mlp_params": matrices * its.hidden * width, "mlp_width": width}


def grouped(hidden: int, heads: int, kv_heads: int, head_dim: int) -> Part:
    """Attention with grouped heads that sees everything."""
    return {
        "mixer_split_params": 2 * hidden * heads * head_dim,
        "mixer_kv_params": 2 * hidden * kv_heads * head_dim,
        "query_heads": heads,
        "kv_heads": kv_heads,
        "kv_elements_per_token": 2 * kv_heads * head_dim,
        "score_width": 2 * heads * head_dim,
        "decode_score_width": 2 * heads * head_dim,
    }


def attention(its: Shape) -> Part:
    """The shape's own attention."""
    return grouped(its.hidden, its.heads, its.kv_heads, its.head_dim)


def windowed(its: Shape, kind: int, tokens: int) -> Part:
    """Attention that sees a window or a chunk."""
    return attention(its) | {"span_kind": kind, "span_tokens": tokens}


def latent_attention(its: Shape, query_rank: int = 1536, kv_rank: int = 512, rope: int = 64) -> Part:
    """Multi-head latent attention."""
    key, value = its.head_dim + rope, its.head_dim
    from_latent = query_rank * its.heads * key + kv_rank * its.heads * (its.head_dim + value)
    return {
        "mixer_split_params": from_latent + its.hidden * its.heads * value,
        "mixer_whole_params": its.hidden * (query_rank + kv_rank + rope),
        "query_heads": its.heads,
        "kv_heads": 1,
        "kv_elements_per_token": kv_rank + rope,
        "score_width": its.heads * (key + value),
        "decode_score_width": its.heads * (2 * kv_rank + rope),
        "latent_elements": its.heads * (its.head_dim + value),
    }


def recurrence(its: Shape) -> Part:
    """A recurrent mixer with a state of fixed size."""
    inner = 2 * its.hidden
    return {
        "mixer_split_params": 3 * its.hidden * inner,
        "query_heads": its.heads,
        "state_bytes": 4 * inner * its.head_dim + 2 * 3 * inner,
    }


def window(random: Random, its: Shape) -> int:
    """A window shorter than the prompt, between prompt and all of it, or longer than the request ever gets."""
    prompt, total = its.prompt, its.prompt + its.output
    place = random.integers(5)
    if place == 0:
        return max(1, round(prompt * random.uniform(0.05, 1.0)))
    if place == 1:
        return math.ceil(random.uniform(prompt, total))
    if place == 2:
        return math.ceil(total * random.uniform(1.0, 10.0))
    if place == 3:
        return max(1, round(prompt / int(random.integers(1, 5))))  # the prompt is whole windows, or nearly
    return int(random.choice([128, 512, 1024, 4096, 8192]))


def dense(random: Random, prompt: float, output: float) -> Decoder:
    """The same layer throughout: GQA, MHA or MQA, and an MLP."""
    layers, hidden, heads, kv_heads, head_dim, width, matrices, vocabulary, tied = SHAPES[random.integers(len(SHAPES))]
    layer = block(
        layers,
        grouped(hidden, heads, kv_heads, head_dim),
        {"vector_params": 2 * hidden, "mlp_params": matrices * hidden * width, "mlp_width": width},
    )
    return Decoder(tables(hidden, vocabulary, tied), (layer,))


def tables(hidden: int, vocabulary: int, tied: int, other: float = 0.0) -> Fields:
    """What a model has beside its layers."""
    return {
        "hidden_size": float(hidden),
        "vocab_size": float(vocabulary),
        "tied_embeddings": float(tied),
        "final_norm_params": float(hidden),
        "other_params": other,
    }


def moe(random: Random, its: Shape) -> list[Fields]:
    """Routed experts in every layer but, sometimes, the first few; with or without shared ones."""
    return with_first_layers(random, its, attention(its))


def latent(random: Random, its: Shape) -> list[Fields]:
    """Latent attention, dense or with experts."""
    mixer = latent_attention(its)
    if random.random() < 0.3:
        return [block(int(random.integers(8, 60)), norms(its), mixer, mlp(its, 4 * its.hidden))]
    return with_first_layers(random, its, mixer)


def with_first_layers(random: Random, its: Shape, mixer: Part) -> list[Fields]:
    """`mixer` under experts, after a few dense layers."""
    shared = mlp(its, its.expert_width * int(random.integers(1, 3))) if random.random() < 0.6 else {}
    blocks = [block(int(random.integers(8, 60)), norms(its), mixer, its.routed, shared)]
    first = int(random.integers(4))
    return [block(first, norms(its), mixer, mlp(its, 2 * its.hidden)), *blocks] if first else blocks


def sparse(random: Random, its: Shape) -> list[Fields]:
    """Attention on what an index picks; some layers use another's index."""
    mixer = latent_attention(its) if random.random() < 0.7 else attention(its)
    mixer |= {"attended_tokens": window(random, its)}
    heads, dim = int(random.choice([16, 32, 64])), 128
    whole = mixer.get("mixer_whole_params", 0) + its.hidden * (dim + heads) + 1536 * heads * dim
    index = {"mixer_whole_params": whole, "index_bytes_per_token": dim + 4, "index_score_width": heads * dim}
    blocks = with_first_layers(random, its, mixer | index)
    if random.random() < 0.8:
        blocks.append(block(int(random.integers(4, 30)), norms(its), mixer, its.routed))
    return blocks


def mixture(random: Random, its: Shape, kind: int) -> list[Fields]:
    """Layers with a window (of one size, or of two), and mostly some that see all."""
    feeds = [its.routed, mlp(its, 3 * its.hidden), its.routed | mlp(its, its.expert_width)]
    feed = feeds[random.integers(len(feeds))]
    sizes = [window(random, its) for _ in range(1 + int(random.random() < 0.2))]
    blocks = [block(int(random.integers(4, 40)), norms(its), windowed(its, kind, tokens), feed) for tokens in sizes]
    if random.random() < 0.7:
        blocks.append(block(int(random.integers(1, 20)), norms(its), attention(its), feed))
    return blocks


def sliding(random: Random, its: Shape) -> list[Fields]:
    """Sliding windows among full attention."""
    return mixture(random, its, SLIDING)


def chunked(random: Random, its: Shape) -> list[Fields]:
    """Chunks among full attention."""
    return mixture(random, its, CHUNKED)


def fed(random: Random, its: Shape) -> Part:
    """An MLP, or experts with a shared one."""
    return its.routed | mlp(its, its.expert_width) if random.random() < 0.5 else mlp(its, 4 * its.hidden)


def recurrent(random: Random, its: Shape) -> list[Fields]:
    """Recurrent layers only: nothing cached per token."""
    return [block(int(random.integers(8, 50)), norms(its), recurrence(its), fed(random, its))]


def hybrid(random: Random, its: Shape) -> list[Fields]:
    """Recurrent layers, with attention (full or sliding) in some."""
    feed = fed(random, its)
    kind = SLIDING if random.random() < 0.3 else FULL
    mixer = windowed(its, kind, window(random, its)) if kind else attention(its)
    return [
        block(int(random.integers(8, 50)), norms(its), recurrence(its), feed),
        block(int(random.integers(1, 12)), norms(its), mixer, feed),
    ]


def one_part(random: Random, its: Shape) -> list[Fields]:
    """Layers of one part each: a recurrence, an attention, an MLP or experts alone."""
    counts = [int(count) for count in random.integers(1, 24, 4)]
    parts = [attention(its), recurrence(its), its.routed | mlp(its, its.expert_width), its.routed]
    if random.random() < 0.4:
        parts = [attention(its), recurrence(its), mlp(its, 4 * its.hidden), latent_attention(its)]
    return [
        block(count, {"vector_params": its.hidden}, part)
        for count, part in zip(counts, parts, strict=True)
        if count > 3 or part is parts[0]
    ]


def every_expert(random: Random, its: Shape) -> list[Fields]:
    """Experts all of which every token passes: as many bytes as a dense MLP of their size, routed like experts."""
    everyone = its.routed | {"experts": 8, "experts_per_token": 8, "router_params": 8 * its.hidden}
    return [block(int(random.integers(8, 40)), norms(its), attention(its), everyone)]


KINDS: dict[str, Callable[[Random, Shape], list[Fields]]] = {
    "moe": moe,
    "latent": latent,
    "sparse": sparse,
    "sliding": sliding,
    "chunked": chunked,
    "recurrent": recurrent,
    "hybrid": hybrid,
    "one_part": one_part,
    "every_expert": every_expert,
}


def decoder(random: Random, kind: str, prompt: float, output: float) -> Decoder:
    """A random model of a kind, for these lengths."""
    if kind == "dense":
        return dense(random, prompt, output)
    its = shape(random, prompt, output)
    other = float(random.integers(4 * 10**8)) if random.random() < 0.2 else 0.0
    fields = tables(its.hidden, its.vocabulary, int(random.random() < 0.3), other)
    return Decoder(fields, tuple(KINDS[kind](random, its)))
