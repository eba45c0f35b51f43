"""Sections 5 to 8 of docs/model.md: the answers that belong to one operating point of a replica."""

from __future__ import annotations

import numpy as np

from reference.curve import State, Values
from reference.latency import e2e, first_token, gap, ttft
from reference.replica import Replica
from reference.search import Root
from reference.waiting import Ceiling, Spread, Wait, no_wait, seat_wait, spread

Answer = dict[str, float | str | None]

TTFT_PERCENTILES = {"ttft_p50_s": 50.0, "ttft_p90_s": 90.0, "ttft_p99_s": 99.0}
OF_THE_WAIT = ("in_flight", "waiting", "seat_wait_s", "ttft_mean_s", *TTFT_PERCENTILES, "e2e_mean_s", "e2e_p99_s")


def opened(solvable: Replica, root: Root, rate: float, ceiling: Ceiling) -> Answer:
    """The answers at a root where arrivals come from outside."""
    return opened_at(solvable, root.b, root.k[None, :], rate, ceiling)


def opened_at(solvable: Replica, b: float, chunks: Values | None, rate: float, ceiling: Ceiling) -> Answer:
    """The same at a B; `chunks` None: as many as that B makes of each prompt."""
    state = solvable.curve.at(np.array([b]), chunks)
    return answers(solvable, state, rate, seat_wait(solvable.curve, state, np.array([rate]), ceiling))


def closed(solvable: Replica, root: Root, rate: float, everybody_s: float = 0.0) -> Answer:
    """The answers at a root where clients wait for their answers; all of them wait `everybody_s` for a seat."""
    state = solvable.curve.at(np.array([root.b]), root.k[None, :])
    return answers(solvable, state, rate, no_wait(state, everybody_s))


def answers(solvable: Replica, state: State, rate: float, wait: Wait) -> Answer:
    """All answers of a state, the rate and the wait for a seat."""
    load, slots, found = solvable.load, solvable.slots, spread(solvable.curve, state)
    tpot_token, kv = float(state.tpot_token[0]), float(state.kv[0])
    output = slots * rate * load.mean_output
    answer: Answer = {
        "running": slots * float(state.running[0]),
        "decoding": slots * float(state.b[0]),
        "tpot_mean_s": float(state.tpot[0]),
        "tpot_token_mean_s": tpot_token,
        "itl_p99_s": float(gap(solvable.curve, state, found, 99.0)[0]),
        "prefill_share": float(state.rho[0]),
        "kv_in_flight_tokens": slots * kv,
        "kv_use": kv / solvable.pool_tokens,
        "output_tok_s": output,
        "output_tok_s_per_gpu": output / solvable.gpus,
        "residual": abs(rate * load.d1 * tpot_token / float(state.b[0]) - 1),
    }
    if wait.endless[0]:
        return answer | dict.fromkeys(OF_THE_WAIT)
    return answer | latencies(solvable, state, found, rate, wait)


def latencies(solvable: Replica, state: State, found: Spread, rate: float, wait: Wait) -> Answer:
    """What includes the wait for a seat."""
    its, slots, seat_wait_s = solvable.curve, solvable.slots, float(wait.mean_s[0])
    mean_e2e = float(state.e2e[0]) + seat_wait_s
    law = ttft(first_token(its, state), wait)
    answer: Answer = {name: float(law.percentile(percent)[0]) for name, percent in TTFT_PERCENTILES.items()}
    return answer | {
        "seat_wait_s": seat_wait_s,
        "ttft_mean_s": float(state.ttft[0]) + seat_wait_s,
        "e2e_mean_s": mean_e2e,
        "e2e_p99_s": float(e2e(its, state, found, wait, 99.0)[0]),
        "in_flight": slots * rate * mean_e2e,
        "waiting": slots * (rate * mean_e2e - float(state.running[0])),
    }
