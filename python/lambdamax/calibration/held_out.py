"""Errors on curves that a fit has not seen: whole curves are held out, never rows."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lambdamax.calibration.fitting import Fit
from lambdamax.calibration.predicted import Predictor
from lambdamax.calibration.rows import METRICS, Measured

Floats = NDArray[np.float64]
FOLDS: Final = 8
BAND_SHARE: Final = 0.8
# A little more than the share, since the errors that a band is read off are few.
BAND_QUANTILE: Final = 0.815
# What the errors of a group's pool count together, an error of the group itself being one, and those of its kind.
KIN: Final = (3.0, 1.0)


def folds(rows: Sequence[Measured]) -> NDArray[np.intp]:
    """The fold of each row, from 0: curves in the order of a checksum of their names, dealt out one by one."""
    names = sorted({row.curve for row in rows}, key=lambda name: zlib.crc32(name.encode()))
    dealt = {name: place % FOLDS for place, name in enumerate(names)}
    return np.array([dealt[row.curve] for row in rows])


def predicted(rows: Predictor, fold: NDArray[np.intp], fitted: Callable[[NDArray[np.bool_]], Fit]) -> dict[str, Floats]:
    """Each row by the constants `fitted` to the rows of the other folds, by metric."""
    found = {metric: np.full(len(rows.rows), np.nan) for metric in METRICS}
    for left in np.unique(fold):
        answers = fitted(fold != left).predict(rows).metrics
        for metric, values in found.items():
            values[fold == left] = answers[metric][fold == left]
    return found


def band(errors: Floats) -> float:
    """u such that most of the errors, ln(predicted/measured), are within ±ln(1 + u); NaN without errors."""
    known = np.abs(errors[np.isfinite(errors)])
    return float(np.expm1(np.quantile(known, BAND_QUANTILE, method="higher"))) if len(known) else float("nan")


def pooled_band(errors: Floats, circles: Sequence[NDArray[np.bool_]]) -> float:
    """The band of a group, drawn to that of its kin: `circles` are where the errors of the group are, of its pool, ...

    Each error of the group counts one, those that a wider circle adds as many as `KIN` says, together: where the group
    has few errors, or few curves, its own quantile says little. NaN without errors.
    """
    sizes = np.abs(errors)
    left, weights = np.isfinite(sizes), np.zeros(len(sizes))
    for circle, together in zip(circles, (None, *KIN), strict=True):
        added = circle & left
        weights[added] = 1.0 if together is None else together / max(added.sum(), 1)
        left &= ~circle
    order = np.argsort(sizes)
    reached = np.cumsum(weights[order])
    if not reached[-1]:
        return float("nan")
    place = int(np.searchsorted(reached, BAND_QUANTILE * reached[-1]))
    return float(np.expm1(sizes[order][min(place, len(order) - 1)]))
