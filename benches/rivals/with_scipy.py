"""The capacity of one point at a time: plain Python numbers and scipy.optimize.brentq for every limit.

The wait for a seat rests on slopes of the curve: the imaginary parts of the formulas at B + 1e-30i (the complex step).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from scipy.optimize import brentq, minimize_scalar  # type: ignore[import-untyped]

from rivals.coefficients import BLOCK, COEFFICIENTS, Floats, pool_variations
from rivals.points import Points

IDLE: Final = 1e-13
SHARES: Final = (IDLE, 1 / 64, 1 / 16, 1 / 4, 1 / 2, 1.0)
NODES: Final = 16
STEP: Final = 1e-30
NEAR_FULL: Final = 1e-7
LEAST_VARIANCE: Final = 1e-12
XTOL: Final = 1e-12
RTOL: Final = 1e-9


Number = TypeVar("Number", float, complex)


@dataclass(frozen=True)
class Ceiling:
    """Where the replica is full."""

    b: float
    rate: float
    running: float
    kept_variation: float
    dispersion: float


@dataclass(frozen=True)
class Curve:
    """One point's equations as functions of B; `c` are the replica's coefficients by name."""

    c: dict[str, float]
    isl: float
    osl: float
    d1: float
    context: float
    budget: float
    mean_prompt: float
    short: tuple[float, float]  # by how much 1/E[1/(o - 1)] is below d1, and how slowly that fades
    nodes: tuple[tuple[float, float], ...]  # weight, prompt

    def gemm(self, compute_s: Number) -> Number:
        """(w^q + y^q)^(1/q)."""
        q, weights_s = self.c["exponent"], self.c["weights_s"]
        return weights_s * (1.0 + (compute_s / weights_s) ** q) ** (1.0 / q)

    def decode(self, rows: Number) -> Number:
        """T(rows, 0) with mean contexts."""
        c = self.c
        per_sequence = c["sequence_s"] + c["kappa_s"] * self.context
        return c["fixed_s"] + per_sequence * rows + self.gemm((c["layer_s"] + c["head_s"]) * rows)

    def room(self, b: Number) -> Number:
        """The longest chunk."""
        return self.budget - (b - 1.0) if b.real > 1.0 else self.budget + 0.0 * b

    def prompts(self, b: Number) -> list[tuple[float, float, Number, float]]:
        """(weight, chunks, s, prompt) of each node."""
        c = self.c
        room, coming = self.room(b), b * self.mean_prompt / self.d1
        company = 0.5 * coming * (1.0 - coming / room) if (coming / room).real < 1.0 else 0.0
        base = (c["layer_s"] + c["head_s"]) * b + c["layer_s"] * company
        alone = self.gemm(base)
        whole = self.gemm(base + c["layer_s"] * room) - alone
        apart = 1.0 / (1.0 + b / self.d1)
        found = []
        for weight, prompt in self.nodes:
            k = max(1.0, math.ceil(prompt / room.real))
            last = self.gemm(base + c["layer_s"] * (prompt - (k - 1.0) * room)) - alone
            attention = c["attention_s"] * prompt / 2.0 * (prompt + c["half_tokens"])
            filled = prompt / room
            overhead = c["overhead_s"] * (filled + apart * apart / (apart + filled))
            s = (k - 1.0) * whole + last + c["head_s"] + c["link_s"] * prompt + attention + overhead
            found.append((weight, k, s, prompt))
        return found

    def work(self, b: Number, prompts: list[tuple[float, float, Number, float]]) -> tuple[Number, ...]:
        """E[s], E[s^2], a request's wake, and its decode with it."""
        mean = sum(weight * s for weight, _, s, _ in prompts)
        square = sum(weight * s * s for weight, _, s, _ in prompts)
        own_step = self.decode(b + 1.0)
        smooth = self.d1 * own_step + b * mean
        share = b * mean / smooth
        rest = 1.0 - share * share
        own, queued = share * mean, share * share * b / smooth * square / rest
        settled = (own + queued) * smooth / (smooth + own + queued * (3.0 - share * share) / rest)
        full = self.d1 * own_step * self.room(b) / self.mean_prompt - b * self.decode(b)
        most = self.d1 * mean / smooth * full
        wake = settled * most / (settled + most) if most.real > 0.0 else 0.0
        return mean, square, wake, smooth + wake

    def cycle(self, b: float) -> float:
        """A request's decode with its wake."""
        return self.work(b, self.prompts(b))[3]

    def rate(self, b: float) -> float:
        """lambda(B)."""
        return b / self.cycle(b)

    def tpot(self, b: float) -> float:
        """TPOT over requests."""
        mean, _, wake, cycle = self.work(b, self.prompts(b))
        left = 1.0 - b * mean / cycle
        missing, fade = self.short
        sharing = self.d1 - missing * fade / (fade + 1.0 / left - 1.0)
        own = self.c["kappa_s"] * (self.isl + self.osl / 2.0 - self.context)
        return (cycle - wake) / self.d1 + wake / sharing + own / left

    def queue(self, b: Number) -> tuple[Number, Number, Number, float, float]:
        """KV tokens held, running, lambda, and the real parts of TTFT and E2E of a request that has a seat."""
        c, prompts = self.c, self.prompts(b)
        step = self.decode(b)
        mean, square, _, cycle = self.work(b, prompts)
        rate, share = b / cycle, b * mean / cycle
        left = 1.0 - share
        seen = step / left + rate * square / (left * (1.0 + share))
        times = [(weight, k * step + s + share * seen, prompt) for weight, k, s, prompt in prompts]
        residence = sum(weight * time for weight, time, _ in times)
        held = sum(weight * time * (prompt + BLOCK / 2.0) for weight, time, prompt in times)
        running = b + rate * residence
        wait = -math.expm1(-running.real) * (seen / 2.0 + c["async_scheduling"] * step / left).real
        ttft = wait + residence.real + c["host_s"] + c["host_token_s"] * self.isl
        return b * (self.context + BLOCK / 2.0) + rate * held, running, rate, ttft, ttft + cycle.real

    def latencies(self, b: float, ceiling: Ceiling) -> tuple[float, float]:
        """Mean TTFT and E2E with the wait for a seat; infinite where the replica is full."""
        _, running, rate, ttft, e2e = self.queue(complex(b, STEP))
        wait = _seat_wait(running, rate, ceiling)
        return ttft + wait, e2e + wait

    def peak(self) -> float:
        """B*."""
        cap = self.budget * self.d1 / (self.mean_prompt + self.d1)
        rates = [self.rate(share * cap) for share in SHARES]
        best = rates.index(max(rates))
        last = len(SHARES) - 1
        if best == last and self.rate(cap * (1.0 - 1e-6)) <= rates[last]:
            return cap
        bounds = (SHARES[best - 1] * cap, SHARES[min(best + 1, last)] * cap)
        found = minimize_scalar(lambda b: -self.rate(b), bounds=bounds, options={"xatol": 1e-7 * cap})
        return float(found.x)


def solve(points: Points) -> Floats:
    """max_rate of each point [requests/s]; everything else that the engine answers is left out."""
    return np.array([_max_rate(points, index) for index in range(len(points))])


def _max_rate(points: Points, index: int) -> float:
    f = {name: float(values[index]) for name, values in points.fields.items()}
    c = dict(zip(COEFFICIENTS, points.table[points.replica[index]].tolist(), strict=True))
    curve = _curve(c, f)
    peak = curve.peak()
    physical = [
        (curve.rate(peak), peak),
        _at_bound(curve, lambda b: curve.queue(b)[0], c["pool_tokens"], peak),
        _at_bound(curve, lambda b: curve.queue(b)[1], f["max_num_seqs"], peak),
    ]
    ceiling = _ceiling(curve, f, physical)
    quantities: list[tuple[Callable[[float], float], float, float]] = [
        (curve.tpot, f["slo_tpot_s"], peak),
        (lambda b: curve.latencies(b, ceiling)[0], f["slo_ttft_s"], ceiling.b),
        (lambda b: curve.latencies(b, ceiling)[1], f["slo_e2e_s"], ceiling.b),
    ]
    slos = [_at_bound(curve, *each)[0] for each in quantities]
    return min(*slos, f["utilization_cap"] * min(rate for rate, _ in physical))


def _ceiling(curve: Curve, f: dict[str, float], physical: list[tuple[float, float]]) -> Ceiling:
    """At the smallest rate of compute, KV pool and seats."""
    b = min(physical)[1]
    _, running, rate, _, _ = curve.queue(b)
    if physical.index(min(physical)) != 1:
        return Ceiling(b, rate, running, 0.0, (1.0 + f["osl_cv"] ** 2) / 2.0)
    kept, time = pool_variations(f["isl_tokens"], f["osl_tokens"], f["isl_cv"], f["osl_cv"])
    return Ceiling(b, rate, running, kept, (1.0 + time) / 2.0)


def _seat_wait(running: complex, rate: complex, ceiling: Ceiling) -> float:
    """Mean wait for a seat [s]; imaginary parts are slopes times STEP."""
    n, load = running.real, rate.real / ceiling.rate
    if 1.0 - load <= NEAR_FULL:
        return math.inf
    birth = running.imag * rate.real / rate.imag
    variance = max(min(birth, n * (n + 1.0)) if birth > 0.0 else n * (n + 1.0), LEAST_VARIANCE)
    free = max(ceiling.running - n, 0.0)
    rarity = max(free * free / (6.0 * variance) - free * math.log(load) / 3.0, 0.0)
    kept = n * ceiling.kept_variation
    if free > 0.0:
        rarity = free * free * rarity / (free * free + 2.0 * rarity * kept)
    variance += kept
    above = math.exp(-rarity) / (math.sqrt(2.0 * math.pi * variance) * (1.0 - load))
    below = 1.0 - math.erfc(max(free - 0.5, 0.0) / math.sqrt(2.0 * variance)) / 2.0
    return min(above / (below + above), -math.expm1(-n)) * ceiling.dispersion / (ceiling.rate - rate.real)


def _at_bound(curve: Curve, quantity: Callable[[float], float], bound: float, top: float) -> tuple[float, float]:
    """(rate, B) where a quantity reaches its bound below `top`."""
    if quantity(IDLE * top) >= bound:
        return 0.0, 0.0
    if quantity(top) < bound:
        return curve.rate(top), top
    root = float(brentq(lambda b: 1.0 - bound / quantity(b), IDLE * top, top, xtol=XTOL, rtol=RTOL))
    return curve.rate(root), root


def _curve(c: dict[str, float], f: dict[str, float]) -> Curve:
    isl, osl, d1 = f["isl_tokens"], f["osl_tokens"], f["osl_tokens"] - 1.0
    context = isl + (osl**2 * (1.0 + f["osl_cv"] ** 2) - osl) / (2.0 * d1)
    nodes = _nodes(isl, f["isl_cv"])
    mean_prompt = sum(weight * prompt for weight, prompt in nodes)
    short = _short_decodes(_nodes(osl, f["osl_cv"]), d1)
    return Curve(c, isl, osl, d1, context, f["max_num_batched_tokens"], mean_prompt, short, nodes)


def _short_decodes(outputs: tuple[tuple[float, float], ...], d1: float) -> tuple[float, float]:
    some = [(weight, 1.0 / max(output - 1.0, 1.0)) for weight, output in outputs if output >= 1.5]
    whole = sum(weight for weight, _ in some)
    first = sum(weight * each for weight, each in some) / whole
    variation = sum(weight * each * each for weight, each in some) / whole / first**2 - 1.0
    missing = d1 - 1.0 / first
    return (missing, missing / variation) if len(outputs) > 1 and missing > 0.0 and variation > 0.0 else (0.0, 1.0)


def _nodes(isl: float, cv: float) -> tuple[tuple[float, float], ...]:
    if cv == 0.0:
        return ((1.0, isl),)
    variance = math.log(1.0 + cv**2)
    centre, spread = math.log(isl) - variance / 2.0, math.sqrt(2.0 * variance)
    return tuple((w / math.sqrt(math.pi), math.exp(centre + spread * x)) for x, w in _HERMITE)


_HERMITE: Final = tuple(zip(*(values.tolist() for values in np.polynomial.hermite.hermgauss(NODES)), strict=True))
