"""Families outside the catalogue: real configs of each against published totals, another's count and known caches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lambdamax.architecture import Architecture, Attention, Mlp, Recurrent, Span, Unsupported, block_facts
from lambdamax.exceptions import CatalogError
from lambdamax.facts import DATA
from lambdamax.hub import read_architecture
from lambdamax.hub.families import FAMILIES, REFUSED, WRAPPERS

GOLDEN = Path(__file__).parent / "golden"
REAL: dict[str, dict[str, Any]] = {
    name: entry
    for name, entry in json.loads((GOLDEN / "family_configs.json").read_text(encoding="utf-8")).items()
    if name != "_about"
}
VARIANTS = json.loads((GOLDEN / "family_variants.json").read_text(encoding="utf-8"))
STARTUPS = sorted((GOLDEN / "startup_configs").glob("*.json"))


def config(name: str, **changes: Any) -> dict[str, Any]:
    return {**REAL[name]["config"], **changes}


def read(facts: dict[str, Any]) -> Architecture:
    found = read_architecture(facts, "config.json")
    assert isinstance(found, Architecture), found
    return found


def reason(facts: dict[str, Any]) -> str:
    found = read_architecture(facts, "config.json")
    assert isinstance(found, Unsupported), found
    return found.reason


def total(found: Architecture, field: str) -> float:
    return sum(block.count * block_facts(block, found.hidden_size)[field] for block in found.blocks)


@pytest.mark.parametrize("name", [name for name, entry in REAL.items() if entry["published"]])
def test_parameters_are_those_published(name: str) -> None:
    assert read(config(name)).total_params == pytest.approx(REAL[name]["published"], rel=0.015)


@pytest.mark.parametrize("name", [name for name, entry in REAL.items() if entry["built"]])
def test_parameters_are_those_another_builds_from_the_config(name: str) -> None:
    """To a few correction biases of routers; towers are counted without their biases and norms."""
    found = read(config(name))
    assert found.total_params == pytest.approx(REAL[name]["built"], rel=2e-3 if found.other_params else 1e-6)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda each: each["of"].rpartition("/")[2])
def test_a_key_that_adds_or_drops_a_part_does_as_another_builds_it(variant: dict[str, Any]) -> None:
    found = read(config(variant["of"], **variant["changes"]))
    assert found.total_params == pytest.approx(variant["built"], rel=1e-6)


@pytest.mark.parametrize("name", REAL)
def test_cache_of_a_token_is_the_known_one(name: str) -> None:
    assert 2 * total(read(config(name)), "kv_elements_per_token") == REAL[name]["kv_bytes_per_token"]


@pytest.mark.parametrize("name", REAL)
def test_no_real_config_has_a_tower_that_is_not_counted(name: str) -> None:
    found = read(config(name))
    assert found.notes == ()
    assert (found.other_params > 0) == ("vision_config" in REAL[name]["config"])


def test_every_family_and_wrapper_has_a_real_config() -> None:
    """Here, among the start-ups, in the catalogue, or by hand in the reader's own tests."""
    files = [*STARTUPS, *(DATA / "model_configs").glob("*.json")]
    configs = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    configs += [entry["config"] for entry in REAL.values()]
    inner = [each.get("text_config") or each.get("llm_config") or each.get("language_config") or {} for each in configs]
    seen = {each.get("model_type") for each in (*configs, *inner)}
    by_hand = {"granitemoehybrid", "kimi_linear", "mimo_v2_flash"}
    varied = {each["changes"].get("model_type") for each in VARIANTS}
    same_code = {"step3p5", "ministral3", "qwen2_vl_text", "qwen2_5_vl_text", "minimax_m1"}
    assert {*FAMILIES, *WRAPPERS} - seen - by_hand - varied - same_code == set()


@pytest.mark.parametrize("path", STARTUPS, ids=lambda path: path.stem)
def test_every_measured_startup_has_a_config_that_is_read(path: Path) -> None:
    assert read(json.loads(path.read_text(encoding="utf-8"))).notes == ()


@pytest.mark.parametrize(("stem", "gib"), [("granite-3.3-8b-instruct", 15.25), ("phi-2", 5.19)])
def test_weights_are_those_a_startup_measured(stem: str, gib: float) -> None:
    found = read(json.loads((GOLDEN / "startup_configs" / f"{stem}.json").read_text(encoding="utf-8")))
    assert 2 * found.total_params / 2**30 == pytest.approx(gib, rel=0.005)


def test_phi_has_one_norm_two_matrices_and_biases_on_everything() -> None:
    found = read(config("microsoft/phi-2"))
    (block,) = found.blocks
    d, wide = 2560, 10240
    assert (block.mixer, block.mlp) == (Attention(32, 32, 80, 80), Mlp(2, wide))
    assert block.vector_params == 2 * d + 3 * d + d + wide + d
    assert found.final_norm_params == 2 * d + 51200
    assert "qk_layernorm" in reason(config("microsoft/phi-2", qk_layernorm=True))


def test_learned_positions_and_the_norms_beside_them_stand_around_the_layers() -> None:
    assert read(config("openai-community/gpt2")).final_norm_params == (1024 + 2) * 768
    assert read(config("facebook/opt-6.7b")).final_norm_params == (2048 + 2 + 2) * 4096
    assert read(config("bigscience/bloom")).final_norm_params == 4 * 14336
    assert read(config("allenai/OLMo-1B-hf")).final_norm_params == 0


def test_names_of_older_configs_are_the_ones_that_errors_give() -> None:
    with pytest.raises(CatalogError, match=r"config\.json: n_embd = -1"):
        read(config("openai-community/gpt2", n_embd=-1))
    with pytest.raises(CatalogError, match=r"config\.json: multi_query_group_num = 5"):
        read(config("THUDM/chatglm3-6b", multi_query_group_num=5))


def test_query_heads_share_key_and_value_only_where_a_key_says_so() -> None:
    santacoder = "bigcode/gpt_bigcode-santacoder"
    assert total(read(config(santacoder)), "kv_heads") == 24
    assert total(read(config(santacoder, multi_query=False)), "kv_heads") == 24 * 16
    assert total(read(config("THUDM/chatglm3-6b", multi_query_attention=False)), "kv_heads") == 28 * 32


@pytest.mark.parametrize(
    ("name", "changes", "field"),
    [
        ("facebook/opt-6.7b", {"word_embed_proj_dim": 512}, "word_embed_proj_dim"),
        ("facebook/opt-6.7b", {"do_layer_norm_before": False}, "do_layer_norm_before"),
        ("THUDM/chatglm3-6b", {"add_bias_linear": True}, "add_bias_linear"),
        ("mosaicml/mpt-7b", {"attn_config": {"attn_type": "multiquery_attention"}}, "attn_type"),
        ("mosaicml/mpt-7b", {"no_bias": False}, "no_bias"),
        ("mosaicml/mpt-7b", {"expansion_ratio": 8}, "expansion_ratio"),
        ("tencent/Hunyuan-7B-Instruct", {"use_cla": True}, "use_cla"),
        ("tencent/Hunyuan-A13B-Instruct", {"moe_topk": [8] * 31 + [4]}, "moe_topk"),
        ("tencent/Hunyuan-A13B-Instruct", {"use_mixed_mlp_moe": False}, "use_mixed_mlp_moe"),
        ("microsoft/Phi-4-mini-instruct", {"full_attn_mod": 2}, "full_attn_mod"),
        ("swiss-ai/Apertus-8B-Instruct-2509", {"post_norm": True}, "post_norm"),
        ("LiquidAI/LFM2-1.2B", {"conv_dim": 1024}, "conv_dim"),
        ("tiiuae/Falcon-H1-0.5B-Base", {"projectors_bias": True}, "projectors_bias"),
        ("tiiuae/Falcon-H1-0.5B-Base", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ("openbmb/MiniCPM-2B-sft-bf16", {"num_experts": 8}, "num_experts"),
        ("openai-community/gpt2", {"add_cross_attention": True}, "add_cross_attention"),
    ],
)
def test_what_changes_a_family_s_layers_is_refused_by_name(name: str, changes: dict[str, Any], field: str) -> None:
    assert field in reason(config(name, **changes))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        (
            "tiiuae/Falcon-H1-0.5B-Base",
            {"ssm_in_multiplier": 1.25, "ssm_multipliers": [0.35] * 5, "mamba_use_mlp": True},
        ),
        ("zai-org/GLM-4.1V-9B-Thinking", {"hidden_act": "silu"}),
        ("baidu/ERNIE-4.5-0.3B-PT", {"weight_share_add_bias": True}),
        ("EleutherAI/pythia-12b", {"use_parallel_residual": False}),
        ("ibm-granite/granite-3.3-8b-instruct", {"embedding_multiplier": 12.0, "residual_multiplier": 0.22}),
        ("openbmb/MiniCPM-2B-sft-bf16", {"scale_emb": 12, "scale_depth": 1.4}),
    ],
)
def test_multipliers_and_the_like_change_nothing(name: str, changes: dict[str, Any]) -> None:
    assert read(config(name, **changes)) == read(config(name))


@pytest.mark.parametrize(
    ("name", "changes", "key"),
    [
        ("tencent/Hunyuan-A13B-Instruct", {"moe_topk": ["8"]}, "moe_topk"),
        ("baidu/ERNIE-4.5-21B-A3B-PT", {"moe_layer_end_index": -7}, "moe_layer_end_index"),
        ("LiquidAI/LFM2-1.2B", {"block_ffn_dim_multiplier": "x"}, "block_ffn_dim_multiplier"),
        ("LiquidAI/LFM2-1.2B", {"full_attn_idxs": [16]}, "full_attn_idxs"),
        ("mosaicml/mpt-7b", {"attn_config": 7}, "attn_config"),
        ("Qwen/Qwen2-VL-7B-Instruct", {"vision_config": {"embed_dim": 8, "depth": 1, "patch_size": 1}}, "intermediate"),
    ],
)
def test_a_value_that_makes_no_sense_is_named(name: str, changes: dict[str, Any], key: str) -> None:
    with pytest.raises(CatalogError, match=rf"config\.json: .*{key}.* = "):
        read(config(name, **changes))


def test_windows_of_the_families_that_alternate() -> None:
    def spans(name: str) -> list[tuple[int, Span]]:
        return [
            (block.count, block.mixer.span) for block in read(config(name)).blocks if isinstance(block.mixer, Attention)
        ]

    assert spans("allenai/Olmo-3-1125-32B") == [(48, Span("sliding", 4096)), (16, Span())]
    assert spans("CohereLabs/c4ai-command-r7b-12-2024") == [(24, Span("sliding", 4096)), (8, Span())]
    assert spans("LGAI-EXAONE/EXAONE-4.0-32B") == [(48, Span("sliding", 4096)), (16, Span())]
    assert spans("LGAI-EXAONE/EXAONE-4.0-1.2B") == [(30, Span())]
    assert spans("bigcode/starcoder2-7b") == [(32, Span("sliding", 4096))]


def test_experts_end_where_a_config_says() -> None:
    ernie = read(config("baidu/ERNIE-4.5-21B-A3B-PT", moe_layer_end_index=20))
    assert [(block.count, block.experts is None) for block in ernie.blocks] == [(8, True), (20, False)]
    assert read(config("baidu/ERNIE-4.5-21B-A3B-PT", moe_layer_end_index=-1)) == read(
        config("baidu/ERNIE-4.5-21B-A3B-PT")
    )


def test_draft_layers_with_a_dense_mlp_close_the_published_total() -> None:
    for name in ("LGAI-EXAONE/K-EXAONE-236B-A23B", "baidu/ERNIE-4.5-300B-A47B-PT"):
        found = read(config(name, num_nextn_predict_layers=1))
        assert found.total_params + found.draft_params == pytest.approx(REAL[name]["published"], rel=1e-5)


def test_states_of_the_recurrences() -> None:
    kinds = {
        "tiiuae/falcon-mamba-7b-instruct": ("mamba1", 64, 2 * 8192 * 3 + 4 * 8192 * 16),
        "mistralai/Mamba-Codestral-7B-v0.1": ("mamba2", 64, 2 * (8192 + 2 * 8 * 128) * 3 + 4 * 8192 * 128),
        "ibm-ai-platform/Bamba-9B": ("mamba2", 29, 2 * (8192 + 2 * 128) * 3 + 4 * 8192 * 128),
        "tiiuae/Falcon-H1-0.5B-Base": ("mamba2", 36, 2 * (1536 + 2 * 128) * 3 + 4 * 1536 * 128),
        "LiquidAI/LFM2-1.2B": ("short_conv", 10, 2 * 2048 * 2),
    }
    for name, (kind, count, state_bytes) in kinds.items():
        found = read(config(name))
        (block,) = (block for block in found.blocks if isinstance(block.mixer, Recurrent))
        assert isinstance(block.mixer, Recurrent)
        assert (block.mixer.kind, block.count) == (kind, count)
        assert block_facts(block, found.hidden_size)["state_bytes"] == state_bytes


def test_side_by_side_mixers_are_two_blocks_of_one_layer() -> None:
    recurrent, attention = read(config("tiiuae/Falcon-H1-0.5B-Base")).blocks
    assert (recurrent.mlp, attention.mlp) == (None, Mlp(3, 2048))
    assert (recurrent.count, attention.count) == (36, 36)


def test_a_language_model_inside_another_leaves_out_what_is_its_class_default() -> None:
    found = read(config("llava-hf/llava-1.5-7b-hf"))
    assert (found.hidden_size, found.vocab_size) == (4096, 32064)
    with pytest.raises(CatalogError, match="hidden_size = None"):
        read({"model_type": "llama"})


def test_a_tower_of_another_kind_is_noted() -> None:
    llava = config("llava-hf/llava-1.5-7b-hf")
    found = read({**llava, "vision_config": {**llava["vision_config"], "model_type": "dinov2"}})
    assert (found.other_params, found.notes) == (0, ("vision_config is not counted",))


@pytest.mark.parametrize("model_type", sorted(REFUSED))
def test_what_cannot_be_expressed_is_refused_with_its_field(model_type: str) -> None:
    told = reason({"model_type": model_type})
    assert f"model_type = {model_type!r}: " in told
    assert "_" in told.partition(": ")[2].partition(":")[0]


def test_modules_of_every_dialect_count_as_the_part_they_are() -> None:
    fp8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    kept = {
        "microsoft/phi-2": ("model.layers.{}.self_attn.dense", "model.layers.{}.mlp.fc2"),
        "facebook/opt-6.7b": ("model.decoder.layers.{}.self_attn.out_proj", "model.decoder.layers.{}.fc2"),
        "internlm/internlm2_5-7b-chat": ("model.layers.{}.attention.wo", "model.layers.{}.feed_forward.w2"),
        "EleutherAI/pythia-12b": (
            "gpt_neox.layers.{}.attention.dense",
            "gpt_neox.layers.{}.mlp.dense_4h_to_h",
        ),
    }
    for name, (attention, mlp) in kept.items():
        layers = REAL[name]["config"]["num_hidden_layers"]
        by_part = {"mixer": attention, "mlp": mlp}
        for part, module in by_part.items():
            names = [module.format(layer) for layer in range(layers)]
            found = read(config(name, quantization_config={**fp8, "modules_to_not_convert": names})).checkpoint
            assert found is not None
            assert {each: getattr(found, each) for each in by_part} == {
                each: "bf16" if each == part else "fp8" for each in by_part
            }
