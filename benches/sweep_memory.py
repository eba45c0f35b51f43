"""Peak memory of a fresh process that sweeps 1 M, 10 M and, with --full, 100 M points into Parquet parts."""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

import lambdamax
from lambdamax.spec import Spec, parse_spec
from timing import verdict

AIM_MB: Final = 700.0
FLAT: Final = 1.15
MARGIN: Final = 1.1
# Points in millions: prompt lengths, output lengths; times 1,152 replicas, budgets and SLOs.
SIZES: Final = {"0.1": (10, 9), "1": (30, 29), "10": (93, 94), "100": (295, 295)}
CHILD: Final = "--child"


class Run(NamedTuple):
    """One sweep in a process of its own."""

    rows: int
    seconds: float
    peak_mb: float
    disk_bytes: int


def spec_of(size: str) -> Spec:
    """The sweep of about `size` million points."""
    isl, osl = SIZES[size]
    content = {
        "name": f"memory-{size}m",
        "replica": {
            "model": "llama-3.3-70b-instruct",
            "gpu": ["h100-sxm", "h200-sxm", "b200-sxm", "mi300x"],
            "tp": [1, 2, 4, 8],
            "weight_dtype": ["bf16", "fp8"],
            "kv_dtype": ["bf16", "fp8"],
        },
        "workload": {"isl_tokens": {"linear": [128, 32768, isl]}, "osl_tokens": {"linear": [32, 4096, osl]}},
        "scheduler": {"max_num_batched_tokens": [2048, 8192, 16384]},
        "slo": {"ttft_s": [0.5, 1.0, 2.0], "tpot_s": [0.025, 0.05]},
    }
    return parse_spec(content)


def child(size: str, out: str) -> None:
    """Sweep, and say how many rows, how long and how much memory at most."""
    started = time.monotonic()
    result = lambdamax.sweep(spec_of(size), out, progress=False)
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(result.rows, time.monotonic() - started, peak_kb)


def run(size: str, folder: Path) -> Run:
    """Sweep in a fresh process into a directory that is deleted afterwards."""
    out = folder / f"{size}m"
    command = [sys.executable, __file__, CHILD, size, str(out)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    rows, took, peak_kb = done.stdout.split()
    written = sum(path.stat().st_size for path in out.iterdir())
    shutil.rmtree(out)
    return Run(int(rows), float(took), float(peak_kb) * 1024 / 1e6, written)


def fits(size: str, done: Run, folder: Path) -> bool:
    """Whether the disk has room for the next sweep, as judged from one that is done."""
    needed = spec_of(size).points / done.rows * done.disk_bytes * MARGIN
    free = shutil.disk_usage(folder).free
    if needed > free:
        print(f"  {size} M points: left out, they need {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free")
    return needed <= free


def main() -> None:
    """Run the sweeps from the smallest to the largest."""
    parser = argparse.ArgumentParser(description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="0.1 M points only")
    size.add_argument("--full", action="store_true", help="100 M points too")
    parser.add_argument("--out", type=Path, help="where to write (default: the system's temporary directory)")
    arguments = parser.parse_args()
    sizes = ["0.1"] if arguments.quick else ["1", "10", "100"] if arguments.full else ["1", "10"]
    print(f"lambdamax {lambdamax.__version__}")
    with tempfile.TemporaryDirectory(prefix="lambdamax-bench-", dir=arguments.out) as folder:
        runs = measure(sizes, Path(folder))
    if len(runs) > 1:
        ratio = runs[-1].peak_mb / runs[0].peak_mb
        print(f"  largest / smallest sweep: {ratio:.2f} of the memory, flat if <= {FLAT:g}")


def measure(sizes: list[str], folder: Path) -> list[Run]:
    """One run for each size that the disk has room for."""
    runs: list[Run] = []
    for size in sizes:
        if runs and not fits(size, runs[-1], folder):
            break
        one = run(size, folder)
        runs.append(one)
        said = verdict(one.peak_mb, AIM_MB, " MB", at_most=True)
        disk = f"{one.disk_bytes / 1e9:7.2f} GB written"
        print(f"  {one.rows:12,d} points {one.seconds:8.1f} s {disk} {one.peak_mb:7.0f} MB peak, {said}", flush=True)
    return runs


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        child(*sys.argv[2:])
    else:
        main()
