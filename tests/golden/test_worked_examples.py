"""Worked examples A (one number, and the full model at 40 digits), C (prefix caching) and D (KV bytes per token)."""

from __future__ import annotations

import mpmath as mp  # type: ignore[import-untyped]
import numpy as np
import pytest

from lambdamax import _engine
from reference import batch, loads, solver
from reference.curve import curve
from reference.examples import BLOCKS, POINT, REPLICA
from reference.one_number import Measured, in_flight_at, one_number, rate_at_kv, rate_at_tpot, tpot_at
from reference.points import Case
from reference.shard import kv_pool_tokens, shard
from reference.step import step
from reference.workload import workload

PART = shard(REPLICA, BLOCKS)
MEASURED = Measured(
    weight_bytes=PART.weight_shard_bytes,
    kv_bytes_per_token=PART.kv_bytes_per_token_rank,
    bandwidth=3.35e12,
    peak_flops=989.4e12,
    total_params=PART.weight_bytes / 2,
    gpus=4,
    isl=1500,
    osl=300,
    rate=10,
    ttft=0.5,
    tpot=0.025,
    pool_tokens=kv_pool_tokens(REPLICA, POINT, PART),
)


# ---- A: the chain, to the digits printed in the example


@pytest.mark.parametrize(
    ("name", "value", "digit"),
    [
        ("residence_s", 7.975, 1e-9),
        ("in_flight", 79.75, 1e-9),
        ("decoding", 74.75, 1e-9),
        ("decode_tok_s", 2990, 1e-9),
        ("demand_tok_s", 2990, 1e-9),
        ("mean_context_tokens", 1650, 1e-9),
        ("kv_in_flight_bytes", 43.1e9, 0.05e9),
        ("naive_rate_rps", 32.8, 0.05),
        ("bandwidth_floor_s", 13.55e-3, 0.005e-3),
        ("measured_over_floor_ratio", 1.846, 0.001),
        ("rate_at_kv_rps", 22.0, 0.05),
        ("tpot_at_kv_s", 38.07e-3, 0.005e-3),
        ("in_flight_at_kv", 261, 0.5),
        ("rate_at_tpot_rps", 15.8, 0.05),
        ("asymptote_rps", 44.9, 0.05),
        ("prefill_flops", 212e12, 0.5e12),
        ("prefill_share_of_peak", 0.535, 0.0005),
    ],
)
def test_the_one_number_chain(name: str, value: float, digit: float) -> None:
    assert one_number(MEASURED, 0.030)[name] == pytest.approx(value, abs=digit, rel=0)


def test_the_chain_at_other_rates() -> None:
    assert tpot_at(MEASURED, 10) == pytest.approx(0.025, rel=1e-12)
    assert [tpot_at(MEASURED, rate) * 1e3 for rate in (16, 20)] == pytest.approx([30.18, 35.04], abs=0.01)
    assert MEASURED.pool_tokens == pytest.approx(431_200, abs=50)
    assert PART.weight_bytes == pytest.approx(141.1e9, abs=0.05e9)


def test_twice_the_output_grows_by_more_than_twice() -> None:
    per_token = MEASURED.ratio * MEASURED.floor(0.0)
    longer = Measured(**(vars(MEASURED) | {"osl": 600}))
    slope = MEASURED.ratio * longer.context * MEASURED.kv_bytes_per_token / MEASURED.bandwidth
    tpot = per_token / (1 - 10 * 599 * slope)
    held, grown = 10 * (0.5 + 599 * 0.025), 10 * (0.5 + 599 * tpot)
    contexts = longer.context / MEASURED.context
    assert [held / 79.75, held / 79.75 * contexts] == pytest.approx([1.94, 2.12], abs=0.005)
    assert [grown / 79.75, grown / 79.75 * contexts] == pytest.approx([2.9, 3.2], abs=0.05)
    assert 1 / (599 * slope) == pytest.approx(20.5, abs=0.1)


def test_the_ratio_profile_is_the_chain_with_blocks_and_prompts_counted() -> None:
    row = REPLICA | {"kind": 1, "measured_over_floor_ratio": MEASURED.ratio, "ttft_s": 0.5}
    answer = loads.load(row, BLOCKS, POINT | {"rate_rps": 10})
    assert answer["tpot_mean_s"] == pytest.approx(0.025, rel=1e-12)
    assert answer["in_flight"] == pytest.approx(79.75, rel=1e-12)
    assert answer["kv_in_flight_tokens"] == pytest.approx(74.75 * 1658 + 5 * 1508, rel=1e-12)
    capacity = solver.solve(row, BLOCKS, POINT | {"slo_tpot_s": 0.030, "max_num_seqs": 1e6})
    assert capacity["rate_at_tpot_rps"] == pytest.approx(rate_at_tpot(MEASURED, 0.030), rel=1e-12)
    assert capacity["rate_at_kv_rps"] == pytest.approx(rate_at_kv(MEASURED), rel=0.01)
    assert in_flight_at(MEASURED, rate_at_kv(MEASURED)) * 1650 == pytest.approx(MEASURED.pool_tokens, rel=1e-12)


def test_the_engine_has_the_same_chain() -> None:
    row = batch.replicas([Case(REPLICA, tuple(BLOCKS), POINT, "example A")])
    answer = _engine.one_number(
        row,
        0,
        isl_tokens=MEASURED.isl,
        osl_tokens=MEASURED.osl,
        rate_rps=MEASURED.rate,
        measured_ttft_s=MEASURED.ttft,
        measured_tpot_s=MEASURED.tpot,
        kv_pool_tokens=MEASURED.pool_tokens,
        slo_tpot_s=0.030,
    )
    for name, value in one_number(MEASURED, 0.030).items():
        assert answer[name] == pytest.approx(value, rel=1e-9), name


# ---- A: the full model


def test_the_full_model_says_what_the_chain_hides() -> None:
    answer = solver.solve(REPLICA, BLOCKS, POINT | {"slo_tpot_s": 0.030})
    assert answer["binding_limit"] == "tpot_slo"
    assert answer["rate_at_compute_rps"] == pytest.approx(8, abs=1)
    assert answer["rate_at_tpot_rps"] == pytest.approx(4, abs=0.5)
    assert loads.load(REPLICA, BLOCKS, POINT | {"rate_rps": 10})["status"] == "unstable"
    larger = solver.solve(REPLICA, BLOCKS, POINT | {"utilization_cap": 1.0, "memory_bytes": 200e9, "max_num_seqs": 1e4})
    assert larger["binding_limit"] == "compute"


def test_the_full_model_to_forty_digits() -> None:
    """The rate at a 30 ms TPOT, and the time to first token there, written out with numbers only."""
    mp.mp.dps = 40
    weights = mp.mpf(80 * (2 * 8192 * 8192 + 3 * 8192 * 28672) + 80 * 2 * 8192 * 1024)
    vectors, head = 80 * 2 * 8192 + 8192, 128256 * 8192
    rank_read = 2 * (weights / 4 + vectors + mp.mpf(head) / 4)
    q, flops = mp.mpf("1.3"), mp.mpf("0.7") * mp.mpf("989.4e12")
    kappa = 2 * 80 * 2 * 128 * 2 / (mp.mpf("0.7") * mp.mpf("3.35e12"))
    link = 2 * 80 * mp.mpf("1.5") * 8192 * 2 / (mp.mpf("0.7") * mp.mpf("450e9"))
    fixed = mp.mpf("1e-3") + 80 * mp.mpf("5e-6") + 160 * (mp.mpf("5e-6") + 2 * mp.mpf("2e-6"))

    def gemm(tokens: mp.mpf, rows: mp.mpf) -> mp.mpf:
        memory = rank_read / (mp.mpf("0.85") * mp.mpf("3.35e12"))
        compute = (2 * weights / 4 * tokens + 2 * mp.mpf(head) / 4 * rows) / flops
        return (memory**q + compute**q) ** (1 / q)

    def decode(b: mp.mpf) -> mp.mpf:
        return fixed + mp.mpf("1e-5") * b + gemm(b, b) + kappa * b * 1650 + link * b

    def prompt(b: mp.mpf) -> mp.mpf:
        pairs = mp.mpf(1500) ** 2 / 2 + 300 * mp.mpf(750)
        attention = 4 * 80 * 64 * 128 / (4 * mp.mpf("0.5") * mp.mpf("989.4e12")) * pairs
        logits = 2 * mp.mpf(head) / 4 / flops
        coming, room = b * 1500 / 299, 8193 - b
        before = b + coming / 2 * (1 - coming / room)
        return gemm(before + 1500, b) - gemm(before, b) + logits + link * 1500 + attention

    def residence(b: mp.mpf) -> mp.mpf:
        smooth = 299 * decode(b + 1) + b * prompt(b)
        rho = b * prompt(b) / smooth
        own, left = rho * prompt(b), 1 - rho**2
        queued = rho**2 * b / smooth * prompt(b) ** 2 / left
        push = (own + queued) * smooth / (smooth + own + queued * (3 - rho**2) / left)
        most = 299 * prompt(b) / smooth * (299 * decode(b + 1) * (8193 - b) / 1500 - b * decode(b))
        return smooth + push * most / (push + most)

    def rate(b: mp.mpf) -> mp.mpf:
        return b / residence(b)

    b = mp.findroot(lambda b: residence(b) / 299 - mp.mpf("0.03"), (30, 45), solver="anderson")
    share = rate(b) * prompt(b)
    iteration = decode(b) / (1 - share)
    seen = iteration + rate(b) * prompt(b) ** 2 / (1 - share**2)
    admitted = decode(b) + prompt(b) + share * seen
    busy = 1 - mp.exp(-(b + rate(b) * admitted))
    ttft = busy * (seen / 2 + iteration) + admitted + mp.mpf("0.01") + mp.mpf("1e-6") * 1500

    answer = solver.solve(REPLICA, BLOCKS, POINT | {"slo_tpot_s": 0.030})
    assert answer["max_rate_rps"] == pytest.approx(float(rate(b)), rel=1e-12)
    assert answer["decoding"] == pytest.approx(float(b), rel=1e-12)
    wait = answer["seat_wait_s"]
    assert isinstance(wait, float)
    assert answer["ttft_mean_s"] == pytest.approx(float(ttft) + wait, rel=1e-12)


# ---- C: half the prompts share a 1,000-token prefix


def test_prefix_caching_holds_the_shared_blocks_once() -> None:
    plain, shared = (
        curve(REPLICA, PART, step(REPLICA, BLOCKS, PART), workload(REPLICA, POINT | prefix)).at(np.array([40.0]))
        for prefix in ({}, {"prefix_tokens": 1000, "prefix_hit_share": 0.5})
    )
    prefilling = float(shared.running[0] - 40.0)
    # Every decoding sequence holds 992/2 less on average (so 992 less for a hit), and the 62 blocks count once.
    without = 40.0 * 1658 + prefilling * 1508 + 992
    assert without - 992 / 2 * (40 + prefilling) < shared.kv[0] < without - 992 / 2 * 40
    # Attention still reads the prefix, so a decode step takes as long; only the prefill is shorter.
    steps = [state.decode[0] for state in (plain, shared)]
    assert steps[1] == pytest.approx(steps[0], rel=1e-15)
    assert shared.ttft[0] < plain.ttft[0]
    assert shared.rate[0] > plain.rate[0]


def test_a_hit_holds_992_tokens_less() -> None:
    load = workload(REPLICA, POINT | {"prefix_tokens": 1000, "prefix_hit_share": 0.5})
    assert load.shared.tolist() == [992, 0]
    assert load.shared_blocks == 992
    assert load.uncached.tolist() == [508, 1500]


# ---- D: KV bytes per token, bf16, whole model


@pytest.mark.parametrize(("layers", "kv_heads", "expected"), [(80, 8, 327_680), (32, 8, 131_072), (64, 8, 262_144)])
def test_kv_bytes_per_token(layers: int, kv_heads: int, expected: int) -> None:
    block = BLOCKS[0] | {"count": layers, "kv_heads": kv_heads, "kv_elements_per_token": 2 * kv_heads * 128}
    assert shard(REPLICA, [block]).kv_bytes_per_token == expected
    assert shard(REPLICA, [block] * 2).kv_bytes_per_token == 2 * expected


def test_a_latent_is_cached_once_on_every_rank() -> None:
    latent = {"count": 61, "kv_heads": 1, "query_heads": 128, "kv_elements_per_token": 512 + 64}
    part = shard(REPLICA, [BLOCKS[0] | latent])
    assert part.kv_bytes_per_token == part.kv_bytes_per_token_rank == 70_272
