"""What an hour of a device costs: the rows of `data/prices.csv` that count, one per provider, and their median."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from lambdamax.facts import Row, read_rows

PLANS: Final = ("on-demand", "reserved", "spot")
MEDIAN: Final = "median"
# Best first; of two prices with the same date the one higher up counts.
EVIDENCE: Final = (
    "own contract",
    "provider API via catalogue",
    "provider docs",
    "page copy",
    "package table",
    "index",
    "benchmark report",
    "article",
    "planner catalogue",
    "benchmark constants",
)


@dataclass(frozen=True)
class Price:
    """USD per hour of one device under one plan. `providers` are those it comes from: one, or all behind a median."""

    gpu: str
    plan: str
    provider: str
    usd_per_accelerator_hour: float
    providers: tuple[str, ...]
    source: str
    date: str
    evidence_kind: str
    instance: str
    note: str


Book = Mapping[tuple[str, str], Mapping[str, Price]]


def read_prices() -> Book:
    """The prices of the package data."""
    return book(read_rows("prices.csv"))


def book(rows: Iterable[Row]) -> Book:
    """One price per provider by (gpu, plan), medians not included; rows without a plan are left out.

    Of several rows of one provider the newest counts, then the one with the best evidence, then the largest instance,
    then the cheapest, then the first region in the alphabet.
    """
    found: dict[tuple[str, str], dict[str, Price]] = {}
    for row in sorted((row for row in rows if row["plan"]), key=_rank):
        found.setdefault((row["accelerator_id"], row["plan"]), {}).setdefault(row["provider"], _price(row))
    return found


def laid_over(below: Book, above: Book) -> Book:
    """`below` with the prices of `above`, in place of those of the same device, plan and provider."""
    return {key: {**below.get(key, {}), **above.get(key, {})} for key in {**below, **above}}


def median_price(prices: Iterable[Price]) -> Price | None:
    """The median over the prices of one device and plan, None if there are none; its date is that of the newest."""
    found = sorted(prices, key=lambda price: price.provider)
    if not found:
        return None
    return Price(
        gpu=found[0].gpu,
        plan=found[0].plan,
        provider=MEDIAN,
        usd_per_accelerator_hour=_decimal(statistics.median(price.usd_per_accelerator_hour for price in found)),
        providers=tuple(price.provider for price in found),
        source=f"median over {len(found)} provider{'s' if len(found) > 1 else ''}",
        date=max((price.date for price in found), key=_day),
        evidence_kind="computed",
        instance="",
        note="",
    )


def _rank(row: Row) -> tuple[tuple[int, ...], int, float, float, str]:
    newest_first = tuple(-part for part in _day(row["date"]))
    instance = float(row["accelerators_per_instance"])
    return newest_first, EVIDENCE.index(row["evidence_kind"]), -instance, _usd_per_accelerator_hour(row), row["region"]


def _day(date: str) -> tuple[int, ...]:
    """Year, month, day of `2026`, `2026-05`, `2026-05-07` or `>=2025-12`; a part not stated is 0: earlier."""
    parts = [int(part) for part in re.findall(r"\d+", date)]
    return (*parts, 0, 0)[:3]


def _usd_per_accelerator_hour(row: Row) -> float:
    return _decimal(float(row["instance_usd_per_hour"]) / float(row["accelerators_per_instance"]))


def _decimal(usd: float) -> float:
    """`usd` without the noise of binary fractions."""
    return float(f"{usd:.12g}")


def _price(row: Row) -> Price:
    return Price(
        gpu=row["accelerator_id"],
        plan=row["plan"],
        provider=row["provider"],
        usd_per_accelerator_hour=_usd_per_accelerator_hour(row),
        providers=(row["provider"],),
        source=row["source_url"],
        date=row["date"],
        evidence_kind=row["evidence_kind"],
        instance=row["instance_type"],
        note=row["notes"],
    )
