"""Exports of AIPerf and of genai-perf, which it grew out of: JSON, CSV, requests one a line, metrics of the server."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final

from pydantic import AliasChoices, AliasPath, Field

from lambdamax.benchmarks.bench_serve import load_of
from lambdamax.benchmarks.content import Cells
from lambdamax.benchmarks.measured import Row, noted, ratio, token_mean
from lambdamax.benchmarks.requests import Request, point_of
from lambdamax.benchmarks.shape import (
    Format,
    MaybeNotNegative,
    MaybePositive,
    MaybeText,
    OfferedRate,
    Refused,
    Shape,
    has,
)

_SECONDS: Final = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "milliseconds": 1e-3, "us": 1e-6, "ns": 1e-9}
_NS: Final = 1e-9
_NAMED: Final = re.compile(r"(.*?)(?: \(([^()]*)\))?$")
_TIMES: Final = (
    ("ttft", "time_to_first_token", ("mean", "p50", "p90", "p99")),
    ("tpot", "inter_token_latency", ("mean", "p50", "p90", "p99")),
    ("itl", "inter_chunk_latency", ("mean", "p50", "p99")),
    ("e2e", "request_latency", ("mean", "p50", "p99")),
)
_NOT_SHOWN: Final = frozenset({"", "nan", "n/a"})


class _Metric(Shape):
    unit: MaybeText = None
    avg: MaybeNotNegative = None
    p50: MaybeNotNegative = None
    p90: MaybeNotNegative = None
    p99: MaybeNotNegative = None

    def value(self, statistic: str) -> float | None:
        found: float | None = getattr(self, "avg" if statistic == "mean" else statistic)
        return found

    def seconds(self, name: str, statistic: str) -> float | None:
        value = self.value(statistic)
        return None if value is None else value * _unit_s(name, self.unit)


def _unit_s(name: str, unit: str | None) -> float:
    """Seconds in one `unit` of time; Refused if it is none."""
    factor = _SECONDS.get(unit or "")
    if factor is None:
        raise Refused(f"{name}.unit", unit, f"one of {', '.join(_SECONDS)}")
    return factor


_NONE: Final = _Metric()


class _Export(Shape):
    """Metrics by name. Inter-token latency is (E2E - TTFT)/(OSL - 1) of each request: our TPOT."""

    request_throughput: _Metric
    request_latency: _Metric
    request_count: _Metric = _NONE
    time_to_first_token: _Metric = _NONE
    inter_token_latency: _Metric = _NONE
    inter_chunk_latency: _Metric = _NONE
    input_sequence_length: _Metric = _NONE
    output_sequence_length: _Metric = _NONE
    output_token_throughput: _Metric = _NONE
    input_token_throughput: _Metric = _NONE
    total_token_throughput: _Metric = _NONE
    benchmark_duration: _Metric = _NONE
    effective_concurrency: _Metric = _NONE
    error_request_count: _Metric = _NONE
    model: MaybeText = Field(
        None,
        validation_alias=AliasChoices(
            AliasPath("input_config", "models", "items", 0, "name"),
            AliasPath("input_config", "model_names", 0),
            AliasPath("input_config", "endpoint", "model_names", 0),
        ),
    )
    concurrency: MaybePositive = Field(
        None,
        validation_alias=AliasChoices(
            AliasPath("input_config", "phases", 0, "concurrency"),
            AliasPath("input_config", "loadgen", "concurrency"),
            AliasPath("input_config", "perf_analyzer", "stimulus", "concurrency"),
        ),
    )
    offered_rps: OfferedRate = Field(
        None,
        validation_alias=AliasChoices(
            AliasPath("input_config", "phases", 0, "rate"),
            AliasPath("input_config", "phases", 0, "request_rate"),
            AliasPath("input_config", "loadgen", "request_rate"),
            AliasPath("input_config", "perf_analyzer", "stimulus", "request_rate"),
        ),
    )
    prompts: MaybePositive = Field(
        None,
        validation_alias=AliasChoices(
            AliasPath("input_config", "phases", 0, "requests"),
            AliasPath("input_config", "loadgen", "request_count"),
            AliasPath("input_config", "perf_analyzer", "measurement", "num"),
        ),
    )
    asked_isl: MaybePositive = Field(
        None,
        validation_alias=AliasChoices(
            AliasPath("input_config", "datasets", 0, "prompts", "isl", "mean"),
            AliasPath("input_config", "input", "prompt", "input_tokens", "mean"),
            AliasPath("input_config", "input", "synthetic_tokens", "mean"),
        ),
    )
    asked_osl: MaybePositive = Field(
        None,
        validation_alias=AliasChoices(
            AliasPath("input_config", "datasets", 0, "prompts", "osl", "mean"),
            AliasPath("input_config", "input", "prompt", "output_tokens", "mean"),
            AliasPath("input_config", "input", "output_tokens", "mean"),
        ),
    )
    start_time: MaybeText = None

    def row(self, knows_load: bool) -> Row:
        """One export; a CSV does not know what the run was asked to do."""
        times = {
            f"{ours}_{statistic}_s": getattr(self, theirs).seconds(theirs, statistic) or None
            for ours, theirs, statistics in _TIMES
            for statistic in statistics
        }
        duration = self.benchmark_duration.seconds("benchmark_duration", "mean")
        count, rate = self.request_count.avg, self.request_throughput.avg
        osl = self.output_sequence_length.avg
        return {
            **times,
            "tpot_token_mean_s": token_mean(times["e2e_mean_s"], times["ttft_mean_s"], osl),
            "model": self.model,
            "date": self.start_time[:10] if self.start_time else None,
            "load": load_of(self.offered_rps, self.concurrency) if knows_load else None,
            "isl_tokens": self.input_sequence_length.avg,
            "osl_tokens": osl,
            "requested_isl_tokens": self.asked_isl,
            "requested_osl_tokens": self.asked_osl,
            "concurrency": self.concurrency,
            "request_rate_offered_rps": self.offered_rps,
            "request_rate_rps": rate,
            "prompts": self.prompts,
            "requests": count,
            "failed": self.error_request_count.avg,
            "duration_s": duration if duration is not None else ratio(count, rate),
            "in_flight": self.effective_concurrency.avg,
            "output_tok_s": self.output_token_throughput.avg,
            "input_tok_s": self.input_token_throughput.avg,
            "total_tok_s": self.total_token_throughput.avg,
            "statistic": "mean",
        }


def _is_json(value: Any, ours: bool) -> bool:
    return has(value, "request_throughput", "request_latency", "input_config") and ours == ("aiperf_version" in value)


def _json(value: Any) -> list[Row]:
    return [_Export.model_validate(value).row(knows_load=True)]


# CSV


def _is_csv(value: Any, ours: bool) -> bool:
    first = value.lines[0] if isinstance(value, Cells) else ()
    return first[:2] == ("Metric", "avg") and "p99" in first and ours == ("sum" in first)


def _csv(value: Cells) -> list[Row]:
    metrics: dict[str, Any] = {}
    for _, names, record in _records(value):
        if names[0] == "Metric":
            name, unit = _name_and_unit(record["Metric"])
            values = {key: cell for key, cell in record.items() if cell.casefold() not in _NOT_SHOWN}
            metrics[name] = {**values, "avg": values.get("avg", values.get("Value")), "unit": unit}
    return [_Export.model_validate(metrics).row(knows_load=False)]


def _records(value: Cells) -> Iterator[tuple[int, tuple[str, ...], dict[str, str]]]:
    """The lines of every block, with the block's names; a block begins after an empty line."""
    names: tuple[str, ...] = ()
    for number, cells in zip(value.numbers, value.lines, strict=True):
        if not any(cells):
            names = ()
        elif not names:
            names = () if cells[0].startswith("#") else cells
        elif len(cells) != len(names):
            raise Refused(f"line {number}", f"{len(cells)} cells", f"{len(names)} cells, as in the header")
        else:
            yield number, names, dict(zip(names, cells, strict=True))


def _name_and_unit(text: str) -> tuple[str, str | None]:
    match = _NAMED.match(text)
    name, unit = match.groups() if match else (text, None)
    return re.sub(r"\W+", "_", name.strip().casefold()), unit


# Requests


class _Value(Shape):
    value: float
    unit: MaybeText = None


class _Metrics(Shape):
    request_latency: _Value
    time_to_first_token: _Value | None = None
    output_sequence_length: _Value | None = None
    input_sequence_length: _Value | None = None


class _Metadata(Shape):
    request_start_ns: Annotated[float, Field(ge=0)]
    benchmark_phase: MaybeText = None
    was_cancelled: bool = False


class _Record(Shape):
    metadata: _Metadata
    metrics: _Metrics
    error: Any = None

    @property
    def is_measured(self) -> bool:
        warming = (self.metadata.benchmark_phase or "profiling") != "profiling"
        return not (warming or self.metadata.was_cancelled or self.error)

    def request(self) -> Request:
        metrics = self.metrics
        latency, first = metrics.request_latency, metrics.time_to_first_token
        return Request(
            None if first is None else first.value * _unit_s("time_to_first_token", first.unit),
            latency.value * _unit_s("request_latency", latency.unit),
            None if metrics.output_sequence_length is None else metrics.output_sequence_length.value,
            None if metrics.input_sequence_length is None else metrics.input_sequence_length.value,
            self.metadata.request_start_ns * _NS,
        )


def _requests(values: Iterable[Any]) -> list[Row]:
    found = [_Record.model_validate(value) for value in values if has(value, "metrics")]
    measured = [record.request() for record in found if record.is_measured]
    if not measured:
        raise Refused("metadata.benchmark_phase", "no request", "requests of the phase profiling that completed")
    return [{**point_of(measured), "failed": float(len(found) - len(measured)), "statistic": "mean"}]


# Metrics of the server


class _Gauge(Shape):
    metric: str = Field(validation_alias="Metric")
    model: MaybeText = Field(None, validation_alias="model_name")
    avg: Annotated[float, Field(ge=0)]


_GAUGES: Final = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_use",
    "vllm:gpu_cache_usage_perc": "kv_use",
}


def _is_server_csv(value: Any) -> bool:
    return isinstance(value, Cells) and any("AIPerf Server Metrics" in ",".join(line) for line in value.lines[:1])


def _server_csv(value: Cells) -> list[Row]:
    """Gauges of each model, summed over its engines but for the share of a pool, which is their mean."""
    seen: dict[tuple[str | None, str], list[float]] = {}
    for number, _, record in _records(value):
        column = _GAUGES.get(record.get("Metric", ""))
        if column is None:
            continue
        gauge = _validated(record, number)
        seen.setdefault((gauge.model, column), []).append(gauge.avg)
    if not seen:
        raise Refused("Metric", "none of them", f"one of {', '.join(_GAUGES)}")
    rows: dict[str | None, Row] = {}
    for (model, column), values in seen.items():
        total = sum(values) / len(values) if column == "kv_use" else sum(values)
        rows.setdefault(model, {"model": model, "notes": noted("gauges of the server")})[column] = total
    return list(rows.values())


def _validated(record: Mapping[str, str], number: int) -> _Gauge:
    try:
        return _Gauge.model_validate(record)
    except ValueError:
        raise Refused(f"line {number}: avg", record.get("avg"), "a number of 0 or more") from None


AIPERF: Final = Format("aiperf", lambda value: _is_json(value, ours=True), _json)
AIPERF_CSV: Final = Format("aiperf-csv", lambda value: _is_csv(value, ours=True), _csv)
AIPERF_REQUESTS: Final = Format(
    "aiperf-requests", lambda value: has(value, "metadata", "metrics"), _requests, groups=True
)
AIPERF_SERVER: Final = Format("aiperf-server-metrics", _is_server_csv, _server_csv)
GENAI_PERF: Final = Format("genai-perf", lambda value: _is_json(value, ours=False), _json)
GENAI_PERF_CSV: Final = Format("genai-perf-csv", lambda value: _is_csv(value, ours=False), _csv)
