"""The header under which lambdamax collects published measurements: one line a point, times in ms."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from lambdamax.benchmarks.content import Cells
from lambdamax.benchmarks.measured import Row, scaled
from lambdamax.benchmarks.shape import MS, Format, MaybePositive, MaybeText, Shape, rows_of_lines

_COMMON: Final = frozenset({"model", "gpu", "tp", "isl", "osl", "concurrency", "output_tok_s_total", "notes"})
_TIMES: Final = (
    *("ttft_mean_ms", "ttft_p50_ms", "ttft_p90_ms", "ttft_p99_ms"),
    *("tpot_mean_ms", "tpot_p50_ms", "tpot_p90_ms", "tpot_p99_ms"),
)
_E2E: Final = re.compile(r"\be2e_(mean_|p50_|)(?:latency_)?ms=([\d.]+)")
_REQUESTS: Final = re.compile(r"(?<![\w./-])(\d+) (?:requests\b|ShareGPT prompts)")
_SENT: Final = re.compile(r"capped at (\d+) in flight")
_IN_FLIGHT: Final = re.compile(r"mean in-flight(?: about |=)([\d.]+)")
_NOMINAL: Final = re.compile(r"nominal (\d+)/(\d+)\b(?! with random)")
_LOADS: Final = (
    ("static", re.compile(r"static batch|STATIC batch|num_prompts=batch=")),
    ("closed", re.compile(r"closed loop|one request at a time|client workers")),
    ("burst", re.compile(r"burst")),
    ("open", re.compile(r"at request rate|Poisson|load sweep")),
    ("offline", re.compile(r"offline|saturated server")),
)
_SPECULATIVE: Final = re.compile(r"speculative|\bMTP\b|mtp\b|EAGLE", re.IGNORECASE)
_NOT_SPECULATIVE: Final = re.compile(r"no speculative", re.IGNORECASE)
_RUNNING: Final = re.compile(r"concurrency(?: column)? ?= ?(?:measured )?mean running")
_VERSIONED: Final = re.compile(r"(\S+) (\d+\.\d\S*)$")


class _Line(Shape):
    """A line; the longer header has a column for each statistic, the shorter one `ttft_ms` and `tpot_ms`."""

    source: MaybeText = None
    source_url: MaybeText = None
    date: MaybeText = None
    model: MaybeText = None
    hf_id: MaybeText = None
    gpu: MaybeText = None
    gpus: MaybePositive = None
    tp: MaybePositive = None
    pp: MaybePositive = None
    ep: MaybePositive = None
    dtype: MaybeText = None
    kv_dtype: MaybeText = None
    engine: MaybeText = None
    engine_version: MaybeText = None
    isl: MaybePositive = None
    osl: MaybePositive = None
    concurrency: MaybePositive = None
    request_rate: MaybePositive = None
    ttft_ms: MaybePositive = None
    tpot_ms: MaybePositive = None
    ttft_mean_ms: MaybePositive = None
    ttft_p50_ms: MaybePositive = None
    ttft_p90_ms: MaybePositive = None
    ttft_p99_ms: MaybePositive = None
    tpot_mean_ms: MaybePositive = None
    tpot_p50_ms: MaybePositive = None
    tpot_p90_ms: MaybePositive = None
    tpot_p99_ms: MaybePositive = None
    output_tok_s_total: MaybePositive = None
    output_tok_s_per_gpu: MaybePositive = None
    total_tok_s_per_gpu: MaybePositive = None
    request_throughput: MaybePositive = None
    notes: MaybeText = None

    def row(self) -> Row:
        engine = _VERSIONED.match(self.engine or "") if self.engine_version is None else None
        running = _RUNNING.search(self.notes or "") is not None
        same = ("source", "source_url", "date", "gpu", "gpus", "tp", "pp", "ep", "kv_dtype", "notes")
        return {
            **{name: getattr(self, name) for name in same},
            **self._times(),
            **_said(self.notes or ""),
            "model": self.hf_id or self.model,
            "weight_dtype": self.dtype,
            "engine": engine.group(1) if engine else self.engine,
            "engine_version": engine.group(2) if engine else self.engine_version,
            "isl_tokens": self.isl,
            "osl_tokens": self.osl,
            "concurrency": None if running else self.concurrency,
            "running": self.concurrency if running else None,
            "request_rate_offered_rps": self.request_rate,
            "request_rate_rps": self.request_throughput,
            "output_tok_s": self.output_tok_s_total or scaled(self.output_tok_s_per_gpu, self.gpus),
            "total_tok_s": scaled(self.total_tok_s_per_gpu, self.gpus),
        }

    def _times(self) -> Row:
        if self.ttft_ms is None and self.tpot_ms is None:
            times = {name.removesuffix("ms") + "s": scaled(getattr(self, name), MS) for name in _TIMES}
            return {**times, "statistic": "mean"}
        return {
            "ttft_mean_s": scaled(self.ttft_ms, MS),
            "tpot_mean_s": scaled(self.tpot_ms, MS),
            "statistic": "unknown",
        }


def _said(notes: str) -> Row:
    """What the notes say in the words that this collection uses."""
    found: Row = {"load": next((load for load, words in _LOADS if words.search(notes)), None)}
    for statistic, value in _E2E.findall(notes):
        found[f"e2e_{statistic or 'mean_'}s"] = float(value) * MS
    for column, pattern in (("requests", _REQUESTS), ("prompts", _SENT), ("in_flight", _IN_FLIGHT)):
        if match := pattern.search(notes):
            found[column] = float(match.group(1))
    if match := _NOMINAL.search(notes):
        found |= {"requested_isl_tokens": float(match.group(1)), "requested_osl_tokens": float(match.group(2))}
    if _SPECULATIVE.search(notes):
        found["speculative"] = _NOT_SPECULATIVE.search(notes) is None
    return found


def _is_table(value: Any) -> bool:
    return isinstance(value, Cells) and set(value.lines[0]) >= _COMMON


def _table(value: Cells) -> list[Row]:
    return rows_of_lines(value, _row)


def _row(record: Mapping[str, str]) -> Row:
    return _Line.model_validate(record).row()


TABLE: Final = Format("measured-csv", _is_table, _table)
