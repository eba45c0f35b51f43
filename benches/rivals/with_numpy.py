"""The capacity of many points in NumPy: vectorised safeguarded Newton in B on the explicit curve, block by block.

The method is that of the engine, the best we know: every curve is looked at in six places, the peak of lambda(B) is
found where it falls, each limit's root starts from the cubic through its bracket and takes about two Newton steps with
exact slopes, and points that have settled are dropped. Powers are exp(q*log(x)), which NumPy does faster than pow, and
an evaluation works on as many points as stay in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rivals.coefficients import BLOCK, COEFFICIENTS, Floats
from rivals.points import Points, SharedGrid

Answers = dict[str, NDArray[Any]]
Indices = NDArray[np.intp]

LIMITS: Final = ("compute", "kv_pool", "seats", "tpot_slo", "ttft_slo", "e2e_slo", "utilization")
BOUNDED: Final = LIMITS[1:6]
RATES: Final = ("compute", "kv", "seats", "tpot", "ttft", "e2e", "utilization")
IDLE: Final = 1e-13
SHARES: Final = np.array([IDLE, 1 / 64, 1 / 16, 1 / 4, 1 / 2, 1.0])
NODES: Final = 16
# Points that go through the phases together, and points of one evaluation, which stay in the cache.
STRETCH_POINTS: Final = {1: 65536, NODES: 16384}
BLOCK_POINTS: Final = {1: 8192, NODES: 2048}
# Bounds of one curve that are solved together, roughly; and curves whose rows are gathered together.
SHARED_VALUES: Final = 8
ROW_CURVES: Final = 256
SETTLED_STEP: Final = 1e-5
CLOSED_BRACKET: Final = 1e-10
JUMP: Final = 2e-11
MAX_STEPS: Final = 80
NEARLY_FLAT: Final = 0.75
CLOSE_LOOKS: Final = 48
NEAR_COMPUTE: Final = 0.9
NO_LIMIT: Final = 255
SLO_UNREACHABLE: Final = 3
TINY: Final = 1e-300


class Dual(NamedTuple):
    """A quantity and its slope in B."""

    value: Floats
    slope: Floats


class State(NamedTuple):
    """The curve at one B of every point."""

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
    context: Floats
    own_s: Floats
    host_s: Floats
    async_scheduling: Floats
    budget: Floats
    d1: Floats
    b_cap: Floats
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

    def room(self, b: Floats) -> Floats:
        """The longest chunk."""
        return self.budget - np.maximum(b - 1.0, 0.0)

    def chunks(self, b: Floats) -> Floats:
        """k of each node."""
        return np.maximum(np.ceil(self.uncached / self.room(b)), 1.0)

    def prompts(self, b: Floats, alone: Dual) -> tuple[Floats, Dual]:
        """k and s of each node; `alone` is GEMM(B, B)."""
        chunks = self.chunks(b)
        base = self.row_s * b
        if not (chunks > 1.0).any():
            last = self.gemm(base + self.layer_s * self.uncached)
            return chunks, Dual(last.value - alone.value + self.prompt_s, last.slope * self.row_s - alone.slope)
        full = chunks - 1.0
        last = self.gemm(base + self.layer_s * (self.uncached - full * self.room(b)))
        taken = np.where(b > 1.0, 1.0, 0.0)
        value = last.value - alone.value + self.prompt_s
        slope = last.slope * (self.row_s + self.layer_s * full * taken) - alone.slope
        cut = np.flatnonzero(full.max(axis=0))
        some = self if 2 * len(cut) > len(b) else self.take(cut)
        where = slice(None) if some is self else cut
        at = b[where]
        whole = some.gemm(some.layer_s * (at + some.room(at)) + some.head_s * at)
        value[:, where] += full[:, where] * (whole.value - alone.value[where])
        slope[:, where] += full[:, where] * (
            whole.slope * (some.head_s + some.layer_s * (1.0 - taken[where])) - alone.slope[where]
        )
        return chunks, Dual(value, slope)

    def blocks(self) -> Iterator[tuple[slice, Curves]]:
        """The points in blocks that stay in the cache."""
        count, size = len(self.budget), BLOCK_POINTS[len(self.uncached)]
        for start in range(0, count, size):
            chosen = slice(start, start + size)
            yield chosen, self if count <= size else self.take(chosen)

    def cycles(self, b: Floats) -> _Cycles:
        """D1*D(B) + B*E[s], lambda, and what they are made of."""
        gemm = self.gemm(self.row_s * b)
        alone = Dual(gemm.value, gemm.slope * self.row_s)
        seen = self.gemm(self.row_s * (b + 1.0))
        chunks, prompts = self.prompts(b, alone)
        mean = Dual(self.mean(prompts.value), self.mean(prompts.slope))
        decode = Dual(
            self.d1 * (self.fixed_s + self.decode_s * (b + 1.0) + seen.value),
            self.d1 * (self.decode_s + seen.slope * self.row_s),
        )
        cycle = Dual(decode.value + b * mean.value, decode.slope + mean.value + b * mean.slope)
        rate = b / cycle.value
        return _Cycles(alone, chunks, prompts, mean, decode, cycle, Dual(rate, (1 - rate * cycle.slope) / cycle.value))

    def tpot(self, at: _Cycles) -> tuple[Dual, Dual]:
        """1 - rho, and TPOT over requests."""
        left = at.decode.value / at.cycle.value
        left_slope = (at.decode.slope - left * at.cycle.slope) / at.cycle.value
        own = self.own_s / left
        tpot = Dual(at.cycle.value / self.d1 + own, at.cycle.slope / self.d1 - own / left * left_slope)
        return Dual(left, left_slope), tpot

    def at(self, b: Floats) -> State:
        """Every quantity."""
        return _joined([block._at(b[chosen]) for chosen, block in self.blocks()])

    def _at(self, b: Floats) -> State:
        at = self.cycles(b)
        left, tpot = self.tpot(at)
        gate = self.gate(b, at, left)
        kv, ttft = self.kv(b, at, gate), self.ttft(gate)
        e2e = Dual(ttft.value + at.cycle.value, ttft.slope + at.cycle.slope)
        sharing = at.decode.value - b * at.decode.slope
        return State(b, at.cycle, at.rate, left.value, sharing, kv, gate.running, tpot, ttft, e2e)

    def lap(self, b: Floats) -> Dual:
        """D1*D(B) + B*E[s] alone."""
        laps: Dual = _concatenated([block.cycles(b[chosen]).cycle for chosen, block in self.blocks()])
        return laps

    def excess(self, b: Floats, limit: str, inverse: Floats) -> tuple[Dual, Dual]:
        """One limit's quantity over its bound, less one, and lambda; `inverse` is 1/bound, or the rate for `rate`."""
        found = [block._excess(b[chosen], limit, inverse[chosen]) for chosen, block in self.blocks()]
        excess, rate = zip(*found, strict=True)
        return Dual(*map(np.concatenate, zip(*excess, strict=True))), Dual(
            *map(np.concatenate, zip(*rate, strict=True))
        )

    def _excess(self, b: Floats, limit: str, inverse: Floats) -> tuple[Dual, Dual]:
        if limit == "rate":
            at = self.cycles(b)
            return Dual(b - inverse * at.cycle.value, 1.0 - inverse * at.cycle.slope), at.rate
        quantity, rate = self._quantity(b, limit)
        return Dual(quantity.value * inverse - 1.0, quantity.slope * inverse), rate

    def _quantity(self, b: Floats, limit: str) -> tuple[Dual, Dual]:
        at = self.cycles(b)
        left, tpot = self.tpot(at)
        if limit == "tpot_slo":
            return tpot, at.rate
        gate = self.gate(b, at, left)
        if limit == "seats":
            return gate.running, at.rate
        if limit == "kv_pool":
            return self.kv(b, at, gate), at.rate
        ttft = self.ttft(gate)
        if limit == "ttft_slo":
            return ttft, at.rate
        return Dual(ttft.value + at.cycle.value, ttft.slope + at.cycle.slope), at.rate

    def gate(self, b: Floats, at: _Cycles, left: Dual) -> _Gate:
        """The gated queue up to who is running."""
        step = Dual(self.fixed_s + self.decode_s * b + at.alone.value, self.decode_s + at.alone.slope)
        square = Dual(self.mean(at.prompts.value**2), 2.0 * self.mean(at.prompts.value * at.prompts.slope))
        share = 1.0 - left.value
        iteration = step.value / left.value
        iteration_slope = (step.slope - iteration * left.slope) / left.value
        down = left.value * (1.0 + share)
        more = at.rate.value * square.value / down
        more_slope = (
            at.rate.slope * square.value + at.rate.value * square.slope - more * 2 * share * left.slope
        ) / down
        seen = Dual(iteration + more, iteration_slope + more_slope)
        riders = Dual(share * seen.value, share * seen.slope - left.slope * seen.value)
        chunks = self.mean(at.chunks)
        residence = Dual(
            chunks * step.value + at.mean.value + riders.value, chunks * step.slope + at.mean.slope + riders.slope
        )
        running = Dual(
            b + at.rate.value * residence.value,
            1.0 + at.rate.slope * residence.value + at.rate.value * residence.slope,
        )
        return _Gate(step, Dual(iteration, iteration_slope), seen, riders, residence, running)

    def kv(self, b: Floats, at: _Cycles, gate: _Gate) -> Dual:
        """KV tokens held."""
        if len(self.held) == 1:
            held = Dual(gate.residence.value * self.held[0], gate.residence.slope * self.held[0])
        else:
            chunks = self.mean(at.chunks * self.held)
            value = chunks * gate.step.value + self.mean(at.prompts.value * self.held)
            slope = chunks * gate.step.slope + self.mean(at.prompts.slope * self.held)
            held = Dual(value + gate.riders.value * self.mean_held, slope + gate.riders.slope * self.mean_held)
        slope = self.context + at.rate.slope * held.value + at.rate.value * held.slope
        return Dual(b * self.context + at.rate.value * held.value, slope)

    def ttft(self, gate: _Gate) -> Dual:
        """Mean TTFT."""
        idle = np.exp(-gate.running.value)
        wait = gate.seen.value / 2 + self.async_scheduling * gate.iteration.value
        wait_slope = gate.seen.slope / 2 + self.async_scheduling * gate.iteration.slope
        slope = idle * gate.running.slope * wait + (1 - idle) * wait_slope + gate.residence.slope
        return Dual((1 - idle) * wait + gate.residence.value + self.host_s, slope)


def _joined(states: list[State]) -> State:
    if len(states) == 1:
        return states[0]
    parts = zip(*states, strict=True)
    return State(*(_concatenated(part) for part in parts))


def _concatenated(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], Dual):
        return Dual(*map(np.concatenate, zip(*parts, strict=True)))
    return np.concatenate(parts)


class _Cycles(NamedTuple):
    alone: Dual
    chunks: Floats
    prompts: Dual
    mean: Dual
    decode: Dual
    cycle: Dual
    rate: Dual


class _Gate(NamedTuple):
    step: Dual
    iteration: Dual
    seen: Dual
    riders: Dual
    residence: Dual
    running: Dual


class Ends(NamedTuple):
    """Both ends of every bracket: B, and the excess there with its slope."""

    b: Floats
    value: Floats
    slope: Floats


class Found(NamedTuple):
    """The rate under a limit and B there."""

    rate: Floats
    b: Floats


def curves(table: Floats, points: Points, nodes: int) -> Curves:
    """The curves of some points; `nodes` is 1 where every length is fixed."""
    c = dict(zip(COEFFICIENTS, table[points.replica].T.copy(), strict=True))
    isl, osl = points.fields["isl_tokens"], points.fields["osl_tokens"]
    budget, d1 = points.fields["max_num_batched_tokens"], osl - 1.0
    weight, prompt = _prompt_nodes(isl, points.fields["isl_cv"], nodes)
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
        context=context + BLOCK / 2.0,
        own_s=c["kappa_s"] * (isl + osl / 2.0 - context),
        host_s=c["host_s"] + c["host_token_s"] * isl,
        async_scheduling=c["async_scheduling"],
        budget=budget,
        d1=d1,
        b_cap=budget * d1 / (mean_prompt + d1),
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


# The peak of lambda(B)


@dataclass
class Chart:
    """Curves, their states at the probes, and their peaks."""

    curves: Curves
    probes: list[State]
    peak: State

    @classmethod
    def of(cls, its: Curves) -> Chart:
        """Look at every curve in a few places and find its top."""
        probes = [its.at(its.b_cap * share) for share in SHARES]
        chart = cls(its, probes, probes[-1])
        chart._find_peaks()
        return chart

    def _find_peaks(self) -> None:
        rises = np.array([probe.cycle.value - probe.b * probe.cycle.slope for probe in self.probes])
        falls: NDArray[np.bool] = rises <= 0.0
        falling: NDArray[np.bool] = np.logical_or.reduce(falls)
        first = falls.argmax(axis=0)
        low, high = SHARES[first - 1] * self.curves.b_cap, SHARES[first] * self.curves.b_cap
        flat = [r < probe.sharing * (1 - NEARLY_FLAT) for r, probe in zip(rises[1:-1], self.probes[1:-1], strict=True)]
        doubtful = np.flatnonzero(np.logical_or.reduce(flat) & ~falling)
        if len(doubtful):
            _look_closer(self.curves, doubtful, falling, low, high)
        chosen = np.flatnonzero(falling)
        if len(chosen):
            self._climb(chosen, low[chosen], high[chosen])

    def _climb(self, chosen: Indices, low: Floats, high: Floats) -> None:
        some = self.curves.take(chosen)
        top = some.at(_top(some, low, high))
        better = top.rate.value >= self.peak.rate.value[chosen]
        self.peak = _replaced(self.peak, chosen[better], _taken(top, np.flatnonzero(better)))


def _look_closer(its: Curves, doubtful: Indices, falling: NDArray[np.bool], low: Floats, high: Floats) -> None:
    """Walk up curves that nearly fell between two probes, and bracket the first fall."""
    some = its.take(doubtful)
    below = some.b_cap * SHARES[1]
    for look in range(CLOSE_LOOKS - 1, -1, -1):
        b = some.b_cap * SHARES[1] ** (look / CLOSE_LOOKS)
        cycle = some.lap(b)
        here = (cycle.value - b * cycle.slope <= 0.0) & ~falling[doubtful]
        low[doubtful[here]], high[doubtful[here]] = below[here], b[here]
        falling[doubtful[here]] = True
        below = b


def _top(its: Curves, low: Floats, high: Floats) -> Floats:
    """The zero of -dlnlambda/dlnB in each bracket: Illinois, with points dropped as they settle."""
    found = np.empty_like(low)
    where = np.arange(len(low))
    f_low, f_high = _fall(its, low), _fall(its, high)
    side = np.zeros(len(low))
    for step in range(MAX_STEPS):
        secant = (low * f_high - high * f_low) / (f_high - f_low)
        b = np.where(np.isfinite(secant) & (secant > low) & (secant < high) & (step % 4 != 3), secant, (low + high) / 2)
        f = _fall(its, b)
        below = f < 0.0
        f_high = np.where(below & (side < 0), f_high / 2, np.where(below, f_high, f))
        f_low = np.where(~below & (side > 0), f_low / 2, np.where(below, f, f_low))
        low, high = np.where(below, b, low), np.where(below, high, b)
        side = np.where(below, -1.0, 1.0)
        settled = (high - low <= 1e-6 * high) | (np.abs(f) < 1e-9)
        found[where[settled]] = b[settled]
        if settled.all():
            break
        open_ = np.flatnonzero(~settled)
        its, where = its.take(open_), where[open_]
        low, high, f_low, f_high, side = (values[open_] for values in (low, high, f_low, f_high, side))
    return found


def _fall(its: Curves, b: Floats) -> Floats:
    cycle = its.lap(b)
    return b * cycle.slope / cycle.value - 1.0


def _taken(state: State, chosen: Indices) -> State:
    return State(*(_part(part, chosen) for part in state))


def _part(values: Any, chosen: Indices) -> Any:
    return Dual(values.value[chosen], values.slope[chosen]) if isinstance(values, Dual) else values[chosen]


def _replaced(state: State, chosen: Indices, new: State) -> State:
    return State(*(_put(old, chosen, part) for old, part in zip(state, new, strict=True)))


def _put(old: Any, chosen: Indices, new: Any) -> Any:
    if isinstance(old, Dual):
        return Dual(_put(old.value, chosen, new.value), _put(old.slope, chosen, new.slope))
    copy = old.copy()
    copy[chosen] = new
    return copy


# Roots


def bounded(chart: Chart, limit: str, bound: Floats) -> Found:
    """The largest rate that keeps a limit's quantity at its bound."""
    at_peak: Dual = getattr(chart.peak, limit)
    end = chart.peak.b
    inverse = 1.0 / bound
    b = np.array([np.minimum(probe.b, end) for probe in chart.probes])
    inner = np.array([probe.b < end for probe in chart.probes])
    quantities = [getattr(probe, limit) for probe in chart.probes]
    value = np.where(inner, [q.value for q in quantities], at_peak.value) * inverse - 1.0
    slope = np.where(inner, [q.slope for q in quantities], at_peak.slope) * inverse
    reached = value >= 0.0
    first = reached.argmax(axis=0)
    beyond = reached[0]
    inside = np.flatnonzero((first > 0) & ~beyond)
    rate = np.where(beyond, 0.0, chart.peak.rate.value)
    root = np.where(beyond, 0.0, end)
    if len(inside):
        rows = np.array([first[inside] - 1, first[inside]])
        ends = Ends(b[rows, inside], value[rows, inside], slope[rows, inside])
        its = chart.curves if len(inside) == len(bound) else chart.curves.take(inside)
        rate[inside], root[inside] = _newton(its, limit, inverse[inside], ends)
    return Found(rate, root)


def inverted(its: Curves, rate: Floats, high: Floats) -> Floats:
    """The smallest B up to `high`, on the rising curve, with lambda(B) = rate."""
    idle, top = its.lap(np.zeros_like(high)), its.lap(high)
    value = np.array([-rate * idle.value, high - rate * top.value])
    slope = np.array([1.0 - rate * idle.slope, 1.0 - rate * top.slope])
    _, root = _newton(its, "rate", rate, Ends(np.array([np.zeros_like(high), high]), value, slope))
    return root


def _first_guess(b: Floats, value: Floats, slope: Floats) -> Floats:
    """The cubic through both ends with their slopes, read as B over f; the secant where that leaves the bracket."""
    (low, high), span = b, value[1] - value[0]
    t = -value[0] / span
    u = 1.0 - t
    from_low = low * (1.0 + 2.0 * t) + span * t / slope[0]
    from_high = high * (1.0 + 2.0 * u) - span * u / slope[1]
    cubic = from_low * u * u + from_high * t * t
    guess: Floats = np.where((cubic >= low) & (cubic <= high), cubic, low + (high - low) * t)
    return guess


def _newton(its: Curves, limit: str, inverse: Floats, ends: Ends) -> tuple[Floats, Floats]:
    """Safeguarded Newton; (lambda, B) at each root. `inverse` is 1/bound, or the rate for the limit `rate`."""
    with np.errstate(all="ignore"):
        x = _first_guess(*ends)
    low, high = ends.b
    found, rates, where = np.empty_like(x), np.empty_like(x), np.arange(len(x))
    for step in range(MAX_STEPS):
        f, rate = its.excess(x, limit, inverse)
        below = f.value < 0.0
        low, high = np.where(below, x, low), np.where(below, high, x)
        with np.errstate(all="ignore"):
            newton = x - f.value / f.slope
        inside = (newton >= low) & (newton <= high)
        settled = inside & (np.abs(newton - x) <= SETTLED_STEP * x)
        if settled.any():
            settled &= (its.chunks(newton) == its.chunks(x)).all(axis=0)
        done = settled | (high - low <= CLOSED_BRACKET * high)
        end = np.where(settled, newton, low)
        found[where[done]] = end[done]
        rates[where[done]] = (rate.value + rate.slope * (end - x))[done]
        if done.all():
            break
        open_ = np.flatnonzero(~done)
        its, where, inverse = its.take(open_), where[open_], inverse[open_]
        low, high = low[open_], high[open_]
        x = _next(its, step, np.where(inside, newton, np.nan)[open_], low, high)
    return rates, found


def _next(its: Curves, step: int, newton: Floats, low: Floats, high: Floats) -> Floats:
    """Newton's step; for points that do not settle, by turns a look at both sides of the next jump, and halving."""
    turn = step % 4 if step > 2 else 2
    if turn == 2:
        return np.where(np.isnan(newton), (low + high) / 2.0, newton)
    if turn == 1:
        return (low + high) / 2.0
    edge = (its.budget + 1.0 - its.uncached / its.chunks(low)) * (1.0 + (JUMP if turn == 0 else -JUMP))
    edge = np.where(edge > low, edge, np.inf).min(axis=0)
    return np.where(edge < high, edge, (low + high) / 2.0)


# The verdict


def solve(points: Points) -> Answers:
    """All answers of all points, each point on its own curve."""
    nodes = NODES if points.fields["isl_cv"].any() else 1
    size = STRETCH_POINTS[nodes]
    parts = [solve_stretch(points, slice(start, start + size), nodes) for start in range(0, len(points), size)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def idle(points: Points) -> tuple[Floats, Floats, Floats]:
    """Mean TTFT, TPOT and E2E of an idle replica [s]."""
    nodes = NODES if points.fields["isl_cv"].any() else 1
    state = curves(points.table, points, nodes).at(np.full(len(points), IDLE))
    return state.ttft_slo.value, state.tpot_slo.value, state.e2e_slo.value


def solve_stretch(points: Points, chosen: slice, nodes: int) -> Answers:
    """All answers of a stretch of points."""
    part = points.take(chosen)
    table = points.table
    chart = Chart.of(curves(table, part, nodes))
    bounds = {**part.fields, "pool": table[part.replica, COEFFICIENTS.index("pool_tokens")]}
    names = ("pool", "max_num_seqs", "slo_tpot_s", "slo_ttft_s", "slo_e2e_s")
    found = [Found(chart.peak.rate.value, chart.peak.b)]
    found += [bounded(chart, limit, bounds[name]) for limit, name in zip(BOUNDED, names, strict=True)]
    rates = np.array([one.rate for one in found])
    verdict = judge(rates, part.fields["utilization_cap"])
    b = np.array([one.b for one in found])[verdict.known, np.arange(len(part))]
    capped = np.flatnonzero((verdict.smallest == 6) & (verdict.rate > 0.0))
    if len(capped):
        b[capped] = inverted(chart.curves.take(capped), verdict.rate[capped], b[capped])
    return answers(part, table, verdict, operating_point(chart.curves, b), chart.probes[0].e2e_slo.value)


def operating_point(its: Curves, b: Floats) -> Answers:
    """What the answers say of one B, and the cycle."""
    state = its.at(b)
    return {
        "decoding": b,
        "running": state.seats.value,
        "prefill_share": 1.0 - state.left,
        "ttft_mean_s": state.ttft_slo.value,
        "tpot_mean_s": state.tpot_slo.value,
        "tpot_token_mean_s": state.cycle.value / its.d1,
        "e2e_mean_s": state.e2e_slo.value,
        "kv_in_flight_tokens": state.kv_pool.value,
        "cycle": state.cycle.value,
    }


class Verdict(NamedTuple):
    """What binds; `known` is the limit at whose B (or below it, where utilization is the smallest) the answer lies."""

    rates: Floats
    rate: Floats
    smallest: Indices
    known: Indices
    sustained: Floats
    binding: NDArray[np.uint8]
    next: NDArray[np.uint8]


def judge(rates: Floats, cap: Floats) -> Verdict:
    """Name what binds and what is next, from the rates of all limits but utilization, in the order of LIMITS."""
    count = rates.shape[1]
    columns = np.arange(count)
    physical = rates[:3].argmin(axis=0)
    sustained = rates[physical, columns]
    every = np.vstack([rates, cap * sustained])
    smallest = every.argmin(axis=0)
    binding = _named(smallest, every, every[0])
    lifted = every.copy()
    lifted[binding, columns] = np.inf
    lifted[6] = np.where(binding < 3, cap * lifted[:3].min(axis=0), lifted[6])
    after = lifted.argmin(axis=0)
    following = np.where(np.isfinite(lifted[after, columns]), _named(after, lifted, lifted[0]), NO_LIMIT)
    known = np.where(smallest == 6, physical, smallest)
    rate = every[smallest, columns]
    return Verdict(every, rate, smallest, known, sustained, binding.astype(np.uint8), following.astype(np.uint8))


def _named(limit: Indices, rates: Floats, compute: Floats) -> Indices:
    """Compute in place of KV pool or seats where lifting them would gain almost nothing."""
    memory = (limit == 1) | (limit == 2)
    rate = rates[limit, np.arange(len(limit))]
    return np.where(memory & (rate >= NEAR_COMPUTE * compute) & np.isfinite(compute), 0, limit)


def answers(points: Points, table: Floats, verdict: Verdict, operating: Answers, idle_e2e: Floats) -> Answers:
    """Every answer column from the verdict and the operating point."""
    c = dict(zip(COEFFICIENTS, table[points.replica].T, strict=True))
    isl, osl = points.fields["isl_tokens"], points.fields["osl_tokens"]
    with np.errstate(all="ignore"):
        solved = verdict.rate > 0.0
        rate = np.where(solved, verdict.rate, np.nan)
        operating = {name: np.where(solved, values, np.nan) for name, values in operating.items()}
        cycle = operating.pop("cycle")
        cost = c["gpus"] * points.fields["usd_per_accelerator_hour"]
        per_request = cost / (3600.0 * rate)
        return {
            "status": np.where(solved, 0, SLO_UNREACHABLE).astype(np.uint8),
            "binding_limit": verdict.binding,
            "next_limit": verdict.next,
            "max_rate_rps": verdict.rate,
            **{f"rate_at_{name}_rps": values for name, values in zip(RATES, verdict.rates, strict=True)},
            **operating,
            "naive_rate_rps": c["pool_tokens"] / ((isl + osl / 2.0) * idle_e2e),
            "in_flight": rate * operating["e2e_mean_s"],
            "utilization": rate / verdict.sustained,
            "kv_pool_tokens": c["pool_tokens"],
            "kv_use": operating["kv_in_flight_tokens"] / c["pool_tokens"],
            "output_tok_s": rate * osl,
            "output_tok_s_per_gpu": rate * osl / c["gpus"],
            "residual": np.abs(rate * cycle / operating["decoding"] - 1.0),
            "tpot_floor_s": c["tpot_floor_s"],
            "weight_bytes": c["weight_bytes"],
            "gpus": c["gpus"],
            "cost_usd_per_hour": cost,
            "requests_per_usd": 1.0 / per_request,
            "usd_per_mtok_output": per_request / osl * 1e6,
            "usd_per_mtok_total": per_request / (isl + osl) * 1e6,
        }


# Rows that share curves


class _Table(NamedTuple):
    """What the rows of some curves choose from: (slots, curves) of rates and of operating points."""

    points: Points
    first: Indices
    rates: Floats
    states: Answers
    idle_e2e: Floats


def solve_shared(grid: SharedGrid) -> Answers:
    """All answers of a grid, from one chart, root and operating point for all rows that share it.

    Rows are then broadcast and gathered from the table of the 17 operating points of their curve.
    """
    size = STRETCH_POINTS[1] // SHARED_VALUES
    parts = []
    for start in range(0, len(grid.curves), size):
        table = _shared_table(grid, grid.curves.take(slice(start, start + size)))
        rows = range(0, len(table.points), ROW_CURVES)
        parts += [_shared_rows(grid, table, start, slice(row, row + ROW_CURVES)) for row in rows]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _shared_table(grid: SharedGrid, part: Points) -> _Table:
    chart = Chart.of(curves(grid.curves.table, part, NODES if part.fields["isl_cv"].any() else 1))
    roots = _shared_roots(grid, part, chart)
    first = np.cumsum([0, *(len(found) for found in roots)])
    rates = np.array([one.rate for found in roots for one in found])
    states = _shared_states(chart, roots, grid.slos["utilization_cap"], rates)
    return _Table(part, first, rates, states, chart.probes[0].e2e_slo.value)


def _shared_rows(grid: SharedGrid, table: _Table, start: int, chosen: slice) -> Answers:
    part = table.points.take(chosen)
    digits = np.indices([len(values) for values in grid.slos.values()]).reshape(len(grid.slos), -1)
    places = _places(table.first, digits)
    rates = table.rates[:, chosen][places].transpose(0, 2, 1).reshape(len(places), -1)
    verdict = judge(rates, np.tile(grid.slos["utilization_cap"][digits[3]], len(part)))
    slots = np.vstack([places, table.first[-1] + digits[3]])
    width = grid.width
    slot = slots[verdict.smallest, np.tile(np.arange(width), len(part))]
    curve = np.repeat(np.arange(chosen.start, chosen.start + len(part)), width)
    operating = {name: values[slot, curve] for name, values in table.states.items()}
    first_row = (start + chosen.start) * width
    rows = grid.flat.take(slice(first_row, first_row + len(curve)))
    return answers(rows, grid.curves.table, verdict, operating, np.repeat(table.idle_e2e[chosen], width))


def _places(first: Indices, digits: Indices) -> Indices:
    """Where the root of each limit is, for each combination of the SLO values; `first` is a limit's first root."""
    ttft, tpot, e2e, _ = digits
    alone = np.zeros_like(ttft)
    places: Indices = first[:6, None] + np.array([alone, alone, alone, tpot, ttft, e2e])
    return places


def _shared_roots(grid: SharedGrid, part: Points, chart: Chart) -> list[list[Found]]:
    """The roots of every limit under every bound."""
    full = np.full(len(part), 1.0)
    pool = grid.curves.table[part.replica, COEFFICIENTS.index("pool_tokens")]
    found = [[Found(chart.peak.rate.value, chart.peak.b)], [bounded(chart, "kv_pool", pool)]]
    found.append([bounded(chart, "seats", part.fields["max_num_seqs"])])
    for limit in ("tpot_slo", "ttft_slo", "e2e_slo"):
        found.append([bounded(chart, limit, full * value) for value in grid.slos[f"slo_{limit[:-4]}_s"]])
    return found


def _shared_states(chart: Chart, roots: list[list[Found]], caps: Floats, rates: Floats) -> Answers:
    """Every operating point that a row may have, as (slots, curves)."""
    physical = rates[:3].argmin(axis=0)
    b = [one.b for found in roots for one in found]
    top, most = np.array(b[:3])[physical, np.arange(len(physical))], rates[:3].min(axis=0)
    b += [inverted(chart.curves, cap * most, top) for cap in caps]
    states = [operating_point(chart.curves, one) for one in b]
    return {name: np.array([state[name] for state in states]) for name in states[0]}
