"""Mistral's own `params.json`: its names of the sizes as those of a config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lambdamax.facts import bad
from lambdamax.hub.fields import NotSizedError

_NAMES: Final[Mapping[str, str]] = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "hidden_dim": "intermediate_size",
    "vocab_size": "vocab_size",
    "sliding_window": "sliding_window",
    "tied_embeddings": "tie_word_embeddings",
    "max_position_embeddings": "max_position_embeddings",
    "max_seq_len": "max_position_embeddings",
}
_OF_EXPERTS: Final[Mapping[str, str]] = {
    "num_experts": "num_local_experts",
    "num_experts_per_tok": "num_experts_per_tok",
}
# They scale rotary positions or norms and change no size.
_HARMLESS: Final = frozenset(
    ("norm_eps", "rope_theta", "rope_scaling", "yarn", "model_type", "max_batch_size", "llama_4_scaling")
)


def is_native(config: Mapping[str, Any]) -> bool:
    """Whether `config` has Mistral's own names."""
    return "model_type" not in config and {"dim", "n_layers", "n_heads"} <= set(config)


def translated(config: Mapping[str, Any], file: str) -> dict[str, Any]:
    """`config` under the names of a config.json."""
    experts = config.get("moe")
    if experts is not None and not isinstance(experts, Mapping):
        raise bad(file, "moe", experts, "an object, or null")
    _refuse(config, {*_NAMES, "moe", *_HARMLESS}, "")
    _refuse(experts or {}, set(_OF_EXPERTS), "moe.")
    named = {_NAMES[key]: value for key, value in config.items() if key in _NAMES}
    of_experts = {_OF_EXPERTS[key]: value for key, value in (experts or {}).items()}
    return {"model_type": "mixtral" if experts else "mistral", "sliding_window": None, **named, **of_experts}


def _refuse(config: Mapping[str, Any], known: set[str], prefix: str) -> None:
    strange = next((key for key, value in config.items() if key not in known and value), None)
    if strange is not None:
        raise NotSizedError(f"{prefix}{strange[:64]} is set: a key of params.json that is not read")
