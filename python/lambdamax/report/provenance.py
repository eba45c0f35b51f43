"""Where the numbers of a report come from: versions, sources and dates, and what is taken for granted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from lambdamax import columns
from lambdamax.assumptions import assumptions
from lambdamax.bands import PROVENANCE
from lambdamax.case import Case, Question
from lambdamax.catalog import DEFAULT_PROFILE, Catalog
from lambdamax.engine import __version__
from lambdamax.exceptions import UnknownName
from lambdamax.fitted import fitted_profiles
from lambdamax.prices import MEDIAN, Price
from lambdamax.profiles import Profile
from lambdamax.ranking import is_neutral, said
from lambdamax.report.gathered import COMPARE, Gathered
from lambdamax.units import DASH, number, quantity


@dataclass(frozen=True)
class Table:
    """A table: its `heading`, the names of its columns, and its rows."""

    heading: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Provenance:
    """What stands behind a report: the sweep in `pairs`, its sources as `tables`, `assumed` in sentences."""

    pairs: tuple[tuple[str, str], ...]
    tables: tuple[Table, ...]
    assumed: tuple[str, ...]


def provenance(found: Gathered, catalog: Catalog) -> Provenance:
    """What stands behind the report on `found`. What `catalog` does not know is told as unknown."""
    tables = (
        _models(found, catalog),
        _accelerators(found, catalog),
        _prices(found, catalog),
        _profiles(found, catalog),
    )
    return Provenance(tuple(_pairs(found, catalog)), tables, tuple(_assumed(found, catalog)))


def _pairs(found: Gathered, catalog: Catalog) -> Iterator[tuple[str, str]]:
    manifest, identity = found.manifest, found.manifest["identity"]
    yield "sweep", str(manifest.get("name", ""))
    yield "points", f"{manifest['rows']:,}: {_statuses(manifest['parts'].values())}"
    same = [name for name in found.keys if name not in {axis.name for axis in found.axes}]
    told = [name for name in same if not is_neutral(found.ranking, name)]
    yield "in all", ", ".join(said(found.ranking.row(0, named=True), told)) or DASH
    for axis in found.axes:
        if len(axis.values) < axis.swept:
            yield f"shown of {axis.name}", f"{len(axis.values)} of {axis.swept} values, so that the page stays small"
    yield "sweep checksum", str(manifest["sha256"])
    yield "engine", f"{identity['engine']} (this report: {__version__})"
    own = "" if identity["catalog"] == catalog.version else f"; this report's is another one: {catalog.version}"
    yield "catalogue", f"{identity['catalog']}{own}"
    yield "column dictionary", str(identity["columns"])
    yield from ((f"not in this report: {name}", why) for name, why in found.absent.items())


def _statuses(parts: Iterable[Mapping[str, Any]]) -> str:
    counts: Counter[str] = Counter()
    for part in parts:
        counts.update(part["status"])
    return ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in counts.most_common())


def _models(found: Gathered, catalog: Catalog) -> Table:
    rows: list[tuple[str, ...]] = []
    for name, checksum in found.manifest["identity"]["models"].items():
        try:
            model = catalog.model(name)
        except UnknownName:
            rows.append((name, "not in this catalogue", DASH, checksum, ""))
        else:
            rows.append((name, model.source, model.date or DASH, checksum, model.note))
    return Table("Models", ("model", "source", "date", "checksum", "note"), tuple(rows))


def _accelerators(found: Gathered, catalog: Catalog) -> Table:
    rows: list[tuple[str, ...]] = []
    for name in found.options:
        try:
            device = catalog.accelerator(name)
        except UnknownName:
            rows.append((name, DASH, DASH, DASH, "not in this catalogue", DASH, ""))
            continue
        peak = device.peaks.get("bf16_dense_flops")
        facts = (device.memory_bytes, "B"), (device.memory_bandwidth_bytes_per_s, "B/s"), (peak, "FLOP/s")
        note = f"from memory, not re-read: {device.recalled_fields}" if device.recalled_fields else ""
        rows.append((device.name, *(quantity(*fact) for fact in facts), device.source, device.date, note))
    headings = ("accelerator", "memory", "bandwidth", "bf16, dense", "source", "date", "note")
    return Table("Accelerators", headings, tuple(rows))


def _prices(found: Gathered, catalog: Catalog) -> Table:
    names = [COMPARE, "price_plan", "provider", "usd_per_accelerator_hour"]
    offers = found.ranking.drop_nulls("rank").select(pl.col(names[:3]).cast(pl.String), names[3]).unique().sort(names)
    rows: list[tuple[str, ...]] = []
    for gpu, plan, provider, usd in offers.iter_rows():
        rows.append((gpu, plan or "given", provider or DASH, number(usd), "as used", "", ""))
        rows += [_price_row(price) for price in _asked(catalog, gpu, plan, provider)]
    headings = ("accelerator", "plan", "provider", "USD/h", "source", "date", "evidence")
    return Table("Prices of an accelerator hour", headings, tuple(rows))


def _price_row(price: Price) -> tuple[str, ...]:
    usd = number(price.usd_per_accelerator_hour)
    return price.gpu, price.plan, price.provider, usd, price.source, price.date, price.evidence_kind


def _asked(catalog: Catalog, gpu: str, plan: str | None, provider: str | None) -> list[Price]:
    """The prices behind the one that was used: its provider's, or those of all behind a median."""
    try:
        found = catalog.price(gpu, plan, provider) if plan and provider else None
        names = found.providers if found else ()
        prices = [catalog.price(gpu, plan or "", name) for name in names]
    except UnknownName:
        return []
    return [price for price in prices if price is not None and price.provider != MEDIAN]


def _profiles(found: Gathered, catalog: Catalog) -> Table:
    rows: list[tuple[str, ...]] = []
    for name, checksum in found.manifest["identity"]["profiles"].items():
        try:
            profile = catalog.profile(name, catalog.accelerators[0])
        except UnknownName:
            rows.append((name, "not in this catalogue", DASH, DASH, checksum, DASH, ""))
        else:
            rows.append(_profile_row(profile))
    rows += [_profile_row(fitted_profiles()[name].profile()) for name in _fitted(found)]
    headings = ("profile", "status", "measured points", "factor", "checksum", "source", "note")
    return Table("Efficiency profiles", headings, tuple(rows))


def _fitted(found: Gathered) -> list[str]:
    """The fitted profiles that ranked points name as their provenance, `calibrated:<profile>:<rows>` or a fallback."""
    if PROVENANCE not in found.ranking.columns:
        return []
    told = found.ranking.drop_nulls("rank")[PROVENANCE].cast(pl.String).drop_nulls().unique(maintain_order=True)
    named = dict.fromkeys(part for each in told for part in each.split(":"))
    return [name for name in named if name in fitted_profiles()]


def _profile_row(profile: Profile) -> tuple[str, ...]:
    band = profile.relative_uncertainty
    sources = sorted({constant.source for constant in profile.constants.values()})
    status = "calibrated" if profile.measured_points else "uncalibrated default"
    factor = number(1 + band.value)
    origin = f"factor: {band.source}, {band.date}; constants: {'; '.join(sources)}"
    return profile.name, status, str(profile.measured_points), factor, profile.checksum, origin, band.note


def _assumed(found: Gathered, catalog: Catalog) -> Iterator[str]:
    """What the winners take for granted, beside what holds for every answer."""
    names = ["model", COMPARE, "tp", "pp", "dp", "ep", "weight_dtype", "kv_dtype", "engine", "profile"]
    replicas = found.winners.filter(pl.col("_curve").is_not_null()).unique(names, keep="first", maintain_order=True)
    said_once: dict[str, None] = {}
    for row in replicas.iter_rows(named=True):
        own: dict[str, Any] = {name: row[name] for name in names} | {"profile": row["profile"] or DEFAULT_PROFILE}
        inputs = columns.of_groups("workload", "scheduler")
        numbers = {each.name: float(row[each.name]) for each in inputs if row.get(each.name) is not None}
        question = Question(**own, numbers=numbers)
        prefix = f"{row['model']}: " if len(found.manifest["identity"]["models"]) > 1 else ""
        said_once |= dict.fromkeys(f"{prefix}{each}" for each in assumptions(Case(question, catalog)))
    yield from said_once
