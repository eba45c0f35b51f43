"""What a file holds, before anyone asks which tool wrote it: JSON values with their places, lines of cells, or text."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lambdamax.exceptions import Fault
from lambdamax.facts import read_bytes

LARGEST_BENCHMARK_BYTES: Final = 256 * 2**20
_GZIP: Final = b"\x1f\x8b"
_BLANK: Final = re.compile(r"\s*")
_SAMPLE: Final = re.compile(r"[a-zA-Z_:][\w:]*(\{[^\n]*\})? [-+.\dNI][^\s,]*( \d+)?$")
_CSV_FIELD_CHARACTERS: Final = 2**27


@dataclass(frozen=True)
class Found:
    """One JSON value, or the whole of a file of cells or text, at `place` of its file ("" for the whole of it)."""

    value: Any
    place: str


@dataclass(frozen=True)
class Cells:
    """The lines of a CSV file as cells; `numbers` are their lines, 1-based."""

    lines: tuple[tuple[str, ...], ...]
    numbers: tuple[int, ...]


class Unreadable(Exception):  # noqa: N818
    """A file that holds nothing to read; `fault` says why."""

    def __init__(self, fault: Fault) -> None:
        """Hold `fault`."""
        super().__init__(str(fault))
        self.fault = fault


def read_content(path: Path) -> list[Found]:
    """What `path` holds: one JSON value or several, one `Cells`, or one text in the exposition format.

    Raises Unreadable where it is empty, cut, or not text in UTF-8, CatalogError where it cannot be opened.
    """
    text = _text(path)
    start = text.lstrip()[:1]
    if not start:
        raise Unreadable(Fault(str(path), "content", "empty", "a result of a benchmark"))
    if start in "{[":
        return _values(path, text)
    if _is_exposition(text):
        return [Found(text, "")]
    return [Found(_cells(path, text), "")]


def _text(path: Path) -> str:
    content = read_bytes(path, LARGEST_BENCHMARK_BYTES)
    try:
        return (_unpacked(content) if content.startswith(_GZIP) else content).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        found = f"byte {error.start} is {error.object[error.start]:#04x}"
        raise Unreadable(Fault(str(path), "content", found, "text in UTF-8")) from None
    except (EOFError, OSError, zlib.error) as error:
        raise Unreadable(Fault(str(path), "content", f"({error})", "a whole gzip file")) from None


def _unpacked(content: bytes) -> bytes:
    with gzip.open(io.BytesIO(content)) as stream:
        found = stream.read(LARGEST_BENCHMARK_BYTES + 1)
    if len(found) > LARGEST_BENCHMARK_BYTES:
        raise OSError(f"more than {LARGEST_BENCHMARK_BYTES} bytes when unpacked")
    return found


def _values(path: Path, text: str) -> list[Found]:
    """Tools append: several values may follow each other, whatever the file is called."""
    decoder, at, found = json.JSONDecoder(), _after_blank(text, 0), list[Found]()
    while at < len(text):
        line = text.count("\n", 0, at) + 1
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            place = f"line {line}" if not isinstance(error, json.JSONDecodeError) else _position(text, error.pos)
            said = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
            allowed = "whole JSON values, one after the other (is the file cut short?)"
            raise Unreadable(Fault(str(path), place, said, allowed)) from None
        found.append(Found(value, f"line {line}"))
        at = _after_blank(text, end)
    return found if len(found) > 1 else [Found(found[0].value, "")]


def _after_blank(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return match.end() if match else at


def _position(text: str, at: int) -> str:
    start = text.rfind("\n", 0, at) + 1
    return f"line {text.count(chr(10), 0, at) + 1}, column {at - start + 1}"


def _is_exposition(text: str) -> bool:
    lines = (line for line in text.splitlines() if line.strip())
    first = next(lines)
    return first.startswith(("# HELP ", "# TYPE ")) or _SAMPLE.match(first) is not None


def _cells(path: Path, text: str) -> Cells:
    csv.field_size_limit(_CSV_FIELD_CHARACTERS)
    reader = csv.reader(io.StringIO(text), strict=True)
    lines, numbers = list[tuple[str, ...]](), list[int]()
    try:
        for cells in reader:
            lines.append(tuple(cells))
            numbers.append(reader.line_num)
    except csv.Error as error:
        fault = Fault(str(path), f"line {reader.line_num}", f"({error})", "lines of comma-separated cells")
        raise Unreadable(fault) from None
    return Cells(tuple(lines), tuple(numbers))
