"""The command `lambdamax sweep`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lambdamax.frontier_options import ranked, refuse_beside_pareto
from lambdamax.terminal import catalog_option, json_option, print_json, stdout_console

if TYPE_CHECKING:
    from lambdamax.objectives import Goal


@click.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.option(
    "--out", required=True, metavar="DIR", type=click.Path(path_type=Path), help="Where the parts go; a rerun resumes."
)
@click.option("--threads", type=click.IntRange(0), default=0, show_default="every core", help="Threads that solve.")
@click.option(
    "--keep",
    type=click.Choice(["all", "frontier"]),
    default="all",
    show_default=True,
    help="Write every point, or only what the frontier may want: a billion points need no disk.",
)
@ranked
@catalog_option
@json_option
def sweep(*, spec: Path, out: Path, threads: int, keep: str, own: Path | None, as_json: bool, **asked: Any) -> None:
    """Solve every point of a sweep file into Parquet parts."""
    from lambdamax.catalog import load_catalog
    from lambdamax.ranking import print_sweep
    from lambdamax.sweep import sweep as run

    goal = _goal(keep, asked)
    result = run(spec, out, threads=threads, catalog=None if own is None else load_catalog(own), keep=goal)
    if as_json:
        print_json({**asdict(result), "directory": str(result.directory)})
    else:
        print_sweep(result, stdout_console())


def _goal(keep: str, asked: dict[str, Any]) -> Goal | None:
    from lambdamax.frontier import kept_goal

    if keep == "frontier":
        refuse_beside_pareto(asked)
        return kept_goal(**asked | {"best": asked["best"] or 1})
    given = next((name for name, value in asked.items() if value is not None), None)
    if given is not None:
        raise click.UsageError(f"--{given} goes with --keep frontier.")
    return None
