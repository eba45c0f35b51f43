"""The reference's waits and percentiles against finer numerics, moments by quadrature and limits they must meet."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import gamma, norm

from reference.bursts import excess
from reference.examples import BLOCKS, POINT, REPLICA
from reference.latency import FirstToken, e2e, first_token, gap, ttft
from reference.limits import limit_roots, where_full
from reference.mixture import Mixture, gamma_tail
from reference.points import Case, Fields, curve_of
from reference.replica import Replica, replica
from reference.waiting import Ceiling, job_cv2, kv_cv2, no_wait, seat_wait, spread
from reference.workload import Floats, workload

SPREAD: Fields = POINT | {"isl_cv": 0.7, "osl_cv": 0.5}


def fine(mean: float, cv: float) -> tuple[Floats, Floats]:
    """Weights and lengths of a lognormal law, on an even grid of nine standard deviations each way."""
    variance, z = math.log(1 + cv**2), np.linspace(-9, 9, 2001)
    weight = np.exp(-(z**2) / 2)
    return weight / weight.sum(), np.exp(math.log(mean) - variance / 2 + math.sqrt(variance) * z)


def example(point: Fields) -> Replica:
    """The example's replica with a point."""
    found = replica(REPLICA, BLOCKS, point)
    assert isinstance(found, Replica)
    return found


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 2.0, 4.0, 13.0])
def test_the_excess_goes_from_none_to_that_of_a_long_window(cv: float) -> None:
    window = np.array([1e-12, 1e-6, 1e-2, 1.0, 1e2, 1e8])
    found = excess(window, cv)
    assert np.all(np.diff(np.abs(found)) >= 0)
    assert found[-1] == pytest.approx(cv**2 - 1, rel=1e-4)
    # Without variation a long window has no excess over Poisson's variance but all of it less.
    assert np.all(found >= -1)


@pytest.mark.parametrize("shape", [3.0, 30.0, 1e3])
def test_the_gamma_tail_is_nearly_exact(shape: float) -> None:
    exact = gamma(shape, scale=2 / shape)
    t = exact.ppf(np.linspace(0.05, 0.995, 40))
    found = gamma_tail(t, np.full(40, 2.0), np.full(40, 4 / shape))
    assert np.abs(found - exact.sf(t)).max() < 0.004


def test_a_percentile_leaves_its_share() -> None:
    random = np.random.Generator(np.random.PCG64(3))
    weight = random.dirichlet(np.ones(5), 20)
    mixture = Mixture(weight, *(random.uniform(0.1, 3, (20, 5)) for _ in range(3)))
    for percent in (50.0, 90.0, 99.0, 99.9):
        assert mixture.tail(mixture.percentile(percent)) == pytest.approx(1 - percent / 100, rel=1e-12)


def test_a_percentile_is_the_jump_that_the_tail_falls_over() -> None:
    one = np.ones((1, 1))
    assert Mixture(one, 7 * one, 1e-3 * one, 1e3 * one).percentile(50.0)[0] == pytest.approx(7, rel=1e-15)


@pytest.mark.parametrize("cvs", [(0.0, 0.0), (0.7, 0.0), (0.0, 1.2), (1.5, 0.8)])
def test_the_moments_of_kv_are_those_of_the_lengths(cvs: tuple[float, float]) -> None:
    load = workload(REPLICA, POINT | {"isl_cv": cvs[0], "osl_cv": cvs[1]})
    (wi, i), (wo, o) = fine(load.mean_prompt, cvs[0]), fine(load.mean_output, cvs[1])
    job, weight = i[:, None] * o + o**2 / 2, np.outer(wi, wo)
    mean = (weight * job).sum()
    relative = (weight * job**2).sum() / mean**2 - 1
    assert job_cv2(load, Ceiling(1.0, 1.0, is_pool=True)) == pytest.approx(relative, rel=1e-6, abs=1e-9)
    # Seen at random, an output is long in proportion to its length, and its age uniform on it.
    biased = wo * o / (wo @ o)
    age, square = biased @ o / 2, biased @ o**2 / 3
    variance = wi @ i**2 - load.mean_prompt**2 + square - age**2
    assert kv_cv2(load) == pytest.approx(variance / (load.mean_prompt + age) ** 2, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("cv", [0.5, 1.0, 4.0])
def test_every_slope_is_the_derivative(cv: float) -> None:
    its = curve_of(Case(REPLICA, tuple(BLOCKS), SPREAD | {"arrival_cv": cv}, "free"))
    b, h = np.array([0.5, 20.0, 200.0]), 1e-4
    k = its.chunks(b)
    slopes, before, after = its.slopes(b, k), its.at(b - h, k), its.at(b + h, k)
    for name in ("rate", "running", "decode", "ttft", "e2e", "kv"):
        numeric = (getattr(after, name) - getattr(before, name)) / (2 * h)
        assert getattr(slopes, name) == pytest.approx(numeric, rel=2e-5), name


@pytest.mark.parametrize("seats", [64, 256])
def test_the_wait_for_a_seat_grows_without_end(seats: float) -> None:
    solvable = example(SPREAD | {"max_num_seqs": seats})
    full = where_full(solvable, limit_roots(solvable, {}))
    state = solvable.curve.at(full.root.b * (1 - np.logspace(-0.01, -6, 60)))
    wait = seat_wait(solvable.curve, state, state.rate, full.ceiling)
    assert np.all(np.diff(wait.mean_s) > 0)
    assert wait.mean_s[0] < 1e-12
    assert wait.probability[-1] == pytest.approx(1, abs=0.02)
    at_ceiling = solvable.curve.at(np.array([full.root.b]))
    assert seat_wait(solvable.curve, at_ceiling, np.array([full.ceiling.rate]), full.ceiling).endless.all()


def test_the_law_of_the_first_token_has_its_mean() -> None:
    solvable = example(SPREAD)
    state = solvable.curve.at(np.array([0.5, 20.0, 60.0]))
    law = first_token(solvable.curve, state)
    assert law.shift @ law.weight + law.mean == pytest.approx(state.ttft, rel=1e-12)
    assert np.all(law.variance > 0)


def test_a_wait_that_all_have_shifts_every_percentile() -> None:
    solvable = example(SPREAD)
    state = solvable.curve.at(np.array([20.0]))
    law, found = first_token(solvable.curve, state), spread(solvable.curve, state)
    for percent in (50.0, 99.0):
        both = [ttft(law, no_wait(state, wait)).percentile(percent)[0] for wait in (0.0, 3.0)]
        assert both[1] - both[0] == pytest.approx(3, rel=1e-9)
        ends = [e2e(solvable.curve, state, found, no_wait(state, wait), percent)[0] for wait in (0.0, 3.0)]
        assert ends[1] - ends[0] == pytest.approx(3, rel=1e-9)


def test_percentiles_are_those_of_draws() -> None:
    """TTFT of seated requests, drawn from the law with exact gammas."""
    random = np.random.Generator(np.random.PCG64(4))
    solvable = example(SPREAD)
    state = solvable.curve.at(np.array([30.0]))
    law: FirstToken = first_token(solvable.curve, state)
    node = random.choice(len(law.weight), 400_000, p=law.weight / law.weight.sum())
    mean, variance = law.mean[0], law.variance[0]
    drawn = law.shift[0, node] + random.gamma(mean**2 / variance, variance / mean, len(node))
    for percent in (90.0, 99.0):
        found = ttft(law, no_wait(state)).percentile(percent)[0]
        assert found == pytest.approx(float(np.percentile(drawn, percent)), rel=0.02)


def test_without_prefill_in_it_a_gap_is_a_decode_step() -> None:
    its = curve_of(Case(REPLICA, tuple(BLOCKS), POINT, "free"))
    state = its.at(np.array([1e-4]))
    found = spread(its, state)
    deviation = math.sqrt(found.decoding[0]) * abs(found.decode_slope[0])
    assert gap(its, state, found, 90.0)[0] == pytest.approx(state.decode[0] + norm.ppf(0.9) * deviation, rel=1e-4)
