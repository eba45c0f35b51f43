"""What a case is made of, by name, so that the tests can count how often each thing was solved."""

from __future__ import annotations

from reference.architectures import Fields
from reference.fields import default, field
from reference.parallelism import Parallelism, parallelism
from reference.points import Case
from reference.spans import CHUNKED, FULL, SLIDING
from reference.workload import workload


def traits(case: Case) -> set[str]:
    """Every name that applies."""
    groups = (
        of_layers(case.blocks),
        of_attention(case),
        of_devices(case),
        of_formats(case.row),
        of_windows(case),
        of_latencies(case.point),
    )
    return {name for found in groups for name, applies in found.items() if applies}


def has(block: Fields, name: str) -> bool:
    """Whether a block has any of something."""
    return default(block, name, 0.0) > 0


def of_layers(blocks: tuple[Fields, ...]) -> dict[str, bool]:
    """Experts, recurrence, layers that lack a part."""
    routed = [block for block in blocks if has(block, "experts")]
    mixers = [has(block, "query_heads") for block in blocks]
    feeds = [has(block, "experts") or has(block, "mlp_params") for block in blocks]
    return {
        "experts": bool(routed),
        "no experts": not routed,
        "shared experts": any(has(block, "mlp_params") for block in routed),
        "dense first layers": bool(routed) and any(has(b, "mlp_params") and b not in routed for b in blocks),
        "experts in a latent space": any(has(block, "expert_outer_params") for block in routed),
        "all experts": any(block["experts"] == block["experts_per_token"] for block in routed),
        "recurrent": any(has(block, "state_bytes") for block in blocks),
        "layers of one part": any(mixer != feed for mixer, feed in zip(mixers, feeds, strict=True)),
        "layers without attention": not all(has(block, "kv_heads") for block in blocks),
    }


def of_attention(case: Case) -> dict[str, bool]:
    """Kinds of attention and of spans."""
    blocks = [block for block in case.blocks if has(block, "kv_heads")]
    kinds = {field(block, "span_kind") for block in blocks if not has(block, "attended_tokens")}
    return {
        "grouped": any(has(block, "mixer_kv_params") for block in blocks),
        "latent": any(block["decode_score_width"] != block["score_width"] for block in blocks),
        "sparse": any(has(block, "attended_tokens") for block in blocks),
        "shared index": any(
            has(block, "attended_tokens") and not has(block, "index_bytes_per_token") for block in blocks
        ),
        "sliding and full": {SLIDING, FULL} <= kinds,
        "chunked and full": {CHUNKED, FULL} <= kinds,
        "only windows": bool(kinds) and FULL not in kinds,
        "no cache": not blocks,
    }


def of_devices(case: Case) -> dict[str, bool]:
    """Ways of cutting a model, and what joins the parts."""
    cut = parallelism(case.row, case.blocks)
    domain = field(case.row, "scaleup_domain_size")
    reach = farthest(cut)
    return {
        "tp": cut.tp > 1,
        "pp": cut.pp > 1,
        "uneven stages": cut.layers % cut.pp > 0,
        "dp": cut.dp > 1,
        "dp with experts": cut.dp > 1 and any(has(block, "experts") for block in case.blocks),
        "ep": cut.ep > 1,
        "pp and dp": cut.pp > 1 and cut.dp > 1,
        "mesh": 1 < reach <= domain and has(case.row, "scaleup_mesh"),
        "switch": 1 < reach <= domain and not has(case.row, "scaleup_mesh"),
        "PCIe": reach > domain,
    }


def farthest(cut: Parallelism) -> int:
    """The most devices that any exchange reaches over."""
    return max(cut.tp * cut.dp, cut.tp * cut.pp)


def of_formats(row: Fields) -> dict[str, bool]:
    """Bits, and what else a row may or may not have."""
    return {
        "mixed formats": len({row[f"{kind}_bits"] for kind in ("mixer", "mlp", "expert")}) > 1,
        "8-bit head": row["head_bits"] == 8,
        "8-bit KV": row["kv_bytes_per_element"] == 1,
        "tied": has(row, "tied_embeddings"),
        "scale blocks": field(row, "weight_block") > 1,
        "padding": field(row, "kv_padding") > 1,
        "other parameters": has(row, "other_params"),
        "imbalance": row["kind"] == 0 and field(row, "ep") > 1 and field(row, "expert_load_imbalance") > 1,
    }


def of_windows(case: Case) -> dict[str, bool]:
    """Windows against the lengths, and with a prefix that requests share."""
    point = case.point
    prompt, output = field(point, "isl_tokens"), field(point, "osl_tokens")
    windows = [field(block, "attended_tokens") or field(block, "span_tokens") for block in case.blocks]
    windows = [window for window in windows if window > 0]
    return {
        "window within the prompt": any(window < prompt for window in windows),
        "window within the output": any(prompt <= window < prompt + output for window in windows),
        "window beyond all": any(window >= prompt + output for window in windows),
        "window and shared prefix": bool(windows) and workload(case.row, point).shared_blocks > 0,
        "window and spread prompts": bool(windows) and has(point, "isl_cv"),
        "window and spread outputs": bool(windows) and has(point, "osl_cv"),
        "window and fixed lengths": bool(windows) and not has(point, "isl_cv") and not has(point, "osl_cv"),
    }


def of_latencies(point: Fields) -> dict[str, bool]:
    """How arrivals cluster, and which TTFT and end-to-end latency the SLOs mean."""
    cv, percent = default(point, "arrival_cv", 1.0), default(point, "slo_percentile", 0.0)
    clusters = {f"arrivals {value:g}": cv == value for value in (0.0, 0.5, 1.0, 2.0, 4.0, 13.0)}
    return clusters | {f"percentile {value:g}": percent == value for value in (0.0, 50.0, 60.0, 90.0, 95.0, 99.0)}
