"""The profiles that were fitted to measurements, and which one a replica takes: its own, else the nearest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

from lambdamax.facts import Row, checksum, read_rows
from lambdamax.profiles import CONSTANTS, PROFILES, Constant, Profile, read_profile

KEYS_FILE: Final = "fitted_profiles.csv"
VALUES_FILE: Final = "fitted_constants.csv"
FALLBACKS: Final = "fallbacks"
DENSE: Final = "dense"
POINTS: Final = "measured_points"
UNCERTAINTY: Final = "relative_uncertainty"
TTFT_UNCERTAINTY: Final = "ttft_relative_uncertainty"


class Key(NamedTuple):
    """What a fitted profile holds for; `version` is empty where the rows are of several, or of none that is stated."""

    engine: str
    version: str
    gpu: str
    weight_dtype: str
    family: str

    @property
    def name(self) -> str:
        """The profile's name."""
        return "-".join(filter(None, (self.engine, self.version, self.gpu, self.weight_dtype, self.family)))


@dataclass(frozen=True)
class Fitted:
    """One fitted profile: constants of the engine and of the benchmark runs, by name, and its errors."""

    key: Key
    inherits: str
    date: str
    values: Mapping[str, Constant]

    @property
    def rows(self) -> int:
        """Measured rows behind it."""
        return round(self.values[POINTS].value)

    def value(self, name: str, otherwise: float) -> float:
        """The value of `name`, `otherwise` where there is none."""
        found = self.values.get(name)
        return otherwise if found is None else found.value

    def profile(self) -> Profile:
        """The profile: what was not fitted is inherited."""
        parent = read_profile(PROFILES / f"{self.inherits}.toml")
        own = {name: constant for name, constant in self.values.items() if name in CONSTANTS["full"]}
        return Profile(
            name=self.key.name,
            kind="full",
            status="calibrated",
            engine=self.key.engine,
            architectures=parent.architectures,
            inherits=self.inherits,
            measured_points=self.rows,
            relative_uncertainty=self.values[UNCERTAINTY],
            constants={**parent.constants, **own},
            checksum=checksum(repr(sorted((name, each.value) for name, each in self.values.items())).encode()),
        )


@dataclass(frozen=True)
class Choice:
    """A fitted profile and how near it is: `level` is `own`, or the name of a fallback, whose band is wider."""

    fitted: Fitted
    level: str

    @property
    def uncertainty(self) -> float:
        """u of the 80 % band, rate/(1 + u) to rate*(1 + u)."""
        return self._of(UNCERTAINTY, of_ttft=False)

    @property
    def ttft_uncertainty(self) -> float:
        """The same of the time to first token, where it was measured."""
        return self._of(TTFT_UNCERTAINTY, of_ttft=True)

    def _of(self, name: str, *, of_ttft: bool) -> float:
        own = self.fitted.value(name, fallback_band(DEFAULT, of_ttft))
        return own if self.level == OWN else max(own, fallback_band(self.level, of_ttft))

    @property
    def provenance(self) -> str:
        """Where a number comes from: `calibrated:<profile>:<rows>` or `fallback:<profile>`."""
        name = self.fitted.key.name
        return f"calibrated:{name}:{self.fitted.rows}" if self.level == OWN else f"fallback:{name}"


OWN: Final = "own"
# How a profile may differ from what is asked for, from the nearest: the first of these that there is one for.
OTHER_VERSION: Final = "other_version"
OTHER_FORMAT: Final = "other_format"
OTHER_FAMILY: Final = "other_family"
OTHER_DEVICE: Final = "other_device"
DEFAULT: Final = "default"
LEVELS: Final = (OWN, OTHER_VERSION, OTHER_FORMAT, OTHER_FAMILY, OTHER_DEVICE)


def family_of(fields: Mapping[str, float], blocks: Iterable[Mapping[str, float]]) -> str:
    """`dense`, or for mixtures of experts the shape: layers, hidden size, experts; such models differ too much."""
    blocks = tuple(blocks)
    experts = max((block["experts"] for block in blocks), default=0.0)
    layers = sum(block["count"] for block in blocks)
    return f"moe-{layers:.0f}x{fields['hidden_size']:.0f}x{experts:.0f}" if experts else DENSE


@cache
def fitted_profiles() -> Mapping[str, Fitted]:
    """Every fitted profile by name."""
    values: dict[str, dict[str, Constant]] = {}
    for row in read_rows(VALUES_FILE):
        values.setdefault(row["profile"], {})[row["constant"]] = _constant(row)
    return {
        key.name: Fitted(key, row["inherits"], row["date"], values.get(key.name, {}))
        for row in read_rows(KEYS_FILE)
        for key in [Key(*(row[field] for field in Key._fields))]
    }


def fallback_band(level: str, of_ttft: bool = False) -> float:
    """u of the 80 % band of a fallback, or of the default constants, as found on the shipped measurements."""
    return _fallback_bands()[f"ttft_{level}" if of_ttft else level]


@cache
def _fallback_bands() -> Mapping[str, float]:
    return {row["constant"]: float(row["value"]) for row in read_rows(VALUES_FILE) if row["profile"] == FALLBACKS}


def choice(wanted: Key, architectures: Mapping[str, str]) -> Choice | None:
    """The fitted profile for `wanted`, or the nearest; `architectures` are those of the devices. None if none is near.

    Among equally near ones that of the wanted version, then of no version, then the one with the most rows counts.
    """
    return nearest(wanted, fitted_profiles().values(), architectures)


def nearest(wanted: Key, among: Iterable[Fitted], architectures: Mapping[str, str]) -> Choice | None:
    """The same `among` given ones."""
    found = [(level, one) for one in among if (level := _level(wanted, one.key, architectures)) is not None]
    if not found:
        return None

    def rank(pair: tuple[str, Fitted]) -> tuple[Any, ...]:
        level, one = pair
        key = one.key
        differs = (key.family != wanted.family, key.weight_dtype != wanted.weight_dtype)
        return LEVELS.index(level), differs, bool(wanted.version) and key.version != wanted.version, -one.rows, key.name

    level, best = min(found, key=rank)
    return Choice(best, level)


def _level(wanted: Key, key: Key, architectures: Mapping[str, str]) -> str | None:
    if key.engine != wanted.engine or (key.family == DENSE) != (wanted.family == DENSE):
        return None
    if key.gpu != wanted.gpu:
        alike = architectures.get(key.gpu) == architectures.get(wanted.gpu)
        return OTHER_DEVICE if alike else None
    if key.family != wanted.family:
        return OTHER_FAMILY
    if key.weight_dtype != wanted.weight_dtype:
        return OTHER_FORMAT
    return OWN if not wanted.version or key.version in ("", wanted.version) else OTHER_VERSION


def _constant(row: Row) -> Constant:
    texts = {name: row[name] for name in ("unit", "source", "date", "note")}
    return Constant(value=float(row["value"]), profile=row["profile"], **texts)
