"""The reader of a model's `config.json`: from the field names of each family to one `Architecture`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from lambdamax.architecture import Architecture, Block, Unsupported
from lambdamax.facts import DATA, bad, checksum, read_json
from lambdamax.hub.blocks import blocks_of
from lambdamax.hub.dialects import spoken
from lambdamax.hub.extras import draft_params
from lambdamax.hub.families import FAMILIES, INNER, NAS, REFUSED, WRAPPERS, model_types
from lambdamax.hub.family import Family
from lambdamax.hub.fields import LONGEST_CONTEXT, MOST_HIDDEN, MOST_VOCABULARY, Fields, NotSizedError
from lambdamax.hub.layers import Layer, layers_of
from lambdamax.hub.native import is_native, translated
from lambdamax.hub.quantisation import checkpoint_of
from lambdamax.hub.strays import refuse_strays
from lambdamax.hub.towers import tower_params
from lambdamax.hub.unlike import falcon_block, searched_blocks

__all__ = ["model_types", "read_architecture", "read_config"]

# Far above any model, and low enough for exact sums in float64.
MOST_PARAMS: Final = 10**15
_FALCON: Final = "falcon"
# What a DeepSeek-V2 without latent attention is built as.
_WITHOUT_LATENT: Final = "deepseek"


def read_config(path: Path) -> tuple[Architecture | Unsupported, str]:
    """The architecture in the `config.json` at `path` (a file, or the directory that holds it) and the file's checksum.

    A directory may hold Mistral's `params.json` instead, and a `hf_quant_config.json` beside. Raises CatalogError with
    file, key, value and what is allowed if the file cannot be read or a size makes no sense.
    """
    if not os.path.isdir(path):  # no OSError for odd names
        config, digest = read_json(path)
        return read_architecture(config, str(path)), digest
    named = [path / name for name in ("config.json", "params.json") if os.path.exists(path / name)]
    file = named[0] if named else path / "config.json"
    config, digest = read_json(file)
    beside = path / "hf_quant_config.json"
    if os.path.exists(beside):
        quantisation, other = read_json(beside)
        config, digest = {**config, "hf_quant_config": quantisation}, checksum((digest + other).encode())
    return read_architecture(config, str(file)), digest


def read_architecture(config: Mapping[str, Any], file: str) -> Architecture | Unsupported:
    """The architecture that `config` describes; `file` is the name that errors give."""
    try:
        found = _read(translated(config, file) if is_native(config) else config, file)
    except NotSizedError as reason:
        return Unsupported(str(reason))
    if found.total_params > MOST_PARAMS:
        raise bad(file, "parameters", found.total_params, f"at most {MOST_PARAMS} in all")
    return found


@dataclass(frozen=True)
class _Model:
    """A config taken apart: the whole, the language model in it, and their model types."""

    outer: Fields
    text: Fields
    model_type: str
    text_type: str


def _read(config: Mapping[str, Any], file: str) -> Architecture:
    model = _parts(config, file)
    hidden = model.text.size(MOST_HIDDEN, "hidden_size")
    if model.text_type in (_FALCON, NAS):
        layers, blocks, draft = _unlike(model, hidden)
    else:
        layers, blocks, draft = _like(model, hidden)
    return _finished(model, hidden, layers, replace(_bare(model, hidden), blocks=blocks, draft_params=draft))


def _parts(config: Mapping[str, Any], file: str) -> _Model:
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise bad(file, "model_type", model_type, "the name of a model type, as in a config.json of the hub")
    if model_type not in model_types():
        reason = REFUSED.get(model_type, "a family that is not read")
        raise NotSizedError(f"model_type = {model_type[:64]!r}: {reason}")
    outer = Fields(config, {}, file)
    if model_type not in WRAPPERS or (model_type in FAMILIES and not outer.states("text_config")):
        text = _spoken(replace(outer, defaults=_defaults(model_type)), model_type)
        return _Model(text, text, model_type, model_type)
    return _wrapped(outer, model_type)


def _spoken(fields: Fields, model_type: str) -> Fields:
    return spoken(fields, FAMILIES.get(model_type, Family()))


def _wrapped(outer: Fields, model_type: str) -> _Model:
    place = INNER.get(model_type, "text_config")
    text = outer.table(place)
    if text is None:
        raise outer.fault(place, None, "an object with the language model's sizes")
    usual = WRAPPERS[model_type]
    text_type = text.config.get("model_type") or usual[0]
    if text_type not in usual:
        raise NotSizedError(f"{place}.model_type = {str(text_type)[:64]!r}: only {', '.join(usual)} under {model_type}")
    if text_type == "deepseek_v2" and not text.flag("use_mla", default=True):
        text_type = _WITHOUT_LATENT
    text = replace(text, defaults={**_facts("inner_defaults").get(text_type, {}), **_defaults(text_type)})
    return _Model(outer, _spoken(text, text_type), model_type, text_type)


def _like(model: _Model, hidden: int) -> tuple[list[Layer], tuple[Block, ...], int]:
    family = FAMILIES[model.text_type]
    layers = layers_of(model.text, family)
    blocks = blocks_of(model.text, family, layers, hidden)
    return layers, blocks, draft_params(model.text, family, layers, hidden)


def _unlike(model: _Model, hidden: int) -> tuple[list[Layer], tuple[Block, ...], int]:
    blocks = (falcon_block(model.text, hidden),) if model.text_type == _FALCON else searched_blocks(model.text, hidden)
    return [("full", "dense")] * sum(block.count for block in blocks), blocks, 0


def _bare(model: _Model, hidden: int) -> Architecture:
    """What stands around the layers."""
    return Architecture(
        model_type=model.model_type,
        hidden_size=hidden,
        vocab_size=model.text.size(MOST_VOCABULARY, "vocab_size"),
        tied_embeddings=_tied(model),
        final_norm_params=_around(model, hidden),
        blocks=(),
        context_tokens=model.text.optional_size(LONGEST_CONTEXT, "max_position_embeddings") or 0,
    )


def _around(model: _Model, hidden: int) -> int:
    """Parameters of the last norm, of the head's bias and of learned positions."""
    family = FAMILIES.get(model.text_type, Family())
    norms = 2 if model.text_type == _FALCON else family.final_norms
    bias = model.text.size(MOST_VOCABULARY, "vocab_size") if model.text.on(family.head_bias) else 0
    rows = 0
    if family.positions is not None:
        rows = model.text.size(LONGEST_CONTEXT, "max_position_embeddings") + family.positions
    return norms * hidden + bias + rows * hidden


def _tied(model: _Model) -> bool:
    """Whether the head is the embedding: as the language model says, else the whole, else the class."""
    name = "tie_word_embeddings"
    source = model.text if model.text.states(name) or not model.outer.states(name) else model.outer
    return source.flag(name)


def _finished(model: _Model, hidden: int, layers: Sequence[Layer], found: Architecture) -> Architecture:
    """`found` with its checkpoint, its vision tower and the notes on both; refused if a structural key is left."""
    parts = [model.outer] if model.outer is model.text else [model.outer, model.text]
    if any(fields.flag("is_encoder_decoder") for fields in parts):
        raise NotSizedError("is_encoder_decoder is true: only decoders are read")
    family = FAMILIES.get(model.text_type, Family())
    checkpoint, stored = checkpoint_of(parts, family, layers)
    if checkpoint is not None and family.layers == "both":
        raise NotSizedError(
            "quantization_config is set: it is not read where attention and recurrence stand side by side"
        )
    tower, uncounted = tower_params(model.outer, model.model_type, hidden)
    stray = refuse_strays(parts)
    if stray is not None:
        raise NotSizedError(stray)
    return replace(found, checkpoint=checkpoint, other_params=tower, notes=(*stored, *uncounted))


def _defaults(model_type: str) -> Mapping[str, Any]:
    return _facts("defaults").get(model_type, {})


@cache
def _facts(kind: str) -> Mapping[str, Mapping[str, Any]]:
    facts: Mapping[str, Mapping[str, Any]] = read_json(DATA / "model_type_defaults.json")[0][kind]
    return facts
