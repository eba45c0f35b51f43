"""What a transformer is made of, in one shape for every family; sizes only, no weights and no hardware."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Attention:
    """Full attention: `heads` query heads share `kv_heads` key/value heads, each of `head_dim` elements."""

    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class Mlp:
    """A dense MLP: `matrices` matrices (3 if gated, else 2) between the hidden size and `width`."""

    matrices: int
    width: int


@dataclass(frozen=True)
class Block:
    """`count` equal layers. `vector_params` are the norm weights and biases of one layer, in parameters."""

    count: int
    attention: Attention
    mlp: Mlp
    vector_params: int


@dataclass(frozen=True)
class Architecture:
    """A decoder: an embedding, groups of equal layers, a final norm and an output head (none of its own if tied).

    `checkpoint_dtype` is the weight dtype that the checkpoint was saved in, where that is a quantised one.
    """

    model_type: str
    hidden_size: int
    vocab_size: int
    tied_embeddings: bool
    final_norm_params: int
    blocks: tuple[Block, ...]
    checkpoint_dtype: str | None = None

    @property
    def total_params(self) -> int:
        """Parameters of the whole checkpoint, each matrix counted once."""
        tables = self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)
        return tables + self.final_norm_params + sum(block_params(block, self.hidden_size) for block in self.blocks)


@dataclass(frozen=True)
class Unsupported:
    """An architecture that this version cannot size; `reason` names the field that says so."""

    reason: str


def block_params(block: Block, hidden_size: int) -> int:
    """Parameters of all layers of `block`: projections, MLP, norms and biases."""
    attention = block.attention
    projections = 2 * hidden_size * (attention.heads + attention.kv_heads) * attention.head_dim
    mlp = block.mlp.matrices * hidden_size * block.mlp.width
    return block.count * (projections + mlp + block.vector_params)
