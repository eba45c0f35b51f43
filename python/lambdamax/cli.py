"""The command line: `lambdamax sweep`, `frontier`, `report`, `explain`, `simulate`, `calibrate`, `validate`, `catalog`.

Tables go to standard output, progress and messages to standard error. Exit status: 0 done, 1 the user's mistake,
2 usage, 130 interrupted. Heavy modules are imported by the commands that need them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from lambdamax import columns
from lambdamax.auditing import audit
from lambdamax.decode_command import decode
from lambdamax.frontier_command import frontier
from lambdamax.further import Answers, ExplainCommand, Further, answers, further, print_answers
from lambdamax.measuring import calibrate, validate
from lambdamax.report_command import report
from lambdamax.sweep_command import sweep
from lambdamax.terminal import CATALOG, Commands, catalog_option, json_option, print_json, stdout_console

if TYPE_CHECKING:
    from lambdamax.case import Question
    from lambdamax.explain import Explanation
    from lambdamax.listing import Listing

_NO_LENGTHS: Final = "give --isl and --osl, or --lengths"
_NO_LENGTHS_NOR_TRACE: Final = f"{_NO_LENGTHS}, or a --trace that has them"
_SHORT: Final = {"isl_tokens": "isl", "osl_tokens": "osl", "rate_rps": "rate"}


def _number(column: columns.Column) -> Callable[[click.Context, click.Parameter, str | None], float | None]:
    """The check of an option: a number that the dictionary admits in `column`, such as 80e9."""

    def check(ctx: click.Context, option: click.Parameter, text: str | None) -> float | None:
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not column.admits(value):
            raise click.BadParameter(f"{text!r} is not allowed; allowed: {column.allowed}.", ctx, option)
        return int(value) if column.is_whole else value

    return check


def _option(name: str, required: bool = False) -> Callable[[Any], Any]:
    """An option for the input column `name`: its checks, its default and its meaning are the dictionary's."""
    column = columns.column(name)
    flag = "--" + _SHORT.get(name, name).replace("_", "-")
    about: dict[str, Any] = {"required": required, "help": column.meaning.partition("; null")[0] + "."}
    if column.default:
        about |= {"default": column.default, "show_default": True}
    if column.is_text:
        return click.option(flag, name, type=click.Choice(column.values) if column.values else str, **about)
    metavar = "NUMBER" if column.unit == "1" else column.unit.upper()
    return click.option(flag, name, callback=_number(column), metavar=metavar, **about)


def _measured(name: str) -> Callable[[Any], Any]:
    check, about = _number(columns.column(f"slo_{name}_s")), f"Mean {name.upper()} that was measured at the load."
    return click.option(f"--measured-{name}-s", callback=check, metavar="S", help=about)


def _billions(flag: str, help: str) -> Callable[[Any], Any]:
    return click.option(flag, metavar="X", type=click.FloatRange(0, 1e6, min_open=True), help=help)


def _options(*names: str, required: tuple[str, ...] = ("model", "gpu")) -> Callable[[Any], Any]:
    def add(command: Any) -> Any:
        for name in reversed(names):
            command = _option(name, required=name in required)(command)
        return command

    return add


def _print_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        from lambdamax import engine

        click.echo(f"lambdamax {engine.__version__} ({engine.build_profile()} build)")
        ctx.exit()


_version: Final = click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show version and build profile.",
)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@_version
def main() -> None:
    """Sizes LLM-serving fleets: how many requests per second a replica serves, what stops it, and what it costs."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


for command in (sweep, frontier, report, decode, audit, calibrate, validate):
    main.add_command(command)


@main.command(cls=ExplainCommand)
@_options(*(column.name for column in columns.of_groups("replica")))
@_options(*(column.name for column in columns.of_groups("workload", "scheduler", "slo", "price")))
@_options("rate_rps", "concurrency", "think_time_s")
@_measured("ttft")
@_measured("tpot")
@click.option(
    "--startup-log",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The log of a vLLM server: the KV pool that it made, in place of the one computed.",
)
@further
@catalog_option
@json_option
def explain(startup_log: Path | None, own: Path | None, as_json: bool, **given: Any) -> None:
    """Answer one point: what binds, what binds next, the whole chain.

    Give a load (--rate or --concurrency) to see what becomes of it, and what was measured at that load to compare.
    Asked for a curve, for replicas, about a spike or a finite run, it says the verdict and answers that.
    """
    from lambdamax.catalog import load_catalog
    from lambdamax.explain import explain as answer

    more = Further.taken(given)
    _refuse_unless(_has_lengths(given), _NO_LENGTHS)
    question = _question(given)
    if startup_log is not None:
        _refuse_unless(given["kv_cache_tokens"] is None, "give --startup-log or --kv-cache-tokens, not both")
        question = question.with_pool_of(startup_log)
    known = load_catalog(own)
    found = answer(more.of_each(question), catalog=known)
    further_answers = answers(more, question, known) if more.anything else None
    if as_json:
        print_json(found.as_json() | (further_answers.as_json() if further_answers else {}))
    else:
        _print_explained(found, further_answers)


def _print_explained(found: Explanation, more: Answers | None) -> None:
    """The whole explanation, or the verdict and the answers to more questions."""
    from lambdamax.render import print_explanation, print_verdict
    from lambdamax.sized import print_budget

    console = stdout_console()
    if more is not None:
        print_verdict(found, console)
        print_answers(more, found, console)
        return
    print_explanation(found, console)
    if found.ttft_budget is not None:
        print_budget(found.ttft_budget, console)


@main.command(short_help="Simulate one point, iteration by iteration.")
@_options("model", "gpu", "tp", "weight_dtype", "kv_dtype", "engine", "profile")
@_options(*(column.name for column in columns.of_groups("workload", "scheduler", "slo", "price")), required=())
@_options("rate_rps", "concurrency", "think_time_s")
@click.option(
    "--arrivals",
    metavar="PATTERN",
    default="poisson",
    show_default=True,
    help="Gaps of an open loop: poisson, deterministic or gamma:CV; or closed:N, which is --concurrency N.",
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="CSV with arrival_s, input_tokens, output_tokens, replayed; with a load given, lengths are drawn from it.",
)
@click.option(
    "--requests", type=click.IntRange(1), default=200_000, show_default=True, help="Most requests to simulate."
)
@click.option(
    "--precision",
    type=click.FloatRange(0, 0.99),
    default=0.01,
    show_default=True,
    help="Relative half-width of the means at which the run ends; 0 for exactly --requests.",
)
@click.option(
    "--replications", type=click.IntRange(1, 4096), default=4, show_default=True, help="Independent runs, pooled."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the random numbers.")
@click.option("--threads", type=click.IntRange(0), default=0, show_default="every core", help="Threads that simulate.")
@json_option
def simulate(
    *,
    arrivals: str,
    trace: Path | None,
    requests: int,
    precision: float,
    replications: int,
    seed: int,
    threads: int,
    as_json: bool,
    **given: Any,
) -> None:
    """Simulate one point, iteration by iteration, beside what the solver says of it.

    The load is --rate, --concurrency, --arrivals closed:N or a --trace; without one, the solver's largest rate.
    """
    from lambdamax.simulate import read_trace
    from lambdamax.simulate import simulate as run

    _refuse_unless(trace is not None or _has_lengths(given), _NO_LENGTHS_NOR_TRACE)
    closed = arrivals.startswith("closed:")
    question = _question({**given, "think_time_s": 0.0 if closed else given["think_time_s"]})
    question = replace(question, think_time_s=given["think_time_s"] or 0.0)
    rows = None if trace is None else read_trace(trace)
    found = run(
        question,
        arrivals=arrivals,
        trace=rows,
        requests=requests,
        precision=precision,
        replications=replications,
        seed=seed,
        threads=threads,
    )
    if as_json:
        print_json(found.as_json())
        return
    from lambdamax.simulated import print_simulation

    print_simulation(found, stdout_console())


def _has_lengths(given: dict[str, Any]) -> bool:
    return given["lengths"] is not None or None not in (given["isl_tokens"], given["osl_tokens"])


def _without_silent_moments(given: dict[str, Any]) -> dict[str, Any]:
    """What was given, without the CVs that a law of lengths tells and nobody asked for."""
    if given["lengths"] is None:
        return given
    source = click.get_current_context().get_parameter_source
    silent = [name for name in columns.MOMENTS if source(name) is ParameterSource.DEFAULT]
    return {name: value for name, value in given.items() if name not in silent}


def _question(given: dict[str, Any]) -> Question:
    """The question that the options ask. Raises UsageError where they do not go together."""
    from lambdamax.case import Question

    _refuse_unless(given["rate_rps"] is None or given["concurrency"] is None, "give --rate or --concurrency, not both")
    _refuse_unless(
        not given["think_time_s"] or given["concurrency"] is not None, "--think-time-s goes with --concurrency"
    )
    measured = [given.get("measured_ttft_s"), given.get("measured_tpot_s")]
    _refuse_unless(measured.count(None) != 1, "--measured-ttft-s and --measured-tpot-s go together")
    loaded = given["rate_rps"] is not None or given["concurrency"] is not None
    _refuse_unless(None in measured or loaded, "what was measured needs its load: --rate or --concurrency")
    given = _without_silent_moments(given)
    own = {field.name for field in fields(Question)}
    numbers = {name: value for name, value in given.items() if name not in own and value is not None}
    return Question(
        **{name: value for name, value in given.items() if name in own and value is not None}, numbers=numbers
    )


def _refuse_unless(allowed: bool, message: str) -> None:
    if not allowed:
        raise click.UsageError(f"{message}.")


@main.group()
def catalog() -> None:
    """Look up models, accelerators, prices and profiles, or add a model of your own."""


def _listed(kind: str, argument: str, help: str) -> None:
    @catalog.command(kind, help=help)
    @click.argument("name", required=False, metavar=argument)
    @catalog_option
    @json_option
    def command(name: str | None, own: Path | None, as_json: bool) -> None:
        from lambdamax import listing
        from lambdamax.catalog import load_catalog

        found = getattr(listing, kind)(load_catalog(own), name)
        if as_json:
            print_json(found.json)
        else:
            _print_listing(found)


_listed("models", "[NAME or PATH]", "List the models, or show one; PATH is that of a config.json.")
_listed("accelerators", "[GPU]", "List the accelerators, or show one.")
_listed("prices", "[GPU]", "List the median prices, or every provider's price of one accelerator.")
_listed("lengths", "[NAME or PATH]", "List the empirical laws of lengths, or show one; PATH is that of a .csv.")
_listed("profiles", "[NAME or PATH]", "List the efficiency profiles, or show one; PATH is that of a .toml.")


def _print_listing(found: Listing) -> None:
    from lambdamax.render import print_lines, print_pairs, print_table

    console = stdout_console()
    if found.headings:
        print_table(console, found.headings, found.rows, found.text)
    else:
        print_pairs(console, [(name, said) for name, said in found.rows])
    if found.legend:
        console.print()
        print_lines(console, [found.legend])
    if found.others:
        console.print()
        print_pairs(console, found.others)


@catalog.command()
@click.argument("source", metavar="PATH|HF_ID")
@click.option("--catalog", "own", required=True, help="The directory to add to; made if absent.", **CATALOG)
@click.option("--name", metavar="NAME", help="What to call it.  [default: as the directory or the hub calls it]")
@click.option("--revision", metavar="REV", help="Branch, tag or commit on the hub.  [default: its main branch]")
@_billions("--published-params", "Parameters that its maker states, in billions.")
@_billions("--published-active-params", "Parameters of one token that its maker states, in billions.")
@click.option("--published-source", metavar="TEXT", default="", help="Where its maker states them.")
@click.option(
    "--source", "source_url", metavar="TEXT", help="Where the config is from.  [default: PATH, or its address]"
)
@click.option("--note", metavar="TEXT", default="", help="Anything that readers should know.")
@click.option("--replace", is_flag=True, help="Take the place of an entry of that name.")
@json_option
def add(source: str, own: Path, as_json: bool, **stated: Any) -> None:
    """Add a model to a catalogue of your own.

    PATH is that of a config.json or of its directory; HF_ID is owner/name of a model on the hub, of which the config
    alone is fetched, never weights.
    """
    from lambdamax import listing
    from lambdamax.adding import add as write
    from lambdamax.catalog import load_catalog

    name = write(source, own, **stated)
    found = listing.models(load_catalog(own), name)
    if as_json:
        print_json(found.json)
    else:
        _print_listing(found)
