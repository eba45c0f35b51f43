"""What the catalogue holds, for people and for machines: lists, and for one name every fact with source and date."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from lambdamax.catalog import Catalog
from lambdamax.columns import MOMENTS
from lambdamax.lengths import LengthTable
from lambdamax.model_facts import model_facts
from lambdamax.prices import MEDIAN, Price
from lambdamax.profiles import Profile
from lambdamax.units import DASH, number, quantity

_READABLE: Final = (("bytes_per_s", "B/s"), ("bytes", "B"), ("dense_flops", "FLOP/s"))
_LETTERS: Final = {
    "full_attention": ("f", "full attention"),
    "sliding_attention": ("w", "window"),
    "chunked_attention": ("c", "chunked"),
    "latent_attention": ("l", "latent (MLA)"),
    "sparse_attention": ("s", "sparse"),
    "recurrent": ("r", "recurrent"),
    "no_attention": ("n", "neither"),
    "experts": ("e", "with experts"),
}


@dataclass(frozen=True)
class Listing:
    """A table with `headings`, its `text` columns aligned left, or pairs without them; and the same as `json`.

    `legend` explains a table; `others` are pairs below it: what has a reason in place of numbers.
    """

    json: Any
    rows: tuple[tuple[str, ...], ...]
    headings: tuple[str, ...] = ()
    text: tuple[int, ...] = (0,)
    legend: str = ""
    others: tuple[tuple[str, str], ...] = ()


def models(catalog: Catalog, name: str | None = None) -> Listing:
    """Every model, or one by catalogue name or path of a config.json."""
    if name is not None:
        return _pairs(model_facts(catalog, name))
    found = [model_facts(catalog, each) for each in catalog.models]
    headings = ("model", "params,\n10⁹", "active,\n10⁹", "native\nformat", "size,\nGB", "KV, B\na token", "\nlayers")
    rows = tuple(_model_row(each) for each in found if each["unsupported"] is None)
    refused = tuple((each["name"], f"unsupported: {each['unsupported']}") for each in found if each["unsupported"])
    legend = f"layers: {', '.join(f'{letter} {words}' for letter, words in _LETTERS.values())}; KV in bf16, all layers"
    return Listing(found, rows, headings, (0, 3, 6), legend, refused)


def accelerators(catalog: Catalog, name: str | None = None) -> Listing:
    """Every accelerator, or one by id."""
    if name is not None:
        return _pairs(_accelerator(catalog, name))
    found = [_accelerator(catalog, each) for each in catalog.accelerators]
    headings = ("gpu", "memory", "bandwidth", "bf16\nTFLOP/s", "fp8\nTFLOP/s", "scale-up,\none direction")
    return Listing(found, tuple(map(_accelerator_row, found)), headings)


def prices(catalog: Catalog, gpu: str | None = None) -> Listing:
    """The median price of every accelerator by plan, or every provider's price of one."""
    if gpu is not None:
        return _offers(catalog, gpu)
    found = [_medians(catalog, each) for each in catalog.accelerators]
    rows = tuple((each["gpu"], *(_median_cell(each[plan]) for plan in catalog.plans)) for each in found)
    return Listing(found, rows, ("gpu", *(f"{plan}, median\n(providers)" for plan in catalog.plans)))


def profiles(catalog: Catalog, name: str | None = None) -> Listing:
    """Every efficiency profile, or one by name or path of a .toml."""
    if name is not None:
        return _pairs(asdict(_profile(catalog, name)))
    found = [_profile(catalog, each) for each in catalog.profiles]
    rows = tuple(map(_profile_row, found))
    headings = ("profile", "kind", "status", "for", "inherits", "points", "factor")
    return Listing([asdict(each) for each in found], rows, headings, (0, 1, 2, 3, 4))


def lengths(catalog: Catalog, name: str | None = None) -> Listing:
    """Every empirical law of lengths, or one by name or path of a .csv."""
    if name is not None:
        return _pairs(_length_facts(catalog.length_table(name)))
    found = [_length_facts(catalog.length_table(each)) for each in catalog.lengths]
    headings = ("lengths", "requests", "ISL,\ntokens", "ISL CV", "OSL,\ntokens", "OSL CV", "license")
    return Listing(found, tuple(map(_length_row, found)), headings, (0, 6))


def _length_facts(table: LengthTable) -> dict[str, Any]:
    about = {"source_url": table.source, "license": table.license, "notes": table.notes}
    return {"lengths": table.name, "requests": sum(table.weight), **table.moments, **about}


def _length_row(found: Mapping[str, Any]) -> tuple[str, ...]:
    isl, osl, isl_cv, osl_cv = (number(found[name], pad=True) for name in MOMENTS)
    return found["lengths"], f"{found['requests']:,.0f}", isl, isl_cv, osl, osl_cv, found["license"]


def _model_row(found: Mapping[str, Any]) -> tuple[str, ...]:
    total, active = found["total_params"], found["active_params"]
    of_a_token = DASH if active == total else number(active / 1e9, pad=True)
    sizes = found["weight_dtype"], number(found["weight_bytes"] / 1e9, pad=True), f"{found['kv_bytes_per_token']:,.0f}"
    return found["name"], number(total / 1e9, pad=True), of_a_token, *sizes, _layers(found["layer_counts"])


def _layers(counts: Mapping[str, int]) -> str:
    """Layers by kind, such as `18w 18f 36e`."""
    return " ".join(f"{count}{_LETTERS[kind][0]}" for kind, count in _experts_last(counts))


def _experts_last(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: item[0] == "experts")


def _accelerator(catalog: Catalog, name: str) -> dict[str, Any]:
    device = catalog.accelerator(name)
    facts = {name: value for name, value in asdict(device).items() if name != "peaks"}
    return {**facts, "memory_bytes": device.memory_bytes, **device.peaks}


def _accelerator_row(found: Mapping[str, Any]) -> tuple[str, ...]:
    link, domain = found["scaleup_bytes_per_s"], found["scaleup_domain_size"]
    scaleup = f"{domain} × {quantity(link, 'B/s')}" if link else DASH
    peaks = (_tera(found.get(name)) for name in ("bf16_dense_flops", "fp8_dense_flops"))
    bandwidth = quantity(found["memory_bandwidth_bytes_per_s"], "B/s")
    return found["id"], quantity(found["memory_bytes"], "B"), bandwidth, *peaks, scaleup


def _tera(flops: float | None) -> str:
    return DASH if flops is None else number(flops / 1e12)


def _medians(catalog: Catalog, gpu: str) -> dict[str, Any]:
    found = {plan: catalog.price(gpu, plan, MEDIAN) for plan in catalog.plans}
    return {"gpu": gpu} | {plan: asdict(price) if price else None for plan, price in found.items()}


def _offers(catalog: Catalog, gpu: str) -> Listing:
    providers = dict.fromkeys((MEDIAN, *catalog.providers))
    pairs = ((plan, provider) for plan in catalog.plans for provider in providers)
    found = [price for pair in pairs if (price := catalog.price(gpu, *pair)) is not None]
    return Listing([asdict(price) for price in found], tuple(map(_offer_row, found)))


def _offer_row(price: Price) -> tuple[str, str]:
    about = f"{_hourly(price.usd_per_accelerator_hour)}, {price.date}, {price.evidence_kind}: {price.source}"
    return f"{price.plan}, {price.provider}", f"{about} {price.note}".rstrip()


def _median_cell(price: Mapping[str, Any] | None) -> str:
    return DASH if price is None else f"{_hourly(price['usd_per_accelerator_hour'])} ({len(price['providers'])})"


def _hourly(usd: float) -> str:
    return f"${usd:,.2f}/h"


def _profile(catalog: Catalog, name: str) -> Profile:
    return catalog.profile(name, catalog.accelerators[0])


def _profile_row(profile: Profile) -> tuple[str, ...]:
    about = (profile.name, profile.kind, profile.status, ", ".join(profile.architectures), profile.inherits or DASH)
    return *about, str(profile.measured_points), number(1 + profile.relative_uncertainty.value)


def _pairs(facts: Mapping[str, Any]) -> Listing:
    """One entry: every fact under its name, with its unit; a fact that has its own source says so."""
    return Listing(facts, tuple((name, text) for name, value in facts.items() for name, text in _said(name, value)))


def _said(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and "value" in value:
        inherited = f" [{value['profile']}]" if "profile" in value else ""
        yield (
            name,
            f"{value['value']:g} {value['unit']}{inherited} ({value['source']}, {value['date']}) {value['note']}",
        )
    elif isinstance(value, Mapping):
        for inner, each in value.items():
            yield from _said(inner if isinstance(each, Mapping) else f"{name}.{inner}", each)
    elif value not in (None, "", [], ()):
        yield name, _text(name, value)


def _joined(values: Iterable[Any]) -> str:
    return ", ".join(map(str, values))


def _entry(facts: Mapping[str, Any]) -> str:
    return _joined(f"{name} {_text(name, value)}" for name, value in facts.items())


def _text(name: str, value: Any) -> str:
    if isinstance(value, list | tuple):
        return "; ".join(_entry(each) for each in value) if value and isinstance(value[0], dict) else _joined(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    exact = f"{value:,.0f}" if value == int(value) else f"{value:g}"
    readable = next((quantity(value, unit) for part, unit in _READABLE if part in name), exact)
    return exact if readable.startswith(exact) else f"{exact} ({readable})"
