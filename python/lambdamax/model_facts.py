"""What is known of one model, and the sizes that follow from it in every number format."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from lambdamax.architecture import Architecture, Attention, Block, Experts
from lambdamax.catalog import Catalog
from lambdamax.engine import Replicas
from lambdamax.models import Model
from lambdamax.replicas import NATIVE, Deployment, ReplicaRow

_BF16: Final = "bf16"
_SIZES: Final = (
    "total_params",
    "active_params",
    "weight_bytes",
    "weight_bytes_by_dtype",
    "kv_bytes_per_token",
    "kv_bytes_per_token_by_dtype",
    "state_bytes_per_sequence",
)


def model_facts(catalog: Catalog, name_or_path: str) -> dict[str, Any]:
    """Every fact about a model by name; its sizes are None if it is unsupported, which says why.

    `weight_bytes` is in the checkpoint's own formats, `kv_bytes_per_token` in 16 bits, every layer counted in full.
    """
    model = catalog.model(name_or_path)
    made_of = model.architecture
    shape = dict.fromkeys(("model_type", *_SIZES)) if made_of is None else _shape(catalog, name_or_path, model, made_of)
    return {
        "name": model.name,
        "source": model.source,
        "date": model.date,
        "checksum": model.checksum,
        "unsupported": model.unsupported,
        "published_params": model.published_params,
        "published_active_params": model.published_active_params,
        **shape,
        "note": model.note,
    }


def _shape(catalog: Catalog, asked: str, model: Model, made_of: Architecture) -> dict[str, Any]:
    return {
        "model_type": made_of.model_type,
        "total_params": made_of.total_params,
        "active_params": made_of.active_params,
        "params_beside_the_language_model": made_of.other_params,
        "draft_params_not_counted": made_of.draft_params,
        "weight_dtype": model.checkpoint.dtype,
        "checkpoint": _checkpoint(model),
        **_bytes(catalog, asked),
        "layers": model.layers,
        "layer_counts": model.layer_counts,
        "windows": _windows(made_of.blocks),
        "experts": _experts(made_of.blocks),
        "hidden_size": made_of.hidden_size,
        "vocab_size": made_of.vocab_size,
        "tied_embeddings": made_of.tied_embeddings,
        "context_tokens": made_of.context_tokens or None,
    }


def _checkpoint(model: Model) -> dict[str, Any]:
    """The format of each part that the model has; embedding, norms and router are 16-bit."""
    stored = {name: value for name, value in asdict(model.checkpoint).items() if name != "dtype"}
    present = {"mlp": any(b["mlp_params"] for b in model.facts), "experts": any(b["experts"] for b in model.facts)}
    return {name: value for name, value in stored.items() if present.get(name, True)}


def _windows(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    """The layers that see, or read, no more than so many tokens."""
    found: dict[tuple[str, int], int] = {}
    for block in blocks:
        mixer = block.mixer
        if isinstance(mixer, Attention) and mixer.span.kind != "full":
            key = f"{mixer.span.kind}_attention", mixer.span.tokens
            found[key] = found.get(key, 0) + block.count
    return [{"kind": kind, "tokens": tokens, "layers": layers} for (kind, tokens), layers in found.items()]


def _experts(blocks: Sequence[Block]) -> list[dict[str, int]]:
    """The kinds of routed experts: how many a layer has, how many a token passes, and parameters of one."""
    kinds: dict[Experts, int] = {}
    for block in blocks:
        if block.experts is not None:
            kinds[block.experts] = kinds.get(block.experts, 0) + block.count
    return [
        {"count": each.count, "per_token": each.per_token, "params_of_one": each.expert_params, "layers": layers}
        for each, layers in kinds.items()
    ]


def _bytes(catalog: Catalog, asked: str) -> dict[str, Any]:
    """Weight bytes by weight format and KV bytes per token by KV format, from the engine."""
    weights, kv = catalog.weight_dtypes, catalog.kv_dtypes
    at = Deployment(asked, catalog.accelerators[0])
    replicas = [
        *(replace(at, weight_dtype=dtype, kv_dtype=_BF16) for dtype in weights),
        *(replace(at, weight_dtype=NATIVE, kv_dtype=dtype) for dtype in kv),
    ]
    found = Replicas.of([_anywhere(catalog.replica(each)) for each in replicas]).facts()
    by_weight = dict(zip(weights, found["weight_bytes"].tolist(), strict=False))
    by_kv = dict(zip(kv, found["kv_bytes_per_token"][len(weights) :].tolist(), strict=True))
    return {
        "weight_bytes": by_weight[NATIVE],
        "weight_bytes_by_dtype": by_weight,
        "kv_bytes_per_token": by_kv[_BF16],
        "kv_bytes_per_token_by_dtype": by_kv,
        "state_bytes_per_sequence": float(found["state_bytes"][0]),
    }


def _anywhere(row: ReplicaRow) -> ReplicaRow:
    """`row` as if its device computed in every format: bytes do not depend on that."""
    peaks = {name: 1.0 for name, value in row.fields.items() if name.endswith("_flops") and math.isnan(value)}
    return replace(row, fields={**row.fields, **peaks, "supported": 1.0})
