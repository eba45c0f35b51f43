"""What published tables call models, devices, engines and formats, and what the catalogue calls them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Final

from lambdamax.catalog import Catalog
from lambdamax.facts import read_rows
from lambdamax.replicas import NATIVE

NAMES_FILE: Final = "published_names.csv"
_GEMM: Final = re.compile(r"gemm=(\w+)")
_FOUR_BIT: Final = frozenset({"nvfp4", "mxfp4"})


class PublishedNames:
    """Names of the catalogue for published ones; None where it has none."""

    def __init__(self, catalog: Catalog) -> None:
        """Look names up in `catalog`."""
        self._catalog = catalog

    def gpu(self, published: str) -> str | None:
        """The device: an id of the catalogue, or another name of one."""
        return self._named("gpu", published, self._catalog.accelerators)

    def engine(self, published: str, version: str | None) -> str | None:
        """The serving engine, that of the `version` where the catalogue has one of its own."""
        name = self._named("engine", published, self._catalog.engines)
        own = f"{name}-{minor(version)}"
        return own if own in self._catalog.engines else name

    def model(self, published: str) -> str | None:
        """The model: a catalogue name, a hub id, or a model of the same shape."""
        short = published.rpartition("/")[2]
        return self._named("model", published, ()) or self._named("model", short, self._catalog.models)

    def weight_dtype(self, published: str | None, model: str, notes: str) -> tuple[str, str] | None:
        """The model whose checkpoint has that format, and the format.

        Blank is what the notes say of GEMMs, else `native`, the format of the checkpoint. A published FP4 of a model
        whose FP4 checkpoint is in the catalogue is that checkpoint.
        """
        stated = published or self._of_gemms(notes)
        if stated is None:
            return model, NATIVE
        known = tuple(name for name in self._catalog.weight_dtypes if name != NATIVE)
        name = self._named("weight dtype", stated, known)
        if name is None:
            return None
        stored = self._catalog.model(model).checkpoint.dtype
        if name == stored or (name in _FOUR_BIT and stored in _FOUR_BIT):
            return model, NATIVE
        sibling = self._others["fp4 model"].get(_slug(model)) if name in _FOUR_BIT else None
        return (sibling, NATIVE) if sibling else (model, name)

    def kv_dtype(self, published: str | None) -> str | None:
        """The KV format; blank is bf16."""
        return self._named("kv dtype", published or "auto", self._catalog.kv_dtypes)

    def prompt_tokens(self, notes: str) -> float | None:
        """The mean prompt assumed for a workload that the notes name."""
        return next((float(tokens) for name, tokens in self._others["prompt tokens"].items() if name in notes), None)

    @cached_property
    def _others(self) -> Mapping[str, Mapping[str, str]]:
        found: dict[str, dict[str, str]] = {}
        for row in read_rows(NAMES_FILE):
            found.setdefault(row["kind"], {})[_slug(row["published"])] = row["name"] or row["value"]
        return found

    def _named(self, kind: str, published: str, known: tuple[str, ...]) -> str | None:
        slug = _slug(published)
        return slug if slug in known else self._others.get(kind, {}).get(slug)

    @staticmethod
    def _of_gemms(notes: str) -> str | None:
        found = _GEMM.search(notes)
        return found[1] if found else None


def minor(version: str | None) -> str:
    """Major and minor number of a version such as v0.11.1, empty where there is none."""
    found = re.match(r"v?(\d+\.\d+)", version or "")
    return found[1] if found else ""


def _slug(text: str) -> str:
    return re.sub(r"[\s]+", "-", text.strip().casefold())
