"""A model as the catalogue knows it: where it comes from and what it is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from lambdamax.architecture import (
    Architecture,
    Attention,
    Block,
    Checkpoint,
    LatentAttention,
    Recurrent,
    Unsupported,
    block_facts,
)
from lambdamax.facts import Row
from lambdamax.hub import read_config

_SIXTEEN_BIT: Final = Checkpoint("bf16")


@dataclass(frozen=True)
class Model:
    """A model with its source; `architecture` is None if it is `unsupported`, which names the field and why.

    `published_params` and `published_active_params` are what its maker states, None where that is not known.
    """

    name: str
    source: str
    date: str
    checksum: str
    architecture: Architecture | None
    unsupported: str | None = None
    published_params: float | None = None
    published_active_params: float | None = None
    note: str = ""

    @classmethod
    def at(cls, path: Path) -> Model:
        """The model that a `config.json` describes, named after its directory; another .json after itself.

        Raises CatalogError if the file cannot be read.
        """
        named_after = path if path.name != "config.json" else path.resolve().parent
        name = named_after.stem if named_after.suffix == ".json" else named_after.name
        return cls.read(path, name or str(path), source=str(path), date="")

    @classmethod
    def read(  # the facts that stand beside a config
        cls,
        path: Path,
        name: str,
        *,
        source: str,
        date: str,
        published_params: float | None = None,
        published_active_params: float | None = None,
        note: str = "",
    ) -> Model:
        """The model in the file at `path`, under `name`."""
        found, digest = read_config(path)
        notes = () if isinstance(found, Unsupported) else found.notes
        return cls(
            name,
            source,
            date,
            digest,
            None if isinstance(found, Unsupported) else found,
            found.reason if isinstance(found, Unsupported) else None,
            published_params,
            published_active_params,
            "; ".join(filter(None, (note, *notes))),
        )

    @property
    def layers(self) -> int:
        """Number of layers, 0 if unsupported."""
        return sum(block.count for block in self._blocks)

    @property
    def checkpoint(self) -> Checkpoint:
        """How the published weights are stored."""
        return (self.architecture and self.architecture.checkpoint) or _SIXTEEN_BIT

    @cached_property
    def facts(self) -> tuple[Mapping[str, float], ...]:
        """The blocks of layers as the engine takes them."""
        return tuple(block_facts(block, self.architecture.hidden_size) for block in self._blocks if self.architecture)

    @cached_property
    def layer_counts(self) -> dict[str, int]:
        """Layers by kind of attention or recurrence, and those with experts."""
        counts: Counter[str] = Counter()
        for block in self._blocks:
            counts[_kind(block)] += block.count
            counts["experts"] += block.count if block.experts else 0
        return {kind: count for kind, count in counts.items() if count}

    @property
    def _blocks(self) -> tuple[Block, ...]:
        return self.architecture.blocks if self.architecture else ()


def catalogue_model(row: Row, folder: Path) -> Model:
    """The model of a row of `models.csv`, which stands in `folder`; CatalogError if its config cannot be read."""
    return Model.read(
        folder / row["config_file"],
        row["name"],
        source=row["source_url"],
        date=row["source_date"],
        published_params=_billions(row, "published_parameters_1e9"),
        published_active_params=_billions(row, "published_active_parameters_1e9"),
        note=row["notes"],
    )


def _billions(row: Row, column: str) -> float | None:
    return float(round(float(row[column]) * 1e9)) if row[column] else None


def _kind(block: Block) -> str:
    match block.mixer:
        case Attention(sparse=None, span=span):
            return f"{span.kind}_attention"
        case LatentAttention(sparse=None):
            return "latent_attention"
        case Attention() | LatentAttention():
            return "sparse_attention"
        case Recurrent():
            return "recurrent"
    return "no_attention"
