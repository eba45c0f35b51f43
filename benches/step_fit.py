"""Step constants fitted to a trace with the simulator inside; a fit starts at a profile and is drawn to it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from engine_trace import EngineTrace
from lambdamax.engine import Control, OneReplica
from lambdamax.replicas import ReplicaRow

Floats = NDArray[np.float64]
POOL: Final = "kv_cache_tokens"
HOST: Final = "host_latency_s"
BLOCK: Final = 16
_CONTROL: Final = Control(requests=1, precision=0.0, replications=1, seed=0)
# How far a constant may lie from the profile: standard deviations, of its logarithm or [s].
SHARES: Final = {
    "gemm_bandwidth_efficiency": 0.15,
    "gemm_flops_efficiency": 0.25,
    "attention_bandwidth_efficiency": 0.15,
    "prefill_attention_flops_efficiency": 0.3,
}
SECONDS: Final = {"step_overhead_s": 1e-3, "sequence_overhead_s": 2e-5, HOST: 0.02}
EXPERTS: Final = {"gemm_flops_efficiency": 0.6}
LINKS: Final = {"": "allreduce_bandwidth_efficiency", "pcie_": "pcie_bandwidth_efficiency"}
LINK_SHARE: Final = 0.4
LINK_LATENCY_S: Final = 1.5e-5
POOL_SHARE: Final = 0.1
LARGEST: Final = 5.0
STRIDE: Final = 0.2
# A half of n requests counts as nine observations that are good to 3 %; a TTFT counts a third of a TPOT.
NOISE: Final = 0.03
OBSERVATIONS: Final = 9
TTFT_WEIGHT: Final = 0.3
# Relative errors of a TTFT are those of one so many steps long at least: which step an arrival falls in is chance.
STEPS: Final = 20
MANY: Final = 1 / 3


class NotPlayedError(Exception):
    """The simulator does not play this replica; the message is why."""


@dataclass(frozen=True)
class Times:
    """TTFT and TPOT [s] of each request, and preemptions of the whole run."""

    ttft_s: Floats
    tpot_s: Floats
    preemptions: int


@dataclass(frozen=True)
class Player:
    """A replica on which the requests of a trace are replayed from an idle start; `point` holds settings by name."""

    row: ReplicaRow
    point: Mapping[str, float]
    trace: EngineTrace

    def play(self, constants: Mapping[str, float]) -> Times:
        """Times with these constants in place of the profile's."""
        own = {name: value for name, value in constants.items() if name != POOL}
        pool = {POOL: constants[POOL]} if POOL in constants else {}
        replica = OneReplica(replace(self.row, fields={**self.row.fields, **own}))
        found = replica.simulate({**self.point, **pool}, _CONTROL, self.trace.requests, 1)
        ttft, tpot = (np.array(found.requests[f"request_{name}_s"]) for name in ("ttft", "tpot"))
        if len(ttft) == 0:
            raise NotPlayedError(found.status)
        return Times(ttft, tpot, round(found.numbers["preemptions_per_request"] * len(ttft)))


@dataclass(frozen=True)
class Freedom:
    """The constants that are fitted: where each starts, and how far it may go."""

    start: Mapping[str, float]
    shares: Mapping[str, float]
    seconds: Mapping[str, float]

    @classmethod
    def of(cls, row: ReplicaRow, pool_tokens: float | None) -> Freedom:
        """What is worth fitting on a replica, and the pool where `pool_tokens` is only a guess."""
        experts = any(block["experts"] > 0 for block in row.blocks)
        shares, seconds = {**SHARES, **(EXPERTS if experts else {})}, dict(SECONDS)
        if (group := row.fields["tp"] * row.fields["dp"]) > 1:
            joined = group <= row.fields["scaleup_domain_size"] and row.fields["scaleup_bytes_per_s"] > 0
            kind = "" if joined else "pcie_"
            shares[LINKS[kind]] = LINK_SHARE
            seconds[f"{kind}allreduce_latency_s"] = LINK_LATENCY_S
        start = {name: row.fields[name] for name in (*shares, *seconds)}
        if pool_tokens is not None:
            start[POOL], shares[POOL] = pool_tokens, POOL_SHARE
        return cls(start, shares, seconds)

    def constants(self, moves: Floats) -> dict[str, float]:
        """The constants so many standard deviations from the start."""
        return {name: self._moved(name, move) for name, move in zip(self.start, moves, strict=True)}

    def _moved(self, name: str, move: float) -> float:
        if name in self.seconds:
            return max(self.start[name] + move * self.seconds[name], 0.0)
        moved = self.start[name] * math.exp(move * self.shares[name])
        return BLOCK * round(moved / BLOCK) if name == POOL else min(moved, 1.0)


@dataclass(frozen=True)
class Fit:
    """Constants, and the robust sum of squares that is left."""

    constants: dict[str, float]
    cost: float


def fit(player: Player, freedom: Freedom, count: int) -> Fit:
    """Robust least squares on the first `count` requests: relative TTFT and TPOT, and the distance from the start."""
    ttft, tpot = player.trace.ttft_s[:count], player.trace.tpot_s[:count]
    scale = np.maximum(ttft, max(np.mean(ttft), STEPS * np.nanmean(tpot)))
    weight = math.sqrt(OBSERVATIONS / count) / NOISE

    def residuals(moves: Floats) -> Floats:
        found = player.play(freedom.constants(moves))
        late = TTFT_WEIGHT * (found.ttft_s[:count] - ttft) / scale
        slow = np.nan_to_num((found.tpot_s[:count] - tpot) / np.nanmean(tpot))
        return np.concatenate([weight * late, weight * slow, moves])

    def slopes(moves: Floats) -> Floats:
        ways = STRIDE * np.eye(len(moves))
        return np.stack([(residuals(moves + way) - residuals(moves - way)) / (2 * STRIDE) for way in ways], axis=1)

    start = np.zeros(len(freedom.start))
    found = least_squares(residuals, start, slopes, bounds=(-LARGEST, LARGEST), loss="soft_l1", max_nfev=30)
    constants = freedom.constants(found.x)
    return Fit(_with_host(player, constants, count), float(found.cost))


def _with_host(player: Player, constants: dict[str, float], count: int) -> dict[str, float]:
    """The host's part of TTFT is only added: what is left, in the median, where nobody waits long."""
    ttft = player.trace.ttft_s[:count]
    brief = ttft < STEPS * np.nanmean(player.trace.tpot_s[:count])
    if brief.mean() < MANY:
        return constants
    left = float(np.median((ttft - player.play(constants).ttft_s[:count])[brief]))
    return {**constants, HOST: max(constants[HOST] + left, 0.0)}
