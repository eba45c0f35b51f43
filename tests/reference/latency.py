"""Section 7 of docs/model.md: percentiles of time to first token, of gaps between tokens, and end to end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from reference.curve import Curve, State, Values
from reference.mixture import Mixture
from reference.waiting import Spread, Wait

LEAST_RELATIVE_SPREAD = 1e-9
NORMAL_SHAPE_ROOT = 100.0  # deviations that a gamma law stands above zero to be taken as normal


@dataclass(frozen=True)
class FirstToken:
    """TTFT of a seated request, at every B: shift (per node) and the moments of the random part. Seconds."""

    weight: Values
    shift: Values
    mean: Values  # E[G]
    variance: Values  # Var[G]
    step_variance: Values  # Lambda E[T] S2/(1 - rho^2), which is Var[T]

    @property
    def shift_variance(self) -> Values:
        """Over the nodes."""
        return (self.shift - (self.shift @ self.weight)[:, None]) ** 2 @ self.weight


def first_token(curve: Curve, state: State) -> FirstToken:
    """The law of TTFT without a wait for a seat."""
    load, weight = curve.load, curve.load.weight
    if curve.constant_ttft_s is not None:
        none = 0.0 * state.b
        return FirstToken(weight, np.full_like(state.prompts, curve.constant_ttft_s), none, none, none)
    s1, s2, s3 = (state.prompts**power @ weight for power in (1, 2, 3))
    met, rho, busy, later = curve.others * state.rate, state.rho, state.busy, curve.asynchronous
    mean, seen = state.iteration, state.seen_iteration
    variance = met * mean * s2 / (1 - rho**2)
    third = (met * mean * s3 + 3 * met * rho * s2 * variance) / (1 - rho**3)
    seen_square = (third + 3 * mean * variance) / mean + mean**2
    seen_variance = np.maximum(seen_square - seen**2, 0.0)
    wait = busy * (seen / 2 + later * mean)
    wait_square = busy * (seen_square / 3 + later * (seen * mean + mean**2 + variance))
    riders = met * seen * s2
    peers = state.peers * s2 / s1
    of_peers = np.where(state.peers >= 0, peers + state.peers**2, np.maximum(peers, -0.9 * riders))
    host = curve.host_s + curve.host_s_per_token * load.mean_prompt
    return FirstToken(
        weight=weight,
        shift=state.held * state.first[:, None] + state.prompts + host,
        mean=wait + state.riders,
        variance=wait_square - wait**2 + rho * (rho + busy) * seen_variance + riders + of_peers,
        step_variance=variance,
    )


def ttft(law: FirstToken, wait: Wait) -> Mixture:
    """TTFT with the wait: every node twice, those that find a seat and those that do not. No B with an endless wait."""
    waits = np.stack([1 - wait.probability, wait.probability], axis=1)
    mean = np.stack([law.mean, law.mean + wait.length_s], axis=1)
    variance = np.stack([law.variance, law.variance + wait.length_s**2], axis=1)
    nodes = len(law.weight)
    return Mixture(
        weight=np.kron(waits, law.weight),
        shift=np.tile(law.shift + wait.everybody_s, 2),
        mean=np.repeat(mean, nodes, axis=1),
        variance=np.repeat(variance, nodes, axis=1),
    )


def e2e(curve: Curve, state: State, found: Spread, wait: Wait, percent: float) -> Values:
    """A percentile of end-to-end latency: a shifted lognormal law."""
    load, law = curve.load, first_token(curve, state)
    per_token = state.tpot_token
    mean = per_token * load.mean_output
    stretch = load.d1 / (1 - state.rho)
    s2 = state.prompts**2 @ load.weight
    prefill = load.d1 * curve.others * state.rate * state.iteration * s2 / (1 - state.rho) ** 2
    # of the wait by chance: what everybody waits is no spread
    by_chance = wait.probability * wait.length_s
    of_ttft = law.variance + law.shift_variance + 2 * wait.probability * wait.length_s**2 - by_chance**2
    fluctuation = 2 / 3 * found.decoding * (stretch * found.decode_slope) ** 2
    variance = (mean * load.output_cv) ** 2 + of_ttft + fluctuation + prefill
    log_variance = np.log1p(variance / mean**2)
    rest = mean * np.exp(np.sqrt(log_variance) * ndtri(percent / 100) - log_variance / 2)
    return state.ttft + wait.mean_s - per_token + rest


def gap(curve: Curve, state: State, found: Spread, percent: float) -> Values:
    """A percentile of the time between two tokens of a request."""
    load, weight, rho = curve.load, curve.load.weight, state.rho
    prompts = curve.others * state.rate * state.iteration  # that come in an iteration
    with_prefill = -np.expm1(-prompts * (state.held @ weight))
    noise = np.maximum(np.sqrt(found.decoding) * np.abs(found.decode_slope), LEAST_RELATIVE_SPREAD * state.decode)
    share = np.where(with_prefill > 0, with_prefill, 1.0)
    mean = rho * state.iteration / share
    chunks = prompts * (state.prompts**2 / state.held @ weight) / (1 - rho**2)
    variance = np.maximum((chunks + (rho * state.iteration) ** 2) / share - mean**2, 0.0) + noise**2
    mixture = Mixture(
        weight=np.stack([1 - with_prefill, with_prefill], axis=1),
        shift=np.stack([state.decode - NORMAL_SHAPE_ROOT * noise, state.decode], axis=1),
        mean=np.stack([NORMAL_SHAPE_ROOT * noise, mean], axis=1),
        variance=np.stack([noise**2, variance], axis=1),
    )
    full = curve.room(state.b) * (state.prompts @ weight) / load.mean_uncached
    return np.minimum(mixture.percentile(percent), state.decode + full + ndtri(percent / 100) * noise)
