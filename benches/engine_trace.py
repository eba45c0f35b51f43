"""Per-request traces of a real engine: reading them, and what they show of the engine's settings."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
NEEDED: Final = ("arrival_s", "isl", "osl", "first_token_s", "last_token_s")
WAITED: Final = ("queued_s", "scheduled_s")
NAMED: Final = ("gpu", "model", "engine")
ONE_STEP_S: Final = 0.5e-3
LEAST_REQUESTS: Final = 20
LEAST_GROUPS: Final = 10
BUDGETS: Final = (2048.0, 4096.0, 8192.0, 16384.0, 32768.0)


class TraceError(Exception):
    """A trace that cannot be read; the message says where and why."""


@dataclass(frozen=True, eq=False)
class EngineTrace:
    """One run: times [s] and lengths of each request in the order of arrival; `names` are gpu, model and engine."""

    names: Mapping[str, str]
    columns: Mapping[str, Floats]

    def __len__(self) -> int:
        """Requests."""
        return len(self.columns["arrival_s"])

    @property
    def requests(self) -> tuple[list[float], list[float], list[float]]:
        """Arrivals [s], prompt and output tokens."""
        arrival, prompt, output = (self.columns[name].tolist() for name in NEEDED[:3])
        return arrival, prompt, output

    @property
    def ttft_s(self) -> Floats:
        """From arrival to the first token."""
        return self.columns["first_token_s"] - self.columns["arrival_s"]

    @property
    def tpot_s(self) -> Floats:
        """Time per output token after the first; NaN where there is none."""
        after = self.columns["osl"] - 1
        spent = self.columns["last_token_s"] - self.columns["first_token_s"]
        return np.where(after > 0, spent / np.maximum(after, 1), np.nan)

    @property
    def backlog_s(self) -> Floats | None:
        """From arrival to the first step that computes the prompt, where the trace tells."""
        started = self.columns.get("scheduled_s")
        return None if started is None else np.maximum(started - self.columns["arrival_s"], 0.0)


def read(path: Path, run: str | None, model: str, gpu: str) -> EngineTrace:
    """The run of the file at `path` that `run` names, or the only one, or the one of this model and accelerator."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(line for line in file if not line.startswith("#"))
            header, rows = tuple(reader.fieldnames or ()), list(reader)
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: {error}") from None
    if missing := [name for name in NEEDED if name not in header]:
        raise TraceError(f"{path}: no column {', '.join(missing)}; needed are {', '.join(NEEDED)}")
    runs: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        runs.setdefault("/".join(row.get(name) or "" for name in NAMED[:2]), []).append(row)
    chosen = _choose(path, runs, run, f"{gpu}/{model}")
    return _trace(path, header, runs[chosen])


def _choose(path: Path, runs: Mapping[str, object], run: str | None, asked: str) -> str:
    if not runs:
        raise TraceError(f"{path}: no requests")
    if run is None and len(runs) == 1:
        return next(iter(runs))
    wanted = [name for name in runs if (_alike(name, asked) if run is None else run.lower() in name.lower())]
    if len(wanted) != 1:
        raise TraceError(f"{path}: --run {run or '(not given)'} is not one of {', '.join(runs)}")
    return wanted[0]


def _alike(run: str, asked: str) -> bool:
    """Whether two names of accelerator and model are the same but for what stands at their ends."""
    pairs = zip(run.split("/"), asked.split("/"), strict=True)
    return all(a.startswith(b) or b.startswith(a) for a, b in ((_plain(a), _plain(b)) for a, b in pairs))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _trace(path: Path, header: tuple[str, ...], rows: list[dict[str, str]]) -> EngineTrace:
    if len(rows) < LEAST_REQUESTS:
        raise TraceError(f"{path}: {len(rows)} requests, {LEAST_REQUESTS} or more are needed to fit and to score")
    names = (*NEEDED, *(name for name in WAITED if name in header))
    columns = {name: np.array([_number(path, row, name) for row in rows]) for name in names}
    for later, earlier in (("first_token_s", "arrival_s"), ("last_token_s", "first_token_s")):
        if not (columns[later] >= columns[earlier]).all():
            raise TraceError(f"{path}: {later} before {earlier}")
    order = np.argsort(columns["arrival_s"], kind="stable")
    start = columns["arrival_s"].min()
    clocks = {name: values[order] - (start if name.endswith("_s") else 0.0) for name, values in columns.items()}
    return EngineTrace({name: rows[0].get(name) or "" for name in NAMED}, clocks)


def _number(path: Path, row: Mapping[str, str], name: str) -> float:
    least = 1.0 if name in ("isl", "osl") else -1e9
    try:
        value = float(row[name])
    except (TypeError, ValueError):
        value = np.nan
    if not least <= value <= 1e9:
        raise TraceError(f"{path}: {name} is {row[name]!r}, not a number from {least:g} to 1e9")
    return value


@dataclass(frozen=True)
class Shown:
    """What a trace shows of its engine: ranks that step together, the most running at once, what holds others up.

    `budget` is the smallest usual one that covers nine in ten groups of prompts computed together, None if few are.
    """

    ranks: int
    peak_running: int = 0
    held_tokens: float = 0.0
    budget: float | None = None
    seat_bound: bool = False
    pool_bound: bool = False

    @classmethod
    def by(cls, trace: EngineTrace) -> Shown:
        """Look at who runs and who waits whenever somebody begins or ends."""
        if trace.backlog_s is None:
            return cls(_ranks(trace))
        started, ended = trace.columns["scheduled_s"], trace.columns["last_token_s"]
        queued = trace.columns.get("queued_s", trace.columns["arrival_s"])
        at = np.unique(np.concatenate([started, ended]))[:, None]
        running = ((started <= at) & (ended > at)).sum(1)
        crowded = ((queued <= at - 10 * ONE_STEP_S) & (started > at)).any(1)
        bound = bool(crowded.mean() > 0.02)
        seats = bound and bool((running >= 0.95 * running.max())[crowded].mean() > 0.5)
        pool = bound and not seats
        return cls(_ranks(trace), int(running.max()), _held(trace, at), _budget(trace), seats, pool)


def _held(trace: EngineTrace, at: Floats) -> float:
    """Most tokens held at once, if nobody was thrown out."""
    started, first, last = (trace.columns[name] for name in ("scheduled_s", "first_token_s", "last_token_s"))
    done = np.clip((at - first) / np.maximum(last - first, 1e-9), 0, 1)
    tokens = trace.columns["isl"] + done * trace.columns["osl"]
    return float((((started <= at) & (last > at)) * tokens).sum(1).max())


def _budget(trace: EngineTrace) -> float | None:
    """Prompts that begin in one step and end in one are computed in it together."""
    started, first = trace.columns["scheduled_s"], trace.columns["first_token_s"]
    order = np.lexsort((started, first))
    apart = (np.diff(first[order]) > 0) | (np.diff(started[order]) > 2 * ONE_STEP_S)
    group = np.concatenate([[0], np.cumsum(apart)])
    tokens = np.bincount(group, trace.columns["isl"][order])[np.bincount(group) > 1]
    if len(tokens) < LEAST_GROUPS:
        return None
    return next((budget for budget in BUDGETS if budget >= np.quantile(tokens, 0.9)), BUDGETS[-1])


def _ranks(trace: EngineTrace) -> int:
    """Engine cores that step together end their steps within microseconds of each other, each by its own clock."""
    ends = np.concatenate([trace.columns["first_token_s"], trace.columns["last_token_s"]])
    ends = np.unique(np.round(ends, 6))
    step = np.cumsum(np.concatenate([[0], np.diff(ends) > ONE_STEP_S]))
    sizes = np.bincount(step)
    often = [count for count in range(2, sizes.max() + 1) if (sizes >= count).mean() > 0.05]
    return max(often, default=1)
