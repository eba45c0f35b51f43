"""Where lambda(B) is largest, and the smallest B at which a quantity reaches a limit: dense scan, then narrowing.

The scan cuts [0, B_cap] at several hundred points and at every B where a prompt needs one chunk more. Inside a piece
the number of chunks is held, so every quantity is smooth there and has a value at both ends: the one on the right
is the quantity itself (it is continuous from the left), the one on the left is its limit from the right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from reference.curve import Curve, State, Values
from reference.workload import Floats

Quantity = Callable[[State], Values]

SCAN_POINTS = 110  # each of linear and logarithmic
SCAN_DECADES = 6
NEAR_TOP = 0.98
QUARTERS = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
AROUND = np.array([-1e-2, -1e-5, -1e-9, -1e-15, 0.0, 1e-15, 1e-9, 1e-5, 1e-2])
PASSES = 200


@dataclass(frozen=True)
class Pieces:
    """[lo, hi] pieces that cover a range of B, the number of chunks on each, and the states at their ends."""

    lo: Floats
    hi: Floats
    k: Values
    at_lo: State
    at_hi: State


@dataclass(frozen=True)
class Root:
    """A B with the number of chunks that holds there. `at_start`: the limit is exceeded at B = 0+ already."""

    b: float
    k: Values
    at_start: bool = False
    jumped: bool = False


def pieces(curve: Curve) -> Pieces:
    """The pieces of [0, B_cap]."""
    cap = curve.load.b_cap
    linear = np.linspace(0.0, cap, SCAN_POINTS)
    logarithmic = cap * np.logspace(-SCAN_DECADES, 0, SCAN_POINTS)
    cuts = np.unique(np.concatenate([linear, logarithmic, curve.edges()]))
    lo, hi = cuts[:-1], cuts[1:]
    k = curve.held_chunks((lo + hi) / 2)
    return Pieces(lo, hi, k, curve.at(lo, k), curve.at(hi, k))


def cut(curve: Curve, parts: Pieces, end: Root) -> Pieces:
    """The pieces of [0, end]."""
    first = int(np.argmax(parts.hi >= end.b))
    lo, hi = parts.lo[: first + 1], np.append(parts.hi[:first], end.b)
    k = np.vstack([parts.k[:first], end.k])
    last = curve.at(np.array([parts.lo[first], end.b]), k[[-1, -1]])
    return Pieces(lo, hi, k, joined(parts.at_lo, first, last, 0), joined(parts.at_hi, first, last, 1))


def joined(state: State, count: int, more: State, row: int) -> State:
    """The first `count` rows of one state, then one row of another."""
    return State(
        **{
            name: np.concatenate([values[:count], vars(more)[name][row : row + 1]])
            for name, values in vars(state).items()
        }
    )


def top(curve: Curve, parts: Pieces) -> Root:
    """B*, the arg max of lambda on [0, B_cap]; the smallest where several are equal."""
    best = max(parts.at_lo.rate.max(), parts.at_hi.rate.max())
    near = np.flatnonzero(np.maximum(parts.at_lo.rate, parts.at_hi.rate) >= NEAR_TOP * best)
    lo, hi, k = parts.lo[near], parts.hi[near], parts.k[near]
    inside = (curve.slope(lo, k) > 0) & (curve.slope(hi, k) < 0)
    peaks = [flat_point(curve, *piece) for piece in zip(lo[inside], hi[inside], k[inside], strict=True)]
    right = [Root(float(b), row) for b, row in zip(hi, k, strict=True)]
    left = [Root(float(b), row) for b, row in zip(lo, k, strict=True)]
    candidates = peaks + right + left
    rates = curve.rate(np.array([c.b for c in candidates]), np.array([c.k for c in candidates]))
    return candidates[int(np.argmax(rates))]


def flat_point(curve: Curve, lo: float, hi: float, k: Values) -> Root:
    """The zero of the slope in a piece in which it falls from positive to negative."""
    return Root(narrow(lo, hi, lambda b: -curve.slope(b, np.tile(k, (len(b), 1)))), k)


def narrow(lo: float, hi: float, excess: Callable[[Floats], Values]) -> float:
    """The first zero of `excess`, negative at lo and not at hi: each pass keeps the first sign change it sees.

    The pass looks at quarters of the bracket, which is bisection, and closely around the secant's guess.
    """
    at_lo, at_hi = excess(np.array([lo, hi]))
    for _ in range(PASSES):
        guess = at_lo / (at_lo - at_hi) if at_hi > at_lo else 0.5
        grid = lo + (hi - lo) * np.sort(np.clip(np.concatenate([QUARTERS, guess + AROUND]), 0.0, 1.0))
        values = excess(grid)
        first = int(np.argmax((values >= 0) & (grid > lo) | (grid == hi)))
        hi, at_hi = float(grid[first]), values[first]
        below = np.flatnonzero((grid < hi) & (values < 0))
        if len(below):
            lo, at_lo = float(grid[below[-1]]), values[below[-1]]
        if hi - lo <= 4e-16 * hi or not len(below):
            break
    return hi


def smallest_root(
    curve: Curve, parts: Pieces, quantity: Quantity, limit: float, known: Root | None = None
) -> Root | None:
    """The smallest B at which the quantity reaches the limit, or jumps past it; None if it never does.

    `known` is a root; it is the answer unless an earlier piece has one too.
    """
    jumped = quantity(parts.at_lo) > limit
    reached = jumped | (quantity(parts.at_hi) >= limit)
    if not reached.any():
        return known
    first = int(np.argmax(reached))
    if known is not None and parts.hi[first] >= known.b:
        return known
    k = parts.k[first]
    if jumped[first]:
        before = max(first - 1, 0)
        return Root(float(parts.lo[first]), parts.k[before], at_start=first == 0, jumped=first > 0)

    def excess(b: Floats) -> Values:
        return np.asarray(quantity(curve.at(b, np.tile(k, (len(b), 1)))) / limit - 1)

    return Root(narrow(float(parts.lo[first]), float(parts.hi[first]), excess), k)
