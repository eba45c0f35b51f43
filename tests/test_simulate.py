"""The simulator through its Python front and its command: loads, traces, verdicts, and agreement with the solver."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

import lambdamax
from lambdamax import _engine, cli
from lambdamax.case import Question
from lambdamax.catalog import load_catalog
from lambdamax.engine import Control, Replicas
from lambdamax.exceptions import SimulationError
from lambdamax.replicas import Deployment
from lambdamax.simulate import Simulation, read_trace, simulate

REPLICA = {"model": "llama-3.1-8b-instruct", "gpu": "h100-sxm"}
LENGTHS = {"isl_tokens": 1000.0, "osl_tokens": 200.0}
COMMAND = "simulate --model llama-3.1-8b-instruct --gpu h100-sxm --requests 4000 --precision 0"
SHORT: dict[str, Any] = {"requests": 4000, "precision": 0.0, "replications": 2}

Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("COLUMNS", "100")
    return lambda line, *more: CliRunner().invoke(cli.main, [*line.split(), *more], prog_name="lambdamax")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    rows = [f"{0.05 * i:.3f},{200 + i % 50 * 10},{20 + i % 30}" for i in range(300)]
    path.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *rows]) + "\n", encoding="utf-8")
    return path


def asked(rate_rps: float | None = None, numbers: dict[str, float] = LENGTHS, **more: Any) -> Question:
    return Question(**REPLICA, numbers=numbers, rate_rps=rate_rps, **more)


def off(found: Simulation, name: str) -> float:
    return (found.mean_field or {})[name] / found.numbers[name] - 1


@pytest.mark.parametrize("rate_rps", [2.0, 5.0, 9.0])
@pytest.mark.parametrize("isl_tokens", [300.0, 1500.0])
def test_the_solver_agrees_where_the_load_is_light(rate_rps: float, isl_tokens: float) -> None:
    found = simulate(asked(rate_rps, {**LENGTHS, "isl_tokens": isl_tokens}), precision=0.02, requests=100_000)
    assert found.status == "steady"
    assert abs(off(found, "tpot_mean_s")) < 0.03
    assert abs(off(found, "ttft_mean_s")) < 0.06
    assert abs(off(found, "in_flight")) < 0.04


def test_the_numbers_hang_together() -> None:
    n = simulate(asked(10.0), **SHORT).numbers
    assert n["in_flight"] == pytest.approx(n["rate_rps"] * n["e2e_mean_s"], rel=0.02)
    assert n["in_flight"] == pytest.approx(n["running"] + n["waiting"])
    assert n["kv_use"] == pytest.approx(n["kv_in_flight_tokens"] / n["kv_pool_tokens"])
    assert n["requests"] + n["warm_up_requests"] >= 4000
    for law in ("ttft", "tpot", "itl", "e2e"):
        assert n[f"{law}_p50_s"] <= n[f"{law}_p90_s"] <= n[f"{law}_p99_s"]


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**63), st.floats(1.0, 20.0))
def test_a_seed_gives_the_same_bytes_on_any_number_of_threads(seed: int, rate_rps: float) -> None:
    one, two = (simulate(asked(rate_rps), **SHORT, seed=seed, threads=threads).numbers for threads in (1, 2))
    assert np.array(list(one.values())).tobytes() == np.array(list(two.values())).tobytes()


def test_more_load_means_longer_times() -> None:
    slow, fast = (simulate(asked(rate), **SHORT).numbers for rate in (3.0, 18.0))
    assert all(slow[f"{law}_mean_s"] < fast[f"{law}_mean_s"] for law in ("ttft", "tpot", "itl", "e2e"))


def test_burstier_arrivals_wait_longer() -> None:
    even, poisson, bursty = (
        simulate(asked(15.0), arrivals=arrivals, requests=20_000, precision=0.0).numbers["ttft_mean_s"]
        for arrivals in ("deterministic", "poisson", "gamma:3")
    )
    assert even < poisson < bursty


def test_a_load_beyond_capacity_is_saturated_for_both() -> None:
    found = simulate(asked(60.0, {**LENGTHS, "max_num_seqs": 32.0}), requests=20_000)
    assert (found.status, found.mean_field_status) == ("saturated", "unstable")
    assert found.numbers["rate_rps"] < 0.9 * found.numbers["offered_rps"]


def test_a_closed_loop_keeps_its_clients_and_is_one_with_concurrency() -> None:
    by_pattern = simulate(asked(), arrivals="closed:24", **SHORT)
    by_question = simulate(asked(concurrency=24.0), **SHORT)
    assert by_pattern.numbers == by_question.numbers
    assert by_pattern.numbers["in_flight"] == pytest.approx(24, rel=1e-3)
    assert abs(off(by_pattern, "rate_rps")) < 0.05


def test_without_a_load_the_solvers_largest_rate_is_simulated() -> None:
    found = simulate(asked(numbers={**LENGTHS, "slo_tpot_s": 0.012}), **SHORT)
    assert found.question.rate_rps == pytest.approx(found.numbers["offered_rps"], rel=0.1)
    assert found.numbers["tpot_mean_s"] == pytest.approx(0.012, rel=0.05)


def test_the_engines_settings_matter() -> None:
    tight = {**LENGTHS, "osl_tokens": 600.0, "memory_bytes": 26e9}
    by_default = simulate(asked(numbers=tight, concurrency=40.0), **SHORT).numbers
    no_cache = simulate(
        asked(numbers=tight, concurrency=40.0), **SHORT, settings={"enable_prefix_caching": 0.0}
    ).numbers
    watermark = simulate(asked(numbers=tight, concurrency=40.0), **SHORT, settings={"watermark": 0.1}).numbers
    assert by_default["preemptions_per_request"] > watermark["preemptions_per_request"]
    assert by_default["cached_share"] > no_cache["cached_share"] == 0


def test_a_common_prefix_saves_prefill() -> None:
    shared = simulate(asked(8.0, {**LENGTHS, "prefix_tokens": 800.0}), **SHORT).numbers
    whole = simulate(asked(8.0), **SHORT).numbers
    assert shared["cached_share"] == pytest.approx(0.8, abs=0.01)
    assert shared["ttft_mean_s"] < whole["ttft_mean_s"]
    assert shared["kv_in_flight_tokens"] < whole["kv_in_flight_tokens"]


def test_a_trace_is_replayed_once(trace: Path) -> None:
    found = simulate(asked(numbers={}), trace=read_trace(trace))
    assert found.numbers["requests"] == 300 == len(found.requests["request_ttft_s"])
    assert math.fsum(found.requests["request_e2e_s"]) / 300 == pytest.approx(found.numbers["e2e_mean_s"])
    assert found.mean_field is not None
    assert found.mean_field["rate_rps"] == pytest.approx(20.0)


def test_lengths_of_a_trace_can_be_drawn_under_another_load(trace: Path) -> None:
    found = simulate(asked(5.0, {}), trace=read_trace(trace), **SHORT)
    assert found.numbers["offered_rps"] == pytest.approx(5.0, rel=0.1)
    assert found.numbers["output_tok_s"] / found.numbers["rate_rps"] == pytest.approx(34.5, rel=0.05)


def test_a_table_of_points_gives_what_each_gives_alone() -> None:
    row = load_catalog().replica(Deployment(REPLICA["model"], REPLICA["gpu"], profile="auto"))
    rates = np.array([3.0, 9.0])
    points = {name: np.full(2, value) for name, value in LENGTHS.items()} | {"rate_rps": rates}
    control = Control(requests=4000, precision=0.0, replications=2, seed=0)
    table = Replicas.of([row]).simulate(np.zeros(2, dtype=np.uint32), points, control, 0)
    alone = [simulate(asked(rate), **SHORT).numbers["ttft_mean_s"] for rate in rates]
    assert table["ttft_mean_s"].tolist() == alone
    assert set(table) == {*_engine.SIM_FIELDS, "status", "request_ttft_s", "request_tpot_s", "request_e2e_s"}


def test_a_replica_that_cannot_be_is_a_status() -> None:
    found = simulate(Question("llama-3.3-70b-instruct", "a10", numbers=LENGTHS, rate_rps=1.0))
    assert found.status == "does_not_fit"
    assert all(math.isnan(value) for value in found.numbers.values())


@pytest.mark.parametrize("arrivals", ["often", "gamma", "gamma:-1", "gamma:x", "closed:0", "closed:1.5", "poisson:2"])
def test_an_unknown_pattern_is_refused_with_those_there_are(arrivals: str) -> None:
    with pytest.raises(SimulationError, match="poisson, deterministic, gamma:CV"):
        simulate(asked(1.0), arrivals=arrivals)


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(SimulationError, match="one load"):
        simulate(asked(1.0), arrivals="closed:3")
    with pytest.raises(SimulationError, match="isl_tokens, osl_tokens"):
        simulate(asked(1.0, {}))
    with pytest.raises(SimulationError, match="precision = 2"):
        simulate(asked(1.0), precision=2.0)
    with pytest.raises(SimulationError, match="largest rate is none"):
        simulate(asked(numbers={**LENGTHS, "slo_ttft_s": 1e-6}))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("arrival_s,input_tokens\n1,2\n", "output_tokens"),
        ("arrival_s,input_tokens,output_tokens\n", "one or more"),
        ("arrival_s,input_tokens,output_tokens\n0,5,5\n1,x,5\n", "trace.csv:3"),
        ("arrival_s,input_tokens,output_tokens\n0,5,0\n", "from 1 to 1e9"),
    ],
)
def test_a_faulty_trace_is_refused_with_its_place(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SimulationError, match=named):
        read_trace(path)


def test_the_command_prints_both_models(run: Run) -> None:
    result = run(f"{COMMAND} --isl 1000 --osl 200 --rate 8")
    assert result.exit_code == 0
    for words in ("steady", "simulated", "mean field", "TTFT", "p99", "of warm-up"):
        assert words in result.output


def test_the_command_prints_json(run: Run) -> None:
    result = run(f"{COMMAND} --isl 1000 --osl 200 --arrivals closed:8 --think-time-s 1 --json")
    found = json.loads(result.output)
    assert found["status"] == "steady"
    assert found["in_flight"] + found["rate_rps"] == pytest.approx(8, rel=0.02)
    assert set(_engine.SIM_FIELDS) < set(found)


def test_the_command_replays_a_trace(run: Run, trace: Path) -> None:
    result = run(COMMAND, "--trace", str(trace), "--json")
    assert json.loads(result.output)["requests"] == 300


def test_the_command_tells_mistakes_without_a_traceback(run: Run, tmp_path: Path) -> None:
    assert run(COMMAND).exit_code == 2
    assert run(f"{COMMAND} --isl 10 --osl 20 --arrivals now").exit_code == 1
    missing = run(COMMAND, "--trace", str(tmp_path / "none.csv"))
    assert (missing.exit_code, "none.csv" in missing.output) == (1, True)


def test_the_public_name_is_the_function() -> None:
    assert lambdamax.simulate is simulate
    assert lambdamax.Simulation is Simulation


def test_the_document_explains_every_field_and_input() -> None:
    text = (Path(__file__).parent.parent / "docs" / "simulator.md").read_text(encoding="utf-8")
    names = (*_engine.SIM_FIELDS, *_engine.SIM_INPUTS, *_engine.SIM_STATUSES)
    assert [name for name in names if f"`{name}`" not in text] == []
