"""Decode bounds and claims: nothing the model says is faster, batches are the least ones, bad questions are refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

import lambdamax
from lambdamax import cli
from lambdamax.claim import VERDICTS
from lambdamax.decode import DecodeBound, decode_bound
from lambdamax.exceptions import FrameError
from lambdamax.replicas import Deployment

MODELS = ["llama-3.1-8b-instruct", "mixtral-8x7b-v0.1", "gpt-oss-20b", "gemma-3-12b-it", "qwen3-30b-a3b"]


def bound_of(model: str, gpu: str = "h100-sxm", tp: int = 2) -> DecodeBound:
    return decode_bound(lambdamax.load_catalog().replica(Deployment(model, gpu, tp=tp)))


def invoke(*line: str) -> Result:
    return CliRunner().invoke(cli.main, list(line), prog_name="lambdamax", env={"COLUMNS": "80"})


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(MODELS), st.floats(1, 400), st.floats(50, 30_000))
def test_the_bound_is_never_above_the_step_of_the_model(model: str, clients: float, context: float) -> None:
    bound = bound_of(model)
    point = {"model": [model], "gpu": ["h100-sxm"], "tp": [2], "isl_tokens": [context], "osl_tokens": [2.0]}
    unlimited = {"memory_bytes": [1e15], "max_num_seqs": [1_000_000], "concurrency": [clients]}
    found = lambdamax.load(pl.DataFrame({**point, **unlimited})).row(0, named=True)
    if found["load_status"] == "ok":
        assert bound.step_s(max(found["decoding"], 0.0), context) <= found["tpot_token_mean_s"] * (1 + 1e-9)


@pytest.mark.parametrize("model", MODELS)
def test_at_the_ridge_and_at_the_crossover_two_times_are_equal(model: str) -> None:
    bound = bound_of(model)
    ridge = bound.times_s(bound.ridge_batch, 1.0)
    assert ridge["compute"] == pytest.approx(ridge["weights"], rel=1e-9)
    crossing = bound.times_s(bound.crossover_batch(3000.0), 3000.0)
    assert crossing["kv"] == pytest.approx(crossing["weights"], rel=1e-9)
    assert bound.weight_bytes(1.0) == pytest.approx(bound.first_bytes)
    assert bound.floor_s == pytest.approx(bound.times_s(1, 0)["weights"])


def test_without_kv_there_is_no_crossover_and_a_claim_waits_for_weights_alone() -> None:
    bound = replace(bound_of("llama-3.1-8b-instruct"), spans=())
    assert bound.sequence_bytes(10_000.0) == 0
    assert bound.crossover_batch(10_000.0) == math.inf
    claim = 1000.0
    batch, verdict = bound.batch_for(claim, 10_000.0)
    assert verdict == "possible"
    assert batch == pytest.approx(bound.first_bytes / bound.bandwidth * claim * bound.tp)


def test_weights_of_a_mixture_are_the_experts_that_are_asked_for() -> None:
    bound = bound_of("mixtral-8x7b-v0.1")
    pairs = 1 - (6 / 8) ** 2
    experts = 32 * 8 * 176_160_768 * 2 / 2
    assert bound.expert_bytes == pytest.approx(experts)
    assert bound.weight_bytes(2) - bound.first_bytes == pytest.approx(experts * (pairs - 0.25))


def test_a_window_keeps_no_more_than_its_tokens() -> None:
    bound = bound_of("gemma-3-12b-it", tp=1)
    per_layer = 4096 * 2
    assert bound.sequence_bytes(500) == pytest.approx(48 * per_layer * 500)
    assert bound.sequence_bytes(10_000) == pytest.approx(per_layer * (8 * 10_000 + 40 * 1024))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(MODELS), st.floats(10, 60_000), st.floats(100, 20_000))
def test_the_batch_of_a_claim_is_the_least_that_keeps_it(model: str, claim: float, context: float) -> None:
    bound = bound_of(model)
    least, verdict = bound.batch_for(claim, context)

    def rate(batch: float) -> float:
        return batch / bound.step_s(batch, context) / bound.tp

    if verdict == "possible":
        assert rate(least * (1 + 1e-9)) >= claim * (1 - 1e-6)
        assert least == 1 or rate(least * 0.999) < claim
    else:
        assert math.isinf(least)
        assert rate(1e9) < claim
        assert (verdict == "compute") == (bound.flops_per_token / bound.peak_flops * claim * bound.tp > 1)


def test_verdicts_of_a_claim_and_what_an_slo_makes_of_them() -> None:
    table = lambdamax.check_claim("llama-3.3-70b-instruct", "h100-sxm", 2500.0, slo_tpot_s=0.01)
    assert set(table["verdict"]) <= set(VERDICTS)
    assert {"possible", "kv"} <= set(table["verdict"])
    holds = (pl.col("verdict") == "possible") & (pl.col("tpot_bound_s") <= 0.01)
    assert table["survives_slo"].to_list() == table.select(holds.fill_null(value=False)).to_series().to_list()
    unheld = table.filter(pl.col("verdict") == "memory")
    assert (unheld["batch"] > unheld["batch_that_fits"]).all()
    everything = lambdamax.check_claim("llama-3.3-70b-instruct", "h100-sxm", 1e6)
    assert set(everything["verdict"]) <= {"compute", "kv", "does_not_fit"}
    assert {"bf16", "fp8"} <= set(everything["weight_dtype"])
    assert "nvfp4" not in set(lambdamax.check_claim("qwen3-8b", "mi300x", 1.0)["weight_dtype"])


def test_the_degree_is_the_cheapest_and_an_slo_cuts_the_batch() -> None:
    wide = lambdamax.decode("llama-3.3-70b-instruct", ["h100-sxm"], context_tokens=2000)
    each = [
        lambdamax.decode("llama-3.3-70b-instruct", ["h100-sxm"], context_tokens=2000, tp=[tp]) for tp in (1, 2, 4, 8)
    ]
    costs = [row["usd_per_mtok_output_bound"][0] for row in each]
    assert costs[0] is None
    assert wide["usd_per_mtok_output_bound"][0] == min(cost for cost in costs if cost is not None)
    tight = lambdamax.decode("llama-3.3-70b-instruct", ["h100-sxm"], context_tokens=2000, slo_tpot_s=0.01, tp=[8])
    bound = decode_bound(lambdamax.load_catalog().replica(Deployment("llama-3.3-70b-instruct", "h100-sxm", tp=8)))
    batch = tight["batch"][0]
    assert bound.step_s(batch, 2000) <= 0.01 < bound.step_s(batch + 1, 2000)


def test_what_does_not_fit_or_is_not_supported_is_a_row() -> None:
    table = lambdamax.decode("deepseek-v3", ["h100-sxm", "a10", "mi250x"], context_tokens=2000, tp=[8])
    assert table.select("gpu", "status", "batch").sort("gpu").rows() == [
        ("a10", "does_not_fit", None),
        ("h100-sxm", "does_not_fit", None),
        ("mi250x", "unsupported", None),
    ]


def test_a_model_that_cannot_be_sized_is_told_in_words() -> None:
    table = lambdamax.decode("deepseek-v4-pro", ["h100-sxm"], context_tokens=2000)
    assert table.select("status", "tpot_floor_s", "usd_per_mtok_output_bound").row(0) == ("unsupported", None, None)
    assert lambdamax.check_claim("deepseek-v4-pro", "h100-sxm", 100.0, slo_tpot_s=0.1).height == 0
    point = ["explain", "--model", "deepseek-v4-pro", "--gpu", "h100-sxm", "--isl", "1000", "--osl", "100"]
    told = invoke(*point, "--claim-tok-s-per-gpu", "100")
    assert told.exit_code == 0, told.output
    assert "The catalogue cannot say how this model would run" in " ".join(told.output.split())
    curves = invoke("decode", "--model", "deepseek-v4-pro", "--gpus", "h100-sxm", "--curve")
    assert (curves.exit_code, "unsupported" in curves.output) == (0, True)


def test_a_curve_is_the_bound_at_each_batch() -> None:
    curve = lambdamax.decode_curve(
        "qwen3-8b", "h100-sxm", context_tokens=1000.0, batches=[1, 64, 5000], usd_per_hour=2.0
    )
    assert curve["tpot_bound_s"].is_sorted()
    assert curve["usd_per_mtok_output_bound"].is_sorted(descending=True)
    assert curve["bound_by"].to_list() == ["weights", "weights", "kv"]


def test_nonsense_is_refused() -> None:
    with pytest.raises(FrameError, match="decode: gpus = nothing: allowed: at least one"):
        lambdamax.decode("qwen3-8b", [], context_tokens=100)
    with pytest.raises(FrameError) as caught:
        lambdamax.decode("qwen3-8b", ["h100-sxm"], context_tokens=100, usd_per_hour={"h9": 1.0, "h100-sxm": 0.0})
    assert [(fault.key, fault.value) for fault in caught.value.faults] == [
        ("usd_per_hour", "h9"),
        ("usd_per_hour", "h100-sxm=0"),
    ]
    with pytest.raises(FrameError, match="claim: tok_s_per_gpu = 0: allowed: a number above 0"):
        lambdamax.check_claim("qwen3-8b", "h100-sxm", 0.0)
    with pytest.raises(FrameError, match="gpu"):
        lambdamax.decode("qwen3-8b", ["h9"], context_tokens=100)


def test_the_command_prints_the_ranking_the_curve_and_json(tmp_path: Path) -> None:
    line = [
        "decode",
        "--model",
        "llama-3.3-70b-instruct",
        "--gpus",
        "h100-sxm,trainium2",
        "--usd-per-hour",
        "trainium2=2.235",
    ]
    shown = invoke(*line, "--out", str(tmp_path / "x.parquet"))
    assert shown.exit_code == 0, shown.output
    assert max(map(len, shown.output.splitlines())) <= 80
    rows = json.loads(invoke(*line, "--json").output)
    assert [row["gpu"] for row in rows] == ["trainium2", "h100-sxm"]
    assert pl.read_parquet(tmp_path / "x.parquet").to_dicts() == rows
    curve = invoke(*line, "--curve", "--tp", "8").output
    assert "h100-sxm, TP 8" in curve
    assert "4,096" in curve
    bad = invoke(*line, "--usd-per-hour", "x", "--tp", "a")
    assert bad.exit_code == 2
    unknown = invoke("decode", "--model", "qwen3-8b", "--gpus", "h9")
    assert (unknown.exit_code, unknown.stdout) == (1, "")


def test_explain_judges_a_claim() -> None:
    line = [
        "explain",
        "--model",
        "llama-3.3-70b-instruct",
        "--gpu",
        "b200-sxm",
        "--isl",
        "1000",
        "--osl",
        "1000",
        "--slo-tpot-s",
        "0.05",
    ]
    shown = invoke(*line, "--claim-tok-s-per-gpu", "10000")
    text = " ".join(shown.output.split())
    assert "A claim of 10,000 output tok/s per GPU Possible, at best with int4 weights" in text
    assert "never: KV bandwidth" in text
    assert "of it." in text
    never = " ".join(invoke(*line, "--claim-tok-s-per-gpu", "1e6").output.split())
    assert "it is not physically possible" in never
    found = json.loads(invoke(*line, "--claim-tok-s-per-gpu", "10000", "--json").output)["claim"]
    assert found["tok_s_per_gpu"] == 10_000
    assert {row["context_tokens"] for row in found["rows"]} == {256.0, 1500.0, 2048.0, 8192.0, 32768.0}
