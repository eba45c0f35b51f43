"""What becomes of every model on every accelerator, as docs/coverage.md counts it; as a script it writes the tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import polars as pl

import lambdamax
from lambdamax.grid import Grid
from lambdamax.spec import read_spec

ROOT = Path(__file__).parent.parent
STUDY = ROOT / "sweeps" / "every-model.toml"
PAGE = ROOT / "docs" / "coverage.md"
BLOCK = re.compile(r"<!-- (\w+) -->\n.*?<!-- end -->\n", re.DOTALL)


@cache
def points() -> pl.DataFrame:
    return lambdamax.scan(STUDY).collect()


def table(headings: list[str], rows: list[tuple[object, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield "|---" * len(headings) + "|"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"


def statuses() -> Iterator[str]:
    found = points().group_by(pl.col("status").cast(pl.String)).len().sort(["len", "status"], descending=[True, False])
    yield from table(["status", "points"], [(f"`{status}`", f"{count:,}") for status, count in found.iter_rows()])


def by_accelerator() -> Iterator[str]:
    kinds = ["ok", "no_price", "does_not_fit", "slo_unreachable", "invalid_parallelism", "unsupported"]
    counts = [(pl.col("status") == kind).sum().alias(kind) for kind in kinds]
    found = points().group_by("gpu", maintain_order=True).agg(counts)
    yield from table(["accelerator", *(f"`{kind}`" for kind in kinds)], [tuple(row) for row in found.iter_rows()])


def reasons() -> Iterator[str]:
    """Why points are not supported; reasons that differ in the model or accelerator they name are counted together."""
    kinds: Counter[str] = Counter()
    names: dict[str, set[str]] = {}
    for reason, count in Grid.of(read_spec(STUDY), lambdamax.load_catalog()).unsupported.items():
        named = next(word for word in re.split(r"[ :,]+", reason) if word in known_names())
        kind = reason.replace(named, "…", 1)
        kinds[kind] += count
        names.setdefault(kind, set()).add(named)
    rows = [(kind, f"{count:,}", ", ".join(sorted(names[kind]))) for kind, count in kinds.most_common()]
    yield from table(["reason", "points", "which"], rows)


@cache
def known_names() -> frozenset[str]:
    catalog = lambdamax.load_catalog()
    return frozenset((*catalog.models, *catalog.accelerators))


def filled() -> str:
    """The page with its tables as they are now."""
    tables = {"statuses": statuses, "accelerators": by_accelerator, "reasons": reasons}

    def write(block: re.Match[str]) -> str:
        lines = "\n".join(tables[block[1]]())
        return f"<!-- {block[1]} -->\n{lines}\n<!-- end -->\n"

    return BLOCK.sub(write, PAGE.read_text(encoding="utf-8"))


def test_the_page_counts_what_the_sweep_gives() -> None:
    assert filled() == PAGE.read_text(encoding="utf-8")


def test_the_study_has_every_model_and_accelerator_at_every_tp() -> None:
    spec, catalog = read_spec(STUDY), lambdamax.load_catalog()
    assert set(spec.replica.model) == set(catalog.models)
    assert set(spec.replica.gpu) == set(catalog.accelerators)
    assert spec.replica.tp == (1, 2, 4, 8)
    assert points()["model"].n_unique() >= 40


if __name__ == "__main__":
    PAGE.write_text(filled(), encoding="utf-8")
