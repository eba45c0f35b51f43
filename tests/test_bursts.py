"""The study of bursts: what its header says of the trace's own arrivals, the simulator says of their replay."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from lambdamax.case import Case, Question
from lambdamax.simulate import read_trace, simulate

STUDY = Path(__file__).parent.parent / "sweeps" / "azure-code-bursts.toml"
TRACE = STUDY.with_suffix("") / "azure-2023-code.csv"
REPLICA = {"model": "llama-3.1-8b-instruct", "gpu": "h100-sxm"}
SLO_S, NEAR = 10.0, 0.05
SAID = re.compile(r"plan for (?P<poisson>[\d.]+) req/s .* carry (?P<carried>[\d.]+) req/s", re.DOTALL)


def said() -> dict[str, float]:
    header = STUDY.read_text(encoding="utf-8").replace("\n#", " ")
    found = SAID.search(header)
    assert found is not None
    return {name: float(text) for name, text in found.groupdict().items()}


def replayed_p99_s(rate_rps: float) -> float:
    """TTFT p99 of the trace, sped up or slowed down to a rate."""
    arrivals, prompts, outputs = read_trace(TRACE)
    pace = (len(arrivals) - 1) / (arrivals[-1] - arrivals[0]) / rate_rps
    found = simulate(Question(**REPLICA), trace=([pace * at for at in arrivals], prompts, outputs))
    return float(np.quantile(found.requests["request_ttft_s"], 0.99))


def test_what_poisson_arrivals_promise() -> None:
    numbers = {"slo_ttft_s": SLO_S, "slo_percentile": 99.0}
    planned = Case(Question(**REPLICA, lengths="azure-2023-code", numbers=numbers)).answer["max_rate_rps"]
    assert abs(planned / said()["poisson"] - 1) < 1e-3


def test_what_the_trace_carries() -> None:
    carried = said()["carried"]
    assert replayed_p99_s((1 - NEAR) * carried) < SLO_S < replayed_p99_s((1 + NEAR) * carried)


def test_the_plan_breaks_the_slo() -> None:
    assert replayed_p99_s(said()["poisson"]) > 3 * SLO_S
