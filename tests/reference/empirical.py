"""Section 4.1 of docs/model.md: an empirical law of lengths, summed row by row; and seeded tables to try it on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
STRATA = 16
TABLES = 12


@dataclass(frozen=True, eq=False)
class Table:
    """Pairs of lengths [tokens], each with its weight on any scale."""

    prompt: Floats
    output: Floats
    weight: Floats

    @property
    def share(self) -> Floats:
        """Weights that sum to 1."""
        return self.weight / self.weight.sum()

    def mean(self, values: Floats) -> float:
        """The mean of one value per row."""
        return float(self.share @ values)

    @property
    def mean_prompt(self) -> float:
        """E[i]."""
        return self.mean(self.prompt)

    @property
    def mean_output(self) -> float:
        """E[o]."""
        return self.mean(self.output)

    @property
    def prompt_cv(self) -> float:
        """Coefficient of variation of the prompt."""
        return float(np.sqrt(self.mean((self.prompt - self.mean_prompt) ** 2))) / self.mean_prompt

    @property
    def output_cv(self) -> float:
        """Coefficient of variation of the output."""
        return float(np.sqrt(self.mean((self.output - self.mean_output) ** 2))) / self.mean_output

    @property
    def context(self) -> float:
        """c-bar, mean context of a decoding sequence."""
        steps = self.output - 1
        return (self.mean(self.prompt * steps) + self.mean(self.output * steps) / 2) / self.mean(steps)


@cache
def table(number: int) -> Table:
    """One of `TABLES` tables: short and long prompts, correlated and not, heavy tails, ties, few rows."""
    random = np.random.Generator(np.random.PCG64([7, number]))
    rows = (1, 2, 3, 17, 60, 200, 200, 500, 500, 900, 2000, 2000)[number]
    common = random.normal(size=rows)
    spread, tie = random.uniform(0.1, 1.6, 2), random.uniform(-0.9, 0.9)
    other = tie * common + np.sqrt(1 - tie**2) * random.normal(size=rows)
    centre = random.uniform(np.log((30, 8)), np.log((20_000, 900)))
    prompt = np.maximum(np.round(np.exp(centre[0] + spread[0] * common)), 1)
    output = np.maximum(np.round(np.exp(centre[1] + spread[1] * other)), 1)
    output[0] = max(output[0], 5.0)
    prompt[random.random(rows) < 0.2] = prompt[0]  # many alike
    weight = random.integers(1, 9, rows) if number % 2 else random.uniform(0.1, 3, rows)
    return Table(prompt, output, weight.astype(np.float64))


def prompt_nodes(law: Table) -> list[tuple[float, float]]:
    """(weight, length) pairs: the two-node Gauss rule of each stratum."""
    lengths, place = np.unique(law.prompt, return_inverse=True)
    share = np.bincount(place, weights=law.share)
    size = (share + share * lengths / (share @ lengths)) / 2
    middle = np.cumsum(size) - size / 2
    stratum = np.minimum(np.floor(STRATA * middle), STRATA - 1)
    nodes: list[tuple[float, float]] = []
    for each in np.unique(stratum):
        nodes += gauss(share[stratum == each], lengths[stratum == each])
    return nodes


def every_prompt(law: Table) -> list[tuple[float, float]]:
    """(weight, length) pairs: every prompt by itself, as a law would have it that were not cut in strata."""
    lengths, place = np.unique(law.prompt, return_inverse=True)
    return list(zip(np.bincount(place, weights=law.share).tolist(), lengths.tolist(), strict=True))


def gauss(weight: Floats, lengths: Floats) -> list[tuple[float, float]]:
    """The roots of the quadratic that is orthogonal to 1 and z, and the weights that keep mass and mean."""
    mass = float(weight.sum())
    if len(lengths) == 1:
        return [(mass, float(lengths[0]))]
    mean = float(weight @ lengths) / mass
    second, third = (float(weight @ (lengths - mean) ** power) / mass for power in (2, 3))
    low, high = np.sort(np.roots([1.0, -third / second, -second]))
    of_low = high / (high - low)
    return [(mass * of_low, mean + low), (mass * (1 - of_low), mean + high)]
