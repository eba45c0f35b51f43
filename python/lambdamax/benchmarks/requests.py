"""Requests one by one, as a client logged them, and the operating point that they make together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from lambdamax.benchmarks.measured import Row, ratio

_PERCENTILES: Final = (("p50", 50), ("p90", 90), ("p99", 99))


@dataclass(frozen=True)
class Request:
    """One request that completed. Times in seconds; `start_s` on any clock; lengths in tokens; None is not logged."""

    ttft_s: float | None
    e2e_s: float
    osl_tokens: float | None
    isl_tokens: float | None = None
    start_s: float | None = None
    gaps_s: tuple[float, ...] = ()

    @property
    def tpot_s(self) -> float | None:
        """(E2E - TTFT)/(OSL - 1), None without a decode phase."""
        if self.ttft_s is None or self.osl_tokens is None or self.osl_tokens < 2:
            return None
        return (self.e2e_s - self.ttft_s) / (self.osl_tokens - 1)


def point_of(requests: Sequence[Request]) -> Row:
    """The columns of the table that `requests` alone decide; rates and in flight where every start is logged.

    The window is from the first start to the last end, so that in flight is exactly rate times mean E2E.
    """
    return {"requests": float(len(requests)), **_lengths(requests), **latencies_of(requests), **_window(requests)}


def latencies_of(requests: Sequence[Request]) -> Row:
    """Means and percentiles of TTFT, TPOT, gaps and E2E [s] over `requests`."""
    decoding = [(request, tpot) for request in requests if (tpot := request.tpot_s) is not None]
    decode_s = sum(request.e2e_s - (request.ttft_s or 0.0) for request, _ in decoding)
    tokens = sum((request.osl_tokens or 1.0) - 1 for request, _ in decoding)
    return {
        **_statistics("ttft", [request.ttft_s for request in requests if request.ttft_s is not None]),
        **_statistics("tpot", [tpot for _, tpot in decoding]),
        "tpot_token_mean_s": ratio(decode_s, tokens),
        **_statistics("itl", [gap for request in requests for gap in request.gaps_s], skipped="p90"),
        **_statistics("e2e", [request.e2e_s for request in requests], skipped="p90"),
    }


def _lengths(requests: Sequence[Request]) -> Row:
    return {
        "isl_tokens": _mean([request.isl_tokens for request in requests]),
        "osl_tokens": _mean([request.osl_tokens for request in requests]),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _window(requests: Sequence[Request]) -> Row:
    starts = [request.start_s for request in requests if request.start_s is not None]
    if not starts or len(starts) < len(requests):
        return {}
    ends = [start + request.e2e_s for start, request in zip(starts, requests, strict=True)]
    window_s = max(ends) - min(starts)
    held_s = sum(request.e2e_s for request in requests)
    found: Row = {"duration_s": window_s, "in_flight": ratio(held_s, window_s)}
    found["request_rate_rps"] = ratio(len(requests), window_s)
    for column, name in (("output_tok_s", "osl_tokens"), ("input_tok_s", "isl_tokens")):
        mean = _mean([getattr(request, name) for request in requests])
        found[column] = None if mean is None else ratio(mean * len(requests), window_s)
    return found


def _statistics(name: str, values: Sequence[float], skipped: str = "") -> Row:
    if not values:
        return {}
    found = {f"{name}_{label}_s": float(np.percentile(values, q)) for label, q in _PERCENTILES if label != skipped}
    return {f"{name}_mean_s": sum(values) / len(values), **found}
