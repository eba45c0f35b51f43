"""Points per second of the engine against NumPy, Numba and scipy.optimize.brentq, on the same equations and points.

Rivals run on one core; every contestant runs once per round, and a ratio is the median over the rounds of the pair's.
Exits with 1 if a rival's max_rate differs from the engine's, never because an aim is missed: those are printed.
"""

from __future__ import annotations

import os

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numba
import numpy as np
import scipy  # type: ignore[import-untyped]
from numpy.typing import NDArray

from lambdamax import _engine
from rivals import with_numba, with_numpy, with_scipy
from rivals.coefficients import Floats
from rivals.points import Points, SharedGrid
from timing import Times, Work, interleaved, verdict
from workloads import random_points, shared_grid

Answers = Mapping[str, NDArray[Any]]
Solve = Callable[[], Answers]

ONE: Final = "engine, 1 thread"
TWO: Final = "engine, 2 threads"
BRENTQ: Final = "brentq"
AIMS: Final = {"numpy": 20.0, "numba": 3.0, BRENTQ: 5000.0}
TWO_CORES: Final = 1.8
TOLERANCE: Final = 1e-6
SEED: Final = 20261129


@dataclass(frozen=True)
class Case:
    """One kind of points: who solves all of them, and a sample for brentq with the rows it came from."""

    title: str
    rows: int
    contestants: dict[str, Solve]
    sample: Points
    sample_rows: NDArray[np.intp]
    points_per_s: float | None

    def run(self, rounds: int) -> bool:
        """Print the table and the ratios; whether all agree."""
        print(f"\n{self.title}: {self.rows} points")
        work: dict[str, Work] = {**self.contestants, BRENTQ: partial(with_scipy.solve, self.sample)}
        times = interleaved(work, rounds)
        agreed = self.agree()
        for name in work:
            rows = self.solved_by(name)
            median, best = rows / times.median(name), rows / times.least(name)
            print(f"  {name:22s} {median:12,.0f} points/s median {best:12,.0f} best")
        self.print_ratios(times)
        return agreed

    def solved_by(self, name: str) -> int:
        """Points of one round."""
        return len(self.sample) if name == BRENTQ else self.rows

    def print_ratios(self, times: Times) -> None:
        """How many times faster the engine is on one core, and two cores than one."""
        for name in times.seconds:
            if name not in (ONE, TWO):
                ratio = times.ratio(name, ONE) * self.rows / self.solved_by(name)
                print(f"  engine / {name:13s} {ratio:12.2f}  {verdict(ratio, AIMS[name.split()[0]])}")
        ratio = times.ratio(ONE, TWO)
        print(f"  two cores / one        {ratio:12.2f}  {verdict(ratio, TWO_CORES)}")
        if self.points_per_s:
            rate = self.rows / times.median(ONE)
            print(f"  one core               {rate:12,.0f}  {verdict(rate, self.points_per_s, ' points/s')}")

    def agree(self) -> bool:
        """Whether every rival's max_rate is the engine's, brentq's on its sample."""
        ours = self.contestants[ONE]()["max_rate_rps"]
        rivals = {name: solve()["max_rate_rps"] for name, solve in self.contestants.items() if name != ONE}
        found = [differ(name, rate, ours) for name, rate in rivals.items()]
        found.append(differ(BRENTQ, with_scipy.solve(self.sample), ours[self.sample_rows]))
        return not any(found)


def differ(name: str, theirs: Floats, ours: Floats) -> bool:
    """Whether rates differ by more than the tolerance anywhere; prints by how much."""
    with np.errstate(all="ignore"):
        apart = np.where(theirs == ours, 0.0, np.abs(theirs - ours) / np.maximum(np.abs(theirs), np.abs(ours)))
    wrong = int(np.count_nonzero(~(apart <= TOLERANCE)))
    said = f"; DISAGREES on {wrong} of {len(ours)} points" if wrong else ""
    print(f"  {name:22s} max relative difference of max_rate {np.max(apart):.1e}{said}")
    return wrong > 0


def random_case(title: str, count: int, sample: int, *, varying: bool, points_per_s: float) -> Case:
    """Independent random points."""
    points = random_points(count, seed=SEED, varying=varying)
    engine = partial(_engine.solve, points.replicas, points.replica, points.fields)
    contestants: dict[str, Solve] = {
        ONE: partial(engine, 1),
        TWO: partial(engine, 2),
        "numpy": partial(with_numpy.solve, points),
        "numba": partial(with_numba.solve, points),
    }
    rows = np.arange(sample)
    return Case(title, count, contestants, points.take(rows), rows, points_per_s)


def grid_case(title: str, grid: SharedGrid, sample: int) -> Case:
    """A grid whose SLO axes share curves: rivals solve the flattened points, then share like the engine.

    The engine writes its answers where those of before were, as a sweep does.
    """
    asked = (grid.curves.replicas, list(grid.axes), grid.prices, 0, len(grid))
    engine = partial(_engine.solve_grid, *asked, memory=_engine.Memory())
    contestants: dict[str, Solve] = {
        ONE: partial(engine, 1),
        TWO: partial(engine, 2),
        "numpy": partial(with_numpy.solve, grid.flat),
        "numba": partial(with_numba.solve, grid.flat),
        "numpy shared": partial(with_numpy.solve_shared, grid),
        "numba shared": partial(with_numba.solve_shared, grid),
    }
    rows = np.random.Generator(np.random.PCG64(SEED)).choice(len(grid), sample, replace=False)
    return Case(title, len(grid), contestants, grid.flat.take(rows), rows, None)


def cases(*, quick: bool) -> list[Case]:
    """Every kind of points."""
    small = 16 if quick else 1
    brentq = 20 if quick else 200
    lengths = (2, 2) if quick else (8, 8)
    return [
        random_case(
            "random points, fixed lengths, every limit", 131_072 // small, brentq, varying=False, points_per_s=3e6
        ),
        grid_case("grid, 128 SLO rows a curve, fixed lengths", shared_grid(*lengths), brentq),
        random_case(
            "random points, lognormal lengths, every limit", 32_768 // small, brentq, varying=True, points_per_s=3e5
        ),
        grid_case("grid, 128 SLO rows a curve, lognormal lengths", shared_grid(*lengths, cv=1.0), brentq),
    ]


def main() -> int:
    """Run every case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a sixteenth of the points, two rounds")
    quick = parser.parse_args().quick
    started = time.monotonic()
    versions = f"numpy {np.__version__}, numba {numba.__version__}, scipy {scipy.__version__}"
    print(f"lambdamax {_engine.__version__} ({_engine.build_profile()}), {versions}")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before: with another job running, two cores are one")
    agreed = [case.run(2 if quick else 5) for case in cases(quick=quick)]
    print(f"\n{time.monotonic() - started:.0f} s in all")
    return 0 if all(agreed) else 1


if __name__ == "__main__":
    sys.exit(main())
