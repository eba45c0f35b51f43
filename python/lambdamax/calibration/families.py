"""Which rows share constants: engine and version, device, format, and the family of models."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lambdamax.architecture import SPAN_KINDS
from lambdamax.calibration.published import minor
from lambdamax.calibration.rows import Measured, curves
from lambdamax.fitted import DENSE, Key

FEWEST_ROWS: Final = 6
FEWEST_OF_A_VERSION: Final = 8
FEWEST_CURVES: Final = 2
# A family with so many groups is a pool of its own; the others are pooled by their format.
MANY_SIBLINGS: Final = 5
CHUNKED: Final = float(SPAN_KINDS.index("chunked"))
_AWQ: Final = re.compile(r"\bAWQ\b")
# The version of vLLM from which AWQ checkpoints run on the Marlin kernels.
FAST_AWQ: Final = (0, 6)
_ORIGIN: Final = re.compile(r"origin=(\S+)")


@dataclass(frozen=True)
class Group:
    """The places of rows that share a profile, and the pool of its kind of benchmark."""

    key: Key
    places: tuple[int, ...]
    pool: str

    @property
    def is_enough(self) -> bool:
        """Whether a profile of its own is worth it; whole curves are held out, so there are two at least."""
        return len(self.places) >= FEWEST_ROWS


def groups(rows: Sequence[Measured]) -> tuple[Group, ...]:
    """Every row in one group: by version where one has enough rows, the others of a kind together."""
    found: dict[Key, list[int]] = {}
    for place, row in enumerate(rows):
        found.setdefault(key_of(row), []).append(place)
    merged: dict[Key, list[int]] = {}
    for key, places in found.items():
        own = len(places) >= FEWEST_OF_A_VERSION and _curves(rows, places) >= FEWEST_CURVES
        merged.setdefault(key if own else key._replace(version=""), []).extend(places)
    names = _pools(rows, merged)
    return tuple(Group(key, tuple(places), names[key]) for key, places in sorted(merged.items()))


def key_of(row: Measured) -> Key:
    """What a row belongs to. Old engines had kernels of their own for AWQ, much slower than those for GPTQ."""
    version = minor(row.version)
    named = version and f"v{version}"
    if row.engine == "vllm" and version and tuple(map(int, version.split("."))) < FAST_AWQ and _AWQ.search(row.notes):
        named += "-awq"
    return Key(row.engine, named, row.at.gpu, row.weight_dtype, row.family)


def _curves(rows: Sequence[Measured], places: Iterable[int]) -> int:
    return curves(rows[place] for place in places)


def _pools(rows: Sequence[Measured], merged: Mapping[Key, Sequence[int]]) -> dict[Key, str]:
    """The pool of each group: engine and kind of benchmark, and of mixtures of experts what they are alike in.

    That is the family, or the format; but attention in chunks takes an engine so much longer a layer that its models
    are alike whatever their format, and ranks that share experts only exchange tokens in ways of their own.
    """
    origins = {key: f"{key.engine} {_commonest(rows, places)}" for key, places in merged.items()}
    siblings = Counter((origins[key], key.family) for key in merged)

    def alike(key: Key, places: Sequence[int]) -> str:
        if key.family == DENSE:
            return DENSE
        if any(block["span_kind"] == CHUNKED for block in rows[places[0]].replica.blocks):
            return "experts in chunks"
        kind = key.family if siblings[origins[key], key.family] >= MANY_SIBLINGS else f"experts {key.weight_dtype}"
        shared = sum(rows[place].at.dp > 1 for place in places)
        return f"{kind} dp" if 2 * shared > len(places) else kind

    return {key: f"{origins[key]} {alike(key, places)}" for key, places in merged.items()}


def _commonest(rows: Sequence[Measured], places: Iterable[int]) -> str:
    counts = Counter(_origin(rows[place]) for place in places)
    return max(counts, key=lambda name: (counts[name], name))


def _origin(row: Measured) -> str:
    found = _ORIGIN.search(row.notes)
    return f"{row.origin['source']} {found[1] if found else ''}".strip()
