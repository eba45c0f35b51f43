"""From a rate to replicas: worked example B, both figures of example A, and how the ways compare."""

from __future__ import annotations

from typing import Any

import pytest

import lambdamax
from lambdamax.case import Question
from lambdamax.demand import Sizing, Way, by_constant_residence, replicas_for, whole
from lambdamax.exceptions import QuestionError

EXAMPLE_A: dict[str, Any] = {
    "model": "llama-3.3-70b-instruct",
    "gpu": "h100-sxm",
    "tp": 4,
    "numbers": {
        **{"isl_tokens": 1500.0, "osl_tokens": 300.0},
        **{"memory_bytes": 80e9, "memory_utilization": 0.92, "reserved_bytes": 3e9},
    },
    "rate_rps": 10.0,
    "measured_ttft_s": 0.5,
    "measured_tpot_s": 0.025,
}
SMALL = Question("llama-3.1-8b-instruct", "h100-sxm", numbers={"isl_tokens": 1000.0, "osl_tokens": 200.0})


def way(found: Sizing, name: str) -> Way:
    return next(way for way in found.ways if way.name == name)


def test_example_b() -> None:
    exact = by_constant_residence(50, 20, 80, 0.7)
    assert exact == pytest.approx(1000 / 56, rel=1e-15)
    assert whole(exact) == 18


def test_example_b_on_a_replica() -> None:
    found = way(replicas_for(SMALL, 50, utilization=0.7, residence_s=20, in_flight_each=80), "constant W")
    assert (found.in_flight, found.in_flight_each, found.replicas) == (1000, 80, 18)
    assert found.replicas_exact == pytest.approx(17.857, abs=0.001)


@pytest.mark.parametrize(("seats_in_use", "rate_share", "digit"), [(0.7, 0.82, 0.005), (0.9, 0.945, 0.0005)])
def test_the_rate_that_a_share_of_seats_means_in_example_a(
    seats_in_use: float, rate_share: float, digit: float
) -> None:
    found = replicas_for(Question(**EXAMPLE_A), 50, utilization=seats_in_use)
    held = way(found, "held ratio, with feedback")
    assert held.in_flight_each == pytest.approx(261, abs=0.5)
    assert held.rate_share == pytest.approx(rate_share, abs=digit)
    assert way(found, "constant W").residence_s == pytest.approx(7.975)
    assert found.residence_from == "measured"


def test_feedback_needs_fewer_than_the_residence_at_the_limit_says() -> None:
    """W held as it is with N in flight is too long for a replica with u·N in flight."""
    found = replicas_for(SMALL, 500, utilization=0.7)
    constant, feedback = found.ways
    assert feedback.residence_s < constant.residence_s
    assert feedback.replicas <= constant.replicas
    assert feedback.rate_share > constant.rate_share == 0.7
    assert feedback.rate_each_rps * feedback.residence_s == pytest.approx(feedback.used_each)


def test_all_in_use_is_the_largest_rate() -> None:
    constant, feedback = replicas_for(SMALL, 100, utilization=1.0).ways
    assert feedback.rate_share == 1
    assert feedback.replicas_exact == pytest.approx(constant.replicas_exact, rel=1e-9)


def test_slos_make_n() -> None:
    tight = Question("llama-3.1-8b-instruct", "h100-sxm", numbers={**SMALL.numbers, "slo_tpot_s": 0.012})
    found = replicas_for(tight, 50)
    assert found.binds == "TPOT SLO"
    assert found.ways[0].in_flight_each < replicas_for(SMALL, 50).ways[0].in_flight_each


def test_a_whole_quotient_is_not_rounded_up() -> None:
    assert [whole(18.0), whole(18 * (1 + 1e-12)), whole(18.001)] == [18, 18, 19]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"demand_rps": 0.0}, "demand_rps = 0: allowed: a rate above 0"),
        ({"demand_rps": 5.0, "utilization": 1.5}, "utilization = 1.5: allowed: a share above 0, at most 1"),
        ({"demand_rps": 5.0, "in_flight_each": 1e6}, "in_flight_each = 1e\\+06: allowed: what the replica holds"),
    ],
)
def test_what_cannot_be_is_refused(asked: dict[str, Any], told: str) -> None:
    with pytest.raises(QuestionError, match=told):
        replicas_for(SMALL, **asked)


def test_a_point_without_a_rate_is_refused() -> None:
    with pytest.raises(QuestionError, match="status = does_not_fit"):
        replicas_for(Question("llama-3.3-70b-instruct", "a10", numbers=SMALL.numbers), 5)
    never = Question("llama-3.1-8b-instruct", "h100-sxm", numbers={**SMALL.numbers, "slo_ttft_s": 1e-6})
    with pytest.raises(QuestionError, match="status = slo_unreachable"):
        replicas_for(never, 5)


def test_the_public_name_is_the_function() -> None:
    assert lambdamax.replicas_for is replicas_for
