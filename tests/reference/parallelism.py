"""Section 2 of docs/model.md: how a replica's devices divide the model, and which divisions there are."""

from __future__ import annotations

import math
from dataclasses import dataclass

from reference.fields import Blocks, Row, default, field


@dataclass(frozen=True)
class Parallelism:
    """`tp` ranks cut the matrices, `pp` stages the layers, `dp` ranks the requests, `ep` ranks the experts."""

    tp: int
    pp: int
    dp: int
    ep: int
    layers: int

    @property
    def slots(self) -> int:
        """S: how many independent batches are under way."""
        return self.pp * self.dp

    @property
    def devices(self) -> int:
        """Accelerators of the replica."""
        return self.tp * self.pp * self.dp

    @property
    def stage(self) -> float:
        """Share of the layers on the fullest stage."""
        return math.ceil(self.layers / self.pp) / self.layers

    @property
    def pace(self) -> float:
        """phi: how much longer the layers take because the fullest stage sets the pace."""
        return self.stage * self.pp


def parallelism(row: Row, blocks: Blocks) -> Parallelism:
    """The division that a row asks for, valid or not."""
    tp, pp, dp, ep = (int(field(row, name)) for name in ("tp", "pp", "dp", "ep"))
    return Parallelism(tp, pp, dp, ep, sum(int(field(block, "count")) for block in blocks))


def parallelism_is_valid(row: Row, blocks: Blocks) -> bool:
    """Whether every head, column, expert and stage finds its rank."""
    cut = parallelism(row, blocks)
    granule = int(default(row, "weight_block", 1.0))
    mixers = all(heads_divide(block, cut.tp) for block in blocks)
    widths = all(divides(int(field(block, "mlp_width")), cut.tp, granule) for block in blocks)
    return mixers and widths and cut.pp <= cut.layers and experts_divide(blocks, cut, granule)


def heads_divide(block: Row, tp: int) -> bool:
    """Query heads split evenly; KV heads, where there are any, split or are replicated evenly."""
    heads, kv_heads = int(field(block, "query_heads")), int(field(block, "kv_heads"))
    return heads % tp == 0 and (kv_heads % tp == 0 or tp % kv_heads == 0)


def experts_divide(blocks: Blocks, cut: Parallelism, granule: int) -> bool:
    """Each rank has whole experts, or an even slice of every one; a model without any has no expert parallelism."""
    routed = [block for block in blocks if field(block, "experts") > 0]
    if cut.ep != 1:
        return bool(routed) and cut.ep == cut.tp * cut.dp and all(cut.ep <= field(block, "experts") for block in routed)
    return all(divides(int(field(block, "expert_width")), cut.tp * cut.dp, granule) for block in routed)


def divides(width: int, ranks: int, granule: int) -> bool:
    """Whether `ranks` get equal shares of a width, each of whole granules; one rank takes it as it is."""
    return ranks == 1 or width % (ranks * granule) == 0
