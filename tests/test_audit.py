"""The laws that `lambdamax audit` holds measured points against: a row that breaks each, and rows that break none."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lambdamax
from lambdamax import cli
from lambdamax.audit import Audit, audit
from lambdamax.audit.finding import is_unit_slip
from lambdamax.benchmarks.formats import FORMATS
from lambdamax.benchmarks.labels import gpu_of, model_of, size_of, weight_dtype_of
from lambdamax.benchmarks.measured import measured_frame
from lambdamax.catalog import load_catalog
from lambdamax.facts import read_rows

ROOT = Path(__file__).parent.parent
FILES = ROOT / "tests" / "fixtures" / "benchmarks"
CATALOG = load_catalog()
# Ten requests a second of 2.1 s each: 21 in flight, 20 of them decoding.
SOUND: dict[str, Any] = {
    "file": "a.json",
    "place": "",
    "format": "test",
    "model": "llama-3.1-8b",
    "gpu": "h100-sxm",
    "gpus": 1.0,
    "tp": 1.0,
    "weight_dtype": "bf16",
    "load": "closed",
    "isl_tokens": 500.0,
    "osl_tokens": 201.0,
    "requested_osl_tokens": 201.0,
    "concurrency": 21.0,
    "request_rate_rps": 10.0,
    "prompts": 5000.0,
    "requests": 5000.0,
    "duration_s": 500.0,
    "in_flight": 21.0,
    "ttft_mean_s": 0.1,
    "ttft_p50_s": 0.09,
    "ttft_p90_s": 0.15,
    "ttft_p99_s": 0.3,
    "tpot_mean_s": 0.01,
    "tpot_token_mean_s": 0.01,
    "tpot_p50_s": 0.01,
    "tpot_p99_s": 0.02,
    "e2e_mean_s": 2.1,
    "e2e_p50_s": 2.0,
    "e2e_p99_s": 4.0,
    "output_tok_s": 2010.0,
    "input_tok_s": 5000.0,
    "total_tok_s": 7010.0,
    "speculative": None,
    "statistic": "mean",
    "notes": None,
}
LITTLE, FLOOR, PEAK, PREFILL = "L = rate x W", "bandwidth floor", "peak FLOP/s", "prefill floor"
PARTS, RATES, OVER_REQUESTS = "E2E = TTFT + (OSL - 1) TPOT", "tokens/s = rate x length", "mean over requests"
QUEUED, WINDOW, SERVED, SENT = "queued is not running", "window longer than E2E", "served = offered", "requests sent"


def audited(*changes: dict[str, Any]) -> Audit:
    return audit(measured_frame(SOUND | change for change in changes), CATALOG)


def only(change: dict[str, Any]) -> dict[str, Any]:
    """The one finding that `change` of the sound row raises."""
    (found,) = audited(change).findings
    return found.as_json()


def test_a_sound_row_raises_nothing() -> None:
    found = audited({}, {"load": "open", "concurrency": None, "request_rate_offered_rps": 10.0})
    assert found.findings == ()
    assert (found.rows, found.not_checked) == (2, {})


# One law each: what breaks it, which number it names, how sure it is


@pytest.mark.parametrize(
    ("change", "law", "column", "severity"),
    [
        ({"in_flight": 42.0}, LITTLE, "in_flight", "error"),
        ({"in_flight": None, "concurrency": 10.0}, LITTLE, "request_rate_rps", "error"),
        ({"in_flight": None, "concurrency": 40.0}, LITTLE, "concurrency", "warning"),
        ({"running": 10.0}, "L_d = rate x (OSL - 1) x TPOT", "tpot_mean_s", "warning"),
        ({"running": 20.0, "waiting": 8.0}, "L = running + waiting", "in_flight", "warning"),
        ({"concurrency": 6000.0}, SENT, "concurrency", "warning"),
        ({"output_tok_s": 1500.0}, RATES, "osl_tokens", "error"),
        ({"input_tok_s": 4000.0}, RATES, "isl_tokens", "error"),
        ({"tpot_mean_s": 0.012}, OVER_REQUESTS, "tpot_mean_s", "warning"),
        ({"tpot_mean_s": 0.03}, PARTS, "tpot_mean_s", "error"),
        ({"e2e_p50_s": 0.6}, PARTS, "osl_tokens", "warning"),
        ({"requested_osl_tokens": 400.0}, "reply length", "requested_osl_tokens", "warning"),
        ({"ttft_p50_s": 0.2}, "percentiles rise", "ttft_p50_s", "error"),
        ({"duration_s": 8.0, "requests": 80.0}, WINDOW, "request_rate_rps", "warning"),
        ({"load": "burst", "duration_s": 8.0, "requests": 80.0}, WINDOW, "ttft_mean_s", "note"),
        ({"load": "open", "request_rate_offered_rps": 15.0}, SERVED, "request_rate_offered_rps", "warning"),
        ({"load": "open", "request_rate_offered_rps": 8.0}, SERVED, "request_rate_offered_rps", "error"),
        ({"model": "llama-3.1-70b", "gpus": 2.0, "tp": 2.0}, FLOOR, "tpot_mean_s", "error"),
        ({"model": "llama-3.1-70b", "gpus": 2.0, "tp": 2.0, "speculative": True}, FLOOR, "tpot_mean_s", "note"),
        ({"tpot_mean_s": 10.0}, "unit", "tpot_mean_s", "error"),
        ({"duration_s": 600.0}, "rate = requests / window", "request_rate_rps", "error"),
        ({"duration_s": 500_000.0}, "unit", "duration_s", "error"),
        ({"in_flight": 0.021}, "unit", "e2e_mean_s", "error"),
    ],
)
def test_each_law_is_broken_alone(change: dict[str, Any], law: str, column: str, severity: str) -> None:
    one = only(change)
    assert (one["law"], one["column"], one["severity"]) == (law, column, severity)
    assert one["verdict"]
    assert one["left"]["value"] != one["right"]["value"]


def test_both_sides_are_told_with_their_values() -> None:
    one = only({"in_flight": 42.0})
    assert one["left"] == {"said": "rate x E2E", "value": 21.0, "unit": "requests"}
    assert one["right"] == {"said": "measured in flight", "value": 42.0, "unit": "requests"}


# Physics


LONG = dict.fromkeys(["input_tok_s", "total_tok_s", "in_flight", "load", "concurrency"])


def test_a_prompt_faster_than_the_peak_came_from_the_cache() -> None:
    """20,000 tokens of 7 billion parameters are 2.8e14 FLOP: 0.28 s at the peak."""
    change = {**LONG, "isl_tokens": 20_000.0, "request_rate_rps": 1.0, "output_tok_s": 201.0, "duration_s": 5000.0}
    one = only(change)
    assert (one["law"], one["column"]) == (PREFILL, "isl_tokens")
    assert one["right"]["value"] == pytest.approx(20_000 * 2 * 6.98e9 / 989e12, rel=0.01)
    assert audited({**change, "cached_tokens": 19_000.0}).findings == ()


def test_more_prefill_than_the_peak_is_named_as_cached() -> None:
    change = {**LONG, "isl_tokens": 7_000.0, "ttft_mean_s": 0.4, "e2e_mean_s": 2.4, "ttft_p50_s": None}
    fast = {"request_rate_rps": 12.0, "output_tok_s": 2412.0, "requests": 6000.0, "ttft_p90_s": None}
    one = only({**change, **fast, "ttft_p99_s": None})
    assert (one["law"], one["column"], one["severity"]) == (PEAK, "isl_tokens", "error")
    assert "prefix cache" in one["verdict"]


def test_more_replies_than_the_peak_name_the_throughput() -> None:
    none = dict.fromkeys([name for name in SOUND if name.endswith("_s") and name[:4] in ("ttft", "tpot", "e2e_")])
    one = only(
        LONG | none | {"isl_tokens": 1.0, "request_rate_rps": 400.0, "output_tok_s": 80_400.0, "duration_s": None}
    )
    assert (one["law"], one["column"]) == (PEAK, "output_tok_s")


def test_the_kv_of_a_batch_is_read_as_well() -> None:
    """200 sequences of 8,000 tokens at 64 KiB in 8 bits are 105 GB: 31 ms at 3.35 TB/s, whatever the weights."""
    rate, none = 2000 / 201, dict.fromkeys(("e2e_p50_s", "tpot_p99_s", "e2e_p99_s"))
    change = LONG | none | {"isl_tokens": 7_900.0, "tpot_mean_s": 0.02, "tpot_token_mean_s": 0.02, "tpot_p50_s": 0.02}
    change |= {"e2e_mean_s": 4.1, "request_rate_rps": 5 * rate, "output_tok_s": 10_000.0}
    laws = [found.finding.law for found in audited(change).findings]
    assert FLOOR in laws
    assert FLOOR not in [found.finding.law for found in audited(change | {"isl_tokens": 100.0}).findings]


def test_without_tpot_the_whole_request_bounds_it() -> None:
    none = {name: None for name in SOUND if name.startswith(("ttft", "tpot"))}
    change = LONG | none | {"e2e_mean_s": 0.4, "e2e_p50_s": 0.4, "concurrency": 4.0, "load": "static"}
    assert only(change)["law"] == FLOOR


def test_a_size_in_the_name_bounds_a_model_that_the_catalogue_lacks() -> None:
    one = only({"model": "someone/own-70b-chat", "gpus": 2.0, "tp": 2.0})
    assert (one["law"], one["severity"]) == (FLOOR, "warning")
    assert audited({"model": "someone/own-7b-chat"}).findings == ()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": None, "gpu": None}, "no model, gpu"),
        ({"tp": None, "gpus": None}, "no tp or gpus"),
        ({"model": "someone/own"}, "a model or device that the catalogue does not know"),
        ({"gpu": "abacus"}, "a model or device that the catalogue does not know"),
    ],
)
def test_what_is_not_known_is_not_checked_and_said_so(change: dict[str, Any], reason: str) -> None:
    found = audited({**change, "tpot_mean_s": 0.001, "tpot_token_mean_s": 0.001, "e2e_mean_s": 0.3, "in_flight": 3.0})
    assert FLOOR not in [one.finding.law for one in found.findings]
    assert found.not_checked == {reason: 1}


# What the data really show


def queue(decoding: float, waiting: float, **change: Any) -> dict[str, Any]:
    """A closed loop with so many decoding and so many before their first token, at TPOT 10 ms."""
    rate = decoding / 2.0
    ttft = waiting / rate
    none = dict.fromkeys(("ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "e2e_p50_s", "e2e_p99_s", "tpot_p99_s"))
    tokens = {"output_tok_s": 201 * rate, "input_tok_s": None, "total_tok_s": None, "in_flight": None}
    loads = {"concurrency": decoding + waiting, "request_rate_rps": rate, "duration_s": None, "requests": 1e6}
    return none | tokens | loads | {"ttft_mean_s": ttft, "e2e_mean_s": ttft + 2.0, "gpus": 8.0, "tp": 8.0} | change


@pytest.mark.parametrize(
    ("change", "shown", "severity"),
    [
        (queue(128, 400), "a seat cap of 128", "warning"),
        (queue(90, 400), "prefill holds the rest back", "note"),
        (queue(90, 400, gpus=1.0, tp=1.0, isl_tokens=5000.0, tpot_p50_s=None), "KV pool", "warning"),
        (queue(90, 400, load="open", request_rate_offered_rps=90.0), "more is sent than prefill takes in", "warning"),
    ],
)
def test_who_waits_is_told_from_who_runs(change: dict[str, Any], shown: str, severity: str) -> None:
    found = [one.finding for one in audited({**change, "prompts": 1e6}).findings if one.finding.law == QUEUED]
    (one,) = found
    assert shown in one.verdict
    assert one.severity == severity


def test_nobody_waits_behind_nobody() -> None:
    laws = [found.finding.law for found in audited(queue(0.5, 1.5, prompts=1e6)).findings]
    assert QUEUED not in laws


def test_a_throughput_of_decoding_alone_is_named() -> None:
    change = {"load": "static", "concurrency": 20.0, "in_flight": None, "ttft_mean_s": 0.6, "e2e_mean_s": 2.6}
    one = only({**change, "ttft_p50_s": 0.55, "ttft_p90_s": None, "ttft_p99_s": None})
    assert (one["law"], one["column"]) == (LITTLE, "output_tok_s")


def test_a_mean_over_requests_that_overfills_the_client_is_suspected() -> None:
    """Short replies that are slow weigh as much as long ones in the mean over requests, not in L."""
    none = dict.fromkeys(["e2e_mean_s", "e2e_p50_s", "e2e_p99_s", "tpot_token_mean_s", "in_flight", "tpot_p50_s"])
    one = only(none | {"tpot_mean_s": 0.014, "tpot_p99_s": None})
    assert (one["law"], one["column"]) == (LITTLE, "tpot_mean_s")
    assert "TPOT over requests" in one["verdict"]


def test_a_rounded_rate_is_told_from_a_wrong_one() -> None:
    change = {"request_rate_rps": 0.02, "output_tok_s": 3.2, "input_tok_s": None, "total_tok_s": None}
    one = only({**change, "in_flight": None, "load": None, "duration_s": None, "requests": None})
    assert (one["severity"], one["column"]) == ("note", "request_rate_rps")


def test_medians_are_given_more_room_below_and_none_above() -> None:
    median = {name: None for name in SOUND if name.endswith("_mean_s")} | {"tpot_token_mean_s": None}
    median |= {"in_flight": None, "tpot_p50_s": 0.0095}
    assert audited({**median, "concurrency": 26.0}).findings == ()
    assert only({**median, "concurrency": 16.0})["severity"] == "warning"


def test_a_served_rate_below_the_offered_one_may_be_the_drain() -> None:
    few = {"load": "open", "request_rate_offered_rps": 12.0, "requests": 120.0, "prompts": 120.0, "duration_s": 12.0}
    laws = [found.finding.law for found in audited(few | {"in_flight": None, "concurrency": None}).findings]
    assert SERVED not in laws


def test_the_reply_length_shows_in_the_latencies() -> None:
    one = only({"osl_tokens": None, "requested_osl_tokens": 240.0, "input_tok_s": None, "output_tok_s": None})
    assert one["left"]["value"] == pytest.approx(201)


def test_without_lengths_the_throughput_bounds_tpot() -> None:
    """InferenceX rows state no rate and no real lengths; 2,000 tokens/s at 10 ms are 20 that decode."""
    none = dict.fromkeys(["osl_tokens", "request_rate_rps", "in_flight", "input_tok_s", "total_tok_s", "duration_s"])
    none |= dict.fromkeys(["requests", "requested_osl_tokens"])
    assert audited(none).findings == ()
    one = only(none | {"concurrency": 8.0})
    assert (one["law"], one["column"], one["severity"]) == ("L_d = rate x (OSL - 1) x TPOT", "tpot_mean_s", "error")
    slip = {name: 1e3 * SOUND[name] for name in SOUND if name.endswith("_s") and name[:4] in ("ttft", "tpot", "e2e_")}
    assert [found.finding.law for found in audited(none | slip).findings] == ["unit"]


# Curves


def curve(*tpots: float) -> list[dict[str, Any]]:
    """Closed loops of 8, 16, 32 ... with those TPOTs and no TTFT to speak of."""
    rows = []
    for step, tpot in enumerate(tpots):
        clients, e2e = 8.0 * 2**step, 0.1 + 200 * tpot
        rate = clients / e2e
        row = {"concurrency": clients, "in_flight": clients, "request_rate_rps": rate, "output_tok_s": 201 * rate}
        row |= {"tpot_mean_s": tpot, "tpot_token_mean_s": tpot, "tpot_p50_s": None, "tpot_p99_s": None}
        row |= {"e2e_mean_s": e2e, "e2e_p50_s": None, "e2e_p99_s": None, "input_tok_s": None, "total_tok_s": None}
        rows.append(row | {"place": f"line {step}", "duration_s": None, "requests": 1e5, "prompts": None})
    return rows


def test_tokens_do_not_come_faster_with_more_clients() -> None:
    assert audited(*curve(0.01, 0.011, 0.013, 0.016)).findings == ()
    found = audited(*curve(0.01, 0.02, 0.013, 0.016)).findings
    assert [(one.place, one.finding.law) for one in found] == [
        ("line 1", "TPOT rises with load"),
        ("line 2", "TPOT rises with load"),
    ]


def test_rows_of_other_set_ups_are_no_curve() -> None:
    rows = curve(0.01, 0.02, 0.013)
    rows[2]["engine"] = "other"
    assert audited(*rows).findings == ()


# Labels


def test_every_label_leads_to_the_catalogue() -> None:
    for one in read_rows("benchmark_labels.csv"):
        known = CATALOG.accelerators if one["column"] == "gpu" else CATALOG.weight_dtypes
        assert one["name"] in known, one["label"]


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", "llama-3.1-70b-instruct"),
        ("nvidia/Llama-3.1-405B-Instruct-FP8", "llama-3.1-405b"),
        ("amd/Llama-3.1-70B-Instruct-FP8-KV", "llama-3.1-70b"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507", "qwen3-235b-a22b"),
        ("qwen3-8b", "qwen3-8b"),
        ("example-model", None),
        (None, None),
    ],
)
def test_a_checkpoint_leads_to_its_architecture(label: str | None, name: str | None) -> None:
    assert model_of(label, CATALOG) == name


def test_labels_are_matched_whatever_their_case() -> None:
    assert gpu_of("H100-SXM", CATALOG) == gpu_of("h100", CATALOG) == "h100-sxm"
    assert weight_dtype_of("FP8", CATALOG) == "fp8"
    assert (gpu_of("abacus", CATALOG), weight_dtype_of(None, CATALOG)) == (None, None)


@pytest.mark.parametrize(
    ("label", "size"),
    [
        ("Qwen/Qwen2-7B", "7B"),
        ("gpt-j-6b", "6B"),
        ("Qwen2.5-0.5B", "0.5B"),
        ("Mixtral-8x7B", None),
        ("Q-30B-A3B", None),
        ("m", None),
    ],
)
def test_a_dense_name_states_its_size(label: str, size: str | None) -> None:
    assert size_of(label) == size


@pytest.mark.parametrize(
    ("left", "right", "slip"), [(8.0, 0.008, True), (0.005, 8, True), (8, 8, False), (8, 0.08, False), (0, 1, False)]
)
def test_a_unit_slip_is_a_factor_of_about_a_thousand(left: float, right: float, slip: bool) -> None:
    assert is_unit_slip(left, right) is slip


# Rows of our own solver obey every law


POINTS = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["llama-3.1-8b", "qwen3-32b", "gpt-oss-120b", "deepseek-r1"]),
        "gpu": st.sampled_from(["h100-sxm", "b200-sxm", "mi300x"]),
        "tp": st.sampled_from([1, 2, 4, 8]),
        "isl_tokens": st.floats(50, 20_000),
        "osl_tokens": st.floats(20, 2_000),
        "isl_cv": st.sampled_from([0.0, 1.0]),
        "osl_cv": st.sampled_from([0.0, 1.0]),
        "share": st.floats(0.02, 0.95),
    }
)


def solved(points: list[dict[str, Any]]) -> pl.DataFrame:
    """Points under a share of the rate that each can carry, as if a benchmark had measured them."""
    frame = pl.DataFrame([{k: v for k, v in point.items() if k != "share"} for point in points])
    limit = lambdamax.solve(frame, catalog=CATALOG)["max_rate_rps"]
    rates = frame.with_columns(rate_rps=limit.fill_null(1.0) * pl.Series([point["share"] for point in points]))
    return lambdamax.load(rates, catalog=CATALOG).filter(pl.col("load_status") == "ok")


def as_measured(row: dict[str, Any]) -> dict[str, Any]:
    rate = row["rate_rps"]
    same = ("model", "gpu", "tp", "isl_tokens", "osl_tokens", "in_flight", "e2e_mean_s", "ttft_mean_s", "output_tok_s")
    means = {name: row[name] for name in (*same, "tpot_mean_s", "tpot_token_mean_s")}
    flow = {"input_tok_s": rate * row["isl_tokens"], "request_rate_rps": rate, "request_rate_offered_rps": rate}
    return means | flow | {"load": "open", "statistic": "mean", "requested_osl_tokens": row["osl_tokens"]}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(POINTS, min_size=1, max_size=12))
def test_rows_of_the_solver_raise_nothing(points: list[dict[str, Any]]) -> None:
    rows = solved(points).to_dicts()
    found = audit(measured_frame([as_measured(row) for row in rows]), CATALOG)
    # With unequal answers the mean over requests is not the one over tokens, and is told so.
    unequal = {place for place, row in enumerate(rows) if row["osl_cv"]}
    told = [one for one in found.findings if one.finding.law != OVER_REQUESTS or one.as_json()["row"] not in unequal]
    assert [one.as_json() for one in told] == []
    assert found.not_checked == {}


# Real files


def test_published_rows_that_are_known_to_be_wrong_are_found() -> None:
    found = audit(lambdamax.read_benchmarks(FILES / "measured_long_header.csv"), CATALOG)
    assert {one.place: one.finding.law for one in found.findings} == {
        "line 2": OVER_REQUESTS,
        "line 3": RATES,
        "line 4": OVER_REQUESTS,
    }


# The command


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli.main, ["audit", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_prints_findings_and_exits_with_0() -> None:
    text = run(str(FILES / "measured_long_header.csv"))
    for part in ("line 2", "mean over requests", "4 rows, 3 findings", "note: tokens/s = rate x length 1"):
        assert part in text


def test_the_command_gives_json() -> None:
    given = json.loads(run(str(FILES / "measured_long_header.csv"), "--json"))
    assert given["rows"] == 4
    assert given["counts"]["warning"] == {"mean over requests": 2}
    assert {"file", "place", "law", "severity", "column", "left", "right", "verdict", "row"} <= set(
        given["findings"][0]
    )


def test_facts_of_the_command_let_the_device_be_checked() -> None:
    file = str(FILES / "vllm_bench_serve_v0.33.0.json")
    unknown, known = run(file), run(file, "--model", "llama-3.1-70b", "--gpu", "h100-sxm", "--tp", "1")
    assert "device bounds not checked" not in known
    assert "device bounds not checked for 1 of them: no gpu" in unknown
    assert unknown.count("--model, --gpu, --tp or --gpus") == 1
    assert "bandwidth floor" in known


def test_a_name_that_the_catalogue_lacks_is_refused() -> None:
    file = str(FILES / "vllm_bench_serve_v0.33.0.json")
    result = CliRunner().invoke(cli.main, ["audit", file, "--model", "nonesuch", "--gpu", "abacus"])
    assert result.exit_code == 1
    assert "unknown model 'nonesuch'" in result.output
    assert "unknown gpu 'abacus'" in result.output


def test_a_config_of_one_s_own_bounds_a_row(tmp_path: Path) -> None:
    shipped = Path(lambdamax.__file__).parent / "data" / "model_configs" / "llama-3.1-70b.json"
    config = tmp_path / "mine" / "config.json"
    config.parent.mkdir()
    config.write_bytes(shipped.read_bytes())
    assert only({"model": str(config), "gpus": 2.0, "tp": 2.0})["law"] == FLOOR


def test_a_file_that_cannot_be_read_is_status_1(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("{", encoding="utf-8")
    result = CliRunner().invoke(cli.main, ["audit", str(path), "--format", "xml"])
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    assert result.output.count("error: ") == 2


# The documentation


def test_the_documentation_names_every_law_and_every_format() -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "python/lambdamax/audit").glob("*.py"))
    laws = set(re.findall(r'Finding\([^,]+, "([^"]+)", ', source))
    assert len(laws) > 12
    assert {law for law in laws if f"| {law} |" not in text} == set()
    assert {name for name in FORMATS if f"`{name}`" not in text} == set()
