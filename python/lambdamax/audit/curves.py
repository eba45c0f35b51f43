"""A law on several rows of one set-up: more clients do not make tokens come faster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from lambdamax.audit.finding import Finding, Side
from lambdamax.audit.point import Point

# Repeats of one point scatter by a few per cent, and graphs of fixed sizes make small steps; more is another set-up.
FALL: Final = 0.12
_SETUP: Final = (
    *("file", "format", "model", "gpu", "gpus", "tp", "pp", "ep", "weight_dtype", "kv_dtype", "engine"),
    *("engine_version", "load", "speculative", "statistic", "date", "source_url"),
)
# Mean replies of one dataset differ from run to run by about this much.
_LENGTHS: Final = ("isl_tokens", "osl_tokens")
SAME_LENGTH: Final = 0.1


def rising(points: Sequence[Point]) -> Iterator[tuple[int, Finding]]:
    """TPOT against the number in flight, in rows that differ in nothing else: the place of a row, and its finding."""
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for place, point in enumerate(points):
        if _batch(point) is not None and point.tpot_s is not None:
            groups[(*(point.row[name] for name in _SETUP), _task(point))].append(place)
    for places in groups.values():
        ordered = sorted(places, key=lambda place: _batch(points[place]) or 0.0)
        yield from _falls(points, ordered)


def _batch(point: Point) -> float | None:
    running = point.get("running")
    return point.get("concurrency") if running is None else running


def _task(point: Point) -> str:
    """The first words of the notes: what the run was."""
    return point.notes.partition(";")[0]


def _falls(points: Sequence[Point], ordered: list[int]) -> Iterator[tuple[int, Finding]]:
    for before, after in pairwise(ordered):
        low, high = points[before], points[after]
        if _batch(low) == _batch(high) or not _same_lengths(low, high):
            continue
        slow, fast = low.tpot_s or 0.0, high.tpot_s or 0.0
        if fast < slow * (1 - FALL):
            left, right = Side(f"TPOT at {_batch(high):g}", fast, "s"), Side(f"TPOT at {_batch(low):g}", slow, "s")
            verdict = "more in flight and faster tokens: one of the two rows is an outlier or of another set-up"
            finding = Finding("warning", "TPOT rises with load", "tpot_mean_s", left, right, verdict)
            yield from ((before, finding), (after, finding))


def _same_lengths(one: Point, other: Point) -> bool:
    for name in _LENGTHS:
        here, there = one.get(name), other.get(name)
        if (here is None) != (there is None) or (here and there and abs(here / there - 1) > SAME_LENGTH):
            return False
    return True
