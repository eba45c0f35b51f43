"""Rows that no hardware of that name can have measured: faster than every peak at 100 % and no overhead at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lambdamax.calibration.predicted import Predictor, Run
from lambdamax.calibration.rows import Measured
from lambdamax.profiles import CONSTANTS

TOO_FAST: Final = "faster than the hardware at 100 %: prompts out of a cache, or a wrong label"
NO_ANSWER: Final = "the engine has no answer"
_HARD_MAXIMUM: Final = 100.0
_SHARE: Final = "share of peak"


def impossible(rows: Sequence[Measured]) -> list[str | None]:
    """Why each row cannot be as it is labelled, None if it can; and which the engine cannot answer."""
    if not rows:
        return []
    its = Predictor(rows)
    best = its.predict([_perfect()] * len(its.replicas), Run(0.0, 0.0))
    whole = _residence(its, {metric: its.measured(metric) for metric in best.metrics})
    least = _residence(its, best.metrics)
    reasons = {"invalid_parallelism": "invalid parallelism", "does_not_fit": "does not fit into the memory"}
    found: list[str | None] = []
    for status, fast in zip(best.status, least > whole, strict=True):
        answered = status in ("ok", "saturated")
        found.append((TOO_FAST if fast else None) if answered else reasons.get(status, NO_ANSWER))
    return found


def _perfect() -> dict[str, float]:
    """Constants of a machine that reaches every peak and loses no time."""
    at_peak = {name: 1.0 for name, allowed in CONSTANTS["full"].items() if allowed.unit == _SHARE}
    at_once = {name: 0.0 for name, allowed in CONSTANTS["full"].items() if allowed.least == 0.0}
    return {**at_once, **at_peak, "roofline_exponent": _HARD_MAXIMUM, "expert_load_imbalance": 1.0}


def _residence(its: Predictor, metrics: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """Time of a request from arrival to last token: from its times, else from the throughput of its clients."""
    steps = np.array([row.load.osl_tokens - 1.0 for row in its.rows])
    clients = np.array([row.load.concurrency or np.nan for row in its.rows])
    times = np.nan_to_num(metrics["ttft"]) + steps * metrics["tpot"]
    rates = clients * (steps + 1.0) / metrics["output_tok_s"]
    measured: NDArray[np.float64] = np.where(np.isnan(times), rates, times)
    return measured
