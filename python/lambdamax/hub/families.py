"""Every `model_type` that is read, those that wrap another, and those known not to be expressible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lambdamax.hub.dense_families import DENSE
from lambdamax.hub.expert_families import ROUTED
from lambdamax.hub.family import Family
from lambdamax.hub.hybrid_families import HYBRIDS

FAMILIES: Final[Mapping[str, Family]] = {**DENSE, **ROUTED, **HYBRIDS}

# Where the language model is one part of several: what it may be, the usual one first.
WRAPPERS: Final[Mapping[str, tuple[str, ...]]] = {
    "llama4": ("llama4_text",),
    "gemma3": ("gemma3_text",),
    "gemma4": ("gemma4_text",),
    "mistral3": ("mistral", "ministral3"),
    "qwen2_vl": ("qwen2_vl_text", "qwen2_vl"),
    "qwen2_5_vl": ("qwen2_5_vl_text", "qwen2_5_vl"),
    "qwen3_vl": ("qwen3_vl_text",),
    "qwen3_vl_moe": ("qwen3_vl_moe_text",),
    "qwen3_5": ("qwen3_5_text",),
    "qwen3_5_moe": ("qwen3_5_moe_text",),
    "kimi_vl": ("deepseek_v3",),
    "kimi_k25": ("kimi_k2", "deepseek_v3"),
    "kimi_k3": ("kimi_linear",),
    "glm4v": ("glm4v_text", "glm4"),
    "glm5_next": ("glm5_next_text",),
    "muse_glimmer": ("muse_glimmer_text",),
    "minimax_m3_vl": ("minimax_m3",),
    "step3p7": ("step3p5",),
    "llava": ("llama", "mistral", "qwen2"),
    "llava_next": ("llama", "mistral", "qwen2"),
    "aya_vision": ("cohere2", "cohere"),
    "cohere2_vision": ("cohere2",),
    "idefics3": ("llama",),
    "smolvlm": ("llama",),
    "internvl": ("qwen2", "qwen3", "llama", "internlm2", "qwen3_moe", "gpt_oss"),
    "internvl_chat": ("qwen2", "qwen3", "llama", "internlm2", "qwen3_moe", "gpt_oss"),
    "deepseek_vl_v2": ("deepseek_v2",),
}
# Where it stands, if not under text_config.
INNER: Final[Mapping[str, str]] = {"internvl_chat": "llm_config", "deepseek_vl_v2": "language_config"}
NAS: Final = "nemotron-nas"
# Known and not sized, with the field that stands in the way.
REFUSED: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("deepseek_v4", "deepseek_v41", "deepseek_v41_text"),
        "compress_ratios: layers cache their keys compressed by a ratio of their own, so a token has no constant size",
    ),
    **dict.fromkeys(
        ("gemma3n", "gemma3n_text"),
        "altup_num_inputs, num_kv_shared_layers: parallel residual streams, and layers that read another's cache",
    ),
    **dict.fromkeys(
        ("zamba2", "zamba"),
        "num_mem_blocks: one block's weights serve several layers, each with a cache of its own",
    ),
    "longcat_flash": "zero_expert_num: some experts compute nothing, so a token has no constant number of active ones",
    "phi3small": "blocksparse_block_size: layers between the full ones attend to blocks of the cache by a pattern",
}


def model_types() -> tuple[str, ...]:
    """The values of `model_type` that can be read, sorted."""
    return tuple(sorted({*FAMILIES, *WRAPPERS, NAS}))
