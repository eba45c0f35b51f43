"""The reader of a model's `config.json`: from the field names of each family to one `Architecture`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from lambdamax.architecture import Architecture, Attention, Block, Mlp, Unsupported
from lambdamax.facts import DATA, bad, read_json

LAYERS: Final = ("num_hidden_layers", "n_layer")
HEADS: Final = ("num_attention_heads", "n_head")
KV_HEADS: Final = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
WIDTH: Final = ("intermediate_size", "ffn_hidden_size")

# Largest size of each kind that is believed: far above any model, and low enough for exact sums in float64.
MOST_LAYERS: Final = 1_000
MOST_HEADS: Final = 1_024
MOST_HEAD_DIM: Final = 4_096
MOST_HIDDEN: Final = 262_144
MOST_WIDTH: Final = 4_194_304
MOST_VOCABULARY: Final = 16_777_216
LONGEST_CONTEXT: Final = 2**40

# A config that sets one of these is not a plain dense decoder, whatever its model_type says.
FOREIGN_KEYS: Final = (
    "text_config",
    "is_encoder_decoder",
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "moe_num_experts",
    "kv_lora_rank",
    "block_configs",
    "hybrid_override_pattern",
    "hybrid_layer_pattern",
    "layers_block_type",
    "attn_type_list",
    "linear_attn_config",
    "full_attention_interval",
    "sliding_window_pattern",
    "index_topk",
    "compress_ratios",
    "sparse_attention_config",
    "cross_attention_layers",
    "attn_output_gate",
    "num_nextn_predict_layers",
)
# Where a checkpoint says that it is quantised in a way that is not read yet.
OTHER_QUANTISATION_KEYS: Final = ("compression_config", "_hf_quant_config")
# Parts of an FP8 checkpoint that stay 16-bit here too, so that leaving them unquantised changes nothing.
UNQUANTISED_PARTS: Final = ("lm_head", "embed_tokens", "norm", "vision", "multi_modal_projector")


@dataclass(frozen=True)
class Family:
    """How the layers of one `model_type` are built, where that is in the family's code and not in its config."""

    qkv_bias: Literal["none", "always", "key"] = "none"
    mlp_bias_key: bool = False
    norms: int = 2
    qk_norm: Literal["none", "shared", "key"] = "none"


FAMILIES: Final[Mapping[str, Family]] = {
    "llama": Family(qkv_bias="key", mlp_bias_key=True),
    "mistral": Family(),
    "ministral3": Family(),
    "qwen2": Family(qkv_bias="always"),
    "qwen3": Family(qkv_bias="key", qk_norm="shared"),
    "phi3": Family(),
    "cohere": Family(qkv_bias="key", norms=1, qk_norm="key"),
}
FALCON: Final = "falcon"


def read_config(path: Path) -> tuple[Architecture | Unsupported, str]:
    """The architecture in the `config.json` at `path` (a file, or the directory that holds it) and the file's checksum.

    Raises CatalogError with file, key, value and what is allowed if the file cannot be read or a size makes no sense.
    """
    file = path / "config.json" if os.path.isdir(path) else path  # no OSError for odd names
    config, digest = read_json(file)
    return read_architecture(config, str(file)), digest


def read_architecture(config: Mapping[str, Any], file: str) -> Architecture | Unsupported:
    """The architecture that `config` describes; `file` is the name that errors give."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise bad(file, "model_type", model_type, "the name of a model type, as in a config.json of the hub")
    if model_type not in model_types():
        return Unsupported(f"model_type = {model_type[:64]!r}: only {', '.join(model_types())} are read")
    fields = Fields(config, _class_defaults()[model_type], file)
    reason = _foreign(fields) or _windowed(fields) or _quantised(fields)
    return Unsupported(reason) if reason else _BUILDERS.get(model_type, _common)(fields, model_type)


def model_types() -> tuple[str, ...]:
    """The values of `model_type` that can be read, sorted."""
    return tuple(sorted((*FAMILIES, FALCON)))


@dataclass(frozen=True)
class Fields:
    """The keys of one config, checked as they are asked for; missing ones come from the class `defaults`."""

    config: Mapping[str, Any]
    defaults: Mapping[str, Any]
    file: str

    def get(self, *names: str) -> tuple[str, Any]:
        """The first of `names` that is set, and its value; the first name and None if none is.

        A class default counts only where the config has none of the names: null there means "none", not "default".
        """
        stated = any(name in self.config for name in names)
        source = self.config if stated else self.defaults
        key = next((name for name in names if source.get(name) is not None), names[0])
        return key, source.get(key)

    def size(self, most: int, *names: str) -> int:
        """A whole number from 1 to `most` under one of `names`, which must be set."""
        key, value = self.get(*names)
        if type(value) is not int or not 1 <= value <= most:
            raise bad(self.file, key, value, f"a whole number from 1 to {most}")
        return value

    def optional_size(self, most: int, *names: str) -> int | None:
        """As `size`, None if no name is set or the value is 0."""
        _, value = self.get(*names)
        unset = value is None or (type(value) is int and value == 0)
        return None if unset else self.size(most, *names)

    def flag(self, name: str, default: bool = False) -> bool:
        """A true or false under `name`, `default` if it is neither in the config nor a class default."""
        key, value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise bad(self.file, key, value, "true or false")
        return value


def _common(fields: Fields, model_type: str) -> Architecture:
    family = FAMILIES[model_type]
    hidden = fields.size(MOST_HIDDEN, "hidden_size")
    attention = _attention(fields, hidden)
    mlp = Mlp(matrices=3, width=fields.size(MOST_WIDTH, "intermediate_size"))
    vectors = (
        family.norms * hidden + _qk_norm(fields, family, attention) + _biases(fields, family, attention, mlp, hidden)
    )
    block = Block(fields.size(MOST_LAYERS, *LAYERS), attention, mlp, vectors)
    return _architecture(fields, model_type, hidden, block, final_norm_params=hidden)


def _falcon(fields: Fields, model_type: str) -> Architecture:
    hidden = fields.size(MOST_HIDDEN, "hidden_size")
    heads = fields.size(MOST_HEADS, *HEADS)
    new = fields.flag("new_decoder_architecture")
    one_kv_head = fields.flag("multi_query", default=True) and not new
    attention = _attention(fields, hidden, kv_heads=1 if one_kv_head else None)
    mlp = Mlp(matrices=2, width=fields.optional_size(MOST_WIDTH, *WIDTH) or 4 * hidden)
    two_norms = not fields.flag("parallel_attn", default=True)
    norms = fields.optional_size(2, "num_ln_in_parallel_attn") or 2 if new else 1 + two_norms
    biases = (
        (heads + 2 * attention.kv_heads) * attention.head_dim + 2 * hidden + mlp.width if fields.flag("bias") else 0
    )
    block = Block(fields.size(MOST_LAYERS, *LAYERS), attention, mlp, 2 * norms * hidden + biases)
    return _architecture(fields, model_type, hidden, block, final_norm_params=2 * hidden)


_BUILDERS: Final[Mapping[str, Callable[[Fields, str], Architecture]]] = {FALCON: _falcon}


def _architecture(fields: Fields, model_type: str, hidden: int, block: Block, final_norm_params: int) -> Architecture:
    quantised = fields.config.get("quantization_config") is not None
    return Architecture(
        model_type=model_type,
        hidden_size=hidden,
        vocab_size=fields.size(MOST_VOCABULARY, "vocab_size"),
        tied_embeddings=fields.flag("tie_word_embeddings"),
        final_norm_params=final_norm_params,
        blocks=(block,),
        checkpoint_dtype="fp8" if quantised else None,
    )


def _attention(fields: Fields, hidden: int, kv_heads: int | None = None) -> Attention:
    heads = fields.size(MOST_HEADS, *HEADS)
    kv = kv_heads or fields.optional_size(MOST_HEADS, *KV_HEADS) or heads
    if heads % kv:
        raise bad(fields.file, fields.get(*KV_HEADS)[0], kv, f"a divisor of the {heads} query heads")
    return Attention(heads, kv, _head_dim(fields, hidden, heads))


def _head_dim(fields: Fields, hidden: int, heads: int) -> int:
    stated = fields.optional_size(MOST_HEAD_DIM, "head_dim")
    if stated is None and hidden % heads:
        raise bad(
            fields.file,
            "head_dim",
            None,
            f"a whole number, since hidden_size {hidden} is not a multiple of {heads} heads",
        )
    return stated or hidden // heads


def _qk_norm(fields: Fields, family: Family, attention: Attention) -> int:
    per_head = attention.heads + attention.kv_heads if family.qk_norm == "key" and fields.flag("use_qk_norm") else 0
    return attention.head_dim * (2 if family.qk_norm == "shared" else per_head)


def _biases(fields: Fields, family: Family, attention: Attention, mlp: Mlp, hidden: int) -> int:
    qkv = (attention.heads + 2 * attention.kv_heads) * attention.head_dim
    every = family.qkv_bias == "key" and fields.flag("attention_bias")
    of_mlp = family.mlp_bias_key and fields.flag("mlp_bias")
    in_attention = qkv + hidden if every else qkv if family.qkv_bias == "always" else 0
    return in_attention + (2 * mlp.width + hidden if of_mlp else 0)


def _foreign(fields: Fields) -> str | None:
    for key in FOREIGN_KEYS:
        if fields.config.get(key):
            return f"{key} is set: only plain dense decoders are read"
    kinds = fields.get("layer_types")[1]
    if kinds is None or (isinstance(kinds, list) and all(kind == "full_attention" for kind in kinds)):
        return None
    return "layer_types: only full_attention layers are read"


def _windowed(fields: Fields) -> str | None:
    """Whether a sliding window is really on: set, not switched off, shorter than the context, on at least one layer."""
    window = fields.optional_size(LONGEST_CONTEXT, "sliding_window")
    if window is None or not fields.flag("use_sliding_window", default=True):
        return None
    context = fields.optional_size(LONGEST_CONTEXT, "max_position_embeddings")
    first_windowed = fields.optional_size(LONGEST_CONTEXT, "max_window_layers") or 0
    if (context and window >= context) or first_windowed >= fields.size(MOST_LAYERS, *LAYERS):
        return None
    return f"sliding_window = {window}: only full attention is read"


def _quantised(fields: Fields) -> str | None:
    """Why a quantised checkpoint is not understood: only FP8 of all projections is, for then one dtype says it all."""
    other = next((key for key in OTHER_QUANTISATION_KEYS if fields.config.get(key)), None)
    quantisation = fields.config.get("quantization_config")
    if other or quantisation is None:
        return f"{other} is set: only quantization_config is read" if other else None
    if not isinstance(quantisation, dict):
        raise bad(fields.file, "quantization_config", quantisation, "an object, or null")
    if quantisation.get("quant_method") != "fp8":
        return f"quantization_config.quant_method = {str(quantisation.get('quant_method'))[:64]!r}: only fp8 is read"
    kept = quantisation.get("modules_to_not_convert") or []
    understood = isinstance(kept, list) and all(any(part in str(name) for part in UNQUANTISED_PARTS) for name in kept)
    return None if understood else "quantization_config.modules_to_not_convert keeps projections unquantised"


@cache
def _class_defaults() -> Mapping[str, Mapping[str, Any]]:
    defaults: Mapping[str, Mapping[str, Any]] = read_json(DATA / "model_type_defaults.json")[0]["defaults"]
    return defaults
