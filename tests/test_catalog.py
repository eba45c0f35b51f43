"""The catalogue: names, facts against published figures, prices by the rules, profiles, and the engine's rows."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lambdamax import _engine, prices
from lambdamax.architecture import Attention, LatentAttention
from lambdamax.catalog import Catalog, load_catalog
from lambdamax.exceptions import CatalogError, LambdamaxError, UnknownName
from lambdamax.models import Model
from lambdamax.profiles import CONSTANTS
from lambdamax.replicas import Deployment, ReplicaRow

CATALOG = load_catalog()
GIB = 2**30
KV_BYTES_PER_TOKEN = {
    "llama-3.3-70b-instruct": 327_680,
    "llama-3.1-8b-instruct": 131_072,
    "qwen3-32b": 262_144,
    "deepseek-v3": 70_272,
    "deepseek-r1": 70_272,
}
# Makers round, and some leave out what stands beside the language model; tests/test_models_golden.py is exact.
ROUGHLY = 0.1
PROMISED_MODELS = {
    "llama-3.1-8b-instruct",
    "llama-3.1-70b-instruct",
    "llama-3.1-405b",
    "llama-3.3-70b-instruct",
    "qwen2.5-7b-instruct",
    "qwen2.5-72b-instruct",
    "qwen3-8b",
    "qwen3-14b",
    "qwen3-32b",
    "mistral-small-24b-instruct-2501",
    "phi-4",
}
RATIO_PROFILE = """
name = "seventy-b-on-four-h100"   # worked example: 25 ms measured where the bandwidth floor is 13.55 ms
kind = "ratio"
status = "measured"
engine = "vllm"
architectures = ["Hopper"]
measured_points = 1

[relative_uncertainty]
value = 0.5
unit = "u in rate/(1 + u) to rate*(1 + u)"
source = "one point"
date = "2026-11-29"
note = "prefill is not modelled"

[constants.measured_over_floor_ratio]
value = 1.846
unit = "1"
source = "own measurement"
date = "2026-11-29"
note = "25 ms over 13.55 ms"

[constants.ttft_s]
value = 0.5
unit = "s"
source = "own measurement"
date = "2026-11-29"
note = "held constant"
"""


def replica(**changes: Any) -> ReplicaRow:
    asked: dict[str, Any] = {"model": "llama-3.3-70b-instruct", "gpu": "h100-sxm", "tp": 4}
    return CATALOG.replica(Deployment(**{**asked, **changes}))


def kv_elements(model: Model) -> int:
    return int(sum(block["count"] * block["kv_elements_per_token"] for block in model.facts))


# Models


def test_the_promised_models_are_there() -> None:
    assert set(CATALOG.models) >= PROMISED_MODELS


@pytest.mark.parametrize("name", sorted(PROMISED_MODELS))
def test_parameters_of_dense_models_are_within_one_and_a_half_percent_of_the_published_figure(name: str) -> None:
    model = CATALOG.model(name)
    assert model.architecture is not None
    assert model.published_params
    assert model.architecture.total_params == pytest.approx(model.published_params, rel=0.015)
    assert model.architecture.active_params == model.architecture.total_params


@pytest.mark.parametrize("name", CATALOG.models)
def test_a_model_has_its_layers_or_a_reason(name: str) -> None:
    model = CATALOG.model(name)
    if model.architecture is None:
        assert model.unsupported
        assert (model.layers, model.layer_counts, model.facts) == (0, {}, ())
        return
    assert sum(count for kind, count in model.layer_counts.items() if kind != "experts") == model.layers
    assert model.architecture.active_params <= model.architecture.total_params
    if model.published_params:
        assert model.architecture.total_params == pytest.approx(model.published_params, rel=ROUGHLY)


@pytest.mark.parametrize(("name", "expected"), KV_BYTES_PER_TOKEN.items())
def test_kv_bytes_per_token_at_16_bit(name: str, expected: int) -> None:
    assert 2 * kv_elements(CATALOG.model(name)) == expected


def test_a_hub_id_is_a_name_too() -> None:
    assert CATALOG.model("Qwen/Qwen3-8B") == CATALOG.model("qwen3-8b")


def test_a_path_to_a_config_is_a_model_named_after_its_directory(tmp_path: Path) -> None:
    path = tmp_path / "my-model" / "config.json"
    path.parent.mkdir()
    config: dict[str, Any] = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "vocab_size": 100}
    config |= {"num_hidden_layers": 2, "num_attention_heads": 4}
    path.write_text(json.dumps(config))
    assert [CATALOG.model(str(place)).name for place in (path, path.parent)] == ["my-model", "my-model"]
    assert CATALOG.model(str(path)).layers == 2
    path.rename(path.with_name("tiny.json"))
    assert CATALOG.model(str(path.with_name("tiny.json"))).name == "tiny"


def test_an_edited_config_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for layers in (2, 30):
        config: dict[str, Any] = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "vocab_size": 100}
        path.write_text(json.dumps(config | {"num_hidden_layers": layers, "num_attention_heads": 4}))
        assert CATALOG.model(str(path)).layers == layers


def test_a_model_that_cannot_be_sized_gives_a_row_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "deepseek_v4"}')
    row = replica(model=str(path))
    assert row.unsupported is not None
    assert "model_type" in row.unsupported
    assert row.fields["supported"] == 0
    assert math.isnan(row.fields["hidden_size"])
    assert row.blocks == ()


# Accelerators


def test_gb_of_memory_is_what_the_driver_reports() -> None:
    assert CATALOG.accelerator("h100-sxm").memory_bytes == 81_559 * 2**20
    assert CATALOG.accelerator("b200-sxm").memory_bytes == 183_359 * 2**20
    assert CATALOG.accelerator("l40s").memory_bytes == 46_068 * 2**20


def test_without_a_driver_figure_the_label_is_read_in_binary_units() -> None:
    device = CATALOG.accelerator("mi325x")
    assert device.driver_reported_mib is None
    assert device.memory_bytes == 256 * GIB


def test_figures_are_dense_and_one_way() -> None:
    device = CATALOG.accelerator("h100-sxm")
    assert device.peaks["bf16_dense_flops"] == 989e12
    assert device.scaleup_bytes_per_s == 450e9
    assert CATALOG.accelerator("a10g").peaks["bf16_dense_flops"] < CATALOG.accelerator("a10").peaks["bf16_dense_flops"]


def test_a_pair_in_a_full_mesh_has_one_link_of_its_own() -> None:
    device = CATALOG.accelerator("mi300x")
    assert device.link_bytes_per_s(2) == pytest.approx(64e9)
    assert device.link_bytes_per_s(8) == 448e9
    assert CATALOG.accelerator("h100-sxm").link_bytes_per_s(2) == 450e9


def test_every_device_has_a_default_profile_that_serves_its_architecture() -> None:
    for gpu in CATALOG.accelerators:
        profile = CATALOG.profile("default", gpu)
        assert CATALOG.accelerator(gpu).architecture in profile.architectures
        assert set(profile.constants) == set(CONSTANTS["full"])


def test_every_device_makes_a_row_for_every_format_that_it_computes_in() -> None:
    for gpu in CATALOG.accelerators:
        for weight_dtype in CATALOG.weight_dtypes:
            row = replica(gpu=gpu, weight_dtype=weight_dtype, tp=1)
            assert (row.unsupported is None) == (row.fields["supported"] == 1)
            assert row.unsupported is not None or row.fields["mixer_flops"] > 0


# Formats


def test_a_format_without_a_peak_is_unsupported_and_says_which() -> None:
    row = replica(gpu="trainium1", weight_dtype="fp8")
    assert (row.fields["supported"], row.unsupported is None) in {(0, False), (1, True)}
    row = replica(gpu="mi250x", weight_dtype="fp8")
    assert row.unsupported == "weight_dtype fp8: mi250x lists no fp8_dense_flops, which it needs"
    assert row.fields["supported"] == 0


def test_int4_is_weight_only_and_computes_in_bf16_everywhere() -> None:
    row = replica(gpu="a100-80-sxm", weight_dtype="int4")
    assert (row.unsupported, row.fields["mixer_flops"], row.fields["mixer_bits"]) == (None, 312e12, 4.25)


def test_nvfp4_is_for_one_vendor() -> None:
    assert replica(gpu="b200-sxm", weight_dtype="nvfp4").unsupported is None
    assert "NVIDIA only" in str(replica(gpu="mi355x", weight_dtype="nvfp4").unsupported)
    assert replica(gpu="mi355x", weight_dtype="mxfp4").unsupported is None


def test_int8_collapses_on_b300() -> None:
    assert replica(gpu="b300-sxm", weight_dtype="int8").fields["mixer_flops"] < 0.1 * 2.25e15


def test_native_is_how_the_checkpoint_stores_each_part() -> None:
    row = replica(model="gpt-oss-120b", gpu="b200-sxm", tp=1)
    assert row.weight_dtype == "mxfp4"
    bits = {part: row.fields[f"{part}_bits"] for part in ("mixer", "mlp", "expert", "head")}
    assert bits == {"mixer": 16, "mlp": 16, "expert": 4.25, "head": 16}
    assert row == replica(model="gpt-oss-120b", gpu="b200-sxm", tp=1, weight_dtype="mxfp4")
    assert replica().weight_dtype == "bf16"
    assert replica(weight_dtype="fp8").fields["head_bits"] == 16


def test_fp8_scales_in_blocks_are_not_cut() -> None:
    assert replica(model="deepseek-v3").fields["weight_block"] == 128
    assert replica(model="deepseek-v3", weight_dtype="bf16").fields["weight_block"] == 1


def test_layers_reach_the_engine_by_kind() -> None:
    made_of = CATALOG.model("deepseek-v3").architecture
    assert made_of is not None
    assert {type(block.mixer) for block in made_of.blocks} == {LatentAttention}
    spans = {
        block.mixer.span.kind: block.mixer.span.tokens
        for block in CATALOG.model("gpt-oss-20b").architecture.blocks  # type: ignore[union-attr]
        if isinstance(block.mixer, Attention)
    }
    assert spans == {"sliding": 128, "full": 0}


def test_kv_formats() -> None:
    assert replica().fields["kv_bytes_per_element"] == 2
    assert replica(kv_dtype="fp8").fields["kv_bytes_per_element"] == 1


# Engines


@pytest.mark.parametrize(
    ("gpu", "tokens", "seqs"),
    [("h100-sxm", 8192, 1024), ("a100-80-sxm", 2048, 256), ("l4", 2048, 256), ("mi300x", 8192, 1024)],
)
def test_scheduler_defaults_by_device(gpu: str, tokens: int, seqs: int) -> None:
    fields = replica(gpu=gpu).fields
    assert (fields["default_max_num_batched_tokens"], fields["default_max_num_seqs"]) == (tokens, seqs)
    assert fields["default_memory_utilization"] == 0.92


def test_the_buffers_of_collectives_come_with_tp() -> None:
    alone, grouped = replica(tp=1).fields["non_torch_bytes"], replica(tp=2).fields["non_torch_bytes"]
    assert 0 < alone < grouped < 4 * GIB


def test_the_engine_tells_how_a_default_came_about() -> None:
    setting = CATALOG.engine("vllm").setting("non_torch_bytes", CATALOG.accelerator("h100-sxm"), tp=1)
    assert setting.note
    assert setting.source
    assert "bytes" in setting.unit


# Prices


def row_of(**changes: str) -> dict[str, str]:
    base = {"accelerator_id": "g", "provider": "P", "region": "", "instance_type": "", "accelerators_per_instance": "1"}
    base |= {"plan": "on-demand", "instance_usd_per_hour": "2", "source_url": "s", "date": "2026-01", "notes": ""}
    return {**base, "evidence_kind": "article", **changes}


def book(*rows: dict[str, str]) -> prices.Book:
    return prices.book(rows)


@pytest.mark.parametrize(
    ("winner", "loser"),
    [
        ({"date": "2026-05-07"}, {"date": "2026-05", "evidence_kind": "provider API via catalogue"}),
        ({"date": "2026-05"}, {"date": "2026"}),
        ({"date": "2026"}, {"date": ">=2025-12"}),
        ({"evidence_kind": "provider docs"}, {"accelerators_per_instance": "8", "instance_usd_per_hour": "8"}),
        ({"accelerators_per_instance": "8", "instance_usd_per_hour": "32"}, {"instance_usd_per_hour": "1"}),
        ({"instance_usd_per_hour": "1"}, {"instance_usd_per_hour": "2"}),
    ],
)
def test_newest_then_best_evidence_then_largest_then_cheapest(winner: dict[str, str], loser: dict[str, str]) -> None:
    for rows in ((winner, loser), (loser, winner)):
        found = book(*(row_of(**row) for row in rows))["g", "on-demand"]["P"]
        usd = float(row_of(**winner)["instance_usd_per_hour"]) / float(row_of(**winner)["accelerators_per_instance"])
        assert found.usd_per_accelerator_hour == usd
        assert found.date == row_of(**winner)["date"]


def test_median_is_over_providers_not_rows() -> None:
    rows = [
        row_of(provider="A", instance_usd_per_hour="1", date="2025"),
        row_of(provider="A", instance_usd_per_hour="2"),
    ]
    rows += [row_of(provider=name, instance_usd_per_hour=usd) for name, usd in (("B", "4"), ("C", "7"), ("D", "9"))]
    median = prices.median_price(book(*rows)["g", "on-demand"].values())
    assert median is not None
    assert (median.usd_per_accelerator_hour, median.providers, median.date) == (5.5, ("A", "B", "C", "D"), "2026-01")
    assert prices.median_price([]) is None


def test_spot_equal_to_on_demand_is_kept() -> None:
    found = book(row_of(), row_of(plan="spot"))
    assert found["g", "spot"]["P"].usd_per_accelerator_hour == found["g", "on-demand"]["P"].usd_per_accelerator_hour


def test_stale_list_price_is_left_out() -> None:
    price = CATALOG.price("h100-sxm", "on-demand", "AWS")
    assert price is not None
    assert (price.usd_per_accelerator_hour, price.instance) == (6.88, "p5.48xlarge")


def test_a_median_made_by_others_is_no_provider() -> None:
    assert not {"market median", "median"} & set(CATALOG.providers)
    median = CATALOG.price("h100-sxm", "on-demand", "median")
    assert median is not None
    assert set(median.providers) == {"AWS", "CoreWeave", "Lambda", "Nebius", "RunPod"}
    assert median.usd_per_accelerator_hour == 3.49


def test_reserved_is_multi_year_rental() -> None:
    price = CATALOG.price("mi300x", "reserved", "median")
    assert price is not None
    assert price.usd_per_accelerator_hour == 1.55


def test_no_price_is_none() -> None:
    assert CATALOG.price("tpu-v6e", "on-demand", "median") is None
    assert CATALOG.price("h100-sxm", "spot", "Vultr") is None


# Profiles


def test_inherited_constants_keep_the_name_of_the_profile_that_states_them() -> None:
    blackwell = CATALOG.profile("default", "b200-sxm")
    assert (blackwell.name, blackwell.inherits, blackwell.measured_points) == ("blackwell", "hopper", 0)
    assert blackwell.constants["gemm_flops_efficiency"].profile == "hopper"
    assert blackwell.relative_uncertainty.value > CATALOG.profile("hopper", "h100-sxm").relative_uncertainty.value


def test_gddr_ampere_and_ada_take_the_nearest_measured_card() -> None:
    assert CATALOG.profile("default", "a10g").constants["roofline_exponent"].value == 1.63
    assert CATALOG.profile("default", "l40s").constants["roofline_exponent"].profile == "ampere-gddr"
    assert CATALOG.profile("default", "a100-80-sxm").constants["roofline_exponent"].value == 1.50


def test_a_ratio_profile_by_path(tmp_path: Path) -> None:
    path = tmp_path / "ratio.toml"
    path.write_text(RATIO_PROFILE)
    row = replica(profile=str(path))
    assert row.profile == "seventy-b-on-four-h100"
    assert (row.fields["kind"], row.fields["measured_over_floor_ratio"], row.fields["ttft_s"]) == (1, 1.846, 0.5)
    assert math.isnan(row.fields["layer_floor_s"])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("value = 1.846", "value = nan", r"value = nan: allowed: a number from"),
        ("value = 1.846", "value = -1", r"value = -1: allowed: a number from"),
        ("value = 1.846", "value = true", r"value = True"),
        ("value = 1.846", 'value = "2"', r"value = '2'"),
        ("value = 1.846", "value = 1" + "0" * 400, r"value = 10+\.\.\."),
        ('unit = "s"', 'unit = "ms"', r'constants.ttft_s.unit = \'ms\': allowed: "s"'),
        ('source = "own measurement"', 'source = ""', r"source = '': allowed: a text that is not empty"),
        ('kind = "ratio"', 'kind = "half"', r"kind = 'half': allowed: one of full, ratio"),
        ('kind = "ratio"', 'kind = "ratio"\ninherits = "hopper"', r"kind = 'ratio': allowed: full, as in"),
        ('kind = "ratio"', 'kind = "ratio"\ninherits = "nobody"', r"inherits = 'nobody': allowed: one of ada"),
        ("[constants.ttft_s]", "[constants.tftt_s]", r"constants.tftt_s = .*: allowed: only the keys"),
        ('kind = "ratio"', 'kind = "full"', r"constants.measured_over_floor_ratio = .*: allowed: only the keys"),
        ("measured_points = 1", "measured_points = -1", r"measured_points = -1: allowed: a whole number from 0"),
        ("measured_points = 1", "measured_points = 1\ncolour = 3", r"colour = 3: allowed: only the keys"),
        ('architectures = ["Hopper"]', "architectures = 3", r"architectures = 3: allowed: a list"),
        ("measured_points = 1", "measured_points = ", r"content = .*: allowed: one well-formed TOML"),
        (
            RATIO_PROFILE[RATIO_PROFILE.index("[constants.ttft_s]") :],
            "",
            r"constants.ttft_s = None: allowed: a table with",
        ),
    ],
)
def test_a_bad_profile_is_named_with_file_key_value_and_what_is_allowed(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = tmp_path / "bad.toml"
    assert old in RATIO_PROFILE
    path.write_text(RATIO_PROFILE.replace(old, new))
    with pytest.raises(CatalogError, match=r"bad\.toml: (constants\.)?(measured_over_floor_ratio\.)?" + message):
        CATALOG.profile(str(path), "h100-sxm")


# Rows and names


def test_a_row_has_the_fields_of_the_engine() -> None:
    row = replica()
    assert sorted(row.fields) == sorted(_engine.REPLICA_FIELDS)
    assert all(sorted({"model", *block}) == sorted(_engine.BLOCK_FIELDS) for block in row.blocks)
    assert all(type(value) is float for block in (row.fields, *row.blocks) for value in block.values())
    assert (row.unsupported, row.profile) == (None, "hopper")


def test_a_group_without_any_link_is_unsupported() -> None:
    assert "no PCIe figure" in str(replica(gpu="inferentia2", tp=16).unsupported)
    assert replica(gpu="inferentia2", tp=8).unsupported is None
    assert replica(gpu="l40s", tp=8).unsupported is None


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("model", "llama-3.3-70b", "unknown model 'llama-3.3-70b': did you mean .*llama-3.3-70b-instruct"),
        ("gpu", "H100", "unknown gpu 'H100': did you mean h100-"),
        ("weight_dtype", "float8", "unknown weight_dtype 'float8'"),
        ("kv_dtype", "xyz", "unknown kv_dtype 'xyz': known: bf16, fp8"),
        ("engine", "vlm", "unknown engine 'vlm': did you mean vllm"),
        ("profile", "hoper", "unknown profile 'hoper': did you mean hopper"),
    ],
)
def test_unknown_names_say_what_is_known(part: str, value: str, message: str) -> None:
    with pytest.raises(UnknownName, match=message):
        replica(**{part: value})


def test_unknown_plans_and_providers_say_what_is_known() -> None:
    with pytest.raises(UnknownName, match="unknown price_plan 'on demand': did you mean on-demand"):
        CATALOG.price("h100-sxm", "on demand", "median")
    with pytest.raises(UnknownName, match=r"unknown provider 'aws': did you mean AWS"):
        CATALOG.price("h100-sxm", "spot", "aws")


@pytest.mark.parametrize("degree", ["tp", "pp", "dp", "ep"])
@pytest.mark.parametrize("value", [0, -1, True, 1.0, 10**9, "4"])
def test_a_degree_of_parallelism_must_be_a_count(degree: str, value: Any) -> None:
    with pytest.raises(CatalogError, match=rf"{degree} = .*: allowed: a whole number from 1 to"):
        replica(**{degree: value})


def test_a_missing_file_is_the_users_mistake() -> None:
    for name in ("nowhere/config.json", "nowhere.json"):
        with pytest.raises(LambdamaxError, match="a readable file"):
            CATALOG.model(name)
    with pytest.raises(UnknownName, match="unknown model 'Qwen/Qwen9-8B'"):
        CATALOG.model("Qwen/Qwen9-8B")
    with pytest.raises(LambdamaxError, match="a readable file"):
        CATALOG.profile("nowhere.toml", "h100-sxm")


def test_version_is_a_checksum_of_the_facts() -> None:
    assert CATALOG.version == Catalog().version
    assert len(CATALOG.version) == 16


def test_the_catalogue_does_without_data_frames() -> None:
    code = (
        "import sys; sys.modules['polars'] = sys.modules['numpy'] = None; from lambdamax.catalog import load_catalog; "
        "from lambdamax.replicas import Deployment; "
    )
    code += "print(load_catalog().replica(Deployment('phi-4', 'l40s', 2)).profile)"
    package = Path(sys.modules["lambdamax"].__file__ or "").parent.parent
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=package, check=False)
    assert done.stdout.strip() == "ada", done.stderr


def test_numbers_have_no_noise_of_binary_fractions() -> None:
    catalog = load_catalog()
    published = [catalog.model(name).published_params for name in catalog.models]
    assert all(count is None or count == round(count) for count in published)
    keys = [(gpu, plan, who) for gpu in catalog.accelerators for plan in catalog.plans for who in catalog.providers]
    prices = [price.usd_per_accelerator_hour for key in keys if (price := catalog.price(*key)) is not None]
    assert all(usd == float(f"{usd:.12g}") for usd in prices)
