"""Section 7 of docs/model.md: how the numbers in a slot spread, and the wait for a seat where it fills up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit, log_ndtr

from reference.curve import Curve, State, Values
from reference.workload import Workload

LEAST_SPREAD = 0.05
LEAST_VARIANCE = 1e-12
NO_ROOM = 1e-7


@dataclass(frozen=True)
class Ceiling:
    """The point at which a slot is full: its rate, how many run there, and whether the KV pool is what fills."""

    rate: float
    running: float
    is_pool: bool


@dataclass(frozen=True)
class Wait:
    """The wait for a seat at every B."""

    probability: Values
    length_s: Values  # mean of those that wait; infinite at the ceiling
    everybody_s: float = 0.0  # what all wait besides: a closed loop's saturation

    @property
    def mean_s(self) -> Values:
        """Over all requests."""
        return self.everybody_s + self.probability * self.length_s

    @property
    def endless(self) -> Values:
        """Where the wait has no end."""
        return np.isinf(self.length_s)


@dataclass(frozen=True)
class Spread:
    """Variances at every B, and dD/dB at the same kappa."""

    running: Values  # V_R
    decoding: Values  # V_B
    decode_slope: Values


def spread(curve: Curve, state: State) -> Spread:
    """How the numbers running and decoding spread."""
    slopes = curve.slopes(state.b, state.held)
    z = burstiness(state)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(state.rate > 0, slopes.rate / state.rate, np.inf)
        of_running = np.maximum(relative / slopes.running, 1 / (state.running * (state.running + 1)))
        of_decoding = np.maximum(relative, 1 / (state.b * (state.b + 1)))
    running, decoding = np.maximum(z / of_running, LEAST_VARIANCE), np.maximum(z / of_decoding, LEAST_VARIANCE)
    return Spread(running, decoding, curve.decode_slope(state.b, state.surplus))


def burstiness(state: State) -> Values:
    """z: by how much more than Poisson arrivals the numbers spread."""
    return np.maximum(1 + state.surplus, LEAST_SPREAD)


def no_wait(state: State, everybody_s: float = 0.0) -> Wait:
    """A closed loop: nobody waits by chance, all wait where it saturates."""
    return Wait(0.0 * state.b, 0.0 * state.b, everybody_s)


def seat_wait(curve: Curve, state: State, rate: Values, ceiling: Ceiling) -> Wait:
    """The wait at every B, arrivals from outside coming at `rate`."""
    load, found = curve.load, spread(curve, state)
    of_kv = kv_cv2(load) * state.running if ceiling.is_pool else 0.0 * state.running
    free = np.maximum(ceiling.running - state.running, 0.0)
    idle = 1 - rate / ceiling.rate
    endless = idle <= NO_ROOM
    with np.errstate(divide="ignore", invalid="ignore"):
        climb = free * np.log(ceiling.rate / rate) / (3 * burstiness(state)) + free**2 / (6 * found.running)
        climb = np.where(free > 0, np.maximum(climb, 0.0), 0.0)
        # f^2 E/(f^2 + 2 E V_k), which holds for infinite E too
        exponent = np.where(climb > 0, 1 / (1 / climb + 2 * of_kv / free**2), 0.0)
        width = np.sqrt(found.running + of_kv)
        # in logarithms, for both may underflow
        tail = -exponent - np.log(np.sqrt(2 * np.pi) * width * idle)
        below = log_ndtr(np.maximum(free - 0.5, 0.0) / width)
        probability = np.minimum(expit(tail - below), -np.expm1(-state.running))
        length = (load.arrival_cv**2 + job_cv2(load, ceiling)) / 2 / (ceiling.rate - rate)
    probability = np.where(state.running > 0, probability, 0.0)
    return Wait(np.where(endless, 1.0, probability), np.where(endless, np.inf, length))


def output_moment(load: Workload, power: int) -> float:
    """O_m: the m-th moment of a lognormal output."""
    growth: float = (1 + load.output_cv**2) ** (power * (power - 1) / 2)
    return load.mean_output**power * growth


def kv_cv2(load: Workload) -> float:
    """v_k: squared CV of the KV that a running sequence keeps."""
    i, o = load.mean_prompt, load.mean_output
    q = output_moment(load, 2) / (2 * o)
    return ((i * load.prompt_cv) ** 2 + output_moment(load, 3) / (3 * o) - q**2) / (i + q) ** 2


def job_cv2(load: Workload, ceiling: Ceiling) -> float:
    """v_j: squared CV of what a request takes of the thing that fills: KV over its steps, or steps alone."""
    if not ceiling.is_pool:
        return load.output_cv**2
    i, o2, o3, o4 = (load.mean_prompt, *(output_moment(load, power) for power in (2, 3, 4)))
    square = o2 * i**2 * (1 + load.prompt_cv**2) + o3 * i + o4 / 4
    return square / (load.mean_output * i + o2 / 2) ** 2 - 1
