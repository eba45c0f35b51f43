"""Reading files of benchmarks into one table of measured operating points."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lambdamax.benchmarks.content import Cells, Found, Unreadable, read_content
from lambdamax.benchmarks.formats import FORMATS, format_of
from lambdamax.benchmarks.measured import FACTS, Row, measured_columns, measured_frame
from lambdamax.benchmarks.shape import Format, Unusable, faults_of
from lambdamax.exceptions import BenchmarkError, CatalogError, Fault

if TYPE_CHECKING:
    import polars as pl

_KEYS_SHOWN: Final = 6
_CALL: Final = "read_benchmarks"


def read_benchmarks(
    paths: str | Path | Iterable[str | Path], *, format: str | None = None, **facts: Any
) -> pl.DataFrame:
    """The operating points that files of benchmarks measured, one row each, in the columns of `measured_columns.csv`.

    Times are in seconds, lengths in tokens, rates in requests/s or tokens/s. The format shows in a file's content;
    `format` forces one by its name. `facts` are what files do not record, for every row: model, gpu, gpus, tp, pp, ep,
    weight_dtype, kv_dtype, engine, engine_version; they win over what a file says. What neither says is null.
    Raises BenchmarkError naming every fault of every file: file, place, value and what is allowed.
    """
    faults = list(_fact_faults(facts, format))
    rows = list[Row]()
    for path in [paths] if isinstance(paths, str | Path) else paths:
        rows += _rows_of(Path(path), None if format is None else FORMATS.get(format), faults)
    if faults:
        raise BenchmarkError(tuple(faults))
    stated = {name: value for name, value in facts.items() if value is not None}
    return measured_frame({**row, **stated} for row in rows)


def _fact_faults(facts: Mapping[str, Any], format: str | None) -> Iterator[Fault]:
    for name, value in facts.items():
        if name not in FACTS:
            yield Fault(_CALL, name, repr(value), f"one of {', '.join(FACTS)}")
        elif value is not None and not _fits(name, value):
            counts = measured_columns()[name].type == "f64"
            yield Fault(_CALL, name, repr(value), "a number above 0" if counts else "a name")
    if format is not None and format not in FORMATS:
        yield Fault(_CALL, "format", repr(format), f"one of {', '.join(FORMATS)}")


def _fits(name: str, value: Any) -> bool:
    if measured_columns()[name].type == "text":
        return isinstance(value, str) and bool(value.strip())
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


def _rows_of(path: Path, forced: Format | None, faults: list[Fault]) -> list[Row]:
    """The rows of one file; what is wrong with it joins `faults`."""
    try:
        found = read_content(path)
    except Unreadable as error:
        faults.append(error.fault)
        return []
    except CatalogError as error:
        faults.append(_unopened(path, str(error)))
        return []
    rows = list[Row]()
    for format, values in groupby(_results(found), key=lambda one: forced or format_of(one.value)):
        rows += _read(path, format, list(values), faults)
    return rows


def _unopened(path: Path, said: str) -> Fault:
    """The fault that the error of a file which cannot be opened tells."""
    found, _, allowed = said.removeprefix(f"{path}: ").partition(": allowed: ")
    key, _, value = found.partition(" = ")
    return Fault(str(path), key, value, allowed)


def _results(found: Iterable[Found]) -> Iterator[Found]:
    """A list of results is one result after another."""
    for one in found:
        if isinstance(one.value, list) and one.value and format_of(one.value) is None:
            yield from (Found(value, f"{one.place or 'item'} {number}") for number, value in enumerate(one.value, 1))
        else:
            yield one


def _read(path: Path, format: Format | None, values: list[Found], faults: list[Fault]) -> list[Row]:
    if format is None:
        faults += (Fault(str(path), one.place or "content", _looks(one.value), _allowed()) for one in values)
        return []
    if format.groups:
        values = [Found([one.value for one in values], values[0].place if len(values) == 1 else "")]
    rows = list[Row]()
    for one in values:
        try:
            found = format.rows(one.value)
        except Unusable as error:
            faults += faults_of(error, str(path), one)
            continue
        about = {"file": str(path), "place": one.place, "format": format.name}
        rows += ({**about, **row, "place": row.get("place") or one.place} for row in found)
    return rows


def _looks(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"an object with the keys {', '.join(map(str, list(value)[:_KEYS_SHOWN]))}"
    if isinstance(value, Cells):
        return f"cells with the header {', '.join(value.lines[0][:_KEYS_SHOWN])}"
    return type(value).__name__


def _allowed() -> str:
    return f"a result of one of {', '.join(FORMATS)}"
