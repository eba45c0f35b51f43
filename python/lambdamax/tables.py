"""CSV files of facts that a user wrote: every cell checked, every fault with its line, value and what is allowed."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lambdamax.exceptions import Fault
from lambdamax.facts import Row

LARGEST_NUMBER: Final = 1e30
LONGEST_CELL: Final = 4096
NAME_ALLOWED: Final = (
    "a name of up to 128 letters, digits and . _ + - that begins with a letter or digit, ends neither in .json nor in "
    ".toml, and is not default"
)
HUB_ID_ALLOWED: Final = "owner/name, as on the hub"
DATE_ALLOWED: Final = "a date such as 2026, 2026-11 or 2026-11-29"
_SHOWN: Final = 60
_DATE: Final = re.compile(r"(>=)?\d{4}(-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?)?", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}")
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_RESERVED: Final = "default"

Check = Callable[[str], str | None]
"""What is allowed in place of a cell's text, None if it is right."""


@dataclass(frozen=True)
class Column:
    """One column of a table: whether its cells must hold something, and what they may hold."""

    name: str
    required: bool
    check: Check


@dataclass(frozen=True)
class Line:
    """One row of a table, by column, and the place that faults name."""

    place: str
    row: Row

    def fault(self, column: str, allowed: str) -> str:
        """What is wrong with a cell of this row."""
        return str(Fault(self.place, column, shown(self.row[column]), allowed))


# Cells


def is_name(text: str) -> bool:
    """Whether `text` can name an entry of the catalogue: it cannot be taken for a path or for a word with a meaning."""
    return (
        _NAME.fullmatch(text) is not None
        and not text.casefold().endswith((".json", ".toml"))
        and text.casefold() != _RESERVED
    )


def is_hub_id(text: str) -> bool:
    """Whether `text` has the form of a model's id on the hub."""
    return _HUB_ID.fullmatch(text) is not None and ".." not in text


def any_text(_: str) -> str | None:
    """Any text will do."""
    return None


def name(text: str) -> str | None:
    """A name that is no path."""
    return None if is_name(text) else NAME_ALLOWED


def hub_id(text: str) -> str | None:
    """An id on the hub."""
    return None if is_hub_id(text) else HUB_ID_ALLOWED


def date(text: str) -> str | None:
    """A date, perhaps without day or month."""
    return None if _DATE.fullmatch(text) else DATE_ALLOWED


def one_of(names: Iterable[str]) -> Check:
    """One of `names`."""
    known = tuple(names)
    return lambda text: None if text in known else f"one of {', '.join(known)}"


def positive(text: str) -> str | None:
    """A number above 0."""
    return None if 0 < _float(text) <= LARGEST_NUMBER else f"a number larger than 0, at most {LARGEST_NUMBER:g}"


def count(text: str) -> str | None:
    """A whole number from 1."""
    return None if re.fullmatch(r"[1-9][0-9]{0,5}", text) else "a whole number from 1 to 999999"


def _float(text: str) -> float:
    """The number that `text` is, NaN if it is none; digits of other scripts and underscores make none."""
    try:
        return float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        return math.nan


# Files


def parse_table(text: str, path: Path, columns: Sequence[Column], faults: list[str]) -> list[Line]:
    """The rows of CSV `text` of the file at `path`, each with all of `columns`; what is wrong goes to `faults`.

    Rows with a fault are left out.
    """
    try:
        return list(_lines(path, text, columns, faults))
    except csv.Error as error:
        faults.append(str(Fault(str(path), "content", f"({error})", "a CSV file")))
        return []


def repeated(lines: Sequence[Line], column: str) -> Iterator[str]:
    """A fault for each row with a value of `column` that another row has too."""
    values = Counter(line.row[column] for line in lines if line.row[column])
    return (line.fault(column, "each value in one row only") for line in lines if values[line.row[column]] > 1)


def shown(text: str) -> str:
    """`text` in quotes, cut to a readable length."""
    return repr(text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}...")


def _lines(path: Path, text: str, columns: Sequence[Column], faults: list[str]) -> Iterator[Line]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    heading = [cell.strip() for cell in next(reader, [])]
    wrong = list(map(str, _heading_faults(str(path), heading, columns)))
    faults += wrong
    for cells in reader if not wrong else ():
        place = f"{path}:{reader.line_num}"
        if cells and len(cells) != len(heading):
            faults.append(str(Fault(place, "cells", str(len(cells)), f"{len(heading)}, one for each column")))
        elif cells:
            yield from _checked(Line(place, _row(heading, cells, columns)), columns, faults)


def _row(heading: Sequence[str], cells: Sequence[str], columns: Sequence[Column]) -> Row:
    stated = {column: cell.strip() for column, cell in zip(heading, cells, strict=True)}
    return {column.name: stated.get(column.name, "") for column in columns}


def _checked(line: Line, columns: Sequence[Column], faults: list[str]) -> Iterator[Line]:
    wrong = [(column.name, allowed) for column in columns if (allowed := _allowed(column, line.row[column.name]))]
    faults += [line.fault(*fault) for fault in wrong]
    if not wrong:
        yield line


def _allowed(column: Column, text: str) -> str | None:
    if not text:
        return "a value in every row" if column.required else None
    if len(text) > LONGEST_CELL or not text.isprintable():
        return f"one line of at most {LONGEST_CELL} printable characters"
    return column.check(text)


def _heading_faults(path: str, heading: Sequence[str], columns: Sequence[Column]) -> Iterator[Fault]:
    known = [column.name for column in columns]
    required = [column.name for column in columns if column.required]
    if missing := [column for column in required if column not in heading]:
        yield Fault(path, ", ".join(missing), "no such column", f"a file with the columns {', '.join(required)}")
    for stated, times in Counter(heading).items():
        if stated not in known:
            yield Fault(path, shown(stated), "an unknown column", f"the columns {', '.join(known)}")
        elif times > 1:
            yield Fault(path, stated, f"{times} columns", "each column once")
