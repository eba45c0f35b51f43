"""Section 3 of docs/model.md: what the devices of a replica say to each other in one iteration."""

from __future__ import annotations

import math
from dataclasses import dataclass

from reference.fields import Blocks, Row, default, field, given
from reference.parallelism import Parallelism, parallelism

ELEMENT_BYTES = 2


@dataclass(frozen=True)
class Link:
    """What joins the devices of a group: its speed, and the latency of one collective over the group."""

    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True)
class Communication:
    """All of an iteration's: seconds whatever the batch, and seconds per token of it."""

    fixed_s: float
    s_per_token: float


def link(row: Row, group: int, reach: int) -> Link | None:
    """The link of a `group` within `reach` devices: scale-up if it reaches so far, else PCIe; None if neither does."""
    scaleup, pcie = given(row, "scaleup_bytes_per_s"), given(row, "pcie_bytes_per_s")
    domain = field(row, "scaleup_domain_size")
    if scaleup is not None and reach <= domain:
        meshed = default(row, "scaleup_mesh", 0.0) and group > 1
        speed = scaleup * (group - 1) / (domain - 1) if meshed else scaleup
        return timed(row, "allreduce", field(row, "allreduce_bandwidth_efficiency") * speed, group)
    if pcie is None:
        return None
    return timed(row, "pcie_allreduce", field(row, "pcie_bandwidth_efficiency") * pcie, group)


def timed(row: Row, prefix: str, bytes_per_s: float, group: int) -> Link:
    """A link with alpha(group)."""
    doublings = field(row, f"{prefix}_latency_per_doubling_s") * math.log2(group)
    return Link(bytes_per_s, field(row, f"{prefix}_latency_s") + doublings)


def ranks_are_joined(row: Row, blocks: Blocks) -> bool:
    """Whether every group that exchanges anything has a link. (Speeds only: a ratio profile has no latencies.)"""
    cut = parallelism(row, blocks)
    reach = max(
        cut.tp,
        cut.tp * cut.dp if any(field(block, "experts") > 0 for block in blocks) else 1,
        cut.tp * cut.pp,
    )
    scaleup = given(row, "scaleup_bytes_per_s") is not None and reach <= field(row, "scaleup_domain_size")
    return reach == 1 or scaleup or given(row, "pcie_bytes_per_s") is not None


def communication(row: Row, blocks: Blocks) -> Communication:
    """The table of section 3."""
    cut, token_bytes = parallelism(row, blocks), field(row, "hidden_size") * ELEMENT_BYTES
    layers = [exchange for block in blocks for exchange in block_exchanges(block, cut)]
    said = [(cut.pace * times, group, reach, tokens) for times, group, reach, tokens in layers]
    said.append((cut.pp - 1, 2, cut.tp * cut.pp, 1.0))
    fixed = s_per_token = 0.0
    for times, group, reach, tokens in said:
        if times > 0 and group > 1:
            joined = link(row, group, reach)
            assert joined is not None
            fixed += times * joined.latency_s
            s_per_token += times * tokens * token_bytes / joined.bytes_per_s
    return Communication(fixed, s_per_token)


def block_exchanges(block: Row, cut: Parallelism) -> list[tuple[float, int, int, float]]:
    """How often, in what group, how far it reaches, and tokens' worth of bytes that each token of the slot sends."""
    count, routed = field(block, "count"), field(block, "experts") > 0
    mixers = field(block, "query_heads") > 0 or field(block, "mixer_split_params") > 0
    mlps = field(block, "mlp_params") > 0 or routed
    apart = routed and cut.dp > 1
    everyone = cut.tp * cut.dp
    reduced = count * (mixers + mlps - apart)
    gathered = 2 * (everyone - 1) / everyone * cut.dp
    sent = 2 * min(field(block, "experts_per_token"), everyone - 1)
    return [
        (reduced, cut.tp, cut.tp, 2 * (cut.tp - 1) / cut.tp),
        (count * apart, everyone, everyone, min(gathered, sent)),
    ]
