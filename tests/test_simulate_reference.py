"""The simulator against plain Python that plays the same rules step by step: every request's times, to rounding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lambdamax.catalog import load_catalog
from lambdamax.engine import Control, OneReplica
from lambdamax.replicas import Deployment, ReplicaRow
from reference.scheduler import BLOCK, Engine, Request, Rules
from reference.shard import shard
from reference.step import step

CONTROL = Control(requests=1, precision=0.0, replications=1, seed=0)
SEEDS = range(60)


def drawn(random: np.random.Generator) -> tuple[Rules, list[Request]]:
    """Settings that bind in every way, and a burst of requests."""
    count = int(random.integers(20, 80))
    arrivals = np.cumsum(random.exponential(random.choice([0.01, 0.1, 0.5]), count))
    prompts = random.integers(1, int(random.choice([30, 400, 3000])), count)
    outputs = random.integers(1, int(random.choice([5, 60, 200])), count)
    longest = -(-int((prompts + outputs).max()) // BLOCK)
    rules = Rules(
        budget=int(random.choice([8, 64, 512, 8192])),
        seats=int(random.choice([1, 3, 16, 256])),
        blocks=int(longest * random.uniform(1.3, 6.0)) + 1,
        threshold=int(random.choice([0, 0, 5, 100])),
        reserve=bool(random.integers(2)),
        watermark=float(random.choice([0.0, 0.0, 0.1])),
        one_ahead=bool(random.integers(2)),
    )
    rows = zip(arrivals.tolist(), prompts.tolist(), outputs.tolist(), strict=True)
    return rules, [Request(*row) for row in rows]


def simulated(row: ReplicaRow, rules: Rules, requests: list[Request]) -> dict[str, Any]:
    replica = OneReplica(row)
    kv_bytes = replica.facts["kv_bytes_per_token_rank"]
    memory = replica.facts["weight_shard_bytes"] + (rules.blocks + 0.5) * BLOCK * kv_bytes
    point = {
        "isl_tokens": 2.0,
        "osl_tokens": 2.0,
        "memory_bytes": memory,
        "memory_utilization": 1.0,
        "reserved_bytes": 0.0,
        "max_num_seqs": float(rules.seats),
        "max_num_batched_tokens": float(rules.budget),
        "long_prefill_token_threshold": float(rules.threshold),
        "scheduler_reserve_full_isl": float(rules.reserve),
        "watermark": rules.watermark,
        "enable_prefix_caching": 0.0,
        "async_scheduling": float(rules.one_ahead),
    }
    trace = (
        [request.arrival_s for request in requests],
        [float(request.prompt) for request in requests],
        [float(request.output) for request in requests],
    )
    found = replica.simulate(point, CONTROL, trace)
    assert found.numbers["kv_pool_tokens"] == BLOCK * rules.blocks
    assert found.numbers["clipped_requests"] == 0
    return {**found.requests, "preemptions": found.numbers["preemptions_per_request"] * len(requests)}


@pytest.fixture(scope="module")
def row() -> ReplicaRow:
    found = load_catalog().replica(Deployment("llama-3.1-8b-instruct", "a100-80-sxm", 2))
    return replace(found, fields={**found.fields, "host_latency_s": 0.0, "host_latency_per_token_s": 0.0})


@pytest.mark.parametrize("seed", SEEDS)
def test_every_request_has_the_reference_times(row: ReplicaRow, seed: int) -> None:
    rules, requests = drawn(np.random.default_rng(seed))
    found = simulated(row, rules, requests)
    Engine(step(row.fields, row.blocks, shard(row.fields, row.blocks)), rules).replay(requests)
    first = np.array([request.first_s for request in requests], dtype=np.float64)
    arrival = np.array([request.arrival_s for request in requests])
    last = np.array([request.last_s for request in requests])
    np.testing.assert_allclose(found["request_ttft_s"], first - arrival, rtol=1e-9)
    np.testing.assert_allclose(found["request_e2e_s"], last - arrival, rtol=1e-9)
    assert found["preemptions"] == pytest.approx(sum(request.preemptions for request in requests))


def test_the_drawn_cases_reach_every_rule() -> None:
    cases = [drawn(np.random.default_rng(seed))[0] for seed in SEEDS]
    assert {case.one_ahead for case in cases} == {case.reserve for case in cases} == {False, True}
    assert min(case.budget for case in cases) < min(16, max(case.seats for case in cases))
