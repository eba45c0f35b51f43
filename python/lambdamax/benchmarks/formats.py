"""Every format that can be read; which one a file is shows in its content."""

from __future__ import annotations

from typing import Any, Final

from lambdamax.benchmarks import (
    aiperf,
    bench_serve,
    guidellm,
    inference_perf,
    inferencex,
    llmperf,
    own_csv,
    scrape,
    sglang,
)
from lambdamax.benchmarks.shape import Format

FORMATS: Final[dict[str, Format]] = {
    one.name: one
    for one in (
        bench_serve.SERVE,
        bench_serve.SWEEP,
        sglang.SERVING,
        guidellm.REPORT,
        guidellm.TABLE,
        aiperf.AIPERF,
        aiperf.AIPERF_CSV,
        aiperf.AIPERF_REQUESTS,
        aiperf.AIPERF_SERVER,
        aiperf.GENAI_PERF,
        aiperf.GENAI_PERF_CSV,
        inference_perf.REPORT,
        inference_perf.REQUESTS,
        llmperf.SUMMARY,
        llmperf.RESPONSES,
        inferencex.RESULT,
        scrape.SCRAPE,
        own_csv.TABLE,
    )
}


def format_of(value: Any) -> Format | None:
    """The format of `value`, None if it is none of them."""
    return next((one for one in FORMATS.values() if one.is_of(value)), None)
