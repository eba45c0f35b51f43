"""Families that no table describes: Falcon, and models whose every layer has sizes of its own."""

from __future__ import annotations

from dataclasses import replace

from lambdamax.architecture import Attention, Block, Mlp
from lambdamax.hub.blocks import merged
from lambdamax.hub.family import HEADS, LAYERS
from lambdamax.hub.fields import LONGEST_LIST, MOST_HEADS, MOST_LAYERS, MOST_WIDTH, Fields, NotSizedError
from lambdamax.hub.mixers import head_dim

# MLP widths are rounded up to a multiple of this, after two thirds of the stated multiple of the model's width.
_WIDTH_STEP = 256
_MOST_MULTIPLE = 64.0


def falcon_block(fields: Fields, hidden: int) -> Block:
    """Falcon: one or few key/value heads, an MLP of two matrices, LayerNorms with biases, one or two a layer."""
    heads = fields.size(MOST_HEADS, *HEADS.heads)
    dim = head_dim(fields, hidden, heads)
    kv_heads = _falcon_kv_heads(fields, heads)
    mlp = Mlp(matrices=2, width=fields.optional_size(MOST_WIDTH, "intermediate_size", "ffn_hidden_size") or 4 * hidden)
    biases = (heads + 2 * kv_heads) * dim + 2 * hidden + mlp.width if fields.flag("bias") else 0
    fields.asked.add("alibi")
    attention = Attention(heads, kv_heads, dim, dim)
    return Block(fields.size(MOST_LAYERS, *LAYERS), attention, mlp, 2 * _falcon_norms(fields) * hidden + biases)


def _falcon_kv_heads(fields: Fields, heads: int) -> int:
    if fields.flag("multi_query", default=True) and not fields.flag("new_decoder_architecture"):
        fields.asked.update(HEADS.kv_heads)
        return 1
    kv_heads = fields.optional_size(MOST_HEADS, *HEADS.kv_heads) or heads
    if heads % kv_heads:
        raise fields.fault(fields.get(*HEADS.kv_heads)[0], kv_heads, f"a divisor of the {heads} query heads")
    return kv_heads


def _falcon_norms(fields: Fields) -> int:
    in_parallel = fields.flag("parallel_attn", default=True)
    stated = fields.optional_size(2, "num_ln_in_parallel_attn")
    return stated or 2 if fields.flag("new_decoder_architecture") else 1 if in_parallel else 2


def searched_blocks(fields: Fields, hidden: int) -> tuple[Block, ...]:
    """Layers found by architecture search: `block_configs` gives each its KV heads and MLP width, or neither."""
    fields.asked.update(("num_key_value_heads", "intermediate_size"))
    count = fields.size(MOST_LAYERS, *LAYERS)
    configs = fields.get("block_configs")[1]
    if not isinstance(configs, list) or not count <= len(configs) <= LONGEST_LIST:
        raise fields.fault("block_configs", configs, f"a list of {count} blocks")
    heads = fields.size(MOST_HEADS, *HEADS.heads)
    dim = head_dim(fields, hidden, heads)
    plain = Block(1, Attention(heads, heads, dim, dim), None, 0)
    return merged([_searched(fields, config, plain, hidden) for config in configs[:count]])


def _searched(fields: Fields, config: object, plain: Block, hidden: int) -> Block:
    if not isinstance(config, dict):
        raise fields.fault("block_configs", config, "objects with attention and ffn")
    block = Fields(config, {}, fields.file, f"{fields.prefix}block_configs.")
    attention, mlp = _searched_attention(block, plain), _searched_mlp(block, hidden)
    norms = (attention is not None) + (mlp is not None)
    return replace(plain, mixer=attention, mlp=mlp, vector_params=norms * hidden)


def _searched_attention(block: Fields, plain: Block) -> Attention | None:
    part = _searched_part(block, "attention", ("window_length", "num_sink_tokens", "sparsify", "unshifted_sink"))
    if part is None or not isinstance(plain.mixer, Attention):
        return None
    group = part.size(plain.mixer.heads, "n_heads_in_group")
    if plain.mixer.heads % group:
        raise part.fault("n_heads_in_group", group, f"a divisor of the {plain.mixer.heads} query heads")
    return replace(plain.mixer, kv_heads=plain.mixer.heads // group)


def _searched_mlp(block: Fields, hidden: int) -> Mlp | None:
    part = _searched_part(block, "ffn", ("sparsify",))
    if part is None:
        return None
    multiple = part.get("ffn_mult")[1]
    if type(multiple) not in (int, float) or not 0 < multiple <= _MOST_MULTIPLE:
        raise part.fault("ffn_mult", multiple, f"a number above 0 and at most {_MOST_MULTIPLE}")
    width = int(2 * multiple * hidden / 3)
    return Mlp(3, -(-width // _WIDTH_STEP) * _WIDTH_STEP)


def _searched_part(block: Fields, name: str, foreign: tuple[str, ...]) -> Fields | None:
    part = block.table(name)
    if part is None:
        raise block.fault(name, None, "an object")
    strange = next((key for key in ("replace_with_linear", *foreign) if part.has(key)), None)
    if strange is not None:
        raise NotSizedError(f"{part.prefix}{strange} is set: only plain attention and MLPs are read")
    return None if part.flag("no_op") else part
