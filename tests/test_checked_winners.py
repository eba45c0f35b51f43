"""The winners of a frontier, simulated: columns, verdicts, reasons, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner

import lambdamax
from lambdamax import cli, columns
from lambdamax.case import Question
from lambdamax.exceptions import FrameError
from lambdamax.simulate import simulate
from lambdamax.spec import parse_spec

REPLICA = {"model": "llama-3.1-8b-instruct", "gpu": "h100-sxm"}
QUICK: dict[str, Any] = {"requests": 200_000, "precision": 0.02}
SPEC = {
    "name": "winners",
    "replica": {"model": ["llama-3.1-8b-instruct", "gemma-3-12b-it"], "gpu": ["h100-sxm", "a10", "h200-sxm"]},
    "workload": {"isl_tokens": 1000, "osl_tokens": 200, "osl_cv": 0.5},
    "slo": {"tpot_s": 0.02},
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("winners")
    lambdamax.sweep(parse_spec(SPEC), out)
    return out


@pytest.fixture(scope="module")
def checked(directory: Path) -> pl.DataFrame:
    return lambdamax.check_frontier(lambdamax.frontier(directory), **QUICK)


def test_the_table_stays_and_the_simulated_columns_are_those_of_the_dictionary(
    directory: Path, checked: pl.DataFrame
) -> None:
    table = lambdamax.frontier(directory)
    added = [column.name for column in columns.of_groups("simulated")]
    assert checked.columns == [*table.columns, *added]
    assert checked.select(table.columns).equals(table)


def test_solver_and_simulator_agree_where_an_slo_binds(checked: pl.DataFrame) -> None:
    rows = checked.filter(pl.col("model") == "llama-3.1-8b-instruct", pl.col("rank").is_not_null()).to_dicts()
    assert [row["sim_status"] for row in rows] == ["steady"] * 2
    for row in rows:
        assert row["binding_limit"] == "tpot_slo"
        for name, bar in (("ttft_mean_s", 0.05), ("tpot_mean_s", 0.05), ("in_flight", 0.05), ("kv_use", 0.05)):
            assert abs(row[name] / row[f"sim_{name}"] - 1) < bar, (row["gpu"], name)
        assert 0 < row["sim_ttft_half_width_s"] < 0.06 * row["sim_ttft_mean_s"]


def test_it_is_the_simulation_of_that_point(checked: pl.DataFrame) -> None:
    row = checked.filter(pl.col("model") == "llama-3.1-8b-instruct").row(0, named=True)
    numbers = {"isl_tokens": 1000.0, "osl_tokens": 200.0, "osl_cv": 0.5}
    alone = simulate(Question(row["model"], row["gpu"], numbers=numbers, rate_rps=row["max_rate_rps"]), **QUICK)
    names = ("ttft_mean_s", "tpot_mean_s", "in_flight", "kv_use", "requests")
    assert [row[f"sim_{name}"] for name in names] == [alone.numbers[name] for name in names]


def test_what_the_simulator_does_not_know_says_why(checked: pl.DataFrame) -> None:
    rows = checked.filter(pl.col("model") == "gemma-3-12b-it").to_dicts()
    won, lost = rows[0], rows[-1]
    assert (won["rank"], won["sim_status"]) == (1, "unsupported")
    assert "does not see every token" in won["sim_unsupported_because"]
    assert lost["rank"] is lost["sim_status"] is lost["sim_unsupported_because"] is None
    assert won["sim_ttft_mean_s"] is lost["sim_ttft_mean_s"] is None


@pytest.mark.parametrize(
    ("replica", "told"),
    [
        ({"model": "llama-3.1-8b-instruct", "pp": 2}, "pipeline stages"),
        ({"model": "llama-3.1-8b-instruct", "dp": 2}, "data-parallel ranks that share no experts"),
        ({"model": "nemotron-3-nano-30b-a3b-bf16", "tp": 2}, "recurrent states"),
    ],
)
def test_every_reason_is_told(replica: dict[str, Any], told: str) -> None:
    spec = parse_spec(SPEC | {"replica": {"gpu": "h100-sxm", **replica}})
    found = lambdamax.check_frontier(lambdamax.frontier(lambdamax.scan(spec)), **QUICK)
    assert told in found["sim_unsupported_because"][0]


def test_a_full_pool_is_shown_to_be_saturated() -> None:
    full = {"workload": {"isl_tokens": 1000, "osl_tokens": 300}, "slo": {"utilization_cap": 1.0}}
    full |= {"replica": REPLICA, "scheduler": {"kv_cache_tokens": 30_000.0}}
    row = lambdamax.check_frontier(lambdamax.frontier(lambdamax.scan(parse_spec(SPEC | full))), **QUICK).to_dicts()[0]
    assert (row["binding_limit"], row["sim_status"]) == ("kv_pool", "saturated")
    assert row["in_flight"] is None
    assert row["sim_waiting"] > row["running"]


def test_the_seed_counts_and_threads_do_not(directory: Path, checked: pl.DataFrame) -> None:
    table = lambdamax.frontier(directory)
    assert lambdamax.check_frontier(table, threads=1, **QUICK).equals(checked)
    other = lambdamax.check_frontier(table, seed=1, **QUICK)
    assert (other["sim_ttft_mean_s"] != checked["sim_ttft_mean_s"]).any()


def test_a_name_of_another_catalogue_is_refused(checked: pl.DataFrame) -> None:
    table = checked.drop(column.name for column in columns.of_groups("simulated"))
    foreign = table.with_columns(model=pl.lit("my-own-model"))
    with pytest.raises(FrameError, match="my-own-model"):
        lambdamax.check_frontier(foreign)


def test_the_command_prints_and_writes_both(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    out = tmp_path / "table.parquet"
    line = ["frontier", str(directory), "--by", "model", "--check", "--check-seed", "3"]
    printed = CliRunner().invoke(cli.main, [*line, "--out", str(out)], prog_name="lambdamax")
    assert printed.exit_code == 0, printed.output
    for words in ("verdict", "steady", "simulated", "± 95 %", "not simulated: attention", "KV use"):
        assert words in printed.output
    written = pl.read_parquet(out)
    rows = json.loads(CliRunner().invoke(cli.main, [*line, "--json"], prog_name="lambdamax").output)
    assert [row["sim_tpot_mean_s"] for row in rows] == written["sim_tpot_mean_s"].to_list()
    refused = CliRunner().invoke(cli.main, ["frontier", str(directory), "--check-seed", "3"], prog_name="lambdamax")
    assert (refused.exit_code, "--check-seed goes with --check" in refused.output) == (2, True)
