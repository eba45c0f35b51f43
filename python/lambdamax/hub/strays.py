"""Keys of a config that change its sizes and that its family does not read: such a config is told, not guessed at."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from lambdamax.hub.fields import Fields, is_set

# What names a part of an architecture, in any family.
_STRUCTURAL: Final = re.compile(
    r"expert|moe|mlp_bias|mlp_layer|mlp_only|double_wide|_rank$|^index|indexer|sparse|block_configs|block_type|layer_types|pattern"
    r"|attn_type|window|chunk_size$|^compress|^engram|^hc_|^mhc$|kv_source|latent|nextn|mtp|linear_|mamba|ssm|conv|state_size"
    r"|head_dim|_heads$|kv_heads|n_head|multi_query|query_group|attention_groups|attention_bias|attention_other|k_eq_v|qkv_bias|use_bias"
    r"|output_gate$|gating|qk_norm$|interleave|period|offset|interval|cross_attention|encoder_decoder|text_config|altup|laurel"
    r"|per_layer|kv_shared|no_rope_layer|res_block|full_attn|swa_|num_layers|shared_|share_|^ffn|alibi"
    r"|^bias$|bias_linear|out_bias|head_bias|qk_layernorm|qk_ln$|parallel_residual|post_norm$|multiple_of"
    r"|llm_config|language_config"
)
# Names that look so and change neither a size nor a cache: positions, routing, training, kernels, number formats.
_HARMLESS: Final = frozenset(
    (
        "activation_situ_linear_beta",
        "attention_chunk_size",
        "attn_res_block_size",
        "chunk_size",
        "chunk_size_feed_forward",
        "hc_eps",
        "hc_sinkhorn_iters",
        "index_kpool_always_select_tail",
        "index_share_for_mtp_iteration",
        "index_skip_topk_offset",
        "index_topk_freq",
        "indexer_rope_interleave",
        "layer_rope_theta",
        "linear_lower_bound",
        "mamba_chunk_size",
        "mamba_hidden_act",
        "mamba_ssm_cache_dtype",
        "mamba_ssm_dtype",
        "max_window_layers",
        "moe_aux_loss_coef",
        "moe_renormalize",
        "moe_router_activation_func",
        "moe_router_dtype",
        "moe_router_scaling_factor",
        "moe_shared_expert_overlap",
        "num_expert_group",
        "num_reward_heads",
        "rope_interleave",
        "shared_moe_mode",
        "swa_rope_theta",
        "use_mamba_kernels",
        "use_moe_router_bias",
        "use_qk_norm",
        "use_sliding_window",
        "vocab_size_per_layer_input",
    )
)


def refuse_strays(parts: Iterable[Fields]) -> str | None:
    """Why a config is not sized: its first structural key, stated or by default, that nobody asked for; or None."""
    for fields in parts:
        for key, value in {**fields.defaults, **fields.config}.items():
            if key not in fields.asked and key not in _HARMLESS and _STRUCTURAL.search(key) and is_set(value):
                return f"{fields.prefix}{key[:64]} is set: a part that is not read in this family"
    return None
