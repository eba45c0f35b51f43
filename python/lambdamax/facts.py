"""Reading files of facts: CSV rows of the package, JSON and TOML of anyone, and the one wording of their faults."""

from __future__ import annotations

import csv
import difflib
import hashlib
import json
import reprlib
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from lambdamax.exceptions import CatalogError, Fault, UnknownName

DATA: Final = Path(__file__).parent / "data"
NAMES_OFFERED: Final = 3
NAMES_LISTED: Final = 40
LARGEST_FILE_BYTES: Final = 16 * 2**20

Row = Mapping[str, str]


def bad(file: str | Path, key: str, value: object, allowed: str) -> CatalogError:
    """The error that says where a fact is (`file`, `key`), what was found and what is allowed."""
    return CatalogError(str(Fault(str(file), key, reprlib.repr(value), allowed)))


def unknown(kind: str, value: str, names: Iterable[str]) -> UnknownName:
    """The error for a name that the catalogue does not hold; offers the nearest names, else all if few, else some."""
    known = sorted(set(names))
    folded = {name.casefold(): name for name in known}
    longer = [name for name in folded if value and name.startswith(value.casefold())]
    alike = difflib.get_close_matches(value.casefold(), folded, n=NAMES_OFFERED, cutoff=0.5)
    near = [folded[name] for name in dict.fromkeys([*longer, *alike])][:NAMES_OFFERED]
    listed = known if len(known) <= NAMES_LISTED else [*known[:NAMES_LISTED], f"… {len(known)} in all"]
    hint = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(listed)}"
    return UnknownName(f"unknown {kind} {reprlib.repr(value)}: {hint}")


def faulty(faults: Iterable[Fault]) -> CatalogError:
    """The error that tells `faults`, one a line."""
    return CatalogError("\n".join(map(str, faults)))


def read_rows(name: str) -> list[Row]:
    """The rows of CSV file `name` of the package data, as text by column."""
    with (DATA / name).open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def number(row: Row, column: str) -> float | None:
    """The number in `column`, None if the cell is empty."""
    return float(row[column]) if row[column] else None


def required_number(row: Row, column: str) -> float:
    """The number in `column`, which must not be empty."""
    return float(row[column])


def read_json(path: Path) -> tuple[dict[str, Any], str]:
    """The JSON object in `path` and the checksum of the file; CatalogError if it is not one."""
    return _read_object(path, json.loads, "JSON")


def read_toml(path: Path) -> tuple[dict[str, Any], str]:
    """The TOML table in `path` and the checksum of the file; CatalogError if it is not one."""
    return _read_object(path, tomllib.loads, "TOML")


def checksum(content: bytes) -> str:
    """A short name of `content`: the first 16 hex digits of its SHA-256."""
    return hashlib.sha256(content).hexdigest()[:16]


def read_text(path: Path) -> tuple[str, str]:
    """The text of the file at `path` and its checksum; CatalogError if it is not UTF-8 or cannot be read."""
    content = read_bytes(path)
    try:
        return content.decode("utf-8-sig"), checksum(content)
    except UnicodeDecodeError as error:
        raise bad(path, "content", f"({error})", "text in UTF-8") from error


def _read_object(path: Path, parse: Callable[[str], Any], language: str) -> tuple[dict[str, Any], str]:
    content = read_bytes(path)
    try:
        found = parse(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise bad(path, "content", f"({error})", f"one well-formed {language} object in UTF-8") from error
    if not isinstance(found, dict):
        raise bad(path, "content", found, f"a {language} object with keys and values")
    return found, checksum(content)


def read_bytes(path: Path, most: int = LARGEST_FILE_BYTES) -> bytes:
    """The content of `path`; CatalogError if it cannot be read or has more than `most` bytes."""
    allowed = f"a readable file of at most {most} bytes"
    try:
        with path.open("rb") as stream:
            content = stream.read(most + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise bad(path, "file", f"({reason or error})", allowed) from error
    if len(content) > most:
        raise bad(path, "size", "larger", allowed)
    return content
