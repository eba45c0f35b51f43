"""What an answer takes for granted about its model and its parallelism, in sentences for whoever relies on it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Final

from lambdamax.architecture import Architecture, Attention, LatentAttention, Mixer, Recurrent
from lambdamax.case import Case
from lambdamax.units import number, quantity

_PARTS: Final = (("attention", "mixer"), ("MLPs", "mlp"), ("experts", "experts"), ("head", "head"))


def assumptions(case: Case) -> tuple[str, ...]:
    """Every assumption that this model and this parallelism need; few for a dense model on one device."""
    made_of = case.model.architecture
    if made_of is None or case.status == "unsupported":
        return ()
    return (
        *_formats(case),
        *_experts(case, made_of),
        *_layers(made_of),
        *_beside_the_layers(made_of),
        *_ranks(case, made_of),
        *_pool(case),
        *made_of.notes,
    )


def formats_by_part(case: Case) -> str:
    """The formats of the checkpoint by part, such as `attention bf16, experts mxfp4, head bf16`."""
    stored, blocks = case.model.checkpoint, case.row.blocks
    present = {"mlp": any(each["mlp_params"] for each in blocks), "experts": any(each["experts"] for each in blocks)}
    return ", ".join(f"{label} {getattr(stored, part)}" for label, part in _PARTS if present.get(part, True))


def is_as_stored(case: Case) -> bool:
    """Whether the weights are in the formats of a checkpoint that is not plainly 16-bit."""
    stored = case.model.checkpoint.dtype
    return stored != "bf16" and case.question.weight_dtype in ("native", stored)


def _formats(case: Case) -> Iterator[str]:
    if is_as_stored(case):
        yield f"weights as the checkpoint stores them: {formats_by_part(case)}; embedding, norms and router in 16 bits"


def _experts(case: Case, made_of: Architecture) -> Iterator[str]:
    routed = [block.experts for block in made_of.blocks if block.experts]
    for per_token, count in dict.fromkeys((each.per_token, each.count) for each in routed):
        yield (
            f"a step of n tokens reads 1 − (1 − {per_token}/{count})^n of the {count} experts: what is expected where "
            "tokens choose evenly and independently"
        )
    imbalance = case.row.fields["expert_load_imbalance"]
    if routed and case.question.ep > 1 and not math.isnan(imbalance):
        yield (
            f"the fullest of the {case.question.ep} expert-parallel ranks reads {number(imbalance)} times the mean "
            f"(expert_load_imbalance of profile {case.profile.name})"
        )


def _layers(made_of: Architecture) -> Iterator[str]:
    said: Counter[str] = Counter()
    for block in made_of.blocks:
        said[_keeps(block.mixer)] += block.count
    for keeps, layers in said.items():
        if keeps:
            yield f"{layers} of {sum(block.count for block in made_of.blocks)} layers {keeps}"


def _keeps(mixer: Mixer | None) -> str:
    """What a layer sees and keeps where that is not simply every token; empty where it is."""
    match mixer:
        case Recurrent():
            size = quantity(2 * mixer.conv_elements + 4 * mixer.state_elements, "B")
            return f"are recurrent: a state of {size} for each sequence, and nothing for each token"
        case Attention(span=span) if span.kind == "sliding":
            return f"attend to the last {span.tokens:,} tokens, and keep no more of a sequence"
        case Attention(span=span) if span.kind == "chunked":
            return f"attend within chunks of {span.tokens:,} tokens, and keep the current one"
        case Attention(sparse=sparse) | LatentAttention(sparse=sparse) if sparse is not None:
            return f"read at most {sparse.tokens:,} tokens for a query, but keep all of them"
    return ""


def _beside_the_layers(made_of: Architecture) -> Iterator[str]:
    if made_of.other_params:
        size = number(made_of.other_params / 1e9, 3)
        yield f"{size} billion parameters beside the language model stay in memory, and a step does not read them"
    if made_of.draft_params:
        yield f"draft layers ({number(made_of.draft_params / 1e9, 3)} billion parameters) are not loaded"


def _ranks(case: Case, made_of: Architecture) -> Iterator[str]:
    tp, pp, dp = case.question.tp, case.question.pp, case.question.dp
    latent = any(isinstance(block.mixer, LatentAttention) for block in made_of.blocks)
    heads = max((int(block["kv_heads"]) for block in case.row.blocks), default=0)
    if latent and tp > 1:
        yield f"the latent KV cache has no heads to cut: each of the {tp} tensor-parallel ranks keeps all of it"
    elif 0 < heads < tp:
        yield f"TP {tp} is more than the {heads} KV heads: each is kept {tp // heads} times"
    if pp > 1:
        yield f"the {pp} pipeline stages work on {pp} batches in turn, which are as large as each other"
    if dp > 1:
        yield f"requests spread evenly over the {dp} data-parallel ranks; rates and populations are those of all"


def _pool(case: Case) -> Iterator[str]:
    given = case.point("kv_cache_tokens")
    if math.isnan(given):
        return
    source = case.question.pool_source or "--kv-cache-tokens"
    computed = quantity(case.computed_pool_tokens, "tokens", 9)
    yield f"the KV pool is {number(given, 9)} tokens, as {source} says, in place of the {computed} that are computed"
