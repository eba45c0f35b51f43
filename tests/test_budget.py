"""The TTFT budget: links that sum to the whole, and parts that agree with the formula they were not taken from."""

from __future__ import annotations

import math
from typing import Any

import pytest

from lambdamax.budget import Budget, mean_chunks, ttft_budget
from lambdamax.case import Case, Question

LENGTHS = {"isl_tokens": 1000.0, "osl_tokens": 200.0}
SMALL = {"model": "llama-3.1-8b-instruct", "gpu": "h100-sxm", "numbers": LENGTHS}
LARGE = {"model": "llama-3.3-70b-instruct", "gpu": "h100-sxm", "tp": 4}
EXPERTS = {"model": "deepseek-v3", "gpu": "h200-sxm", "tp": 8, "dp": 2, "ep": 16, "numbers": LENGTHS}
CASES = [
    SMALL | {"rate_rps": 0.05},
    SMALL | {"rate_rps": 8.0},
    SMALL | {"concurrency": 1.0},
    SMALL | {"concurrency": 40.0, "think_time_s": 2.0},
    SMALL | {"numbers": LENGTHS | {"max_num_seqs": 32.0}, "concurrency": 90.0},
    SMALL | {"numbers": LENGTHS | {"prefix_tokens": 700.0, "prefix_hit_share": 0.5}, "rate_rps": 9.0},
    LARGE | {"numbers": {"isl_tokens": 6000.0, "osl_tokens": 300.0, "isl_cv": 1.0}, "rate_rps": 1.0},
    LARGE | {"numbers": {**LENGTHS, "isl_cv": 0.5, "prefix_hit_share": 0.5, "max_num_batched_tokens": 512.0}},
    EXPERTS | {"rate_rps": 10.0},
]


def found(asked: dict[str, Any]) -> tuple[Case, Budget]:
    case = Case(Question(**asked))
    budget = ttft_budget(case)
    assert budget is not None
    return case, budget


def means(budget: Budget) -> dict[str, float]:
    return {link.name: link.mean_s for link in budget.links}


@pytest.mark.parametrize("asked", CASES)
def test_the_links_sum_to_the_whole(asked: dict[str, Any]) -> None:
    _, budget = found(asked | {"network_s": 0.04, "router_s": 0.002})
    assert budget.total_mean_s == pytest.approx(0.042 + budget.ttft_mean_s, rel=1e-15)
    assert min(means(budget).values()) >= -1e-9 * budget.ttft_mean_s


@pytest.mark.parametrize("asked", CASES)
def test_the_wait_and_the_riders_are_those_of_the_gated_queue(asked: dict[str, Any]) -> None:
    """P_busy·(E[X]/2 + async·E[T]) and ρ·E[X], with E[X] from the first and T(B, 0) from the curve, give the second."""
    case, budget = found(asked)
    at = case.at_load or case.full_model_at(budget.rate_rps)
    others = 1.0 if case.question.concurrency is None else 1 - case.slots / case.question.concurrency
    busy = -math.expm1(-others * at["running"] / case.slots)
    if busy == 0:
        assert means(budget)["iteration_wait_s"] == pytest.approx(0, abs=1e-12)
        return
    chunks = mean_chunks(case, at["decoding"] / case.slots)
    iteration = means(budget)["first_iteration_s"] / chunks / (1 - at["prefill_share"])
    ahead = case.row.fields["async_scheduling"] * iteration
    seen = 2 * (means(budget)["iteration_wait_s"] / busy - ahead)
    assert means(budget)["riders_s"] == pytest.approx(at["prefill_share"] * seen, rel=2e-3, abs=1e-6)


def test_a_full_replica_makes_clients_wait_for_a_seat() -> None:
    case, budget = found(CASES[4])
    assert case.load_status == "saturated"
    assert means(budget)["seat_wait_s"] > 0.5 * budget.ttft_mean_s


def test_without_a_carried_load_it_stands_at_the_largest_rate() -> None:
    case, budget = found(SMALL | {"rate_rps": 1e4})
    assert budget.rate_rps == case.answer["max_rate_rps"]


def test_no_point_has_no_budget() -> None:
    assert ttft_budget(Case(Question("llama-3.3-70b-instruct", "a10", numbers=LENGTHS))) is None
