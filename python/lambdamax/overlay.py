"""A directory of facts of the user's own, checked in full, to be laid over those of the package.

It may hold `models.csv` with the config files that it names, `accelerators.csv`, `prices.csv`, `profiles/*.toml` and
`lengths/*.csv`, in the form of the package data. An entry stands beside the shipped ones, or in the place of the one of
its name (a price: of its device, plan and provider).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from lambdamax import schemas
from lambdamax.accelerators import Accelerator, accelerator
from lambdamax.exceptions import CatalogError, Fault
from lambdamax.facts import checksum, read_text
from lambdamax.lengths import LengthTable, read_lengths
from lambdamax.models import Model, catalogue_model
from lambdamax.prices import MEDIAN, PLANS, Book, book
from lambdamax.profiles import Profile, read_profile
from lambdamax.tables import NAME_ALLOWED, Column, Line, is_name, parse_table, repeated

MODELS: Final = "models.csv"
MODEL_CONFIGS: Final = "model_configs"
_ACCELERATORS: Final = "accelerators.csv"
_PRICES: Final = "prices.csv"
_PROFILES: Final = "profiles"
_LENGTHS: Final = "lengths"
_HOLDS: Final = f"a directory with {MODELS}, {_ACCELERATORS}, {_PRICES}, {_PROFILES}/*.toml or {_LENGTHS}/*.csv in it"
_ROUNDING_USD: Final = 1e-4
T = TypeVar("T")


@dataclass(frozen=True)
class Overlay:
    """What a directory adds to the package data; `checksums` has every file that was read, by its path in it."""

    models: Mapping[str, Model] = field(default_factory=dict)
    hub_ids: Mapping[str, str] = field(default_factory=dict)
    accelerators: Mapping[str, Accelerator] = field(default_factory=dict)
    prices: Book = field(default_factory=dict)
    profiles: Mapping[str, Path] = field(default_factory=dict)
    lengths: Mapping[str, LengthTable] = field(default_factory=dict)
    checksums: Mapping[str, str] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """One checksum over all files."""
        return checksum("\n".join(f"{name} {digest}" for name, digest in sorted(self.checksums.items())).encode())


NOTHING: Final = Overlay()


def read_overlay(directory: Path, gpus: Collection[str], profiles: Collection[str]) -> Overlay:
    """What `directory` adds to a catalogue of the devices `gpus` and of `profiles`.

    Raises CatalogError that names every fault: file and line, column or key, value, and what is allowed.
    """
    reading = _Reading(directory)
    own_profiles = reading.profiles()
    devices = reading.accelerators({*profiles, *own_profiles})
    prices = reading.prices({*gpus, *devices})
    models, hub_ids = reading.models()
    tables = reading.lengths()
    if reading.faults:
        raise CatalogError("\n".join(reading.faults))
    return Overlay(models, hub_ids, devices, book(line.row for line in prices), own_profiles, tables, reading.checksums)


def parse_models(text: str, path: Path, faults: list[str]) -> list[Line]:
    """The rows of a `models.csv` with content `text`; what is wrong with them goes to `faults`."""
    lines = parse_table(text, path, schemas.MODELS, faults)
    faults += [*repeated(lines, "name"), *repeated(lines, "hub_id")]
    return lines


def is_within(directory: Path, relative: str) -> bool:
    """Whether `relative` leads to somewhere in `directory`, links followed."""
    if os.path.isabs(relative) or ".." in Path(relative).parts:
        return False
    return Path(os.path.realpath(directory / relative)).is_relative_to(os.path.realpath(directory))


class _Reading:
    """A directory being read, with all that is wrong with it so far."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.checksums: dict[str, str] = {}
        self.faults: list[str] = []
        there = held(directory)
        if not there:
            why = "it holds none of them" if directory.is_dir() else "there is no such directory"
            raise CatalogError(str(Fault(str(directory), "", "", f"{_HOLDS} ({why})")))
        self.held = [name for name in there if self._is_inside(name)]

    def profiles(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for name in self.held:
            if Path(name).suffix == ".toml":
                profile, path = self._tried(read_profile, self.directory / name), self.directory / name
                if profile is not None:
                    self.checksums[name] = profile.checksum
                    self.faults += _profile_faults(path, profile)
                    found[path.stem] = path
        return found

    def accelerators(self, profiles: Collection[str]) -> dict[str, Accelerator]:
        lines = self._table(_ACCELERATORS, schemas.ACCELERATORS)
        self.faults += repeated(lines, "id")
        known = f"one of {', '.join(sorted(profiles))}"
        self.faults += [
            line.fault("default_profile", known) for line in lines if line.row["default_profile"] not in profiles
        ]
        return {line.row["id"]: accelerator(line.row) for line in lines}

    def lengths(self) -> dict[str, LengthTable]:
        found: dict[str, LengthTable] = {}
        for name in self.held:
            if Path(name).suffix == ".csv" and Path(name).parent == Path(_LENGTHS):
                table = self._tried(read_lengths, self.directory / name)
                if table is not None:
                    self.checksums[name] = table.checksum
                    self.faults += _file_name_faults(self.directory / name)
                    found[table.name] = table
        return found

    def prices(self, gpus: Collection[str]) -> list[Line]:
        lines = self._table(_PRICES, schemas.PRICES)
        self.faults += [fault for line in lines for fault in _price_faults(line, gpus)]
        return lines

    def models(self) -> tuple[dict[str, Model], dict[str, str]]:
        text = self._text(MODELS)
        lines = parse_models(text, self.directory / MODELS, self.faults) if text else []
        found = {line.row["name"]: model for line in lines if (model := self._model(line)) is not None}
        return found, {line.row["hub_id"]: line.row["name"] for line in lines if line.row["hub_id"]}

    def _model(self, line: Line) -> Model | None:
        relative = line.row["config_file"]
        if not relative.casefold().endswith(".json") or not is_within(self.directory, relative):
            self.faults.append(line.fault("config_file", f"the path of a .json file in {self.directory}"))
            return None
        model = self._tried(catalogue_model, line.row, self.directory)
        if model is not None:
            self.checksums[relative] = model.checksum
        return model

    def _table(self, name: str, columns: Sequence[Column]) -> list[Line]:
        text = self._text(name)
        return parse_table(text, self.directory / name, columns, self.faults) if text else []

    def _text(self, name: str) -> str:
        """The content of a file, empty if there is none."""
        read = self._tried(read_text, self.directory / name) if name in self.held else None
        if read is None:
            return ""
        self.checksums[name] = read[1]
        return read[0]

    def _tried(self, read: Callable[..., T], *given: object) -> T | None:
        try:
            return read(*given)
        except CatalogError as error:
            self.faults += str(error).splitlines()
            return None

    def _is_inside(self, name: str) -> bool:
        if is_within(self.directory, name):
            return True
        self.faults.append(str(Fault(str(self.directory / name), "", "", "a file, not a link out of the directory")))
        return False


def held(directory: Path) -> list[str]:
    """The files of facts that `directory` holds, by their path in it."""
    tables = [name for name in (MODELS, _ACCELERATORS, _PRICES) if os.path.lexists(directory / name)]
    folders = ((_PROFILES, "*.toml"), (_LENGTHS, "*.csv"))
    files = (f"{folder}/{path.name}" for folder, form in folders for path in sorted((directory / folder).glob(form)))
    return [*tables, *files]


def _file_name_faults(path: Path) -> Iterator[str]:
    if not is_name(path.stem):
        yield str(Fault(str(path), "", "", f"a file with {NAME_ALLOWED}"))


def _profile_faults(path: Path, profile: Profile) -> Iterator[str]:
    if profile.name != path.stem:
        yield str(Fault(str(path), "name", repr(profile.name), f"{path.stem}, as the file is called"))
    yield from _file_name_faults(path)


def _price_faults(line: Line, gpus: Collection[str]) -> Iterator[str]:
    row = line.row
    if row["accelerator_id"] not in gpus:
        yield line.fault("accelerator_id", "the id of an accelerator, shipped or of your own")
    if not row["plan"] and not row["left_out"]:
        yield line.fault("plan", f"one of {', '.join(PLANS)}; empty only with a reason in left_out")
    if row["provider"] == MEDIAN:
        yield line.fault("provider", "the name of a provider; the median is computed")
    quotient = float(row["instance_usd_per_hour"]) / float(row["accelerators_per_instance"])
    if row["usd_per_accelerator_hour"] and abs(float(row["usd_per_accelerator_hour"]) - quotient) > _ROUNDING_USD:
        yield line.fault("usd_per_accelerator_hour", f"{quotient:.12g}, the instance's price per accelerator, or empty")
