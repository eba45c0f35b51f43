"""A sweep as a page to decide by: the answer first, then tables, charts, and where every number comes from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from lambdamax.catalog import Catalog, load_catalog
from lambdamax.exceptions import StoreError
from lambdamax.report.charts import drawn
from lambdamax.report.gathered import gather
from lambdamax.report.packed import Packed, pack
from lambdamax.report.page import html, markdown
from lambdamax.report.provenance import provenance

FORMATS: Final = ("html", "md")
MOST_BYTES: Final = 3_000_000
"""A page is kept below this by thinning the numeric axes of the sweep."""

_MOST_CELLS: Final = 32_768
_LEAST_CELLS: Final = 64


@dataclass(frozen=True)
class Report:
    """What was written: the page with its size [bytes], and the files of charts."""

    path: Path
    bytes: int
    charts: tuple[Path, ...]


def report(
    directory: str | Path,
    out: str | Path,
    *,
    format: str = "html",
    charts: str | Path | None = None,
    at: Mapping[str, str] | None = None,
    catalog: Catalog | None = None,
) -> Report:
    """Write a report on the finished sweep in `directory` to the file `out`.

    `format` is `html`, one page that needs no other file and no network, in which every input that varies can be
    selected, or `md`, Markdown on the first selection. `at` is that selection: values by column, for numbers the
    nearest that was swept; what is not said is the middle of numbers and the first of names. `charts` is a directory
    for the charts of that selection as SVG and PNG. A page is at most 3 MB: past that it leaves out every second value
    of the longest numeric axes, and says so. `catalog` is the one that the sweep was solved with, None the shipped one.

    Raises StoreError if the directory is not a finished sweep, or a file cannot be written, and FrameError for a
    selection that is not in it.
    """
    known = catalog or load_catalog()
    path = Path(out)
    images = "" if charts is None else quote(Path(os.path.relpath(charts, path.parent)).as_posix())
    data, text = _written(Path(directory), known, format, at or {}, images)
    _write(path, text.encode())
    files = () if charts is None else tuple(_draw(data, Path(charts)))
    return Report(path, len(text.encode()), files)


def _written(directory: Path, catalog: Catalog, format: str, at: Mapping[str, str], images: str) -> tuple[Packed, str]:
    """The report, with as many cells as a page has room for."""
    most = _MOST_CELLS
    while True:
        found = gather(directory, catalog, most)
        data, behind = pack(found, catalog, at), provenance(found, catalog)
        text = markdown(data, behind, images) if format == "md" else html(data, behind)
        if len(text.encode()) <= MOST_BYTES or most < _LEAST_CELLS:
            return data, text
        most //= 2


def _draw(data: Packed, directory: Path) -> Iterator[Path]:
    for name, (svg, png) in drawn(data, data["start"]).items():
        for path, content in ((directory / f"{name}.svg", svg.encode()), (directory / f"{name}.png", png)):
            _write(path, content)
            yield path


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise StoreError(f"{path}: it cannot be written ({error.strerror}): choose another place") from None
