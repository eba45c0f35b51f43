"""`scan`: a grid behaves as the frame it stands for, and only the rows that a query needs are solved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

import lambdamax
from lambdamax import columns
from lambdamax.catalog import load_catalog
from lambdamax.grid import Grid
from lambdamax.spec import Spec, parse_spec

Query = Callable[[pl.LazyFrame], pl.LazyFrame]
SPEC = parse_spec(
    {
        "name": "scan",
        "replica": {
            "model": ["llama-3.3-70b-instruct", "llama-3.1-8b-instruct"],
            "gpu": ["mi300x", "h100-sxm"],
            "tp": [1, 2, 4],
            "weight_dtype": ["bf16", "fp8"],
        },
        "workload": {"isl_tokens": {"log": [128, 60_000, 30]}, "osl_tokens": {"log": [16, 2048, 20]}},
        "slo": {"tpot_s": [0.03, 0.05]},
        "price": {"plan": ["on-demand", "spot"]},
    }
)
POINTS = 57_600


@pytest.fixture(scope="module")
def whole() -> pl.DataFrame:
    grid = Grid.of(SPEC, load_catalog())
    return grid.solve(0, grid.points)


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of rows that the engine is asked for."""
    rows: list[int] = []
    solve = Grid.solve

    def counting(self: Grid, start: int, stop: int, **options: Any) -> pl.DataFrame:
        rows.append(stop - start)
        return solve(self, start, stop, **options)

    monkeypatch.setattr(Grid, "solve", counting)
    return rows


col = pl.col
QUERIES: dict[str, tuple[Query, int]] = {
    "everything": (lambda rows: rows, POINTS),
    "no rows": (lambda rows: rows.head(0), 0),
    "first rows": (lambda rows: rows.head(5), 5),
    "last rows": (lambda rows: rows.tail(3), POINTS),
    "length": (lambda rows: rows.select(pl.len()), 0),
    "axes only": (lambda rows: rows.filter(col("tp") == 2).select("gpu", "isl_tokens"), 0),
    "one axis": (lambda rows: rows.filter(col("gpu") == "h100-sxm"), POINTS // 2),
    "no value of an axis": (lambda rows: rows.filter(col("isl_tokens") < 0), 0),
    "two axes": (lambda rows: rows.filter(col("tp") > 1, col("price_plan") == "spot"), POINTS // 3),
    "a list": (lambda rows: rows.filter(col("model").is_in(["llama-3.1-8b-instruct"])), POINTS // 2),
    "negation": (lambda rows: rows.filter(~(col("gpu") == "h100-sxm")), POINTS // 2),
    "axes that depend on each other": (
        lambda rows: rows.filter(col("isl_tokens") + col("osl_tokens") < 300),
        POINTS // 4,
    ),
    "either of two axes": (
        lambda rows: rows.filter((col("gpu") == "mi300x") & (col("tp") == 1) | (col("tp") == 4)),
        POINTS * 3 // 4,
    ),
    "an axis and an answer": (
        lambda rows: rows.filter((col("gpu") == "mi300x") & (col("max_rate_rps") > 1)).select("max_rate_rps"),
        POINTS // 2,
    ),
    "an answer": (lambda rows: rows.filter(col("binding_limit") == "tpot_slo").select("isl_tokens"), POINTS),
    "a null answer": (lambda rows: rows.filter(col("max_rate_rps").is_null()), POINTS),
    "an axis or an answer": (lambda rows: rows.filter((col("tp") == 1) | (col("max_rate_rps") > 1)), POINTS),
    "first rows, then a filter": (lambda rows: rows.head(2_000).filter(col("osl_tokens") > 500), 2_000),
    "a filter, then first rows": (
        lambda rows: rows.filter(col("tp") == 2, col("max_rate_rps") > 1).head(5),
        POINTS // 3,
    ),
    "a defaulted input": (lambda rows: rows.filter(col("utilization_cap") == 0.9, col("isl_cv") > 0), 0),
    "an input of the engine": (lambda rows: rows.filter(col("max_num_seqs") > 0), POINTS),
    "an aggregate": (lambda rows: rows.filter(col("tp") == 4).select(col("max_rate_rps").max()), POINTS // 3),
}


@pytest.mark.parametrize(("query", "most"), QUERIES.values(), ids=QUERIES.keys())
@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_a_query_gives_the_same_rows_as_on_the_solved_frame_and_solves_no_more_than_it_needs(
    query: Query, most: int, engine: Any, whole: pl.DataFrame, solved: list[int]
) -> None:
    found = query(lambdamax.scan(SPEC)).collect(engine=engine)
    expected = query(whole.lazy()).collect(engine="in-memory")
    if engine == "streaming":
        order = found.columns
        found, expected = found.sort(order), expected.sort(order)
    assert found.equals(expected)
    assert sum(solved) <= most


def test_building_a_query_solves_nothing(solved: list[int]) -> None:
    rows = lambdamax.scan(SPEC).filter(pl.col("status") == "ok")
    assert rows.collect_schema().names() == [column.name for column in columns.point_columns()]
    assert not solved


def test_a_huge_grid_costs_nothing_until_asked(solved: list[int]) -> None:
    wide = {"linear": [0.5, 1, 100_000]}
    spec = SPEC.model_copy(update={"slo": type(SPEC.slo).model_validate({"tpot_s": wide, "ttft_s": wide})})
    fits = (pl.col("model") == "llama-3.1-8b-instruct") & (pl.col("isl_tokens") > 1000)
    found = lambdamax.scan(spec).filter(fits, pl.col("status") == "ok").head(3).collect()
    assert found.height == 3
    assert sum(solved) < 2_000_000


def test_the_same_rows_from_a_spec_and_its_file(tmp_path: Any) -> None:
    file = tmp_path / "a.toml"
    file.write_text(
        'name = "a"\n[replica]\nmodel = "qwen3-8b"\ngpu = "h100-sxm"\ntp = [1, 2]\n'
        "[workload]\nisl_tokens = [100, 1000]\nosl_tokens = 100\n"
    )
    raw = {
        "name": "a",
        "replica": {"model": "qwen3-8b", "gpu": "h100-sxm", "tp": [1, 2]},
        "workload": {"isl_tokens": [100, 1000], "osl_tokens": 100},
    }
    assert lambdamax.scan(file).collect().equals(lambdamax.scan(Spec.model_validate(raw)).collect())
