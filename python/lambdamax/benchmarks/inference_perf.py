"""Reports of inference-perf: of one stage, of all of them together, and requests one by one. Seconds throughout."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

from pydantic import AliasPath, Field

from lambdamax.benchmarks.measured import Row, ratio, token_mean
from lambdamax.benchmarks.requests import Request, point_of
from lambdamax.benchmarks.shape import Format, MaybeNotNegative, MaybePositive, NotNegative, Refused, Shape, has

_STATISTICS: Final = (("mean", "mean"), ("median", "p50"), ("p90", "p90"), ("p99", "p99"))
_TIMES: Final = {
    "ttft": "time_to_first_token",
    "tpot": "time_per_output_token",
    "itl": "inter_token_latency",
    "e2e": "request_latency",
}
_NO_P90: Final = ("itl", "e2e")


class _Statistics(Shape):
    mean: MaybeNotNegative = None
    median: MaybeNotNegative = None
    p90: MaybeNotNegative = None
    p99: MaybeNotNegative = None


class _Latency(Shape):
    """`time_per_output_token` is (last - first)/(n - 1) of each request: TPOT. The normalized one includes TTFT."""

    time_to_first_token: _Statistics | None = None
    time_per_output_token: _Statistics | None = None
    inter_token_latency: _Statistics | None = None
    request_latency: _Statistics


class _Throughput(Shape):
    input_tokens_per_sec: MaybeNotNegative = None
    output_tokens_per_sec: MaybeNotNegative = None
    total_tokens_per_sec: MaybeNotNegative = None
    requests_per_sec: NotNegative


class _Lengths(Shape):
    mean: MaybeNotNegative = None
    cached: MaybeNotNegative = None


class _Successes(Shape):
    count: NotNegative
    latency: _Latency
    throughput: _Throughput
    prompt_tokens: _Lengths | None = None
    output_len: _Lengths | None = None


class _Report(Shape):
    benchmark_time_seconds: MaybePositive = None
    sent: MaybeNotNegative = Field(None, validation_alias=AliasPath("load_summary", "count"))
    requested_rate: MaybePositive = Field(None, validation_alias=AliasPath("load_summary", "requested_rate"))
    failed: MaybeNotNegative = Field(None, validation_alias=AliasPath("failures", "count"))
    successes: _Successes

    def row(self) -> Row:
        done = self.successes
        found = _latencies(done.latency)
        prompt, reply, flow = done.prompt_tokens or _Lengths(), done.output_len or _Lengths(), done.throughput
        several = "every stage together: read the stages" if self.requested_rate is None else None
        return {
            **found,
            "tpot_token_mean_s": token_mean(found["e2e_mean_s"], found.get("ttft_mean_s"), reply.mean),
            "load": "open",
            "isl_tokens": prompt.mean,
            "osl_tokens": reply.mean,
            "cached_tokens": ratio(prompt.cached, done.count),
            "request_rate_offered_rps": self.requested_rate,
            "request_rate_rps": flow.requests_per_sec,
            "prompts": self.sent,
            "requests": done.count,
            "failed": self.failed,
            "duration_s": self.benchmark_time_seconds,
            "output_tok_s": flow.output_tokens_per_sec,
            "input_tok_s": flow.input_tokens_per_sec,
            "total_tok_s": flow.total_tokens_per_sec,
            "statistic": "mean",
            "notes": several,
        }


def _latencies(latency: _Latency) -> Row:
    found = {
        f"{ours}_{statistic}_s": getattr(values, theirs)
        for ours, key in _TIMES.items()
        if (values := getattr(latency, key)) is not None
        for theirs, statistic in _STATISTICS
        if not (statistic == "p90" and ours in _NO_P90)
    }
    return {name: value or None for name, value in found.items()}


class _Logged(Shape):
    start_time: float
    end_time: float
    error: Any = None
    input_tokens: MaybePositive = Field(None, validation_alias=AliasPath("info", "input_tokens"))
    output_tokens: MaybePositive = Field(None, validation_alias=AliasPath("info", "response_metrics", "output_tokens"))
    token_times: tuple[float, ...] = Field(
        (), validation_alias=AliasPath("info", "response_metrics", "output_token_times")
    )

    def request(self) -> Request:
        times = self.token_times
        if self.end_time <= self.start_time:
            raise Refused("end_time", self.end_time, f"after start_time, {self.start_time}")
        gaps = tuple(later - sooner for sooner, later in pairwise(times))
        first = times[0] - self.start_time if times else None
        return Request(
            first, self.end_time - self.start_time, self.output_tokens, self.input_tokens, self.start_time, gaps
        )


def _is_report(value: Any) -> bool:
    return has(value, "load_summary", "successes")


def _is_log(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and has(value[0], "start_time", "end_time", "info")


def _log(value: Any) -> list[Row]:
    found = [_Logged.model_validate(one) for one in value]
    done = [one.request() for one in found if one.error is None]
    if not done:
        raise Refused("error", "every request failed", "a request that completed")
    return [{**point_of(done), "failed": float(len(found) - len(done)), "statistic": "mean"}]


REPORT: Final = Format("inference-perf", _is_report, lambda value: [_Report.model_validate(value).row()])
REQUESTS: Final = Format("inference-perf-requests", _is_log, _log)
