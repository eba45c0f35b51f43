"""Empirical laws of lengths: pairs of prompt and output tokens as they were seen, shipped or in a CSV file."""

from __future__ import annotations

import gzip
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from lambdamax.exceptions import CatalogError, Fault
from lambdamax.facts import DATA, bad, checksum, read_bytes, read_rows
from lambdamax.tables import Check, Column, Line, any_text, parse_table, positive

_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "isl_tokens": ("isl_tokens", "input_tokens", "ContextTokens"),
    "osl_tokens": ("osl_tokens", "output_tokens", "GeneratedTokens"),
}
_WEIGHT: Final = "weight"
_IGNORED: Final = ("arrival_s", "TIMESTAMP")
_MOST_TOKENS: Final = 1e9
_LEAST_MEAN_OUTPUT: Final = 2.0
_SHOWN_FAULTS: Final = 5


@dataclass(frozen=True, eq=False)
class LengthTable:
    """A joint law of prompt and output lengths [tokens]: each pair once, with its weight.

    Lengths are whole and 1 or more, weights above 0 on a scale of their own; the mean output is 2 or more. `source` and
    `license` are where a shipped table is from; `checksum` is that of the file.
    """

    name: str
    isl_tokens: tuple[float, ...]
    osl_tokens: tuple[float, ...]
    weight: tuple[float, ...]
    checksum: str
    source: str = ""
    license: str = ""
    notes: str = ""

    @classmethod
    def of(cls, name: str, pairs: Mapping[tuple[float, float], float], checksum: str, **about: str) -> LengthTable:
        """The law of `pairs` (prompt, output), each with its weight."""
        prompts, outputs = zip(*pairs, strict=True)
        return cls(name, prompts, outputs, tuple(pairs.values()), checksum, **about)

    @cached_property
    def moments(self) -> dict[str, float]:
        """Means [tokens] and coefficients of variation, by column."""
        found: dict[str, float] = {}
        for name, values in (("isl", self.isl_tokens), ("osl", self.osl_tokens)):
            mean = _mean(values, self.weight)
            variance = _mean([(value - mean) ** 2 for value in values], self.weight)
            found |= {f"{name}_tokens": mean, f"{name}_cv": math.sqrt(variance) / mean}
        return found

    def drawn(self, count: int, draws: random.Random) -> tuple[list[float], list[float]]:
        """Prompts and outputs of `count` requests."""
        pairs = list(zip(self.isl_tokens, self.osl_tokens, strict=True))
        chosen = draws.choices(pairs, self.weight, k=count)
        return [prompt for prompt, _ in chosen], [output for _, output in chosen]

    def output_slices(self, count: int) -> list[float]:
        """Mean outputs of `count` slices of equal weight, the shortest first."""
        ordered = sorted(zip(self.osl_tokens, self.weight, strict=True))
        slice_weight = math.fsum(self.weight) / count
        sums, before = [0.0] * count, 0.0
        for output, weight in ordered:
            left = weight
            while left > 0:
                place = min(int(before / slice_weight), count - 1)
                room = math.inf if place == count - 1 else (place + 1) * slice_weight - before
                part = min(left, room) if room > 0 else left
                sums[place] += part * output
                before, left = before + part, left - part
        return [total / slice_weight for total in sums]


def shipped_lengths() -> tuple[str, ...]:
    """Names of the tables in the package data."""
    return tuple(row["name"] for row in read_rows("lengths.csv"))


def shipped_table(name: str) -> LengthTable:
    """The table `name` of the package data."""
    row = next(row for row in read_rows("lengths.csv") if row["name"] == name)
    path = DATA / row["file"]
    content = read_bytes(path)
    about = {"source": row["source_url"], "license": f"{row['license']}, {row['attribution']}", "notes": row["notes"]}
    return _parsed(name, path, gzip.decompress(content).decode(), checksum(content), **about)


def read_lengths(path: Path) -> LengthTable:
    """The table in the CSV file at `path`: `isl_tokens`, `osl_tokens` and perhaps `weight` (requests of that pair).

    Traces may say `input_tokens`, `output_tokens` or `ContextTokens`, `GeneratedTokens`; arrivals are not looked at.
    Raises CatalogError that names every fault: file and line, column, value, and what is allowed.
    """
    content = read_bytes(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise bad(path, "content", f"({error})", "text in UTF-8") from error
    return _parsed(path.stem, path, text, checksum(content))


def _parsed(name: str, path: Path, text: str, digest: str, **about: str) -> LengthTable:
    heading = [cell.strip() for cell in text.partition("\n")[0].split(",")]
    names = [next((alias for alias in aliases if alias in heading), own) for own, aliases in _NAMES.items()]
    faults: list[str] = []
    lines = parse_table(text, path, _columns(names, _WEIGHT in heading), faults)
    if not lines and not faults:
        faults.append(str(Fault(str(path), "requests", "none", "one or more")))
    pairs = _pairs(lines, names)
    if not faults and (mean := _mean([output for _, output in pairs], list(pairs.values()))) < _LEAST_MEAN_OUTPUT:
        allowed = f"{_LEAST_MEAN_OUTPUT:g} or more: without a decode phase there is no time per output token"
        faults.append(str(Fault(str(path), f"mean {names[1]}", f"{mean:.6g}", allowed)))
    if faults:
        raise CatalogError("\n".join(_some(faults)))
    return LengthTable.of(name, pairs, digest, **about)


def _columns(names: Sequence[str], weighted: bool) -> list[Column]:
    checks: dict[str, Check] = {**dict.fromkeys(names, _tokens), _WEIGHT: positive, **dict.fromkeys(_IGNORED, any_text)}
    return [Column(name, name in names or (name == _WEIGHT and weighted), check) for name, check in checks.items()]


def _pairs(lines: Iterable[Line], names: Sequence[str]) -> dict[tuple[float, float], float]:
    pairs: dict[tuple[float, float], float] = {}
    for line in lines:
        prompt, output = (float(line.row[name]) for name in names)
        pairs[prompt, output] = pairs.get((prompt, output), 0.0) + float(line.row[_WEIGHT] or 1)
    return pairs


def _tokens(text: str) -> str | None:
    try:
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        value = math.nan
    return None if 1 <= value <= _MOST_TOKENS and value == int(value) else "a whole number from 1 to 1e9"


def _some(faults: list[str]) -> list[str]:
    more = len(faults) - _SHOWN_FAULTS
    return [*faults[:_SHOWN_FAULTS], f"… and {more} more faults"] if more > 1 else faults


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return math.fsum(value * weight for value, weight in zip(values, weights, strict=True)) / math.fsum(weights)
