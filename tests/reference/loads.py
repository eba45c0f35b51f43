"""Section 8 of docs/model.md: the operating point at a given rate, or with a given number of clients.

A load is dealt to the slots of a replica in equal parts; everything here is one slot's but the answers.
"""

from __future__ import annotations

import numpy as np

from reference.fields import Blocks, Row, default, given
from reference.parallelism import parallelism
from reference.search import Root, smallest_root
from reference.solver import PHYSICAL, Answer, Replica, limit_roots, operating_point, rate_at, replica, root_at_rate


def load(row: Row, blocks: Blocks, point: Row) -> Answer:
    """The answers at `rate_rps` (open loop), or with `concurrency` clients and `think_time_s` (closed loop)."""
    clients = given(point, "concurrency")
    solvable = replica(row, blocks, point, 1.0 if clients is None else share_of_others(row, blocks, clients))
    if isinstance(solvable, str):
        return {"status": solvable}
    roots = limit_roots(solvable, {})
    rates = {name: rate_at(solvable, root) for name, root in roots.items()}
    full = min(PHYSICAL, key=lambda name: rates[name])
    rate = given(point, "rate_rps")
    if clients is None:
        assert rate is not None
        return open_loop(solvable, rate / solvable.slots, rates[full])
    full_root = root_at_rate(solvable, rates[full], roots[full])
    return closed_loop(solvable, clients / solvable.slots, default(point, "think_time_s", 0.0), full_root)


def share_of_others(row: Row, blocks: Blocks, clients: float) -> float:
    """o: a request meets all clients of its slot but its own."""
    return max(1 - parallelism(row, blocks).slots / clients, 0.0)


def open_loop(solvable: Replica, rate: float, largest: float) -> Answer:
    """The smallest B with lambda(B) = rate; no rate is reached where there is none."""
    if rate > largest:
        return {"status": "unstable", "excess": rate / largest - 1}
    return at(solvable, root_at_rate(solvable, rate), rate, largest) | {"status": "ok"}


def closed_loop(solvable: Replica, clients: float, think_s: float, full: Root) -> Answer:
    """The smallest B with lambda(B) (e2e_mean(B) + Z) = N, or the full replica with a wait for a seat."""
    largest = rate_at(solvable, full)
    root = smallest_root(solvable.curve, solvable.pieces, lambda state: state.rate * (state.e2e + think_s), clients)
    if root is not None and root.b <= full.b:
        return at(solvable, root, rate_at(solvable, root), largest) | {"status": "ok"}
    seated = float(solvable.curve.at(np.array([full.b]), full.k[None, :]).e2e[0])
    seat_wait = clients / largest - think_s - seated
    return at(solvable, full, largest, largest, seat_wait) | {"status": "saturated"}


def at(solvable: Replica, root: Root, rate: float, largest: float, seat_wait_s: float = 0.0) -> Answer:
    """The operating point at a root. The wait for a seat is part of TTFT and E2E, and those who wait are in flight."""
    answer = operating_point(solvable, root, rate)
    state = solvable.curve.at(np.array([root.b]), root.k[None, :])
    e2e, slots = float(state.e2e[0]) + seat_wait_s, solvable.slots
    return answer | {
        "rate_rps": slots * rate,
        "utilization": rate / largest,
        "seat_wait_s": seat_wait_s,
        "ttft_mean_s": float(state.ttft[0]) + seat_wait_s,
        "e2e_mean_s": e2e,
        "in_flight": slots * rate * e2e,
        "waiting": slots * (rate * e2e - float(state.running[0])),
    }
