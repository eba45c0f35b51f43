"""What engine and rivals are given: points, and a grid whose SLO axes share curves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from lambdamax import _engine
from lambdamax.engine import ReplicaTable
from lambdamax.replicas import ReplicaRow
from rivals.coefficients import Floats, coefficients


@dataclass(frozen=True)
class Points:
    """Replicas by row, and points: the replica of each and its inputs by the engine's names (NaN: not given)."""

    rows: tuple[ReplicaRow, ...]
    replica: NDArray[np.uint32]
    fields: dict[str, Floats]

    def __len__(self) -> int:
        """The number of points."""
        return len(self.replica)

    @cached_property
    def replicas(self) -> _engine.Replicas:
        """The replicas as the engine takes them."""
        table = ReplicaTable.of(self.rows)
        return _engine.Replicas(table.fields, table.blocks)

    @cached_property
    def table(self) -> Floats:
        """The replicas as the rivals take them, one row of coefficients each."""
        return np.array([coefficients(row) for row in self.rows])

    def short_decodes(self, nodes: int) -> tuple[Floats, Floats]:
        """By how much 1/E[1/(o - 1)] is below E[o] - 1, and how slowly that fades as wakes last, by point."""
        osl, cv = self.fields["osl_tokens"], self.fields["osl_cv"]
        if nodes == 1:
            return np.zeros(len(self)), np.ones(len(self))
        x, w = np.polynomial.hermite.hermgauss(nodes)
        variance = np.log1p(cv**2)
        length = np.exp(np.log(osl) - variance / 2.0 + np.sqrt(2.0 * variance) * x[:, None])
        share = np.where(length >= 1.5, w[:, None], 0.0)
        share /= share.sum(axis=0)
        each = 1.0 / np.maximum(length - 1.0, 1.0)
        first, second = (share * each).sum(axis=0), (share * each**2).sum(axis=0)
        missing, variation = np.maximum(osl - 1.0 - 1.0 / first, 0.0), second / first**2 - 1.0
        some = (missing > 0.0) & (variation > 0.0) & (cv > 0.0)
        return np.where(some, missing, 0.0), np.where(some, missing, 1.0) / np.where(some, variation, 1.0)

    def take(self, chosen: NDArray[np.intp] | slice) -> Self:
        """Some of the points."""
        return replace(
            self, replica=self.replica[chosen], fields={name: values[chosen] for name, values in self.fields.items()}
        )


@dataclass(frozen=True)
class SharedGrid:
    """A grid with SLO axes last: `curves` points of everything else, each with the product of the SLO values."""

    curves: Points
    axes: tuple[tuple[str, Floats], ...]
    prices: Floats
    slos: dict[str, Floats]

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.curves) * self.width

    @property
    def width(self) -> int:
        """Rows that share a curve."""
        return int(np.prod([len(values) for values in self.slos.values()]))

    @cached_property
    def flat(self) -> Points:
        """Every row as a point of its own, in the order of the grid."""
        fields = {name: np.repeat(values, self.width) for name, values in self.curves.fields.items()}
        for name, values in zip(self.slos, np.meshgrid(*self.slos.values(), indexing="ij"), strict=True):
            fields[name] = np.tile(values.ravel(), len(self.curves))
        return Points(self.curves.rows, np.repeat(self.curves.replica, self.width), fields)
