"""The formula of what a token leaves in the KV cache, by kind of layer, with its numbers."""

from __future__ import annotations

from collections.abc import Iterator

from lambdamax.architecture import Architecture, Attention, Block, LatentAttention
from lambdamax.units import number


def kv_formula(made_of: Architecture, element_bytes: float) -> str:
    """What the KV bytes of a token add up from, over all layers of the model."""
    terms: dict[tuple[str, str], int] = {}
    for block in made_of.blocks:
        for kind, each in _terms(block, number(element_bytes)):
            terms[kind, each] = terms.get((kind, each), 0) + block.count
    if not terms:
        return "no layer keeps anything of a token"
    names = " + ".join(dict.fromkeys(kind for kind, _ in terms))
    return f"{names} = {' + '.join(each.format(layers=layers) for (_, each), layers in terms.items())}"


def _terms(block: Block, size: str) -> Iterator[tuple[str, str]]:
    """Pairs of what is cached, in words and in numbers; the number of layers is still to be filled in."""
    match block.mixer:
        case Attention() as mixer if mixer.shared_key_value:
            yield "layers·KV heads·head size·bytes", f"{{layers}}·{mixer.kv_heads}·{mixer.key_dim}·{size}"
        case Attention() as mixer if mixer.key_dim == mixer.value_dim:
            yield "2·layers·KV heads·head size·bytes", f"2·{{layers}}·{mixer.kv_heads}·{mixer.key_dim}·{size}"
        case Attention() as mixer:
            widths = f"({mixer.key_dim} + {mixer.value_dim})"
            yield "layers·KV heads·(key + value)·bytes", f"{{layers}}·{mixer.kv_heads}·{widths}·{size}"
        case LatentAttention() as mixer:
            yield "layers·(latent + rope)·bytes", f"{{layers}}·({mixer.kv_rank} + {mixer.rope_dim})·{size}"
        case _:
            return
    if mixer.sparse is not None and mixer.sparse.index_dim:
        per_key = f"({mixer.sparse.index_dim} + 4)" + (f"/{mixer.sparse.pool}" if mixer.sparse.pool > 1 else "")
        yield "layers·index key", f"{{layers}}·{per_key}"
