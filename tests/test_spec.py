"""A sweep file is taken whole or refused with every fault named."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from lambdamax import columns
from lambdamax.exceptions import Fault, SpecError
from lambdamax.spec import MAX_POINTS, Spec, parse_spec, read_spec

SHAPE = "{ log = [lo, hi, n] } or { linear = [lo, hi, n] }"


def content(**changes: dict[str, Any]) -> dict[str, Any]:
    """A small sweep, with tables changed."""
    base: dict[str, dict[str, Any]] = {
        "replica": {"model": "llama-3.1-8b-instruct", "gpu": "h100-sxm"},
        "workload": {"isl_tokens": 1500, "osl_tokens": 300},
    }
    return {"name": "small"} | {table: base.get(table, {}) | changes.get(table, {}) for table in base | changes}


def faults(raw: dict[str, Any]) -> list[tuple[str, str, str]]:
    with pytest.raises(SpecError) as caught:
        parse_spec(raw, file="a.toml")
    assert all(fault.file == "a.toml" for fault in caught.value.faults)
    return [(fault.key, fault.value, fault.allowed) for fault in caught.value.faults]


def test_axes_come_in_the_order_of_the_dictionary_with_defaults() -> None:
    axes = parse_spec(content(slo={"tpot_s": [0.03, 0.05]}, scheduler={"max_num_seqs": 256})).axes
    assert list(axes) == [column.name for column in columns.inputs() if column.name in axes]
    assert axes["slo_tpot_s"] == (0.03, 0.05)
    assert axes["tp"] == (1,)
    assert axes["max_num_seqs"] == (256,)
    assert axes["price_plan"] == ("on-demand",)
    assert "slo_ttft_s" not in axes
    assert "memory_bytes" not in axes


def test_the_grid_is_the_product_of_the_axes() -> None:
    spec = parse_spec(content(replica={"tp": [1, 2, 4]}, workload={"isl_tokens": {"linear": [100, 1000, 10]}}))
    assert spec.points == 30


def test_a_log_range_of_tokens_is_whole_and_keeps_its_ends() -> None:
    values = parse_spec(content(workload={"isl_tokens": {"log": [128, 32768, 9]}})).axes["isl_tokens"]
    assert values == (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


def test_a_range_of_anything_else_keeps_its_ends_and_twelve_digits() -> None:
    values = parse_spec(content(slo={"tpot_s": {"log": [0.01, 0.1, 3]}})).axes["slo_tpot_s"]
    assert values == (0.01, 0.0316227766017, 0.1)


def test_a_spec_cannot_be_changed() -> None:
    spec = parse_spec(content())
    with pytest.raises(ValidationError):
        spec.name = "other"


def test_a_price_that_is_given_takes_the_place_of_plan_and_provider() -> None:
    axes = parse_spec(content(price={"usd_per_accelerator_hour": [2.0, 2.5]})).axes
    assert axes["usd_per_accelerator_hour"] == (2.0, 2.5)
    assert axes["provider"] == axes["price_plan"] == ("given",)


BAD: list[tuple[dict[str, Any], str, str, str]] = [
    ({"workload": {"isl_tokns": 3}}, "workload.isl_tokns", "3", "did you mean isl_tokens?"),
    ({"workload": {"isl_tokens": "8"}}, "workload.isl_tokens", '"8"', SHAPE),
    ({"workload": {"isl_tokens": True}}, "workload.isl_tokens", "true", SHAPE),
    ({"workload": {"isl_tokens": [8, "9"]}}, "workload.isl_tokens[1]", '"9"', "a number from 1"),
    ({"workload": {"isl_tokens": -5}}, "workload.isl_tokens", "-5", "a number from 1 to 100000000 tokens"),
    ({"workload": {"isl_tokens": math.nan}}, "workload.isl_tokens", "NaN", "a number from 1"),
    ({"workload": {"isl_tokens": 10**400}}, "workload.isl_tokens", "1000", "a number from 1"),
    ({"workload": {"isl_tokens": [10**5000]}}, "workload.isl_tokens[0]", "more digits", "a number from 1"),
    ({"workload": {"isl_tokens": []}}, "workload.isl_tokens", "[]", "at least one value"),
    ({"workload": {"isl_tokens": [8, 8.0]}}, "workload.isl_tokens", "8", "each value once"),
    (
        {"workload": {"isl_tokens": {"log": [1, 20, 40]}}},
        "workload.isl_tokens.log[2]",
        "40",
        "19 are left",
    ),
    ({"workload": {"isl_tokens": {"log": [20, 1, 4]}}}, "workload.isl_tokens.log", "[20, 1, 4]", "lo smaller than hi"),
    ({"workload": {"isl_tokens": {"log": [1, 20]}}}, "workload.isl_tokens.log", "[1, 20]", "three numbers"),
    ({"workload": {"isl_tokens": {"log": [1, 20, 1e18]}}}, "workload.isl_tokens.log[2]", "1e+18", "from 2 to 1000000"),
    (
        {"workload": {"isl_tokens": {"log": [1, 20, math.inf]}}},
        "workload.isl_tokens.log[2]",
        "Infinity",
        "from 2 to 1000000",
    ),
    ({"workload": {"isl_tokens": {"log": ["1", 20, 3]}}}, "workload.isl_tokens.log[0]", '"1"', "a number from 1"),
    ({"workload": {"isl_tokens": {"cube": [1, 20, 3]}}}, "workload.isl_tokens", "cube", SHAPE),
    ({"workload": {"isl_cv": {"log": [0, 1, 3]}}}, "workload.isl_cv.log[0]", "0", "larger than 0 in a log range"),
    ({"scheduler": {"max_num_seqs": 1.5}}, "scheduler.max_num_seqs", "1.5", "a whole number from 1"),
    ({"scheduler": {"memory_utilization": 92}}, "scheduler.memory_utilization", "92", "from 0.01 to 1"),
    ({"slo": {"tpot_s": 0}}, "slo.tpot_s", "0", "from 1e-06 to 1000000 s"),
    ({"slo": {"tpot_ms": 30}}, "slo.tpot_ms", "30", "did you mean tpot_s?"),
    (
        {"replica": {"model": "llama-3.1-8b-instuct"}},
        "replica.model",
        '"llama-3.1-8b-instuct"',
        "llama-3.1-8b-instruct",
    ),
    ({"replica": {"model": 8}}, "replica.model", "8", "or the path of a config.json"),
    ({"replica": {"model": ""}}, "replica.model", '""', "or the path of a config.json"),
    ({"replica": {"model": "nowhere/config.json"}}, "replica.model", '"nowhere/config.json"', "a readable model file"),
    ({"replica": {"gpu": ["h100-sxm", "h100"]}}, "replica.gpu[1]", '"h100"', "h100-sxm"),
    ({"replica": {"tp": 0}}, "replica.tp", "0", "a whole number from 1 to 1024"),
    ({"replica": {"weight_dtype": "bf8"}}, "replica.weight_dtype", '"bf8"', "bf16"),
    ({"replica": {"profile": "nowhere.toml"}}, "replica.profile", '"nowhere.toml"', "a readable profile file"),
    ({"replica": {"engine": "tgi"}}, "replica.engine", '"tgi"', "one of vllm"),
    ({"price": {"plan": "ondemand"}}, "price.plan", '"ondemand"', "one of on-demand, reserved, spot"),
    ({"price": {"provider": "Nobody"}}, "price.provider", '"Nobody"', "provider"),
    ({"price": {"usd_per_accelerator_hour": 2, "plan": "spot"}}, "price.plan", '["spot"]', "nothing beside"),
    ({"output": {"part_rows": True}}, "output.part_rows", "true", "a whole number from 1024 to 4194304"),
    ({"output": {"part_rows": 7}}, "output.part_rows", "7", "a whole number from 1024 to 4194304"),
]


@pytest.mark.parametrize(("changes", "key", "value", "allowed"), BAD, ids=[f"{bad[1]}={bad[2]}" for bad in BAD])
def test_a_bad_value_is_named_with_its_key_and_what_is_allowed(
    changes: dict[str, Any], key: str, value: str, allowed: str
) -> None:
    (fault,) = faults(content(**changes))
    assert fault[0] == key
    assert value in fault[1]
    assert allowed in fault[2]


def test_a_gpu_without_a_price_under_the_plans_asked_for_is_a_fault() -> None:
    raw = content(replica={"gpu": ["h100-sxm", "rtx-5090"]}, price={"plan": "reserved", "provider": "AWS"})
    assert [(key, "rtx-5090" in value) for key, value, _ in faults(raw) if "rtx-5090" in value] == [("price", True)]


def test_missing_tables_and_keys_are_named() -> None:
    assert [(key, value) for key, value, _ in faults({"replica": {"gpu": "h100-sxm"}, "workload": 3})] == [
        ("name", "nothing"),
        ("replica.model", "nothing"),
        ("workload", "3"),
    ]


def test_all_faults_come_at_once() -> None:
    raw = content(
        replica={"gpu": ["h100", "h200"], "tp": [0, -1]}, workload={"osl_tokens": 1}, slo={"ttft_s": "1", "x": 1}
    )
    raw |= {"name": 3, "color": "red"}
    keys = {key for key, _, _ in faults(raw)}
    assert keys == {
        "name",
        "color",
        "replica.gpu[0]",
        "replica.gpu[1]",
        "replica.tp[0]",
        "replica.tp[1]",
        "workload.osl_tokens",
        "slo.ttft_s",
        "slo.x",
    }


def test_what_is_wrong_between_tables_comes_with_what_is_wrong_in_them() -> None:
    wide = {"linear": [0.001, 1, 250_000]}
    raw = content(
        replica={"gpu": ["h100-sxm", "rtx-5090"]},
        workload={"isl_tokens": []},
        slo={"ttft_s": wide, "tpot_s": wide, "e2e_s": wide},
        price={"plan": "reserved"},
    )
    assert [key for key, _, _ in faults(raw)] == ["workload.isl_tokens", "grid", "price"]
    raw["price"] = {"usd_per_accelerator_hour": 2, "plan": "spot"}
    assert [key for key, _, _ in faults(raw)] == ["workload.isl_tokens", "grid", "price.plan"]


def test_a_grid_too_large_to_count_is_refused_without_building_it() -> None:
    wide = {"linear": [0.001, 1, 250_000]}
    ((key, value, allowed),) = faults(content(slo={"ttft_s": wide, "tpot_s": wide, "e2e_s": wide}))
    assert key == "grid"
    assert value == f"{250_000**3} points"
    assert f"at most {MAX_POINTS} points" in allowed
    assert "slo.ttft_s (250000)" in allowed


def test_a_message_has_file_key_value_and_what_is_allowed(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(
        'name = "x"\n[replica]\nmodel = "qwen3-8b"\ngpu = "h100-sxm"\n[workload]\nisl_tokens = -1\nosl_tokens = 9\n'
    )
    with pytest.raises(SpecError) as caught:
        read_spec(file)
    assert str(caught.value) == f"{file}: workload.isl_tokens = -1: allowed: a number from 1 to 100000000 tokens"


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        (b'name = "x"\ncolor = ', r"a TOML file: Invalid value \(at line 2, column 9\)"),
        (b'name = "x"\n[replica\ntp = 1\n', r"a TOML file: Expected .* \(at line 2, column 9\)"),
        (b'name = "x', r"a TOML file: Unterminated string \(at line 1, column 10\)"),
        (b'name = "x"\nquestion = "\xff"\n', r"a sweep file in UTF-8 \(line 2 is not\)"),
        (b"a = " + b"[" * 5000, r"a TOML file, not nested as deeply|a TOML file: .* \(at line 1, column \d+\)"),
    ],
)
def test_a_file_that_is_not_toml_is_one_fault_with_its_place(tmp_path: Path, text: bytes, allowed: str) -> None:
    (tmp_path / "bad.toml").write_bytes(text)
    with pytest.raises(SpecError, match=rf"bad\.toml: allowed: ({allowed})$") as caught:
        read_spec(tmp_path / "bad.toml")
    assert len(caught.value.faults) == 1


def test_an_empty_file_lacks_all_that_is_required(tmp_path: Path) -> None:
    (tmp_path / "empty.toml").write_bytes(b"")
    with pytest.raises(SpecError) as caught:
        read_spec(tmp_path / "empty.toml")
    assert [(fault.key, fault.value) for fault in caught.value.faults] == [
        ("name", "nothing"),
        ("replica", "nothing"),
        ("workload", "nothing"),
    ]
    assert all("(required)" in fault.allowed for fault in caught.value.faults)


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    text = 'name = "x"\n[replica]\nmodel = "qwen3-8b"\ngpu = "h100-sxm"\n[workload]\nisl_tokens = 9\nosl_tokens = 9\n'
    (tmp_path / "bom.toml").write_text(text, encoding="utf-8-sig")
    assert read_spec(tmp_path / "bom.toml").name == "x"


def test_a_file_that_cannot_be_read_is_one_fault(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none\.toml: allowed: a readable sweep file \(No such file"):
        read_spec(tmp_path / "none.toml")
    with pytest.raises(SpecError, match="a readable sweep file"):
        read_spec(tmp_path)


def config_json() -> str:
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8, "vocab_size": 32000}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 4, "tie_word_embeddings": False}
    return json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama", **sizes, **heads})


def test_a_model_may_be_the_path_of_a_config_next_to_the_sweep_file(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(config_json())
    replica = 'name = "x"\n[replica]\nmodel = "tiny/config.json"\ngpu = "h100-sxm"\n'
    (tmp_path / "a.toml").write_text(f"{replica}[workload]\nisl_tokens = 9\nosl_tokens = 9\n")
    assert read_spec(tmp_path / "a.toml").axes["model"] == (str(tmp_path / "tiny" / "config.json"),)


def test_two_files_of_one_name_cannot_be_told_apart(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder / "tiny").mkdir(parents=True)
        (tmp_path / folder / "tiny" / "config.json").write_text(config_json())
    raw = content(replica={"model": [str(tmp_path / folder / "tiny" / "config.json") for folder in ("a", "b")]})
    assert faults(raw) == [("replica.model", '"tiny" twice', "each value once")]


def test_a_spec_can_be_made_in_python() -> None:
    assert Spec.model_validate(content()).points == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["log", "linear", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(column=st.sampled_from(columns.inputs()), value=JSON)
def test_no_value_at_all_does_more_than_refuse(column: columns.Column, value: object) -> None:
    table, field = column.key.split(".")
    found: tuple[Fault, ...] = ()
    try:
        parse_spec(content(**{table: {field: value}}))
    except SpecError as error:
        found = error.faults
    assert all(fault.key and fault.allowed for fault in found)
