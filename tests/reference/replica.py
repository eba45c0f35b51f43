"""A point on a replica that can be solved: what fits, the curve of one slot and where it ends, and rates on it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reference.curve import Curve, curve
from reference.fields import Blocks, Row, default, field
from reference.links import ranks_are_joined
from reference.parallelism import parallelism_is_valid
from reference.search import Pieces, Root, cut, pieces, smallest_root, top
from reference.shard import Shard, rank_pool_tokens, shard
from reference.step import step
from reference.workload import Workload, workload


@dataclass(frozen=True)
class Replica:
    """What fits on a replica, and the curve of one slot. Roots and rates are a slot's."""

    part: Shard
    pool_tokens: float  # of a slot
    seats: float  # of a slot
    load: Workload
    curve: Curve
    top: Root
    pieces: Pieces  # of [0, B*]
    tpot_floor_s: float

    @property
    def slots(self) -> int:
        """S: what belongs to the replica is that many times a slot's."""
        return self.part.cut.slots

    @property
    def gpus(self) -> int:
        """Accelerators."""
        return self.part.cut.devices


def replica(row: Row, blocks: Blocks, point: Row, others: float | None = None) -> Replica | str:
    """Set up a point, or the status of one that cannot be solved. `others`: as of a `Curve`."""
    if default(row, "supported", 1.0) == 0 or not ranks_are_joined(row, blocks):
        return "unsupported"
    if not parallelism_is_valid(row, blocks):
        return "invalid_parallelism"
    part = shard(row, blocks)
    pool = rank_pool_tokens(row, point, part)
    load = workload(row, point)
    if pool <= 0 or pool < load.mean_prompt + load.mean_output + load.shared_blocks:
        return "does_not_fit"
    its_curve = curve(row, part, step(row, blocks, part), load, others)
    whole = pieces(its_curve)
    peak = top(its_curve, whole)
    return Replica(
        part=part,
        pool_tokens=pool / part.cut.pp,
        seats=load.seats / part.cut.pp,
        load=load,
        curve=its_curve,
        top=peak,
        pieces=cut(its_curve, whole, peak),
        tpot_floor_s=part.weight_read_bytes / field(row, "memory_bandwidth_bytes_per_s"),
    )


def rate_at(solvable: Replica, root: Root) -> float:
    """lambda at a root; 0 where the limit is exceeded at B = 0+."""
    return 0.0 if root.at_start else float(solvable.curve.rate(np.array([root.b]), root.k[None, :])[0])


def root_at_rate(solvable: Replica, rate: float, known: Root | None = None) -> Root:
    """The smallest B with lambda(B) = rate, B* if rounding hides it; `known` is a B whose rate may be this one."""
    at_known = known is not None and rate_at(solvable, known) == rate
    hint = known if at_known else None
    found = smallest_root(solvable.curve, solvable.pieces, lambda state: state.rate, rate, hint)
    return solvable.top if found is None else found
