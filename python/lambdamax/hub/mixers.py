"""The mixer of a layer, from the fields of its family: softmax, latent and sparse attention, and the recurrences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from lambdamax.architecture import Attention, LatentAttention, Mixer, Recurrent, Span, Sparse
from lambdamax.hub.family import HEADS, Family, HeadKeys, MixerKind
from lambdamax.hub.fields import LONGEST_CONTEXT, MOST_HEAD_DIM, MOST_HEADS, MOST_HIDDEN, MOST_WIDTH, Fields

# Kernel of a short convolution, columns of a recurrent state: far above any model.
MOST_KERNEL: Final = 1_024
MOST_GROUPS: Final = 1_024

# A mixer and the parameters of its norms, biases, convolutions and other small tensors.
Built = tuple[Mixer, int]


def mixer_of(fields: Fields, family: Family, kind: MixerKind, hidden: int) -> Built:
    """The mixer of a layer of `kind`, and the parameters of its small tensors."""
    if kind == "recurrent":
        return _RECURRENCES[family.recurrence](fields, hidden)
    return _latent(fields, family, kind, hidden) if family.latent else _grouped(fields, family, kind, hidden)


def _grouped(fields: Fields, family: Family, kind: MixerKind, hidden: int) -> Built:
    keys = family.heads.get(kind, HEADS)
    fields = _with_own_heads(fields, family, kind)
    heads = fields.size(MOST_HEADS, *keys.heads)
    key_dim = head_dim(fields, hidden, heads, keys)
    sparse, index_norms = _block_sparse(fields, hidden) if kind == "sparse" else (None, 0)
    mixer = Attention(
        heads=heads,
        kv_heads=_kv_heads(fields, family, heads, keys),
        key_dim=key_dim,
        value_dim=_value_dim(fields, key_dim, keys),
        span=_span(fields, kind),
        shared_key_value=kind == "full" and "full" in family.heads and fields.flag("attention_k_eq_v"),
        gated=_gated(fields, family),
        sparse=sparse,
    )
    return mixer, _qk_norm(fields, family, mixer) + _biases(fields, family, kind, mixer, hidden) + index_norms


def _with_own_heads(fields: Fields, family: Family, kind: MixerKind) -> Fields:
    """`fields` with the heads of a layer of `kind`: Step's windowed layers may have them in an object of their own."""
    if family.gate != "per_head":
        return fields
    other = fields.table("attention_other_setting")
    return fields if other is None or kind != "sliding" else replace(fields, config={**fields.config, **other.config})


def _kv_heads(fields: Fields, family: Family, heads: int, keys: HeadKeys) -> int:
    stated = fields.optional_size(MOST_HEADS, *keys.kv_heads)
    if family.multi_query:
        stated = (stated or 1) if fields.flag(family.multi_query) else heads
    kv_heads = stated or heads
    if heads % kv_heads:
        raise fields.fault(fields.get(*keys.kv_heads)[0], kv_heads, f"a divisor of the {heads} query heads")
    return kv_heads


def head_dim(fields: Fields, hidden: int, heads: int, keys: HeadKeys = HEADS) -> int:
    """The size of a head: as stated, else the model's share of it."""
    stated = fields.optional_size(MOST_HEAD_DIM, *keys.key_dim)
    if stated is None and hidden % heads:
        allowed = f"a whole number, since hidden_size {hidden} is not a multiple of {heads} heads"
        raise fields.fault("head_dim", None, allowed)
    return stated or hidden // heads


def _value_dim(fields: Fields, key_dim: int, keys: HeadKeys) -> int:
    stated = fields.optional_size(MOST_HEAD_DIM, *keys.value_dim) if keys.value_dim else None
    return stated or key_dim


def _span(fields: Fields, kind: MixerKind) -> Span:
    if kind == "sliding":
        return Span("sliding", fields.size(LONGEST_CONTEXT, "sliding_window"))
    if kind == "chunked":
        return Span("chunked", fields.size(LONGEST_CONTEXT, "attention_chunk_size"))
    return Span()


def _gated(fields: Fields, family: Family) -> bool:
    stated = fields.flag("attn_output_gate") if family.gate == "key" else False
    return family.gate == "always" or stated


def _qk_norm(fields: Fields, family: Family, mixer: Attention) -> int:
    if family.qk_norm == "none" or not fields.on(family.qk_key):
        return 0
    return mixer.key_dim * (2 if family.qk_norm == "head" else mixer.heads + mixer.kv_heads)


def _biases(fields: Fields, family: Family, kind: MixerKind, mixer: Attention, hidden: int) -> int:
    """Biases of the projections, sinks, and a gate of one value a head."""
    there = family.bias != "none" and fields.on(family.bias_key)
    qkv = mixer.heads * mixer.key_dim + mixer.kv_heads * (mixer.key_dim + mixer.value_dim)
    biases = qkv + (hidden if family.bias == "all" else 0) if there else 0
    biases += hidden if fields.on(family.out_bias) else 0
    gate = hidden * mixer.heads if family.gate == "per_head" else 0
    return biases + gate + (mixer.heads if _has_sink(fields, family, kind) else 0)


def _has_sink(fields: Fields, family: Family, kind: MixerKind) -> bool:
    name = "add_swa_attention_sink_bias" if kind == "sliding" else "add_full_attention_sink_bias"
    return family.sinks and fields.flag(name, default=not family.heads)


def _block_sparse(fields: Fields, hidden: int) -> tuple[Sparse, int]:
    """Attention to the best blocks of the cache; the index has one key a token, and norms for both sides."""
    table = fields.table("sparse_attention_config")
    if table is None:
        raise fields.fault("sparse_attention_config", None, "an object")
    blocks = table.size(LONGEST_CONTEXT, "sparse_topk_blocks")
    tokens = blocks * table.size(LONGEST_CONTEXT, "sparse_block_size")
    heads, dim = table.size(MOST_HEADS, "sparse_num_index_heads"), table.size(MOST_HEAD_DIM, "sparse_index_dim")
    return Sparse(min(tokens, LONGEST_CONTEXT), heads, dim, hidden * (heads + 1) * dim), 2 * dim


def _latent(fields: Fields, family: Family, kind: MixerKind, hidden: int) -> Built:
    heads = fields.size(MOST_HEADS, "num_attention_heads")
    # Stated for the layers as they were trained; what is cached is the latent.
    fields.asked.update(("num_key_value_heads", "head_dim", "qk_head_dim", "mla_use_nope"))
    query_rank = fields.optional_size(MOST_HIDDEN, "q_lora_rank") or 0
    kv_rank = fields.size(MOST_HIDDEN, "kv_lora_rank")
    rope_dim = fields.optional_size(MOST_HEAD_DIM, "qk_rope_head_dim") or 0
    sparse, index_norms = _indexed(fields, kind, query_rank, hidden)
    mixer = LatentAttention(
        heads=heads,
        query_rank=query_rank,
        kv_rank=kv_rank,
        nope_dim=fields.size(MOST_HEAD_DIM, "qk_nope_head_dim"),
        rope_dim=rope_dim,
        value_dim=_latent_value_dim(fields, family, hidden, heads),
        gated=family.gate == "key" and fields.flag("mla_use_output_gate"),
        sparse=sparse,
    )
    biases = query_rank + kv_rank + rope_dim + hidden if fields.flag("attention_bias") else 0
    return mixer, query_rank + kv_rank + biases + index_norms


def _latent_value_dim(fields: Fields, family: Family, hidden: int, heads: int) -> int:
    if family.value_share and not fields.has("v_head_dim"):
        return head_dim(fields, hidden, heads)
    return fields.size(MOST_HEAD_DIM, "v_head_dim")


def _indexed(fields: Fields, kind: MixerKind, query_rank: int, hidden: int) -> tuple[Sparse | None, int]:
    """The index that picks cached tokens: queries from the query's latent, one key a token, one weight a query head."""
    if kind == "full":
        return None, 0
    tokens = fields.size(LONGEST_CONTEXT, "index_topk")
    heads, dim = fields.size(MOST_HEADS, "index_n_heads"), fields.size(MOST_HEAD_DIM, "index_head_dim")
    pool = fields.optional_size(MOST_KERNEL, "index_kpool") or 1
    if kind == "sparse_shared":
        return Sparse(tokens), 0
    pooling = dim * (hidden + pool) if fields.flag("index_kpool_compress") else 0
    params = (query_rank or hidden) * heads * dim + hidden * (dim + heads)
    return Sparse(tokens, heads, dim, params + pooling, pool), 2 * dim


def _gated_delta(fields: Fields, hidden: int) -> Built:
    """Gated delta net: query and key of `key_heads`; value, gate, decay and rate of `value_heads`."""
    key_heads = fields.size(MOST_HEADS, "linear_num_key_heads")
    value_heads = fields.size(MOST_HEADS, "linear_num_value_heads")
    key_dim = fields.size(MOST_HEAD_DIM, "linear_key_head_dim")
    value_dim = fields.size(MOST_HEAD_DIM, "linear_value_head_dim")
    kernel = fields.size(MOST_KERNEL, "linear_conv_kernel_dim")
    keys, values = key_heads * key_dim, value_heads * value_dim
    convolved = 2 * keys + values
    mixer = Recurrent(
        kind="gated_delta",
        heads=value_heads,
        params=hidden * (convolved + 2 * values + 2 * value_heads),
        conv_elements=convolved * (kernel - 1),
        state_elements=value_heads * key_dim * value_dim,
    )
    return mixer, convolved * kernel + 2 * value_heads + value_dim


def _kimi_delta(fields: Fields, hidden: int) -> Built:
    """Kimi delta attention: query, key, value and output of one width, low-rank decay, a gate, a rate a head."""
    named = ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
    table = fields.table("linear_attn_config")
    source = fields if table is None else table
    fields.asked.update(named)  # the same sizes again, where both are stated
    names = named if table is None else ("num_heads", "head_dim", "short_conv_kernel_size")
    heads, dim = source.size(MOST_HEADS, names[0]), source.size(MOST_HEAD_DIM, names[1])
    kernel = source.size(MOST_KERNEL, names[2])
    width = heads * dim
    low_rank = dim * (hidden + width)
    gate = hidden * width if source.flag("use_full_rank_gate") else low_rank
    mixer = Recurrent(
        kind="kimi_delta",
        heads=heads,
        params=4 * hidden * width + low_rank + gate + hidden * heads,
        conv_elements=3 * width * (kernel - 1),
        state_elements=heads * dim * dim,
    )
    return mixer, 3 * width * kernel + width + heads + dim


def _mamba1(fields: Fields, hidden: int) -> Built:
    """Jamba's Mamba: norms on step, input and output matrices, heads as its attention layers have them."""
    mixer, small = _mamba1_bare(fields, hidden, fields.size(MOST_HEADS, *HEADS.heads))
    return mixer, small + _time_step_rank(fields, hidden) + 2 * fields.size(MOST_HEAD_DIM, "mamba_d_state")


def _mamba1_bare(fields: Fields, hidden: int, heads: int = 0) -> Built:
    """Mamba: in and out projections, a low-rank step size; its channels split freely, or as attention's `heads` do."""
    stated = fields.optional_size(MOST_WIDTH, "intermediate_size") if not heads else None
    inner = stated or fields.size(MOST_KERNEL, "mamba_expand") * hidden
    fields.asked.add("mamba_expand")
    state = fields.size(MOST_HEAD_DIM, "mamba_d_state")
    kernel = fields.size(MOST_KERNEL, "mamba_d_conv")
    rank = _time_step_rank(fields, hidden)
    biases = inner * fields.flag("mamba_conv_bias", default=True)
    biases += (2 * inner + hidden) * fields.flag("mamba_proj_bias")
    mixer = Recurrent(
        kind="mamba1",
        heads=heads or inner,
        params=3 * hidden * inner + inner * (2 * rank + 2 * state),
        conv_elements=inner * (kernel - 1),
        state_elements=inner * state,
    )
    return mixer, inner * (kernel + state + 2) + biases


def _time_step_rank(fields: Fields, hidden: int) -> int:
    rank = fields.get("mamba_dt_rank")[1]
    return -(-hidden // 16) if rank == "auto" else fields.size(MOST_HIDDEN, "mamba_dt_rank")


def _mamba2(fields: Fields, hidden: int) -> Built:
    """Mamba2: one projection makes gate, input, the two state matrices of each group and a step size a head."""
    heads = fields.size(MOST_HEADS, "mamba_num_heads", "mamba_n_heads")
    inner = _mamba2_inner(fields, hidden, heads)
    groups = fields.size(MOST_GROUPS, "n_groups", "mamba_n_groups")
    state = fields.size(MOST_HEAD_DIM, "ssm_state_size", "mamba_d_state")
    kernel = fields.size(MOST_KERNEL, "conv_kernel", "mamba_d_conv")
    # They follow from the sizes above, or choose kernels and number formats.
    fields.asked.update(("expand", "mamba_expand", "mamba_chunk_size", "time_step_rank", "mamba_norm_before_gate"))
    convolved = inner + 2 * groups * state
    projected = inner + convolved + heads
    biases = convolved * fields.flag("use_conv_bias", default=fields.flag("mamba_conv_bias", default=True))
    biases += (projected + hidden) * (fields.flag("use_bias") or fields.flag("mamba_proj_bias"))
    mixer = Recurrent(
        kind="mamba2",
        heads=heads,
        params=hidden * (projected + inner),
        conv_elements=convolved * (kernel - 1),
        state_elements=inner * state,
    )
    norm = inner if fields.flag("mamba_rms_norm", default=True) else 0
    return mixer, convolved * kernel + 3 * heads + norm + biases


def _mamba2_inner(fields: Fields, hidden: int, heads: int) -> int:
    """The width inside: stated, heads times their size, or a multiple of the model's if the size is "auto"."""
    stated = fields.optional_size(MOST_WIDTH, "mamba_d_ssm")
    if stated is not None:
        fields.asked.add("mamba_d_head")
        return stated
    if fields.get("mamba_d_head")[1] == "auto":
        return fields.size(MOST_KERNEL, "mamba_expand") * hidden
    return heads * fields.size(MOST_HEAD_DIM, "mamba_head_dim", "mamba_d_head")


def _short_conv(fields: Fields, hidden: int) -> Built:
    """A gated short convolution over the model's channels: three projections in, one out, no state but its window."""
    heads = fields.size(MOST_HEADS, *HEADS.heads)
    kernel = fields.size(MOST_KERNEL, "conv_L_cache")
    biases = 5 * hidden if fields.flag("conv_bias") else 0
    return Recurrent("short_conv", heads, 4 * hidden * hidden, hidden * (kernel - 1), 0), hidden * kernel + biases


def _lightning(fields: Fields, hidden: int) -> Built:
    """Lightning attention: query, key, value, gate and output of one width, a norm, a square state a head."""
    heads = fields.size(MOST_HEADS, *HEADS.heads)
    dim = head_dim(fields, hidden, heads)
    width = heads * dim
    return Recurrent("lightning", heads, 5 * hidden * width, 0, heads * dim * dim), width


_RECURRENCES: Final[Mapping[str, Callable[[Fields, int], Built]]] = {
    "gated_delta": _gated_delta,
    "kimi_delta": _kimi_delta,
    "mamba1": _mamba1,
    "mamba1_bare": _mamba1_bare,
    "mamba2": _mamba2,
    "lightning": _lightning,
    "short_conv": _short_conv,
}
