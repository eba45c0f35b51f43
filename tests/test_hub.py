"""The reader of config.json: every family it knows, what it refuses to guess, and files that are no configs at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lambdamax.architecture import Architecture, Unsupported
from lambdamax.exceptions import CatalogError
from lambdamax.hub import FOREIGN_KEYS, model_types, read_architecture, read_config

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
FALCON_40B: dict[str, Any] = {
    "model_type": "falcon",
    "hidden_size": 8192,
    "num_hidden_layers": 60,
    "num_attention_heads": 128,
    "num_kv_heads": 8,
    "new_decoder_architecture": True,
    "multi_query": True,
    "parallel_attn": True,
    "bias": False,
    "vocab_size": 65024,
}
NONSENSE = [-1, 0, 1.5, float("nan"), float("inf"), 10**30, True, "64", [64], {"a": 1}]


def read(config: dict[str, Any], **changes: Any) -> Architecture:
    found = read_architecture({**config, **changes}, "config.json")
    assert isinstance(found, Architecture), found
    return found


def reason(config: dict[str, Any], **changes: Any) -> str:
    found = read_architecture({**config, **changes}, "config.json")
    assert isinstance(found, Unsupported)
    return found.reason


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


def test_llama_facts() -> None:
    found = read(LLAMA)
    (block,) = found.blocks
    assert (block.count, block.attention.heads, block.attention.kv_heads, block.attention.head_dim) == (32, 32, 8, 128)
    assert (block.mlp.matrices, block.mlp.width, block.vector_params) == (3, 14336, 2 * 4096)
    assert found.total_params == 8_030_261_248


@pytest.mark.parametrize("head_dim", [{}, {"head_dim": 0}, {"head_dim": None}, {"head_dim": 128}])
def test_head_dim_absent_zero_or_null_is_hidden_over_heads(head_dim: dict[str, Any]) -> None:
    assert read(LLAMA, **head_dim).blocks[0].attention.head_dim == 128


def test_stated_head_dim_wins_over_hidden_over_heads() -> None:
    small = {**LLAMA, "model_type": "mistral", "hidden_size": 5120, "head_dim": 128, "sliding_window": None}
    assert read(small).blocks[0].attention.head_dim == 128


def test_head_dim_must_be_stated_if_hidden_is_no_multiple() -> None:
    with pytest.raises(CatalogError, match=r"head_dim.*not a multiple of 32 heads"):
        read(LLAMA, hidden_size=4097)


def test_absent_or_null_kv_heads_mean_one_per_query_head() -> None:
    assert read(without(LLAMA, "num_key_value_heads")).blocks[0].attention.kv_heads == 32
    assert read(LLAMA, num_key_value_heads=None).blocks[0].attention.kv_heads == 32


@pytest.mark.parametrize("alias", ["num_key_value_heads", "num_kv_heads", "n_head_kv"])
def test_kv_head_aliases(alias: str) -> None:
    assert read({**without(LLAMA, "num_key_value_heads"), alias: 4}).blocks[0].attention.kv_heads == 4


def test_class_default_fills_missing_kv_heads_of_mistral() -> None:
    mistral = {**without(LLAMA, "num_key_value_heads"), "model_type": "mistral", "sliding_window": None}
    assert read(mistral).blocks[0].attention.kv_heads == 8


@pytest.mark.parametrize(("model_type", "tied"), [("llama", False), ("qwen2", False), ("cohere", True)])
def test_tying_has_a_default_of_its_own_per_class(model_type: str, tied: bool) -> None:
    config = {**without(LLAMA, "tie_word_embeddings"), "model_type": model_type}
    assert read(config).tied_embeddings is tied


def test_vectors_of_each_family() -> None:
    d, qkv, out, f, dh = 4096, (32 + 2 * 8) * 128, 4096, 14336, 128
    biased = {"attention_bias": True, "mlp_bias": True}
    assert read(LLAMA, **biased).blocks[0].vector_params == 2 * d + qkv + out + 2 * f + d
    assert read(LLAMA, model_type="qwen2").blocks[0].vector_params == 2 * d + qkv
    assert read(LLAMA, model_type="qwen3").blocks[0].vector_params == 2 * d + 2 * dh
    assert read(LLAMA, model_type="phi3").blocks[0].vector_params == 2 * d
    assert read(LLAMA, model_type="cohere").blocks[0].vector_params == d
    assert read(LLAMA, model_type="cohere", use_qk_norm=True).blocks[0].vector_params == d + (32 + 8) * dh


def test_falcon_with_new_decoder_has_its_kv_heads_despite_multi_query() -> None:
    found = read(FALCON_40B)
    (block,) = found.blocks
    assert (block.attention.kv_heads, block.attention.head_dim) == (8, 64)
    assert (block.mlp.matrices, block.mlp.width, block.vector_params) == (2, 4 * 8192, 4 * 8192)
    assert found.tied_embeddings
    assert found.total_params == pytest.approx(41.3e9, rel=0.002)


def test_falcon_7b_is_multi_query() -> None:
    small = {**without(FALCON_40B, "num_kv_heads", "new_decoder_architecture"), "hidden_size": 4544}
    found = read(small, num_attention_heads=71, num_hidden_layers=32)
    assert found.blocks[0].attention.kv_heads == 1
    assert found.total_params == pytest.approx(6.92e9, rel=0.005)


def test_falcon_aliases_and_one_kv_head_per_query_head() -> None:
    rw = {
        **without(FALCON_40B, "num_hidden_layers", "num_attention_heads", "num_kv_heads"),
        "n_layer": 2,
        "n_head": 128,
    }
    found = read(rw, new_decoder_architecture=False, multi_query=False, n_head_kv=16, ffn_hidden_size=100, bias=True)
    (block,) = found.blocks
    assert (block.count, block.attention.kv_heads, block.mlp.width) == (2, 16, 100)
    assert block.vector_params == 2 * 8192 + (128 + 2 * 16) * 64 + 2 * 8192 + 100


def test_window_that_is_off_or_never_reached_is_full_attention() -> None:
    window = {"sliding_window": 4096}
    read(LLAMA, model_type="qwen2", use_sliding_window=False, **window)
    read(LLAMA, model_type="qwen2", **window)
    read(LLAMA, model_type="qwen2", use_sliding_window=True, max_window_layers=32, **window)
    read(LLAMA, model_type="phi3", max_position_embeddings=4096, **window)
    read(LLAMA, model_type="mistral", sliding_window=None)


@pytest.mark.parametrize(
    "window",
    [
        {"model_type": "mistral"},
        {"model_type": "phi3", "sliding_window": 2047, "max_position_embeddings": 4096},
        {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 28},
        {"model_type": "llama", "sliding_window": 4096},
    ],
)
def test_window_that_is_on_is_refused(window: dict[str, Any]) -> None:
    assert "sliding_window" in reason(LLAMA, **window)


@pytest.mark.parametrize("key", FOREIGN_KEYS)
def test_a_key_of_another_architecture_is_refused_by_name(key: str) -> None:
    assert key in reason(LLAMA, **{key: 8})


def test_layer_types_other_than_full_are_refused() -> None:
    read(LLAMA, layer_types=["full_attention"] * 32)
    assert "layer_types" in reason(LLAMA, layer_types=["full_attention", "linear_attention"])
    assert "layer_types" in reason(LLAMA, layer_types="full_attention")


def test_unknown_model_type_is_a_reason_and_names_what_is_read() -> None:
    found = reason(LLAMA, model_type="deepseek_v3")
    assert "deepseek_v3" in found
    assert all(name in found for name in model_types())


def test_quantised_checkpoints() -> None:
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]}
    assert read(LLAMA, quantization_config=fp8).checkpoint_dtype == "fp8"
    assert read(LLAMA, quantization_config=None).checkpoint_dtype is None
    assert "quant_method" in reason(LLAMA, quantization_config={"quant_method": "awq"})
    assert "quant_method" in reason(LLAMA, quantization_config={})
    assert "compression_config" in reason(LLAMA, compression_config={"format": "int4"})
    kept = {**fp8, "modules_to_not_convert": ["model.layers.0.self_attn.q_proj"]}
    assert "modules_to_not_convert" in reason(LLAMA, quantization_config=kept)
    with pytest.raises(CatalogError, match="quantization_config"):
        read(LLAMA, quantization_config="fp8")


SIZES = ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"]


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("value", [*NONSENSE, None], ids=repr)
def test_a_size_that_makes_no_sense_is_named_with_its_value_and_what_is_allowed(key: str, value: Any) -> None:
    with pytest.raises(CatalogError, match=rf"config\.json: {key} = .*: allowed: a whole number from 1 to \d+"):
        read(LLAMA, **{key: value})


@pytest.mark.parametrize("key", SIZES)
def test_a_size_is_not_guessed(key: str) -> None:
    with pytest.raises(CatalogError, match=f"{key} = None"):
        read(without(LLAMA, key))


def test_kv_heads_must_divide_the_query_heads() -> None:
    with pytest.raises(CatalogError, match="num_key_value_heads = 7: allowed: a divisor of the 32 query heads"):
        read(LLAMA, num_key_value_heads=7)


@pytest.mark.parametrize("value", [None, 3, ["llama"]])
def test_model_type_must_be_a_name(value: Any) -> None:
    with pytest.raises(CatalogError, match="model_type"):
        read(LLAMA, model_type=value)


FILES = {
    "cut": b'{"model_type": "llama", "hidden_si',
    "empty": b"",
    "list": b"[1, 2]",
    "number": b"3",
    "null": b"null",
    "binary": bytes(range(256)),
    "deep": b"[" * 100_000,
    "long number": b'{"hidden_size": ' + b"9" * 5_000 + b"}",
    "utf-16": json.dumps(LLAMA).encode("utf-16"),
}


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_files_that_are_no_config(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(CatalogError, match=r"config\.json: "):
        read_config(path)


def test_too_large_a_file(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b" " * (16 * 2**20 + 1))
    with pytest.raises(CatalogError, match="size = 'larger'"):
        read_config(path)


@pytest.mark.parametrize("name", ["absent.json", "with\0null.json", "x" * 5_000 + ".json"])
def test_paths_that_cannot_be_opened(tmp_path: Path, name: str) -> None:
    with pytest.raises(CatalogError, match="a readable file"):
        read_config(tmp_path / name)


def test_a_directory_means_the_config_in_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("﻿" + json.dumps({**LLAMA, "time_step_limit": [0.0, float("inf")]}))
    assert read_config(tmp_path)[0] == read(LLAMA)


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from([1, 2, 8, 64, 128])
)
VALUES = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(st.text(max_size=5), SCALARS, max_size=3)
KEYS = st.sampled_from([*LLAMA, *FALCON_40B, *FOREIGN_KEYS, "head_dim", "sliding_window", "use_sliding_window"])
KEYS |= st.sampled_from(["layer_types", "quantization_config", "max_window_layers", "attention_bias", "use_qk_norm"])


def attempt(action: Callable[[], Any]) -> Any:
    """What `action` gives, or its one kind of error after a look at the message."""
    try:
        return action()
    except CatalogError as error:
        message = str(error)
    assert "config.json: " in message
    assert len(message) < 500
    return None


@given(
    base=st.sampled_from([LLAMA, FALCON_40B, {}]),
    model_type=st.sampled_from(model_types()) | SCALARS,
    changes=st.dictionaries(KEYS, VALUES, max_size=6),
)
def test_any_object_gives_sizes_a_reason_or_one_error(base: Any, model_type: Any, changes: Any) -> None:
    found = attempt(lambda: read_architecture({**base, "model_type": model_type, **changes}, "config.json"))
    if isinstance(found, Architecture):
        assert 0 < found.total_params < 2**53


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_give_one_error_or_a_reading(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "config.json"
    path.write_bytes(content)
    attempt(lambda: read_config(path))
