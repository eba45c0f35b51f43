"""Benchmark files that cannot be used: one clear line for each fault, and never a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmark_files import FILES, loaded, row, written
from lambdamax import BenchmarkError, read_benchmarks
from lambdamax.audit import audit


def faults(path: Path, **options: Any) -> list[str]:
    with pytest.raises(BenchmarkError) as raised:
        read_benchmarks(path, **options)
    return str(raised.value).splitlines()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "content = empty"),
        (b"  \n", "content = empty"),
        (b'{"model_id": "m", "dura', "line 1, column"),
        (b'{"a": 1} {"b": ', "line 1, column"),
        (b"\xff\xfe{}", "byte 0 is 0xff"),
        (b'{"a": 1}', "an object with the keys a"),
        (b"a,b\n1,2\n", "cells with the header a, b"),
        (b"[1, 2]", "item 1 = int"),
        (b"\x1f\x8bnot gzip", "a whole gzip file"),
        (b"# HELP x y\n# TYPE x gauge\nx{ 1\n", "the Prometheus text format"),
        (b"# HELP x y\n# TYPE x gauge\nx 1\n", "no metric of vLLM"),
    ],
)
def test_a_file_that_is_no_result_is_refused_in_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "bad"
    path.write_bytes(content)
    lines = faults(path)
    assert all(line.startswith(str(path)) for line in lines)
    assert said in lines[0]


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("duration", float("nan"), "finite"),
        ("duration", float("inf"), "finite"),
        ("duration", 0, "greater than 0"),
        ("mean_ttft_ms", -1, "greater than or equal to 0"),
        ("mean_ttft_ms", float("nan"), "finite"),
        ("completed", "eight", "a valid number"),
        ("request_rate", "fast", "a valid number"),
    ],
)
def test_a_value_that_cannot_be_is_named(tmp_path: Path, key: str, value: Any, allowed: str) -> None:
    path = written(tmp_path / "a.json", loaded("vllm_bench_serve_v0.33.0.json") | {key: value})
    (line,) = faults(path)
    assert line.startswith(f"{path}: {key} = ")
    assert allowed in line


def test_all_faults_of_all_files_are_told_at_once(tmp_path: Path) -> None:
    good = loaded("vllm_bench_serve_v0.33.0.json")
    one = written(tmp_path / "a.json", good | {"duration": -1, "completed": "x"}, good, good | {"mean_ttft_ms": "y"})
    two = tmp_path / "b.json"
    two.write_text("", encoding="utf-8")
    with pytest.raises(BenchmarkError) as raised:
        read_benchmarks([one, two, tmp_path / "none.json"], tp=0, model="", speed=3, format="xml")
    said = str(raised.value)
    for part in ("line 1: duration", "line 1: completed", "line 3: mean_ttft_ms", "b.json: content", "none.json"):
        assert part in said
    for part in ("tp = 0", "model = ''", "speed = 3", "format = 'xml'"):
        assert f"read_benchmarks: {part}" in said


def test_a_file_that_is_not_there_is_told_with_the_reason(tmp_path: Path) -> None:
    (line,) = faults(tmp_path / "none.json")
    assert line.startswith(f"{tmp_path / 'none.json'}: file = ")
    assert "No such file" in line
    assert "Is a directory" in faults(tmp_path)[0]


def test_a_unit_that_is_none_of_time_is_refused(tmp_path: Path) -> None:
    raw = loaded("aiperf_v0.13.0_profile_export_aiperf.json")
    raw["time_to_first_token"]["unit"] = "tokens"
    (line,) = faults(written(tmp_path / "a.json", raw))
    assert "time_to_first_token.unit = 'tokens': allowed: one of s," in line
    raw["time_to_first_token"]["unit"] = "s"
    assert row(written(tmp_path / "b.json", raw))["ttft_mean_s"] == pytest.approx(40.285, rel=1e-4)


def test_a_table_with_a_cut_line_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "cut.csv"
    path.write_text((FILES / "measured_long_header.csv").read_text()[:-300], encoding="utf-8")
    assert "line 5" in faults(path)[0]


def test_every_bad_line_of_a_table_is_named_with_its_cell(tmp_path: Path) -> None:
    lines = (FILES / "measured_short_header.csv").read_text().replace("65456.6", "NaN?").replace("7097.2", "-1")
    path = tmp_path / "bad.csv"
    path.write_text(lines, encoding="utf-8")
    told = faults(path)
    assert [line.partition(": allowed")[0] for line in told] == [
        f"{path}: line 2: ttft_ms = 'NaN?'",
        f"{path}: line 3: ttft_ms = '-1'",
    ]


def test_a_bad_benchmark_of_a_report_is_named(tmp_path: Path) -> None:
    raw = loaded("guidellm_v0.8.1.json")
    raw["benchmarks"].append(raw["benchmarks"][0] | {"duration": -1})
    assert "benchmark 2: duration = -1" in faults(written(tmp_path / "a.json", raw))[0]


def test_lists_of_requests_must_be_of_one_length(tmp_path: Path) -> None:
    raw = loaded("vllm_bench_serve_v0.33.0_save_detailed.json")
    raw["ttfts"].pop()
    (line,) = faults(written(tmp_path / "a.json", raw))
    assert "ttfts = '3 values'" in line


def test_a_pooling_run_is_refused(tmp_path: Path) -> None:
    raw = loaded("vllm_bench_serve_v0.33.0.json") | {"total_input_sequences": 9}
    assert "a run that generates tokens" in faults(written(tmp_path / "a.json", raw))[0]


def test_a_forced_format_is_read_as_such(tmp_path: Path) -> None:
    path = FILES / "sglang_bench_serving_v0.5.23.jsonl"
    lines = faults(path, format="vllm-bench-serve")
    assert any("model_id = nothing: allowed: present" in line for line in lines)
    assert read_benchmarks(path, format="sglang-bench-serving").height == 1


def test_a_compressed_file_is_read(tmp_path: Path) -> None:
    import gzip

    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress((FILES / "llmperf_summary.json").read_bytes()))
    assert row(path)["format"] == "llmperf"


def test_a_frame_of_several_files_keeps_their_order() -> None:
    files = [FILES / "llmperf_summary.json", FILES / "inferencex_agg_result.json"]
    table = read_benchmarks(files)
    assert isinstance(table, pl.DataFrame)
    assert table["format"].to_list() == ["llmperf", "inferencex"]


# Anything may be in a file


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a JSON value, as keys from the top."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        yield from places(one, (*path, key))


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    held = dict(value) if isinstance(value, dict) else list(value)
    held[path[0]] = put(held[path[0]], path[1:], new)
    return held


def outcome(path: Path) -> str:
    """Whether `path` is read, so that it can be audited, or refused with a fault; anything else is raised."""
    try:
        return "read" if audit(read_benchmarks(path)).rows >= 0 else "negative"
    except BenchmarkError as error:
        return "refused" if error.faults else "without a reason"


JSON_FILES = sorted(path.name for path in FILES.glob("*.json") if "power" not in path.name)
ODD = st.sampled_from([None, "", "x", "nan", -1, 0, 1e400, float("nan"), True, [], {}, [1], {"a": 1}, 10**400])


@pytest.mark.parametrize("file", JSON_FILES)
@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_an_odd_value_anywhere_is_read_or_refused(tmp_path: Path, file: str, data: st.DataObject) -> None:
    value = loaded(file)
    place = data.draw(st.sampled_from(list(places(value))))
    path = written(tmp_path / "odd.json", put(value, place, data.draw(ODD)))
    assert outcome(path) in ("read", "refused")


@pytest.mark.parametrize("file", sorted(path.name for path in FILES.iterdir()))
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1))
def test_a_cut_file_is_read_or_refused(tmp_path: Path, file: str, share: float) -> None:
    content = (FILES / file).read_bytes()
    path = tmp_path / "cut"
    path.write_bytes(content[: int(share * len(content))])
    assert outcome(path) in ("read", "refused")
