"""`lambdamax frontier` and `sweep --keep frontier` on the command line: goals, tables, what a directory holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lambdamax import cli

SPEC = """
name = "small"
[replica]
model = "llama-3.3-70b-instruct"
profile = "default"
gpu = ["h100-sxm", "mi300x", "b200-sxm", "mi355x", "a10"]
tp = [1, 2, 4]
weight_dtype = ["bf16", "fp8"]
[workload]
isl_tokens = [1000, 4000]
osl_tokens = [100, 200]
[slo]
tpot_s = [0.03, 0.05]
"""


def invoke(line: str, *more: str) -> Result:
    return CliRunner().invoke(cli.main, [*line.split(), *more], prog_name="lambdamax", env={"COLUMNS": "100"})


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spec") / "small.toml"
    path.write_text(SPEC, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def swept(spec: Path) -> str:
    out = str(spec.parent / "out")
    assert invoke(f"sweep {spec} --out {out}").exit_code == 0
    return out


def test_a_pareto_set_is_printed_by_group_with_its_objectives(swept: str) -> None:
    ask = f"frontier {swept} --pareto requests_per_usd:max,tpot_mean_s:min --by isl_tokens"
    shown = invoke(ask)
    assert shown.exit_code == 0, shown.output
    assert "requests_per_usd large, tpot_mean_s small" in shown.output
    assert "ISL 1,000 tokens" in shown.output
    rows = json.loads(invoke(f"{ask} --json").output)
    assert list(rows[0])[:4] == ["isl_tokens", "requests_per_usd", "tpot_mean_s", "gpu"]
    assert len({row["isl_tokens"] for row in rows}) == 2
    assert "more rows" in invoke(f"{ask} --rows 2").output


def test_the_cheapest_is_ranked_first_where_small_is_best(swept: str) -> None:
    ask = f"frontier {swept} --minimize usd_per_mtok_output --by model --best 2"
    rows = [row for row in json.loads(invoke(f"{ask} --json").output) if row["rank"]]
    assert len(rows) == 6
    costs = [row["usd_per_mtok_output"] for row in rows]
    assert costs == sorted(costs)
    assert rows[1]["share_of_best"] == pytest.approx(costs[0] / costs[1])
    assert "240, of which" in invoke(ask).output


def test_a_sweep_that_keeps_the_frontier_says_what_it_holds(spec: Path, swept: str, tmp_path: Path) -> None:
    out = tmp_path / "kept"
    first = invoke(f"sweep {spec} --out {out} --keep frontier --by isl_tokens")
    assert first.exit_code == 0, first.output
    assert "240" in first.output
    shown = " ".join(invoke(f"frontier {out}").output.split())
    assert "holds the best point of each isl_tokens, gpu by requests_per_usd:max; the other points are counted" in shown
    expected = json.loads(invoke(f"frontier {swept} --by isl_tokens --json").output)
    assert json.loads(invoke(f"frontier {out} --json").output) == expected
    refused = invoke(f"frontier {out} --maximize max_rate_rps")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "it holds the best point of each isl_tokens, gpu by requests_per_usd:max alone, not" in refused.stderr
    again = invoke(f"sweep {spec} --out {out} --keep frontier --best 2")
    assert again.exit_code == 1
    assert "it holds another sweep: keep is" in again.stderr


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("sweep x.toml --out y --by model", "--by goes with --keep frontier."),
        ("frontier x --pareto a:max --compare tp", "give --pareto or --compare, not both."),
        ("sweep x.toml --out y --keep frontier --pareto a:max --best 3", "give --pareto or --best, not both."),
    ],
)
def test_options_that_do_not_go_together(line: str, message: str) -> None:
    result = invoke(line)
    assert result.exit_code == 2
    assert message in result.stderr


def test_both_directions_at_once_are_refused(swept: str) -> None:
    result = invoke(f"frontier {swept} --minimize tpot_mean_s --maximize max_rate_rps")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: frontier: minimize = tpot_mean_s: allowed: one of maximize and minimize")


@pytest.mark.parametrize(
    ("show", "words"),
    [
        ("winners", ["won by", "ISL ↓ OSL →", "×"]),
        ("binding", ["what stops the best", "ISL ↓ OSL →", "TPOT", "–"]),
        ("break-even", ["break-even", "against", "%", "mi355x –"]),
        ("elasticity", ["bandwidth flops memory link price", "-1.00"]),
        ("robustness", ["cheapest regret rate", "×÷ 1.3", "USD/h"]),
    ],
)
def test_each_question_of_a_buyer_has_a_table(swept: str, show: str, words: list[str]) -> None:
    ask = f"frontier {swept} --by isl_tokens,osl_tokens --show {show}"
    shown = invoke(ask)
    assert shown.exit_code == 0, shown.output
    text = " ".join(shown.output.split())
    assert [word for word in words if word not in text] == []
    rows = json.loads(invoke(f"{ask} --json").output)
    assert rows
    assert list(rows[0])[:2] == ["isl_tokens", "osl_tokens"] or show in ("elasticity", "robustness")


def test_a_map_that_cannot_be_drawn_is_a_list_and_axes_can_be_chosen(swept: str) -> None:
    listed = " ".join(invoke(f"frontier {swept} --by isl_tokens --show winners").output.split())
    assert "ISL winner lead over binds 1,000" in listed
    drawn = invoke(f"frontier {swept} --by isl_tokens,osl_tokens,slo_tpot_s --show winners --map slo_tpot_s,isl_tokens")
    assert "slo_tpot_s ↓ ISL →" in " ".join(drawn.output.split())
    assert drawn.output.count("slo_tpot_s ↓") == 2
    stops = invoke(f"frontier {swept} --by isl_tokens --show binding").output
    assert "binds next" in stops
    refused = invoke(f"frontier {swept} --by isl_tokens --show winners --map isl_tokens,tp")
    assert refused.stderr == "error: frontier: map = isl_tokens,tp: allowed: two of isl_tokens\n"


def test_robustness_and_elasticity_take_their_numbers(swept: str) -> None:
    ask = f"frontier {swept} --by model --show robustness --draws 500"
    one, two = (json.loads(invoke(f"{ask} --seed {seed} --json").output) for seed in (1, 2))
    assert one != two
    assert one[0]["cheapest_share"] == round(one[0]["cheapest_share"] * 500) / 500
    row = json.loads(invoke(f"frontier {swept} --by model --show elasticity --step 0.1 --json").output)[0]
    assert (row["fact"], row["model"]) == ("bandwidth", "llama-3.3-70b-instruct")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("frontier x --draws 5", "--draws goes with --show robustness."),
        ("frontier x --show winners --step 0.1", "--step goes with --show elasticity."),
        ("frontier x --map a,b", "--map goes with --show winners or --show binding."),
        ("frontier x --show winners --best 2", "--best does not go with --show winners."),
        ("frontier x --show winners --pareto a:max", "give --pareto or --show winners, not both."),
        ("frontier x --show break-even --maximize tpot_mean_s", "--show break-even is about requests_per_usd"),
    ],
)
def test_questions_take_only_their_own_options(line: str, message: str) -> None:
    result = invoke(line)
    assert result.exit_code == 2
    assert message in result.stderr
