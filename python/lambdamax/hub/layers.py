"""Which layers a model has: for each, what mixes tokens in it and what follows, by the rule of its family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from lambdamax.hub.family import LAYERS, Family, FeedKind, MixerKind
from lambdamax.hub.fields import LONGEST_CONTEXT, LONGEST_LIST, MOST_LAYERS, Fields, NotSizedError

Layer = tuple[MixerKind, FeedKind]

_WORDS: Final[Mapping[str, MixerKind]] = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "recurrent",
    "mamba": "recurrent",
    "conv": "recurrent",
    "deepseek_sparse_attention": "sparse",
    "indexed_attention": "sparse",
}
# Of a family whose layers are one block each.
_ONE_BLOCK: Final[Mapping[str, Layer]] = {
    "mamba": ("recurrent", "none"),
    "linear_attention": ("recurrent", "none"),
    "attention": ("full", "none"),
    "full_attention": ("full", "none"),
    "mlp": ("none", "dense"),
    "moe": ("none", "sparse"),
}
_LETTERS: Final = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def layers_of(fields: Fields, family: Family) -> list[Layer]:
    """The layers in order; at most MOST_LAYERS of them."""
    if family.layers == "one_each":
        return _one_each(fields, family)
    count = fields.size(MOST_LAYERS, *LAYERS)
    if family.layers == "both":
        return [("recurrent", "none"), ("full", "dense")] * count
    if family.layers == "recurrent":
        return [("recurrent", "none")] * count
    mixers = _mixers(fields, family, count)
    return list(zip(mixers, _feeds(fields, family, count), strict=True))


def one_block_layers(fields: Fields, pattern: str, words: str, count: int | None) -> list[Layer] | None:
    """Layers of one block each, from letters under `pattern` or a list under `words`; None if there are neither."""
    kinds = _letters(fields, pattern, count) or _one_block_words(fields, words, count)
    return None if kinds is None else [_ONE_BLOCK[kind] for kind in kinds]


def _one_each(fields: Fields, family: Family) -> list[Layer]:
    _ask_for_experts(fields, family)
    count = fields.optional_size(MOST_LAYERS, *LAYERS)
    found = one_block_layers(fields, "hybrid_override_pattern", "layers_block_type", count)
    if found is None:
        raise fields.fault("layers_block_type", None, "a list of blocks, or hybrid_override_pattern")
    return found


def _letters(fields: Fields, name: str, count: int | None) -> list[str] | None:
    key, value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not 1 <= len(value) <= MOST_LAYERS or count not in (None, len(value)):
        raise fields.fault(key, value, f"one letter for each of the {count or 'at most 1000'} layers")
    strange = next((letter for letter in value if letter not in _LETTERS), None)
    if strange is not None:
        raise NotSizedError(f"{fields.prefix}{key} holds {strange!r}: only {' '.join(_LETTERS)} are read")
    return [_LETTERS[letter] for letter in value]


def _one_block_words(fields: Fields, name: str, count: int | None) -> list[str] | None:
    value = fields.get(name)[1]
    if value is None:
        return None
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_LAYERS or count not in (None, len(value)):
        raise fields.fault(name, value, f"a word for each of the {count or 'at most 1000'} layers")
    return fields.names(name, len(value), _ONE_BLOCK)


def _mixers(fields: Fields, family: Family, count: int) -> list[MixerKind]:
    rule = _RULES[family.layers]
    name = "layers_block_type" if fields.has("layers_block_type") else "layer_types"
    stated = fields.names(name, count, _words(family))
    named = None if stated is None else [_WORDS[word] for word in stated]
    found = rule(fields, count, named)
    return ["full"] * count if _window_is_off(fields, family) else found


def _words(family: Family) -> list[str]:
    """The words for the mixers that a family has; a convolution is a recurrence of one kind alone."""
    foreign = () if family.recurrence == "short_conv" else ("conv",)
    return [word for word, kind in _WORDS.items() if kind in family.mixers and word not in foreign]


def _window_is_off(fields: Fields, family: Family) -> bool:
    """Whether windowed layers see everything all the same: no window, switched off, or not shorter than the context."""
    if "sliding" not in family.mixers:
        return False
    window = fields.optional_size(LONGEST_CONTEXT, "sliding_window")
    fields.asked.add("sliding_window_size")  # a second name for the same window
    context = fields.optional_size(LONGEST_CONTEXT, "max_position_embeddings")
    return window is None or not fields.flag("use_sliding_window", default=True) or bool(context and window >= context)


Rule = Callable[[Fields, int, "list[MixerKind] | None"], "list[MixerKind]"]


def _full(fields: Fields, count: int, named: list[MixerKind] | None) -> list[MixerKind]:
    return named or ["full"] * count


def _uniform(fields: Fields, count: int, named: list[MixerKind] | None) -> list[MixerKind]:
    windowed = fields.has("sliding_window")
    return named or ["sliding" if windowed else "full"] * count


def _late(fields: Fields, count: int, named: list[MixerKind] | None) -> list[MixerKind]:
    """Windows from layer `max_window_layers` on."""
    first = fields.optional_size(LONGEST_CONTEXT, "max_window_layers") or 0
    return named or ["full" if layer < first else "sliding" for layer in range(count)]


def _alternate(fields: Fields, count: int, named: list[MixerKind] | None) -> list[MixerKind]:
    return named or ["full" if layer % 2 else "sliding" for layer in range(count)]


def _every(fields: Fields, count: int, named: list[MixerKind] | None) -> list[MixerKind]:
    """Every n-th layer is full, if no list says otherwise and there is a window at all."""
    names = ("sliding_window_pattern", "_sliding_window_pattern")
    if named or not fields.has("sliding_window"):
        fields.get(*names)
        return named or ["full"] * count
    period = fields.size(MOST_LAYERS, *names)
    return ["sliding" if (layer + 1) % period else "full" for layer in range(count)]


def _chunks(fields: Fields, count: int, named: list[MixerKind] | None) -> list[MixerKind]:
    """Layers with rotary positions see their chunk alone; those without (0 in `no_rope_layers`) see everything."""
    period = fields.optional_size(MOST_LAYERS, "no_rope_layer_interval") or 4
    rotary = fields.marks("no_rope_layers", count) if fields.has("no_rope_layers") else None
    rotary = rotary or [(layer + 1) % period != 0 for layer in range(count)]
    if not fields.has("attention_chunk_size"):
        return ["full"] * count
    return named or ["chunked" if mark else "full" for mark in rotary]


def _interval(fields: Fields, count: int, named: list[MixerKind] | None) -> list[MixerKind]:
    """Every n-th layer is softmax attention."""
    period = fields.optional_size(MOST_LAYERS, "full_attention_interval")
    if named or period is None:
        return _stated(fields, count, named)
    return ["recurrent" if (layer + 1) % period else "full" for layer in range(count)]


def _period(fields: Fields, count: int, named: list[MixerKind] | None) -> list[MixerKind]:
    period = fields.size(MOST_LAYERS, "attn_layer_period")
    offset = fields.optional_size(period, "attn_layer_offset") or 0
    return named or ["full" if layer % period == offset else "recurrent" for layer in range(count)]


def _stated(fields: Fields, count: int, named: list[MixerKind] | None) -> list[MixerKind]:
    if named is None:
        raise fields.fault("layer_types", None, f"a list of {count} layer types")
    return named


def _indices(fields: Fields, count: int, named: list[MixerKind] | None) -> list[MixerKind]:
    """`full_attn_idxs` lists the layers of softmax attention, counted from 0."""
    softmax = fields.indices("full_attn_idxs", count)
    if named or softmax is None:
        return _stated(fields, count, named)
    return ["full" if layer in softmax else "recurrent" for layer in range(count)]


def _codes(fields: Fields, count: int, named: list[MixerKind] | None) -> list[MixerKind]:
    """`attn_type_list`: 1 is softmax attention, 0 lightning attention; without it every layer is softmax attention."""
    softmax = fields.marks("attn_type_list", count)
    return named or ["full" if mark else "recurrent" for mark in softmax or [True] * count]


def _marks(fields: Fields, count: int, named: list[MixerKind] | None) -> list[MixerKind]:
    """`hybrid_layer_pattern`: 1 is a window."""
    windowed = fields.marks("hybrid_layer_pattern", count)
    if named or windowed is None:
        return _stated(fields, count, named)
    return ["sliding" if mark else "full" for mark in windowed]


def _sparse_marks(fields: Fields, count: int, named: list[MixerKind] | None) -> list[MixerKind]:
    """Layers of block-sparse attention, one mark each in `sparse_attention_config`."""
    table = fields.table("sparse_attention_config")
    if table is None or not table.flag("use_sparse_attention"):
        return named or ["full"] * count
    marks = table.marks("sparse_attention_freq", count)
    if marks is None:
        raise table.fault("sparse_attention_freq", None, f"a list of {count} zeros and ones")
    return ["sparse" if mark else "full" for mark in marks]


def _indexers(fields: Fields, count: int, named: list[MixerKind] | None) -> list[MixerKind]:
    """Sparse attention everywhere; a layer has its own index ("full") or uses the last one before it ("shared")."""
    types = fields.names("indexer_types", count, ("full", "shared"))
    if types is None and (fields.has("index_topk_pattern") or (fields.get("index_topk_freq")[1] or 1) != 1):
        raise NotSizedError(
            f"{fields.prefix}index_topk_freq without indexer_types: which layers share an index is not stated"
        )
    return ["sparse_shared" if kind == "shared" else "sparse" for kind in types or ["full"] * count]


def _delta(fields: Fields, count: int, named: list[MixerKind] | None, first: int) -> list[MixerKind]:
    """`linear_attn_config` lists the layers of each kind, the first of them called `first`."""
    table = fields.table("linear_attn_config")
    if table is None:
        return _stated(fields, count, named)
    softmax = table.indices("full_attn_layers", count, first) or set()
    linear = table.indices("kda_layers", count, first) or set()
    if softmax & linear or len(softmax | linear) != count:
        raise table.fault("kda_layers", sorted(linear), f"with full_attn_layers, each of the {count} layers once")
    kind: MixerKind = next((kind for kind in named or [] if kind != "recurrent"), "full")
    found: list[MixerKind] = [kind if layer in softmax else "recurrent" for layer in range(count)]
    if named not in (None, found):
        raise fields.fault("layer_types", table.prefix + "full_attn_layers", "the same layers in both")
    return found


def _delta_from_0(fields: Fields, count: int, named: list[MixerKind] | None) -> list[MixerKind]:
    shared = fields.names("indexer_types", count, ("full", "shared")) or []
    if "shared" in shared:
        raise NotSizedError(f"{fields.prefix}indexer_types holds 'shared' beside recurrent layers: that is not read")
    return _delta(fields, count, named, 0)


def _delta_from_1(fields: Fields, count: int, named: list[MixerKind] | None) -> list[MixerKind]:
    return _delta(fields, count, named, 1)


_RULES: Final[Mapping[str, Rule]] = {
    "full": _full,
    "uniform": _uniform,
    "late": _late,
    "alternate": _alternate,
    "every": _every,
    "chunks": _chunks,
    "interval": _interval,
    "period": _period,
    "stated": _stated,
    "indices": _indices,
    "codes": _codes,
    "marks": _marks,
    "sparse_marks": _sparse_marks,
    "indexers": _indexers,
    "delta_from_0": _delta_from_0,
    "delta_from_1": _delta_from_1,
}


def _feeds(fields: Fields, family: Family, count: int) -> list[FeedKind]:
    _ask_for_experts(fields, family)
    if family.moe is None or not fields.has(*family.moe.count) or not fields.flag("enable_moe_block", default=True):
        return ["dense"] * count
    sparse = _sparse_layers(fields, count)
    return ["sparse" if layer in sparse else "dense" for layer in range(count)]


def _ask_for_experts(fields: Fields, family: Family) -> None:
    """The sizes of experts are this family's, also where no layer has any."""
    moe = family.moe
    fields.asked.update((*moe.count, *moe.per_token, *moe.width, *moe.shared_keys, *moe.latent) if moe else ())


# Every n-th layer has experts: the first of them is layer 0, or the last of the first n.
_SPARSE_STEPS: Final = {"moe_layer_freq": 0, "decoder_sparse_step": -1, "interleave_moe_layer_step": -1}


def _sparse_layers(fields: Fields, count: int) -> set[int]:
    """The layers with experts, by whichever way the config tells them; all if it tells none."""
    every = set(range(count))
    dense = set(range(fields.optional_size(MOST_LAYERS, "first_k_dense_replace") or 0))
    stated = _stated_sparse_layers(fields, count)
    if stated is not None:
        fields.asked.update((*_SPARSE_STEPS, "mlp_only_layers"))  # the same again, in another way
        return stated
    only_dense = fields.indices("mlp_only_layers", count) or set()
    found = every - dense - only_dense
    for name, phase in _SPARSE_STEPS.items():
        step = fields.optional_size(MOST_LAYERS, name) or 1
        found &= set(range(phase % step, count, step))
    return found & _by_period(fields, count) & _up_to(fields, count)


def _up_to(fields: Fields, count: int) -> set[int]:
    """Up to layer `moe_layer_end_index`, itself among them; -1 means the last."""
    key, last = fields.get("moe_layer_end_index")
    if last is None or last == -1:
        return set(range(count))
    if type(last) is not int or not 0 <= last < MOST_LAYERS:
        raise fields.fault(key, last, f"a layer from 0 to {count - 1}, or -1")
    return set(range(min(last + 1, count)))


def _by_period(fields: Fields, count: int) -> set[int]:
    period = fields.optional_size(MOST_LAYERS, "expert_layer_period") or 1
    offset = fields.optional_size(MOST_LAYERS, "expert_layer_offset") or 0
    return set(range(offset % period, count, period))


def _stated_sparse_layers(fields: Fields, count: int) -> set[int] | None:
    """From a list: words, marks, layer numbers, or layer numbers in one text."""
    words = fields.names("mlp_layer_types", count, ("dense", "sparse"))
    if words is not None:
        return {layer for layer, word in enumerate(words) if word == "sparse"}
    marks = fields.marks("moe_layer_freq", count)
    if marks is not None:
        return {layer for layer, mark in enumerate(marks) if mark}
    return fields.indices("moe_layers", count) if fields.has("moe_layers") else _enumerated(fields, count)


def _enumerated(fields: Fields, count: int) -> set[int] | None:
    """`moe_layers_enum`: layer numbers with commas between; those past the last layer are draft layers'."""
    key, value = fields.get("moe_layers_enum")
    if value is None:
        return None
    parts = value.split(",", LONGEST_LIST) if isinstance(value, str) else []
    if not parts or any(not part.strip().isascii() or not part.strip().isdigit() or len(part) > 8 for part in parts):
        raise fields.fault(key, value, "layer numbers with commas between")
    return {int(part) for part in parts} & set(range(count))
