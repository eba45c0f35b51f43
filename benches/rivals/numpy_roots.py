"""Peaks and roots of many curves in NumPy: safeguarded Newton from the cubic through each bracket, block by block.

Every curve is looked at in six places, its peak is found where it falls, and points that have settled are dropped.
Slopes are exact; only those of the wait for a seat, which rests on slopes itself, are near, so that secants take over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rivals.coefficients import Floats, pool_variations
from rivals.numpy_curve import IDLE, Ceiling, Curves, Dual, Goal, Indices, State, over_slo, seat_wait
from rivals.points import Points

SHARES: Final = np.array([IDLE, 1 / 64, 1 / 16, 1 / 4, 1 / 2, 1.0])
SETTLED_STEP: Final = 1e-5
SETTLED_SECANT: Final = 1e-7
# Relative step within which a secant is a better slope than one that is only near.
LOCAL_STEP: Final = 0.005
# Share of the last step below which a step by a near slope is on its way to the root.
SHRINKING: Final = 0.5
CLOSED_BRACKET: Final = 1e-10
JUMP: Final = 2e-11
MAX_STEPS: Final = 80
NEARLY_FLAT: Final = 0.75
CLOSE_LOOKS: Final = 48


class Ends(NamedTuple):
    """Both ends of every bracket: B, and the excess there with its slope."""

    b: Floats
    value: Floats
    slope: Floats


class Found(NamedTuple):
    """The rate under a limit and B there."""

    rate: Floats
    b: Floats


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
        settled = (high - low <= 1e-8 * high) | (np.abs(f) < 1e-10)
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
    """The largest rate that keeps a limit's quantity at its bound, without any wait for a seat."""
    at_peak: Dual = getattr(chart.peak, limit)
    end, inverse = chart.peak.b, 1.0 / bound
    inner = np.array([probe.b < end for probe in chart.probes])
    quantities = [getattr(probe, limit) for probe in chart.probes]
    value = np.where(inner, [q.value for q in quantities], at_peak.value) * inverse - 1.0
    slope = np.where(inner, [q.slope for q in quantities], at_peak.slope) * inverse
    b = np.array([np.minimum(probe.b, end) for probe in chart.probes])
    free = Found(chart.peak.rate.value, end)
    return _first_root(chart.curves, Goal(limit, inverse), Ends(b, value, slope), free)


def full_at(chart: Chart, physical: tuple[Found, Found, Found], lengths: Points) -> Ceiling:
    """Where each replica is full: at the smallest rate of compute, KV pool and seats."""
    smallest = np.array([one.rate for one in physical]).argmin(axis=0)
    b = np.array([one.b for one in physical])[smallest, np.arange(len(smallest))]
    state = chart.curves.at(b)
    f, by_pool = lengths.fields, smallest == 1
    kept, time = pool_variations(f["isl_tokens"], f["osl_tokens"], f["isl_cv"], f["osl_cv"])
    dispersion = (1.0 + np.where(by_pool, time, f["osl_cv"] ** 2)) / 2.0
    return Ceiling(b, *state.rate, state.seats.value, np.where(by_pool, kept, 0.0), dispersion)


def below_ceiling(chart: Chart, limit: str, slo: Floats, ceiling: Ceiling, waits: list[Dual]) -> Found:
    """The largest rate that keeps a latency with the wait for a seat at its SLO; `waits` are those at the probes."""
    goal = Goal(limit, 1.0 / slo, ceiling)
    at_top = Dual(np.ones_like(slo), slo * ceiling.rate_slope / ceiling.dispersion)
    over = [over_slo(getattr(p, limit), wait, goal.inverse) for p, wait in zip(chart.probes, waits, strict=True)]
    inner = np.array([probe.b < ceiling.b for probe in chart.probes])
    value, slope = (np.where(inner, part, top) for part, top in zip(zip(*over, strict=True), at_top, strict=True))
    b = np.array([np.minimum(probe.b, ceiling.b) for probe in chart.probes])
    return _first_root(chart.curves, goal, Ends(b, value, slope), Found(ceiling.rate, ceiling.b))


def waits_at_probes(chart: Chart, ceiling: Ceiling) -> list[Dual]:
    """The wait for a seat at every probe."""
    return [seat_wait(probe.rate, probe.seats, ceiling) for probe in chart.probes]


def _first_root(its: Curves, goal: Goal, at_probes: Ends, free: Found) -> Found:
    """The root in the first bracket among the probes; `free` where there is none, and 0 where it is below them."""
    reached = at_probes.value >= 0.0
    first = reached.argmax(axis=0)
    beyond = reached[0]
    inside = np.flatnonzero((first > 0) & ~beyond)
    rate, root = np.where(beyond, 0.0, free.rate), np.where(beyond, 0.0, free.b)
    if len(inside):
        rows = np.array([first[inside] - 1, first[inside]])
        ends = Ends(*(values[rows, inside] for values in at_probes))
        some, part = (its, goal) if len(inside) == len(rate) else (its.take(inside), goal.take(inside))
        rate[inside], root[inside] = _newton(some, part, ends)
    return Found(rate, root)


def inverted(its: Curves, rate: Floats, high: Floats) -> Floats:
    """The smallest B up to `high`, on the rising curve, with lambda(B) = rate."""
    idle, top = its.lap(np.zeros_like(high)), its.lap(high)
    value = np.array([-rate * idle.value, high - rate * top.value])
    slope = np.array([1.0 - rate * idle.slope, 1.0 - rate * top.slope])
    _, root = _newton(its, Goal("rate", rate), Ends(np.array([np.zeros_like(high), high]), value, slope))
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


def _newton(its: Curves, goal: Goal, ends: Ends) -> tuple[Floats, Floats]:
    """Safeguarded Newton, then secants where slopes are but near; (lambda, B) at each root."""
    (low, high), near = ends.b, goal.ceiling is not None
    with np.errstate(all="ignore"):
        x = _first_guess(*ends)
    before, f_before = low, ends.value[0]
    found, rates, where = np.empty_like(x), np.empty_like(x), np.arange(len(x))
    for step in range(MAX_STEPS):
        f, rate = its.excess(x, goal)
        below = f.value < 0.0
        low, high = np.where(below, x, low), np.where(below, high, x)
        with np.errstate(all="ignore"):
            secant = (f.value - f_before) / (x - before)
            local = near & (np.abs(x - before) <= LOCAL_STEP * x)
            newton = x - f.value / np.where(local, secant, f.slope)
        inside = (newton >= low) & (newton <= high)
        settled = inside & (np.abs(newton - x) <= (SETTLED_SECANT if near else SETTLED_STEP) * x)
        if settled.any():
            settled &= (its.chunks(newton) == its.chunks(x)).all(axis=0)
            if near:
                settled &= (its.chunks(before) == its.chunks(x)).all(axis=0)
        done = settled | (high - low <= CLOSED_BRACKET * high)
        end = np.where(settled, newton, low)
        found[where[done]] = end[done]
        rates[where[done]] = (rate.value + rate.slope * (end - x))[done]
        if done.all():
            break
        open_ = np.flatnonzero(~done)
        its, where, goal = its.take(open_), where[open_], goal.take(open_)
        shrinks = near & (np.abs(newton - x) < SHRINKING * np.abs(x - before))
        ahead = _next(its, step, np.where(inside, newton, np.nan)[open_], low[open_], high[open_])
        low, high, before, f_before = low[open_], high[open_], x[open_], f.value[open_]
        x = np.where((shrinks & inside)[open_], newton[open_], ahead)
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
