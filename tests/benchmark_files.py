"""Genuine results of benchmark tools, and ways to read, change and write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lambdamax import read_benchmarks

FILES = Path(__file__).parent / "fixtures" / "benchmarks"


def row(file: str | Path, **facts: Any) -> dict[str, Any]:
    (one,) = read_benchmarks(FILES / file, **facts).to_dicts()
    return one


def written(path: Path, *values: Any) -> Path:
    path.write_text("\n".join(json.dumps(value) for value in values), encoding="utf-8")
    return path


def loaded(file: str) -> Any:
    return json.loads((FILES / file).read_text(encoding="utf-8"))
