"""Layers as blocks: each distinct layer built once, equal ones counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from lambdamax.architecture import Block
from lambdamax.hub.family import Family
from lambdamax.hub.feedforward import feed_of
from lambdamax.hub.fields import Fields
from lambdamax.hub.layers import Layer
from lambdamax.hub.mixers import mixer_of

_MOST_STREAMS = 64


def block_of(fields: Fields, family: Family, layer: Layer, hidden: int) -> Block:
    """One layer, built."""
    mixing, feeding = layer
    mixer, small = (None, 0) if mixing == "none" else mixer_of(fields, family, mixing, hidden)
    feed = feed_of(fields, family, feeding, hidden)
    norms = family.norms // 2 if fields.on(family.parallel) else family.norms
    around = norms * hidden + family.extra_vectors + _streams(fields, family, hidden)
    return Block(1, mixer, feed.mlp, around + small + feed.vectors, feed.experts)


def blocks_of(fields: Fields, family: Family, layers: Sequence[Layer], hidden: int) -> tuple[Block, ...]:
    """The distinct layers in order of first appearance, with how many there are of each."""
    counted = Counter(layers)
    return merged([replace(block_of(fields, family, layer, hidden), count=count) for layer, count in counted.items()])


def merged(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """`blocks` with equal ones put together."""
    counts: Counter[Block] = Counter()
    for block in blocks:
        counts[replace(block, count=1)] += block.count
    return tuple(replace(block, count=count) for block, count in counts.items())


def _streams(fields: Fields, family: Family, hidden: int) -> int:
    """Hyper-connections: before mixer and MLP, weights of (2 + m)·m outputs on the m residual streams side by side."""
    if not family.hyper:
        return 0
    streams = fields.optional_size(_MOST_STREAMS, "hc_mult")
    if streams is None or not fields.flag("mhc", default=True):
        return 0
    return 2 * ((2 + streams) * streams * (streams * hidden + 1) + 3)
