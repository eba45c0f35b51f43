"""Families with a recurrence in place of attention in some or all layers: one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from lambdamax.hub.expert_families import BIASED, DSA, GRANITE, M2, QWEN_SHARED
from lambdamax.hub.family import HYBRID, Family, Moe, mixers

_KIMI: Final = replace(
    BIASED,
    per_token=("num_experts_per_token", "num_experts_per_tok"),
    latent=("routed_expert_hidden_size",),
)
_NEMOTRON: Final = Moe(
    ("n_routed_experts",),
    shared="width",
    shared_keys=("moe_shared_expert_intermediate_size",),
    matrices=2,
    router_bias=True,
    latent=("moe_latent_size",),
)
_LFM2_MOE: Final = Moe(("num_experts",), router_bias=True)
_DELTA: Final = Family(
    layers="interval", mixers=HYBRID, bias="all", qk_norm="head", gate="key", recurrence="gated_delta"
)
_MAMBA_NAMES: Final = {
    "mamba_d_state": "state_size",
    "mamba_d_conv": "conv_kernel",
    "mamba_expand": "expand",
    "mamba_conv_bias": "use_conv_bias",
    "mamba_proj_bias": "use_bias",
}
_LFM2: Final = Family(
    layers="indices",
    mixers=HYBRID,
    qk_norm="head",
    recurrence="short_conv",
    harmless=("conv_use_xavier_init", "num_heads"),
    same={"conv_dim": "hidden_size", "conv_dim_out": "hidden_size"},
)

HYBRIDS: Final[Mapping[str, Family]] = {
    "qwen3_next": replace(_DELTA, gate="always", moe=QWEN_SHARED),
    "qwen3_5_text": _DELTA,
    "qwen3_5_moe_text": replace(_DELTA, moe=QWEN_SHARED),
    "glm5_next_text": replace(
        DSA, layers="delta_from_0", mixers=DSA.mixers | {"recurrent"}, recurrence="kimi_delta", hyper=True
    ),
    "kimi_linear": Family(
        layers="delta_from_1", mixers=HYBRID, latent=True, gate="key", recurrence="kimi_delta", moe=_KIMI
    ),
    "jamba": Family(
        layers="period",
        mixers=HYBRID,
        recurrence="mamba1",
        moe=Moe(("num_experts",), ("intermediate_size",)),
    ),
    "granitemoehybrid": Family(
        layers="stated",
        mixers=HYBRID,
        bias="all",
        recurrence="mamba2",
        mlp_width=GRANITE.shared_keys,
        moe=GRANITE,
    ),
    "bamba": Family(
        layers="indices",
        mixers=HYBRID,
        bias="all",
        recurrence="mamba2",
        mlp_bias="mlp_bias",
        names={"full_attn_idxs": "attn_layer_indices"},
    ),
    "falcon_h1": Family(
        layers="both",
        mixers=HYBRID,
        norms=1,
        bias="all",
        recurrence="mamba2",
        mlp_bias="mlp_bias",
        only={"projectors_bias": (False,), "mamba_proj_bias": (False,), "mamba_use_mlp": (True,)},
        harmless=("ssm_in_multiplier", "ssm_out_multiplier", "ssm_multipliers"),
    ),
    "lfm2": replace(_LFM2, mlp_width=("block_ff_dim", "intermediate_size")),
    "lfm2_moe": replace(
        _LFM2,
        moe=_LFM2_MOE,
        names={"first_k_dense_replace": "num_dense_layers"},
        only={"use_expert_bias": (True,)},
    ),
    "falcon_mamba": Family(
        layers="recurrent",
        mixers=mixers("recurrent"),
        norms=1,
        recurrence="mamba1_bare",
        names={**_MAMBA_NAMES, "mamba_dt_rank": "time_step_rank"},
    ),
    "mamba2": Family(
        layers="recurrent",
        mixers=mixers("recurrent"),
        norms=1,
        recurrence="mamba2",
        names={**_MAMBA_NAMES, "mamba_num_heads": "num_heads", "mamba_head_dim": "head_dim"},
    ),
    "nemotron_h": Family(
        layers="one_each",
        mixers=mixers("full", "recurrent", "none"),
        norms=1,
        recurrence="mamba2",
        mlp_matrices=2,
        mlp_bias="mlp_bias",
        moe=_NEMOTRON,
    ),
    "minimax_m1": Family(layers="codes", mixers=HYBRID, recurrence="lightning", moe=replace(M2, router_bias=False)),
}
