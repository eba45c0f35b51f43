"""Which rule of docs/model.md section 2 refuses to cut a model as asked, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lambdamax.replicas import DEGREES, ReplicaRow

Block = Mapping[str, float]


def refusals(row: ReplicaRow) -> tuple[str, ...]:
    """Every rule that the replica of `row` breaks, each once; empty if an engine would start it."""
    tp, pp, dp, ep = (int(row.fields[name]) for name in DEGREES)
    scale = int(row.fields["weight_block"])
    found = [*_stages(row, pp), *_experts(row, tp, dp, ep)]
    for block in row.blocks:
        found += [*_heads(block, tp), *_widths(block, tp, dp, ep, scale)]
    return tuple(dict.fromkeys(found))


def _stages(row: ReplicaRow, pp: int) -> Iterator[str]:
    layers = int(sum(block["count"] for block in row.blocks))
    if pp > layers:
        yield f"PP {pp} has more stages than the model has layers ({layers})"


def _heads(block: Block, tp: int) -> Iterator[str]:
    heads, kv_heads = int(block["query_heads"]), int(block["kv_heads"])
    if heads % tp:
        yield f"TP {tp} does not divide the {heads} attention heads"
    if kv_heads and kv_heads % tp and tp % kv_heads:
        yield f"TP {tp} neither divides the {kv_heads} KV heads nor is a multiple of them"


def _widths(block: Block, tp: int, dp: int, ep: int, scale: int) -> Iterator[str]:
    """Columns of MLPs and experts; a shard holds whole blocks of weight scales."""
    yield from _cut("MLP", f"TP {tp}", int(block["mlp_width"]), tp, scale)
    if ep == 1:
        ranks = f"TP {tp}" if dp == 1 else f"TP {tp} × DP {dp}"
        yield from _cut("expert", f"{ranks} without expert parallelism", int(block["expert_width"]), tp * dp, scale)


def _cut(what: str, ranks: str, width: int, shards: int, scale: int) -> Iterator[str]:
    if width % (shards * scale) == 0:
        return
    blocks = f"into whole blocks of {scale}, which share a weight scale" if scale > 1 else "evenly"
    yield f"{ranks} does not cut the {what} width of {width:,} {blocks}"


def _experts(row: ReplicaRow, tp: int, dp: int, ep: int) -> Iterator[str]:
    """Expert parallelism is off, or spans every tensor- and data-parallel rank with at least one expert on each."""
    counts = {int(block["experts"]) for block in row.blocks if block["experts"]}
    if ep == 1:
        return
    if not counts:
        yield f"EP {ep} needs a model with experts, and this one has none: it must be 1"
    elif ep != tp * dp:
        yield f"EP {ep} must be 1 (experts cut like other matrices) or TP × DP = {tp * dp} (whole experts on each rank)"
    for count in counts:
        if ep > count:
            yield f"EP {ep} has more ranks than a layer has experts ({count})"
