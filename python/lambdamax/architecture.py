"""What a transformer is made of, in one shape for every family; sizes only, no weights and no hardware.

A layer is a mixer (attention of some kind, or a recurrence), a dense MLP and routed experts, each of which may be
absent. Parameters are counted here; how they shard, what a step reads of them and what it caches is the engine's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

SpanKind = Literal["full", "sliding", "chunked"]
# Bytes that an index key takes beside its elements: one 32-bit scale (keys are kept in 8 bits).
_INDEX_SCALE_BYTES: Final = 4


@dataclass(frozen=True)
class Span:
    """What a layer's attention sees and its cache keeps: all, the last `tokens`, or the current chunk of `tokens`."""

    kind: SpanKind = "full"
    tokens: int = 0


@dataclass(frozen=True)
class Sparse:
    """Attention that reads at most `tokens` cached tokens for a query, which an index of keys picks.

    `index_heads` query heads of `index_dim` score every index key; layers that share another's index have none of
    their own (0 heads, 0 dim). `pool` tokens share one index key. `params` are the index's matrices in this layer.
    """

    tokens: int
    index_heads: int = 0
    index_dim: int = 0
    params: int = 0
    pool: int = 1


@dataclass(frozen=True)
class Attention:
    """Softmax attention: `heads` query heads share `kv_heads` heads of `key_dim` and `value_dim` elements.

    `shared_key_value`: one copy serves as key and value. `gated`: a gate as wide as the query is projected beside it.
    """

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    span: Span = Span()
    shared_key_value: bool = False
    gated: bool = False
    sparse: Sparse | None = None


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (MLA): one latent of `kv_rank` + `rope_dim` elements is cached for all heads.

    A head's key has `nope_dim` + `rope_dim` elements, its value `value_dim`. `query_rank` 0: the query has no latent.
    `gated`: an output gate as wide as the heads' values.
    """

    heads: int
    query_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    gated: bool = False
    sparse: Sparse | None = None


@dataclass(frozen=True)
class Recurrent:
    """A recurrent mixer (Mamba, linear attention): `params` in matrices, and a state of fixed size for each sequence.

    `conv_elements` of it are the convolution's window, kept in 16 bits; `state_elements` the recurrence's own, in 32.
    """

    kind: str
    heads: int
    params: int
    conv_elements: int
    state_elements: int


Mixer = Attention | LatentAttention | Recurrent


@dataclass(frozen=True)
class Mlp:
    """A dense MLP: `matrices` (3 if gated, else 2) between the hidden size and `width`. Shared experts are one too."""

    matrices: int
    width: int


@dataclass(frozen=True)
class Experts:
    """Routed experts: each token passes `per_token` of `count`, MLPs of `width` on `hidden` elements.

    In a latent space, `hidden` is less than the model's and `outer_params` are the two projections around the experts.
    """

    count: int
    per_token: int
    matrices: int
    width: int
    hidden: int
    outer_params: int = 0

    @property
    def expert_params(self) -> int:
        """Parameters of one expert."""
        return self.matrices * self.hidden * self.width


@dataclass(frozen=True)
class Block:
    """`count` equal layers. `vector_params` are the norm weights, biases and other small tensors of one layer."""

    count: int
    mixer: Mixer | None
    mlp: Mlp | None
    vector_params: int
    experts: Experts | None = None


@dataclass(frozen=True)
class Checkpoint:
    """How a quantised checkpoint stores its weights: a format of `data/dtypes.csv` for each kind of matrix.

    `dtype` is the name of the whole. `block_size`: FP8 matrices are scaled in blocks of that many columns, which a
    shard may not cut; 1 where scales leave a shard free.
    """

    dtype: str
    mixer: str = "bf16"
    mlp: str = "bf16"
    experts: str = "bf16"
    head: str = "bf16"
    block_size: int = 1


@dataclass(frozen=True)
class Architecture:
    """A decoder: an embedding, groups of equal layers, a final norm and an output head (none of its own if tied).

    `final_norm_params` are all the small ones around the layers: final norms, the head's bias, learned positions.
    `other_params` are in the checkpoint, resident in 16 bits and not used by a decode step (vision towers).
    `draft_params` are the draft (MTP) layers: in the checkpoint, but neither counted nor loaded unless asked for.
    `context_tokens` is the longest sequence, 0 if not stated.
    """

    model_type: str
    hidden_size: int
    vocab_size: int
    tied_embeddings: bool
    final_norm_params: int
    blocks: tuple[Block, ...]
    checkpoint: Checkpoint | None = None
    other_params: int = 0
    draft_params: int = 0
    context_tokens: int = 0
    notes: tuple[str, ...] = field(default=())

    @property
    def total_params(self) -> int:
        """Parameters of the whole model without draft layers, each matrix counted once."""
        return self._outside + self.final_norm_params + self.other_params + self._of_layers(active=False)

    @property
    def active_params(self) -> int:
        """Parameters that one token passes: `per_token` experts of each layer, head and embedding."""
        return self._outside + self.final_norm_params + self._of_layers(active=True)

    @property
    def _outside(self) -> int:
        return self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)

    def _of_layers(self, *, active: bool) -> int:
        return sum(block.count * layer_params(block, self.hidden_size, active=active) for block in self.blocks)


@dataclass(frozen=True)
class Unsupported:
    """An architecture that this version cannot size; `reason` names the field that says so."""

    reason: str


def layer_params(block: Block, hidden_size: int, *, active: bool = False) -> int:
    """Parameters of one layer of `block`; `active`: only the experts that one token passes."""
    mixer = sum(_mixer_params(block.mixer, hidden_size).values())
    experts = _expert_params(block.experts, hidden_size, active=active)
    return mixer + _mlp_params(block.mlp, hidden_size) + experts + block.vector_params


def block_facts(block: Block, hidden_size: int) -> dict[str, float]:
    """`block` as the engine takes it, by its BLOCK_FIELDS: counts of one layer, 0 where there is no such part."""
    facts = {
        "count": block.count,
        "vector_params": block.vector_params,
        "mlp_params": _mlp_params(block.mlp, hidden_size),
        "mlp_width": block.mlp.width if block.mlp else 0,
        **_mixer_params(block.mixer, hidden_size),
        **_cache_facts(block.mixer),
        **_expert_facts(block.experts, hidden_size),
    }
    return {name: float(value) for name, value in facts.items()}


def _mlp_params(mlp: Mlp | None, hidden_size: int) -> int:
    return mlp.matrices * hidden_size * mlp.width if mlp else 0


def _expert_params(experts: Experts | None, hidden_size: int, *, active: bool) -> int:
    if experts is None:
        return 0
    used = experts.per_token if active else experts.count
    return used * experts.expert_params + experts.outer_params + experts.count * hidden_size


def _expert_facts(experts: Experts | None, hidden_size: int) -> dict[str, int]:
    if experts is None:
        return dict.fromkeys(
            (
                "experts",
                "experts_per_token",
                "expert_params",
                "expert_width",
                "expert_hidden",
                "expert_outer_params",
                "router_params",
            ),
            0,
        )
    return {
        "experts": experts.count,
        "experts_per_token": experts.per_token,
        "expert_params": experts.expert_params,
        "expert_width": experts.width,
        "expert_hidden": experts.hidden,
        "expert_outer_params": experts.outer_params,
        "router_params": experts.count * hidden_size,
    }


def _mixer_params(mixer: Mixer | None, hidden_size: int) -> dict[str, int]:
    """Matrices of a mixer by how they shard: over all ranks, by KV head, or not at all."""
    split = kv = whole = 0
    match mixer:
        case Attention():
            query = mixer.heads * mixer.key_dim * (2 if mixer.gated else 1)
            split = hidden_size * (query + mixer.heads * mixer.value_dim)
            kv = hidden_size * mixer.kv_heads * (mixer.key_dim + (0 if mixer.shared_key_value else mixer.value_dim))
        case LatentAttention():
            split, whole = _latent_params(mixer, hidden_size)
        case Recurrent():
            split = mixer.params
        case None:
            pass
    sparse = None if mixer is None or isinstance(mixer, Recurrent) else mixer.sparse
    index = sparse.params if sparse else 0
    return {"mixer_split_params": split, "mixer_kv_params": kv, "mixer_whole_params": whole + index}


def _latent_params(mixer: LatentAttention, hidden_size: int) -> tuple[int, int]:
    query_out = mixer.heads * (mixer.nope_dim + mixer.rope_dim)
    value = mixer.heads * mixer.value_dim
    from_latent = mixer.kv_rank * mixer.heads * (mixer.nope_dim + mixer.value_dim)
    query = (mixer.query_rank or hidden_size) * query_out
    split = query + from_latent + hidden_size * value * (2 if mixer.gated else 1)
    return split, hidden_size * (mixer.query_rank + mixer.kv_rank + mixer.rope_dim)


def _cache_facts(mixer: Mixer | None) -> dict[str, float]:
    """What attention caches and multiplies; `score_width`: elements that a query-key pair costs a multiply-add each."""
    facts: dict[str, float] = dict.fromkeys(_CACHE_FIELDS, 0)
    match mixer:
        case Attention():
            facts |= _grouped_cache(mixer)
        case LatentAttention():
            facts |= {
                "query_heads": mixer.heads,
                "kv_heads": 1,
                "kv_elements_per_token": mixer.kv_rank + mixer.rope_dim,
                "score_width": mixer.heads * (mixer.nope_dim + mixer.rope_dim + mixer.value_dim),
                "decode_score_width": mixer.heads * (2 * mixer.kv_rank + mixer.rope_dim),
                "latent_elements": mixer.heads * (mixer.nope_dim + mixer.value_dim),
                **_sparse_facts(mixer.sparse),
            }
        case Recurrent():
            facts |= {"query_heads": mixer.heads, "state_bytes": 2 * mixer.conv_elements + 4 * mixer.state_elements}
        case None:
            pass
    return facts


_CACHE_FIELDS: Final = (
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
)
SPAN_KINDS: Final[tuple[SpanKind, ...]] = ("full", "sliding", "chunked")


def _grouped_cache(mixer: Attention) -> dict[str, float]:
    cached = mixer.key_dim if mixer.shared_key_value else mixer.key_dim + mixer.value_dim
    width = mixer.heads * (mixer.key_dim + mixer.value_dim)
    return {
        "query_heads": mixer.heads,
        "kv_heads": mixer.kv_heads,
        "kv_elements_per_token": mixer.kv_heads * cached,
        "span_kind": SPAN_KINDS.index(mixer.span.kind),
        "span_tokens": mixer.span.tokens,
        "score_width": width,
        "decode_score_width": width,
        **_sparse_facts(mixer.sparse),
    }


def _sparse_facts(sparse: Sparse | None) -> dict[str, float]:
    if sparse is None:
        return {}
    key_bytes = sparse.index_dim + _INDEX_SCALE_BYTES if sparse.index_dim else 0
    return {
        "attended_tokens": sparse.tokens,
        "index_bytes_per_token": key_bytes / sparse.pool,
        "index_score_width": sparse.index_heads * sparse.index_dim / sparse.pool,
    }
