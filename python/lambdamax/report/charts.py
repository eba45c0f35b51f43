"""The charts of a report as Vega-Lite: one description each, for the page, for SVG and for PNG.

Colours are those of Okabe and Ito, which people with any colour vision tell apart; points have shapes as well. A
description reads its rows (`views`) from the data set `rows`, and holds `@x`, `@y` and `@ttft` where an axis has no
name yet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import vl_convert

from lambdamax.report.packed import Packed
from lambdamax.report.views import (
    LEADS,
    NOTHING,
    Row,
    curve_rows,
    curves_of,
    latency_title,
    map_axes,
    map_rows,
    pareto_rows,
    robustness_rows,
    selection,
    sensitivity_rows,
)

VEGA_LITE: Final = "6.4"
"""The version of Vega-Lite that the descriptions are written for."""

Spec = dict[str, Any]

_COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C6D1F")
_GREY: Final = "#999999"
_FAINT: Final = "#99999933"
_SHAPES: Final = ("circle", "square", "diamond", "triangle-up", "cross", "triangle-down", "triangle-right")
_OPACITY: Final = (0.3, 0.55, 0.78, 1.0)
_PAPER_INK: Final = "#1b1f24"
_WIDTH: Final = 640
_HEIGHT: Final = 240
_PNG_SCALE: Final = 2.0
_NUMBERS: Final = frozenset({"rpu", "tpot_ms", "user_tok_s", "gpu_tok_s", "rate", "value"})
_BAR_PX: Final = 30
_LABEL_PX: Final = 44
_CELL_PX: Final = (40, 14)
_MAP_PX: Final = (120, 440)
HEIGHTS: Final = {"chart": _HEIGHT, "bar": _BAR_PX, "cell": _CELL_PX, "map": _MAP_PX}
"""Pixels: of a chart, a bar, a cell of a small and a large map, and the least and most of a map."""

_FONT: Final = "system-ui, Segoe UI, Helvetica, Arial, DejaVu Sans, sans-serif"


@dataclass(frozen=True)
class Chart:
    """One chart: its `id`, its `title`, what it shows (`about`), and its `spec`."""

    id: str
    title: str
    about: str
    spec: Spec

    @property
    def part(self) -> str:
        """What of a sweep it needs, as `absent` calls it."""
        return self.id.partition("-")[0]


def every_chart(data: Packed, ink: str = "currentColor") -> list[Chart]:
    """Every chart of the report, lines and letters in the colour `ink`."""
    made = [
        Chart(
            "pareto-cost",
            "Requests per dollar against speed",
            "Each point is a configuration that no other of its accelerator beats; up and to the left is better. "
            "Faded points miss the TPOT SLO, which is the dashed line.",
            _pareto(data, ("tpot_ms", "mean TPOT, ms"), ("rpu", "requests per dollar")),
        ),
        Chart(
            "pareto-tokens",
            "Tokens per accelerator against tokens per user",
            "The same points as throughput of one accelerator and speed that one user sees; up and to the right is "
            "better.",
            _pareto(data, ("user_tok_s", "tokens/s per user"), ("gpu_tok_s", "output tokens/s per accelerator")),
        ),
        Chart(
            "winners",
            "Who wins where, and by how much",
            "The colour is the accelerator with the most requests per dollar; the fainter, the closer the second.",
            _winners(data),
        ),
        Chart(
            "limits",
            "What binds where",
            "The limit that stops the rate of the winner, or of the accelerator that is chosen above the maps.",
            _limits(data),
        ),
        *(_curve(name) for name in curves_of(data)),
        Chart(
            "sensitivity",
            "What more of a fact is worth",
            "Percent more requests per dollar of the winner for one percent more of the fact of its accelerator. "
            "With * another limit binds within the step.",
            _bars("value", "fact", "% requests per dollar for 1 %", {"datum": "", "scale": {"range": [_COLOURS[0]]}}),
        ),
        Chart(
            "robustness",
            "How often each is the cheapest",
            "Share of the draws in which nothing is cheaper, with errors of rates and the spread of prices drawn "
            "together; regret is what it costs over the cheapest, on average.",
            _bars("share", "option", "% of draws", _colour(data), [0, 100]),
        ),
    ]
    return [Chart(each.id, each.title, each.about, _dressed(each.spec, ink)) for each in made]


def rows_of(data: Packed, at: Sequence[int]) -> dict[str, list[Row]]:
    """The rows of each chart for a selection, by its id."""
    axes = map_axes(data)
    pareto = pareto_rows(data, at)
    cells = [] if axes is None else map_rows(data, at, *axes)
    return {
        "pareto-cost": pareto,
        "pareto-tokens": pareto,
        "winners": cells,
        "limits": cells,
        **{f"curve-{name}": curve_rows(data, at, name) for name in curves_of(data)},
        "sensitivity": sensitivity_rows(data, at),
        "robustness": robustness_rows(data, at),
    }


def drawn(data: Packed, at: Sequence[int]) -> dict[str, tuple[str, bytes]]:
    """Each chart that has anything to show, as SVG and as PNG, on white."""
    rows = rows_of(data, at)
    found = {}
    for chart in every_chart(data, _PAPER_INK):
        if rows[chart.id]:
            spec = _filled(chart, data, rows[chart.id])
            svg = vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE)
            found[chart.id] = svg, vl_convert.svg_to_png(svg, scale=_PNG_SCALE)
    return found


def compiled(data: Packed) -> dict[str, Spec]:
    """Each chart as Vega, for the page."""
    return {chart.id: vl_convert.vegalite_to_vega(chart.spec, vl_version=VEGA_LITE) for chart in every_chart(data)}


def runtime() -> str:
    """The script of Vega, whole: `vegaEmbed` is the one global that it makes."""
    return f"(() => {{{vl_convert.javascript_bundle('window.vegaEmbed = vegaEmbed;', vl_version=VEGA_LITE)}}})();"


def height_of(chart_id: str, rows: Sequence[Row]) -> int:
    """The height of a chart with these rows [pixels]: maps and bars grow with them."""
    if chart_id in ("winners", "limits"):
        lines, (large, small) = len({row["y"] for row in rows}), _CELL_PX
        size = large if lines * large <= _MAP_PX[1] else small
        return min(max(lines * size, _MAP_PX[0]), _MAP_PX[1])
    return len(rows) * _BAR_PX if chart_id in ("sensitivity", "robustness") else _HEIGHT


def _filled(chart: Chart, data: Packed, rows: Sequence[Row]) -> Spec:
    axes = map_axes(data)
    names = [] if axes is None else [axis_name(data["axes"][place]) for place in axes]
    text = json.dumps(chart.spec)
    titles = {f"@{name}": latency_title(data, data["start"], name) for name in data["statistics"]}
    for mark, name in (titles | dict(zip(("@x", "@y"), names, strict=False))).items():
        text = text.replace(json.dumps(mark), json.dumps(name))
    filled: Spec = json.loads(text)
    return filled | {
        "data": {"name": "rows", "values": rows},
        "title": {"text": chart.title, "anchor": "start", "subtitle": selection(data, data["start"])},
        "height": height_of(chart.id, rows),
        "background": "white",
    }


def axis_name(axis: Mapping[str, Any]) -> str:
    """The name of an axis with its unit."""
    return f"{axis['heading']}, {axis['unit']}" if axis["unit"] else str(axis["heading"])


def _dressed(spec: Spec, ink: str) -> Spec:
    named = {f"{part}Color": ink for part in ("label", "title", "domain", "tick", "grid")}
    axis = {**named, "gridOpacity": 0.12, "domainOpacity": 0.4, "tickOpacity": 0.4, "titleFontWeight": "normal"}
    legend = {
        "labelColor": ink,
        "titleColor": ink,
        "titleFontWeight": "normal",
        "orient": "top",
        "symbolSize": 120,
        "symbolOpacity": 1,
    }
    title = {"color": ink, "subtitleColor": ink, "fontSize": 14}
    config = {"font": _FONT, "axis": {**axis, "labelFontSize": 11, "titleFontSize": 12}, "legend": legend}
    whole = {
        "width": _WIDTH,
        "height": _HEIGHT,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"name": "rows"},
        "background": "transparent",
        "config": {**config, "title": title, "view": {"stroke": None}, "text": {"color": ink}, "rule": {"color": ink}},
        **spec,
    }
    inked: Spec = json.loads(json.dumps(whole).replace('"@ink"', json.dumps(ink)))
    return inked


def _palette(data: Packed) -> list[str]:
    """A colour for each option, by how often it wins; those past the palette share a grey."""
    count, cells = len(data["options"]), data["cells"]["cheapest_percent"]
    weight = [sum(value or 0 for value in cells[option::count]) for option in range(count)]
    order = sorted(range(count), key=lambda option: -weight[option])
    colour = {option: _COLOURS[place] if place < len(_COLOURS) else _GREY for place, option in enumerate(order)}
    return [colour[option] for option in range(count)]


def _colour(data: Packed, field: str = "option", nothing: bool = False) -> Spec:
    domain, colours = list(data["options"]), _palette(data)
    if nothing:
        domain, colours = [*domain, NOTHING], [*colours, _FAINT]
    legend = {"title": None, "columns": 4} if len(domain) > 1 else None
    return {"field": field, "type": "nominal", "scale": {"domain": domain, "range": colours}, "legend": legend}


def _tip(*fields: tuple[str, str]) -> list[Spec]:
    number = {"type": "quantitative", "format": ",.4~r"}
    return [{"field": field, "title": title, **(number if field in _NUMBERS else {})} for field, title in fields]


def _pareto(data: Packed, across: tuple[str, str], up: tuple[str, str]) -> Spec:
    colour = _colour(data)
    shapes = [_SHAPES[place % len(_SHAPES)] for place in range(len(data["options"]))]
    axes = {
        "x": {"field": across[0], "type": "quantitative", "title": across[1], "scale": {"zero": False}},
        "y": {"field": up[0], "type": "quantitative", "title": up[1]},
    }
    points = {
        **axes,
        "color": colour,
        "shape": {"field": "option", "scale": {"domain": data["options"], "range": shapes}, "legend": colour["legend"]},
        "opacity": {"condition": {"test": "datum.meets", "value": 1}, "value": 0.35},
        "tooltip": _tip(("option", "accelerator"), ("with", "with"), across, up),
    }
    only = [{"filter": "datum.kind == 'point'"}]
    return {
        "layer": [
            {"transform": [{"filter": "datum.kind == 'slo'"}], "mark": _rule(), "encoding": {"x": axes["x"]}},
            {"transform": only, "mark": {"type": "line", "opacity": 0.5}, "encoding": {**axes, "color": colour}},
            {"transform": only, "mark": {"type": "point", "filled": True, "size": 80}, "encoding": points},
        ]
    }


def _rule() -> Spec:
    return {"type": "rule", "strokeDash": [5, 4], "opacity": 0.8}


def _map(colour: Spec, tips: list[Spec], more: Spec, label: str) -> Spec:
    """Cells of two axes in `colour`, with their `label`, and a frame around the one that is selected."""
    axes = {
        "x": {"field": "x", "type": "ordinal", "sort": None, "title": "@x", "axis": {"labelOverlap": True}},
        "y": {"field": "y", "type": "ordinal", "sort": None, "title": "@y", "axis": {"labelOverlap": True}},
    }
    cells = {**axes, "color": colour, "tooltip": tips, **more}
    picked = {"type": "rect", "fillOpacity": 0, "strokeWidth": 2.5, "cursor": "pointer"}
    return {
        "layer": [
            {"mark": {"type": "rect", "aria": False, "cursor": "pointer"}, "encoding": cells},
            {
                "mark": {"type": "text", "fontSize": 11, "aria": False, "cursor": "pointer"},
                "encoding": {**axes, "text": {"field": label}},
            },
            {
                "transform": [{"filter": "datum.selected"}],
                "mark": {**picked, "stroke": "@ink"},
                "encoding": axes,
            },
        ]
    }


def _winners(data: Packed) -> Spec:
    ahead = {
        "field": "lead",
        "type": "ordinal",
        "scale": {"type": "ordinal", "domain": list(LEADS), "range": list(_OPACITY)},
        "legend": {"title": "lead over the second", "orient": "bottom", "symbolFillColor": "@ink"},
    }
    tips = _tip(("where", "at"), ("winner", "wins"), ("with", "with"), ("rpu", "requests per dollar"))
    tips += _tip(("lead_text", "over the second"), ("cheapest", "% of draws the cheapest"), ("limit", "binds"))
    count, rpu = len(data["options"]), data["cells"]["rpu"]
    empty = any(not any(rpu[place : place + count]) for place in range(0, len(rpu), count))
    return _map(_colour(data, "winner", nothing=empty), tips, {"opacity": ahead}, "label")


def _limits(data: Packed) -> Spec:
    used = {limit for limit in data["cells"]["limit"] if limit is not None}
    shown = [(name, colour) for place, (name, colour) in enumerate(_limit_colours(data)) if place in used]
    if None in data["cells"]["limit"]:
        shown.append((NOTHING, _FAINT))
    scale = {"domain": [name for name, _ in shown], "range": [colour for _, colour in shown]}
    colour = {"field": "limit", "type": "nominal", "scale": scale, "legend": {"title": None, "columns": 4}}
    return _map(colour, _tip(("where", "at"), ("limit", "binds"), ("winner", "wins")), {}, "limit_label")


def _limit_colours(data: Packed) -> list[tuple[str, str]]:
    return list(zip(data["limits"], _COLOURS, strict=True))


def _curve(name: str) -> Chart:
    words = {"ttft": "time to first token", "tpot": "time per output token", "e2e": "end-to-end latency"}[name]
    title = "mean TPOT, ms" if name == "tpot" else f"@{name}"
    or_other = "" if name == "tpot" else " or, where the SLO is on a percentile, the one that the axis names"
    axes = {
        "x": {"field": "rate", "type": "quantitative", "title": "requests/s of one replica", "scale": {"nice": False}},
        "y": {"field": "value", "type": "quantitative", "title": title},
    }
    band = {"x": axes["x"], "x2": {"field": "rate2"}}
    tips = _tip(("rate", "requests/s"), ("value", f"{name.upper()}, ms"))
    layers: list[tuple[str, Any, Spec]] = [
        ("band", {"type": "rect", "color": _COLOURS[4], "opacity": 0.25}, band),
        ("slo", {**_rule(), "color": _COLOURS[5], "strokeWidth": 1.5}, {"y": axes["y"]}),
        ("limit", _rule(), {"x": axes["x"]}),
        ("max", {"type": "rule", "color": _COLOURS[2], "strokeWidth": 2}, {"x": axes["x"]}),
        ("curve", {"type": "line", "color": _COLOURS[0], "point": True, "strokeWidth": 2}, {**axes, "tooltip": tips}),
    ]
    spec = {
        "layer": [
            {"transform": [{"filter": f"datum.kind == '{kind}'"}], "mark": mark, "encoding": encoding}
            for kind, mark, encoding in layers
        ]
    }
    about = (
        f"{words.capitalize()} of the winner's replica as its load grows, the mean{or_other}. Green: the largest rate "
        "that keeps every SLO, in the band within which it may be off. Dashed: the SLO, and the limit past which "
        "queues grow without end."
    )
    return Chart(f"curve-{name}", f"Saturation: {words}", about, spec)


def _bars(value: str, name: str, title: str, colour: Spec, domain: list[int] | None = None) -> Spec:
    """Bars with their labels beyond them; within them past half of a `domain`, where there is no room beyond."""
    scale = {"padding": _LABEL_PX} if domain is None else {"domain": domain}
    axes = {
        "x": {"field": value, "type": "quantitative", "title": title, "scale": scale},
        "y": {"field": name, "type": "nominal", "sort": None, "title": None},
    }
    half = "false" if domain is None else f"datum.{value} > {domain[1] / 2}"
    return {
        "transform": [{"calculate": f"max(0, datum.{value})", "as": "end"}],
        "layer": [
            {
                "mark": {"type": "bar", "height": {"band": 0.7}},
                "encoding": {**axes, "color": {**colour, "legend": None}},
            },
            _labels(axes, f"!({half})", {"align": "left", "dx": 6}),
            _labels(axes, half, {"align": "right", "dx": -6, "color": "black", "fontWeight": "bold"}),
        ],
    }


def _labels(axes: Spec, test: str, mark: Spec) -> Spec:
    text = {"condition": {"test": test, "field": "label"}, "value": ""}
    return {
        "mark": {"type": "text", "fontSize": 12, **mark},
        "encoding": {**axes, "x": {**axes["x"], "field": "end"}, "text": text},
    }
