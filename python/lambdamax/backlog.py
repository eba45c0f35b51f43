"""What a replica serves while requests queue: its limit, or, with a full KV pool, what a simulation of a queue serves.

The curve ends where the mean KV held fills the pool. With a queue behind it the pool is refilled to the brim at once,
so running requests find no block for their next token: the last of them is thrown out and computes its tokens again
(docs/simulator.md). No closed form of the curve knows how often; the simulator does.
"""

from __future__ import annotations

import math
from typing import Final

from lambdamax.case import Case
from lambdamax.engine import Control
from lambdamax.fluid import Service
from lambdamax.operating import Operating

# Of the limit: enough for a queue that never empties, and not so much that the run is all queue.
_OFFERED: Final = 1.5
_REQUESTS: Final = 60_000
_RUN: Final = Control(requests=_REQUESTS, precision=0.0, replications=2, seed=0)
_SATURATED: Final = "saturated"


def service_of(case: Case) -> Service:
    """How fast the replica of `case` works, with a queue and without. QuestionError where it has no operating point."""
    service = Service.of(Operating.of(case))
    return service.with_backlog(queued_rps(case, service.limit_rps))


def queued_rps(case: Case, limit_rps: float) -> float:
    """Requests a second [req/s] that leave while others wait for a full pool.

    NaN where another limit comes first, or the simulator does not know such a replica.
    """
    if not pool_is_first(case):
        return math.nan
    found = case.simulate({"rate_rps": _OFFERED * limit_rps}, _RUN)
    return min(found.numbers["rate_rps"], limit_rps) if found.status == _SATURATED else math.nan


def pool_is_first(case: Case) -> bool:
    """Whether the KV pool is the least of what a replica has."""
    pool, *others = (case.answer[f"rate_at_{name}_rps"] for name in ("kv", "compute", "seats"))
    return pool < min(others)
