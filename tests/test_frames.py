"""`solve` and `load` on frames: columns kept, rows in order, every fault at once."""

from __future__ import annotations

import math
from typing import Any

import polars as pl
import pytest

import lambdamax
from lambdamax import columns
from lambdamax.exceptions import FrameError

POINT = {"model": "llama-3.1-8b-instruct", "gpu": "h100-sxm", "isl_tokens": 1500, "osl_tokens": 300}


def frame(*rows: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame([{**POINT, **row} for row in rows], infer_schema_length=None)


def faults(points: pl.DataFrame | pl.LazyFrame) -> list[tuple[str, str]]:
    with pytest.raises(FrameError) as caught:
        lambdamax.solve(points)
    assert all(fault.allowed for fault in caught.value.faults)
    return [(fault.key, fault.value) for fault in caught.value.faults]


def test_columns_and_order_are_kept_and_answers_appended() -> None:
    points = frame({"tp": 4}, {"tp": 1}, {"tp": 2}, {"tp": 1})
    solved = lambdamax.solve(points)
    answers = columns.of_groups("answer", "operating", "money")
    assert solved.columns == [*points.columns, *(column.name for column in answers)]
    assert solved.select(points.columns).equals(points)
    assert solved["gpus"].to_list() == [4, 1, 2, 1]
    assert solved.row(1) == solved.row(3)


def test_a_lazy_frame_is_solved_in_its_own_order() -> None:
    points = frame(*({"isl_tokens": 10 + row} for row in range(5_000)))
    assert lambdamax.solve(points.lazy().with_columns(pl.col("osl_tokens") + 1))["isl_tokens"].is_sorted()


def test_missing_values_take_the_default() -> None:
    bare = lambdamax.solve(frame({}))
    named = {"tp": None, "kv_dtype": None, "isl_cv": math.nan, "utilization_cap": None, "provider": None}
    nulls = lambdamax.solve(frame(named))
    assert nulls.select(bare.columns).equals(bare)


def test_names_may_be_categories() -> None:
    points = frame({}, {"gpu": "mi300x"})
    coded = points.with_columns(
        pl.col("gpu").cast(pl.Enum(["mi300x", "h100-sxm"])), pl.col("model").cast(pl.Categorical)
    )
    answers = pl.all().exclude("gpu", "model")
    assert lambdamax.solve(coded).select(answers).equals(lambdamax.solve(points).select(answers))


def test_a_price_in_the_frame_comes_before_the_catalogue() -> None:
    solved = lambdamax.solve(frame({"usd_per_accelerator_hour": 2.5}, {"usd_per_accelerator_hour": None}))
    listed = lambdamax.load_catalog().price("h100-sxm", "on-demand", "median")
    assert listed is not None
    assert solved["cost_usd_per_hour"].to_list() == [2.5, listed.usd_per_accelerator_hour]


def test_every_fault_comes_at_once_with_its_row() -> None:
    rows = [
        {"isl_tokens": -5.0, "gpu": "h100", "tp": 1.5, "osl_cv": math.inf, "colour": "red", "model": None},
        {"isl_tokens": -6.0, "gpu": "h100-sxm", "tp": 2.0, "osl_cv": 0.0, "colour": "red", "model": POINT["model"]},
    ]
    assert faults(frame(*rows)) == [
        ("colour", "an unknown column"),
        ("model[0]", "null"),
        ("gpu[0]", "'h100'"),
        ("tp[0]", "1.5"),
        ("isl_tokens[0]", "-5 (and 1 more rows)"),
        ("osl_cv[0]", "inf"),
    ]


def test_wrong_types_and_missing_columns_are_named() -> None:
    points = frame({"tp": "4", "isl_cv": True, "engine": 3}).drop("osl_tokens")
    assert faults(points) == [
        ("osl_tokens", "nothing"),
        ("tp", "type String"),
        ("engine", "type Int64"),
        ("isl_cv", "type Boolean"),
    ]


def test_an_answer_is_no_input() -> None:
    assert faults(frame({"max_rate_rps": 3.0})) == [("max_rate_rps", "an unknown column")]


def test_a_frame_without_rows_has_answers_without_rows() -> None:
    solved = lambdamax.solve(frame({}).head(0))
    assert solved.shape == (0, 4 + len(columns.of_groups("answer", "operating", "money")))


def test_a_point_that_cannot_be_solved_is_a_row() -> None:
    rows: list[dict[str, Any]] = [
        {"model": "llama-3.1-405b", "tp": 1},
        {"tp": 3},
        {"slo_tpot_s": 1e-6},
        {"gpu": "tpu-v7x", "provider": "AWS"},
    ]
    statuses = lambdamax.solve(frame(*rows))["status"].to_list()
    assert statuses[:3] == ["does_not_fit", "invalid_parallelism", "slo_unreachable"]
    assert statuses[3] in {"no_price", "unsupported"}


def test_an_open_loop_below_and_above_the_limit() -> None:
    solved = lambdamax.solve(frame({"tp": 1}))
    hard = solved["max_rate_rps"][0] / 0.9
    loaded = lambdamax.load(frame({"rate_rps": 0.5 * hard}, {"rate_rps": 2 * hard}))
    assert loaded["load_status"].to_list() == ["ok", "unstable"]
    assert loaded["rate_rps"].to_list() == [0.5 * hard, 2 * hard]
    assert loaded["excess"][1] == pytest.approx(1.0)
    assert loaded["in_flight"][0] == pytest.approx(0.5 * hard * loaded["e2e_mean_s"][0])


def test_a_closed_loop_keeps_its_clients() -> None:
    rows: list[dict[str, Any]] = [{"concurrency": 64, "think_time_s": 5.0}, {"concurrency": 64, "think_time_s": None}]
    loaded = lambdamax.load(frame(*rows, {"concurrency": 100_000, "think_time_s": 0.0}))
    assert loaded["load_status"].to_list() == ["ok", "ok", "saturated"]
    for row in loaded.head(2).iter_rows(named=True):
        clients = row["rate_rps"] * (row["e2e_mean_s"] + (row["think_time_s"] or 0))
        assert clients == pytest.approx(row["concurrency"])
    assert loaded["seat_wait_s"][2] > 0


@pytest.mark.parametrize("load", [{}, {"rate_rps": 1.0, "concurrency": 3}, {"rate_rps": 1.0, "think_time_s": 1.0}])
def test_a_load_is_a_rate_or_a_concurrency(load: dict[str, float]) -> None:
    with pytest.raises(FrameError):
        lambdamax.load(frame(load))


def test_a_load_is_needed_in_every_row() -> None:
    with pytest.raises(FrameError, match=r"rate_rps\[1\] = null"):
        lambdamax.load(frame({"rate_rps": 1.0}, {"rate_rps": None}))
