"""Serving engines and their defaults by device and TP, as rows of `data/engines.csv`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from lambdamax.accelerators import Accelerator
from lambdamax.facts import Row, read_rows


@dataclass(frozen=True)
class Setting:
    """One default of an engine and the devices it holds for."""

    constant: str
    value: float
    unit: str
    vendors: tuple[str, ...]
    minimum_memory_bytes: float
    except_id_prefix: str
    minimum_tp: int
    source: str
    date: str
    note: str

    def holds_for(self, accelerator: Accelerator, tp: int) -> bool:
        """Whether this row is about `accelerator` in a group of `tp`."""
        excepted = bool(self.except_id_prefix) and accelerator.id.startswith(self.except_id_prefix)
        vendor = not self.vendors or accelerator.vendor in self.vendors
        return (
            vendor and not excepted and accelerator.memory_bytes >= self.minimum_memory_bytes and tp >= self.minimum_tp
        )


@dataclass(frozen=True)
class Engine:
    """A serving engine. Of the settings of one name the first that holds for a device is its default there."""

    name: str
    settings: tuple[Setting, ...]

    def setting(self, constant: str, accelerator: Accelerator, tp: int = 1) -> Setting:
        """The default of `constant` on `accelerator`, with its unit, source and note."""
        return next(s for s in self.settings if s.constant == constant and s.holds_for(accelerator, tp))


def read_engines() -> dict[str, Engine]:
    """Every engine of the package data, by name."""
    grouped = groupby(read_rows("engines.csv"), key=lambda row: row["engine"])
    return {name: Engine(name, tuple(_settings(rows))) for name, rows in grouped}


def _settings(rows: Iterator[Row]) -> Iterator[Setting]:
    for row in rows:
        yield Setting(
            constant=row["constant"],
            value=float(row["value"]),
            unit=row["unit"],
            vendors=tuple(row["vendors"].split()),
            minimum_memory_bytes=float(row["minimum_memory_bytes"]),
            except_id_prefix=row["except_id_prefix"],
            minimum_tp=int(row["minimum_tp"]),
            source=row["source"],
            date=row["source_date"],
            note=row["note"],
        )
