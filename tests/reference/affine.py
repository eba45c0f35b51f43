"""Section 9 of docs/model.md: the closed form where every term of a step is linear in tokens and context.

A row is affine if its roofline exponent is 1, prefill attention costs nothing and each token passes every expert.
Then the weights move into the constant and a prompt's time does not depend on how it is cut:

    T(B, 0) = c + a_d B + kappa contexts         c = fixed + w + w_x,   a_d = sequence + layers/token + head/row + r
    s       = a_p u + h                          a_p = layers/token + r,   h = head/row

(kappa contexts is a sum over spans.)

A request that sees itself (light load) has D = T(B + 1) = c' + b B with b = a_d + kappa context, c' = c + b. Prefill
spread evenly, Little's law B = lambda M with M = D1 D + B s gives, since D1 context = E[i(o-1)] + E[o(o-1)]/2,

    tpot_token = c'/(1 - lambda (s + D1 b)),     lambda(B) = B/(D1 (c' + b B) + B s)

which is section 9's form but for c' in the place of c. The wake X of a request's own prefill, which is explicit in B
too, comes on top: lambda(B) = B/(M + X), for Poisson arrivals. A profile of kind `ratio` has c' = c, a_d = 0, s = 0
and no wake: section 9 to the letter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from reference.attended import attended
from reference.fields import Blocks, Row, default, field
from reference.shard import shard
from reference.step import step
from reference.workload import workload

NO_ATTENTION = 1e300
GRID = 300


@dataclass(frozen=True)
class Affine:
    """The closed form's constants for one point, in seconds and tokens."""

    constant_s: float  # c'
    own_step_s: float  # c' - c: what a request adds to the step that it sees
    slope_s: float  # b
    prompt_s: float  # mean s
    prompt_square_s2: float  # mean s^2
    d1: float
    missing: float  # of the harmonic mean of the decode tokens, below d1
    fade: float
    budget: float
    uncached: float  # E[u]
    b_cap: float
    own_s: float  # sum of kappa (c_r - mean context), what a request's own length adds to its TPOT
    slots: int  # S; everything here is one slot's

    def smooth_tpot_token(self, rate: float) -> float:
        """Section 9: the time per output token at a rate, prefill spread evenly."""
        return self.constant_s / (1 - rate * (self.prompt_s + self.d1 * self.slope_s))

    def smooth(self, b: float) -> float:
        """M at B: the same by Little's law, from the rate at which B decode."""
        rate = b / (self.d1 * (self.constant_s + self.slope_s * b) + b * self.prompt_s)
        return self.d1 * self.smooth_tpot_token(rate)

    def wake(self, b: float) -> float:
        """X at B."""
        if self.prompt_s == 0:
            return 0.0
        smooth, step_s = self.smooth(b), self.constant_s + self.slope_s * b
        rate = b / smooth
        rho = rate * self.prompt_s
        own, left = rho * self.prompt_s, 1 - rho**2
        queued = rho**2 * rate * self.prompt_square_s2 / left
        push = (own + queued) * smooth / (smooth + own + queued * (3 - rho**2) / left)
        full = (self.budget - max(b - 1, 0.0)) / self.uncached * self.d1 * step_s
        most = self.d1 * self.prompt_s / smooth * max(full - b * (step_s - self.own_step_s), 0.0)
        return push * most / (push + most) if push else 0.0

    def tpot_token(self, b: float) -> float:
        """Mean over tokens of the time per output token at B."""
        return (self.smooth(b) + self.wake(b)) / self.d1

    def rate(self, b: float) -> float:
        """lambda(B)."""
        return b / (self.d1 * self.tpot_token(b))

    def sharing(self, b: float) -> float:
        """Tokens that share a wake of rho/(1 - rho) iterations."""
        rho = self.rate(b) * self.prompt_s
        return self.d1 - self.missing * self.fade / (self.fade + rho / (1 - rho))

    def tpot_mean(self, b: float) -> float:
        """Mean over requests of the time per output token at B."""
        shared = self.wake(b) * (1 / self.sharing(b) - 1 / self.d1)
        return self.tpot_token(b) + shared + self.own_s / (1 - self.rate(b) * self.prompt_s)

    def rises(self) -> bool:
        """Whether lambda(B) and the TPOT rise all the way, so that each is reached at one B."""
        grid = [self.b_cap * (n / GRID) ** 3 for n in range(GRID + 1)]
        both = ([quantity(b) for b in grid] for quantity in (self.rate, self.tpot_mean))
        return all(before < after for values in both for before, after in pairwise(values))

    def rate_at_compute(self) -> float:
        """lambda at the end of a curve that rises."""
        return self.rate(self.b_cap)

    def decoding(self, rate: float) -> float:
        """B at a rate on a curve that rises."""
        return self.first(lambda b: self.rate(b) >= rate)

    def rate_at_tpot(self, slo_s: float) -> float:
        """The rate at which a TPOT that rises is slo_s."""
        return self.rate(self.first(lambda b: self.tpot_mean(b) >= slo_s))

    def first(self, beyond: Callable[[float], bool]) -> float:
        """The smallest B that is beyond, by bisection."""
        low, high = 0.0, self.b_cap
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (low, middle) if beyond(middle) else (middle, high)
        return high


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
    prompt_s = (its.layers_s_per_token + its.link_s_per_token) * load.uncached + its.head_s_per_row
    if default(row, "kind", 0.0):
        prompt_s = 0.0 * load.uncached
    return Affine(
        constant_s=its.fixed_s + its.weights_s + its.experts_s + its.own * slope,
        own_step_s=its.own * slope,
        slope_s=slope,
        prompt_s=float(load.weight @ prompt_s),
        prompt_square_s2=float(load.weight @ prompt_s**2),
        d1=load.d1,
        missing=load.missing,
        fade=load.fade,
        budget=load.budget,
        uncached=load.mean_uncached,
        b_cap=load.b_cap,
        own_s=its.own * (own - context),
        slots=part.cut.slots,
    )
