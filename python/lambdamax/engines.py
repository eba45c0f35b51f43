"""Serving engines and their defaults by device and TP, as rows of `data/engines.csv`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Final

from lambdamax.accelerators import Accelerator
from lambdamax.facts import Row, read_rows

# The constants of the engine's memory model, by the names that it reads.
MEMORY_CONSTANTS: Final = (
    "activation_workspace_bytes",
    "forward_hidden_copies",
    "multimodal_hidden_copies",
    "sampler_bytes_per_logit",
    "non_torch_bytes",
    "graph_bytes_per_layer",
    "driver_hidden_bytes",
    "graphs_in_budget",
    "memory_fraction_of",
)


@dataclass(frozen=True)
class Setting:
    """One default of an engine and the devices it holds for."""

    constant: str
    value: float
    unit: str
    vendors: tuple[str, ...]
    minimum_memory_bytes: float
    only_id_prefix: str
    except_id_prefix: str
    link: str
    minimum_tp: int
    source: str
    date: str
    note: str

    def holds_for(self, accelerator: Accelerator, tp: int) -> bool:
        """Whether this row is about `accelerator` in a group of `tp`."""
        excepted = bool(self.except_id_prefix) and accelerator.id.startswith(self.except_id_prefix)
        vendor = not self.vendors or accelerator.vendor in self.vendors
        named = vendor and not excepted and accelerator.id.startswith(self.only_id_prefix)
        linked = self.link != "scaleup" or _scaled_up(accelerator, tp)
        return named and linked and accelerator.memory_bytes >= self.minimum_memory_bytes and tp >= self.minimum_tp


@dataclass(frozen=True)
class Engine:
    """A serving engine. Of the settings of one name the first that holds for a device is its default there."""

    name: str
    settings: tuple[Setting, ...]

    def setting(self, constant: str, accelerator: Accelerator, tp: int = 1) -> Setting:
        """The default of `constant` on `accelerator`, with its unit, source and note."""
        key = (constant, accelerator.id, tp)
        if key not in self._found:
            self._found[key] = next(s for s in self.settings if s.constant == constant and s.holds_for(accelerator, tp))
        return self._found[key]

    def memory_constants(self, accelerator: Accelerator, tp: int = 1) -> dict[str, float]:
        """The constants of the memory model on `accelerator` in a group of `tp`, by name."""
        return {name: self.setting(name, accelerator, tp).value for name in MEMORY_CONSTANTS}

    @cached_property
    def _found(self) -> dict[tuple[str, str, int], Setting]:
        """Settings looked up before: a sweep asks for the same few, once for each of its replicas."""
        return {}


def read_engines() -> dict[str, Engine]:
    """Every engine of the package data, by name."""
    grouped = groupby(read_rows("engines.csv"), key=lambda row: row["engine"])
    return {name: Engine(name, tuple(_settings(rows))) for name, rows in grouped}


def _scaled_up(accelerator: Accelerator, tp: int) -> bool:
    return accelerator.scaleup_bytes_per_s is not None and tp <= accelerator.scaleup_domain_size


def _settings(rows: Iterator[Row]) -> Iterator[Setting]:
    for row in rows:
        yield Setting(
            constant=row["constant"],
            value=float(row["value"]),
            unit=row["unit"],
            vendors=tuple(row["vendors"].split()),
            minimum_memory_bytes=float(row["minimum_memory_bytes"]),
            only_id_prefix=row["only_id_prefix"],
            except_id_prefix=row["except_id_prefix"],
            link=row["link"],
            minimum_tp=int(row["minimum_tp"]),
            source=row["source"],
            date=row["source_date"],
            note=row["note"],
        )
