"""The reader of config.json: every family it knows, what it refuses to guess, and files that are no configs at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lambdamax.architecture import (
    Architecture,
    Attention,
    Block,
    Checkpoint,
    Experts,
    LatentAttention,
    Mlp,
    Recurrent,
    Span,
    Sparse,
    Unsupported,
    block_facts,
)
from lambdamax.exceptions import CatalogError
from lambdamax.hub import model_types, read_architecture, read_config
from lambdamax.hub.families import FAMILIES, WRAPPERS

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
MIXTRAL: dict[str, Any] = {**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
QWEN3_MOE: dict[str, Any] = {
    **LLAMA,
    "model_type": "qwen3_moe",
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}
DEEPSEEK: dict[str, Any] = {
    **LLAMA,
    "model_type": "deepseek_v3",
    "num_key_value_heads": 32,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 64,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
}
DSA: dict[str, Any] = {
    **DEEPSEEK,
    "model_type": "glm_moe_dsa",
    "index_topk": 2048,
    "index_n_heads": 32,
    "index_head_dim": 128,
}
DELTA: dict[str, Any] = {
    **LLAMA,
    "model_type": "qwen3_5_text",
    "head_dim": 256,
    "full_attention_interval": 4,
    "attn_output_gate": True,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
NEMOTRON: dict[str, Any] = {
    **LLAMA,
    "model_type": "nemotron_h",
    "num_hidden_layers": 6,
    "hybrid_override_pattern": "M-M*-E",
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "ssm_state_size": 128,
    "conv_kernel": 4,
    "n_routed_experts": 16,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
}
KIMI_LINEAR: dict[str, Any] = {
    **{key: value for key, value in DEEPSEEK.items() if key not in ("n_routed_experts", "num_experts_per_tok")},
    "model_type": "kimi_linear",
    "num_hidden_layers": 4,
    "q_lora_rank": None,
    "num_experts": 64,
    "num_experts_per_token": 8,
    "n_shared_experts": None,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "linear_attn_config": {
        "full_attn_layers": [4],
        "kda_layers": [1, 2, 3],
        "num_heads": 32,
        "head_dim": 128,
        "short_conv_kernel_size": 4,
    },
}
GEMMA4: dict[str, Any] = {
    **LLAMA,
    "model_type": "gemma4_text",
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
    "sliding_window": 1024,
    "head_dim": 256,
    "global_head_dim": 512,
    "num_global_key_value_heads": 2,
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
}
MIMO_V2: dict[str, Any] = {
    **LLAMA,
    "model_type": "mimo_v2_flash",
    "num_hidden_layers": 48,
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 192,
    "v_head_dim": 128,
    "intermediate_size": 16384,
    "vocab_size": 152576,
    "sliding_window": 128,
    "attention_chunk_size": 128,
    "swa_num_attention_heads": 64,
    "swa_num_key_value_heads": 8,
    "swa_head_dim": 192,
    "swa_v_head_dim": 128,
    "hybrid_layer_pattern": [0] + [1, 1, 1, 1, 0] + [1, 1, 1, 1, 1, 0] * 7,
    "moe_layer_freq": [0] + [1] * 47,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": None,
    "num_experts_per_tok": 8,
    "add_swa_attention_sink_bias": True,
    "add_full_attention_sink_bias": False,
}
JAMBA: dict[str, Any] = {
    **LLAMA,
    "model_type": "jamba",
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "attn_layer_period": 8,
    "attn_layer_offset": 4,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
}
GRANITE: dict[str, Any] = {
    **LLAMA,
    "model_type": "granitemoehybrid",
    "num_hidden_layers": 4,
    "layer_types": ["mamba", "mamba", "attention", "mamba"],
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "intermediate_size": 768,
    "shared_intermediate_size": 1536,
    "mamba_n_heads": 128,
}
STEP: dict[str, Any] = {
    **LLAMA,
    "model_type": "step3p5",
    "num_hidden_layers": 4,
    "layer_types": ["full_attention"] + ["sliding_attention"] * 3,
    "sliding_window": 512,
    "moe_num_experts": 288,
    "moe_top_k": 8,
    "moe_intermediate_size": 1280,
    "share_expert_dim": 1280,
    "moe_layers_enum": "1, 2,3,4",
}
NONSENSE = [-1, 0, 1.5, float("nan"), float("inf"), 10**30, True, "64", [64], {"a": 1}]


def read(config: dict[str, Any], **changes: Any) -> Architecture:
    found = read_architecture({**config, **changes}, "config.json")
    assert isinstance(found, Architecture), found
    return found


def reason(config: dict[str, Any], **changes: Any) -> str:
    found = read_architecture({**config, **changes}, "config.json")
    assert isinstance(found, Unsupported), found
    return found.reason


def only(config: dict[str, Any], **changes: Any) -> Block:
    (block,) = read(config, **changes).blocks
    return block


def attention(block: Block) -> Attention:
    assert isinstance(block.mixer, Attention)
    return block.mixer


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


def test_llama_facts() -> None:
    block = only(LLAMA)
    assert block == Block(32, Attention(32, 8, 128, 128), Mlp(3, 14336), vector_params=2 * 4096)
    assert read(LLAMA).total_params == 8_030_261_248


@pytest.mark.parametrize("alias", ["num_key_value_heads", "num_kv_heads", "n_head_kv", "num_attention_groups"])
def test_kv_head_aliases(alias: str) -> None:
    assert attention(only({**without(LLAMA, "num_key_value_heads"), alias: 4})).kv_heads == 4


def test_absent_or_null_kv_heads_mean_one_per_query_head() -> None:
    assert attention(only(without(LLAMA, "num_key_value_heads"))).kv_heads == 32
    assert attention(only(LLAMA, num_key_value_heads=None)).kv_heads == 32


def test_class_default_fills_missing_kv_heads_of_mistral() -> None:
    mistral = {**without(LLAMA, "num_key_value_heads"), "model_type": "mistral", "sliding_window": None}
    assert attention(only(mistral)).kv_heads == 8


@pytest.mark.parametrize(("model_type", "tied"), [("llama", False), ("qwen2", False), ("cohere", True)])
def test_tying_has_a_default_of_its_own_per_class(model_type: str, tied: bool) -> None:
    config = {**without(LLAMA, "tie_word_embeddings"), "model_type": model_type}
    assert read(config).tied_embeddings is tied


def test_tying_of_the_whole_holds_where_the_language_model_says_nothing() -> None:
    inner = without({**LLAMA, "model_type": "qwen3_vl_text"}, "tie_word_embeddings")
    assert read({"model_type": "qwen3_vl", "text_config": inner, "tie_word_embeddings": True}).tied_embeddings
    assert not read({"model_type": "qwen3_vl", "text_config": inner}).tied_embeddings


def test_vectors_of_each_family() -> None:
    d, qkv, out, f, dh = 4096, (32 + 2 * 8) * 128, 4096, 14336, 128
    biased = {"attention_bias": True, "mlp_bias": True}
    assert only(LLAMA, **biased).vector_params == 2 * d + qkv + out + 2 * f + d
    assert only(LLAMA, model_type="qwen2").vector_params == 2 * d + qkv
    assert only(LLAMA, model_type="qwen3").vector_params == 2 * d + 2 * dh
    assert only(LLAMA, model_type="phi3").vector_params == 2 * d
    assert only(LLAMA, model_type="cohere").vector_params == d
    assert only(LLAMA, model_type="cohere", use_qk_norm=True).vector_params == d + (32 + 8) * dh
    assert only(LLAMA, model_type="mimo", attention_bias=True).vector_params == 2 * d + qkv


def test_falcon_with_new_decoder_has_its_kv_heads_despite_multi_query() -> None:
    block = only(FALCON_40B)
    assert (attention(block).kv_heads, attention(block).key_dim) == (8, 64)
    assert (block.mlp, block.vector_params) == (Mlp(2, 4 * 8192), 4 * 8192)
    assert read(FALCON_40B).tied_embeddings
    assert read(FALCON_40B).total_params == pytest.approx(41.3e9, rel=0.002)


def test_falcon_7b_is_multi_query() -> None:
    small = {**without(FALCON_40B, "num_kv_heads", "new_decoder_architecture"), "hidden_size": 4544}
    found = read(small, num_attention_heads=71, num_hidden_layers=32)
    assert attention(found.blocks[0]).kv_heads == 1
    assert found.total_params == pytest.approx(6.92e9, rel=0.005)


def test_falcon_aliases_and_one_kv_head_per_query_head() -> None:
    names = ("num_hidden_layers", "num_attention_heads", "num_kv_heads")
    rw = {**without(FALCON_40B, *names), "n_layer": 2, "n_head": 128}
    block = only(rw, new_decoder_architecture=False, multi_query=False, n_head_kv=16, ffn_hidden_size=100, bias=True)
    assert (block.count, attention(block).kv_heads, block.mlp) == (2, 16, Mlp(2, 100))
    assert block.vector_params == 2 * 8192 + (128 + 2 * 16) * 64 + 2 * 8192 + 100


def test_window_that_is_never_reached_or_on_no_layer_is_full_attention() -> None:
    window = {"sliding_window": 4096}
    for found in (
        read(LLAMA, model_type="qwen2", **window),
        read(LLAMA, model_type="qwen2", use_sliding_window=True, max_window_layers=32, **window),
        read(LLAMA, model_type="phi3", max_position_embeddings=4096, **window),
        read(LLAMA, model_type="mistral", sliding_window=None),
    ):
        assert [attention(block).span for block in found.blocks] == [Span()]


def test_window_that_is_on() -> None:
    assert attention(only(LLAMA, model_type="mistral")).span == Span("sliding", 4096)
    short = only(LLAMA, model_type="phi3", sliding_window=2047, max_position_embeddings=4096)
    assert attention(short).span == Span("sliding", 2047)
    late = read(LLAMA, model_type="qwen2", sliding_window=4096, use_sliding_window=True, max_window_layers=28)
    assert [(block.count, attention(block).span.kind) for block in late.blocks] == [(28, "full"), (4, "sliding")]
    assert "sliding_window" in reason(LLAMA, sliding_window=4096)


def test_windows_by_pattern_where_no_list_names_the_layers() -> None:
    gemma2 = read(LLAMA, model_type="gemma2", num_hidden_layers=5)
    assert [(b.count, attention(b).span.kind) for b in gemma2.blocks] == [(3, "sliding"), (2, "full")]
    gemma3 = read(LLAMA, model_type="gemma3_text", num_hidden_layers=12, sliding_window_pattern=6)
    assert [(b.count, attention(b).span.kind) for b in gemma3.blocks] == [(10, "sliding"), (2, "full")]


def test_llama4_chunks_every_layer_but_each_fourth_and_interleaves_experts() -> None:
    llama4 = {**MIXTRAL, "model_type": "llama4_text", "intermediate_size_mlp": 16384, "attention_chunk_size": 8192}
    found = read(llama4, num_hidden_layers=8, interleave_moe_layer_step=2, num_experts_per_tok=1)
    spans = {attention(block).span: block.count for block in found.blocks if block.experts is None}
    assert spans == {Span("chunked", 8192): 4}
    sparse = [block for block in found.blocks if block.experts]
    assert [(b.count, attention(b).span.kind, b.mlp) for b in sparse] == [
        (2, "chunked", Mlp(3, 14336)),
        (2, "full", Mlp(3, 14336)),
    ]
    assert [b.mlp for b in found.blocks if b.experts is None] == [Mlp(3, 16384)]


def test_gpt_oss_has_sinks_and_biases_on_router_and_experts() -> None:
    oss = {**MIXTRAL, "model_type": "gpt_oss", "attention_bias": True, "sliding_window": 128, "head_dim": 128}
    block = read(oss).blocks[0]
    qkv, sinks = (32 + 16) * 128 + 4096, 32
    assert block.vector_params == 2 * 4096 + qkv + sinks + 8 + 8 * (2 * 14336 + 4096)


def test_gemma4_global_layers_have_heads_of_their_own_and_one_copy_of_key_and_value() -> None:
    windowed, full = read(GEMMA4).blocks
    assert attention(windowed) == Attention(32, 8, 256, 256, Span("sliding", 1024))
    assert attention(full) == Attention(32, 2, 512, 512, shared_key_value=True)
    assert block_facts(full, 4096)["kv_elements_per_token"] == 2 * 512
    assert "hidden_size_per_layer_input" in reason(without(GEMMA4, "hidden_size_per_layer_input"))
    assert "num_kv_shared_layers" in reason(GEMMA4, num_kv_shared_layers=2)


def test_gemma4_runs_a_dense_mlp_beside_the_experts() -> None:
    experts = {"enable_moe_block": True, "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704}
    block = read(GEMMA4, **experts).blocks[0]
    assert (block.mlp, block.experts) == (Mlp(3, 14336), Experts(128, 8, 3, 704, 4096))
    assert read(GEMMA4, **{**experts, "enable_moe_block": False}).blocks[0].experts is None


def test_mimo_windows_have_heads_of_their_own_and_values_narrower_than_keys() -> None:
    found = read(MIMO_V2)
    kinds = [(block.count, attention(block).kv_heads, attention(block).span.tokens) for block in found.blocks]
    assert kinds == [(1, 4, 0), (39, 8, 128), (8, 4, 0)]
    assert {(attention(block).key_dim, attention(block).value_dim) for block in found.blocks} == {(192, 128)}
    assert found.total_params == pytest.approx(309e9, rel=0.002)
    assert found.active_params == pytest.approx(15e9, rel=0.04)


def test_latent_attention_without_a_query_latent() -> None:
    v2 = {**DEEPSEEK, "model_type": "deepseek_v2", "q_lora_rank": None, "n_shared_experts": 2}
    dense, sparse = read(v2).blocks
    assert dense.mixer == LatentAttention(32, 0, 512, 128, 64, 128)
    assert (dense.count, dense.experts, sparse.mlp) == (3, None, Mlp(3, 2 * 2048))
    facts = block_facts(dense, 4096)
    assert facts["mixer_split_params"] == 4096 * 32 * 192 + 512 * 32 * 256 + 4096 * 32 * 128
    assert facts["mixer_whole_params"] == 4096 * (512 + 64)


def test_index_of_sparse_attention_is_shared_where_stated() -> None:
    types = ["full", "shared", "shared", "shared"] * 8
    found = read(DSA, indexer_types=types, first_k_dense_replace=0)
    own, shared = found.blocks
    assert isinstance(own.mixer, LatentAttention)
    assert isinstance(shared.mixer, LatentAttention)
    assert own.mixer.sparse == Sparse(2048, 32, 128, params=1536 * 32 * 128 + 4096 * (128 + 32))
    assert (own.count, shared.count, shared.mixer.sparse) == (8, 24, Sparse(2048))
    assert "index_topk_freq" in reason(DSA, index_topk_freq=4)


def test_pooled_index_keys_cost_a_share_of_their_bytes() -> None:
    facts = block_facts(Block(1, LatentAttention(8, 0, 64, 16, 0, 16, sparse=Sparse(64, 4, 128, 0, 4)), None, 0), 64)
    assert (facts["index_bytes_per_token"], facts["index_score_width"], facts["attended_tokens"]) == (33, 128, 64)


def test_block_sparse_attention_caches_everything_and_reads_the_best_blocks() -> None:
    config = {**MIXTRAL, "model_type": "minimax_m3", "num_hidden_layers": 4, "dense_intermediate_size": 12288}
    config |= {"moe_layer_freq": [0, 1, 1, 1], "n_shared_experts": 1, "shared_intermediate_size": 14336}
    index = {"sparse_topk_blocks": 16, "sparse_block_size": 128, "sparse_num_index_heads": 4, "sparse_index_dim": 128}
    marks = {"use_sparse_attention": True, "sparse_attention_freq": [0, 1, 1, 1], **index}
    full, sparse = read(config, sparse_attention_config=marks).blocks
    assert (attention(full).sparse, full.mlp) == (None, Mlp(3, 12288))
    assert attention(sparse).sparse == Sparse(2048, 4, 128, params=4096 * 5 * 128)
    assert block_facts(sparse, 4096)["kv_elements_per_token"] == 2 * 8 * 128


def test_gated_delta_layers_have_a_state_and_gated_attention_a_wider_query() -> None:
    recurrent, full = read(DELTA).blocks
    assert (recurrent.count, full.count, attention(full).gated) == (24, 8, True)
    assert isinstance(recurrent.mixer, Recurrent)
    assert recurrent.mixer.conv_elements == (2 * 16 * 128 + 32 * 128) * 3
    assert recurrent.mixer.state_elements == 32 * 128 * 128
    ungated = read(DELTA, attn_output_gate=False).blocks[1]
    assert (
        block_facts(full, 4096)["mixer_split_params"] - block_facts(ungated, 4096)["mixer_split_params"]
        == 4096 * 32 * 256
    )
    implied = {**without(DELTA, "attn_output_gate"), **without(QWEN3_MOE, *DELTA), "model_type": "qwen3_next"}
    assert attention(read(implied, shared_expert_intermediate_size=512).blocks[1]).gated


def test_nemotron_layers_are_one_block_each() -> None:
    mamba, mlp, full, moe = read(NEMOTRON).blocks
    assert (mamba.count, mlp.count, full.count, moe.count) == (2, 2, 1, 1)
    assert (mamba.mlp, mlp.mixer, full.mlp, moe.mixer) == (None, None, None, None)
    assert isinstance(mamba.mixer, Recurrent)
    inner, convolved = 64 * 64, 64 * 64 + 2 * 8 * 128
    assert mamba.mixer.params == 4096 * (inner + convolved + 64 + inner)
    assert mamba.vector_params == 4096 + convolved * 4 + convolved + 3 * 64 + inner
    assert moe.experts == Experts(16, 2, 2, 1856, 4096)
    assert moe.mlp == Mlp(2, 3712)


def test_experts_in_a_latent_space() -> None:
    experts = read(NEMOTRON, moe_latent_size=1024).blocks[3].experts
    assert experts == Experts(16, 2, 2, 1856, 1024, outer_params=2 * 4096 * 1024)


def test_dense_nemotron_has_no_experts_although_its_class_has() -> None:
    names = ("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "moe_shared_expert_intermediate_size")
    bare = {**without(NEMOTRON, *names), "hybrid_override_pattern": "M-M*-M"}
    assert all(block.experts is None for block in read(bare).blocks)
    assert read(NEMOTRON, hybrid_override_pattern="M-M*-M") == read(bare)


def test_kimi_delta_layers_and_a_full_rank_gate() -> None:
    recurrent = read(KIMI_LINEAR).blocks[0].mixer
    assert isinstance(recurrent, Recurrent)
    low_rank = 128 * (4096 + 4096)
    assert recurrent.params == 4 * 4096 * 4096 + 2 * low_rank + 4096 * 32
    table = {**KIMI_LINEAR["linear_attn_config"], "use_full_rank_gate": True}
    wide = read(KIMI_LINEAR, linear_attn_config=table).blocks[0].mixer
    assert isinstance(wide, Recurrent)
    assert wide.params - recurrent.params == 4096 * 4096 - low_rank


def test_jamba_mixes_mamba_attention_and_experts_by_period() -> None:
    found = read(JAMBA)
    counts = {(isinstance(b.mixer, Recurrent), b.experts is not None): b.count for b in found.blocks}
    assert counts == {(True, False): 12, (True, True): 16, (False, False): 4}
    assert found.total_params > 50e9


def test_granite_has_experts_in_every_layer_and_none_where_there_are_zero() -> None:
    mamba, full = read(GRANITE).blocks
    assert (mamba.count, full.count, mamba.mlp, full.experts) == (3, 1, Mlp(3, 1536), Experts(8, 2, 3, 768, 4096))
    dense = read(GRANITE, num_local_experts=0).blocks[0]
    assert (dense.experts, dense.mlp) == (None, Mlp(3, 1536))


def test_lightning_attention_by_code() -> None:
    m1 = {**MIXTRAL, "model_type": "minimax_m1", "num_hidden_layers": 4, "attn_type_list": [0, 0, 0, 1]}
    lightning, full = read(m1, head_dim=128, shared_intermediate_size=0).blocks
    assert lightning.mixer == Recurrent("lightning", 32, 5 * 4096 * 4096, 0, 32 * 128 * 128)
    assert (lightning.count, full.count, full.mlp) == (3, 1, None)


def test_step_names_and_windowed_heads_of_their_own() -> None:
    other = {"attention_type": "sliding_attention", "num_attention_heads": 96, "head_dim": 128}
    full, windowed = read(STEP, attention_other_setting=other).blocks
    assert (attention(full).heads, attention(windowed).heads) == (32, 96)
    assert windowed.experts == Experts(288, 8, 3, 1280, 4096)
    assert (full.mlp, windowed.mlp) == (Mlp(3, 14336), Mlp(3, 1280))


def test_dense_layers_among_experts_by_every_key() -> None:
    def sparse(**changes: Any) -> int:
        found = read({**QWEN3_MOE, **changes})
        return sum(block.count for block in found.blocks if block.experts)

    assert sparse() == 32
    assert sparse(mlp_only_layers=[0, 5]) == 30
    assert sparse(decoder_sparse_step=2) == 16
    assert sparse(first_k_dense_replace=3) == 29
    assert sparse(moe_layer_freq=[0] * 8 + [1] * 24) == 24
    assert sparse(mlp_layer_types=["dense"] * 2 + ["sparse"] * 30) == 30


def test_draft_layers_are_counted_apart() -> None:
    plain = read(DEEPSEEK)
    drafted = read(DEEPSEEK, num_nextn_predict_layers=2)
    assert drafted.total_params == plain.total_params
    last = plain.blocks[1]
    one = block_facts(last, 4096)
    experts = 64 * (one["expert_params"] + 4096)
    mixer = one["mixer_split_params"] + one["mixer_whole_params"]
    layer = mixer + one["mlp_params"] + experts + one["vector_params"]
    assert drafted.draft_params == 2 * (layer + 2 * 4096 * 4096)
    stated = read(NEMOTRON, num_nextn_predict_layers=1, mtp_layers_block_type=["attention", "mlp"]).draft_params
    assert stated < read(NEMOTRON, num_nextn_predict_layers=1, mtp_hybrid_override_pattern="*E").draft_params
    assert read({**MIXTRAL, "model_type": "minimax_m2"}, num_mtp_modules=3, use_mtp=False).draft_params == 0


KIMI_LINEAR_48B: dict[str, Any] = {
    "model_type": "kimi_linear",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 27,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 72,
    "vocab_size": 163840,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "mla_use_nope": True,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_shared_experts": 1,
    "moe_intermediate_size": 1024,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 0,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "kda_layers": [layer for layer in range(1, 27) if layer % 4],
        "num_heads": 32,
        "head_dim": 128,
        "short_conv_kernel_size": 4,
    },
}
GRANITE_4_SMALL: dict[str, Any] = {
    "model_type": "granitemoehybrid",
    "hidden_size": 4096,
    "intermediate_size": 768,
    "shared_intermediate_size": 1536,
    "num_hidden_layers": 40,
    "layer_types": [*["mamba"] * 5, "attention", *(["mamba"] * 9 + ["attention"]) * 3, *["mamba"] * 4],
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 72,
    "num_experts_per_tok": 10,
    "mamba_n_heads": 128,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_n_groups": 1,
    "vocab_size": 100352,
    "tie_word_embeddings": True,
}
JAMBA_LARGE: dict[str, Any] = {
    "model_type": "jamba",
    "hidden_size": 8192,
    "intermediate_size": 24576,
    "num_hidden_layers": 72,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "mamba_dt_rank": 512,
    "vocab_size": 65536,
}


@pytest.mark.parametrize(
    ("config", "total_1e9", "active_1e9"),
    [(KIMI_LINEAR_48B, 49.1, 3.4), (GRANITE_4_SMALL, 32.2, 9.0), (JAMBA_LARGE, 398.6, 94.0), (MIMO_V2, 309.0, 15.0)],
    ids=["Kimi-Linear-48B-A3B", "granite-4.0-h-small", "AI21-Jamba-1.5-Large", "MiMo-V2-Flash"],
)
def test_hybrids_outside_the_catalogue_have_their_published_sizes(
    config: dict[str, Any], total_1e9: float, active_1e9: float
) -> None:
    found = read(config)
    assert found.total_params == pytest.approx(total_1e9 * 1e9, rel=0.01)
    assert found.active_params == pytest.approx(active_1e9 * 1e9, rel=0.06)


def test_vision_tower_is_counted_where_it_is_known_and_noted_where_not() -> None:
    tower = {"hidden_size": 1152, "depth": 27, "intermediate_size": 4304, "patch_size": 16}
    inner = {**LLAMA, "model_type": "qwen3_5_text", **without(DELTA, *LLAMA)}
    found = read({"model_type": "qwen3_5", "text_config": inner, "vision_config": tower})
    assert found.other_params == pytest.approx(0.45e9, rel=0.02)
    assert found.total_params - found.other_params == read(inner).total_params
    assert any("vision_config" in note for note in read(LLAMA, vision_config=tower).notes)


def test_architecture_search_gives_each_layer_its_own_sizes() -> None:
    on = {"no_op": False, "replace_with_linear": False}
    blocks = [
        {"attention": {**on, "n_heads_in_group": 8}, "ffn": {**on, "ffn_mult": 5.25}},
        {"attention": {"no_op": True}, "ffn": {**on, "ffn_mult": 1.0}},
    ]
    config = {**LLAMA, "model_type": "nemotron-nas", "num_hidden_layers": 3, "hidden_size": 8192}
    config |= {"num_attention_heads": 64, "num_key_value_heads": None, "intermediate_size": None}
    both, mlp = read(config, block_configs=[*blocks, blocks[0]]).blocks
    assert (both.count, attention(both).kv_heads, both.mlp) == (2, 8, Mlp(3, 28672))
    assert (mlp.mixer, mlp.mlp, mlp.vector_params) == (None, Mlp(3, 5632), 8192)
    linear = [{**blocks[0], "attention": {"replace_with_linear": True}}] * 3
    assert "replace_with_linear" in reason(config, block_configs=linear)
    windowed = [{**blocks[0], "attention": {**on, "n_heads_in_group": 8, "window_length": 1024}}] * 3
    assert "window_length" in reason(config, block_configs=windowed)


NATIVE: dict[str, Any] = {
    "dim": 4096,
    "n_layers": 32,
    "n_heads": 32,
    "n_kv_heads": 8,
    "head_dim": 128,
    "hidden_dim": 14336,
}
NATIVE |= {"vocab_size": 32768, "norm_eps": 1e-5, "rope_theta": 1e6}


def test_native_names_of_mistral(tmp_path: Path) -> None:
    dense = only(dict(NATIVE))
    assert dense == Block(32, Attention(32, 8, 128, 128), Mlp(3, 14336), 2 * 4096)
    experts = only({**NATIVE, "moe": {"num_experts": 8, "num_experts_per_tok": 2}}).experts
    assert experts == Experts(8, 2, 3, 14336, 4096)
    assert "kv_lora_rank" in reason({**NATIVE, "kv_lora_rank": 512})
    assert "moe.expert_hidden_dim" in reason({**NATIVE, "moe": {"num_experts": 8, "expert_hidden_dim": 4}})
    (tmp_path / "params.json").write_text(json.dumps(NATIVE))
    assert read_config(tmp_path)[0] == read(dict(NATIVE))


FOREIGN = {
    "text_config": {"hidden_size": 8},
    "is_encoder_decoder": True,
    "num_local_experts": 8,
    "num_experts": 8,
    "n_routed_experts": 8,
    "moe_num_experts": 8,
    "kv_lora_rank": 8,
    "block_configs": [8],
    "hybrid_override_pattern": "M-",
    "hybrid_layer_pattern": [1],
    "attn_type_list": [1],
    "linear_attn_config": {"num_heads": 8},
    "full_attention_interval": 8,
    "sliding_window_pattern": 8,
    "index_topk": 8,
    "compress_ratios": [8],
    "sparse_attention_config": {"use_sparse_attention": True},
    "cross_attention_layers": [8],
    "attn_output_gate": True,
    "mamba_d_state": 8,
    "hidden_size_per_layer_input": 8,
    "num_kv_shared_layers": 8,
    "hc_mult": 8,
    "moe_latent_size": 8,
    "swa_num_key_value_heads": 8,
    "engram_layer_ids": [1],
}


@pytest.mark.parametrize("key", FOREIGN)
def test_a_key_of_another_architecture_is_refused_by_name(key: str) -> None:
    assert key in reason(LLAMA, **{key: FOREIGN[key]})


@pytest.mark.parametrize("key", FOREIGN)
def test_a_key_that_is_off_is_no_part(key: str) -> None:
    read(LLAMA, **{key: None})


def test_layer_types_that_the_family_has_not_are_refused() -> None:
    read(LLAMA, layer_types=["full_attention"] * 32)
    for word in ("linear_attention", "sliding_attention", "conv", 7, None, ["full_attention"]):
        assert "layer_types" in reason(LLAMA, layer_types=[word] * 32)
    for value in ("full_attention" * 32, ["full_attention"], 7):
        with pytest.raises(CatalogError, match="layer_types"):
            read(LLAMA, layer_types=value)


def test_unknown_model_type_is_a_reason() -> None:
    assert "'persimmon'" in reason(LLAMA, model_type="persimmon")
    assert "compress_ratios" in reason(LLAMA, model_type="deepseek_v4")
    inner = {**LLAMA, "model_type": "gpt_neox"}
    assert "text_config.model_type" in reason({"model_type": "llama4", "text_config": inner})
    assert set(model_types()) >= {*FAMILIES, *WRAPPERS}


FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
INT4 = {"num_bits": 4, "type": "int", "group_size": 32}
FLOAT4 = {"num_bits": 4, "type": "float", "group_size": 16}
FLOAT8 = {"num_bits": 8, "type": "float"}


def stored(
    config: dict[str, Any], quantisation: dict[str, Any], place: str = "quantization_config"
) -> Checkpoint | None:
    return read(config, **{place: quantisation}).checkpoint


def test_fp8_with_block_scales_and_kept_modules() -> None:
    assert stored(LLAMA, FP8) == Checkpoint("fp8", "fp8", "fp8", "bf16", "bf16", block_size=128)
    kept = {**FP8, "modules_to_not_convert": ["lm_head", "model.layers.0.input_layernorm", "model.layers.1.mlp.gate"]}
    assert stored(LLAMA, kept) == stored(LLAMA, FP8)
    shared = {**FP8, "modules_to_not_convert": [f"model.layers.{i}.self_attn.o_proj" for i in range(32)]}
    assert stored(DEEPSEEK, shared) == Checkpoint("fp8", "bf16", "fp8", "fp8", "bf16", block_size=128)
    assert stored(LLAMA, {**FP8, "weight_block_size": None}) == Checkpoint("fp8", "fp8", "fp8", "bf16", "bf16")
    assert read(LLAMA, quantization_config=None).checkpoint is None
    assert read(LLAMA, quantization_config={}).checkpoint is None


def test_part_of_the_layers_kept_is_a_note() -> None:
    some = {**FP8, "modules_to_not_convert": [f"model.layers.{layer}.self_attn*" for layer in (0, 1, 2, 99)]}
    found = read(LLAMA, quantization_config=some)
    assert found.checkpoint == stored(LLAMA, FP8)
    assert found.notes == (
        "stored in more than one format, counted as the first: mixer: fp8 in 29 layers, bf16 in 3 layers",
    )


def test_input_projections_kept_apart_from_the_output_are_a_note() -> None:
    kept = {
        **FP8,
        "modules_to_not_convert": ["model.layers.0.self_attn.q_b_proj", "model.layers.0.self_attn.kv_b_proj"],
    }
    found = read(DEEPSEEK, quantization_config=kept)
    assert found.checkpoint == stored(DEEPSEEK, FP8)
    assert found.notes == ("mixers keep input projections in 16 bits, counted as their output projection: fp8",)


def test_groups_of_layers_by_target() -> None:
    linear = {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": INT4}},
    }
    patterns = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]
    assert stored(DEEPSEEK, {**linear, "ignore": patterns}) == Checkpoint("int4", experts="int4")
    groups = {
        "group_0": {
            "targets": ["model.layers.*.linear_attn.out_proj", "model.layers.*.self_attn.o_proj"],
            "weights": FLOAT8,
        },
        "group_1": {"targets": ["lm_head", "model.layers.*.mlp.down_proj"], "weights": FLOAT4},
    }
    mixed = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "config_groups": groups, "ignore": ["mtp*"]}
    assert stored(DELTA, mixed) == Checkpoint("nvfp4", "fp8", "nvfp4", "bf16", "nvfp4")


def test_algorithms_by_layer_name_and_the_separate_file_of_modelopt(tmp_path: Path) -> None:
    named = {"backbone.layers.0.mixer.out_proj": {"quant_algo": "FP8"}, "lm_head": {"quant_algo": "W4A16_NVFP4"}}
    named |= {"backbone.layers.5.mixer.experts.*.down_proj": {"quant_algo": "NVFP4"}}
    inner = {
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": named,
        "exclude_modules": ["backbone.layers.3.mixer.o_proj"],
    }
    separate = {"producer": {"name": "modelopt"}, "quantization": inner}
    expected = Checkpoint("nvfp4", "bf16", "bf16", "nvfp4", "nvfp4")
    assert stored(NEMOTRON, separate, "_hf_quant_config") == expected
    (tmp_path / "config.json").write_text(json.dumps(NEMOTRON))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(separate))
    assert read_config(tmp_path)[0] == read(NEMOTRON, _hf_quant_config=separate)
    assert read_config(tmp_path)[1] != read_config(tmp_path / "config.json")[1]
    assert "MIXED_PRECISION" in reason(NEMOTRON, _hf_quant_config={"quantization": {"quant_algo": "MIXED_PRECISION"}})


def test_formats_of_four_and_eight_bits() -> None:
    def group(**weights: Any) -> dict[str, Any]:
        return {"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["Linear"], **weights}}}

    assert stored(LLAMA, group(weights=FLOAT4)) == Checkpoint("nvfp4", "nvfp4", "nvfp4")
    assert stored(LLAMA, group(weights={**FLOAT4, "group_size": 32})) == Checkpoint("mxfp4", "mxfp4", "mxfp4")
    whole = {"num_bits": 8, "type": "int"}
    assert stored(LLAMA, group(weights=whole, input_activations=whole)) == Checkpoint("int8", "int8", "int8")
    assert "num_bits" in reason(LLAMA, quantization_config=group(weights=whole))
    assert "num_bits" in reason(LLAMA, quantization_config=group(weights={**INT4, "num_bits": 3}))
    oss = {**MIXTRAL, "model_type": "gpt_oss", "sliding_window": 128}
    assert stored(oss, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}) == Checkpoint(
        "mxfp4", experts="mxfp4"
    )
    assert stored(LLAMA, {"quant_method": "awq", "bits": 4}) == Checkpoint("int4", "int4", "int4")


def test_quantisation_that_is_not_understood_names_its_field() -> None:
    for quantisation, name in (
        ({"quant_method": "bitsandbytes"}, "quantization_config.quant_method"),
        ({"quant_method": "gptq", "bits": 3}, "quantization_config.bits"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quantization_config.quant_algo"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "quantization_config.fmt"),
        ({**FP8, "expert_dtype": "fp4"}, "quantization_config.expert_dtype"),
    ):
        assert name in reason(LLAMA, quantization_config=quantisation)
    assert "expert_dtype" in reason(LLAMA, expert_dtype="fp4")
    both = {"quantization_config": FP8, "compression_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
    assert "different checkpoints" in reason(LLAMA, **both)


@pytest.mark.parametrize(
    ("quantisation", "key"),
    [
        ("fp8", "quantization_config"),
        ({**FP8, "weight_block_size": [128]}, "weight_block_size"),
        ({**FP8, "weight_block_size": [0, "x"]}, "weight_block_size"),
        ({**FP8, "modules_to_not_convert": "lm_head"}, "modules_to_not_convert"),
        ({**FP8, "modules_to_not_convert": [3]}, "modules_to_not_convert"),
        ({"quant_method": "modelopt", "quantized_layers": {"lm_head": "FP8"}}, "lm_head"),
        ({"quant_method": "modelopt", "config_groups": {"g": None}}, "config_groups"),
        ({"quant_method": "modelopt", "config_groups": {"g": {"weights": 8}}}, "weights"),
    ],
)
def test_a_malformed_quantisation_is_an_error_that_names_the_key(quantisation: Any, key: str) -> None:
    with pytest.raises(CatalogError, match=rf"config\.json: .*{key} = "):
        read(LLAMA, quantization_config=quantisation)


# The traps that catch readers of configs, each by its name.


def test_trap_1_latent_attention_with_kv_heads_equal_to_heads_caches_one_latent() -> None:
    assert {block_facts(block, 4096)["kv_elements_per_token"] for block in read(DEEPSEEK).blocks} == {512 + 64}
    assert {block_facts(block, 4096)["kv_heads"] for block in read(DEEPSEEK).blocks} == {1}


def test_trap_2_lists_longer_than_the_layers_and_no_layer_count_at_all() -> None:
    types = ["full"] * 33
    assert sum(block.count for block in read(DSA, indexer_types=types).blocks) == 32
    words = ["mamba", "mlp", "mamba", "attention", "mlp", "moe"]
    listed = {**without(NEMOTRON, "num_hidden_layers", "hybrid_override_pattern"), "layers_block_type": words}
    assert read(listed) == read(NEMOTRON)


@pytest.mark.parametrize(
    ("config", "width"),
    [(MIXTRAL, 14336), (JAMBA, 14336), (GRANITE, 768), ({**MIXTRAL, "model_type": "minimax_m2"}, 14336)],
)
def test_trap_3_intermediate_size_is_the_width_of_an_expert(config: dict[str, Any], width: int) -> None:
    assert {block.experts.width for block in read(config).blocks if block.experts} == {width}


@pytest.mark.parametrize("head_dim", [{}, {"head_dim": 0}, {"head_dim": None}, {"head_dim": 128}])
def test_trap_4_head_dim_absent_zero_or_null_is_hidden_over_heads(head_dim: dict[str, Any]) -> None:
    assert attention(only(LLAMA, **head_dim)).key_dim == 128


def test_trap_4_stated_head_dim_wins_and_must_be_stated_if_hidden_is_no_multiple() -> None:
    small = {**LLAMA, "model_type": "mistral", "hidden_size": 5120, "head_dim": 128, "sliding_window": None}
    assert attention(only(small)).key_dim == 128
    with pytest.raises(CatalogError, match=r"head_dim.*not a multiple of 32 heads"):
        read(LLAMA, hidden_size=4097)


def test_trap_4_zero_rotary_part_of_latent_attention() -> None:
    mixer = read(DSA, head_dim=0, qk_rope_head_dim=0).blocks[0].mixer
    assert isinstance(mixer, LatentAttention)
    assert (mixer.rope_dim, mixer.nope_dim) == (0, 128)


def test_trap_5_a_window_that_is_switched_off_is_full_attention() -> None:
    off = {"sliding_window": 4096, "use_sliding_window": False}
    assert attention(only(LLAMA, model_type="qwen2", **off)).span == Span()


def test_trap_6_layer_lists_counted_from_one_and_from_zero() -> None:
    table = KIMI_LINEAR["linear_attn_config"]
    recurrent = [block.count for block in read(KIMI_LINEAR).blocks if isinstance(block.mixer, Recurrent)]
    assert sum(recurrent) == 3
    from_zero = {**table, "full_attn_layers": [3], "kda_layers": [0, 1, 2]}
    with pytest.raises(CatalogError, match=r"linear_attn_config\.kda_layers"):
        read(KIMI_LINEAR, linear_attn_config=from_zero)
    glm = {**DSA, "model_type": "glm5_next_text", "num_hidden_layers": 4, "first_k_dense_replace": 1}
    words = ["linear_attention"] * 3 + ["deepseek_sparse_attention"]
    found = read(glm, linear_attn_config=from_zero, layer_types=words)
    assert sum(block.count for block in found.blocks if isinstance(block.mixer, Recurrent)) == 3
    with pytest.raises(CatalogError, match="full_attn_layers"):
        read(glm, linear_attn_config=table, layer_types=words)


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("place", ["quantization_config", "compression_config", "_hf_quant_config"])
def test_trap_7_quantisation_one_level_up_or_down(inside: bool, place: str) -> None:
    algorithm = {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["*self_attn*"]}
    inner = {**DEEPSEEK, **({place: algorithm} if inside else {})}
    outer = {"model_type": "kimi_k25", "text_config": inner, **({} if inside else {place: algorithm})}
    assert read(outer).checkpoint == Checkpoint("nvfp4", "bf16", "nvfp4", "nvfp4", "bf16")


def test_trap_vocabulary_of_gemma3_is_the_class_default() -> None:
    inner = without({**LLAMA, "model_type": "gemma3_text"}, "vocab_size", "tie_word_embeddings", "num_attention_heads")
    found = read({"model_type": "gemma3", "text_config": without(inner, "num_key_value_heads")})
    assert (found.vocab_size, found.tied_embeddings) == (262208, True)
    assert attention(found.blocks[0]) == Attention(8, 4, 256, 256, Span("sliding", 4096))


def test_trap_an_unused_chunk_size_chunks_nothing() -> None:
    assert {attention(block).span.kind for block in read(MIMO_V2).blocks} == {"full", "sliding"}


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


def test_a_nested_key_is_named_with_its_path() -> None:
    inner = {**LLAMA, "model_type": "llama4_text", "hidden_size": -1}
    with pytest.raises(CatalogError, match=r"text_config\.hidden_size = -1"):
        read({"model_type": "llama4", "text_config": inner})
    with pytest.raises(CatalogError, match="text_config = None"):
        read({"model_type": "llama4"})


def test_kv_heads_must_divide_the_query_heads() -> None:
    with pytest.raises(CatalogError, match="num_key_value_heads = 7: allowed: a divisor of the 32 query heads"):
        read(LLAMA, num_key_value_heads=7)


def test_more_parameters_than_any_model_are_refused() -> None:
    huge = {"num_hidden_layers": 1000, "hidden_size": 262144, "intermediate_size": 4194304, "head_dim": 4096}
    with pytest.raises(CatalogError, match="parameters = "):
        read(LLAMA, **huge)


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


def test_an_empty_directory_names_the_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"config\.json: file = "):
        read_config(tmp_path)
