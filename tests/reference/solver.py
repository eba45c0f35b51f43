"""Section 7 of docs/model.md: the largest rate under each limit, which one binds, and the point it is reached at.

Roots and rates are one slot's; answers are the replica's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from reference.curve import Curve, Values, curve
from reference.fields import Blocks, Row, default, field, given
from reference.links import ranks_are_joined
from reference.parallelism import parallelism_is_valid
from reference.search import Pieces, Quantity, Root, cut, pieces, smallest_root, top
from reference.shard import Shard, rank_pool_tokens, shard
from reference.step import step
from reference.workload import Workload, workload

Answer = dict[str, float | str | None]

LIMITS = ("compute", "kv_pool", "seats", "tpot_slo", "ttft_slo", "e2e_slo", "utilization")
PHYSICAL = ("compute", "kv_pool", "seats")
RATE_COLUMNS = {
    "compute": "rate_at_compute_rps",
    "kv_pool": "rate_at_kv_rps",
    "seats": "rate_at_seats_rps",
    "tpot_slo": "rate_at_tpot_rps",
    "ttft_slo": "rate_at_ttft_rps",
    "e2e_slo": "rate_at_e2e_rps",
    "utilization": "rate_at_utilization_rps",
}
QUANTITIES: dict[str, Quantity] = {
    "kv_pool": lambda state: state.kv,
    "seats": lambda state: state.running,
    "tpot_slo": lambda state: state.tpot,
    "ttft_slo": lambda state: state.ttft,
    "e2e_slo": lambda state: state.e2e,
}
NO_GAIN = 0.9
DEFAULT_UTILIZATION_CAP = 0.9


# Relative distance to the left and right of an operating point.
A_HAIR = 1e-11


@dataclass(frozen=True)
class Replica:
    """A point on a replica that can be solved: what fits, and the curve of one slot and where it ends."""

    part: Shard
    pool_tokens: float  # of a slot
    seats: float  # of a slot
    load: Workload
    curve: Curve
    top: Root
    pieces: Pieces  # of [0, B*]
    tpot_floor_s: float

    @property
    def slots(self) -> int:
        """S: what belongs to the replica is that many times a slot's."""
        return self.part.cut.slots

    @property
    def gpus(self) -> int:
        """Accelerators."""
        return self.part.cut.devices


def replica(row: Row, blocks: Blocks, point: Row, others: float = 1.0) -> Replica | str:
    """Set up a point, or the status of one that cannot be solved. `others`: as of a `Curve`."""
    if default(row, "supported", 1.0) == 0 or not ranks_are_joined(row, blocks):
        return "unsupported"
    if not parallelism_is_valid(row, blocks):
        return "invalid_parallelism"
    part = shard(row, blocks)
    pool = rank_pool_tokens(row, point, part)
    load = workload(row, point)
    if pool <= 0 or pool < load.mean_prompt + load.mean_output + load.shared_blocks:
        return "does_not_fit"
    its_curve = curve(row, part, step(row, blocks, part), load, others)
    whole = pieces(its_curve)
    peak = top(its_curve, whole)
    return Replica(
        part=part,
        pool_tokens=pool / part.cut.pp,
        seats=load.seats / part.cut.pp,
        load=load,
        curve=its_curve,
        top=peak,
        pieces=cut(its_curve, whole, peak),
        tpot_floor_s=part.weight_read_bytes / field(row, "memory_bandwidth_bytes_per_s"),
    )


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
    answer |= operating_point(solvable, root_at_rate(solvable, max_rate, lowest), max_rate)
    answer["utilization"] = max_rate / largest
    return answer | money(point, solvable, solvable.slots * max_rate)


def limit_roots(solvable: Replica, point: Row) -> dict[str, Root]:
    """Where each limit that is asked for is reached; B* where it is not reached before."""
    bounds = {
        "kv_pool": solvable.pool_tokens,
        "seats": solvable.seats,
        "tpot_slo": given(point, "slo_tpot_s"),
        "ttft_slo": given(point, "slo_ttft_s"),
        "e2e_slo": given(point, "slo_e2e_s"),
    }
    roots = {"compute": solvable.top}
    for name, bound in bounds.items():
        if bound is not None:
            root = smallest_root(solvable.curve, solvable.pieces, QUANTITIES[name], bound)
            roots[name] = solvable.top if root is None else root
    return roots


def rate_at(solvable: Replica, root: Root) -> float:
    """lambda at a root; 0 where the limit is exceeded at B = 0+."""
    return 0.0 if root.at_start else float(solvable.curve.rate(np.array([root.b]), root.k[None, :])[0])


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


def root_at_rate(solvable: Replica, rate: float, known: Root | None = None) -> Root:
    """The smallest B with lambda(B) = rate, B* if rounding hides it; `known` is a B whose rate may be this one."""
    at_known = known is not None and rate_at(solvable, known) == rate
    hint = known if at_known else None
    found = smallest_root(solvable.curve, solvable.pieces, lambda state: state.rate, rate, hint)
    return solvable.top if found is None else found


def beside(row: Row, blocks: Blocks, point: Row, answer: Answer) -> list[Answer]:
    """The operating point of a solved answer a hair to the left and to the right.

    Where a class of prompts is about to need one more chunk, rounding decides on which side of that jump one stands.
    """
    solvable = replica(row, blocks, point)
    decoding = answer.get("decoding")
    if isinstance(solvable, str) or not isinstance(decoding, float):
        return []
    rate = float(answer["max_rate_rps"] or 0.0) / solvable.slots
    shifted = (decoding / solvable.slots * (1 + side * A_HAIR) for side in (-1, 1))
    return [answer | operating_point_at(solvable, b, None, rate) for b in shifted]


def operating_point(solvable: Replica, root: Root, rate: float) -> Answer:
    """The answers that belong to one B and rate of a slot."""
    return operating_point_at(solvable, root.b, root.k[None, :], rate)


def operating_point_at(solvable: Replica, b: float, chunks: Values | None, rate: float) -> Answer:
    """The same at a B; `chunks` None: as many as that B makes of each prompt."""
    load, slots = solvable.load, solvable.slots
    state = solvable.curve.at(np.array([b]), chunks)
    tpot_token, kv = float(state.tpot_token[0]), float(state.kv[0])
    output = slots * rate * load.mean_output
    return {
        "in_flight": slots * float(state.in_flight[0]),
        "running": slots * float(state.running[0]),
        "decoding": slots * b,
        "ttft_mean_s": float(state.ttft[0]),
        "tpot_mean_s": float(state.tpot[0]),
        "tpot_token_mean_s": tpot_token,
        "e2e_mean_s": float(state.e2e[0]),
        "prefill_share": float(state.rho[0]),
        "kv_in_flight_tokens": slots * kv,
        "kv_use": kv / solvable.pool_tokens,
        "output_tok_s": output,
        "output_tok_s_per_gpu": output / solvable.gpus,
        "residual": abs(rate * load.d1 * tpot_token / b - 1),
    }


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
