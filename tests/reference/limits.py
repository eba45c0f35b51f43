"""Section 8 of docs/model.md: where each limit that is asked for is reached on the curve of a slot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reference.curve import Curve, State, Values
from reference.fields import Row, default, given
from reference.latency import e2e, first_token, ttft
from reference.replica import Replica, rate_at, root_at_rate
from reference.search import Quantity, Root, cut, smallest_root
from reference.waiting import Ceiling, Wait, seat_wait, spread

PHYSICAL = ("compute", "kv_pool", "seats")
QUANTITIES: dict[str, Quantity] = {
    "kv_pool": lambda state: state.kv,
    "seats": lambda state: state.running,
    "tpot_slo": lambda state: state.tpot,
}
WITH_WAIT = {"ttft_slo": "slo_ttft_s", "e2e_slo": "slo_e2e_s"}


@dataclass(frozen=True)
class Full:
    """Where a slot is full: at the smallest physical limit."""

    root: Root  # the smallest B with the rate of that limit, which is another B where the curve is not monotone
    ceiling: Ceiling


def limit_roots(solvable: Replica, point: Row) -> dict[str, Root]:
    """Where each limit that is asked for is reached; B* where one without a wait is not reached before."""
    roots = {"compute": solvable.top}
    bounds = {
        "kv_pool": solvable.pool_tokens,
        "seats": solvable.seats,
        "tpot_slo": given(point, "slo_tpot_s"),
    }
    for name, bound in bounds.items():
        if bound is not None:
            root = smallest_root(solvable.curve, solvable.pieces, QUANTITIES[name], bound)
            roots[name] = solvable.top if root is None else root
    full = where_full(solvable, roots)
    for name, column in WITH_WAIT.items():
        slo = given(point, column)
        if slo is not None:
            roots[name] = latency_root(solvable, full, name, slo, default(point, "slo_percentile", 0.0))
    return roots


def where_full(solvable: Replica, roots: dict[str, Root]) -> Full:
    """The ceiling of a slot."""
    rates = {name: rate_at(solvable, roots[name]) for name in PHYSICAL}
    name = min(PHYSICAL, key=lambda name: rates[name])
    if roots[name].at_start:
        return Full(roots[name], Ceiling(0.0, 0.0, name == "kv_pool"))
    limit = roots[name]
    running = float(solvable.curve.at(np.array([limit.b]), limit.k[None, :]).running[0])
    return Full(root_at_rate(solvable, rates[name], limit), Ceiling(rates[name], running, name == "kv_pool"))


def latency_root(solvable: Replica, full: Full, name: str, slo_s: float, percent: float) -> Root:
    """The smallest B below the ceiling at which a latency is its SLO; it has no end at the ceiling."""
    if full.root.at_start:
        return full.root
    its = solvable.curve
    below = cut(its, solvable.pieces, full.root)

    def over_slo(state: State) -> Values:
        wait = seat_wait(its, state, state.rate, full.ceiling)
        with np.errstate(invalid="ignore"):
            over = over_ttft if name == "ttft_slo" else over_e2e
            return np.where(wait.endless, np.inf, over(its, state, wait, slo_s, percent))

    root = smallest_root(its, below, over_slo, 1.0)
    return full.root if root is None else root


def over_ttft(its: Curve, state: State, wait: Wait, slo_s: float, percent: float) -> Values:
    """TTFT over its SLO; for a percentile, the share that is later than the SLO over the share allowed."""
    if percent == 0:
        return (state.ttft + wait.mean_s) / slo_s
    later = ttft(first_token(its, state), wait).tail(np.full(len(state.b), slo_s))
    return later / (1 - percent / 100)


def over_e2e(its: Curve, state: State, wait: Wait, slo_s: float, percent: float) -> Values:
    """End-to-end latency over its SLO."""
    if percent == 0:
        return (state.e2e + wait.mean_s) / slo_s
    return e2e(its, state, spread(its, state), wait, percent) / slo_s
