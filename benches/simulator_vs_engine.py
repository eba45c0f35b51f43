"""The simulator against a real engine: constants fitted on one half of a trace, scored on the other.

Run: python benches/simulator_vs_engine.py [TRACE.csv --model M --gpu G --tp N [--json]]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from engine_trace import NEEDED, WAITED, EngineTrace, Shown, TraceError, read
from lambdamax.catalog import Catalog, load_catalog
from lambdamax.engine import OneReplica
from lambdamax.exceptions import LambdamaxError
from lambdamax.replicas import Deployment, ReplicaRow
from step_fit import BLOCK, POOL, Fit, Freedom, NotPlayedError, Player, Times, fit

SHIPPED: Final = Path(__file__).parent.parent / "tests" / "golden" / "vllm_0_19_requests.csv"
RUNS: Final = (
    "--model llama-3.1-8b --gpu rtx-4090 --kv-cache-tokens 41408",
    "--model llama-3.1-8b --gpu rtx-pro-6000-server",
    "--model qwen3-30b-a3b --gpu rtx-pro-6000-server",
)
BARS: Final = {"ttft_mean_error": 0.06, "tpot_mean_error": 0.03, "ttft_p99_error": 0.10}
WHY_NOT: Final = (
    "the simulator plays replicas whose step time is linear in the context: no sliding or chunked windows, no "
    "recurrent layers, no pipeline stages, and data parallelism only where the ranks share experts"
)
REFUSALS: Final = {"unsupported": WHY_NOT, "does_not_fit": "the weights and one request do not fit in its memory"}


@dataclass(frozen=True)
class Settings:
    """The engine's settings by name, each with where it comes from; `pool` is None where it is fitted."""

    values: Mapping[str, float]
    sources: Mapping[str, str]
    pool_is_fitted: bool


@dataclass(frozen=True)
class Comparison:
    """A trace, the settings it is replayed with, and times before and after the fit."""

    trace: EngineTrace
    settings: Settings
    before: Times
    after: Times
    fitted: Fit
    start: Mapping[str, float]

    @property
    def half(self) -> int:
        """Requests that the fit sees."""
        return len(self.trace) // 2

    def errors(self, found: Times, part: slice) -> dict[str, float]:
        """Signed relative errors of the means and of p99."""
        ttft, tpot = self.trace.ttft_s[part], self.trace.tpot_s[part]
        return {
            "ttft_mean_error": _off(np.mean(found.ttft_s[part]), np.mean(ttft)),
            "tpot_mean_error": _off(np.nanmean(found.tpot_s[part]), np.nanmean(tpot)),
            "ttft_p99_error": _off(np.quantile(found.ttft_s[part], 0.99), np.quantile(ttft, 0.99)),
        }

    @property
    def scored(self) -> slice:
        """The second half."""
        return slice(self.half, None)

    def backlog_share(self, part: slice) -> float | None:
        """Share of the measured TTFT that passes before the first step on the prompt."""
        waited = self.trace.backlog_s
        return None if waited is None else float(waited[part].sum() / self.trace.ttft_s[part].sum())

    def as_json(self) -> dict[str, Any]:
        """The four numbers asked for, and what they rest on."""
        sources = self.settings.sources
        return {
            **self.errors(self.after, self.scored),
            "preemptions": self.after.preemptions,
            "before_fit": {**self.errors(self.before, self.scored), "preemptions": self.before.preemptions},
            "first_half": self.errors(self.after, slice(0, self.half)),
            "backlog_share_of_ttft": self.backlog_share(self.scored),
            "requests": {"fitted": self.half, "scored": len(self.trace) - self.half},
            "settings": {name: {"value": v, "from": sources[name]} for name, v in self.settings.values.items()},
            "constants": self.fitted.constants,
            "fit_cost": self.fitted.cost,
        }


def _off(found: Any, measured: Any) -> float:
    return float(found / measured - 1)


def compare(trace: EngineTrace, at: Deployment, given: Mapping[str, float], catalog: Catalog) -> Comparison:
    """Replay, fit on the first half, and replay again."""
    row = catalog.replica(at)
    if row.unsupported is not None:
        raise NotPlayedError(row.unsupported)
    settings = settings_of(trace, row, at, given)
    player, freedom = _player(trace, row, settings)
    before = player.play(freedom.constants(np.zeros(len(freedom.start))))
    fitted = fit(player, freedom, len(trace) // 2)
    return Comparison(trace, settings, before, player.play(fitted.constants), fitted, freedom.start)


def _player(trace: EngineTrace, row: ReplicaRow, settings: Settings) -> tuple[Player, Freedom]:
    lengths = {"isl_tokens": float(np.mean(trace.columns["isl"])), "osl_tokens": float(np.mean(trace.columns["osl"]))}
    point = {**lengths, **settings.values}
    return Player(row, point, trace), Freedom.of(row, settings.values[POOL] if settings.pool_is_fitted else None)


def settings_of(trace: EngineTrace, row: ReplicaRow, at: Deployment, given: Mapping[str, float]) -> Settings:
    """Seats, budget and pool: as given, else as the trace shows, else as the engine and the memory model have them."""
    shown, default = Shown.by(trace), f"default of {at.engine}"
    values, sources = dict(given), dict.fromkeys(given, "given")
    if "max_num_seqs" not in given:
        peak, usual = float(math.ceil(shown.peak_running / at.dp)), row.fields["default_max_num_seqs"]
        values["max_num_seqs"] = peak if shown.seat_bound else max(usual, peak)
        sources["max_num_seqs"] = "the trace: most running while others wait" if shown.seat_bound else default
    if "max_num_batched_tokens" not in given:
        values["max_num_batched_tokens"] = shown.budget or row.fields["default_max_num_batched_tokens"]
        sources["max_num_batched_tokens"] = "the trace: prompts computed together" if shown.budget else default
    if POOL in given:
        return Settings(values, sources, pool_is_fitted=False)
    modelled = _modelled_pool(row, values)
    values[POOL], sources[POOL] = modelled, "the memory model"
    if shown.pool_bound:
        sources[POOL] = f"the first half, from the memory model's {modelled / BLOCK:,.0f} blocks"
    elif shown.held_tokens > modelled:
        values[POOL], sources[POOL] = shown.held_tokens, f"the trace: more than the memory model's {modelled:,.0f}"
    return Settings(values, sources, pool_is_fitted=shown.pool_bound)


def _modelled_pool(row: ReplicaRow, values: Mapping[str, float]) -> float:
    point = {"isl_tokens": 2.0, "osl_tokens": 2.0, **values}
    solved = OneReplica(row).solve(point)
    pool = solved.numbers["kv_pool_tokens"]
    if not pool > 0:
        raise NotPlayedError(solved.status)
    return pool


def lines(found: Comparison) -> Iterator[str]:
    """The comparison as text."""
    names = " / ".join(filter(None, found.trace.names.values()))
    yield f"{len(found.trace)} requests of {names or 'a run'}: fitted on the first {found.half}, scored on the rest"
    for name, started in found.settings.values.items():
        value = found.fitted.constants.get(name, started)
        blocks = f" ({value / BLOCK:,.0f} blocks)" if name == POOL else ""
        yield f"  {name:24}{value:10,.0f}{blocks}  from {found.settings.sources[name]}"
    yield f"{'':26}{'measured':>10}{'default':>10}{'error':>8}{'fitted':>10}{'error':>8}{'bar':>6}"
    for title, part in (("second half", found.scored), ("first half", slice(0, found.half))):
        yield from (f"{title:12}{line}" for line in _table(found, part))
    share = found.backlog_share(found.scored)
    told = "not told by the trace" if share is None else f"{100 * share:.1f} %"
    yield f"backlog (arrival to the first step on the prompt) in the second half's TTFT: {told}"
    yield f"preemptions of the whole run: {found.before.preemptions} with the default, {found.after.preemptions} fitted"
    for name, value in found.fitted.constants.items():
        yield f"  {name:36}{found.start[name]:12.4g} -> {value:10.4g}"


def _table(found: Comparison, part: slice) -> Iterator[str]:
    before, after = found.errors(found.before, part), found.errors(found.after, part)
    rows: tuple[tuple[str, str, Any], ...] = (
        ("TTFT mean", "ttft_mean_error", np.mean(found.trace.ttft_s[part])),
        ("TPOT mean", "tpot_mean_error", np.nanmean(found.trace.tpot_s[part])),
        ("TTFT p99", "ttft_p99_error", np.quantile(found.trace.ttft_s[part], 0.99)),
    )
    for title, key, measured in rows:
        unit, scale = ("ms", 1e3) if measured < 1 else ("s ", 1.0)
        cells = "".join(f"{scale * measured * (1 + e[key]):10.2f}{100 * e[key]:+7.1f}%" for e in (before, after))
        met = "met" if abs(after[key]) <= BARS[key] else "MISSED"
        bar = f"{100 * BARS[key]:5.0f}% {met}" if part.stop is None else ""
        yield f"{title:11}{unit:3}{scale * measured:10.2f}{cells}{bar}"


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path, help=f"CSV with {', '.join(NEEDED)} (and {', '.join(WAITED)})")
    parser.add_argument("--model", required=True)
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--dp", type=int, help="ranks; default: as many as a trace of a model with experts shows")
    parser.add_argument("--ep", type=int, help="default: tp x dp where dp is above 1")
    parser.add_argument("--weight-dtype", default="native")
    parser.add_argument("--kv-dtype", default="bf16")
    parser.add_argument("--engine", help="default: the one the trace names")
    parser.add_argument("--run", help="part of GPU/MODEL as the file has it, where it holds several runs")
    parser.add_argument("--kv-cache-tokens", type=float, help="KV pool of the replica")
    parser.add_argument("--max-num-seqs", type=float, help="seats of a rank")
    parser.add_argument("--max-num-batched-tokens", type=float, help="token budget of a rank")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def deployment(asked: argparse.Namespace, trace: EngineTrace, catalog: Catalog) -> Deployment:
    """Names and degrees, with what the trace shows where nothing is given."""
    experts = any(block["experts"] > 0 for block in catalog.model(asked.model).facts)
    dp = asked.dp or (Shown.by(trace).ranks if experts else 1)
    ep = asked.ep or (asked.tp * dp if dp > 1 else 1)
    engine = asked.engine or _engine(trace.names["engine"], catalog)
    parts = {"weight_dtype": asked.weight_dtype, "kv_dtype": asked.kv_dtype, "engine": engine}
    return Deployment(asked.model, asked.gpu, asked.tp, dp=dp, ep=ep, **parts)


def _engine(named: str, catalog: Catalog) -> str:
    """So "vllm 0.19.0" is `vllm-0.19` where that is known, else `vllm`."""
    name, _, version = named.lower().partition(" ")
    known = f"{name or 'vllm'}-{'.'.join(version.split('.')[:2])}"
    return known if known in catalog.engines else name or "vllm"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, and print; 2 where that cannot be."""
    given = sys.argv[1:] if arguments is None else arguments
    return _compare(options(given)) if given else max(_compare(options([str(SHIPPED), *run.split()])) for run in RUNS)


def _compare(asked: argparse.Namespace) -> int:
    given = {name: getattr(asked, name) for name in (POOL, "max_num_seqs", "max_num_batched_tokens")}
    try:
        catalog, trace = load_catalog(), read(asked.trace, asked.run, asked.model, asked.gpu)
        at = deployment(asked, trace, catalog)
        found = compare(trace, at, {name: value for name, value in given.items() if value is not None}, catalog)
    except NotPlayedError as error:
        print(f"{asked.model} on {asked.gpu}: {REFUSALS.get(str(error), str(error))}", file=sys.stderr)
        return 2
    except (TraceError, LambdamaxError) as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(found.as_json(), indent=2) if asked.json else "\n".join(lines(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
