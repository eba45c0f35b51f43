"""Efficiency profiles: how far from its peaks a device is, each constant with value, unit, source and date."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast

from lambdamax.facts import DATA, bad, read_toml

Kind = Literal["full", "ratio"]
KINDS: Final[tuple[Kind, ...]] = ("full", "ratio")
STATUSES: Final = ("default", "calibrated", "measured")
PROFILES: Final = DATA / "profiles"


class Allowed(NamedTuple):
    """The unit of a constant and the values that make sense."""

    unit: str
    least: float
    most: float


_SHARE: Final = Allowed("share of peak", 1e-6, 1.0)
_TIME: Final = Allowed("s", 0.0, 3600.0)

# The constants of each kind; docs/model.md says where each one enters.
CONSTANTS: Final[Mapping[Kind, Mapping[str, Allowed]]] = {
    "full": {
        "gemm_bandwidth_efficiency": _SHARE,
        "gemm_flops_efficiency": _SHARE,
        "roofline_exponent": Allowed("1", 1.0, 100.0),
        "attention_bandwidth_efficiency": _SHARE,
        "prefill_attention_flops_efficiency": _SHARE,
        "prefill_attention_half_tokens": Allowed("tokens", 0.0, 1e9),
        "step_overhead_s": _TIME,
        "sequence_overhead_s": _TIME,
        "layer_floor_s": _TIME,
        "latent_layer_floor_s": _TIME,
        "prefill_layer_overhead_s": _TIME,
        "allreduce_latency_s": _TIME,
        "allreduce_latency_per_doubling_s": _TIME,
        "allreduce_bandwidth_efficiency": _SHARE,
        "pcie_allreduce_latency_s": _TIME,
        "pcie_allreduce_latency_per_doubling_s": _TIME,
        "pcie_bandwidth_efficiency": _SHARE,
        "host_latency_s": _TIME,
        "host_latency_per_token_s": Allowed("s per prompt token", 0.0, 3600.0),
        "async_scheduling": Allowed("0 or 1", 0.0, 1.0),
        "expert_load_imbalance": Allowed("fullest rank over mean", 1.0, 100.0),
    },
    "ratio": {
        "measured_over_floor_ratio": Allowed("1", 1e-6, 1e6),
        "ttft_s": _TIME,
    },
}
_HEADER: Final = (
    "name",
    "kind",
    "status",
    "engine",
    "architectures",
    "measured_points",
    "relative_uncertainty",
    "constants",
)
_FACT: Final = ("value", "unit", "source", "date", "note")


@dataclass(frozen=True)
class Constant:
    """One constant in its `unit`; `profile` is the name of the profile that states it, perhaps an inherited one."""

    value: float
    unit: str
    source: str
    date: str
    note: str
    profile: str


@dataclass(frozen=True)
class Profile:
    """Constants for one engine on some architectures.

    Rates are good to within a factor of 1 + `relative_uncertainty`; `measured_points` stand behind them.
    """

    name: str
    kind: Kind
    status: str
    engine: str
    architectures: tuple[str, ...]
    inherits: str | None
    measured_points: int
    relative_uncertainty: Constant
    constants: Mapping[str, Constant]
    checksum: str


def shipped_profiles() -> tuple[str, ...]:
    """Names of the profiles in the package data, sorted."""
    return tuple(sorted(path.stem for path in PROFILES.glob("*.toml")))


def read_profile(path: Path) -> Profile:
    """The profile in the TOML file at `path`, with what it inherits from one of the package data.

    Raises CatalogError with file, key, value and what is allowed.
    """
    table, checksum = read_toml(path)
    header = _Header(table, str(path))
    parent = header.parent()
    kind = header.kind(parent)
    own = header.constants(kind)
    constants = {**(parent.constants if parent else {}), **own}
    if missing := [name for name in CONSTANTS[kind] if name not in constants]:
        raise bad(
            path, f"constants.{missing[0]}", None, f"a table with {', '.join(_FACT)}, or a profile to inherit from"
        )
    return header.profile(kind, parent, constants, checksum)


@dataclass(frozen=True)
class _Header:
    """The table of a profile's file, checked part by part."""

    table: Mapping[str, Any]
    file: str

    def __post_init__(self) -> None:
        self._only(self.table, (*_HEADER, "inherits"), "")

    def parent(self) -> Profile | None:
        inherits = self.table.get("inherits")
        if inherits is None:
            return None
        if inherits not in shipped_profiles():
            raise bad(self.file, "inherits", inherits, f"one of {', '.join(shipped_profiles())}")
        return read_profile(PROFILES / f"{inherits}.toml")

    def kind(self, parent: Profile | None) -> Kind:
        kind = cast(Kind, self._one_of("kind", KINDS))
        if parent and parent.kind != kind:
            raise bad(self.file, "kind", kind, f"{parent.kind}, as in the profile that is inherited")
        return kind

    def constants(self, kind: Kind) -> dict[str, Constant]:
        tables = self.table.get("constants", {})
        if not isinstance(tables, dict):
            raise bad(self.file, "constants", tables, "a table of constants")
        self._only(tables, tuple(CONSTANTS[kind]), "constants.")
        return {
            name: self._constant(f"constants.{name}", table, CONSTANTS[kind][name]) for name, table in tables.items()
        }

    def profile(self, kind: Kind, parent: Profile | None, constants: Mapping[str, Constant], checksum: str) -> Profile:
        uncertainty = self._constant(
            "relative_uncertainty", self.table.get("relative_uncertainty"), Allowed("", 0.0, 1e6)
        )
        return Profile(
            name=self._text("name"),
            kind=kind,
            status=self._one_of("status", STATUSES),
            engine=self._text("engine"),
            architectures=self._architectures(),
            inherits=parent.name if parent else None,
            measured_points=self._count("measured_points"),
            relative_uncertainty=uncertainty,
            constants=constants,
            checksum=checksum,
        )

    def _constant(self, key: str, table: object, allowed: Allowed) -> Constant:
        if not isinstance(table, dict):
            raise bad(self.file, key, table, f"a table with {', '.join(_FACT)}")
        self._only(table, _FACT, f"{key}.")
        texts = {name: _text(table, name, self.file, f"{key}.{name}") for name in _FACT[1:]}
        if allowed.unit and texts["unit"] != allowed.unit:
            raise bad(self.file, f"{key}.unit", texts["unit"], f'"{allowed.unit}"')
        value = _value(table.get("value"), allowed, self.file, f"{key}.value")
        return Constant(value=value, profile=self._text("name"), **texts)

    def _text(self, key: str) -> str:
        return _text(self.table, key, self.file, key)

    def _one_of(self, key: str, allowed: tuple[str, ...]) -> str:
        value = self.table.get(key)
        if value not in allowed:
            raise bad(self.file, key, value, f"one of {', '.join(allowed)}")
        return str(value)

    def _count(self, key: str) -> int:
        value = self.table.get(key)
        if type(value) is not int or value < 0:
            raise bad(self.file, key, value, "a whole number from 0")
        return value

    def _architectures(self) -> tuple[str, ...]:
        value = self.table.get("architectures")
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise bad(self.file, "architectures", value, "a list of architecture names")
        return tuple(value)

    def _only(self, table: Mapping[str, Any], allowed: tuple[str, ...], prefix: str) -> None:
        for key in table:
            if key not in allowed:
                raise bad(self.file, f"{prefix}{key}", table[key], f"only the keys {', '.join(allowed)}")


def _text(table: Mapping[str, Any], name: str, file: str, key: str) -> str:
    value = table.get(name)
    if not isinstance(value, str) or not value.strip():
        raise bad(file, key, value, "a text that is not empty")
    return value


def _value(value: object, allowed: Allowed, file: str, key: str) -> float:
    real = isinstance(value, int | float) and not isinstance(value, bool)
    whole = allowed.unit != "0 or 1" or value in (0, 1)
    if not real or not whole or not allowed.least <= cast(float, value) <= allowed.most:
        raise bad(file, key, value, f"a number from {allowed.least:g} to {allowed.most:g}" if whole else allowed.unit)
    return float(cast(float, value))
