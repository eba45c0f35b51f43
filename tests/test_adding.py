"""Adding a model to a catalogue of one's own, from a path or from the hub: whole or not at all, and never outside."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lambdamax import adding, hubclient
from lambdamax.adding import add
from lambdamax.catalog import load_catalog
from lambdamax.exceptions import CatalogError

SIZES = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8, "vocab_size": 32_000}
CONFIG: dict[str, Any] = {"model_type": "llama", **SIZES, "num_attention_heads": 16, "num_key_value_heads": 4}
REFUSED = {"model_type": "deepseek_v4", "compress_ratios": [4]}
NATIVE = {"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "head_dim": 16, "hidden_dim": 128, "vocab_size": 100}
FP8 = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]}}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path / "tiny"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return tmp_path / "own"


def held(directory: Path) -> dict[str, str]:
    files = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_text() for path in files}


# From a path


def test_a_model_is_added_with_its_source_and_date(model: Path, own: Path) -> None:
    stated = {"published_params": 0.19, "published_source": "model card", "note": "a, b", "source_url": "registry/7"}
    assert add(str(model), own, **stated) == "tiny"  # type: ignore[arg-type]
    found = load_catalog(own).model("tiny")
    assert (found.layers, found.published_params, found.source, found.note) == (8, 0.19e9, "registry/7", "a, b")
    assert len(found.date) == len("2026-11-29")
    assert sorted(held(own)) == ["model_configs/tiny.json", "models.csv"]


def test_the_file_and_its_directory_give_the_same_entry(model: Path, own: Path) -> None:
    add(str(model / "config.json"), own)
    assert load_catalog(own).model("tiny").source == str(model / "config.json")
    add(str(model), own, name="other")
    names = load_catalog(own).models
    assert {"tiny", "other"} <= set(names)


def test_the_quantisation_beside_a_config_is_kept(model: Path, own: Path) -> None:
    (model / "hf_quant_config.json").write_text(json.dumps(FP8))
    add(str(model), own)
    assert load_catalog(own).model("tiny").checkpoint.dtype == "fp8"


def test_a_native_config_is_taken(model: Path, own: Path) -> None:
    (model / "config.json").unlink()
    (model / "params.json").write_text(json.dumps({**NATIVE, "norm_eps": 1e-5}))
    add(str(model), own)
    assert load_catalog(own).model("tiny").layers == 2


def test_an_entry_is_replaced_only_if_asked_for(model: Path, own: Path) -> None:
    add(str(model), own)
    before = held(own)
    with pytest.raises(
        CatalogError, match=r"models\.csv: name = 'tiny': allowed: a name that is not there yet; --replace"
    ):
        add(str(model), own)
    assert held(own) == before
    (model / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": 9}))
    add(str(model), own, replace=True)
    assert load_catalog(own).model("tiny").layers == 9
    assert len(held(own)) == 2
    add(str(model), own, replace=True, note="the same config")
    assert load_catalog(own).model("tiny").note == "the same config"


def test_rows_and_files_that_are_there_stay(model: Path, own: Path) -> None:
    add(str(model), own, name="first", note='with "quotes", commas')
    row = held(own)["models.csv"].splitlines()[1]
    add(str(model), own, name="second")
    assert held(own)["models.csv"].splitlines()[1] == row
    (own / "model_configs" / "third.json").write_text("mine")
    add(str(model), own, name="third")
    assert held(own)["model_configs/third.json"] == "mine"
    assert load_catalog(own).model("third").layers == 8


@pytest.mark.parametrize(
    "name", ["../evil", "/etc/evil", "a/b", "..", ".hidden", "x.json", "", "a\nb", "default", "a" * 200]
)
def test_a_hostile_name_is_refused(model: Path, own: Path, name: str) -> None:
    (model.parent / ".hidden").mkdir()
    source = model
    if not name:
        source = model.rename(model.parent / "no name")
    with pytest.raises(CatalogError, match="allowed: a name of up to 128"):
        add(str(source), own, name=name or None)
    assert not own.exists()


def test_a_hostile_directory_is_refused(model: Path, own: Path) -> None:
    (own.parent / "elsewhere").mkdir()
    own.mkdir()
    (own / "model_configs").symlink_to(own.parent / "elsewhere")
    with pytest.raises(CatalogError, match="allowed: a path in the directory, not a link out of it"):
        add(str(model), own)
    assert list((own.parent / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("note", ["two\nlines", "x" * 5000, "bell\a"])
def test_a_note_that_no_catalogue_takes_is_refused(model: Path, own: Path, note: str) -> None:
    with pytest.raises(CatalogError, match=r"models\.csv:\d+: notes = .*: allowed: one line of at most"):
        add(str(model), own, note=note)
    assert not own.exists() or held(own) == {}


def test_what_cannot_be_sized_or_read_is_not_added(model: Path, own: Path) -> None:
    (model / "config.json").write_text(json.dumps(REFUSED))
    with pytest.raises(CatalogError, match="it cannot be sized, so it is not added: model_type = 'deepseek_v4'"):
        add(str(model), own)
    with pytest.raises(CatalogError, match="a readable file"):
        add(str(model / "nothing.json"), own)
    with pytest.raises(CatalogError, match="only with a model on the hub"):
        add(str(model), own, revision="main")
    assert not own.exists()


def test_a_catalogue_with_faults_is_not_added_to(model: Path, own: Path) -> None:
    add(str(model), own)
    (own / "prices.csv").write_text("colour\n")
    before = held(own)
    with pytest.raises(CatalogError, match="'colour' = an unknown column"):
        add(str(model), own, name="other")
    assert held(own) == before


def test_a_disk_that_refuses_leaves_everything_as_it_was(
    model: Path, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(str(model), own, name="first")
    before, put = held(own), adding._put

    def refuse(path: Path, content: str) -> None:
        if path.name == "models.csv":
            raise OSError(28, "No space left on device", str(path))
        put(path, content)

    monkeypatch.setattr(adding, "_put", refuse)
    for name in ("second", "first"):
        with pytest.raises(CatalogError, match=r"models\.csv: it cannot be written \(No space left"):
            add(str(model), own, name=name, replace=True)
        assert held(own) == before


def test_a_directory_that_is_a_file_is_told(model: Path, own: Path) -> None:
    own.write_text("")
    with pytest.raises(CatalogError, match="it cannot be written"):
        add(str(model), own)


# From the hub


class RefusalError(OSError):
    """What the hub's client raises."""


@dataclass
class Hub:
    """A hub of files by name, and what it was asked for."""

    folder: Path
    files: dict[str, Any] = field(default_factory=dict)
    error: Exception | None = None
    size: int | None = 1000
    asked: list[tuple[str, str, str | None, bool]] = field(default_factory=list)
    absent: Callable[[], Exception] = RefusalError

    def hf_hub_download(self, hub_id: str, name: str, *, revision: str | None = None, dry_run: bool = False) -> Any:
        self.asked.append((hub_id, name, revision, dry_run))
        if self.error is not None:
            raise self.error
        if name not in self.files:
            raise self.absent()
        if dry_run:
            return type("DryRun", (), {"commit_hash": "abc123", "file_size": self.size})()
        (self.folder / name).write_text(json.dumps(self.files[name]))
        return str(self.folder / name)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    client, errors = ModuleType("huggingface_hub"), ModuleType("huggingface_hub.errors")
    entry = type("EntryNotFoundError", (Exception,), {})
    repository = type("RepositoryNotFoundError", (RefusalError,), {})
    classes: dict[str, type] = {
        "EntryNotFoundError": entry,
        "RemoteEntryNotFoundError": type("RemoteEntryNotFoundError", (RefusalError, entry), {}),
        "LocalEntryNotFoundError": type("LocalEntryNotFoundError", (FileNotFoundError, entry), {}),
        "RepositoryNotFoundError": repository,
        "GatedRepoError": type("GatedRepoError", (repository,), {}),
        "RevisionNotFoundError": type("RevisionNotFoundError", (RefusalError,), {}),
        "OfflineModeIsEnabled": type("OfflineModeIsEnabled", (ConnectionError,), {}),
    }
    for name, error in classes.items():
        setattr(errors, name, error)
    (tmp_path / "cache").mkdir()
    found = Hub(tmp_path / "cache", absent=classes["RemoteEntryNotFoundError"])
    client.errors = errors  # type: ignore[attr-defined]
    client.hf_hub_download = found.hf_hub_download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", client)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", errors)
    return found


def test_a_model_of_the_hub_is_added_from_one_commit(hub: Hub, own: Path) -> None:
    hub.files = {"config.json": CONFIG, "hf_quant_config.json": FP8, "model.safetensors": {}}
    assert add("Me/Tiny-8B", own, revision="v2") == "tiny-8b"
    catalog = load_catalog(own)
    found = catalog.model("Me/Tiny-8B")
    assert found == catalog.model("tiny-8b")
    assert found.source == "https://huggingface.co/Me/Tiny-8B/blob/abc123/config.json"
    assert found.checkpoint.dtype == "fp8"
    names = {name for _, name, _, _ in hub.asked}
    assert names == {"config.json", "hf_quant_config.json"}
    assert {revision for _, _, revision, _ in hub.asked} == {"v2", "abc123"}


def test_a_native_config_is_looked_for_where_there_is_no_other(hub: Hub, own: Path) -> None:
    hub.files = {"params.json": NATIVE}
    add("me/native", own)
    assert load_catalog(own).model("native").source.endswith("params.json")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("GatedRepoError", "it is gated: accept its terms on the hub and log in"),
        ("RepositoryNotFoundError", "the hub has no such model, or it is private"),
        ("RevisionNotFoundError", "it has no revision v9"),
        ("LocalEntryNotFoundError", "the hub cannot be reached"),
        ("OfflineModeIsEnabled", "the hub cannot be reached"),
    ],
)
def test_a_refusal_of_the_hub_is_one_line(hub: Hub, own: Path, error: str, words: str) -> None:
    hub.error = getattr(sys.modules["huggingface_hub.errors"], error)("long\nstory")
    with pytest.raises(CatalogError) as caught:
        add("me/tiny", own, revision="v9")
    assert str(caught.value) == f"me/tiny: its config cannot be fetched: {str(caught.value).split(': ', 2)[2]}"
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert not own.exists()


def test_other_troubles_of_the_hub_are_told_too(hub: Hub, own: Path) -> None:
    with pytest.raises(CatalogError, match=r"it has neither config\.json nor params\.json"):
        add("me/tiny", own)
    hub.files = {"config.json": CONFIG}
    hub.size = None
    with pytest.raises(CatalogError, match=r"config\.json has None bytes, at most"):
        add("me/tiny", own)
    hub.size = 2**40
    with pytest.raises(CatalogError, match=r"config\.json has 1099511627776 bytes, at most"):
        add("me/tiny", own)
    hub.error = OSError("503 Server Error\nfor url")
    with pytest.raises(CatalogError, match="cannot be fetched: 503 Server Error; or give the path"):
        add("me/tiny", own)
    hub.size, hub.error, hub.files = 10, None, {"config.json": REFUSED}
    with pytest.raises(CatalogError, match="me/tiny: it cannot be sized"):
        add("me/tiny", own)
    assert not own.exists()


def test_without_the_hubs_client_it_says_how_to_get_it(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(
        CatalogError, match=r"huggingface_hub is not installed: pip install 'lambdamax\[hub\]', or give"
    ):
        hubclient.fetch("me/tiny")
    assert not own.exists()
