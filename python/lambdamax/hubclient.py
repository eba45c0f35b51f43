"""Fetching a model's config from the hub: `config.json` and what stands beside it, never weights."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lambdamax.exceptions import CatalogError
from lambdamax.facts import LARGEST_FILE_BYTES, read_json

_CONFIGS: Final = ("config.json", "params.json")
_BESIDE: Final = "hf_quant_config.json"
_WITHOUT: Final = "huggingface_hub is not installed: pip install 'lambdamax[hub]', or give the path of a config.json"


@dataclass(frozen=True)
class Fetched:
    """A config with its quantisation, and the address of the commit that it is from."""

    config: dict[str, Any]
    address: str


@dataclass(frozen=True)
class _Client:
    """What is used of the hub's client, which loads it on first use."""

    download: Callable[..., Any]
    errors: Any


def fetch(hub_id: str, revision: str | None = None) -> Fetched:
    """The config of model `hub_id` at `revision` (None: its main branch).

    Raises CatalogError if the hub's client is not installed or the hub does not give it.
    """
    client = _client()
    try:
        with _quiet():
            return _fetched(client, hub_id, revision)
    except client.errors.GatedRepoError:
        why = "it is gated: accept its terms on the hub and log in with `hf auth login`"
    except client.errors.RepositoryNotFoundError:
        why = "the hub has no such model, or it is private: log in with `hf auth login`"
    except client.errors.RevisionNotFoundError:
        why = f"it has no revision {revision}"
    except (client.errors.LocalEntryNotFoundError, client.errors.OfflineModeIsEnabled):
        why = "the hub cannot be reached"
    except client.errors.EntryNotFoundError:
        why = f"it has neither {' nor '.join(_CONFIGS)}"
    except (OSError, ValueError) as error:
        why = str(error).strip().partition("\n")[0] or type(error).__name__
    raise CatalogError(f"{hub_id}: its config cannot be fetched: {why}; or give the path of a config.json")


def _client() -> _Client:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError:
        raise CatalogError(_WITHOUT) from None
    return _Client(huggingface_hub.hf_hub_download, huggingface_hub.errors)


@contextmanager
def _quiet() -> Iterator[None]:
    """The client reports its retries on standard error; the outcome is told anyway."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _fetched(client: _Client, hub_id: str, revision: str | None) -> Fetched:
    name, commit, config = _first_config(client, hub_id, revision)
    beside = _one(client, hub_id, commit, _BESIDE)
    if beside is not None:
        config = {**config, "hf_quant_config": beside[1]}
    return Fetched(config, f"https://huggingface.co/{hub_id}/blob/{commit}/{name}")


def _first_config(client: _Client, hub_id: str, revision: str | None) -> tuple[str, str, dict[str, Any]]:
    for name in _CONFIGS[:-1]:
        if (found := _one(client, hub_id, revision, name)) is not None:
            return name, *found
    commit, config = _of_commit(client, hub_id, revision, _CONFIGS[-1])
    return _CONFIGS[-1], commit, config


def _one(client: _Client, hub_id: str, revision: str | None, name: str) -> tuple[str, dict[str, Any]] | None:
    """The commit and the content of one file; None if the model has no such file."""
    try:
        return _of_commit(client, hub_id, revision, name)
    except client.errors.RemoteEntryNotFoundError:
        return None


def _of_commit(client: _Client, hub_id: str, revision: str | None, name: str) -> tuple[str, dict[str, Any]]:
    about = client.download(hub_id, name, revision=revision, dry_run=True)
    if about.file_size is None or about.file_size > LARGEST_FILE_BYTES:
        raise ValueError(f"{name} has {about.file_size} bytes, at most {LARGEST_FILE_BYTES} are read")
    path = client.download(hub_id, name, revision=about.commit_hash)
    return about.commit_hash, read_json(Path(path))[0]
