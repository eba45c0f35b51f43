"""The vision tower of a multimodal model: its matrices, and what joins it to the language model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from lambdamax.hub.fields import MOST_HIDDEN, MOST_LAYERS, MOST_WIDTH, Fields

_MOST_PATCH: Final = 256
_MOST_IMAGE: Final = 65_536
_MOST_RATIO: Final = 64.0
_COLOURS: Final = 3

# Parameters of what joins tower and model, from the widths of both and the fields of the tower and of the whole.
Projector = Callable[[int, int, Fields, Fields], int]


@dataclass(frozen=True)
class _Tower:
    """A vision transformer: four square attention matrices and an MLP of `matrices` a layer.

    A patch spans `frames` images. `positions` are learned; `beyond`: one for each patch of the image and that many
    more, class embedding and all; `image`: its side, where that is not stated. `width`, `wide` and `depth` are the keys
    of the tower's width, of its MLP's and of its layers; the MLP may be given as a multiple, under `mlp_ratio`.
    """

    projector: Projector
    matrices: int = 2
    frames: int = 1
    positions: int = 0
    beyond: int | None = None
    width: tuple[str, ...] = ("hidden_size", "vt_hidden_size", "width")
    wide: tuple[str, ...] = ("intermediate_size", "vt_intermediate_size")
    image: int | None = None
    depth: tuple[str, ...] = ("num_hidden_layers", "depth", "vt_num_hidden_layers", "layers")


def _merger(copies: int) -> Projector:
    """`copies` MLPs on four patches side by side, one of them at the end and the others for inner layers."""

    def count(width: int, hidden: int, tower: Fields, outer: Fields) -> int:
        inner = tower.get("deepstack_visual_indexes")[1]
        mergers = 1 + len(inner) if isinstance(inner, list) and len(inner) < copies else copies
        return mergers * 4 * width * (4 * width + hidden)

    return count


def _linear(width: int, hidden: int, tower: Fields, outer: Fields) -> int:
    return width * hidden


def _two(width: int, hidden: int, tower: Fields, outer: Fields) -> int:
    return (width + hidden) * hidden


def _shuffled(width: int, hidden: int, tower: Fields, outer: Fields) -> int:
    """Two matrices, from four patches side by side."""
    return (4 * width + hidden) * hidden


def _scaled(width: int, hidden: int, tower: Fields, outer: Fields) -> int:
    """One matrix, from a square of `scale_factor` patches side by side."""
    scale = outer.optional_size(_MOST_PATCH, "scale_factor") or 2
    return width * scale * scale * hidden


def _halved(usual: int) -> Projector:
    """A matrix from a square of patches to a width (the model's, if not stated or `usual`), one from its gated half."""

    def count(width: int, hidden: int, tower: Fields, outer: Fields) -> int:
        scale = outer.optional_size(_MOST_PATCH, "downsample_factor") or 2
        between = outer.optional_size(MOST_WIDTH, "alignment_intermediate_size") or usual or hidden
        return between * (width * scale * scale + hidden // 2)

    return count


def _pixtral(width: int, hidden: int, tower: Fields, outer: Fields) -> int:
    return 4 * width * width + width * hidden + hidden * hidden


def _llama4(width: int, hidden: int, tower: Fields, outer: Fields) -> int:
    between = tower.optional_size(MOST_HIDDEN, "projector_input_dim", "vision_output_dim") or 4096
    return between * (tower.size(MOST_WIDTH, "intermediate_size") + between + hidden)


def _muse(width: int, hidden: int, tower: Fields, outer: Fields) -> int:
    between = outer.size(MOST_HIDDEN, "projector_hidden_size")
    return between * (outer.size(MOST_HIDDEN, "out_hidden_size") + between + hidden)


def _minimax(width: int, hidden: int, tower: Fields, outer: Fields) -> int:
    between = outer.size(MOST_HIDDEN, "projector_hidden_size")
    return between * (width + hidden + 4 * hidden + hidden)


def _glm5(width: int, hidden: int, tower: Fields, outer: Fields) -> int:
    out = tower.size(MOST_HIDDEN, "out_hidden_size")
    between = tower.optional_size(MOST_WIDTH, "projection_intermediate_size") or 10240
    return 4 * width * out + out * out + 3 * out * between


def _glm4(width: int, hidden: int, tower: Fields, outer: Fields) -> int:
    """Four patches to the model's width, a square matrix there, and a gated MLP as wide as `intermediate_size`."""
    out = tower.size(MOST_HIDDEN, "out_hidden_size")
    return out * (4 * width + out + 3 * tower.size(MOST_WIDTH, "intermediate_size"))


_QWEN3: Final = _Tower(_merger(4), frames=2, positions=2304)
_QWEN3_5: Final = _Tower(_merger(1), frames=2, positions=2304)
_KIMI: Final = _Tower(_merger(1), positions=4096)
_SIGLIP: Final = _Tower(_two, beyond=0)
_INTERN: Final = _Tower(_shuffled, beyond=2)

# By model type, or where towers of several kinds stand in one, by both model types.
_TOWERS: Final[Mapping[str, _Tower]] = {
    "qwen2_vl": _Tower(_merger(1), frames=2, width=("embed_dim",)),
    "qwen2_5_vl": _Tower(_merger(1), matrices=3, frames=2),
    "qwen3_vl": _QWEN3,
    "qwen3_vl_moe": _QWEN3,
    "qwen3_5": _QWEN3_5,
    "qwen3_5_moe": _QWEN3_5,
    "gemma3": _Tower(_linear, positions=4096),
    "gemma4": _Tower(_linear, matrices=3, positions=20480),
    "mistral3": _Tower(_pixtral, matrices=3),
    "llama4": _Tower(_llama4, positions=577),
    "muse_glimmer": _Tower(_muse, frames=2, positions=1024),
    "minimax_m3_vl": _Tower(_minimax, frames=2),
    "kimi_vl": _KIMI,
    "kimi_k25": _KIMI,
    "glm4v": _Tower(_glm4, matrices=3, frames=2, beyond=0, wide=("out_hidden_size",)),
    "glm5_next": _Tower(_glm5, matrices=3, frames=2),
    "llava/clip_vision_model": _Tower(_two, beyond=2),
    "llava/siglip_vision_model": _SIGLIP,
    "llava/pixtral": _Tower(_two, matrices=3),
    "llava_next/clip_vision_model": _Tower(_two, beyond=2),
    "aya_vision": _Tower(_halved(0), beyond=0),
    "cohere2_vision": _Tower(_halved(36_864), beyond=0),
    "idefics3": _Tower(_scaled, beyond=0),
    "smolvlm": _Tower(_scaled, beyond=0),
    "internvl": _INTERN,
    "internvl_chat": _INTERN,
    "deepseek_vl_v2": _Tower(_shuffled, beyond=0, image=384),
}


def tower_params(outer: Fields, model_type: str, hidden: int) -> tuple[int, tuple[str, ...]]:
    """Parameters of the vision tower's matrices, and a note on what is not counted.

    Its biases and norms, less than 0.1 % of it, are left out.
    """
    fields = outer.table("vision_config")
    tower = _tower_of(fields, model_type)
    notes = tuple(f"{outer.prefix}{name} is not counted" for name in _uncounted(outer, tower))
    if fields is None or tower is None:
        return 0, notes
    width = fields.size(MOST_HIDDEN, *tower.width)
    depth = fields.size(MOST_LAYERS, *tower.depth)
    side = _side(fields, _MOST_PATCH, "patch_size", None)
    patch = _COLOURS * tower.frames * side**2
    layers = depth * width * (4 * width + tower.matrices * _wide(fields, tower, width))
    outside = width * (patch + tower.positions + _learned(fields, tower, side))
    return layers + outside + tower.projector(width, hidden, fields, outer), notes


def _tower_of(fields: Fields | None, model_type: str) -> _Tower | None:
    kind = fields.get("model_type")[1] if fields else None
    return _TOWERS.get(model_type) or _TOWERS.get(f"{model_type}/{str(kind)[:64]}")


def _wide(fields: Fields, tower: _Tower, width: int) -> int:
    """The width of the tower's MLP: stated, or a multiple of the tower's."""
    key, ratio = fields.get("mlp_ratio")
    if ratio is None or fields.has(*tower.wide):
        return fields.size(MOST_WIDTH, *tower.wide)
    if type(ratio) not in (int, float) or not 0 < ratio <= _MOST_RATIO:
        raise fields.fault(key, ratio, f"a number above 0 and at most {_MOST_RATIO}")
    return int(ratio * width)


def _learned(fields: Fields, tower: _Tower, side: int) -> int:
    """Learned positions, one for each patch of the image, and what is learned beyond them."""
    if tower.beyond is None:
        return 0
    image = _side(fields, _MOST_IMAGE, "image_size", tower.image)
    return (image // side) ** 2 + tower.beyond


def _side(fields: Fields, most: int, name: str, usual: int | None) -> int:
    """The side of a square: one number, or two that are equal."""
    key, value = fields.get(name)
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
        fields = replace(fields, config={**fields.config, key: value[0]})
    return usual if usual and value is None else fields.size(most, name)


def _uncounted(outer: Fields, tower: _Tower | None) -> list[str]:
    towers = [] if tower else ["vision_config"]
    return [name for name in (*towers, "audio_config") if outer.has(name)]
