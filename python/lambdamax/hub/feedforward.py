"""What follows the mixer in a layer, from the fields of its family: a dense MLP, routed experts, or both."""

from __future__ import annotations

from dataclasses import dataclass

from lambdamax.architecture import Experts, Mlp
from lambdamax.hub.family import Family, FeedKind, Moe
from lambdamax.hub.fields import MOST_EXPERTS, MOST_HIDDEN, MOST_WIDTH, Fields, NotSizedError

_MOST_FACTOR = 64.0


@dataclass(frozen=True)
class Feed:
    """The MLP and the experts of a layer, and the parameters of their small tensors."""

    mlp: Mlp | None = None
    experts: Experts | None = None
    vectors: int = 0


def feed_of(fields: Fields, family: Family, kind: FeedKind, hidden: int) -> Feed:
    """What follows the mixer in a layer of `kind`."""
    if kind == "none":
        return Feed()
    if kind == "dense" or family.moe is None:
        mlp = Mlp(family.mlp_matrices, _mlp_width(fields, family, hidden))
        return Feed(mlp, vectors=_biases(fields, family, mlp, hidden))
    experts = _experts(fields, family.moe, hidden)
    mlp_beside = _shared(fields, family, family.moe, experts.width)
    return Feed(mlp_beside, experts, _vectors(fields, family.moe, experts, hidden))


def _mlp_width(fields: Fields, family: Family, hidden: int) -> int:
    """As stated, else a multiple of the model's where the family has one."""
    stated = fields.optional_size(MOST_WIDTH, *family.mlp_width) if family.mlp_multiple else None
    width = stated or family.mlp_multiple * hidden or fields.size(MOST_WIDTH, *family.mlp_width)
    return _adjusted(fields, width) if family.recurrence == "short_conv" else width


def _adjusted(fields: Fields, width: int) -> int:
    """LFM2's width: two thirds of the stated one times a factor, rounded up to a multiple, if a key says so."""
    names = ("block_ffn_dim_multiplier", "block_multiple_of")
    fields.asked.update(names)
    if not fields.flag("block_auto_adjust_ff_dim"):
        return width
    key, factor = fields.get(names[0])
    if factor is not None and (type(factor) not in (int, float) or not 0 < factor <= _MOST_FACTOR):
        raise fields.fault(key, factor, f"a number above 0 and at most {_MOST_FACTOR}, or null")
    step = fields.size(MOST_WIDTH, names[1])
    return -(-int((factor or 1) * int(2 * width / 3)) // step) * step


def _biases(fields: Fields, family: Family, mlp: Mlp, hidden: int) -> int:
    return (mlp.matrices - 1) * mlp.width + hidden if fields.on(family.mlp_bias) else 0


def _experts(fields: Fields, moe: Moe, hidden: int) -> Experts:
    count = fields.size(MOST_EXPERTS, *moe.count)
    per_token = fields.size(count, *moe.per_token)
    latent = fields.optional_size(MOST_HIDDEN, *moe.latent) if moe.latent else None
    return Experts(
        count=count,
        per_token=per_token,
        matrices=moe.matrices,
        width=fields.size(MOST_WIDTH, *moe.width),
        hidden=latent or hidden,
        outer_params=2 * hidden * latent if latent else 0,
    )


def _shared(fields: Fields, family: Family, moe: Moe, expert_width: int) -> Mlp | None:
    width = _shared_width(fields, family, moe, expert_width)
    return Mlp(moe.matrices, width) if width else None


def _shared_width(fields: Fields, family: Family, moe: Moe, expert_width: int) -> int | None:
    """The width of all shared experts together, None if there are none."""
    match moe.shared:
        case "count":
            return (fields.optional_size(MOST_EXPERTS, *moe.shared_keys) or 0) * expert_width
        case "width":
            return _stated_shared_width(fields, moe)
        case "one":
            return expert_width
        case "dense":
            return fields.size(MOST_WIDTH, *family.mlp_width)
        case "none":
            return None


def _stated_shared_width(fields: Fields, moe: Moe) -> int | None:
    count = fields.optional_size(MOST_EXPERTS, "n_shared_experts")
    if count is not None and count > 1:
        raise NotSizedError(f"{fields.prefix}n_shared_experts = {count}: only one of {moe.shared_keys[0]} is read")
    return fields.optional_size(MOST_WIDTH, *moe.shared_keys)


def _vectors(fields: Fields, moe: Moe, experts: Experts, hidden: int) -> int:
    """Biases of router and experts, the gate of a shared expert, norms of a latent space or of an MLP beside."""
    router = experts.count if moe.router_bias else 0
    biases = experts.count * ((moe.matrices - 1) * experts.width + hidden) if moe.expert_bias else 0
    gate = hidden if moe.shared_gate and fields.has(*moe.shared_keys) else 0
    norm = experts.hidden if moe.latent and fields.flag("latent_moe_use_norm") else 0
    beside = 4 * hidden + experts.count if moe.shared == "dense" else 0
    return router + biases + gate + norm + beside
