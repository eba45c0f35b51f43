"""Decode as a division and a vendor's claim, on a terminal."""

from __future__ import annotations

from typing import Any, Final

import polars as pl
from rich.console import Console

from lambdamax.claim import Claim
from lambdamax.render import print_lines, print_pairs, print_table
from lambdamax.units import DASH, cell, number, quantity

_VERDICTS: Final = {
    "possible": "possible",
    "memory": "KV does not fit",
    "kv": "never: KV bandwidth",
    "compute": "never: compute",
    "does_not_fit": "weights do not fit",
}

_LEGEND: Final = (
    "Bounds: every byte once at peak bandwidth, every FLOP at peak; no links, launches or prefill. floor: TPOT of one "
    "sequence alone; ridge: batch from which multiplying takes longer than reading the weights; KV ≥: batch whose KV "
    "is as large as the weights; batch: what memory holds, within the TPOT asked for, and there tokens/s per GPU and "
    "USD per million output tokens."
)


def print_decode(table: pl.DataFrame, about: dict[str, str], console: Console) -> None:
    """The bound of each accelerator, the cheapest first."""
    print_pairs(console, about.items())
    console.print()
    headings = ("gpu", "TP", "floor", "ridge", "KV ≥", "batch", "TPOT", "tok/s", "USD", "waits for")
    print_table(console, headings, [_line(row) for row in table.iter_rows(named=True)], (0, 9))
    print_lines(console, ["", _LEGEND])


def _line(row: dict[str, Any]) -> tuple[str, ...]:
    waits = row["bound_by"] or row["status"].replace("_", " ")
    return (
        row["gpu"],
        str(row["tp"]),
        cell(row["tpot_floor_s"], "s"),
        _batch(row["ridge_batch"]),
        _batch(row["crossover_batch"]),
        _batch(row["batch"]),
        cell(row["tpot_bound_s"], "s"),
        _batch(row["output_tok_s_per_gpu_bound"]),
        cell(row["usd_per_mtok_output_bound"], ""),
        "KV" if waits == "kv" else waits,
    )


def print_curves(table: pl.DataFrame, about: dict[str, str], console: Console) -> None:
    """Time per token, tokens/s and cost by batch, an accelerator after the other."""
    print_pairs(console, about.items())
    for (gpu, tp), rows in table.group_by("gpu", "tp", maintain_order=True):
        console.print()
        console.print(f"{gpu}, TP {tp}", style="bold")
        lines = [
            (
                _batch(row["batch"]),
                cell(row["tpot_bound_s"], "s"),
                _batch(row["output_tok_s_per_gpu_bound"]),
                cell(row["usd_per_mtok_output_bound"], ""),
                "KV" if row["bound_by"] == "kv" else row["bound_by"],
            )
            for row in rows.iter_rows(named=True)
        ]
        print_table(console, ("batch", "TPOT", "tok/s/GPU", "USD/Mtok", "waits for"), lines, (4,))


def _batch(value: float | None) -> str:
    return DASH if value is None else number(value)


def print_claim(asked: Claim, model_tok_s: Any, console: Console) -> None:
    """Where a claim is possible, and what the model says of the point asked about."""
    claim, table = asked.tok_s_per_gpu, asked.table
    console.print()
    console.print(f"A claim of {number(claim)} output tok/s per GPU", style="bold")
    print_lines(console, [_summary(table)])
    if model_tok_s is not None:
        share = quantity(model_tok_s / claim, "share")
        print_lines(console, [f"At this point the model sustains {number(model_tok_s)} tok/s per GPU: {share} of it."])
    with_slo = "survives_slo" in table.columns
    headings = ("weights", "KV", "context", "verdict", "TP", "batch", "TPOT from", *(("SLO",) if with_slo else ()))
    rest = [name for name in table.columns if name != "weight_dtype"]
    alike = table.group_by(rest, maintain_order=True).agg(pl.col("weight_dtype").str.join(", "))
    lines = [_claim_line(row, with_slo) for row in alike.iter_rows(named=True)]
    print_table(console, headings, lines, (0, 1, 3, 7) if with_slo else (0, 1, 3))


def _summary(table: pl.DataFrame) -> str:
    if not table.height:
        return "The catalogue cannot say how this model would run on this accelerator."
    possible = table.filter(pl.col("verdict") == "possible")
    if not possible.height:
        return "No batch at any of these contexts and precisions can give it: it is not physically possible."
    best = possible.sort("tpot_bound_s").row(0, named=True)
    words = f"with {best['weight_dtype']} weights and {best['kv_dtype']} KV at {number(best['context_tokens'])} tokens"
    first = f"Possible, at best {words}: TP {best['tp']}, batch {number(best['batch'])}, TPOT from "
    longest = number(possible["context_tokens"].max() or 0.0)  # type: ignore[arg-type]
    return f"{first}{quantity(best['tpot_bound_s'], 's')}; possible up to {longest} tokens of context."


def _claim_line(row: dict[str, Any], with_slo: bool) -> tuple[str, ...]:
    survives = ("holds" if row["survives_slo"] else "broken",) if with_slo else ()
    return (
        row["weight_dtype"],
        row["kv_dtype"],
        number(row["context_tokens"]),
        _VERDICTS[row["verdict"]],
        DASH if row["batch"] is None else str(row["tp"]),
        _batch(row["batch"]),
        cell(row["tpot_bound_s"], "s"),
        *survives,
    )
