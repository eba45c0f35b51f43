"""One point explained: worked example A to its digits, what binds, loads, mistakes, and points without an answer."""

from __future__ import annotations

import json
import math
from itertools import product
from typing import Any

import pytest

from lambdamax.catalog import load_catalog
from lambdamax.columns import point_columns
from lambdamax.engine import OneReplica
from lambdamax.explain import Explanation, Question, explain
from lambdamax.parallelism import refusals
from lambdamax.replicas import Deployment
from lambdamax.units import number, quantity

WORKLOAD = {"isl_tokens": 1500.0, "osl_tokens": 300.0}
MEMORY = {"memory_bytes": 80e9, "memory_utilization": 0.92, "reserved_bytes": 3e9}
MEASURED: dict[str, Any] = {"measured_ttft_s": 0.5, "measured_tpot_s": 0.025}


def asked(numbers: dict[str, float] | None = None, **changed: Any) -> Explanation:
    point: dict[str, Any] = {"model": "llama-3.3-70b-instruct", "gpu": "h100-sxm", "tp": 4}
    return explain(Question(**{**point, "numbers": WORKLOAD | (numbers or {}), **changed}))


@pytest.fixture(scope="module")
def example() -> Explanation:
    return asked(MEMORY | {"slo_tpot_s": 0.03}, rate_rps=10.0, **MEASURED)


def given(found: dict[str, Any] | None) -> dict[str, Any]:
    assert found is not None
    return found


def step(found: Explanation, name: str) -> float:
    return next(step.value for step in found.chain if step.name == name)


@pytest.mark.parametrize(
    ("name", "value", "half_a_digit"),
    [
        ("residence_s", 7.975, 1e-9),
        ("in_flight", 79.75, 1e-9),
        ("decoding", 74.75, 1e-9),
        ("decode_tok_s", 2990, 1e-6),
        ("demand_tok_s", 2990, 1e-6),
        ("kv_bytes_per_token", 327_680, 0),
        ("mean_context_tokens", 1650, 0),
        ("kv_in_flight_bytes", 43.1e9, 0.05e9),
        ("kv_pool_bytes", 141.3e9, 0.05e9),
        ("kv_pool_tokens", 431_200, 50),
        ("weight_bytes", 141.1e9, 0.05e9),
        ("naive_rate_rps", 32.8, 0.05),
        ("bandwidth_floor_s", 13.55e-3, 0.005e-3),
        ("measured_over_floor_ratio", 1.846, 0.001),
        ("prefill_flops", 212e12, 0.5e12),
        ("prefill_share_of_peak", 0.535, 0.005),
    ],
)
def test_the_chain_of_example_a(example: Explanation, name: str, value: float, half_a_digit: float) -> None:
    assert step(example, name) == pytest.approx(value, abs=half_a_digit, rel=0)


@pytest.mark.parametrize(
    ("name", "value", "half_a_digit"),
    [
        ("rate_at_kv_rps", 22.0, 0.05),
        ("tpot_at_kv_s", 38.07e-3, 0.005e-3),
        ("in_flight_at_kv", 261, 0.5),
        ("rate_at_tpot_rps", 15.8, 0.05),
        ("asymptote_rps", 44.9, 0.05),
    ],
)
def test_the_one_number_answers_of_example_a(
    example: Explanation, name: str, value: float, half_a_digit: float
) -> None:
    assert example.one_number is not None
    assert example.one_number[name] == pytest.approx(value, abs=half_a_digit, rel=0)


def test_the_held_ratio_at_other_rates(example: Explanation) -> None:
    assert example.one_number is not None
    by_rate = {point["rate_rps"]: point["tpot_s"] for point in example.one_number["curve"]}
    assert by_rate[10.0] == pytest.approx(0.025, rel=1e-9)
    assert by_rate[16.0] == pytest.approx(30.18e-3, abs=0.01e-3)
    assert by_rate[20.0] == pytest.approx(35.04e-3, abs=0.01e-3)


def test_twice_the_output_of_example_a(example: Explanation) -> None:
    assert example.one_number is not None
    twice = example.one_number["twice_the_output"]
    assert twice["in_flight_ratio_held"] == pytest.approx(1.94, abs=0.005)
    assert twice["kv_in_flight_bytes_ratio_held"] == pytest.approx(2.12, abs=0.005)
    assert twice["in_flight_ratio_with_feedback"] == pytest.approx(2.9, abs=0.05)
    assert twice["kv_in_flight_bytes_ratio_with_feedback"] == pytest.approx(3.2, abs=0.05)
    assert twice["asymptote_rps"] == pytest.approx(20.5, abs=0.06)


def test_the_full_model_disagrees_with_the_one_number(example: Explanation) -> None:
    columns, at_rate, one = example.columns, given(example.at_rate), example.one_number
    assert one is not None
    assert columns["binding_limit"] == "tpot_slo"
    assert columns["rate_at_compute_rps"] < one["rate_at_kv_rps"] / 2
    assert at_rate["status"] == "unstable"
    assert at_rate["excess"] == pytest.approx(10 / at_rate["sustainable_rate_rps"] - 1)
    assert 0.54 < at_rate["implied_flop_utilization"] < 0.7
    assert "cached?" in example.verdict["question"]
    assert "unstable" in example.verdict["load asked"]


def test_no_question_about_a_plausible_measurement() -> None:
    found = asked(rate_rps=2.0, measured_ttft_s=0.2, measured_tpot_s=0.022)
    assert "question" not in found.verdict


def test_compute_binds_with_enough_memory_and_no_slo() -> None:
    found = asked({"utilization_cap": 1.0, "memory_bytes": 200e9})
    assert found.columns["binding_limit"] == "compute"
    assert found.verdict["what binds"].startswith("compute")
    assert "more memory gains nothing" in found.verdict["to change it"]


def test_the_verdict_names_what_binds_next(example: Explanation) -> None:
    assert example.columns["next_limit"] == "utilization"
    assert example.verdict["binds next"].startswith("utilisation cap, at ")
    assert "--utilization-cap" in example.verdict["binds next"]


def test_the_columns_are_those_of_a_sweep_in_its_order(example: Explanation) -> None:
    names = [column.name for column in point_columns()]
    answer = example.as_json()
    assert list(answer)[: len(names)] == names
    parts = ["at_rate", "one_number", "chain", "mistakes", "verdict", "assumptions", "ttft_budget"]
    assert list(answer)[len(names) :] == parts
    assert set(answer["chain"][0]) == {"name", "formula", "value", "unit"}
    assert [type(answer[name]) for name in ("tp", "max_num_seqs", "gpus")] == [int, int, int]


def test_chain_names_are_unique(example: Explanation) -> None:
    names = [step.name for step in example.chain]
    assert len(set(names)) == len(names)


def test_a_closed_loop_is_carried_or_saturated() -> None:
    carried = given(asked(concurrency=20.0, think_time_s=1.0).at_rate)
    assert carried["status"] == "ok"
    assert carried["in_flight"] + carried["rate_rps"] * 1.0 == pytest.approx(20.0)
    saturated = asked(concurrency=5000.0)
    at_load = given(saturated.at_rate)
    assert at_load["status"] == "saturated"
    assert at_load["waiting"] == pytest.approx(at_load["in_flight"] - at_load["running"])
    assert at_load["waiting"] > 0
    wrong = next(mistake for mistake in saturated.mistakes if mistake.name == "waiting_holds_kv")
    assert wrong.wrong > 10 * wrong.right


def test_a_closed_loop_says_how_many_clients_are_admitted() -> None:
    found = asked(concurrency=20.0, think_time_s=30.0)
    clients = found.columns["max_rate_rps"] * (found.columns["e2e_mean_s"] + 30.0)  # type: ignore[operator]
    assert given(found.at_rate)["clients_at_max_rate"] == pytest.approx(clients, rel=1e-12)
    assert step(found, "clients_at_max_rate") == pytest.approx(clients, rel=1e-12)
    assert f"at its largest rate the replica admits {math.floor(clients):,} clients" in found.verdict["load asked"]
    at_most = given(asked(concurrency=clients, think_time_s=30.0).at_rate)
    # A client does not meet itself, and clients of a loop leave no wake: so many reach a little more.
    gained = float(at_most["rate_rps"]) / float(found.columns["max_rate_rps"]) - 1  # type: ignore[arg-type]
    assert 0 < gained < 0.01
    assert given(asked(rate_rps=1.0).at_rate)["clients_at_max_rate"] is None


def test_a_load_above_the_answer_but_below_collapse_is_told_so() -> None:
    found = asked({"slo_tpot_s": 0.02}, rate_rps=4.0)
    assert given(found.at_rate)["status"] == "ok"
    assert "that the TPOT SLO allows" in found.verdict["load asked"]


def test_a_shared_prefix_counts_once_and_in_whole_blocks() -> None:
    """Worked example C: half of the prompts share 1,000 tokens."""
    found = asked({"prefix_tokens": 1000.0, "prefix_hit_share": 0.5})
    assert step(found, "cached_tokens") == 992
    assert step(found, "computed_tokens") == 1500 - 496
    assert step(found, "mean_context_tokens") - step(found, "held_by_a_hit_tokens") == 992
    plain = asked()
    at = [given(asked(dict(numbers), rate_rps=3.0).at_rate) for numbers in ({}, found.question.numbers)]
    assert at[1]["prefill_share"] < at[0]["prefill_share"]
    assert found.columns["max_rate_rps"] > plain.columns["max_rate_rps"]  # type: ignore[operator]
    turns = asked({"prefix_hit_share": 0.8})
    assert step(turns, "cached_tokens") == 1200
    assert "held_by_a_hit_tokens" not in {line.name for line in turns.chain}
    assert "cached_tokens" not in {line.name for line in plain.chain}


@pytest.mark.parametrize(
    ("numbers", "binding", "lifted"),
    [
        ({}, "utilization", {"utilization_cap": 1.0}),
        ({"slo_tpot_s": 0.03}, "tpot_slo", {"slo_tpot_s": 1e6}),
        ({"max_num_seqs": 8, "slo_tpot_s": 0.05, "utilization_cap": 1.0}, "seats", {"max_num_seqs": 1e6}),
    ],
)
def test_what_binds_next_is_the_answer_once_the_binding_limit_is_lifted(
    numbers: dict[str, float], binding: str, lifted: dict[str, float]
) -> None:
    found, then = asked(numbers), asked(numbers | lifted)
    assert found.columns["binding_limit"] == binding
    assert quantity(then.columns["max_rate_rps"], "req/s") in found.verdict["binds next"]  # type: ignore[arg-type]


def test_a_limit_just_below_compute_is_not_blamed_but_told() -> None:
    found = asked()
    assert found.columns["next_limit"] == "compute"
    assert "kv_pool" in found.near_compute
    assert "KV memory is met a little before" in found.verdict["binds next"]


def test_a_measurement_in_a_closed_loop_gives_its_rate() -> None:
    found = asked(concurrency=79.75, **MEASURED)
    assert step(found, "demand_tok_s") == pytest.approx(2990)


def test_the_mistakes_show(example: Explanation) -> None:
    found = {mistake.name: mistake for mistake in example.mistakes}
    assert set(found) == {"residence_held", "batch_one_tpot", "final_length", "waiting_holds_kv"}
    assert all(mistake.wrong > mistake.right for mistake in found.values())
    per_request = (found["final_length"].wrong - found["final_length"].right) / 79.75
    assert per_request == pytest.approx(150)


def test_the_identity_needs_the_token_mean_where_lengths_vary() -> None:
    found = asked({"isl_tokens": 100.0, "osl_tokens": 20_000.0, "osl_cv": 2.0})
    assert "request_mean_tpot" in {mistake.name for mistake in found.mistakes}


@pytest.mark.parametrize(
    ("changed", "status", "words"),
    [
        ({"tp": 3}, "invalid_parallelism", "TP 3 does not divide the 64 attention heads"),
        ({"tp": 1}, "does_not_fit", "its share of the weights is 141.1 GB"),
        ({"gpu": "h100-pcie", "price_plan": "spot"}, "no_price", "one replica (4 × h100-pcie)"),
        ({"gpu": "mi250x", "weight_dtype": "fp8"}, "unsupported", "lists no fp8_dense_flops"),
    ],
)
def test_a_point_without_an_answer_says_why(changed: dict[str, Any], status: str, words: str) -> None:
    found = asked(rate_rps=1.0, **MEASURED, **changed)
    assert found.columns["status"] == status
    assert words in found.verdict["answer"]
    json.dumps(found.as_json(), allow_nan=False)


def test_an_unreachable_slo_binds_at_rate_zero() -> None:
    found = asked({"slo_tpot_s": 0.001}, rate_rps=1.0)
    assert (found.columns["status"], found.columns["max_rate_rps"]) == ("slo_unreachable", 0)
    assert "no rate is low enough" in found.verdict["answer"]


def test_a_given_price_needs_no_catalogue() -> None:
    columns = asked({"usd_per_accelerator_hour": 2.0}).columns
    assert (columns["price_plan"], columns["provider"], columns["cost_usd_per_hour"]) == (None, "given", 8.0)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.02505, "s", "25.05 ms"),
        (7.975, "s", "7.975 s"),
        (327_680, "B", "327,680 B"),
        (43.1186e9, "B", "43.12 GB"),
        (999.96e9, "B", "1 TB"),
        (431_152, "tokens", "431,200 tokens"),
        (0.535, "share", "53.5 %"),
        (1.8455, "ratio", "1.845×"),
        (0, "req/s", "0 req/s"),
        (math.nan, "s", "–"),
        (None, "s", "–"),
    ],
)
def test_quantities_have_units_and_four_digits(value: float | None, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


def test_padded_numbers_line_up() -> None:
    assert [number(value, pad=True) for value in (30.0, 7.79, 1234.0)] == ["30.00", "7.790", "1,234"]


# Models that are not dense, and parallelism beyond TP


def words_of(found: Explanation) -> str:
    return " ".join(found.assumptions)


def test_a_dense_model_in_16_bits_takes_nothing_for_granted() -> None:
    assert asked(gpu="h200-sxm").assumptions == ()


def test_a_mixture_of_experts_says_what_a_step_reads() -> None:
    found = asked(model="gpt-oss-120b", tp=2)
    assert "1 − (1 − 4/128)^n of the 128 experts" in words_of(found)
    assert "attention bf16, experts mxfp4, head bf16" in words_of(found)
    assert "18 of 36 layers attend to the last 128 tokens" in words_of(found)
    decoding = found.columns["decoding"]
    assert isinstance(decoding, float)
    assert step(found, "experts_read_share") == pytest.approx(1 - (1 - 4 / 128) ** decoding)
    assert step(found, "active_params_share") == pytest.approx(5.75 / 116.8, rel=0.01)
    assert (found.columns["weight_dtype"], found.native_formats) == ("native", "mxfp4")


def test_expert_parallelism_names_its_imbalance() -> None:
    found = asked(model="qwen3-235b-a22b-fp8", gpu="h200-sxm", tp=4, dp=2, ep=8, profile="default")
    assert "the fullest of the 8 expert-parallel ranks reads 1.2 times the mean" in words_of(found)
    assert "expert_load_imbalance of profile hopper" in words_of(found)
    assert "the 2 data-parallel ranks" in words_of(found)
    assert found.columns["gpus"] == 8
    assert "imbalance" not in words_of(asked(model="qwen3-235b-a22b-fp8", gpu="h200-sxm", tp=4, dp=2))


@pytest.mark.parametrize(
    ("model", "formula", "value"),
    [
        ("deepseek-v3", "layers·(latent + rope)·bytes = 61·(512 + 64)·2", 70_272),
        ("deepseek-v3.2", "61·(512 + 64)·2 + 61·(128 + 4)", 70_272 + 61 * 132),
        ("gpt-oss-20b", "2·layers·KV heads·head size·bytes = 2·24·8·64·2", 49_152),
        ("gemma-3-12b-it", "2·48·8·256·2", 393_216),
        ("jamba-1.5-mini", "2·4·8·128·2", 16_384),
    ],
)
def test_kv_per_token_adds_up_over_kinds_of_layers(model: str, formula: str, value: float) -> None:
    found = asked(model=model, gpu="b200-sxm", tp=8)
    line = next(line for line in found.chain if line.name == "kv_bytes_per_token")
    assert formula in line.formula
    assert line.value == value


def test_a_recurrent_layer_keeps_a_state_for_each_sequence() -> None:
    found = asked(model="qwen3-next-80b-a3b-instruct", gpu="h200-sxm", tp=2)
    assert "36 of 48 layers are recurrent: a state of" in words_of(found)
    assert step(found, "state_bytes") > 1e6


def test_the_pool_is_that_of_all_ranks() -> None:
    alone, staged, many = (asked(tp=4, **more) for more in ({}, {"pp": 2}, {"dp": 2}))
    for found, gpus in ((alone, 4), (staged, 8), (many, 8)):
        assert found.columns["gpus"] == gpus
        per_token = step(found, "kv_bytes_per_token")
        assert step(found, "kv_pool_bytes") == pytest.approx(step(found, "kv_pool_tokens") * per_token, rel=1e-3)
        assert f"{gpus}·(" in next(line.formula for line in found.chain if line.name == "kv_pool_bytes")
    assert step(many, "kv_pool_tokens") == 2 * step(alone, "kv_pool_tokens")
    assert step(staged, "kv_pool_tokens") > 2 * step(alone, "kv_pool_tokens")


def test_an_engine_whose_fraction_is_of_the_rest_has_its_own_formula() -> None:
    found = asked(engine="tensorrt-llm")
    line = next(line for line in found.chain if line.name == "kv_pool_bytes")
    assert "share·(memory − reserved − weights)" in line.formula
    assert line.value == pytest.approx(step(found, "kv_pool_tokens") * 327_680, rel=1e-3)


def test_a_given_pool_takes_the_place_of_the_computed_one() -> None:
    plain, found = asked(), asked({"kv_cache_tokens": 100_000.0})
    assert found.columns["kv_pool_tokens"] == 100_000
    assert step(found, "kv_pool_tokens") == 100_000
    assert "kv_pool_bytes" not in {line.name for line in found.chain}
    computed = f"{plain.columns['kv_pool_tokens']:,.0f}"
    assert f"the KV pool is 100,000 tokens, as --kv-cache-tokens says, in place of the {computed}" in words_of(found)
    small = asked({"kv_cache_tokens": 100.0})
    assert small.columns["status"] == "does_not_fit"
    assert "a KV pool of 100 tokens does not hold one request" in small.verdict["answer"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tp": 3}, "TP 3 does not divide the 64 attention heads"),
        ({"model": "phi-4", "tp": 4}, "TP 4 neither divides the 10 KV heads nor is a multiple of them"),
        ({"model": "qwen3-235b-a22b-fp8", "tp": 8}, "the expert width of 1,536 into whole blocks of 128, which share"),
        ({"model": "qwen3-235b-a22b-fp8", "tp": 4, "dp": 4}, "TP 4 × DP 4 without expert parallelism does not cut"),
        ({"model": "qwen3-32b-fp8", "tp": 8, "pp": 65}, "PP 65 has more stages than the model has layers (64)"),
        ({"tp": 4, "ep": 4}, "EP 4 needs a model with experts, and this one has none"),
        ({"model": "deepseek-v3", "tp": 8, "dp": 2, "ep": 8}, "EP 8 must be 1 (experts cut like other matrices) or TP"),
        (
            {"model": "mixtral-8x7b-v0.1", "tp": 8, "dp": 2, "ep": 16},
            "EP 16 has more ranks than a layer has experts (8)",
        ),
    ],
)
def test_a_refused_parallelism_names_the_rule(changed: dict[str, Any], words: str) -> None:
    found = asked(gpu="h200-sxm", **changed)
    assert found.columns["status"] == "invalid_parallelism"
    assert words in found.verdict["answer"]


def test_rules_in_words_refuse_what_the_engine_refuses() -> None:
    catalog = load_catalog()
    models = ("llama-3.1-8b", "gpt-oss-20b", "deepseek-v3", "qwen3-235b-a22b-fp8", "jamba-1.5-mini", "falcon-40b")
    for model, tp, pp, dp, ep in product(models, (1, 2, 3, 8, 16), (1, 33), (1, 2), (1, 2, 8, 16)):
        row = catalog.replica(Deployment(model, "gb200-nvl72", tp, pp, dp, ep))
        status = OneReplica(row).solve({"isl_tokens": 10.0, "osl_tokens": 10.0}).status
        assert row.unsupported is None
        assert bool(refusals(row)) == (status == "invalid_parallelism"), (model, tp, pp, dp, ep, refusals(row))
