"""The capacity of many points in NumPy: what binds, and every answer there but percentiles, block by block.

The method is that of the engine, the best we know (see numpy_curve.py and numpy_roots.py).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rivals.coefficients import COEFFICIENTS, Floats
from rivals.numpy_curve import IDLE, NODES, Ceiling, Curves, Indices, curves, seat_wait
from rivals.numpy_roots import Chart, Found, below_ceiling, bounded, full_at, inverted, waits_at_probes
from rivals.points import Points, SharedGrid

Answers = dict[str, NDArray[Any]]

RATES: Final = ("compute", "kv", "seats", "tpot", "ttft", "e2e", "utilization")
# Points that go through the phases together, by prompt nodes.
STRETCH_POINTS: Final = {1: 65536, NODES: 16384}
# Bounds of one curve that are solved together, roughly; and curves whose rows are gathered together.
SHARED_VALUES: Final = 8
ROW_CURVES: Final = 256
NEAR_COMPUTE: Final = 0.9
NO_LIMIT: Final = 255
SLO_UNREACHABLE: Final = 3


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
    compute = Found(chart.peak.rate.value, chart.peak.b)
    pool, seats = bounded(chart, "kv_pool", bounds["pool"]), bounded(chart, "seats", bounds["max_num_seqs"])
    ceiling = full_at(chart, (compute, pool, seats), part)
    waits = waits_at_probes(chart, ceiling)
    found = [compute, pool, seats, bounded(chart, "tpot_slo", bounds["slo_tpot_s"])]
    found += [below_ceiling(chart, f"{name}_slo", bounds[f"slo_{name}_s"], ceiling, waits) for name in ("ttft", "e2e")]
    rates = np.array([one.rate for one in found])
    verdict = judge(rates, part.fields["utilization_cap"])
    b = np.array([one.b for one in found])[verdict.known, np.arange(len(part))]
    capped = np.flatnonzero((verdict.smallest == 6) & (verdict.rate > 0.0))
    if len(capped):
        b[capped] = inverted(chart.curves.take(capped), verdict.rate[capped], b[capped])
    operating = operating_point(chart.curves, b, ceiling)
    return answers(part, table, verdict, operating, chart.probes[0].e2e_slo.value)


def operating_point(its: Curves, b: Floats, ceiling: Ceiling) -> Answers:
    """What the answers say of one B, and the cycle."""
    state = its.at(b)
    wait = seat_wait(state.rate, state.seats, ceiling).value
    wait[np.isinf(wait)] = np.nan
    return {
        "decoding": b,
        "running": state.seats.value,
        "prefill_share": 1.0 - state.left,
        "seat_wait_s": wait,
        "ttft_mean_s": state.ttft_slo.value + wait,
        "tpot_mean_s": state.tpot_slo.value,
        "tpot_token_mean_s": state.cycle.value / its.d1,
        "e2e_mean_s": state.e2e_slo.value + wait,
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
            "waiting": rate * operating["e2e_mean_s"] - operating["running"],
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
    physical = _physical_roots(grid, part, chart)
    ceiling = full_at(chart, physical, part)
    roots = [[one] for one in physical] + _slo_roots(grid, chart, ceiling)
    first = np.cumsum([0, *(len(found) for found in roots)])
    rates = np.array([one.rate for found in roots for one in found])
    states = _shared_states(chart, roots, ceiling, grid.slos["utilization_cap"])
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


def _physical_roots(grid: SharedGrid, part: Points, chart: Chart) -> tuple[Found, Found, Found]:
    pool = grid.curves.table[part.replica, COEFFICIENTS.index("pool_tokens")]
    compute = Found(chart.peak.rate.value, chart.peak.b)
    return compute, bounded(chart, "kv_pool", pool), bounded(chart, "seats", part.fields["max_num_seqs"])


def _slo_roots(grid: SharedGrid, chart: Chart, ceiling: Ceiling) -> list[list[Found]]:
    """The roots of TPOT, TTFT and end-to-end latency under every SLO."""
    full, waits = np.ones_like(ceiling.b), waits_at_probes(chart, ceiling)
    tpot = [bounded(chart, "tpot_slo", full * value) for value in grid.slos["slo_tpot_s"]]
    ttft = [below_ceiling(chart, "ttft_slo", full * value, ceiling, waits) for value in grid.slos["slo_ttft_s"]]
    return [
        tpot,
        ttft,
        [below_ceiling(chart, "e2e_slo", full * value, ceiling, waits) for value in grid.slos["slo_e2e_s"]],
    ]


def _shared_states(chart: Chart, roots: list[list[Found]], ceiling: Ceiling, caps: Floats) -> Answers:
    """Every operating point that a row may have, as (slots, curves)."""
    b = [one.b for found in roots for one in found]
    b += [inverted(chart.curves, cap * ceiling.rate, ceiling.b) for cap in caps]
    states = [operating_point(chart.curves, one, ceiling) for one in b]
    return {name: np.array([state[name] for state in states]) for name in states[0]}
