"""Section 3 of docs/model.md: the time of one iteration and what a prompt adds to the ones it rides on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from reference.shard import Row, Shard, field

# Real or complex (for derivatives), scalar or array: the formulas are the same.
Number = Any

RATIO = 1.0


@dataclass(frozen=True)
class Step:
    """Constants of one iteration on one rank, in seconds."""

    weights_s: float  # w
    layers_s_per_token: float
    head_s_per_row: float
    exponent: float  # q
    fixed_s: float
    sequence_s: float
    context_s_per_token: float  # kappa
    link_s_per_token: float  # r
    attention_s: float  # a, per token squared
    half_tokens: float  # c_1/2
    own: float  # 1 if a request sees itself in its step (light load), 0 for a ratio profile

    def gemm(self, tokens: Number, rows: Number) -> Number:
        """GEMM(n, h)."""
        compute = self.layers_s_per_token * tokens + self.head_s_per_row * rows
        return (self.weights_s**self.exponent + compute**self.exponent) ** (1 / self.exponent)

    def decode(self, b: Number, contexts: Number) -> Number:
        """T(B, 0) with `contexts` tokens of context in all; at B = 0 the limit T(0+, 0)."""
        per_sequence = (self.sequence_s + self.link_s_per_token) * b
        return self.fixed_s + per_sequence + self.gemm(b, b) + self.context_s_per_token * contexts

    def prompt(self, u: Number, x: Number, b: Number, chunk: Number, k: Number) -> Number:
        """s(u, B): a prompt of u uncached and x cached tokens, cut in k chunks of `chunk` (the last shorter)."""
        last = u - (k - 1) * chunk
        alone = self.gemm(b, b)
        gemms = (k - 1) * (self.gemm(b + chunk, b) - alone) + (self.gemm(b + last, b) - alone)
        return gemms + self.head_s_per_row + self.link_s_per_token * u + self.attention(u, x)

    def attention(self, u: Number, x: Number) -> Number:
        """A: prefill attention, whose efficiency depends on the whole prompt's length."""
        return self.attention_s * (x * u + u**2 / 2) * (1 + self.half_tokens / (x + u))


def step(row: Row, part: Shard) -> Step:
    """The step of a replica's rank, by the kind of its profile."""
    return ratio_step(row, part) if field(row, "kind") == RATIO else full_step(row, part)


def full_step(row: Row, part: Shard) -> Step:
    """Kind `full`: every constant of section 3."""
    tp, layers = field(row, "tp"), field(row, "layers")
    bandwidth = field(row, "memory_bandwidth_bytes_per_s")
    flops = field(row, "gemm_flops_efficiency") * field(row, "gemm_flops")
    latency, link = all_reduce(row)
    attention_flops = tp * field(row, "prefill_attention_flops_efficiency") * field(row, "attention_flops")
    return Step(
        weights_s=part.weight_read_bytes / (field(row, "gemm_bandwidth_efficiency") * bandwidth),
        layers_s_per_token=2 * part.layer_params / flops,
        head_s_per_row=2 * part.head_params / flops,
        exponent=field(row, "roofline_exponent"),
        fixed_s=field(row, "step_overhead_s") + layers * field(row, "layer_floor_s") + 2 * layers * latency,
        sequence_s=field(row, "sequence_overhead_s"),
        context_s_per_token=part.kv_bytes_per_token_rank / (field(row, "attention_bandwidth_efficiency") * bandwidth),
        link_s_per_token=link,
        attention_s=4 * layers * field(row, "attention_heads") * field(row, "head_dim") / attention_flops,
        half_tokens=field(row, "prefill_attention_half_tokens"),
        own=1.0,
    )


def ratio_step(row: Row, part: Shard) -> Step:
    """Kind `ratio`: the plain bandwidth floor over all the weights a rank holds, times a measured ratio; no prefill."""
    per_byte = field(row, "measured_over_floor_ratio") / field(row, "memory_bandwidth_bytes_per_s")
    return Step(
        weights_s=per_byte * part.weight_shard_bytes,
        layers_s_per_token=0.0,
        head_s_per_row=0.0,
        exponent=1.0,
        fixed_s=0.0,
        sequence_s=0.0,
        context_s_per_token=per_byte * part.kv_bytes_per_token_rank,
        link_s_per_token=0.0,
        attention_s=0.0,
        half_tokens=0.0,
        own=0.0,
    )


def all_reduce(row: Row) -> tuple[float, float]:
    """Latency of one all-reduce [s] and seconds per token of all of them; PCIe past the scale-up domain."""
    tp = field(row, "tp")
    if tp == 1:
        return 0.0, 0.0
    if tp <= field(row, "scaleup_domain_size"):
        bus = field(row, "allreduce_bandwidth_efficiency") * field(row, "scaleup_bytes_per_s")
        prefix = "allreduce"
    else:
        bus = field(row, "pcie_bandwidth_efficiency") * field(row, "pcie_bytes_per_s")
        prefix = "pcie_allreduce"
    latency = field(row, f"{prefix}_latency_s") + field(row, f"{prefix}_latency_per_doubling_s") * math.log2(tp)
    return latency, 2 * field(row, "layers") * 2 * (tp - 1) / tp * field(row, "hidden_size") * 2 / bus
