"""What the catalogue holds, for people and for machines: lists, and for one name every fact with source and date."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from lambdamax import solving
from lambdamax.catalog import Catalog, Model, ReplicaRow, load_catalog
from lambdamax.prices import MEDIAN, Price
from lambdamax.profiles import Profile
from lambdamax.units import DASH, cell, number, quantity

_BF16: Final = "bf16"
_DENSE: Final = "dense: active_params is total_params, embedding and head included; bytes are for bf16 unless named"
_READABLE: Final = (("bytes_per_s", "B/s"), ("bytes", "B"), ("dense_flops", "FLOP/s"))


@dataclass(frozen=True)
class Listing:
    """A table with `headings`, its `text` columns aligned left, or pairs without them; and the same as `json`."""

    json: Any
    rows: tuple[tuple[str, ...], ...]
    headings: tuple[str, ...] = ()
    text: tuple[int, ...] = (0,)


def models(name: str | None = None) -> Listing:
    """Every model, or one by catalogue name or path of a config.json."""
    catalog = load_catalog()
    if name is not None:
        return _pairs(_model(catalog, catalog.model(name)))
    found = [_model(catalog, catalog.model(each)) for each in catalog.models]
    headings = ("model", "billion\nparameters", "weights,\nbf16", "KV per token,\nbf16", "\nlayers")
    return Listing(found, tuple(map(_model_row, found)), headings)


def accelerators(name: str | None = None) -> Listing:
    """Every accelerator, or one by id."""
    catalog = load_catalog()
    if name is not None:
        return _pairs(_accelerator(catalog, name))
    found = [_accelerator(catalog, each) for each in catalog.accelerators]
    headings = ("gpu", "memory", "bandwidth", "bf16\nTFLOP/s", "fp8\nTFLOP/s", "scale-up,\none direction")
    return Listing(found, tuple(map(_accelerator_row, found)), headings)


def prices(gpu: str | None = None) -> Listing:
    """The median price of every accelerator by plan, or every provider's price of one."""
    catalog = load_catalog()
    if gpu is not None:
        return _offers(catalog, gpu)
    found = [_medians(catalog, each) for each in catalog.accelerators]
    rows = tuple((each["gpu"], *(_median_cell(each[plan]) for plan in catalog.plans)) for each in found)
    return Listing(found, rows, ("gpu", *(f"{plan}, median\n(providers)" for plan in catalog.plans)))


def profiles(name: str | None = None) -> Listing:
    """Every efficiency profile, or one by name or path of a .toml."""
    catalog = load_catalog()
    if name is not None:
        return _pairs(asdict(_profile(catalog, name)))
    found = [_profile(catalog, each) for each in catalog.profiles]
    rows = tuple(map(_profile_row, found))
    headings = ("profile", "kind", "status", "for", "inherits", "points", "factor")
    return Listing([asdict(each) for each in found], rows, headings, (0, 1, 2, 3, 4))


def _model(catalog: Catalog, model: Model) -> dict[str, Any]:
    """The facts of `model`, and the bytes that follow from them by number format; no sizes if it is unsupported."""
    if model.unsupported is not None:
        return {name: value or None for name, value in asdict(model).items()}
    weights, kv = _bytes(catalog, model)
    return {
        **asdict(model),
        "active_params": model.total_params,
        "layer_counts": {"full_attention": model.layers},
        "weight_bytes": weights[_BF16],
        "weight_bytes_by_dtype": weights,
        "kv_bytes_per_token": kv[_BF16],
        "kv_bytes_per_token_by_dtype": kv,
        "note": _DENSE,
    }


def _bytes(catalog: Catalog, model: Model) -> tuple[dict[str, float], dict[str, float]]:
    """Weight bytes by weight format and KV bytes per token by KV format, from the engine."""
    weights, kv = catalog.weight_dtypes, catalog.kv_dtypes
    rows = [_row(catalog, model, dtype, _BF16) for dtype in weights] + [
        _row(catalog, model, _BF16, dtype) for dtype in kv
    ]
    found = solving.facts(rows)
    whole, per_token = found["weight_bytes"].to_list(), found["kv_bytes_per_token"].to_list()
    return dict(zip(weights, whole, strict=False)), dict(zip(kv, per_token[len(weights) :], strict=True))


def _row(catalog: Catalog, model: Model, weight_dtype: str, kv_dtype: str) -> ReplicaRow:
    """A replica on any device that computes in `weight_dtype`: the bytes do not depend on it."""
    dtype = catalog.weight_dtype(weight_dtype)
    devices = (catalog.accelerator(gpu) for gpu in catalog.accelerators)
    device = next(each for each in devices if dtype.unsupported_on(each) is None)
    path = model.name if model.name in catalog.models else model.source
    return catalog.replica(path, device.id, 1, weight_dtype, kv_dtype, catalog.engines[0], "default")


def _model_row(found: Mapping[str, Any]) -> tuple[str, ...]:
    parameters = number(found["total_params"] / 1e9, pad=True)
    kv = quantity(found["kv_bytes_per_token"], "B")
    return found["name"], parameters, cell(found["weight_bytes"], "B"), kv, str(found["layers"])


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
    elif value not in (None, ""):
        yield name, _text(name, value)


def _text(name: str, value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    exact = f"{value:,.0f}" if value == int(value) else f"{value:g}"
    readable = next((quantity(value, unit) for part, unit in _READABLE if part in name), exact)
    return exact if readable.startswith(exact) else f"{exact} ({readable})"
