"""Results of `vllm bench serve` (and of the script before it), and the summary of a vLLM sweep."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final

from pydantic import AliasChoices, BeforeValidator, Field

from lambdamax.benchmarks.content import Cells
from lambdamax.benchmarks.measured import Row, noted, ratio, scaled, token_mean
from lambdamax.benchmarks.requests import Request, latencies_of
from lambdamax.benchmarks.shape import (
    MS,
    Format,
    MaybeNotNegative,
    MaybePositive,
    MaybeText,
    NotNegative,
    OfferedRate,
    Positive,
    Refused,
    Shape,
    has,
    rows_of_lines,
)

_OWN: Final = ("model_id", "duration", "completed", "total_output_tokens", "request_throughput")
_SIDE_BY_SIDE: Final = ("ttfts", "itls", "latencies", "input_lens", "output_lens", "start_times", "errors")
_DATE: Final = re.compile(r"^(\d{4})(\d\d)(\d\d)-\d{6}$")
_OVERRIDES_NOT_NOTED: Final = frozenset({"", "run_number"})


def _listed(cell: Any) -> Any:
    """A list that a CSV cell holds as Python writes it."""
    if not isinstance(cell, str):
        return cell
    try:
        return ast.literal_eval(cell) if cell.strip() else ()
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return cell


Numbers = Annotated[tuple[NotNegative, ...], BeforeValidator(_listed)]


class ClientLatencies(Shape):
    """Latencies in ms by the names that vLLM and SGLang share; absent where the run was not asked for them."""

    mean_ttft_ms: MaybeNotNegative = None
    median_ttft_ms: MaybeNotNegative = None
    p90_ttft_ms: MaybeNotNegative = None
    p99_ttft_ms: MaybeNotNegative = None
    mean_tpot_ms: MaybeNotNegative = None
    median_tpot_ms: MaybeNotNegative = None
    p90_tpot_ms: MaybeNotNegative = None
    p99_tpot_ms: MaybeNotNegative = None
    mean_itl_ms: MaybeNotNegative = None
    median_itl_ms: MaybeNotNegative = None
    p99_itl_ms: MaybeNotNegative = None

    def latencies(self, mean_e2e_ms: float | None, median_e2e_ms: float | None, p99_e2e_ms: float | None) -> Row:
        """The latencies in seconds; 0, which these tools write for a phase that no request had, is null."""
        found = {
            f"{metric}_{ours}_s": scaled(getattr(self, f"{theirs}_{metric}_ms", None) or None, MS)
            for metric in ("ttft", "tpot", "itl")
            for theirs, ours in (("mean", "mean"), ("median", "p50"), ("p90", "p90"), ("p99", "p99"))
            if (metric, ours) != ("itl", "p90")
        }
        e2e = (("mean", mean_e2e_ms), ("p50", median_e2e_ms), ("p99", p99_e2e_ms))
        return found | {f"e2e_{ours}_s": scaled(value or None, MS) for ours, value in e2e}


class _Result(ClientLatencies):
    """One result: the keys that every version since 0.6.6 shares, those of some versions, and metadata of the user."""

    date: MaybeText = None
    model_id: MaybeText
    num_prompts: MaybePositive = None
    request_rate: OfferedRate = None
    max_concurrency: MaybePositive = None
    duration: Positive
    completed: NotNegative
    failed: MaybeNotNegative = None
    total_input_tokens: NotNegative
    total_output_tokens: NotNegative
    request_throughput: NotNegative
    output_throughput: MaybeNotNegative = None
    total_token_throughput: MaybeNotNegative = None
    mean_e2el_ms: MaybeNotNegative = None
    median_e2el_ms: MaybeNotNegative = None
    p99_e2el_ms: MaybeNotNegative = None
    spec_decode_acceptance_rate: MaybeNotNegative = None
    input_lens: Numbers = ()
    output_lens: Numbers = ()
    ttfts: Numbers = ()
    itls: Annotated[tuple[tuple[float, ...], ...], BeforeValidator(_listed)] = ()
    latencies_s: Numbers = Field((), alias="latencies")
    start_times: Numbers = ()
    errors: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    model: MaybeText = None
    gpu: MaybeText = None
    gpus: MaybePositive = Field(None, validation_alias=AliasChoices("gpus", "num_gpus"))
    tp: MaybePositive = Field(None, validation_alias=AliasChoices("tp", "tensor_parallel_size"))
    pp: MaybePositive = Field(None, validation_alias=AliasChoices("pp", "pipeline_parallel_size"))
    ep: MaybePositive = None
    engine: MaybeText = None
    engine_version: MaybeText = Field(None, validation_alias=AliasChoices("engine_version", "version"))
    weight_dtype: MaybeText = Field(None, validation_alias=AliasChoices("weight_dtype", "quantization", "dtype"))
    kv_dtype: MaybeText = Field(None, validation_alias=AliasChoices("kv_dtype", "kv_cache_dtype"))

    def row(self) -> Row:
        found = self.latencies(self.mean_e2el_ms, self.median_e2el_ms, self.p99_e2el_ms)
        logged = self._logged()
        found |= {name: value for name, value in logged.items() if found.get(name) is None}
        osl = ratio(self.total_output_tokens, self.completed)
        if found.get("tpot_token_mean_s") is None:
            found["tpot_token_mean_s"] = token_mean(found["e2e_mean_s"], found["ttft_mean_s"], osl)
        return {**self._stated(), **found, "osl_tokens": osl, "statistic": "mean"}

    def _stated(self) -> Row:
        asked = self.num_prompts
        facts = ("gpu", "gpus", "tp", "pp", "ep", "engine", "engine_version", "weight_dtype", "kv_dtype")
        return {
            **{name: getattr(self, name) for name in facts},
            "date": _DATE.sub(r"\1-\2-\3", self.date) if self.date else None,
            "model": self.model or self.model_id,
            "load": load_of(self.request_rate, self.max_concurrency),
            "isl_tokens": ratio(self.total_input_tokens, self.completed),
            "concurrency": self.max_concurrency,
            "request_rate_offered_rps": self.request_rate,
            "request_rate_rps": self.request_throughput or None,
            "prompts": asked,
            "requests": self.completed,
            "failed": self.failed if self.failed is not None or asked is None else max(asked - self.completed, 0.0),
            "duration_s": self.duration,
            "output_tok_s": self.output_throughput or None,
            "total_tok_s": self.total_token_throughput or None,
            "input_tok_s": ratio(self.total_input_tokens, self.duration),
            "speculative": None if self.spec_decode_acceptance_rate is None else True,
        }

    def _logged(self) -> Row:
        """What the lists of requests add: E2E where it was not asked for, the token mean. They are in seconds."""
        columns = {name: getattr(self, "latencies_s" if name == "latencies" else name) for name in _SIDE_BY_SIDE}
        count = max(map(len, columns.values()))
        for name, values in columns.items():
            if values and len(values) != count:
                raise Refused(name, f"{len(values)} values", f"as many as the other lists of requests: {count}")
        requests = list(self._requests(columns, count))
        return latencies_of(requests) if requests else {}

    def _requests(self, columns: Mapping[str, tuple[Any, ...]], count: int) -> Iterator[Request]:
        """Those that completed: a failed one has an error, or zeros for its times."""
        for place in range(count):
            one = {name: values[place] for name, values in columns.items() if values}
            gaps = one.get("itls", ())
            e2e = one.get("latencies") or (one["ttfts"] + sum(gaps) if one.get("ttfts") else 0.0)
            if e2e > 0 and not one.get("errors"):
                yield Request(
                    one.get("ttfts"),
                    e2e,
                    one.get("output_lens"),
                    one.get("input_lens"),
                    one.get("start_times"),
                    tuple(gap for gap in gaps if gap > 0),
                )


def load_of(rate_rps: float | None, concurrency: float | None) -> str:
    """What drives a client: a rate, so many clients, or every request at once."""
    if rate_rps is not None:
        return "open"
    return "burst" if concurrency is None else "closed"


def _is_result(value: Any) -> bool:
    return has(value, *_OWN) or has(value, "model_id", "duration", "completed", "total_input_sequences")


def _result(value: Any) -> list[Row]:
    if "total_input_sequences" in value:
        raise Refused("total_input_sequences", value["total_input_sequences"], "absent: a run that generates tokens")
    return [_Result.model_validate(value).row()]


def _is_sweep(value: Any) -> bool:
    return isinstance(value, Cells) and {*_OWN, "run_number"} <= set(value.lines[0])


def _sweep(value: Cells) -> list[Row]:
    names = value.lines[0]
    changing = [name for name in names[names.index("run_number") :] if name not in _OVERRIDES_NOT_NOTED]
    return rows_of_lines(value, partial(_run, changing))


def _run(changing: Sequence[str], record: Mapping[str, str]) -> Row:
    stated = {name: cell for name, cell in record.items() if cell != ""}
    row = _Result.model_validate({"model_id": None, **stated}).row()
    return {**row, "notes": noted(f"run {record['run_number']}", *(f"{name}={record[name]}" for name in changing))}


SERVE: Final = Format("vllm-bench-serve", _is_result, _result)
SWEEP: Final = Format("vllm-sweep", _is_sweep, _sweep)
