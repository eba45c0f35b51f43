"""What `lambdamax explain` can be asked beyond one point: the curve, replicas for a rate, a spike, a finite run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import click

from lambdamax.grouped import GROUPS, Grouped

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console

    from lambdamax.case import Question
    from lambdamax.catalog import Catalog
    from lambdamax.checked import Compared
    from lambdamax.claim import Claim
    from lambdamax.demand import Sizing
    from lambdamax.explain import Explanation
    from lambdamax.finite_run import FiniteRun
    from lambdamax.spike import SpikeAnswer

_UTILIZATION: Final = 0.7
_POSITIVE: Final = click.FloatRange(0, min_open=True)
_CURVE: Final = "Saturation curve"
_DEMAND: Final = "From a rate to replicas"
_SURGE: Final = "Spikes and finite runs"
_BUDGET: Final = "TTFT budget"
_CLAIM: Final = "A vendor's claim"


def _option(group: str, *flags: str, **about: Any) -> tuple[str, Callable[[Any], Any]]:
    return group, click.option(*flags, **about)


_OPTIONS: Final = (
    _option(_CURVE, "--curve", is_flag=True, help="Draw every number against the rate, from idle to past the limit."),
    _option(
        _CURVE, "--curve-out", metavar="FILE", type=click.Path(path_type=Path), help="Also write the curve as Parquet."
    ),
    _option(_DEMAND, "--demand-rps", metavar="REQUESTS/S", type=_POSITIVE, help="How many replicas carry this rate?"),
    _option(
        *(_DEMAND, "--utilization"),
        metavar="NUMBER",
        type=click.FloatRange(0, 1, min_open=True),
        help=f"Share of the requests in flight at the SLO that is used.  [default: {_UTILIZATION}]",
    ),
    _option(
        *(_DEMAND, "--residence-s"),
        metavar="S",
        type=_POSITIVE,
        help="Time in the system, held constant.  [default: as measured, else the model's at the SLO]",
    ),
    _option(
        *(_DEMAND, "--in-flight-per-replica"),
        metavar="REQUESTS",
        type=_POSITIVE,
        help="Requests in flight of one replica at the SLO.  [default: the model's]",
    ),
    _option(
        *(_SURGE, "--spike"),
        metavar="FxTs",
        help="F times the rate for T seconds, such as 3x60s: who waits, how long, and when it is over.",
    ),
    _option(
        *(_SURGE, "--finite-run"),
        metavar="Ts",
        help="Offer --rate to --replicas for T seconds, such as 120s: backlog, served rate and TTFT over time.",
    ),
    _option(
        *(_SURGE, "--startup-s"), metavar="S", type=click.FloatRange(0), help="Until the replicas of it are ready."
    ),
    _option(*(_SURGE, "--replicas"), metavar="REPLICAS", type=click.IntRange(1), help="Replicas of a finite run."),
    _option(_SURGE, "--check", is_flag=True, help="Also play the spike or the run with the simulator."),
    _option(
        *(_BUDGET, "--network-s"),
        metavar="S",
        type=click.FloatRange(0),
        help="Network and gateway before the replica.  [default: 0]",
    ),
    _option(
        *(_BUDGET, "--router-s"),
        metavar="S",
        type=click.FloatRange(0),
        help="Router before the replica.  [default: 0]",
    ),
    _option(
        *(_CLAIM, "--claim-tok-s-per-gpu"),
        metavar="TOKENS/S",
        type=_POSITIVE,
        help="At which batch, context and precision can a GPU give so many output tokens a second, and at what TPOT?",
    ),
)
_OF_DEMAND: Final = ("utilization", "residence_s", "in_flight_per_replica")
_OF_RUN: Final = ("startup_s", "replicas")


class ExplainCommand(Grouped):
    """`explain`, its help in groups."""

    titles: ClassVar[dict[str, str]] = dict(GROUPS)


def further(command: Any) -> Any:
    """Add the options; their help stands in groups of their own."""
    for group, add in reversed(_OPTIONS):
        command = add(command)
        ExplainCommand.titles[command.__click_params__[-1].name] = group
    return command


@dataclass(frozen=True)
class Further:
    """What is asked beyond the point; None or False for what is not."""

    curve: bool
    curve_out: Path | None
    demand_rps: float | None
    utilization: float | None
    residence_s: float | None
    in_flight_per_replica: float | None
    spike: str | None
    finite_run: str | None
    startup_s: float | None
    replicas: int | None
    check: bool
    claim_tok_s_per_gpu: float | None

    @classmethod
    def taken(cls, given: dict[str, Any]) -> Further:
        """Take these options out of `given`. UsageError where they do not go together."""
        asked = cls(**{name: given.pop(name) for name in cls.__dataclass_fields__})
        asked._refuse_conflicts(given)
        return asked

    @property
    def anything(self) -> bool:
        """Whether more than the point is asked about."""
        return self.draws or self.surges or {self.demand_rps, self.claim_tok_s_per_gpu} != {None}

    @property
    def draws(self) -> bool:
        """Whether the curve is asked for."""
        return self.curve or self.curve_out is not None

    @property
    def surges(self) -> bool:
        """Whether a load that changes over time is asked about."""
        return self.spike is not None or self.finite_run is not None

    def of_each(self, question: Question) -> Question:
        """The question of one replica: a finite run offers its rate to all of them."""
        if self.finite_run is None or question.rate_rps is None:
            return question
        return replace(question, rate_rps=question.rate_rps / (self.replicas or 1))

    def _refuse_conflicts(self, given: dict[str, Any]) -> None:
        if self.spike is not None and self.finite_run is not None:
            raise click.UsageError("give --spike or --finite-run, not both.")
        if self.surges and given["concurrency"] is not None:
            raise click.UsageError("--spike and --finite-run go with --rate, not with --concurrency.")
        if self.finite_run is not None and given["rate_rps"] is None:
            raise click.UsageError("--finite-run goes with --rate, the rate offered to all replicas.")
        if self.check and not self.surges:
            raise click.UsageError("--check goes with --spike or --finite-run.")
        for names, key in ((_OF_DEMAND, "demand_rps"), (_OF_RUN, "finite_run")):
            for name in names:
                if getattr(self, name) is not None and getattr(self, key) is None:
                    raise click.UsageError(f"{_flag(name)} goes with {_flag(key)}.")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


@dataclass(frozen=True)
class Answers:
    """The answers to what was asked, None where it was not."""

    curve: pl.DataFrame | None
    sizing: Sizing | None
    spike: SpikeAnswer | None
    run: FiniteRun | None
    checked: tuple[Compared, ...]
    claim: Claim | None

    def as_json(self) -> dict[str, Any]:
        """By name, only what was asked."""
        found: dict[str, Any] = {}
        if self.curve is not None:
            found["curve"] = self.curve.select(self.curve.columns[self.curve.columns.index("rate_rps") :]).to_dicts()
        for name, part in (("demand", self.sizing), ("spike", self.spike), ("finite_run", self.run)):
            if part is not None:
                found[name] = part.as_json()
        if self.checked:
            found["check"] = [row.as_json() for row in self.checked]
        if self.claim is not None:
            found["claim"] = self.claim.as_json()
        return found


def answers(asked: Further, question: Question, catalog: Catalog) -> Answers:
    """Answer `asked` about `question`; the curve is written where a file is named for it."""
    run = _run(asked, question, catalog)
    surge = _spike(asked, question, catalog)
    curve = _curve(asked, question, catalog) if asked.draws else None
    sizing = _sizing(asked, question, catalog)
    checked = _checked(surge, run, asked.of_each(question), catalog) if asked.check else ()
    return Answers(curve, sizing, surge, run, checked, _claim(asked, question, catalog))


def _curve(asked: Further, question: Question, catalog: Catalog) -> pl.DataFrame:
    from lambdamax.curve import curve
    from lambdamax.ranking import write_table

    found = curve(question, catalog=catalog)
    if asked.curve_out is not None:
        write_table(found, asked.curve_out)
    return found


def _sizing(asked: Further, question: Question, catalog: Catalog) -> Sizing | None:
    from lambdamax.demand import replicas_for

    if asked.demand_rps is None:
        return None
    return replicas_for(
        asked.of_each(question),
        asked.demand_rps,
        utilization=asked.utilization or _UTILIZATION,
        residence_s=asked.residence_s,
        in_flight_each=asked.in_flight_per_replica,
        catalog=catalog,
    )


def _spike(asked: Further, question: Question, catalog: Catalog) -> SpikeAnswer | None:
    from lambdamax.spike import spike

    return None if asked.spike is None else spike(question, asked.spike, catalog=catalog)


def _run(asked: Further, question: Question, catalog: Catalog) -> FiniteRun | None:
    from lambdamax.finite_run import finite_run, read_duration

    if asked.finite_run is None or question.rate_rps is None:
        return None
    duration, together = read_duration(asked.finite_run), asked.replicas or 1
    start = asked.startup_s or 0.0
    return finite_run(question, duration, question.rate_rps, replicas=together, startup_s=start, catalog=catalog)


def _claim(asked: Further, question: Question, catalog: Catalog) -> Claim | None:
    from lambdamax.claim import claim_about

    return None if asked.claim_tok_s_per_gpu is None else claim_about(question, asked.claim_tok_s_per_gpu, catalog)


def _checked(
    surge: SpikeAnswer | None, run: FiniteRun | None, question: Question, catalog: Catalog
) -> tuple[Compared, ...]:
    from lambdamax.case import Case
    from lambdamax.checked import check_finite_run, check_spike

    case = Case(question, catalog)
    if surge is not None:
        return check_spike(case, surge.spike, surge.asked.rate_rps)
    return () if run is None else check_finite_run(case, run)


def print_answers(found: Answers, explained: Explanation, console: Console) -> None:
    """Each answer in a section of its own."""
    from lambdamax.divided import print_claim
    from lambdamax.drawn import print_curve
    from lambdamax.sized import print_sizing
    from lambdamax.surges import print_check, print_finite_run, print_spike

    if found.curve is not None:
        print_curve(found.curve, explained, console)
    if found.sizing is not None:
        print_sizing(found.sizing, console)
    if found.spike is not None:
        print_spike(found.spike, console)
    if found.run is not None:
        print_finite_run(found.run, console)
    if found.checked:
        print_check(found.checked, console)
    if found.claim is not None:
        print_claim(found.claim, explained.columns["output_tok_s_per_gpu"], console)
