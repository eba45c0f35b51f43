"""TPOT and the knee of a real server's load sweep, predicted by the simulator from its lightest runs alone.

Run: python benches/open_loop_knee.py [REQUESTS.csv[.gz]] [--system PART] [--json] [--plot FILE.png]
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.optimize import least_squares

from engine_trace import Floats
from lambdamax.catalog import load_catalog
from lambdamax.engine import Control, OneReplica
from lambdamax.replicas import Deployment, ReplicaRow
from step_fit import LARGEST, STRIDE

SHIPPED: Final = Path(__file__).parent.parent / "tests" / "golden" / "open_loop_requests.csv"
COLUMNS: Final = ("launch_s", "prompt_tokens", "generation_tokens", "ttft_s", "generation_s")
ENGINE: Final = "vllm-0.11"
# What the servers' flags were is not published: the benchmark's own charts start vLLM like this.
SETTINGS: Final = {
    "memory_utilization": 0.95,
    "max_num_seqs": 256.0,
    "max_num_batched_tokens": 2048.0,
    "async_scheduling": 0.0,
}
HIT: Final = "prefix_hit_share"
SHARES: Final = {
    "gemm_bandwidth_efficiency": 0.15,
    "gemm_flops_efficiency": 0.25,
    "attention_bandwidth_efficiency": 0.15,
}
OTHERS: Final = {"step_overhead_s": 2e-3, "host_latency_s": 0.05, HIT: 0.1}
# Means of light runs are taken as good to so much.
TTFT_NOISE: Final = 0.03
TPOT_NOISE: Final = 0.01
MOST_LIGHT: Final = 4
STILL_LIGHT: Final = 1.1
KNEE: Final = 3.0
TPOT_BAR: Final = 0.06
WIDTH: Final = 60
_CONTROL: Final = Control(requests=1, precision=0.0, replications=1, seed=0)


@dataclass(frozen=True)
class System:
    """A server of the sweep file: its runs begin with `prefix`; requests go to `replicas` in turn."""

    prefix: str
    gpu: str
    replicas: int
    model: str = "llama-3.1-70b"
    tp: int = 2


SYSTEMS: Final = (
    System("exp-0/vllm-70b/sharegpt", "a100-80-sxm", 1),
    System("exp-2/vllm-70b-2replicas/sharegpt", "a100-80-sxm", 2),
    System("exp-2/vllm-70b-2replicas/short_input", "a100-80-sxm", 2),
    System("exp-2/llm-d-70b-2replicas/short_input", "a100-80-sxm", 2),
    System("exp-3/H100/vllm-70b-2replicas/short_input", "h100-sxm", 2),
    System("exp-3/H100/llm-d-70b-2replicas-H100/short_input", "h100-sxm", 2),
)


@dataclass(frozen=True, eq=False)
class Run:
    """The requests of one rate, in the order of launch, by column."""

    rate_rps: float
    columns: Mapping[str, Floats]

    @property
    def ttft_s(self) -> float:
        """Mean."""
        return float(np.mean(self.columns["ttft_s"]))

    @property
    def tpot_s(self) -> float:
        """Mean over requests of more than one token."""
        after = self.columns["generation_tokens"] - 1
        return float(np.mean(self.columns["generation_s"][after > 0] / after[after > 0]))


def read(path: Path) -> dict[str, list[Run]]:
    """Runs by system and by rising rate. SystemExit if the file cannot be read or lacks a column."""
    if not path.is_file():
        raise SystemExit(
            f"{path}: there is no such file: allowed: a CSV with run, {', '.join(COLUMNS)}, gzipped or not"
        )
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        reader = csv.DictReader(line for line in file if not line.startswith("#"))
        if missing := [name for name in ("run", *COLUMNS) if name not in (reader.fieldnames or ())]:
            raise SystemExit(f"{path}: no column {', '.join(missing)}")
        grouped: dict[str, list[list[float]]] = {}
        for row in reader:
            grouped.setdefault(row["run"], []).append([float(row[name]) for name in COLUMNS])
    systems: dict[str, list[Run]] = {system.prefix: [] for system in SYSTEMS}
    for name, rows in grouped.items():
        for prefix in (prefix for prefix in systems if name.startswith(prefix)):
            rate = float(name.rsplit("_", 1)[1].removeprefix("qps"))
            systems[prefix].append(Run(rate, dict(zip(COLUMNS, np.array(sorted(rows)).T, strict=True))))
    return {prefix: sorted(runs, key=lambda run: run.rate_rps) for prefix, runs in systems.items() if runs}


def light(runs: Sequence[Run]) -> list[Run]:
    """The lowest rates, two at least and four at most, while mean TTFT is within a tenth of the lowest's."""
    most = next((i for i, run in enumerate(runs) if run.ttft_s > STILL_LIGHT * runs[0].ttft_s), len(runs))
    return list(runs[: min(max(most, 2), MOST_LIGHT)])


@dataclass(frozen=True)
class Server:
    """Replicas that are sent requests in turn."""

    system: System
    row: ReplicaRow

    @classmethod
    def of(cls, system: System) -> Server:
        """By the catalogue."""
        return cls(system, load_catalog().replica(Deployment(system.model, system.gpu, system.tp, engine=ENGINE)))

    def play(self, run: Run, constants: Mapping[str, float]) -> tuple[float, float]:
        """Mean TTFT and TPOT [s] of the run's requests."""
        own = {name: value for name, value in constants.items() if name != HIT}
        replica = OneReplica(replace(self.row, fields={**self.row.fields, **own}))
        point = {**SETTINGS, "isl_tokens": 2.0, "osl_tokens": 2.0, HIT: constants[HIT]}
        launch, prompt, output = (run.columns[name] for name in COLUMNS[:3])
        ttft, tpot = [], []
        for first in range(self.system.replicas):
            part = slice(first, None, self.system.replicas)
            trace = (launch[part].tolist(), prompt[part].tolist(), np.maximum(output[part], 1).tolist())
            found = replica.simulate(point, _CONTROL, trace, 1).requests
            ttft += found["request_ttft_s"]
            tpot += found["request_tpot_s"]
        return float(np.mean(ttft)), float(np.nanmean(tpot))

    def constants(self, moves: Floats) -> dict[str, float]:
        """Constants so many standard deviations from the profile, and the cached share from none."""
        start = {**self.row.fields, HIT: 0.0}
        by_name = dict(zip((*SHARES, *OTHERS), moves, strict=True))
        found = {name: min(start[name] * math.exp(share * by_name[name]), 1.0) for name, share in SHARES.items()}
        found |= {name: max(start[name] + scale * by_name[name], 0.0) for name, scale in OTHERS.items()}
        return {**found, HIT: min(found[HIT], 0.95)}

    def fit(self, runs: Sequence[Run]) -> dict[str, float]:
        """Least squares on the means of `runs`."""
        weight = 1 / math.sqrt(len(runs))

        def residuals(moves: Floats) -> Floats:
            found = [(run, *self.play(run, self.constants(moves))) for run in runs]
            late = [weight * (ttft / run.ttft_s - 1) / TTFT_NOISE for run, ttft, _ in found]
            slow = [weight * (tpot / run.tpot_s - 1) / TPOT_NOISE for run, _, tpot in found]
            return np.array([*late, *slow, *moves])

        def slopes(moves: Floats) -> Floats:
            ways = STRIDE * np.eye(len(moves))
            return np.stack([(residuals(moves + way) - residuals(moves - way)) / (2 * STRIDE) for way in ways], axis=1)

        start = np.zeros(len(SHARES) + len(OTHERS))
        found = least_squares(residuals, start, slopes, bounds=(-LARGEST, LARGEST), loss="soft_l1", max_nfev=15)
        return self.constants(found.x)


@dataclass(frozen=True)
class Curve:
    """A sweep as measured and as predicted: (TTFT, TPOT) [s] by rate."""

    system: System
    constants: Mapping[str, float]
    light: int
    rates: list[float]
    measured: list[tuple[float, float]]
    predicted: list[tuple[float, float]]

    @classmethod
    def of(cls, system: System, runs: Sequence[Run]) -> Curve:
        """Fit the light runs, and play them all."""
        server, known = Server.of(system), light(runs)
        constants = server.fit(known)
        measured = [(run.ttft_s, run.tpot_s) for run in runs]
        played = [server.play(run, constants) for run in runs]
        return cls(system, constants, len(known), [run.rate_rps for run in runs], measured, played)

    def knee(self, curve: Sequence[tuple[float, float]]) -> int | None:
        """Place of the first rate with a mean TTFT of over three times the lightest run's."""
        return next((i for i, (ttft, _) in enumerate(curve) if ttft > KNEE * curve[0][0]), None)

    @property
    def judged(self) -> range:
        """Rates above the light ones, up to the knee and with it."""
        knee = self.knee(self.measured)
        return range(self.light, len(self.rates) if knee is None else knee + 1)

    @property
    def tpot_error(self) -> float:
        """Mean absolute error of TPOT over the rates that are judged."""
        return float(np.mean([abs(self.error(i)) for i in self.judged]))

    def error(self, place: int) -> float:
        """Of TPOT."""
        return self.predicted[place][1] / self.measured[place][1] - 1

    @property
    def knee_steps(self) -> int | None:
        """Steps of the rate grid from the measured knee to the predicted one; None where either has none."""
        found, measured = self.knee(self.predicted), self.knee(self.measured)
        return None if found is None or measured is None else found - measured

    @property
    def knee_met(self) -> bool:
        """Whether the knee is within a step, or there is none in either curve."""
        steps = self.knee_steps
        return self.knee(self.predicted) == self.knee(self.measured) if steps is None else abs(steps) <= 1

    def as_json(self) -> dict[str, Any]:
        """Errors, knees and curves."""
        knees = {
            name: None if (at := self.knee(curve)) is None else self.rates[at]
            for name, curve in (("measured", self.measured), ("predicted", self.predicted))
        }
        return {
            "system": self.system.prefix,
            "light_rates_rps": self.rates[: self.light],
            "tpot_error": self.tpot_error,
            "knee_rps": knees,
            "knee_steps": self.knee_steps,
            "constants": dict(self.constants),
            "curve": [
                {"rate_rps": rate, "measured_s": measured, "predicted_s": predicted}
                for rate, measured, predicted in zip(self.rates, self.measured, self.predicted, strict=True)
            ],
        }


def lines(curve: Curve) -> Iterator[str]:
    """A table and a plot: `o` measured, `x` predicted, `8` both."""
    system = curve.system
    yield f"\n{system.prefix}: {system.replicas} x {system.model} on {system.tp} {system.gpu}"
    yield "  " + ", ".join(f"{name} {value:.4g}" for name, value in curve.constants.items())
    yield f"{'req/s':>7}{'TTFT s':>9}{'predicted':>11}{'TPOT ms':>9}{'predicted':>11}{'error':>8}  TPOT"
    most = max(tpot for _, tpot in (*curve.measured, *curve.predicted))
    knee, found = curve.knee(curve.measured), curve.knee(curve.predicted)
    for i, rate in enumerate(curve.rates):
        (ttft, tpot), (early, fast) = curve.measured[i], curve.predicted[i]
        marks = ["fitted"] * (i < curve.light) + ["knee"] * (i == knee) + ["predicted knee"] * (i == found)
        cells = f"{rate:7.2f}{ttft:9.3f}{early:11.3f}{1e3 * tpot:9.2f}{1e3 * fast:11.2f}{100 * curve.error(i):+7.1f}%"
        yield f"{cells}  |{_plot(tpot / most, fast / most)}| {', '.join(marks)}".rstrip()
    told = "none in either" if knee is None and found is None else f"{curve.knee_steps} steps off"
    judged = f"{100 * curve.tpot_error:.1f} % ({_met(curve.tpot_error <= TPOT_BAR)})"
    yield f"  mean |error| of TPOT up to the knee {judged}; knee: {told} ({_met(curve.knee_met)})"


def draw(curves: Sequence[Curve], file: Path) -> None:
    """TTFT and TPOT over the rate, a column for each system; rates that were fitted are shaded."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, len(curves), figsize=(2.6 * len(curves), 5), sharex="col", squeeze=False)
    for (above, below), curve in zip(axes.T, curves, strict=True):
        server = curve.system
        above.set_title("\n".join(server.prefix.split("/")[-2:]) + f"\n{server.replicas} x {server.gpu}", fontsize=8)
        for axis, quantity, scale in ((above, 0, 1.0), (below, 1, 1e3)):
            axis.axvspan(0, curve.rates[curve.light - 1], color="0.92")
            axis.plot(
                curve.rates, [scale * one[quantity] for one in curve.measured], "ko-", label="measured", markersize=4
            )
            axis.plot(curve.rates, [scale * one[quantity] for one in curve.predicted], "C1x--", label="predicted")
            axis.set_xlim(0, None)
        above.set_yscale("log")
        below.set_ylim(0, None)
        below.set_xlabel("requests/s")
    axes[0, 0].set_ylabel("mean TTFT [s]")
    axes[1, 0].set_ylabel("mean TPOT [ms]")
    axes[0, 0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def _plot(measured: float, predicted: float) -> str:
    cells = [" "] * WIDTH
    places = [min(int(share * WIDTH), WIDTH - 1) for share in (measured, predicted)]
    cells[places[0]], cells[places[1]] = "o", "x"
    return "".join(cells) if places[0] != places[1] else "".join(cells).replace("x", "8")


def _met(met: bool) -> str:
    return "met" if met else "MISSED"


def main(arguments: Sequence[str] | None = None) -> int:
    """Every system of the file, or those that `--system` names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("requests", type=Path, nargs="?", default=SHIPPED, help=f"CSV with run, {', '.join(COLUMNS)}")
    parser.add_argument("--system", default="", help="part of a system's name")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the curves (needs matplotlib)")
    asked = parser.parse_args(arguments)
    if asked.plot and not asked.plot.parent.is_dir():
        raise SystemExit(
            f"--plot {asked.plot}: there is no directory {asked.plot.parent}: allowed: a file in one that is"
        )
    measured = read(asked.requests)
    chosen = [system for system in SYSTEMS if system.prefix in measured and asked.system in system.prefix]
    if not chosen:
        print(f"{asked.requests}: no run of a known system: {', '.join(s.prefix for s in SYSTEMS)}", file=sys.stderr)
        return 2
    curves = [Curve.of(system, measured[system.prefix]) for system in chosen]
    if asked.plot:
        draw(curves, asked.plot)
    text = json.dumps([curve.as_json() for curve in curves], indent=2)
    print(text if asked.json else "\n".join(line for curve in curves for line in lines(curve)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
