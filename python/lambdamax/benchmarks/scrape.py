"""What a vLLM server says at /metrics: means since it started, and who runs and waits at that moment."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lambdamax.benchmarks.measured import Row, ratio, token_mean
from lambdamax.benchmarks.shape import Format, Refused
from lambdamax.facts import read_rows

METRICS: Final = "vllm_metrics.csv"
_PERCENTILES: Final = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))


@dataclass
class _Histogram:
    """Counts of observations up to each bound, summed over the engines of a model."""

    total: float = 0.0
    count: float = 0.0
    below: dict[float, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def mean(self) -> float | None:
        return ratio(self.total, self.count)

    def quantile(self, q: float) -> float | None:
        """Linear within the bucket that holds it; None past the last finite bound."""
        low_bound, low = 0.0, 0.0
        for bound in sorted(self.below):
            reached = self.below[bound]
            if reached >= q * self.count > low:
                share = (q * self.count - low) / (reached - low)
                return low_bound + (bound - low_bound) * share if math.isfinite(bound) else None
            low_bound, low = bound, reached
        return None


@dataclass
class _Model:
    """What a scrape says of one model, by quantity."""

    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    series: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    histograms: dict[str, _Histogram] = field(default_factory=lambda: defaultdict(_Histogram))

    def row(self, name: str) -> Row:
        ttft, e2e, osl = (self.histograms[key].mean for key in ("ttft", "e2e", "osl"))
        requests = self.sums.get("requests")
        over_tokens = token_mean(e2e, ttft, osl)
        return {
            **dict(self._times()),
            "tpot_token_mean_s": over_tokens if over_tokens is not None else self.histograms["gap"].mean,
            "model": name,
            "engine": "vllm",
            "isl_tokens": self.histograms["isl"].mean,
            "osl_tokens": osl,
            "cached_tokens": ratio(self.sums.get("cached"), requests),
            "requests": requests,
            "running": self.sums.get("running"),
            "waiting": self.sums.get("waiting"),
            "kv_use": ratio(self.sums.get("kv_use"), self.series["kv_use"]),
            "speculative": True if self.sums.get("drafted") else None,
            "statistic": "mean",
            "notes": "means since the server started; running and waiting at the moment of the scrape",
        }

    def _times(self) -> Iterator[tuple[str, float | None]]:
        for quantity, column in (("ttft", "ttft"), ("tpot", "tpot"), ("gap", "itl"), ("e2e", "e2e")):
            found = self.histograms[quantity]
            yield f"{column}_mean_s", found.mean
            for label, q in _PERCENTILES:
                if label != "p90" or column in ("ttft", "tpot"):
                    yield f"{column}_{label}_s", found.quantile(q) if found.count else None


def _is_scrape(value: Any) -> bool:
    return isinstance(value, str)


def _rows(value: str) -> list[Row]:
    from prometheus_client.parser import text_string_to_metric_families

    named = _names(value)
    models: dict[str, _Model] = defaultdict(_Model)
    try:
        for family in text_string_to_metric_families(value):
            if family.name in named:
                _take(models, named[family.name], family.samples)
    except (ValueError, KeyError, IndexError) as error:
        raise Refused("content", f"({error})", "lines of the Prometheus text format") from None
    if not models:
        raise Refused("content", "no metric of vLLM", f"metrics such as {', '.join(sorted(named)[:3])}")
    return [model.row(name) for name, model in models.items()]


def _names(text: str) -> Mapping[str, str]:
    """Quantity by metric; of two names of one quantity that a server shows both, the first of the table."""
    rows = read_rows(METRICS)
    found: dict[str, str] = {}
    for row in rows:
        present = row["metric"] in text
        if row["quantity"] not in found.values() and (present or row["quantity"] not in _later(rows, row, text)):
            found[row["metric"]] = row["quantity"]
    return found


def _later(rows: list[Any], row: Any, text: str) -> set[str]:
    """The quantities that a later row of the table finds in `text`."""
    return {other["quantity"] for other in rows[rows.index(row) + 1 :] if other["metric"] in text}


def _take(models: dict[str, _Model], quantity: str, samples: Iterable[Any]) -> None:
    for sample in samples:
        model = models[sample.labels.get("model_name", "")]
        suffix = sample.name.rpartition("_")[2]
        if "le" in sample.labels:
            model.histograms[quantity].below[float(sample.labels["le"])] += sample.value
        elif sample.name.endswith("_created"):
            continue
        elif suffix == "sum":
            model.histograms[quantity].total += sample.value
        elif suffix == "count":
            model.histograms[quantity].count += sample.value
        else:
            model.sums[quantity] += sample.value
            model.series[quantity] += 1


SCRAPE: Final = Format("vllm-metrics", _is_scrape, _rows)
