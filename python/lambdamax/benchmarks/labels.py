"""Labels of benchmark files, matched with the names of the catalogue; no match is None, never a guess."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

from lambdamax.catalog import Catalog
from lambdamax.exceptions import CatalogError
from lambdamax.facts import read_rows

LABELS: Final = "benchmark_labels.csv"
# What a name may carry besides the architecture: formats, fine-tuning, the date of a checkpoint.
_BESIDES: Final = re.compile(
    r"[-_.](?:instruct|chat|it|hf|base|kv|dynamic|quantized|meta|bnb|awq|gptq|fp8|fp4|nvfp4|mxfp4|bf16|int4|int8"
    r"|w4a16|w8a16|w8a8|\d{4})(?=$|[-_.])"
)
_SIZE: Final = re.compile(r"(?<![\w.])(\d{1,4}(?:\.\d{1,2})?)[bB](?![A-Za-z0-9])")
_A_SIZE: Final = re.compile(r"\d{1,4}(?:\.\d{1,2})?B")
_SPARSE: Final = re.compile(r"\d[xX]\d|[aA]\d{1,3}(?:\.\d)?[bB]|[mM]o[eE]")
_BEFORE: Final = re.compile(r"^(?:meta-|nvidia-)")


def gpu_of(label: str | None, catalog: Catalog) -> str | None:
    """The device that `label` names; of several with that name the fastest, so that it bounds all of them."""
    return _of("gpu", label, catalog.accelerators)


def weight_dtype_of(label: str | None, catalog: Catalog) -> str | None:
    """The weight format that `label` names."""
    return _of("weight_dtype", label, catalog.weight_dtypes)


def model_of(label: str | None, catalog: Catalog) -> str | None:
    """The model that has the architecture of `label`: by name, hub id or path, else one of the same family name.

    A checkpoint in other formats has the same matrices: say the format by the weight label.
    """
    if not label:
        return None
    try:
        name = catalog.model(label).name
        return name if name in catalog.models else label
    except CatalogError:
        alike = [name for name in catalog.models if _core(name) == _core(label)]
        return min(alike, key=len, default=None)


def stated_size(name: str) -> float | None:
    """Parameters in billions where `name` is what `size_of` gives, else None."""
    return float(name[:-1]) if _A_SIZE.fullmatch(name) else None


def size_of(label: str | None) -> str | None:
    """The size that a dense model's name states, such as `70B`; None for names that state active parameters too."""
    found = _SIZE.findall(label or "")
    return None if len(set(found)) != 1 or _SPARSE.search(label or "") else f"{found[0]}B"


def refuse_unknown(facts: Mapping[str, str | None], catalog: Catalog) -> None:
    """Raise CatalogError naming every model, gpu and weight_dtype of `facts` that nothing in the catalogue matches."""
    lookups: tuple[tuple[str, Callable[[str], str | None], Callable[[str], object]], ...] = (
        ("model", lambda name: model_of(name, catalog) or size_of(name), catalog.model),
        ("gpu", lambda name: gpu_of(name, catalog), catalog.accelerator),
        ("weight_dtype", lambda name: weight_dtype_of(name, catalog), catalog.weight_dtype),
    )
    said = []
    for column, matched, named in lookups:
        name = facts.get(column)
        if name and matched(name) is None:
            try:
                named(name)
            except CatalogError as error:
                said.append(str(error))
    if said:
        raise CatalogError("\n".join(said))


def _of(column: str, label: str | None, known: tuple[str, ...]) -> str | None:
    if not label:
        return None
    folded = label.casefold()
    return folded if folded in known else _table(column).get(folded)


@cache
def _table(column: str) -> dict[str, str]:
    return {row["label"].casefold(): row["name"] for row in read_rows(LABELS) if row["column"] == column}


def _core(name: str) -> str:
    found = _BEFORE.sub("", name.rpartition("/")[2].casefold().replace("_", "."))
    before = ""
    while before != found:
        before, found = found, _BESIDES.sub("", found)
    return found
