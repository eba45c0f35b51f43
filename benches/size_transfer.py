"""Whether a profile fitted on one size of model predicts another: small models from large ones, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from lambdamax.calibration.families import Group, groups
from lambdamax.calibration.fitting import fit
from lambdamax.calibration.predicted import Predictor
from lambdamax.calibration.rows import Measured
from lambdamax.calibration.shipping import POOL_LOOSER, WITHIN_POOL
from lambdamax.catalog import Catalog
from lambdamax.fitted import DENSE

Bools = NDArray[np.bool_]
SMALL_AT_MOST = 15e9
LARGE = (50e9, 120e9)
FEWEST = 5


def table(rows: Sequence[Measured], catalog: Catalog) -> Iterator[str]:
    """A line for each dense group with models of 15 billion parameters at most and of 50 to 120, by throughput."""
    yield "| profile | rows up to 15 B | rows of 50 to 120 B | larger from smaller | smaller from larger |"
    yield "|---|---|---|---|---|"
    every = groups(rows)
    for group in every:
        size = sizes(rows, group.places, catalog)
        small, large = size <= SMALL_AT_MOST, (size >= LARGE[0]) & (size <= LARGE[1])
        if group.key.family == DENSE and min(small.sum(), large.sum()) >= FEWEST:
            pool = [place for other in every if other.pool == group.pool for place in other.places]
            grown, shrunk = (
                error(rows, group, pool, seen, unseen) for seen, unseen in ((small, large), (large, small))
            )
            yield f"| {group.key.name} | {small.sum()} | {large.sum()} | {100 * grown:.1f} % | {100 * shrunk:.1f} % |"


def sizes(rows: Sequence[Measured], places: Sequence[int], catalog: Catalog) -> NDArray[np.float64]:
    """Parameters of the model of each row."""
    return np.array([catalog.model(rows[place].at.model).published_params or np.nan for place in places])


def error(rows: Sequence[Measured], group: Group, pool: Sequence[int], seen: Bools, unseen: Bools) -> float:
    """Median error on `unseen` rows of a group of constants from its `seen` rows, begun at the rest of its pool."""
    its = Predictor([rows[place] for place in pool])
    where = {place: i for i, place in enumerate(pool)}
    own = np.array([where[place] for place in group.places])
    others = np.ones(len(pool), dtype=bool)
    others[own[~seen]] = False
    mine = np.zeros(len(pool), dtype=bool)
    mine[own[seen]] = True
    found = fit(its, mine, fit(its, others, looser=POOL_LOOSER), WITHIN_POOL).predict(its).metrics
    off = np.full(len(pool), np.nan)
    for metric in ("tpot", "output_tok_s"):
        measured = its.measured(metric)
        off = np.where(np.isnan(measured), off, np.abs(found[metric] / measured - 1.0))
    return float(np.nanmedian(off[own[unseen]]))
