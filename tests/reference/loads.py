"""Section 8 of docs/model.md: the operating point at a given rate, or with a given number of clients.

A load is dealt to the slots of a replica in equal parts; everything here is one slot's but the answers.
"""

from __future__ import annotations

import numpy as np

from reference.fields import Blocks, Row, default, given
from reference.limits import Full, limit_roots, where_full
from reference.operating import Answer, closed, opened
from reference.parallelism import parallelism
from reference.replica import Replica, rate_at, replica, root_at_rate
from reference.search import smallest_root


def load(row: Row, blocks: Blocks, point: Row) -> Answer:
    """The answers at `rate_rps` (open loop), or with `concurrency` clients and `think_time_s` (closed loop)."""
    clients = given(point, "concurrency")
    solvable = replica(row, blocks, point, None if clients is None else share_of_others(row, blocks, clients))
    if isinstance(solvable, str):
        return {"status": solvable}
    full = where_full(solvable, limit_roots(solvable, {}))
    rate = given(point, "rate_rps")
    if clients is None:
        assert rate is not None
        return open_loop(solvable, rate / solvable.slots, full)
    return closed_loop(solvable, clients / solvable.slots, default(point, "think_time_s", 0.0), full)


def share_of_others(row: Row, blocks: Blocks, clients: float) -> float:
    """o: a request meets all clients of its slot but its own."""
    return max(1 - parallelism(row, blocks).slots / clients, 0.0)


def open_loop(solvable: Replica, rate: float, full: Full) -> Answer:
    """The smallest B with lambda(B) = rate; no rate is reached where there is none."""
    largest = full.ceiling.rate
    if rate > largest:
        return {"status": "unstable", "excess": rate / largest - 1}
    answer = opened(solvable, root_at_rate(solvable, rate), rate, full.ceiling)
    return answer | of_load(solvable, rate, largest) | {"status": "ok"}


def closed_loop(solvable: Replica, clients: float, think_s: float, full: Full) -> Answer:
    """The smallest B with lambda(B) (e2e(B) + Z) = N, or the full replica with a wait for a seat."""
    largest = full.ceiling.rate
    root = smallest_root(solvable.curve, solvable.pieces, lambda state: state.rate * (state.e2e + think_s), clients)
    if root is not None and root.b <= full.root.b:
        rate = rate_at(solvable, root)
        return closed(solvable, root, rate) | of_load(solvable, rate, largest) | {"status": "ok"}
    seated = float(solvable.curve.at(np.array([full.root.b]), full.root.k[None, :]).e2e[0])
    wait = clients / largest - think_s - seated
    return closed(solvable, full.root, largest, wait) | of_load(solvable, largest, largest) | {"status": "saturated"}


def of_load(solvable: Replica, rate: float, largest: float) -> Answer:
    """What a load's answers say of the rate."""
    return {"rate_rps": solvable.slots * rate, "utilization": rate / largest}
