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
    config = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 8}
    (tmp_path / "moe").mkdir()
    (tmp_path / "moe" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    moe = str(tmp_path / "moe" / "config.json")
    lines = [
        (POINT.replace("qwen3-8b", moe), "moe: model_type = 'mixtral'"),
        (POINT.replace("h100-sxm", "a100-80-sxm") + " --weight-dtype fp8", "lists no fp8_dense_flops"),
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
    text = SPEC.replace('"a10"]', '"a100-80-sxm"]\nweight_dtype = ["bf16", "fp8"]')
    spec.write_text(text, encoding="utf-8")
    out, reason = str(tmp_path / "out"), "weight_dtype fp8: a100-80-sxm lists no fp8_dense_flops, which it needs"
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
        ("a100-80-sxm", reason),
    }


def test_a_frontier_without_a_winner_says_why(run: Run, spec: Path, tmp_path: Path) -> None:
    spec.write_text(SPEC.replace('["h100-sxm", "mi300x", "a10"]', '"a10"\nweight_dtype = "fp8"'), encoding="utf-8")
    run("sweep", str(spec), "--out", str(tmp_path / "out"))
    shown = run("frontier", str(tmp_path / "out"), "--by", "model")
    assert shown.exit_code == 0, shown.output
    assert "8, of which 0 are ok" in shown.output
    assert shown.output.count("a10  no point is ok: unsupported 4") == 2


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
        ("catalog models", "llama-3.3-70b-instruct 70.55 141.1 GB 327,680 B 80"),
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
