"""Every fact in the package data has a unit, a source and a date."""

from __future__ import annotations

import csv
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lambdamax

DATA = Path(lambdamax.__file__).parent / "data"
COLUMN_DICTIONARIES = {"columns.csv", "measured_columns.csv"}
SOURCE_COLUMNS = ("source", "source_url")
DATE_COLUMNS = ("date", "source_date")
UNIT_ENDINGS = ("_bytes", "_mib", "_gb", "_per_s", "_per_direction", "_flops", "_ops", "_w", "_usd_per_hour")
MORE_ENDINGS = ("_per_accelerator_hour", "_parameters_1e9")
COUNTS = {"scaleup_domain_size", "accelerators_per_instance", "pcie_gen", "minimum_tp"}
DATE = re.compile(r"(>=)?\d{4}(-\d\d(-\d\d)?)?$")
NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][-+]?\d+)?$")

TABLES = sorted(path for path in DATA.glob("*.csv") if path.name not in COLUMN_DICTIONARIES)
PROFILES = sorted((DATA / "profiles").glob("*.toml"))


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def first(row: dict[str, str], columns: tuple[str, ...]) -> str:
    return next((row[column] for column in columns if row.get(column)), "")


def test_there_is_data() -> None:
    assert {path.name for path in TABLES} >= {
        "accelerators.csv",
        "prices.csv",
        "models.csv",
        "dtypes.csv",
        "engines.csv",
    }
    assert PROFILES


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name)
def test_every_row_has_a_source_and_a_date(path: Path) -> None:
    for line, row in enumerate(rows(path), start=2):
        assert None not in row, f"{path.name}:{line} has more cells than columns"
        assert first(row, SOURCE_COLUMNS).strip(), f"{path.name}:{line} has no source"
        assert DATE.match(first(row, DATE_COLUMNS)), f"{path.name}:{line} has no date"


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name)
def test_every_number_has_a_unit(path: Path) -> None:
    for line, row in enumerate(rows(path), start=2):
        for column, cell in row.items():
            if NUMBER.match(cell) and column not in {*COUNTS, *DATE_COLUMNS, "unit"}:
                unit = row.get("unit") if column == "value" else column.endswith(UNIT_ENDINGS + MORE_ENDINGS)
                assert unit, f"{path.name}:{line}: {column} = {cell} has no unit"


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.name)
def test_every_constant_has_value_unit_source_date_and_note(path: Path) -> None:
    profile = tomllib.loads(path.read_text(encoding="utf-8"))
    constants: dict[str, Any] = {
        "relative_uncertainty": profile["relative_uncertainty"],
        **profile.get("constants", {}),
    }
    for name, constant in constants.items():
        assert isinstance(constant.get("value"), int | float), f"{path.name}: {name} has no value"
        assert DATE.match(constant.get("date", "")), f"{path.name}: {name} has no date"
        for key in ("unit", "source", "note"):
            assert constant.get(key), f"{path.name}: {name} has no {key}"


def test_every_measured_row_has_a_source_and_a_date() -> None:
    table = pl.read_parquet(DATA / "measured_rows.parquet")
    assert table.height > 2000
    assert table.select("source", "source_url", "date").null_count().row(0) == (0, 0, 0)
    assert all(DATE.match(date) for date in table["date"].unique())


def test_class_defaults_name_their_source() -> None:
    defaults = json.loads((DATA / "model_type_defaults.json").read_text(encoding="utf-8"))
    assert all(defaults[key] for key in ("source", "source_date", "unit"))


def test_every_config_is_in_the_index_and_the_other_way_round() -> None:
    indexed = {row["config_file"] for row in rows(DATA / "models.csv")}
    stored = {path.relative_to(DATA).as_posix() for path in (DATA / "model_configs").iterdir()}
    assert indexed == stored


def test_price_rows_that_do_not_count_say_why_and_follow_the_rule() -> None:
    for row in rows(DATA / "prices.csv"):
        assert bool(row["plan"]) != bool(row["left_out"]), row
        made_by_others = row["evidence_kind"] == "index" or row["provider"].startswith("market")
        assert row["plan"] == ("" if made_by_others else plan_of(row["pricing"])), row


def plan_of(pricing: str) -> str:
    if pricing in ("on-demand", "spot"):
        return pricing
    return "reserved" if re.fullmatch(r"\d+-year rental", pricing) else ""


def test_price_per_accelerator_is_the_quotient() -> None:
    for row in rows(DATA / "prices.csv"):
        quotient = float(row["instance_usd_per_hour"]) / float(row["accelerators_per_instance"])
        assert quotient == pytest.approx(float(row["usd_per_accelerator_hour"]), abs=1e-4), row
