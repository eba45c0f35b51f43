"""One engine instance by the names of its parts, and the row of numbers that the engine computes with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from lambdamax.accelerators import Accelerator
from lambdamax.dtypes import KvDtype, WeightDtype
from lambdamax.engines import Engine
from lambdamax.facts import bad
from lambdamax.models import Model
from lambdamax.profiles import CONSTANTS, KINDS, Profile

NATIVE: Final = "native"
LARGEST_DEGREE: Final = 65_536
DEGREES: Final = ("tp", "pp", "dp", "ep")
ENGINE_DEFAULTS: Final = ("max_num_seqs", "max_num_batched_tokens", "memory_utilization")
_COMPONENTS: Final = ("mixer", "mlp", "experts", "head")
_SIXTEEN_BIT: Final = "bf16"
_SIZES: Final = ("hidden_size", "vocab_size", "tied_embeddings", "final_norm_params", "other_params")


@dataclass(frozen=True)
class Deployment:
    """The names that make a replica, in the order of the columns, and its degrees of parallelism."""

    model: str
    gpu: str
    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    weight_dtype: str = NATIVE
    kv_dtype: str = _SIXTEEN_BIT
    engine: str = "vllm"
    profile: str = "default"


@dataclass(frozen=True)
class ReplicaRow:
    """One row of the engine's replicas: `fields` by the engine's names, and the `blocks` of layers of its model.

    `unsupported` is why it cannot be solved; `weight_dtype` is the format that `native` stands for. `provenance` says
    where the constants are from; rates are good to within a factor of 1 + `uncertainty`, four times out of five.
    """

    fields: Mapping[str, float]
    blocks: tuple[Mapping[str, float], ...]
    unsupported: str | None
    profile: str
    weight_dtype: str
    provenance: str = "default"
    uncertainty: float = 0.0

    def band(self, rate_rps: float) -> dict[str, float]:
        """The ends of the 80 % band around a largest rate, by column."""
        factor = 1.0 + self.uncertainty
        return {"max_rate_low_rps": rate_rps / factor, "max_rate_high_rps": rate_rps * factor}


@dataclass(frozen=True)
class Formats:
    """The weight format of each kind of matrix, and the columns that share a scale."""

    mixer: WeightDtype
    mlp: WeightDtype
    experts: WeightDtype
    head: WeightDtype
    block_size: int

    @classmethod
    def of(cls, model: Model, name: str, known: Mapping[str, WeightDtype]) -> Formats:
        """`name` on `model`: as its checkpoint is stored where that is the format; else every matrix of the layers."""
        stored = model.checkpoint
        if name in (NATIVE, stored.dtype):
            mixer, mlp, experts, head = (known[getattr(stored, part)] for part in _COMPONENTS)
            return cls(mixer, mlp, experts, head, stored.block_size)
        return cls(known[name], known[name], known[name], known[_SIXTEEN_BIT], block_size=1)

    def refused_by(self, accelerator: Accelerator) -> str | None:
        """Why `accelerator` cannot compute in one of them, None if it can."""
        return next(filter(None, (dtype.unsupported_on(accelerator) for dtype in self._parts)), None)

    def fields(self, accelerator: Accelerator) -> Iterator[tuple[str, float]]:
        """Bits and peaks by the engine's names."""
        for name, dtype in zip(("mixer", "mlp", "expert"), self._parts, strict=False):
            yield f"{name}_bits", dtype.bits
            yield f"{name}_flops", dtype.peak_on(accelerator)
        yield "head_bits", self.head.bits
        yield "weight_block", float(self.block_size)

    @property
    def _parts(self) -> tuple[WeightDtype, ...]:
        return self.mixer, self.mlp, self.experts, self.head


def named_format(model: Model, weight_dtype: str) -> str:
    """The format that `weight_dtype` is on `model`, where it may be `native`."""
    return model.checkpoint.dtype if weight_dtype == NATIVE else weight_dtype


@dataclass(frozen=True)
class Parts:
    """What one replica is made of; `degrees` are tp, pp, dp and ep."""

    model: Model
    accelerator: Accelerator
    degrees: tuple[int, int, int, int]
    formats: Formats
    weight_dtype: str
    kv_dtype: KvDtype
    engine: Engine
    profile: Profile
    provenance: str
    uncertainty: float

    def row(self) -> ReplicaRow:
        """What the row lacks is NaN. A combination that exists but cannot be sized has `supported` 0 and the reason."""
        why = self._unsupported()
        named = named_format(self.model, self.weight_dtype)
        fields = {"model": math.nan, **self._fields(), "supported": float(why is None)}
        source = self.profile.name, named, self.provenance, self.uncertainty
        return ReplicaRow(fields, self.model.facts, why, *source)

    def _unsupported(self) -> str | None:
        if self.model.unsupported is not None:
            return f"{self.model.name}: {self.model.unsupported}"
        return self.formats.refused_by(self.accelerator) or self._unlinked()

    def _fields(self) -> dict[str, float]:
        return {
            **self._sizes(),
            **dict(self.formats.fields(self.accelerator)),
            "kv_bytes_per_element": self.kv_dtype.bytes_per_element,
            **self._device_fields(),
            **dict(zip(DEGREES, map(float, self.degrees), strict=True)),
            **{f"default_{name}": self._setting(name) for name in ENGINE_DEFAULTS},
            "kv_padding": self._setting("kv_padding"),
            "multimodal": float(self.model.architecture is not None and self.model.architecture.other_params > 0),
            **self.engine.memory_constants(self.accelerator, self.degrees[0]),
            **self._profile_fields(),
        }

    def _sizes(self) -> dict[str, float]:
        made_of = self.model.architecture
        return {name: math.nan if made_of is None else float(getattr(made_of, name)) for name in _SIZES}

    def _device_fields(self) -> dict[str, float]:
        device = self.accelerator
        return {
            "accelerator_memory_bytes": device.memory_bytes,
            "memory_bandwidth_bytes_per_s": device.memory_bandwidth_bytes_per_s,
            "attention_flops": device.peaks["bf16_dense_flops"],
            "scaleup_bytes_per_s": _or_nan(device.scaleup_bytes_per_s),
            "scaleup_domain_size": float(device.scaleup_domain_size),
            "scaleup_mesh": float(device.scaleup_wiring == "mesh"),
            "pcie_bytes_per_s": _or_nan(device.pcie_bytes_per_s),
        }

    def _profile_fields(self) -> dict[str, float]:
        constants = {name: math.nan for kind in KINDS for name in CONSTANTS[kind]}
        stated = {name: constant.value for name, constant in self.profile.constants.items()}
        return {"kind": float(KINDS.index(self.profile.kind)), **constants, **stated}

    def _setting(self, name: str) -> float:
        return self.engine.setting(name, self.accelerator, self.degrees[0]).value

    def _unlinked(self) -> str | None:
        device, (tp, pp, dp, _) = self.accelerator, self.degrees
        group = tp * pp * dp
        within = group <= device.scaleup_domain_size and device.scaleup_bytes_per_s is not None
        if group == 1 or within or device.pcie_bytes_per_s is not None:
            return None
        named = f"tp {tp}" if group == tp else f"tp {tp} x pp {pp} x dp {dp}"
        return f"{named}: {device.id} has a domain of {device.scaleup_domain_size} and no PCIe figure"


def checked_degrees(at: Deployment) -> tuple[int, int, int, int]:
    """The degrees of parallelism of `at`; CatalogError for one that is not a whole number in range."""
    degrees = (at.tp, at.pp, at.dp, at.ep)
    for name, degree in zip(DEGREES, degrees, strict=True):
        if type(degree) is not int or not 1 <= degree <= LARGEST_DEGREE:
            raise bad("replica", name, degree, f"a whole number from 1 to {LARGEST_DEGREE}")
    return degrees


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
