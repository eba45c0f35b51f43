"""Aggregated results of InferenceX: latencies in seconds, throughput for each accelerator."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BeforeValidator

from lambdamax.benchmarks.measured import Row, noted, scaled
from lambdamax.benchmarks.shape import Format, MaybeNotNegative, MaybePositive, MaybeText, Positive, Refused, Shape, has

_TIMES: Final = (
    *(("ttft", name) for name in ("mean", "p50", "p90", "p99")),
    *(("tpot", name) for name in ("mean", "p50", "p90", "p99")),
    *(("itl", name) for name in ("mean", "p50", "p99")),
)
_FLAGS: Final = {"true": True, "false": False}
Flag = Annotated[bool, BeforeValidator(lambda value: _FLAGS.get(value, value) if isinstance(value, str) else value)]


class _Result(Shape):
    """`*_intvty` is 1000/TPOT, of which p99 is the slow tail: TPOT is read instead. Lengths are nominal."""

    hw: str
    model: MaybeText = None
    framework: MaybeText = None
    precision: MaybeText = None
    conc: Positive
    isl: MaybePositive = None
    osl: MaybePositive = None
    tp: MaybePositive = None
    pp: MaybePositive = None
    pcp_size: MaybePositive = None
    ep: MaybePositive = None
    num_prefill_gpu: MaybePositive = None
    num_decode_gpu: MaybePositive = None
    dp_attention: Flag = False
    disagg: Flag = False
    spec_decoding: str | None = None
    tput_per_gpu: MaybeNotNegative = None
    output_tput_per_gpu: MaybeNotNegative = None
    input_tput_per_gpu: MaybeNotNegative = None
    mean_ttft: MaybeNotNegative = None
    p50_ttft: MaybeNotNegative = None
    p90_ttft: MaybeNotNegative = None
    p99_ttft: MaybeNotNegative = None
    mean_tpot: MaybeNotNegative = None
    p50_tpot: MaybeNotNegative = None
    p90_tpot: MaybeNotNegative = None
    p99_tpot: MaybeNotNegative = None
    mean_itl: MaybeNotNegative = None
    p50_itl: MaybeNotNegative = None
    p99_itl: MaybeNotNegative = None
    mean_e2el: MaybeNotNegative = None
    p50_e2el: MaybeNotNegative = None
    p99_e2el: MaybeNotNegative = None

    @property
    def gpus(self) -> float:
        """What the throughput was divided by: decode context parallelism takes no accelerators of its own."""
        if self.num_prefill_gpu is not None and self.num_decode_gpu is not None:
            return self.num_prefill_gpu + self.num_decode_gpu
        if self.tp is None:
            raise Refused("tp", None, "a number, or num_prefill_gpu and num_decode_gpu")
        return self.tp * (self.pp or 1.0) * (self.pcp_size or 1.0)

    def row(self) -> Row:
        times = {f"{metric}_{name}_s": getattr(self, f"{name}_{metric}") or None for metric, name in _TIMES}
        e2e = {f"e2e_{name}_s": getattr(self, f"{name}_e2el") or None for name in ("mean", "p50", "p99")}
        return {
            **times,
            **e2e,
            "model": self.model,
            "gpu": self.hw,
            "gpus": self.gpus,
            "tp": self.tp,
            "pp": self.pp,
            "ep": self.ep,
            "weight_dtype": self.precision,
            "engine": self.framework,
            "load": "closed",
            "requested_isl_tokens": self.isl,
            "requested_osl_tokens": self.osl,
            "concurrency": self.conc,
            "output_tok_s": scaled(self.output_tput_per_gpu, self.gpus),
            "input_tok_s": scaled(self.input_tput_per_gpu, self.gpus),
            "total_tok_s": scaled(self.tput_per_gpu, self.gpus),
            "speculative": None if self.spec_decoding is None else self.spec_decoding.casefold() != "none",
            "statistic": "mean",
            "notes": noted(
                "disaggregated" if self.disagg else None, "attention data parallel" if self.dp_attention else None
            ),
        }


def _rows(value: Any) -> list[Row]:
    return [_Result.model_validate(value).row()]


RESULT: Final = Format("inferencex", lambda value: has(value, "hw", "conc", "tput_per_gpu"), _rows)
