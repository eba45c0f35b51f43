"""The best point of every group and accelerator of a sweep: lambdamax against polars, and peak memory."""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Final

import polars as pl

import lambdamax
from lambdamax.columns import point_columns
from lambdamax.spec import Spec, parse_spec
from timing import interleaved, verdict

AIM_RATIO: Final = 1.0
AIM_MB: Final = 700.0
MAXIMIZE: Final = "requests_per_usd"
# Points in millions: prompt lengths, output lengths; times 576 replicas, budgets and SLOs.
SIZES: Final = {"0.1": (16, 11), "2": (60, 58), "10": (132, 132), "50": (295, 295)}
GROUPS: Final = {
    "few groups": ["model", "slo_ttft_s", "slo_tpot_s"],
    "many groups": ["model", "isl_tokens", "osl_tokens", "slo_ttft_s", "slo_tpot_s"],
}
LESS: Final = "polars, values alone"
CHILD: Final = "--child"
SWEEP: Final = "--sweep"


def spec_of(size: str) -> Spec:
    """The sweep of about `size` million points."""
    isl, osl = SIZES[size]
    content = {
        "name": f"frontier-{size}m",
        "replica": {
            "model": "llama-3.3-70b-instruct",
            "gpu": ["h100-sxm", "h200-sxm", "b200-sxm", "mi300x"],
            "tp": [1, 2, 4, 8],
            "weight_dtype": ["bf16", "fp8"],
        },
        "workload": {"isl_tokens": {"linear": [128, 32768, isl]}, "osl_tokens": {"linear": [32, 4096, osl]}},
        "scheduler": {"max_num_batched_tokens": [2048, 8192, 16384]},
        "slo": {"ttft_s": [0.5, 1.0, 2.0], "tpot_s": [0.025, 0.05]},
    }
    return parse_spec(content)


def whole_rows(parts: str, keys: list[str]) -> pl.DataFrame:
    """Polars: each group's row with the largest value, all columns, by its place."""
    place = pl.col(MAXIMIZE).arg_max()
    rest = [column.name for column in point_columns() if column.name not in keys]
    best = pl.scan_parquet(parts).filter(pl.col("status") == "ok").group_by(keys).agg(pl.col(rest).get(place))
    return best.collect(engine="streaming")


def values_first(parts: str, keys: list[str]) -> pl.DataFrame:
    """Polars in two passes: the largest values from a few columns, then the rows that have them."""
    ok = pl.scan_parquet(parts).filter(pl.col("status") == "ok")
    best = ok.group_by(keys).agg(pl.col(MAXIMIZE).max()).collect(engine="streaming")
    rows = ok.join(best.lazy(), on=[*keys, MAXIMIZE], how="semi", nulls_equal=True)
    return rows.collect(engine="streaming").unique(keys, keep="any")


def value_alone(parts: str, keys: list[str]) -> pl.DataFrame:
    """Polars: the largest value alone, no row: less than was asked for."""
    ok = pl.scan_parquet(parts).filter(pl.col("status") == "ok")
    return ok.group_by(keys).agg(pl.col(MAXIMIZE).max()).collect(engine="streaming")


def agree(ours: pl.DataFrame, theirs: pl.DataFrame, keys: list[str]) -> bool:
    """Whether both found the same values, to nine digits."""
    ranked = ours.filter(pl.col("rank").is_not_null()).select(*keys, MAXIMIZE)
    both = ranked.join(theirs.select(*keys, pl.col(MAXIMIZE).alias("theirs")), on=keys, how="full", nulls_equal=True)
    return both.height == ranked.height and bool(((both[MAXIMIZE] / both["theirs"] - 1).abs() < 1e-8).all())


def compare(directory: Path, rows: int, rounds: int) -> None:
    """Print the times of all contestants on the parts in `directory`."""
    parts = str(directory / "*.parquet")
    for name, by in GROUPS.items():
        keys = [*by, "gpu"]
        contestants: dict[str, Callable[[], pl.DataFrame]] = {
            "lambdamax": partial(lambdamax.frontier, directory, by=by),
            "polars, whole rows": partial(whole_rows, parts, keys),
            "polars, values then rows": partial(values_first, parts, keys),
            LESS: partial(value_alone, parts, keys),
        }
        ours = contestants["lambdamax"]()
        if not all(agree(ours, work(), keys) for work in list(contestants.values())[1:]):
            sys.exit(f"{name}: the contestants do not agree")
        times = interleaved(contestants, rounds)
        print(f"\n{name}: {rows:,} points, {ours.height:,} rows of the answer")
        for each in contestants:
            least = times.median(each)
            ratio = times.ratio(each, "lambdamax")
            told = "" if each in ("lambdamax", LESS) else f", {verdict(ratio, AIM_RATIO, ' of its time')}"
            print(f"  {each:26} {least:8.2f} s {rows / least / 1e6:8.2f} M points/s   {ratio:5.2f}{told}")


def child(directory: str, by: str, out: str = "") -> None:
    """Rank, to the file `out` if there is one, and say how long it took and how much memory at most."""
    started = time.monotonic()
    if out:
        lambdamax.write_frontier(directory, out, by=GROUPS[by])
    else:
        lambdamax.frontier(directory, by=GROUPS[by])
    print(time.monotonic() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def memory(directory: Path, rows: int) -> None:
    """Print the peak memory of fresh processes that rank the parts in `directory`."""
    for name, (to, out) in product(GROUPS, {"frame": [], "file": [str(directory.with_suffix(".parquet"))]}.items()):
        command = [sys.executable, __file__, CHILD, str(directory), name, *out]
        took, peak_kb = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        peak_mb = float(peak_kb) * 1024 / 1e6
        said = verdict(peak_mb, AIM_MB, " MB", at_most=True)
        print(f"  {name:12} to a {to:5} {rows:12,} points {float(took):8.1f} s {peak_mb:7.0f} MB peak, {said}")


def main() -> None:
    """Sweep into a temporary directory, then rank it in every way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="0.1 M points, one round")
    parser.add_argument("--size", choices=list(SIZES), default="2", help="millions of points (default: 2)")
    parser.add_argument("--memory", action="store_true", help="peak memory alone, without polars")
    parser.add_argument("--out", type=Path, help="where to write (default: the system's temporary directory)")
    asked = parser.parse_args()
    size = "0.1" if asked.quick else asked.size
    spec = spec_of(size)
    print(f"lambdamax {lambdamax.__version__}, polars {pl.__version__}")
    with tempfile.TemporaryDirectory(prefix="lambdamax-bench-", dir=asked.out) as folder:
        directory = Path(folder) / "out"
        subprocess.run([sys.executable, __file__, SWEEP, size, str(directory)], check=True)
        print("peak memory of a fresh process")
        memory(directory, spec.points)
        if not asked.memory:
            compare(directory, spec.points, 1 if asked.quick else 5)


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        child(*sys.argv[2:])
    elif sys.argv[1:2] == [SWEEP]:
        lambdamax.sweep(spec_of(sys.argv[2]), sys.argv[3], progress=False)
    else:
        main()
