"""A whole sweep to Parquet against polars writing the very same columns alone: same parts, options and disk.

The rival gets the frames that the sweep wrote, already in memory, and writes them with the sweep's own write options,
part after part. Every round runs both, and the ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import polars as pl

import lambdamax
from lambdamax.spec import Spec, parse_spec, read_spec
from lambdamax.store import part_paths, write_frame
from timing import interleaved, verdict

AIM: Final = 1.5
SWEEP: Final = "lambdamax.sweep"
WRITE: Final = "polars alone"
QUICKSTART: Final = Path(__file__).parent.parent / "sweeps" / "quickstart.toml"


@dataclass(frozen=True)
class Contest:
    """A sweep into a fresh directory each time, and its frames written again."""

    spec: Spec
    frames: list[pl.DataFrame]
    work: Path
    numbers: Callable[[], int]

    def sweep(self) -> None:
        """Solve and write everything."""
        lambdamax.sweep(self.spec, self.fresh() / "out", progress=False)

    def write(self) -> None:
        """Write everything again."""
        directory = self.fresh()
        for place, frame in enumerate(self.frames):
            write_frame(frame, directory / f"part-{place:05d}.parquet")

    def fresh(self) -> Path:
        """An empty directory; the one of the call before is gone, so that the disk never fills."""
        for old in self.work.iterdir():
            shutil.rmtree(old)
        directory = self.work / str(self.numbers())
        directory.mkdir()
        return directory


def quick_spec() -> Spec:
    """An eighth of a million points."""
    replica = {"model": "llama-3.3-70b-instruct", "gpu": ["h100-sxm", "mi300x"], "tp": [4, 8], "weight_dtype": "fp8"}
    lengths = {"isl_tokens": {"log": [128, 32768, 64]}, "osl_tokens": {"log": [32, 4096, 64]}}
    slo = {"ttft_s": [0.5, 1.0, 2.0, 4.0], "tpot_s": [0.025, 0.05]}
    return parse_spec({"name": "quick", "replica": replica, "workload": lengths, "slo": slo})


def contest(spec: Spec, work: Path) -> Contest:
    """Sweep once to get the frames, read back from the parts."""
    lambdamax.sweep(spec, work / "first", progress=False)
    frames = [pl.read_parquet(path) for path in part_paths(work / "first")]
    same(frames, part_paths(work / "first"), work / "again.parquet")
    return Contest(spec, frames, work, partial(next, count()))


def same(frames: list[pl.DataFrame], parts: list[Path], again: Path) -> None:
    """Fail unless a frame written by the rival is, but for its name, the part that the sweep wrote."""
    for frame, part in zip(frames, parts, strict=True):
        write_frame(frame, again)
        if again.stat().st_size != part.stat().st_size:
            sys.exit(f"{part.name}: the rival writes {again.stat().st_size} bytes, the sweep {part.stat().st_size}")
    again.unlink()


def main() -> None:
    """Run the contest in a temporary directory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="an eighth of the points, two rounds")
    parser.add_argument("--out", type=Path, help="where to write (default: the system's temporary directory)")
    arguments = parser.parse_args()
    spec = quick_spec() if arguments.quick else read_spec(QUICKSTART)
    with tempfile.TemporaryDirectory(prefix="lambdamax-bench-", dir=arguments.out) as work:
        rivals = contest(spec, Path(work))
        times = interleaved({SWEEP: rivals.sweep, WRITE: rivals.write}, 2 if arguments.quick else 7)
    rows, parts = sum(frame.height for frame in rivals.frames), len(rivals.frames)
    columns = rivals.frames[0].width
    print(
        f"lambdamax {lambdamax.__version__}, polars {pl.__version__}: {rows} points, {columns} columns, {parts} parts"
    )
    for name in (SWEEP, WRITE):
        print(f"  {name:16s} {times.median(name):7.3f} s median {times.least(name):7.3f} s best")
    ratio = times.ratio(SWEEP, WRITE)
    print(f"  {rows / times.median(SWEEP):,.0f} points/s to disk")
    print(f"  sweep / polars   {ratio:7.2f}  {verdict(ratio, AIM, at_most=True)}")


if __name__ == "__main__":
    main()
