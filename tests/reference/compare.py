"""How far an engine's row is from the reference's, and which names of a limit both may give."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from reference.fields import Row, default
from reference.flats import ttft_ranges
from reference.operating import Answer
from reference.points import Case
from reference.solver import DEFAULT_UTILIZATION_CAP, RATE_COLUMNS, smallest

TOLERANCE = 1e-9
# How the solvers went about it, which is not an answer.
OF_THE_SOLVER = frozenset({"iterations", "residual"})


# A seat wait whose exponential is all but nothing has few digits, and no part in the latency it is in.
NO_PART = 1e-12
# Those who wait are the rest of those in flight, in the engine a small difference of large numbers.
ROUNDING = 1e-14


def differences(expected: Answer, got: Mapping[str, float], names: Iterable[str]) -> dict[str, tuple[float, float]]:
    """The float answers (reference, engine) that differ by more than the tolerance; NaN is null."""
    found = {}
    for name in names:
        ours, theirs = number(expected.get(name)), float(got[name])
        if name not in OF_THE_SOLVER and not close(ours, theirs):
            found[name] = (ours, theirs)
    return found


def judged(
    case: Case, expected: Answer, got: Mapping[str, float], names: Iterable[str]
) -> dict[str, tuple[float, float]]:
    """`differences` without those that double precision makes."""
    found = differences(expected, got, names)
    if "seat_wait_s" in found and abs(found["seat_wait_s"][0] - found["seat_wait_s"][1]) < NO_PART * got["ttft_mean_s"]:
        del found["seat_wait_s"]
    if "waiting" in found and abs(found["waiting"][0] - found["waiting"][1]) < ROUNDING * got["in_flight"]:
        del found["waiting"]
    flat = [name for name in found if name.startswith("ttft_p")]
    ranges = ttft_ranges(case.row, case.blocks, case.point, expected, flat) if flat else {}
    for name, (low, high) in ranges.items():
        if low * (1 - TOLERANCE) <= got[name] <= high * (1 + TOLERANCE):
            del found[name]
    return found


def number(value: float | str | None) -> float:
    """A float answer, NaN if null."""
    return math.nan if value is None else float(value)


def close(a: float, b: float) -> bool:
    """Equal to the relative tolerance; null equals null."""
    return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=0.0)


def names_allowed(answer: Answer, point: Row) -> set[tuple[str, str]]:
    """The (binding, next) pairs that a change of any one rate by the tolerance could give: either name of a tie."""
    cap = default(point, "utilization_cap", DEFAULT_UTILIZATION_CAP)
    rates = {name: number(answer.get(column)) for name, column in RATE_COLUMNS.items() if name != "utilization"}
    rates = {name: rate for name, rate in rates.items() if not math.isnan(rate)}
    pairs = set()
    for binding in near(rates, cap):
        beyond = {name: rate for name, rate in rates.items() if name != binding}
        pairs |= {(binding, after) for after in near(beyond, None if binding == "utilization" else cap)}
    return pairs


def near(rates: dict[str, float], cap: float | None) -> set[str]:
    """The names of the smallest rate when any one of them, or the cap, moves by the tolerance."""
    names = {smallest(rates, cap)[0]}
    for change in (1 - TOLERANCE, 1 + TOLERANCE):
        names |= {smallest(rates | {name: rate * change}, cap)[0] for name, rate in rates.items()}
        if cap is not None:
            names.add(smallest(rates, cap * change)[0])
    return names
