"""Section 4 of docs/model.md: lengths, their moments and nodes, and what the prefix cache saves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from reference.empirical import Table, prompt_nodes, table
from reference.fields import Row, block_floor, default, field, given

Floats = NDArray[np.float64]
NODES = 16


@dataclass(frozen=True)
class Workload:
    """Moments in tokens; the arrays hold one value per node of the prompt, or of the output."""

    mean_prompt: float
    mean_output: float
    prompt_cv: float
    output_cv: float
    arrival_cv: float  # of the gaps between arrivals
    d1: float  # E[o] - 1
    missing: float  # by how much the harmonic mean of o - 1 is below it
    fade: float  # iterations of a wake at which half of that is left
    context: float  # mean context of a decoding sequence, length-biased
    own_context: float  # mean context of a request over its own decode
    weight: Floats
    prompt: Floats  # i
    cached: Floats  # x
    shared: Floats  # y, the part of x that counts once for the replica
    shared_blocks: float  # p_s
    output_weight: Floats
    output: Floats  # o
    budget: float  # tokens of an iteration of a slot
    seats: float  # of a data-parallel rank
    law: Table | None  # the joint law, where it is empirical

    @property
    def uncached(self) -> Floats:
        """u = i - x."""
        return self.prompt - self.cached

    @property
    def mean_uncached(self) -> float:
        """E[u]."""
        return float(self.weight @ self.uncached)

    @property
    def b_cap(self) -> float:
        """The largest number decoding that conserves tokens."""
        return self.budget * self.d1 / (self.mean_uncached + self.d1)


def workload(row: Row, point: Row) -> Workload:
    """The workload of a point on a replica."""
    number = given(point, "lengths")
    law = None if number is None else table(int(number))
    prompt = law.mean_prompt if law else field(point, "isl_tokens")
    output = law.mean_output if law else field(point, "osl_tokens")
    square = output**2 * (1 + default(point, "osl_cv", 0.0) ** 2)
    nodes = prompt_nodes(law) if law else length_nodes(prompt, default(point, "isl_cv", 0.0))
    output_nodes = np.array(length_nodes(output, default(point, "osl_cv", 0.0)))
    prefix = default(point, "prefix_tokens", 0.0)
    share = default(point, "prefix_hit_share", 1.0 if prefix > 0 else 0.0)
    split = common_prefix(nodes, prefix, share) if prefix > 0 else own_history(nodes, share)
    missing, fade = short_decodes(*((law.share, law.output) if law else output_nodes.T))
    weight, lengths, cached, shared = (np.array(column) for column in zip(*split, strict=True))
    return Workload(
        mean_prompt=prompt,
        mean_output=output,
        prompt_cv=law.prompt_cv if law else default(point, "isl_cv", 0.0),
        output_cv=law.output_cv if law else default(point, "osl_cv", 0.0),
        arrival_cv=default(point, "arrival_cv", 1.0),
        d1=output - 1,
        missing=missing,
        fade=fade,
        context=law.context if law else prompt + (square - output) / (2 * (output - 1)),
        own_context=prompt + output / 2,
        weight=weight,
        prompt=lengths,
        cached=cached,
        shared=shared,
        shared_blocks=block_floor(prefix) if share > 0 else 0.0,
        output_weight=output_nodes[:, 0],
        output=output_nodes[:, 1],
        budget=default(point, "max_num_batched_tokens", field(row, "default_max_num_batched_tokens")),
        law=law,
        seats=default(point, "max_num_seqs", field(row, "default_max_num_seqs")),
    )


def short_decodes(share: Floats, output: Floats) -> tuple[float, float]:
    """By how much 1/E[1/(o - 1)] is below E[o] - 1, and how slowly that fades, over requests that decode."""
    some = output >= 1.5
    if not some.any():
        return 0.0, 1.0
    each, of_these = 1 / np.maximum(output[some] - 1, 1), share[some] / share[some].sum()
    first, second = float(of_these @ each), float(of_these @ each**2)
    missing, variation = max(float(share @ output) / share.sum() - 1 - 1 / first, 0.0), second / first**2 - 1
    return (missing, missing / variation) if missing > 0 and variation > 0 else (0.0, 1.0)


@cache
def gauss_hermite() -> tuple[Floats, Floats]:
    """Abscissae and weights for the weight function exp(-x^2)."""
    return np.polynomial.hermite.hermgauss(NODES)


def length_nodes(mean: float, cv: float) -> list[tuple[float, float]]:
    """(weight, length) pairs: one if fixed, else 16 of Gauss-Hermite in the logarithm."""
    if cv == 0:
        return [(1.0, mean)]
    variance = math.log(1 + cv**2)
    centre, spread = math.log(mean) - variance / 2, math.sqrt(2 * variance)
    abscissae, weights = gauss_hermite()
    return [
        (float(w) / math.sqrt(math.pi), math.exp(centre + spread * float(x)))
        for x, w in zip(abscissae, weights, strict=True)
    ]


Node = tuple[float, float, float, float]  # weight, prompt, cached, shared


def own_history(nodes: list[tuple[float, float]], share: float) -> list[Node]:
    """A share of every prompt is in the cache, held by the request itself."""
    return [(w, i, min(block_floor(share * i), block_floor(i - 1)), 0.0) for w, i in nodes]


def common_prefix(nodes: list[tuple[float, float]], prefix: float, share: float) -> list[Node]:
    """A share of the prompts begins with one prefix, whose blocks are held once."""
    split: list[Node] = []
    for w, i in nodes:
        hit = min(block_floor(prefix), block_floor(i - 1))
        split += [(w * share, i, hit, hit), (w * (1 - share), i, 0.0, 0.0)]
    return split
