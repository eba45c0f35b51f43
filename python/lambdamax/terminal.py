"""What the commands of the command line share: how they end, JSON or tables, a catalogue of the user's own."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click

from lambdamax.exceptions import LambdamaxError

if TYPE_CHECKING:
    from rich.console import Console

_INTERRUPTED: Final = 130
json_option: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
CATALOG: Final[dict[str, Any]] = {
    "metavar": "DIR",
    "type": click.Path(path_type=Path),
    "envvar": "LAMBDAMAX_CATALOG",
    "show_envvar": True,
}
catalog_option: Final = click.option(
    "--catalog", "own", help="A directory with facts of your own, laid over the shipped ones.", **CATALOG
)


class _Mistake(click.ClickException):
    """The user's mistake, told on standard error without a traceback."""

    exit_code = 1

    def show(self, file: IO[Any] | None = None) -> None:
        """One line for each fault, to `file` or standard error."""
        for line in self.message.splitlines():
            click.echo(f"error: {line}", file=file, err=file is None)


class Commands(click.Group):
    """A group whose commands end with the exit statuses of this program."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a mistake, a file that cannot be used or an interrupt end it in one line."""
        try:
            return super().invoke(ctx)
        except LambdamaxError as error:
            raise _Mistake(str(error)) from None
        except OSError as error:
            if error.errno == errno.EPIPE or error.filename is None:
                raise
            raise _Mistake(f"{error.filename}: {error.strerror}") from None
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(_INTERRUPTED)


def stdout_console() -> Console:
    """Standard output, as wide as it is, without markup."""
    from rich.console import Console

    return Console(markup=False, highlight=False)


def print_json(content: Any) -> None:
    """Write `content` as JSON; ValueError for NaN and infinity."""
    click.echo(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False))
