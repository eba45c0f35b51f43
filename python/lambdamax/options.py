"""What several commands share: the options `--catalog` and `--json`, and how they print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from rich.console import Console

CATALOG: Final[dict[str, Any]] = {
    "metavar": "DIR",
    "type": click.Path(path_type=Path),
    "envvar": "LAMBDAMAX_CATALOG",
    "show_envvar": True,
}
json_option: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
catalog_option: Final = click.option(
    "--catalog", "own", help="A directory with facts of your own, laid over the shipped ones.", **CATALOG
)


def stdout_console() -> Console:
    """Standard output, at the width of the terminal."""
    from rich.console import Console

    return Console(markup=False, highlight=False)


def print_json(content: Any) -> None:
    """`content` on standard output."""
    click.echo(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False))
