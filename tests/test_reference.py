"""The reference solver against closed forms and brute force, and the engine against the reference on random points."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest

from reference import batch, loads, search, solver
from reference.affine import affine, made_affine
from reference.architectures import KINDS
from reference.attended import pairs
from reference.compare import differences, judged, names_allowed
from reference.empirical import TABLES, every_prompt
from reference.examples import BLOCKS, POINT, REPLICA
from reference.fields import Row, default
from reference.limits import QUANTITIES, limit_roots
from reference.operating import Answer
from reference.parallelism import parallelism
from reference.points import PERCENTILES, Case, cases, curve_of, jumps
from reference.points import loads as load_cases
from reference.refusals import SPOILERS, invalid, unlinked
from reference.replica import replica
from reference.solver import LIMITS
from reference.step import Step
from reference.traits import traits

# Plain dense models on tensor-parallel ranks: aim (or kind of free point), how many
STEERED = {
    "compute": 240,
    "kv_pool": 320,
    "seats": 320,
    "tpot_slo": 250,
    "ttft_slo": 250,
    "e2e_slo": 250,
    "utilization": 240,
}
FREE, PEAKED, RATIO, JUMPS, LOADS = 600, 260, 240, 80, 350
# Of every other kind: for each aim, free, peaked, with a ratio profile, with a load
EACH, EACH_FREE, EACH_PEAKED, EACH_RATIO, EACH_LOAD = 14, 70, 20, 15, 25
ANY_JUMPS, INVALID, UNLINKED = 40, 160, 40
EMPIRICAL, EACH_EMPIRICAL, OPERATING_EMPIRICAL = 100, 25, 200
NO_SLOS = dict.fromkeys(("slo_ttft_s", "slo_tpot_s", "slo_e2e_s"))
BELOW_THE_CEILING = {"utilization_cap": 0.9}
LARGE_TABLES = 5  # the first with hundreds of rows
PER_KIND, TRAITS = 150, 54
PER_LIMIT, PER_PERCENTILE, TWO_ROOTS = 200, 50, 100
PEAK_DROP = 1e-6
# Curves of prompts that outweigh answers can have humps between the engine's looks, and the tail of a percentile can be
# so flat that its root has fewer digits. So many points may differ at all, and so many of them by more than slightly in
# a limit's rate.
RARELY, SLIGHTLY, FAR_OFF = 0.008, 1e-3, 3
# Loads whose percentile of TTFT is on so flat a tail.
FLAT = 3
# Number decoding near the least window of arrivals, 1e-12, at which the slope of bursts begins with a jump.
AT_THE_FLOOR = 1e-9
OPERATING = (
    "in_flight",
    "running",
    "decoding",
    "ttft_mean_s",
    "tpot_mean_s",
    "tpot_token_mean_s",
    "e2e_mean_s",
    "prefill_share",
    "kv_in_flight_tokens",
    "kv_use",
    "output_tok_s",
    "waiting",
    "seat_wait_s",
    "ttft_p50_s",
    "ttft_p90_s",
    "ttft_p99_s",
    "itl_p99_s",
    "e2e_p99_s",
)
LOAD_ANSWERS = (*OPERATING, "rate_rps", "excess", "utilization")


@dataclass(frozen=True)
class Solved:
    """A case with the reference's answer."""

    case: Case
    answer: Answer


def capacity_points() -> list[Case]:
    """Every point to be solved for its capacity."""
    points = [
        case for seed, (aim, count) in enumerate(STEERED.items()) for case in cases(seed, count, aim, kind="dense")
    ]
    points += cases(100, FREE, kind="dense") + cases(101, PEAKED, kind="dense", peaked=True)
    points += cases(102, RATIO, kind="dense", ratio=True) + jumps(103, JUMPS, "dense")
    for number, kind in enumerate(("spread", *KINDS)):
        seed = 1000 * (number + 1)
        points += [case for place, aim in enumerate(STEERED) for case in cases(seed + place, EACH, aim, kind=kind)]
        points += cases(seed + 100, EACH_FREE, kind=kind) + cases(seed + 101, EACH_PEAKED, kind=kind, peaked=True)
        points += cases(seed + 102, EACH_RATIO, kind=kind, ratio=True)
    points += empirical_points()
    return points + jumps(104, ANY_JUMPS) + invalid(105, INVALID) + unlinked(106, UNLINKED)


def empirical_points() -> list[Case]:
    """Points whose lengths are an empirical law, each limit binding, on every kind of model."""
    points = [case for n, aim in enumerate(STEERED) for case in cases(300 + n, EACH_EMPIRICAL, aim, empirical=True)]
    points += cases(310, EMPIRICAL, empirical=True) + cases(311, EACH_EMPIRICAL, empirical=True, ratio=True)
    return points


def load_points() -> list[Case]:
    """Every point with a load."""
    points = load_cases(200, LOADS, closed=False, kind="dense") + load_cases(201, LOADS, closed=True, kind="dense")
    points += [case for closed in (False, True) for case in load_cases(202, EMPIRICAL, closed=closed, empirical=True)]
    for number, kind in enumerate(("spread", *KINDS)):
        seed = 1000 * (number + 1) + 200
        points += load_cases(seed, EACH_LOAD, closed=False, kind=kind)
        points += load_cases(seed + 1, EACH_LOAD, closed=True, kind=kind)
    return points


@pytest.fixture(scope="module")
def solved() -> list[Solved]:
    """Every capacity point, solved once."""
    return [Solved(case, solver.solve(case.row, case.blocks, case.point)) for case in capacity_points()]


@pytest.fixture(scope="module")
def loaded() -> list[Solved]:
    """Every point with a load, solved once."""
    return [Solved(case, loads.load(case.row, case.blocks, case.point)) for case in load_points()]


def answered(ones: list[Solved]) -> list[Solved]:
    """Those with an operating point."""
    return [one for one in ones if one.answer["status"] in ("ok", "no_price", "saturated")]


# ---- The strata


def test_every_stratum_is_reached(solved: list[Solved], loaded: list[Solved]) -> None:
    assert len(solved) + len(loaded) >= 4000
    binding = Counter(one.answer.get("binding_limit") for one in solved)
    assert all(binding[limit] >= PER_LIMIT for limit in LIMITS), binding
    operating = answered(solved + loaded)
    fixed = Counter(not one.case.point.get("isl_cv") for one in operating)
    assert min(fixed.values()) >= PER_LIMIT
    several = Counter(bool(curve_of(one.case).chunks(np.zeros(1)).max() > 1) for one in operating)
    assert min(several.values()) >= PER_LIMIT, several
    status = Counter((one.case.aim, one.answer["status"]) for one in loaded)
    kinds = (("open", "ok"), ("open", "unstable"), ("closed", "ok"), ("closed", "saturated"))
    assert all(status[kind] >= 50 for kind in kinds), status


def test_every_kind_is_solved(solved: list[Solved], loaded: list[Solved]) -> None:
    counts = Counter(trait for one in answered(solved + loaded) for trait in traits(one.case))
    assert len(counts) == TRAITS
    assert min(counts.values()) >= PER_KIND, counts


def test_latencies_bind_at_every_percentile(solved: list[Solved]) -> None:
    binding = Counter((one.answer.get("binding_limit"), one.case.point.get("slo_percentile") or 0.0) for one in solved)
    for limit in ("ttft_slo", "e2e_slo"):
        assert all(binding[limit, percent] >= PER_PERCENTILE for percent in PERCENTILES), binding


def test_empirical_laws_are_solved(solved: list[Solved], loaded: list[Solved]) -> None:
    tables = Counter(one.case.point.get("lengths") for one in answered(solved + loaded))
    assert sum(count for table, count in tables.items() if table is not None) >= OPERATING_EMPIRICAL
    assert len(tables) == TABLES + 1


def test_few_prompt_nodes_do_for_all_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    large = [case for case in cases(312, 60, empirical=True) if (case.point["lengths"] or 0) >= LARGE_TABLES]
    # An SLO just above idle turns a small error of a time into a large one of the rate: not asked for here.
    points = [Case(case.row, case.blocks, case.point | NO_SLOS | BELOW_THE_CEILING, case.aim) for case in large]
    few = [solver.solve(case.row, case.blocks, case.point) for case in points]
    monkeypatch.setattr("reference.workload.prompt_nodes", every_prompt)
    all_of_them = [solver.solve(case.row, case.blocks, case.point) for case in points]
    for name, bar in (("rate_at_compute_rps", 0.005), ("tpot_mean_s", 0.005), ("ttft_mean_s", 0.01)):
        both = [(one, every) for one, every in zip(few, all_of_them, strict=True) if one.get(name) is not None]
        errors = [abs(number(one, name) / number(every, name) - 1) for one, every in both]
        assert len(errors) > 20
        assert (max(errors) < bar, float(np.median(errors)) < bar / 10) == (True, True), (name, errors)


def test_every_refusal_is_refused(solved: list[Solved]) -> None:
    status = Counter((one.case.aim, one.answer["status"]) for one in solved)
    assert all(status[f"invalid: {name}", "invalid_parallelism"] == INVALID / len(SPOILERS) for name in SPOILERS)
    assert status["unlinked", "unsupported"] == UNLINKED


def test_many_curves_peak(solved: list[Solved]) -> None:
    curves = [(curve_of(one.case), one.answer) for one in solved if one.answer.get("rate_at_compute_rps")]
    ends = [float(its.rate(np.array([its.load.b_cap]))[0]) for its, _ in curves]
    tops = [answer["rate_at_compute_rps"] for _, answer in curves]
    peaked = [end < top * (1 - PEAK_DROP) for end, top in zip(ends, tops, strict=True) if isinstance(top, float)]
    assert sum(peaked) >= TWO_ROOTS


def test_many_limits_are_jumped_over(solved: list[Solved]) -> None:
    steered = [one for one in solved if one.case.aim == "ttft_jump" and one.answer.get("binding_limit") == "ttft_slo"]
    stopped = [number(one.answer, "ttft_mean_s") < (one.case.point["slo_ttft_s"] or 0) * (1 - 1e-9) for one in steered]
    assert sum(stopped) >= JUMPS // 4


# ---- The reference by itself


def test_the_operating_point_meets_every_limit(solved: list[Solved]) -> None:
    for one in answered(solved):
        answer, point = one.answer, one.case.point
        assert number(answer, "residual") < 1e-12
        assert number(answer, "kv_use") < 1 + 1e-12
        assert number(answer, "running") <= seats(one.case) * (1 + 1e-12)
        # A wait is as a burst's excess, and as the inverse of the idle share, a small difference near the ceiling.
        burst = max(default(point, "arrival_cv", 1.0), 1.0) ** 2
        rounding = 1e-12 * burst + 1e-14 / max(1 - number(answer, "utilization"), 1e-7)
        if number(answer, "decoding") < AT_THE_FLOOR:
            continue
        for quantity, slo in met_quantities(point):
            limit = point.get(slo)
            assert limit is None or answer[quantity] is None or number(answer, quantity) <= limit * (1 + rounding)


def met_quantities(point: Row) -> list[tuple[str, str]]:
    """The answers that an SLO must hold down, with the SLO; not all percentiles are answers."""
    percent = default(point, "slo_percentile", 0.0)
    found = [("tpot_mean_s", "slo_tpot_s")]
    if percent == 0:
        return [*found, ("ttft_mean_s", "slo_ttft_s"), ("e2e_mean_s", "slo_e2e_s")]
    found += [("ttft_p90_s", "slo_ttft_s")] if percent == 90 else []
    return found + ([("ttft_p99_s", "slo_ttft_s"), ("e2e_p99_s", "slo_e2e_s")] if percent == 99 else [])


def seats(case: Case) -> float:
    """Seats of the replica: of each of its data-parallel ranks."""
    return curve_of(case).load.seats * parallelism(case.row, case.blocks).dp


def test_the_loads_are_the_ones_asked_for(loaded: list[Solved]) -> None:
    for one in answered(loaded):
        answer, point = one.answer, one.case.point
        assert number(answer, "residual") < 1e-12
        clients = point.get("concurrency")
        if clients is None:
            assert answer["rate_rps"] == pytest.approx(point["rate_rps"], rel=1e-15)
            continue
        there = number(answer, "rate_rps") * (number(answer, "e2e_mean_s") + (point["think_time_s"] or 0.0))
        assert number(answer, "seat_wait_s") >= 0
        # Fewer only where one more chunk would make them too many.
        assert there == pytest.approx(clients, rel=1e-12) or there < clients


def number(answer: Answer, name: str) -> float:
    """A float answer that must be there."""
    value = answer[name]
    assert isinstance(value, float)
    return value


@pytest.mark.parametrize("seed", range(8))
def test_brute_force_finds_nothing_better(seed: int) -> None:
    for case in cases(1000 + seed, 2, peaked=seed % 2 == 1):
        solvable = replica(case.row, case.blocks, case.point)
        if isinstance(solvable, str):
            continue
        its, cap = solvable.curve, solvable.load.b_cap
        dense = np.sort(np.concatenate([np.linspace(0, cap, 5001)[1:], cap * np.logspace(-7, 0, 5001)]))
        state = its.at(dense)
        best = number(solver.solve(case.row, case.blocks, case.point), "rate_at_compute_rps") / solvable.slots
        assert best * (1 - 1e-4) <= state.rate.max() <= best * (1 + 1e-12)
        bounds = {"kv_pool": solvable.pool_tokens, "seats": solvable.seats}
        roots = limit_roots(solvable, case.point)
        for name, bound in bounds.items():
            beyond = (QUANTITIES[name](state) >= bound) & (dense <= solvable.top.b)
            first = dense[np.argmax(beyond)] if beyond.any() else solvable.top.b
            before = dense[max(np.searchsorted(dense, first) - 1, 0)]
            assert before * (1 - 1e-12) <= roots[name].b <= first * (1 + 1e-12)


def test_the_rate_does_not_fall_before_its_maximum() -> None:
    """What docs/model.md section 5 says of the curve's shape, on random curves that nothing steered."""
    solvable = [it for case in cases(77, 400) if not isinstance(it := replica(case.row, case.blocks, case.point), str)]
    rates = [search.pieces(it.curve).at_hi.rate for it in solvable]
    dips = [float((1 - rate / np.maximum.accumulate(rate))[: np.argmax(rate) + 1].max()) for rate in rates]
    assert len(dips) > 350
    assert sum(dip > 1e-9 for dip in dips) <= len(dips) // 100
    assert max(dips) < 3e-3


@pytest.mark.parametrize("kind", ["dense", "moe", "sparse", "sliding", "chunked", "hybrid"])
def test_the_chunks_sum_to_the_closed_form(kind: str) -> None:
    for case in cases(400, 12, kind=kind):
        its = curve_of(case).step
        for u, x, b, budget in ((1500.0, 0.0, 10.0, 512.0), (8192.0, 1600.0, 3.5, 2048.0), (100.0, 16.0, 60.25, 512.0)):
            room = budget - b
            for h in (0.0, 70.5):
                closed = its.prompt(u, its.attention(x + u, x), (b, h), room, float(math.ceil(u / room)))
                assert closed == pytest.approx(chunk_by_chunk(its, u, x, (b, h), room), rel=1e-11)


def chunk_by_chunk(its: Step, u: float, x: float, there: tuple[float, float], room: float) -> float:
    """s(u, B) summed over the chunks one by one."""
    b, h = there
    total, start, left = its.head_s_per_row, x, u
    while left > 0:
        c = min(room, left)
        total += its.gemm(b + h + c, b) - its.gemm(b + h, b) + its.link_s_per_token * c
        seconds = sum(one.pair_s * pairs(one.span, start, start + c) for one in its.spans)
        total += seconds * (1 + its.half_tokens / (x + u))
        start, left = start + c, left - c
    return total


def test_a_prompt_pays_for_one_iteration_or_those_it_fills_and_less_among_others() -> None:
    its = replace(curve_of(Case(REPLICA, tuple(BLOCKS), POINT, "free")).step, prefill_overhead_s=1.0)
    assert its.prompt_overhead(1.0, 1e6, 0.0) == pytest.approx(1.0, abs=1e-5)
    assert its.prompt_overhead(1.0, 1e6, 4.0) == pytest.approx(0.2, abs=1e-5)
    assert its.prompt_overhead(5e6, 1e3, 0.0) == pytest.approx(5e3, rel=1e-6)


def test_the_slope_is_the_derivative() -> None:
    its = curve_of(Case(REPLICA, tuple(BLOCKS), POINT | {"isl_cv": 1.0}, "free"))
    b, h = np.array([0.5, 20.0, 200.0]), 1e-4
    k = its.chunks(b)
    assert its.slope(b, k) == pytest.approx((its.rate(b + h, k) - its.rate(b - h, k)) / (2 * h), rel=1e-6)


def test_a_narrow_lognormal_is_a_fixed_length() -> None:
    fixed, narrow = (
        solver.solve(REPLICA, BLOCKS, POINT),
        solver.solve(REPLICA, BLOCKS, POINT | {"isl_cv": 1e-6, "osl_cv": 1e-6}),
    )
    for name in ("rate_at_compute_rps", "rate_at_kv_rps", "ttft_mean_s", "tpot_mean_s"):
        assert fixed[name] == pytest.approx(narrow[name], rel=1e-9)


def test_one_request_alone_sees_the_unloaded_times() -> None:
    its = curve_of(Case(REPLICA, tuple(BLOCKS), POINT, "free"))
    unloaded = its.at(np.zeros(1))
    alone = its.step.decode(1.0, its.context_s)
    assert its.context_s == pytest.approx(327_680 / 4 * 1650 / (0.7 * 3.35e12), rel=1e-15)
    assert unloaded.tpot[0] == pytest.approx(alone, rel=1e-15)
    first = its.step.decode(0.0, 0.0) + unloaded.prompts[0, 0]
    assert unloaded.ttft[0] == pytest.approx(first + 0.01 + 1500e-6, rel=1e-15)


def test_no_limit_reached_leaves_the_rate_at_compute() -> None:
    answer = solver.solve(REPLICA, BLOCKS, POINT | {"memory_bytes": 1e15, "max_num_seqs": 1e6, "utilization_cap": 1.0})
    assert answer["max_rate_rps"] == answer["rate_at_kv_rps"] == answer["rate_at_compute_rps"]
    assert (answer["binding_limit"], answer["next_limit"]) == ("compute", "kv_pool")


# ---- The affine closed form


def affine_case(case: Case) -> Case | None:
    """The case on an affine row, with a TPOT SLO that is reached on the way up the curve; None if that does not rise.

    Prompts that differ wildly have a wake so heavy that fewer requests come where more decode.
    """
    row, blocks = made_affine(case.row, case.blocks)
    point = case.point | {"arrival_cv": 1.0}
    closed = affine(row, blocks, point)
    if not closed.rises():
        return None
    return Case(row, tuple(blocks), point | {"slo_tpot_s": closed.tpot_mean(closed.b_cap / 4)}, "affine")


AFFINE_CASES = [
    closed
    for case in cases(300, 400, "compute")
    + cases(301, 30, "compute", kind="dense", ratio=True)
    + cases(302, 30, "compute", kind="sliding", ratio=True)
    if (closed := affine_case(case))
]
AFFINE_ANSWERS = (
    "rate_at_compute_rps",
    "rate_at_tpot_rps",
    "tpot_token_mean_s",
    "tpot_mean_s",
    "decoding",
    "prefill_share",
)


def closed_form_answers(case: Case, rate: float) -> Answer:
    """What the closed form says of the limits that it covers, and of the operating point at a rate."""
    form = affine(case.row, case.blocks, case.point)
    slo = case.point["slo_tpot_s"]
    assert slo is not None
    rate /= form.slots
    decoding = form.decoding(rate)
    return {
        "rate_at_compute_rps": form.slots * form.rate_at_compute(),
        "rate_at_tpot_rps": form.slots * form.rate_at_tpot(slo),
        "tpot_token_mean_s": form.tpot_token(decoding),
        "tpot_mean_s": form.tpot_mean(decoding),
        "decoding": form.slots * decoding,
        "prefill_share": rate * form.prompt_s,
    }


def test_the_reference_has_the_affine_form() -> None:
    assert len(AFFINE_CASES) >= 240
    for case in AFFINE_CASES:
        answer = solver.solve(case.row, case.blocks, case.point)
        got = {name: number(answer, name) for name in AFFINE_ANSWERS}
        assert not differences(closed_form_answers(case, number(answer, "max_rate_rps")), got, AFFINE_ANSWERS)


# ---- The engine against the reference


def test_the_engine_has_the_affine_form() -> None:
    answers = batch.solve(AFFINE_CASES)
    for case, got in zip(AFFINE_CASES, batch.rows(answers), strict=True):
        assert not differences(closed_form_answers(case, got["max_rate_rps"]), got, AFFINE_ANSWERS)


def test_the_engine_finds_an_slo_at_the_foot_of_the_curve() -> None:
    """End-to-end latency that is reached at a small part of the B of the curve's top, long before the ceiling."""
    point = POINT | {"max_num_seqs": 4, "memory_bytes": 1e15, "utilization_cap": 1.0}
    seated = number(solver.solve(REPLICA, BLOCKS, point | {"utilization_cap": 0.5}), "e2e_mean_s")
    answer = solver.solve(REPLICA, BLOCKS, point := point | {"slo_e2e_s": seated})
    (got,) = batch.rows(batch.solve([Case(REPLICA, tuple(BLOCKS), point, "foot")]))
    assert answer["binding_limit"] == "e2e_slo"
    assert got["rate_at_e2e_rps"] == pytest.approx(number(answer, "rate_at_e2e_rps"), rel=1e-9)


def test_the_engine_agrees_on_capacity(solved: list[Solved]) -> None:
    answers = batch.rows(batch.solve([one.case for one in solved]))
    wrong = [
        (one.case, found) for one, got in zip(solved, answers, strict=True) if (found := capacity_differences(one, got))
    ]
    assert len(wrong) <= RARELY * len(solved), report(wrong, len(solved))
    off = [found for _, found in wrong if rate_error(found) > SLIGHTLY]
    assert len(off) <= FAR_OFF, report(wrong, len(solved))


def rate_error(found: dict[str, tuple[object, object]]) -> float:
    """The largest relative difference of any limit's rate."""
    rates = [pair for name, pair in found.items() if name.startswith("rate_at_")]
    return max((abs(float(theirs) / float(ours) - 1) for ours, theirs in rates), default=0.0)  # type: ignore[arg-type]


def capacity_differences(one: Solved, got: dict[str, float]) -> dict[str, tuple[object, object]]:
    """What differs between the reference and the engine, answers and names."""
    status = batch.name_of(got["status"], batch.STATUSES)
    if status != one.answer["status"]:
        return {"status": (one.answer["status"], status)}
    if "max_rate_rps" not in one.answer:
        return {}
    case = one.case
    found: dict[str, tuple[object, object]] = dict(judged(case, one.answer, got, batch.ANSWERS))
    if found and any(not judged(case, other, got, batch.ANSWERS) for other in beside(one)):
        found = {}
    names = (batch.name_of(got["binding_limit"], LIMITS), batch.name_of(got["next_limit"], LIMITS))
    expected = names_allowed(one.answer, one.case.point)
    return found if names in expected else found | {"names": (expected, names)}


def beside(one: Solved) -> list[Answer]:
    return solver.beside(one.case.row, one.case.blocks, one.case.point, one.answer)


def test_the_engine_agrees_on_loads(loaded: list[Solved]) -> None:
    answers = batch.rows(batch.load([one.case for one in loaded]))
    wrong = [
        (one.case, found) for one, got in zip(loaded, answers, strict=True) if (found := load_differences(one, got))
    ]
    assert len(wrong) <= FLAT, report(wrong, len(loaded))
    assert all(name.startswith("ttft_p") for _, found in wrong for name in found), report(wrong, len(loaded))


def load_differences(one: Solved, got: dict[str, float]) -> dict[str, tuple[object, object]]:
    """What differs between the reference and the engine at a load."""
    status = batch.name_of(got["status"], batch.LOAD_STATUSES)
    if status != one.answer["status"]:
        return {"status": (one.answer["status"], status)}
    return dict(judged(one.case, one.answer, got, LOAD_ANSWERS))


def report(wrong: list[tuple[Case, dict[str, tuple[object, object]]]], count: int) -> str:
    """How many points differ and in what, with the first few."""
    columns = Counter(name for _, found in wrong for name in found)
    first = "\n".join(f"{case}\n  {found}" for case, found in wrong[:3])
    return f"{len(wrong)} of {count} differ: {dict(columns)}\n{first}"
