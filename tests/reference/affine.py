"""Section 9 of docs/model.md: the closed form where every term of a step is linear in tokens and context.

A row is affine if its roofline exponent is 1, prefill attention costs nothing and each token passes every expert.
Then the weights move into the constant and a prompt's time does not depend on how it is cut:

    T(B, 0) = c + a_d B + kappa contexts         c = fixed + w + w_x,   a_d = sequence + layers/token + head/row + r
    s       = a_p u + h                          a_p = layers/token + r,   h = head/row

(kappa contexts is a sum over spans.)

A request that sees itself (light load) has D = T(B + 1) = c + b (B + 1) with b = a_d + kappa context, so Little's law
B = lambda D1 D/(1 - lambda s) gives, with c' = c + b,

    tpot_token = c'/(1 - lambda (s + D1 b)),     lambda(B) = B/(D1 (c' + b B) + B s)

which is section 9's form but for c' in the place of c, since D1 context = E[i(o-1)] + E[o(o-1)]/2. A profile of kind
`ratio` has c' = c, a_d = 0 and s = 0: section 9 to the letter.
"""

from __future__ import annotations

from dataclasses import dataclass

from reference.attended import attended
from reference.fields import Blocks, Row, default, field
from reference.shard import shard
from reference.step import step
from reference.workload import workload

NO_ATTENTION = 1e300


@dataclass(frozen=True)
class Affine:
    """The closed form's constants for one point, in seconds and tokens."""

    constant_s: float  # c'
    slope_s: float  # b
    prompt_s: float  # mean s
    d1: float
    b_cap: float
    own_s: float  # sum of kappa (c_r - mean context), what a request's own length adds to its TPOT
    slots: int  # S; everything here is one slot's

    def tpot_token(self, rate: float) -> float:
        """Mean over tokens of the time per output token at a rate."""
        return self.constant_s / (1 - rate * (self.prompt_s + self.d1 * self.slope_s))

    def decoding(self, rate: float) -> float:
        """B at a rate."""
        return rate * self.d1 * self.tpot_token(rate)

    def rate(self, b: float) -> float:
        """lambda(B)."""
        return b / (self.d1 * (self.constant_s + self.slope_s * b) + b * self.prompt_s)

    def rate_at_compute(self) -> float:
        """lambda at the end of the curve: it has no peak."""
        return self.rate(self.b_cap)

    def rate_at_tpot(self, slo_s: float) -> float:
        """The rate at which tpot_mean is slo_s: D(B) + own = slo (1 - rho), with rho = lambda s and B from above."""
        low, high = 0.0, self.rate_at_compute()
        for _ in range(200):
            middle = (low + high) / 2
            if self.tpot_mean(middle) < slo_s:
                low = middle
            else:
                high = middle
        return high

    def tpot_mean(self, rate: float) -> float:
        """Mean over requests of the time per output token at a rate."""
        return self.tpot_token(rate) + self.own_s / (1 - rate * self.prompt_s)


def made_affine(row: Row, blocks: Blocks) -> tuple[dict[str, float | None], list[dict[str, float | None]]]:
    """The row and blocks with every curvature taken out: each token passes every expert."""
    straight = dict(row) | {
        "roofline_exponent": 1.0,
        "prefill_attention_half_tokens": 0.0,
        "prefill_layer_overhead_s": 0.0,
        "attention_flops": NO_ATTENTION,
    }
    return straight, [dict(block) | {"experts_per_token": field(block, "experts")} for block in blocks]


def affine(row: Row, blocks: Blocks, point: Row) -> Affine:
    """The closed form of a point on an affine row."""
    part, load = shard(row, blocks), workload(row, point)
    its = step(row, blocks, part)
    seen = [(one.decode_s, attended(one.span, load)) for one in its.spans]
    context = sum(seconds * mean.decoding for seconds, mean in seen)
    own = sum(seconds * mean.request for seconds, mean in seen)
    per_sequence = its.sequence_s + its.layers_s_per_token + its.head_s_per_row + its.link_s_per_token
    slope = per_sequence + context
    prompt = (its.layers_s_per_token + its.link_s_per_token) * load.mean_uncached + its.head_s_per_row
    return Affine(
        constant_s=its.fixed_s + its.weights_s + its.experts_s + its.own * slope,
        slope_s=slope,
        prompt_s=0.0 if default(row, "kind", 0.0) else prompt,
        d1=load.d1,
        b_cap=load.b_cap,
        own_s=its.own * (own - context),
        slots=part.cut.slots,
    )
