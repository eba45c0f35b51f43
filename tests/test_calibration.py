"""Measured rows read and matched, fits that find what was put in, profiles that can be read back and errors."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from lambdamax import MeasurementError, load_catalog
from lambdamax.calibration import fitting, held_out
from lambdamax.calibration.calibrating import calibrate
from lambdamax.calibration.families import key_of
from lambdamax.calibration.matched import Matching, match
from lambdamax.calibration.measured import read_measured
from lambdamax.calibration.predicted import Predictor, Run
from lambdamax.calibration.validating import validate
from lambdamax.cli import main
from lambdamax.profiles import read_profile

SHORT = (
    "source,source_url,model,gpu,gpus,tp,pp,ep,dtype,kv_dtype,engine,isl,osl,concurrency,request_rate,ttft_ms,tpot_ms"
)
SHORT += ",output_tok_s_total,output_tok_s_per_gpu,notes"
LONG = "source,source_url,date,model,hf_id,gpu,gpus,tp,pp,ep,dtype,kv_dtype,engine,engine_version,isl,osl,concurrency"
LONG += ",request_rate,ttft_mean_ms,ttft_p50_ms,ttft_p99_ms,tpot_mean_ms,tpot_p50_ms,tpot_p99_ms,output_tok_s_total"
LONG += ",output_tok_s_per_gpu,total_tok_s_per_gpu,request_throughput,notes"
ROW = {
    "source": "a test",
    "source_url": "https://example.org/run",
    "model": "meta-llama/Llama-3.1-8B",
    "gpu": "H100-SXM",
    "gpus": "1",
    "tp": "1",
    "engine": "vllm 0.12.0",
    "isl": "1000",
    "osl": "200",
    "concurrency": "16",
    "ttft_ms": "100",
    "tpot_ms": "9",
}
KEYS = {"engine", "gpu", "model", "metric", "n", "mape", "median_ape", "bias", "within_10pct", "band_coverage"}


def file(folder: Path, rows: Iterable[Mapping[str, str]], header: str = SHORT, name: str = "rows.csv") -> Path:
    path = folder / name
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, header.split(","), restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path


def matched(folder: Path, *rows: Mapping[str, str], header: str = SHORT) -> Matching:
    return match(read_measured([file(folder, rows, header)]), load_catalog())


def reason(folder: Path, **changed: str) -> str:
    found = matched(folder, {**ROW, **changed})
    assert not found.rows
    return next(iter(found.skipped))


# Reading and matching


def test_both_headers_give_the_same_row(tmp_path: Path) -> None:
    (short,) = matched(tmp_path, ROW).rows
    own = {
        "engine": "vLLM",
        "engine_version": "v0.12.0",
        "ttft_mean_ms": "100",
        "tpot_mean_ms": "9",
        "date": "2026-01-01",
    }
    same = {name: value for name, value in ROW.items() if name in LONG.split(",")}
    (long,) = matched(tmp_path, {**same, **own}, header=LONG).rows
    assert short.at == long.at
    assert short.results == long.results == {"tpot": pytest.approx(0.009), "ttft": pytest.approx(0.1)}
    assert (short.weight_dtype, short.engine) == ("bf16", "vllm")


def test_a_file_of_another_kind_is_refused_with_every_fault(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="without model, gpu, engine"):
        read_measured([file(tmp_path, [], "a,b")])
    bad = file(tmp_path, [{**ROW, "isl": "many"}, {**ROW, "tpot_ms": "x"}])
    with pytest.raises(MeasurementError) as told:
        read_measured([bad])
    assert len(told.value.faults) == 2
    assert f"{bad}:3: tpot_ms = 'x'" in str(told.value)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": "nobody/Nothing-7B"}, "unknown model: nobody/Nothing-7B"),
        ({"gpu": "Abacus"}, "unknown accelerator: Abacus"),
        ({"engine": "fortran 77"}, "unknown engine: fortran"),
        ({"dtype": "fp7"}, "unknown weight format: fp7"),
        ({"notes": "serving=disaggregated"}, "disaggregated serving"),
        ({"notes": "MTP speculative"}, "speculative decoding"),
        ({"notes": "AUTO-inconsistent"}, "marked as inconsistent or ambiguous"),
        ({"notes": "a burst"}, "a burst: the number in flight is not known"),
        ({"concurrency": ""}, "no load published"),
        ({"isl": ""}, "lengths not published"),
        ({"gpus": "8", "tp": ""}, "parallelism not published"),
        ({"ttft_ms": "", "tpot_ms": ""}, "no time and no rate published"),
        ({"model": "meta-llama/Llama-3.1-405B"}, "does not fit into the memory"),
        ({"tpot_ms": "0.5", "ttft_ms": "1"}, "faster than the hardware at 100 %"),
    ],
)
def test_a_row_that_cannot_be_compared_says_why(tmp_path: Path, changed: dict[str, str], said: str) -> None:
    assert reason(tmp_path, **changed).startswith(said)


def test_a_rate_stands_in_for_clients(tmp_path: Path) -> None:
    (row,) = matched(tmp_path, {**ROW, "concurrency": "", "request_rate": "2"}).rows
    assert (row.load.concurrency, row.load.rate_rps) == (None, 2.0)


def test_formats_follow_the_rule(tmp_path: Path) -> None:
    def formats(**changed: str) -> tuple[str, str]:
        (row,) = matched(tmp_path, {**ROW, "tpot_ms": "30", **changed}).rows
        return row.at.model, row.weight_dtype

    assert formats() == ("llama-3.1-8b", "bf16")
    assert formats(notes="gemm=fp8") == ("llama-3.1-8b", "fp8")
    assert formats(dtype="fp4", gpu="B200-SXM") == ("llama-3.1-8b", "nvfp4")
    r1 = {"model": "deepseek-ai/DeepSeek-R1", "gpu": "B200-SXM", "gpus": "8", "tp": "8"}
    assert formats(**r1) == ("deepseek-r1", "fp8")
    assert formats(**r1, dtype="fp4") == ("deepseek-v3.1-nvfp4", "nvfp4")
    assert formats(model="openai/gpt-oss-120b", dtype="fp4", gpu="B200-SXM")[1] == "mxfp4"


def test_devices_beyond_tp_are_data_parallel_ranks(tmp_path: Path) -> None:
    r1 = {"model": "deepseek-ai/DeepSeek-R1", "gpu": "B200-SXM", "gpus": "8", "tpot_ms": "30"}
    (row,) = matched(tmp_path, {**ROW, **r1, "tp": "1", "ep": "8"}).rows
    assert (row.at.tp, row.at.dp, row.at.ep) == (1, 8, 8)
    (row,) = matched(tmp_path, {**ROW, **r1, "tp": "1", "ep": "8", "notes": "x; dp=1; y"}).rows
    assert (row.at.tp, row.at.dp, row.at.ep) == (8, 1, 8)


# What the tables of published runs leave out


DUMP = {
    "source": "aiconfigurator silicon_sample.csv (InferenceX dump)",
    "model": "MiniMaxAI/MiniMax-M2.5",
    "gpu": "B200-SXM",
    "gpus": "2",
    "tp": "2",
    "dtype": "fp8",
    "tpot_ms": "30",
}


def test_the_kv_format_is_that_of_the_launch_script_of_the_day(tmp_path: Path) -> None:
    def kv(**changed: str) -> str:
        (row,) = matched(tmp_path, {**ROW, **DUMP, **changed}).rows
        return row.at.kv_dtype

    assert kv(notes="measured=2026-04-03; x") == "fp8"
    assert kv(notes="measured=2026-03-11; x") == "bf16"
    assert kv(notes="measured=2026-04-03; x", kv_dtype="bf16") == "bf16"
    assert kv(notes="measured=2026-04-03; x", source="someone else") == "bf16"
    assert kv(notes="measured=2026-04-03; x", gpu="H200-SXM") == "bf16"


def test_seats_are_those_of_the_notes_or_of_the_pool(tmp_path: Path) -> None:
    def seats(**changed: str) -> float | None:
        (row,) = matched(tmp_path, {**ROW, "tpot_ms": "90", **changed}).rows
        return row.load.seats

    assert seats() is None
    assert seats(notes="saturated server with max_num_seqs=4096 (all queued)", output_tok_s_total="100") == 4096
    old = {"source": "argonne_llm_inference_bench", "engine": "tensorrt-llm", "gpu": "A100-SXM-80GB"}
    assert seats(**old, model="meta-llama/Llama-3.1-70B", gpus="4", tp="4", isl="1024", osl="1024") == 8


def test_old_paged_attention_does_not_split_large_batches(tmp_path: Path) -> None:
    old = {**ROW, "source": "argonne_llm_inference_bench", "gpu": "MI300X", "tpot_ms": "90", "osl": "1000"}
    rows = matched(tmp_path, {**old, "concurrency": "16"}, {**old, "concurrency": "32"}, {**ROW, "tpot_ms": "90"}).rows
    assert [row.load.unsplit for row in rows] == [False, True, False]
    its = Predictor(rows)
    nothing = [{} for _ in its.replicas]
    whole, part = (its.predict(nothing, Run(unsplit_share=share)).metrics["tpot"] for share in (1.0, 0.2))
    assert part[1] > 1.05 * whole[1]
    assert part[[0, 2]] == pytest.approx(whole[[0, 2]], rel=1e-12)


def test_awq_kernels_of_old_engines_are_a_group_of_their_own(tmp_path: Path) -> None:
    def version(engine: str, notes: str) -> str:
        quantised = {"model": "Qwen/Qwen2-7B-Instruct", "gpu": "A100-SXM-80GB", "dtype": "int4", "tpot_ms": "90"}
        (row,) = matched(tmp_path, {**ROW, **quantised, "engine": engine, "notes": notes}).rows
        return key_of(row).version

    assert version("vllm 0.4.0", "AWQ weights") == "v0.4-awq"
    assert version("vllm 0.4.0", "GPTQ-Int4 weights") == "v0.4"
    assert version("vllm 0.6.1", "AWQ weights") == "v0.6"


# Predictions


def sweep(folder: Path, **changed: str) -> list[dict[str, str]]:
    lengths = (("1000", "200"), ("4000", "200"), ("500", "1000"), ("2000", "500"))
    return [
        {**ROW, "isl": isl, "osl": osl, "concurrency": clients, "tpot_ms": "900", "ttft_ms": "900", **changed}
        for isl, osl in lengths
        for clients in ("1", "8", "32", "128")
    ]


def test_a_run_moves_time_from_decoding_to_the_first_token_and_the_whole_stays(tmp_path: Path) -> None:
    its = Predictor(matched(tmp_path, *sweep(tmp_path)).rows)
    nothing = [{} for _ in its.replicas]
    calm, bunched = (its.predict(nothing, Run(share, 0.0)).metrics for share in (0.0, 0.5))
    steps = np.array([row.load.osl_tokens - 1 for row in its.rows])
    assert calm["ttft"] + steps * calm["tpot"] == pytest.approx(bunched["ttft"] + steps * bunched["tpot"], rel=1e-12)
    many = np.array([row.load.concurrency or 0.0 for row in its.rows]) > 1
    assert (bunched["ttft"] > calm["ttft"])[many].all()
    assert (bunched["tpot"] < calm["tpot"])[many].all()


def test_waiting_for_a_seat_is_an_interval_between_completions(tmp_path: Path) -> None:
    its = Predictor(matched(tmp_path, *sweep(tmp_path)).rows)
    calm, waiting = (its.predict([{} for _ in its.replicas], Run(0.0, h)).metrics for h in (0.0, 1.0))
    assert waiting["ttft"] - calm["ttft"] == pytest.approx(1.0 / calm["request_rate"], rel=1e-9)


# Fits


PUT_IN = {"gemm_bandwidth_efficiency": 0.7, "layer_floor_s": 9e-5, "host_latency_s": 0.08}


def synthetic(folder: Path) -> list[dict[str, str]]:
    rows = sweep(folder)
    its = Predictor(matched(folder, *rows).rows)
    found = its.predict([PUT_IN for _ in its.replicas], Run()).metrics
    times = zip(found["tpot"], found["ttft"], strict=True)
    return [
        {**row, "tpot_ms": f"{1e3 * t:.9g}", "ttft_ms": f"{1e3 * f:.9g}"}
        for row, (t, f) in zip(rows, times, strict=True)
    ]


def test_a_fit_finds_what_was_put_in(tmp_path: Path) -> None:
    found = calibrate([file(tmp_path, synthetic(tmp_path))])
    errors = {row["metric"]: row for row in found.after}
    assert errors["tpot"]["median_ape"] < 0.005
    assert errors["ttft"]["median_ape"] < 0.02
    assert max(row["mape"] for row in found.after) < min(row["mape"] for row in found.before)
    values = {each.name: each.value for each in found.constants}
    assert values["gemm_bandwidth_efficiency"] == pytest.approx(0.7, rel=0.1)
    assert values["host_latency_s"] == pytest.approx(0.08, rel=0.2)


def test_what_the_rows_do_not_tell_stays_where_it_was(tmp_path: Path) -> None:
    found = {each.name: each for each in calibrate([file(tmp_path, synthetic(tmp_path))]).constants}
    reductions = [each for name, each in found.items() if name.startswith("allreduce")]
    assert reductions
    assert all(not each.told and each.value == each.start for each in reductions)
    assert found["gemm_bandwidth_efficiency"].told


def test_the_written_profile_predicts_as_the_fit_does(tmp_path: Path) -> None:
    path = file(tmp_path, synthetic(tmp_path))
    found = calibrate([path], name="mine")
    (tmp_path / "mine.toml").write_text(found.text, encoding="utf-8")
    profile = read_profile(tmp_path / "mine.toml")
    assert (profile.name, profile.status, profile.measured_points) == ("mine", "calibrated", 16)
    assert profile.relative_uncertainty.value == found.uncertainty
    its = Predictor(match(read_measured([path]), load_catalog()).rows)
    constants = [{name: each.value for name, each in profile.constants.items()} for _ in its.replicas]
    logs = np.log(its.predict(constants, found.run).metrics["tpot"] / its.measured("tpot"))
    assert logs == pytest.approx(np.array(found.residuals), abs=1e-9)


def test_one_row_gives_the_ratio_that_it_shows(tmp_path: Path) -> None:
    path = file(tmp_path, [ROW])
    found = calibrate([path], name="one")
    assert (found.kind, found.rows, found.held_out) == ("ratio", 1, [])
    assert [row["mape"] for row in found.after] == [pytest.approx(0.0, abs=1e-9)] * 2
    (tmp_path / "one.toml").write_text(found.text, encoding="utf-8")
    profile = read_profile(tmp_path / "one.toml")
    row = load_catalog().accelerator("h100-sxm")
    weights = profile.constants["measured_over_floor_ratio"].value
    assert weights == pytest.approx(0.009 / (16.06e9 / row.memory_bandwidth_bytes_per_s), rel=0.2)


def test_several_kinds_of_rows_are_not_one_profile(tmp_path: Path) -> None:
    path = file(tmp_path, [ROW, {**ROW, "gpu": "H200-SXM"}])
    with pytest.raises(MeasurementError, match=r"vllm h100-sxm bf16.*pick with --engine"):
        calibrate([path])
    assert calibrate([path], only={"gpu": "h200-sxm"}).rows == 1


def test_whole_curves_are_held_out(tmp_path: Path) -> None:
    rows = matched(tmp_path, *synthetic(tmp_path)).rows
    fold = held_out.folds(rows)
    assert len({row.curve for row in rows}) == 4
    assert all(
        len({fold[i] for i, row in enumerate(rows) if row.curve == curve}) == 1 for curve in {r.curve for r in rows}
    )
    its, seen = Predictor(rows), []

    def fitted(of: np.ndarray) -> fitting.Fit:
        seen.append(of)
        return fitting.start(its)

    held_out.predicted(its, fold, fitted)
    assert all(len({fold[i] for i in np.flatnonzero(~of)}) == 1 for of in seen)


def test_a_band_holds_most_errors() -> None:
    errors = np.random.default_rng(1).normal(0.0, 0.1, 4000)
    inside = np.abs(errors) <= np.log1p(held_out.band(errors))
    assert 0.8 <= inside.mean() <= 0.86
    assert np.isnan(held_out.band(np.array([np.nan])))


def test_the_band_of_a_few_errors_is_drawn_to_that_of_their_kin() -> None:
    rng = np.random.default_rng(1)
    errors = np.concatenate([rng.normal(0.0, 0.02, size) for size in (3, 300)] + [rng.normal(0.0, 0.3, 4000)])
    place = np.arange(len(errors))
    few, pool, kind = place < 3, place < 303, place >= 0
    lonely, many = (held_out.pooled_band(errors, [own, pool, kind]) for own in (few, pool))
    assert many == pytest.approx(held_out.band(errors[pool]), rel=0.1)
    assert many < lonely < held_out.band(errors)
    assert np.isnan(held_out.pooled_band(np.full(3, np.nan), [np.ones(3, dtype=bool)] * 3))


# Commands


def test_calibrate_writes_a_profile_and_says_how_good_it_is(tmp_path: Path) -> None:
    path, out = file(tmp_path, synthetic(tmp_path)), tmp_path / "own.toml"
    shown = CliRunner().invoke(main, ["calibrate", str(path), "--out", str(out)])
    assert shown.exit_code == 0, shown.output
    assert all(word in shown.output for word in ("before", "after", "held out", "not told", "80 % band", "ten percent"))
    told = CliRunner().invoke(main, ["calibrate", str(path), "--out", str(out), "--json"])
    assert json.loads(told.output)["rows"] == 16
    explained = ["explain", "--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--isl", "1000", "--osl", "200"]
    answer = json.loads(CliRunner().invoke(main, [*explained, "--profile", str(out), "--json"]).output)
    assert answer["provenance"] == "calibrated:own:16"
    assert answer["max_rate_low_rps"] < answer["max_rate_rps"] < answer["max_rate_high_rps"]


def test_validate_counts_what_it_skips(tmp_path: Path) -> None:
    path = file(tmp_path, [ROW, {**ROW, "model": "nobody/Nothing-7B"}, {**ROW, "concurrency": "32", "tpot_ms": "11"}])
    found = json.loads(CliRunner().invoke(main, ["validate", str(path), "--json"]).output)
    assert (found["rows"], found["used"]) == (3, 2)
    assert found["skipped"] == {"unknown model: nobody/Nothing-7B": 1}
    assert {row["metric"] for row in found["overall"]} == {"tpot", "ttft"}
    assert all(set(row) == KEYS for row in (*found["overall"], *found["by"]))
    assert all(0 <= row["band_coverage"] <= 1 for row in found["by"])
    shown = CliRunner().invoke(main, ["validate", str(path)])
    assert shown.exit_code == 0
    assert "llama-3.1-8b" in shown.output


def test_a_file_that_is_none_is_the_users_mistake(tmp_path: Path) -> None:
    told = CliRunner().invoke(main, ["validate", str(file(tmp_path, [], "a,b"))])
    assert told.exit_code == 1
    assert "error: " in told.output
    assert "Traceback" not in told.output


def test_without_files_validate_is_about_held_out_curves() -> None:
    found = validate()
    assert "has not seen" in found.on
    assert found.used == found.rows > 1000
    assert set(found.as_json()) == {"rows", "used", "skipped", "overall", "by"}
