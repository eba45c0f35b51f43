"""Reports of GuideLLM: JSON of versions 0.2 to 0.8, and the CSV with three lines of header."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from pydantic import AliasChoices, AliasPath, Field

from lambdamax.benchmarks.content import Cells
from lambdamax.benchmarks.measured import Row, scaled
from lambdamax.benchmarks.shape import (
    MS,
    Format,
    MaybeNotNegative,
    MaybePositive,
    MaybeText,
    Refused,
    Shape,
    gathered,
    has,
    rows_of_lines,
)

_LENGTH: Final = re.compile(r"['\"]?(prompt_tokens|output_tokens)['\"]?\s*[=:]\s*(\d+)")
_CSV_PERCENTILES: Final = {"p50": 5, "p90": 7, "p99": 9}
_HEADER_LINES: Final = 3
_CSV_METRICS: Final = {
    ("Request Latency", "Successful"): "request_latency",
    ("Time to First Token", "Successful"): "time_to_first_token_ms",
    ("Inter Token Latency", "Successful"): "inter_token_latency_ms",
    ("Server Throughput", "Successful Requests/Sec"): "requests_per_second",
    ("Server Throughput", "Successful Concurrency"): "request_concurrency",
    ("Token Metrics", "Successful Input Tokens"): "prompt_token_count",
    ("Token Metrics", "Successful Output Tokens"): "output_token_count",
}
_CSV_UNITS: Final = {"request_latency": "Sec", "time_to_first_token_ms": "ms", "inter_token_latency_ms": "ms"}
_CSV_STATISTICS: Final = {"Mean": "mean", "Median": "median"}


class _Statistics(Shape):
    mean: MaybeNotNegative = None
    median: MaybeNotNegative = None
    count: MaybeNotNegative = None
    p90: MaybeNotNegative = Field(None, validation_alias=AliasPath("percentiles", "p90"))
    p99: MaybeNotNegative = Field(None, validation_alias=AliasPath("percentiles", "p99"))


class _Metric(Shape):
    successful: _Statistics = _Statistics.model_validate({})


class _Metrics(Shape):
    requests_per_second: _Metric
    request_concurrency: _Metric = _Metric()
    request_latency: _Metric
    prompt_token_count: _Metric
    output_token_count: _Metric
    time_to_first_token_ms: _Metric = _Metric()
    inter_token_latency_ms: _Metric = _Metric()


class _Strategy(Shape):
    kind: str = Field(validation_alias=AliasChoices("type_", "kind", "type"))
    streams: MaybePositive = None
    rate: MaybePositive = None


class _Totals(Shape):
    successful: MaybeNotNegative = None
    errored: MaybeNotNegative = None


class _Benchmark(Shape):
    strategy: _Strategy = Field(
        validation_alias=AliasChoices(AliasPath("config", "strategy"), AliasPath("args", "strategy"))
    )
    model: MaybeText = Field(
        None,
        validation_alias=AliasChoices(AliasPath("config", "backend", "model"), AliasPath("worker", "backend_model")),
    )
    totals: _Totals = Field(
        _Totals(),
        validation_alias=AliasChoices(
            "request_totals",
            AliasPath("metrics", "request_totals"),
            AliasPath("scheduler_metrics", "requests_made"),
            AliasPath("run_stats", "requests_made"),
        ),
    )
    data: Any = Field(None, validation_alias=AliasPath("request_loader", "data"))
    metrics: _Metrics
    start_time: MaybeNotNegative = None
    duration: MaybePositive = None

    def row(self, asked: Any) -> Row:
        """One benchmark of a report; `asked` is where the report says which lengths were asked for."""
        metrics = self.metrics
        rate, osl = metrics.requests_per_second.successful.mean, metrics.output_token_count.successful.mean
        isl = metrics.prompt_token_count.successful.mean
        return {
            **self._load(),
            **_asked_lengths(self.data or asked),
            **_latencies(metrics, self.totals.successful),
            "model": self.model,
            "date": None if self.start_time is None else f"{datetime.fromtimestamp(self.start_time, UTC):%Y-%m-%d}",
            "isl_tokens": isl,
            "osl_tokens": osl,
            "request_rate_rps": rate or None,
            "requests": self.totals.successful,
            "failed": self.totals.errored,
            "duration_s": self.duration,
            "in_flight": metrics.request_concurrency.successful.mean,
            "output_tok_s": scaled(osl, rate),
            "input_tok_s": scaled(isl, rate),
            "total_tok_s": None if osl is None or isl is None else scaled(isl + osl, rate),
            "statistic": "mean",
        }

    def _load(self) -> Row:
        kind = self.strategy.kind
        loads = {"concurrent": "closed", "synchronous": "closed", "throughput": "burst"}
        return {
            "load": loads.get(kind, "open"),
            "concurrency": 1.0 if kind == "synchronous" else self.strategy.streams,
            "request_rate_offered_rps": self.strategy.rate,
            "notes": f"strategy {kind}",
        }


def _latencies(metrics: _Metrics, completed: float | None) -> Row:
    """TPOT is this tool's inter-token latency, (last - first)/(n - 1) of each request.

    Up to 0.3 its mean is over requests; later each request counts n - 1 times, so it is the token mean and its
    percentiles are of neither. Its own "time per output token" divides by n, from 0.5 on with the TTFT inside.
    """
    between, first = metrics.inter_token_latency_ms.successful, metrics.time_to_first_token_ms.successful
    whole = metrics.request_latency.successful
    found = {
        "ttft_mean_s": scaled(first.mean, MS),
        "ttft_p50_s": scaled(first.median, MS),
        "ttft_p90_s": scaled(first.p90, MS),
        "ttft_p99_s": scaled(first.p99, MS),
        "e2e_mean_s": whole.mean,
        "e2e_p50_s": whole.median,
        "e2e_p99_s": whole.p99,
    }
    if between.count is None or between.count != completed:
        return {**found, "tpot_token_mean_s": scaled(between.mean or None, MS)}
    percentiles = {"tpot_p50_s": between.median, "tpot_p90_s": between.p90, "tpot_p99_s": between.p99}
    spread = {name: scaled(value or None, MS) for name, value in percentiles.items()}
    return {**found, **spread, "tpot_mean_s": scaled(between.mean or None, MS)}


def _asked_lengths(said: Any) -> Row:
    """Lengths of synthetic data, said as `prompt_tokens=128,output_tokens=16` or as keys."""
    text = said if isinstance(said, str) else json.dumps(said)
    found = dict(_LENGTH.findall(text.replace("\\", "")))
    names = {"prompt_tokens": "requested_isl_tokens", "output_tokens": "requested_osl_tokens"}
    return {ours: float(found[theirs]) for theirs, ours in names.items() if theirs in found}


def _is_report(value: Any) -> bool:
    if not has(value, "benchmarks") or not isinstance(value["benchmarks"], list):
        return False
    return any(has(one, "metrics") for one in value["benchmarks"])


def _report(value: Any) -> list[Row]:
    said, several = value.get("args") or value.get("config"), len(value["benchmarks"]) > 1
    numbered = enumerate(value["benchmarks"], start=1)
    return gathered((f"benchmark {n}" if several else "", partial(_benchmark, one, said)) for n, one in numbered)


def _benchmark(one: Any, said: Any) -> Row:
    return _Benchmark.model_validate(one).row(said)


# CSV


def _is_csv(value: Any) -> bool:
    lines = value.lines if isinstance(value, Cells) else ()
    return len(lines) > _HEADER_LINES and {"Run Info", "Server Throughput"} <= set(lines[0])


def _csv(value: Cells) -> list[Row]:
    return rows_of_lines(value, _line, _HEADER_LINES)


def _line(record: Mapping[tuple[Any, ...], str]) -> Row:
    return _benchmark(_as_benchmark(record), record.get(("Runtime Info", "Arguments", ""), ""))


def _as_benchmark(record: Mapping[tuple[Any, ...], str]) -> dict[str, Any]:
    """A line of the CSV in the shape of the JSON report."""
    return {
        "config": {"strategy": _strategy(record), "backend": _json(record, "Run Info", "Backend")},
        "request_totals": {
            "successful": record.get(("Request Counts", "Successful", "")),
            "errored": record.get(("Request Counts", "Errored", "")),
        },
        "metrics": _metrics(record),
        "duration": record.get(("Timings", "Duration", "Sec")),
    }


def _strategy(record: Mapping[tuple[Any, ...], str]) -> dict[str, Any]:
    """The profile lists the streams or rates of the whole run; the line says which run it is."""
    profile, index = _json(record, "Run Info", "Profile"), record.get(("Run Info", "Run Index", ""), "")
    kind, _, limit = record.get(("Benchmark", "Strategy", ""), "").partition("@")
    found: dict[str, Any] = {"type_": kind, "streams" if kind == "concurrent" else "rate": limit}
    for key in ("streams", "rate"):
        values = profile.get(key)
        if isinstance(values, list) and index.isdigit() and int(index) < len(values):
            found[key] = values[int(index)]
    return found


def _json(record: Mapping[tuple[Any, ...], str], *place: str) -> dict[str, Any]:
    text = record.get((*place, ""), "")
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        raise Refused(", ".join(place), text, "a JSON object") from None
    return found if isinstance(found, dict) else {}


def _metrics(record: Mapping[tuple[Any, ...], str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for (group, name, statistic), cell in record.items():
        metric = _metric(group, name)
        if metric is None or not cell:
            continue
        values = found.setdefault(metric, {"successful": {}})["successful"]
        if statistic in _CSV_STATISTICS:
            values[_CSV_STATISTICS[statistic]] = cell
        elif statistic == "Percentiles":
            values["percentiles"] = _percentiles(cell, f"{group}, {name}, {statistic}")
    return found


def _metric(group: str, name: str) -> str | None:
    for (in_group, begins), metric in _CSV_METRICS.items():
        if group == in_group and name.startswith(begins):
            unit = name.removeprefix(begins).strip()
            if unit != _CSV_UNITS.get(metric, ""):
                raise Refused(f"{group}, {name}", unit, f"the unit {_CSV_UNITS.get(metric, 'of the name')}")
            return metric
    return None


def _percentiles(cell: str, key: str) -> dict[str, Any]:
    try:
        values = json.loads(cell)
        return {name: values[place] for name, place in _CSV_PERCENTILES.items()}
    except (ValueError, LookupError, TypeError):
        raise Refused(key, cell, "a list of the eleven percentiles 0.1 to 99.9") from None


REPORT: Final = Format("guidellm", _is_report, _report)
TABLE: Final = Format("guidellm-csv", _is_csv, _csv)
