"""The worked chain of one point, line by line: what, by which formula, from which numbers, how much."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lambdamax.assumptions import formats_by_part, is_as_stored
from lambdamax.cached import kv_formula
from lambdamax.case import Case
from lambdamax.units import number, quantity

_BLOCK_TOKENS: Final = 16
# Rounding down to a block looks like less than this.
_VISIBLE_PADDING: Final = 1.001


@dataclass(frozen=True)
class Step:
    """One line of the chain. `formula` has the symbols, then the numbers; `value` is in SI `unit`."""

    name: str
    label: str
    formula: str
    value: float
    unit: str


def chain(case: Case) -> tuple[Step, ...]:
    """Every step from the measured times (if any) and the hardware to the rate; steps without a value are left out."""
    if case.status == "unsupported":
        return ()
    steps = (*_measured(case), *_memory(case), *_against_the_floor(case), *_full_model(case))
    return tuple(step for step in steps if not math.isnan(step.value))


def _measured(case: Case) -> Iterator[Step]:
    one = case.one_number
    if one is None:
        return
    rate, osl = case.asked_rate_rps, case.point("osl_tokens")
    ttft, tpot = quantity(case.question.measured_ttft_s, "s"), quantity(case.question.measured_tpot_s, "s")
    yield _step(
        one, "residence_s", "W, time in the system", f"TTFT + (OSL − 1)·TPOT = {ttft} + {number(osl - 1)}·{tpot}"
    )
    yield _step(
        one, "in_flight", "L, in flight", f"rate·W = {number(rate)}·{quantity(one['residence_s'], 's')}", "requests"
    )
    yield _step(
        one, "decoding", "L_d, decoding", f"rate·(OSL − 1)·TPOT = {number(rate)}·{number(osl - 1)}·{tpot}", "requests"
    )
    yield _step(one, "decode_tok_s", "decode rate", f"L_d/TPOT = {number(one['decoding'])}/{tpot}", "tok/s")
    yield _step(one, "demand_tok_s", "…must equal", f"rate·(OSL − 1) = {number(rate)}·{number(osl - 1)}", "tok/s")


def _memory(case: Case) -> Iterator[Step]:
    yield from _weights(case)
    yield from _kv_per_token(case)
    isl, osl = case.point("isl_tokens"), case.point("osl_tokens")
    context = f"ISL + OSL/2 = {number(isl)} + {number(osl / 2)}"
    yield Step("mean_context_tokens", "mean context", context, isl + osl / 2, "tokens")
    yield from _cached(case)
    yield from _kv_in_flight(case)
    yield from _pool(case)


def _weights(case: Case) -> Iterator[Step]:
    parameters = number(case.facts["total_params"] / 1e9, 5)
    stored = formats_by_part(case) if is_as_stored(case) else f"matrices {case.row.weight_dtype}"
    formula = f"{parameters} billion parameters, {stored}, the rest 16 bit"
    yield Step("weight_bytes", "weights", formula, case.facts["weight_bytes"], "B")
    made_of = case.model.architecture
    if made_of is not None and any(block["experts"] for block in case.row.blocks):
        active = f"{number(made_of.active_params / 1e9, 5)} of {parameters} billion parameters"
        share = made_of.active_params / made_of.total_params
        yield Step("active_params_share", "active for a token", active, share, "share")


def _kv_per_token(case: Case) -> Iterator[Step]:
    made_of = case.model.architecture
    element = case.row.fields["kv_bytes_per_element"]
    formula = kv_formula(made_of, element) if made_of else ""
    yield Step("kv_bytes_per_token", "KV per token", formula, case.facts["kv_bytes_per_token"], "B")
    if state := case.facts["state_bytes"]:
        layers = case.model.layer_counts.get("recurrent", 0)
        yield Step("state_bytes", "state per sequence", f"{layers} recurrent layers, whatever the length", state, "B")


def _cached(case: Case) -> Iterator[Step]:
    """What a mean prompt finds in the cache: whole blocks, and never its last token."""
    share, prefix, isl = (case.point(name) for name in ("prefix_hit_share", "prefix_tokens", "isl_tokens"))
    if not share > 0:
        return
    found, of = (prefix, number(prefix)) if prefix else (share * isl, f"{number(share)}·{number(isl)}")
    cached = _BLOCK_TOKENS * min(found // _BLOCK_TOKENS, (isl - 1) // _BLOCK_TOKENS)
    yield Step("cached_tokens", "cached, of a hit", f"whole {_BLOCK_TOKENS}-token blocks of {of}", cached, "tokens")
    hits = share if prefix else 1.0
    left = f"ISL − hits·cached = {number(isl)} − {number(hits)}·{number(cached)}"
    yield Step("computed_tokens", "computed, of a prompt", left, isl - hits * cached, "tokens")
    if prefix:
        once = "ISL + OSL/2 − cached; the shared blocks count once"
        yield Step("held_by_a_hit_tokens", "held by a hit", once, isl + case.point("osl_tokens") / 2 - cached, "tokens")


def _kv_in_flight(case: Case) -> Iterator[Step]:
    one = case.one_number
    if one is None:
        return
    per_token = quantity(case.facts["kv_bytes_per_token"], "B")
    numbers = f"{number(one['in_flight'])}·{number(one['mean_context_tokens'])}·{per_token}"
    yield _step(one, "kv_in_flight_bytes", "KV in flight", f"L·context·KV per token = {numbers}", "B")


def _pool(case: Case) -> Iterator[Step]:
    tokens, gpus = case.answer["kv_pool_tokens"], case.gpus
    if not math.isnan(case.point("kv_cache_tokens")):
        told = case.question.pool_source or "--kv-cache-tokens"
        yield Step("kv_pool_tokens", "KV pool", f"as {told} says", tokens, "tokens")
        return
    memory, share = quantity(case.point("memory_bytes"), "B"), number(case.point("memory_utilization"))
    taken = f"{quantity(case.point('reserved_bytes'), 'B')} − {quantity(case.facts['weight_shard_bytes'], 'B')}"
    words, numbers = "memory·share − reserved − weights", f"{memory}·{share} − {taken}"
    if case.fraction_is_of_the_rest:
        words, numbers = "share·(memory − reserved − weights)", f"{share}·({memory} − {taken})"
    held = f"GPUs·({words}) = {gpus}·({numbers})"
    yield Step("kv_pool_bytes", "KV pool", held, gpus * case.left_bytes, "B")
    yield Step("kv_pool_tokens", "KV pool", _in_tokens(case, tokens), tokens, "tokens")


def _in_tokens(case: Case, tokens: float) -> str:
    """How the pool's bytes make tokens; layers of several kinds share blocks of one size, which wastes some."""
    on_ranks = case.facts["kv_bytes_per_token_rank"] * case.question.tp * case.question.pp
    padding = case.gpus * case.left_bytes / (tokens * on_ranks) if tokens else math.nan
    lost = f"·{number(padding)} padding" if padding > _VISIBLE_PADDING else ""
    return f"pool/(KV per token) = …/({quantity(on_ranks, 'B')}{lost}), whole 16-token blocks"


def _against_the_floor(case: Case) -> Iterator[Step]:
    one = case.one_number
    if one is None:
        return
    tpot, bandwidth = quantity(case.question.measured_tpot_s, "s"), case.row.fields["memory_bandwidth_bytes_per_s"]
    pool = quantity(case.answer["kv_pool_tokens"], "tokens")
    naive = f"pool/(context·W) = {pool}/({number(one['mean_context_tokens'])}·{quantity(one['residence_s'], 's')})"
    yield _step(one, "naive_rate_rps", "naive largest rate", f"{naive}, W held", "req/s")
    shard = quantity(case.facts["weight_shard_bytes"], "B")
    context = f"{number(one['decoding'])}·{number(one['mean_context_tokens'])}"
    read = f"({shard} + {context}·{quantity(case.facts['kv_bytes_per_token_rank'], 'B')})/{quantity(bandwidth, 'B/s')}"
    yield _step(one, "bandwidth_floor_s", "bandwidth floor", f"(weights + KV read)/bandwidth, per GPU = {read}")
    floor = quantity(one["bandwidth_floor_s"], "s")
    yield _step(one, "measured_over_floor_ratio", "measured/floor", f"TPOT/floor = {tpot}/{floor}", "ratio")
    yield from _flops(case, one)


def _flops(case: Case, one: dict[str, float]) -> Iterator[Step]:
    gpus, peak = case.gpus, case.row.fields["mixer_flops"]
    parameters = f"{number(one['prefill_flops'] / (2e9 * case.point('isl_tokens')))}e9"
    prefill = f"2·parameters·ISL = 2·{parameters}·{number(case.point('isl_tokens'))}"
    yield _step(one, "prefill_flops", "prefill of one prompt", prefill, "FLOP")
    work = f"{number(case.asked_rate_rps)}·{quantity(one['prefill_flops'], 'FLOP')}/({gpus}·{quantity(peak, 'FLOP/s')})"
    yield _step(one, "prefill_share_of_peak", "prefill, share of peak", f"rate·prefill/peak = {work}", "share")
    both = "rate·(prefill + decode)/peak, all prompts computed"
    yield _step(one, "implied_flop_utilization", "implied use of peak", both, "share")


def _full_model(case: Case) -> Iterator[Step]:
    got, osl = case.answer, number(case.point("osl_tokens") - 1)
    rate, tpot = number(got["max_rate_rps"]), quantity(got["tpot_token_mean_s"], "s")
    shard, bandwidth = quantity(case.facts["weight_read_bytes"], "B"), case.row.fields["memory_bandwidth_bytes_per_s"]
    floor = f"weights read per GPU/bandwidth = {shard}/{quantity(bandwidth, 'B/s')}"
    yield _step(got, "tpot_floor_s", "TPOT floor, full model", floor)
    yield from _experts_read(case)
    residence = f"TTFT + (OSL − 1)·TPOT = {quantity(got['ttft_mean_s'], 's')} + {osl}·{tpot}"
    yield _step(got, "e2e_mean_s", "W at the largest rate", residence)
    in_flight = f"rate·W = {rate}·{quantity(got['e2e_mean_s'], 's')}"
    yield Step("in_flight_at_max_rate", "L at the largest rate", in_flight, got["in_flight"], "requests")
    decoding = f"rate·(OSL − 1)·TPOT = {rate}·{osl}·{tpot}"
    yield Step("decoding_at_max_rate", "L_d at the largest rate", decoding, got["decoding"], "requests")
    seconds = f"{quantity(got['e2e_mean_s'], 's')} + {quantity(case.question.think_time_s, 's')}"
    clients = f"rate·(W + think time) = {rate}·({seconds})"
    yield Step("clients_at_max_rate", "clients at that rate", clients, case.clients_at_max_rate, "clients")


def _experts_read(case: Case) -> Iterator[Step]:
    """The share of the experts that a mean decode step touches: those of all data-parallel ranks' tokens."""
    tokens = case.answer["decoding"] / case.question.pp
    for block in case.row.blocks:
        if block["experts"]:
            chosen, experts = block["experts_per_token"], block["experts"]
            formula = f"1 − (1 − k/E)^n = 1 − (1 − {number(chosen)}/{number(experts)})^{number(tokens)}"
            touched = 1 - (1 - chosen / experts) ** tokens
            yield Step("experts_read_share", "experts that a step reads", formula, touched, "share")
            return


def _step(values: dict[str, float], name: str, label: str, formula: str, unit: str = "s") -> Step:
    return Step(name, label, formula, values[name], unit)
