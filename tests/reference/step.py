"""Section 3 of docs/model.md: the time of one iteration of a slot and what a prompt adds to the ones it rides on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from reference.attended import pairs
from reference.fields import Blocks, Row, default, field
from reference.links import communication
from reference.shard import Shard
from reference.spans import Span

# Real or complex (for derivatives), scalar or array: the formulas are the same.
Number = Any

RATIO = 1.0


@dataclass(frozen=True)
class SpanTimes:
    """A span with what it costs, phi included."""

    span: Span
    decode_s: float  # phi kappa: of one attended token
    pair_s: float  # phi a: of one query-key pair


@dataclass(frozen=True)
class Step:
    """Constants of one iteration on one rank, in seconds."""

    weights_s: float  # w of what every step reads
    experts_s: float  # w_x
    untouched: float  # 1 - k/E
    ranks: int  # dp, whose tokens meet at the experts
    layers_s_per_token: float
    head_s_per_row: float
    exponent: float  # q
    fixed_s: float
    sequence_s: float  # sequence overhead and recurrent state
    link_s_per_token: float  # r
    spans: tuple[SpanTimes, ...]
    half_tokens: float  # c_1/2
    prefill_overhead_s: float  # psi: of an iteration with prompt tokens in it
    own: float  # 1 if a request sees itself in its step (light load), 0 for a ratio profile

    def weights(self, tokens: Number) -> Number:
        """w(n); with every expert on every token's way (k = E, or none at all) a constant."""
        if self.experts_s == 0 or self.untouched <= 0:
            return self.weights_s + self.experts_s
        return self.weights_s - self.experts_s * np.expm1(math.log(self.untouched) * self.ranks * tokens)

    def gemm(self, tokens: Number, rows: Number) -> Number:
        """GEMM(n, h)."""
        compute = self.layers_s_per_token * tokens + self.head_s_per_row * rows
        return (self.weights(tokens) ** self.exponent + compute**self.exponent) ** (1 / self.exponent)

    def decode(self, b: Number, attention_s: Number) -> Number:
        """T(B, 0) with so many seconds of attention in all; at B = 0 the limit T(0+, 0)."""
        per_sequence = (self.sequence_s + self.link_s_per_token) * b
        return self.fixed_s + per_sequence + self.gemm(b, b) + attention_s

    def prompt(self, u: Number, attention_s: Number, there: tuple[Number, Number], chunk: Number, k: Number) -> Number:
        """s(u, B): a prompt of u uncached tokens, cut in k chunks of `chunk` (the last shorter), with its attention.

        `there`: B, and h, the prompt tokens of others that each chunk finds before it. What an iteration costs beyond
        its work comes on top: `prompt_overhead`.
        """
        b, company = there
        last, before = u - (k - 1) * chunk, b + company
        without = self.gemm(before, b)
        gemms = (k - 1) * (self.gemm(before + chunk, b) - without) + (self.gemm(before + last, b) - without)
        return gemms + self.head_s_per_row + self.link_s_per_token * u + attention_s

    def prompt_overhead(self, u: Number, chunk: Number, riders: Number) -> Number:
        """psi of the iterations that a prompt fills, and its share of one that it does not, with so many `riders`."""
        filled, apart = u / chunk, 1 / (1 + riders)
        return self.prefill_overhead_s * (filled + apart**2 / (apart + filled))

    def attention(self, prompt: Number, cached: Number) -> Number:
        """A: prefill attention, whose efficiency depends on the whole prompt's length."""
        seconds = sum((one.pair_s * pairs(one.span, cached, prompt) for one in self.spans), start=0.0 * prompt)
        return seconds * (1 + self.half_tokens / prompt)


def step(row: Row, blocks: Blocks, part: Shard) -> Step:
    """The step of a replica's rank, by the kind of its profile."""
    return ratio_step(row, part) if field(row, "kind") == RATIO else full_step(row, blocks, part)


def full_step(row: Row, blocks: Blocks, part: Shard) -> Step:
    """Kind `full`: every constant of section 3."""
    cut = part.cut
    read = field(row, "gemm_bandwidth_efficiency") * field(row, "memory_bandwidth_bytes_per_s")
    cache_read = field(row, "attention_bandwidth_efficiency") * field(row, "memory_bandwidth_bytes_per_s")
    imbalance = field(row, "expert_load_imbalance") if cut.ep > 1 else 1.0
    said = communication(row, blocks)
    return Step(
        weights_s=(cut.pace * part.layer_read_bytes + part.table_read_bytes) / read,
        experts_s=cut.pace * imbalance * part.expert_bytes / read,
        untouched=part.untouched,
        ranks=cut.dp,
        layers_s_per_token=cut.pace * multiply_s(row, part, imbalance),
        head_s_per_row=2 * part.head_params / (field(row, "gemm_flops_efficiency") * field(row, "attention_flops")),
        exponent=field(row, "roofline_exponent"),
        fixed_s=field(row, "step_overhead_s") + cut.pace * floors_s(row, blocks) + said.fixed_s,
        sequence_s=field(row, "sequence_overhead_s") + cut.pace * 2 * part.state_bytes / cache_read,
        link_s_per_token=said.s_per_token,
        spans=tuple(span_times(row, part, span) for span in part.spans),
        half_tokens=field(row, "prefill_attention_half_tokens"),
        prefill_overhead_s=cut.pace * layers(blocks) * default(row, "prefill_layer_overhead_s", 0.0),
        own=1.0,
    )


def layers(blocks: Blocks) -> float:
    """L."""
    return sum(field(block, "count") for block in blocks)


def floors_s(row: Row, blocks: Blocks) -> float:
    """What the layers take at least; those with latent attention take more."""
    latent = sum(field(block, "count") for block in blocks if default(block, "latent_elements", 0.0) > 0)
    return layers(blocks) * field(row, "layer_floor_s") + latent * default(row, "latent_layer_floor_s", 0.0)


def multiply_s(row: Row, part: Shard, imbalance: float) -> float:
    """Seconds of multiplying one token with all layers, each kind of matrix at the peak of its format."""
    work = {"mixer": part.mixer_params, "mlp": part.mlp_params, "expert": imbalance * part.token_expert_params}
    at_peak = sum(params / field(row, f"{kind}_flops") for kind, params in work.items())
    return 2 * at_peak / field(row, "gemm_flops_efficiency")


def span_times(row: Row, part: Shard, span: Span) -> SpanTimes:
    """Reading or multiplying, whichever is slower, in a decode step; multiplying in prefill."""
    read = field(row, "attention_bandwidth_efficiency") * field(row, "memory_bandwidth_bytes_per_s")
    flops = field(row, "prefill_attention_flops_efficiency") * field(row, "attention_flops")
    kappa = max(span.read_bytes / read, 2 * span.decode_width / flops)
    return SpanTimes(span, part.cut.pace * kappa, part.cut.pace * 2 * span.pair_width / flops)


def ratio_step(row: Row, part: Shard) -> Step:
    """Kind `ratio`: the plain bandwidth floor over all the weights a rank holds, times a measured ratio; no prefill."""
    per_byte = field(row, "measured_over_floor_ratio") / field(row, "memory_bandwidth_bytes_per_s")
    return Step(
        weights_s=per_byte * part.cut.pp * part.weight_shard_bytes,
        experts_s=0.0,
        untouched=0.0,
        ranks=part.cut.dp,
        layers_s_per_token=0.0,
        head_s_per_row=0.0,
        exponent=1.0,
        fixed_s=0.0,
        sequence_s=0.0,
        link_s_per_token=0.0,
        spans=tuple(SpanTimes(span, per_byte * part.cut.pace * span.read_bytes, 0.0) for span in part.spans),
        half_tokens=0.0,
        prefill_overhead_s=0.0,
        own=0.0,
    )
