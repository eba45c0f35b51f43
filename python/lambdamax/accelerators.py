"""A device and its links, as one row of `data/accelerators.csv`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lambdamax.facts import Row, number, read_rows, required_number

PEAK_COLUMNS: Final = ("bf16_dense_flops", "fp8_dense_flops", "fp4_dense_flops", "int8_dense_ops")
MIB: Final = 2**20
WIRINGS: Final = ("bridge", "mesh", "none", "partial mesh", "ring", "switched", "torus")


@dataclass(frozen=True)
class Accelerator:
    """One device. Bytes, bytes/s, dense FLOP/s (or OP/s); None where the vendor states nothing.

    `scaleup_bytes_per_s` is one direction, all links together; `scaleup_wiring` says how they reach the other devices.
    """

    id: str
    name: str
    vendor: str
    architecture: str
    listed_memory_bytes: float
    driver_reported_mib: float | None
    memory_bandwidth_bytes_per_s: float
    peaks: Mapping[str, float]
    scaleup_bytes_per_s: float | None
    scaleup_domain_size: int
    scaleup_wiring: str
    pcie_bytes_per_s: float | None
    default_profile: str
    source: str
    date: str
    recalled_fields: str
    note: str

    @property
    def memory_bytes(self) -> float:
        """What the driver reports where that is known, else the label read in binary units; no reserve taken off."""
        return self.listed_memory_bytes if self.driver_reported_mib is None else self.driver_reported_mib * MIB

    def link_bytes_per_s(self, tp: int) -> float | None:
        """Scale-up bytes/s, one direction, that `tp` devices of one domain can use.

        In a full mesh each pair has a link of its own, so a small group leaves the links to the others idle.
        """
        meshed = self.scaleup_wiring == "mesh" and 1 < tp < self.scaleup_domain_size
        share = (tp - 1) / (self.scaleup_domain_size - 1) if meshed else 1.0
        return None if self.scaleup_bytes_per_s is None else self.scaleup_bytes_per_s * share


def read_accelerators() -> dict[str, Accelerator]:
    """Every device of the package data, by id."""
    return {row["id"]: accelerator(row) for row in read_rows("accelerators.csv")}


def accelerator(row: Row) -> Accelerator:
    """The device of a row whose cells are as they should be."""
    peaks = {column: value for column in PEAK_COLUMNS if (value := number(row, column)) is not None}
    return Accelerator(
        id=row["id"],
        name=row["name"],
        vendor=row["vendor"],
        architecture=row["architecture"],
        listed_memory_bytes=required_number(row, "memory_bytes"),
        driver_reported_mib=number(row, "driver_reported_mib"),
        memory_bandwidth_bytes_per_s=required_number(row, "memory_bandwidth_bytes_per_s"),
        peaks=peaks,
        scaleup_bytes_per_s=number(row, "scaleup_bytes_per_s_per_direction"),
        scaleup_domain_size=int(row["scaleup_domain_size"]),
        scaleup_wiring=row["scaleup_wiring"],
        pcie_bytes_per_s=number(row, "pcie_bytes_per_s_per_direction"),
        default_profile=row["default_profile"],
        source=row["source_url"],
        date=row["source_date"],
        recalled_fields=row["recalled_fields"],
        note=row["notes"],
    )
