"""The saturation curve of one replica: every number of a load against the rate, from idle to past the limit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields
from typing import Final

import numpy as np
import polars as pl

from lambdamax.case import Case, Question
from lambdamax.catalog import Catalog, load_catalog
from lambdamax.columns import column, inputs
from lambdamax.engine import Floats
from lambdamax.exceptions import Fault, QuestionError
from lambdamax.operating import Operating
from lambdamax.series import DTYPES
from lambdamax.solving import load

_IDLE: Final = 0.01
# The rate just below the limit keeps this share of it free.
_NEAREST: Final = 0.02
_PAST: Final = 5


def curve(question: Question, *, points: int = 40, past: float = 1.1, catalog: Catalog | None = None) -> pl.DataFrame:
    """The operating points of `question` at rates from 1 % of its limit to `past` times it, denser near the limit.

    One row a rate: the inputs that were given, `rate_rps`, and the answers of `lambdamax.load`. The limit is the least
    of the compute, KV and seat limits; rates above it have `load_status` `unstable` and no numbers, as there are none.
    A load in the question plays no part. Raises QuestionError where the point has no rate at all.
    """
    if points < 10 or not 1 <= past <= 100:
        allowed = "10 points or more, up to 1 to 100 times the limit"
        raise QuestionError((Fault("curve", "points, past", f"{points}, {past:g}", allowed),))
    known = catalog or load_catalog()
    limit = Operating.of(Case(question, known)).limit_rps
    return load(_frame(question, limit * shares(points, past)), catalog=known)


def shares(points: int, past: float) -> Floats:
    """Rates as shares of the limit: what is left of it shrinks by a constant factor, then the limit, then past it."""
    beyond = _PAST if past > 1 else 0
    below = 1 - np.geomspace(1 - _IDLE, _NEAREST, points - beyond - 1)
    return np.concatenate([below, [1.0], np.linspace(1, past, beyond + 1)[1:]])


def _frame(question: Question, rates: Floats) -> pl.DataFrame:
    """The question's own inputs, in the order of the dictionary, at each of `rates`."""
    given = [pl.lit(value, dtype).alias(name) for name, value, dtype in _given(question)]
    return pl.DataFrame({"rate_rps": rates}).select(*given, pl.col("rate_rps"))


def _given(question: Question) -> Iterator[tuple[str, str | float, pl.DataType]]:
    own = {field.name: getattr(question, field.name) for field in fields(question)} | dict(question.numbers)
    for each in inputs():
        value = own.get(each.name)
        if value is not None and not (isinstance(value, float) and math.isnan(value)):
            yield each.name, value, pl.String() if each.is_text else DTYPES[column(each.name).type]
