"""One point, simulated iteration by iteration: `simulate(Question(…))` beside what the mean-field solver says of it."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from lambdamax.case import Case, Question, Value
from lambdamax.columns import MOMENTS
from lambdamax.engine import Control, Simulated, Trace
from lambdamax.exceptions import Fault, SimulationError
from lambdamax.explain import plain
from lambdamax.lengths import LengthTable

__all__ = ["Simulation", "read_trace", "simulate"]

PATTERNS: Final = "poisson, deterministic, gamma:CV with a CV from 0 to 20, or closed:N with 1 client or more"
TRACE_COLUMNS: Final = ("arrival_s", "input_tokens", "output_tokens")
_GAP_CV: Final = {"poisson": 1.0, "deterministic": 0.0}
_LENGTHS: Final = ("isl_tokens", "osl_tokens")


@dataclass(frozen=True)
class Simulation:
    """What a simulation came to.

    `status` is `steady` (the numbers are those of a steady state, as sure as was asked for), `saturated` (the replica
    falls behind, or a closed loop keeps it full), `unsettled` (the run was too short to tell) or why there is none.
    `numbers` are in SI units, NaN where there is none; docs/simulator.md says what each is. `mean_field` is what the
    solver says of the same load, None where it has no operating point; `mean_field_status` says why. `requests` holds
    TTFT, TPOT and E2E [s] of every request of a replayed trace, in the order of arrival.
    """

    question: Question
    status: str
    numbers: dict[str, float]
    mean_field: dict[str, float] | None
    mean_field_status: str | None
    requests: dict[str, list[float]]

    def as_json(self) -> dict[str, Any]:
        """Everything but `requests`; null for none."""
        return {
            "status": self.status,
            **_plain(self.numbers),
            "mean_field": None if self.mean_field is None else _plain(self.mean_field),
            "mean_field_status": self.mean_field_status,
        }


def simulate(
    question: Question,
    *,
    arrivals: str = "poisson",
    trace: Trace | None = None,
    requests: int = 200_000,
    precision: float = 0.01,
    replications: int = 4,
    seed: int = 0,
    threads: int = 0,
    settings: Mapping[str, float] | None = None,
) -> Simulation:
    """Simulate the serving engine of `question` under its load, by the scheduling rules of vLLM V1.

    The load is `rate_rps` or `concurrency` of the question, the clients of `arrivals` (`closed:N`), or, where there is
    none of these, the largest rate by the solver. An open loop's `arrivals` are `poisson`, `deterministic` or
    `gamma:CV`. A `trace` (arrivals [s], input tokens, output tokens) is replayed once; with a load given, only lengths
    are drawn from it.

    The warm-up is left out. A run ends when the 95 % half-widths of mean TTFT, TPOT and E2E are within `precision` of
    the means, or at `requests`, all `replications` together; with precision 0 it has exactly so many. The same `seed`
    gives the same bits with any number of `threads` (0 is every core). `settings` are the engine's by name:
    `long_prefill_token_threshold`, `scheduler_reserve_full_isl`, `watermark`, `enable_prefix_caching`,
    `async_scheduling`, the switches 0 or 1.

    Raises SimulationError that says what does not go together, CatalogError for unknown names.
    """
    gap_cv, clients = _pattern(arrivals)
    replayed = trace is not None and question.rate_rps is None and question.concurrency is None and clients is None
    asked = _asked(question, clients, trace, replayed)
    case = Case(asked, lengths=None if trace is None else _law(trace))
    load = {} if replayed else _load(case, gap_cv)
    control = Control(requests=requests, precision=precision, replications=replications, seed=seed)
    found = _run(case, {**load, **(settings or {})}, control, trace, threads)
    return Simulation(case.question, found.status, found.numbers, case.at_load, case.load_status, found.requests)


def read_trace(path: Path) -> Trace:
    """The requests of a CSV file with columns arrival_s, input_tokens, output_tokens; SimulationError names faults."""
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        missing = [name for name in TRACE_COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            _refuse(str(path), "columns", ", ".join(reader.fieldnames or ()), ", ".join(TRACE_COLUMNS))
        rows = [tuple(_cell(path, line, row, name) for name in TRACE_COLUMNS) for line, row in enumerate(reader, 2)]
    if not rows:
        _refuse(str(path), "requests", "none", "one or more")
    arrivals, inputs, outputs = zip(*sorted(rows), strict=True)
    return arrivals, inputs, outputs


def _cell(path: Path, line: int, row: Mapping[str, str | None], name: str) -> float:
    least = 0.0 if name == "arrival_s" else 1.0
    try:
        value = float(row[name] or "")
    except ValueError:
        value = math.nan
    if not least <= value <= 1e9:
        _refuse(f"{path}:{line}", name, repr(row[name]), f"a number from {least:g} to 1e9")
    return value


def _refuse(place: str, key: str, value: str, allowed: str) -> None:
    raise SimulationError((Fault(place, key, value, allowed),))


def _pattern(arrivals: str) -> tuple[float, int | None]:
    """CV of the gaps, and clients of a closed loop."""
    kind, _, text = arrivals.partition(":")
    if kind in _GAP_CV and not text:
        return _GAP_CV[kind], None
    try:
        if kind == "gamma" and 0 <= float(text) <= 20:
            return float(text), None
        if kind == "closed" and int(text) >= 1:
            return 1.0, int(text)
    except ValueError:
        pass
    raise SimulationError((Fault("simulate", "arrivals", repr(arrivals), PATTERNS),))


def _asked(question: Question, clients: int | None, trace: Trace | None, replayed: bool) -> Question:
    """The question with its load and lengths filled in, for the solver."""
    if clients is not None:
        if question.rate_rps is not None or question.concurrency is not None:
            _refuse("simulate", "arrivals", f"closed:{clients}", "one load: a rate, a concurrency, or closed:N")
        question = replace(question, concurrency=float(clients))
    if trace is not None and question.lengths is not None:
        _refuse("simulate", "lengths", question.lengths, "a trace or lengths, not both")
    if trace is not None:
        question = replace(question, numbers=_without_moments(question.numbers))
    missing = [name for name in _LENGTHS if name not in question.numbers]
    if missing and question.lengths is None and trace is None:
        _refuse(
            "simulate", ", ".join(missing), "not given", "isl_tokens and osl_tokens, lengths, or a trace that has them"
        )
    if trace is not None and replayed:
        question = replace(question, rate_rps=_mean_rate(trace))
    return question


def _without_moments(numbers: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in numbers.items() if name not in MOMENTS}


def _law(trace: Trace) -> LengthTable:
    """Prompts and outputs of a trace, as they came together."""
    pairs: dict[tuple[float, float], float] = {}
    for pair in zip(trace[1], trace[2], strict=True):
        pairs[pair] = pairs.get(pair, 0.0) + 1.0
    return LengthTable.of("trace", pairs, "")


def _mean_rate(trace: Trace) -> float | None:
    span = max(trace[0]) - min(trace[0])
    return (len(trace[0]) - 1) / span if span > 0 else None


def _load(case: Case, gap_cv: float) -> dict[str, float]:
    asked = case.question
    if asked.concurrency is not None:
        return {"concurrency": asked.concurrency, "think_time_s": asked.think_time_s}
    if asked.rate_rps is None:
        largest = case.answer["max_rate_rps"]
        if not largest > 0:
            _refuse("simulate", "load", "none", f"a rate or clients, because the largest rate is none ({case.status})")
        case.question = replace(asked, rate_rps=largest)
    return {"rate_rps": case.asked_rate_rps, "arrival_cv": gap_cv}


def _run(case: Case, load: Mapping[str, float], control: Control, trace: Trace | None, threads: int) -> Simulated:
    try:
        return case.simulate(load, control, trace, threads)
    except (ValueError, OverflowError) as error:
        raise SimulationError((Fault("simulate", str(error), "", "see `lambdamax simulate --help`"),)) from None


def _plain(numbers: Mapping[str, float]) -> dict[str, Value]:
    return {name: plain(value) for name, value in numbers.items()}
