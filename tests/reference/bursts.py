"""Section 5 of docs/model.md: how many more arrivals a window around an arrival holds, for gamma renewals."""

from __future__ import annotations

from typing import Any

import numpy as np

# Real or complex (for derivatives), scalar or array.
Values = Any

FEWEST = 1e-12


def at_least(values: Values, floor: float) -> Values:
    """The larger of a value and a floor, by real parts, so that a derivative passes through."""
    return np.where(np.real(values) > floor, values, floor)


def excess(window: Values, cv: float) -> Values:
    """I(y) - 1 of a window with y arrivals in the mean, gaps of this CV; 0 for Poisson, at least -y."""
    y = at_least(window, FEWEST)
    if cv >= 1:
        g = 0.7 * cv**-0.15 * y ** (0.1 + 0.7 / cv**2) + 6 * y / (cv**2 + 0.9)
    else:
        g = y + 3.5 * y**2 / (y + 0.5)
    return at_least((cv**2 - 1) * g / (1 + g) + y, 0.0) - y
