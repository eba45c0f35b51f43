"""Worked example E, decode as a division: floors, ridges, crossovers, costs and a vendor's claim, by hand."""

from __future__ import annotations

import math
from pathlib import Path

import polars as pl
import pytest

import lambdamax
from lambdamax.units import number

MODEL = "llama-3.3-70b-instruct"
TP, CONTEXT, BF16, FP8 = 8, 2000, 2, 1

# Llama 3.3 70B: 80 layers, 8,192 wide, 64 heads of 128 of which 8 are KV heads, MLP 28,672, vocabulary 128,256.
MATRICES = 80 * (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672)
HEAD = 8192 * 128256
NORMS = (2 * 80 + 1) * 8192
# A rank holds its share of the matrices, and every norm.
READ_BYTES = BF16 * ((MATRICES + HEAD) / TP + NORMS)
KV_BYTES = 80 * 2 * 8 * 128 * BF16 / TP
FLOPS = 2 * (MATRICES + HEAD) / TP

# Bandwidth [bytes/s], dense bf16 [FLOP/s], USD an hour; Trainium2 at the price that one report has for a trn2.3xlarge.
DEVICES = {
    "h100-sxm": (3.35e12, 989e12, 3.49),
    "b200-sxm": (7.7e12, 2250e12, 6.69),
    "mi300x": (5.3e12, 1307e12, 3.925),
    "trainium2": (2.9e12, 667e12, 2.235),
}
TRAINIUM2_USD = {"trainium2": 2.235}


def found(**changes: object) -> pl.DataFrame:
    asked = {"context_tokens": CONTEXT, "tp": [TP], "weight_dtype": "bf16", "usd_per_hour": TRAINIUM2_USD}
    return lambdamax.decode(MODEL, list(DEVICES), **asked | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("gpu", DEVICES)
def test_floor_ridge_crossover_and_cost_are_divisions(gpu: str) -> None:
    bandwidth, peak, usd = DEVICES[gpu]
    row = found().filter(pl.col("gpu") == gpu).row(0, named=True)
    assert row["weight_bytes_per_gpu"] == pytest.approx(READ_BYTES, rel=1e-12)
    assert row["tpot_floor_s"] == pytest.approx(READ_BYTES / bandwidth, rel=1e-12)
    assert row["ridge_batch"] == pytest.approx(READ_BYTES / bandwidth / (FLOPS / peak), rel=1e-12)
    assert row["crossover_batch"] == pytest.approx(READ_BYTES / (KV_BYTES * CONTEXT), rel=1e-12)
    batch = row["batch"]
    step = max((READ_BYTES + batch * KV_BYTES * CONTEXT) / bandwidth, batch * FLOPS / peak)
    assert row["tpot_bound_s"] == pytest.approx(step, rel=1e-12)
    assert row["output_tok_s_per_gpu_bound"] == pytest.approx(batch / step / TP, rel=1e-12)
    assert row["usd_per_mtok_output_bound"] == pytest.approx(usd * TP / (3600 * batch / step) * 1e6, rel=1e-12)
    assert row["bound_by"] == "kv"


def test_the_ranking_is_by_the_cost_of_a_million_output_tokens() -> None:
    table = found()
    assert table["gpu"].to_list() == ["mi300x", "trainium2", "b200-sxm", "h100-sxm"]
    printed = [number(value) for value in table["usd_per_mtok_output_bound"]]
    assert printed == ["0.149", "0.1732", "0.1762", "0.2503"]
    assert [number(value, 3) for value in table["tpot_floor_s"] * 1e3] == ["3.28", "5.99", "2.26", "5.19"]
    assert [number(value, 3) for value in table["ridge_batch"]] == ["247", "230", "292", "295"]
    assert {number(value, 3) for value in table["crossover_batch"]} == {"212"}


def test_a_claim_of_ten_thousand_tokens_by_hand() -> None:
    """One B200, 10,000 output tok/s each, TP 8: a step may take B/80,000 s."""
    claim, bandwidth = 10_000, 7.7e12
    table = lambdamax.check_claim(MODEL, "b200-sxm", claim, contexts_tokens=[CONTEXT, 8192], tp=[TP])
    per_token_bytes = bandwidth / (claim * TP)
    assert per_token_bytes == pytest.approx(96.25e6)
    assert pytest.approx(81.92e6) == KV_BYTES * CONTEXT
    assert pytest.approx(335.5e6, rel=1e-3) == KV_BYTES * 8192
    batch = math.ceil(READ_BYTES / (per_token_bytes - KV_BYTES * CONTEXT))
    assert batch == 1213
    row, longer = (
        table.filter(
            pl.col("weight_dtype") == "bf16", pl.col("kv_dtype") == "bf16", pl.col("context_tokens") == at
        ).row(0, named=True)
        for at in (CONTEXT, 8192)
    )
    assert (row["verdict"], row["batch"]) == ("possible", batch)
    assert row["tpot_bound_s"] == pytest.approx((READ_BYTES + batch * KV_BYTES * CONTEXT) / bandwidth)
    assert number(row["tpot_bound_s"] * 1e3) == "15.16"
    assert (longer["verdict"], longer["batch"], longer["tpot_bound_s"]) == ("kv", None, None)


def test_the_page_has_these_numbers() -> None:
    page = (Path(__file__).parents[2] / "docs" / "frontiers.md").read_text(encoding="utf-8")
    bandwidth, peak, usd = DEVICES["h100-sxm"]
    step = (READ_BYTES + 663 * KV_BYTES * CONTEXT) / bandwidth
    spare = 7.7e12 / 80_000 - KV_BYTES * CONTEXT
    expected = [
        f"{READ_BYTES / 1e9:.2f} GB / 3.35 TB/s = {READ_BYTES / bandwidth * 1e3:.2f} ms",
        f"{FLOPS / 1e9:.2f} GFLOP / 989 TFLOP/s) = {READ_BYTES / bandwidth / (FLOPS / peak):.0f}",
        f"({KV_BYTES:,.0f} B · 2,000) = {READ_BYTES / (KV_BYTES * CONTEXT):.0f}",
        f"| {step * 1e3:.1f} ms |",
        f"| {663 / step / TP:,.0f} |",
        f"| {usd * TP / (3600 * 663 / step) * 1e6:.4f} USD |",
        f"make {(MATRICES + HEAD) / 1e9:.2f} billion",
        f"{7.7e12 / 80_000 / 1e6:.2f} MB are read",
        f"its KV is {KV_BYTES * CONTEXT / 1e6:.2f} MB, so {spare / 1e6:.2f} MB are left",
        f"{READ_BYTES / 1e9:.2f} GB / {spare / 1e6:.2f} MB = {math.ceil(READ_BYTES / spare):,}",
        f"the KV alone is {KV_BYTES * 8192 / 1e6:.1f} MB",
    ]
    text = " ".join(page.split())
    assert [words for words in expected if words not in text] == []
