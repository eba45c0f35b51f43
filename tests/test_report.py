"""The report: its numbers against the functions they come from, its files, and what it says of what is not known."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import polars as pl
import pytest
from click.testing import CliRunner, Result

import lambdamax
from lambdamax import cli
from lambdamax.catalog import load_catalog
from lambdamax.facts import DATA
from lambdamax.ranking import LIMITS
from lambdamax.report import MOST_BYTES
from lambdamax.report.gathered import Axis, Gathered, thinned
from lambdamax.report.packed import Packed, pack
from lambdamax.report.page import embedded, plain
from lambdamax.report.provenance import provenance
from lambdamax.report.views import (
    NOTHING,
    answer,
    curve_rows,
    latency_title,
    map_axes,
    map_rows,
    options,
    pareto_rows,
    robustness_rows,
    sensitivity_rows,
    table_row,
)
from reports import HOSTILE_MODEL, HOSTILE_TEXT, SPEC, hostile, numbers, swept

SELECTIONS = [(0, 1, 1, 1, 1, 0), (1, 0, 2, 0, 0, 1), (1, 2, 0, 1, 0, 0), (0, 0, 0, 0, 1, 1)]
CHARTS = ("pareto-cost", "pareto-tokens", "winners", "limits", "curve-ttft", "curve-tpot", "sensitivity", "robustness")


def invoke(line: str, *more: str) -> Result:
    return CliRunner().invoke(cli.main, [*line.split(), *more], prog_name="lambdamax", env={"COLUMNS": "100"})


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return swept(tmp_path_factory.mktemp("sweep"))


@pytest.fixture(scope="module")
def both(sweep: Path) -> tuple[Gathered, Packed]:
    return numbers(sweep)


@pytest.fixture(scope="module")
def data(both: tuple[Gathered, Packed]) -> Packed:
    return both[1]


@pytest.fixture(scope="module")
def ranking(sweep: Path) -> pl.DataFrame:
    return lambdamax.frontier(sweep)


def at_selection(frame: pl.DataFrame, data: Packed, at: tuple[int, ...], *without: str) -> pl.DataFrame:
    for axis, place in zip(data["axes"], at, strict=True):
        if axis["name"] not in without:
            frame = frame.filter(pl.col(axis["name"]) == axis["values"][place])
    return frame


def test_every_input_that_varies_is_an_axis_and_starts_in_its_middle(data: Packed) -> None:
    names = ["model", "isl_tokens", "osl_tokens", "slo_ttft_s", "slo_tpot_s", "price_plan"]
    assert [axis["name"] for axis in data["axes"]] == names
    assert data["start"] == [0, 1, 1, 1, 1, 0]
    assert data["options"] == ["h100-sxm", "mi300x", "b200-sxm", "mi355x", "a10"]


@pytest.mark.parametrize("at", SELECTIONS)
def test_options_are_ranked_as_the_frontier_ranks_them(
    data: Packed, ranking: pl.DataFrame, at: tuple[int, ...]
) -> None:
    expected = at_selection(ranking, data, at).sort("rank", nulls_last=True).to_dicts()
    told = options(data, at)
    ranked = [row for row in expected if row["rank"]]
    assert [row["option"] for row in told[: len(ranked)]] == [row["gpu"] for row in ranked]
    for row, known in zip(told, ranked, strict=False):
        assert row["rpu"] == pytest.approx(known["requests_per_usd"], rel=1e-3)
        assert row["rate_rps"] == pytest.approx(known["max_rate_rps"], rel=1e-3)
        assert row["usd_per_mtok"] == pytest.approx(known["usd_per_mtok_output"], rel=1e-3)
        assert row["ttft_ms"] == pytest.approx(known["ttft_mean_s"] * 1e3, rel=6e-3)
        assert row["share"] == pytest.approx(known["share_of_best"], rel=1e-3)
        assert f"TP {known['tp']}, {known['weight_dtype']}" in row["with"]
        assert row["limit"] == LIMITS[known["binding_limit"]]
        assert row["next"] == LIMITS.get(known["next_limit"], "–")
    refused = {row["gpu"]: row["refused"].replace("_", " ") for row in expected if not row["rank"]}
    assert {row["option"]: row["refused"] for row in told[len(ranked) :]} == refused


@pytest.mark.parametrize("at", SELECTIONS[:2])
def test_prices_risks_and_elasticities_are_those_of_their_functions(
    sweep: Path, data: Packed, ranking: pl.DataFrame, at: tuple[int, ...]
) -> None:
    told = {row["option"]: row for row in options(data, at)}
    prices = at_selection(lambdamax.break_even(sweep), data, at)
    assert prices.height
    for row in prices.to_dicts():
        assert told[row["gpu"]]["break_even"] == pytest.approx(row["break_even_usd_per_hour"], rel=1e-3)
    group = at_selection(ranking, data, at).drop_nulls("rank")
    for row in lambdamax.robustness(group, draws=data["draws"]).to_dicts():
        assert told[row["gpu"]]["cheapest_percent"] == pytest.approx(100 * row["cheapest_share"], abs=0.51)
        assert told[row["gpu"]]["regret_percent"] == pytest.approx(100 * row["expected_regret"], rel=0.06, abs=0.01)
    assert [row["share"] for row in robustness_rows(data, at)] == [
        row["cheapest_percent"] for row in options(data, at) if row["rpu"] is not None
    ]
    slopes = lambdamax.elasticities(group.filter(pl.col("rank") == 1))
    expected = {row["fact"]: row["elasticity"] for row in slopes.to_dicts()}
    assert [row["value"] for row in sensitivity_rows(data, at)] == pytest.approx(list(expected.values()), abs=0.0051)


@pytest.mark.parametrize("at", SELECTIONS[:2])
def test_pareto_points_are_those_that_none_of_their_accelerator_beats(
    sweep: Path, data: Packed, at: tuple[int, ...]
) -> None:
    by = [axis["name"] for axis in data["axes"] if axis["name"] != "slo_tpot_s"]
    sets = lambdamax.pareto(sweep, {"requests_per_usd": "max", "tpot_mean_s": "min"}, by=[*by, "gpu"])
    expected = at_selection(sets, data, at, "slo_tpot_s")
    told = [row for row in pareto_rows(data, at) if row["kind"] == "point"]
    assert len(told) == expected.height > 0
    assert sorted(row["rpu"] for row in told) == pytest.approx(sorted(expected["requests_per_usd"]), rel=6e-3)
    fastest, slowest = (pick(told, key=lambda row: row["gpu_tok_s"]) for pick in (max, min))
    assert fastest["gpu_tok_s"] == pytest.approx(expected["output_tok_s_per_gpu"].max(), rel=6e-3)
    assert slowest["gpu_tok_s"] == pytest.approx(expected["output_tok_s_per_gpu"].min(), rel=6e-3)
    slo = data["axes"][4]["values"][at[4]]
    assert {row["meets"] for row in told if row["tpot_ms"] < 999 * slo} <= {True}
    assert {row["meets"] for row in told if row["tpot_ms"] > 1002 * slo} <= {False}


def test_the_maps_say_who_wins_and_what_binds_where(data: Packed, ranking: pl.DataFrame) -> None:
    at, axes = (0, 1, 1, 1, 0, 0), map_axes(data)
    assert axes is not None
    assert [data["axes"][place]["name"] for place in axes] == ["osl_tokens", "isl_tokens"]
    cells = map_rows(data, at, *axes)
    assert len(cells) == 9
    assert [(cell["ix"], cell["iy"]) for cell in cells if cell["selected"]] == [(1, 1)]
    for cell in cells:
        there = at_selection(ranking, data, (0, cell["iy"], cell["ix"], 1, 0, 0)).drop_nulls("rank").to_dicts()
        assert cell["winner"] == there[0]["gpu"]
        assert float(cell["lead_text"].rstrip("×")) == pytest.approx(1 / there[1]["share_of_best"], rel=6e-3)
        assert cell["limit"] == LIMITS[there[0]["binding_limit"]]
    unpriced = data["options"].index("mi355x")
    assert {cell["limit"] for cell in map_rows(data, at, *axes, of=unpriced)} == {NOTHING}
    last = map_rows(data, at, *axes, of=data["options"].index(there[-1]["gpu"]))[-1]
    assert last["limit"] == LIMITS[there[-1]["binding_limit"]]


@pytest.mark.parametrize("name", ["ttft", "tpot"])
def test_the_saturation_curve_is_that_of_the_winner_s_replica(data: Packed, ranking: pl.DataFrame, name: str) -> None:
    at = SELECTIONS[0]
    winner = at_selection(ranking, data, at).row(0, named=True)
    curve = [row for row in curve_rows(data, at, name) if row["kind"] == "curve"]
    asked = {key: winner[key] for key in ("model", "gpu", "tp", "weight_dtype", "isl_tokens", "osl_tokens")}
    loads = pl.DataFrame([{**asked, "rate_rps": row["rate"]} for row in curve])
    expected = lambdamax.load(loads)[f"{name}_mean_s"] * 1e3
    # Rates are packed to four digits, which near the limit moves a latency by more.
    assert [row["value"] for row in curve] == pytest.approx(expected.to_list(), rel=1e-2)
    parts = {row["kind"]: row for row in curve_rows(data, at, name) if row["kind"] != "curve"}
    slo = {"ttft": 2000, "tpot": 50}[name]
    assert parts["slo"]["value"] == pytest.approx(slo)
    assert parts["max"]["rate"] == pytest.approx(winner["max_rate_rps"], rel=1e-3)
    assert parts["band"]["rate"] == pytest.approx(winner["max_rate_low_rps"], rel=1e-2)


def test_a_band_that_points_state_takes_the_place_of_the_profile_s(both: tuple[Gathered, Packed]) -> None:
    found, _ = both
    stated = found.ranking.with_columns(
        (pl.col("max_rate_rps") * 0.9).alias("max_rate_low_rps"),
        (pl.col("max_rate_rps") * 1.05).alias("max_rate_high_rps"),
    )
    data = pack(replace(found, ranking=stated), load_catalog())
    rows = {row["kind"]: row for row in curve_rows(data, SELECTIONS[0], "tpot")}
    assert rows["band"]["rate"] == pytest.approx(0.9 * rows["max"]["rate"])
    assert rows["band"]["rate2"] == pytest.approx(1.05 * rows["max"]["rate"])


def test_the_answer_names_the_winner_its_lead_what_binds_and_how_sure(data: Packed, ranking: pl.DataFrame) -> None:
    at = SELECTIONS[0]
    first, second = at_selection(ranking, data, at).head(2).to_dicts()
    verdict, binds, sure = answer(data, at)
    assert verdict.startswith(f"{first['gpu']} with TP {first['tp']}, ")
    assert f"than {second['gpu']}" in verdict or f"as {second['gpu']}" in verdict
    assert binds.startswith("What binds: ")
    assert "requests/s" in binds
    assert re.search(r"How sure: (sure|likely|open)\. .* the cheapest in \d+ % .* within a factor of", sure)
    factor = first["max_rate_rps"] / first["max_rate_low_rps"]
    stated = re.search(r"within a factor of (\S+) in 80 % of cases \(constants (\w+), (.*)\)", sure)
    assert stated is not None
    assert float(stated[1]) == pytest.approx(factor, rel=6e-3)
    assert [stated[2], *stated[3].removesuffix(" rows").split(", ")] == first["provenance"].split(":")


def test_the_answer_says_for_how_many_requests_its_slos_hold(data: Packed) -> None:
    _, binds, _ = answer(data, SELECTIONS[0])
    _, of_most, _ = answer(data | {"fixed": data["fixed"] | {"slo_percentile": 99.0}}, SELECTIONS[0])
    assert of_most == f"{binds} Its SLOs on TTFT and end-to-end latency hold for 99 % of requests."


def test_where_nothing_can_serve_the_report_says_why(tmp_path: Path) -> None:
    sweep = swept(
        tmp_path,
        'name = "no"\n[replica]\nmodel = "llama-3.3-70b-instruct"\ngpu = ["a10", "l4"]\n'
        "[workload]\nisl_tokens = [500, 900]\nosl_tokens = 100\n",
    )
    _, data = numbers(sweep)
    assert answer(data, [1])[:2] == [
        "No option can serve this.",
        "What was tried, and why it fails: a10: does not fit 1; l4: does not fit 1.",
    ]
    assert [cell["winner"] for cell in map_rows(data, [1], 0, 0)] == [NOTHING, NOTHING]
    made = lambdamax.report(sweep, tmp_path / "no.html")
    assert "No option can serve this." in made.path.read_text(encoding="utf-8")


def test_one_group_alone_has_no_axes_and_a_report_all_the_same(tmp_path: Path) -> None:
    spec = '[replica]\nmodel = "qwen3-32b"\ngpu = "h100-sxm"\n[workload]\nisl_tokens = 500\nosl_tokens = 100\n'
    sweep = swept(tmp_path, f'name = "one"\n{spec}')
    _, data = numbers(sweep)
    assert data["axes"] == []
    assert answer(data, [])[0].endswith("and nothing else can serve this.")
    assert "Best buy" in lambdamax.report(sweep, tmp_path / "one.html").path.read_text(encoding="utf-8")


def test_a_large_sweep_is_thinned_on_its_longest_numeric_axes_and_says_so(sweep: Path, ranking: pl.DataFrame) -> None:
    axes = [Axis("model", ("a", "b", "c"), 3), Axis("isl_tokens", tuple(range(33)), 33), Axis("slo_tpot_s", (1, 2), 2)]
    kept = thinned(axes, 100)
    assert [len(axis.values) for axis in kept] == [3, 9, 2]
    assert (kept[1].values[0], kept[1].values[-1]) == (0, 32)
    found, data = numbers(sweep, most_cells=5 * 16)
    assert [len(axis["values"]) for axis in data["axes"]] == [2, 2, 2, 2, 2, 2]
    at = (0, 1, 1, 1, 1, 0)
    first = at_selection(ranking, data, at).row(0, named=True)
    assert options(data, at)[0]["rpu"] == pytest.approx(first["requests_per_usd"], rel=1e-3)
    said = dict(provenance(found, load_catalog()).pairs)
    assert said["shown of isl_tokens"] == "2 of 3 values, so that the page stays small"


def test_a_sweep_that_kept_its_winners_has_all_but_the_pareto_sets(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(SPEC, encoding="utf-8")
    goal = lambdamax.kept_goal(by=["model", "isl_tokens"])
    kept = lambdamax.sweep(tmp_path / "spec.toml", tmp_path / "kept", progress=False, keep=goal).directory
    found, data = numbers(kept)
    assert [axis["name"] for axis in data["axes"]] == ["model", "isl_tokens"]
    assert "kept its winners alone" in found.absent["pareto"]
    assert options(data, (0, 1))[0]["cheapest_percent"] is not None
    assert "kept its winners alone" in lambdamax.report(kept, tmp_path / "r.html").path.read_text(encoding="utf-8")


# Files


def test_the_page_needs_nothing_else_and_asks_no_network(sweep: Path, tmp_path: Path) -> None:
    made = lambdamax.report(sweep, tmp_path / "new" / "report.html")
    text = made.path.read_text(encoding="utf-8")
    assert made.bytes == made.path.stat().st_size < MOST_BYTES
    head = unescape(text[: text.index("<style>")])
    assert "default-src 'none'" in head
    tags = re.sub(r"<(script|style)[^>]*>.*?</\1>", "", text, flags=re.DOTALL)
    assert not re.search(r"<(link|img|iframe|object|base|a [^>]*href=\"(?!#))|\b(src|srcset|on\w+)=", tags)
    assert text.count("<script") == text.count("</script>") == 4


def test_text_of_files_stays_text(tmp_path: Path) -> None:
    sweep = hostile(tmp_path / "in")
    text = lambdamax.report(sweep, tmp_path / "r.html").path.read_text(encoding="utf-8")
    assert HOSTILE_MODEL not in text
    assert "&lt;img src=x onerror=window.pwned=1&gt;" in text
    assert "window.pwned=2</script>" not in text
    assert text.count("<script") == text.count("</script>") == 4
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert data["name"] == HOSTILE_TEXT
    assert HOSTILE_MODEL in data["axes"][0]["values"]
    said = lambdamax.report(sweep, tmp_path / "r.md", format="md").path.read_text(encoding="utf-8")
    assert HOSTILE_MODEL not in said
    assert plain("a|b <c>\n[d](e)") == "a\\|b &lt;c&gt; \\[d\\](e)"


def test_json_within_a_script_element_cannot_end_it_and_reads_the_same() -> None:
    content = {"</script>": ["<!--", "\u2028\u2029", "a & b", 0.1, None]}
    text = embedded(content)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == content


def test_what_the_catalogue_does_not_know_is_left_out_and_named(tmp_path: Path) -> None:
    found, data = numbers(hostile(tmp_path))
    assert HOSTILE_MODEL in found.absent["curve"]
    assert curve_rows(data, (0, 1, 1), "ttft") == sensitivity_rows(data, (0, 1, 1)) == []
    assert curve_rows(data, (1, 1, 1), "ttft")
    models = provenance(found, load_catalog()).tables[0]
    assert [row[1] == "not in this catalogue" for row in models.rows] == [True, False]
    assert robustness_rows(data, (0, 1, 1))


def test_an_accelerator_of_one_s_own_is_told_without_its_catalogue(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    lines = (DATA / "accelerators.csv").read_text(encoding="utf-8").splitlines()
    device = next(line for line in lines if line.startswith("h100-sxm,")).replace("h100-sxm,", "ours,", 1)
    (own / "accelerators.csv").write_text(f"{lines[0]}\n{device}\n", encoding="utf-8")
    spec = (
        f'name = "own"\ncatalog = {json.dumps(str(own))}\n[replica]\nmodel = "qwen3-8b"\ngpu = ["ours", "mi300x"]\n'
        "[workload]\nisl_tokens = [500, 900]\nosl_tokens = 100\n[price]\nusd_per_accelerator_hour = 2\n"
    )
    sweep = swept(tmp_path, spec)
    found, data = numbers(sweep)
    assert "give the one that the sweep used (--catalog)" in found.absent["robustness"]
    assert "another one" in dict(provenance(found, load_catalog()).pairs)["catalogue"]
    assert [row["cheapest_percent"] for row in options(data, (0,))] == [None, None]
    known = invoke(f"report {sweep} --out {tmp_path / 'r.html'} --catalog {own}")
    assert known.exit_code == 0, known.output
    assert "How sure: " in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_sources_versions_and_assumptions_stand_in_the_report(both: tuple[Gathered, Packed]) -> None:
    behind = provenance(both[0], load_catalog())
    told = dict(behind.pairs)
    assert told["sweep checksum"] == both[0].manifest["sha256"]
    assert told["points"].startswith("2,880: ok ")
    tables = {table.heading: table.rows for table in behind.tables}
    assert [row[0] for row in tables["Models"]] == ["llama-3.1-8b-instruct", "qwen3-32b"]
    assert all(row[4] and row[5] for row in tables["Accelerators"])
    status = {row[0]: row[1] for row in tables["Efficiency profiles"]}
    named = {origin.split(":")[1] for origin in both[0].ranking["provenance"].drop_nulls() if ":" in origin}
    assert len(named) > 1
    assert {status[name] for name in named} == {"calibrated"}
    assert all(row[4] for row in tables["Prices of an accelerator hour"])


def test_markdown_has_the_same_answer_and_its_charts_beside_it(sweep: Path, tmp_path: Path) -> None:
    made = lambdamax.report(
        sweep, tmp_path / "r.md", format="md", charts=tmp_path / "charts", at={"price_plan": "reserved"}
    )
    text = made.path.read_text(encoding="utf-8")
    _, data = numbers(sweep)
    at = (0, 1, 1, 1, 1, 1)
    assert f"**{plain(answer(data, at)[0])}**" in text
    for row in options(data, at):
        assert f"| {' | '.join(plain(cell) for cell in table_row(row))} |" in text
    assert "![Who wins where, and by how much](charts/winners.svg)" in text
    assert sorted(path.name for path in made.charts) == sorted(
        f"{name}.{end}" for name in CHARTS for end in ("svg", "png")
    )
    for path in made.charts:
        if path.suffix == ".svg":
            assert ElementTree.fromstring(path.read_text(encoding="utf-8")).tag.endswith("svg")
        else:
            assert path.read_bytes().startswith(b"\x89PNG")


# The command


def test_the_command_says_what_it_wrote(sweep: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    shown = invoke(f"report {sweep} --out {out} --at isl_tokens=3000,model=qwen3-32b --json")
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.output) == {"path": str(out), "bytes": out.stat().st_size, "charts": []}
    assert 'Answer for <span class="selection">qwen3-32b, ISL 4,000 tokens' in out.read_text(encoding="utf-8")


def test_mistakes_are_told_in_one_line_each(sweep: Path, tmp_path: Path) -> None:
    shown = invoke(f"report {sweep} --out {tmp_path / 'r.html'} --at foo=1,model=gpt --at isl_tokens=many")
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert shown.stderr.splitlines() == [
        "error: report: at = foo: allowed: one of model, isl_tokens, osl_tokens, slo_ttft_s, slo_tpot_s, price_plan",
        "error: report: at.model = gpt: allowed: one of llama-3.1-8b-instruct, qwen3-32b",
        "error: report: at.isl_tokens = many: allowed: one of 500.0, 1000.0, 4000.0",
    ]
    assert invoke(f"report {sweep} --out r.html --at foo").exit_code == 2
    nowhere = invoke(f"report {tmp_path} --out r.html")
    assert nowhere.exit_code == 1
    assert "give the directory of a sweep" in nowhere.stderr
    (tmp_path / "file").touch()
    refused = invoke(f"report {sweep} --out {tmp_path / 'file' / 'r.html'}")
    assert refused.exit_code == 1
    assert "it cannot be written" in refused.stderr


def test_where_an_slo_is_on_a_percentile_ttft_is_told_at_that_one(tmp_path: Path) -> None:
    text = SPEC.replace("tpot_s = [0.03, 0.05]", "percentile = [0, 90, 95]\ne2e_s = 30").replace(
        'plan = ["on-demand", "reserved"]', ""
    )
    found, data = numbers(swept(tmp_path, text))
    assert data["statistics"]["ttft"] == {"0": "mean", "90": "p90", "95": "p99"}
    assert data["statistics"]["e2e"] == {"0": "mean", "90": "p99", "95": "p99"}
    place = [axis["name"] for axis in data["axes"]].index("slo_percentile")
    titles, values = [], []
    for percent in range(3):
        at = list(data["start"])
        at[place] = percent
        winner = at_selection(found.ranking, data, at).row(0, named=True)
        told = ("ttft_mean_s", "ttft_p90_s", "ttft_p99_s")[percent]
        best = options(data, at)[0]
        assert best["ttft_ms"] == pytest.approx(winner[told] * 1e3, rel=6e-3)
        curve = [row for row in curve_rows(data, at, "ttft") if row["kind"] == "curve"]
        asked = {key: winner[key] for key in ("model", "gpu", "tp", "weight_dtype", "isl_tokens", "osl_tokens")}
        loads = lambdamax.load(pl.DataFrame([{**asked, "rate_rps": row["rate"]} for row in curve]))
        assert [row["value"] for row in curve] == pytest.approx((loads[told] * 1e3).to_list(), rel=5e-2)
        curve = [row for row in curve_rows(data, at, "e2e") if row["kind"] == "curve"]
        loads = lambdamax.load(pl.DataFrame([{**asked, "rate_rps": row["rate"]} for row in curve]))
        ends = loads["e2e_p99_s" if percent else "e2e_mean_s"] * 1e3
        assert [row["value"] for row in curve] == pytest.approx(ends.to_list(), rel=5e-2)
        assert {"kind": "slo", "value": 30_000} in curve_rows(data, at, "e2e")
        assert f"a {('mean', 'p90', 'p99')[percent]} TTFT of" in answer(data, at)[1]
        titles.append(latency_title(data, at, "ttft"))
        values.append(table_row(best)[11])
    assert titles == ["mean TTFT, ms", "p90 TTFT, ms", "p99 TTFT, ms, for an SLO on p95"]
    assert [value.partition(" ")[2] for value in values] == ["", "(p90)", "(p99)"]
