"""The capacity of many points in Numba: one compiled scalar loop, the same method as with NumPy and as the engine.

Each curve is looked at in six places, its peak is found where it falls, each limit's root starts from the cubic through
its bracket and takes about two Newton steps with exact slopes, latencies with the wait for a seat five with near ones.
Rows that share a curve (SLO axes) share its chart, the root of each limit and value, and each operating point.
"""

# ruff: noqa: PLR0917  compiled functions pass scalars and are one body where that is faster
from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rivals.coefficients import Floats, pool_variations
from rivals.numba_curve import (
    ALL,
    C_FLOOR,
    C_GPUS,
    C_POOL,
    C_WEIGHT_BYTES,
    CAP,
    CEILING,
    CONSTANTS,
    CYCLE,
    D1,
    DISPERSION,
    E2E,
    KEPT_VARIATION,
    KV,
    LEFT,
    MOST_RATE,
    MOST_RATE_SLOPE,
    MOST_RUNNING,
    RATE,
    SEATS,
    SHARING,
    STATE,
    TOP,
    TPOT,
    TTFT,
    WAIT,
    B,
    compiled,
    curve,
    look,
    next_edge,
    over_slo,
    same_piece,
    seat_wait,
)
from rivals.points import Points, SharedGrid

Answers = dict[str, NDArray[Any]]

LIMITS: Final = 7
NONE: Final = 255
SLO_UNREACHABLE: Final = 3
NEAR_COMPUTE: Final = 0.9
NODES: Final = 16
SLOS: Final = ("slo_ttft_s", "slo_tpot_s", "slo_e2e_s", "utilization_cap")
SHARES: Final = (1e-13, 1 / 64, 1 / 16, 1 / 4, 1 / 2, 1.0)
PROBES: Final = 6
MAX_STEPS: Final = 80
SETTLED_STEP: Final = 1e-5
SETTLED_SECANT: Final = 1e-7
# Relative step within which a secant is a better slope than one that is only near.
LOCAL_STEP: Final = 0.005
# Share of the last step below which a step by a near slope is on its way to the root.
SHRINKING: Final = 0.5
CLOSED_BRACKET: Final = 1e-10
JUMP: Final = 2e-11
NEARLY_FLAT: Final = 0.75
CLOSE_LOOKS: Final = 48

OUTPUTS: Final = (
    "max_rate_rps",
    *(f"rate_at_{name}_rps" for name in ("compute", "kv", "seats", "tpot", "ttft", "e2e", "utilization")),
    "naive_rate_rps",
    "in_flight",
    "waiting",
    "running",
    "decoding",
    "seat_wait_s",
    "ttft_mean_s",
    "tpot_mean_s",
    "tpot_token_mean_s",
    "e2e_mean_s",
    "prefill_share",
    "utilization",
    "kv_in_flight_tokens",
    "kv_pool_tokens",
    "kv_use",
    "output_tok_s",
    "output_tok_s_per_gpu",
    "tpot_floor_s",
    "weight_bytes",
    "residual",
    "gpus",
    "cost_usd_per_hour",
    "requests_per_usd",
    "usd_per_mtok_output",
    "usd_per_mtok_total",
)
_variations: Final = compiled(pool_variations)


def solve(points: Points) -> Answers:
    """All answers of all points, each point on its own curve."""
    f = points.fields
    return _run(points, {name: f[name][:, None] for name in SLOS})


def solve_shared(grid: SharedGrid) -> Answers:
    """All answers of a grid, each curve charted once."""
    count = len(grid.curves)
    return _run(grid.curves, {name: np.tile(grid.slos[name], (count, 1)) for name in SLOS})


def _run(points: Points, slos: dict[str, Floats]) -> Answers:
    f = points.fields
    rows = len(points) * math.prod(values.shape[1] for values in slos.values())
    out = np.empty((len(OUTPUTS), rows))
    codes = np.empty((3, rows), dtype=np.uint8)
    varying = bool(f["isl_cv"].any())
    x, w = np.polynomial.hermite.hermgauss(NODES) if varying else (np.zeros(1), np.full(1, math.sqrt(math.pi)))
    shape = [f[name] for name in ("isl_tokens", "osl_tokens", "isl_cv", "osl_cv")]
    rest = [f[name] for name in ("max_num_seqs", "max_num_batched_tokens", "usd_per_accelerator_hour")]
    inputs = np.array([*shape, *rest, *points.short_decodes(len(x))]).T.copy()
    ttft, tpot, e2e, cap = (slos[name] for name in SLOS)
    _solve(points.table, points.replica, inputs, ttft, tpot, e2e, cap, x, w / math.sqrt(math.pi), out, codes)
    names = ("status", "binding_limit", "next_limit")
    return dict(zip(OUTPUTS, out, strict=True)) | dict(zip(names, codes, strict=True))


# The chart


@compiled
def _chart(v: Floats, nodes: Floats, probes: Floats, peak: Floats) -> None:
    """Looks at the curve at the probes and finds its peak."""
    for p in range(PROBES):
        look(v, nodes, SHARES[p] * v[CAP], ALL, probes[p])
    peak[:] = probes[PROBES - 1]
    flat = False
    for p in range(1, PROBES):
        rise = probes[p, CYCLE] - probes[p, B] * probes[p, CYCLE + 1]
        if rise <= 0.0:
            _climb(v, nodes, probes[p - 1, B], probes[p, B], peak)
            return
        flat = flat or (p < PROBES - 1 and rise < probes[p, SHARING] * (1.0 - NEARLY_FLAT))
    if flat:
        _look_closer(v, nodes, peak)


@compiled
def _fall(v: Floats, nodes: Floats, b: float, s: Floats) -> float:
    look(v, nodes, b, 0, s)
    fall: float = b * s[CYCLE + 1] / s[CYCLE] - 1.0
    return fall


@compiled
def _look_closer(v: Floats, nodes: Floats, peak: Floats) -> None:
    s = np.empty(STATE)
    below = v[CAP] * SHARES[1]
    for rung in range(CLOSE_LOOKS - 1, -1, -1):
        b = v[CAP] * SHARES[1] ** (rung / CLOSE_LOOKS)
        if _fall(v, nodes, b, s) >= 0.0:
            _climb(v, nodes, below, b, peak)
            return
        below = b


@compiled
def _climb(v: Floats, nodes: Floats, low: float, high: float, peak: Floats) -> None:
    """The zero of -dlnlambda/dlnB by Illinois; `peak` moves there if it is higher."""
    s = np.empty(STATE)
    f_low, f_high = _fall(v, nodes, low, s), _fall(v, nodes, high, s)
    side = 0
    for step in range(MAX_STEPS):
        b = (low * f_high - high * f_low) / (f_high - f_low)
        if step % 4 == 3 or not low < b < high:
            b = (low + high) / 2.0
        f = _fall(v, nodes, b, s)
        if f < 0.0:
            low, f_low, f_high, side = b, f, f_high / 2.0 if side < 0 else f_high, -1
        else:
            high, f_high, f_low, side = b, f, f_low / 2.0 if side > 0 else f_low, 1
        if high - low <= 1e-8 * high or abs(f) < 1e-10:
            break
    if s[RATE] >= peak[RATE]:
        look(v, nodes, b, ALL, peak)


# Roots


@compiled
def _first_guess(low: float, high: float, f_low: float, d_low: float, f_high: float, d_high: float) -> float:
    span = f_high - f_low
    t = -f_low / span
    u = 1.0 - t
    cubic = (low * (1.0 + 2.0 * t) + span * t / d_low) * u * u
    cubic += (high * (1.0 + 2.0 * u) - span * u / d_high) * t * t
    return cubic if low <= cubic <= high else low + (high - low) * t


@compiled
def _bounded(v: Floats, nodes: Floats, probes: Floats, peak: Floats, limit: int, bound: float) -> tuple[float, float]:
    """(rate, B) where the limit's quantity, without any wait for a seat, is at its bound."""
    place, inverse = KV + 2 * (limit - 1), 1.0 / bound
    if probes[0, place] >= bound:
        return 0.0, 0.0
    before = probes[0]
    for p in range(1, PROBES):
        here = probes[p] if probes[p, B] < peak[B] else peak
        if here[place] >= bound:
            f_low, f_high = before[place] * inverse - 1.0, here[place] * inverse - 1.0
            d_low, d_high = before[place + 1] * inverse, here[place + 1] * inverse
            guess = _first_guess(before[B], here[B], f_low, d_low, f_high, d_high)
            return _newton(v, nodes, peak, limit, inverse, before[B], here[B], f_low, guess)
        if probes[p, B] >= peak[B]:
            break
        before = probes[p]
    return peak[RATE], peak[B]


@compiled
def _full_at(
    v: Floats, nodes: Floats, inputs: Floats, limit: int, b: float, peak: Floats, ceiling: Floats, s: Floats
) -> None:
    """Where the replica is full, at the smallest of compute, KV pool and seats, into `ceiling`."""
    if limit == 0:
        s[:] = peak
    else:
        look(v, nodes, b, ALL, s)
    kept, time = _variations(inputs[0], inputs[1], inputs[2], inputs[3])
    ceiling[TOP], ceiling[MOST_RATE], ceiling[MOST_RATE_SLOPE], ceiling[MOST_RUNNING] = (
        b,
        s[RATE],
        s[RATE + 1],
        s[SEATS],
    )
    ceiling[KEPT_VARIATION] = kept if limit == 1 else 0.0
    ceiling[DISPERSION] = 0.5 * (1.0 + (time if limit == 1 else inputs[3] * inputs[3]))


@compiled
def _below_ceiling(
    v: Floats, nodes: Floats, probes: Floats, ceiling: Floats, limit: int, slo: float
) -> tuple[float, float]:
    """(rate, B) where a latency with the wait for a seat is at its SLO."""
    place, inverse = KV + 2 * (limit - 1), 1.0 / slo
    if ceiling[TOP] <= probes[0, B]:
        return 0.0, 0.0
    low, f_low, d_low = 0.0, 0.0, 0.0
    for p in range(PROBES):
        inner = probes[p, B] < ceiling[TOP]
        b, f, d = ceiling[TOP], 1.0, slo * ceiling[MOST_RATE_SLOPE] / ceiling[DISPERSION]
        if inner:
            b = probes[p, B]
            f, d = over_slo(probes[p], place, ceiling, inverse)
        if f >= 0.0:
            if p == 0:
                return 0.0, 0.0
            guess = _first_guess(low, b, f_low, d_low, f, d)
            return _newton(v, nodes, ceiling, limit, inverse, low, b, f_low, guess)
        low, f_low, d_low = b, f, d
    return ceiling[MOST_RATE], ceiling[TOP]


@compiled
def _inverted(v: Floats, nodes: Floats, probes: Floats, rate: float, high: float) -> float:
    """The smallest B up to `high` with lambda(B) = rate."""
    s = np.empty(STATE)
    low = 0
    while low + 1 < PROBES and probes[low + 1, B] < high and probes[low + 1, RATE] < rate:
        low += 1
    before = probes[low]
    up = high if low + 1 == PROBES else min(high, probes[low + 1, B])
    look(v, nodes, up, 0, s)
    f_low, f_high = before[B] - rate * before[CYCLE], up - rate * s[CYCLE]
    d_low, d_high = 1.0 - rate * before[CYCLE + 1], 1.0 - rate * s[CYCLE + 1]
    guess = _first_guess(before[B], up, f_low, d_low, f_high, d_high)
    return _newton(v, nodes, s, 0, rate, before[B], up, f_low, guess)[1]


@compiled
def _aside(v: Floats, nodes: Floats, step: int, low: float, high: float) -> float:
    """Where to look if Newton's step is of no use: by turns on both sides of the next jump, and in the middle."""
    turn = step % 4
    if step > 2 and turn in (3, 0):
        edge = next_edge(v, nodes, low) * (1.0 + (JUMP if turn == 0 else -JUMP))
        if low < edge < high:
            return edge
    return (low + high) / 2.0


@compiled
def _newton(
    v: Floats,
    nodes: Floats,
    ceiling: Floats,
    limit: int,
    inverse: float,
    low: float,
    high: float,
    f_before: float,
    x: float,
) -> tuple[float, float]:
    """Safeguarded Newton, then secants where slopes are but near: (rate, B) at the root.

    `inverse` is 1/bound, or the rate where the limit is 0; `ceiling` is looked at for latencies only.
    """
    s = np.empty(STATE)
    place, near, before = KV + 2 * (limit - 1), limit >= 4, low
    settled_step = SETTLED_SECANT if near else SETTLED_STEP
    for step in range(MAX_STEPS):
        look(v, nodes, x, limit, s)
        if near:
            f, d = over_slo(s, place, ceiling, inverse)
            if abs(x - before) <= LOCAL_STEP * x:
                d = (f - f_before) / (x - before)
        elif limit == 0:
            f, d = x - inverse * s[CYCLE], 1.0 - inverse * s[CYCLE + 1]
        else:
            f, d = s[place] * inverse - 1.0, s[place + 1] * inverse
        if f < 0.0:
            low = x
        else:
            high = x
        newton = x - f / d
        inside = low <= newton <= high
        settled = inside and abs(newton - x) <= settled_step * x
        if settled and same_piece(v, nodes, newton, x) and (not near or same_piece(v, nodes, before, x)):
            return s[RATE] + s[RATE + 1] * (newton - x), newton
        if high - low <= CLOSED_BRACKET * high:
            return s[RATE] + s[RATE + 1] * (low - x), low
        shrinks = near and abs(newton - x) < SHRINKING * abs(x - before)
        ahead = newton if inside and (step <= 2 or step % 4 == 2 or shrinks) else _aside(v, nodes, step, low, high)
        before, f_before, x = x, f, ahead
    return s[RATE], x


# Rows


@compiled
def _named(limit: int, rates: Floats) -> int:
    near = limit in (1, 2) and rates[limit] >= NEAR_COMPUTE * rates[0] and rates[0] < 1e300
    return 0 if near else limit


@compiled
def _smallest(rates: Floats, cap: float, capped: bool) -> int:
    """The place of the smallest rate; with `capped` utilization is filled in first."""
    if capped:
        rates[6] = cap * min(rates[0], rates[1], rates[2])
    found = 0
    for limit in range(1, LIMITS):
        if rates[limit] < rates[found]:
            found = limit
    return found


@compiled
def _operating(
    v: Floats, nodes: Floats, probes: Floats, ceiling: Floats, limit: int, rate: float, b: float, s: Floats
) -> None:
    """The operating point under the limit that is the smallest."""
    if limit == 6:
        b = _inverted(v, nodes, probes, rate, b)
    look(v, nodes, b, ALL, s)
    wait = seat_wait(s, ceiling)[0]
    s[WAIT] = wait if wait < math.inf else math.nan


@compiled
def _write(
    out: Floats,
    row: int,
    c: Floats,
    inputs: Floats,
    v: Floats,
    rates: Floats,
    rate: float,
    sustained: float,
    s: Floats,
    idle_e2e: float,
) -> None:
    isl, osl, price = inputs[0], inputs[1], inputs[6]
    cost = c[C_GPUS] * price
    out[0, row] = rate
    for limit in range(LIMITS):
        out[1 + limit, row] = rates[limit]
    out[8, row] = c[C_POOL] / ((isl + osl / 2.0) * idle_e2e)
    out[21, row], out[25, row], out[26, row], out[28, row] = c[C_POOL], c[C_FLOOR], c[C_WEIGHT_BYTES], c[C_GPUS]
    out[29, row] = cost
    if rate <= 0.0:
        for place in (9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 22, 23, 24, 27, 30, 31, 32):
            out[place, row] = np.nan
        return
    per_request, e2e = cost / (3600.0 * rate), s[E2E] + s[WAIT]
    out[9, row], out[10, row], out[11, row], out[12, row] = rate * e2e, rate * e2e - s[SEATS], s[SEATS], s[B]
    out[13, row], out[14, row], out[15, row], out[16, row] = s[WAIT], s[TTFT] + s[WAIT], s[TPOT], s[CYCLE] / v[D1]
    out[17, row], out[18, row], out[19, row], out[20, row] = e2e, 1.0 - s[LEFT], rate / sustained, s[KV]
    out[22, row], out[23, row], out[24, row] = s[KV] / c[C_POOL], rate * osl, rate * osl / c[C_GPUS]
    out[27, row] = abs(rate * s[CYCLE] / s[B] - 1.0)
    out[30, row] = 1.0 / per_request
    out[31, row], out[32, row] = per_request / osl * 1e6, per_request / (isl + osl) * 1e6


@compiled
def _latency_roots(
    v: Floats, nodes: Floats, probes: Floats, ceiling: Floats, limit: int, slos: Floats, rate: Floats, b: Floats
) -> None:
    """Rates and Bs of one latency under each of its SLOs."""
    for n in range(len(slos)):
        rate[n], b[n] = _below_ceiling(v, nodes, probes, ceiling, limit, slos[n])


@compiled
def _roots(
    v: Floats, nodes: Floats, probes: Floats, peak: Floats, limit: int, bounds: Floats, rate: Floats, b: Floats
) -> None:
    """Rates and Bs of one limit under each of its bounds."""
    for n in range(len(bounds)):
        rate[n], b[n] = _bounded(v, nodes, probes, peak, limit, bounds[n])


@compiled
def _digits(n: int, tpot: int, e2e: int, cap: int, at: NDArray[np.int64]) -> None:
    """Which value of each SLO axis row `n` of a curve has; TTFT is the slowest axis, the cap the fastest."""
    at[6] = n % cap
    at[5] = n // cap % e2e
    at[3] = n // (cap * e2e) % tpot
    at[4] = n // (cap * e2e * tpot)


@compiled
def _solve(
    table: Floats,
    replica: NDArray[np.uint32],
    inputs: Floats,
    ttft: Floats,
    tpot: Floats,
    e2e: Floats,
    cap: Floats,
    x: Floats,
    w: Floats,
    out: Floats,
    codes: NDArray[np.uint8],
) -> None:
    """Every curve, and every row of its SLOs' product."""
    v, nodes = np.empty(CONSTANTS), np.empty((4, len(x)))
    probes, peak = np.empty((PROBES, STATE)), np.empty(STATE)
    ceiling, s = np.empty(CEILING), np.empty(STATE)
    values = (ttft.shape[1], tpot.shape[1], e2e.shape[1], cap.shape[1])
    most = max(values)
    root_rate, root_b = np.empty((LIMITS, most)), np.empty((LIMITS, most))
    spots, known = np.empty((LIMITS, most, STATE)), np.empty((LIMITS, most), dtype=np.bool_)
    rates, lifted, at = np.empty(LIMITS), np.empty(LIMITS), np.zeros(LIMITS, dtype=np.int64)
    width = values[0] * values[1] * values[2] * values[3]
    for i in range(len(replica)):
        c = table[replica[i]]
        curve(c, inputs[i], x, w, v, nodes)
        _chart(v, nodes, probes, peak)
        known[:] = False
        root_rate[0, 0], root_b[0, 0] = peak[RATE], peak[B]
        root_rate[1, 0], root_b[1, 0] = _bounded(v, nodes, probes, peak, 1, c[C_POOL])
        root_rate[2, 0], root_b[2, 0] = _bounded(v, nodes, probes, peak, 2, inputs[i, 4])
        _roots(v, nodes, probes, peak, 3, tpot[i], root_rate[3], root_b[3])
        physical = np.argmin(root_rate[:3, 0])
        sustained = root_rate[physical, 0]
        _full_at(v, nodes, inputs[i], physical, root_b[physical, 0], peak, ceiling, s)
        _latency_roots(v, nodes, probes, ceiling, 4, ttft[i], root_rate[4], root_b[4])
        _latency_roots(v, nodes, probes, ceiling, 5, e2e[i], root_rate[5], root_b[5])
        root_b[6, :] = root_b[physical, 0]
        for n in range(width):
            row = i * width + n
            _digits(n, values[1], values[2], values[3], at)
            for limit in range(6):
                rates[limit] = root_rate[limit, at[limit]]
            smallest = _smallest(rates, cap[i, at[6]], True)
            rate, place = rates[smallest], at[smallest]
            binding = _named(smallest, rates)
            lifted[:] = rates
            lifted[binding] = 1e301
            following = _smallest(lifted, cap[i, at[6]], binding < 3)
            codes[0, row] = 0 if rate > 0.0 else SLO_UNREACHABLE
            codes[1, row] = binding
            codes[2, row] = _named(following, lifted) if lifted[following] < 1e300 else NONE
            if rate > 0.0 and not known[smallest, place]:
                b = root_b[smallest, place]
                _operating(v, nodes, probes, ceiling, smallest, rate, b, spots[smallest, place])
                known[smallest, place] = True
            _write(out, row, c, inputs[i], v, rates, rate, sustained, spots[smallest, place], probes[0, E2E])
