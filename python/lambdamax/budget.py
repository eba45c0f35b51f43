"""The mean time to the first token as a chain of links, from the gateway to the host, which sum to the whole.

What the engine says at one operating point (docs/model.md section 6) gives the waits exactly: the residence of a prompt
is (running − decoding)/λ, its own work E[s] is ρ/λ, and the rest of TTFT, host and seat aside, is the wait for the
running iteration. T0, the step of B decodes alone, is D(B − 1), read off the curve; what riders take is what is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from lambdamax.case import Case
from lambdamax.engine import Floats
from lambdamax.operating import Operating
from lambdamax.units import number, quantity

_RATIO_PROFILE: Final = 1.0
_BLOCK_TOKENS: Final = 16
_NODES: Final = 16
_CURVE_POINTS: Final = 400


@dataclass(frozen=True)
class Link:
    """One link of the chain: what it is, by which formula, and its mean [s]."""

    name: str
    label: str
    formula: str
    mean_s: float


@dataclass(frozen=True)
class Budget:
    """The links at `rate_rps`, in the order in which a request meets them; `ttft_p99_s` is NaN where not modelled."""

    rate_rps: float
    links: tuple[Link, ...]
    ttft_mean_s: float
    ttft_p99_s: float

    @property
    def total_mean_s(self) -> float:
        """What the client sees: TTFT of the replica, network and router before it."""
        return math.fsum(link.mean_s for link in self.links)


def ttft_budget(case: Case) -> Budget | None:
    """The budget at the load asked about where it is carried, else at the largest rate; None without such a point."""
    at = case.at_load if case.load_status in ("ok", "saturated") else None
    if at is None and case.answer["max_rate_rps"] > 0:
        at = case.full_model_at(case.answer["max_rate_rps"])
    if at is None or math.isnan(at["ttft_mean_s"]):
        return None
    links = (*_before(case), *_in_replica(case, at))
    return Budget(at["rate_rps"], links, at["ttft_mean_s"], at.get("ttft_p99_s", math.nan))


def _before(case: Case) -> Iterator[Link]:
    asked = case.question
    given = "given" if asked.network_s else "--network-s, not given"
    yield Link("network_s", "network and gateway", given, asked.network_s)
    yield Link("router_s", "router", "given" if asked.router_s else "--router-s, not given", asked.router_s)


def _in_replica(case: Case, at: dict[str, float]) -> Iterator[Link]:
    rate, seat = at["rate_rps"], at["seat_wait_s"]
    residence = (at["running"] - at["decoding"]) / rate
    held = case.row.fields["kind"] == _RATIO_PROFILE
    host = 0.0 if held else _host_s(case)
    yield Link("seat_wait_s", "wait for a seat", "0 while seats and pool are not full", seat)
    if held:
        yield Link("first_token_s", "first token", "held by the profile", at["ttft_mean_s"] - seat)
        return
    yield _iteration_wait(case, at, at["ttft_mean_s"] - seat - residence - host)
    yield from _prefill(case, at, residence)
    formula = "host latency + per prompt token·ISL"
    yield Link("host_s", "host", formula, host)


def _iteration_wait(case: Case, at: dict[str, float], wait_s: float) -> Link:
    ahead = " + one scheduled ahead" if case.row.fields["async_scheduling"] else ""
    busy = quantity(-math.expm1(-_others(case) * at["running"] / case.slots), "share")
    return Link("iteration_wait_s", "wait for running iteration", f"P_busy·(E[X]/2{ahead}), P_busy = {busy}", wait_s)


def _prefill(case: Case, at: dict[str, float], residence_s: float) -> Iterator[Link]:
    """Own work, first iteration and riders; the riders' part is the rest, so that the links sum to the whole."""
    decoding = at["decoding"] / case.slots
    step, own = _step_and_work(case, decoding)
    chunks = mean_chunks(case, decoding)
    formula = f"s: what {number(case.point('isl_tokens'))} prompt tokens add to their iterations"
    yield Link("own_prefill_s", "own prefill", formula, own)
    first = f"k·T(B, 0) = {number(chunks)}·{quantity(step, 's')}, with {number(decoding)} decoding"
    yield Link("first_iteration_s", "first iteration", first, chunks * step)
    riders = f"ρ·E[X]: others' prompts in the same iterations, ρ = {quantity(at['prefill_share'], 'share')}"
    yield Link("riders_s", "riders", riders, residence_s - own - chunks * step)


def _host_s(case: Case) -> float:
    fields = case.row.fields
    return fields["host_latency_s"] + fields["host_latency_per_token_s"] * case.point("isl_tokens")


def _others(case: Case) -> float:
    """The share of the population that a request meets: all of an open loop, all but itself in a closed one."""
    clients = case.question.concurrency
    return 1.0 if clients is None else max(1 - case.slots / clients, 0.0)


def _step_and_work(case: Case, decoding: float) -> tuple[float, float]:
    """T(B, 0) and E[s] at `decoding` sequences in a slot, off the open loop's curve.

    D(B) = T(B + 1, 0) is the token mean TPOT times 1 − ρ; below B = 1 the parabola through its beginning is prolonged.
    """
    operating = Operating.of(case)
    found = operating.at(operating.limit_rps * np.linspace(1e-4, 1, _CURVE_POINTS))
    batch = found["decoding"] / case.slots
    steps = found["tpot_token_mean_s"] * (1 - found["prefill_share"])
    own = float(np.interp(decoding, batch, found["prefill_share"] * case.slots / found["rate_rps"]))
    if decoding >= 1 + batch[0]:
        return float(np.interp(decoding - 1, batch, steps)), own
    places = np.searchsorted(batch, (batch[0], 0.5 * min(1.0, batch[-1]), min(1.0, batch[-1])))
    return float(np.polyval(np.polyfit(batch[places], steps[places], 2), decoding - 1)), own


def mean_chunks(case: Case, decoding: float) -> float:
    """E[k]: iterations that a prompt takes beside `decoding` sequences, over the prompt law (docs/model.md)."""
    room = case.point("max_num_batched_tokens") - max(decoding - 1, 0.0)
    return _mean_over_prompts(case, lambda tokens: np.maximum(np.ceil(tokens / room), 1.0))


def computed_tokens(case: Case) -> float:
    """E[u]: tokens of a prompt that are not in the cache, over the prompt law."""
    return _mean_over_prompts(case, lambda tokens: tokens)


def _mean_over_prompts(case: Case, value: Callable[[Floats], Floats]) -> float:
    """The mean of a function of the tokens that a prompt has to compute."""
    weights, lengths = case.prompt_nodes() or _prompt_nodes(case.point("isl_tokens"), case.point("isl_cv"))
    share, prefix = case.point("prefix_hit_share"), case.point("prefix_tokens")
    found = np.minimum(prefix if prefix else share * lengths, lengths - 1) // _BLOCK_TOKENS * _BLOCK_TOKENS
    hits = share if prefix else 1.0
    return float(weights @ (hits * value(lengths - found) + (1 - hits) * value(lengths)))


def _prompt_nodes(mean: float, cv: float) -> tuple[Floats, Floats]:
    """Weights and lengths: one length, or Gauss–Hermite nodes of the lognormal law."""
    if not cv > 0:
        return np.ones(1), np.array([mean])
    nodes, weights = np.polynomial.hermite.hermgauss(_NODES)
    spread = math.log1p(cv * cv)
    return weights / math.sqrt(math.pi), np.exp(math.log(mean) - spread / 2 + math.sqrt(2 * spread) * nodes)
