"""The command `lambdamax decode`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from lambdamax.frontier_options import names_option
from lambdamax.terminal import catalog_option, json_option, print_json, stdout_console

_SHOWN_BATCHES: Final = tuple(2.0**power for power in range(13))


def _prices(ctx: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> dict[str, float]:
    found: dict[str, float] = {}
    for text in texts:
        gpu, _, price = text.partition("=")
        try:
            found[gpu] = float(price)
        except ValueError:
            raise click.BadParameter(
                f"{text!r}: a GPU and its price, such as trainium2=2.2.", param=option, ctx=ctx
            ) from None
    return found


def _degrees(_: click.Context, option: click.Parameter, text: str | None) -> list[int] | None:
    try:
        return None if text is None else [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise click.BadParameter(f"{text!r}: whole numbers with commas between them.", param=option) from None


@click.command(short_help="Decode as a division: floors, ridges and cost of accelerators.")
@click.option("--model", required=True, help="Model: a catalogue name, or the path of a config.json.")
@click.option("--gpus", required=True, metavar="A,B,C", callback=names_option, help="Accelerators to compare.")
@click.option(
    "--context",
    "context_tokens",
    type=click.FloatRange(1),
    default=2000,
    show_default=True,
    metavar="TOKENS",
    help="Mean context of a sequence.",
)
@click.option("--tp", metavar="1,2,4", callback=_degrees, help="Degrees to choose from.  [default: 1,2,4,8]")
@click.option("--weight-dtype", default="native", show_default=True, help="Number format of the weights.")
@click.option("--kv-dtype", default="bf16", show_default=True, help="Number format of the KV cache.")
@click.option("--slo-tpot-s", type=click.FloatRange(0, min_open=True), metavar="S", help="Most time per output token.")
@click.option("--price-plan", default="on-demand", show_default=True, help="Plan of the catalogue's prices.")
@click.option(
    "--usd-per-hour", multiple=True, metavar="GPU=USD", callback=_prices, help="Your price of a GPU hour; repeatable."
)
@click.option("--curve", is_flag=True, help="The batch curve of each accelerator instead, at batches from 1 to 4,096.")
@click.option("--out", metavar="FILE", type=click.Path(path_type=Path), help="Also write the table as Parquet.")
@catalog_option
@json_option
def decode(
    *, tp: list[int] | None, curve: bool, out: Path | None, own: Path | None, as_json: bool, **asked: Any
) -> None:
    """Say how fast accelerators can generate at best, and what a million output tokens cost at least."""
    from lambdamax.catalog import load_catalog
    from lambdamax.decode import TENSOR_PARALLEL
    from lambdamax.decode import decode as compare
    from lambdamax.divided import print_curves, print_decode
    from lambdamax.ranking import write_table

    degrees, catalog = tp or list(TENSOR_PARALLEL), load_catalog(own)
    model, gpus, prices = asked.pop("model"), asked.pop("gpus"), asked.pop("usd_per_hour")
    table = compare(model, gpus, tp=degrees, usd_per_hour=prices, catalog=catalog, **asked)
    about = {"model": model, "weights": asked["weight_dtype"], "KV": asked["kv_dtype"]}
    about["context"] = f"{asked['context_tokens']:,.15g} tokens"
    curve = curve and table["tpot_floor_s"].count() > 0
    if curve:
        table = _curves(table, model, asked, catalog)
    if out is not None:
        write_table(table, out)
    if as_json:
        print_json(table.to_dicts())
    elif curve:
        print_curves(table, about, stdout_console())
    else:
        print_decode(table, about, stdout_console())


def _curves(table: Any, model: str, asked: dict[str, Any], catalog: Any) -> Any:
    """The curve of each accelerator at its degree."""
    import polars as pl

    from lambdamax.decode import decode_curve

    names = ("context_tokens", "weight_dtype", "kv_dtype")
    shared = {name: asked[name] for name in names}
    found = [
        decode_curve(
            model, row["gpu"], tp=row["tp"], batches=_SHOWN_BATCHES, usd_per_hour=price, catalog=catalog, **shared
        ).select(pl.lit(row["gpu"]).alias("gpu"), pl.lit(row["tp"]).alias("tp"), pl.all())
        for row in table.iter_rows(named=True)
        if row["tpot_floor_s"] is not None
        for price in [row["usd_per_accelerator_hour"]]
    ]
    return pl.concat(found)
