"""The reference solver's new physics against brute force, finer numerics, numbers by hand and limits it must share."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from reference import loads, solver
from reference.architectures import Fields, block, grouped
from reference.attended import attended, mean_attended, pairs, positions
from reference.examples import BLOCKS, POINT, REPLICA
from reference.links import communication
from reference.operating import Answer
from reference.shard import shard
from reference.spans import CHUNKED, FULL, SLIDING, Span
from reference.step import step
from reference.workload import Floats, workload

LENGTHS = [(1, 1), (5, 1), (7, 30), (16, 16), (17, 3), (64, 200), (100, 1), (1000, 999)]
WINDOWS = [1, 2, 7, 16, 17, 64, 100, 101, 300, 5000]


def span(kind: int, tokens: float = math.inf) -> Span:
    """A span that costs nothing."""
    return Span(kind, tokens, 0.0, 0.0, 0.0, 0.0)


SPANS = [span(FULL), *(span(kind, window) for kind in (SLIDING, CHUNKED) for window in WINDOWS)]


def seen_at(its: Span, position: int) -> int:
    """Tokens that a whole position, counted from 1, attends to: itself and those before it that are in its span."""
    if its.kind == FULL:
        return position
    window = int(its.tokens)
    return min(position, window) if its.kind == SLIDING else (position - 1) % window + 1


# ---- Counting tokens


@pytest.mark.parametrize("its", SPANS, ids=lambda its: f"{its.kind}-{its.tokens:g}")
def test_attended_tokens_are_counted_one_by_one(its: Span) -> None:
    for prompt, steps in LENGTHS:
        counted = [seen_at(its, position) for position in range(prompt + 1, prompt + steps + 1)]
        assert mean_attended(its, float(prompt), float(steps)) == pytest.approx(sum(counted) / steps, rel=1e-14)


@pytest.mark.parametrize("its", SPANS, ids=lambda its: f"{its.kind}-{its.tokens:g}")
def test_pairs_are_counted_one_by_one(its: Span) -> None:
    """Q counts a position's own token half, which is the integral: but not where a window already slides."""
    for cached, more in LENGTHS:
        positions_ = range(cached + 1, cached + more + 1)
        slides = its.kind == SLIDING
        counted = [seen_at(its, p) - (0.0 if slides and p > its.tokens else 0.5) for p in positions_]
        assert pairs(its, float(cached), float(cached + more)) == pytest.approx(sum(counted), rel=1e-14)


def page_g(its: Span, t: Fraction) -> Fraction:
    """G(t) of docs/model.md, to the letter."""
    if its.kind == FULL:
        return t * (t + 1) / 2
    w = Fraction(its.tokens)
    if its.kind == SLIDING:
        return t * (t + 1) / 2 if t <= w else w * (w + 1) / 2 + (t - w) * w
    whole = t // w
    r = t - whole * w
    return whole * w * (w + 1) / 2 + r * (r + 1) / 2


def page_q(its: Span, t: Fraction) -> Fraction:
    """Q(t) of docs/model.md, to the letter."""
    w = Fraction(0 if its.kind == FULL else its.tokens)
    if its.kind == FULL or (its.kind == SLIDING and t <= w):
        return t**2 / 2
    return w**2 / 2 + (t - w) * w if its.kind == SLIDING else (t // w) * w**2 / 2 + (t % w) ** 2 / 2


def test_the_differences_are_those_of_the_page() -> None:
    random = np.random.Generator(np.random.PCG64(1))
    for _ in range(2000):
        its = SPANS[random.integers(len(SPANS))]
        start, end = np.sort(np.exp(random.uniform(0, 9, 2))).tolist()
        exact_start, exact_end = Fraction(start), Fraction(end)
        q, g = (float(page(its, exact_end) - page(its, exact_start)) for page in (page_q, page_g))
        assert pairs(its, start, end) == pytest.approx(q, rel=1e-12)
        assert positions(its, start, end) == pytest.approx(g, rel=1e-12)


def test_an_output_shorter_than_a_token_sees_its_one_position() -> None:
    assert mean_attended(span(SLIDING, 10.0), 100.0, -0.5) == 10.0
    assert mean_attended(span(SLIDING, 1e6), 100.0, -0.5) == 100.25
    assert mean_attended(span(CHUNKED, 30.0), 100.0, -0.5) == 10.25
    assert mean_attended(span(CHUNKED, 30.0), 100.0, 1e-7) == pytest.approx(10.5, rel=1e-7)


# ---- The 16 x 16 nodes


def fine(mean: float, cv: float, count: int = 801) -> tuple[Floats, Floats]:
    """Weights and lengths of a lognormal law, on an even grid of nine standard deviations each way."""
    if cv == 0:
        return np.ones(1), np.array([mean])
    variance = math.log(1 + cv**2)
    z = np.linspace(-9, 9, count)
    weight = np.exp(-(z**2) / 2)
    return weight / weight.sum(), np.exp(math.log(mean) - variance / 2 + math.sqrt(variance) * z)


def errors(kind: int, *, prompts: bool, outputs: bool) -> Floats:
    """Relative errors of both means that a span needs, by nodes against the fine grid, on 60 random workloads.

    Prompts of 16 to 100,000 tokens, outputs of 2 to 8,000, CV up to 2 where spread, windows of 1/20 to 3 times both.
    """
    random = np.random.Generator(np.random.PCG64(2))
    found = []
    for _ in range(60):
        prompt, output = np.exp(random.uniform(np.log([16, 2]), np.log([1e5, 8e3]))).round().tolist()
        isl_cv = float(random.uniform(0.05, 2)) if prompts else 0.0
        osl_cv = float(random.uniform(0.05, 2)) if outputs else 0.0
        point: Fields = {"isl_tokens": prompt, "osl_tokens": output, "isl_cv": isl_cv, "osl_cv": osl_cv}
        its = span(kind, max(1.0, round((prompt + output) * math.exp(random.uniform(math.log(0.05), math.log(3))))))
        load = workload(REPLICA, point)
        (wi, i), (wo, o) = fine(prompt, isl_cv), fine(output, osl_cv)
        mean, weight = mean_attended(its, i[:, None], o - 1), np.outer(wi, wo)
        exact = np.array([(weight * (o - 1) * mean).sum() / load.d1, (weight * mean).sum()])
        rule = attended(its, load)
        found.append(np.abs(np.array([rule.decoding, rule.request]) / exact - 1))
    return np.array(found)


# kind, prompts spread, outputs spread: largest and median relative error that the nodes have
MEASURED = [
    (SLIDING, False, True, 0.004, 1e-9),
    (SLIDING, True, False, 0.04, 0.0015),
    (SLIDING, True, True, 0.04, 0.0015),
    (CHUNKED, False, True, 0.07, 0.004),
    (CHUNKED, True, False, 0.55, 0.06),
    (CHUNKED, True, True, 0.55, 0.06),
]


@pytest.mark.parametrize(("kind", "prompts", "outputs", "largest", "median"), MEASURED)
def test_the_nodes_are_as_good_as_measured(
    kind: int, prompts: bool, outputs: bool, largest: float, median: float
) -> None:
    """A window's kink costs a few per cent at most; the teeth of chunks, which 16 prompts cannot sample, half."""
    found = errors(kind, prompts=prompts, outputs=outputs)
    assert found.max() <= largest
    assert np.median(found) <= median


@pytest.mark.parametrize("kind", [SLIDING, CHUNKED])
def test_fixed_lengths_are_exact(kind: int) -> None:
    assert errors(kind, prompts=False, outputs=False).max() < 1e-12


# ---- Limits that two models share

ROOMY: Fields = {**POINT, "memory_bytes": 1e15, "max_num_seqs": 1e6, "slo_tpot_s": 0.05}
SPREAD: Fields = {**ROOMY, "isl_cv": 0.7, "osl_cv": 0.5}
LAYER = BLOCKS[0]


def answers(blocks: list[Fields], point: Fields = ROOMY, **row: float) -> Answer:
    """What a model made of these blocks does on the example's replica."""
    return solver.solve(REPLICA | row, blocks, point)


def assert_same(one: Answer, other: Answer, rel: float = 1e-12, but: tuple[str, ...] = ()) -> None:
    """Equal answers, to rounding."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        if name not in ("residual", *but):
            same = pytest.approx(other[name], rel=rel) if isinstance(value, float) else other[name]
            assert value == same, name


@pytest.mark.parametrize("kind", [SLIDING, CHUNKED])
def test_a_window_beyond_everything_is_none(kind: int) -> None:
    wide = [LAYER | {"span_kind": float(kind), "span_tokens": 1e9}]
    assert_same(answers(wide), answers(BLOCKS))
    assert_same(answers(wide, SPREAD), answers(BLOCKS, SPREAD), rel=1e-8)


def test_an_index_that_picks_everything_for_nothing_is_none() -> None:
    assert_same(answers([LAYER | {"attended_tokens": 1e9}]), answers(BLOCKS))


def test_a_blocks_layers_may_be_told_apart() -> None:
    parts = [LAYER | {"count": 33}, LAYER | {"count": 47}]
    assert_same(answers(parts, SPREAD), answers(BLOCKS, SPREAD))


def expert_layer(experts: float, per_token: float, width: float) -> Fields:
    """The example's layer with experts for its MLP."""
    each = {"experts": experts, "experts_per_token": per_token, "expert_params": 3 * 8192 * width}
    return LAYER | {"mlp_params": 0, "mlp_width": 0} | each | {"expert_width": width}


@pytest.mark.parametrize("tp", [1, 4])
def test_passing_every_expert_is_a_dense_mlp(tp: int) -> None:
    assert_same(answers([expert_layer(8, 8, 3584)], SPREAD, tp=tp), answers(BLOCKS, SPREAD, tp=tp))


def test_experts_are_read_as_tokens_touch_them() -> None:
    its = step(REPLICA, sparse := [expert_layer(8, 2, 3584)], shard(REPLICA, sparse))
    whole, without = (shard(REPLICA, [it]).layer_read_bytes for it in (LAYER, LAYER | {"mlp_params": 0}))
    shares = (its.weights(np.array([0.0, 1.0, 2.0, 1e3])) - its.weights_s) / its.experts_s
    assert shares == pytest.approx([0, 1 / 4, 7 / 16, 1], rel=1e-14)
    assert its.experts_s == pytest.approx((whole - without) / (0.85 * 3.35e12), rel=1e-14)


def test_an_even_load_does_not_see_expert_parallelism() -> None:
    layers = [expert_layer(8, 2, 3584)]
    cut = {"expert_load_imbalance": 1.0, "dp": 2, "scaleup_domain_size": 72}
    assert_same(answers(layers, SPREAD, **cut, ep=8), answers(layers, SPREAD, **cut, ep=1))


PER_REPLICA = (
    "in_flight",
    "running",
    "decoding",
    "waiting",
    "kv_in_flight_tokens",
    "kv_pool_tokens",
    "output_tok_s",
    "gpus",
)


def test_dense_ranks_are_replicas() -> None:
    one, four = answers(BLOCKS, SPREAD), answers(BLOCKS, SPREAD, dp=4)
    for name, value in one.items():
        if isinstance(value, float) and name != "residual":
            times = 4 if name.endswith("_rps") or name in PER_REPLICA or name == "cost_usd_per_hour" else 1
            assert four[name] == pytest.approx(times * value, rel=1e-12), name


def test_stages_with_free_links_are_as_many_batches() -> None:
    free = dict.fromkeys(("scaleup_bytes_per_s", "pcie_bytes_per_s"), 1e30) | {"tp": 1}
    free |= {name: 0.0 for name in REPLICA if name.endswith(("allreduce_latency_s", "latency_per_doubling_s"))}
    one, four = answers(BLOCKS, SPREAD, **free), answers(BLOCKS, SPREAD, **free, pp=4)
    three = answers(BLOCKS, SPREAD, **free, pp=3)
    rates = [number(answer, "rate_at_compute_rps") for answer in (one, three, four)]
    assert rates[2] == pytest.approx(4 * rates[0], rel=1e-12)
    # 80 layers are stages of 27, 27 and 26: all but the head and the overheads take 81/80 as long.
    assert 3 * rates[0] * 80 / 81 < rates[1] < 3 * rates[0]
    assert number(four, "tpot_floor_s") == number(one, "tpot_floor_s")


def number(answer: Answer, name: str) -> float:
    """A float answer that must be there."""
    value = answer[name]
    assert isinstance(value, float)
    return value


# ---- Few clients


def test_one_client_alone_meets_nobody() -> None:
    alone = loads.load(REPLICA, BLOCKS, ROOMY | {"concurrency": 1.0, "think_time_s": 0.0})
    its = step(REPLICA, BLOCKS, shard(REPLICA, BLOCKS))
    assert number(alone, "tpot_mean_s") == pytest.approx(its.decode(1.0, its.spans[0].decode_s * 1650), rel=1e-12)
    assert alone["prefill_share"] == 0
    assert number(alone, "rate_rps") * number(alone, "e2e_mean_s") == pytest.approx(1, rel=1e-12)


def test_one_client_in_each_slot_is_alone_there() -> None:
    one, four = (
        loads.load(REPLICA | {"dp": slots}, BLOCKS, ROOMY | {"concurrency": float(slots), "think_time_s": 1.0})
        for slots in (1, 4)
    )
    assert number(four, "rate_rps") == pytest.approx(4 * number(one, "rate_rps"), rel=1e-12)
    assert four["e2e_mean_s"] == one["e2e_mean_s"]


def test_many_clients_are_an_open_loop() -> None:
    rate = number(answers(BLOCKS, SPREAD), "rate_at_compute_rps") / 2
    opened = loads.load(REPLICA, BLOCKS, SPREAD | {"rate_rps": rate})
    think = 1e9
    clients = rate * (number(opened, "e2e_mean_s") + think)
    closed = loads.load(REPLICA, BLOCKS, SPREAD | {"concurrency": clients, "think_time_s": think})
    assert number(closed, "rate_rps") == pytest.approx(rate, rel=1e-6)
    # Without the wake of the prompts that meet (docs/model.md section 8), whatever their number.
    for name in ("ttft_mean_s", "tpot_mean_s", "in_flight"):
        assert number(closed, name) == pytest.approx(number(opened, name), rel=1e-2)
        assert number(closed, name) <= number(opened, name) * (1 + 1e-6)


# ---- Numbers by hand


def test_a_latent_is_whole_on_every_rank_and_multiplied_where_heads_are() -> None:
    layer = block(10, grouped(8192, 128, 1, 128) | {"kv_elements_per_token": 576, "decode_score_width": 128 * 1088})
    for tp, seconds in ((1, 2 * 128 * 1088 / (0.5 * 989.4e12)), (8, 576 * 2 / (0.7 * 3.35e12))):
        row = REPLICA | {"tp": tp}
        assert shard(row, [layer]).kv_bytes_per_token_rank == 10 * 576 * 2
        (only,) = step(row, [layer], shard(row, [layer])).spans
        assert only.decode_s == pytest.approx(10 * seconds, rel=1e-14)


def test_latent_layers_have_a_floor_of_their_own() -> None:
    layers = [LAYER, LAYER | {"count": 20, "latent_elements": 128 * 256}]
    plain, its = (
        step(REPLICA | {"latent_layer_floor_s": floor}, layers, shard(REPLICA, layers)) for floor in (0, 3e-6)
    )
    assert its.fixed_s - plain.fixed_s == pytest.approx(20 * 3e-6, rel=1e-9)


def test_a_state_is_read_and_written_in_every_step() -> None:
    with_state = [LAYER | {"state_bytes": 1e6}]
    plain, its = (step(REPLICA, blocks, shard(REPLICA, blocks)) for blocks in (BLOCKS, with_state))
    assert its.sequence_s - plain.sequence_s == pytest.approx(80 * 2 * 1e6 / 4 / (0.7 * 3.35e12), rel=1e-12)


def test_a_model_without_a_cache_counts_bytes() -> None:
    recurrent = {"kv_heads": 0, "kv_elements_per_token": 0, "mixer_kv_params": 0, "score_width": 0}
    blocks = [LAYER | recurrent | {"decode_score_width": 0, "state_bytes": 1e6}]
    answer = answers(blocks, POINT | {"max_num_seqs": 1e4})
    left = 0.92 * 80e9 - 3e9 - shard(REPLICA, blocks).weight_shard_bytes
    assert answer["kv_pool_tokens"] == 16 * (left // 16)
    assert number(answer, "kv_in_flight_tokens") == pytest.approx(number(answer, "running") * (80e6 / 4 + 8), rel=1e-12)


def test_what_ranks_say_to_each_other() -> None:
    """Ten layers of attention, shared and routed experts, on tp 2, pp 2, dp 2 in a mesh of eight."""
    layer = LAYER | {"count": 10, "experts": 16, "experts_per_token": 2, "expert_params": 1e6}
    cut: Fields = {"tp": 2, "pp": 2, "dp": 2, "scaleup_mesh": 1}
    said = communication(REPLICA | cut, [layer])
    assert said.fixed_s == pytest.approx(10 * 7e-6 + 10 * 9e-6 + 7e-6, rel=1e-14)
    bus = 0.7 * 450e9 / 7
    sent = 10 * 1 / bus + 10 * min(2 * 3 / 4 * 2, 2 * 2) / (3 * bus) + 1 / bus
    assert said.s_per_token == pytest.approx(sent * 8192 * 2, rel=1e-14)
    alone = communication(REPLICA | cut | {"tp": 1, "dp": 1, "pp": 1}, [layer])
    assert (alone.fixed_s, alone.s_per_token) == (0, 0)


def test_a_group_beyond_the_domain_takes_pcie() -> None:
    layer = LAYER | {"count": 1, "experts": 16, "experts_per_token": 2, "expert_params": 1e6}
    said = communication(REPLICA | {"tp": 4, "dp": 4}, [layer])
    assert said.fixed_s == pytest.approx(9e-6 + 2e-5 + 4e-5, rel=1e-14)
    assert said.s_per_token == pytest.approx((1.5 / (0.7 * 450e9) + 4 / (0.6 * 64e9)) * 8192 * 2, rel=1e-14)
