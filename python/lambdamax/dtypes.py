"""Number formats of weights and KV cache, as rows of `data/dtypes.csv`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from lambdamax.accelerators import Accelerator
from lambdamax.facts import read_rows

_SIXTEEN_BIT_PEAK: Final = "bf16_dense_flops"


@dataclass(frozen=True)
class WeightDtype:
    """`bits` per parameter, block scales included, and the peak (`peak_column` of a device) that its GEMMs run at.

    Devices of `weight_only_vendors` that lack that peak run kernels that widen the weights and compute in 16 bits.
    """

    name: str
    bits: float
    peak_column: str
    vendors: tuple[str, ...]
    weight_only_vendors: tuple[str, ...]
    source: str
    date: str
    note: str

    def unsupported_on(self, accelerator: Accelerator) -> str | None:
        """Why `accelerator` cannot compute in this format, None if it can."""
        if accelerator.vendor in self.weight_only_vendors:
            return None
        if self.peak_column not in accelerator.peaks:
            return f"weight_dtype {self.name}: {accelerator.id} lists no {self.peak_column}, which it needs"
        if self.vendors and accelerator.vendor not in self.vendors:
            only = ", ".join(self.vendors)
            return f"weight_dtype {self.name}: runs on {only} only, {accelerator.id} is {accelerator.vendor}"
        return None

    def peak_on(self, accelerator: Accelerator) -> float:
        """Dense peak of GEMMs in this format on `accelerator` [FLOP/s], NaN if it cannot compute in it."""
        if self.unsupported_on(accelerator):
            return math.nan
        return accelerator.peaks.get(self.peak_column, accelerator.peaks[_SIXTEEN_BIT_PEAK])


@dataclass(frozen=True)
class KvDtype:
    """`bytes_per_element` of a key or value in the cache."""

    name: str
    bytes_per_element: float
    source: str
    date: str
    note: str


def read_weight_dtypes() -> dict[str, WeightDtype]:
    """Every weight format of the package data, by name."""
    rows = [row for row in read_rows("dtypes.csv") if row["use"] == "weight"]
    return {
        row["name"]: WeightDtype(
            name=row["name"],
            bits=float(row["value"]),
            peak_column=row["peak_column"],
            vendors=tuple(row["vendors"].split()),
            weight_only_vendors=tuple(row["weight_only_vendors"].split()),
            source=row["source"],
            date=row["source_date"],
            note=row["note"],
        )
        for row in rows
    }


def read_kv_dtypes() -> dict[str, KvDtype]:
    """Every KV-cache format of the package data, by name."""
    rows = [row for row in read_rows("dtypes.csv") if row["use"] == "kv"]
    return {
        row["name"]: KvDtype(row["name"], float(row["value"]), row["source"], row["source_date"], row["note"])
        for row in rows
    }
