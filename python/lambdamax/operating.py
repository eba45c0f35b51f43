"""The operating points of one replica from idle to its limit, any number at once, and where a number is met."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, Self

import numpy as np

from lambdamax.case import Case
from lambdamax.engine import Floats, Replicas
from lambdamax.exceptions import Fault, QuestionError
from lambdamax.lengths import LengthTable
from lambdamax.replicas import ReplicaRow
from lambdamax.verdict import sustainable_rate_rps

_PARTS: Final = 64
_ROUNDS: Final = 8
_SEATED: Final = ("iteration_wait_s", "first_iteration_s", "own_prefill_s", "riders_s", "host_s")
# The limit is a root and may be a last digit too large to be carried.
_HAIR: Final = 1e-12


class Operating:
    """What a replica does at any rate up to `limit_rps`, the largest that it can sustain."""

    def __init__(
        self, row: ReplicaRow, point: Mapping[str, float], limit_rps: float, lengths: LengthTable | None = None
    ) -> None:
        """Compile `row`; `point` holds the inputs by name, without those that a law of `lengths` tells."""
        laws = [] if lengths is None else [lengths]
        self._replicas = Replicas.of([row], laws)
        self._point = {**point, "lengths": 0.0} if laws else dict(point)
        self.limit_rps = limit_rps * (1 - _HAIR)

    @classmethod
    def of(cls, case: Case) -> Self:
        """The full model of `case`; QuestionError where it has no operating point at any rate."""
        limit = sustainable_rate_rps(case)
        if not limit > 0:
            told = "a point with an operating point; `lambdamax explain` says what stands in the way"
            raise QuestionError((Fault("explain", "status", case.status, told),))
        return cls(case.row, case.points, limit, case.lengths)

    @classmethod
    def of_one_number(cls, case: Case) -> Self | None:
        """The chain that holds one measured ratio, up to the rate that its pool or its TPOT SLO allows."""
        one = case.one_number
        if one is None:
            return None
        limit = one["rate_at_kv_rps"]
        if not math.isnan(case.point("slo_tpot_s")):
            limit = min(limit, one["rate_at_tpot_rps"])
        return cls(*case.held_ratio(), limit)

    def at(self, rates: Floats) -> dict[str, Floats]:
        """The numbers of the load columns at each of `rates` [req/s], NaN where a rate is unstable.

        Added are `seated_ttft_s`, the mean TTFT of a request that has a seat, and `served`, those in flight that do not
        wait for one; both are finite at the limit too, where a wait has no end.
        """
        found = self._load(rates)
        numbers = {name: values for name, values in found.items() if name != "status"}
        seated = np.sum([found[name] for name in _SEATED], axis=0)
        return {**numbers, "seated_ttft_s": seated, "served": found["rate_rps"] * seated + found["decoding"]}

    def point(self, rate_rps: float) -> dict[str, float]:
        """The numbers at one rate."""
        return {name: float(values[0]) for name, values in self.at(np.array([rate_rps])).items()}

    def rate_where(self, name: str, value: float) -> float:
        """The smallest rate at which the column `name`, which grows with the rate, reaches `value`; NaN if none."""
        low, high = 0.0, self.limit_rps
        for _ in range(_ROUNDS):
            rates = np.linspace(low, high, _PARTS + 1)[1:]
            reached = np.flatnonzero(self.at(rates)[name] >= value)
            if not reached.size:
                return math.nan
            first = int(reached[0])
            low, high = float(rates[first - 1]) if first else low, float(rates[first])
        return high

    def _load(self, rates: Floats) -> dict[str, Floats]:
        columns = {name: np.full(rates.size, value, dtype=np.float64) for name, value in self._point.items()}
        return self._replicas.load(np.zeros(rates.size, dtype=np.uint32), {**columns, "rate_rps": rates}, 1)
