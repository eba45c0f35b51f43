"""The time to the first token as a chain of links, from the gateway to the host, which sum to the whole.

The engine gives the links of one operating point (docs/model.md sections 6 and 7). Their means sum to the mean TTFT.
What a link adds to the p99 is its mean and its covariance with the whole, over the whole's variance, of what the p99 is
above the mean: these sum to the p99.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from lambdamax.case import Case
from lambdamax.engine import Floats
from lambdamax.units import number, quantity

_RATIO_PROFILE: Final = 1.0
_BLOCK_TOKENS: Final = 16
_NODES: Final = 16
_LINKS: Final = {
    "seat_wait_s": "wait for a seat",
    "iteration_wait_s": "wait for running iteration",
    "own_prefill_s": "own prefill",
    "first_iteration_s": "first iteration",
    "riders_s": "riders",
    "host_s": "host",
}
_HELD: Final = {"seat_wait_s": "P_wait·length", "first_iteration_s": "held by the profile"}


@dataclass(frozen=True)
class Link:
    """One link of the chain: what it is, by which formula, its mean, and what it adds to the p99 of the whole [s]."""

    name: str
    label: str
    formula: str
    mean_s: float
    p99_s: float


@dataclass(frozen=True)
class Budget:
    """The links at `rate_rps`, in the order in which a request meets them; TTFT is the replica's own [s]."""

    rate_rps: float
    links: tuple[Link, ...]
    ttft_mean_s: float
    ttft_p99_s: float

    @property
    def total_mean_s(self) -> float:
        """What the client sees: TTFT of the replica, network and router before it."""
        return math.fsum(link.mean_s for link in self.links)

    @property
    def total_p99_s(self) -> float:
        """The same, of the p99: network and router are given, and the same for all."""
        return math.fsum(link.p99_s for link in self.links)


def ttft_budget(case: Case) -> Budget | None:
    """The budget at the load asked about where it is carried, else at the largest rate; None without such a point."""
    at = case.at_load if case.load_status in ("ok", "saturated") else None
    if at is None and case.answer["max_rate_rps"] > 0:
        at = case.full_model_at(case.answer["max_rate_rps"])
    if at is None or math.isnan(at["ttft_mean_s"]):
        return None
    links = (*_before(case), *_in_replica(case, at))
    return Budget(at["rate_rps"], links, at["ttft_mean_s"], at["ttft_p99_s"])


def _before(case: Case) -> Iterator[Link]:
    asked = case.question
    given = "given" if asked.network_s else "--network-s, not given"
    yield Link("network_s", "network and gateway", given, asked.network_s, asked.network_s)
    yield Link(
        "router_s", "router", "given" if asked.router_s else "--router-s, not given", asked.router_s, asked.router_s
    )


def _in_replica(case: Case, at: dict[str, float]) -> Iterator[Link]:
    held = case.row.fields["kind"] == _RATIO_PROFILE
    formulas = _HELD if held else _formulas(case, at)
    for name, label in _LINKS.items():
        if name in formulas:
            mean = at[name]
            yield Link(name, label, formulas[name], mean, at.get(name.replace("_s", "_p99_s"), mean))


def _formulas(case: Case, at: dict[str, float]) -> dict[str, str]:
    """How each link comes about."""
    ahead = " + one scheduled ahead" if case.row.fields["async_scheduling"] else ""
    busy = quantity(-math.expm1(-_others(case) * at["running"] / case.slots), "share")
    decoding = at["decoding"] / case.slots
    chunks = mean_chunks(case, decoding)
    step = f"k·T(B, 0) = {number(chunks)}·{quantity(at['first_iteration_s'] / chunks, 's')}"
    return {
        **_HELD,
        "iteration_wait_s": f"P_busy·(E[X]/2{ahead}), P_busy = {busy}",
        "own_prefill_s": f"s: what {number(case.point('isl_tokens'))} prompt tokens add to their iterations",
        "first_iteration_s": f"{step}, with {number(decoding)} decoding",
        "riders_s": f"ρ·E[X]: others' prompts in the same iterations, ρ = {quantity(at['prefill_share'], 'share')}",
        "host_s": "host latency + per prompt token·ISL",
    }


def _others(case: Case) -> float:
    """The share of the population that a request meets: all of an open loop, all but itself in a closed one."""
    clients = case.question.concurrency
    return 1.0 if clients is None else max(1 - case.slots / clients, 0.0)


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
