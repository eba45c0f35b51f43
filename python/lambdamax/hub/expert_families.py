"""Families some of whose layers route tokens to experts, all of them with softmax attention: one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from lambdamax.hub.dense_families import HUNYUAN, QWEN3
from lambdamax.hub.family import HEADS, WINDOWS, Family, Moe, mixers

_LOCAL: Final = ("num_local_experts",)
_NUMBERED: Final = ("num_experts", "num_local_experts")
_ROUTED: Final = ("n_routed_experts", "num_experts", "num_local_experts")
_MIXTRAL: Final = Moe(_LOCAL, ("intermediate_size",))
QWEN: Final = Moe(_NUMBERED)
QWEN_SHARED: Final = replace(QWEN, shared="width", shared_keys=("shared_expert_intermediate_size",), shared_gate=True)
_DEEPSEEK: Final = Moe(_ROUTED, shared="count", shared_keys=("n_shared_experts", "num_shared_experts"))
BIASED: Final = replace(_DEEPSEEK, router_bias=True)
_STEP: Final = Moe(
    ("num_experts", "moe_num_experts", "n_routed_experts"),
    per_token=("num_experts_per_tok", "moe_top_k"),
    shared="width",
    shared_keys=("share_expert_dim",),
    router_bias=True,
)
M2: Final = replace(_MIXTRAL, shared="width", shared_keys=("shared_intermediate_size",), router_bias=True)
_M3: Final = replace(M2, width=("moe_intermediate_size", "intermediate_size"))
GRANITE: Final = replace(_MIXTRAL, shared="width", shared_keys=("shared_intermediate_size",))
_GEMMA: Final = Moe(
    ("num_experts",),
    per_token=("top_k_experts",),
    width=("moe_intermediate_size", "expert_intermediate_size"),
    shared="dense",
)
_ERNIE: Final = Moe(
    ("moe_num_experts",),
    per_token=("moe_k",),
    shared="count",
    shared_keys=("moe_num_shared_experts",),
    router_bias=True,
)
_HUNYUAN: Final = Moe(
    ("num_experts",),
    per_token=("moe_topk",),
    width=("moe_intermediate_size", "intermediate_size"),
    shared="count",
    shared_keys=("num_shared_expert",),
)
_BAILING: Final = Moe(("num_experts",), shared="count", shared_keys=("num_shared_experts",))
_DBRX_MOE: Final = Moe(("moe_num_experts",), per_token=("moe_top_k",), width=("ffn_hidden_size",))
_DBRX: Final = {
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "kv_n_heads",
    "max_position_embeddings": "max_seq_len",
}

MLA: Final = Family(latent=True, moe=BIASED)
DSA: Final = replace(MLA, layers="indexers", mixers=mixers("sparse", "sparse_shared"))
_STEP3: Final = Family(
    layers="stated",
    mixers=WINDOWS,
    qk_norm="head",
    gate="per_head",
    heads={"sliding": HEADS.before(heads="num_sliding_attention_heads")},
    moe=_STEP,
)

ROUTED: Final[Mapping[str, Family]] = {
    "mixtral": Family(layers="uniform", mixers=WINDOWS, moe=_MIXTRAL),
    "phimoe": Family(
        layers="uniform", mixers=WINDOWS, norms=4, final_norms=2, bias="all", head_bias="lm_head_bias", moe=_MIXTRAL
    ),
    "qwen2_moe": Family(layers="late", mixers=WINDOWS, bias="qkv", bias_key="qkv_bias", moe=QWEN_SHARED),
    "qwen3_moe": replace(QWEN3, moe=QWEN),
    "qwen3_vl_moe_text": replace(QWEN3, moe=QWEN),
    "olmoe": Family(bias="all", qk_norm="all", moe=Moe(_NUMBERED, ("intermediate_size",))),
    "granitemoe": Family(bias="all", moe=_MIXTRAL),
    "granitemoeshared": Family(bias="all", moe=GRANITE),
    "deepseek": Family(bias="all", moe=_DEEPSEEK),
    "deepseek_v2": replace(MLA, moe=_DEEPSEEK),
    "deepseek_v3": MLA,
    "kimi_k2": MLA,
    "glm4_moe_lite": MLA,
    "deepseek_v32": DSA,
    "glm_moe_dsa": DSA,
    "glm4_moe": Family(bias="qkv", qk_norm="head", qk_key="use_qk_norm", moe=BIASED),
    "dots1": Family(bias="all", qk_norm="head", moe=BIASED),
    "exaone_moe": Family(layers="every", mixers=WINDOWS, qk_norm="head", moe=BIASED, draft="dense"),
    "ernie4_5_moe": Family(
        moe=_ERNIE,
        only={"use_bias": (False,)},
        names={"first_k_dense_replace": "moe_layer_start_index", "decoder_sparse_step": "moe_layer_interval"},
        harmless=("moe_capacity", "moe_gate", "moe_norm_min", "moe_use_aux_free", "weight_share_add_bias"),
        draft="dense",
    ),
    "hunyuan_v1_moe": replace(
        HUNYUAN,
        moe=_HUNYUAN,
        by_layer=("moe_topk", "num_shared_expert", "moe_intermediate_size"),
        only={**HUNYUAN.only, "use_mixed_mlp_moe": (True,)},
    ),
    "bailing_moe": Family(bias="qkv", bias_key="use_qkv_bias", out_bias="use_bias", moe=_BAILING),
    "dbrx": Family(
        moe=_DBRX_MOE,
        names=_DBRX,
        inside=("attn_config", "ffn_config"),
        harmless=("ffn_act_fn", "moe_jitter_eps", "moe_loss_weight", "moe_normalize_expert_weights"),
    ),
    "gpt_oss": Family(
        layers="alternate",
        mixers=WINDOWS,
        bias="all",
        sinks=True,
        moe=replace(
            _MIXTRAL, per_token=("num_experts_per_tok", "experts_per_token"), router_bias=True, expert_bias=True
        ),
    ),
    "llama4_text": Family(
        layers="chunks",
        mixers=mixers("full", "chunked"),
        bias="all",
        mlp_width=("intermediate_size_mlp", "intermediate_size"),
        moe=replace(_MIXTRAL, shared="one"),
    ),
    "gemma4_text": Family(
        layers="stated",
        mixers=WINDOWS,
        norms=4,
        bias="all",
        qk_norm="head",
        heads={"full": HEADS.before(kv_heads="num_global_key_value_heads", key_dim="global_head_dim")},
        moe=_GEMMA,
        extra_vectors=1,
    ),
    "minimax_m2": Family(layers="codes", qk_norm="all", qk_key="use_qk_norm", moe=M2),
    "minimax_m3": Family(
        layers="sparse_marks",
        mixers=mixers("full", "sparse"),
        qk_norm="head",
        qk_key="use_qk_norm",
        mlp_width=("dense_intermediate_size",),
        moe=_M3,
    ),
    "step3p5": _STEP3,
    "step3p7": _STEP3,
    "mimo_v2_flash": Family(
        layers="marks",
        mixers=WINDOWS,
        bias="qkv",
        sinks=True,
        heads={
            "full": HEADS.before(value_dim="v_head_dim"),
            "sliding": replace(
                HEADS.before("swa_num_attention_heads", "swa_num_key_value_heads", "swa_head_dim"),
                value_dim=("swa_v_head_dim", "v_head_dim"),
            ),
        },
        moe=replace(BIASED, shared="none"),
    ),
}
