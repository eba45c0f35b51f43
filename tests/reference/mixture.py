"""Section 7 of docs/model.md: mixtures of shifted gamma laws, by Wilson and Hilferty's transform."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Floats = NDArray[np.float64]

LEAST_MEAN_S = 1e-12
MOST_SHAPE = 1e4
HALVINGS = 200  # down to neighbouring floats


@dataclass(frozen=True)
class Mixture:
    """Laws `shift + gamma`, one per column; a row is one mixture of them. Seconds."""

    weight: Floats
    shift: Floats
    mean: Floats
    variance: Floats

    def tail(self, t: Floats) -> Floats:
        """P(> t), one t per mixture."""
        each = gamma_tail(t[:, None] - self.shift, self.mean, self.variance)
        total: Floats = (self.weight * each).sum(axis=1)
        return total

    def percentile(self, percent: float) -> Floats:
        """The t at which the tail is what the percentage leaves, or falls below it in a jump."""
        return self.quantile(1 - percent / 100)

    def quantile(self, left: float) -> Floats:
        """The smallest t at which the tail is no more than what is left, by bisection."""
        low = np.where(self.weight > 0, self.shift, np.inf).min(axis=1)
        width = np.maximum(self.mean, np.sqrt(self.variance)).max(axis=1) + LEAST_MEAN_S
        high = np.where(self.weight > 0, self.shift, -np.inf).max(axis=1) + width
        while (above := self.tail(high) > left).any():
            high = np.where(above, high + 2 * (high - low), high)
        for _ in range(HALVINGS):
            middle = low + (high - low) / 2
            if ((middle == low) | (middle == high)).all():
                break
            above = self.tail(middle) > left
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        return high


def gamma_tail(x: Floats, mean: Floats, variance: Floats) -> Floats:
    """P(G > x) of a gamma law with this mean and variance."""
    m = np.maximum(mean, LEAST_MEAN_S)
    k = m**2 / np.maximum(variance, m**2 / MOST_SHAPE)
    past = np.maximum(x, 0.0)
    found: Floats = ndtr(-(np.cbrt(past / m) - 1 + 1 / (9 * k)) * 3 * np.sqrt(k))
    return np.where(x > 0, found, 1.0)
