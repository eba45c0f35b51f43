"""A directory of parts: whole or absent, resumed, refused when it holds anything else, the same bytes every time."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

import lambdamax
from lambdamax import columns, store
from lambdamax.exceptions import StoreError
from lambdamax.grid import Grid
from lambdamax.spec import Spec, parse_spec


def spec(**changes: dict[str, Any]) -> Spec:
    raw: dict[str, Any] = {
        "name": "parts",
        "question": "how many?",
        "replica": {"model": "llama-3.1-8b-instruct", "gpu": ["h100-sxm", "mi300x"], "tp": [1, 2]},
        "workload": {"isl_tokens": {"log": [128, 16384, 30]}, "osl_tokens": {"log": [16, 2048, 30]}},
        "output": {"part_rows": 1024},
    }
    return parse_spec({**raw, **{table: {**raw.get(table, {}), **keys} for table, keys in changes.items()}})


def contents(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir())}


def test_parts_and_manifest(tmp_path: Path) -> None:
    lambdamax.sweep(spec(), tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert sorted(contents(tmp_path)) == ["manifest.json", *(f"part-0000{index}.parquet" for index in range(4))]
    assert manifest["rows"] == 3600
    assert (manifest["name"], manifest["question"]) == ("parts", "how many?")
    assert [part["rows"] for part in manifest["parts"].values()] == [1024, 1024, 1024, 528]
    for name, part in manifest["parts"].items():
        assert part["sha256"] == hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
        assert part["bytes"] == (tmp_path / name).stat().st_size
        assert sum(part["status"].values()) == part["rows"]
    identity = manifest["identity"]
    assert identity["axes"]["gpu"] == ["h100-sxm", "mi300x"]
    catalog = lambdamax.load_catalog()
    assert set(identity["profiles"]) == {catalog.profile("default", gpu).name for gpu in ("h100-sxm", "mi300x")}
    assert set(identity["models"]) == {"llama-3.1-8b-instruct"}
    assert identity["engine"] == lambdamax.__version__
    assert identity["catalog"] == lambdamax.load_catalog().version
    assert identity["columns"] == columns.digest()


def test_parquet_fields_carry_unit_and_meaning(tmp_path: Path) -> None:
    lambdamax.sweep(spec(), tmp_path)
    schema = pq.read_schema(tmp_path / "part-00000.parquet")
    assert schema.names == [column.name for column in columns.point_columns()]
    for column in columns.point_columns():
        metadata = schema.field(column.name).metadata
        assert metadata[b"unit"].decode() == column.unit
        assert metadata[b"meaning"].decode() == column.meaning


def test_names_are_dictionaries_and_numbers_are_narrow(tmp_path: Path) -> None:
    lambdamax.sweep(spec(), tmp_path)
    types = {field.name: str(field.type) for field in pq.read_schema(tmp_path / "part-00000.parquet")}
    expected = {"f64": "double", "u32": "uint32", "u16": "uint16"}
    for column in columns.point_columns():
        assert types[column.name].startswith("dictionary<" if column.is_text else expected[column.type])
    found = pl.scan_parquet(tmp_path / "part-*.parquet").collect_schema()
    assert found["gpu"] == pl.Enum(["h100-sxm", "mi300x"])
    assert found["status"] == pl.Enum(columns.column("status").values)


def test_a_second_run_solves_nothing_and_changes_nothing(tmp_path: Path) -> None:
    first = lambdamax.sweep(spec(), tmp_path)
    before = contents(tmp_path)
    second = lambdamax.sweep(spec(), tmp_path)
    assert (first.solved_parts, second.solved_parts) == (4, 0)
    assert second.status == first.status
    assert contents(tmp_path) == before


@pytest.mark.parametrize("damage", ["remove", "truncate", "flip", "forget"])
def test_a_missing_or_damaged_part_alone_is_solved_again(tmp_path: Path, damage: str) -> None:
    lambdamax.sweep(spec(), tmp_path)
    before = contents(tmp_path)
    part, manifest = tmp_path / "part-00002.parquet", tmp_path / "manifest.json"
    whole = part.read_bytes()
    if damage == "remove":
        part.unlink()
    elif damage == "truncate":
        part.write_bytes(whole[:-1])
    elif damage == "flip":
        part.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    else:
        known = json.loads(manifest.read_text())
        del known["parts"][part.name]
        manifest.write_text(json.dumps(known))
    assert lambdamax.sweep(spec(), tmp_path).solved_parts == 1
    assert contents(tmp_path) == before


def test_an_interrupted_sweep_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lambdamax.sweep(spec(), tmp_path / "whole")
    solve = Grid.solve

    def interrupted(self: Grid, start: int, stop: int, **options: Any) -> pl.DataFrame:
        if start == 2048:
            raise KeyboardInterrupt
        return solve(self, start, stop, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Grid, "solve", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lambdamax.sweep(spec(), tmp_path / "cut")
    assert sorted(contents(tmp_path / "cut")) == ["manifest.json", "part-00000.parquet", "part-00001.parquet"]
    with pytest.raises(StoreError, match=r"part-00002\.parquet and 1 more of 4 parts are missing: run the same"):
        store.part_paths(tmp_path / "cut")
    (tmp_path / "cut" / "part-00003.parquet.1.tmp").write_bytes(b"half a part")
    assert lambdamax.sweep(spec(), tmp_path / "cut").solved_parts == 2
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_a_part_that_cannot_be_written_stops_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = store.write_frame
    written: list[Path] = []

    def full(frame: pl.DataFrame, path: Path) -> None:
        if written:
            path.write_bytes(b"half a part")
            raise OSError(28, "No space left on device")
        write(frame, path)
        written.append(path)

    with monkeypatch.context() as patch:
        patch.setattr(store, "write_frame", full)
        with pytest.raises(StoreError, match=r"part-00001\.parquet: it cannot be written \(No space left on device\)"):
            lambdamax.sweep(spec(), tmp_path)
    assert sorted(contents(tmp_path)) == ["manifest.json", "part-00000.parquet"]
    assert lambdamax.sweep(spec(), tmp_path).solved_parts == 3


def test_a_disk_that_is_full_at_the_manifest_leaves_no_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, *_: object, **__: object) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(StoreError, match=r"manifest\.json: it cannot be written \(No space left on device\)"):
        lambdamax.sweep(spec(), tmp_path)
    assert contents(tmp_path) == {}


def test_an_error_of_the_parquet_writer_is_one_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(frame: pl.DataFrame, path: Path) -> None:
        raise pl.exceptions.ComputeError("cannot flush")

    monkeypatch.setattr(store, "write_frame", broken)
    with pytest.raises(StoreError, match=r"part-00000\.parquet: it cannot be written \(cannot flush\)"):
        lambdamax.sweep(spec(), tmp_path)


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), OSError(30, "Read-only file system")])
def test_a_place_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(StoreError, match=rf"/out: it cannot be written \({error.strerror}\): give an empty directory"):
        lambdamax.sweep(spec(), tmp_path / "out")


@pytest.mark.parametrize("threads", [1, 2])
def test_bytes_do_not_depend_on_the_number_of_threads(tmp_path: Path, threads: int) -> None:
    lambdamax.sweep(spec(), tmp_path / "here")
    code = "import sys, lambdamax; lambdamax.sweep(sys.argv[1], sys.argv[2], threads=int(sys.argv[3]))"
    (tmp_path / "a.toml").write_text(
        'name = "parts"\nquestion = "how many?"\n'
        '[replica]\nmodel = "llama-3.1-8b-instruct"\ngpu = ["h100-sxm", "mi300x"]\ntp = [1, 2]\n'
        "[workload]\nisl_tokens = { log = [128, 16384, 30] }\nosl_tokens = { log = [16, 2048, 30] }\n"
        "[output]\npart_rows = 1024\n"
    )
    environment = {**os.environ, "POLARS_MAX_THREADS": str(threads)}
    arguments = [str(tmp_path / "a.toml"), str(tmp_path / "there"), str(threads)]
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, env=environment)
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


def test_rows_do_not_depend_on_the_size_of_parts(tmp_path: Path) -> None:
    frames = []
    for rows in (1024, 1500, 4096):
        lambdamax.sweep(spec(output={"part_rows": rows}), tmp_path / str(rows))
        frames.append(pl.concat(map(pl.read_parquet, store.part_paths(tmp_path / str(rows)))))
    assert frames[0].equals(frames[1])
    assert frames[0].equals(frames[2])


ELSEWHERE = "give an empty directory, one to be made, or that of the same sweep"
CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"replica": {"tp": [1, 4]}}, "replica.tp is [1, 2] there and [1, 4] here"),
    ({"slo": {"tpot_s": 0.05}}, "slo.tpot_s is not set there and [0.05] here"),
    ({"output": {"part_rows": 2048}}, "output.part_rows is 1024 there and 2048 here"),
]


@pytest.mark.parametrize(("changes", "difference"), CHANGES, ids=lambda change: str(change)[:20])
def test_a_directory_of_another_sweep_is_refused(tmp_path: Path, changes: dict[str, Any], difference: str) -> None:
    lambdamax.sweep(spec(), tmp_path)
    before = contents(tmp_path)
    with pytest.raises(StoreError) as caught:
        lambdamax.sweep(spec(**changes), tmp_path)
    assert str(caught.value) == f"{tmp_path}: it holds another sweep: {difference}: {ELSEWHERE}"
    assert contents(tmp_path) == before


@pytest.mark.parametrize("version", ["engine", "catalog", "columns"])
def test_a_directory_of_another_version_is_refused(tmp_path: Path, version: str) -> None:
    lambdamax.sweep(spec(), tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["identity"][version], manifest["sha256"] = "0.0.0", "0"
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(StoreError, match=f'another sweep: {version} is "0.0.0" there and'):
        lambdamax.sweep(spec(), tmp_path)


def test_a_name_and_a_question_are_not_part_of_the_identity(tmp_path: Path) -> None:
    lambdamax.sweep(spec(), tmp_path)
    other = spec().model_copy(update={"name": "another", "question": "why?"})
    assert lambdamax.sweep(other, tmp_path).solved_parts == 0


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("do not lose")
    with pytest.raises(StoreError, match=rf"it holds thesis\.txt: {ELSEWHERE}"):
        lambdamax.sweep(spec(), tmp_path)
    with pytest.raises(StoreError, match=rf"thesis\.txt: it is a file: {ELSEWHERE}"):
        lambdamax.sweep(spec(), tmp_path / "thesis.txt")
    with pytest.raises(StoreError, match=r"thesis\.txt/below: it cannot be written \(Not a directory\)"):
        lambdamax.sweep(spec(), tmp_path / "thesis.txt" / "below")
    assert (tmp_path / "thesis.txt").read_text() == "do not lose"


def test_reading_what_is_no_sweep_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, absent in [
        (".", "there is no manifest"),
        ("none", "there is no such dir"),
        ("file", "there is no such dir"),
    ]:
        with pytest.raises(StoreError, match=rf"{absent}.*: give the directory of a sweep"):
            store.part_paths(tmp_path / name)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '"manifest"',
        '{"identity": {"format": 1}}',
        '{"identity": {"format": 1}, "sha256": "", "part_count": "x", "parts": {}}',
        '{"identity": {"format": 1}, "sha256": "", "part_count": 1, "parts": {"part-00000.parquet": {"rows": 3}}}',
        '{"identity": {"format": 1}, "sha256": "", "part_count": 1, "parts": [1]}',
        "\x00",
    ],
)
def test_a_manifest_of_another_kind_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    for use in (lambda: store.part_paths(tmp_path), lambda: lambdamax.sweep(spec(), tmp_path)):
        with pytest.raises(StoreError, match=r"manifest\.json: it is not a manifest that lambdamax wrote"):
            use()


def test_a_manifest_of_another_format_or_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"identity": {"format": 2}}')
    with pytest.raises(StoreError, match=r"manifest\.json: it has format 2, this version reads 1"):
        store.part_paths(tmp_path)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(StoreError, match=r"manifest\.json: it cannot be read \(Is a directory\)"):
        store.part_paths(tmp_path)


def damaged(directory: Path, how: str) -> None:
    """Damage the last but one of four parts, or the manifest's word for it."""
    part = directory / "part-00002.parquet"
    whole = part.read_bytes()
    if how == "missing":
        part.unlink()
    elif how == "truncated":
        part.write_bytes(whole[:-100])
    elif how == "flipped":
        part.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    elif how == "replaced":
        part.write_bytes((directory / "part-00001.parquet").read_bytes())
    else:
        part.write_bytes(b"not Parquet")
        manifest = json.loads((directory / "manifest.json").read_text())
        about = {"bytes": 11, "sha256": hashlib.sha256(b"not Parquet").hexdigest()}
        manifest["parts"][part.name] |= about
        (directory / "manifest.json").write_text(json.dumps(manifest))


DAMAGES = {
    "missing": r"part-00002\.parquet of 4 parts are missing: run the same sweep again",
    "truncated": r"part-00002\.parquet: it is not the part that the sweep wrote \(damaged or replaced\): run the same",
    "flipped": r"part-00002\.parquet: it is not the part that the sweep wrote \(damaged or replaced\): run the same",
    "replaced": r"part-00002\.parquet: it is not the part that the sweep wrote \(damaged or replaced\): run the same",
    "foreign": r"part-00002\.parquet: it cannot be read \(.*\): run the same sweep again",
}


@pytest.mark.parametrize("how", DAMAGES)
def test_the_frontier_names_a_part_that_is_missing_or_damaged(tmp_path: Path, how: str) -> None:
    lambdamax.sweep(spec(), tmp_path)
    damaged(tmp_path, how)
    with pytest.raises(StoreError, match=DAMAGES[how]) as caught:
        lambdamax.frontier(tmp_path)
    assert len(str(caught.value).splitlines()) == 1


def test_a_damaged_first_part_is_named_as_well(tmp_path: Path) -> None:
    lambdamax.sweep(spec(), tmp_path)
    (tmp_path / "part-00000.parquet").write_bytes(b"PAR1")
    with pytest.raises(StoreError, match=r"part-00000\.parquet: it is not the part that the sweep wrote"):
        lambdamax.frontier(tmp_path)


def test_half_written_files_of_another_run_do_not_count(tmp_path: Path) -> None:
    lambdamax.sweep(spec(), tmp_path)
    expected = lambdamax.frontier(tmp_path)
    for name in ("part-00001.parquet.77.tmp", "manifest.json.77.tmp"):
        (tmp_path / name).write_bytes(b"half")
    (tmp_path / "part-00009.parquet").write_bytes(b"of nobody")
    assert lambdamax.frontier(tmp_path).equals(expected)


def test_part_names_sort_as_the_parts_do() -> None:
    assert store.part_name(3, 4) == "part-00003.parquet"
    names = [store.part_name(index, 200_000) for index in (0, 9, 99_999, 100_000)]
    assert names == sorted(names)
