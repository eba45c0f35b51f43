"""Seeded random points that no replica can serve: devices that divide the model badly, or that nothing joins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from reference.architectures import Fields, Random
from reference.links import ranks_are_joined
from reference.parallelism import parallelism_is_valid
from reference.points import Case, cases

PRIME = 7919.0  # divides no width


def with_blocks(case: Case, changed: Callable[[Fields], Fields]) -> Case:
    """The case with every block changed."""
    return replace(case, blocks=tuple(block | changed(block) for block in case.blocks))


def with_row(case: Case, **fields: float | None) -> Case:
    """The case with some fields of its row changed."""
    return replace(case, row=case.row | fields)


def one_more(name: str) -> Callable[[Case], Case]:
    """One more of something in every block that has it."""
    return lambda case: with_blocks(case, lambda block: {name: (block[name] or -1) + 1})


SPOILERS: dict[str, Callable[[Case], Case]] = {
    "query heads": one_more("query_heads"),
    "KV heads": lambda case: with_blocks(case, lambda block: {"kv_heads": 3.0} if (block["kv_heads"] or 0) > 1 else {}),
    "MLP width": one_more("mlp_width"),
    "expert width": one_more("expert_width"),
    "scale blocks": lambda case: with_row(case, weight_block=PRIME),
    "stages": lambda case: with_row(case, pp=sum(block["count"] or 0 for block in case.blocks) + 1),
    "expert ranks": lambda case: with_row(case, ep=(case.row["tp"] or 1) * (case.row["dp"] or 1) + 1),
    "experts": lambda case: with_row(case, tp=1.0, dp=512.0, ep=512.0),
}


def invalid(seed: int, count: int) -> list[Case]:
    """Points with one condition of section 2 broken, each in turn."""
    random = np.random.Generator(np.random.PCG64(seed))
    found: list[Case] = []
    while len(found) < count:
        name = list(SPOILERS)[len(found) % len(SPOILERS)]
        case = SPOILERS[name](anyone(random))
        if not parallelism_is_valid(case.row, case.blocks) and ranks_are_joined(case.row, case.blocks):
            found.append(replace(case, aim=f"invalid: {name}"))
    return found


def unlinked(seed: int, count: int) -> list[Case]:
    """Points whose ranks need a link that the device does not have."""
    random = np.random.Generator(np.random.PCG64(seed))
    found: list[Case] = []
    while len(found) < count:
        case = with_row(anyone(random), pcie_bytes_per_s=None)
        if not ranks_are_joined(case.row, case.blocks):
            found.append(replace(case, aim="unlinked"))
    return found


def anyone(random: Random) -> Case:
    """A random point."""
    return cases(int(random.integers(2**32)), 1)[0]
