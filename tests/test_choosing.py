"""Winner maps, break-even prices, elasticities and robustness, each against a way of its own to the same number."""

from __future__ import annotations

import csv
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lambdamax
from lambdamax import columns
from lambdamax.catalog import Catalog
from lambdamax.exceptions import FrameError
from lambdamax.facts import read_rows
from lambdamax.spec import parse_spec

SPEC = parse_spec(
    {
        "name": "choosing",
        "replica": {
            "model": "llama-3.3-70b-instruct",
            "gpu": ["mi300x", "h100-sxm", "mi355x", "a10"],
            "tp": [1, 2, 4],
            "weight_dtype": ["bf16", "fp8"],
            "profile": "default",
        },
        "workload": {"isl_tokens": [500, 8000], "osl_tokens": [100, 1000]},
        "slo": {"tpot_s": [0.03, 0.05]},
    }
)
BY = ["isl_tokens", "osl_tokens", "slo_tpot_s"]
INPUTS = [column.name for column in columns.inputs()]


@cache
def whole() -> pl.DataFrame:
    return lambdamax.scan(SPEC).collect(engine="in-memory")


# Maps


def test_the_winner_leads_by_the_ratio_of_the_two_best_accelerators() -> None:
    found = lambdamax.winner_map(whole(), by=BY)
    assert found.height == 8
    for row in found.iter_rows(named=True):
        group = whole().filter([pl.col(name) == row[name] for name in BY], pl.col("status") == "ok")
        best = sorted(((max(each["requests_per_usd"]), gpu[0]) for gpu, each in group.group_by("gpu")), reverse=True)
        (first, winner), (second, runner_up) = best[:2]
        assert (row["winner"], row["runner_up"]) == (winner, runner_up)
        assert (row["requests_per_usd"], row["runner_up_requests_per_usd"]) == (first, second)
        assert row["lead"] == pytest.approx(first / second, rel=1e-12)
        assert row["binding_limit"] in columns.column("binding_limit").values


def test_where_one_option_alone_is_ok_it_leads_nobody() -> None:
    alone = lambdamax.winner_map(whole().filter(pl.col("gpu").is_in(["mi300x", "mi355x"])), by=[])
    assert alone.select("winner", "runner_up", "lead").row(0) == ("mi300x", None, None)
    fastest = lambdamax.winner_map(whole(), by=[], minimize="tpot_mean_s", compare="tp").row(0, named=True)
    assert fastest["lead"] == pytest.approx(fastest["runner_up_tpot_mean_s"] / fastest["tpot_mean_s"])


def test_the_binding_map_is_what_stops_the_best_of_each() -> None:
    found, table = lambdamax.binding_map(whole(), by=BY), lambdamax.frontier(whole(), by=BY)
    assert found.rows() == table.select(found.columns).rows()
    assert found.columns == [*BY, "gpu", "binding_limit", "next_limit", "requests_per_usd", "refused"]
    assert found.height == 8 * 4


# Break-even prices


def at_price(gpu: str, price: float) -> pl.DataFrame:
    """Everything solved again, with a price for one accelerator."""
    given_price = pl.when(pl.col("gpu") == gpu).then(price).otherwise(pl.col("usd_per_accelerator_hour"))
    return lambdamax.solve(whole().select(INPUTS).with_columns(given_price.alias("usd_per_accelerator_hour")))


def winner_at(gpu: str, price: float, group: list[pl.Expr]) -> str:
    return str(lambdamax.winner_map(at_price(gpu, price).filter(group), by=[])["winner"][0])


@pytest.mark.parametrize("place", range(0, 24, 5))
def test_at_the_break_even_price_the_winner_changes_whatever_its_replica(place: int) -> None:
    found = lambdamax.break_even(whole(), by=BY)
    assert found.height == 24
    row = found.row(place, named=True)
    group = [pl.col(name) == row[name] for name in BY]
    price = row["break_even_usd_per_hour"]
    assert winner_at(row["gpu"], price * (1 - 1e-6), group) == row["gpu"]
    assert winner_at(row["gpu"], price * (1 + 1e-6), group) == row["against"] != row["gpu"]
    known = row["usd_per_accelerator_hour"]
    assert row["price_ratio"] == (None if known is None else pytest.approx(price / known, rel=1e-12))
    assert (row["rank"] is None) == (known is None) == (row["gpu"] == "mi355x")


def test_break_even_prices_from_a_sweep_that_kept_the_frontier(tmp_path: Path) -> None:
    lambdamax.sweep(SPEC, tmp_path, keep=lambdamax.kept_goal(by=BY))
    assert lambdamax.break_even(tmp_path, by=BY).equals(lambdamax.break_even(whole(), by=BY))
    assert lambdamax.break_even(tmp_path).equals(lambdamax.break_even(whole(), by=BY))


def test_break_even_prices_need_rates_and_prices() -> None:
    with pytest.raises(FrameError, match="break-even: gpus = nothing: allowed: solved points"):
        lambdamax.break_even(whole().drop("gpus"))


# Elasticities

FIELDS = {
    "bandwidth": ["memory_bandwidth_bytes_per_s"],
    "flops": ["bf16_dense_flops", "fp8_dense_flops", "fp4_dense_flops", "int8_dense_ops"],
    "memory": ["memory_bytes", "driver_reported_mib"],
    "link": ["scaleup_bytes_per_s_per_direction", "pcie_bytes_per_s_per_direction"],
}
POINTS = pl.DataFrame(
    {
        "model": ["llama-3.1-8b-instruct", "llama-3.3-70b-instruct", "llama-3.3-70b-instruct", "mixtral-8x7b-v0.1"],
        "gpu": ["h100-sxm", "h100-sxm", "l40s", "h100-sxm"],
        "tp": [1, 4, 8, 2],
        "weight_dtype": ["bf16", "fp8", "fp8", "bf16"],
        "isl_tokens": [4000.0, 1000.0, 500.0, 2000.0],
        "osl_tokens": [400.0, 300.0, 100.0, 200.0],
        "slo_tpot_s": [None, 0.02, 0.05, 0.03],
        "max_num_seqs": [1024, None, None, None],
    }
)


def changed_catalog(directory: Path, fact: str, factor: float) -> Catalog:
    """A catalogue in which the two accelerators of `POINTS` have a fact of another size."""
    directory.mkdir()
    rows = [dict(row) for row in read_rows("accelerators.csv") if row["id"] in ("h100-sxm", "l40s")]
    for row in rows:
        for name in FIELDS.get(fact, []):
            row[name] = repr(float(row[name]) * factor) if row[name] else ""
    with (directory / "accelerators.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return lambdamax.load_catalog(directory)


@pytest.mark.parametrize("fact", FIELDS)
def test_an_elasticity_is_the_difference_of_two_catalogues(fact: str, tmp_path: Path) -> None:
    step = 0.02
    found = lambdamax.elasticities(POINTS, step=step, facts=[fact])
    ends = [
        lambdamax.solve(POINTS, catalog=changed_catalog(tmp_path / name, fact, math.exp(sign * step)))
        for name, sign in (("below", -1), ("above", 1))
    ]
    below, above = (np.log(end["requests_per_usd"].to_numpy()) for end in ends)
    assert found["elasticity"].to_list() == pytest.approx(((above - below) / (2 * step)).tolist(), abs=1e-9)
    limits = [end["binding_limit"].cast(pl.String).to_list() for end in ends]
    assert [found["limit_below"].to_list(), found["limit_above"].to_list()] == limits
    middle = lambdamax.solve(POINTS)
    assert found["requests_per_usd"].to_list() == middle["requests_per_usd"].to_list()
    assert found["binding_limit"].to_list() == middle["binding_limit"].to_list()


def test_elasticities_have_the_signs_of_physics() -> None:
    found = lambdamax.elasticities(POINTS).pivot("fact", index="gpu", values="elasticity", aggregate_function="first")
    assert found["price"].to_list() == pytest.approx([-1.0, -1.0], abs=1e-9)
    every = lambdamax.elasticities(POINTS)
    gains = every.filter(pl.col("fact") != "price")
    assert (gains["elasticity"] >= -1e-9).all()
    single = every.filter((pl.col("tp") == 1) & (pl.col("fact") == "link"))
    assert single["elasticity"].to_list() == pytest.approx([0.0], abs=1e-9)
    pool = every.filter((pl.col("tp") == 1) & (pl.col("fact") == "memory")).row(0, named=True)
    assert pool["binding_limit"] in ("kv_pool", "utilization")
    assert pool["elasticity"] > 0.1


def test_a_step_over_a_bend_or_over_the_edge_says_so() -> None:
    tight = POINTS.head(1).with_columns(memory_bytes=pl.lit(19.3e9), kv_cache_tokens=pl.lit(None, pl.Float64))
    below = tight.with_columns(memory_bytes=pl.lit(18e9))
    assert lambdamax.solve(below)["status"].to_list() == ["does_not_fit"]
    grown = [size for size in range(18, 60) if fits(tight, size * 1e9)]
    edge = tight.with_columns(memory_bytes=pl.lit(grown[0] * 1e9))
    row = lambdamax.elasticities(edge, step=0.1, facts=["memory"]).row(0, named=True)
    assert (row["elasticity"], row["limit_below"], row["switches"]) == (None, None, True)
    assert row["limit_above"] is not None


def fits(point: pl.DataFrame, memory_bytes: float) -> bool:
    return bool(lambdamax.solve(point.with_columns(memory_bytes=pl.lit(memory_bytes)))["status"][0] == "ok")


def test_steps_and_facts_that_make_no_sense_are_refused() -> None:
    with pytest.raises(FrameError) as caught:
        lambdamax.elasticities(POINTS, step=0.0, facts=["colour"])
    assert [(fault.key, fault.value) for fault in caught.value.faults] == [("facts", "colour"), ("step", "0")]


# Robustness


def monte_carlo(options: pl.DataFrame, draws: int, own_share: float) -> tuple[Any, Any, Any]:
    """The same law with NumPy: shares of the cheapest, mean regrets and their standard errors."""
    random = np.random.default_rng(12345)
    profiles = {name: random.standard_normal(draws) for name in options["profile"].unique().sort()}
    markets = {name: random.random(draws) for name in options["gpu"].unique().sort()}
    costs = []
    for row in options.iter_rows(named=True):
        shared, own = profiles[row["profile"]], random.standard_normal(draws)
        error = row["rate_sigma"] * (math.sqrt(1 - own_share) * shared + math.sqrt(own_share) * own)
        low, high = row["usd_per_hour_low"], row["usd_per_hour_high"]
        price = low * (high / low) ** markets[row["gpu"]]
        costs.append(row["gpus"] * price / (3600 * row["max_rate_rps"] * np.exp(error)))
    cost = np.array(costs)
    regret = cost / cost.min(axis=0) - 1
    share = np.bincount(cost.argmin(axis=0), minlength=len(cost)) / draws
    return share, regret.mean(axis=1), regret.std(axis=1) / math.sqrt(draws)


OPTION = st.fixed_dictionaries(
    {
        "gpu": st.sampled_from(["h100-sxm", "mi300x", "l40s", "h200-sxm"]),
        "profile": st.sampled_from(["hopper", "cdna"]),
        "max_rate_rps": st.floats(1.0, 3.0),
        "gpus": st.integers(1, 2),
        "usd_per_accelerator_hour": st.just(2.0),
        "rate_sigma": st.floats(0.0, 0.5),
        "usd_per_hour_low": st.floats(1.0, 2.0),
        "usd_per_hour_high": st.floats(2.0, 3.0),
    }
)


@settings(max_examples=12, deadline=None)
@given(st.lists(OPTION, min_size=2, max_size=6), st.sampled_from([0.0, 0.3, 1.0]))
def test_robustness_agrees_with_numpy_within_its_error(options: list[dict[str, Any]], own_share: float) -> None:
    draws = 40_000
    frame = pl.DataFrame(options).with_row_index("place")
    found = lambdamax.robustness(frame, draws=draws, seed=1, own_share=own_share).sort("place")
    share, regret, regret_error = monte_carlo(frame, draws, own_share)
    apart = np.abs(found["cheapest_share"].to_numpy() - share)
    assert (apart <= 6 * np.sqrt(0.25 * 2 / draws)).all()
    # What happens fewer than ten times in all draws has no standard error of its own.
    error = 6 * np.hypot(found["expected_regret_error"].to_numpy(), regret_error) + 10 / draws
    assert (np.abs(found["expected_regret"].to_numpy() - regret) <= error).all()
    assert found["cheapest_share"].sum() == pytest.approx(1)


def test_what_two_options_share_cannot_change_their_order() -> None:
    table = lambdamax.frontier(whole().filter(pl.col("gpu") == "mi300x"), by=[], compare="tp")
    found = lambdamax.robustness(table, draws=5_000)
    assert found.height > 1
    assert found["cheapest_share"].to_list() == [1.0, *[0.0] * (found.height - 1)]
    assert found["requests_per_usd"].arg_max() == 0
    apart = lambdamax.robustness(table, draws=5_000, own_share=1.0)
    assert apart["cheapest_share"].max() < 1.0


def test_errors_and_ranges_come_from_the_profile_and_the_providers() -> None:
    found = lambdamax.robustness(lambdamax.frontier(whole(), by=[]), draws=1_000)
    catalog = lambdamax.load_catalog()
    assert sorted(found["gpu"]) == ["h100-sxm", "mi300x"]
    for row in found.iter_rows(named=True):
        uncertainty = catalog.profile("default", row["gpu"]).relative_uncertainty.value
        assert row["rate_sigma"] == pytest.approx(math.log(1 + uncertainty))
        median = catalog.price(row["gpu"], "on-demand", "median")
        assert median is not None
        offers = [catalog.price(row["gpu"], "on-demand", name) for name in median.providers]
        prices = [offer.usd_per_accelerator_hour for offer in offers if offer is not None]
        assert (row["usd_per_hour_low"], row["usd_per_hour_high"]) == (min(prices), max(prices))


def test_a_seed_gives_the_same_bits_and_another_gives_others() -> None:
    table = lambdamax.frontier(whole(), by=["isl_tokens"])
    one, two = (lambdamax.robustness(table, by=["isl_tokens"], draws=3_000, seed=5) for _ in range(2))
    assert one.equals(two)
    assert not one.equals(lambdamax.robustness(table, by=["isl_tokens"], draws=3_000, seed=6))
    assert one.group_by("isl_tokens").agg(pl.col("cheapest_share").sum())["cheapest_share"].to_list() == [1.0, 1.0]


def test_a_band_of_rates_is_their_error_where_there_is_one() -> None:
    table = lambdamax.frontier(whole(), by=[]).drop_nulls("rank").sort("gpu")
    low, high = pl.col("max_rate_rps") / 1.1, pl.col("max_rate_rps") * 1.1
    known = pl.col("gpu") == "mi300x"
    bands = [pl.when(known).then(each).alias(f"max_rate_{name}_rps") for name, each in (("low", low), ("high", high))]
    found = lambdamax.robustness(table.with_columns(bands), draws=100)
    sigmas = dict(found.select("gpu", "rate_sigma").iter_rows())
    assert sigmas == {"mi300x": pytest.approx(math.log(1.1)), "h100-sxm": pytest.approx(math.log(1.3))}


def test_a_price_that_was_given_is_certain() -> None:
    points = POINTS.head(1).with_columns(usd_per_accelerator_hour=pl.lit(2.5), provider=pl.lit("given"))
    found = lambdamax.robustness(lambdamax.solve(points), draws=100)
    assert found.select("usd_per_hour_low", "usd_per_hour_high", "cheapest_share").row(0) == (2.5, 2.5, 1.0)


def test_nonsense_about_robustness_is_refused_at_once() -> None:
    with pytest.raises(FrameError) as caught:
        lambdamax.robustness(POINTS, draws=0, own_share=2.0)
    told = [(fault.key, fault.value) for fault in caught.value.faults]
    assert told[-2:] == [("draws", "0"), ("own_share", "2")]
    assert ("options", "nothing") in told
