"""A robust fit of constants to measured rows, drawn to where it starts; what the rows do not tell stays there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import OptimizeResult, least_squares

from lambdamax.calibration.freedom import LARGEST_MOVE, Freedom
from lambdamax.calibration.predicted import Predictions, Predictor, Run

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
# An error of that size counts as much as one standard deviation of a constant; larger ones count less and less.
RATE_NOISE: Final = 0.03
TTFT_NOISE: Final = 0.08
STRIDE: Final = 1e-3
MOST_EVALUATIONS: Final = 15
# Where what is known of a constant is hardly narrowed, the rows do not tell it.
UNTOLD: Final = 0.98


@dataclass(frozen=True)
class Fit:
    """Moves of constants from where they start, in standard deviations, and which of them the rows `told`."""

    freedom: Freedom
    moves: Floats
    told: Mapping[str, bool]

    @property
    def run(self) -> Run:
        """What a benchmark run adds."""
        return self.freedom.run(self.moves)

    def constants(self, rows: Predictor) -> list[dict[str, float]]:
        """The constants of each replica of `rows`."""
        return [self.freedom.moved(self.moves, row) for row in rows.replicas]

    def predict(self, rows: Predictor) -> Predictions:
        """`rows` under these constants."""
        return rows.predict(self.constants(rows), self.run)


def start(rows: Predictor) -> Fit:
    """Nothing moved."""
    freedom = Freedom.of(rows)
    return Fit(freedom, np.zeros(len(freedom.names)), dict.fromkeys(freedom.names, False))


def fit(rows: Predictor, of: Bools, begin: Fit | None = None, spread: float = 1.0, looser: float = 1.0) -> Fit:
    """Least squares of soft errors on the rows `of`, drawn to `begin` by `spread` standard deviations.

    `looser` times as large errors count as much: for rows of more than one kind of server.
    """
    begin = begin or start(rows)
    errors = _Errors(rows, of, looser)
    first = _least(rows, errors, begin, np.ones(len(begin.moves), dtype=bool), spread)
    told = _told(first.jac, spread)
    found = _least(rows, errors, begin, told, spread) if told.any() and not told.all() else first
    moves = begin.moves.copy()
    moves[told] = found.x if len(found.x) == told.sum() else found.x[told]
    return Fit(begin.freedom, moves, dict(zip(begin.freedom.names, map(bool, told), strict=True)))


def _least(rows: Predictor, errors: _Errors, begin: Fit, free: Bools, spread: float) -> OptimizeResult:
    """Where the squares are least over the moves that are `free`; the others stay."""

    def residuals(some: Floats) -> Floats:
        moves = begin.moves.copy()
        moves[free] = some
        found = Fit(begin.freedom, moves, begin.told).predict(rows)
        return np.concatenate([_soft(errors.of(found)), (some - begin.moves[free]) / spread])

    first = np.clip(begin.moves[free], -0.99 * LARGEST_MOVE, 0.99 * LARGEST_MOVE)
    return least_squares(
        residuals, first, bounds=(-LARGEST_MOVE, LARGEST_MOVE), max_nfev=MOST_EVALUATIONS, diff_step=STRIDE
    )


def _told(slopes: Floats, spread: float) -> Bools:
    """Whether what is known of each move is narrower than before, from the curvature at the end."""
    known: Bools = np.sqrt(np.diag(np.linalg.inv(slopes.T @ slopes))) < UNTOLD * spread
    return known


class _Errors:
    """Errors of the rows that count, in units of their noise; a row without an answer counts nothing."""

    def __init__(self, rows: Predictor, of: Bools, looser: float) -> None:
        ttft = np.where(of, rows.measured("ttft"), np.nan)
        self._parts = [("ttft", ttft, TTFT_NOISE * looser)]
        left = of.copy()
        for metric in ("tpot", "output_tok_s", "request_rate"):
            values = np.where(left, rows.measured(metric), np.nan)
            left &= np.isnan(values)
            self._parts.append((metric, values, RATE_NOISE * looser))

    def of(self, found: Predictions) -> Floats:
        parts = [np.log(found.metrics[metric] / values) / noise for metric, values, noise in self._parts]
        return np.nan_to_num(np.concatenate(parts), nan=0.0, posinf=0.0, neginf=0.0)


def _soft(errors: Floats) -> Floats:
    """Residuals whose squares are the soft L1 loss of `errors`."""
    return np.sign(errors) * np.sqrt(2.0 * (np.sqrt(1.0 + errors**2) - 1.0))
