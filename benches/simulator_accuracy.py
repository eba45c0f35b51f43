"""How far the mean-field solver is from the simulator, over points below 80 % of what a replica sustains.

Both take the same step times and lengths; all that differs is the queueing, which one plays and the other approximates.
Run: python benches/simulator_accuracy.py [--quick]
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from lambdamax.catalog import load_catalog
from lambdamax.engine import SIM_STATUSES, Arrays, Control, Replicas
from lambdamax.replicas import Deployment

REPLICAS: Final = (
    ("llama-3.1-8b-instruct", "h100-sxm", 1),
    ("llama-3.3-70b-instruct", "h100-sxm", 4),
    ("qwen3-8b", "a100-80-sxm", 2),
)
LENGTHS: Final = ((200, 200), (500, 1000), (1000, 300), (4000, 150), (8000, 60))
CVS: Final = (0.0, 1.0)
LOADS: Final = (0.3, 0.6, 0.79)
COMPARED: Final = ("ttft_mean_s", "tpot_mean_s", "in_flight")


@dataclass(frozen=True)
class Point:
    """One replica, one pair of lengths, and the share of the sustainable rate."""

    replica: int
    isl: float
    osl: float
    cv: float
    load: float


def points(quick: bool) -> list[Point]:
    """Every combination; a few for a smoke test."""
    every = itertools.product(range(len(REPLICAS)), LENGTHS, CVS, LOADS)
    found = [Point(replica, float(isl), float(osl), cv, load) for replica, (isl, osl), cv, load in every]
    return found[::18] if quick else found


def table() -> Replicas:
    """The replicas of the catalogue."""
    catalog = load_catalog()
    return Replicas.of([catalog.replica(Deployment(model, gpu, tp)) for model, gpu, tp in REPLICAS])


def compare(asked: list[Point], control: Control) -> tuple[Arrays, Arrays]:
    """What the solver and the simulator say, at the same rates."""
    replicas, which = table(), np.array([point.replica for point in asked], dtype=np.uint32)
    columns = {"isl_tokens": "isl", "osl_tokens": "osl", "isl_cv": "cv", "osl_cv": "cv"}
    inputs = {name: np.array([getattr(point, own) for point in asked]) for name, own in columns.items()}
    limits = replicas.solve(which, inputs, 0)
    sustained = np.minimum.reduce([limits[f"rate_at_{limit}_rps"] for limit in ("compute", "kv", "seats")])
    inputs["rate_rps"] = sustained * np.array([point.load for point in asked])
    return replicas.load(which, inputs, 0), replicas.simulate(which, inputs, control, 0)


def lines(asked: list[Point], solved: Arrays, simulated: Arrays) -> Iterator[str]:
    """One line a point: the solver's error, in percent of the simulation."""
    yield f"{'replica':28} {'isl':>5} {'osl':>5} {'cv':>3} {'load':>5} {'running':>8}  TTFT %  TPOT %     L %  status"
    for i, point in enumerate(asked):
        model, gpu, tp = REPLICAS[point.replica]
        name = f"{model[:14]} {gpu[:9]} tp{tp}"
        errors = "".join(f"{100 * error(solved, simulated, column)[i]:8.1f}" for column in COMPARED)
        status = SIM_STATUSES[simulated["status"][i]]
        yield (
            f"{name:28} {point.isl:5.0f} {point.osl:5.0f} {point.cv:3.0f} {point.load:5.2f} "
            f"{simulated['running'][i]:8.1f}{errors}  {status}"
        )


def error(solved: Arrays, simulated: Arrays, column: str) -> np.ndarray:
    """The solver over the simulation, less one."""
    return np.asarray(solved[column] / simulated[column] - 1)


def summary(asked: list[Point], solved: Arrays, simulated: Arrays) -> Iterator[str]:
    """Median and largest absolute error, over all points and by what sets them apart."""
    classes = {"all": lambda _: True}
    classes |= {f"load {load}": lambda point, load=load: point.load == load for load in LOADS}
    classes |= {
        f"{isl}/{osl}": lambda point, isl=isl, osl=osl: (point.isl, point.osl) == (isl, osl) for isl, osl in LENGTHS
    }
    for name, belongs in classes.items():
        chosen = [i for i, point in enumerate(asked) if belongs(point)]
        if not chosen:
            continue
        cells = []
        for column in COMPARED:
            off = [100 * abs(value) for value in error(solved, simulated, column)[chosen]]
            cells.append(f"{column} {statistics.median(off):5.1f} {max(off):5.1f}")
        yield f"{name:10} {len(chosen):3} points, median and largest |error| in %: " + "   ".join(cells)


def main() -> None:
    """Print the table, then what it comes to."""
    quick = "--quick" in sys.argv[1:]
    asked = points(quick)
    control = Control(requests=20_000 if quick else 200_000, precision=0.01, replications=4, seed=0)
    solved, simulated = compare(asked, control)
    for line in (*lines(asked, solved, simulated), *summary(asked, solved, simulated)):
        print(line)


if __name__ == "__main__":
    main()
