"""Laws on how many requests are where: L = rate x W, who only waits, and what the client could keep in flight."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lambdamax.audit.finding import Finding, Side, is_unit_slip, unit_slip
from lambdamax.audit.point import MEANS_TOLERANCE, Point

# Below this share of the limit the limit is no longer the number in flight: a run of three waves loses about 20 % to
# its first and last wave.
LEAST_SHARE_OF_LIMIT: Final = 0.8
# From here on more requests wait for their first token than receive tokens.
MOST_WAITING_SHARE: Final = 0.5
# A request alone, or two, has nobody to wait behind: its TTFT is its own prefill.
FEWEST_IN_FLIGHT: Final = 4.0
# Engines prefill at a third of the peak and in turns with others; a TTFT this many times the prompt's own work waited.
WAIT_OVER_PREFILL: Final = 10.0
# Served below this share of the offered rate is overload.
SERVED_SHARE: Final = 0.95
# A round number of seats that the decoding requests come this close to is taken for the cap.
SEATS_TOLERANCE: Final = 0.05
USUAL_SEATS: Final = (64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0)
# The pool counts as full where what runs holds this share of it: engines preempt near it, and lengths vary.
FULL_POOL_SHARE: Final = 0.75


def in_flight(point: Point) -> Iterator[Finding]:
    """L = rate x W, against the number in flight that was measured, else against the limit of a closed loop."""
    rate, e2e = point.rate_rps, point.e2e_s
    if rate is None or e2e is None:
        return
    left = Side("rate x E2E", rate * e2e, "requests")
    measured, limit = point.get("in_flight"), point.get("concurrency")
    if measured is not None:
        yield from _against(point, left, Side("measured in flight", measured, "requests"), "in_flight")
    elif limit is not None and point.load in ("closed", "static"):
        yield from _against_limit(point, left, Side("client limit", limit, "requests"))
    elif limit is not None and left.value > limit * (1 + point.tolerance):
        yield from _against(point, left, Side("client limit", limit, "requests"), "concurrency")


def decoding(point: Point) -> Iterator[Finding]:
    """L_d is about output tokens/s x TPOT, whatever the lengths: no more of it than the client allows.

    For rows whose E2E or rate is not known; the others are held against rate x E2E.
    """
    tokens, tpot, limit = point.get("output_tok_s"), point.tpot_s, point.get("concurrency")
    known = point.rate_rps is not None and point.e2e_s is not None
    if known or tokens is None or tpot is None or limit is None or point.row["speculative"]:
        return
    left, right = Side("output tokens/s x TPOT", tokens * tpot, "requests"), Side("client limit", limit, "requests")
    if is_unit_slip(left.value, right.value):
        yield unit_slip("tpot_mean_s", left, right)
    elif left.value > right.value * (1 + MEANS_TOLERANCE):
        verdict = "more must decode than the client keeps in flight: TPOT, the throughput or the limit is wrong"
        yield Finding(_contradiction(point), "L_d = rate x (OSL - 1) x TPOT", "tpot_mean_s", left, right, verdict)


def _against(point: Point, left: Side, right: Side, column: str) -> Iterator[Finding]:
    if is_unit_slip(left.value, right.value):
        yield unit_slip("e2e_mean_s", left, right)
    elif abs(left.value / right.value - 1) > point.tolerance:
        verdict = (
            f"L = rate x W fails: the rate, the latency or {column} is of another run, or of one replica of several"
        )
        yield Finding(_contradiction(point), "L = rate x W", column, left, right, verdict)


def _against_limit(point: Point, left: Side, right: Side) -> Iterator[Finding]:
    """More than the limit cannot be in flight; less can, and then the limit is not L."""
    sent = sent_requests(point)
    if sent is not None and sent < right.value:
        return
    if is_unit_slip(left.value, right.value):
        yield unit_slip("e2e_mean_s", left, right)
    elif left.value > right.value * (1 + MEANS_TOLERANCE):
        yield _above(point, left, right)
    elif left.value < right.value * min(LEAST_SHARE_OF_LIMIT, 1 - point.tolerance):
        yield Finding("warning", "L = rate x W", "concurrency", left, right, _why_below(point))


def _above(point: Point, left: Side, right: Side) -> Finding:
    """Medians lie below their means, so that they break the limit only by more."""
    rate, decode = point.rate_rps, point.decode_s
    decodes_alone = rate is not None and decode is not None and abs(rate * decode / right.value - 1) <= MEANS_TOLERANCE
    if decodes_alone:
        verdict = "the throughput is that of decoding alone: the time of prefill is left out of it"
        return Finding("warning", "L = rate x W", "output_tok_s", left, right, verdict)
    over_requests = point.get("tpot_token_mean_s") is None and point.get("e2e_mean_s") is None
    if over_requests and point.get("tpot_mean_s") is not None:
        verdict = "more in flight than the client allows: TPOT over requests counts slow short ones, or the rate is off"
    else:
        verdict = "more in flight than the client allows: the rate, a latency or the limit is wrong"
    return Finding(_contradiction(point), "L = rate x W", _suspect(point), left, right, verdict)


def _contradiction(point: Point) -> str:
    return "error" if point.has_means else "warning"


def _suspect(point: Point) -> str:
    """Where E2E was measured and its parts give the same, the rate is left, else a latency."""
    e2e, parts = point.get("e2e_mean_s"), point.made_of_parts_s
    if e2e is not None and parts is not None and abs(parts / e2e - 1) <= point.tolerance:
        return "request_rate_rps"
    return "tpot_mean_s" if e2e is None else "e2e_mean_s"


def _why_below(point: Point) -> str:
    duration, e2e = point.duration_s, point.e2e_s
    if point.load == "static":
        return "the batch was not full all the time, or the latency is of one part of it: it is not L"
    if not point.has_means:
        return "the limit was not reached, or the medians are far below the means: use means, or L = rate x mean E2E"
    if duration is not None and e2e is not None and duration < 5 * e2e:
        return "the run is short, its ramp and its drain hold fewer: use rate x E2E for the number in flight"
    return "the limit was not reached, or TTFT leaves out the time in a queue: use rate x E2E for the number in flight"


def sent_requests(point: Point) -> float | None:
    """How many requests there were in the whole run."""
    prompts, done = point.get("prompts"), point.get("requests")
    return prompts if prompts is not None or done is None else done + (point.get("failed") or 0.0)


def enough_requests(point: Point) -> Iterator[Finding]:
    """A client cannot keep more in flight than there are requests."""
    limit, sent = point.get("concurrency"), sent_requests(point)
    if limit is None or sent is None or point.load == "static" or limit <= sent:
        return
    verdict = f"only {sent:g} requests were sent: no more than that were in flight, whatever the limit says"
    yield Finding(
        "warning", "requests sent", "concurrency", Side("client limit", limit), Side("requests sent", sent), verdict
    )


def queued(point: Point, pool_tokens: float | None, prefill_s: float | None) -> Iterator[Finding]:
    """In flight is not running: rate x TTFT of it waits or is in prefill, rate x (OSL - 1) x TPOT decodes.

    `pool_tokens` is the KV pool and `prefill_s` the work of a prompt at peak [s], None where they are not known.
    """
    rate, ttft, decode = point.rate_rps, point.ttft_s, point.decode_s
    if not _may_queue(point) or rate is None or ttft is None or decode is None:
        return
    before, decoding = rate * ttft, rate * decode
    if before <= MOST_WAITING_SHARE * (before + decoding) or before + decoding < FEWEST_IN_FLIGHT:
        return
    if prefill_s is not None and ttft < WAIT_OVER_PREFILL * prefill_s:
        return
    left = Side("decoding, rate x (OSL - 1) x TPOT", decoding, "requests")
    right = Side("in flight", before + decoding, "requests")
    severity, cause = _cause(point, decoding, pool_tokens)
    verdict = f"most of what is in flight waits for its first token: {cause}"
    yield Finding(severity, "queued is not running", "concurrency", left, right, verdict)


def _may_queue(point: Point) -> bool:
    """Clients that wait make a queue by themselves; an open loop where it falls behind what is offered."""
    offered, found = point.get("request_rate_offered_rps"), point.get("request_rate_rps")
    behind = offered is not None and found is not None and found < SERVED_SHARE * offered
    return point.load in ("closed", "burst") or (point.load == "open" and behind)


def _cause(point: Point, decoding: float, pool_tokens: float | None) -> tuple[str, str]:
    isl, osl = point.get("isl_tokens"), point.get("osl_tokens")
    if pool_tokens and isl and osl and decoding * (isl + osl / 2) > FULL_POOL_SHARE * pool_tokens:
        return "warning", f"the KV pool of about {pool_tokens:,.0f} tokens is full"
    seats = min(USUAL_SEATS, key=lambda usual: abs(usual - decoding))
    if abs(seats / decoding - 1) < SEATS_TOLERANCE:
        return "warning", f"a seat cap of {seats:g}"
    if point.load == "open":
        return "warning", "more is sent than prefill takes in"
    return "note", "prefill holds the rest back; what the client keeps in flight is not the batch"


def running(point: Point) -> Iterator[Finding]:
    """What the server says of who runs and waits, against what is in flight and against who must be decoding."""
    runs, waits, flies = point.get("running"), point.get("waiting"), point.get("in_flight")
    if runs is None:
        return
    right = Side("running, as the server says", runs, "requests")
    if waits is not None and flies and abs((runs + waits) / flies - 1) > point.tolerance:
        left = Side("in flight - waiting", flies - waits, "requests")
        verdict = "the server's counts and the client's do not belong to the same time"
        yield Finding("warning", "L = running + waiting", "in_flight", left, right, verdict)
    rate, decode = point.rate_rps, point.decode_s
    if rate is not None and decode is not None and rate * decode > runs * (1 + point.tolerance):
        left = Side("decoding, rate x (OSL - 1) x TPOT", rate * decode, "requests")
        verdict = "more must decode than run: TPOT is not the mean over tokens, or the count is of another time"
        yield Finding("warning", "L_d = rate x (OSL - 1) x TPOT", "tpot_mean_s", left, right, verdict)
