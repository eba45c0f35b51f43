"""The saturation curve as a frame, as a file and as a picture, and what `explain` answers beside it."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

import lambdamax
from lambdamax import cli
from lambdamax.case import Case, Question
from lambdamax.checked import Compared
from lambdamax.columns import dictionary
from lambdamax.curve import curve, shares
from lambdamax.drawn import print_curve
from lambdamax.exceptions import QuestionError
from lambdamax.explain import explain
from lambdamax.operating import Operating
from lambdamax.played import Estimate
from lambdamax.plot import Mark, Panel, draw
from lambdamax.spike import spike
from lambdamax.surges import print_check, print_spike

LENGTHS = {"isl_tokens": 1000.0, "osl_tokens": 200.0}
SMALL = Question("llama-3.1-8b-instruct", "h100-sxm", numbers={**LENGTHS, "slo_tpot_s": 0.02, "max_num_seqs": 128.0})
COMMAND = (
    "explain --model llama-3.1-8b-instruct --gpu h100-sxm --profile default --isl 1000 --osl 200 --max-num-seqs 128"
)
GROWING = ("ttft_mean_s", "tpot_mean_s", "e2e_mean_s", "in_flight", "running", "decoding", "waiting", "kv_use")

Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    def invoke(line: str, *more: str, columns: int = 110) -> Result:
        monkeypatch.setenv("COLUMNS", str(columns))
        return CliRunner().invoke(cli.main, [*line.split(), *more], prog_name="lambdamax")

    return invoke


@pytest.fixture(scope="module")
def frame() -> pl.DataFrame:
    return curve(SMALL)


# The frame


def test_the_rates_run_from_idle_past_the_limit_and_crowd_below_it() -> None:
    found = shares(40, 1.1)
    assert found.size == 40
    assert (found[0], found[-1]) == (pytest.approx(0.01), pytest.approx(1.1))
    assert 1.0 in found
    below = np.diff(found[found < 1])
    assert np.all(below > 0)
    assert below[-1] < below[0] / 10
    assert shares(12, 1.0)[-1] == 1.0


def test_everything_grows_with_the_rate(frame: pl.DataFrame) -> None:
    carried = frame.filter(pl.col("load_status") == "ok")
    assert carried.height == 35
    for name in GROWING:
        assert np.all(np.diff(carried[name].drop_nulls().to_numpy()) > 0), name


def test_waits_have_no_end_at_the_limit_and_only_there(frame: pl.DataFrame) -> None:
    carried = frame.filter(pl.col("load_status") == "ok")
    for name in ("ttft_mean_s", "ttft_p99_s", "e2e_p99_s", "in_flight", "waiting", "seat_wait_s"):
        assert carried[name].is_null().to_list() == [False] * (carried.height - 1) + [True], name
    assert carried["tpot_mean_s"].null_count() == carried["running"].null_count() == 0


def test_past_the_limit_there_are_no_numbers(frame: pl.DataFrame) -> None:
    past = frame.filter(pl.col("load_status") != "ok")
    assert past["load_status"].to_list() == ["unstable"] * 5
    for name in (*GROWING, "prefill_share", "utilization", "output_tok_s"):
        assert past[name].null_count() == 5, name
    assert past["excess"].to_list() == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1])


def test_the_row_at_the_limit_is_the_limit(frame: pl.DataFrame) -> None:
    case = Case(SMALL)
    last = frame.filter(pl.col("load_status") == "ok").row(-1, named=True)
    assert last["rate_rps"] == pytest.approx(case.answer["rate_at_seats_rps"])
    assert last["running"] == pytest.approx(128)
    assert last["utilization"] == pytest.approx(1)


def test_a_row_is_what_load_says(frame: pl.DataFrame) -> None:
    row = frame.row(12, named=True)
    assert Case(SMALL).full_model_at(row["rate_rps"])["ttft_mean_s"] == row["ttft_mean_s"]


def test_a_point_without_a_rate_has_no_curve() -> None:
    with pytest.raises(QuestionError, match="status = does_not_fit"):
        curve(Question("llama-3.3-70b-instruct", "a10", numbers=LENGTHS))
    with pytest.raises(QuestionError, match="10 points or more"):
        curve(SMALL, points=3)


def test_where_a_number_is_met() -> None:
    operating = Operating.of(Case(SMALL))
    rate = operating.rate_where("in_flight", 50.0)
    assert operating.point(rate)["in_flight"] == pytest.approx(50, rel=1e-9)
    assert math.isnan(operating.rate_where("in_flight", 1e6))


def test_the_public_names_are_functions() -> None:
    assert lambdamax.curve is curve
    assert all(callable(getattr(lambdamax, name)) for name in ("spike", "finite_run", "replicas_for"))


# The picture


def test_a_line_is_drawn_where_it_goes() -> None:
    panel = Panel("up", "", [0.0, 1.0], [0.0, 10.0])
    lines = [line.plain for line in draw(panel, 30, 5)]
    assert lines[0] == "up"
    assert {len(line) for line in lines[1:]} == {30}
    first, last = lines[1][10:], lines[5][10:]
    assert first.rstrip(" ") != ""
    assert first.strip() == first[-len(first.strip()) :]
    assert last.startswith(last.strip())


def test_levels_marks_and_the_part_without_a_value_show() -> None:
    marks = [Mark(0.5, "│", "red")]
    panel = Panel("t", "s", [0.0, 0.5, 1.0], [1.0, 2.0, math.nan], 1.9, "SLO", marks, 0.5)
    lines = [line.plain for line in draw(panel, 40, 6)]
    assert "SLO 1.9 s" in lines[0]
    assert any("┄" in line for line in lines[1:])
    assert sum("│░" in line[10:] for line in lines[1:]) >= 4
    assert all("⠀" <= char <= "⣿" for line in lines[1:-1] for char in line[10:] if char not in " │░┄")


def test_a_level_far_above_is_told_and_not_drawn() -> None:
    lines = [line.plain for line in draw(Panel("t", "s", [0.0, 1.0], [1.0, 2.0], 50.0, "SLO"), 40, 6)]
    assert "above the picture" in lines[0]
    assert not any("┄" in line for line in lines[1:])


# The command


@pytest.mark.parametrize("width", [80, 110, 200])
def test_the_curve_fits_the_terminal(run: Run, width: int) -> None:
    result = run(f"{COMMAND} --slo-tpot-s 0.02 --curve", columns=width)
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= width
    assert "\x1b" not in result.output
    for words in ("the limit (seats)", "SLO 20 ms", "unstable", "░", "share of the KV pool"):
        assert words in result.output


def test_the_file_has_units_and_meanings(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "curve.parquet"
    assert run(COMMAND, "--curve-out", str(path)).exit_code == 0
    assert pl.read_parquet(path).height == 40
    for field in pq.read_schema(path):
        assert field.metadata[b"unit"].decode() == dictionary()[field.name].unit
    missing = run(COMMAND, "--curve-out", str(tmp_path / "none" / "curve.parquet"))
    assert (missing.exit_code, "it cannot be written" in missing.output) == (1, True)


def test_json_has_what_was_asked_and_nothing_invented(run: Run) -> None:
    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is not JSON")

    line = f"{COMMAND} --rate 14 --curve --demand-rps 50 --spike 3x20s --json"
    found = json.loads(run(line).output, parse_constant=refuse)
    assert found["curve"][-1]["load_status"] == "unstable"
    assert found["curve"][-1]["ttft_mean_s"] is None
    assert [way["name"] for way in found["demand"]["ways"]] == ["constant W", "with feedback"]
    assert len(found["spike"]["table"]) == 4
    assert "finite_run" not in found
    assert math.fsum(link["mean_s"] for link in found["ttft_budget"]["links"]) == found["ttft_budget"]["total_mean_s"]


def test_a_finite_run_offers_its_rate_to_all_replicas(run: Run) -> None:
    found = json.loads(run(f"{COMMAND} --rate 30 --finite-run 120s --replicas 3 --startup-s 45 --json").output)
    assert found["at_rate"]["rate_rps"] == 10
    assert (found["finite_run"]["rate_rps"], found["finite_run"]["feasible"]) == (30, True)
    result = run(f"{COMMAND} --rate 100 --finite-run 120 --replicas 3")
    assert "Infeasible at this many replicas" in result.output
    assert "5 replicas sustain it" in result.output


def test_a_short_run_is_told_to_hide_its_backlog(run: Run) -> None:
    output = " ".join(run(f"{COMMAND} --rate 40 --finite-run 5s").output.split())
    assert "The window is short" in output
    assert "looks harmless only because" in output


@pytest.mark.parametrize("more", ["--spike 2x10s", "--finite-run 20s"])
def test_a_check_puts_the_simulator_beside(run: Run, more: str) -> None:
    result = run(f"{COMMAND} --rate 16 {more} --check")
    assert result.exit_code == 0, result.output
    assert "8 runs of the simulator" in result.output
    assert "± 95 %" in result.output


def test_example_b_is_printed(run: Run) -> None:
    output = run(f"{COMMAND} --demand-rps 50 --residence-s 20 --in-flight-per-replica 80 --utilization 0.7").output
    assert "17.86 replicas, rounded up to 18 (0.8 % more than asked for)" in output
    assert "share of its largest rate" in output


def test_the_budget_is_printed_with_what_is_before_the_replica(run: Run) -> None:
    output = run(f"{COMMAND} --rate 8 --network-s 0.04 --router-s 0.002").output
    for words in ("The TTFT budget at 8 req/s", "network and gateway", "40.00 ms", "wait for running iteration"):
        assert words in output


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("--check", "--check goes with --spike or --finite-run"),
        ("--spike 3x60s --finite-run 60s --rate 3", "not both"),
        ("--spike 3x60s --concurrency 5", "not with --concurrency"),
        ("--finite-run 60s", "--finite-run goes with --rate"),
        ("--utilization 0.5", "--utilization goes with --demand-rps"),
        ("--residence-s 5", "--residence-s goes with --demand-rps"),
        ("--in-flight-per-replica 5", "--in-flight-per-replica goes with --demand-rps"),
        ("--replicas 5", "--replicas goes with --finite-run"),
        ("--startup-s 5", "--startup-s goes with --finite-run"),
        ("--demand-rps 0", "--demand-rps"),
    ],
)
def test_what_does_not_go_together_is_usage(run: Run, more: str, told: str) -> None:
    result = run(f"{COMMAND} {more}")
    assert result.exit_code == 2
    assert told in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("--spike often", "spike = 'often': allowed: FACTORxSECONDSs"),
        ("--finite-run soon --rate 3", "finite-run = 'soon': allowed: a time above 0"),
        ("--gpu a10 --memory-bytes 9e9 --curve", "status = does_not_fit: allowed:"),
    ],
)
def test_mistakes_are_told_with_what_is_allowed(run: Run, more: str, told: str) -> None:
    result = run(f"{COMMAND} {more}")
    assert result.exit_code == 1
    assert told in result.output


def test_help_stands_in_groups(run: Run) -> None:
    lines = run("explain --help").output.splitlines()
    titles = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert titles[0] == "Replica:"
    assert titles[-1] == "Other options:"
    assert {"Saturation curve:", "From a rate to replicas:", "Spikes and finite runs:", "TTFT budget:"} < set(titles)


# What an engine with percentiles, or a long queue, adds


def printed(part: Callable[[Console], None], **terminal: bool) -> str:
    console = Console(width=110, file=io.StringIO(), markup=False, highlight=False, **terminal)
    part(console)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def test_p99_is_shown_beside_the_mean(frame: pl.DataFrame) -> None:
    assert "TTFT p99" in printed(lambda console: print_curve(frame, explain(SMALL), console))
    assert "p99" in printed(lambda console: print_spike(spike(SMALL, "2x10s"), console))


def test_colours_are_for_terminals_that_want_them(frame: pl.DataFrame) -> None:
    def part(console: Console) -> None:
        print_curve(frame, explain(SMALL), console)

    assert "\x1b[36m" in printed(part, force_terminal=True)
    assert "\x1b[36m" not in printed(part, force_terminal=True, no_color=True)


def test_long_drains_are_told_in_hours_and_endless_ones_as_never() -> None:
    near = spike(replace(SMALL, rate_rps=0.999 * Operating.of(Case(SMALL)).limit_rps), "3x60s")
    assert " h: " in printed(lambda console: print_spike(near, console))
    assert "5 % less than the model says never drains it" in printed(lambda console: print_spike(near, console))
    never = spike(replace(SMALL, rate_rps=100.0), "3x60s")
    assert "never drains" in printed(lambda console: print_spike(never, console))


def test_a_run_that_was_not_followed_so_far_has_no_number() -> None:
    row = Compared("drain_s", "until nobody waits", "s", 9e9, Estimate(math.nan, math.nan))
    assert "not so far" in printed(lambda console: print_check([row], console))
    assert row.as_json()["simulated"] == {"mean": None, "half_width": None}
