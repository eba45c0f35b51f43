"""The compiled engine. Called by `lambdamax.engine` only.

Arrays are one-dimensional. NaN is "not given" in a float input and "null" in a float answer; 255 is "null" in a code.
A call that makes no sense raises ValueError; a point that cannot be solved is a status.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "ANSWER_FIELDS",
    "BLOCK_FIELDS",
    "LIMITS",
    "LOAD_FIELDS",
    "LOAD_STATUSES",
    "POINT_FIELDS",
    "PRICE_AXES",
    "REPLICA_AXES",
    "REPLICA_FIELDS",
    "SIM_FIELDS",
    "SIM_INPUTS",
    "SIM_STATUSES",
    "STATUSES",
    "Frontier",
    "Memory",
    "Replicas",
    "__version__",
    "build_profile",
    "load",
    "one_number",
    "robustness",
    "simulate",
    "solve",
    "solve_grid",
]
__version__: Final[str]
BLOCK_FIELDS: Final[tuple[str, ...]]
REPLICA_FIELDS: Final[tuple[str, ...]]
POINT_FIELDS: Final[tuple[str, ...]]
ANSWER_FIELDS: Final[tuple[str, ...]]
STATUSES: Final[tuple[str, ...]]
LIMITS: Final[tuple[str, ...]]
LOAD_FIELDS: Final[tuple[str, ...]]
LOAD_STATUSES: Final[tuple[str, ...]]
REPLICA_AXES: Final[tuple[str, ...]]
PRICE_AXES: Final[tuple[str, ...]]
SIM_INPUTS: Final[tuple[str, ...]]
SIM_FIELDS: Final[tuple[str, ...]]
SIM_STATUSES: Final[tuple[str, ...]]

def build_profile() -> str: ...

@final
class Replicas:
    def __new__(
        cls,
        columns: Mapping[str, NDArray[np.float64]],
        blocks: Mapping[str, NDArray[np.float64]],
        lengths: Sequence[tuple[NDArray[np.float64], ...]] = ...,
    ) -> Replicas: ...
    def __len__(self) -> int: ...
    def facts(self) -> dict[str, NDArray[Any]]: ...
    def prompt_nodes(self, place: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]: ...

@final
class Frontier:
    def __new__(cls, keys: int, objectives: int, best: int, margin: float) -> Frontier: ...
    def add(
        self,
        keys: Sequence[NDArray[np.uint64]],
        objectives: Sequence[NDArray[np.float64]],
        status: NDArray[np.uint8],
        weights: NDArray[np.uint64] | None = None,
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint32]]: ...
    def keys(self, column: int) -> NDArray[np.uint64]: ...
    def counts(self, status: int) -> NDArray[np.uint64]: ...

@final
class Memory:
    def __new__(cls) -> Memory: ...

def robustness(
    options: Mapping[str, NDArray[np.float64]], draws: int, seed: int, threads: int = 0
) -> dict[str, NDArray[np.float64]]: ...
def solve(
    replicas: Replicas, replica: NDArray[np.uint32], points: Mapping[str, NDArray[np.float64]], threads: int = 0
) -> dict[str, NDArray[Any]]: ...
def solve_grid(
    replicas: Replicas,
    axes: Sequence[tuple[str, NDArray[np.float64]]],
    prices: NDArray[np.float64],
    start: int,
    stop: int,
    threads: int = 0,
    memory: Memory | None = None,
) -> dict[str, NDArray[Any]]: ...
def load(
    replicas: Replicas, replica: NDArray[np.uint32], points: Mapping[str, NDArray[np.float64]], threads: int = 0
) -> dict[str, NDArray[Any]]: ...
def simulate(
    replicas: Replicas,
    replica: NDArray[np.uint32],
    points: Mapping[str, NDArray[np.float64]],
    *,
    requests: int,
    precision: float,
    replications: int,
    seed: int,
    trace: tuple[NDArray[np.float64], ...] | None = None,
    threads: int = 0,
) -> dict[str, NDArray[Any]]: ...
def one_number(
    replicas: Replicas,
    row: int,
    *,
    isl_tokens: float,
    osl_tokens: float,
    rate_rps: float,
    measured_ttft_s: float,
    measured_tpot_s: float,
    kv_pool_tokens: float,
    slo_tpot_s: float,
) -> dict[str, float]: ...
