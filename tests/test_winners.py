"""Winners and Pareto sets against a look at every point; sweeps that keep them alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lambdamax
from lambdamax import columns
from lambdamax.exceptions import FrameError, StoreError
from lambdamax.spec import parse_spec

STATUSES = columns.column("status").values
SPEC = parse_spec(
    {
        "name": "kept",
        "replica": {
            "model": ["llama-3.3-70b-instruct", "deepseek-v4-pro"],
            "gpu": ["mi300x", "h100-sxm", "mi355x", "a10"],
            "tp": [1, 2, 4],
            "weight_dtype": ["bf16", "fp8", "nvfp4"],
        },
        "workload": {"isl_tokens": {"log": [128, 60_000, 8]}, "osl_tokens": {"log": [16, 2048, 5]}},
        "scheduler": {"max_num_batched_tokens": [2048, 8192]},
        "slo": {"tpot_s": [0.03, 0.05]},
        "output": {"part_rows": 1024},
    }
)
EVERY = lambdamax.scan(SPEC)

# Few values, so that points tie, some of them only in nine digits.
VALUES = st.sampled_from([0.0, 1.0, 2.0, 2.0 * (1 + 1e-12), 3.0, -1.0, None])
POINTS = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["m", "n"]),
        "gpu": st.sampled_from(["b", "a", "c"]),
        "tp": st.integers(1, 3),
        "isl_tokens": st.sampled_from([1.0, 2.0, None]),
        "status": st.sampled_from(["ok", "ok", "ok", "no_price"]),
        "tpot_mean_s": VALUES,
        "gpus": st.integers(1, 2),
        "requests_per_usd": VALUES,
    }
)
SCHEMA = {"isl_tokens": pl.Float64, "tpot_mean_s": pl.Float64, "requests_per_usd": pl.Float64}
Row = dict[str, Any]


def framed(rows: list[Row]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema_overrides=SCHEMA).select(sorted(rows[0]))


def digits(value: float) -> float:
    return float(f"{value:.8e}")


def order(row: Row, signs: dict[str, float]) -> tuple[Any, ...]:
    """The total order of ties: objectives, then the columns of the dictionary."""
    best = [-sign * digits(row[name]) for name, sign in signs.items()]
    names = [column.name for column in columns.point_columns() if column.name in row]
    return (*best, *((row[name] is None, 0 if row[name] is None else row[name]) for name in names))


def grouped(rows: list[Row], keys: list[str], objectives: list[str]) -> dict[tuple[Any, ...], list[Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row["status"] == "ok" and all(row[name] is not None for name in objectives):
            groups.setdefault(tuple(row[name] for name in keys), []).append(row)
    return groups


def unbeaten(rows: list[Row], signs: dict[str, float]) -> list[Row]:
    """The Pareto set by a look at every pair; of equals the first by the total order."""

    def vector(row: Row) -> tuple[float, ...]:
        return tuple(sign * digits(row[name]) for name, sign in signs.items())

    def beats(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
        return a != b and all(x >= y for x, y in zip(a, b, strict=True))

    vectors = [vector(row) for row in rows]
    alive = [row for row in rows if not any(beats(other, vector(row)) for other in vectors)]
    first: dict[tuple[float, ...], Row] = {}
    for row in sorted(alive, key=lambda row: order(row, signs)):
        first.setdefault(vector(row), row)
    return list(first.values())


def same_point(found: Row, expected: Row) -> bool:
    return all(found[name] == value for name, value in expected.items())


@settings(deadline=None)
@given(st.lists(POINTS, min_size=1, max_size=60), st.integers(1, 4), st.booleans())
def test_the_best_points_are_those_of_a_look_at_every_point(rows: list[Row], best: int, smallest: bool) -> None:
    wanted = {"minimize": "tpot_mean_s"} if smallest else {"maximize": "requests_per_usd"}
    name = next(iter(wanted.values()))
    signs = {name: -1.0 if smallest else 1.0}
    table = lambdamax.frontier(framed(rows), by=["model", "isl_tokens"], best=best, **wanted)
    groups = grouped(rows, ["model", "isl_tokens", "gpu"], [name])
    for key, group in groups.items():
        expected = sorted(group, key=lambda row: order(row, signs))[:best]
        cells = zip(("model", "isl_tokens", "gpu"), key, strict=True)
        at = pl.all_horizontal(pl.col(column).eq_missing(pl.lit(value)) for column, value in cells)
        found = table.filter(at, pl.col("rank").is_not_null()).sort("rank").to_dicts()
        assert len(found) == len(expected)
        assert all(map(same_point, found, [{k: v for k, v in row.items() if k != "gpus"} for row in expected]))
    assert table["rank"].count() == sum(min(best, len(group)) for group in groups.values())
    counted = table.unique(["model", "isl_tokens", "gpu"])
    assert (counted["points"].sum(), counted["points_ok"].sum()) == (
        len(rows),
        sum(row["status"] == "ok" for row in rows),
    )


@settings(deadline=None)
@given(
    st.lists(POINTS, min_size=1, max_size=60),
    st.dictionaries(st.sampled_from(["requests_per_usd", "tpot_mean_s", "gpus"]), st.sampled_from(["max", "min"])),
    st.sampled_from([[], ["model"], ["model", "isl_tokens"]]),
)
def test_pareto_sets_are_those_of_a_look_at_every_pair(rows: list[Row], asked: dict[str, str], by: list[str]) -> None:
    asked = asked or {"requests_per_usd": "max"}
    signs = {name: 1.0 if direction == "max" else -1.0 for name, direction in asked.items()}
    found = lambdamax.pareto(framed(rows), asked, by=by).to_dicts()
    expected = [row for group in grouped(rows, by, list(asked)).values() for row in unbeaten(group, signs)]
    assert len(found) == len(expected)
    assert all(any(same_point(row, point) for row in found) for point in expected)


@settings(deadline=None)
@given(st.lists(POINTS, min_size=1, max_size=60), st.randoms())
def test_the_order_of_the_points_does_not_matter(rows: list[Row], random: Any) -> None:
    shuffled = random.sample(rows, len(rows))
    asked = {"requests_per_usd": "max", "tpot_mean_s": "min"}
    assert lambdamax.pareto(framed(shuffled), asked, by=["model"]).equals(
        lambdamax.pareto(framed(rows), asked, by=["model"])
    )
    assert lambdamax.frontier(framed(shuffled), by=[]).equals(lambdamax.frontier(framed(rows), by=[]))


def test_more_candidates_than_are_held_at_once_are_settled_on_the_way() -> None:
    count = 600_000
    points = pl.DataFrame({"model": "m", "gpu": "g", "status": "ok", "requests_per_usd": 1.0}, height=1)
    points = points.select(pl.all().repeat_by(count).explode()).with_columns(
        pl.Series("tp", range(count, 0, -1), dtype=pl.UInt32)
    )
    assert lambdamax.frontier(points, by=[], best=3)["tp"].to_list() == [1, 2, 3]


def test_many_groups_are_settled_some_at_a_time() -> None:
    groups = 300_000
    values = np.random.Generator(np.random.PCG64(5)).integers(1, 9, 3 * groups).astype(np.float64)
    points = pl.DataFrame(
        {
            "model": "m",
            "gpu": np.repeat(["a", "b", "b"], groups),
            "status": "ok",
            "isl_tokens": np.tile(np.arange(groups, 0, -1, dtype=np.uint32), 3),
            "requests_per_usd": values,
            "tp": np.repeat(np.array([1, 1, 2], dtype=np.uint32), groups),
        }
    )
    found = lambdamax.frontier(points, by=["isl_tokens"])
    best = points.sort("requests_per_usd", "tp", descending=[True, False]).group_by("isl_tokens", "gpu").first()
    expected = best.sort("isl_tokens", -pl.col("requests_per_usd"), "gpu")
    shown = ["isl_tokens", "gpu", "requests_per_usd", "tp"]
    assert found.select(shown).equals(expected.select(shown))
    assert found["points"].to_list() == found.select(pl.when(gpu="a").then(1).otherwise(2)).to_series().to_list()


def test_bad_goals_are_told_all_at_once() -> None:
    points = framed([{"model": "m", "gpu": "g", "status": "ok", "requests_per_usd": 1.0}])
    with pytest.raises(FrameError) as caught:
        lambdamax.pareto(points, {"speed": "max", "requests_per_usd": "up"}, by=["city"])
    assert [(fault.key, fault.value) for fault in caught.value.faults] == [
        ("by", "city"),
        ("pareto", "speed"),
        ("pareto", "requests_per_usd:up"),
    ]
    with pytest.raises(FrameError, match="not both"):
        lambdamax.frontier(points, maximize="requests_per_usd", minimize="requests_per_usd")
    with pytest.raises(FrameError, match=r"best = 0: allowed: a whole number from 1"):
        lambdamax.frontier(points, best=0)
    with pytest.raises(FrameError, match=r"pareto = nothing: allowed: columns with directions"):
        lambdamax.pareto(points, {})
    with pytest.raises(FrameError, match=r"status = 'fine': allowed: one of ok, "):
        lambdamax.frontier(points.with_columns(status=pl.lit("fine")), by=[])
    with pytest.raises(FrameError, match=r"maximize = g.*nothing beside pareto"):
        lambdamax.kept_goal(maximize="g", pareto={"requests_per_usd": "max"})


# Sweeps that keep the frontier


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("kept")
    lambdamax.sweep(SPEC, out, keep=lambdamax.kept_goal(by=["model", "isl_tokens", "slo_tpot_s"], best=2))
    return out


@pytest.mark.parametrize("by", [[], ["model"], ["slo_tpot_s", "isl_tokens"], ["model", "isl_tokens", "slo_tpot_s"]])
@pytest.mark.parametrize("best", [1, 2])
def test_what_is_kept_ranks_as_all_points_do(kept: Path, by: list[str], best: int) -> None:
    assert lambdamax.frontier(kept, by=by, best=best).equals(lambdamax.frontier(EVERY, by=by, best=best))


def test_a_pareto_set_is_kept_as_well(tmp_path: Path) -> None:
    asked = {"requests_per_usd": "max", "tpot_mean_s": "min"}
    lambdamax.sweep(SPEC, tmp_path, keep=lambdamax.kept_goal(pareto=asked, by=["model", "isl_tokens"]))
    for by in ([], ["model"], None):
        expected = lambdamax.pareto(EVERY, asked, by=["model", "isl_tokens"] if by is None else by)
        assert lambdamax.pareto(tmp_path, asked, by=by).equals(expected)


def test_what_is_kept_is_little_and_counts_every_point(kept: Path, tmp_path: Path) -> None:
    rows = pl.read_parquet(kept / "*.parquet")
    manifest = json.loads((kept / "manifest.json").read_text())
    every = EVERY.collect()
    assert rows.height < every.height / 4
    assert rows["points"].sum() == every.height == manifest["rows"]
    assert manifest["identity"]["keep"]["keys"] == ["model", "isl_tokens", "slo_tpot_s", "gpu"]
    result = lambdamax.sweep(SPEC, tmp_path)
    counted = {name: sum(part["status"].get(name, 0) for part in manifest["parts"].values()) for name in STATUSES}
    assert counted == result.status


def test_a_sweep_that_keeps_resumes_and_gives_the_same_bytes(kept: Path, tmp_path: Path) -> None:
    goal = lambdamax.kept_goal(by=["model", "isl_tokens", "slo_tpot_s"], best=2)
    lambdamax.sweep(SPEC, tmp_path, keep=goal, threads=1)
    (tmp_path / "part-00001.parquet").unlink()
    assert lambdamax.sweep(SPEC, tmp_path, keep=goal).solved_parts == 1
    names = sorted(path.name for path in kept.glob("*.parquet"))
    assert len(names) > 1
    assert all((tmp_path / name).read_bytes() == (kept / name).read_bytes() for name in names)
    with pytest.raises(StoreError, match="it holds another sweep: keep is"):
        lambdamax.sweep(SPEC, tmp_path)


@pytest.mark.parametrize(
    "ask",
    [
        lambda kept: lambdamax.frontier(kept, by=["osl_tokens"]),
        lambda kept: lambdamax.frontier(kept, maximize="max_rate_rps"),
        lambda kept: lambdamax.frontier(kept, best=3),
        lambda kept: lambdamax.frontier(kept, compare="tp"),
        lambda kept: lambdamax.pareto(kept, {"requests_per_usd": "max"}),
    ],
)
def test_what_was_not_kept_is_refused_in_words(kept: Path, ask: Callable[[Path], object]) -> None:
    held = "it holds the best 2 of each model, isl_tokens, slo_tpot_s, gpu by requests_per_usd:max alone, not "
    with pytest.raises(StoreError, match=held):
        ask(kept)
