"""`sweep`, and the answers that the studies in `sweeps/` state in their headers.

Run as a script, this file writes the answers that the studies give now into their headers.
"""

from __future__ import annotations

import io
import json
import math
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import lambdamax
from lambdamax import columns
from lambdamax.engine import Memory
from lambdamax.exceptions import SpecError
from lambdamax.frames import REPLICA_COLUMNS
from lambdamax.grid import Grid
from lambdamax.spec import Spec, parse_spec, read_spec
from lambdamax.store import part_paths
from lambdamax.units import number
from lambdamax.verdict import NAME_OF_LIMIT

# With more accelerators than this, a header says how many.
MOST_NAMED = 6
LONGEST_LINE = 140
STUDIES = sorted((Path(__file__).parent.parent / "sweeps").glob("*.toml"))
BLOCK = re.compile(r"^# Answer where (?P<where>.*):\n(?P<rows>(?:# (?:\d+|-)\. .*\n)*)", re.MULTILINE)

SURE = re.compile(r"^# How sure[,:] .*$", re.MULTILINE)


def spec(**changes: dict[str, Any]) -> Spec:
    raw: dict[str, dict[str, Any]] = {
        "replica": {"model": "llama-3.1-8b-instruct", "gpu": ["h100-sxm", "mi300x"], "tp": [1, 2]},
        "workload": {"isl_tokens": {"log": [128, 16384, 30]}, "osl_tokens": {"log": [16, 2048, 30]}},
        "output": {"part_rows": 1024},
    }
    tables = {table: raw.get(table, {}) | changes.get(table, {}) for table in raw | changes}
    return parse_spec({"name": "small", **tables})


def swept(directory: Path) -> pl.DataFrame:
    return pl.concat(map(pl.read_parquet, part_paths(directory)))


def test_a_sweep_holds_the_rows_of_the_grid_in_order(tmp_path: Path) -> None:
    result = lambdamax.sweep(spec(), tmp_path)
    rows = swept(tmp_path)
    assert rows.equals(lambdamax.scan(spec()).collect(engine="in-memory"))
    assert (result.rows, result.parts, result.solved_parts) == (3600, 4, 4)
    assert sum(result.status.values()) == 3600
    assert result.status["ok"] == (rows["status"] == "ok").sum()


def test_a_swept_row_solves_to_itself_as_a_frame(tmp_path: Path) -> None:
    lambdamax.sweep(spec(slo={"tpot_s": 0.03}, workload={"isl_cv": [0, 0.5]}), tmp_path)
    rows = swept(tmp_path).sample(500, seed=3)
    inputs = [column.name for column in columns.inputs()]
    assert lambdamax.solve(rows.select(inputs)).equals(rows)


def test_memory_is_written_again_only_when_nobody_holds_it() -> None:
    grid = Grid.of(spec(), lambdamax.load_catalog())
    parts = [(0, 1024), (1024, 2048), (2048, 3072), (3072, 3600)]
    expected = [grid.solve(*rows) for rows in parts]
    memory = Memory()
    held = [grid.solve(*rows, memory=memory) for rows in parts]
    assert all(map(pl.DataFrame.equals, held, expected))
    places = [solved_at(held.pop()) for _ in parts]
    assert len(set(places)) == len(parts)
    again = grid.solve(*parts[2], memory=memory)
    assert solved_at(again) in places
    assert again.equals(expected[2])


def solved_at(frame: pl.DataFrame) -> int:
    """Where the floats of a frame are."""
    return int(frame["max_rate_rps"].to_physical().to_numpy().__array_interface__["data"][0])


REFUSED_BECAUSE = str(lambdamax.load_catalog().model("deepseek-v4-pro").unsupported)
REFUSED = {"architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "hidden_size": 64}


def test_what_is_not_supported_is_rows_with_a_status_and_reasons(tmp_path: Path) -> None:
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text(json.dumps(REFUSED))
    models = ["llama-3.1-8b-instruct", str(tmp_path / "odd" / "config.json")]
    formats = ["bf16", "nvfp4"]
    replica = {"model": models, "gpu": ["mi300x", "h100-sxm"], "weight_dtype": formats, "profile": "default"}
    mixed = spec(replica=replica, workload={"isl_tokens": [100, 200], "osl_tokens": 50})
    result = lambdamax.sweep(mixed, tmp_path / "out")
    rows = swept(tmp_path / "out")
    lacking = (pl.col("model") == "odd") | ((pl.col("gpu") == "mi300x") & (pl.col("weight_dtype") == "nvfp4"))
    assert rows.filter(pl.col("status") == "unsupported").equals(rows.filter(lacking))
    assert rows.filter(lacking)["max_rate_rps"].null_count() == rows.filter(lacking).height == 20
    assert result.unsupported == {
        "weight_dtype nvfp4: mi300x lists no fp4_dense_flops, which it needs": 4,
        f"odd: {REFUSED_BECAUSE}": 16,
    }
    assert sum(result.unsupported.values()) == result.status["unsupported"]
    table = lambdamax.frontier(tmp_path / "out", by=["model"])
    assert table.select("model", "gpu", "points_ok", "refused", "unsupported_because").rows() == [
        ("llama-3.1-8b-instruct", "mi300x", 4, "unsupported 4", [next(iter(result.unsupported))]),
        ("llama-3.1-8b-instruct", "h100-sxm", 8, None, None),
        ("odd", "h100-sxm", 0, "unsupported 8", ["odd: its config.json describes a model that cannot be sized"]),
        ("odd", "mi300x", 0, "unsupported 8", ["odd: its config.json describes a model that cannot be sized"]),
    ]
    some = lambdamax.scan(mixed).filter(pl.col("status") == "unsupported").collect(engine="in-memory")
    assert some.equals(rows.filter(lacking))


def test_a_price_that_is_given_is_the_price(tmp_path: Path) -> None:
    lambdamax.sweep(spec(price={"usd_per_accelerator_hour": [2.0, 3.0]}), tmp_path)
    rows = swept(tmp_path)
    assert rows["usd_per_accelerator_hour"].unique().sort().to_list() == [2.0, 3.0]
    assert rows["price_plan"].null_count() == rows.height
    assert rows["provider"].unique().to_list() == ["given"]
    assert (rows["cost_usd_per_hour"] == rows["usd_per_accelerator_hour"] * rows["gpus"]).all()
    assert lambdamax.solve(rows.select(column.name for column in columns.inputs())).equals(rows)


def test_progress_goes_to_the_callable(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    lambdamax.sweep(spec(), tmp_path, progress=lambda done, rows: seen.append((done, rows)))
    assert seen == [(done, 3600) for done in (0, 1024, 2048, 3072, 3600)]
    (tmp_path / "part-00001.parquet").unlink()
    seen.clear()
    lambdamax.sweep(spec(), tmp_path, progress=lambda done, rows: seen.append((done, rows)))
    assert seen == [(2576, 3600), (3600, 3600)]


def test_nothing_is_printed_where_there_is_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lambdamax.sweep(spec(), tmp_path)
    assert capsys.readouterr() == ("", "")


def test_progress_is_shown_on_stderr_if_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    lambdamax.sweep(spec(), tmp_path, progress=True)
    assert "solving" in screen.getvalue()


def test_a_model_by_path_has_the_name_of_its_directory(tmp_path: Path) -> None:
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8, "vocab_size": 32000}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 4, "tie_word_embeddings": False}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **sizes, **heads}
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(config))
    (tmp_path / "a.toml").write_text(
        'name = "x"\n[replica]\nmodel = ["tiny/config.json", "qwen3-8b"]\ngpu = "h100-sxm"\n'
        "[workload]\nisl_tokens = 9\nosl_tokens = 9\n"
    )
    lambdamax.sweep(tmp_path / "a.toml", tmp_path / "out")
    assert swept(tmp_path / "out")["model"].to_list() == ["tiny", "qwen3-8b"]
    assert str(tmp_path) not in (tmp_path / "out" / "manifest.json").read_text()


def test_a_bad_file_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("name = 3")
    with pytest.raises(SpecError):
        lambdamax.sweep(tmp_path / "bad.toml", tmp_path / "out")
    assert not (tmp_path / "out").exists()


# Studies


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.stem)
def test_a_study_states_its_question_and_the_answer_it_gives(study: Path) -> None:
    text = study.read_text(encoding="utf-8")
    assert text.startswith("# Question: ")
    assert SURE.findall(text) == [how_sure(study)]
    assert max(len(line) for line in text.splitlines() if not SURE.match(line)) <= LONGEST_LINE
    blocks = list(BLOCK.finditer(text))
    assert blocks
    for block in blocks:
        assert block["rows"].splitlines() == list(answer(study, block["where"]))


def test_the_quickstart_has_a_million_points() -> None:
    (quickstart,) = (study for study in STUDIES if study.stem == "quickstart")
    assert read_spec(quickstart).points >= 1_000_000


def answer(study: Path, where: str) -> Iterator[str]:
    """Per accelerator the best point of `study` among those that have the values of `where`."""
    wanted = dict(pair.split("=") for pair in where.split())
    values = {name: text if columns.column(name).is_text else float(text) for name, text in wanted.items()}
    exact = [pl.col(name) == value for name, value in values.items()]
    for row in lambdamax.frontier(scanned(study).filter(exact), by=[]).iter_rows(named=True):
        yield f"# {row['rank'] or '-'}. {row['gpu']}{_reason(row) if row['rank'] is None else _point(row)}"


@cache
def scanned(study: Path) -> pl.LazyFrame:
    return lambdamax.scan(study)


def how_sure(study: Path) -> str:
    """Where the constants of each accelerator of `study` are from, and how wide the 80 % bands are."""
    grid = Grid.of(read_spec(study), lambdamax.load_catalog())
    gpus = list(grid.axes["gpu"])
    shape = [len(grid.axes[name]) for name in REPLICA_COLUMNS]
    of_gpu = np.unravel_index(np.arange(math.prod(shape)), shape)[REPLICA_COLUMNS.index("gpu")]
    kinds = np.array([name.partition(":")[0] for name in grid.bands.names])[grid.bands.code]
    said = (_kind(grid, gpus, of_gpu, kinds == kind, kind) for kind in sorted(set(kinds)))
    return f"# How sure, 80 % bands: {'; '.join(said)}."


def _kind(grid: Grid, gpus: list[Any], of_gpu: Any, its: Any, kind: str) -> str:
    factors = grid.bands.factor[its]
    named = [str(gpu) for place, gpu in enumerate(gpus) if place in set(of_gpu[its])]
    who = ", ".join(named) if len(named) <= MOST_NAMED else f"{len(named)} accelerators"
    within = " to ".join(dict.fromkeys(number(each, 3) for each in (factors.min(), factors.max())))
    return f"{kind} constants, rates within a factor of {within} ({who})"


def _point(row: dict[str, Any]) -> str:
    choice = f"TP {row['tp']}, {row['weight_dtype']} weights, {row['kv_dtype']} KV"
    value, share = number(row["requests_per_usd"]), number(100 * row["share_of_best"], 3)
    stops, then = (NAME_OF_LIMIT[row[limit]] for limit in ("binding_limit", "next_limit"))
    return f", {choice}: {value} requests per dollar ({share} %); stopped by {stops}, then {then}"


def _reason(row: dict[str, Any]) -> str:
    return f": no point is ok, {row['refused']}"


def _fill(study: Path) -> None:
    def filled(block: re.Match[str]) -> str:
        rows = "".join(f"{row}\n" for row in answer(study, block["where"]))
        return f"# Answer where {block['where']}:\n{rows}"

    text = SURE.sub(how_sure(study), study.read_text(encoding="utf-8"))
    study.write_text(BLOCK.sub(filled, text), encoding="utf-8")


if __name__ == "__main__":
    for path in STUDIES:
        _fill(path)
