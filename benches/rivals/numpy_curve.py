"""The curve lambda(B) of many points in NumPy: every quantity of docs/model.md sections 3 to 7 with its exact slope.

Powers are exp(q*log(x)), which NumPy does faster than pow, and an evaluation works on as many points as stay in the
cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr  # type: ignore[import-untyped]

from rivals.coefficients import BLOCK, COEFFICIENTS, Floats
from rivals.points import Points

Indices = NDArray[np.intp]

IDLE: Final = 1e-13
NODES: Final = 16
# Points of one evaluation, which stay in the cache, by prompt nodes.
BLOCK_POINTS: Final = {1: 8192, NODES: 2048}
NEAR_FULL: Final = 1e-7
LEAST_VARIANCE: Final = 1e-12
TINY: Final = 1e-300


class Dual(NamedTuple):
    """A quantity and its slope in B."""

    value: Floats
    slope: Floats


class State(NamedTuple):
    """The curve at one B of every point; latencies are those of a request that has a seat."""

    b: Floats
    cycle: Dual
    rate: Dual
    left: Floats
    sharing: Floats
    kv_pool: Dual
    seats: Dual
    tpot_slo: Dual
    ttft_slo: Dual
    e2e_slo: Dual


class Ceiling(NamedTuple):
    """Where a replica is full: B, its rate and who runs there, and how what requests take of it spreads."""

    b: Floats
    rate: Floats
    rate_slope: Floats
    running: Floats
    kept_variation: Floats
    dispersion: Floats

    def take(self, chosen: Indices | slice) -> Ceiling:
        """Some of the points."""
        return Ceiling(*(values[chosen] for values in self))


class Goal(NamedTuple):
    """What a root is sought of: a quantity at 1/`inverse`, or lambda at `inverse` for `rate`.

    Latencies with a `ceiling` include the wait for a seat, and their slopes are near.
    """

    limit: str
    inverse: Floats
    ceiling: Ceiling | None = None

    def take(self, chosen: Indices | slice) -> Goal:
        """Some of the points."""
        ceiling = None if self.ceiling is None else self.ceiling.take(chosen)
        return Goal(self.limit, self.inverse[chosen], ceiling)


@dataclass
class Curves:
    """What shapes lambda(B), one value a point; arrays over prompt nodes are (nodes, points)."""

    weights_s: Floats
    exponent: Floats
    exponent_log_weights: Floats
    inverse_exponent: Floats
    layer_s: Floats
    head_s: Floats
    row_s: Floats
    fixed_s: Floats
    decode_s: Floats
    overhead_s: Floats
    context: Floats
    own_s: Floats
    host_s: Floats
    async_scheduling: Floats
    budget: Floats
    d1: Floats
    missing: Floats
    fade: Floats
    b_cap: Floats
    mean_prompt: Floats
    uncached: Floats
    prompt_s: Floats
    held: Floats
    mean_held: Floats
    weight: Floats

    def take(self, chosen: Indices | slice) -> Curves:
        """Some of the points."""
        arrays = {f.name: getattr(self, f.name) for f in fields(self)}
        weight = arrays.pop("weight")
        return Curves(weight=weight, **{name: values[..., chosen] for name, values in arrays.items()})

    def mean(self, values: Floats) -> Floats:
        """Over the prompt nodes."""
        found: Floats = values[0] if len(values) == 1 else self.weight @ values
        return found

    def gemm(self, compute_s: Floats) -> Dual:
        """(w^q + y^q)^(1/q) and its slope in y."""
        y = np.maximum(compute_s, TINY)
        ratio = np.exp(self.exponent * np.log(y) - self.exponent_log_weights)
        whole = ratio + 1.0
        value = self.weights_s * np.exp(self.inverse_exponent * np.log(whole))
        return Dual(value, value * ratio / (whole * y))

    def room(self, b: Floats) -> Dual:
        """The longest chunk."""
        return Dual(self.budget - np.maximum(b - 1.0, 0.0), np.where(b > 1.0, -1.0, 0.0))

    def chunks(self, b: Floats) -> Floats:
        """k of each node."""
        return np.maximum(np.ceil(self.uncached / self.room(b).value), 1.0)

    def step(self, decodes: Floats) -> Dual:
        """T(decodes, 0) with mean contexts."""
        gemm = self.gemm(self.row_s * decodes)
        value = self.fixed_s + self.decode_s * decodes + gemm.value
        return Dual(value, self.decode_s + gemm.slope * self.row_s)

    def company(self, b: Floats, room: Dual) -> Dual:
        """Prompt tokens that a chunk finds before it."""
        per_decode = self.mean_prompt / self.d1
        coming = per_decode * b
        filled = coming / room.value
        filled_slope = (per_decode - filled * room.slope) / room.value
        free = np.maximum(1.0 - filled, 0.0)
        return Dual(0.5 * coming * free, np.where(free > 0.0, 0.5 * (per_decode * free - coming * filled_slope), 0.0))

    def prompts(self, b: Floats, room: Dual) -> tuple[Floats, Dual]:
        """k and s of each node."""
        chunks = np.maximum(np.ceil(self.uncached / room.value), 1.0)
        company = self.company(b, room)
        base = self.row_s * b + self.layer_s * company.value
        base_slope = self.row_s + self.layer_s * company.slope
        alone = self.gemm(base)
        alone_slope = alone.slope * base_slope
        full = chunks - 1.0
        last = self.gemm(base + self.layer_s * (self.uncached - full * room.value))
        value = last.value - alone.value + self.prompt_s
        slope = last.slope * (base_slope - self.layer_s * full * room.slope) - alone_slope
        cut = np.flatnonzero(full.max(axis=0))
        if len(cut):
            some, where = (self, slice(None)) if 2 * len(cut) > len(b) else (self.take(cut), cut)
            whole = some.gemm(base[where] + some.layer_s * room.value[where])
            whole_slope = whole.slope * (base_slope[where] + some.layer_s * room.slope[where])
            value[:, where] += full[:, where] * (whole.value - alone.value[where])
            slope[:, where] += full[:, where] * (whole_slope - alone_slope[where])
        if self.overhead_s.any():
            paid = self.iterations(b, room)
            value, slope = value + self.overhead_s * paid.value, slope + self.overhead_s * paid.slope
        return chunks, Dual(value, slope)

    def iterations(self, b: Floats, room: Dual) -> Dual:
        """How many iterations each node pays the overhead of."""
        filled = self.uncached / room.value
        filled_slope = -filled * room.slope / room.value
        apart = 1.0 / (1.0 + b / self.d1)
        apart_slope = -(apart**2) / self.d1
        whole = apart + filled
        shared = apart**2 / whole
        shared_slope = (2.0 * apart * apart_slope - shared * (apart_slope + filled_slope)) / whole
        return Dual(filled + shared, filled_slope + shared_slope)

    def blocks(self) -> Iterator[tuple[slice, Curves]]:
        """The points in blocks that stay in the cache."""
        count, size = len(self.budget), BLOCK_POINTS[len(self.uncached)]
        for start in range(0, count, size):
            chosen = slice(start, start + size)
            yield chosen, self if count <= size else self.take(chosen)

    def cycles(self, b: Floats) -> _Cycles:
        """A request's decode with its wake, lambda, and what they are made of."""
        room = self.room(b)
        step, own_step = self.step(b), self.step(b + 1.0)
        chunks, prompts = self.prompts(b, room)
        mean = Dual(self.mean(prompts.value), self.mean(prompts.slope))
        square = Dual(self.mean(prompts.value**2), 2.0 * self.mean(prompts.value * prompts.slope))
        decode = Dual(self.d1 * own_step.value, self.d1 * own_step.slope)
        prefill = Dual(b * mean.value, mean.value + b * mean.slope)
        smooth = _sum(decode, prefill)
        free = self.free(b, step, own_step, room)
        wake = _wake(b, smooth, prefill, (mean, square), free)
        cycle = _sum(smooth, wake)
        rate = b / cycle.value
        rate_slope = (1 - rate * cycle.slope) / cycle.value
        return _Cycles(step, chunks, prompts, mean, square, prefill, decode, wake, cycle, Dual(rate, rate_slope))

    def free(self, b: Floats, step: Dual, own_step: Dual, room: Dual) -> Dual:
        """D1 times what full iterations take longer than a request's decode with others' prefill spread evenly."""
        fills = self.d1**2 / self.mean_prompt
        full = _product(own_step, room)
        spent = Dual(self.d1 * b * step.value, self.d1 * (step.value + b * step.slope))
        return Dual(fills * full.value - spent.value, fills * full.slope - spent.slope)

    def tpot(self, at: _Cycles) -> tuple[Dual, Dual]:
        """1 - rho, and TPOT over requests."""
        share = _quotient(at.prefill, at.cycle)
        left = Dual(1.0 - share.value, -share.slope)
        own = self.own_s / left.value
        slope = at.cycle.slope / self.d1 - own / left.value * left.slope
        wake = self.unequal(at.wake, left)
        return left, Dual(at.cycle.value / self.d1 + own + wake.value, slope + wake.slope)

    def unequal(self, wake: Dual, left: Dual) -> Dual:
        """What wakes add to the time per token in the mean over requests, beyond the one over tokens."""
        lasting = self.fade + 1.0 / left.value - 1.0
        short = self.missing * self.fade / lasting
        sharing = self.d1 - short
        shorter = short / lasting * left.slope / left.value**2
        more = 1.0 / sharing - 1.0 / self.d1
        return Dual(wake.value * more, wake.slope * more + wake.value * shorter / sharing**2)

    def at(self, b: Floats) -> State:
        """Every quantity."""
        return _joined([block._at(b[chosen]) for chosen, block in self.blocks()])

    def _at(self, b: Floats) -> State:
        at = self.cycles(b)
        left, tpot = self.tpot(at)
        gate = self.gate(b, at, left)
        kv, ttft = self.kv(b, at, gate), self.ttft(gate)
        sharing = at.decode.value - b * at.decode.slope
        return State(b, at.cycle, at.rate, left.value, sharing, kv, gate.running, tpot, ttft, _sum(ttft, at.cycle))

    def lap(self, b: Floats) -> Dual:
        """A request's decode with its wake alone."""
        laps: Dual = _concatenated([block.cycles(b[chosen]).cycle for chosen, block in self.blocks()])
        return laps

    def excess(self, b: Floats, goal: Goal) -> tuple[Dual, Dual]:
        """What is zero at the goal and negative below it, and lambda."""
        found = [block._excess(b[chosen], goal.take(chosen)) for chosen, block in self.blocks()]
        excess, rate = zip(*found, strict=True)
        return _concatenated(excess), _concatenated(rate)

    def _excess(self, b: Floats, goal: Goal) -> tuple[Dual, Dual]:
        limit, inverse, ceiling = goal
        at = self.cycles(b)
        if limit == "rate":
            return Dual(b - inverse * at.cycle.value, 1.0 - inverse * at.cycle.slope), at.rate
        left, quantity = self.tpot(at)
        if limit != "tpot_slo":
            gate = self.gate(b, at, left)
            if ceiling is not None:
                ttft = self.ttft(gate)
                seated = ttft if limit == "ttft_slo" else _sum(ttft, at.cycle)
                return over_slo(seated, seat_wait(at.rate, gate.running, ceiling), inverse), at.rate
            quantity = gate.running if limit == "seats" else self.kv(b, at, gate)
        return Dual(quantity.value * inverse - 1.0, quantity.slope * inverse), at.rate

    def gate(self, b: Floats, at: _Cycles, left: Dual) -> _Gate:
        """The gated queue up to who is running."""
        share = 1.0 - left.value
        iteration = _quotient(at.step, left)
        queued = _product(at.rate, at.square)
        more = _quotient(queued, Dual(1.0 - share**2, 2.0 * share * left.slope))
        seen = _sum(iteration, more)
        riders = _product(Dual(share, -left.slope), seen)
        chunks = self.mean(at.chunks)
        residence = Dual(
            chunks * at.step.value + at.mean.value + riders.value, chunks * at.step.slope + at.mean.slope + riders.slope
        )
        prefilling = _product(at.rate, residence)
        running = Dual(b + prefilling.value, 1.0 + prefilling.slope)
        return _Gate(iteration, seen, riders, residence, running)

    def kv(self, b: Floats, at: _Cycles, gate: _Gate) -> Dual:
        """KV tokens held."""
        if len(self.held) == 1:
            held = Dual(gate.residence.value * self.held[0], gate.residence.slope * self.held[0])
        else:
            chunks = self.mean(at.chunks * self.held)
            value = chunks * at.step.value + self.mean(at.prompts.value * self.held)
            slope = chunks * at.step.slope + self.mean(at.prompts.slope * self.held)
            held = Dual(value + gate.riders.value * self.mean_held, slope + gate.riders.slope * self.mean_held)
        prefilling = _product(at.rate, held)
        return Dual(b * self.context + prefilling.value, self.context + prefilling.slope)

    def ttft(self, gate: _Gate) -> Dual:
        """Mean TTFT of a request that has a seat."""
        idle = np.exp(-gate.running.value)
        wait = gate.seen.value / 2 + self.async_scheduling * gate.iteration.value
        wait_slope = gate.seen.slope / 2 + self.async_scheduling * gate.iteration.slope
        slope = idle * gate.running.slope * wait + (1 - idle) * wait_slope + gate.residence.slope
        return Dual((1 - idle) * wait + gate.residence.value + self.host_s, slope)


def over_slo(seated: Dual, wait: Dual, inverse: Floats) -> Dual:
    """1 less the SLO, 1/`inverse`, over a latency and the wait for a seat."""
    share = 1.0 / ((seated.value + wait.value) * inverse)
    with np.errstate(invalid="ignore"):
        return Dual(1.0 - share, share * share * inverse * (seated.slope + wait.slope))


def seat_wait(rate: Dual, running: Dual, ceiling: Ceiling) -> Dual:
    """Mean wait for a seat below a ceiling [s]; infinite where the replica is full.

    The slope is as if variances grew like who is running: exact ones take second derivatives of the curve.
    """
    n = running.value
    with np.errstate(all="ignore"):
        load = rate.value / ceiling.rate
        idle = 1.0 - load
        widest = n * (n + 1.0)
        birth = running.slope * rate.value / rate.slope
        variance = np.maximum(np.where(birth > 0.0, np.minimum(birth, widest), widest), LEAST_VARIANCE)
        free = np.maximum(ceiling.running - n, 0.0)
        kept = n * ceiling.kept_variation
        rarity, rarity_slope = _narrowed(_rarity(free, load, variance, rate, running), free, running, kept)
        variance = variance + kept
        above = np.exp(-rarity) / (np.sqrt(2.0 * np.pi * variance) * idle)
        below = ndtr(np.maximum(free - 0.5, 0.0) / np.sqrt(variance))
        chance = np.minimum(above / (below + above), 1.0 - np.exp(-n))
        wait = chance * ceiling.dispersion / (ceiling.rate * idle)
        longer = rate.slope / (ceiling.rate * idle)
        likelier = (1.0 - chance) * (longer - rarity_slope - 0.5 * running.slope / n)
    return Dual(np.where(idle > NEAR_FULL, wait, np.inf), wait * (longer + likelier))


def _rarity(free: Floats, load: Floats, variance: Floats, rate: Dual, running: Dual) -> Dual:
    """-ln of how much rarer a full replica is than one with the mean population."""
    log_load, bend = np.log(load), free * free / (6.0 * variance)
    from_ceiling = (running.slope * log_load - free * rate.slope / rate.value) / 3.0
    from_mean = -free * running.slope / (3.0 * variance) - bend * running.slope / running.value
    return Dual(np.maximum(bend - free * log_load / 3.0, 0.0), from_ceiling + from_mean)


def _narrowed(rarity: Dual, free: Floats, running: Dual, kept: Floats) -> Dual:
    """The same where a pool fills with KV whose variance is `kept`."""
    square, closing = free * free, -2.0 * free * running.slope
    across = square + 2.0 * rarity.value * kept + TINY
    value = square * rarity.value / across
    wider = closing + 2.0 * kept * (rarity.slope + rarity.value * running.slope / running.value)
    return Dual(value, (closing * rarity.value + square * rarity.slope - value * wider) / across)


def _wake(b: Floats, smooth: Dual, prefill: Dual, work: tuple[Dual, Dual], free: Dual) -> Dual:
    """What the prompts behind a request's own add to its decode; `work` is E[s] and E[s^2], and `free` bounds it."""
    mean, square = work
    share = _quotient(prefill, smooth)
    squared = share.value**2
    rest = 1.0 - squared
    again = 2.0 * share.value * share.slope / rest**2
    own = _product(share, mean)
    flow = b / smooth.value
    rate = Dual(flow, (1.0 - flow * smooth.slope) / smooth.value)
    queued = _product(_product(rate, square), Dual(squared / rest, again))
    raw = _sum(own, queued)
    falling = _sum(own, _product(queued, Dual((3.0 - squared) / rest, 2.0 * again)))
    settled = _quotient(_product(raw, smooth), _sum(smooth, falling))
    most = _product(_quotient(mean, smooth), free)
    open_ = most.value > 0.0
    part = np.where(open_, most.value, 0.0) / (settled.value + np.maximum(most.value, TINY))
    slope = settled.slope * part**2 + np.where(open_, most.slope, 0.0) * (1.0 - part) ** 2
    return Dual(settled.value * part, slope)


def _sum(a: Dual, b: Dual) -> Dual:
    return Dual(a.value + b.value, a.slope + b.slope)


def _product(a: Dual, b: Dual) -> Dual:
    return Dual(a.value * b.value, a.slope * b.value + a.value * b.slope)


def _quotient(a: Dual, b: Dual) -> Dual:
    value = a.value / b.value
    return Dual(value, (a.slope - value * b.slope) / b.value)


def _joined(states: list[State]) -> State:
    if len(states) == 1:
        return states[0]
    parts = zip(*states, strict=True)
    return State(*(_concatenated(part) for part in parts))


def _concatenated(parts: Sequence[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], Dual):
        return Dual(*map(np.concatenate, zip(*parts, strict=True)))
    return np.concatenate(parts)


class _Cycles(NamedTuple):
    step: Dual
    chunks: Floats
    prompts: Dual
    mean: Dual
    square: Dual
    prefill: Dual
    decode: Dual
    wake: Dual
    cycle: Dual
    rate: Dual


class _Gate(NamedTuple):
    iteration: Dual
    seen: Dual
    riders: Dual
    residence: Dual
    running: Dual


def curves(table: Floats, points: Points, nodes: int) -> Curves:
    """The curves of some points; `nodes` is 1 where every length is fixed."""
    c = dict(zip(COEFFICIENTS, table[points.replica].T.copy(), strict=True))
    isl, osl = points.fields["isl_tokens"], points.fields["osl_tokens"]
    budget, d1 = points.fields["max_num_batched_tokens"], osl - 1.0
    weight, prompt = _prompt_nodes(isl, points.fields["isl_cv"], nodes)
    missing, fade = points.short_decodes(nodes)
    second = osl**2 * (1.0 + points.fields["osl_cv"] ** 2) - osl
    context = isl + second / (2.0 * d1)
    attention = c["attention_s"] * prompt**2 / 2.0 * (1.0 + c["half_tokens"] / prompt)
    mean_prompt = weight @ prompt if nodes > 1 else isl
    return Curves(
        weights_s=c["weights_s"],
        exponent=c["exponent"],
        exponent_log_weights=c["exponent"] * np.log(c["weights_s"]),
        inverse_exponent=1.0 / c["exponent"],
        layer_s=c["layer_s"],
        head_s=c["head_s"],
        row_s=c["layer_s"] + c["head_s"],
        fixed_s=c["fixed_s"],
        decode_s=c["sequence_s"] + c["kappa_s"] * context,
        overhead_s=c["overhead_s"],
        context=context + BLOCK / 2.0,
        own_s=c["kappa_s"] * (isl + osl / 2.0 - context),
        host_s=c["host_s"] + c["host_token_s"] * isl,
        async_scheduling=c["async_scheduling"],
        budget=budget,
        d1=d1,
        missing=missing,
        fade=fade,
        b_cap=budget * d1 / (mean_prompt + d1),
        mean_prompt=mean_prompt,
        uncached=prompt,
        prompt_s=c["head_s"] + c["link_s"] * prompt + attention,
        held=prompt + BLOCK / 2.0,
        mean_held=mean_prompt + BLOCK / 2.0,
        weight=weight,
    )


def _prompt_nodes(isl: Floats, cv: Floats, nodes: int) -> tuple[Floats, Floats]:
    if nodes == 1:
        return np.ones(1), isl[None, :]
    x, w = np.polynomial.hermite.hermgauss(nodes)
    variance = np.log1p(cv**2)
    lengths = np.exp(np.log(isl) - variance / 2.0 + np.sqrt(2.0 * variance) * x[:, None])
    return w / np.sqrt(np.pi), lengths
