"""What a report says of one selection, looked up in the packed numbers: tables, the rows of charts, and sentences.

A selection is a place on each axis. `report/assets/report.js` does the same in the page; tests hold the two together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Final

from lambdamax.report.packed import Packed
from lambdamax.units import DASH, number

Row = dict[str, Any]

NOTHING: Final = "none can"
"""In place of a winner, where nothing serves what is asked for."""

LEADS: Final = ("< 5 %", "5–20 %", "20–50 %", "> 50 %")
"""How far the winner is ahead, in classes."""

FACT_NAMES: Final = {
    "bandwidth": "memory bandwidth",
    "flops": "FLOP/s",
    "memory": "memory",
    "link": "links",
    "price": "price",
}
LATENCY_NAMES: Final = {"ttft": "TTFT", "e2e": "E2E latency"}
"""Latencies that an SLO may bound at a percentile."""

_STEPS: Final = (1.05, 1.2, 1.5)
_SURE, _LIKELY = 90, 60
_HOUR_S: Final = 3600
_LABELLED: Final = 60
_ON_THE_SLO: Final = 1.001


def group_of(data: Packed, at: Sequence[int], without: str = "") -> int:
    """The group of a selection; with `without` over the axes but that one."""
    place = 0
    for axis, index in zip(data["axes"], at, strict=True):
        if axis["name"] != without:
            place = place * len(axis["values"]) + index
    return place


def value_of(data: Packed, at: Sequence[int], name: str) -> Any:
    """The value of an input in a selection, None where there is none."""
    for axis, index in zip(data["axes"], at, strict=True):
        if axis["name"] == name:
            return axis["values"][index]
    return data["fixed"].get(name)


def options(data: Packed, at: Sequence[int]) -> list[Row]:
    """Every option, the best first, those that cannot serve it last, each with all that is known of it."""
    group = group_of(data, at)
    rows = [_option(data, at, group, option) for option in range(len(data["options"]))]
    ranked = sorted((row for row in rows if row["rpu"] is not None), key=lambda row: row["rank"])
    for row in ranked:
        row["share"] = row["rpu"] / ranked[0]["rpu"]
    return [*ranked, *(row for row in rows if row["rpu"] is None)]


def _option(data: Packed, at: Sequence[int], group: int, option: int) -> Row:
    cells, place = data["cells"], group * len(data["options"]) + option
    row = {name: values[place] for name, values in cells.items()}
    row |= {"option": data["options"][option], "share": None, "with": "", "rate_rps": None, "usd_per_mtok": None}
    if row["rpu"] is None:
        return row | {"refused": data["refused"]["reasons"][data["refused"]["cells"][str(place)]]}
    made, osl = data["configs"][row["config"]], value_of(data, at, "osl_tokens")
    return row | {
        "with": made["text"],
        "gpus": made["gpus"],
        "usd": made["usd"],
        "factor": made["factor"],
        "rate_rps": row["rpu"] * made["gpus"] * made["usd"] / _HOUR_S,
        "usd_per_mtok": None if osl is None else 1e6 / (row["rpu"] * osl),
        "limit": _name(data, row["limit"]),
        "next": _name(data, row["next"]),
        "statistic": statistic_of(data, at),
    }


def _name(data: Packed, limit: int | None) -> str:
    return DASH if limit is None else str(data["limits"][limit])


# The answer


def answer(data: Packed, at: Sequence[int]) -> list[str]:
    """The answer in sentences: who wins and by how much, what binds, how sure that is."""
    rows = options(data, at)
    ranked = [row for row in rows if row["rpu"] is not None]
    if not ranked:
        reasons = "; ".join(f"{row['option']}: {row['refused']}" for row in rows)
        return ["No option can serve this.", f"What was tried, and why it fails: {reasons}.", ""]
    best, second = ranked[0], ranked[1] if len(ranked) > 1 else None
    return [
        f"{best['option']} with {best['with']} serves the most requests per dollar: {number(best['rpu'])}, "
        f"{_lead(best, second)}.",
        f"What binds: {best['limit']}, then {best['next']}. One replica ({_gpus(best)}, "
        f"{number(best['gpus'] * best['usd'])} USD an hour) serves {number(best['rate_rps'])} requests/s at a mean "
        f"TPOT of {number(best['tpot_ms'])} ms and a {statistic_of(data, at)} TTFT of {number(best['ttft_ms'])} ms."
        f"{_percentile(data, at)}",
        _sure(data, best, ranked),
    ]


def _percentile(data: Packed, at: Sequence[int]) -> str:
    percent = value_of(data, at, "slo_percentile")
    return f" Its SLOs on TTFT and end-to-end latency hold for {number(percent)} % of requests." if percent else ""


def statistic_of(data: Packed, at: Sequence[int], name: str = "ttft") -> str:
    """The statistic of a latency that a selection tells: `mean`, or the percentile that its SLO is on or the next."""
    return str(data["statistics"][name].get(f"{value_of(data, at, 'slo_percentile') or 0:g}", "mean"))


def latency_title(data: Packed, at: Sequence[int], name: str) -> str:
    """The name of an axis for a latency: its statistic, and the percentile of the SLO where that is another one."""
    percent, told = value_of(data, at, "slo_percentile") or 0, statistic_of(data, at, name)
    other = f", for an SLO on p{percent:g}" if percent and told != f"p{percent:g}" else ""
    return f"{told} {LATENCY_NAMES[name]}, ms{other}"


def _gpus(row: Row) -> str:
    return "1 accelerator" if row["gpus"] == 1 else f"{row['gpus']} accelerators"


def _lead(best: Row, second: Row | None) -> str:
    if second is None:
        return "and nothing else can serve this"
    ratio = best["rpu"] / second["rpu"]
    more = f"{number(100 * (ratio - 1), 2)} % more than" if ratio < 2 else f"{number(ratio, 3)} times as many as"
    made = "" if second["with"] == best["with"] else f" with {second['with']}"
    return f"{more} {second['option']}{made}"


def _sure(data: Packed, best: Row, ranked: Sequence[Row]) -> str:
    known, share = _known(data, best), best["cheapest_percent"]
    if share is None:
        return known
    word = "sure" if share >= _SURE else "likely" if share >= _LIKELY else "open"
    return (
        f"How sure: {word}. With errors of rates and the spread of prices drawn {number(data['draws'])} times, it is "
        f"the cheapest in {share} % and costs {number(best['regret_percent'])} % more than the cheapest on average."
        f"{_rival(share, ranked)} {known}"
    ).rstrip()


def _known(data: Packed, best: Row) -> str:
    """How far off the largest rate may be: as the point states, else by its profile's factor."""
    if best.get("low") is not None and best.get("origin") is not None:
        kind, *rest = data["origins"][best["origin"]].split(":")
        rows = [f"{each} rows" if each.isdecimal() else each for each in rest]
        origin = ", ".join([f"constants {kind}", *rows])
        return f"Its rate is known to within a factor of {number(1 / best['low'])} in 80 % of cases ({origin})."
    made = data["configs"][best["config"]]
    if made["factor"] is None:
        return ""
    factor = number(made["factor"])
    return f"Its rate is known to within a factor of {factor} (profile {made['profile']}, {made['status']})."


def _rival(share: int, ranked: Sequence[Row]) -> str:
    rival = max(ranked, key=lambda row: row["cheapest_percent"])
    if rival["cheapest_percent"] <= share:
        return ""
    return f" {rival['option']} is the cheapest more often, in {rival['cheapest_percent']} %."


# Rows of charts


def pareto_rows(data: Packed, at: Sequence[int]) -> list[Row]:
    """The points that no other of their option beats in requests per dollar and TPOT, and the TPOT SLO."""
    sets, group, osl = data["pareto"], group_of(data, at, "slo_tpot_s"), value_of(data, at, "osl_tokens")
    slo = value_of(data, at, "slo_tpot_s")
    rows = []
    for place in range(sets["start"][group], sets["start"][group + 1]):
        made, rpu, tpot_ms = data["configs"][sets["config"][place]], sets["rpu"][place], sets["tpot_ms"][place]
        rows.append(
            {
                "kind": "point",
                "option": data["options"][made["option"]],
                "with": made["text"],
                "tpot_ms": tpot_ms,
                "rpu": rpu,
                "user_tok_s": 1000 / tpot_ms,
                "gpu_tok_s": rpu * made["usd"] * osl / _HOUR_S,
                "meets": slo is None or tpot_ms <= slo * 1000 * _ON_THE_SLO,
            }
        )
    if slo is not None:
        rows.append({"kind": "slo", "tpot_ms": slo * 1000, "user_tok_s": 1 / slo})
    return rows


def map_axes(data: Packed) -> tuple[int, int] | None:
    """The axes of the maps, across and down, unless others are asked for; None where no axis varies.

    Output and prompt length where they vary, else the first two; with one axis it is both.
    """
    names = [axis["name"] for axis in data["axes"]]
    if not names:
        return None
    lengths = [names.index(name) for name in ("osl_tokens", "isl_tokens") if name in names]
    order = [*lengths, *(place for place in range(len(names)) if place not in lengths)]
    return (order[0], order[1]) if len(order) > 1 else (order[0], order[0])


def map_rows(data: Packed, at: Sequence[int], across: int, down: int, of: int | None = None) -> list[Row]:
    """A cell for each pair of values: the winner, its lead, and what binds it, or option `of` where that is given."""
    axes, rows = data["axes"], []
    wide, high = len(axes[across]["values"]), len(axes[down]["values"])
    places = [(x, y) for y, x in product(reversed(range(high)), range(wide))]
    if across == down:
        places, high = [(x, x) for x in range(wide)], 1
    for x, y in places:
        there = list(at)
        there[across], there[down] = x, y
        row = _map_row(data, there, of)
        row |= {"x": axes[across]["ticks"][x], "y": axes[down]["ticks"][y] if high > 1 else "", "ix": x, "iy": y}
        row |= {"selected": there == list(at), "where": selection(data, there)}
        few = len(places) <= _LABELLED
        row |= {"label": row["lead_text"] if few else "", "limit_label": row["limit"] if few else ""}
        rows.append(row)
    return rows


def _map_row(data: Packed, at: Sequence[int], of: int | None) -> Row:
    cells, count, group = data["cells"], len(data["options"]), group_of(data, at)
    order = sorted(
        (option for option in range(count) if cells["rpu"][group * count + option] is not None),
        key=lambda option: cells["rank"][group * count + option],
    )
    limited = of if of is not None else order[0] if order else None
    limit = None if limited is None else cells["limit"][group * count + limited]
    row = {"limit": NOTHING if limit is None else data["limits"][limit], "winner": NOTHING, "lead": LEADS[-1]}
    if not order:
        return row | {"lead_text": "", "with": "", "rpu": None, "cheapest": None}
    best = group * count + order[0]
    ratio = cells["rpu"][best] / cells["rpu"][group * count + order[1]] if len(order) > 1 else None
    return row | {
        "winner": data["options"][order[0]],
        "with": data["configs"][cells["config"][best]]["text"],
        "lead": LEADS[-1] if ratio is None else LEADS[sum(ratio >= step for step in _STEPS)],
        "lead_text": "alone" if ratio is None else f"{number(ratio, 3)}×",
        "rpu": cells["rpu"][best],
        "cheapest": cells["cheapest_percent"][best],
    }


def curves_of(data: Packed) -> list[str]:
    """The latencies that have a saturation curve: end-to-end latency where there is an SLO on it."""
    return ["ttft", "tpot", *(name for name in data["statistics"] if name != "ttft")]


def curve_rows(data: Packed, at: Sequence[int], name: str) -> list[Row]:
    """The winner's TTFT, TPOT or E2E (`name`) against the rate, its largest rate with its band, the limit, the SLO."""
    best = options(data, at)[0]
    place = data["groups"]["curve"][group_of(data, at)]
    if place is None:
        return []
    limit = data["curves"]["limit_rps"][place]
    slo = value_of(data, at, f"slo_{name}_s")
    slo_ms = None if slo is None else slo * 1000
    told = data["curves"][f"{name}_ms"]
    values = (told[statistic_of(data, at, name)] if name in data["statistics"] else told)[place]
    top = 2 * max(slo_ms or 0, best.get(f"{name}_ms", values[0]))
    rows = [
        {"kind": "curve", "rate": limit * share, "value": value}
        for share, value in zip(data["shares"], values, strict=True)
        if value is not None and value <= top
    ]
    rows += [{"kind": "limit", "rate": limit}, {"kind": "max", "rate": best["rate_rps"]}]
    low, high = _band(best)
    if low is not None:
        rows.append({"kind": "band", "rate": low, "rate2": min(high, 1.2 * limit)})
    return rows if slo_ms is None else [*rows, {"kind": "slo", "value": slo_ms}]


def _band(best: Row) -> tuple[Any, Any]:
    """From and to where the largest rate may be: as the point states, else by its profile's factor."""
    if best.get("low") is not None:
        return best["rate_rps"] * best["low"], best["rate_rps"] * best["high"]
    if best["factor"] is None:
        return None, None
    return best["rate_rps"] / best["factor"], best["rate_rps"] * best["factor"]


def sensitivity_rows(data: Packed, at: Sequence[int]) -> list[Row]:
    """For each fact, percent more requests per dollar of the winner for a percent more of the fact."""
    group, groups = group_of(data, at), data["groups"]
    bits, rows = groups["switches"][group] or 0, []
    for place, fact in enumerate(data["facts"]):
        value = groups["elasticity"][place][group]
        if value is not None:
            mark = "*" if bits >> place & 1 else ""
            rows.append({"fact": FACT_NAMES[fact], "value": value, "label": f"{value:.2f}{mark}"})
    return rows


def robustness_rows(data: Packed, at: Sequence[int]) -> list[Row]:
    """Of each option how often it is the cheapest, and what choosing it costs on average."""
    ranked = [row for row in options(data, at) if row["cheapest_percent"] is not None]
    return [
        {
            "option": row["option"],
            "with": row["with"],
            "share": row["cheapest_percent"],
            "label": f"{row['cheapest_percent']} % (regret {number(row['regret_percent'])} %)",
        }
        for row in ranked
    ]


def wins(data: Packed, at: Sequence[int], across: int, down: int) -> str:
    """How many cells of the map each option wins, in words."""
    rows = map_rows(data, at, across, down)
    counts = {name: sum(row["winner"] == name for row in rows) for name in (*data["options"], NOTHING)}
    told = sorted((name for name in counts if counts[name]), key=lambda name: -counts[name])
    listed = ", ".join(f"{name} ({number(counts[name])})" for name in told)
    over = " and ".join(dict.fromkeys(data["axes"][place]["heading"] for place in (down, across)))
    return f"Winners over {number(len(rows))} values of {over}: {listed}."


def selection(data: Packed, at: Sequence[int]) -> str:
    """The selection in words."""
    return ", ".join(_labels(data, at)) or "the one case of this sweep"


def _labels(data: Packed, at: Sequence[int]) -> Iterator[str]:
    for axis, index in zip(data["axes"], at, strict=True):
        yield axis["labels"][index]


# The table of options

HEADINGS: Final = (
    ("accelerator", ""),
    ("with", "what the operator decides"),
    ("requests per USD", "at the largest rate that keeps every SLO"),
    ("of best", ""),
    ("cheapest in", "share of the draws in which nothing is cheaper"),
    ("regret", "its cost over that of the cheapest, on average over the draws"),
    ("USD per M output tokens", ""),
    ("req/s", "largest rate of one replica"),
    ("GPUs", "accelerators of one replica"),
    ("USD/h", "price of one replica"),
    ("TPOT, ms", "mean, at that rate"),
    ("TTFT, ms", "at that rate: mean, or the percentile that the SLO is on, or the next"),
    ("binds", "the limit that stops the rate"),
    ("then", "what would stop it next"),
    ("break-even, USD/h", "price of one accelerator below which it has the most requests per dollar"),
)


def table_row(row: Row) -> list[str]:
    """A row of `options` as the cells of the table."""
    if row["rpu"] is None:
        blank = [DASH] * (len(HEADINGS) - 3)
        return [row["option"], f"no answer: {row['refused']}", *blank, _told(row["break_even"])]
    share, regret = row["cheapest_percent"], row["regret_percent"]
    return [
        row["option"],
        row["with"],
        number(row["rpu"]),
        _percent(100 * row["share"]),
        DASH if share is None else _percent(share),
        DASH if regret is None else f"+{_percent(regret)}",
        _told(row["usd_per_mtok"]),
        number(row["rate_rps"]),
        str(row["gpus"]),
        number(row["gpus"] * row["usd"]),
        number(row["tpot_ms"]),
        number(row["ttft_ms"]) if row["statistic"] == "mean" else f"{number(row['ttft_ms'])} ({row['statistic']})",
        row["limit"],
        row["next"],
        _told(row["break_even"]),
    ]


def _percent(value: float) -> str:
    return f"{number(value, 3)} %"


def _told(value: float | None) -> str:
    return DASH if value is None else number(value)


def words() -> Row:
    """The words and bounds that the page shares with this module."""
    return {
        "nothing": NOTHING,
        "leads": LEADS,
        "steps": _STEPS,
        "labelled": _LABELLED,
        "facts": FACT_NAMES,
        "latencies": LATENCY_NAMES,
        "sure": _SURE,
        "likely": _LIKELY,
        "on_the_slo": _ON_THE_SLO,
        "columns": len(HEADINGS),
    }
