"""Every format that can be read; which one a file is shows in its content."""

from __future__ import annotations

from typing import Any, Final

from lambdamax.benchmarks.aiperf import AIPERF, AIPERF_CSV, AIPERF_REQUESTS, AIPERF_SERVER, GENAI_PERF, GENAI_PERF_CSV
from lambdamax.benchmarks.bench_serve import SERVE as VLLM_SERVE
from lambdamax.benchmarks.bench_serve import SWEEP as VLLM_SWEEP
from lambdamax.benchmarks.guidellm import REPORT as GUIDELLM
from lambdamax.benchmarks.guidellm import TABLE as GUIDELLM_CSV
from lambdamax.benchmarks.inference_perf import REPORT as INFERENCE_PERF
from lambdamax.benchmarks.inference_perf import REQUESTS as INFERENCE_PERF_REQUESTS
from lambdamax.benchmarks.inferencex import RESULT as INFERENCEX
from lambdamax.benchmarks.llmperf import RESPONSES as LLMPERF_RESPONSES
from lambdamax.benchmarks.llmperf import SUMMARY as LLMPERF
from lambdamax.benchmarks.own_csv import TABLE as MEASURED_CSV
from lambdamax.benchmarks.scrape import SCRAPE as VLLM_METRICS
from lambdamax.benchmarks.sglang import SERVING as SGLANG
from lambdamax.benchmarks.shape import Format

FORMATS: Final[dict[str, Format]] = {
    one.name: one
    for one in (
        VLLM_SERVE,
        VLLM_SWEEP,
        SGLANG,
        GUIDELLM,
        GUIDELLM_CSV,
        AIPERF,
        AIPERF_CSV,
        AIPERF_REQUESTS,
        AIPERF_SERVER,
        GENAI_PERF,
        GENAI_PERF_CSV,
        INFERENCE_PERF,
        INFERENCE_PERF_REQUESTS,
        LLMPERF,
        LLMPERF_RESPONSES,
        INFERENCEX,
        VLLM_METRICS,
        MEASURED_CSV,
    )
}


def format_of(value: Any) -> Format | None:
    """The format of `value`, None if it is none of them."""
    return next((one for one in FORMATS.values() if one.is_of(value)), None)
