"""Sections 3 and 4 of docs/model.md: how many tokens a span lets a prompt, and a decoding sequence, attend to.

`pairs` is Q(end) - Q(start). For whole numbers of tokens Q counts half the first token of each; G counts all of it:
G(t) = Q(t) + half of the tokens up to t that do not yet push another one out. Differences are formed piece by piece,
so that neither loses digits to long contexts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from reference.spans import CHUNKED, FULL, SLIDING, Span
from reference.workload import Workload

Tokens = Any  # float or array of them

SHORT_STEP = 1e-6
FINE_NODES, FINE_REACH = 129, 8.0


def pairs(span: Span, start: Tokens, end: Tokens) -> Tokens:
    """Q(end) - Q(start), the query-key pairs of the tokens from start to end."""
    window = span.tokens
    if span.kind == FULL:
        return ramp(start, end)
    if span.kind == SLIDING:
        past = np.maximum(end, window) - np.maximum(start, window)
        return ramp(np.minimum(start, window), np.minimum(end, window)) + past * window
    first, last = np.floor(start / window), np.floor(end / window)
    in_first, in_last = start - first * window, end - last * window
    across = ramp(in_first, window) + (last - first - 1) * ramp(0.0, window) + ramp(0.0, in_last)
    return np.where(first == last, ramp(in_first, in_last), across)


def ramp(start: Tokens, end: Tokens) -> Tokens:
    """The integral of t from start to end."""
    return (end - start) * (end + start) / 2


def positions(span: Span, start: Tokens, end: Tokens) -> Tokens:
    """G(end) - G(start): the tokens that the positions after start, up to end, attend to."""
    growing = np.minimum(end, span.tokens) - np.minimum(start, span.tokens) if span.kind == SLIDING else end - start
    return pairs(span, start, end) + growing / 2


def seen_from(span: Span, position: Tokens) -> Tokens:
    """The tokens that one position attends to; a chunk's first fraction of a position sees that fraction."""
    if span.kind == CHUNKED:
        return position - np.floor(position / span.tokens) * span.tokens
    return np.minimum(position, span.tokens)


def mean_attended(span: Span, prompt: Tokens, steps: Tokens) -> Tokens:
    """M(i, s): the mean over a request's s decode steps after a prompt of i."""
    middle = seen_from(span, prompt + (steps + 1) / 2)
    short = steps < SHORT_STEP if span.kind == CHUNKED else steps <= 0
    safe = np.where(short, 1.0, steps)
    return np.where(short, middle, positions(span, prompt, prompt + safe) / safe)


@dataclass(frozen=True)
class Attended:
    """Mean tokens that one decoding sequence attends to in a span."""

    decoding: float  # c-bar_j, length-biased: of a sequence that is seen decoding
    request: float  # c_r,j: of a request over its own decode


def attended(span: Span, load: Workload) -> Attended:
    """Both means: closed forms where all is attended to, else over the rows of an empirical law, or over finely
    divided prompts and nodes of the output.
    """
    if span.kind == FULL:
        return Attended(load.context, load.own_context)
    if load.law is not None:
        each, life = mean_attended(span, load.law.prompt, load.law.output - 1), load.law.output - 1
        return Attended(load.law.mean(life * each) / load.d1, load.law.mean(each))
    steps = load.output - 1
    prompt, prompt_weight = fine_prompts(load)
    mean = mean_attended(span, prompt[:, None], steps[None, :])
    weight = np.outer(prompt_weight, load.output_weight)
    return Attended(float((weight * steps * mean).sum()) / load.d1, float((weight * mean).sum()))


def fine_prompts(load: Workload) -> tuple[Tokens, Tokens]:
    """Prompt lengths at equally spaced normal quantiles, and their weights."""
    if load.prompt_cv == 0:
        return np.array([load.mean_prompt]), np.array([1.0])
    quantile = np.linspace(-FINE_REACH, FINE_REACH, FINE_NODES)
    weight = np.exp(-(quantile**2) / 2)
    sigma = np.sqrt(np.log1p(load.prompt_cv**2))
    return load.mean_prompt * np.exp(sigma * quantile - sigma**2 / 2), weight / weight.sum()
