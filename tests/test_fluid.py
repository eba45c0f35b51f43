"""Spikes and finite runs: the closed form, conservation, and the simulator."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lambdamax.ages import Pace, surge
from lambdamax.case import Case, Question
from lambdamax.checked import Compared, check_finite_run, check_spike
from lambdamax.exceptions import QuestionError, SimulationError
from lambdamax.finite_run import finite_run, read_duration, run_flow
from lambdamax.fluid import Phase, Service, balance
from lambdamax.operating import Operating
from lambdamax.spike import Spike, read_spike, spike

SEATS = {"isl_tokens": 500.0, "osl_tokens": 300.0, "osl_cv": 0.7, "max_num_seqs": 128.0}


def asked(rate_rps: float | None = None, numbers: dict[str, float] = SEATS, **more: Any) -> Question:
    return Question("llama-3.1-8b-instruct", "h100-sxm", profile="default", numbers=numbers, rate_rps=rate_rps, **more)


@pytest.fixture(scope="module")
def service() -> Service:
    return Service.of(Operating.of(Case(asked())))


def agrees(compared: Compared, own_error: float = 0.0) -> bool:
    """Within the simulator's interval, and `own_error`, that of the solver's curve, beside it."""
    simulated = compared.simulated
    return abs(compared.fluid - simulated.mean) <= simulated.half_width + own_error * simulated.mean


# The balance


def test_an_equilibrium_stays(service: Service) -> None:
    start = service.in_flight_at(0.6 * service.limit_rps)
    flow = balance(service, [Phase(100.0, 0.6 * service.limit_rps)], start)
    assert flow.in_flight[-1] == start
    assert flow.finished[-1] == pytest.approx(60 * service.limit_rps)


@pytest.mark.parametrize("share", [0.2, 0.6, 0.95])
def test_from_empty_it_tends_to_the_equilibrium(service: Service, share: float) -> None:
    rate = share * service.limit_rps
    flow = balance(service, [Phase(40 * service.full / service.limit_rps, rate)], 0.0)
    assert flow.in_flight[-1] == pytest.approx(service.in_flight_at(rate), rel=1e-3)
    assert np.all(np.diff(flow.in_flight) >= -1e-9)


def test_whoever_came_is_inside_or_served(service: Service) -> None:
    phases = [Phase(7.0, 40.0, serving=False), Phase(20.0, 60.0), Phase(300.0, 3.0)]
    flow = balance(service, phases, 5.0)
    came = 5 + 7 * 40 + 20 * 60 + 300 * 3
    assert flow.finished[-1] + flow.in_flight[-1] == pytest.approx(came, rel=1e-12)


def test_a_backlog_drains_by_the_closed_form(service: Service) -> None:
    rate, backlog = 0.9 * service.limit_rps, 500.0
    flow = balance(service, [Phase(1000.0, rate)], service.full + backlog)
    empty = flow.time_s[np.flatnonzero(flow.waiting == 0)[0]]
    assert empty == pytest.approx(backlog / (service.limit_rps - rate), rel=1e-12)
    assert flow.at(np.array([empty / 2])).waiting[0] == pytest.approx(backlog / 2)


# Spikes


@pytest.mark.parametrize("text", ["3", "x60s", "1x60s", "3x0s", "3x60m", "-3x60s", "1e9x60s", "1.2.3x60s"])
def test_a_spike_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(QuestionError, match="a factor above 1, such as 3x60s"):
        read_spike(text)


def test_a_spike_is_read() -> None:
    assert read_spike("2.5x1e2s") == Spike(2.5, 100.0) == read_spike("2.5x100")


def test_the_table_is_the_closed_form_and_grows_as_one_over_what_is_spare() -> None:
    found = spike(asked(), "3x60s")
    for row in found.table:
        spare = found.limit_rps - row.rate_rps
        assert row.drain_s == pytest.approx(row.waiting / spare, rel=1e-9)
        assert row.backlog_drain_s == pytest.approx(100 / spare, rel=1e-9)
        assert 0.9 * 60 < row.waiting / (3 * row.rate_rps - found.limit_rps) < 60
        assert row.ttft_s == pytest.approx(row.waiting / found.limit_rps, rel=0.01)
    ratio = found.table[3].backlog_drain_s / found.table[0].backlog_drain_s
    assert ratio == pytest.approx(0.3 / 0.05, rel=1e-9)


def test_a_small_spike_makes_nobody_wait() -> None:
    found = spike(asked(2.0), "2x30s").asked
    assert (found.waiting, found.drain_s) == (0, 0)
    assert found.ttft_s > found.steady_ttft_s


def test_an_unstable_rate_never_drains() -> None:
    found = spike(asked(1e3), "2x30s")
    assert found.asked.drain_s == math.inf
    assert found.as_json()["asked"]["drain_s"] is None


@pytest.mark.parametrize("share", [0.7, 0.9])
def test_the_simulator_agrees_on_a_spike(service: Service, share: float) -> None:
    compared = check_spike(Case(asked()), Spike(2.5, 30.0), share * service.limit_rps)
    assert [row.name for row in compared] == ["waiting", "ttft_s", "drain_s"]
    assert all(agrees(row, own_error=0.03) for row in compared), compared


def test_with_ages_a_steady_load_stays_steady(service: Service) -> None:
    case = Case(asked())
    pace = Pace.of(case, Operating.of(case))
    for share in (0.1, 0.6, 0.95):
        rate = share * service.limit_rps
        flow = surge(service, pace, rate, rate, 60.0)
        assert flow.waiting[-1] == 0
        assert flow.in_flight[-1] == pytest.approx(flow.in_flight[0], rel=1e-3)
        assert flow.finished[-1] == pytest.approx(60 * rate, rel=1e-2)


def test_with_ages_nobody_of_a_spike_is_done_before_an_answer_can_be() -> None:
    case = Case(asked(numbers=SEATS | {"osl_cv": 0.0}))
    operating = Operating.of(case)
    own = Service.of(operating)
    flow = surge(own, Pace.of(case, operating), 0.01 * own.limit_rps, 20 * own.limit_rps, 1.0)
    assert flow.finished[-1] < 0.05 * own.limit_rps
    assert flow.waiting[-1] > 18 * own.limit_rps - own.full


# Finite runs


def test_an_infeasible_run_builds_a_backlog_by_the_closed_form(service: Service) -> None:
    found = finite_run(asked(), 600.0, 2 * service.limit_rps)
    assert not found.feasible
    assert found.needed == 2
    assert found.waiting == pytest.approx(600 * service.limit_rps, rel=0.02)
    assert found.drain_s == pytest.approx(found.waiting / service.limit_rps, rel=1e-6)
    assert found.served_rps < service.limit_rps
    assert found.ttft_p50_s < found.ttft_p90_s < found.ttft_p99_s


def test_a_feasible_run_serves_what_comes(service: Service) -> None:
    found = finite_run(asked(), 600.0, service.limit_rps, replicas=2)
    assert found.feasible
    assert not found.hides_backlog
    assert found.served_rps == pytest.approx(service.limit_rps, rel=0.01)
    assert (found.waiting, found.drain_s) == (0, 0)


def test_a_short_stage_hides_its_backlog(service: Service) -> None:
    found = finite_run(asked(), 4.0, 2 * service.limit_rps)
    assert found.hides_backlog
    assert found.seen_ttft_mean_s < found.ttft_mean_s or found.waiting == 0
    assert found.served_rps < service.limit_rps


def test_a_start_up_is_waited_for() -> None:
    found = finite_run(asked(), 60.0, 30.0, replicas=3, startup_s=45.0)
    assert found.moments[0].served_rps == 0
    assert found.ttft_p99_s == pytest.approx(45, rel=0.03)
    assert found.moments[0].waiting == found.moments[0].in_flight == pytest.approx(30 * found.moments[0].time_s)
    late = finite_run(asked(), 20.0, 30.0, replicas=3, startup_s=45.0)
    assert late.served_rps == 0
    assert late.drain_s >= 25


def test_a_run_ends_empty(service: Service) -> None:
    flow = run_flow(service, 30.0, 3 * service.limit_rps, 10.0, 0.7)
    assert flow.in_flight[-1] < 0.05 * service.full
    assert flow.finished[-1] + flow.in_flight[-1] == pytest.approx(90 * service.limit_rps, rel=1e-9)


@pytest.mark.parametrize(
    ("rate_rps", "startup_s", "names"),
    [
        (40.0, 0.0, {"served_rps", "backlog", "ttft_mean_s"}),
        (40.0, 30.0, {"served_rps", "backlog", "ttft_mean_s", "ttft_p50_s", "ttft_p90_s", "ttft_p99_s"}),
        (75.0, 0.0, {"served_rps", "backlog", "ttft_mean_s", "ttft_p50_s", "ttft_p90_s", "ttft_p99_s"}),
    ],
)
def test_the_simulator_agrees_on_a_finite_run(rate_rps: float, startup_s: float, names: set[str]) -> None:
    run = finite_run(asked(), 100.0, rate_rps, replicas=2, startup_s=startup_s)
    compared = [row for row in check_finite_run(Case(asked()), run) if row.name in names]
    assert [row for row in compared if not agrees(row) and abs(row.fluid / row.simulated.mean - 1) > 0.05] == []


def test_a_time_is_read() -> None:
    assert read_duration("120s") == read_duration(" 120 ") == 120
    for text in ("two", "0s", "-1", "inf", ""):
        with pytest.raises(QuestionError, match="a time above 0, such as 120s"):
            read_duration(text)


def test_a_replica_that_the_simulator_does_not_know_is_refused() -> None:
    windowed = Question("gpt-oss-120b", "h100-sxm", tp=2, numbers=SEATS)
    with pytest.raises(SimulationError, match="no --check for this one"):
        check_spike(Case(windowed), Spike(2.0, 5.0), 3.0)


def test_a_very_long_check_is_refused() -> None:
    with pytest.raises(SimulationError, match="at most 400,000 requests"):
        check_spike(Case(asked()), Spike(1e5, 10.0), 10.0)


DOCUMENTED = [
    {"isl_tokens": 200.0, "osl_tokens": 200.0, "max_num_seqs": 64.0},
    SEATS,
    {"isl_tokens": 1000.0, "osl_tokens": 200.0, "max_num_seqs": 64.0},
    {"isl_tokens": 1000.0, "osl_tokens": 200.0, "max_num_seqs": 128.0},
    {"isl_tokens": 1000.0, "osl_tokens": 200.0},
]


@pytest.mark.parametrize("numbers", DOCUMENTED)
def test_the_document_says_how_far_it_is_off(numbers: dict[str, float]) -> None:
    case = Case(asked(numbers=numbers))
    operating = Operating.of(case)
    waiting, ttft, drain = check_spike(case, Spike(3.0, 30.0), 0.7 * operating.limit_rps)
    assert agrees(waiting)
    assert agrees(ttft, own_error=0.03)
    share = operating.point(operating.limit_rps)["prefill_share"]
    backlog = f"{waiting.fluid:,.0f} ({waiting.simulated.mean:,.0f} ± {waiting.simulated.half_width:.0f})"
    drained = f"{drain.fluid:.0f} s ({drain.simulated.mean:.0f} ± {drain.simulated.half_width:.2g})"
    text = (Path(__file__).parent.parent / "docs" / "saturation.md").read_text(encoding="utf-8")
    assert f"| {100 * share:.0f} % | {backlog} | {drained} |" in text
