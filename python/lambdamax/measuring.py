"""The commands that hold predictions against measurements: `lambdamax calibrate` and `lambdamax validate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import click

_FILES: Final = click.Path(path_type=Path)
_json: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")


@click.command(short_help="Fit a profile to measurements.")
@click.argument("files", nargs=-1, required=True, type=_FILES)
@click.option(
    "--out", required=True, metavar="FILE", type=click.Path(path_type=Path), help="The profile to write, a .toml."
)
@click.option("--engine", help="Only rows of this engine.")
@click.option("--gpu", help="Only rows of this accelerator, by its catalogue id.")
@click.option("--weight-dtype", help="Only rows of this weight format.")
@_json
def calibrate(files: tuple[Path, ...], out: Path, as_json: bool, **only: str | None) -> None:
    """Fit a profile's constants to measured CSV FILES of one engine, accelerator and weight format.

    Constants are drawn to those of the accelerator's default profile; what the rows do not tell stays there. Whole
    curves are held out to say how good it is. One row gives a profile of one measured ratio.
    """
    from lambdamax.calibration.calibrating import calibrate as run

    picked = {name: value for name, value in only.items() if value is not None}
    found = run(files, name=out.stem, only=picked)
    out.write_text(found.text, encoding="utf-8")
    if as_json:
        _print_json(found.as_json())
        return
    from lambdamax.calibration.shown import print_calibration

    print_calibration(found, _console())


@click.command(short_help="How far predictions are from measurements.")
@click.argument("files", nargs=-1, type=_FILES)
@click.option("--rows", type=click.IntRange(1), default=40, show_default=True, help="Most groups to print.")
@_json
def validate(files: tuple[Path, ...], rows: int, as_json: bool) -> None:
    """Errors of predictions on measured CSV FILES; without any, on the shipped ones, each held out of its fit."""
    from lambdamax.calibration.validating import validate as run

    found = run(files)
    if as_json:
        _print_json(found.as_json())
        return
    from lambdamax.calibration.shown import print_validation

    print_validation(found, _console(), rows)


def _console() -> Any:
    from rich.console import Console

    return Console(markup=False, highlight=False)


def _print_json(content: Any) -> None:
    click.echo(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False))
