"""Empirical laws of lengths: tables, faults, moments, the law as a workload, and what the simulator says of it."""

from __future__ import annotations

import gzip
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner, Result

import lambdamax
from lambdamax import cli, columns
from lambdamax.case import Case, Question
from lambdamax.catalog import load_catalog
from lambdamax.engine import OneReplica
from lambdamax.exceptions import CatalogError, FrameError, SimulationError, SpecError
from lambdamax.lengths import LengthTable, read_lengths
from lambdamax.replicas import Deployment
from lambdamax.simulate import simulate
from lambdamax.spec import parse_spec

CONV = "azure-2023-conv"
REPLICA: dict[str, Any] = {"model": "llama-3.1-8b-instruct", "gpu": "h100-sxm"}
LINE = "--model llama-3.1-8b-instruct --gpu h100-sxm"
MEASURED = {  # requests, mean prompt and output of the published traces, to their last printed digit
    "azure-2023-code": (8819, 2047.8, 27.9),
    "azure-2023-conv": (19366, 1154.7, 211.1),
    "mooncake-conversation": (12031, 12035.1, 342.6),
    "mooncake-synthetic": (3993, 15325.5, 149.1),
}
WITHOUT_AXES = ("lengths", "isl_tokens", "osl_tokens", "isl_cv", "osl_cv")

Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("COLUMNS", "100")
    return lambda line: CliRunner().invoke(cli.main, line.split(), prog_name="lambdamax")


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


# ---- Tables


@pytest.mark.parametrize("name", MEASURED)
def test_a_shipped_table_is_the_published_trace(name: str) -> None:
    table = load_catalog().length_table(name)
    requests, isl, osl = MEASURED[name]
    assert sum(table.weight) == requests
    assert (round(table.moments["isl_tokens"], 1), round(table.moments["osl_tokens"], 1)) == (isl, osl)
    assert table.source.startswith("https://")
    assert table.license
    assert table.notes


def test_a_catalogue_of_ones_own_may_hold_tables(tmp_path: Path, run: Run) -> None:
    (tmp_path / "lengths").mkdir()
    written(tmp_path / "lengths" / "mine.csv", "isl_tokens,osl_tokens", "10,4", "30,2")
    catalog = load_catalog(tmp_path)
    assert catalog.lengths == (*MEASURED, "mine")
    assert catalog.version != load_catalog().version
    assert catalog.length_table("mine").isl_tokens == (10.0, 30.0)
    found = run(f"explain {LINE} --lengths mine --catalog {tmp_path} --json")
    assert json.loads(found.output)["isl_tokens"] == 20
    written(tmp_path / "lengths" / "-.csv", "isl_tokens,osl_tokens", "10,4")
    written(tmp_path / "lengths" / "bad.csv", "isl_tokens,osl_tokens", "10,x")
    with pytest.raises(CatalogError, match=r"(?s)-\.csv: allowed: a file with a name.*bad\.csv:2"):
        load_catalog(tmp_path)


def test_tables_are_listed(run: Run) -> None:
    listed = run("catalog lengths")
    assert all(name in listed.output for name in MEASURED)
    assert "CC-BY-4.0, Splitwise, ISCA 2024" in listed.output
    one = json.loads(run(f"catalog lengths {CONV} --json").output)
    assert (one["requests"], round(one["isl_tokens"], 1)) == (19366, 1154.7)
    assert one["source_url"].endswith("AzureLLMInferenceTrace_conv.csv")


def test_every_table_is_in_the_index_and_the_other_way_round() -> None:
    data = Path(lambdamax.__file__).parent / "data"
    with (data / "lengths.csv").open(encoding="utf-8") as file:
        files = {line.split(",")[1] for line in file.readlines()[1:]}
    assert files == {f"lengths/{path.name}" for path in (data / "lengths").iterdir()}
    assert set(load_catalog().lengths) == set(MEASURED)


def test_the_package_file_is_a_plain_table() -> None:
    path = Path(lambdamax.__file__).parent / "data" / "lengths" / f"{CONV}.csv.gz"
    rows = [line.split(",") for line in gzip.decompress(path.read_bytes()).decode().splitlines()]
    assert rows[0] == ["isl_tokens", "osl_tokens", "weight"]
    assert len({(isl, osl) for isl, osl, _ in rows[1:]}) == len(rows) - 1


@pytest.mark.parametrize(
    "heading",
    ["isl_tokens,osl_tokens", "arrival_s,input_tokens,output_tokens", "TIMESTAMP,ContextTokens,GeneratedTokens"],
)
def test_a_table_of_ones_own_is_read_by_any_of_its_headings(tmp_path: Path, heading: str) -> None:
    at = "0.0," if heading.count(",") == 2 else ""
    table = read_lengths(written(tmp_path / "mine.csv", heading, f"{at}10,4", f"{at}30,2.0", f"{at}10,4"))
    assert table.name == "mine"
    assert (table.isl_tokens, table.osl_tokens, table.weight) == ((10.0, 30.0), (4.0, 2.0), (2.0, 1.0))


def test_weights_weigh(tmp_path: Path) -> None:
    table = read_lengths(written(tmp_path / "mine.csv", "weight,osl_tokens,isl_tokens", "0.5,4,10", "1.5,2,30"))
    assert table.moments["isl_tokens"] == 25
    assert table.moments["osl_cv"] == pytest.approx(math.sqrt(0.75) / 2.5)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["isl_tokens,osl_tokens"], "requests = none: allowed: one or more"),
        (["isl_tokens,osl_tokens", "10,0"], "mine.csv:2: osl_tokens = '0': allowed: a whole number from 1 to 1e9"),
        (["isl_tokens,osl_tokens", "9,9", "-5,9"], "mine.csv:3: isl_tokens = '-5'"),
        (["isl_tokens,osl_tokens", "9,2.5"], "osl_tokens = '2.5'"),
        (["isl_tokens,osl_tokens", "nan,2"], "isl_tokens = 'nan'"),
        (["isl_tokens,osl_tokens", "9,"], "osl_tokens = '': allowed: a value in every row"),
        (["isl_tokens,osl_tokens,weight", "9,9,0"], "weight = '0': allowed: a number larger than 0"),
        (["isl_tokens,osl_tokens,weight", "9,9,"], "weight = '': allowed: a value in every row"),
        (["isl_tokens,outputs", "9,9"], "osl_tokens = no such column"),
        (["isl_tokens,osl_tokens,wieght", "9,9,1"], "'wieght' = an unknown column"),
        (["isl_tokens,osl_tokens", "9,1", "9,1"], "mean osl_tokens = 1: allowed: 2 or more"),
    ],
)
def test_a_faulty_table_is_refused_with_its_place(tmp_path: Path, lines: list[str], told: str) -> None:
    path = written(tmp_path / "mine.csv", *lines)
    with pytest.raises(CatalogError) as error:
        read_lengths(path)
    assert told in str(error.value)
    assert str(path) in str(error.value)


def test_many_faults_are_told_at_once_and_not_all_listed(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.csv", "isl_tokens,osl_tokens", *["0,0"] * 10)
    with pytest.raises(CatalogError) as error:
        read_lengths(path)
    assert len(str(error.value).splitlines()) == 6
    assert "… and 15 more faults" in str(error.value)


def test_slices_of_the_outputs_are_their_quantile_means() -> None:
    table = LengthTable.of("t", {(5.0, 1.0): 3.0, (5.0, 10.0): 1.0, (7.0, 4.0): 4.0}, "")
    assert table.output_slices(4) == pytest.approx([1, (1 + 4) / 2, 4, (4 + 10) / 2])
    assert table.output_slices(1) == pytest.approx([29 / 8])


def test_draws_follow_the_weights_and_keep_pairs() -> None:
    table = LengthTable.of("t", {(10.0, 1.0): 1.0, (20.0, 2.0): 3.0}, "")
    prompts, outputs = table.drawn(4000, random.Random(1))
    assert [prompt / 10 for prompt in prompts] == outputs
    assert outputs.count(2.0) == pytest.approx(3000, abs=6 * math.sqrt(750))


# ---- The law in the engine


@pytest.mark.parametrize("name", MEASURED)
def test_moments_of_a_solved_point_are_those_of_the_table(name: str) -> None:
    table = load_catalog().length_table(name)
    case = Case(Question(**REPLICA, lengths=name, numbers={"kv_cache_tokens": 1e6}))
    expected = {key: pytest.approx(value, rel=1e-12) for key, value in table.moments.items()}
    assert {key: case.point(key) for key in table.moments} == expected
    weight, prompt = np.array(table.weight) / sum(table.weight), np.array(table.isl_tokens)
    node_weights, nodes = case.prompt_nodes() or (np.empty(0), np.empty(0))
    assert len(nodes) <= 32
    for power in range(4):
        assert node_weights @ nodes**power == pytest.approx(weight @ prompt**power, rel=1e-10)


def quantile_table(count: int, isl: float, isl_cv: float, osl: float, osl_cv: float) -> LengthTable:
    """The product of two lognormal laws, each cut in `count` slices of equal weight at their mean."""
    sides = [slices(count, *law) for law in ((isl, isl_cv), (osl, osl_cv))]
    return LengthTable.of("lognormal", {(prompt, output): 1.0 for prompt in sides[0] for output in sides[1]}, "")


def slices(count: int, mean: float, cv: float) -> list[float]:
    from scipy.stats import norm

    spread = math.sqrt(math.log1p(cv * cv))
    edges = norm.ppf(np.linspace(0, 1, count + 1)) - spread
    return [float(value) for value in mean * count * np.diff(norm.cdf(edges))]


def test_a_finely_cut_lognormal_comes_to_the_lognormal() -> None:
    law = (900.0, 0.6, 250.0, 0.6)
    row = load_catalog().replica(Deployment(**REPLICA))
    inputs = dict(zip(("isl_tokens", "isl_cv", "osl_tokens", "osl_cv"), law, strict=True))
    point = {"slo_tpot_s": 0.02, "max_num_batched_tokens": 32_768.0}
    expected = OneReplica(row).solve(point | inputs).numbers
    names = ("max_rate_rps", "rate_at_compute_rps", "ttft_mean_s", "tpot_token_mean_s", "kv_in_flight_tokens")
    errors = []
    for count in (25, 50, 100, 200, 400):
        table = quantile_table(count, *law)
        # What the slices lose of E[o²] is what they lose of the mean context; E[i] and E[o] are exact.
        lost = 1 - (1 + table.moments["osl_cv"] ** 2) / (1 + law[3] ** 2)
        found = OneReplica(row, table).solve(point).numbers
        errors.append((lost, max(abs(found[name] / expected[name] - 1) for name in names)))
    lost, error = map(np.array, zip(*errors, strict=True))
    # The error falls as the second moments converge, to where two rules of prompt nodes differ: 1e-4.
    assert (error <= lost + 1e-4).all(), errors
    assert error[-1] < 5e-4 < error[0], errors


def test_a_table_of_one_pair_is_a_fixed_length() -> None:
    for model in ("llama-3.1-8b-instruct", "gemma-3-12b-it", "llama-4-scout-17b-16e-instruct"):
        row = load_catalog().replica(Deployment(model, "h200-sxm", 4))
        point = {"slo_ttft_s": 0.5, "prefix_hit_share": 0.3}
        fixed = OneReplica(row).solve(point | {"isl_tokens": 3000.0, "osl_tokens": 400.0})
        table = LengthTable.of("one", {(3000.0, 400.0): 7.0}, "")
        law = OneReplica(row, table).solve(point)
        assert law.status == fixed.status == "no_price"
        for name, value in fixed.numbers.items():
            if name not in ("lengths", "iterations", "residual") and not math.isnan(value):
                assert law.numbers[name] == pytest.approx(value, rel=1e-9), (model, name)


def test_prompt_and_output_in_common_cost_more() -> None:
    row = load_catalog().replica(Deployment(**REPLICA))
    alike = LengthTable.of("alike", {(100.0, 20.0): 1.0, (20_000.0, 800.0): 1.0}, "")
    unlike = LengthTable.of("unlike", {(100.0, 800.0): 1.0, (20_000.0, 20.0): 1.0}, "")
    kv = [OneReplica(row, table).solve({}).numbers["rate_at_kv_rps"] for table in (alike, unlike)]
    assert kv[0] < 0.5 * kv[1]


# ---- The law as a workload


def spec_of(workload: dict[str, Any], **more: Any) -> Any:
    raw = {"name": "lengths", "replica": {**REPLICA, "tp": [1, 2]}, "workload": workload, "slo": {"tpot_s": 0.03}}
    return parse_spec(raw | more)


def test_a_sweep_has_the_axis_and_its_moments(tmp_path: Path) -> None:
    mine = written(tmp_path / "mine.csv", "isl_tokens,osl_tokens", "1000,200", "3000,100")
    spec = spec_of({"lengths": [CONV, str(mine)], "prefix_hit_share": [0.0, 0.5]})
    out = tmp_path / "out"
    lambdamax.sweep(spec, out)
    frame = pl.concat(map(pl.read_parquet, out.glob("*.parquet")))
    assert frame.height == 8
    assert set(frame["lengths"].cast(pl.String)) == {CONV, "mine"}
    own = frame.filter(pl.col("lengths") == "mine")
    assert own["isl_tokens"].to_list() == pytest.approx([2000] * 4)
    assert own["isl_cv"].to_list() == pytest.approx([0.5] * 4)
    assert frame["status"].to_list() == ["ok"] * 8
    lazy = lambdamax.scan(spec)
    assert lazy.collect().equals(frame)
    picked = lazy.filter(pl.col("lengths") == "mine", pl.col("tp") == 2).collect()
    assert picked.equals(frame.filter(pl.col("lengths") == "mine", pl.col("tp") == 2))
    table = lambdamax.frontier(frame.lazy(), by=["lengths", "prefix_hit_share"])
    assert table["lengths"].cast(pl.String).to_list() == [CONV] * 2 + ["mine"] * 2


def test_solving_one_point_a_row_of_a_frame_and_a_sweep_is_the_same() -> None:
    swept = lambdamax.scan(spec_of({"lengths": CONV})).collect()
    frame = pl.DataFrame(
        {**{name: [value] for name, value in REPLICA.items()}, "lengths": [CONV], "slo_tpot_s": [0.03]}
    )
    rate = lambdamax.solve(frame)["max_rate_rps"][0]
    case = Case(Question(**REPLICA, lengths=CONV, numbers={"slo_tpot_s": 0.03}))
    assert rate == case.answer["max_rate_rps"] == swept["max_rate_rps"][0]
    again = lambdamax.solve(swept.select([column.name for column in columns.inputs()]))
    assert again["max_rate_rps"].to_list() == swept["max_rate_rps"].to_list()


def test_rows_with_and_without_a_law_stand_side_by_side() -> None:
    frame = pl.DataFrame(
        {
            **{name: [value] * 3 for name, value in REPLICA.items()},
            "lengths": [None, CONV, "azure-2023-code"],
            "isl_tokens": [1000.0, None, None],
            "osl_tokens": [200.0, None, None],
            "isl_cv": [0.8, None, None],
        }
    )
    together = lambdamax.solve(frame)["max_rate_rps"].to_list()
    alone = [lambdamax.solve(frame[row : row + 1])["max_rate_rps"][0] for row in range(3)]
    assert together == alone
    loaded = lambdamax.load(frame.with_columns(rate_rps=pl.lit(5.0)))
    assert loaded["load_status"].to_list() == ["ok"] * 3


def test_rows_of_parametric_lengths_have_no_law() -> None:
    frame = lambdamax.scan(spec_of({"isl_tokens": 1000, "osl_tokens": 200})).collect()
    assert frame["lengths"].null_count() == 2


@pytest.mark.parametrize(
    ("workload", "told"),
    [
        ({}, ["workload.isl_tokens = nothing", "workload.osl_tokens = nothing", "required, unless lengths are given"]),
        ({"lengths": CONV, "isl_tokens": 5}, ["workload.isl_tokens = 5: allowed: nothing beside lengths"]),
        ({"lengths": CONV, "osl_cv": [0.5]}, ["workload.osl_cv = [0.5]: allowed: nothing beside lengths"]),
        ({"lengths": "azure-2023"}, ["workload.lengths", "azure-2023-conv", "or the path of a .csv"]),
        ({"lengths": [CONV, CONV]}, ["twice"]),
        ({"lengths": "none.csv"}, ["none.csv", "readable"]),
        ({"lengths": 5}, ["workload.lengths = 5"]),
    ],
)
def test_a_sweep_file_tells_lengths_once(workload: dict[str, Any], told: list[str]) -> None:
    with pytest.raises(SpecError) as error:
        spec_of(workload)
    assert [words for words in told if words not in str(error.value)] == []
    assert len(str(error.value).splitlines()) <= 2


def test_a_frame_tells_lengths_once_in_every_row() -> None:
    base = {name: [value] * 2 for name, value in REPLICA.items()}
    with pytest.raises(FrameError, match=r"isl_tokens\[0\] = null: allowed: a value in every row without lengths"):
        lambdamax.solve(pl.DataFrame({**base, "lengths": [None, CONV]}))
    both = {"lengths": [None, CONV], "isl_tokens": [9.0, 9.0], "osl_tokens": [9.0, None]}
    with pytest.raises(FrameError, match=r"isl_tokens\[1\] = 9: allowed: null, or the law's own, beside lengths"):
        lambdamax.solve(pl.DataFrame({**base, **both}))
    with pytest.raises(FrameError, match="azure-2023-conv"):
        lambdamax.solve(pl.DataFrame({**base, "lengths": ["azure", CONV]}))


def test_another_content_of_the_file_is_another_sweep(tmp_path: Path) -> None:
    mine = written(tmp_path / "mine.csv", "isl_tokens,osl_tokens", "1000,200")
    spec = spec_of({"lengths": str(mine)})
    lambdamax.sweep(spec, tmp_path / "out")
    written(mine, "isl_tokens,osl_tokens", "1000,300")
    with pytest.raises(lambdamax.exceptions.StoreError, match="lengths is"):
        lambdamax.sweep(spec_of({"lengths": str(mine)}), tmp_path / "out")


# ---- The commands


def test_winners_of_ones_own_table_are_found_in_ones_own_catalogue(tmp_path: Path, run: Run) -> None:
    own, out = tmp_path / "own", tmp_path / "out"
    (own / "lengths").mkdir(parents=True)
    mine = written(own / "lengths" / "mine.csv", "isl_tokens,osl_tokens", "1000,200", "300,100")
    lambdamax.sweep(spec_of({"lengths": str(mine)}), out)
    found = run(f"frontier {out} --check --catalog {own} --json")
    assert {row["sim_status"] for row in json.loads(found.output)} == {"steady"}
    lost = run(f"frontier {out} --check")
    assert (lost.exit_code, "lengths[0] = 'mine'" in lost.output) == (1, True)


def test_explain_knows_the_law(run: Run) -> None:
    asked = f"explain {LINE} --lengths {CONV} --rate 8"
    printed = run(asked)
    assert "lengths as in azure-2023-conv, 1,155 tokens in (CV 0.9602), 211.1 out" in printed.output
    found = json.loads(run(f"{asked} --json").output)
    assert found["lengths"] == CONV
    budget = found["ttft_budget"]
    assert sum(link["mean_s"] for link in budget["links"]) == pytest.approx(budget["ttft_mean_s"])
    measured = run(f"{asked} --measured-ttft-s 0.1 --measured-tpot-s 0.012 --json")
    assert json.loads(measured.output)["one_number"]["in_flight"] > 0
    spiked = run(f"explain {LINE} --lengths {CONV} --max-num-seqs 64 --rate 10 --spike 4x20s --check --json")
    played = json.loads(spiked.output)
    assert played["spike"]["asked"]["drain_s"] > 0
    waiting = played["check"][0]
    assert waiting["fluid"] == pytest.approx(waiting["simulated"]["mean"], rel=0.1)


@pytest.mark.parametrize("command", ["explain", "simulate"])
def test_a_command_tells_lengths_once(run: Run, command: str, tmp_path: Path) -> None:
    assert run(f"{command} {LINE}").exit_code == 2
    assert run(f"{command} {LINE} --isl 100").exit_code == 2
    both = run(f"{command} {LINE} --lengths {CONV} --isl 5 --osl-cv 0")
    assert both.exit_code == 1
    assert both.output.count("nothing beside --lengths") == 2
    unknown = run(f"{command} {LINE} --lengths azure")
    assert (unknown.exit_code, "azure-2023-conv" in unknown.output) == (1, True)
    faulty = written(tmp_path / "mine.csv", "isl_tokens,osl_tokens", "9,x")
    refused = run(f"{command} {LINE} --lengths {faulty}")
    assert (refused.exit_code, f"{faulty}:2" in refused.output) == (1, True)


def test_the_solver_takes_a_trace_as_its_law() -> None:
    rows = [(float(at), 100.0 + 50 * (at % 7), 20.0 + 9 * (at % 7)) for at in range(700)]
    arrivals, prompts, outputs = zip(*rows, strict=True)
    found = simulate(Question(**REPLICA, profile="default"), trace=(arrivals, prompts, outputs))
    pairs = dict.fromkeys(zip(prompts, outputs, strict=True), 1.0)
    row = load_catalog().replica(Deployment(**REPLICA))
    rate = (len(rows) - 1) / (arrivals[-1] - arrivals[0])
    expected = OneReplica(row, LengthTable.of("t", pairs, "")).load({"rate_rps": rate}).numbers
    assert found.mean_field is not None
    assert found.mean_field["kv_in_flight_tokens"] == pytest.approx(expected["kv_in_flight_tokens"], rel=1e-9)


def test_answers_of_one_token_have_no_operating_point() -> None:
    found = simulate(Question(**REPLICA), trace=((0.0, 1.0), (50.0, 60.0), (1.0, 1.0)))
    assert (found.status, found.mean_field_status) == ("not_converged", "not_converged")


def test_a_trace_and_lengths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SimulationError, match="a trace or lengths, not both"):
        simulate(Question(**REPLICA, lengths=CONV), trace=((0.0,), (10.0,), (20.0,)))


# ---- The judge


@pytest.mark.parametrize("rate_rps", [2.0, 6.0, 12.0])
def test_the_simulator_agrees_on_the_conversation_trace(rate_rps: float) -> None:
    found = simulate(Question(**REPLICA, lengths=CONV, rate_rps=rate_rps), precision=0.01, requests=800_000)
    solved, numbers = found.mean_field or {}, found.numbers
    assert found.status == "steady"
    for name, half, bar in (
        ("ttft_mean_s", "ttft_half_width_s", 0.02),
        ("tpot_mean_s", "tpot_half_width_s", 0.02),
        ("in_flight", "in_flight_half_width", 0.02),
    ):
        assert abs(solved[name] - numbers[name]) <= numbers[half] + bar * numbers[name], (name, rate_rps)
