"""What a checkpoint holds beside its decoder and its vision tower: draft layers."""

from __future__ import annotations

from collections.abc import Sequence

from lambdamax.architecture import layer_params
from lambdamax.hub.blocks import block_of
from lambdamax.hub.family import Family
from lambdamax.hub.fields import MOST_LAYERS, Fields
from lambdamax.hub.layers import Layer, one_block_layers


def draft_params(fields: Fields, family: Family, layers: Sequence[Layer], hidden: int) -> int:
    """Parameters of the draft (MTP) layers: each like the model's last, and a projection of two states to one."""
    count = _draft_layers(fields)
    layer = _draft_layer(fields, family, layers)
    params = sum(layer_params(block_of(fields, family, part, hidden), hidden) for part in layer) if count else 0
    return count * (params + 2 * hidden * hidden)


def _draft_layers(fields: Fields) -> int:
    modules = fields.optional_size(MOST_LAYERS, "num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
    each = fields.optional_size(MOST_LAYERS, "mtp_transformer_layers") or 1
    return (modules or 0) * each if fields.flag("use_mtp", default=True) else 0


def _draft_layer(fields: Fields, family: Family, layers: Sequence[Layer]) -> list[Layer]:
    if family.layers == "one_each":
        stated = one_block_layers(fields, "mtp_hybrid_override_pattern", "mtp_layers_block_type", None)
        return stated or [("full", "none"), ("none", "sparse")]
    mixing = next((mixer for mixer, _ in reversed(layers) if mixer != "recurrent"), layers[-1][0])
    return [(mixing, family.draft or layers[-1][1])]
