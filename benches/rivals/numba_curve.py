"""One curve lambda(B) in Numba: every quantity of docs/model.md sections 3 to 7 at one B, with its exact slope.

One core; fast-math without the flags that forbid NaN. A look computes only what a limit needs.
"""

# ruff: noqa: PLR0915, PLR0917  compiled functions pass scalars and are one body where that is faster
from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from numba import config, njit

from rivals.coefficients import BLOCK, Floats

F = TypeVar("F", bound=Callable[..., Any])

# Numba looks for changes in the file of a cached function only, not in those of what it calls.
_HERE: Final = Path(__file__).parent
_SOURCES: Final = b"".join((_HERE / name).read_bytes() for name in ("numba_curve.py", "with_numba.py"))
config.CACHE_DIR = str(_HERE / "__pycache__" / hashlib.sha256(_SOURCES).hexdigest()[:16])

FAST_MATH: Final = {"contract", "reassoc", "arcp", "nsz", "afn"}
NEAR_FULL: Final = 1e-7
LEAST_VARIANCE: Final = 1e-12
TINY: Final = 1e-300

# Places in a curve's constants.
W, Q, QLW, IQ, LAYER, HEAD, ROW, FIXED, DECODE, OVERHEAD = range(10)
CONTEXT, OWN, HOST, ASYNC, BUDGET, D1, CAP, MEAN, MEAN_HELD = range(10, 19)
MISSING, FADE, CONSTANTS = range(19, 22)
# Places in a state: each quantity with its slope after it; the limits' in their order.
CYCLE, RATE, KV, SEATS, TPOT, TTFT, E2E = range(0, 14, 2)
LEFT, SHARING, B, WAIT, STATE = range(14, 19)
ALL: Final = 9
# Places in a ceiling.
TOP, MOST_RATE, MOST_RATE_SLOPE, MOST_RUNNING, KEPT_VARIATION, DISPERSION, CEILING = range(7)
# Places in a replica's coefficients.
C_W, C_LAYER, C_HEAD, C_Q, C_FIXED, C_SEQUENCE, C_KAPPA, C_LINK, C_ATTENTION = range(9)
C_HALF, C_OVERHEAD, C_HOST, C_HOST_TOKEN, C_ASYNC, C_POOL, C_WEIGHT_BYTES, C_FLOOR, C_GPUS = range(9, 18)


def compiled(function: F) -> F:
    """`function` as one-core machine code, kept on disk for the next process."""
    return cast(F, njit(fastmath=FAST_MATH, error_model="numpy", cache=True)(function))


def inlined(function: F) -> F:
    """`function` compiled into each of its callers."""
    return cast(F, njit(fastmath=FAST_MATH, error_model="numpy", forceinline=True)(function))


@compiled
def gemm(v: Floats, y: float) -> tuple[float, float]:
    """(w^q + y^q)^(1/q), and its slope in y."""
    y = max(y, 1e-300)
    ratio = math.exp(v[Q] * math.log(y) - v[QLW])
    whole = ratio + 1.0
    value = v[W] * math.exp(v[IQ] * math.log(whole))
    return value, value * ratio / (whole * y)


@compiled
def chunks_at(v: Floats, uncached: float, b: float) -> float:
    """Chunks of a prompt."""
    chunks: float = max(1.0, math.ceil(uncached / (v[BUDGET] - max(b - 1.0, 0.0))))
    return chunks


@compiled
def same_piece(v: Floats, nodes: Floats, a: float, b: float) -> bool:
    """Whether every prompt has as many chunks at two Bs."""
    same = True
    for j in range(nodes.shape[1]):
        same = same and chunks_at(v, nodes[0, j], a) == chunks_at(v, nodes[0, j], b)
    return same


@compiled
def next_edge(v: Floats, nodes: Floats, low: float) -> float:
    """The smallest B above `low` at which some prompt needs one chunk more."""
    found = 1e300
    for j in range(nodes.shape[1]):
        edge = v[BUDGET] + 1.0 - nodes[0, j] / chunks_at(v, nodes[0, j], low)
        if low < edge < found:
            found = edge
    return found


@compiled
def curve(c: Floats, inputs: Floats, x: Floats, w: Floats, v: Floats, nodes: Floats) -> None:
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
    v[FIXED], v[DECODE], v[OVERHEAD] = c[C_FIXED], c[C_SEQUENCE] + c[C_KAPPA] * context, c[C_OVERHEAD]
    v[CONTEXT], v[OWN] = context + BLOCK / 2.0, c[C_KAPPA] * (isl + osl / 2.0 - context)
    v[HOST], v[ASYNC], v[BUDGET] = c[C_HOST] + c[C_HOST_TOKEN] * isl, c[C_ASYNC], inputs[5]
    v[MISSING], v[FADE] = inputs[7], inputs[8]
    v[D1], v[CAP], v[MEAN], v[MEAN_HELD] = d1, inputs[5] * d1 / (mean + d1), mean, mean + BLOCK / 2.0


Sums = tuple[float, float, float, float, float, float, float, float]


@inlined
def _company(v: Floats, b: float, room: float, room_slope: float) -> tuple[float, float]:
    """Prompt tokens that a chunk finds before it, with slope."""
    per_decode = v[MEAN] / v[D1]
    coming = per_decode * b
    filled = coming / room
    free = 1.0 - filled
    if free <= 0.0:
        return 0.0, 0.0
    return 0.5 * coming * free, 0.5 * (per_decode * free - coming * (per_decode - filled * room_slope) / room)


@inlined
def _prompts(v: Floats, nodes: Floats, b: float, room: float, room_slope: float) -> Sums:
    """E[s] and E[s^2] with slopes, E[k], E[k*h], E[s*h] with slope, over the prompt nodes."""
    company, company_slope = _company(v, b, room, room_slope)
    base, base_slope = v[ROW] * b + v[LAYER] * company, v[ROW] + v[LAYER] * company_slope
    alone, alone_slope = gemm(v, base)
    alone_slope *= base_slope
    per_room = 1.0 / room
    apart = 1.0 / (1.0 + b / v[D1])
    apart_slope = -apart * apart / v[D1]
    whole = whole_slope = mean = mean_slope = square = square_slope = chunks = 0.0
    held_chunks = held_work = held_work_slope = 0.0
    for j in range(nodes.shape[1]):
        filled = nodes[0, j] * per_room
        k = max(1.0, math.ceil(filled))
        full = k - 1.0
        last, last_slope = gemm(v, base + v[LAYER] * (nodes[0, j] - full * room))
        value = last - alone + nodes[1, j]
        slope = last_slope * (base_slope - v[LAYER] * full * room_slope) - alone_slope
        if full > 0.0:
            if whole == 0.0:
                whole, whole_slope = gemm(v, base + v[LAYER] * room)
                whole_slope *= base_slope + v[LAYER] * room_slope
            value += full * (whole - alone)
            slope += full * (whole_slope - alone_slope)
        if v[OVERHEAD] > 0.0:
            filled_slope = -filled * room_slope * per_room
            per_all = 1.0 / (apart + filled)
            shared = apart * apart * per_all
            value += v[OVERHEAD] * (filled + shared)
            shared_slope = (2.0 * apart * apart_slope - shared * (apart_slope + filled_slope)) * per_all
            slope += v[OVERHEAD] * (filled_slope + shared_slope)
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


@inlined
def _wake(
    v: Floats,
    b: float,
    smooth: float,
    smooth_slope: float,
    sums: Sums,
    free: float,
    free_slope: float,
) -> tuple[float, float]:
    """What the prompts behind a request's own add to its decode, with slope; `free` bounds it."""
    mean, mean_slope, square, square_slope = sums[0], sums[1], sums[2], sums[3]
    per_smooth = 1.0 / smooth
    each = mean * per_smooth
    each_slope = (mean_slope - each * smooth_slope) * per_smooth
    share, share_slope = b * each, each + b * each_slope
    squared = share * share
    per_rest = 1.0 / (1.0 - squared)
    again, again_slope = squared * per_rest, 2.0 * share * share_slope * per_rest * per_rest
    own, own_slope = share * mean, share_slope * mean + share * mean_slope
    flow = b * per_smooth
    flow_slope = (1.0 - flow * smooth_slope) * per_smooth
    spread, spread_slope = flow * square, flow_slope * square + flow * square_slope
    queued, queued_slope = spread * again, spread_slope * again + spread * again_slope
    stretch = (3.0 - squared) * per_rest
    down = 1.0 / (smooth + own + queued * stretch)
    down_slope = smooth_slope + own_slope + queued_slope * stretch + 2.0 * queued * again_slope
    raw = own + queued
    settled = raw * smooth * down
    settled_slope = ((own_slope + queued_slope) * smooth + raw * smooth_slope - settled * down_slope) * down
    most, most_slope = each * free, each_slope * free + each * free_slope
    if most <= 0.0:
        return 0.0, 0.0
    part = most / (settled + most)
    rest = 1.0 - part
    return settled * part, settled_slope * part * part + most_slope * rest * rest


@compiled
def look(v: Floats, nodes: Floats, b: float, need: int, s: Floats) -> None:
    """The state at B into `s`, as far as the limit `need` asks: 0 the rate alone, 3 TPOT, ALL everything."""
    room = v[BUDGET] - max(b - 1.0, 0.0)
    room_slope = -1.0 if b > 1.0 else 0.0
    step_gemm, step_slope = gemm(v, v[ROW] * b)
    seen_gemm, seen_slope = gemm(v, v[ROW] * (b + 1.0))
    sums = _prompts(v, nodes, b, room, room_slope)
    mean, mean_slope, square, square_slope, chunks, held_chunks, held_work, held_work_slope = sums
    step, step_slope = v[FIXED] + v[DECODE] * b + step_gemm, v[DECODE] + step_slope * v[ROW]
    own, own_slope = v[FIXED] + v[DECODE] * (b + 1.0) + seen_gemm, v[DECODE] + seen_slope * v[ROW]
    decode, decode_slope = v[D1] * own, v[D1] * own_slope
    prefill, prefill_slope = b * mean, mean + b * mean_slope
    fills = v[D1] * v[D1] / v[MEAN]
    free = fills * own * room - v[D1] * b * step
    free_slope = fills * (own_slope * room + own * room_slope) - v[D1] * (step + b * step_slope)
    wake, wake_slope = _wake(v, b, decode + prefill, decode_slope + prefill_slope, sums, free, free_slope)
    cycle, cycle_slope = decode + prefill + wake, decode_slope + prefill_slope + wake_slope
    per_cycle = 1.0 / cycle
    rate = b * per_cycle
    rate_slope = (1.0 - rate * cycle_slope) * per_cycle
    s[CYCLE], s[CYCLE + 1], s[RATE], s[RATE + 1], s[B] = cycle, cycle_slope, rate, rate_slope, b
    if need == 0:
        return
    share = prefill * per_cycle
    left, left_slope = 1.0 - share, (share * cycle_slope - prefill_slope) * per_cycle
    per_left = 1.0 / left
    extra = v[OWN] * per_left
    s[LEFT], s[SHARING] = left, decode - b * decode_slope
    lasting = v[FADE] + per_left - 1.0
    short = v[MISSING] * v[FADE] / lasting
    per_sharing = 1.0 / (v[D1] - short)
    more = per_sharing - 1.0 / v[D1]
    more_slope = per_sharing * per_sharing * short / lasting * left_slope * per_left * per_left
    s[TPOT] = cycle / v[D1] + extra + wake * more
    s[TPOT + 1] = cycle_slope / v[D1] - extra * per_left * left_slope + wake_slope * more + wake * more_slope
    if need == 3:
        return
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


# The wait for a seat


@inlined
def _rarity(free: float, load: float, variance: float, kept: float, s: Floats) -> tuple[float, float]:
    """-ln of how much rarer a full replica is than one with the mean population, with slope."""
    square, growth = free * free, s[SEATS + 1] / s[SEATS]
    log_load, bend = math.log(load), square / (6.0 * variance)
    whole = max(bend - free * log_load / 3.0, 0.0)
    from_ceiling = (s[SEATS + 1] * log_load - free * s[RATE + 1] / s[RATE]) / 3.0
    slope = from_ceiling - free * s[SEATS + 1] / (3.0 * variance) - bend * growth
    if kept == 0.0:
        return whole, slope
    across = square + 2.0 * whole * kept + TINY
    spread = square * whole / across
    narrower = -2.0 * free * s[SEATS + 1]
    wider = narrower + 2.0 * kept * (slope + whole * growth)
    return spread, (narrower * whole + square * slope - spread * wider) / across


@compiled
def seat_wait(s: Floats, ceiling: Floats) -> tuple[float, float]:
    """Mean wait for a seat below a ceiling [s], infinite where the replica is full.

    The slope is as if variances grew like who is running: exact ones take second derivatives of the curve.
    """
    load = s[RATE] / ceiling[MOST_RATE]
    idle = 1.0 - load
    if not idle > NEAR_FULL:
        return math.inf, math.nan
    n = s[SEATS]
    widest = n * (n + 1.0)
    birth = s[SEATS + 1] * s[RATE] / s[RATE + 1]
    variance = max(min(birth, widest) if birth > 0.0 else widest, LEAST_VARIANCE)
    free = max(ceiling[MOST_RUNNING] - n, 0.0)
    kept = n * ceiling[KEPT_VARIATION]
    rarity, rarity_slope = _rarity(free, load, variance, kept, s)
    per_idle = 1.0 / idle
    spread = math.sqrt(variance + kept)
    above = math.exp(-rarity) * per_idle / (math.sqrt(2.0 * math.pi) * spread)
    below = 1.0 - 0.5 * math.erfc(max(free - 0.5, 0.0) / (math.sqrt(2.0) * spread))
    chance = min(above / (below + above), 1.0 - math.exp(-n))
    per_rate = per_idle / ceiling[MOST_RATE]
    wait = chance * ceiling[DISPERSION] * per_rate
    longer = s[RATE + 1] * per_rate
    return wait, wait * (longer + (1.0 - chance) * (longer - rarity_slope - 0.5 * s[SEATS + 1] / n))


@compiled
def over_slo(s: Floats, place: int, ceiling: Floats, inverse: float) -> tuple[float, float]:
    """1 less the SLO, 1/`inverse`, over a latency with the wait for a seat, and nearly its slope."""
    wait, wait_slope = seat_wait(s, ceiling)
    share = 1.0 / ((s[place] + wait) * inverse)
    return 1.0 - share, share * share * inverse * (s[place + 1] + wait_slope)
