"""The report as one HTML page that needs nothing else, and as Markdown."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from lambdamax.report.charts import HEIGHTS, compiled, every_chart, rows_of, runtime
from lambdamax.report.packed import Packed
from lambdamax.report.provenance import Provenance
from lambdamax.report.views import HEADINGS, answer, map_axes, options, selection, table_row, wins, words

_ASSETS: Final = Path(__file__).parent / "assets"
# What would end a script element or, in old scripts, a line; all of it stands in strings alone.
_ESCAPED: Final = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def html(data: Packed, behind: Provenance) -> str:
    """The page: tables and sentences for the start, and the numbers of every selection for its script."""
    axes = map_axes(data)
    vega, script = _vega(), _asset("report.js")
    shared = {**data, "words": {**words(), "heights": HEIGHTS}, "map_axes": axes}
    return (
        _environment(True)
        .get_template("page.html.jinja")
        .render(
            **_common(data, behind),
            style=Markup(_asset("report.css")),
            policy=_policy(vega, script),
            runtime=Markup(vega),
            script=Markup(script),
            data_json=embedded(shared),
            charts_json=embedded(compiled(data)),
            map_axes=axes,
        )
    )


def markdown(data: Packed, behind: Provenance, images: str = "") -> str:
    """The report on the start in Markdown; `images` is where its charts are, from where the file is."""
    return _environment(False).get_template("report.md.jinja").render(**_common(data, behind), images=images)


def embedded(content: Any) -> Markup:
    """`content` as JSON that may stand within a script element, whatever text it holds."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Markup(text.translate(_ESCAPED))


def _common(data: Packed, behind: Provenance) -> dict[str, Any]:
    at, axes = data["start"], map_axes(data)
    return {
        "data": data,
        "behind": behind,
        "answer": answer(data, at),
        "selection": selection(data, at),
        "headings": HEADINGS,
        "table": [table_row(row) for row in options(data, at)],
        "wins": "" if axes is None else wins(data, at, *axes),
        "charts": every_chart(data),
        "rows": rows_of(data, at),
        "assumed": _asset("assumptions.txt").splitlines(),
        "of_winners": [_sentence(each) for each in behind.assumed],
    }


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _policy(*scripts: str) -> str:
    """What a browser lets the page do: run these scripts, and ask no network for anything."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; script-src {allowed} 'unsafe-eval'; style-src 'unsafe-inline'; base-uri 'none'"


def _environment(escaped: bool) -> Environment:
    made = Environment(
        loader=FileSystemLoader(_ASSETS),
        autoescape=escaped,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["plain"] = plain
    return made


def plain(text: object) -> str:
    """`text` for Markdown, on one line and without any meaning of its signs."""
    found = " ".join(str(text).split())
    for sign in "\\`*_[]<>|#":
        found = found.replace(sign, f"\\{sign}" if sign not in "<>" else {"<": "&lt;", ">": "&gt;"}[sign])
    return found


@cache
def _vega() -> str:
    """The script of Vega, which must not end the element that holds it."""
    return runtime().replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")
