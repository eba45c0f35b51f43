"""Section 8 of docs/model.md: the largest rate under each limit, which one binds, and the point it is reached at.

Roots and rates are one slot's; answers are the replica's.
"""

from __future__ import annotations

import math

import numpy as np

from reference.fields import Blocks, Row, default, given
from reference.limits import PHYSICAL, limit_roots, where_full
from reference.operating import Answer, opened, opened_at
from reference.replica import Replica, rate_at, replica, root_at_rate

LIMITS = ("compute", "kv_pool", "seats", "tpot_slo", "ttft_slo", "e2e_slo", "utilization")
RATE_COLUMNS = {
    "compute": "rate_at_compute_rps",
    "kv_pool": "rate_at_kv_rps",
    "seats": "rate_at_seats_rps",
    "tpot_slo": "rate_at_tpot_rps",
    "ttft_slo": "rate_at_ttft_rps",
    "e2e_slo": "rate_at_e2e_rps",
    "utilization": "rate_at_utilization_rps",
}
NO_GAIN = 0.9
DEFAULT_UTILIZATION_CAP = 0.9

# Relative distance to the left and right of an operating point.
A_HAIR = 1e-11


def solve(row: Row, blocks: Blocks, point: Row) -> Answer:
    """Every answer for one point: ANSWER_FIELDS plus status, binding_limit and next_limit; None is null."""
    solvable = replica(row, blocks, point)
    if isinstance(solvable, str):
        return {"status": solvable}
    roots = limit_roots(solvable, point)
    cap = default(point, "utilization_cap", DEFAULT_UTILIZATION_CAP)
    rates = {name: rate_at(solvable, root) for name, root in roots.items()}  # of a slot
    binding, max_rate = smallest(rates, cap)
    rates_beyond = {name: rate for name, rate in rates.items() if name != binding}
    following, _ = smallest(rates_beyond, None if binding == "utilization" else cap)
    largest = min(rates[name] for name in PHYSICAL)
    offers = rates | {"utilization": cap * largest}
    answer: Answer = {"binding_limit": binding, "next_limit": following, "max_rate_rps": solvable.slots * max_rate}
    answer |= {column: solvable.slots * offers[name] for name, column in RATE_COLUMNS.items() if name in offers}
    answer |= replica_answers(solvable) | {"cost_usd_per_hour": hourly_cost(point, solvable)}
    if max_rate == 0:
        return answer | {"status": "slo_unreachable"}
    lowest = roots[min(rates, key=lambda name: rates[name])]
    ceiling = where_full(solvable, roots).ceiling
    answer |= opened(solvable, root_at_rate(solvable, max_rate, lowest), max_rate, ceiling)
    answer["utilization"] = max_rate / largest
    return answer | money(point, solvable, solvable.slots * max_rate)


def smallest(rates: dict[str, float], cap: float | None) -> tuple[str, float]:
    """The name and rate of what binds among these limits, and of the utilization cap over them where one is given."""
    offers = dict(rates)
    if cap is not None:
        offers["utilization"] = cap * min(rates[name] for name in PHYSICAL if name in rates)
    name = min((name for name in LIMITS if name in offers), key=lambda name: offers[name])
    rate = offers[name]
    if name in ("kv_pool", "seats") and "compute" in rates and rate >= NO_GAIN * rates["compute"]:
        name = "compute"
    return name, rate


def beside(row: Row, blocks: Blocks, point: Row, answer: Answer) -> list[Answer]:
    """The operating point of a solved answer a hair to the left and to the right.

    Where a class of prompts is about to need one more chunk, rounding decides on which side of that jump one stands.
    """
    solvable = replica(row, blocks, point)
    decoding = answer.get("decoding")
    if isinstance(solvable, str) or not isinstance(decoding, float):
        return []
    rate = float(answer["max_rate_rps"] or 0.0) / solvable.slots
    ceiling = where_full(solvable, limit_roots(solvable, {})).ceiling
    shifted = (decoding / solvable.slots * (1 + side * A_HAIR) for side in (-1, 1))
    return [answer | opened_at(solvable, b, None, rate, ceiling) for b in shifted]


def replica_answers(solvable: Replica) -> Answer:
    """The answers that do not depend on the operating point."""
    load, pool = solvable.load, solvable.slots * solvable.pool_tokens
    unloaded = float(solvable.curve.at(np.zeros(1)).e2e[0])
    return {
        "naive_rate_rps": pool / ((load.mean_prompt + load.mean_output / 2) * unloaded),
        "kv_pool_tokens": pool,
        "tpot_floor_s": solvable.tpot_floor_s,
        "weight_bytes": solvable.part.weight_bytes,
        "gpus": float(solvable.gpus),
    }


def hourly_cost(point: Row, solvable: Replica) -> float | None:
    """Price of the replica [USD/h]."""
    price = given(point, "usd_per_accelerator_hour")
    return None if price is None else price * solvable.gpus


def money(point: Row, solvable: Replica, rate: float) -> Answer:
    """Cost of what the replica serves, and the status that says whether there is a price."""
    hourly = hourly_cost(point, solvable)
    if hourly is None:
        return {"status": "no_price"}
    load = solvable.load
    per_token = hourly / (3600 * rate) * 1e6
    return {
        "status": "ok",
        "requests_per_usd": 3600 * rate / hourly if hourly else math.inf,
        "usd_per_mtok_output": per_token / load.mean_output,
        "usd_per_mtok_total": per_token / (load.mean_prompt + load.mean_output),
    }
