"""The options that say which points win: what is to be large or small, within which groups, and how many."""

from __future__ import annotations

from typing import Any, Final

import click

from lambdamax.objectives import MOST_BEST, parse_objectives

_ALONE: Final = ("maximize", "minimize", "compare", "best")


def names_option(_: click.Context, __: click.Parameter, text: str | None) -> list[str] | None:
    """Names with commas between them."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _objectives(_: click.Context, __: click.Parameter, text: str | None) -> dict[str, str] | None:
    return None if text is None else parse_objectives(text)


_OPTIONS: Final = (
    click.option("--maximize", metavar="COL", help="The column to maximize.  [default: requests_per_usd]"),
    click.option("--minimize", metavar="COL", help="The column to minimize, in place of --maximize."),
    click.option(
        "--by",
        metavar="A,B,C",
        callback=names_option,
        help="The columns that make a group.  [default: what the customer brings]",
    ),
    click.option("--compare", metavar="COL", help="What competes within a group.  [default: gpu]"),
    click.option(
        "--best", metavar="K", type=click.IntRange(1, MOST_BEST), help="Points of each competitor.  [default: 1]"
    ),
    click.option(
        "--pareto",
        metavar="COL:max,COL:min",
        callback=_objectives,
        help="In place of a ranking the points that no other beats in these columns.",
    ),
)


def ranked(command: Any) -> Any:
    """Add the options."""
    for add in reversed(_OPTIONS):
        command = add(command)
    return command


def refuse_beside_pareto(asked: dict[str, Any]) -> None:
    """UsageError where --pareto stands beside an option of rankings."""
    given = next((name for name in _ALONE if asked[name] is not None), None)
    if asked["pareto"] is not None and given is not None:
        raise click.UsageError(f"give --pareto or --{given}, not both.")
