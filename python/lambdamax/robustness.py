"""How sure a choice is: errors of rates and ranges of prices drawn together, many times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import polars as pl

from lambdamax import engine
from lambdamax.catalog import DEFAULT_PROFILE, Catalog, load_catalog
from lambdamax.engine import Floats
from lambdamax.exceptions import Fault, FrameError
from lambdamax.prices import MEDIAN

DRAWS: Final = 20_000
_MOST_DRAWS: Final = 1 << 24
_HOUR_S: Final = 3600.0
SIGMA, LOW, HIGH = "rate_sigma", "usd_per_hour_low", "usd_per_hour_high"
_PRICE: Final = "usd_per_accelerator_hour"
_NEEDED: Final = ("gpu", "max_rate_rps", "gpus", _PRICE)
_PROFILE: Final = "_profile"
_GROUP: Final = "_first_of_group"
_ANSWERS: Final = ("cheapest", "regret", "regret_error")
_SHARED: Final = ("engine", _PROFILE)
_BAND: Final = ("max_rate_low_rps", "max_rate_high_rps")
_MARKET: Final = ("gpu", "price_plan")


def robustness(
    options: pl.DataFrame,
    *,
    by: Sequence[str] = (),
    draws: int = DRAWS,
    seed: int = 0,
    own_share: float = 0.0,
    catalog: Catalog | None = None,
) -> pl.DataFrame:
    """How often each option is the cheapest, and what choosing it costs on average, by the errors that we know of.

    `options` are solved points, such as the table of `frontier`; rows without a rate or a price do not count. Options
    with one value in each of the columns `by` compete. In each of `draws` draws (seeded; the same bits on any machine
    and any number of threads) a request costs

        gpus · price / (3600 · rate · e^error) [USD],   error = sigma·(√(1 - own_share)·z + √own_share·z_own)

    with standard normals z. Options of one engine and profile share their z: what is wrong with the constants of both
    moves both alike, and cannot change their order. `sigma` is the column `rate_sigma` where `options` has it, else
    half of ln(max_rate_high_rps/max_rate_low_rps) where it has these, else ln(1 + u) of the profile's relative
    uncertainty u. `price` is uniform in its logarithm from `usd_per_hour_low` to
    `usd_per_hour_high` where `options` has these columns, else from the least to the most that a provider asks for the
    accelerator under the plan; a price that was given is certain. Options with one accelerator and plan share its draw.

    The columns of `options`, then `rate_sigma`, `usd_per_hour_low`, `usd_per_hour_high` [USD/h] as used,
    `cheapest_share` (probability that nothing is cheaper) and `expected_regret` (mean of its cost over that of the
    cheapest, less one), each with its standard error of the draws in `..._error`; sorted by group, the most often
    cheapest first. Raises FrameError that names every fault.
    """
    _refuse_nonsense(options, by, draws, own_share)
    held = options.filter(pl.all_horizontal(pl.col(name).is_not_null() for name in ("max_rate_rps", _PRICE)))
    known = _with_errors(held, catalog or load_catalog())
    if not known.height:
        raise FrameError((Fault("robustness", "options", "no rows", "points with a rate and a price"),))
    first = pl.col(_GROUP).first().over(by) if by else pl.lit(0).alias(_GROUP)
    grouped = known.with_row_index(_GROUP).with_columns(first).sort(_GROUP, maintain_order=True)
    return _drawn(grouped, draws, seed, own_share)


def _refuse_nonsense(options: pl.DataFrame, by: Sequence[str], draws: int, own_share: float) -> None:
    absent = [name for name in (*_NEEDED, *by) if name not in options.columns]
    faults = [Fault("robustness", "options", "nothing", f"a column {name}") for name in absent]
    if not 1 <= draws <= _MOST_DRAWS:
        faults.append(Fault("robustness", "draws", str(draws), f"a whole number from 1 to {_MOST_DRAWS}"))
    if not 0 <= own_share <= 1:
        faults.append(Fault("robustness", "own_share", f"{own_share:g}", "a number from 0 to 1"))
    if faults:
        raise FrameError(tuple(faults))


def _with_errors(options: pl.DataFrame, catalog: Catalog) -> pl.DataFrame:
    """`options` with their sigma and their range of prices."""
    names = [name for name in ("gpu", "profile", "price_plan", "provider") if name in options.columns]
    rows = list(options.select(names).cast(pl.String).iter_rows())
    known = {row: dict(zip(names, row, strict=True)) for row in set(rows)}
    profiles = {row: catalog.profile(of.get("profile") or DEFAULT_PROFILE, of["gpu"]) for row, of in known.items()}
    named = pl.Series(_PROFILE, [profiles[row].name for row in rows], dtype=pl.String)
    options = options.with_columns(named)
    if SIGMA not in options.columns:
        sigma = {row: math.log1p(profile.relative_uncertainty.value) for row, profile in profiles.items()}
        options = options.with_columns(pl.Series(SIGMA, [sigma[row] for row in rows], pl.Float64))
        if set(_BAND) <= set(options.columns):
            low, high = map(pl.col, _BAND)
            options = options.with_columns(pl.coalesce((high / low).log() / 2, SIGMA).alias(SIGMA))
    if not {LOW, HIGH} <= set(options.columns):
        asked = {
            row: _price_range(catalog, of["gpu"], of.get("price_plan"), of.get("provider")) for row, of in known.items()
        }
        for place, name in enumerate((LOW, HIGH)):
            listed = pl.Series(name, [asked[row][place] for row in rows], dtype=pl.Float64)
            options = options.with_columns(listed).with_columns(pl.col(name).fill_null(pl.col(_PRICE)))
    return options


def _price_range(
    catalog: Catalog, gpu: str, plan: str | None, provider: str | None
) -> tuple[float, float] | tuple[None, None]:
    """The least and the most asked for an accelerator under a plan; one provider, or a given price, has no range."""
    if plan is None or provider not in (None, MEDIAN):
        return None, None
    median = catalog.price(gpu, plan, MEDIAN)
    if median is None:
        return None, None
    asked = [price for name in median.providers if (price := catalog.price(gpu, plan, name)) is not None]
    prices = [price.usd_per_accelerator_hour for price in asked]
    return min(prices), max(prices)


def _factor(options: pl.DataFrame, names: Sequence[str]) -> Floats:
    """A number for each combination of the columns `names`: options of a group that share it share a random number."""
    parts = [pl.col(name).cast(pl.String).fill_null("") for name in names if name in options.columns]
    places = options.select(pl.concat_str(parts, separator="\n").rank("dense").over(_GROUP)).to_series()
    return _floats(places - 1)


def _floats(column: pl.Series) -> Floats:
    return np.ascontiguousarray(column.cast(pl.Float64).to_numpy())


def _drawn(options: pl.DataFrame, draws: int, seed: int, own_share: float) -> pl.DataFrame:
    """`options`, group after group, with what the draws of each say of it."""
    sigma = options[SIGMA].to_numpy()
    inputs = {
        "device_hours": _floats(options["gpus"].cast(pl.Float64) / (_HOUR_S * options["max_rate_rps"])),
        "shared_sigma": sigma * math.sqrt(1 - own_share),
        "own_sigma": sigma * math.sqrt(own_share),
        "error_factor": _factor(options, _SHARED),
        "lowest_price": _floats(options[LOW]),
        "highest_price": _floats(options[HIGH]),
        "price_factor": _factor(options, _MARKET),
    }
    ends = options[_GROUP].rle().struct.field("len").cum_sum().to_list()
    groups = [{name: values[start:end] for name, values in inputs.items()} for start, end in pairwise([0, *ends])]
    found = [engine.robustness(group, draws, seed, 0) for group in groups]
    share, regret, error = (np.concatenate([each[name] for each in found]) for name in _ANSWERS)
    told = options.drop(_PROFILE).with_columns(
        pl.Series("cheapest_share", share),
        pl.Series("cheapest_share_error", np.sqrt(share * (1 - share) / draws)),
        pl.Series("expected_regret", regret),
        pl.Series("expected_regret_error", error),
    )
    order = (_GROUP, "cheapest_share", "expected_regret")
    return told.sort(order, descending=[False, True, False], maintain_order=True).drop(_GROUP)
