"""The frontier: who wins each group, by a total order, and what stops the others."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lambdamax
from lambdamax import columns
from lambdamax.exceptions import FrameError, StoreError
from lambdamax.spec import parse_spec
from lambdamax.store import part_paths

SPEC = parse_spec(
    {
        "name": "frontier",
        "replica": {
            "model": ["llama-3.3-70b-instruct", "llama-3.1-8b-instruct"],
            "gpu": ["mi300x", "h100-sxm", "a10"],
            "tp": [1, 2, 4],
            "weight_dtype": ["bf16", "fp8"],
        },
        "workload": {"isl_tokens": {"log": [128, 60_000, 12]}, "osl_tokens": {"log": [16, 2048, 6]}},
        "slo": {"tpot_s": [0.03, 0.05]},
        "output": {"part_rows": 1024},
    }
)
GROUPS: list[list[str] | None] = [[], ["model"], ["slo_tpot_s", "isl_tokens"], None]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("frontier")
    lambdamax.sweep(SPEC, out)
    return out


@pytest.fixture(scope="module")
def whole(directory: Path) -> pl.DataFrame:
    return pl.concat(map(pl.read_parquet, part_paths(directory)))


def slow(points: pl.DataFrame, by: list[str], maximize: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The best row by group and gpu, found by looking at every row."""
    names = [column.name for column in columns.point_columns()]
    best: dict[tuple[Any, ...], tuple[Any, dict[str, Any]]] = {}
    for row in points.iter_rows(named=True):
        if row["status"] == "ok":
            ties = [(row[name] is None, 0 if row[name] is None else row[name]) for name in names]
            key, order = tuple(row[name] for name in [*by, "gpu"]), (-row[maximize], ties)
            if key not in best or order < best[key][0]:
                best[key] = order, row
    return {key: row for key, (_, row) in best.items()}


@pytest.mark.parametrize("maximize", ["requests_per_usd", "tpot_floor_s"])
@pytest.mark.parametrize("by", GROUPS[:3], ids=str)
def test_the_best_of_each_group_and_gpu_is_found(whole: pl.DataFrame, by: list[str], maximize: str) -> None:
    found = lambdamax.frontier(whole, by=by, maximize=maximize)
    expected = slow(whole, by, maximize)
    ranked = found.filter(pl.col("rank").is_not_null())
    assert ranked.height == len(expected)
    for row in ranked.iter_rows(named=True):
        best = expected[tuple(row[name] for name in [*by, "gpu"])]
        assert {name: row[name] for name in best} == best


@pytest.mark.parametrize("by", GROUPS, ids=str)
def test_the_table_does_not_depend_on_where_the_points_come_from(
    directory: Path, whole: pl.DataFrame, by: list[str] | None
) -> None:
    sources: list[Callable[[], Any]] = [
        lambda: str(directory),
        whole.lazy,
        lambda: whole.sample(fraction=1, shuffle=True, seed=7),
        lambda: lambdamax.scan(SPEC),
    ]
    expected = lambdamax.frontier(directory, by=by)
    assert all(lambdamax.frontier(source(), by=by).equals(expected) for source in sources)


def test_ranks_follow_the_objective_and_shares_are_of_the_winner(directory: Path) -> None:
    table = lambdamax.frontier(directory, by=["model"])
    for _, group in table.filter(pl.col("rank").is_not_null()).group_by("model"):
        ranked = group.sort("rank")
        assert ranked["rank"].to_list() == list(range(1, ranked.height + 1))
        assert ranked["requests_per_usd"].is_sorted(descending=True)
        assert ranked["share_of_best"][0] == 1
        assert ranked.select("binding_limit", "next_limit").null_count().sum_horizontal()[0] == 0


def test_a_gpu_that_cannot_win_is_listed_with_its_reasons(directory: Path, whole: pl.DataFrame) -> None:
    table = lambdamax.frontier(directory, by=["model"])
    lost = table.filter((pl.col("model") == "llama-3.3-70b-instruct") & (pl.col("gpu") == "a10")).row(0, named=True)
    points = whole.filter((pl.col("model") == "llama-3.3-70b-instruct") & (pl.col("gpu") == "a10"))
    assert lost["rank"] is lost["requests_per_usd"] is lost["binding_limit"] is None
    assert (lost["points"], lost["points_ok"]) == (points.height, 0)
    statuses = points["status"].cast(pl.String).value_counts().sort(["count", "status"], descending=[True, False])
    assert lost["refused"] == ", ".join(f"{status} {count}" for status, count in statuses.iter_rows())


def test_ties_go_to_the_smaller_value_of_the_first_column_that_differs() -> None:
    rows = [
        {"model": "m", "gpu": "a", "tp": tp, "isl_tokens": isl, "status": "ok", "requests_per_usd": value}
        for tp, isl, value in [(4, 1.0, 5.0), (2, 9.0, 5.0), (2, None, 5.0), (2, 8.0, 5.0), (1, 1.0, 4.0)]
    ]
    winner = lambdamax.frontier(pl.DataFrame(rows), by=[]).row(0, named=True)
    assert (winner["tp"], winner["isl_tokens"]) == (2, 8.0)


def test_hardware_is_not_the_only_thing_to_compare(whole: pl.DataFrame) -> None:
    table = lambdamax.frontier(whole, by=["model", "gpu"], compare="tp")
    assert table.columns[:4] == ["model", "gpu", "tp", "rank"]
    assert table.height == 2 * 3 * 3


def test_columns_that_are_not_there_are_named_at_once(whole: pl.DataFrame) -> None:
    with pytest.raises(FrameError) as caught:
        lambdamax.frontier(whole, maximize="speed", by=["city"], compare="color")
    assert [(fault.key, fault.value) for fault in caught.value.faults] == [
        ("by", "city"),
        ("compare", "color"),
        ("maximize", "speed"),
    ]
    with pytest.raises(FrameError, match="status = nothing"):
        lambdamax.frontier(whole.drop("status"))
    with pytest.raises(FrameError, match="no rows"):
        lambdamax.frontier(whole.head(0))


def test_a_difference_beyond_nine_digits_is_a_tie() -> None:
    point = {"model": "m", "gpu": "g", "status": "ok", "requests_per_usd": 3000.0}
    points = pl.DataFrame(
        [
            point | {"max_num_batched_tokens": 16384.0, "requests_per_usd": 3000.0 * (1 + 1e-12)},
            point | {"max_num_batched_tokens": 2048.0},
        ]
    )
    assert lambdamax.frontier(points, by=["model"])["max_num_batched_tokens"].to_list() == [2048.0]


@pytest.mark.parametrize("by", GROUPS, ids=str)
@pytest.mark.parametrize("block_rows", [7, 65_536])
def test_what_is_written_block_by_block_is_what_is_returned(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: list[str] | None, block_rows: int
) -> None:
    monkeypatch.setattr("lambdamax.chunks.BLOCK_ROWS", block_rows)
    expected = lambdamax.frontier(directory, by=by, best=2)
    for source in (directory, lambdamax.scan(SPEC)):
        done = lambdamax.write_frontier(source, tmp_path / "best.parquet", by=by, best=2)
        found = pl.read_parquet(done.path)
        assert found.schema == expected.schema
        assert found.equals(expected)
        once = expected.unique(expected.columns[: expected.columns.index("rank")])
        assert (done.rows, done.points, done.points_ok) == (
            expected.height,
            once["points"].sum(),
            once["points_ok"].sum(),
        )
    assert [path.name for path in tmp_path.iterdir()] == ["best.parquet"]


def test_a_file_that_cannot_be_filled_is_left_as_it_was(directory: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "sweep"
    shutil.copytree(directory, damaged)
    part = part_paths(damaged)[-1]
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    out = tmp_path / "best.parquet"
    out.write_bytes(b"before")
    with pytest.raises(StoreError, match=f"{part.name}: it is not the part that the sweep wrote") as caught:
        lambdamax.write_frontier(damaged, out)
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(StoreError, match=r"best\.parquet: it cannot be written"):
        lambdamax.write_frontier(directory, tmp_path / "nowhere" / "best.parquet")
    assert out.read_bytes() == b"before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.parquet", "sweep"]


def test_readers_at_work_at_once_do_not_change_the_answer(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = lambdamax.frontier(directory, by=["model"], best=3)
    for workers in (1, 3):
        monkeypatch.setattr(pl, "thread_pool_size", lambda workers=workers: workers)
        assert lambdamax.frontier(directory, by=["model"], best=3).equals(expected)


def test_ties_across_parts_go_to_the_smaller_value(directory: Path, whole: pl.DataFrame) -> None:
    """Weights are the same at all lengths, which are in all parts: nothing but ties decides."""
    found = lambdamax.frontier(directory, by=[], minimize="tpot_floor_s").filter(pl.col("rank").is_not_null())
    for row in found.iter_rows(named=True):
        equal = whole.filter((pl.col("gpu") == row["gpu"]) & (pl.col("status") == "ok"))
        equal = equal.filter(pl.col("tpot_floor_s") == equal["tpot_floor_s"].min())
        assert equal.height > 1
        assert (row["isl_tokens"], row["osl_tokens"]) == (equal["isl_tokens"].min(), equal["osl_tokens"].min())
