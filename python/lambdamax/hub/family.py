"""What a family is: all that the code of a `model_type` says of its layers and its config does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from lambdamax.hub.fields import ALWAYS

# What mixes tokens in a layer, and what follows it.
MixerKind = Literal["full", "sliding", "chunked", "sparse", "sparse_shared", "recurrent", "none"]
FeedKind = Literal["dense", "sparse", "none"]
Recurrence = Literal["", "gated_delta", "kimi_delta", "mamba1", "mamba1_bare", "mamba2", "lightning", "short_conv"]

LAYERS: Final = ("num_hidden_layers", "n_layer")


@dataclass(frozen=True)
class HeadKeys:
    """The keys, most specific first, of the sizes of an attention layer's heads."""

    heads: tuple[str, ...] = ("num_attention_heads", "n_head")
    kv_heads: tuple[str, ...] = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "num_attention_groups")
    key_dim: tuple[str, ...] = ("head_dim", "attention_head_dim")
    value_dim: tuple[str, ...] = ()

    def before(self, heads: str = "", kv_heads: str = "", key_dim: str = "", value_dim: str = "") -> HeadKeys:
        """These keys, each given one asked first."""
        first = {"heads": heads, "kv_heads": kv_heads, "key_dim": key_dim, "value_dim": value_dim}
        return replace(self, **{name: (key, *getattr(self, name)) for name, key in first.items() if key})


HEADS: Final = HeadKeys()


@dataclass(frozen=True)
class Moe:
    """Where a family keeps the sizes of its experts, and what its router adds.

    `shared`: the MLP beside the experts is as wide as one expert times a count ("count"), as stated ("width"), as an
    expert ("one"), or is a dense MLP with norms of its own ("dense"). `shared_gate`: one more router row gates it.
    """

    count: tuple[str, ...]
    width: tuple[str, ...] = ("moe_intermediate_size",)
    per_token: tuple[str, ...] = ("num_experts_per_tok",)
    shared: Literal["none", "count", "width", "one", "dense"] = "none"
    shared_keys: tuple[str, ...] = ()
    shared_gate: bool = False
    matrices: int = 3
    router_bias: bool = False
    expert_bias: bool = False
    latent: tuple[str, ...] = ()


@dataclass(frozen=True)
class Family:
    """One `model_type`: `layers` names the rule that tells its layers apart, `mixers` what they may be.

    What a key switches on is given by that key, or by ALWAYS. `norms`: norm vectors as wide as the model in a layer (a
    LayerNorm with a bias is two), half of them where the key `parallel` puts mixer and MLP side by side; `final_norms`
    as many after the last layer. `qk_norm` with `qk_key`: a norm per head dim ("head") or over all heads ("all").
    `bias` with `bias_key`: on query, key and value ("qkv") and on the output too ("all"); `out_bias`: on the output
    alone. `gate`: an output gate as wide as the heads, with a key, always, or of one value a head. `value_share`: a
    latent head's value has the model's share of elements where its size is not stated. `mlp_multiple`: the MLP's width
    in hidden sizes where it is not stated. `positions`: rows of a learned position table beyond the context, None if
    there is no table. `hyper`: several residual streams, mixed by small matrices. `draft`: what follows the mixer in a
    draft layer, if not the same as in the last layer.

    Of its config: `names` are its own for the usual ones, `inside` objects whose keys are read as if they stood
    outside, `by_layer` lists of one value a layer, read if all are equal. `multi_query`: the key that lets query heads
    share key and value. `only`: keys of which some values are read; `same`: keys that must equal another; `harmless`:
    keys that change no size here.
    """

    layers: str = "full"
    mixers: frozenset[MixerKind] = frozenset({"full"})
    norms: int = 2
    final_norms: int = 1
    parallel: str = ""
    qk_norm: Literal["none", "head", "all"] = "none"
    qk_key: str = ALWAYS
    bias: Literal["none", "qkv", "all"] = "none"
    bias_key: str = "attention_bias"
    out_bias: str = ""
    gate: Literal["none", "key", "always", "per_head"] = "none"
    latent: bool = False
    value_share: bool = False
    sinks: bool = False
    recurrence: Recurrence = ""
    heads: Mapping[str, HeadKeys] = field(default_factory=dict)
    mlp_matrices: int = 3
    mlp_bias: str = ""
    mlp_width: tuple[str, ...] = ("intermediate_size",)
    mlp_multiple: int = 0
    moe: Moe | None = None
    extra_vectors: int = 0
    head_bias: str = ""
    positions: int | None = None
    hyper: bool = False
    draft: FeedKind | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    inside: tuple[str, ...] = ()
    by_layer: tuple[str, ...] = ()
    multi_query: str = ""
    only: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    same: Mapping[str, str] = field(default_factory=dict)
    harmless: tuple[str, ...] = ()


def mixers(*kinds: MixerKind) -> frozenset[MixerKind]:
    """The kinds of mixers that a family has."""
    return frozenset(kinds)


WINDOWS: Final = mixers("full", "sliding")
HYBRID: Final = mixers("full", "recurrent")
