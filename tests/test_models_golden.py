"""Every model of the catalogue against its golden line, its published size and an index of caches counted elsewhere.

Run as a program, it writes the golden table anew.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from lambdamax.architecture import Architecture, Attention, Block, LatentAttention, Recurrent, Unsupported, block_facts
from lambdamax.facts import DATA, read_rows
from lambdamax.hub import read_config

GOLDEN = Path(__file__).parent / "golden" / "models.csv"
INDEX = Path(__file__).parent / "golden" / "models_index.csv"
MODELS = {row["name"]: row for row in read_rows("models.csv")}
TOLERANCE = 0.015
BF16_BYTES = 2

# The published figure leaves out the vision tower, which the model's page states apart.
TEXT_ONLY = {"gemma-4-26b-a4b", "gemma-4-26b-a4b-nvfp4", "gemma-4-31b-it-nvfp4"}
# The published figure is a name or a round number; beside it, what says so.
ROUNDED = {
    "devstral-2-123b-instruct-2512": "named 123B after Mistral Large; untied embeddings of 131072 rows make it 125.0",
    "falcon-40b": "a name: 41.3 billion with the head tied to the embedding",
    "kimi-k2-instruct": "'1T' for 1026 billion",
    "kimi-k2.5": "'1T' for 1026 billion and a vision tower",
    "kimi-k2.5-nvfp4": "'1T' for 1026 billion and a vision tower",
    "llama-3.3-nemotron-super-49b-v1": "a name: 49.9 billion",
    "mimo-7b-base": "a name: 7.6 billion, 7.8 with its draft layer",
    "nemotron-3-nano-30b-a3b-bf16": "a name: 31.6 billion",
    "nemotron-3-nano-30b-a3b-nvfp4": "a name: 31.6 billion",
    "nemotron-3.5-lightning-30b-a3b-nvfp4": "a name: 31.6 billion",
}
REFUSED = {
    "deepseek-v4-flash",
    "deepseek-v4-flash-nvfp4",
    "deepseek-v4-pro",
    "deepseek-v4-pro-nvfp4",
    "deepseek-v4.1-flash",
}


@cache
def reading(name: str) -> Architecture | Unsupported:
    return read_config(DATA / MODELS[name]["config_file"])[0]


def read(name: str) -> Architecture:
    found = reading(name)
    assert isinstance(found, Architecture), found
    return found


SIZED = sorted(set(MODELS) - REFUSED)


def kind(block: Block) -> str:
    """What a block's mixer is called in the golden table."""
    match block.mixer:
        case Attention(sparse=None, span=span):
            return span.kind
        case LatentAttention(sparse=None):
            return "latent"
        case Attention() | LatentAttention():
            return "sparse"
        case Recurrent(kind=name):
            return name
        case None:
            return "no_mixer"


def layers_by_kind(model: Architecture) -> Counter[str]:
    counts: Counter[str] = Counter()
    for block in model.blocks:
        counts[kind(block)] += block.count
    return counts


def summed(model: Architecture, fact: str) -> float:
    return sum(block.count * block_facts(block, model.hidden_size)[fact] for block in model.blocks)


def state_elements(model: Architecture) -> int:
    mixers = [(block.count, block.mixer) for block in model.blocks]
    return sum(n * (m.conv_elements + m.state_elements) for n, m in mixers if isinstance(m, Recurrent))


def weight_bytes(model: Architecture) -> float:
    """Bytes of the weights without draft layers: each kind of matrix in its format, everything else in 16 bits."""
    bits = {row["name"]: float(row["value"]) for row in read_rows("dtypes.csv") if row["use"] == "weight"}
    stored = model.checkpoint
    mixer = sum(summed(model, f"mixer_{part}_params") for part in ("split", "kv", "whole"))
    heads = 0 if model.tied_embeddings else model.vocab_size * model.hidden_size
    experts = sum(
        block.count * (block.experts.count * block.experts.expert_params + block.experts.outer_params)
        for block in model.blocks
        if block.experts
    )
    sizes = {"mixer": mixer, "mlp": summed(model, "mlp_params"), "experts": experts, "head": heads}
    quantised = sum(size * bits[getattr(stored, part) if stored else "bf16"] for part, size in sizes.items())
    rest = model.total_params - sum(sizes.values())
    return (quantised + rest * bits["bf16"]) / 8


def line(name: str) -> dict[str, str]:
    """The golden line of a model: what it is made of, or why it is not sized."""
    model = reading(name)
    if isinstance(model, Unsupported):
        return dict.fromkeys(COLUMNS, "") | {"name": name, "refused": model.reason}
    kinds = layers_by_kind(model)
    stored = model.checkpoint
    return {
        "name": name,
        "layers": str(sum(kinds.values())),
        "kinds": " ".join(f"{count}x{kind}" for kind, count in sorted(kinds.items())),
        "blocks": str(len(model.blocks)),
        "total_params": str(model.total_params),
        "active_params": str(model.active_params),
        "other_params": str(model.other_params),
        "draft_params": str(model.draft_params),
        "kv_bytes_per_token_bf16": str(int(BF16_BYTES * summed(model, "kv_elements_per_token"))),
        "index_bytes_per_token": str(int(summed(model, "index_bytes_per_token"))),
        "state_bytes": str(int(summed(model, "state_bytes"))),
        "weight_bytes": str(round(weight_bytes(model))),
        "formats": " ".join((stored.mixer, stored.mlp, stored.experts, stored.head)) if stored else "",
        "context_tokens": str(model.context_tokens),
        "notes": "; ".join(model.notes),
        "refused": "",
    }


COLUMNS = (
    "name",
    "layers",
    "kinds",
    "blocks",
    "total_params",
    "active_params",
    "other_params",
    "draft_params",
    "kv_bytes_per_token_bf16",
    "index_bytes_per_token",
    "state_bytes",
    "weight_bytes",
    "formats",
    "context_tokens",
    "notes",
    "refused",
)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def indexed(name: str) -> Mapping[str, str]:
    return next(row for row in rows(INDEX) if row["hub_id"] == MODELS[name]["hub_id"])


def test_the_golden_table_has_every_model_once() -> None:
    assert [row["name"] for row in rows(GOLDEN)] == list(MODELS)
    assert len(MODELS) == len({row["hub_id"] for row in MODELS.values()}) == 109


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_its_golden_line(name: str) -> None:
    assert line(name) == next(row for row in rows(GOLDEN) if row["name"] == name)


def test_what_is_refused_is_listed_here_and_names_a_field() -> None:
    reasons = {name: found.reason for name in MODELS if isinstance(found := reading(name), Unsupported)}
    assert set(reasons) == REFUSED
    assert all("compress_ratios" in reason for reason in reasons.values())


@pytest.mark.parametrize("name", SIZED)
def test_total_parameters_are_those_published(name: str) -> None:
    published = MODELS[name]["published_parameters_1e9"]
    model = read(name)
    counted = model.total_params - (model.other_params if name in TEXT_ONLY else 0)
    if published and name not in ROUNDED:
        assert counted / 1e9 == pytest.approx(float(published), rel=TOLERANCE)
    elif published:
        assert abs(counted / 1e9 / float(published) - 1) > TOLERANCE, f"{name} need not be excused"


@pytest.mark.parametrize("name", SIZED)
def test_layers_cache_and_state_are_those_of_the_index(name: str) -> None:
    model, fact = read(name), indexed(name)
    kinds = layers_by_kind(model)
    windows = kinds["sliding"] + kinds["chunked"]
    softmax = windows + kinds["full"] + kinds["latent"] + kinds["sparse"]
    recurrent = sum(kinds.values()) - softmax - kinds["no_mixer"]
    if fact["kv_bytes_per_token_bf16"]:
        assert BF16_BYTES * summed(model, "kv_elements_per_token") == int(fact["kv_bytes_per_token_bf16"])
        assert (softmax - windows, windows) == (int(fact["full_layers"]), int(fact["window_layers"]))
        assert (recurrent, state_elements(model)) == (int(fact["recurrent_layers"]), int(fact["state_elements"]))


def test_active_parameters_are_near_those_published() -> None:
    """Published counts of active parameters are rounded and mostly leave out the embedding tables."""
    for name in SIZED:
        published = MODELS[name]["published_active_parameters_1e9"]
        model = read(name)
        tables = model.vocab_size * model.hidden_size * (1 if model.tied_embeddings else 2)
        if published:
            low, high = (model.active_params - tables) / 1e9, model.active_params / 1e9
            assert low * 0.97 - 0.6 <= float(published) <= high * 1.05 + 0.6, name


def test_blocks_are_few_and_all_layers_are_in_them() -> None:
    for name in SIZED:
        assert len(read(name).blocks) <= 8, name
        assert len(set(read(name).blocks)) == len(read(name).blocks), name


def write() -> None:
    with GOLDEN.open("w", encoding="utf-8", newline="") as stream:
        table = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(line(name) for name in MODELS)


if __name__ == "__main__":
    write()
