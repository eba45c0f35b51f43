"""The simulator against per-request times of real engines, and the bench that fits and scores it."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lambdamax.catalog import load_catalog
from lambdamax.engine import Control, OneReplica
from lambdamax.replicas import Deployment

BENCHES = Path(__file__).parent.parent / "benches"
TRACES = Path(__file__).parent / "golden" / "vllm_0_19_requests.csv"
BARS = {"ttft_mean_error": 0.06, "tpot_mean_error": 0.03, "ttft_p99_error": 0.10}
SWEEP = Path(__file__).parent / "golden" / "open_loop_requests.csv"
POOL_OF_THE_4090 = 2588 * 16
PREEMPTIONS_OF_THE_4090 = 177


@pytest.fixture
def benches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    monkeypatch.syspath_prepend(str(BENCHES))
    yield importlib.import_module
    for name in ("open_loop_knee", "simulator_vs_engine", "engine_trace", "step_fit"):
        sys.modules.pop(name, None)


@pytest.fixture
def bench(benches: Callable[[str], Any]) -> Any:
    return benches("simulator_vs_engine")


def answer(bench: Any, capsys: pytest.CaptureFixture[str], path: Path, line: str) -> dict[str, Any]:
    assert bench.main([str(path), *line.split(), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refusal(bench: Any, capsys: pytest.CaptureFixture[str], path: Path, line: str) -> str:
    assert bench.main([str(path), *line.split()]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        f"--model llama-3.1-8b --gpu rtx-4090 --tp 1 --kv-cache-tokens {POOL_OF_THE_4090}",
        "--model llama-3.1-8b --gpu rtx-pro-6000-server --tp 1",
        "--model qwen3-30b-a3b --gpu rtx-pro-6000-server --tp 1",
    ],
    ids=["pool", "seats", "experts"],
)
def test_second_halves_are_predicted(bench: Any, capsys: pytest.CaptureFixture[str], line: str) -> None:
    found = answer(bench, capsys, TRACES, line)
    assert {name: found[name] for name, bar in BARS.items() if not abs(found[name]) <= bar} == {}
    assert found["backlog_share_of_ttft"] > 0.9
    if "4090" in line:
        assert abs(found["preemptions"] / PREEMPTIONS_OF_THE_4090 - 1) <= 0.15
    else:
        assert found["preemptions"] == 0


def test_a_pool_that_nobody_tells_is_found(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(bench, capsys, TRACES, "--model llama-3.1-8b --gpu rtx-4090")
    assert found["constants"]["kv_cache_tokens"] == pytest.approx(POOL_OF_THE_4090, rel=0.03)
    assert abs(found["preemptions"] / PREEMPTIONS_OF_THE_4090 - 1) <= 0.15


def test_what_a_trace_shows(bench: Any) -> None:
    from engine_trace import Shown, read

    expected = {"rtx-4090/llama-3.1-8b": (1, False, True), "rtx-pro-6000/llama-3.1-8b": (1, True, False)}
    for name, (ranks, seats, pool) in {**expected, "rtx-pro-6000/qwen3-30b-a3b": (2, True, False)}.items():
        gpu, model = name.split("/")
        shown = Shown.by(read(TRACES, None, model, gpu))
        assert (shown.ranks, shown.seat_bound, shown.pool_bound, shown.budget) == (ranks, seats, pool, 2048.0)


def synthetic(path: Path, at: Deployment, constants: dict[str, float]) -> None:
    """A trace that the simulator makes with other constants."""
    row = load_catalog().replica(at)
    fields = {**row.fields, **{name: factor * row.fields[name] for name, factor in constants.items()}}
    random = np.random.Generator(np.random.PCG64(5))
    arrivals = np.cumsum(random.exponential(0.05, 120))
    prompts, outputs = random.integers(50, 2500, 120).astype(float), random.integers(20, 300, 120).astype(float)
    point = {"isl_tokens": 1000.0, "osl_tokens": 150.0, "max_num_seqs": 64.0, "max_num_batched_tokens": 2048.0}
    control = Control(requests=1, precision=0.0, replications=1, seed=0)
    replica = OneReplica(type(row)(fields, row.blocks, row.unsupported, row.profile, row.weight_dtype))
    found = replica.simulate(point, control, (arrivals, prompts, outputs), 1).requests
    first, last = (arrivals + found[f"request_{name}_s"] for name in ("ttft", "e2e"))
    lines = (",".join(map(str, row)) for row in zip(arrivals, prompts, outputs, first, last, strict=True))
    path.write_text("\n".join(["arrival_s,isl,osl,first_token_s,last_token_s", *lines]), encoding="utf-8")


def test_other_constants_are_found_on_two_gpus_over_pcie(
    bench: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "trace.csv"
    at = Deployment("qwen3-32b", "rtx-pro-6000-server", 2, engine="vllm-0.19")
    changed = {"gemm_bandwidth_efficiency": 0.85, "gemm_flops_efficiency": 0.8, "pcie_bandwidth_efficiency": 0.6}
    synthetic(path, at, {**changed, "step_overhead_s": 2.0})
    line = "--model qwen3-32b --gpu rtx-pro-6000-server --tp 2 --engine vllm-0.19 --max-num-seqs 64"
    found = answer(bench, capsys, path, f"{line} --max-num-batched-tokens 2048")
    assert all(abs(found["before_fit"][name]) > 0.05 for name in ("ttft_mean_error", "tpot_mean_error"))
    assert all(abs(found[name]) <= bar for name, bar in BARS.items())
    assert found["backlog_share_of_ttft"] is None


def test_what_cannot_be_is_refused_by_name(bench: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, asked = tmp_path / "trace.csv", "--model llama-3.1-8b --gpu rtx-4090"
    header = "arrival_s,isl,osl,first_token_s,last_token_s"
    assert "No such file" in refusal(bench, capsys, path, asked)
    path.write_text("arrival_s,isl\n0,1\n", encoding="utf-8")
    assert "no column osl, first_token_s, last_token_s" in refusal(bench, capsys, path, asked)
    path.write_text(header + "\n", encoding="utf-8")
    assert "no requests" in refusal(bench, capsys, path, asked)
    path.write_text("\n".join([header, *["0,10,x,1,2"] * 30]), encoding="utf-8")
    assert "osl is 'x'" in refusal(bench, capsys, path, asked)
    path.write_text("\n".join([header, *["0,10,5,2,1"] * 30]), encoding="utf-8")
    assert "last_token_s before first_token_s" in refusal(bench, capsys, path, asked)
    assert "is not one of RTX4090/Llama-3.1-8B" in refusal(bench, capsys, TRACES, f"{asked} --run none")
    assert "no-such-model" in refusal(bench, capsys, TRACES, "--model no-such-model --gpu rtx-4090 --run 4090")
    assert "do not fit" in refusal(bench, capsys, TRACES, "--model qwen3-32b --gpu rtx-4090 --run 4090")
    windows = "--model gemma-3-12b-it --gpu rtx-pro-6000-server --run PRO6000/Llama"
    assert "no sliding or chunked windows" in refusal(bench, capsys, TRACES, windows)
    ranks = "--model llama-3.1-8b --gpu rtx-pro-6000-server --run PRO6000/Llama --dp 2 --ep 1"
    assert "only where the ranks share experts" in refusal(bench, capsys, TRACES, ranks)


def test_a_sweep_is_predicted_from_its_light_runs(
    benches: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert benches("open_loop_knee").main([str(SWEEP), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["light_rates_rps"] == [0.5, 0.67]
    assert found["knee_rps"]["measured"] == 1.0
    assert round(found["tpot_error"], 2) <= 0.06
    assert abs(found["knee_steps"]) <= 1


def test_a_sweep_without_a_known_system_is_refused(
    benches: Callable[[str], Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "sweep.csv"
    path.write_text("run,launch_s,prompt_tokens,generation_tokens,ttft_s,generation_s\nother_1,0,1,1,1,1\n", "utf-8")
    assert benches("open_loop_knee").main([str(path)]) == 2
    assert "no run of a known system" in capsys.readouterr().err


def test_tables_show_what_is_met(benches: Callable[[str], Any], bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main([]) == 0
    text = capsys.readouterr().out
    assert text.count(" met\n") == 9
    assert "backlog" in text
    assert benches("open_loop_knee").main([]) == 0
    text = capsys.readouterr().out
    assert "predicted knee" in text
    assert "1 steps off (met)" in text
