"""The catalogue: models, devices, formats, engines, prices and profiles by name, and replica rows made of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Final, TypeVar

from lambdamax.accelerators import Accelerator, read_accelerators
from lambdamax.dtypes import KvDtype, WeightDtype, read_kv_dtypes, read_weight_dtypes
from lambdamax.engines import Engine, read_engines
from lambdamax.facts import DATA, Row, checksum, read_rows, unknown
from lambdamax.fitted import Choice, Key, choice, fallback_band, family_of, fitted_profiles
from lambdamax.lengths import LengthTable, read_lengths, shipped_lengths, shipped_table
from lambdamax.models import Model, catalogue_model
from lambdamax.overlay import NOTHING, read_overlay
from lambdamax.prices import MEDIAN, PLANS, Book, Price, laid_over, median_price, read_prices
from lambdamax.profiles import PROFILES, Profile, read_profile, shipped_profiles
from lambdamax.replicas import NATIVE, Deployment, Formats, Parts, ReplicaRow, checked_degrees, named_format

DEFAULT_PROFILE: Final = "default"
AUTO_PROFILE: Final = "auto"
COLUMN_DICTIONARIES: Final = frozenset({"columns.csv", "measured_columns.csv"})
_Stamp = tuple[str, int, int]
T = TypeVar("T")


class Catalog:
    """Facts by name, each file read when first asked for. A name that is not there raises UnknownName."""

    def __init__(self, directory: Path | None = None) -> None:
        """The package data, with the facts in `directory` laid over it.

        Raises CatalogError that names every fault in that directory.
        """
        self._own = NOTHING if directory is None else read_overlay(directory, self._shipped_devices, shipped_profiles())

    @cached_property
    def models(self) -> tuple[str, ...]:
        """Names of the models."""
        return tuple(dict.fromkeys((*self._model_rows, *self._own.models)))

    @cached_property
    def accelerators(self) -> tuple[str, ...]:
        """Ids of the devices."""
        return tuple(self._accelerators)

    @cached_property
    def weight_dtypes(self) -> tuple[str, ...]:
        """Names of the weight formats; `native` is that of each model's checkpoint."""
        return (NATIVE, *self._weight_dtypes)

    @cached_property
    def kv_dtypes(self) -> tuple[str, ...]:
        """Names of the KV-cache formats."""
        return tuple(self._kv_dtypes)

    @cached_property
    def engines(self) -> tuple[str, ...]:
        """Names of the serving engines."""
        return tuple(self._engines)

    @cached_property
    def profiles(self) -> tuple[str, ...]:
        """Names of the profiles, without `default`."""
        return tuple(sorted({*shipped_profiles(), *fitted_profiles(), *self._own.profiles}))

    @cached_property
    def lengths(self) -> tuple[str, ...]:
        """Names of the empirical laws of lengths."""
        return tuple(dict.fromkeys((*shipped_lengths(), *self._own.lengths)))

    @cached_property
    def plans(self) -> tuple[str, ...]:
        """Price plans."""
        return PLANS

    @cached_property
    def providers(self) -> tuple[str, ...]:
        """Every provider with a price under some plan; `median` is not one of them, but `price` takes it too."""
        return tuple(sorted({provider for prices in self._book.values() for provider in prices}))

    @cached_property
    def version(self) -> str:
        """The checksum of all facts, for manifests."""
        files = sorted(path for path in DATA.rglob("*") if path.is_file() and path.name not in COLUMN_DICTIONARIES)
        shipped = checksum(
            "\n".join(f"{path.relative_to(DATA).as_posix()} {checksum(path.read_bytes())}" for path in files).encode()
        )
        return checksum(f"{shipped} {self._own.version}".encode()) if self._own.checksums else shipped

    def model(self, name_or_path: str) -> Model:
        """A model by catalogue name or hub id, or the one in the `config.json` at a path, named after its directory.

        Raises CatalogError if the file cannot be read.
        """
        return self._cached(self._models, name_or_path, self._read_model)

    def accelerator(self, gpu: str) -> Accelerator:
        """The device with id `gpu`."""
        return _named("gpu", gpu, self._accelerators)

    def weight_dtype(self, name: str) -> WeightDtype:
        """The weight format `name`."""
        return _named("weight_dtype", name, self._weight_dtypes)

    def kv_dtype(self, name: str) -> KvDtype:
        """The KV-cache format `name`."""
        return _named("kv_dtype", name, self._kv_dtypes)

    def engine(self, name: str) -> Engine:
        """The serving engine `name`."""
        return _named("engine", name, self._engines)

    def price(self, gpu: str, plan: str, provider: str) -> Price | None:
        """What `provider` (or the `median` over all) asks for an hour of `gpu` under `plan`, None if nobody says."""
        self.accelerator(gpu)
        _named("price_plan", plan, dict.fromkeys(PLANS))
        _named("provider", provider, dict.fromkeys((MEDIAN, *self.providers)))
        prices = self._book.get((gpu, plan), {})
        return median_price(prices.values()) if provider == MEDIAN else prices.get(provider)

    def profile(self, name_or_path: str, gpu: str) -> Profile:
        """The profile `name_or_path`: one by name, a TOML file, or `default` for the one of the family of `gpu`.

        `auto`, which depends on more than the device, is that too here; `replica` knows which it is.

        Raises CatalogError if the file cannot be read.
        """
        accelerator = self.accelerator(gpu)
        family = name_or_path in (DEFAULT_PROFILE, AUTO_PROFILE)
        name = accelerator.default_profile if family else name_or_path
        return self._cached(self._profiles, name, self._read_profile)

    def length_table(self, name_or_path: str) -> LengthTable:
        """The empirical law of lengths by name, or the one in the CSV file at a path.

        Raises CatalogError if the file cannot be read.
        """
        return self._cached(self._length_tables, name_or_path, self._read_lengths)

    def replica(self, at: Deployment) -> ReplicaRow:
        """The engine's row for a deployment.

        What the row lacks is NaN. A combination that exists but cannot be sized has `supported` 0 and the reason.
        """
        model = self.model(at.model)
        if at.weight_dtype != NATIVE:
            self.weight_dtype(at.weight_dtype)
        profile, provenance, uncertainty = self._sourced(at, model)
        parts = Parts(
            model,
            self.accelerator(at.gpu),
            checked_degrees(at),
            Formats.of(model, at.weight_dtype, self._weight_dtypes),
            at.weight_dtype,
            self.kv_dtype(at.kv_dtype),
            self.engine(at.engine),
            profile,
            provenance,
            uncertainty,
        )
        return parts.row()

    def _sourced(self, at: Deployment, model: Model) -> tuple[Profile, str, float]:
        """The profile of a deployment, where its constants are from, and the u of its band."""
        found = self._nearest_fitted(at, model) if at.profile == AUTO_PROFILE else None
        if found is not None:
            return self.profile(found.fitted.key.name, at.gpu), found.provenance, found.uncertainty
        profile = self.profile(at.profile, at.gpu)
        stated = profile.relative_uncertainty.value
        if profile.status != DEFAULT_PROFILE:
            return profile, f"{profile.status}:{profile.name}:{profile.measured_points}", stated
        shown = fallback_band(DEFAULT_PROFILE) if at.profile == AUTO_PROFILE else stated
        return profile, DEFAULT_PROFILE, max(stated, shown)

    def _nearest_fitted(self, at: Deployment, model: Model) -> Choice | None:
        """The fitted profile for a deployment, or the nearest one; None for a model that the engine does not know."""
        made_of = model.architecture
        if made_of is None:
            return None
        engine, _, version = at.engine.rpartition("-") if at.engine[-1].isdigit() else (at.engine, "", "")
        family = family_of({"hidden_size": float(made_of.hidden_size)}, model.facts)
        wanted = Key(engine, version and f"v{version}", at.gpu, named_format(model, at.weight_dtype), family)
        return choice(wanted, {name: device.architecture for name, device in self._accelerators.items()})

    @cached_property
    def _model_rows(self) -> dict[str, Row]:
        return {row["name"]: row for row in read_rows("models.csv")}

    @cached_property
    def _hub_ids(self) -> dict[str, Row]:
        return {row["hub_id"]: row for row in self._model_rows.values()}

    @cached_property
    def _shipped_devices(self) -> dict[str, Accelerator]:
        return read_accelerators()

    @cached_property
    def _accelerators(self) -> dict[str, Accelerator]:
        return {**self._shipped_devices, **self._own.accelerators}

    @cached_property
    def _weight_dtypes(self) -> dict[str, WeightDtype]:
        return read_weight_dtypes()

    @cached_property
    def _kv_dtypes(self) -> dict[str, KvDtype]:
        return read_kv_dtypes()

    @cached_property
    def _engines(self) -> dict[str, Engine]:
        return read_engines()

    @cached_property
    def _book(self) -> Book:
        return laid_over(read_prices(), self._own.prices)

    @cached_property
    def _models(self) -> dict[_Stamp, Model]:
        return {}

    @cached_property
    def _profiles(self) -> dict[_Stamp, Profile]:
        return {}

    @cached_property
    def _length_tables(self) -> dict[_Stamp, LengthTable]:
        return {}

    def _read_model(self, name_or_path: str) -> Model:
        own = self._own.models.get(self._own.hub_ids.get(name_or_path, name_or_path))
        if own is not None:
            return own
        row = self._model_rows.get(name_or_path) or self._hub_ids.get(name_or_path)
        if row:
            return catalogue_model(row, DATA)
        if not _is_path(name_or_path, ".json"):
            raise unknown("model", name_or_path, self.models)
        return Model.at(Path(name_or_path))

    def _read_profile(self, name_or_path: str) -> Profile:
        if name_or_path in self._own.profiles:
            return read_profile(self._own.profiles[name_or_path])
        if name_or_path in fitted_profiles():
            return fitted_profiles()[name_or_path].profile()
        if name_or_path in self.profiles:
            return read_profile(PROFILES / f"{name_or_path}.toml")
        if not _is_path(name_or_path, ".toml"):
            raise unknown("profile", name_or_path, (AUTO_PROFILE, DEFAULT_PROFILE, *self.profiles))
        return read_profile(Path(name_or_path))

    def _read_lengths(self, name_or_path: str) -> LengthTable:
        if name_or_path in self._own.lengths:
            return self._own.lengths[name_or_path]
        if name_or_path in self.lengths:
            return shipped_table(name_or_path)
        if not _is_path(name_or_path, ".csv"):
            raise unknown("lengths", name_or_path, self.lengths)
        return read_lengths(Path(name_or_path))

    @staticmethod
    def _cached(found: dict[_Stamp, T], name: str, read: Callable[[str], T]) -> T:
        stamp = _stamp(name)
        if stamp not in found:
            found[stamp] = read(name)
        return found[stamp]


def load_catalog(directory: str | Path | None = None) -> Catalog:
    """The catalogue of the package data, with the facts of your own in `directory` laid over it.

    The directory may hold `models.csv` with its config files, `accelerators.csv`, `prices.csv`, `profiles/*.toml` and
    `lengths/*.csv`, in the form of the package data. It is checked here; the package data is read when asked for.
    Raises CatalogError that names every fault.
    """
    return _shipped() if directory is None else Catalog(Path(directory))


@cache
def _shipped() -> Catalog:
    return Catalog()


def _named(kind: str, name: str, found: Mapping[str, T]) -> T:
    if name not in found:
        raise unknown(kind, name, found)
    return found[name]


def _is_path(text: str, suffix: str) -> bool:
    separated = text in (".", "..") or "/" in text or os.sep in text
    return text.casefold().endswith(suffix) or (separated and os.path.exists(text))


def _stamp(name: str) -> _Stamp:
    """`name` and, where it is a file, its time and size, so that an edited file is read again."""
    try:
        status = os.stat(name)
    except (OSError, ValueError):
        return name, 0, 0
    return name, status.st_mtime_ns, status.st_size
