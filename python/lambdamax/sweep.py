"""A sweep: every point of a grid, solved part by part and written while the next part is solved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from lambdamax.catalog import Catalog
from lambdamax.engine import Memory
from lambdamax.exceptions import StoreError
from lambdamax.grid import Grid
from lambdamax.keeping import kept_rows
from lambdamax.objectives import Goal
from lambdamax.spec import Spec, catalog_of, read_spec
from lambdamax.store import Identity, Store

Report = Callable[[int, int], None]
"""Called with the rows done and the rows in all."""


@dataclass(frozen=True)
class SweepResult:
    """What a sweep left behind: `rows` in `parts` parts, `solved_parts` of them new, and the rows by `status`.

    `unsupported` has the reasons of the status of that name, each with the number of its rows.
    """

    directory: Path
    rows: int
    parts: int
    solved_parts: int
    seconds: float
    status: Mapping[str, int]
    unsupported: Mapping[str, int]


def sweep(
    spec: str | Path | Spec,
    out: str | Path,
    *,
    threads: int = 0,
    progress: bool | Report | None = None,
    catalog: Catalog | None = None,
    keep: Goal | None = None,
) -> SweepResult:
    """Solve every point of `spec` (a sweep file, or a Spec) into Parquet parts in the directory `out`.

    Parts that are in `out` already and whole are kept, so a sweep that was interrupted goes on where it stopped. The
    bytes of a part depend on the spec and the versions in the manifest, not on `threads` (0: every core). Progress is
    shown on stderr if that is a terminal, or if `progress` is true; a callable is told the rows done and in all.
    `catalog` is the one to look names up in (`load_catalog(directory)`); None is the one that the spec names, else the
    shipped one. With `keep` (`lambdamax.kept_goal`) a part holds only those of its points that this goal may want, and
    how many others there are: `frontier` answers from it as from all points. Raises SpecError, naming every fault of
    the file, and StoreError if `out` holds anything else.
    """
    started = time.monotonic()
    spec = spec if isinstance(spec, Spec) else read_spec(spec, catalog=catalog)
    catalog = catalog or catalog_of(spec)
    grid = Grid.of(spec, catalog)
    about = {"name": spec.name, "question": spec.question}
    store = Store.opened(out, Identity.of(spec, grid, catalog, keep), about)
    missing = store.missing
    with _reporting(progress) as report:
        _fill(store, grid, threads, report, keep)
    seconds = time.monotonic() - started
    parts = (store.identity.part_count, len(missing))
    return SweepResult(store.directory, grid.points, *parts, seconds, store.status, grid.unsupported)


def _fill(store: Store, grid: Grid, threads: int, report: Report, keep: Goal | None) -> None:
    """Solve one part while the one before is written: two parts are in memory, however large the grid."""
    done = grid.points - sum(stop - start for start, stop in map(store.rows_of, store.missing))
    report(done, grid.points)
    writing: Future[None] | None = None
    memory = Memory()
    try:
        with ThreadPoolExecutor(1, "lambdamax-writer") as writer:
            for index in store.missing:
                start, stop = store.rows_of(index)
                frame = grid.solve(start, stop, threads=threads, memory=memory)
                _finish(writing)
                writing = writer.submit(_write, store, index, frame, keep)
                done += stop - start
                report(done, grid.points)
        _finish(writing)
    except BaseException:
        with suppress(StoreError):
            store.save()
        raise
    store.save()


def _write(store: Store, index: int, frame: pl.DataFrame, keep: Goal | None) -> None:
    store.write(index, frame if keep is None else kept_rows(frame, keep))


def _finish(writing: Future[None] | None) -> None:
    if writing is not None:
        writing.result()


@contextmanager
def _reporting(progress: bool | Report | None) -> Iterator[Report]:
    if callable(progress):
        yield progress
        return
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("solving"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=console.is_terminal,
        disable=not (console.is_terminal if progress is None else progress),
    )
    with bar:
        task = bar.add_task("solving", total=None)
        yield lambda done, rows: bar.update(task, completed=done, total=rows)
