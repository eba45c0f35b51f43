"""The command `lambdamax frontier`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lambdamax.frontier_options import ranked, refuse_beside_pareto
from lambdamax.options import catalog_option, json_option, print_json, stdout_console


@click.command(short_help="Rank a sweep: who wins, what stops the others.")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@ranked
@click.option("--out", metavar="FILE", type=click.Path(path_type=Path), help="Also write the whole table as Parquet.")
@click.option("--rows", type=click.IntRange(1), default=60, show_default=True, help="Most rows to print.")
@catalog_option
@json_option
def frontier(directory: Path, out: Path | None, rows: int, own: Path | None, as_json: bool, **asked: Any) -> None:
    """Rank the solved points of a sweep: who wins, and what stops the others."""
    from lambdamax.catalog import load_catalog
    from lambdamax.frontier import frontier as rank
    from lambdamax.frontier import pareto
    from lambdamax.ranking import print_frontier, print_kept, print_pareto, write_table

    refuse_beside_pareto(asked)
    catalog, objectives, console = load_catalog(own), asked.pop("pareto"), stdout_console()
    if objectives is not None:
        table = pareto(directory, objectives, by=asked["by"])
    else:
        table = rank(directory, catalog=catalog, **asked | {"best": asked["best"] or 1})
    if out is not None:
        write_table(table, out)
    if as_json:
        print_json(table.to_dicts())
        return
    print_kept(directory, console)
    if objectives is not None:
        print_pareto(table, objectives, console, rows)
    else:
        print_frontier(table, console, rows)
