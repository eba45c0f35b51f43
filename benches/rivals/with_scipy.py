"""The capacity of one point at a time: plain Python floats and scipy.optimize.brentq for every limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.optimize import brentq, minimize_scalar  # type: ignore[import-untyped]

from rivals.coefficients import BLOCK, COEFFICIENTS, Floats
from rivals.points import Points

IDLE: Final = 1e-13
SHARES: Final = (IDLE, 1 / 64, 1 / 16, 1 / 4, 1 / 2, 1.0)
NODES: Final = 16
XTOL: Final = 1e-12
RTOL: Final = 1e-9


@dataclass(frozen=True)
class Curve:
    """One point's equations as functions of B; `c` are the replica's coefficients by name."""

    c: dict[str, float]
    isl: float
    osl: float
    d1: float
    context: float
    budget: float
    nodes: tuple[tuple[float, float], ...]  # weight, prompt

    def gemm(self, compute_s: float) -> float:
        """(w^q + y^q)^(1/q)."""
        q = self.c["exponent"]
        ratio: float = (compute_s / self.c["weights_s"]) ** q
        return self.c["weights_s"] * float((1.0 + ratio) ** (1.0 / q))

    def decode(self, rows: float) -> float:
        """T(rows, 0) with mean contexts."""
        c = self.c
        per_sequence = c["sequence_s"] + c["kappa_s"] * self.context
        return c["fixed_s"] + per_sequence * rows + self.gemm((c["layer_s"] + c["head_s"]) * rows)

    def prompts(self, b: float) -> list[tuple[float, float, float, float]]:
        """(weight, chunks, s, prompt) of each node."""
        c = self.c
        room, row = self.budget - max(b - 1.0, 0.0), (c["layer_s"] + c["head_s"]) * b
        alone = self.gemm(row)
        whole = self.gemm(c["layer_s"] * (b + room) + c["head_s"] * b) - alone
        found = []
        for weight, prompt in self.nodes:
            k = max(1.0, math.ceil(prompt / room))
            last = self.gemm(row + c["layer_s"] * (prompt - (k - 1.0) * room)) - alone
            attention = c["attention_s"] * prompt / 2.0 * (prompt + c["half_tokens"])
            s = (k - 1.0) * whole + last + c["head_s"] + c["link_s"] * prompt + attention
            found.append((weight, k, s, prompt))
        return found

    def cycle(self, b: float) -> float:
        """D1*D(B) + B*E[s]."""
        return self.d1 * self.decode(b + 1.0) + b * sum(weight * s for weight, _, s, _ in self.prompts(b))

    def rate(self, b: float) -> float:
        """lambda(B)."""
        return b / self.cycle(b)

    def tpot(self, b: float) -> float:
        """TPOT over requests."""
        decode = self.d1 * self.decode(b + 1.0)
        cycle = self.cycle(b)
        own = self.c["kappa_s"] * (self.isl + self.osl / 2.0 - self.context)
        return cycle / self.d1 + own * cycle / decode

    def queue(self, b: float) -> tuple[float, float, float, float]:
        """KV tokens held, running, TTFT, E2E."""
        c, prompts = self.c, self.prompts(b)
        decode, step = self.d1 * self.decode(b + 1.0), self.decode(b)
        mean = sum(weight * s for weight, _, s, _ in prompts)
        cycle = decode + b * mean
        rate, left = b / cycle, decode / cycle
        square = sum(weight * s * s for weight, _, s, _ in prompts)
        seen = step / left + rate * square / (left * (2.0 - left))
        times = [(weight, k * step + s + (1.0 - left) * seen, prompt) for weight, k, s, prompt in prompts]
        residence = sum(weight * time for weight, time, _ in times)
        held = sum(weight * time * (prompt + BLOCK / 2.0) for weight, time, prompt in times)
        running = b + rate * residence
        wait = -math.expm1(-running) * (seen / 2.0 + c["async_scheduling"] * step / left)
        ttft = wait + residence + c["host_s"] + c["host_token_s"] * self.isl
        return b * (self.context + BLOCK / 2.0) + rate * held, running, ttft, ttft + cycle

    def peak(self) -> float:
        """B*."""
        cap = self.budget * self.d1 / (sum(weight * prompt for weight, prompt in self.nodes) + self.d1)
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
    top = curve.peak()
    queue = curve.queue
    quantities: list[tuple[Callable[[float], float], float]] = [
        (lambda b: queue(b)[0], c["pool_tokens"]),
        (lambda b: queue(b)[1], f["max_num_seqs"]),
        (curve.tpot, f["slo_tpot_s"]),
        (lambda b: queue(b)[2], f["slo_ttft_s"]),
        (lambda b: queue(b)[3], f["slo_e2e_s"]),
    ]
    rates = [_rate_at(curve, quantity, bound, top) for quantity, bound in quantities]
    compute = curve.rate(top)
    return min(*rates, f["utilization_cap"] * min(compute, *rates[:2]))


def _rate_at(curve: Curve, quantity: Callable[[float], float], bound: float, top: float) -> float:
    if quantity(IDLE * top) >= bound:
        return 0.0
    if quantity(top) < bound:
        return curve.rate(top)
    return curve.rate(float(brentq(lambda b: quantity(b) / bound - 1.0, IDLE * top, top, xtol=XTOL, rtol=RTOL)))


def _curve(c: dict[str, float], f: dict[str, float]) -> Curve:
    isl, osl, d1 = f["isl_tokens"], f["osl_tokens"], f["osl_tokens"] - 1.0
    context = isl + (osl**2 * (1.0 + f["osl_cv"] ** 2) - osl) / (2.0 * d1)
    return Curve(c, isl, osl, d1, context, f["max_num_batched_tokens"], _nodes(isl, f["isl_cv"]))


def _nodes(isl: float, cv: float) -> tuple[tuple[float, float], ...]:
    if cv == 0.0:
        return ((1.0, isl),)
    variance = math.log(1.0 + cv**2)
    centre, spread = math.log(isl) - variance / 2.0, math.sqrt(2.0 * variance)
    return tuple((w / math.sqrt(math.pi), math.exp(centre + spread * x)) for x, w in _HERMITE)


_HERMITE: Final = tuple(zip(*(values.tolist() for values in np.polynomial.hermite.hermgauss(NODES)), strict=True))
