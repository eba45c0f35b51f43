"""What more of a fact is worth: how requests per dollar follow bandwidth, FLOP/s, memory, links and price."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lambdamax import columns
from lambdamax.catalog import Catalog, load_catalog
from lambdamax.engine import Arrays, Replicas
from lambdamax.exceptions import Fault, FrameError
from lambdamax.frames import Points, points
from lambdamax.replicas import ReplicaRow
from lambdamax.series import series

FACTS: Final[Mapping[str, tuple[str, ...]]] = {
    "bandwidth": ("memory_bandwidth_bytes_per_s",),
    "flops": ("attention_flops", "mixer_flops", "mlp_flops", "expert_flops"),
    "memory": ("accelerator_memory_bytes",),
    "link": ("scaleup_bytes_per_s", "pcie_bytes_per_s"),
    "price": (),
}
"""Facts of an accelerator, with the fields of the engine that they are; the price is an input of a point."""

STEP: Final = 0.01
_LARGEST_STEP: Final = 0.5
_VALUE: Final = "requests_per_usd"
_INPUT_OF: Final = {"memory": "memory_bytes", "price": "usd_per_accelerator_hour"}
_SOLVED: Final = 0


def elasticities(
    frame: pl.DataFrame | pl.LazyFrame,
    *,
    step: float = STEP,
    facts: Sequence[str] = tuple(FACTS),
    catalog: Catalog | None = None,
) -> pl.DataFrame:
    """How many percent more requests per dollar one percent more of each fact of the accelerator brings.

    Every point of `frame` (inputs as for `solve`, other columns of the dictionary are left out) is solved as a whole
    with the fact times e^-step and e^step: (ln v+ - ln v-)/(2·step), a central difference of d ln(requests per dollar)
    / d ln(fact). `flops` are all peaks together, `link` scale-up and PCIe; settings that an engine chooses by the
    accelerator stay as they are, `memory_bytes` that a point gives moves with the memory.

    One row per point and fact: the point's columns, `requests_per_usd`, `binding_limit`, `fact`, `elasticity` (null
    where one of the three is not solved), `limit_below` and `limit_above` (what binds at the ends of the step), and
    `switches`: another limit binds at an end (or is behind the utilisation cap), or the point is not solved there, so
    that the number is a mean over a bend and not a slope. Raises FrameError as `solve` does, and for a step or a fact
    that is not allowed.
    """
    _refuse_nonsense(step, facts)
    known = frame.lazy().collect_schema().names()
    inputs = [column.name for column in columns.inputs() if column.name in known]
    base = points(frame.lazy().select(inputs), catalog or load_catalog())
    middle = _solved(base, {}, 0.0)
    return pl.concat([_of_fact(base, middle, fact, step) for fact in facts])


def _refuse_nonsense(step: float, facts: Sequence[str]) -> None:
    faults = [Fault("elasticity", "facts", fact, f"one of {', '.join(FACTS)}") for fact in facts if fact not in FACTS]
    if not 0 < step <= _LARGEST_STEP:
        faults.append(Fault("elasticity", "step", f"{step:g}", f"above 0 and at most {_LARGEST_STEP:g}"))
    if faults:
        raise FrameError(tuple(faults))


def _of_fact(base: Points, middle: Arrays, fact: str, step: float) -> pl.DataFrame:
    below, above = (_solved(base, {fact: 1.0}, sign * step) for sign in (-1.0, 1.0))
    solved = (middle["status"] == _SOLVED) & (below["status"] == _SOLVED) & (above["status"] == _SOLVED)
    with np.errstate(invalid="ignore", divide="ignore"):
        slope = (np.log(above[_VALUE]) - np.log(below[_VALUE])) / (2 * step)
    limit = [each["binding_limit"] for each in (middle, below, above)]
    behind = [_behind(each) for each in (middle, below, above)]
    switches = ~solved | (behind[1] != behind[0]) | (behind[2] != behind[0])
    return base.frame.with_columns(
        pl.Series(_VALUE, middle[_VALUE], nan_to_null=True),
        _limits("binding_limit", limit[0]),
        pl.lit(fact).cast(pl.Enum(list(FACTS))).alias("fact"),
        pl.Series("elasticity", np.where(solved, slope, math.nan), nan_to_null=True),
        _limits("limit_below", limit[1]),
        _limits("limit_above", limit[2]),
        pl.Series("switches", switches),
    )


def _behind(solved: Arrays) -> NDArray[Any]:
    """The binding limit; where that is a share of compute, KV or seats, which of these it is."""
    names = columns.column("binding_limit").values
    rates = np.stack([solved[f"rate_at_{name}_rps"] for name in ("compute", "kv", "seats")])
    least = np.argmin(np.where(np.isnan(rates), math.inf, rates), axis=0)
    binding = solved["binding_limit"].astype(np.int64)
    return np.where(binding == names.index("utilization"), len(names) + least, binding)


def _limits(name: str, codes: NDArray[Any]) -> pl.Series:
    column = columns.column("binding_limit")
    return series(column, codes, column.values).alias(name)


def _solved(base: Points, facts: Mapping[str, float], shift: float) -> Arrays:
    """The answers with each of `facts` times e^(its power · shift)."""
    factors = {fact: math.exp(power * shift) for fact, power in facts.items()}
    rows = [_changed(row, factors) for row in base.rows]
    inputs = {_INPUT_OF[fact]: factor for fact, factor in factors.items() if fact in _INPUT_OF}
    numbers = {name: values * inputs.get(name, 1.0) for name, values in base.numbers.items()}
    return Replicas.of(rows).solve(base.replica, numbers, 0)


def _changed(row: ReplicaRow, factors: Mapping[str, float]) -> ReplicaRow:
    scaled = {name: row.fields[name] * factor for fact, factor in factors.items() for name in FACTS[fact]}
    return replace(row, fields={**row.fields, **scaled})
