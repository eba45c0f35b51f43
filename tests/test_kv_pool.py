"""The KV pool against measured vLLM start-ups, by an independent plain-Python transcription of docs/kv_pool.md.

`python tests/test_kv_pool.py` prints the table of that page.
"""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

import lambdamax
from lambdamax.accelerators import read_accelerators
from lambdamax.dtypes import read_weight_dtypes
from lambdamax.engine import OneReplica
from lambdamax.engines import read_engines
from lambdamax.replicas import Deployment

DATA = Path(lambdamax.__file__).parent / "data"
CONFIGS = (Path(__file__).parent / "golden" / "startup_configs", DATA / "model_configs")
GIB = 2**30
BLOCK_TOKENS = 16
LATENT_TOKENS = 65_536


@dataclass(frozen=True, eq=False)
class Measured:
    """One start-up as the engine logged it; GiB of one rank."""

    name: str
    config: str
    weight_dtype: str
    gpu: str
    engine: str
    values: dict[str, float]

    @property
    def tp(self) -> int:
        return int(self.values["tp"])


@dataclass(frozen=True)
class Predicted:
    """What the model says of the same rank, GiB and tokens."""

    weights: float
    activation: float
    non_torch: float
    kv_cache: float
    kv_cache_tokens: float


@cache
def startups() -> tuple[Measured, ...]:
    with (DATA / "measured_startups.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    found: dict[str, Measured] = {}
    for row in rows:
        names = (row["config"], row["weight_dtype"], row["gpu"], row["engine"])
        key = f"{row['startup']}/{row['hub_id']}"
        found.setdefault(key, Measured(row["startup"], *names, {})).values[row["quantity"]] = float(row["value"])
    return tuple(found.values())


def compared() -> tuple[Measured, ...]:
    return tuple(startup for startup in startups() if startup.config)


@cache
def config(name: str) -> dict[str, Any]:
    path = next(folder / f"{name}.json" for folder in CONFIGS if (folder / f"{name}.json").exists())
    return dict(json.loads(path.read_text(encoding="utf-8")))


def text(facts: dict[str, Any]) -> dict[str, Any]:
    return {**facts, **facts.get("text_config", {})}


# Weights: matrices of the layers at the format's bits, all the rest in 16 bits.


def attention_params(t: dict[str, Any], tp: int) -> tuple[float, float]:
    """Matrix elements of one layer's attention on a rank, and the biases beside them."""
    d, heads = t["hidden_size"], t["num_attention_heads"]
    if "kv_lora_rank" in t:
        nope, rope, value, rank = (t["qk_nope_head_dim"], t["qk_rope_head_dim"], t["v_head_dim"], t["kv_lora_rank"])
        by_head = d * (nope + rope) + rank * (nope + value) + d * value
        return heads * by_head / tp + d * (rank + rope), rank
    kv_heads, head_dim = t["num_key_value_heads"], t.get("head_dim") or d // heads
    matrices = 2 * d * heads * head_dim / tp + 2 * d * kv_heads * head_dim / min(tp, kv_heads)
    biases = (heads / tp + 2 * kv_heads / min(tp, kv_heads)) * head_dim if t["model_type"] in {"qwen2", "phi"} else 0.0
    return matrices, biases


def mlp_params(t: dict[str, Any], tp: int) -> float:
    """Matrix elements of all layers' MLPs and experts on a rank."""
    d, layers = t["hidden_size"], t["num_hidden_layers"]
    matrices = 2 if t["model_type"] == "phi" else 3
    experts = t.get("n_routed_experts") or t.get("num_experts") or 0
    if not experts:
        return float(layers * matrices * d * t["intermediate_size"] / tp)
    dense = t.get("first_k_dense_replace", 0)
    each = experts + t.get("n_shared_experts", 0)
    routed = (layers - dense) * (each * 3 * d * t["moe_intermediate_size"] / tp + experts * d)
    return float(dense * 3 * d * t["intermediate_size"] / tp + routed)


def vision_params(facts: dict[str, Any]) -> float:
    """A SigLIP tower and the projection into the text model; not sharded here (single devices)."""
    vision = facts.get("vision_config")
    if not vision:
        return 0.0
    d, f, patch = vision["hidden_size"], vision["intermediate_size"], vision["patch_size"]
    layer = 4 * d * (d + 1) + 2 * d * f + f + d + 4 * d
    embedding = 3 * patch**2 * d + d + (vision["image_size"] // patch) ** 2 * d
    return float(vision["num_hidden_layers"] * layer + embedding + d * text(facts)["hidden_size"])


def weight_bytes(facts: dict[str, Any], bits: float, tp: int) -> float:
    t = text(facts)
    d, layers = t["hidden_size"], t["num_hidden_layers"]
    matrices, biases = attention_params(t, tp)
    tied = t.get("tie_word_embeddings", t["model_type"].startswith("gemma"))
    tables = (1 if tied else 2) * t["vocab_size"] * d / tp
    sixteen = tables + layers * (biases + 2 * d) + d + vision_params(facts)
    return float((layers * matrices + mlp_params(t, tp)) * bits / 8 + sixteen * 2)


# The profiling run's peak, and the pool.


def activation_bytes(facts: dict[str, Any], constants: dict[str, float], tp: int, tokens: float, seqs: float) -> float:
    t = text(facts)
    d = t["hidden_size"]
    dense = (2 if t["model_type"] == "phi" else 3) * t["intermediate_size"] / tp
    width = t.get("moe_intermediate_size", 0) / tp
    routed = t.get("num_experts_per_tok", 0) * (max(width, d) + max(2 * width, d)) if width else 0.0
    latent = t["num_attention_heads"] / tp * (t["qk_nope_head_dim"] + t["v_head_dim"]) if "kv_lora_rank" in t else 0.0
    encoded = constants["multimodal_hidden_copies"] * d if "vision_config" in facts else 0.0
    kept = constants["activation_workspace_bytes"] + 2 * tokens * (encoded + routed)
    forward = 2 * tokens * (constants["forward_hidden_copies"] * d + dense) + 2 * LATENT_TOKENS * latent
    logits = constants["sampler_bytes_per_logit"] * min(seqs, tokens) * t["vocab_size"]
    return float(kept + max(forward, logits + 2 * tokens * d))


def layer_kinds(facts: dict[str, Any]) -> tuple[int, int]:
    """Full and sliding layers."""
    t = text(facts)
    layers = t["num_hidden_layers"]
    if t["model_type"] == "gemma2":
        return layers // 2, layers - layers // 2
    pattern = t.get("sliding_window_pattern", 1)
    return layers // pattern, layers - layers // pattern


def padded_layers(kinds: tuple[int, ...]) -> int:
    present = [layers for layers in kinds if layers]
    size = max(present) if max(present) < 1.5 * min(present) else min(present)
    return size * sum(math.ceil(layers / size) for layers in present)


def kv_bytes_per_token(facts: dict[str, Any], tp: int, element_bytes: float = 2) -> float:
    """Bytes that one token of context takes on a rank if every layer kept it, padding layers included."""
    t = text(facts)
    if "kv_lora_rank" in t:
        per_layer = t["kv_lora_rank"] + t["qk_rope_head_dim"]
    else:
        head_dim = t.get("head_dim") or t["hidden_size"] // t["num_attention_heads"]
        per_layer = 2 * max(t["num_key_value_heads"] / tp, 1) * head_dim
    return float(padded_layers(layer_kinds(facts)) * per_layer * element_bytes)


@cache
def constants_of(startup: Measured) -> dict[str, float]:
    return read_engines()[startup.engine].memory_constants(read_accelerators()[startup.gpu], startup.tp)


@cache
def budget(startup: Measured) -> tuple[float, float]:
    """Tokens of a step and sequences, the engine's defaults on the device."""
    engine, device = read_engines()[startup.engine], read_accelerators()[startup.gpu]
    tokens = engine.setting("max_num_batched_tokens", device, startup.tp).value
    return tokens, engine.setting("max_num_seqs", device, startup.tp).value


def predict(startup: Measured, constants: dict[str, float], measured_parts: tuple[str, ...] = ()) -> Predicted:
    """The pool of `startup`; the `measured_parts` are taken from the log instead of predicted."""
    facts, device = config(startup.config), read_accelerators()[startup.gpu]
    parts = {
        "weights": weight_bytes(facts, read_weight_dtypes()[startup.weight_dtype].bits, startup.tp) / GIB,
        "activation": activation_bytes(facts, constants, startup.tp, *budget(startup)) / GIB,
        "non_torch": constants["non_torch_bytes"] / GIB,
    } | {part: startup.values[part] for part in measured_parts}
    seen = (device.memory_bytes - constants["driver_hidden_bytes"]) / GIB
    kv_cache = seen * startup.values["memory_utilization"] - sum(parts.values())
    blocks = math.floor(kv_cache * GIB / (BLOCK_TOKENS * kv_bytes_per_token(facts, startup.tp)))
    return Predicted(parts["weights"], parts["activation"], parts["non_torch"], kv_cache, blocks * BLOCK_TOKENS)


def error(startup: Measured, predicted: Predicted, quantity: str) -> float:
    """Relative, signed."""
    return float(getattr(predicted, quantity) / startup.values[quantity] - 1)


def errors(quantity: str) -> list[float]:
    return [error(startup, predict(startup, constants_of(startup)), quantity) for startup in compared()]


# Leave one model out: the two fitted constants, found without it.


def misfit(startup: Measured, constants: dict[str, float]) -> float:
    """GiB of activations, predicted less measured."""
    peak = activation_bytes(config(startup.config), constants, startup.tp, *budget(startup))
    return peak / GIB - startup.values["activation"]


def fitted(among: tuple[Measured, ...]) -> dict[str, float]:
    grid = [(bytes_ / 10, copies / 4) for bytes_ in range(130, 161) for copies in range(8, 20)]

    def cost(pair: tuple[float, float]) -> float:
        return sum(abs(misfit(startup, changed(startup, *pair))) for startup in among)

    best = min(grid, key=cost)
    return {"sampler_bytes_per_logit": best[0], "forward_hidden_copies": best[1]}


def changed(startup: Measured, bytes_per_logit: float, copies: float) -> dict[str, float]:
    return constants_of(startup) | {"sampler_bytes_per_logit": bytes_per_logit, "forward_hidden_copies": copies}


def test_the_pool_is_within_the_targets() -> None:
    assert mean(abs(value) for value in errors("kv_cache_tokens")) <= 0.06
    assert abs(mean(errors("kv_cache_tokens"))) <= 0.02
    assert mean(abs(value) for value in errors("weights")) <= 0.01
    assert mean(abs(value) for value in errors("activation")) <= 0.02


@pytest.mark.parametrize("startup", compared(), ids=lambda startup: startup.name)
def test_the_engine_has_the_pool_of_the_page(startup: Measured) -> None:
    """The product itself, config.json to tokens, against this file's own arithmetic and the log."""
    path = next(folder / f"{startup.config}.json" for folder in CONFIGS if (folder / f"{startup.config}.json").exists())
    at = Deployment(str(path), startup.gpu, startup.tp, weight_dtype=startup.weight_dtype, engine=startup.engine)
    replica = OneReplica(lambdamax.load_catalog().replica(at))
    lengths = {"isl_tokens": 100.0, "osl_tokens": 100.0, "memory_utilization": startup.values["memory_utilization"]}
    pool = replica.solve(lengths).numbers["kv_pool_tokens"]
    own = predict(startup, constants_of(startup))
    assert pool == pytest.approx(own.kv_cache_tokens, rel=0.002)
    assert replica.facts["weight_shard_bytes"] / GIB == pytest.approx(own.weights, rel=0.001)
    assert pool == pytest.approx(startup.values["kv_cache_tokens"], rel=0.06)


def test_bytes_per_token_are_exact() -> None:
    """Block and token figures follow from the logged bytes: nothing but rounding of the log is left."""
    for startup in compared():
        tokens = startup.values["kv_cache"] * GIB / kv_bytes_per_token(config(startup.config), startup.tp)
        assert tokens == pytest.approx(startup.values["kv_cache_tokens"], rel=0.002), startup.name


def test_the_pool_is_what_the_log_says_is_left() -> None:
    """With every part taken from the log the pool follows from the memory alone."""
    for startup in compared():
        left = predict(startup, constants_of(startup), ("weights", "activation", "non_torch")).kv_cache
        assert left == pytest.approx(startup.values["kv_cache"], abs=0.03), startup.name


@pytest.mark.parametrize(
    ("kinds", "padded"), [((10, 52), 70), ((8, 40), 48), ((21, 21), 42), ((13, 12), 26), ((32,), 32)]
)
def test_groups(kinds: tuple[int, ...], padded: int) -> None:
    assert padded_layers(kinds) == padded


def test_blocks_of_a_hybrid_model() -> None:
    """Qwen3.5-4B on vLLM 0.22: 8 full and 24 recurrent layers, 11.11 GiB, 137.80 requests of 1,024 tokens printed."""
    state = (4096 + 4096) * 3 * 2 + 32 * 128 * 128 * 4
    per_token = 2 * 4 * 256 * 2
    block = BLOCK_TOKENS * math.ceil(state / (BLOCK_TOKENS * per_token))
    assert block == 528
    blocks = math.floor(11.11 * GIB / (8 * block * per_token))
    assert blocks / (math.ceil(1024 / block) + 3) == pytest.approx(137.80, rel=0.002)


@cache
def left_out_errors() -> tuple[float, ...]:
    """Relative errors of KV tokens, each with the constants fitted without any start-up of that model."""
    found = []
    for startup in compared():
        others = tuple(other for other in compared() if other.config != startup.config)
        constants = constants_of(startup) | fitted(others)
        found.append(error(startup, predict(startup, constants), "kv_cache_tokens"))
    return tuple(found)


def test_one_model_left_out() -> None:
    assert mean(abs(value) for value in left_out_errors()) <= 0.06
    assert fitted(compared()) == {name: constants_of(compared()[0])[name] for name in fitted(compared())}


QWEN_1_5B = {"model_type": "qwen2", "hidden_size": 1536, "intermediate_size": 8960, "num_attention_heads": 12}


@pytest.mark.parametrize(
    ("facts", "tokens", "peak_gib"),
    [
        (config("qwen3-8b"), 2048, 1.40),
        (config("llama-3.1-8b-instruct"), 8192, 1.26),
        (QWEN_1_5B | {"vocab_size": 151_936}, 32_768, 2.02),
    ],
    ids=["Qwen3-8B on 0.10 and 0.14", "Llama-3-8B on 0.6", "Qwen2.5-1.5B on 0.7"],
)
def test_peaks_of_older_versions(facts: dict[str, Any], tokens: int, peak_gib: float) -> None:
    """Public start-ups with 256 sequences; the last one's peak is the forward pass, of a budget four times as large."""
    constants = read_engines()["vllm-0.11"].memory_constants(read_accelerators()["a100-80-sxm"])
    assert activation_bytes(facts, constants, 1, tokens, 256) / GIB == pytest.approx(peak_gib, abs=0.03)


def table() -> str:
    head = "| start-up | weights | | activation | | KV tokens | | error |\n|---|---|---|---|---|---|---|---|"
    rows = [head]
    for startup in compared():
        p, m = predict(startup, constants_of(startup)), startup.values
        rows.append(
            f"| {startup.name} {startup.weight_dtype} | {p.weights:.2f} | {m['weights']:.2f} | {p.activation:.2f} | "
            f"{m['activation']:.2f} | {p.kv_cache_tokens:,.0f} | {m['kv_cache_tokens']:,.0f} | "
            f"{error(startup, p, 'kv_cache_tokens'):+.1%} |"
        )
    return "\n".join(rows)


def summary() -> str:
    lines = []
    for quantity in ("weights", "activation", "kv_cache_tokens"):
        found = errors(quantity)
        absolute = [abs(value) for value in found]
        lines.append(
            f"{quantity}: mean absolute {mean(absolute):.2%}, bias {mean(found):+.2%}, worst {max(absolute):.2%}"
        )
    left_out = left_out_errors()
    lines.append(f"one model left out: mean absolute {mean(map(abs, left_out)):.2%}, bias {mean(left_out):+.2%}")
    return "\n".join(lines)


def test_the_page_shows_what_the_command_prints() -> None:
    page = (Path(__file__).parent.parent / "docs" / "kv_pool.md").read_text(encoding="utf-8")
    assert table() in page
    assert summary() in page


if __name__ == "__main__":
    print(table(), summary(), sep="\n\n")
