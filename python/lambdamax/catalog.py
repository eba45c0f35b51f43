"""The catalogue: models, devices, formats, engines, prices and profiles by name, and replica rows made of them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Final, TypeVar

from lambdamax.accelerators import Accelerator, read_accelerators
from lambdamax.architecture import Architecture, Unsupported
from lambdamax.dtypes import KvDtype, WeightDtype, read_kv_dtypes, read_weight_dtypes
from lambdamax.engines import Engine, read_engines
from lambdamax.facts import DATA, Row, bad, checksum, read_rows, unknown
from lambdamax.hub import read_config
from lambdamax.prices import MEDIAN, PLANS, Book, Price, median_price, read_prices
from lambdamax.profiles import CONSTANTS, KINDS, PROFILES, Profile, read_profile, shipped_profiles

DEFAULT_PROFILE: Final = "default"
COLUMN_DICTIONARY: Final = "columns.csv"
LARGEST_TP: Final = 65_536
MODEL_FACTS: Final = (
    "layers",
    "hidden_size",
    "attention_heads",
    "kv_heads",
    "head_dim",
    "intermediate_size",
    "mlp_matrices",
    "vocab_size",
    "tied_embeddings",
    "layer_vector_params",
    "final_norm_params",
)
ENGINE_DEFAULTS: Final = ("max_num_seqs", "max_num_batched_tokens", "memory_utilization", "reserved_bytes")

_Stamp = tuple[str, int, int]
T = TypeVar("T")


@dataclass(frozen=True)
class Model:
    """The sizes of a dense decoder, in elements and layers; all 0 if `unsupported`, which names the field and why.

    `published_params` is the count its maker states, None for a model that is not in the catalogue.
    """

    name: str
    source: str
    date: str
    checksum: str
    layers: int = 0
    hidden_size: int = 0
    attention_heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    intermediate_size: int = 0
    mlp_matrices: int = 0
    vocab_size: int = 0
    tied_embeddings: bool = False
    layer_vector_params: int = 0
    final_norm_params: int = 0
    total_params: int = 0
    checkpoint_dtype: str | None = None
    published_params: float | None = None
    unsupported: str | None = None


@dataclass(frozen=True)
class ReplicaRow:
    """One row of the engine's replicas: `fields` by the engine's names, `unsupported` why it cannot be solved."""

    fields: Mapping[str, float]
    unsupported: str | None
    profile: str


class Catalog:
    """Facts by name, each file read when first asked for. A name that is not there raises UnknownName."""

    @cached_property
    def models(self) -> tuple[str, ...]:
        """Names of the models in the package data."""
        return tuple(self._model_rows)

    @cached_property
    def accelerators(self) -> tuple[str, ...]:
        """Ids of the devices."""
        return tuple(self._accelerators)

    @cached_property
    def weight_dtypes(self) -> tuple[str, ...]:
        """Names of the weight formats."""
        return tuple(self._weight_dtypes)

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
        """Names of the shipped profiles, without `default`."""
        return shipped_profiles()

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
        """The checksum of all facts in the package data, for manifests."""
        files = sorted(path for path in DATA.rglob("*") if path.is_file() and path.name != COLUMN_DICTIONARY)
        return checksum(
            "\n".join(f"{path.relative_to(DATA).as_posix()} {checksum(path.read_bytes())}" for path in files).encode()
        )

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
        """The profile `name_or_path`: a shipped one, a TOML file, or `default` for the one of the family of `gpu`.

        Raises CatalogError if the file cannot be read.
        """
        accelerator = self.accelerator(gpu)
        name = accelerator.default_profile if name_or_path == DEFAULT_PROFILE else name_or_path
        return self._cached(self._profiles, name, self._read_profile)

    def replica(  # noqa: PLR0917  the seven names that make a replica, in the order of the columns
        self, model: str, gpu: str, tp: int, weight_dtype: str, kv_dtype: str, engine: str, profile: str
    ) -> ReplicaRow:
        """The engine's row for `model` on `tp` devices `gpu`, all arguments by name.

        What the row lacks is NaN. A combination that exists but cannot be sized has `supported` 0 and the reason.
        """
        parts = _Parts(
            self.model(model),
            self.accelerator(gpu),
            _tp(tp),
            self.weight_dtype(weight_dtype),
            self.kv_dtype(kv_dtype),
            self.engine(engine),
            self.profile(profile, gpu),
        )
        return ReplicaRow(parts.fields(), parts.unsupported(), parts.profile.name)

    @cached_property
    def _model_rows(self) -> dict[str, Row]:
        return {row["name"]: row for row in read_rows("models.csv")}

    @cached_property
    def _hub_ids(self) -> dict[str, Row]:
        return {row["hub_id"]: row for row in self._model_rows.values()}

    @cached_property
    def _accelerators(self) -> dict[str, Accelerator]:
        return read_accelerators()

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
        return read_prices()

    @cached_property
    def _models(self) -> dict[_Stamp, Model]:
        return {}

    @cached_property
    def _profiles(self) -> dict[_Stamp, Profile]:
        return {}

    def _read_model(self, name_or_path: str) -> Model:
        row = self._model_rows.get(name_or_path) or self._hub_ids.get(name_or_path)
        if row:
            return _catalogue_model(row)
        if not _is_path(name_or_path, ".json"):
            raise unknown("model", name_or_path, self.models)
        return _path_model(Path(name_or_path))

    def _read_profile(self, name_or_path: str) -> Profile:
        if name_or_path in self.profiles:
            return read_profile(PROFILES / f"{name_or_path}.toml")
        if not _is_path(name_or_path, ".toml"):
            raise unknown("profile", name_or_path, (DEFAULT_PROFILE, *self.profiles))
        return read_profile(Path(name_or_path))

    @staticmethod
    def _cached(found: dict[_Stamp, T], name: str, read: Callable[[str], T]) -> T:
        stamp = _stamp(name)
        if stamp not in found:
            found[stamp] = read(name)
        return found[stamp]


@cache
def load_catalog() -> Catalog:
    """The catalogue of the package data; nothing is read until it is asked for."""
    return Catalog()


@dataclass(frozen=True)
class _Parts:
    """What one replica is made of."""

    model: Model
    accelerator: Accelerator
    tp: int
    weight_dtype: WeightDtype
    kv_dtype: KvDtype
    engine: Engine
    profile: Profile

    def unsupported(self) -> str | None:
        if self.model.unsupported is not None:
            return f"{self.model.name}: {self.model.unsupported}"
        return self.weight_dtype.unsupported_on(self.accelerator) or self._unlinked()

    def fields(self) -> dict[str, float]:
        return {
            **self._model_fields(),
            "weight_bits": self.weight_dtype.bits,
            "kv_bytes_per_element": self.kv_dtype.bytes_per_element,
            **self._device_fields(),
            "tp": float(self.tp),
            **{f"default_{name}": self._setting(name) for name in ENGINE_DEFAULTS},
            **self._profile_fields(),
            "supported": 1.0 if self.unsupported() is None else 0.0,
        }

    def _model_fields(self) -> dict[str, float]:
        known = self.model.unsupported is None
        return {name: float(getattr(self.model, name)) if known else math.nan for name in MODEL_FACTS}

    def _device_fields(self) -> dict[str, float]:
        device = self.accelerator
        return {
            "accelerator_memory_bytes": device.memory_bytes,
            "memory_bandwidth_bytes_per_s": device.memory_bandwidth_bytes_per_s,
            "gemm_flops": device.peaks.get(self.weight_dtype.peak_column, math.nan),
            "attention_flops": device.peaks["bf16_dense_flops"],
            "scaleup_bytes_per_s": _or_nan(device.link_bytes_per_s(self.tp)),
            "scaleup_domain_size": float(device.scaleup_domain_size),
            "pcie_bytes_per_s": _or_nan(device.pcie_bytes_per_s),
        }

    def _profile_fields(self) -> dict[str, float]:
        constants = {name: math.nan for kind in KINDS for name in CONSTANTS[kind]}
        stated = {name: constant.value for name, constant in self.profile.constants.items()}
        return {"kind": float(KINDS.index(self.profile.kind)), **constants, **stated}

    def _setting(self, name: str) -> float:
        return self.engine.setting(name, self.accelerator, self.tp).value

    def _unlinked(self) -> str | None:
        device = self.accelerator
        within = self.tp <= device.scaleup_domain_size and device.scaleup_bytes_per_s is not None
        if self.tp == 1 or within or device.pcie_bytes_per_s is not None:
            return None
        return f"tp {self.tp}: {device.id} has a domain of {device.scaleup_domain_size} and no PCIe figure"


def _catalogue_model(row: Row) -> Model:
    architecture, digest = read_config(DATA / row["config_file"])
    published = float(round(float(row["published_parameters_1e9"]) * 1e9))
    return _model(
        architecture, row["name"], source=row["source_url"], date=row["source_date"], digest=digest, published=published
    )


def _path_model(path: Path) -> Model:
    architecture, digest = read_config(path)
    named_after = path if path.name != "config.json" else path.resolve().parent
    name = named_after.stem if named_after.suffix == ".json" else named_after.name
    return _model(architecture, name or str(path), source=str(path), date="", digest=digest, published=None)


def _model(
    architecture: Architecture | Unsupported, name: str, *, source: str, date: str, digest: str, published: float | None
) -> Model:
    if isinstance(architecture, Unsupported):
        return Model(name, source, date, digest, published_params=published, unsupported=architecture.reason)
    (block,) = architecture.blocks
    return Model(
        name=name,
        source=source,
        date=date,
        checksum=digest,
        layers=block.count,
        hidden_size=architecture.hidden_size,
        attention_heads=block.attention.heads,
        kv_heads=block.attention.kv_heads,
        head_dim=block.attention.head_dim,
        intermediate_size=block.mlp.width,
        mlp_matrices=block.mlp.matrices,
        vocab_size=architecture.vocab_size,
        tied_embeddings=architecture.tied_embeddings,
        layer_vector_params=block.vector_params,
        final_norm_params=architecture.final_norm_params,
        total_params=architecture.total_params,
        checkpoint_dtype=architecture.checkpoint_dtype,
        published_params=published,
    )


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


def _tp(tp: int) -> int:
    if type(tp) is not int or not 1 <= tp <= LARGEST_TP:
        raise bad("replica", "tp", tp, f"a whole number from 1 to {LARGEST_TP}")
    return tp


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
