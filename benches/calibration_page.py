"""The tables and the plot of docs/calibration.md, from the errors on held-out curves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import matplotlib.pyplot as plt
import polars as pl

from lambdamax.calibration.errors import GROUPS, summary

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "calibration.md"
PLOT: Final = ROOT / "docs" / "calibration.png"
BLOCK: Final = re.compile(r"<!-- (\w+) -->\n.*?<!-- end -->\n", re.DOTALL)
RATES: Final = ("tpot", "output_tok_s", "ttft")
FEWEST: Final = 5
CURRENT: Final = ("h100-sxm", "h200-sxm", "b200-sxm")
ENGINES: Final = ("vllm", "sglang", "tensorrt-llm")
HEADINGS: Final = "n | mean error | median error | bias | within 10 % | in band"


def sizes_of_page() -> str:
    """The table of sizes as the page has it."""
    found = re.search(r"<!-- sizes -->\n(.*?)\n?<!-- end -->", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return found[1] if found else ""


def write(held: pl.DataFrame, sizes: str) -> None:
    """Put the numbers of `held`, and the table of `sizes`, into the page, and draw the plot."""
    blocks = {
        "overall": "\n".join(overall(held)),
        "groups": "\n".join(groups(held)),
        "models": "\n".join(models(held)),
        "sizes": sizes,
        "asked": "\n".join(asked(held)),
    }
    text = PAGE.read_text(encoding="utf-8")
    text = BLOCK.sub(lambda found: f"<!-- {found[1]} -->\n{blocks[found[1]]}\n<!-- end -->\n", text)
    PAGE.write_text(text, encoding="utf-8")
    draw(held)


def overall(held: pl.DataFrame) -> Iterator[str]:
    """All rows, by metric and by whether a model has experts."""
    yield f"| models | metric | {HEADINGS} | mean band |"
    yield "|---|---|---|---|---|---|---|---|---|"
    kind = pl.when(is_dense()).then(pl.lit("dense")).otherwise(pl.lit("mixtures of experts"))
    for (name,), part in held.with_columns(kind=kind).group_by(["kind"], maintain_order=True):
        for row in summary(part, ["metric"]):
            width = part.filter(metric=row["metric"])["uncertainty"].mean()
            yield f"| {name} | {row['metric']} | {cells(row)} | ±{percent(width)} |"


def asked(held: pl.DataFrame) -> Iterator[str]:
    """Some parts of the rows that readers ask about."""
    yield f"| rows | metric | {HEADINGS} |"
    yield "|---|---|---|---|---|---|---|---|"
    current = of("aiconfigurator") & pl.col("gpu").is_in(CURRENT)
    parts = {
        "AIConfigurator corpus, dense, H100, H200, B200": current & is_dense(),
        **{f"the same, {engine}": current & is_dense() & (pl.col("engine") == engine) for engine in ENGINES},
        "AIConfigurator corpus, experts, all accelerators": of("aiconfigurator") & ~is_dense(),
        "ML.ENERGY, dense, throughput at the measured batch": of("mlenergy") & is_dense(),
        "ML.ENERGY, experts, throughput at the measured batch": of("mlenergy") & ~is_dense(),
        **{f"every source, {gpu}": pl.col("gpu") == gpu for gpu in ("a100-80-sxm", "mi300x", "l40s")},
    }
    for name, part in parts.items():
        for row in summary(held.filter(part), ["metric"]):
            yield f"| {name} | {row['metric']} | {cells(row)} |"


def of(source: str) -> pl.Expr:
    """Lines of one source."""
    return pl.col("source").str.starts_with(source)


def groups(held: pl.DataFrame) -> Iterator[str]:
    """By engine and accelerator."""
    yield f"| engine | accelerator | metric | {HEADINGS} |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in summary(held, ["engine", "gpu", "metric"]):
        if row["n"] >= FEWEST:
            yield f"| {row['engine']} | {row['gpu']} | {row['metric']} | {cells(row)} |"


def models(held: pl.DataFrame) -> Iterator[str]:
    """By engine, accelerator, model and metric."""
    yield f"| engine | accelerator | model | metric | {HEADINGS} |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for row in summary(held, GROUPS):
        if row["n"] >= FEWEST:
            names = " | ".join(row[name] for name in GROUPS)
            yield f"| {names} | {cells(row)} |"


def is_dense() -> pl.Expr:
    """Whether the profile of a line is one of dense models."""
    return ~pl.col("family").str.starts_with("moe")


def cells(row: dict[str, Any]) -> str:
    """The numbers of one line."""
    shares = (row[name] for name in ("mape", "median_ape", "bias", "within_10pct", "band_coverage"))
    return " | ".join((str(row["n"]), *map(percent, shares)))


def percent(share: float | None) -> str:
    """A share in percent with three digits."""
    return "" if share is None else f"{100 * share:.3g} %"


def draw(held: pl.DataFrame) -> None:
    """Predicted over measured, for each metric, in one picture."""
    mpl.use("Agg")
    figure, axes = plt.subplots(1, len(RATES), figsize=(12, 4.2))
    units = {"tpot": "TPOT [s]", "output_tok_s": "output [tokens/s]", "ttft": "TTFT [s]"}
    for axis, metric in zip(axes, RATES, strict=True):
        part = held.filter(metric=metric)
        for (engine,), points in part.group_by(["engine"], maintain_order=True):
            axis.loglog(points["measured"], points["predicted"], ".", markersize=2.5, label=str(engine))
        low, high = float(part["measured"].min() or 1), float(part["measured"].max() or 1)
        axis.loglog([low, high], [low, high], color="0.4", linewidth=0.8)
        axis.set_xlabel(f"measured {units[metric]}")
    axes[0].set_ylabel("predicted, held out")
    axes[0].legend(markerscale=4, frameon=False)
    figure.tight_layout()
    figure.savefig(PLOT, dpi=90, metadata={"Software": None})
