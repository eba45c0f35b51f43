"""Results of SGLang's `bench_serving`, one JSON object a line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import AliasChoices, Field

from lambdamax.benchmarks.bench_serve import ClientLatencies, load_of
from lambdamax.benchmarks.measured import Row, noted, ratio, token_mean
from lambdamax.benchmarks.shape import (
    Format,
    MaybeNotNegative,
    MaybePositive,
    MaybeText,
    NotNegative,
    OfferedRate,
    Positive,
    Shape,
    has,
)


class _ServerInfo(Shape):
    """What a server of SGLang says of itself; empty where it was not asked or is another engine's."""

    model_path: MaybeText = None
    tp_size: MaybePositive = None
    pp_size: MaybePositive = None
    ep_size: MaybePositive = None
    quantization: MaybeText = None
    kv_cache_dtype: MaybeText = None
    version: MaybeText = None


class _Result(ClientLatencies):
    tag: MaybeText = None
    backend: MaybeText = None
    dataset_name: MaybeText = None
    request_rate: OfferedRate = None
    max_concurrency: MaybePositive = None
    random_input_len: MaybePositive = None
    random_output_len: MaybePositive = None
    random_range_ratio: MaybeNotNegative = None
    server_info: _ServerInfo | None = None
    duration: Positive
    completed: NotNegative
    total_input_tokens: NotNegative
    total_output_tokens: NotNegative
    request_throughput: NotNegative
    input_throughput: MaybeNotNegative = None
    output_throughput: MaybeNotNegative = None
    total_throughput: MaybeNotNegative = None
    mean_e2e_latency_ms: MaybeNotNegative = None
    median_e2e_latency_ms: MaybeNotNegative = None
    p99_e2e_latency_ms: MaybeNotNegative = None
    in_flight: MaybeNotNegative = Field(None, validation_alias=AliasChoices("concurrency"))
    accept_length: MaybeNotNegative = None

    def row(self) -> Row:
        """`concurrency` of this tool is the mean in flight that it reached, `max_concurrency` the limit."""
        found = self.latencies(self.mean_e2e_latency_ms, self.median_e2e_latency_ms, self.p99_e2e_latency_ms)
        osl = ratio(self.total_output_tokens, self.completed)
        return {
            **found,
            **self._server(),
            "tpot_token_mean_s": token_mean(found["e2e_mean_s"], found["ttft_mean_s"], osl),
            "load": load_of(self.request_rate, self.max_concurrency),
            "isl_tokens": ratio(self.total_input_tokens, self.completed),
            "osl_tokens": osl,
            "requested_isl_tokens": self._asked(self.random_input_len),
            "requested_osl_tokens": self._asked(self.random_output_len),
            "concurrency": self.max_concurrency,
            "request_rate_offered_rps": self.request_rate,
            "request_rate_rps": self.request_throughput or None,
            "requests": self.completed,
            "duration_s": self.duration,
            "in_flight": self.in_flight or None,
            "output_tok_s": self.output_throughput or None,
            "input_tok_s": self.input_throughput or ratio(self.total_input_tokens, self.duration),
            "total_tok_s": self.total_throughput or None,
            "speculative": True if self.accept_length else None,
            "statistic": "mean",
            "notes": noted(self.tag, f"backend {self.backend}", f"dataset {self.dataset_name}"),
        }

    def _asked(self, length: float | None) -> float | None:
        """Lengths are drawn evenly from `random_range_ratio` times the length to the length."""
        random = (self.dataset_name or "").startswith("random")
        if length is None or self.random_range_ratio is None or not random:
            return None
        return length * (1 + self.random_range_ratio) / 2

    def _server(self) -> Row:
        server = self.server_info or _ServerInfo()
        return {
            "model": server.model_path,
            "tp": server.tp_size,
            "pp": server.pp_size,
            "ep": server.ep_size,
            "weight_dtype": server.quantization,
            "kv_dtype": server.kv_cache_dtype,
            "engine": "sglang" if server.version and server.tp_size else None,
            "engine_version": server.version if server.tp_size else None,
        }


def _is_result(value: Any) -> bool:
    return has(value, "backend", "mean_e2e_latency_ms", "duration", "completed") and isinstance(value, Mapping)


SERVING: Final = Format("sglang-bench-serving", _is_result, lambda value: [_Result.model_validate(value).row()])
