"""What must hold for any point that the engine solves: monotone, scalable, within physics, and never a crash."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lambdamax import _engine
from reference import batch
from reference.batch import Columns
from reference.empirical import TABLES
from reference.fields import default, field
from reference.points import Case, Fields, cases, loads
from reference.shard import shard
from reference.spans import FULL
from reference.workload import workload

QUICK = settings(max_examples=60, deadline=None, derandomize=True, database=None)
MANY = settings(max_examples=400, deadline=None, derandomize=True, database=None)

ROUNDING = 1e-9
# The dispersion of arrivals more even than Poisson's is a fit, and wiggles.
FITTED = 2e-3
LATENCIES = ("tpot_mean_s", "tpot_token_mean_s", "ttft_mean_s", "e2e_mean_s")
# Close to a full replica the wait tells the rate to fewer digits.
NEAR_FULL = 1e-7
# A replica within this share of its limit is full: its waits have no end.
FULL_SHARE = 1e-7
WAITING = (
    *("in_flight", "waiting", "seat_wait_s", "ttft_mean_s", "ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "e2e_mean_s"),
    "e2e_p99_s",
)
SLOS = {"slo_tpot_s": "rate_at_tpot_rps", "slo_ttft_s": "rate_at_ttft_rps", "slo_e2e_s": "rate_at_e2e_rps"}
SPEEDS = (
    "memory_bandwidth_bytes_per_s",
    "mixer_flops",
    "mlp_flops",
    "expert_flops",
    "attention_flops",
    "scaleup_bytes_per_s",
    "pcie_bytes_per_s",
)
SECONDS = tuple(name for name in _engine.REPLICA_FIELDS if name.endswith("_s") and not name.endswith("per_s"))
RATES = tuple(name for name in _engine.ANSWER_FIELDS if name.endswith("_rps"))
TIMES = ("ttft_mean_s", "tpot_mean_s", "tpot_token_mean_s", "e2e_mean_s", "tpot_floor_s")
SAME = ("in_flight", "running", "decoding", "prefill_share", "utilization", "kv_in_flight_tokens", "kv_pool_tokens")
MONEY = ("cost_usd_per_hour", "requests_per_usd", "usd_per_mtok_output", "usd_per_mtok_total")

# `model` numbers the blocks; the batch gives it.
ROW_FIELDS = tuple(name for name in _engine.REPLICA_FIELDS if name != "model")
LAYER_FIELDS = tuple(name for name in _engine.BLOCK_FIELDS if name != "model")

# `lengths` is a place in a table, and no number that a user gives.
POINT_NUMBERS = tuple(name for name in _engine.POINT_FIELDS if name != "lengths")

seeds = st.integers(0, 2**32 - 1)


def code(status: str) -> int:
    """The code of a status."""
    return _engine.STATUSES.index(status)


def answered(answers: Columns) -> NDArray[np.bool_]:
    """The rows with an operating point."""
    return np.isin(answers["status"], [code("ok"), code("no_price")])


def scaled(fields: Fields, names: tuple[str, ...], factor: float) -> Fields:
    """The fields with some multiplied; those not given stay so."""
    return {name: value if value is None or name not in names else value * factor for name, value in fields.items()}


# ---- Monotone


def rising(seed: int) -> tuple[Case, Columns] | None:
    """A random case at rates from idle to full, None if it has no answer."""
    (case,) = cases(seed, 1, ratio=seed % 8 == 0, peaked=seed % 8 == 1, empirical=seed % 4 == 3)
    capacity = batch.solve([case])
    if not answered(capacity)[0]:
        return None
    limit = min(float(capacity[name][0]) for name in ("rate_at_compute_rps", "rate_at_kv_rps", "rate_at_seats_rps"))
    rates = limit * np.linspace(0.02, 0.999, 25)
    return case, batch.load([replace(case, point=case.point | {"rate_rps": float(rate)}) for rate in rates])


@QUICK
@given(seed=seeds)
def test_requests_in_flight_grow_with_the_rate(seed: int) -> None:
    if (found := rising(seed)) is None:
        return
    _, operating = found
    assert (operating["status"] == 0).all()
    for name in ("decoding", "in_flight"):
        assert (np.diff(operating[name]) >= -ROUNDING * operating[name][1:]).all(), name


def test_latency_seldom_falls_with_the_rate() -> None:
    """How seldom, docs/model.md section 5 says: humps of wakes after few tokens, dips of hard bursts at light load."""
    falls = {"poisson or nearly": [0, 0], "hard bursts": [0, 0]}
    for seed in range(600):
        if (found := rising(seed)) is None:
            continue
        case, operating = found
        count = falls["hard bursts" if default(case.point, "arrival_cv", 1.0) > 2 else "poisson or nearly"]
        count[0] += 1
        times = np.array([operating[name] for name in LATENCIES])
        count[1] += bool((times < np.maximum.accumulate(times, axis=1) * (1 - FITTED)).any())
    assert min(total for total, _ in falls.values()) > 50
    assert falls["poisson or nearly"][1] <= 0.03 * falls["poisson or nearly"][0], falls
    assert falls["hard bursts"][1] <= 0.1 * falls["hard bursts"][0], falls


@QUICK
@given(seed=seeds)
def test_a_looser_slo_never_costs_rate(seed: int) -> None:
    (case,) = cases(seed, 1, "free", ratio=seed % 8 == 0, peaked=seed % 8 == 1, empirical=seed % 4 == 3)
    for slo, column in SLOS.items():
        middle = default(case.point, slo, 1.0)
        points = [case.point | {slo: middle * factor} for factor in np.geomspace(0.2, 5, 25).tolist()]
        answers = batch.solve([replace(case, point=point) for point in points])
        for name in (column, "max_rate_rps"):
            values = answers[name]
            assert (np.isnan(values).all()) or (np.diff(values) >= -NEAR_FULL * values[1:]).all(), (slo, name)


# ---- Scaling


@QUICK
@given(seed=seeds)
def test_twice_the_speed_is_twice_the_rate(seed: int) -> None:
    slow = cases(seed, 4) + cases(seed, 2, ratio=True)
    fast = [
        replace(
            case,
            row=scaled(scaled(case.row, SPEEDS, 2.0), SECONDS, 0.5),
            point=scaled(case.point, tuple(SLOS), 0.5),
        )
        for case in slow
    ]
    before, after = batch.solve(slow), batch.solve(fast)
    for name in ("status", "binding_limit", "next_limit"):
        assert before[name].tolist() == after[name].tolist()
    for names, factor in ((RATES, 2.0), (TIMES, 0.5), (SAME, 1.0)):
        for name in names:
            np.testing.assert_allclose(after[name], factor * before[name], rtol=ROUNDING, err_msg=name)


@QUICK
@given(seed=seeds)
def test_money_is_price_over_rate(seed: int) -> None:
    dear, cheap = cases(seed, 6), cases(seed, 6)
    cheap = [replace(case, point=scaled(case.point, ("usd_per_accelerator_hour",), 0.5)) for case in cheap]
    before, after = batch.solve(dear), batch.solve(cheap)
    ok = before["status"] == code("ok")
    np.testing.assert_allclose(
        before["requests_per_usd"][ok] * before["cost_usd_per_hour"][ok], 3600 * before["max_rate_rps"][ok], rtol=1e-14
    )
    assert after["max_rate_rps"].tobytes() == before["max_rate_rps"].tobytes()
    np.testing.assert_allclose(after["requests_per_usd"], 2 * before["requests_per_usd"], rtol=1e-14)


@QUICK
@given(seed=seeds)
def test_a_price_changes_nothing_but_money(seed: int) -> None:
    priced = [replace(case, point=case.point | {"usd_per_accelerator_hour": 1.0}) for case in cases(seed, 6)]
    unpriced = [replace(case, point=case.point | {"usd_per_accelerator_hour": None}) for case in priced]
    before, after = batch.solve(priced), batch.solve(unpriced)
    assert (before["status"] != code("no_price")).all()
    assert (after["status"][before["status"] == code("ok")] == code("no_price")).all()
    for name in set(_engine.ANSWER_FIELDS) - set(MONEY):
        assert before[name].tobytes() == after[name].tobytes(), name
    for name in set(MONEY):
        assert np.isnan(after[name][answered(after)]).all(), name


# ---- Physics


@QUICK
@given(seed=seeds)
def test_nothing_beats_the_hardware(seed: int) -> None:
    points = cases(seed, 6) + cases(seed, 2, "compute")
    answers = batch.solve(points)
    for case, got in zip(points, batch.rows(answers), strict=True):
        if got["status"] not in (code("ok"), code("no_price")):
            continue
        part, load = shard(case.row, case.blocks), workload(case.row, case.point)
        slots, bandwidth = part.cut.slots, field(case.row, "memory_bandwidth_bytes_per_s")
        token_s = 2 * sum(
            getattr(part, params) / field(case.row, flops)
            for params, flops in (
                ("mixer_params", "mixer_flops"),
                ("mlp_params", "mlp_flops"),
                ("token_expert_params", "expert_flops"),
            )
        )
        assert got["max_rate_rps"] / slots * token_s * (load.mean_uncached + load.d1) <= 1
        assert got["tpot_token_mean_s"] >= got["tpot_floor_s"]
        step = got["tpot_token_mean_s"] * (1 - got["prefill_share"])
        seen = sum(span.read_bytes for span in part.spans if span.kind == FULL)
        read = part.weight_read_bytes + got["decoding"] / slots * load.context * seen
        assert read / step <= bandwidth * (1 + ROUNDING)
        assert got["max_rate_rps"] <= got["rate_at_utilization_rps"] * (1 + ROUNDING)
        assert 0 <= got["prefill_share"] < 1
        assert got["kv_use"] <= 1 + ROUNDING
        assert got["decoding"] <= got["running"] <= load.seats * part.cut.dp * (1 + ROUNDING)


# ---- No NaN, no crash


@QUICK
@given(seed=seeds)
def test_an_answered_row_has_no_nan(seed: int) -> None:
    points = cases(seed, 6) + cases(seed, 2, peaked=True) + cases(seed, 2, ratio=True)
    answers = batch.solve(points)
    for case, got in zip(points, batch.rows(answers), strict=True):
        if got["status"] not in (code("ok"), code("no_price")):
            continue
        null = {column for slo, column in SLOS.items() if case.point.get(slo) is None}
        null |= set(MONEY) if got["status"] == code("no_price") else set()
        null |= set(WAITING) if got["utilization"] >= 1 - FULL_SHARE else set()
        found = {name for name in _engine.ANSWER_FIELDS if math.isnan(got[name])}
        assert found == null
        assert got["residual"] <= ROUNDING
        assert got["binding_limit"] < len(_engine.LIMITS)
        assert got["next_limit"] < len(_engine.LIMITS)


any_number = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-300, 1e300, -1e300, 5e-324, 1.7976931348623157e308, 2.0**53]),
    st.floats(-9, 15).map(lambda exponent: 10.0**exponent),
)


@st.composite
def spoiled_cases(draw: st.DrawFn) -> Case:
    """A realistic point with up to eight fields replaced by any finite number."""
    (case,) = cases(draw(seeds), 1, ratio=draw(st.booleans()), empirical=draw(st.booleans()))
    rows = draw(st.dictionaries(st.sampled_from(ROW_FIELDS), any_number, max_size=4))
    layers = draw(st.dictionaries(st.sampled_from(LAYER_FIELDS), any_number, max_size=3))
    point = draw(st.dictionaries(st.sampled_from(POINT_NUMBERS), any_number, max_size=4))
    blocks = (case.blocks[0] | layers, *case.blocks[1:])
    return replace(case, row=case.row | rows, blocks=blocks, point=case.point | point)


@st.composite
def absurd_cases(draw: st.DrawFn) -> Case:
    """Every field any finite number."""
    row = draw(st.fixed_dictionaries(dict.fromkeys(ROW_FIELDS, any_number)))
    layers = draw(st.lists(st.fixed_dictionaries(dict.fromkeys(LAYER_FIELDS, any_number)), min_size=1, max_size=3))
    point = draw(st.fixed_dictionaries(dict.fromkeys(POINT_NUMBERS, any_number)))
    return Case(dict(row), tuple(map(dict, layers)), dict(point), "absurd")


def filled(value: float) -> Case:
    """The same number in every field."""
    layers = (dict.fromkeys(LAYER_FIELDS, value),)
    return Case(dict.fromkeys(ROW_FIELDS, value), layers, dict.fromkeys(POINT_NUMBERS, value), "filled")


def is_refused(case: Case) -> bool:
    """Whether no replica can be made of the row, for a reason that names row, field and value."""
    try:
        batch.replicas([case])
    except ValueError as refusal:
        reason = str(refusal)
    else:
        return False
    assert re.match(r"row 0: \w+ = \S+: ", reason)
    return True


@pytest.mark.parametrize("place", [-1.0, 0.5, float(TABLES), 1e300, math.inf])
def test_a_law_that_is_not_in_the_table_is_refused(place: float) -> None:
    (case,) = cases(1, 1)
    for run in (batch.solve, batch.load):
        with pytest.raises(ValueError, match=f"lengths .*: the table has {TABLES}"):
            run([replace(case, point=case.point | {"lengths": place, "rate_rps": 1.0})])


@MANY
@given(case=st.one_of(spoiled_cases(), absurd_cases()))
@example(case=filled(0.0))
@example(case=filled(1e-300))
@example(case=filled(1e300))
@example(case=filled(-1.0))
def test_any_finite_input_has_a_status(case: Case) -> None:
    if is_refused(case):
        return
    (got,) = batch.rows(batch.solve([case]))
    assert got["status"] < len(_engine.STATUSES)
    if got["status"] == code("ok"):
        needed = set(_engine.ANSWER_FIELDS) - set(SLOS.values())
        needed -= set(WAITING) if got["utilization"] >= 1 - FULL_SHARE else set()
        assert not {name for name in needed if math.isnan(got[name])}


@MANY
@given(case=st.one_of(spoiled_cases(), absurd_cases()), rate=any_number, clients=any_number, think=any_number)
def test_any_finite_load_has_a_status(case: Case, rate: float, clients: float, think: float) -> None:
    if is_refused(case):
        return
    open_loop = replace(case, point=case.point | {"rate_rps": rate})
    closed_loop = replace(case, point=case.point | {"concurrency": clients, "think_time_s": think})
    answers = batch.load([open_loop, closed_loop])
    assert (answers["status"] < len(_engine.LOAD_STATUSES)).all()
    for got in batch.rows(answers):
        if got["status"] == _engine.LOAD_STATUSES.index("ok"):
            assert got["e2e_mean_s"] >= 0
            # A ratio profile has nobody waiting: in flight and running are one number, computed in two ways.
            assert got["in_flight"] * (1 + 1e-12) >= got["running"] >= got["decoding"] >= 0
            assert got["waiting"] >= 0


# ---- The same bytes however the rows are dealt


@cache
def mixed() -> tuple[Case, ...]:
    """A batch of every kind of model and point, with some that cannot be solved."""
    points = cases(1, 90) + cases(2, 20, peaked=True) + cases(3, 20, ratio=True) + cases(4, 20, "kv_pool")
    spoiled = [replace(case, row=case.row | {"supported": 0.0}) for case in cases(5, 10)]
    absurd = [replace(case, point=filled(value).point) for case in cases(6, 1) for value in (0.0, -1.0, 1e-300, 1e300)]
    return tuple(points + spoiled + absurd)


def everything(function: Callable[[list[Case], int], Columns], threads: int) -> Columns:
    """Thousands of points and loads, through `solve` or `load`."""
    at_loads = [case for closed in (False, True) for case in loads(6, 40, closed=closed)]
    return function([*mixed(), *at_loads] * 20, threads)


def same(a: Columns, b: Columns) -> bool:
    """Equal bytes in every column."""
    return a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)


@pytest.mark.parametrize("function", [batch.solve, batch.load])
def test_threads_do_not_matter(function: Callable[[list[Case], int], Columns]) -> None:
    assert same(everything(function, 1), everything(function, 2))


@QUICK
@given(order=st.permutations(range(len(mixed()))))
def test_the_place_in_a_batch_does_not_matter(order: list[int]) -> None:
    answers = batch.solve(mixed())
    shuffled = batch.solve([mixed()[index] for index in order])
    assert same({name: values[order] for name, values in answers.items()}, shuffled)


@QUICK
@given(cuts=st.lists(st.integers(0, len(mixed())), max_size=6))
def test_any_split_of_a_batch_gives_the_same_rows(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(mixed())]
    parts = [batch.solve(mixed()[start:stop]) for start, stop in pairwise(edges)]
    whole = batch.solve(mixed())
    assert same({name: np.concatenate([part[name] for part in parts]) for name in whole}, whole)
