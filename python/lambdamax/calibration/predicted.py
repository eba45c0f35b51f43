"""What the engine says of measured rows under given constants, and what a benchmark run makes of it.

The engine answers for a server in equilibrium. A benchmark with N clients starts with N prompts at once, and where
lengths are equal its clients stay in step: part of the prompts of others, which in equilibrium ride on a request's
decode steps, then come before its first token. Of the time I = D1·tpot·ρ that a request loses to others' prompts
(docs/model.md section 5) a share `gathered_share` moves from TPOT to TTFT, so that the end-to-end time stays:

    ttft = ttft_mean + gathered_share·I + handover/λ,    tpot = tpot_mean − gathered_share·I/D1

In a run of n·N requests with lengths that differ, only the first wave of the n comes at once, and its prompts wait half
of N·s in the mean: gathered_share = 1/(2n), 0.05 for the usual ten. Where all stay in step it is up to 1. `handover` is
the wait for a seat that is just being given back, in intervals 1/λ between completions: where the server admits no
more than N requests and tells its client of the end of one before the next can come in.

Rows that are `unsplit` had an attention kernel that gives one block of threads a whole sequence (old vLLM, where there
were many): a share `unsplit_share` of the bandwidth is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lambdamax.calibration.rows import OPEN, Measured
from lambdamax.engine import LOAD_STATUSES, Replicas
from lambdamax.replicas import ReplicaRow

Floats = NDArray[np.float64]
USUAL_WAVES: Final = 10
_BANDWIDTH: Final = "attention_bandwidth_efficiency"
SOLVED: Final = ("ok", "saturated")


@dataclass(frozen=True)
class Run:
    """What a benchmark run adds to equilibrium: see the head of this module."""

    gathered_share: float = 1 / (2 * USUAL_WAVES)
    handover: float = 0.0
    unsplit_share: float = 0.3


@dataclass(frozen=True)
class Predictions:
    """Values by metric in SI units, one for each row, NaN where the engine has no answer; and its `status`."""

    metrics: Mapping[str, Floats]
    status: tuple[str, ...]


class Predictor:
    """Rows that are predicted together: one call of the engine for all of them."""

    def __init__(self, rows: Sequence[Measured]) -> None:
        """Join `rows`; rows on the same deployment share a replica."""
        self.rows = tuple(rows)
        places = {(row.at, row.load.unsplit): row.replica for row in rows}
        order = {key: place for place, key in enumerate(places)}
        self.replicas: tuple[ReplicaRow, ...] = tuple(places.values())
        self.unsplit: tuple[bool, ...] = tuple(unsplit for _, unsplit in places)
        self.place = np.array([order[row.at, row.load.unsplit] for row in rows], dtype=np.uint32)
        self._points = self._loads()

    def _loads(self) -> dict[str, Floats]:
        loads = [row.load for row in self.rows]
        return {
            "isl_tokens": _floats([load.isl_tokens for load in loads]),
            "osl_tokens": _floats([load.osl_tokens for load in loads]),
            "concurrency": _floats([load.concurrency or np.nan for load in loads]),
            "rate_rps": _floats([load.rate_rps or np.nan for load in loads]),
            "think_time_s": np.zeros(len(loads)),
            "max_num_seqs": _floats([load.seats or np.nan for load in loads]),
        }

    def measured(self, metric: str) -> Floats:
        """What was measured of `metric`, NaN where nothing was."""
        return _floats([row.results.get(metric, np.nan) for row in self.rows])

    def predict(self, constants: Sequence[Mapping[str, float]], run: Run) -> Predictions:
        """The rows under `constants` of each replica, in the order of `replicas`."""
        fields = [{**on.fields, **own} for on, own in zip(self.replicas, constants, strict=True)]
        known = [_unsplit(own, run) if slow else own for own, slow in zip(fields, self.unsplit, strict=True)]
        changed = [replace(on, fields=own) for on, own in zip(self.replicas, known, strict=True)]
        solved = Replicas.of(changed).load(self.place, self._points, 1)
        status = tuple(LOAD_STATUSES[code] for code in solved["status"])
        return Predictions(self._as_run(solved, run), status)

    def _as_run(self, solved: Mapping[str, NDArray[np.float64]], run: Run) -> dict[str, Floats]:
        steps = self._points["osl_tokens"] - 1.0
        lost = steps * solved["tpot_mean_s"] * solved["prefill_share"]
        clients = self._points["concurrency"]
        closed = np.array([row.load.kind != OPEN for row in self.rows])
        gathered = np.where(closed, run.gathered_share * lost, 0.0)
        waited = np.where(closed, run.handover / solved["rate_rps"], 0.0)
        slowed = np.where(closed, 1.0 + run.handover / clients, 1.0)
        return {
            "tpot": solved["tpot_mean_s"] - gathered / steps,
            "ttft": solved["ttft_mean_s"] + gathered + waited,
            "output_tok_s": solved["output_tok_s"] / slowed,
            "request_rate": solved["rate_rps"] / slowed,
        }


def _unsplit(fields: Mapping[str, float], run: Run) -> dict[str, float]:
    return {**fields, _BANDWIDTH: fields[_BANDWIDTH] * run.unsplit_share}


def _floats(values: Sequence[float]) -> Floats:
    return np.array(values, dtype=np.float64)
