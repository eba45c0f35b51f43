"""All groups of measured rows fitted, each drawn to the fit of its pool, with errors on curves held out of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lambdamax.calibration.families import Group, groups
from lambdamax.calibration.fitting import Fit, fit, start
from lambdamax.calibration.held_out import folds
from lambdamax.calibration.predicted import Predictor
from lambdamax.calibration.rows import METRICS, Measured

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
# Groups of one pool differ by about so much of what constants differ by at all.
WITHIN_POOL: Final = 0.7
POOL_LOOSER: Final = 2.7
NO_FOLD: Final = -1


@dataclass(frozen=True)
class Shipped:
    """A fitted group: `fit` is from all its rows, or that of its pool where they are too few."""

    group: Group
    fit: Fit
    is_own: bool


@dataclass(frozen=True)
class Everything:
    """Every group's fit, and what the fits that had not seen a row's curve say of each row, by metric."""

    rows: tuple[Measured, ...]
    shipped: tuple[Shipped, ...]
    held_out: Mapping[str, Floats]
    fold: NDArray[np.intp]


def fit_all(rows: Sequence[Measured], progress: Callable[[str], None]) -> Everything:
    """Fit `rows`; `progress` hears of every group."""
    rows = tuple(rows)
    fold, found = folds(rows), {metric: np.full(len(rows), np.nan) for metric in METRICS}
    members: dict[str, list[Group]] = {}
    for group in groups(rows):
        members.setdefault(group.pool, []).append(group)
    shipped = []
    for _, together in sorted(members.items()):
        pool = _Pool(rows, together, fold)
        for group in together:
            progress(f"{group.key.name}: {len(group.places)} rows")
            shipped.append(_one(rows, group, fold, pool, found))
    return Everything(rows, tuple(shipped), found, fold)


class _Pool:
    """The rows of all groups of a pool, and their fits without a fold, each made once."""

    def __init__(self, rows: Sequence[Measured], together: Sequence[Group], fold: NDArray[np.intp]) -> None:
        places = [place for group in together for place in group.places]
        self._rows = Predictor([rows[place] for place in places])
        self._fold = fold[places]
        self._fits: dict[int, Fit] = {}
        self.alone = len(together) == 1

    def without(self, left: int) -> Fit:
        """The fit to all rows but those of the fold `left`; nothing moved where the pool has one group only."""
        if left not in self._fits:
            of = self._fold != left
            begin = start(self._rows)
            self._fits[left] = begin if self.alone else fit(self._rows, of, begin, looser=POOL_LOOSER)
        return self._fits[left]


def _one(
    rows: Sequence[Measured], group: Group, fold: NDArray[np.intp], pool: _Pool, found: Mapping[str, Floats]
) -> Shipped:
    its = Predictor([rows[place] for place in group.places])
    own_fold = fold[list(group.places)]

    def fitted(left: int) -> Fit:
        begin = pool.without(left)
        of: Bools = own_fold != left
        spread = 1.0 if pool.alone else WITHIN_POOL
        return fit(its, of, begin, spread) if of.any() and group.is_enough else begin

    for left in np.unique(own_fold):
        answers = fitted(int(left)).predict(its).metrics
        for metric, values in found.items():
            values[np.array(group.places)[own_fold == left]] = answers[metric][own_fold == left]
    return Shipped(group, fitted(NO_FOLD), group.is_enough)
