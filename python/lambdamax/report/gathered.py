"""What a report needs of a sweep, as frames: a ranking with prices and risks, Pareto sets, the winners' curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl

from lambdamax import columns
from lambdamax.break_even import break_even
from lambdamax.catalog import DEFAULT_PROFILE, Catalog
from lambdamax.curve import shares
from lambdamax.elasticity import elasticities
from lambdamax.exceptions import UnknownName
from lambdamax.frontier import frontier, pareto
from lambdamax.maps import parts_of
from lambdamax.objectives import DEFAULT_OBJECTIVE
from lambdamax.robustness import robustness
from lambdamax.solving import load
from lambdamax.store import kept_goal, manifest_of

GROUP: Final = "_group"
COMPARE: Final = "gpu"
TRADED: Final = "slo_tpot_s"
"""The SLO that a Pareto set trades against requests per dollar, so that it has no sets of its own."""

CURVE_SHARES: Final[tuple[float, ...]] = tuple(float(share) for share in shares(17, 1.0)[:-1])
"""The rates of a saturation curve, as shares of the replica's limit."""

TTFT: Final = {"mean": "ttft_mean_s", "p50": "ttft_p50_s", "p90": "ttft_p90_s", "p99": "ttft_p99_s"}
"""The columns of TTFT by their statistic."""

E2E: Final = {"mean": "e2e_mean_s", "p99": "e2e_p99_s"}
"""The columns of end-to-end latency by their statistic."""

LATENCIES: Final = {"ttft": TTFT, "e2e": E2E}
"""The latencies that an SLO may bound at a percentile."""

DRAWS: Final = 4_000
_LIMITS: Final = ("rate_at_compute_rps", "rate_at_kv_rps", "rate_at_seats_rps")
_RISKS: Final = ("rate_sigma", "usd_per_hour_low", "usd_per_hour_high", "cheapest_share", "expected_regret")
_TIMES: Final = ("tpot_mean_s", *TTFT.values(), *E2E.values())
_OBJECTIVES: Final = {DEFAULT_OBJECTIVE: "max", "tpot_mean_s": "min"}


@dataclass(frozen=True)
class Axis:
    """A column that differs between groups: its values in order, and how many the sweep has of them."""

    name: str
    values: tuple[Any, ...]
    swept: int


@dataclass(frozen=True)
class Gathered:
    """A sweep, reduced to what a report says of it.

    A group is one value of each of `axes`; `_group` in a frame is its place in their product, the last axis fastest.
    `ranking` has a row for each group and option (accelerator): that of `frontier`, with what `break_even` and
    `robustness` say. `winners` are its rows of rank 1, with `_curve`, the place of their curve. `pareto` has the points
    that no other of their option beats, its `_group` over the axes without the TPOT SLO. `curves` hold `limit_rps`
    and, at `CURVE_SHARES` of it, `tpot_mean_s` and the columns of `TTFT` and `E2E`. `absent` says why a part is not
    there.
    """

    manifest: Mapping[str, Any]
    keys: tuple[str, ...]
    axes: tuple[Axis, ...]
    options: tuple[str, ...]
    ranking: pl.DataFrame
    winners: pl.DataFrame
    elasticities: pl.DataFrame
    pareto: pl.DataFrame
    curves: pl.DataFrame
    absent: Mapping[str, str]


def gather(directory: Path, catalog: Catalog, most_cells: int, draws: int = DRAWS) -> Gathered:
    """Reduce the sweep in `directory`; numeric axes are thinned until groups times options are at most `most_cells`.

    Raises StoreError as `frontier` does.
    """
    manifest = manifest_of(directory)
    asked: dict[str, Any] = {"compare": COMPARE, "catalog": catalog}
    table = frontier(directory, maximize=DEFAULT_OBJECTIVE, **asked)
    keys = parts_of(table)[0]
    options = _in_sweep_order(table[COMPARE], manifest["identity"]["axes"].get(COMPARE, ()))
    axes = thinned(_axes(table, keys, manifest["identity"]["axes"]), most_cells // len(options))
    unknown = _unknown(manifest["identity"], catalog)
    ranking = _placed(table, axes)
    prices = _placed(break_even(directory, by=keys, **asked), axes)
    told = prices.select(GROUP, COMPARE, "break_even_usd_per_hour")
    ranking = ranking.join(told, on=[GROUP, COMPARE], how="left", maintain_order="left")
    absent: dict[str, str] = {}
    ranking = _with_risks(ranking, draws, catalog, unknown, absent)
    winners = ranking.filter(pl.col("rank") == 1)
    winners, curves = _curves(winners, catalog, unknown, absent)
    sets = _pareto(directory, keys, axes, absent)
    worth = _elasticities(winners, catalog, unknown)
    return Gathered(manifest, tuple(keys), axes, options, ranking, winners, worth, sets, curves, absent)


def thinned(axes: Sequence[Axis], most_groups: int) -> tuple[Axis, ...]:
    """The axes with every second value of the longest numeric one, ends kept, until the groups are few enough."""
    axes = list(axes)
    while math.prod(len(axis.values) for axis in axes) > most_groups:
        numeric = [axis for axis in axes if not columns.column(axis.name).is_text and len(axis.values) > 2]
        if not numeric:
            break
        longest = max(numeric, key=lambda axis: len(axis.values))
        kept = tuple(dict.fromkeys((*longest.values[::2], longest.values[-1])))
        axes[axes.index(longest)] = Axis(longest.name, kept, longest.swept)
    return tuple(axes)


def _axes(table: pl.DataFrame, keys: Sequence[str], swept: Mapping[str, Sequence[Any]]) -> list[Axis]:
    varying = [name for name in keys if table[name].n_unique() > 1]
    found = {name: _in_sweep_order(table[name], swept.get(name, ())) for name in varying}
    return [Axis(name, values, len(values)) for name, values in found.items()]


def _in_sweep_order(column: pl.Series, swept: Iterable[Any]) -> tuple[Any, ...]:
    """The values of `column`: numbers by size, names in the order of the sweep file."""
    present = column.unique(maintain_order=True).to_list()
    if columns.column(column.name).is_text:
        return tuple(dict.fromkeys((*(name for name in swept if name in present), *present)))
    return tuple(sorted(present, key=lambda value: math.inf if value is None else value))


def _placed(frame: pl.DataFrame, axes: Sequence[Axis]) -> pl.DataFrame:
    """The rows of `frame` whose values are on `axes`, with their group; the order of rows is kept."""
    place = pl.lit(0, pl.Int64)
    for axis in axes:
        at = f"_at_{axis.name}"
        values = pl.Series(axis.name, list(axis.values)).cast(frame.schema[axis.name])
        places = pl.DataFrame([values, pl.Series(at, range(len(axis.values)), dtype=pl.Int64)])
        frame = frame.join(places, on=axis.name, how="inner", nulls_equal=True, maintain_order="left")
        place = place * len(axis.values) + pl.col(at)
    return frame.with_columns(place.alias(GROUP)).drop(pl.selectors.starts_with("_at_"))


def _unknown(identity: Mapping[str, Any], catalog: Catalog) -> dict[str, set[str]]:
    """Models and profiles that the catalogue does not have, or not as the sweep saw them."""
    gpu = catalog.accelerators[0]
    models = {name for name, seen in identity["models"].items() if not _is_same(catalog.model, (name,), seen)}
    profiles = {name for name, seen in identity["profiles"].items() if not _is_same(catalog.profile, (name, gpu), seen)}
    return {"model": models, "profile": profiles}


def _is_same(look_up: Any, asked: tuple[str, ...], checksum: str) -> bool:
    try:
        return bool(look_up(*asked).checksum == checksum)
    except UnknownName:
        return False


def _resolved(points: pl.DataFrame, unknown: Mapping[str, set[str]], catalog: Catalog, names: Iterable[str]) -> pl.Expr:
    """Whether the catalogue knows what a point is made of."""
    strange = pl.lit(False)
    if "model" in names:
        strange = strange | pl.col("model").cast(pl.String).is_in(list(unknown["model"]))
    pairs = points.select(pl.col("profile", COMPARE).cast(pl.String)).unique().iter_rows()
    lost = [pair for pair in pairs if _profile_name(catalog, *pair) in {None, *unknown["profile"]}]
    for profile, gpu in lost:
        strange = strange | ((pl.col("profile").cast(pl.String) == profile) & (pl.col(COMPARE).cast(pl.String) == gpu))
    return ~strange


def _profile_name(catalog: Catalog, profile: str, gpu: str) -> str | None:
    try:
        return catalog.profile(profile or DEFAULT_PROFILE, gpu).name
    except UnknownName:
        return None


def _with_risks(
    ranking: pl.DataFrame, draws: int, catalog: Catalog, unknown: Mapping[str, set[str]], absent: dict[str, str]
) -> pl.DataFrame:
    ranked = ranking.drop_nulls("rank")
    known = ranked.filter(_resolved(ranked, unknown, catalog, ("profile",)))
    if known.height < ranked.height:
        absent["robustness"] = _lost(unknown)
    if not known.height or known.height < ranked.height:
        return ranking.with_columns(pl.lit(None, pl.Float64).alias(name) for name in _RISKS)
    risks = robustness(known, by=[GROUP], draws=draws, catalog=catalog).select(GROUP, COMPARE, *_RISKS)
    return ranking.join(risks, on=[GROUP, COMPARE], how="left", maintain_order="left")


def _lost(unknown: Mapping[str, set[str]]) -> str:
    named = ", ".join(sorted({*unknown["model"], *unknown["profile"]}))
    return f"not in this catalogue as the sweep saw it: {named}; give the one that the sweep used (--catalog)"


def _pareto(directory: Path, keys: Sequence[str], axes: Sequence[Axis], absent: dict[str, str]) -> pl.DataFrame:
    """The sets, one for each option of each group; none where the sweep kept winners alone."""
    if kept_goal(directory) is not None:
        absent["pareto"] = "the sweep kept its winners alone; sets of several objectives need every point"
        return pl.DataFrame()
    by = [name for name in keys if name != TRADED]
    found = pareto(directory, _OBJECTIVES, by=[*by, COMPARE])
    return _placed(found, [axis for axis in axes if axis.name != TRADED])


def _elasticities(winners: pl.DataFrame, catalog: Catalog, unknown: Mapping[str, set[str]]) -> pl.DataFrame:
    """Of each winner whose model and profile are known, a row for each fact, with its group."""
    known = winners.filter(_resolved(winners, unknown, catalog, ("model", "profile")))
    if not known.height:
        return pl.DataFrame(
            schema={GROUP: pl.Int64, "fact": pl.String, "elasticity": pl.Float64, "switches": pl.Boolean}
        )
    found = elasticities(known, catalog=catalog)
    groups = pl.concat([known[GROUP]] * (found.height // known.height))
    return found.select("fact", "elasticity", "switches").with_columns(groups)


def _curves(
    winners: pl.DataFrame, catalog: Catalog, unknown: Mapping[str, set[str]], absent: dict[str, str]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The winners with the place of their curve, and the curves: SLOs and prices play no part in one."""
    parts = [column.name for column in columns.of_groups("replica", "workload", "scheduler")]
    parts = [name for name in parts if name in winners.columns]
    known = winners.filter(_resolved(winners, unknown, catalog, ("model", "profile")))
    if known.height < winners.height:
        absent["curve"] = absent["sensitivity"] = _lost(unknown)
    limit = pl.min_horizontal(*_LIMITS).alias("limit_rps")
    replicas = known.select(*parts, limit).unique(parts, maintain_order=True).with_row_index("_curve")
    placed = winners.join(replicas.drop("limit_rps"), on=parts, how="left", nulls_equal=True, maintain_order="left")
    return placed, _loaded(replicas, parts, catalog)


def _loaded(replicas: pl.DataFrame, parts: Sequence[str], catalog: Catalog) -> pl.DataFrame:
    if not replicas.height:
        return pl.DataFrame(schema={"limit_rps": pl.Float64, **dict.fromkeys(_TIMES, pl.List(pl.Float64))})
    rates = pl.DataFrame({"_share": CURVE_SHARES})
    asked = replicas.join(rates, how="cross", maintain_order="left_right")
    asked = asked.with_columns((pl.col("limit_rps") * pl.col("_share")).alias("rate_rps"))
    answered = load(asked.select(*parts, "rate_rps"), catalog=catalog).with_columns(asked["_curve", "limit_rps"])
    return answered.group_by("_curve", maintain_order=True).agg(pl.col("limit_rps").first(), *_TIMES)
