"""Laws on lengths and latencies of one row: token rates, parts of E2E, which mean, order of percentiles."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from lambdamax.audit.finding import Finding, Side, is_unit_slip, unit_slip
from lambdamax.audit.point import EPSILON, Point

# Token rates are products of other columns; 6 % leaves room for rates printed with two digits.
RATE_TOLERANCE: Final = 0.06
# From here the two means of TPOT move L_d visibly, and beyond the second no correlation of length and speed does it.
MEANS_APART: Final = 0.10
MEANS_IMPOSSIBLE: Final = 1.0
# Medians do not add up, but skew within one run keeps them within a factor of two.
MEDIANS_APART: Final = 2.0
# Replies this much shorter than asked for ended by themselves.
SHORT_REPLY: Final = 0.9
LONG_REPLY: Final = 1.02
# No engine has given a token in less; published overload has kept people waiting 6 s for one, so 20 s is a unit.
LEAST_TPOT_S: Final = 2e-5
MOST_TPOT_S: Final = 20.0
_PERCENTILES: Final = ("p50", "p90", "p99")


def token_rates(point: Point) -> Iterator[Finding]:
    """Output tokens/s = rate x OSL, and the same for prompts and for both together."""
    rate = point.get("request_rate_rps")
    isl, osl = point.get("isl_tokens"), point.get("osl_tokens")
    both = None if isl is None or osl is None else isl + osl
    sides = (("output_tok_s", "OSL", osl, "osl_tokens"), ("input_tok_s", "ISL", isl, "isl_tokens"))
    for column, word, length, suspect in (*sides, ("total_tok_s", "(ISL + OSL)", both, "isl_tokens")):
        stated = point.get(column)
        if rate is None or length is None or stated is None:
            continue
        left, right = Side(f"rate x {word}", rate * length, "tok/s"), Side(column, stated, "tok/s")
        apart = abs(left.value / right.value - 1)
        if RATE_TOLERANCE < apart <= point.rate_rounding + EPSILON:
            verdict = f"the rate is rounded to two digits: {column} over the length gives {stated / length:,.4g} req/s"
            yield Finding("note", "tokens/s = rate x length", "request_rate_rps", left, right, verdict)
            return
        elif apart > RATE_TOLERANCE:
            verdict = f"the lengths or the rate are nominal: {column} over the rate gives {stated / rate:,.4g} tokens"
            yield Finding("error", "tokens/s = rate x length", suspect, left, right, verdict)


def parts_of_e2e(point: Point) -> Iterator[Finding]:
    """E2E = TTFT + (OSL - 1) TPOT holds for the token mean; a mean over requests that differs is named as such."""
    e2e, ttft, osl = point.get("e2e_mean_s"), point.get("ttft_mean_s"), point.get("osl_tokens")
    over_requests = point.get("tpot_mean_s")
    if e2e is None or ttft is None or osl is None or over_requests is None or osl <= 1:
        return
    if e2e < ttft:
        yield _unequal(Side("E2E", e2e, "s"), Side("TTFT", ttft, "s"), "e2e_mean_s")
        return
    over_tokens = (e2e - ttft) / (osl - 1)
    left, right = Side("TPOT over requests", over_requests, "s"), Side("(E2E - TTFT)/(OSL - 1)", over_tokens, "s")
    if over_tokens == 0 or is_unit_slip(over_requests, over_tokens):
        yield unit_slip("tpot_mean_s", left, right)
    elif abs(over_requests / over_tokens - 1) > MEANS_IMPOSSIBLE:
        yield _unequal(left, right, "tpot_mean_s")
    elif abs(over_requests / over_tokens - 1) > MEANS_APART:
        verdict = "TPOT is averaged over requests; the number decoding is rate x (OSL - 1) x the mean over tokens"
        yield Finding("warning", "mean over requests", "tpot_mean_s", left, right, verdict)


def median_parts(point: Point) -> Iterator[Finding]:
    """Median E2E is of the size of median TTFT + (OSL - 1) median TPOT, unless lengths or rows do not match."""
    e2e, ttft, tpot = point.get("e2e_p50_s"), point.get("ttft_p50_s"), point.get("tpot_p50_s")
    osl = point.get("osl_tokens")
    if e2e is None or ttft is None or tpot is None or osl is None or osl <= 1:
        return
    left, right = (
        Side("median E2E", e2e, "s"),
        Side("median TTFT + (OSL - 1) x median TPOT", ttft + (osl - 1) * tpot, "s"),
    )
    if not 1 / MEDIANS_APART <= left.value / right.value <= MEDIANS_APART:
        verdict = "half of the replies are far from the mean length (early ends), or the medians are of other requests"
        yield Finding("warning", "E2E = TTFT + (OSL - 1) TPOT", "osl_tokens", left, right, verdict)


def _unequal(left: Side, right: Side, column: str) -> Finding:
    verdict = "TTFT, TPOT, E2E and OSL cannot be of the same requests"
    return Finding("error", "E2E = TTFT + (OSL - 1) TPOT", column, left, right, verdict)


def reply_length(point: Point) -> Iterator[Finding]:
    """Replies that end by themselves are shorter than asked for; without their length, the latencies tell it."""
    asked, real = point.get("requested_osl_tokens"), point.get("osl_tokens")
    if asked is None:
        return
    how = "mean reply"
    if real is None:
        e2e, ttft, tpot = point.get("e2e_mean_s"), point.get("ttft_mean_s"), point.tpot_s
        if e2e is None or ttft is None or not tpot:
            return
        real, how = 1 + (e2e - ttft) / tpot, "reply by 1 + (E2E - TTFT)/TPOT"
    if SHORT_REPLY <= real / asked <= LONG_REPLY:
        return
    left, right = Side(how, real, "tokens"), Side("asked for", asked, "tokens")
    verdict = "the nominal reply length is not what was generated: use the real one"
    yield Finding("warning", "reply length", "requested_osl_tokens", left, right, verdict)


def percentiles(point: Point) -> Iterator[Finding]:
    """p50 <= p90 <= p99."""
    for name in ("ttft", "tpot", "itl", "e2e"):
        held = [(label, point.row.get(f"{name}_{label}_s")) for label in _PERCENTILES]
        known = [(label, value) for label, value in held if value is not None]
        for (lower, low), (upper, high) in pairwise(known):
            if low > high:
                left, right = Side(lower, low, "s"), Side(upper, high, "s")
                verdict = f"percentiles of {name.upper()} out of order: columns are swapped"
                yield Finding("error", "percentiles rise", f"{name}_{lower}_s", left, right, verdict)


def plausible_unit(point: Point) -> Iterator[Finding]:
    """A TPOT that no engine has, which a unit taken for another explains."""
    tpot = point.tpot_s
    if tpot is None or LEAST_TPOT_S <= tpot <= MOST_TPOT_S:
        return
    bound = LEAST_TPOT_S if tpot < LEAST_TPOT_S else MOST_TPOT_S
    side = Side("fastest known" if tpot < LEAST_TPOT_S else "slowest believable", bound, "s")
    yield unit_slip("tpot_mean_s", Side("TPOT", tpot, "s"), side)
