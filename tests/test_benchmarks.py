"""Readers of benchmark files: genuine results of each tool, and what each tool means by its numbers."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from benchmark_files import FILES, loaded, row, written
from lambdamax import read_benchmarks
from lambdamax.benchmarks.formats import FORMATS
from lambdamax.benchmarks.measured import LOADS, measured_columns, schema
from lambdamax.facts import read_rows

REQUESTS = FILES / "aiperf_v0.13.0_profile_export_first3.jsonl"
VLLM = ("0.6.6", "0.8.5", "0.10.2", "0.11.0", "0.12.0", "0.14.0", "0.18.0", "0.24.0", "0.28.0", "0.31.0", "0.33.0")


# The table


def test_the_table_is_the_dictionary() -> None:
    table = read_benchmarks([])
    assert table.height == 0
    assert dict(table.schema) == schema()
    assert all(column.meaning for column in measured_columns().values())
    assert all(column.unit for column in measured_columns().values() if column.type == "f64")


def test_every_format_has_a_genuine_file_and_is_told_by_its_content() -> None:
    seen = set[str]()
    for path in sorted(FILES.iterdir()):
        if path.name not in ("inferencex_power_validation.json", "vllm_prometheus_metrics_by_version.csv"):
            seen |= set(read_benchmarks(path)["format"])
    assert seen == set(FORMATS) - {"vllm-metrics"}


def test_rows_are_in_seconds_and_say_what_drove_them() -> None:
    paths = [path for path in FILES.iterdir() if "power" not in path.name and "prometheus" not in path.name]
    table = read_benchmarks([path for path in paths if not path.name.startswith("measured")])
    for name in ("ttft_mean_s", "tpot_mean_s", "tpot_token_mean_s", "itl_mean_s", "e2e_mean_s"):
        assert 1e-3 < table[name].drop_nulls().min() <= table[name].drop_nulls().max() < 1  # type: ignore[operator]
    assert set(table["load"].drop_nulls()) <= set(LOADS)


def test_facts_of_the_user_fill_and_win() -> None:
    facts = {"model": "qwen3-8b", "gpu": "h100-sxm", "gpus": 8, "tp": 4, "engine": "vllm", "weight_dtype": "fp8"}
    one = row("vllm_bench_serve_v0.33.0.json", **facts)
    assert {name: one[name] for name in facts} == facts
    assert row("vllm_bench_serve_v0.33.0.json")["tp"] == 1


def test_what_neither_says_is_null() -> None:
    one = row("genai_perf_v0.0.16_profile_export_genai_perf.csv")
    assert [one[name] for name in ("model", "gpu", "tp", "engine", "load", "concurrency")] == [None] * 6


# vLLM


@pytest.mark.parametrize("version", VLLM)
def test_every_version_of_vllm_gives_the_same_columns(version: str) -> None:
    file = f"vllm_bench_serve_v{version}.json"
    one, raw = row(file), loaded(file)
    assert one["ttft_mean_s"] == pytest.approx(raw["mean_ttft_ms"] / 1e3)
    assert one["tpot_mean_s"] == pytest.approx(raw["mean_tpot_ms"] / 1e3)
    assert one["isl_tokens"] == raw["total_input_tokens"] / raw["completed"]
    assert (one["tp"], one["load"], one["concurrency"], one["request_rate_offered_rps"]) == (1, "open", 4, 8)
    assert one["prompts"] == one["requests"] == 8
    assert one["date"] == "2026-11-29"


@pytest.mark.parametrize("version", VLLM[1:])
def test_the_token_mean_of_vllm_is_the_decode_time_over_the_gaps(version: str) -> None:
    raw = loaded(f"vllm_bench_serve_v{version}.json")
    decode_s = (raw["mean_e2el_ms"] - raw["mean_ttft_ms"]) / 1e3 * raw["completed"]
    gaps = raw["total_output_tokens"] - raw["completed"]
    assert row(f"vllm_bench_serve_v{version}.json")["tpot_token_mean_s"] == pytest.approx(decode_s / gaps)


def test_lists_of_requests_are_in_seconds_beside_milliseconds() -> None:
    raw = loaded("vllm_bench_serve_v0.33.0_save_detailed.json")
    one = row("vllm_bench_serve_v0.33.0_save_detailed.json")
    assert one["e2e_mean_s"] == pytest.approx(np.mean(raw["latencies"]))
    assert one["load"] == "burst"
    assert one["request_rate_offered_rps"] is None
    decode_s = sum(raw["latencies"]) - sum(raw["ttfts"])
    assert one["tpot_token_mean_s"] == pytest.approx(decode_s / (sum(raw["output_lens"]) - 4))


def test_a_failed_request_keeps_zeros_that_count_for_nothing(tmp_path: Path) -> None:
    raw = loaded("vllm_bench_serve_v0.33.0_save_detailed.json")
    for name, zero in (("latencies", 0.0), ("ttfts", 0.0), ("output_lens", 0), ("input_lens", 9), ("start_times", 1.0)):
        raw[name].append(zero)
    raw["itls"].append([])
    raw["errors"].append("refused")
    raw["queue_times"].append(0.0)
    raw |= {"num_prompts": 5, "failed": 1}
    one, sound = row(written(tmp_path / "a.json", raw)), row("vllm_bench_serve_v0.33.0_save_detailed.json")
    assert one["failed"] == 1
    assert [one[name] for name in ("e2e_mean_s", "tpot_token_mean_s")] == [
        sound[name] for name in ("e2e_mean_s", "tpot_token_mean_s")
    ]


def test_before_failures_were_counted_they_are_what_did_not_complete(tmp_path: Path) -> None:
    raw = loaded("vllm_bench_serve_v0.10.2.json") | {"num_prompts": 10}
    assert "failed" not in raw
    assert row(written(tmp_path / "a.json", raw))["failed"] == 2


def test_appended_results_in_one_json_file_are_rows(tmp_path: Path) -> None:
    path = tmp_path / "all.json"
    texts = [(FILES / f"vllm_bench_serve_v{version}.json").read_text() for version in VLLM[2:5]]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    table = read_benchmarks(path)
    assert table["place"].to_list() == ["line 1", "line 2", "line 3"]
    alone = [row(f"vllm_bench_serve_v{version}.json")["ttft_mean_s"] for version in VLLM[2:5]]
    assert table["ttft_mean_s"].to_list() == alone


def test_a_list_of_results_is_rows(tmp_path: Path) -> None:
    results = [loaded(f"vllm_bench_serve_v{version}.json") for version in VLLM[2:4]]
    assert read_benchmarks(written(tmp_path / "summary.json", results))["place"].to_list() == ["item 1", "item 2"]


@pytest.mark.parametrize("rate", ["inf", "Infinity", float("inf")])
def test_an_endless_rate_is_no_rate(tmp_path: Path, rate: Any) -> None:
    one = row(written(tmp_path / "a.json", loaded("vllm_bench_serve_v0.33.0.json") | {"request_rate": rate}))
    assert one["request_rate_offered_rps"] is None
    assert one["load"] == "closed"


def test_a_percentile_that_was_not_asked_for_is_null() -> None:
    assert row("vllm_bench_serve_v0.33.0.json")["ttft_p90_s"] is not None
    assert row("sglang_bench_serving_v0.4.6.jsonl")["ttft_p90_s"] is None


def test_a_sweep_summary_has_a_row_for_each_run_and_names_its_overrides() -> None:
    table = read_benchmarks(FILES / "vllm_sweep_summary.csv")
    assert table["notes"].to_list() == ["run 0; max_num_seqs=64", "run 0; max_num_seqs=128"]
    assert table["request_rate_offered_rps"].to_list() == [4, 8]
    assert table["e2e_mean_s"].to_list() == [pytest.approx(0.22434947)] * 2


# SGLang


@pytest.mark.parametrize("version", ["0.4.6", "0.5.5", "0.5.23"])
def test_sglang_calls_what_it_reached_concurrency_and_the_limit_max(version: str) -> None:
    file = f"sglang_bench_serving_v{version}.jsonl"
    one, raw = row(file), loaded(file)
    assert (one["in_flight"], one["concurrency"]) == (raw["concurrency"], 4)
    assert one["request_rate_rps"] * one["e2e_mean_s"] == pytest.approx(one["in_flight"], rel=1e-6)
    assert one["e2e_mean_s"] == pytest.approx(raw["mean_e2e_latency_ms"] / 1e3)
    assert (one["requested_isl_tokens"], one["requested_osl_tokens"]) == (128, 24)
    assert (one["model"], one["engine"]) == (None, None)


def test_lengths_that_sglang_draws_average_half_way_to_the_range(tmp_path: Path) -> None:
    raw = loaded("sglang_bench_serving_v0.5.23.jsonl") | {"random_range_ratio": 0.5, "request_rate": float("inf")}
    one = row(written(tmp_path / "a.jsonl", raw))
    assert one["requested_osl_tokens"] == 18
    assert one["load"] == "closed"


def test_a_server_of_sglang_says_what_it_is(tmp_path: Path) -> None:
    server = {"model_path": "Qwen/Qwen3-8B", "tp_size": 2, "version": "0.5.6", "kv_cache_dtype": "fp8_e5m2"}
    one = row(written(tmp_path / "a.jsonl", loaded("sglang_bench_serving_v0.5.23.jsonl") | {"server_info": server}))
    assert (one["model"], one["tp"], one["engine"], one["engine_version"]) == ("Qwen/Qwen3-8B", 2, "sglang", "0.5.6")


# GuideLLM


def test_guidellm_up_to_0_3_averages_over_requests_and_later_over_tokens() -> None:
    old, new = row("guidellm_v0.3.1.json"), row("guidellm_v0.5.4.json")
    assert old["tpot_mean_s"] == pytest.approx(7.397236426671347e-3)
    assert (old["tpot_token_mean_s"], new["tpot_mean_s"]) == (None, None)
    assert new["tpot_token_mean_s"] == pytest.approx(7.684880495071411e-3)


@pytest.mark.parametrize("version", ["0.3.1", "0.5.4", "0.8.1"])
def test_guidellm_mixes_seconds_and_milliseconds(version: str) -> None:
    one = row(f"guidellm_v{version}.json")
    raw = loaded(f"guidellm_v{version}.json")["benchmarks"][0]["metrics"]
    assert one["e2e_mean_s"] == raw["request_latency"]["successful"]["mean"]
    assert one["ttft_mean_s"] == pytest.approx(raw["time_to_first_token_ms"]["successful"]["mean"] / 1e3)
    assert one["request_rate_rps"] * one["e2e_mean_s"] == pytest.approx(one["in_flight"], rel=1e-3)
    assert (one["requested_isl_tokens"], one["requested_osl_tokens"]) == (128, 16)


@pytest.mark.parametrize("version", ["0.5.4", "0.8.1"])
def test_the_csv_of_guidellm_says_what_its_json_says(version: str) -> None:
    first = read_benchmarks(FILES / f"guidellm_v{version}.csv").to_dicts()[0]
    same = row(f"guidellm_v{version}.json")
    left_out = {"file", "place", "format", "date"}
    assert {k: v for k, v in first.items() if k not in left_out} == {k: v for k, v in same.items() if k not in left_out}


def test_each_line_of_the_csv_of_guidellm_is_a_load() -> None:
    assert read_benchmarks(FILES / "guidellm_v0.8.1.csv")["concurrency"].to_list() == [2, 4]


# AIPerf and genai-perf


@pytest.mark.parametrize(
    ("csv_file", "json_file"),
    [
        ("aiperf_v0.13.0_profile_export_aiperf.csv", "aiperf_v0.13.0_profile_export_aiperf.json"),
        ("genai_perf_v0.0.16_profile_export_genai_perf.csv", "genai_perf_v0.0.16_profile_export_genai_perf.json"),
    ],
)
def test_the_csv_says_what_the_json_says_with_two_digits(csv_file: str, json_file: str) -> None:
    short, long = row(csv_file), row(json_file)
    for name in ("ttft_mean_s", "tpot_mean_s", "tpot_p99_s", "e2e_mean_s", "osl_tokens", "request_rate_rps"):
        assert short[name] == pytest.approx(long[name], rel=2e-3), name
    assert long["concurrency"] == 4
    assert long["model"] == "example-model"


def test_aiperf_s_inter_token_latency_is_tpot_over_requests() -> None:
    one = row("aiperf_v0.13.0_profile_export_aiperf.json")
    assert one["tpot_mean_s"] == pytest.approx((one["e2e_mean_s"] - one["ttft_mean_s"]) / 23)
    assert one["in_flight"] == pytest.approx(one["request_rate_rps"] * one["e2e_mean_s"], rel=0.05)


def test_requests_one_a_line_make_one_point() -> None:
    records = [json.loads(line)["metrics"] for line in REQUESTS.read_text(encoding="utf-8").splitlines()]
    one = row("aiperf_v0.13.0_profile_export_first3.jsonl")
    assert one["requests"] == 3
    assert one["e2e_mean_s"] == pytest.approx(np.mean([r["request_latency"]["value"] for r in records]) / 1e3)
    assert one["tpot_mean_s"] == pytest.approx(np.mean([r["inter_token_latency"]["value"] for r in records]) / 1e3)
    assert one["in_flight"] == pytest.approx(one["request_rate_rps"] * one["e2e_mean_s"])


def test_warm_up_and_cancelled_requests_do_not_count(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in REQUESTS.read_text(encoding="utf-8").splitlines()]
    lines[0]["metadata"]["benchmark_phase"] = "warmup"
    lines[1]["metadata"]["was_cancelled"] = True
    assert row(written(tmp_path / "a.jsonl", *lines))["requests"] == 1


def test_the_metrics_of_the_server_are_populations() -> None:
    one = row("aiperf_v0.13.0_server_metrics_export.csv")
    assert (one["model"], one["running"], one["ttft_mean_s"]) == ("example-model", 0, None)


# inference-perf, llmperf, InferenceX


def test_inference_perf_is_in_seconds_and_knows_cached_tokens() -> None:
    one, raw = (
        row("inference_perf_stage_1_lifecycle_metrics.json"),
        loaded("inference_perf_stage_1_lifecycle_metrics.json"),
    )
    assert one["tpot_mean_s"] == raw["successes"]["latency"]["time_per_output_token"]["mean"]
    assert one["request_rate_offered_rps"] == 8
    assert one["cached_tokens"] == 0
    assert row("inference_perf_summary_lifecycle_metrics.json")["notes"] == "every stage together: read the stages"


def test_requests_of_inference_perf_make_a_point() -> None:
    one = row("inference_perf_per_request_lifecycle_metrics_first2.json")
    spans = [1996.749904772 - 1996.597839531, 1996.977990215 - 1996.792503711]
    assert one["e2e_mean_s"] == pytest.approx(np.mean(spans))
    assert one["osl_tokens"] == 16.5


def test_llmperf_puts_ttft_into_its_latency_between_tokens() -> None:
    one, raw = row("llmperf_summary.json"), loaded("llmperf_summary.json")
    theirs = raw["results_inter_token_latency_s_mean"]
    assert one["tpot_mean_s"] == pytest.approx((theirs * 24 - one["ttft_mean_s"]) / 23, rel=1e-3)
    assert one["tpot_mean_s"] < 0.9 * theirs
    assert one["request_rate_rps"] == 4
    each = row("llmperf_individual_responses.json")
    assert each["tpot_mean_s"] == pytest.approx(one["tpot_mean_s"])


def test_llmperf_of_varying_lengths_has_no_mean_over_requests(tmp_path: Path) -> None:
    raw = loaded("llmperf_summary.json") | {"results_number_output_tokens_stddev": 3.0}
    one = row(written(tmp_path / "a.json", raw))
    assert one["tpot_mean_s"] is None
    assert one["tpot_token_mean_s"] is not None


def test_inferencex_is_per_accelerator_and_its_lengths_are_nominal() -> None:
    one, raw = row("inferencex_agg_result.json"), loaded("inferencex_agg_result.json")
    assert (one["gpus"], one["gpu"], one["concurrency"], one["speculative"]) == (8, "h100", 4, False)
    assert one["output_tok_s"] == pytest.approx(8 * raw["output_tput_per_gpu"])
    assert (one["isl_tokens"], one["osl_tokens"]) == (None, None)
    assert (one["requested_isl_tokens"], one["requested_osl_tokens"]) == (1024, 1024)
    assert one["tpot_p50_s"] < one["tpot_p99_s"] == pytest.approx(1 / raw["p99_intvty"])


def test_a_disaggregated_inferencex_row_counts_both_pools(tmp_path: Path) -> None:
    raw = loaded("inferencex_agg_result.json") | {"num_prefill_gpu": 4, "num_decode_gpu": 12, "disagg": True}
    del raw["tp"]
    one = row(written(tmp_path / "a.json", raw))
    assert (one["gpus"], one["tp"], one["notes"]) == (16, None, "disaggregated")


# A scrape


def scrape(old: bool = False) -> str:
    registry = CollectorRegistry()
    names = ["model_name", "engine"]
    kv = "vllm:gpu_cache_usage_perc" if old else "vllm:kv_cache_usage_perc"
    gap = "vllm:time_per_output_token_seconds" if old else "vllm:inter_token_latency_seconds"
    for engine in ("0", "1"):
        labels = ("m", engine)
        for name, value in (("vllm:num_requests_running", 3), ("vllm:num_requests_waiting", 2), (kv, 0.25)):
            known = registry._names_to_collectors.get(name) or Gauge(name, "x", names, registry=registry)
            known.labels(*labels).set(value)  # type: ignore[attr-defined]
        for name, value in (
            ("vllm:time_to_first_token_seconds", 0.2),
            ("vllm:e2e_request_latency_seconds", 2.2),
            ("vllm:request_prompt_tokens", 100),
            ("vllm:request_generation_tokens", 101),
            (gap, 0.02),
        ):
            known = registry._names_to_collectors.get(name) or Histogram(
                name, "x", names, buckets=(0.01, 0.1, 0.3, 3, 300), registry=registry
            )
            known.labels(*labels).observe(value)  # type: ignore[attr-defined]
        name = "vllm:request_success"
        counter = registry._names_to_collectors.get(name) or Counter(
            name, "x", [*names, "finished_reason"], registry=registry
        )
        counter.labels(*labels, "stop").inc()  # type: ignore[attr-defined]
    return generate_latest(registry).decode()


@pytest.mark.parametrize("old", [True, False])
def test_a_scrape_sums_engines_and_means_since_the_start(tmp_path: Path, old: bool) -> None:
    path = tmp_path / "metrics"
    path.write_text(scrape(old), encoding="utf-8")
    one = row(path)
    assert (one["format"], one["model"], one["running"], one["waiting"]) == ("vllm-metrics", "m", 6, 4)
    assert (one["requests"], one["isl_tokens"], one["osl_tokens"], one["kv_use"]) == (2, 100, 101, 0.25)
    assert one["ttft_mean_s"] == pytest.approx(0.2)
    assert one["tpot_token_mean_s"] == pytest.approx(0.02)
    assert one["itl_mean_s"] == pytest.approx(0.02)
    assert one["ttft_p50_s"] == pytest.approx(0.2)
    assert one["request_rate_rps"] is None


def test_every_metric_of_the_table_is_one_that_some_version_has() -> None:
    with (FILES / "vllm_prometheus_metrics_by_version.csv").open(encoding="utf-8", newline="") as stream:
        lines = list(csv.DictReader(stream))
    versions: dict[str, dict[str, str]] = {}
    for line in lines:
        held = versions.setdefault(line.pop("metric").removesuffix("_total"), dict.fromkeys(line, ""))
        held.update({version: kind for version, kind in line.items() if kind})
    rows = read_rows("vllm_metrics.csv")
    assert {one["metric"] for one in rows} <= set(versions)
    for version in next(iter(versions.values())):
        for quantity in ("running", "waiting", "kv_use", "ttft", "gap", "e2e", "isl", "osl", "requests"):
            named = [one["metric"] for one in rows if one["quantity"] == quantity]
            assert any(versions[name][version] for name in named), (quantity, version)


# Our own header


def test_the_longer_header_has_a_column_for_each_statistic() -> None:
    one = read_benchmarks(FILES / "measured_long_header.csv").to_dicts()[0]
    assert (one["ttft_mean_s"], one["ttft_p50_s"], one["statistic"]) == (1.52151, 0.4768, "mean")
    assert (one["e2e_mean_s"], one["in_flight"], one["requests"]) == (pytest.approx(35.55298), 87.53, 1000)
    assert (one["model"], one["weight_dtype"], one["load"]) == ("deepseek-ai/DeepSeek-V3", "fp8", "closed")
    assert one["total_tok_s"] == pytest.approx(8 * 150.826)


def test_the_shorter_header_does_not_say_which_statistic() -> None:
    table = read_benchmarks(FILES / "measured_short_header.csv")
    first = table.to_dicts()[0]
    assert (first["statistic"], first["ttft_mean_s"]) == ("unknown", pytest.approx(65.4566))
    assert (first["engine"], first["engine_version"]) == ("vllm", "0.19.0")
    assert (first["running"], first["concurrency"], first["load"]) == (32.3, None, "burst")
    assert table["load"].to_list()[2] == "static"
