"""Results of llmperf: the summary and the individual responses. Seconds; rates per minute; ITL with TTFT inside."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from pydantic import Field

from lambdamax.benchmarks.measured import Row, token_mean
from lambdamax.benchmarks.requests import Request, point_of
from lambdamax.benchmarks.shape import (
    Format,
    MaybeNotNegative,
    MaybePositive,
    MaybeText,
    NotNegative,
    Refused,
    Shape,
    has,
)

_MINUTE_S: Final = 60.0


class _Summary(Shape):
    """`results_inter_token_latency_s` is E2E over all tokens of a reply, so TPOT is made of the other means."""

    model: MaybeText = None
    mean_input_tokens: MaybePositive = None
    mean_output_tokens: MaybePositive = None
    concurrency: MaybePositive = Field(None, alias="num_concurrent_requests")
    ttft_mean: MaybeNotNegative = Field(None, alias="results_ttft_s_mean")
    ttft_p50: MaybeNotNegative = Field(None, alias="results_ttft_s_quantiles_p50")
    ttft_p90: MaybeNotNegative = Field(None, alias="results_ttft_s_quantiles_p90")
    ttft_p99: MaybeNotNegative = Field(None, alias="results_ttft_s_quantiles_p99")
    e2e_mean: MaybeNotNegative = Field(None, alias="results_end_to_end_latency_s_mean")
    e2e_p50: MaybeNotNegative = Field(None, alias="results_end_to_end_latency_s_quantiles_p50")
    e2e_p99: MaybeNotNegative = Field(None, alias="results_end_to_end_latency_s_quantiles_p99")
    isl: MaybeNotNegative = Field(None, alias="results_number_input_tokens_mean")
    osl: MaybeNotNegative = Field(None, alias="results_number_output_tokens_mean")
    osl_stddev: MaybeNotNegative = Field(None, alias="results_number_output_tokens_stddev")
    output_tok_s: MaybeNotNegative = Field(None, alias="results_mean_output_throughput_token_per_s")
    completed: NotNegative = Field(alias="results_num_completed_requests")
    per_minute: NotNegative = Field(
        validation_alias="results_num_completed_requests_per_min",
    )
    started: MaybePositive = Field(None, alias="results_num_requests_started")
    failed: MaybeNotNegative = Field(None, alias="results_number_errors")
    timestamp: MaybePositive = None

    def row(self) -> Row:
        over_tokens = token_mean(self.e2e_mean, self.ttft_mean, self.osl)
        times = ("ttft_mean", "ttft_p50", "ttft_p90", "ttft_p99", "e2e_mean", "e2e_p50", "e2e_p99")
        rate = self.per_minute / _MINUTE_S or None
        return {
            **{f"{name}_s": getattr(self, name) for name in times},
            "tpot_mean_s": over_tokens if self.osl_stddev == 0 else None,
            "tpot_token_mean_s": over_tokens,
            "model": self.model,
            "date": None if self.timestamp is None else f"{datetime.fromtimestamp(self.timestamp, UTC):%Y-%m-%d}",
            "load": "closed",
            "isl_tokens": self.isl,
            "osl_tokens": self.osl,
            "requested_isl_tokens": self.mean_input_tokens,
            "requested_osl_tokens": self.mean_output_tokens,
            "concurrency": self.concurrency,
            "request_rate_rps": rate,
            "prompts": self.started,
            "requests": self.completed,
            "failed": self.failed,
            "duration_s": None if rate is None else self.completed / rate,
            "output_tok_s": self.output_tok_s,
            "statistic": "mean",
            "notes": "lengths counted with one tokenizer for every model",
        }


class _Response(Shape):
    error_code: Any = None
    ttft_s: MaybeNotNegative = None
    end_to_end_latency_s: MaybeNotNegative = None
    number_output_tokens: MaybeNotNegative = None
    number_input_tokens: MaybeNotNegative = None


def _is_responses(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and has(value[0], "end_to_end_latency_s", "number_output_tokens")


def _responses(value: Any) -> list[Row]:
    """The file has no times of arrival, so no rate."""
    found = [_Response.model_validate(one) for one in value]
    done = [
        Request(one.ttft_s or None, one.end_to_end_latency_s, one.number_output_tokens, one.number_input_tokens)
        for one in found
        if one.error_code is None and one.end_to_end_latency_s
    ]
    if not done:
        raise Refused("end_to_end_latency_s", "every request failed", "a request that completed")
    return [{**point_of(done), "failed": float(len(found) - len(done)), "load": "closed", "statistic": "mean"}]


SUMMARY: Final = Format(
    "llmperf",
    lambda value: has(value, "results_num_completed_requests", "results_num_completed_requests_per_min"),
    lambda value: [_Summary.model_validate(value).row()],
)
RESPONSES: Final = Format("llmperf-responses", _is_responses, _responses)
