"""Which constants a fit may move, how far from where they start, and what they are after a move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lambdamax.calibration.predicted import Predictor, Run
from lambdamax.replicas import ReplicaRow

Floats = NDArray[np.float64]
SHARE, TIME, ABOVE_ONE = "share", "time", "above one"


class Free(NamedTuple):
    """A constant that a fit may move: `kind` says where it may go, `spread` is one standard deviation of its logarithm.

    A time that starts at nothing starts at `least` instead.
    """

    kind: str
    spread: float
    least: float = 0.0


# How far a constant lies from that of a family's default: between GPUs and engines of docs/calibration.md.
CONSTANTS: Final[Mapping[str, Free]] = {
    "gemm_bandwidth_efficiency": Free(SHARE, 0.3),
    "gemm_flops_efficiency": Free(SHARE, 0.4),
    "roofline_exponent": Free(ABOVE_ONE, 1.0),
    "attention_bandwidth_efficiency": Free(SHARE, 0.3),
    "prefill_attention_flops_efficiency": Free(SHARE, 0.4),
    "step_overhead_s": Free(TIME, 1.0),
    "sequence_overhead_s": Free(TIME, 1.0),
    "layer_floor_s": Free(TIME, 0.7),
    "allreduce_latency_s": Free(TIME, 0.8),
    "allreduce_latency_per_doubling_s": Free(TIME, 0.8),
    "allreduce_bandwidth_efficiency": Free(SHARE, 0.5),
    "prefill_layer_overhead_s": Free(TIME, 1.5, 2e-5),
    "host_latency_s": Free(TIME, 1.0),
    "host_latency_per_token_s": Free(TIME, 1.0),
}
OF_LATENT_ATTENTION: Final = {"latent_layer_floor_s": Free(TIME, 1.0)}
OF_EXPERTS: Final = {"expert_load_imbalance": Free(ABOVE_ONE, 0.5)}
OF_PCIE: Final = {
    "pcie_allreduce_latency_s": Free(TIME, 0.8),
    "pcie_allreduce_latency_per_doubling_s": Free(TIME, 0.8),
    "pcie_bandwidth_efficiency": Free(SHARE, 0.5),
}
LARGEST_MOVE: Final = 6.0
# Of a run: the logarithm of the odds, and of the share.
GATHERED_ODDS: Final = (-2.0, 1.5)
HANDOVER: Final = (0.05, 1.5)
OF_RUN: Final = ("gathered_share", "handover")
UNSPLIT: Final = (0.3, 0.7)
OF_UNSPLIT: Final = ("unsplit_share",)


@dataclass(frozen=True)
class Freedom:
    """The constants that rows on some replicas may tell, by name, in the order of a vector of moves; runs come last."""

    constants: Mapping[str, Free]
    of_run: tuple[str, ...] = OF_RUN

    @classmethod
    def of(cls, rows: Predictor) -> Freedom:
        """What is worth fitting to `rows`."""
        replicas = rows.replicas
        latent = any(block["latent_elements"] > 0 for row in replicas for block in row.blocks)
        spread = any(row.fields["ep"] > 1 for row in replicas)
        split = any(row.fields["tp"] > 1 and not _joined(row) for row in replicas)
        return cls(
            {
                **CONSTANTS,
                **(OF_LATENT_ATTENTION if latent else {}),
                **(OF_EXPERTS if spread else {}),
                **(OF_PCIE if split else {}),
            },
            (*OF_RUN, *(OF_UNSPLIT if any(rows.unsplit) else ())),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Of constants, then of what a run adds."""
        return (*self.constants, *self.of_run)

    def moved(self, moves: Floats, row: ReplicaRow) -> dict[str, float]:
        """The constants of `row` after `moves`, in standard deviations of each."""
        pairs = zip(self.constants.items(), moves, strict=False)
        return {name: _moved(free, row.fields[name], float(move)) for (name, free), move in pairs}

    def run(self, moves: Floats) -> Run:
        """What a run adds after `moves`."""
        odds, spread = GATHERED_ODDS
        gathered, handover, *unsplit = moves[len(self.constants) :]
        found = Run(float(1 / (1 + np.exp(-(odds + spread * gathered)))), _run_value(HANDOVER, handover))
        return replace(found, unsplit_share=_run_value(UNSPLIT, unsplit[0])) if unsplit else found


def _run_value(usual_and_width: tuple[float, float], move: float) -> float:
    usual, width = usual_and_width
    return float(usual * np.exp(width * move))


def _moved(free: Free, start: float, move: float) -> float:
    factor = float(np.exp(free.spread * move))
    if free.kind == ABOVE_ONE:
        return 1.0 + (max(start, 1.2) - 1.0) * factor if move else start
    if free.kind == SHARE:
        return min(start * factor, 1.0)
    return max(start, free.least) * factor if move else start


def _joined(row: ReplicaRow) -> bool:
    fields = row.fields
    return fields["tp"] * fields["dp"] <= fields["scaleup_domain_size"] and fields["scaleup_bytes_per_s"] > 0
