"""A directory of Parquet parts with a manifest: written part by part, resumed, verified, read.

A part is written under a temporary name and renamed, so a part that has its name is whole. `manifest.json` says what
the parts are answers to and holds the rows, bytes and checksum of each; a part that is not in it is solved again.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from lambdamax import columns
from lambdamax.catalog import Catalog
from lambdamax.engine import __version__
from lambdamax.exceptions import StoreError
from lambdamax.grid import Grid
from lambdamax.objectives import Goal
from lambdamax.spec import Spec

MANIFEST: Final = "manifest.json"
WEIGHT: Final = "points"
"""In the parts of a sweep that kept the frontier: how many points a row stands for."""
FORMAT: Final = 1
# In small pages a few rows are found without decoding the others; the files are two percent larger.
_PARQUET: Final = {"compression": "zstd", "compression_level": 1, "data_page_size": 65_536}
# What the Parquet writer of pyarrow takes.
_OLDEST: Final = pl.CompatLevel.oldest()
_SAVE_EVERY_S: Final = 2.0
_SHOWN: Final = 60
_SHORT_TEXT: Final = 32
# Rows of two pages of numbers.
_RUN_ROWS: Final = 16_384
_SPAN_CELLS: Final = 2_097_152
_AGAIN: Final = "run the same sweep again into that directory; it solves only what is missing"
_ELSEWHERE: Final = "give an empty directory, one to be made, or that of the same sweep"
_MAKE_ROOM: Final = "free space or choose another place; what is done is kept"

T = TypeVar("T")


@dataclass(frozen=True)
class Identity:
    """What the parts of a directory are answers to: parts of equal identities have equal bytes."""

    axes: Mapping[str, list[str | float]]
    part_rows: int
    catalog: str
    models: Mapping[str, str]
    profiles: Mapping[str, str]
    lengths: Mapping[str, str]
    engine: str
    columns: str
    format: int = FORMAT
    keep: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, spec: Spec, grid: Grid, catalog: Catalog, keep: Goal | None = None) -> Self:
        """The identity of the sweep of `spec`: its axes, and the versions of all that its answers depend on.

        `keep` is which points of each part are written, None for all.
        """
        pairs = [(name, gpu) for name in spec.replica.profile for gpu in spec.replica.gpu]
        profiles = [catalog.profile(*pair) for pair in pairs]
        models = [catalog.model(name) for name in spec.replica.model]
        return cls(
            axes={name: list(values) for name, values in grid.axes.items()},
            part_rows=spec.output.part_rows,
            catalog=catalog.version,
            models={model.name: model.checksum for model in models},
            lengths={table.name: table.checksum for table in map(catalog.length_table, spec.workload.lengths)},
            profiles={profile.name: profile.checksum for profile in profiles},
            engine=__version__,
            columns=columns.digest(),
            keep=None if keep is None else keep.as_json(),
        )

    @cached_property
    def sha256(self) -> str:
        """One checksum over the whole identity."""
        return hashlib.sha256(json.dumps(self.stated, sort_keys=True).encode()).hexdigest()

    @property
    def stated(self) -> dict[str, Any]:
        """As a manifest has it."""
        return {name: value for name, value in asdict(self).items() if name != "keep" or value is not None}

    @property
    def rows(self) -> int:
        """The size of the grid."""
        return math.prod(map(len, self.axes.values()))

    @property
    def part_count(self) -> int:
        """The number of parts."""
        return -(-self.rows // self.part_rows)


@dataclass(frozen=True)
class Part:
    """One part as it was written; `status` counts its points by status."""

    rows: int
    bytes: int
    sha256: str
    status: Mapping[str, int]


@dataclass
class Store:
    """A directory being filled with the parts of one identity."""

    directory: Path
    identity: Identity
    about: Mapping[str, str]
    parts: dict[int, Part] = field(default_factory=dict)
    _saved_s: float = -math.inf

    @classmethod
    def opened(cls, directory: str | Path, identity: Identity, about: Mapping[str, str]) -> Self:
        """The store at `directory`, made if absent, with the parts that are there and whole.

        `about` goes into the manifest for people. StoreError if the directory holds anything else, naming it.
        """
        directory = Path(directory)
        _make(directory)
        store = cls(directory, identity, about, dict(_whole_parts(directory, identity)))
        store.save()
        return store

    @property
    def missing(self) -> list[int]:
        """The parts that are still to be solved."""
        return [index for index in range(self.identity.part_count) if index not in self.parts]

    @property
    def status(self) -> dict[str, int]:
        """Points by status, over the parts that are there."""
        names = columns.column("status").values
        return {name: sum(part.status.get(name, 0) for part in self.parts.values()) for name in names}

    def rows_of(self, index: int) -> tuple[int, int]:
        """The first row of part `index` and the row after its last."""
        start = index * self.identity.part_rows
        return start, min(start + self.identity.part_rows, self.identity.rows)

    def write(self, index: int, frame: pl.DataFrame) -> None:
        """Write part `index`; the manifest follows within seconds, and at the next `save`.

        StoreError if the disk refuses.
        """
        path = self.directory / part_name(index, self.identity.part_count)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        with written(path, temporary):
            write_frame(frame, temporary)
            part = Part(frame.height, temporary.stat().st_size, _checksum(temporary), _count(frame))
        self.parts[index] = part
        if time.monotonic() - self._saved_s > _SAVE_EVERY_S:
            self.save()

    def save(self) -> None:
        """Write the manifest. StoreError if the disk refuses."""
        temporary = self.directory / f"{MANIFEST}.{os.getpid()}.tmp"
        with written(self.directory / MANIFEST, temporary):
            temporary.write_text(json.dumps(self._manifest(), indent=1) + "\n", encoding="utf-8")
        self._saved_s = time.monotonic()

    def _manifest(self) -> dict[str, Any]:
        count = self.identity.part_count
        parts = {part_name(index, count): asdict(self.parts[index]) for index in sorted(self.parts)}
        identity = {"sha256": self.identity.sha256, "identity": self.identity.stated}
        return {**self.about, **identity, "rows": self.identity.rows, "part_count": count, "parts": parts}


def part_name(index: int, count: int) -> str:
    """The file name of part `index` of `count`; names sort as the parts do."""
    return f"part-{index:0{max(5, len(str(count - 1)))}d}.parquet"


def part_paths(directory: str | Path) -> list[Path]:
    """The parts of a finished sweep in order; StoreError if there is none or some are missing."""
    return [path for path, _ in _listed(Path(directory))]


@dataclass(frozen=True)
class PartFile:
    """A part of a finished sweep. Whatever reads it raises StoreError if it cannot be read."""

    path: Path
    part: Part

    def content(self) -> bytes:
        """Its bytes; StoreError if they are not those that the sweep wrote."""
        found = _tried(self.path, self.path.read_bytes)
        if len(found) != self.part.bytes or hashlib.sha256(found).hexdigest() != self.part.sha256:
            raise StoreError(f"{self.path}: it is not the part that the sweep wrote (damaged or replaced): {_AGAIN}")
        return found

    def read(self, names: Iterable[str], content: bytes | None = None) -> pl.DataFrame:
        """These columns; `content` is what the file holds, where that is known."""
        return _tried(self.path, lambda: pl.read_parquet(content or self.path, columns=list(names)))

    def rows(self, places: pl.Series, names: Sequence[str]) -> pl.DataFrame:
        """The rows at `places`, which are sorted, with these columns. Row groups without any are not looked at."""
        return _tried(self.path, lambda: pl.concat(_spans(self.path, places, names), rechunk=False))


def _spans(path: Path, places: pl.Series, names: Sequence[str]) -> Iterator[pl.DataFrame]:
    """The rows at `places` of each row group that holds any. What is the same in a whole group is not decoded."""
    start, scanned, about = 0, pl.scan_parquet(path), pq.read_metadata(path)
    schema, place_of = scanned.collect_schema(), {name: place for place, name in enumerate(about.schema.names)}
    for group in map(about.row_group, range(about.num_row_groups)):
        held = places.filter(places.is_between(start, start + group.num_rows, closed="left"))
        if len(held):
            same = {name: value for name in names for value in _same(group.column(place_of[name]))}
            differing = [name for name in names if name not in same]
            for run in _runs(held):
                alike = _alike(same, schema, len(run))
                yield pl.DataFrame([*_gathered(scanned, run, differing), *alike]).select(names)
        start += group.num_rows


def _gathered(scanned: pl.LazyFrame, places: pl.Series, names: Sequence[str]) -> Iterator[pl.Series]:
    """Columns of neighbouring rows; not all that lies between these is decoded at once."""
    rows = places[-1] - places[0] + 1
    most = max(_SPAN_CELLS // rows, 1)
    for first in range(0, len(names), most):
        span = scanned.select(names[first : first + most]).slice(places[0], rows).collect(engine="in-memory")
        yield from span.select(pl.all().gather(places - places[0]))


def _runs(places: pl.Series) -> Iterator[pl.Series]:
    """Sorted `places`, cut where whole pages lie between two of them."""
    cuts = places.diff().gt(_RUN_ROWS).arg_true().to_list()
    ends = [0, *cuts, len(places)]
    return (places[start:stop] for start, stop in pairwise(ends))


def _alike(values: Mapping[str, Any], schema: pl.Schema, height: int) -> Iterator[pl.Series]:
    for name, value in values.items():
        yield pl.Series(name, [value], schema[name]).new_from_index(0, height)


def _same(column: Any) -> Iterator[Any]:
    """The one value of a column within a row group, None where that is null; nothing where statistics leave it open."""
    stated = column.statistics
    if stated is None or not stated.has_null_count:
        return
    if stated.null_count == column.num_values:
        yield None
    elif not stated.null_count and stated.has_min_max and stated.min == stated.max and not _may_be_cut(stated.min):
        yield stated.min


def _may_be_cut(bound: Any) -> bool:
    return isinstance(bound, str | bytes) and len(bound) >= _SHORT_TEXT


def part_files(directory: str | Path) -> list[PartFile]:
    """The parts of a finished sweep in order; StoreError if there is none or some are missing."""
    return [PartFile(path, part) for path, part in _listed(Path(directory))]


def kept_goal(directory: str | Path) -> Goal | None:
    """Which points a finished sweep kept, None for all; StoreError if there is none."""
    stated = manifest_of(Path(directory))["identity"].get("keep")
    return None if stated is None else Goal.read(stated)


def point_names(directory: str | Path) -> list[str]:
    """The columns of the parts of a finished sweep. StoreError if there is none."""
    identity = manifest_of(Path(directory))["identity"]
    if identity["columns"] == columns.digest():
        names = [column.name for column in columns.point_columns()]
        return names if identity.get("keep") is None else [*names, WEIGHT]
    first = part_files(directory)[0]
    return _tried(first.path, lambda: list(pl.read_parquet_schema(first.content())))


def manifest_of(directory: Path) -> dict[str, Any]:
    """The manifest of a sweep, as `Store` writes it; StoreError if there is none."""
    manifest = _read_manifest(directory)
    if manifest is None:
        absent = f"there is no {MANIFEST} in it" if directory.is_dir() else "there is no such directory"
        raise StoreError(f"{directory}: {absent}: give the directory of a sweep, which `lambdamax sweep` makes")
    return manifest


def _listed(directory: Path) -> list[tuple[Path, Part]]:
    manifest = manifest_of(directory)
    count = manifest["part_count"]
    names = [part_name(index, count) for index in range(count)]
    missing = [name for name in names if name not in manifest["parts"] or not (directory / name).is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise StoreError(f"{directory}: {missing[0]}{more} of {count} parts are missing: {_AGAIN}")
    return [(directory / name, Part(**manifest["parts"][name])) for name in names]


def _tried(path: Path, read: Callable[[], T]) -> T:
    try:
        return read()
    except (OSError, pl.exceptions.PolarsError, pa.ArrowException) as error:
        raise StoreError(f"{path}: it cannot be read ({error}): {_AGAIN}") from None


@contextmanager
def written(path: Path, temporary: Path) -> Iterator[None]:
    """Whatever the body writes to `temporary` becomes `path`, whole or not at all. StoreError if the disk refuses."""
    try:
        yield
        temporary.replace(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StoreError(f"{path}: it cannot be written ({reason}): {_MAKE_ROOM}") from None
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_frame(frame: pl.DataFrame, path: Path) -> None:
    """Write `frame` as Parquet; fields that the dictionary knows carry their `unit` and `meaning` as metadata."""
    frame.write_parquet(path, arrow_schema=_schema(frame), **_PARQUET)  # type: ignore[arg-type]


def write_frames(frames: Iterable[pl.DataFrame], path: Path) -> None:
    """Write frames of one schema, one or more, as the row groups of one file; else as `write_frame`."""
    ahead = iter(frames)
    first = next(ahead)
    with pq.ParquetWriter(path, _schema(first, _OLDEST), **_PARQUET) as writer:
        for frame in chain([first], ahead):
            writer.write_table(frame.to_arrow(compat_level=_OLDEST).cast(writer.schema))


def _schema(frame: pl.DataFrame, level: pl.CompatLevel | None = None) -> pa.Schema:
    schema = frame.head(0).to_arrow(compat_level=level).schema
    return pa.schema([_described(schema.field(name)) for name in schema.names])


def _described(arrow: pa.Field) -> pa.Field:
    column = columns.dictionary().get(arrow.name)
    if column is None:
        return arrow
    return arrow.with_metadata({**(arrow.metadata or {}), "unit": column.unit, "meaning": column.meaning})


def _count(frame: pl.DataFrame) -> dict[str, int]:
    each = pl.col(WEIGHT).sum() if WEIGHT in frame.columns else pl.len()
    return dict(sorted(frame.group_by("status").agg(each).iter_rows()))


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Resuming


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        held = sorted(path.name for path in directory.iterdir())
        for name in held:
            if name.endswith(".tmp") and name.startswith(("part-", MANIFEST)):
                (directory / name).unlink(missing_ok=True)
    except FileExistsError:
        raise StoreError(f"{directory}: it is a file: {_ELSEWHERE}") from None
    except OSError as error:
        raise StoreError(f"{directory}: it cannot be written ({error.strerror}): {_ELSEWHERE}") from None
    kept = [name for name in held if not name.endswith(".tmp")]
    if kept and MANIFEST not in kept:
        raise StoreError(f"{directory}: it holds {kept[0]}: {_ELSEWHERE}")


def _whole_parts(directory: Path, identity: Identity) -> Iterator[tuple[int, Part]]:
    manifest = _read_manifest(directory)
    if manifest is None:
        return
    if manifest["sha256"] != identity.sha256:
        differences = "; ".join(_differences(manifest["identity"], identity.stated))
        raise StoreError(f"{directory}: it holds another sweep: {differences}: {_ELSEWHERE}")
    for index in range(identity.part_count):
        name = part_name(index, identity.part_count)
        if name in manifest["parts"]:
            part = Part(**manifest["parts"][name])
            if _is_whole(directory / name, part):
                yield index, part


def _is_whole(path: Path, part: Part) -> bool:
    return path.is_file() and path.stat().st_size == part.bytes and _checksum(path) == part.sha256


def _read_manifest(directory: Path) -> dict[str, Any] | None:
    """What the manifest says; None if there is none."""
    path = directory / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        stated = manifest["identity"]["format"]
        if stated != FORMAT:
            raise StoreError(f"{path}: it has format {stated}, this version reads {FORMAT}: sweep into a new directory")
        for part in manifest["parts"].values():
            Part(**part)
        return manifest | {"part_count": int(manifest["part_count"]), "sha256": str(manifest["sha256"])}
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreError(f"{path}: it cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise StoreError(f"{path}: it is not a manifest that lambdamax wrote: sweep into a new directory") from None


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterable[str]:
    for key in {**there.get("axes", {}), **here["axes"]}:
        pair = (there.get("axes", {}).get(key), here["axes"].get(key))
        if pair[0] != pair[1]:
            yield _difference(columns.column(key).key if key in columns.dictionary() else key, *pair)
    for key in {**there, **here}:
        if key != "axes" and there.get(key) != here.get(key):
            yield _difference("output.part_rows" if key == "part_rows" else key, there.get(key), here.get(key))


def _difference(key: str, there: object, here: object) -> str:
    return f"{key} is {_short(there)} there and {_short(here)} here"


def _short(value: object) -> str:
    text = "not set" if value is None else json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
