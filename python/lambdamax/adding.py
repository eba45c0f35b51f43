"""Adding a model to a catalogue of the user's own: its config and its row in `models.csv`, whole or not at all."""

from __future__ import annotations

import csv
import datetime
import io
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lambdamax import schemas
from lambdamax.architecture import Unsupported
from lambdamax.catalog import load_catalog
from lambdamax.exceptions import CatalogError
from lambdamax.facts import Row, bad, checksum, read_json, read_text
from lambdamax.hub import read_architecture, read_config
from lambdamax.hubclient import fetch
from lambdamax.models import Model
from lambdamax.overlay import MODEL_CONFIGS, MODELS, held, is_within, parse_models
from lambdamax.tables import NAME_ALLOWED, is_hub_id, is_name

_QUANTISATION: Final = "hf_quant_config"


@dataclass(frozen=True)
class _Source:
    """A config, and where it is from; `name` is what it is called there."""

    name: str
    config: Mapping[str, Any]
    address: str
    hub_id: str = ""


def add(
    source: str,
    directory: Path,
    *,
    name: str | None = None,
    revision: str | None = None,
    published_params: float | None = None,
    published_active_params: float | None = None,
    published_source: str = "",
    source_url: str | None = None,
    note: str = "",
    replace: bool = False,
) -> str:
    """Add the model at `source` (a path, or an id on the hub) to the catalogue in `directory`.

    Returns the name that it has there. The published figures are in billions. An entry of that name is replaced only if
    `replace`. Raises CatalogError if the model cannot be read or sized, or the directory cannot take it; nothing is
    changed then.
    """
    found = _found(source, revision)
    named = _named(name or found.name)
    row = {
        "name": named,
        "hub_id": found.hub_id,
        "published_parameters_1e9": _text(published_params),
        "published_active_parameters_1e9": _text(published_active_params),
        "published_source": published_source,
        "source_url": source_url or found.address,
        "source_date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "fidelity": "verbatim",
        "notes": note,
    }
    _write(directory, row, found.config, replace)
    return named


def _found(source: str, revision: str | None) -> _Source:
    if is_hub_id(source) and not os.path.exists(source):
        fetched = fetch(source, revision)
        _sized(fetched.config, source)
        return _Source(source.partition("/")[2].casefold(), fetched.config, fetched.address, source)
    if revision is not None:
        raise bad("command line", "--revision", revision, "only with a model on the hub, owner/name")
    return _local(Path(source))


def _local(path: Path) -> _Source:
    found, _ = read_config(path)
    if isinstance(found, Unsupported):
        raise _refused(str(path), found)
    return _Source(Model.at(path).name, _content(path), str(path))


def _content(path: Path) -> dict[str, Any]:
    """The config at `path`, with the quantisation that stands beside it in a directory."""
    if not path.is_dir():
        return read_json(path)[0]
    file = next((path / name for name in ("config.json", "params.json") if (path / name).exists()), path)
    config, beside = read_json(file)[0], path / f"{_QUANTISATION}.json"
    return {**config, _QUANTISATION: read_json(beside)[0]} if beside.exists() else config


def _sized(config: Mapping[str, Any], source: str) -> None:
    found = read_architecture(config, source)
    if isinstance(found, Unsupported):
        raise _refused(source, found)


def _refused(source: str, found: Unsupported) -> CatalogError:
    return CatalogError(f"{source}: it cannot be sized, so it is not added: {found.reason}")


def _named(name: str) -> str:
    if not is_name(name):
        raise bad("command line", "--name", name, NAME_ALLOWED)
    return name


def _text(billions: float | None) -> str:
    return "" if billions is None else f"{billions:.12g}"


# Writing


def _write(directory: Path, row: Row, config: Mapping[str, Any], replace: bool) -> None:
    """The config first, in a file that no row names yet; then the row that names it, with which it counts."""
    rows = _rows(directory)
    old = next((each for each in rows if each["name"] == row["name"]), None)
    if old is not None and not replace:
        raise bad(directory / MODELS, "name", row["name"], "a name that is not there yet; --replace takes its place")
    content = json.dumps(config, indent=1, ensure_ascii=False) + "\n"
    with _told(directory):
        file = _config_file(directory, row["name"], content)
        table = _checked_table(directory, [*(each for each in rows if each is not old), {**row, "config_file": file}])
        with _taken_back(directory / file):
            _put(directory / file, content)
            _put(directory / MODELS, table)
        if old is not None and old["config_file"] != file:
            (directory / old["config_file"]).unlink(missing_ok=True)


def _rows(directory: Path) -> list[Row]:
    """The rows that are there already. CatalogError if the directory has any fault."""
    if not held(directory):
        return []
    load_catalog(directory)
    path = directory / MODELS
    return [line.row for line in parse_models(read_text(path)[0], path, [])] if path.exists() else []


def _config_file(directory: Path, name: str, content: str) -> str:
    """A path for a config of that content: one that is free, or that of a file with the same content."""
    for file in (f"{MODEL_CONFIGS}/{name}.json", f"{MODEL_CONFIGS}/{name}-{checksum(content.encode())}.json"):
        path = directory / file
        if not is_within(directory, file):
            raise bad(path, "file", file, "a path in the directory, not a link out of it")
        if not path.exists() or path.read_bytes() == content.encode():
            return file
    raise bad(directory / file, "file", file, "a file with the content that its name says")


def _checked_table(directory: Path, rows: list[Row]) -> str:
    """`models.csv` with `rows`; CatalogError if a cell is not as it should be."""
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, [column.name for column in schemas.MODELS], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    faults: list[str] = []
    parse_models(stream.getvalue(), directory / MODELS, faults)
    if faults:
        raise CatalogError("\n".join(faults))
    return stream.getvalue()


def _put(path: Path, content: str) -> None:
    """Write a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("x", encoding="utf-8", newline="") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _taken_back(path: Path) -> Iterator[None]:
    """If the body fails, the file at `path` is as absent as it was before."""
    was_there = path.exists()
    try:
        yield
    except BaseException:
        if not was_there:
            path.unlink(missing_ok=True)
        raise


@contextmanager
def _told(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CatalogError(f"{error.filename or directory}: it cannot be written ({error.strerror})") from None
