"""The column dictionary agrees with itself, with the engine and with the sweep file."""

from __future__ import annotations

import math
import re

import polars as pl
import pytest

from lambdamax import _engine, bands, columns, spec
from lambdamax.columns import Column
from lambdamax.solving import solve

ALL = tuple(columns.dictionary().values())
ASKED = tuple(column for column in ALL if column.role != "answer")
UNIT_OF_SUFFIX = {
    "_tok_s": "tokens/s",
    "_tok_s_per_gpu": "tokens/s",
    "_rps": "requests/s",
    "_bytes": "bytes",
    "_tokens": "tokens",
    "_usd_per_hour": "USD/h",
    "_per_accelerator_hour": "USD/h",
    "_per_usd": "requests/USD",
    "_s": "s",
}
WITHOUT_SUFFIX = {
    "1": "isl_cv osl_cv arrival_cv slo_percentile prefix_hit_share memory_utilization utilization_cap prefill_share "
    "utilization kv_use residual excess sim_kv_use sim_preemptions_per_request",
    "requests": "in_flight running decoding waiting concurrency sim_in_flight sim_in_flight_half_width sim_waiting "
    "sim_requests",
    "USD": "usd_per_mtok_output usd_per_mtok_total",
}


@pytest.mark.parametrize("column", ALL, ids=lambda column: column.name)
def test_every_column_is_described(column: Column) -> None:
    assert re.fullmatch(r"[a-z0-9_]+", column.name)
    assert column.meaning
    assert column.type in {"text", "f64", "u32", "u16"}
    assert column.role in {"given", "chosen", "asked", "answer"}
    assert (column.unit == "") == column.is_text


@pytest.mark.parametrize("column", [column for column in ALL if column.type == "f64"], ids=lambda column: column.name)
def test_a_float_ends_in_its_unit_or_is_on_the_short_list(column: Column) -> None:
    suffix = next((suffix for suffix in UNIT_OF_SUFFIX if column.name.endswith(suffix)), None)
    listed = [unit for unit, names in WITHOUT_SUFFIX.items() if column.name in names.split()]
    assert column.unit in (listed or [UNIT_OF_SUFFIX[suffix or ""]])


@pytest.mark.parametrize("column", ASKED, ids=lambda column: column.name)
def test_an_input_number_is_bounded_and_its_default_allowed(column: Column) -> None:
    if column.is_text:
        assert column.minimum is column.maximum is None
        return
    assert column.minimum is not None
    assert column.maximum is not None
    assert not column.admits(math.nan)
    assert not column.admits(math.inf)
    assert not column.admits(column.minimum - 1)
    assert not column.default or column.admits(float(column.default))


def test_the_engine_has_the_same_numbers() -> None:
    numbers = [column.name for column in columns.inputs() if not column.is_text and column.group != "replica"]
    groups = columns.of_groups("answer", "operating", "money")
    answers = [column.name for column in groups if not column.is_text and column.name not in bands.COLUMNS]
    assert ["lengths", *numbers] == list(_engine.POINT_FIELDS)
    assert sorted(answers) == sorted(_engine.ANSWER_FIELDS)
    assert set(_engine.LOAD_FIELDS) <= set(columns.dictionary())


def test_the_engine_has_the_same_names_in_the_same_order() -> None:
    assert columns.column("status").values == _engine.STATUSES
    assert columns.column("binding_limit").values == columns.column("next_limit").values == _engine.LIMITS
    assert columns.column("load_status").values == _engine.LOAD_STATUSES
    assert [column.name for column in columns.of_groups("replica")] == list(_engine.REPLICA_AXES)


def test_every_input_is_a_key_of_the_sweep_file_and_the_other_way_round() -> None:
    tables = {table: set(spec.Spec.model_fields[table].annotation.model_fields) for table in columns.INPUT_GROUPS}  # type: ignore[union-attr]
    keys = {f"{table}.{field}" for table, fields in tables.items() for field in fields}
    assert keys == {column.key for column in columns.inputs()}


def test_the_defaults_are_those_of_the_sweep_file() -> None:
    tables = {table: spec.Spec.model_fields[table].annotation for table in columns.INPUT_GROUPS}
    for column in columns.inputs():
        table, field = column.key.split(".")
        default = tables[table].model_fields[field].get_default()  # type: ignore[union-attr]
        values = default if isinstance(default, tuple) else ()
        shown = [value if column.is_text else f"{value:g}" for value in values]
        assert shown == ([column.default] if column.default else []), column.name


def test_the_defaults_are_those_of_the_engine() -> None:
    point = {"model": "llama-3.1-8b-instruct", "gpu": "h100-sxm", "isl_tokens": 1500, "osl_tokens": 300}
    stated = {
        column.name: column.default if column.is_text else float(column.default)
        for column in columns.inputs()
        if column.default
    }
    bare, full = (solve(pl.DataFrame([row])) for row in (point, {**point, **stated}))
    answers = [column.name for column in columns.of_groups("answer", "operating", "money")]
    assert bare.select(answers).equals(full.select(answers))
