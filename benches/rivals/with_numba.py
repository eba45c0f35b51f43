"""The capacity of many points in Numba: one compiled scalar loop, the same method as with NumPy and as the engine.

Each curve is looked at in six places, its peak is found where it falls, each limit's root starts from the cubic through
its bracket and takes about two safeguarded Newton steps with exact slopes; a limit evaluates only what it needs. Rows
that share a curve (SLO axes) share its chart, the root of each limit and value, and each operating point. One core;
fast-math without the flags that forbid NaN.
"""

# ruff: noqa: PLR0917  compiled functions pass scalars and are one body where that is faster
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

from rivals.coefficients import BLOCK, Floats
from rivals.points import Points, SharedGrid

Answers = dict[str, NDArray[Any]]
F = TypeVar("F", bound=Callable[..., Any])

FAST_MATH: Final = {"contract", "reassoc", "arcp", "nsz", "afn"}
LIMITS: Final = 7
NONE: Final = 255
SLO_UNREACHABLE: Final = 3
NEAR_COMPUTE: Final = 0.9
NODES: Final = 16
SLOS: Final = ("slo_ttft_s", "slo_tpot_s", "slo_e2e_s", "utilization_cap")

# Places in a curve's constants.
W, Q, QLW, IQ, LAYER, HEAD, ROW, FIXED, DECODE = range(9)
CONTEXT, OWN, HOST, ASYNC, BUDGET, D1, CAP, MEAN_HELD, CONSTANTS = range(9, 18)
# Places in a state: each quantity with its slope after it; the limits' in their order.
CYCLE, RATE, KV, SEATS, TPOT, TTFT, E2E = range(0, 14, 2)
LEFT, SHARING, B, STATE = range(14, 18)
ALL: Final = 9
SHARES: Final = (1e-13, 1 / 64, 1 / 16, 1 / 4, 1 / 2, 1.0)
PROBES: Final = 6
MAX_STEPS: Final = 80
SETTLED_STEP: Final = 1e-5
CLOSED_BRACKET: Final = 1e-10
JUMP: Final = 2e-11
NEARLY_FLAT: Final = 0.75
CLOSE_LOOKS: Final = 48

OUTPUTS: Final = (
    "max_rate_rps",
    *(f"rate_at_{name}_rps" for name in ("compute", "kv", "seats", "tpot", "ttft", "e2e", "utilization")),
    "naive_rate_rps",
    "in_flight",
    "running",
    "decoding",
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
# Places in a replica's coefficients.
C_W, C_LAYER, C_HEAD, C_Q, C_FIXED, C_SEQUENCE, C_KAPPA, C_LINK, C_ATTENTION = range(9)
C_HALF, C_HOST, C_HOST_TOKEN, C_ASYNC, C_POOL, C_WEIGHT_BYTES, C_FLOOR, C_GPUS = range(9, 17)


def compiled(function: F) -> F:
    """`function` as one-core machine code, kept on disk for the next process."""
    return cast(F, njit(fastmath=FAST_MATH, error_model="numpy", cache=True)(function))


def inlined(function: F) -> F:
    """`function` compiled into each of its callers."""
    return cast(F, njit(fastmath=FAST_MATH, error_model="numpy", forceinline=True)(function))


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
    inputs = np.array([*shape, *rest]).T.copy()
    ttft, tpot, e2e, cap = (slos[name] for name in SLOS)
    _solve(points.table, points.replica, inputs, ttft, tpot, e2e, cap, x, w / math.sqrt(math.pi), out, codes)
    names = ("status", "binding_limit", "next_limit")
    return dict(zip(OUTPUTS, out, strict=True)) | dict(zip(names, codes, strict=True))


# The curve


@compiled
def _gemm(v: Floats, y: float) -> tuple[float, float]:
    """(w^q + y^q)^(1/q), and its slope in y."""
    y = max(y, 1e-300)
    ratio = math.exp(v[Q] * math.log(y) - v[QLW])
    whole = ratio + 1.0
    value = v[W] * math.exp(v[IQ] * math.log(whole))
    return value, value * ratio / (whole * y)


@compiled
def _chunks(v: Floats, uncached: float, b: float) -> float:
    chunks: float = max(1.0, math.ceil(uncached / (v[BUDGET] - max(b - 1.0, 0.0))))
    return chunks


@compiled
def _same_piece(v: Floats, nodes: Floats, a: float, b: float) -> bool:
    same = True
    for j in range(nodes.shape[1]):
        same = same and _chunks(v, nodes[0, j], a) == _chunks(v, nodes[0, j], b)
    return same


@compiled
def _next_edge(v: Floats, nodes: Floats, low: float) -> float:
    """The smallest B above `low` at which some prompt needs one chunk more."""
    found = 1e300
    for j in range(nodes.shape[1]):
        edge = v[BUDGET] + 1.0 - nodes[0, j] / _chunks(v, nodes[0, j], low)
        if low < edge < found:
            found = edge
    return found


@compiled
def _curve(c: Floats, inputs: Floats, x: Floats, w: Floats, v: Floats, nodes: Floats) -> None:
    """Constants of a curve into `v`; (uncached, prompt seconds, held, weight) of its prompt nodes into `nodes`."""
    isl, osl, isl_cv, osl_cv = inputs[0], inputs[1], inputs[2], inputs[3]
    d1 = osl - 1.0
    context = isl + (osl * osl * (1.0 + osl_cv * osl_cv) - osl) / (2.0 * d1)
    variance = math.log(1.0 + isl_cv * isl_cv)
    log_mean, spread = math.log(isl) - variance / 2.0, math.sqrt(2.0 * variance)
    mean = 0.0
    for j in range(nodes.shape[1]):
        prompt = isl if isl_cv == 0.0 else math.exp(log_mean + spread * x[j])
        attention = c[C_ATTENTION] * 0.5 * prompt * (prompt + c[C_HALF])
        nodes[0, j] = prompt
        nodes[1, j] = c[C_HEAD] + c[C_LINK] * prompt + attention
        nodes[2, j] = prompt + BLOCK / 2.0
        nodes[3, j] = w[j]
        mean += w[j] * prompt
    v[W], v[Q], v[IQ], v[QLW] = c[C_W], c[C_Q], 1.0 / c[C_Q], c[C_Q] * math.log(c[C_W])
    v[LAYER], v[HEAD], v[ROW] = c[C_LAYER], c[C_HEAD], c[C_LAYER] + c[C_HEAD]
    v[FIXED], v[DECODE] = c[C_FIXED], c[C_SEQUENCE] + c[C_KAPPA] * context
    v[CONTEXT], v[OWN] = context + BLOCK / 2.0, c[C_KAPPA] * (isl + osl / 2.0 - context)
    v[HOST], v[ASYNC], v[BUDGET] = c[C_HOST] + c[C_HOST_TOKEN] * isl, c[C_ASYNC], inputs[5]
    v[D1], v[CAP], v[MEAN_HELD] = d1, inputs[5] * d1 / (mean + d1), mean + BLOCK / 2.0


Sums = tuple[float, float, float, float, float, float, float, float]


@inlined
def _prompts(v: Floats, nodes: Floats, b: float, alone: float, alone_slope: float) -> Sums:
    """E[s] and E[s^2] with slopes, E[k], E[k*h], E[s*h] with slope, over the prompt nodes."""
    room = v[BUDGET] - max(b - 1.0, 0.0)
    taken = 1.0 if b > 1.0 else 0.0
    whole = whole_slope = mean = mean_slope = square = square_slope = chunks = 0.0
    held_chunks = held_work = held_work_slope = 0.0
    for j in range(nodes.shape[1]):
        k = _chunks(v, nodes[0, j], b)
        full = k - 1.0
        last, last_slope = _gemm(v, v[ROW] * b + v[LAYER] * (nodes[0, j] - full * room))
        value = last - alone + nodes[1, j]
        slope = last_slope * (v[ROW] + v[LAYER] * full * taken) - alone_slope
        if full > 0.0:
            if whole == 0.0:
                whole, whole_slope = _gemm(v, v[LAYER] * (b + room) + v[HEAD] * b)
                whole_slope *= v[HEAD] + v[LAYER] * (1.0 - taken)
            value += full * (whole - alone)
            slope += full * (whole_slope - alone_slope)
        weight = nodes[3, j]
        mean += weight * value
        mean_slope += weight * slope
        square += weight * value * value
        square_slope += 2.0 * weight * value * slope
        chunks += weight * k
        held = weight * nodes[2, j]
        held_chunks += held * k
        held_work += held * value
        held_work_slope += held * slope
    return mean, mean_slope, square, square_slope, chunks, held_chunks, held_work, held_work_slope


@compiled
def _look(v: Floats, nodes: Floats, b: float, need: int, s: Floats) -> None:
    """The state at B into `s`, as far as the limit `need` asks: 0 the rate alone, 3 TPOT, ALL everything."""
    alone, alone_slope = _gemm(v, v[ROW] * b)
    alone_slope *= v[ROW]
    seen_gemm, seen_slope = _gemm(v, v[ROW] * (b + 1.0))
    sums = _prompts(v, nodes, b, alone, alone_slope)
    mean, mean_slope, square, square_slope, chunks, held_chunks, held_work, held_work_slope = sums
    decode = v[D1] * (v[FIXED] + v[DECODE] * (b + 1.0) + seen_gemm)
    decode_slope = v[D1] * (v[DECODE] + seen_slope * v[ROW])
    cycle = decode + b * mean
    cycle_slope = decode_slope + mean + b * mean_slope
    per_cycle = 1.0 / cycle
    rate = b * per_cycle
    rate_slope = (1.0 - rate * cycle_slope) * per_cycle
    s[CYCLE], s[CYCLE + 1], s[RATE], s[RATE + 1], s[B] = cycle, cycle_slope, rate, rate_slope, b
    if need == 0:
        return
    left = decode * per_cycle
    left_slope = (decode_slope - left * cycle_slope) * per_cycle
    per_left = 1.0 / left
    own = v[OWN] * per_left
    s[LEFT], s[SHARING] = left, decode - b * decode_slope
    s[TPOT], s[TPOT + 1] = cycle / v[D1] + own, cycle_slope / v[D1] - own * per_left * left_slope
    if need == 3:
        return
    step, step_slope = v[FIXED] + v[DECODE] * b + alone, v[DECODE] + alone_slope
    share = 1.0 - left
    iteration = step * per_left
    iteration_slope = (step_slope - iteration * left_slope) * per_left
    down = 1.0 / (left * (1.0 + share))
    more = rate * square * down
    more_slope = (rate_slope * square + rate * square_slope - more * 2.0 * share * left_slope) * down
    seen, seen_slope = iteration + more, iteration_slope + more_slope
    riders, riders_slope = share * seen, share * seen_slope - left_slope * seen
    residence = chunks * step + mean + riders
    residence_slope = chunks * step_slope + mean_slope + riders_slope
    running = b + rate * residence
    running_slope = 1.0 + rate_slope * residence + rate * residence_slope
    s[SEATS], s[SEATS + 1] = running, running_slope
    if need in (1, ALL):
        held = held_chunks * step + held_work + riders * v[MEAN_HELD]
        held_slope = held_chunks * step_slope + held_work_slope + riders_slope * v[MEAN_HELD]
        s[KV], s[KV + 1] = b * v[CONTEXT] + rate * held, v[CONTEXT] + rate_slope * held + rate * held_slope
    if need >= 4:
        idle = math.exp(-running)
        wait = seen / 2.0 + v[ASYNC] * iteration
        wait_slope = seen_slope / 2.0 + v[ASYNC] * iteration_slope
        s[TTFT] = (1.0 - idle) * wait + residence + v[HOST]
        s[TTFT + 1] = idle * running_slope * wait + (1.0 - idle) * wait_slope + residence_slope
        s[E2E], s[E2E + 1] = s[TTFT] + cycle, s[TTFT + 1] + cycle_slope


# The chart


@compiled
def _chart(v: Floats, nodes: Floats, probes: Floats, peak: Floats) -> None:
    """Looks at the curve at the probes and finds its peak."""
    for p in range(PROBES):
        _look(v, nodes, SHARES[p] * v[CAP], ALL, probes[p])
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
    _look(v, nodes, b, 0, s)
    fall: float = b * s[CYCLE + 1] / s[CYCLE] - 1.0
    return fall


@compiled
def _look_closer(v: Floats, nodes: Floats, peak: Floats) -> None:
    s = np.empty(STATE)
    below = v[CAP] * SHARES[1]
    for look in range(CLOSE_LOOKS - 1, -1, -1):
        b = v[CAP] * SHARES[1] ** (look / CLOSE_LOOKS)
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
        if high - low <= 1e-6 * high or abs(f) < 1e-9:
            break
    if s[RATE] >= peak[RATE]:
        _look(v, nodes, b, ALL, peak)


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
    """(rate, B) where the limit's quantity is at its bound."""
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
            return _newton(v, nodes, limit, inverse, before[B], here[B], guess)
        if probes[p, B] >= peak[B]:
            break
        before = probes[p]
    return peak[RATE], peak[B]


@compiled
def _inverted(v: Floats, nodes: Floats, probes: Floats, rate: float, high: float) -> float:
    """The smallest B up to `high` with lambda(B) = rate."""
    s = np.empty(STATE)
    low = 0
    while low + 1 < PROBES and probes[low + 1, B] < high and probes[low + 1, RATE] < rate:
        low += 1
    before = probes[low]
    up = high if low + 1 == PROBES else min(high, probes[low + 1, B])
    _look(v, nodes, up, 0, s)
    f_low, f_high = before[B] - rate * before[CYCLE], up - rate * s[CYCLE]
    d_low, d_high = 1.0 - rate * before[CYCLE + 1], 1.0 - rate * s[CYCLE + 1]
    guess = _first_guess(before[B], up, f_low, d_low, f_high, d_high)
    return _newton(v, nodes, 0, rate, before[B], up, guess)[1]


@compiled
def _newton(
    v: Floats, nodes: Floats, limit: int, inverse: float, low: float, high: float, x: float
) -> tuple[float, float]:
    """Safeguarded Newton: (rate, B) at the root. `inverse` is 1/bound, or the rate where the limit is 0."""
    s = np.empty(STATE)
    place = KV + 2 * (limit - 1)
    for step in range(MAX_STEPS):
        _look(v, nodes, x, limit, s)
        if limit == 0:
            f, d = x - inverse * s[CYCLE], 1.0 - inverse * s[CYCLE + 1]
        else:
            f, d = s[place] * inverse - 1.0, s[place + 1] * inverse
        if f < 0.0:
            low = x
        else:
            high = x
        newton = x - f / d
        inside = low <= newton <= high
        if inside and abs(newton - x) <= SETTLED_STEP * x and _same_piece(v, nodes, newton, x):
            return s[RATE] + s[RATE + 1] * (newton - x), newton
        if high - low <= CLOSED_BRACKET * high:
            return s[RATE] + s[RATE + 1] * (low - x), low
        turn = step % 4 if step > 2 else 2
        x = (low + high) / 2.0
        if turn == 2 and inside:
            x = newton
        elif turn in (3, 0):
            edge = _next_edge(v, nodes, low) * (1.0 + (JUMP if turn == 0 else -JUMP))
            if low < edge < high:
                x = edge
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
def _operating(v: Floats, nodes: Floats, probes: Floats, limit: int, rate: float, b: float, s: Floats) -> None:
    """The operating point under the limit that is the smallest."""
    if limit == 6:
        b = _inverted(v, nodes, probes, rate, b)
    _look(v, nodes, b, ALL, s)


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
    out[19, row] = c[C_POOL]
    out[23, row], out[24, row], out[26, row], out[27, row] = c[C_FLOOR], c[C_WEIGHT_BYTES], c[C_GPUS], cost
    if rate <= 0.0:
        for place in (9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 20, 21, 22, 25, 28, 29, 30):
            out[place, row] = np.nan
        return
    per_request = cost / (3600.0 * rate)
    out[9, row], out[10, row], out[11, row] = rate * s[E2E], s[SEATS], s[B]
    out[12, row], out[13, row], out[14, row], out[15, row] = s[TTFT], s[TPOT], s[CYCLE] / v[D1], s[E2E]
    out[16, row], out[17, row], out[18, row] = 1.0 - s[LEFT], rate / sustained, s[KV]
    out[20, row], out[21, row], out[22, row] = s[KV] / c[C_POOL], rate * osl, rate * osl / c[C_GPUS]
    out[25, row] = abs(rate * s[CYCLE] / s[B] - 1.0)
    out[28, row] = 1.0 / per_request
    out[29, row], out[30, row] = per_request / osl * 1e6, per_request / (isl + osl) * 1e6


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
    values = (ttft.shape[1], tpot.shape[1], e2e.shape[1], cap.shape[1])
    most = max(values)
    root_rate, root_b = np.empty((LIMITS, most)), np.empty((LIMITS, most))
    spots, known = np.empty((LIMITS, most, STATE)), np.empty((LIMITS, most), dtype=np.bool_)
    rates, lifted, at = np.empty(LIMITS), np.empty(LIMITS), np.zeros(LIMITS, dtype=np.int64)
    width = values[0] * values[1] * values[2] * values[3]
    for i in range(len(replica)):
        c = table[replica[i]]
        _curve(c, inputs[i], x, w, v, nodes)
        _chart(v, nodes, probes, peak)
        known[:] = False
        root_rate[0, 0], root_b[0, 0] = peak[RATE], peak[B]
        root_rate[1, 0], root_b[1, 0] = _bounded(v, nodes, probes, peak, 1, c[C_POOL])
        root_rate[2, 0], root_b[2, 0] = _bounded(v, nodes, probes, peak, 2, inputs[i, 4])
        _roots(v, nodes, probes, peak, 3, tpot[i], root_rate[3], root_b[3])
        _roots(v, nodes, probes, peak, 4, ttft[i], root_rate[4], root_b[4])
        _roots(v, nodes, probes, peak, 5, e2e[i], root_rate[5], root_b[5])
        physical = np.argmin(root_rate[:3, 0])
        sustained = root_rate[physical, 0]
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
                _operating(v, nodes, probes, smallest, rate, root_b[smallest, place], spots[smallest, place])
                known[smallest, place] = True
            _write(out, row, c, inputs[i], v, rates, rate, sustained, spots[smallest, place], probes[0, E2E])
