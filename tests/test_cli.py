"""The command line: exit statuses, messages, JSON, tables at several widths, and no traceback ever."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner, Result

from lambdamax import cli
from lambdamax._engine import __version__

EXAMPLE = (
    "explain --model llama-3.3-70b-instruct --gpu h100-sxm --tp 4 --isl 1500 --osl 300 --rate 10 --memory-bytes 80e9 "
    "--memory-utilization 0.92 --reserved-bytes 3e9 --slo-tpot-s 0.030 --measured-ttft-s 0.5 --measured-tpot-s 0.025"
)
POINT = "explain --model qwen3-8b --gpu h100-sxm --isl 1000 --osl 200"
SPEC = """
name = "small"
[replica]
model = ["llama-3.1-8b-instruct", "qwen3-8b"]
gpu = ["h100-sxm", "mi300x", "a10"]
tp = [1, 2]
[workload]
isl_tokens = [1000, 4000]
osl_tokens = [200]
[slo]
tpot_s = [0.03]
"""

Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(Path(__file__).parent.parent)

    def invoke(line: str, *more: str, columns: int = 80) -> Result:
        monkeypatch.setenv("COLUMNS", str(columns))
        return CliRunner().invoke(cli.main, [*line.split(), *more], prog_name="lambdamax")

    return invoke


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SPEC, encoding="utf-8")
    return path


def test_version_names_version_and_build(run: Run) -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert result.output.startswith(f"lambdamax {__version__} (")
    assert result.output.rstrip().endswith(" build)")


@pytest.mark.parametrize("command", ["", "sweep", "frontier", "explain", "catalog", "catalog models"])
def test_help(run: Run, command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert "Usage: lambdamax" in result.output


def test_options_say_what_the_dictionary_says(run: Run) -> None:
    text = " ".join(run("explain --help").output.split())
    assert "Mean prompt length, cached tokens included." in text
    assert "null" not in text


def test_example_a_as_json(run: Run) -> None:
    answer = json.loads(run(EXAMPLE, "--json").output)
    assert (answer["binding_limit"], answer["at_rate"]["status"]) == ("tpot_slo", "unstable")
    assert answer["rate_at_compute_rps"] < 22
    one = answer["one_number"]
    keys = ("rate_at_kv_rps", "tpot_at_kv_s", "rate_at_tpot_rps", "asymptote_rps")
    assert [one[key] for key in keys] == pytest.approx([22.0, 0.03807, 15.8, 44.9], rel=2e-3)


def test_json_is_strict_and_on_stdout_alone(run: Run) -> None:
    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is not JSON")

    for line in (POINT, f"{POINT} --concurrency 9", "catalog models", "catalog profiles", "catalog prices h100-sxm"):
        result = run(line, "--json")
        json.loads(result.stdout, parse_constant=refuse)
        assert result.stderr == ""


@pytest.mark.parametrize("width", [80, 120])
def test_an_explanation_fits_the_terminal(run: Run, width: int) -> None:
    result = run(EXAMPLE, columns=width)
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= width
    assert "\x1b" not in result.output
    for words in ("what binds", "binds next", "were the prompts cached?", "one number   full model", "not modelled"):
        assert words in result.output


@pytest.mark.parametrize(
    ("line", "option", "allowed"),
    [
        (f"{POINT} --memory-bytes 80GB", "--memory-bytes", "a number from 1 to 1e+15 bytes"),
        (f"{POINT} --tp 2.5", "--tp", "a whole number from 1 to 1024"),
        (f"{POINT} --isl nan", "--isl", "a number from 1 to 100000000 tokens"),
        (f"{POINT} --utilization-cap 1.5", "--utilization-cap", "a number from 0.01 to 1"),
        (f"{POINT} --measured-ttft-s -1", "--measured-ttft-s", "a number from 1e-06"),
        (f"{POINT} --price-plan never", "--price-plan", "'on-demand', 'reserved', 'spot'"),
        (f"{POINT} --rate 1 --concurrency 2", "--rate or --concurrency", "not both"),
        (f"{POINT} --think-time-s 2", "--think-time-s", "goes with --concurrency"),
        (f"{POINT} --rate 1 --measured-ttft-s 1", "--measured-ttft-s", "go together"),
        (f"{POINT} --measured-ttft-s 1 --measured-tpot-s 0.02", "needs its load", "--rate or --concurrency"),
        ("explain --model qwen3-8b", "--gpu", "Missing option"),
        ("nonsense", "nonsense", "No such command"),
    ],
)
def test_usage_errors_name_the_option_and_what_is_allowed(run: Run, line: str, option: str, allowed: str) -> None:
    result = run(line)
    assert result.exit_code == 2
    assert option in result.stderr
    assert allowed in result.stderr
    assert result.stdout == ""


def test_whole_numbers_and_numbers_are_taken_alike(run: Run) -> None:
    result = run(f"{POINT} --max-num-seqs 3 --max-num-batched-tokens 2048 --prefix-tokens 100", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["max_num_seqs"] == 3


def test_a_point_that_is_not_supported_says_why(run: Run, tmp_path: Path) -> None:
    config = {"architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "compress_ratios": [1, 4]}
    (tmp_path / "moe").mkdir()
    (tmp_path / "moe" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    moe = str(tmp_path / "moe" / "config.json")
    lines = [
        (POINT.replace("qwen3-8b", moe), "moe: model_type = 'deepseek_v4'"),
        (POINT.replace("h100-sxm", "mi250x") + " --weight-dtype fp8", "lists no fp8_dense_flops"),
    ]
    for line, why in lines:
        for load in ("", " --rate 1 --measured-ttft-s 1 --measured-tpot-s 0.02", " --concurrency 3 --think-time-s 1"):
            result = run(line + load)
            assert result.exit_code == 0
            assert "answer not supported" in " ".join(result.output.split())
            assert why in " ".join(result.output.split())
            assert json.loads(run(line + load, "--json").output)["status"] == "unsupported"


def test_all_unknown_names_are_told_at_once(run: Run) -> None:
    result = run("explain --model lama --gpu h9 --weight-dtype q3 --provider nobody --isl 10 --osl 10")
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 4
    assert all(f"--{name} = " in result.stderr for name in ("model", "gpu", "weight-dtype", "provider"))
    assert result.stderr.count("allowed: ") == 4


def test_a_sweep_and_its_frontier(run: Run, spec: Path, tmp_path: Path) -> None:
    out, table = tmp_path / "out", tmp_path / "winners.parquet"
    first = run("sweep", str(spec), "--out", str(out))
    assert first.exit_code == 0, first.output
    assert "1 of 1 parts solved now" in first.output
    again = json.loads(run("sweep", str(spec), "--out", str(out), "--json").output)
    assert (again["rows"], again["solved_parts"]) == (24, 0)
    shown = run("frontier", str(out), "--out", str(table))
    assert shown.exit_code == 0, shown.output
    assert "requests_per_usd, requests served per dollar at max_rate_rps" in shown.output
    assert max(map(len, shown.output.splitlines())) <= 80
    rows = json.loads(run("frontier", str(out), "--json").output)
    assert pl.read_parquet(table).height == len(rows) == 12
    assert {row["binding_limit"] for row in rows if row["rank"] == 1} <= {"tpot_slo", "utilization"}


def test_unsupported_points_are_counted_with_their_reasons(run: Run, spec: Path, tmp_path: Path) -> None:
    text = SPEC.replace('"a10"]', '"mi250x"]\nweight_dtype = ["bf16", "fp8"]')
    spec.write_text(text, encoding="utf-8")
    out, reason = str(tmp_path / "out"), "weight_dtype fp8: mi250x lists no fp8_dense_flops, which it needs"
    swept = " ".join(run("sweep", str(spec), "--out", out).output.split())
    assert "unsupported 8 unsupported, because" in swept
    assert f"8 {reason}" in swept
    assert json.loads(run("sweep", str(spec), "--out", out, "--json").output)["unsupported"] == {reason: 8}
    shown = run("frontier", out)
    assert f"unsupported, because\n  {reason}" in shown.output
    rows = json.loads(run("frontier", out, "--json").output)
    assert {(row["gpu"], *(row["unsupported_because"] or ())) for row in rows} == {
        ("h100-sxm",),
        ("mi300x",),
        ("mi250x", reason),
    }


def test_a_frontier_without_a_winner_says_why(run: Run, spec: Path, tmp_path: Path) -> None:
    spec.write_text(SPEC.replace('["h100-sxm", "mi300x", "a10"]', '"mi250x"\nweight_dtype = "fp8"'), encoding="utf-8")
    run("sweep", str(spec), "--out", str(tmp_path / "out"))
    shown = run("frontier", str(tmp_path / "out"), "--by", "model")
    assert shown.exit_code == 0, shown.output
    assert "8, of which 0 are ok" in shown.output
    assert shown.output.count("mi250x  no point is ok: unsupported 4") == 2


@pytest.mark.parametrize("width", [80, 120])
def test_a_frontier_fits_the_terminal_and_has_no_broken_word(run: Run, tmp_path: Path, width: int) -> None:
    study, out = str(Path("sweeps") / "h100-h200-b200-mi300x.toml"), str(tmp_path / "out")
    run("sweep", study, "--out", out)
    shown = run("frontier", out, "--rows", "40", columns=width).output
    assert max(map(len, shown.splitlines())) <= width
    assert "of which" in shown
    assert "budget 16,384" in shown or "budget 8,192" in shown
    assert not any(line.strip() == "n" for line in shown.splitlines())


def test_frontier_by_columns_and_rows(run: Run, spec: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    run("sweep", str(spec), "--out", out)
    result = run(
        "frontier", out, "--by", "model, isl_tokens", "--maximize", "max_rate_rps", "--compare", "tp", "--rows", "3"
    )
    assert result.exit_code == 0, result.output
    assert "5 more rows" in result.output
    nothing = run("frontier", out, "--by", "", "--json")
    assert [row["rank"] for row in json.loads(nothing.output)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("sweep /nowhere/x.toml --out /tmp/x", "/nowhere/x.toml: allowed: a readable sweep file"),
        ("frontier /nowhere", "/nowhere: there is no such directory: give the directory of a sweep"),
        ("sweep sweeps/quickstart.toml --out pyproject.toml", "pyproject.toml: it is a file: give an empty directory"),
        ("validate /nowhere.csv", "/nowhere.csv: file = "),
        ("calibrate /nowhere.csv --out /nowhere.toml", "/nowhere.csv: file = "),
        ("catalog models lama", "unknown model 'lama'"),
        ("catalog accelerators h9", "unknown gpu 'h9'"),
        ("catalog prices h9", "unknown gpu 'h9'"),
        ("catalog profiles nope", "unknown profile 'nope'"),
    ],
)
def test_the_users_mistake_is_one_line_and_status_1(run: Run, line: str, words: str) -> None:
    result = run(line)
    assert result.exit_code == 1
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_frontier_that_cannot_be_written(run: Run, spec: Path, tmp_path: Path) -> None:
    run("sweep", str(spec), "--out", str(tmp_path / "out"))
    result = run("frontier", str(tmp_path / "out"), "--out", str(tmp_path / "no" / "x.parquet"))
    assert (result.exit_code, "x.parquet: it cannot be written (No such file" in result.stderr) == (1, True)
    assert len(result.stderr.splitlines()) == 1


def test_a_damaged_part_is_one_line_and_status_1(run: Run, spec: Path, tmp_path: Path) -> None:
    run("sweep", str(spec), "--out", str(tmp_path / "out"))
    (tmp_path / "out" / "part-00000.parquet").write_bytes(b"PAR1")
    result = run("frontier", str(tmp_path / "out"))
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
    assert "part-00000.parquet: it is not the part that the sweep wrote" in result.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("catalog models", "llama-3.3-70b-instruct 70.55 – bf16 141.1 327,680 80f"),
        ("catalog accelerators", "h100-sxm 85.52 GB 3.35 TB/s 989 1,979 8 × 450 GB/s"),
        ("catalog prices", "h100-sxm $"),
        ("catalog profiles", "hopper full default Hopper"),
        ("catalog models qwen3-8b", "kv_bytes_per_token 147,456"),
        ("catalog accelerators h100-sxm", "bf16_dense_flops 989,000,000,000,000 (989 TFLOP/s)"),
        ("catalog prices h100-sxm", "on-demand, median $"),
        ("catalog profiles hopper", "share of peak [hopper] (http"),
    ],
)
def test_the_catalogue(run: Run, line: str, words: str) -> None:
    result = run(line)
    assert result.exit_code == 0, result.output
    assert words in " ".join(result.output.split())
    assert max(map(len, result.output.splitlines())) <= 80


def test_a_model_says_what_follows_from_its_sizes(run: Run) -> None:
    model: dict[str, Any] = json.loads(run("catalog models llama-3.1-8b-instruct --json").output)
    assert model["active_params"] == model["total_params"] == 8_030_261_248
    assert (model["kv_bytes_per_token"], model["kv_bytes_per_token_by_dtype"]["fp8"]) == (131_072, 65_536)
    assert model["weight_bytes"] == 2 * model["total_params"]
    assert model["layer_counts"] == {"full_attention": 32}
    assert model["source"].startswith("http")
    assert model["date"]


SERVER_LOG = "(EngineCore_0 pid=1) INFO [kv_cache_utils.py:566] GPU KV cache size: 446,336 tokens\n"


def test_the_pool_of_a_start_up_log_is_used_and_said(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(SERVER_LOG, encoding="utf-8")
    found = json.loads(run(POINT, "--startup-log", str(log), "--json").output)
    assert found["kv_pool_tokens"] == found["kv_cache_tokens"] == 446_336
    assert f"the KV pool is 446,336 tokens, as {log} says, in place of the" in found["assumptions"][0]
    both = run(POINT, "--startup-log", str(log), "--kv-cache-tokens", "5000")
    assert (both.exit_code, "--startup-log or --kv-cache-tokens, not both" in both.stderr) == (2, True)
    other = run(f"{POINT} --dp 2", "--startup-log", str(log))
    assert (other.exit_code, len(other.stderr.splitlines())) == (1, 1)
    assert "data-parallel engines = 1: allowed: the log of a server with DP 2, as asked" in other.stderr
    log.write_text("nothing\n", encoding="utf-8")
    assert "allowed: a log of vLLM that says how large" in run(POINT, "--startup-log", str(log)).stderr
    assert run(POINT, "--startup-log", str(tmp_path / "absent")).exit_code == 1


def test_every_degree_of_parallelism_is_an_option(run: Run) -> None:
    line = "explain --model deepseek-v3 --gpu h200-sxm --isl 1000 --osl 200 --tp 4 --pp 1 --dp 2 --ep 8"
    shown = run(line, columns=120)
    assert "deepseek-v3 on 8 × h200-sxm (TP 4, DP 2, EP 8), weights native (fp8), KV bf16, vllm" in shown.output
    assert "Taken for granted" in shown.output
    answer = json.loads(run(line, "--json").output)
    assert [answer[name] for name in ("tp", "pp", "dp", "ep", "gpus")] == [4, 1, 2, 8, 8]


TINY = {"model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8}
TINY |= {"vocab_size": 32_000, "num_attention_heads": 16, "num_key_value_heads": 4}


def test_a_model_of_ones_own_is_added_listed_explained_and_swept(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(TINY), encoding="utf-8")
    own = ("--catalog", str(tmp_path / "own"))
    added = run("catalog add", str(tmp_path / "tiny"), "--published-params", "0.19", *own, "--json")
    assert added.exit_code == 0, added.stderr
    assert json.loads(added.output)["published_params"] == 190_000_000
    again = run("catalog add", str(tmp_path / "tiny"), *own)
    assert (again.exit_code, len(again.stderr.splitlines())) == (1, 1)
    assert "name = 'tiny': allowed: a name that is not there yet; --replace takes its place" in again.stderr
    assert run("catalog add", str(tmp_path / "tiny"), "--replace", *own).exit_code == 0
    assert "Missing option '--catalog'" in run("catalog add", str(tmp_path / "tiny")).stderr
    assert "tiny" in run("catalog models", *own).output
    assert json.loads(run("catalog models tiny", *own, "--json").output)["layers"] == 8
    assert run("catalog models tiny").exit_code == 1
    assert run("explain --model tiny --gpu l4 --isl 100 --osl 50", *own).exit_code == 0
    study = tmp_path / "study.toml"
    study.write_text(SPEC.replace('"qwen3-8b"', '"tiny"'), encoding="utf-8")
    assert run("sweep", str(study), "--out", str(tmp_path / "out")).exit_code == 1
    assert run("sweep", str(study), "--out", str(tmp_path / "out"), *own).exit_code == 0
    monkeypatch.setenv("LAMBDAMAX_CATALOG", str(tmp_path / "own"))
    rows = json.loads(run("frontier", str(tmp_path / "out"), "--json").output)
    assert {row["model"] for row in rows} == {"tiny", "llama-3.1-8b-instruct"}
    assert run("catalog models tiny").exit_code == 0


def test_every_fault_of_a_catalogue_is_a_line_and_status_1(run: Run, tmp_path: Path) -> None:
    (tmp_path / "prices.csv").write_text("accelerator_id,colour\nh9,red\n", encoding="utf-8")
    (tmp_path / "models.csv").write_text("name\n", encoding="utf-8")
    for line in (POINT, "catalog models", "sweep sweeps/quickstart.toml --out out", "frontier out"):
        result = run(line, "--catalog", str(tmp_path))
        assert (result.exit_code, result.stdout) == (1, "")
        assert all(each.startswith("error: ") and ": allowed: " in each for each in result.stderr.splitlines())
        assert len(result.stderr.splitlines()) == 3


def test_a_mixed_model_says_what_it_is_made_of(run: Run) -> None:
    found: dict[str, Any] = json.loads(run("catalog models gpt-oss-120b --json").output)
    assert found["layer_counts"] == {"sliding_attention": 18, "full_attention": 18, "experts": 36}
    assert found["checkpoint"] == {"mixer": "bf16", "experts": "mxfp4", "head": "bf16", "block_size": 1}
    assert found["windows"] == [{"kind": "sliding_attention", "tokens": 128, "layers": 18}]
    assert (
        found["weight_bytes"] == found["weight_bytes_by_dtype"]["native"] < found["weight_bytes_by_dtype"]["bf16"] / 3
    )
    assert found["published_active_params"] == 5.1e9
    assert found["active_params"] < found["total_params"] / 15
    hybrid = json.loads(run("catalog models qwen3-next-80b-a3b-instruct --json").output)
    assert hybrid["state_bytes_per_sequence"] > 1e6
    assert hybrid["layer_counts"]["recurrent"] == 36


def test_a_refused_model_has_a_reason_in_place_of_sizes(run: Run) -> None:
    found = json.loads(run("catalog models deepseek-v4-pro --json").output)
    sizes = ("total_params", "active_params", "weight_bytes", "kv_bytes_per_token", "state_bytes_per_sequence")
    assert [found[name] for name in sizes] == [None] * 5
    assert "compress_ratios" in found["unsupported"]
    assert found["source"]
    shown = run("catalog models")
    assert "deepseek-v4-pro unsupported: model_type = 'deepseek_v4'" in " ".join(shown.output.split())
    everything = json.loads(run("catalog models --json").output)
    assert all((each["unsupported"] is None) == (each["weight_bytes"] is not None) for each in everything)


def test_interrupting_is_status_130(run: Run, spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lambdamax.explain.explain", interrupted)
    result = run(POINT)
    assert (result.exit_code, result.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize(
    ("line", "status"),
    [(POINT, 0), ("explain --model x --gpu h100-sxm --isl 1 --osl 2", 1), (f"{POINT} --isl x", 2), ("", 2)],
)
def test_exit_statuses_of_the_program(line: str, status: int) -> None:
    program = [sys.executable, "-c", "from lambdamax.cli import main; main()", *line.split()]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr


def test_help_imports_nothing_heavy() -> None:
    heavy = "{'numpy', 'polars', 'pyarrow', 'pydantic', 'rich', 'lambdamax._engine'}"
    code = f"import sys, lambdamax.cli; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
