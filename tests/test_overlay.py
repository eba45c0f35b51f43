"""A user's own catalogue: laid over the shipped one, and checked in full, each fault with file, line and value."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lambdamax
from lambdamax.catalog import Catalog, load_catalog
from lambdamax.exceptions import CatalogError, SpecError, StoreError, UnknownName
from lambdamax.explain import Question, explain
from lambdamax.facts import DATA
from lambdamax.replicas import Deployment
from lambdamax.spec import parse_spec, read_spec

SIZES = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8, "vocab_size": 32_000}
CONFIG = {"model_type": "llama", **SIZES, "num_attention_heads": 16, "num_key_value_heads": 4}
MODELS = """\
name,hub_id,config_file,published_parameters_1e9,source_url,source_date
tiny,me/tiny,model_configs/tiny.json,0.19,our registry,2026-11-29
qwen3-8b,,model_configs/tiny.json,,our registry,2026-11
"""
ACCELERATORS = """\
id,name,vendor,architecture,memory_bytes,memory_bandwidth_bytes_per_s,bf16_dense_flops,scaleup_domain_size,\
scaleup_wiring,default_profile,source_url,source_date
acme-1,ACME One,ACME,Ours,96e9,2e12,500e12,1,none,lab,data sheet,2026
l4,NVIDIA L4,NVIDIA,Ada,24e9,3.1e11,1.2e14,1,none,ada,measured here,2026-11-29
"""
PRICES = """\
accelerator_id,provider,plan,accelerators_per_instance,instance_usd_per_hour,source_url,date,evidence_kind
acme-1,Ours,on-demand,8,16,contract 12,2026-11,own contract
h100-sxm,AWS,on-demand,8,24,contract 13,2026-11,own contract
"""
PROFILE = (DATA / "profiles" / "ada.toml").read_text(encoding="utf-8").replace('name = "ada"', 'name = "lab"')

Edit = Callable[[Path], Any]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    directory = tmp_path / "own"
    (directory / "model_configs").mkdir(parents=True)
    (directory / "profiles").mkdir()
    (directory / "models.csv").write_text(MODELS)
    (directory / "accelerators.csv").write_text(ACCELERATORS)
    (directory / "prices.csv").write_text(PRICES)
    (directory / "profiles" / "lab.toml").write_text(PROFILE)
    (directory / "model_configs" / "tiny.json").write_text(json.dumps(CONFIG))
    return directory


def put(file: str, old: str, new: str) -> Edit:
    def edit(directory: Path) -> None:
        text = (directory / file).read_text()
        assert old in text
        (directory / file).write_text(text.replace(old, new))

    return edit


def faults(directory: Path) -> list[str]:
    with pytest.raises(CatalogError) as caught:
        load_catalog(directory)
    return str(caught.value).replace(str(directory), "DIR").splitlines()


def usd(catalog: Catalog, gpu: str, provider: str) -> float:
    price = catalog.price(gpu, "on-demand", provider)
    assert price is not None
    return price.usd_per_accelerator_hour


# What it adds


def test_entries_stand_beside_the_shipped_ones_or_in_their_place(own: Path) -> None:
    catalog, shipped = load_catalog(own), load_catalog()
    assert set(catalog.models) == {*shipped.models, "tiny"}
    assert catalog.model("me/tiny") == catalog.model("tiny")
    assert catalog.model("tiny").published_params == 0.19e9
    assert catalog.model("qwen3-8b").layers == 8
    assert shipped.model("qwen3-8b").layers == 36
    assert catalog.model("llama-3.1-8b") == shipped.model("llama-3.1-8b")
    assert set(catalog.accelerators) == {*shipped.accelerators, "acme-1"}
    assert catalog.accelerator("l4").memory_bandwidth_bytes_per_s == 3.1e11
    assert catalog.accelerator("h100-sxm") == shipped.accelerator("h100-sxm")
    assert set(catalog.profiles) == {*shipped.profiles, "lab"}
    assert catalog.profile("default", "acme-1").name == "lab"


def test_a_price_replaces_that_of_its_device_plan_and_provider(own: Path) -> None:
    catalog, shipped = load_catalog(own), load_catalog()
    assert "Ours" in catalog.providers
    assert (usd(catalog, "acme-1", "Ours"), usd(catalog, "acme-1", "median")) == (2.0, 2.0)
    assert (usd(catalog, "h100-sxm", "AWS"), usd(shipped, "h100-sxm", "AWS")) == (3.0, 6.88)
    assert usd(catalog, "h100-sxm", "Lambda") == usd(shipped, "h100-sxm", "Lambda")
    assert catalog.price("h100-sxm", "spot", "AWS") == shipped.price("h100-sxm", "spot", "AWS")


def test_one_file_is_enough(own: Path) -> None:
    for name in ("models.csv", "accelerators.csv", "profiles"):
        path = own / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (own / "prices.csv").write_text(PRICES.replace("acme-1,", "l4,"))
    assert usd(load_catalog(own), "l4", "Ours") == 2.0


def test_every_engine_serves_a_device_of_an_unheard_of_vendor(own: Path) -> None:
    catalog = load_catalog(own)
    for engine in catalog.engines:
        row = catalog.replica(Deployment("tiny", "acme-1", engine=engine))
        assert (row.unsupported, row.profile) == (None, "lab")


def test_the_shipped_files_pass_the_same_checks(tmp_path: Path) -> None:
    shutil.copytree(DATA, tmp_path / "copy")
    catalog, shipped = load_catalog(tmp_path / "copy"), load_catalog()
    assert (catalog.models, catalog.profiles) == (shipped.models, shipped.profiles)
    assert {gpu: catalog.accelerator(gpu) for gpu in catalog.accelerators} == {
        gpu: shipped.accelerator(gpu) for gpu in shipped.accelerators
    }
    assert all(usd(catalog, "h100-sxm", who) == usd(shipped, "h100-sxm", who) for who in ("AWS", "median"))


# What is wrong with it


def test_every_fault_comes_at_once_with_its_line(own: Path) -> None:
    put("models.csv", "2026-11-29", "yesterday")(own)
    put("accelerators.csv", "96e9,2e12", "-96e9,two")(own)
    put("prices.csv", "Ours,on-demand", "Ours,forever")(own)
    put("profiles/lab.toml", 'kind = "full"', 'kind = "half"')(own)
    found = faults(own)
    places = [fault.partition(" = ")[0] for fault in found]
    assert places == [
        "DIR/profiles/lab.toml: kind",
        "DIR/accelerators.csv:2: memory_bytes",
        "DIR/accelerators.csv:2: memory_bandwidth_bytes_per_s",
        "DIR/prices.csv:2: plan",
        "DIR/models.csv:2: source_date",
    ]
    assert all(": allowed: " in fault for fault in found)


@pytest.mark.parametrize(
    ("edit", "fault"),
    [
        (put("models.csv", "tiny,me/tiny", ",me/tiny"), "models.csv:2: name = '': allowed: a value in every row"),
        (
            put("models.csv", "tiny,me/tiny", "../tiny,me/tiny"),
            "models.csv:2: name = '../tiny': allowed: a name of up to",
        ),
        (
            put("models.csv", "tiny,me/tiny", "x.json,me/tiny"),
            "models.csv:2: name = 'x.json': allowed: a name of up to",
        ),
        (put("models.csv", "tiny,me/tiny", "default,me/tiny"), "models.csv:2: name = 'default': allowed: a name of up"),
        (put("models.csv", "me/tiny", "me/../tiny"), "models.csv:2: hub_id = 'me/../tiny': allowed: owner/name"),
        (
            put("models.csv", "0.19", "0.19 billion"),
            "published_parameters_1e9 = '0.19 billion': allowed: a number larger",
        ),
        (put("models.csv", "0.19", "nan"), "published_parameters_1e9 = 'nan': allowed: a number larger than 0"),
        (put("models.csv", "0.19", "1_0"), "published_parameters_1e9 = '1_0': allowed: a number larger than 0"),
        (put("models.csv", "qwen3-8b", "tiny"), "models.csv:3: name = 'tiny': allowed: each value in one row only"),
        (
            put("models.csv", ",source_date", ",when"),
            "source_date = no such column: allowed: a file with the columns name",
        ),
        (
            put("models.csv", ",source_date", ",when"),
            "'when' = an unknown column: allowed: the columns name, config_file",
        ),
        (put("models.csv", "hub_id", "name"), "models.csv: name = 2 columns: allowed: each column once"),
        (put("models.csv", ",2026-11-29", ""), "models.csv:2: cells = 5: allowed: 6, one for each column"),
        (
            put("models.csv", "our registry", '"our'),
            "models.csv: content = (",
        ),
        (
            put("models.csv", "our registry", '"a\nb"'),
            "models.csv:3: source_url = 'a\\nb': allowed: one line of at most",
        ),
        (put("models.csv", "model_configs/tiny", "tiny"), "tiny.json: file = "),
        (put("model_configs/tiny.json", "{", "["), "tiny.json: content = "),
        (put("model_configs/tiny.json", ": 16,", ": 17,"), "tiny.json: "),
        (put("accelerators.csv", "2e12", ""), "memory_bandwidth_bytes_per_s = '': allowed: a value in every row"),
        (put("accelerators.csv", "2e12", "-2e12"), "memory_bandwidth_bytes_per_s = '-2e12': allowed: a number larger"),
        (put("accelerators.csv", "2e12", "inf"), "memory_bandwidth_bytes_per_s = 'inf': allowed: a number larger"),
        (
            put("accelerators.csv", "500e12,1", "500e12,1.5"),
            "scaleup_domain_size = '1.5': allowed: a whole number from 1",
        ),
        (
            put("accelerators.csv", "1,none,lab", "1,wet string,lab"),
            "scaleup_wiring = 'wet string': allowed: one of bridge",
        ),
        (
            put("accelerators.csv", "none,lab", "none,labb"),
            "accelerators.csv:2: default_profile = 'labb': allowed: one of ada",
        ),
        (
            put("accelerators.csv", "l4,", "acme-1,"),
            "accelerators.csv:2: id = 'acme-1': allowed: each value in one row",
        ),
        (
            put("accelerators.csv", "acme-1", "acme 1"),
            "accelerators.csv:2: id = 'acme 1': allowed: a name of up to 128",
        ),
        (
            put("prices.csv", "acme-1", "acme-2"),
            "accelerator_id = 'acme-2': allowed: the id of an accelerator, shipped or",
        ),
        (
            put("prices.csv", "Ours,on-demand", "Ours,"),
            "plan = '': allowed: one of on-demand, reserved, spot; empty only",
        ),
        (
            put("prices.csv", "on-demand,8,16", "on-demand,0,16"),
            "accelerators_per_instance = '0': allowed: a whole number",
        ),
        (put("prices.csv", "own contract", "hearsay"), "evidence_kind = 'hearsay': allowed: one of own contract"),
        (put("prices.csv", "Ours", "median"), "provider = 'median': allowed: the name of a provider; the median is"),
        (
            put("profiles/lab.toml", 'name = "lab"', 'name = "lap"'),
            "lab.toml: name = 'lap': allowed: lab, as the file is",
        ),
        (put("profiles/lab.toml", "value = ", "value = -"), "allowed: a number from"),
    ],
)
def test_a_fault_is_named_with_file_line_value_and_what_is_allowed(own: Path, edit: Edit, fault: str) -> None:
    edit(own)
    assert any(fault in each for each in faults(own)), faults(own)


@pytest.mark.parametrize(
    "path", ["../outside.json", "model_configs/../../outside.json", "ABSOLUTE", "model_configs/link.json"]
)
def test_a_config_outside_of_the_directory_is_refused(own: Path, path: str) -> None:
    outside = own.parent / "outside.json"
    outside.write_text(json.dumps(CONFIG))
    (own / "model_configs" / "link.json").symlink_to(outside)
    stated = str(outside) if path == "ABSOLUTE" else path
    put("models.csv", "model_configs/tiny.json,0.19", f"{stated},0.19")(own)
    assert any(
        "config_file = " in fault and "allowed: the path of a .json file in DIR" in fault for fault in faults(own)
    )


@pytest.mark.parametrize("name", ["prices.csv", "profiles/lab.toml"])
def test_a_file_that_is_a_link_out_of_the_directory_is_refused(own: Path, name: str) -> None:
    (own / name).rename(own.parent / "elsewhere")
    (own / name).symlink_to(own.parent / "elsewhere")
    assert f"DIR/{name}: allowed: a file, not a link out of the directory" in faults(own)


def test_a_directory_without_facts_is_told(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "holds none of them" in faults(tmp_path / "empty")[0]
    assert "there is no such directory" in faults(tmp_path / "nowhere")[0]
    (tmp_path / "file").write_text("")
    assert "there is no such directory" in faults(tmp_path / "file")[0]


def test_binary_and_unreadable_files_are_told(own: Path) -> None:
    (own / "prices.csv").write_bytes(b"\xff\xfe\x00")
    (own / "models.csv").unlink()
    (own / "models.csv").mkdir()
    found = faults(own)
    assert any("prices.csv: content = " in fault and "text in UTF-8" in fault for fault in found)
    assert any("models.csv: file = " in fault and "a readable file" in fault for fault in found)


# Versions, and where it is used


def test_the_version_covers_every_file(own: Path) -> None:
    before = load_catalog(own).version
    assert before != load_catalog().version
    assert before == load_catalog(own).version
    for file, old, new in [
        ("models.csv", "our registry", "the registry"),
        ("accelerators.csv", "ACME One", "ACME 1"),
        ("prices.csv", "8,16", "8,17"),
        ("profiles/lab.toml", "\n", "\n\n"),
        ("model_configs/tiny.json", "32000", "32001"),
    ]:
        put(file, old, new)(own)
        after = load_catalog(own).version
        assert after != before, file
        before = after


RAW: dict[str, Any] = {
    "name": "own",
    "replica": {"model": "tiny", "gpu": ["acme-1", "h100-sxm"]},
    "workload": {"isl_tokens": 100, "osl_tokens": [50, 60]},
}
TOML = """
name = "own"
catalog = "own"
[replica]
model = "tiny"
gpu = ["acme-1", "h100-sxm"]
[workload]
isl_tokens = 100
osl_tokens = [50, 60]
"""


def test_a_sweep_names_its_catalogue_relative_to_its_file(own: Path) -> None:
    path = own.parent / "study.toml"
    path.write_text(TOML)
    result = lambdamax.sweep(path, own.parent / "out")
    assert (result.rows, result.status["ok"]) == (4, 4)
    manifest = json.loads((own.parent / "out" / "manifest.json").read_text())
    assert manifest["identity"]["catalog"] == load_catalog(own).version
    rows = lambdamax.scan(path).collect()
    assert rows["gpu"].unique().sort().to_list() == ["acme-1", "h100-sxm"]
    inputs = rows.select("model", "gpu", "isl_tokens", "osl_tokens")
    assert lambdamax.solve(inputs, catalog=load_catalog(own))["max_rate_rps"].equals(rows["max_rate_rps"])


def test_a_resumed_sweep_notices_a_change_in_the_catalogue(own: Path, tmp_path: Path) -> None:
    catalog = load_catalog(own)
    spec = parse_spec(RAW, catalog=catalog)
    lambdamax.sweep(spec, tmp_path / "out", catalog=catalog)
    assert lambdamax.sweep(spec, tmp_path / "out", catalog=catalog).solved_parts == 0
    put("prices.csv", "8,16", "8,17")(own)
    with pytest.raises(StoreError, match="it holds another sweep: catalog is"):
        lambdamax.sweep(spec, tmp_path / "out", catalog=load_catalog(own))


def test_faults_of_a_catalogue_are_faults_of_the_sweep_file_that_names_it(own: Path) -> None:
    put("prices.csv", "Ours,on-demand", "Ours,forever")(own)
    (own.parent / "study.toml").write_text(TOML)
    with pytest.raises(
        SpecError, match=r"study.toml: catalog = .*prices.csv:2: plan = 'forever': allowed: one of on-dem"
    ):
        read_spec(own.parent / "study.toml")
    (own.parent / "study.toml").write_text(TOML.replace('"own"', '"nowhere"'))
    with pytest.raises(SpecError, match="there is no such directory"):
        read_spec(own.parent / "study.toml")
    (own.parent / "study.toml").write_text(TOML.replace('catalog = "own"', "catalog = 3"))
    with pytest.raises(SpecError, match="catalog = 3: allowed: text"):
        read_spec(own.parent / "study.toml")


def test_names_of_an_own_catalogue_are_not_known_without_it(own: Path) -> None:
    asked = Question("tiny", "acme-1", numbers={"isl_tokens": 100.0, "osl_tokens": 50.0})
    assert explain(asked, catalog=load_catalog(own)).columns["status"] == "ok"
    with pytest.raises(CatalogError):
        explain(asked)
    with pytest.raises(UnknownName):
        load_catalog().model("tiny")


def test_a_frontier_knows_the_reasons_of_its_own_catalogue(own: Path, tmp_path: Path) -> None:
    catalog = load_catalog(own)
    replica = {**RAW["replica"], "weight_dtype": ["bf16", "fp8"]}
    lambdamax.sweep(parse_spec({**RAW, "replica": replica}, catalog=catalog), tmp_path / "out", catalog=catalog)
    table = lambdamax.frontier(tmp_path / "out", by=["model"], catalog=catalog)
    reasons = dict(table.select("gpu", "unsupported_because").iter_rows())
    assert reasons["acme-1"] == ["weight_dtype fp8: acme-1 lists no fp8_dense_flops, which it needs"]
    without = lambdamax.frontier(tmp_path / "out", by=["model"])
    assert "sized" in dict(without.select("gpu", "unsupported_because").iter_rows())["acme-1"][0]
