"""What is wanted of points: which columns are to be large or small, within which groups, and how many are kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from lambdamax import columns
from lambdamax.exceptions import Fault, FrameError

DEFAULT_OBJECTIVE: Final = "requests_per_usd"
DEFAULT_COMPARE: Final = "gpu"
MOST_BEST: Final = 1000
_DIRECTIONS: Final = ("max", "min")
_FILE: Final = "frontier"


@dataclass(frozen=True)
class Objective:
    """A column, and whether it is to be large (`max`) or small (`min`)."""

    column: str
    direction: str = "max"

    @property
    def sign(self) -> float:
        """1 where larger is better, else -1."""
        return 1.0 if self.direction == "max" else -1.0

    def __str__(self) -> str:
        """As the command line has it, such as `tpot_mean_s:min`."""
        return f"{self.column}:{self.direction}"


@dataclass(frozen=True)
class Goal:
    """Which points of each group are wanted: those with one value in each of the columns `keys` are a group.

    `best` is how many are kept of each, by the one objective; 0 keeps the Pareto set of the objectives. The last key is
    what competes within a group where the goal is a ranking.
    """

    objectives: tuple[Objective, ...]
    keys: tuple[str, ...]
    best: int

    @classmethod
    def ranking(cls, objective: Objective, by: Iterable[str], compare: str, best: int = 1) -> Self:
        """The `best` points of each value of `compare` within each group of `by`."""
        return cls((objective,), (*(name for name in dict.fromkeys(by) if name != compare), compare), best)

    @classmethod
    def pareto(cls, objectives: Iterable[Objective], by: Iterable[str]) -> Self:
        """The points of each group of `by` that no other beats."""
        return cls(tuple(objectives), tuple(dict.fromkeys(by)), 0)

    @classmethod
    def read(cls, stated: Mapping[str, Any]) -> Self:
        """What `as_json` wrote."""
        objectives = tuple(Objective(**each) for each in stated["objectives"])
        return cls(objectives, tuple(stated["keys"]), int(stated["best"]))

    def as_json(self) -> dict[str, Any]:
        """For manifests."""
        return asdict(self)

    def answers(self, asked: Goal) -> bool:
        """Whether the points that this goal keeps hold all that `asked` wants."""
        same = (self.objectives, self.best == 0) == (asked.objectives, asked.best == 0)
        return same and set(asked.keys) <= set(self.keys) and asked.best <= self.best

    def __str__(self) -> str:
        """In words."""
        named = ", ".join(map(str, self.objectives))
        of_each = f" of each {', '.join(self.keys)}" if self.keys else ""
        if not self.best:
            return f"the points{of_each} that no other beats in {named}"
        return f"the best {self.best if self.best > 1 else 'point'}{of_each} by {named}"


def objectives_of(pairs: Mapping[str, str]) -> tuple[Objective, ...]:
    """The objectives of columns and their directions."""
    return tuple(Objective(column, direction) for column, direction in pairs.items())


def parse_objectives(text: str) -> dict[str, str]:
    """Columns and directions of a text such as `requests_per_usd:max,tpot_mean_s:min`; without a direction, `max`."""
    found = (part.strip().partition(":") for part in text.split(",") if part.strip())
    return {column.strip(): direction.strip() or "max" for column, _, direction in found}


def given_columns(present: Iterable[str]) -> list[str]:
    """The columns that the customer brings: model, workload, SLO and price plan."""
    there = set(present)
    return [column.name for column in columns.inputs() if column.role == "given" and column.name in there]


def checked(goal: Goal, present: Sequence[str], *, compare: str | None = None) -> Goal:
    """`goal`, if the columns `present` can answer it. Raises FrameError that names every fault."""
    faults = [*_key_faults(goal, present, compare), *_objective_faults(goal, present)]
    if not 0 <= goal.best <= MOST_BEST:
        faults.append(Fault(_FILE, "best", str(goal.best), f"a whole number from 1 to {MOST_BEST}"))
    if "status" not in present:
        faults.append(Fault(_FILE, "status", "nothing", "solved points, with a column status"))
    if faults:
        raise FrameError(tuple(faults))
    return goal


def _key_faults(goal: Goal, present: Sequence[str], compare: str | None) -> Iterator[Fault]:
    inputs = [column.name for column in columns.inputs() if column.name in present]
    for name in goal.keys:
        if name not in inputs:
            yield Fault(_FILE, "compare" if name == compare else "by", name, f"one of {', '.join(inputs)}")


def _objective_faults(goal: Goal, present: Sequence[str]) -> Iterator[Fault]:
    numbers = [each.name for each in columns.point_columns() if not each.is_text and each.role == "answer"]
    allowed = [name for name in numbers if name in present]
    if not goal.objectives:
        yield Fault(_FILE, "pareto", "nothing", "columns with directions, such as requests_per_usd:max,tpot_mean_s:min")
    for objective in goal.objectives:
        key = "pareto" if not goal.best else {"max": "maximize", "min": "minimize"}.get(objective.direction, "maximize")
        if objective.column not in allowed:
            yield Fault(_FILE, key, objective.column, f"one of {', '.join(allowed)}")
        if objective.direction not in _DIRECTIONS:
            yield Fault(_FILE, key, str(objective), f"{objective.column}:max or {objective.column}:min")
