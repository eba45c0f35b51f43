"""How a checkpoint stores its weights: every place and dialect of a quantisation config, to one `Checkpoint`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lambdamax.architecture import Checkpoint
from lambdamax.hub.family import Family
from lambdamax.hub.fields import MOST_HIDDEN, Fields, NotSizedError
from lambdamax.hub.layers import Layer

# Where a quantisation config may stand; a separate hf_quant_config.json is read as if it stood under that name.
PLACES: Final = ("quantization_config", "compression_config", "hf_quant_config", "_hf_quant_config")
SIXTEEN_BIT: Final = "bf16"
# Formats of data/dtypes.csv by algorithm, and of 4-bit floats by their group; MXFP8's scales are left out.
_ALGORITHMS: Final[Mapping[str, str]] = {
    "FP8": "fp8",
    "MXFP8": "fp8",
    "NVFP4": "nvfp4",
    "W4A16_NVFP4": "nvfp4",
    "MXFP4": "mxfp4",
}
_FLOAT4: Final[Mapping[int, str]] = {16: "nvfp4", 32: "mxfp4"}
_KEPT: Final = ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers")
_FP8_NUMBERS: Final = (None, "e4m3", "float8_e4m3fn")

# Parts of a checkpoint that stay 16-bit here whatever the config says of them, or are no part of a decode step.
_OUTSIDE: Final = re.compile(
    r"vision|visual|mm_projector|multi_modal|embed|mtp|patch_merge|norm|conv1d|indexer|index_|\bhc_"
)
_RECURRENT_NAMES: Final = ("linear_attn", "mamba", "out_proj")
_ATTENTION_NAMES: Final = ("self_attn", "self_attention", "attn", "attention", "o_proj", "wo", "dense")
_MIXER: Final = re.compile(r"(?:^|[.*])(?:self_attn|self_attention|linear_attn|attn|attention|mamba)(?:[.*]|$)")
_SOFTMAX: Final = re.compile(r"(?:^|[.*])(?:self_attn|self_attention|attn|attention)\.(?:out_proj|c_proj)$")
_INPUTS: Final = (
    "q_proj",
    "k_proj",
    "v_proj",
    "qkv_proj",
    "q_a_proj",
    "q_b_proj",
    "kv_b_proj",
    "in_proj",
    "in_proj_qkv",
)
_MATRICES: Final = ("recurrent", "attention", "mlp", "experts")
_OUTPUTS: Final = ("fc2", "w2", "dense_4h_to_h", "c_proj")
_FEED_NAMES: Final = ("mlp", "ffn", "feed_forward", "block_sparse_moe", "moe")
_LAYER: Final = re.compile(r"layers\.(\d{1,6})(?=\D|$)")
_WHOLE_LAYER: Final = re.compile(r"layers\.(?:\d+|\*)$|(?:^|\.)mixer$")


@dataclass(frozen=True)
class _Rule:
    """Modules of a config that are stored in `form`: those named, or all (`names` None)."""

    form: str
    names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class _Scheme:
    """The rules of one quantisation config, later ones winning; `experts_only`: a rule for all means the experts."""

    rules: tuple[_Rule, ...]
    kept: tuple[str, ...]
    block_size: int = 1
    experts_only: bool = False


def checkpoint_of(
    places: Sequence[Fields], family: Family, layers: Sequence[Layer]
) -> tuple[Checkpoint | None, tuple[str, ...]]:
    """The checkpoint that a quantisation config in one of `places` describes, None without one, and notes on it."""
    found = [table for fields in places for table in _tables(fields)]
    _refuse_expert_dtype([*places, *found])
    if not found:
        return None, ()
    schemes = [_scheme(table) for table in found]
    read = [_checkpoint(scheme, family, layers) for scheme in schemes]
    if any(other[0] != read[0][0] for other in read[1:]):
        raise NotSizedError(f"{found[0].prefix}* and {found[1].prefix}* describe different checkpoints")
    return read[0]


def _tables(fields: Fields) -> Iterable[Fields]:
    for place in PLACES:
        table = fields.table(place)
        if table is not None and table.config:
            yield table.table("quantization") or table


def _refuse_expert_dtype(places: Iterable[Fields]) -> None:
    for fields in places:
        if fields.has("expert_dtype"):
            raise NotSizedError(f"{fields.prefix}expert_dtype = {_text(fields.get('expert_dtype')[1])}: it is not read")


def _scheme(table: Fields) -> _Scheme:
    method = table.get("quant_method")[1]
    kept = tuple(name for key in _KEPT for name in _names(table, key))
    if method == "fp8" and not table.has("quant_algo"):
        return _fp8(table, kept)
    if method == "mxfp4":
        return _Scheme((_Rule("mxfp4"),), kept, experts_only=True)
    if method in ("awq", "gptq"):
        return _int4(table, kept)
    if method in ("compressed-tensors", "modelopt", None) or table.has("quant_algo"):
        return _Scheme(_grouped_rules(table), kept)
    raise NotSizedError(f"{table.prefix}quant_method = {_text(method)}: a method that is not read")


def _fp8(table: Fields, kept: tuple[str, ...]) -> _Scheme:
    if table.get("fmt")[1] not in _FP8_NUMBERS:
        raise NotSizedError(f"{table.prefix}fmt = {_text(table.get('fmt')[1])}: only e4m3 is read")
    key, block = table.get("weight_block_size")
    if block is None:
        return _Scheme((_Rule("fp8"),), kept)
    sides = [side for side in block[:3] if type(side) is int] if isinstance(block, list) else []
    if len(sides) != 2 or sides != block or not all(1 <= side <= MOST_HIDDEN for side in sides):
        raise table.fault(key, block, "two whole numbers, or null")
    return _Scheme((_Rule("fp8"),), kept, block_size=sides[1])


def _int4(table: Fields, kept: tuple[str, ...]) -> _Scheme:
    if table.get("bits", "w_bit")[1] != 4:
        raise NotSizedError(f"{table.prefix}bits = {_text(table.get('bits', 'w_bit')[1])}: only 4 is read")
    return _Scheme((_Rule("int4"),), kept)


def _grouped_rules(table: Fields) -> tuple[_Rule, ...]:
    """By layer names, by groups of layers, or one algorithm for all."""
    algorithm = table.get("quant_algo")[1]
    named = table.table("quantized_layers")
    if named is not None:
        return _named_rules(named)
    groups = table.table("config_groups")
    if groups is not None:
        return tuple(_group_rule(table, groups.table(name)) for name in groups.config)
    return (_Rule(_algorithm(table, algorithm)),)


def _named_rules(named: Fields) -> tuple[_Rule, ...]:
    by_form: dict[str, list[str]] = {}
    for name, spec in named.config.items():
        if not isinstance(spec, Mapping):
            raise named.fault(name, spec, "an object with quant_algo")
        by_form.setdefault(_algorithm(named, spec.get("quant_algo")), []).append(name)
    return tuple(_Rule(form, tuple(names)) for form, names in by_form.items())


def _algorithm(table: Fields, algorithm: object) -> str:
    form = _ALGORITHMS.get(algorithm) if isinstance(algorithm, str) else None
    if form is None:
        raise NotSizedError(f"{table.prefix}quant_algo = {_text(algorithm)}: only {', '.join(_ALGORITHMS)} are read")
    return form


def _group_rule(table: Fields, group: Fields | None) -> _Rule:
    weights = group.table("weights") if group else None
    if group is None or weights is None:
        raise table.fault("config_groups", None, "groups with weights")
    names = _names(group, "targets")
    everything = not names or "Linear" in names
    return _Rule(_weight_format(group, weights), None if everything else tuple(names))


def _weight_format(group: Fields, weights: Fields) -> str:
    bits, kind = weights.get("num_bits")[1], weights.get("type")[1]
    size = weights.get("group_size")[1]
    if bits == 8 and kind == "float":
        return "fp8"
    if bits == 8 and kind == "int" and group.states("input_activations"):
        return "int8"
    if bits == 4 and kind == "int":
        return "int4"
    form = _FLOAT4.get(size) if bits == 4 and kind == "float" and type(size) is int else None
    if form is None:
        shape = f"{_text(bits)} bits of {_text(kind)} in groups of {_text(size)}"
        raise NotSizedError(f"{weights.prefix}num_bits: {shape} with these activations: a format that is not read")
    return form


def _names(table: Fields, key: str) -> list[str]:
    value = table.get(key)[1]
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise table.fault(key, value, "a list of module names, or null")
    return value


def _checkpoint(scheme: _Scheme, family: Family, layers: Sequence[Layer]) -> tuple[Checkpoint | None, tuple[str, ...]]:
    marks = _marks(scheme, family, layers)
    forms = {part: _usual(by_layer.values()) for part, by_layer in marks.items()}
    mixed = [f"{part}: {_share(by_layer)}" for part, by_layer in marks.items() if len({*by_layer.values()}) > 1]
    notes = [f"stored in more than one format, counted as the first: {text}" for text in mixed]
    if forms["mixer"] != SIXTEEN_BIT and any(_keeps_inputs(name) for name in scheme.kept):
        notes.append(f"mixers keep input projections in 16 bits, counted as their output projection: {forms['mixer']}")
    dtype = next((forms[part] for part in ("experts", "mlp", "mixer") if forms[part] != SIXTEEN_BIT), SIXTEEN_BIT)
    if dtype == SIXTEEN_BIT:
        return None, tuple(notes)
    return Checkpoint(dtype, **forms, block_size=scheme.block_size), tuple(notes)


def _keeps_inputs(name: str) -> bool:
    """Whether a module kept in 16 bits is a projection into a mixer, other than the small ones beside it."""
    path = _path(name)
    return bool(_MIXER.search(path)) and path.endswith(_INPUTS) and not _OUTSIDE.search(path)


def _usual(forms: Iterable[str]) -> str:
    """The format of most layers; of equals the wider, which is 16-bit where that is one of them."""
    counts = Counter(forms)
    return max(counts, key=lambda form: (counts[form], form == SIXTEEN_BIT, form), default=SIXTEEN_BIT)


def _share(by_layer: Mapping[int, str]) -> str:
    counts = Counter(by_layer.values()).most_common()
    return ", ".join(f"{form} in {count} layers" for form, count in counts)


def _marks(scheme: _Scheme, family: Family, layers: Sequence[Layer]) -> dict[str, dict[int, str]]:
    """The format of each part in each layer that has it."""
    where = _where(family, layers)
    marks = {part: dict.fromkeys(indices, SIXTEEN_BIT) for part, indices in where.items()}
    for rule in (*scheme.rules, _Rule(SIXTEEN_BIT, scheme.kept)):
        for part, layer in _parts_of(rule, scheme, family):
            marks[part].update(dict.fromkeys(where[part] if layer is None else where[part] & {layer}, rule.form))
    recurrent = marks.pop("recurrent")
    return {"mixer": {**marks.pop("attention"), **recurrent}, **marks}


def _where(family: Family, layers: Sequence[Layer]) -> dict[str, set[int]]:
    """The layers that have each part; recurrent layers whose modules are named as attention's count as such."""
    shared = family.moe is not None and family.moe.shared != "none"
    named_apart = family.recurrence != "kimi_delta"
    recurrent = {index for index, (mixer, _) in enumerate(layers) if mixer == "recurrent" and named_apart}
    return {
        "recurrent": recurrent,
        "attention": {index for index, (mixer, _) in enumerate(layers) if mixer != "none"} - recurrent,
        "mlp": {index for index, (_, feed) in enumerate(layers) if feed == "dense" or (feed == "sparse" and shared)},
        "experts": {index for index, (_, feed) in enumerate(layers) if feed == "sparse"},
        "head": {0},
    }


def _parts_of(rule: _Rule, scheme: _Scheme, family: Family) -> set[tuple[str, int | None]]:
    """The parts and layers that a rule is about; a rule for all leaves the head alone, as checkpoints do."""
    if rule.names is None:
        return {(part, None) for part in ("experts",) if scheme.experts_only} or {(part, None) for part in _MATRICES}
    beside = family.moe is not None and family.moe.shared == "dense"
    return {found for name in rule.names for found in _places(name, beside)}


def _places(name: str, experts_beside_mlp: bool) -> list[tuple[str, int | None]]:
    path = _path(name)
    layer = _LAYER.search(path)
    index = int(layer[1]) if layer else None
    return [(part, index) for part in _parts(path, experts_beside_mlp)]


def _path(name: str) -> str:
    """The module path that a name or a pattern begins with or matches."""
    return name.removeprefix("re:").replace("\\", "").casefold().rstrip(".*")


def _parts(path: str, experts_beside_mlp: bool) -> tuple[str, ...]:
    """The parts that the module at `path` stands for: the last projection of each stands for all of it."""
    last = path.rpartition(".")[2].lstrip("*")
    if path.endswith("lm_head") or path in ("head", "output"):
        return ("head",)
    if _OUTSIDE.search(path):
        return ()
    if _SOFTMAX.search(path):
        return ("attention",)
    if last in _RECURRENT_NAMES or last in _ATTENTION_NAMES:
        return ("recurrent",) if last in _RECURRENT_NAMES else ("attention",)
    return () if _MIXER.search(path) else _feed_parts(path, last, experts_beside_mlp)


def _feed_parts(path: str, last: str, experts_beside_mlp: bool) -> tuple[str, ...]:
    if "shared_expert" in path:
        return ("mlp",) if last in ("shared_expert", "shared_experts") or "down" in last else ()
    if "experts" in path:
        return ("experts",)
    if last in _FEED_NAMES:
        return ("mlp",) if experts_beside_mlp else ("mlp", "experts")
    if "down" in last or last in _OUTPUTS:
        return ("mlp",)
    return ("recurrent", "attention", "mlp", "experts") if _WHOLE_LAYER.search(path) else ()


def _text(value: Any) -> str:
    return repr(value if isinstance(value, str | int | float | None) else type(value).__name__)[:64]
