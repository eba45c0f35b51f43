"""What a replica serves while requests queue: as much as at its limit, or less behind a full pool."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from click.testing import CliRunner

from lambdamax import cli
from lambdamax.backlog import pool_is_first, queued_rps, service_of
from lambdamax.case import Case, Question
from lambdamax.checked import check_spike
from lambdamax.fluid import Phase, Service, balance
from lambdamax.operating import Operating
from lambdamax.simulate import simulate
from lambdamax.spike import Spike, drain_s, spike

POOL = {"isl_tokens": 1000.0, "osl_tokens": 200.0}
SEATS = {**POOL, "max_num_seqs": 64.0}
LONG_ANSWERS = {"isl_tokens": 300.0, "osl_tokens": 600.0, "kv_cache_tokens": 60_000.0}
LINE = "explain --profile default --gpu h100-sxm --isl 1000 --osl 200 --kv-cache-tokens 60000 --spike 3x30s"


def case_of(numbers: dict[str, float], model: str = "llama-3.1-8b-instruct", **more: Any) -> Case:
    return Case(Question(model, "h100-sxm", numbers=numbers, **more))


@pytest.mark.parametrize("numbers", [POOL, LONG_ANSWERS])
def test_behind_a_full_pool_it_is_what_a_longer_simulation_serves(numbers: dict[str, float]) -> None:
    case = case_of(numbers)
    service = service_of(case)
    loaded = Question("llama-3.1-8b-instruct", "h100-sxm", numbers=numbers, rate_rps=2 * service.limit_rps)
    found = simulate(loaded, requests=200_000, precision=0.0, replications=2, seed=5).numbers
    assert found["preemptions_per_request"] > 0.1
    assert service.backlog_rps == pytest.approx(found["rate_rps"], rel=0.01)
    assert service.backlog_rps < 0.98 * service.limit_rps


def test_behind_full_seats_it_is_the_limit() -> None:
    case = case_of(SEATS)
    assert not pool_is_first(case)
    assert math.isnan(queued_rps(case, 10.0))
    assert service_of(case).backlog_rps == service_of(case).limit_rps


def test_the_drain_of_a_long_spike_is_the_simulators() -> None:
    case, shape = case_of(POOL), Spike(3.0, 60.0)
    service = service_of(case)
    rate = 0.742 * service.limit_rps
    waiting, _, drain = check_spike(case, shape, rate)
    assert abs(drain.fluid - drain.simulated.mean) <= drain.simulated.half_width
    without_preemptions = waiting.fluid / (service.limit_rps - rate)
    assert drain.simulated.mean - without_preemptions > 2 * drain.simulated.half_width


def test_between_the_two_rates_a_load_is_carried_and_a_backlog_stays() -> None:
    case = case_of(POOL)
    service = service_of(case)
    rate = 0.5 * (service.backlog_rps + service.limit_rps)
    steady = service.in_flight_at(rate)
    assert steady < service.full
    assert balance(service, [Phase(60.0, rate)], steady).in_flight[-1] == pytest.approx(steady)
    assert balance(service, [Phase(60.0, rate)], service.full + 50).in_flight[-1] > service.full + 50
    assert drain_s(service, rate, 1.0) == math.inf
    assert drain_s(Service.of(Operating.of(case)), rate, 1.0) < math.inf


def test_a_backlog_drains_by_the_closed_form() -> None:
    service = service_of(case_of(POOL))
    rate = 0.5 * service.backlog_rps
    flow = balance(service, [Phase(1000.0, rate)], service.full + 300)
    at = flow.time_s[flow.waiting == 0][0]
    assert at == pytest.approx(drain_s(service, rate, 300.0))


def test_the_answer_has_both_rates() -> None:
    found = spike(Question("llama-3.1-8b-instruct", "h100-sxm", numbers=POOL, rate_rps=15.0), "3x30s")
    assert found.pool_is_first
    assert found.as_json()["backlog_rps"] == found.backlog_rps < found.limit_rps
    assert found.asked.drain_s == pytest.approx(found.asked.waiting / (found.backlog_rps - 15.0))


def test_the_command_says_what_a_full_pool_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    run = CliRunner().invoke
    known = run(cli.main, f"{LINE} --model llama-3.1-8b-instruct --rate 12".split())
    assert "thrown out and computed again: a simulation serves" in known.output
    unknown = run(cli.main, f"{LINE} --model gemma-3-12b-it --rate 5".split())
    assert "computed again is not in these numbers" in unknown.output
    much = f"{LINE} --model llama-3.1-8b-instruct --rate 17"
    assert "not below the" in run(cli.main, much.split()).output
    found = json.loads(run(cli.main, [*much.split(), "--json"]).output)["spike"]
    assert found["backlog_rps"] < 17 < found["limit_rps"]
    assert found["asked"]["drain_s"] is None
