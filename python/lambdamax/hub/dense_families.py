"""Families whose every layer is softmax attention and a dense MLP: one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from lambdamax.hub.family import WINDOWS, Family
from lambdamax.hub.fields import ALWAYS

_LLAMA: Final = Family(bias="all", mlp_bias="mlp_bias")
_PLAIN: Final = Family(layers="uniform", mixers=WINDOWS)
_QWEN2: Final = Family(layers="late", mixers=WINDOWS, bias="qkv", bias_key=ALWAYS)
QWEN3: Final = Family(layers="late", mixers=WINDOWS, bias="all", qk_norm="head")
_GLM4: Final = Family(bias="qkv", norms=4)
# Two matrices, and biases on everything: the older shape, its LayerNorms with biases.
_BIASED: Final = Family(norms=4, final_norms=2, bias="all", bias_key=ALWAYS, mlp_matrices=2, mlp_bias=ALWAYS)
_GPT2: Final = replace(
    _BIASED,
    mlp_multiple=4,
    positions=0,
    names={
        "hidden_size": "n_embd",
        "intermediate_size": "n_inner",
        "max_position_embeddings": "n_positions",
    },
    only={"add_cross_attention": (False,)},
)
_CHATGLM: Final = {
    "num_hidden_layers": "num_layers",
    "intermediate_size": "ffn_hidden_size",
    "vocab_size": "padded_vocab_size",
    "head_dim": "kv_channels",
    "num_key_value_heads": "multi_query_group_num",
    "max_position_embeddings": "seq_length",
}
_MPT: Final = {
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "kv_n_heads",
    "max_position_embeddings": "max_seq_len",
}
_HUNYUAN: Final = {"use_cla": (False,), "moe_layer_num_skipped": (0,)}
HUNYUAN: Final = Family(bias="all", qk_norm="head", qk_key="use_qk_norm", only=_HUNYUAN, harmless=("cla_share_factor",))

DENSE: Final[Mapping[str, Family]] = {
    "llama": _LLAMA,
    "mistral": _PLAIN,
    "ministral3": _PLAIN,
    "phi3": replace(_PLAIN, only={"full_attn_mod": (1,), "lm_head_bias": (False,)}),
    "qwen2": _QWEN2,
    "qwen2_vl": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen3": QWEN3,
    "qwen3_vl_text": QWEN3,
    "mimo": Family(layers="late", mixers=WINDOWS, bias="qkv"),
    "granite": _LLAMA,
    "smollm3": replace(_LLAMA, harmless=("no_rope_layers", "no_rope_layer_interval")),
    "seed_oss": Family(bias="qkv", out_bias="attention_out_bias", mlp_bias="mlp_bias"),
    "baichuan": Family(names={"max_position_embeddings": "model_max_length"}),
    "internlm2": Family(bias="all", bias_key="bias"),
    "internlm3": Family(bias="qkv", bias_key="qkv_bias", out_bias="bias", mlp_bias="bias"),
    "minicpm": Family(),
    "minicpm3": Family(latent=True, value_share=True, mlp_bias="mlp_bias"),
    "ernie4_5": Family(bias="all", bias_key="use_bias", mlp_bias="use_bias", harmless=("weight_share_add_bias",)),
    "hunyuan_v1_dense": HUNYUAN,
    "exaone": Family(names={"num_hidden_layers": "num_layers"}),
    "exaone4": Family(layers="every", mixers=WINDOWS, qk_norm="head"),
    "chatglm": Family(
        bias="qkv",
        bias_key="add_qkv_bias",
        names=_CHATGLM,
        multi_query="multi_query_attention",
        only={"add_bias_linear": (False,), "rmsnorm": (True,), "post_layer_norm": (True,)},
    ),
    "glm": Family(bias="qkv"),
    "glm4": _GLM4,
    "glm4v_text": replace(_GLM4, bias_key=ALWAYS, harmless=("attention_bias",)),
    "gemma": Family(bias="all"),
    "gemma2": Family(layers="alternate", mixers=WINDOWS, norms=4, bias="all"),
    "gemma3_text": Family(layers="every", mixers=WINDOWS, norms=4, bias="all", qk_norm="head"),
    "muse_glimmer_text": Family(layers="stated", mixers=WINDOWS, norms=4, bias="all", gate="always"),
    "cohere": Family(norms=1, bias="all", qk_norm="all", qk_key="use_qk_norm"),
    "cohere2": Family(
        layers="every",
        mixers=WINDOWS,
        norms=1,
        bias="all",
        names={"_sliding_window_pattern": "layer_switch"},
        only={"use_qk_norm": (False,), "order_of_interleaved_layers": ("local_attn_first",)},
    ),
    "olmo": Family(norms=0, final_norms=0, bias="all"),
    "olmo2": Family(bias="all", qk_norm="all"),
    "olmo3": Family(layers="every", mixers=WINDOWS, bias="all", qk_norm="all"),
    "stablelm": Family(
        norms=4,
        final_norms=2,
        parallel="use_parallel_residual",
        bias="qkv",
        bias_key="use_qkv_bias",
        qk_norm="all",
        qk_key="qk_layernorm",
    ),
    "nemotron": Family(norms=4, final_norms=2, bias="all", mlp_matrices=2, mlp_bias="mlp_bias"),
    "arcee": Family(bias="all", mlp_matrices=2, mlp_bias="mlp_bias"),
    "apertus": Family(
        bias="all",
        qk_norm="head",
        mlp_matrices=2,
        extra_vectors=2,
        only={"qk_norm": (True,), "post_norm": (False,)},
    ),
    "phi": replace(_BIASED, norms=2, head_bias=ALWAYS),
    "starcoder2": replace(_BIASED, layers="uniform", mixers=WINDOWS, bias_key="use_bias", mlp_bias="use_bias"),
    "gpt_neox": replace(_BIASED, bias_key="attention_bias", harmless=("use_parallel_residual",)),
    "gpt2": _GPT2,
    "gpt_bigcode": replace(_GPT2, multi_query="multi_query"),
    "opt": replace(
        _BIASED,
        bias_key="enable_bias",
        mlp_bias="enable_bias",
        positions=2,
        names={"intermediate_size": "ffn_dim"},
        only={
            "do_layer_norm_before": (True,),
            "_remove_final_layer_norm": (False,),
            "layer_norm_elementwise_affine": (True,),
        },
        same={"word_embed_proj_dim": "hidden_size"},
    ),
    "bloom": replace(
        _BIASED, final_norms=4, mlp_multiple=4, names={"hidden_size": "n_embed"}, harmless=("offset_alibi",)
    ),
    "mpt": Family(
        mlp_matrices=2,
        mlp_multiple=4,
        names=_MPT,
        inside=("attn_config",),
        only={
            "attn_type": ("multihead_attention",),
            "alibi": (True,),
            "no_bias": (True,),
            "qk_ln": (False,),
            "expansion_ratio": (4,),
        },
        harmless=("learned_pos_emb", "alibi_bias_max"),
    ),
    "falcon": Family(mlp_matrices=2, mlp_width=("intermediate_size", "ffn_hidden_size")),
}
