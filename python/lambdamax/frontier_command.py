"""The command `lambdamax frontier`: a ranking, a Pareto set, or an answer to what a buyer asks of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from lambdamax.frontier_options import names_option, ranked, refuse_beside_pareto
from lambdamax.terminal import catalog_option, json_option, print_json, stdout_console

if TYPE_CHECKING:
    import polars as pl

    from lambdamax.catalog import Catalog

_SHOWN: Final = ("ranking", "winners", "binding", "break-even", "elasticity", "robustness")
_OF: Final = {"draws": "robustness", "seed": "robustness", "step": "elasticity"}


@dataclass(frozen=True)
class _Asked:
    """What is asked about the directory; None for an option that is not given."""

    directory: Path
    catalog: Catalog
    maximize: str | None
    minimize: str | None
    by: list[str] | None
    compare: str | None
    best: int | None
    pareto: dict[str, str] | None
    axes: list[str] | None
    draws: int | None
    seed: int | None
    step: float | None
    check: bool
    check_seed: int | None

    @property
    def ranking(self) -> dict[str, Any]:
        """The arguments that every answer from a ranking takes."""
        names = ("maximize", "minimize", "by", "compare", "catalog")
        return {name: getattr(self, name) for name in names}


@click.command(short_help="Rank a sweep: who wins, where, by how much, at which price, how surely.")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@ranked
@click.option(
    "--show",
    type=click.Choice(_SHOWN),
    default="ranking",
    show_default=True,
    help="winners: who wins where, and by how much; binding: what stops the best; break-even: the price at which each "
    "would win; elasticity: what more of a fact is worth; robustness: how sure the choice is.",
)
@click.option("--map", "axes", metavar="ROWS,COLS", callback=names_option, help="The columns that a map is drawn over.")
@click.option("--draws", metavar="N", type=click.IntRange(1, 1 << 24), help="Draws of robustness.  [default: 20000]")
@click.option("--seed", metavar="N", type=click.IntRange(0), help="Seed of robustness.  [default: 0]")
@click.option(
    "--step",
    metavar="SHARE",
    type=click.FloatRange(0, 0.5, min_open=True),
    help="Step of elasticity to both sides.  [default: 0.01]",
)
@click.option("--check", is_flag=True, help="Also simulate every winner at its largest rate.")
@click.option("--check-seed", metavar="N", type=click.IntRange(0), help="Seed of its random numbers.  [default: 0]")
@click.option("--out", metavar="FILE", type=click.Path(path_type=Path), help="Also write the whole table as Parquet.")
@click.option("--rows", type=click.IntRange(1), default=60, show_default=True, help="Most rows to print.")
@catalog_option
@json_option
def frontier(
    *, directory: Path, show: str, out: Path | None, rows: int, own: Path | None, as_json: bool, **given: Any
) -> None:
    """Rank the solved points of a sweep: who wins, and what stops the others.

    With --pareto it lists the points that no other beats, with --show it answers what a buyer asks of the ranking.
    """
    from lambdamax.catalog import load_catalog
    from lambdamax.ranking import print_kept, write_table

    _refuse_conflicts(show, given)
    asked, console = _Asked(directory=directory, catalog=load_catalog(own), **given), stdout_console()
    if out is not None and show == "ranking" and not (as_json or asked.check or asked.pareto is not None):
        show_it = _written_ranking(asked, out)
    else:
        table, show_it = _ANSWERS["pareto" if asked.pareto is not None else show](asked)
        if out is not None:
            write_table(table, out)
    if as_json:
        print_json(table.to_dicts())
        return
    print_kept(directory, console)
    show_it(console, rows)


def _refuse_conflicts(show: str, given: dict[str, Any]) -> None:
    refuse_beside_pareto(given)
    if given["check_seed"] is not None and not given["check"]:
        raise click.UsageError("--check-seed goes with --check.")
    if given["check"] and (given["pareto"] is not None or show != "ranking"):
        raise click.UsageError("--check goes with the ranking: leave out --pareto and --show.")
    if given["pareto"] is not None and show != "ranking":
        raise click.UsageError(f"give --pareto or --show {show}, not both.")
    for name, goes_with in _OF.items():
        if given[name] is not None and show != goes_with:
            raise click.UsageError(f"--{name} goes with --show {goes_with}.")
    if given["axes"] is not None and show not in ("winners", "binding"):
        raise click.UsageError("--map goes with --show winners or --show binding.")
    if given["best"] is not None and show not in ("ranking", "robustness", "elasticity"):
        raise click.UsageError(f"--best does not go with --show {show}.")
    if show == "break-even" and (given["maximize"] or given["minimize"]):
        raise click.UsageError("--show break-even is about requests_per_usd: leave out --maximize and --minimize.")


def _pareto(asked: _Asked) -> Any:
    from lambdamax.frontier import pareto
    from lambdamax.ranking import print_pareto

    objectives = asked.pareto or {}
    table = pareto(asked.directory, objectives, by=asked.by)
    return table, lambda console, rows: print_pareto(table, objectives, console, rows)


def _ranked(asked: _Asked) -> pl.DataFrame:
    from lambdamax.frontier import frontier as rank

    return rank(asked.directory, best=asked.best or 1, **asked.ranking)


def _ranking(asked: _Asked) -> Any:
    from lambdamax.ranking import print_frontier

    table = _ranked(asked)
    if asked.check:
        from lambdamax.winners import check_frontier

        table = check_frontier(table, seed=asked.check_seed or 0, catalog=asked.catalog)
    return table, lambda console, rows: print_frontier(table, console, rows)


def _written_ranking(asked: _Asked, out: Path) -> Any:
    """The ranking straight to its file, and shown from there: it may be larger than memory."""
    import polars as pl

    from lambdamax.frontier import write_frontier
    from lambdamax.ranking import print_frontier

    done = write_frontier(asked.directory, out, best=asked.best or 1, **asked.ranking)
    table, totals = pl.scan_parquet(out), (done.points, done.points_ok)
    return lambda console, rows: print_frontier(table, console, rows, totals)


def _winners(asked: _Asked) -> Any:
    from lambdamax.choices import axes_of, print_winner_map
    from lambdamax.maps import winner_map

    table = winner_map(asked.directory, **asked.ranking)
    axes = axes_of(table, table.columns[: table.columns.index("winner")], asked.axes)
    return table, lambda console, rows: print_winner_map(table, axes, console, rows)


def _binding(asked: _Asked) -> Any:
    from lambdamax.choices import axes_of, print_binding_map
    from lambdamax.maps import binding_map

    table = binding_map(asked.directory, **asked.ranking)
    axes = axes_of(table, table.columns[: table.columns.index("binding_limit") - 1], asked.axes)
    return table, lambda console, rows: print_binding_map(table, axes, console, rows)


def _break_even(asked: _Asked) -> Any:
    from lambdamax.break_even import break_even
    from lambdamax.choices import print_break_even

    table = break_even(asked.directory, by=asked.by, compare=asked.compare, catalog=asked.catalog)
    return table, lambda console, rows: print_break_even(table, console, rows)


def _elasticity(asked: _Asked) -> Any:
    from lambdamax.choices import print_elasticities
    from lambdamax.elasticity import STEP, elasticities
    from lambdamax.maps import parts_of

    ranking = _ranked(asked)
    points = ranking.drop_nulls("rank")
    table = elasticities(points, step=asked.step or STEP, catalog=asked.catalog)
    return table, lambda console, rows: print_elasticities(table, parts_of(ranking)[0], console, rows)


def _robustness(asked: _Asked) -> Any:
    from lambdamax.choices import print_robustness
    from lambdamax.maps import parts_of
    from lambdamax.robustness import DRAWS, robustness

    ranking = _ranked(asked)
    keys = parts_of(ranking)[0]
    drawn = {"draws": asked.draws or DRAWS, "seed": asked.seed or 0}
    table = robustness(ranking.drop_nulls("rank"), by=keys, catalog=asked.catalog, **drawn)
    return table, lambda console, rows: print_robustness(table, keys, console, rows)


_ANSWERS: Final = {
    "ranking": _ranking,
    "pareto": _pareto,
    "winners": _winners,
    "binding": _binding,
    "break-even": _break_even,
    "elasticity": _elasticity,
    "robustness": _robustness,
}
