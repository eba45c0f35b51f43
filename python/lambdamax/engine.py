"""Columns in, columns out: the only caller of the compiled engine, for tables, for grids and for one point."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, TypedDict

import numpy as np
from numpy.typing import NDArray

from lambdamax import _engine
from lambdamax.lengths import LengthTable
from lambdamax.replicas import ReplicaRow

Floats = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]
Trace = tuple[Sequence[float], Sequence[float], Sequence[float]]
Memory = _engine.Memory
__version__: Final = _engine.__version__
_NULL: Final = 255
SIM_STATUSES: Final = _engine.SIM_STATUSES
LOAD_STATUSES: Final = _engine.LOAD_STATUSES
_PRICE: Final = "usd_per_accelerator_hour"
_CODES: Final = ("status", "binding_limit", "next_limit")
_LENGTHS: Final = "lengths"
_OF_REQUESTS: Final = "request_"


class Control(TypedDict):
    """How long and how often a simulation runs: see `lambdamax.simulate`."""

    requests: int
    precision: float
    replications: int
    seed: int


def build_profile() -> str:
    """How the engine was compiled: `release` or `debug`."""
    return _engine.build_profile()


# Tables


@dataclass(frozen=True, eq=False)
class ReplicaTable:
    """Replicas as the engine takes them: one array for each field, and the same of their models' blocks of layers."""

    fields: Mapping[str, Floats]
    blocks: Mapping[str, Floats]

    @classmethod
    def of(cls, rows: Sequence[ReplicaRow]) -> Self:
        """The facts of `rows`."""
        models = {id(row.blocks): row.blocks for row in rows}
        number = {key: float(place) for place, key in enumerate(models)}
        fields = {name: _floats(row.fields[name] for row in rows) for name in _engine.REPLICA_FIELDS}
        fields["model"] = _floats(number[id(row.blocks)] for row in rows)
        blocks = [{**block, "model": number[key]} for key, found in models.items() for block in found]
        return cls(fields, {name: _floats(block[name] for block in blocks) for name in _engine.BLOCK_FIELDS})

    def only(self, places: NDArray[np.intp]) -> ReplicaTable:
        """The replicas at `places`."""
        return ReplicaTable({name: values[places] for name, values in self.fields.items()}, self.blocks)


class Replicas:
    """A table of replicas, checked and compiled once; points name a replica, and an empirical law, by its place."""

    def __init__(self, table: ReplicaTable, lengths: Sequence[LengthTable] = ()) -> None:
        """Compile `table`, and the laws that `lengths` of a point refers to."""
        self._compiled = _engine.Replicas(table.fields, table.blocks, list(map(_law, lengths)))

    @classmethod
    def of(cls, rows: Sequence[ReplicaRow], lengths: Sequence[LengthTable] = ()) -> Self:
        """The replicas of catalogue rows."""
        return cls(ReplicaTable.of(rows), lengths)

    def facts(self) -> Arrays:
        """What follows from each replica alone."""
        return self._compiled.facts()

    def solve(self, replica: NDArray[np.uint32], points: Mapping[str, Floats], threads: int) -> Arrays:
        """The answers at `points`, each on its `replica`; names are codes."""
        return _engine.solve(self._compiled, replica, points, threads)

    def load(self, replica: NDArray[np.uint32], points: Mapping[str, Floats], threads: int) -> Arrays:
        """The operating points at the loads in `points`, each on its `replica`; names are codes."""
        return _engine.load(self._compiled, replica, points, threads)

    def solve_grid(
        self,
        axes: Sequence[tuple[str, Floats]],
        prices: Floats,
        rows: tuple[int, int],
        threads: int,
        memory: Memory | None = None,
    ) -> Arrays:
        """Inputs and answers of rows of the product of `axes`, from the first to before the second; names are codes.

        Floats are in `memory`, if there is one: arrays of earlier calls that nobody holds any more are written again.
        """
        return _engine.solve_grid(self._compiled, axes, prices.ravel(), *rows, threads, memory)

    def simulate(
        self,
        replica: NDArray[np.uint32],
        points: Mapping[str, Floats],
        control: Control,
        threads: int,
        trace: tuple[Floats, ...] | None = None,
    ) -> Arrays:
        """What a simulation of each of `points`, on its `replica`, comes to; statuses are codes of `SIM_STATUSES`.

        The columns of `trace` are arrivals [s], input tokens and output tokens.
        """
        return _engine.simulate(self._compiled, replica, points, **control, trace=trace, threads=threads)


class Winners:
    """Winners of groups of points that stream by, in columns of bits (keys) and numbers (larger is better)."""

    def __init__(self, keys: int, objectives: int, best: int, margin: float) -> None:
        """For so many columns of each. `best` points of a group, 0 for its Pareto set; values within `margin` tie."""
        self._compiled = _engine.Frontier(keys, objectives, best, margin)

    def add(
        self,
        keys: Sequence[NDArray[np.uint64]],
        objectives: Sequence[Floats],
        status: NDArray[np.uint8],
        weights: NDArray[np.uint64] | None = None,
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint32]]:
        """Take in a chunk: rows that may be winners, the group of each, first rows of new groups. NaN cannot win."""
        return self._compiled.add(keys, objectives, status, weights)

    def keys(self, column: int) -> NDArray[np.uint64]:
        """One column of the keys of each group, in the order of their first rows."""
        return self._compiled.keys(column)

    def counts(self, status: int) -> NDArray[np.uint64]:
        """Points of each group with a status code, in the order of their first rows; empty where no point has it."""
        return self._compiled.counts(status)


def robustness(options: Mapping[str, Floats], draws: int, seed: int, threads: int) -> dict[str, Floats]:
    """How often each option is the cheapest, and what choosing it costs on average: see `lambdamax.robustness`."""
    return _engine.robustness(options, draws, seed, threads)


# One point


@dataclass(frozen=True)
class Answer:
    """What the engine says about one point: names decoded, `numbers` in SI units by column, NaN where there is none."""

    status: str
    binding_limit: str | None
    next_limit: str | None
    numbers: dict[str, float]


@dataclass(frozen=True)
class Simulated:
    """What a simulation came to: `numbers` as in `Answer`, and times of each request [s], which only a trace has."""

    status: str
    numbers: dict[str, float]
    requests: dict[str, list[float]]


class OneReplica:
    """One replica and one point at a time: numbers by name in, an `Answer` out; an input left out has its default."""

    def __init__(self, row: ReplicaRow, lengths: LengthTable | None = None) -> None:
        """Compile a catalogue row, and the law that every point has, if it is empirical."""
        table = ReplicaTable.of([row])
        laws = [] if lengths is None else [_law(lengths)]
        self._compiled = _engine.Replicas(table.fields, table.blocks, laws)
        self._own = {_LENGTHS: 0.0} if laws else {}
        self.facts = _first(self._compiled.facts())

    def solve(self, point: Mapping[str, float]) -> Answer:
        """The largest rate. `numbers` also holds every input, with what the engine filled in, as a grid of one does."""
        names = dict.fromkeys((*_engine.REPLICA_AXES, *_engine.PRICE_AXES))
        numbers = [name for name in _engine.POINT_FIELDS if name != _PRICE]
        point = {**point, **self._own}
        axes = {**dict.fromkeys(names, 0.0), **{name: point.get(name, math.nan) for name in numbers}}
        arrays = list(_arrays(axes).items())
        price = np.array([point.get(_PRICE, math.nan)], dtype=np.float64)
        solved = _engine.solve_grid(self._compiled, arrays, price, 0, 1, 1)
        return _answer({name: solved[name] for name in solved.keys() - names.keys()}, _engine.STATUSES)

    def load(self, point: Mapping[str, float]) -> Answer:
        """The operating point at `rate_rps`, or at `concurrency` and `think_time_s`, which are in `point`."""
        row = np.zeros(1, dtype=np.uint32)
        return _answer(_engine.load(self._compiled, row, _arrays({**point, **self._own}), 1), LOAD_STATUSES)

    def simulate(
        self, point: Mapping[str, float], control: Control, trace: Trace | None = None, threads: int = 0
    ) -> Simulated:
        """A simulation under the load in `point`, or of a `trace`: arrivals [s], input tokens and output tokens."""
        row = np.zeros(1, dtype=np.uint32)
        columns = None if trace is None else tuple(np.array(values, dtype=np.float64) for values in trace)
        own = _arrays({**point, **self._own})
        found = _engine.simulate(self._compiled, row, own, **control, trace=columns, threads=threads)
        status = SIM_STATUSES[int(found.pop("status")[0])]
        requests = {name: found.pop(name).tolist() for name in list(found) if name.startswith(_OF_REQUESTS)}
        return Simulated(status, _first(found), requests)

    def prompt_nodes(self) -> tuple[Floats, Floats]:
        """Weights and lengths of the prompt nodes of the empirical law (docs/model.md)."""
        return self._compiled.prompt_nodes(0)

    def one_number(self, **inputs: float) -> dict[str, float]:
        """The chain that holds one measured/floor ratio and prefill for free; inputs as the engine names them."""
        return _engine.one_number(self._compiled, 0, **inputs)


def _law(table: LengthTable) -> tuple[Floats, Floats, Floats]:
    return _floats(table.isl_tokens), _floats(table.osl_tokens), _floats(table.weight)


def _floats(values: Iterable[float]) -> Floats:
    return np.array(list(values), dtype=np.float64)


def _arrays(values: Mapping[str, float]) -> dict[str, Floats]:
    return {name: np.array([value], dtype=np.float64) for name, value in values.items()}


def _answer(solved: Mapping[str, NDArray[Any]], statuses: Sequence[str]) -> Answer:
    binding, following = (_name(_engine.LIMITS, solved[name]) if name in solved else None for name in _CODES[1:])
    numbers = _first({name: values for name, values in solved.items() if name not in _CODES})
    return Answer(statuses[int(solved["status"][0])], binding, following, numbers)


def _name(names: Sequence[str], codes: NDArray[Any]) -> str | None:
    return None if codes[0] == _NULL else names[codes[0]]


def _first(arrays: Mapping[str, NDArray[Any]]) -> dict[str, float]:
    return {name: float(values[0]) for name, values in arrays.items()}
