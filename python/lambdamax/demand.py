"""From a demanded rate to whole replicas: with a constant time in the system, and with the one that answers to load."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from lambdamax.case import Case, Question
from lambdamax.catalog import Catalog
from lambdamax.exceptions import Fault, QuestionError
from lambdamax.operating import Operating
from lambdamax.verdict import NAME_OF_LIMIT

# A quotient this close to a whole number is that number.
_ROUNDING: Final = 1e-9


@dataclass(frozen=True)
class Way:
    """One way from a rate to replicas.

    `in_flight_each` is N, what a replica has in flight at its largest rate; `used_each` the share of it that is used;
    `rate_share` is the rate of a replica so used over its largest. `replicas_exact` is before rounding up.
    """

    name: str
    residence_s: float
    in_flight: float
    in_flight_each: float
    used_each: float
    rate_each_rps: float
    rate_share: float
    replicas_exact: float
    replicas: int
    gpus: int


@dataclass(frozen=True)
class Sizing:
    """Replicas for `demand_rps` at `utilization`, the share of the requests in flight at the SLO, by each way.

    `binds` is what a replica meets at N, None where N was given; `residence_from` says where the constant W is from.
    `limit_rps` is what one replica sustains at all.
    """

    demand_rps: float
    utilization: float
    binds: str | None
    residence_from: str
    usd_per_hour_each: float
    limit_rps: float
    ways: tuple[Way, ...]

    def as_json(self) -> dict[str, Any]:
        """Everything by name; null for none."""
        price = None if math.isnan(self.usd_per_hour_each) else self.usd_per_hour_each
        return {**asdict(self), "usd_per_hour_each": price, "ways": [asdict(way) for way in self.ways]}


def replicas_for(
    question: Question,
    demand_rps: float,
    *,
    utilization: float = 0.7,
    residence_s: float | None = None,
    in_flight_each: float | None = None,
    catalog: Catalog | None = None,
) -> Sizing:
    """Whole replicas of `question` that carry `demand_rps` with `utilization` of their requests in flight.

    N, a replica's requests in flight, is taken at the largest rate that the SLOs allow, without a utilisation cap, or
    given as `in_flight_each`. By constant time in the system W there are ⌈demand·W/(N·u)⌉; W is `residence_s`, else
    as measured, else what the model says at N. With feedback a replica runs where it has N·u in flight, and there are
    ⌈demand/(its rate there)⌉. A measured question adds the same by the held ratio.

    Raises QuestionError where the point has no rate at all, or N·u in flight cannot be.
    """
    _check(demand_rps, utilization)
    uncapped = {**question.numbers, "utilization_cap": 1.0}
    case = Case(replace(question, numbers=uncapped), catalog)
    operating = Operating.of(case)
    most = _largest(case, operating, in_flight_each)
    residence, source = _residence(case, most, residence_s)
    asked = _Asked(demand_rps, utilization, case.gpus)
    ways = [_constant(asked, most["served"], residence), _with_feedback(asked, "with feedback", operating, most)]
    if (held := Operating.of_one_number(case)) is not None:
        ways.append(_with_feedback(asked, "held ratio, with feedback", held, held.point(held.limit_rps)))
    binds = NAME_OF_LIMIT.get(case.binding_limit or "") if in_flight_each is None else None
    return Sizing(
        demand_rps, utilization, binds, source, case.answer["cost_usd_per_hour"], operating.limit_rps, tuple(ways)
    )


def by_constant_residence(demand_rps: float, residence_s: float, in_flight_each: float, utilization: float) -> float:
    """Replicas before rounding, demand·W/(N·u)."""
    return demand_rps * residence_s / (in_flight_each * utilization)


def whole(replicas: float) -> int:
    """`replicas` rounded up, but not for the last digits of a quotient."""
    return math.ceil(replicas * (1 - _ROUNDING))


def _check(demand_rps: float, utilization: float) -> None:
    faults = []
    if not 0 < demand_rps < math.inf:
        faults.append(Fault("replicas_for", "demand_rps", f"{demand_rps:g}", "a rate above 0 requests/s"))
    if not 0 < utilization <= 1:
        faults.append(Fault("replicas_for", "utilization", f"{utilization:g}", "a share above 0, at most 1"))
    if faults:
        raise QuestionError(tuple(faults))


def _largest(case: Case, operating: Operating, in_flight_each: float | None) -> dict[str, float]:
    """The operating point with N in flight."""
    if in_flight_each is None:
        rate = case.answer["max_rate_rps"]
        if not rate > 0:
            allowed = "SLOs that an idle replica meets; `lambdamax explain` says which it misses"
            raise QuestionError((Fault("replicas_for", "status", case.status, allowed),))
        return operating.point(min(rate, operating.limit_rps))
    rate = operating.rate_where("served", in_flight_each)
    if math.isnan(rate):
        held = operating.point(operating.limit_rps)["served"]
        allowed = f"what the replica holds, at most {held:.4g}"
        raise QuestionError((Fault("replicas_for", "in_flight_each", f"{in_flight_each:g}", allowed),))
    return {**operating.point(rate), "served": in_flight_each}


def _residence(case: Case, most: dict[str, float], given_s: float | None) -> tuple[float, str]:
    if given_s is not None:
        return given_s, "given"
    if not math.isnan(case.residence_s):
        return case.residence_s, "measured"
    return most["served"] / most["rate_rps"], "the model's, with N in flight"


@dataclass(frozen=True)
class _Asked:
    """What the replicas are for, and the devices of each."""

    demand_rps: float
    utilization: float
    gpus: int


def _constant(asked: _Asked, in_flight_each: float, residence_s: float) -> Way:
    exact = by_constant_residence(asked.demand_rps, residence_s, in_flight_each, asked.utilization)
    return _way(asked, "constant W", in_flight_each, residence_s, exact)


def _with_feedback(asked: _Asked, name: str, operating: Operating, most: dict[str, float]) -> Way:
    used = asked.utilization * most["served"]
    rate = most["rate_rps"] if asked.utilization == 1 else operating.rate_where("served", used)
    found = _way(asked, name, most["served"], used / rate, asked.demand_rps / rate)
    return replace(found, rate_share=rate / most["rate_rps"])


def _way(asked: _Asked, name: str, in_flight_each: float, residence_s: float, exact: float) -> Way:
    used = asked.utilization * in_flight_each
    return Way(
        name=name,
        residence_s=residence_s,
        in_flight=asked.demand_rps * residence_s,
        in_flight_each=in_flight_each,
        used_each=used,
        rate_each_rps=used / residence_s,
        rate_share=asked.utilization,
        replicas_exact=exact,
        replicas=whole(exact),
        gpus=whole(exact) * asked.gpus,
    )
