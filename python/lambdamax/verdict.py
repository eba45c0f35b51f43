"""What binds, what binds next, what would have to change, and which usual mistakes show: sentences for a buyer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from lambdamax.case import Case
from lambdamax.parallelism import refusals
from lambdamax.units import number, quantity

# A replica that also decodes leaves prefill less than about this share of its peak FLOP/s; above it, ask about caching.
PLAUSIBLE_PREFILL_SHARE: Final = 0.5
RATE_OF_LIMIT: Final = {
    "compute": "rate_at_compute_rps",
    "kv_pool": "rate_at_kv_rps",
    "seats": "rate_at_seats_rps",
    "tpot_slo": "rate_at_tpot_rps",
    "ttft_slo": "rate_at_ttft_rps",
    "e2e_slo": "rate_at_e2e_rps",
    "utilization": "rate_at_utilization_rps",
}
# The engine names compute where KV memory or seats are met within 10 % of it (docs/model.md section 7).
_NEAR: Final = 0.9
_PHYSICAL: Final = ("compute", "kv_pool", "seats")
_VISIBLE: Final = 1e-3
NAME_OF_LIMIT: Final = {
    "compute": "compute",
    "kv_pool": "KV memory",
    "seats": "seats",
    "tpot_slo": "TPOT SLO",
    "ttft_slo": "TTFT SLO",
    "e2e_slo": "E2E SLO",
    "utilization": "utilisation cap",
}
_HAPPENS: Final = {
    "compute": "prefill and decode together use all the time the GPUs have",
    "kv_pool": "the requests being served fill the memory kept for their KV cache ({kv_pool_tokens})",
    "seats": "the engine serves no more than {max_num_seqs} requests at once",
    "tpot_slo": "the mean time per output token reaches {slo_tpot_s}",
    "ttft_slo": "the {statistic} time to the first token, waits included, reaches {slo_ttft_s}",
    "e2e_slo": "the {statistic} time of a whole request, waits included, reaches {slo_e2e_s}",
    "utilization": "{utilization_cap} of the sustainable rate ({sustained}) is in use; the rest is kept free, or waits "
    "have no bound",
}
_CHANGES: Final = {
    "compute": "more or faster GPUs, narrower weights, shorter or cached prompts; more memory gains nothing",
    "kv_pool": "more GPU memory (a bigger GPU, a higher TP or PP), a narrower KV cache, or shorter contexts",
    "seats": "a larger --max-num-seqs",
    "tpot_slo": "a looser TPOT target, more memory bandwidth, a higher TP, narrower weights, shorter or cached prompts",
    "ttft_slo": "a looser TTFT target, more FLOP/s (a faster GPU, a higher TP), shorter or cached prompts",
    "e2e_slo": "a looser E2E target, a faster GPU, a higher TP, or shorter answers",
    "utilization": "a higher --utilization-cap, at the price of longer waits; otherwise another replica",
}
_POINTS: Final = (
    ("kv_pool_tokens", "tokens"),
    ("max_num_seqs", ""),
    ("slo_tpot_s", "s"),
    ("slo_ttft_s", "s"),
    ("slo_e2e_s", "s"),
    ("utilization_cap", "share"),
)


@dataclass(frozen=True)
class Mistake:
    """A usual mistake at this point: the value it gives, the right one, and why it is wrong."""

    name: str
    label: str
    wrong: float
    right: float
    unit: str
    why: str


def verdict(case: Case) -> dict[str, str]:
    """In words: the answer, what binds, what would have to change, what binds next, and what becomes of the load."""
    return dict((*_answer(case), *_load(case), *_cached(case), *_how_sure(case)))


def mistakes(case: Case) -> tuple[Mistake, ...]:
    """The usual mistakes that show at this point."""
    found = (*_batch_one(case), *_final_length(case), *_waiting(case), *_request_mean(case))
    return tuple(mistake for mistake in found if abs(mistake.wrong - mistake.right) > _VISIBLE * abs(mistake.right))


def _answer(case: Case) -> Iterator[tuple[str, str]]:
    if case.status in _NO_ANSWER:
        yield "answer", _NO_ANSWER[case.status](case)
    elif case.binding_limit is not None:
        yield from _limits(case, case.binding_limit)
    if case.status == "no_price":
        asked = case.question
        who = "any provider" if asked.provider == "median" else asked.provider
        known = f"no {asked.price_plan} price of {asked.gpu} from {who} is known"
        yield "cost", f"{known}; say --usd-per-accelerator-hour, or another --price-plan or --provider"


def _limits(case: Case, binding: str) -> Iterator[tuple[str, str]]:
    rate = case.answer["max_rate_rps"]
    replica = f"one replica ({case.gpus} × {case.question.gpu})"
    at_most = f"{replica} serves at most {quantity(rate, 'req/s')}"
    never = f"no rate is low enough: even idle, {replica} misses the {NAME_OF_LIMIT[binding]}"
    yield "answer", at_most if rate > 0 else never
    yield "what binds", f"{NAME_OF_LIMIT[binding]}: {_happens(case, binding)}{_met_before(case, binding)}"
    yield "to change it", _CHANGES[binding]
    if case.next_limit is not None:
        yield "binds next", _next(case, binding, case.next_limit, rate)


def _next(case: Case, binding: str, following: str, rate: float) -> str:
    lifted = _rate_without(case, binding)
    gain = f" ({number(100 * (lifted / rate - 1), 3)} % more)" if 0 < rate < lifted else ""
    at = f"{NAME_OF_LIMIT[following]}, at {quantity(lifted, 'req/s')}{gain}"
    happens = f"{_happens(case, following)}{_met_before(case, following)}"
    return f"{at}: {happens}; to change that, {_CHANGES[following]}"


def _rate_without(case: Case, binding: str) -> float:
    """The largest rate if the binding limit were lifted; the utilisation cap is then a share of what remains."""
    rates = {limit: case.answer[column] for limit, column in RATE_OF_LIMIT.items() if limit != binding}
    if binding in _PHYSICAL:
        rates["utilization"] = case.point("utilization_cap") * min(rates[name] for name in _PHYSICAL if name in rates)
    return min(rate for rate in rates.values() if not math.isnan(rate))


def near_compute(case: Case) -> tuple[str, ...]:
    """The limits met so little before compute that compute is named in their place: lifting them gains little."""
    if "compute" not in (case.binding_limit, case.next_limit):
        return ()
    return tuple(
        name for name in _PHYSICAL[1:] if case.answer[RATE_OF_LIMIT[name]] < case.answer["rate_at_compute_rps"]
    )


def _met_before(case: Case, limit: str) -> str:
    names = near_compute(case) if limit == "compute" else ()
    if not names:
        return ""
    first = min(names, key=lambda name: case.answer[RATE_OF_LIMIT[name]])
    at = case.answer[RATE_OF_LIMIT[first]]
    gain = number(100 * (case.answer["rate_at_compute_rps"] / at - 1), 2)
    return (
        f" ({NAME_OF_LIMIT[first]} is met a little before, at {quantity(at, 'req/s')}, but lifting it gains {gain} %)"
    )


def _happens(case: Case, limit: str) -> str:
    points = {name: quantity(case.point(name), unit) for name, unit in _POINTS}
    return _HAPPENS[limit].format(**points, sustained=_sustained(case), statistic=_statistic(case))


def _statistic(case: Case) -> str:
    """Which TTFT and which end-to-end latency the SLOs are about."""
    percentile = case.point("slo_percentile")
    return f"p{number(percentile)}" if percentile > 0 else "mean"


def _sustained(case: Case) -> str:
    """The sustainable rate and the limit that sets it."""
    first = min(_PHYSICAL, key=lambda limit: case.answer[RATE_OF_LIMIT[limit]])
    return f"{quantity(sustainable_rate_rps(case), 'req/s')}, where {NAME_OF_LIMIT[first]} ends it"


def _does_not_fit(case: Case) -> str:
    if not math.isnan(given := case.point("kv_cache_tokens")):
        return f"it does not fit: a KV pool of {quantity(given, 'tokens', 9)} does not hold one request"
    shard = case.facts["weight_shard_bytes"]
    usable, weights = quantity(case.left_bytes + shard, "B"), quantity(shard, "B")
    return (
        f"it does not fit: each GPU has {usable} for weights and KV cache, its share of the weights is {weights}, and "
        "the rest must hold at least one request; to change it, a higher TP or PP, GPUs with more memory, or narrower "
        "weights"
    )


def _invalid_parallelism(case: Case) -> str:
    return f"this model cannot be cut so: {'; '.join(refusals(case.row))}"


def _unsupported(case: Case) -> str:
    return f"not supported: {case.row.unsupported}"


def _not_converged(case: Case) -> str:
    return f"the solver did not converge for {case.question.model} here; please report this point"


_NO_ANSWER: Final[dict[str, Callable[[Case], str]]] = {
    "does_not_fit": _does_not_fit,
    "invalid_parallelism": _invalid_parallelism,
    "unsupported": _unsupported,
    "not_converged": _not_converged,
}


def _load(case: Case) -> Iterator[tuple[str, str]]:
    if case.at_load is not None and case.load_status in _LOADS:
        yield "load asked", _LOADS[case.load_status](case, case.at_load)


def _unstable(case: Case, load: dict[str, float]) -> str:
    return (
        f"{quantity(case.asked_rate_rps, 'req/s')} is unstable: {quantity(load['excess'], 'share')} above the "
        f"{quantity(sustainable_rate_rps(case), 'req/s')} that it can sustain at all, so its queue grows without end"
    )


def _saturated(case: Case, load: dict[str, float]) -> str:
    return (
        f"{_clients(case)} saturate the replica at {quantity(load['rate_rps'], 'req/s')}: a request waits "
        f"{quantity(load['seat_wait_s'], 's')} for a seat, {number(load['waiting'])} of them at a time; more clients "
        f"only wait longer{_admitted(case)}"
    )


def _carried(case: Case, load: dict[str, float]) -> str:
    rate, use = quantity(load["rate_rps"], "req/s"), quantity(load["utilization"], "share")
    asked = f"{rate} is" if case.question.concurrency is None else f"{_clients(case)} make {rate}, which is"
    return (
        f"{asked} carried, at {use} of the sustainable rate: mean TTFT {quantity(load['ttft_mean_s'], 's')}, p99 "
        f"{quantity(load['ttft_p99_s'], 's')}, mean TPOT {quantity(load['tpot_mean_s'], 's')}{_over(case, load)}"
        f"{_admitted(case)}"
    )


def _over(case: Case, load: dict[str, float]) -> str:
    """A load can be stable and still break what was asked for."""
    binding, rate = case.binding_limit, case.answer["max_rate_rps"]
    if binding is None or not load["rate_rps"] > rate * (1 + _VISIBLE):
        return ""
    if rate == 0:
        return f"; but it misses the {NAME_OF_LIMIT[binding]}, as every rate does"
    return f"; but it is above the {quantity(rate, 'req/s')} that the {NAME_OF_LIMIT[binding]} allows"


def _clients(case: Case) -> str:
    think = case.question.think_time_s
    each = f", each thinking {quantity(think, 's')} between an answer and its next request," if think else ""
    return f"{number(case.question.concurrency or math.nan)} clients{each}"


def _admitted(case: Case) -> str:
    clients = case.clients_at_max_rate
    return "" if math.isnan(clients) else f"; at its largest rate the replica admits {math.floor(clients):,} clients"


_LOADS: Final = {"unstable": _unstable, "saturated": _saturated, "ok": _carried}


def sustainable_rate_rps(case: Case) -> float:
    """The largest rate that is stable at all: the least of the compute, KV and seat limits."""
    return min(case.answer[RATE_OF_LIMIT[limit]] for limit in _PHYSICAL)


def _cached(case: Case) -> Iterator[tuple[str, str]]:
    one = case.one_number
    if one is None or one["prefill_share_of_peak"] <= PLAUSIBLE_PREFILL_SHARE:
        return
    share, implied = (quantity(one[name], "share") for name in ("prefill_share_of_peak", "implied_flop_utilization"))
    rate, plausible = quantity(case.asked_rate_rps, "req/s"), quantity(PLAUSIBLE_PREFILL_SHARE, "share")
    yield (
        "question",
        f"were the prompts cached? Computing them all at {rate} takes {share} of peak FLOP/s ({implied} with decode); "
        f"above {plausible} is not plausible beside decoding. If they were, say so with --prefix-hit-share or "
        "--prefix-tokens; if not, check how rate, TTFT and TPOT were measured",
    )


def _how_sure(case: Case) -> Iterator[tuple[str, str]]:
    if case.status in _NO_ANSWER:
        return
    profile = case.profile
    factor = number(1 + case.row.uncertainty)
    points = f"{profile.measured_points} measured points" if profile.measured_points else "no measured point"
    near = "a near relative's " if case.row.provenance.startswith("fallback") else ""
    behind = f"{near}{profile.status} constants (profile {profile.name}) with {points} behind them"
    yield "how sure", f"{behind}: rates within factor {factor}"


def _batch_one(case: Case) -> Iterator[Mistake]:
    one = case.one_number
    if one is not None:
        held = "time in the system grows with the load; held at its measured value it promises too much"
        yield Mistake(
            "residence_held", "W held while load grows", one["naive_rate_rps"], one["rate_at_kv_rps"], "req/s", held
        )
    idle = "TPOT of an idle replica does not hold at load; the pool fills (or compute ends) much earlier"
    naive, full = case.answer["naive_rate_rps"], case.answer["rate_at_kv_rps"]
    yield Mistake("batch_one_tpot", "batch-1 TPOT used at load", naive, full, "req/s", idle)


def _final_length(case: Case) -> Iterator[Mistake]:
    in_flight, held = case.answer["decoding"], case.answer["kv_in_flight_tokens"]
    if case.one_number is not None:
        in_flight = case.one_number["in_flight"]
        held = in_flight * case.one_number["mean_context_tokens"]
    charged = held + in_flight * case.point("osl_tokens") / 2
    why = "a request grows to its final length; on average it holds about OSL/2 tokens less"
    yield Mistake("final_length", "final length charged for life", charged, held, "tokens", why)


def _waiting(case: Case) -> Iterator[Mistake]:
    name, label = "waiting_holds_kv", "waiting counted as holding KV"
    if case.one_number is not None:
        why = "the rest wait for their first token; of those, only the ones being prefilled hold KV"
        yield Mistake(name, label, case.one_number["in_flight"], case.one_number["decoding"], "requests", why)
        return
    at_load = case.at_load if case.load_status in ("ok", "saturated") else None
    state = at_load or case.answer
    why = "requests that wait for a seat or for their first iteration hold no KV"
    yield Mistake(name, label, state["in_flight"], state["running"], "requests", why)


def _request_mean(case: Case) -> Iterator[Mistake]:
    per_request, per_token = (case.answer["decoding"] / case.answer[f"tpot_{over}mean_s"] for over in ("", "token_"))
    label, why = "identity with TPOT per request", "L_d/TPOT = rate·(OSL − 1) holds for the mean TPOT over tokens"
    yield Mistake("request_mean_tpot", label, per_request, per_token, "tok/s", why)
