"""Interleaved timing: every contestant once per round, so that a noisy machine is noisy for all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Work = Callable[[], object]


@dataclass(frozen=True)
class Times:
    """Seconds of each round, one list per contestant; round i of one stands beside round i of the others."""

    seconds: Mapping[str, list[float]]

    def least(self, name: str) -> float:
        """The fastest round [s]."""
        return min(self.seconds[name])

    def median(self, name: str) -> float:
        """The median round [s]."""
        return statistics.median(self.seconds[name])

    def ratio(self, slow: str, fast: str) -> float:
        """Median over the rounds of the pair's ratio, `slow` over `fast`."""
        pairs = zip(self.seconds[slow], self.seconds[fast], strict=True)
        return statistics.median(a / b for a, b in pairs)


def seconds(work: Work) -> float:
    """How long one call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def interleaved(contestants: Mapping[str, Work], rounds: int) -> Times:
    """Times of `rounds` rounds after one round that is not counted."""
    for work in contestants.values():
        work()
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, work in contestants.items():
            found[name].append(seconds(work))
    return Times(found)


def verdict(value: float, aim: float, unit: str = "", *, at_most: bool = False) -> str:
    """Whether `value` meets its aim, in words."""
    met = value <= aim if at_most else value >= aim
    return f"aim {'<=' if at_most else '>='} {aim:,g}{unit}: {'met' if met else 'MISSED'}"
