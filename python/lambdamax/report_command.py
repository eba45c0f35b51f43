"""The command `lambdamax report`."""

from __future__ import annotations

from pathlib import Path

import click

from lambdamax.terminal import catalog_option, json_option, print_json, stdout_console


def _selection(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    """Pairs such as `isl_tokens=2048`, several of them with commas between."""
    parts = [part.strip() for text in texts for part in text.split(",") if part.strip()]
    if bad := next((part for part in parts if "=" not in part), None):
        raise click.BadParameter(f"{bad!r} is not allowed; allowed: NAME=VALUE, such as isl_tokens=2048.")
    return {name.strip(): value.strip() for name, _, value in (part.partition("=") for part in parts)}


@click.command(short_help="Write a report on a sweep: a page to decide by.")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--out", required=True, metavar="FILE", type=click.Path(path_type=Path), help="The file to write.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["html", "md"]),
    default="html",
    show_default=True,
    help="One page that needs nothing else, or Markdown on one selection.",
)
@click.option("--charts", metavar="DIR", type=click.Path(path_type=Path), help="Also write each chart as SVG and PNG.")
@click.option(
    "--at",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_selection,
    help="Where to start, such as isl_tokens=2048,osl_tokens=256; numbers: the nearest that was swept.",
)
@catalog_option
@json_option
def report(
    *, directory: Path, out: Path, form: str, charts: Path | None, at: dict[str, str], own: Path | None, as_json: bool
) -> None:
    """Write a report on a finished sweep: the answer, who wins where, what binds, how sure, and every source.

    The page is one file without any request to a network; every input that varies can be selected in it.
    """
    from lambdamax.catalog import load_catalog
    from lambdamax.render import print_pairs
    from lambdamax.report import report as write

    made = write(directory, out, format=form, charts=charts, at=at, catalog=load_catalog(own))
    if as_json:
        print_json({"path": str(made.path), "bytes": made.bytes, "charts": [str(path) for path in made.charts]})
        return
    pairs = [("report", f"{made.path}, {made.bytes:,} bytes")]
    print_pairs(stdout_console(), pairs + [("chart", str(path)) for path in made.charts])
