"""One point, the whole chain: `explain(Question(…))` gathers all that can be said about it, for print or JSON."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Final

from lambdamax.assumptions import assumptions
from lambdamax.budget import Budget, ttft_budget
from lambdamax.case import Case, Question, Value
from lambdamax.catalog import Catalog
from lambdamax.chain import Step, chain
from lambdamax.columns import point_columns
from lambdamax.replicas import DEGREES
from lambdamax.verdict import Mistake, mistakes, near_compute, sustainable_rate_rps, verdict

__all__ = ["Explanation", "Question", "explain"]

_ROUND: Final = (1.0, 2.0, 5.0, 10.0)
_CURVE_POINTS: Final = 12


@dataclass(frozen=True)
class Explanation:
    """The answer to a `Question`; `columns` is the row that a sweep holds for the same point.

    `near_compute` are the limits met so little before compute that compute is named in their place; `native_formats`
    is what native weights are on this model.
    """

    question: Question
    columns: dict[str, Value]
    at_rate: dict[str, Value] | None
    chain: tuple[Step, ...]
    one_number: dict[str, Any] | None
    mistakes: tuple[Mistake, ...]
    verdict: dict[str, str]
    near_compute: tuple[str, ...]
    assumptions: tuple[str, ...]
    native_formats: str
    ttft_budget: Budget | None

    def as_json(self) -> dict[str, Any]:
        """The columns, then the other parts of the explanation by name; SI units, null for none."""
        lists = {"chain": [_row(step) for step in self.chain], "mistakes": [_row(found) for found in self.mistakes]}
        return {
            **self.columns,
            "at_rate": self.at_rate,
            "one_number": self.one_number,
            **lists,
            "verdict": self.verdict,
            "assumptions": list(self.assumptions),
            "ttft_budget": None if self.ttft_budget is None else _budget(self.ttft_budget),
        }


def explain(question: Question, *, catalog: Catalog | None = None) -> Explanation:
    """Solve `question`, names looked up in `catalog`, None the shipped one.

    Unknown names raise `CatalogError`; a point that has no answer has a `status` that says so.
    """
    case = Case(question, catalog)
    parts = (_columns(case), _at_rate(case), chain(case), _one_number(case), mistakes(case), verdict(case))
    rest = (near_compute(case), assumptions(case), case.model.checkpoint.dtype, ttft_budget(case))
    return Explanation(question, *parts, *rest)


def _columns(case: Case) -> dict[str, Value]:
    """The row of a sweep: the columns of the dictionary, in its order."""
    limits = {"status": case.status, "binding_limit": case.binding_limit, "next_limit": case.next_limit}
    texts = case.labels | {name: getattr(case.question, name) for name in DEGREES} | limits
    return {
        c.name: texts[c.name] if c.name in texts else plain(case.point(c.name), c.is_whole) for c in point_columns()
    }


def _at_rate(case: Case) -> dict[str, Value] | None:
    """The load asked about: its status, what it does to the replica, and the FLOP/s that it would need."""
    if case.at_load is None:
        return None
    asked = {
        "asked_rate_rps": plain(case.asked_rate_rps),
        "concurrency": case.question.concurrency,
        "clients_at_max_rate": plain(case.clients_at_max_rate),
    }
    point = {name: plain(value) for name, value in case.at_load.items() if name != "status"}
    one = case.one_number or {}
    flops = {name: plain(one.get(name, math.nan)) for name in ("prefill_share_of_peak", "implied_flop_utilization")}
    sustainable = {"sustainable_rate_rps": plain(sustainable_rate_rps(case))}
    return {"status": case.load_status, **asked, **sustainable, **point, **flops}


def _one_number(case: Case) -> dict[str, Any] | None:
    if case.one_number is None:
        return None
    values = {name: plain(value) for name, value in case.one_number.items()}
    return {
        **values,
        "curve": _curve(case, case.one_number),
        "twice_the_output": _twice_the_output(case, case.one_number),
    }


def _curve(case: Case, one: dict[str, float]) -> list[dict[str, Value]]:
    """TPOT and L, with the held ratio and by the full model, at round rates up to the one that fills the pool."""
    step = _round_step(one["rate_at_kv_rps"])
    rates = (float(f"{step * k:.12g}") for k in range(1, _CURVE_POINTS))
    return [_curve_point(case, rate) for rate in rates if rate <= one["rate_at_kv_rps"]]


def _curve_point(case: Case, rate_rps: float) -> dict[str, Value]:
    one, full = case.one_number_at(rate_rps, case.point("osl_tokens")), case.full_model_at(rate_rps)
    own = {"tpot_s": plain(one["tpot_mean_s"]), "in_flight": plain(one["in_flight"])}
    other = {"full_model_tpot_s": plain(full["tpot_mean_s"]), "full_model_in_flight": plain(full["in_flight"])}
    return {"rate_rps": rate_rps, **own, **other}


def _round_step(largest: float) -> float:
    """The least of 1, 2, 5, 10, … that divides `largest` in fewer than `_CURVE_POINTS` parts."""
    power = 10.0 ** math.floor(math.log10(largest / _CURVE_POINTS))
    return next(power * digit for digit in (*_ROUND, 20.0) if largest / (power * digit) < _CURVE_POINTS)


def _twice_the_output(case: Case, one: dict[str, float]) -> dict[str, Value]:
    """The asked rate with answers twice as long: with TPOT held, and with TPOT that answers to its load."""
    osl = 2 * case.point("osl_tokens")
    held = case.one_number_for(osl, case.question.measured_tpot_s or math.nan)
    moved = case.one_number_for(osl, case.one_number_at(case.asked_rate_rps, osl)["tpot_mean_s"])
    growth = {
        f"{name}_ratio_{how}": plain(at[name] / one[name])
        for how, at in (("held", held), ("with_feedback", moved))
        for name in ("in_flight", "kv_in_flight_bytes")
    }
    return {"osl_tokens": osl, **growth, "asymptote_rps": plain(moved["asymptote_rps"])}


def _budget(found: Budget) -> dict[str, Any]:
    links = [{name: value for name, value in asdict(link).items() if name != "label"} for link in found.links]
    whole = {"ttft_mean_s": found.ttft_mean_s, "ttft_p99_s": found.ttft_p99_s}
    totals = {"total_mean_s": found.total_mean_s, "total_p99_s": found.total_p99_s}
    return {"rate_rps": found.rate_rps, "links": links, **totals, **whole}


def plain(value: float, whole: bool = False) -> Value:
    """For JSON: null instead of NaN; an integer if the value is `whole`."""
    return None if math.isnan(value) else int(value) if whole else value


def _row(line: Step | Mistake) -> dict[str, Value]:
    return {name: value for name, value in asdict(line).items() if name != "label"}
