"""Checking measured operating points against the laws that every run obeys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lambdamax.audit.curves import rising
from lambdamax.audit.finding import SEVERITIES, Finding
from lambdamax.audit.physics import Bounds, Key, bounds_of, keys_of, missing, prefill_s, prompt_floor, token_floor, work
from lambdamax.audit.point import Point
from lambdamax.audit.populations import decoding, enough_requests, in_flight, queued, running
from lambdamax.audit.tokens import median_parts, parts_of_e2e, percentiles, plausible_unit, reply_length, token_rates
from lambdamax.audit.windows import counted, long_enough, served
from lambdamax.catalog import Catalog, load_catalog

if TYPE_CHECKING:
    import polars as pl

_Law = Callable[[Point], Iterator[Finding]]
_LAWS: Final[tuple[_Law, ...]] = (
    in_flight,
    decoding,
    enough_requests,
    running,
    token_rates,
    parts_of_e2e,
    median_parts,
    reply_length,
    percentiles,
    plausible_unit,
    long_enough,
    counted,
    served,
)
_BOUNDED: Final = (token_floor, work, prompt_floor)


@dataclass(frozen=True)
class Found:
    """A finding and the row it is of: its number in the table, file and place in the file."""

    row: int
    file: str
    place: str
    finding: Finding

    def as_json(self) -> dict[str, Any]:
        """Plain values, flat but for the sides."""
        return {"row": self.row, "file": self.file, "place": self.place, **self.finding.as_json()}


@dataclass(frozen=True)
class Audit:
    """Every finding in the order of the rows; for how many rows the device's bounds could not be checked, and why."""

    rows: int
    findings: tuple[Found, ...]
    not_checked: Mapping[str, int]

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """How many findings by severity and law."""
        counted = Counter((found.finding.severity, found.finding.law) for found in self.findings)
        return {
            severity: {law: count for (level, law), count in counted.most_common() if level == severity}
            for severity in SEVERITIES
        }

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        findings = [found.as_json() for found in self.findings]
        return {"rows": self.rows, "counts": self.counts, "not_checked": dict(self.not_checked), "findings": findings}


def audit(frame: pl.DataFrame, catalog: Catalog | None = None) -> Audit:
    """What in a table of `read_benchmarks` cannot be, or is not what its name says; one finding for each law and row.

    The device's bounds need the model, the accelerator and their number, of the row and known to the catalogue.
    """
    points = [Point(row) for row in frame.iter_rows(named=True)]
    known = catalog or load_catalog()
    keys = keys_of(points, known)
    bounds = bounds_of([key for key in keys if key is not None], known)
    found = [list(_of(point, bounds.get(key) if key else None)) for point, key in zip(points, keys, strict=True)]
    for place, finding in rising(points):
        found[place].append(finding)
    findings = [_placed(number, points[number], one) for number, some in enumerate(found) for one in some]
    return Audit(len(points), tuple(findings), _not_checked(points, keys, bounds))


def _of(point: Point, bounds: Bounds | None) -> Iterator[Finding]:
    """The findings of one row; a unit that slipped breaks several laws and is said once."""
    raised = [finding for law in _LAWS for finding in law(point)]
    prefill = None if bounds is None or point.get("isl_tokens") is None else prefill_s(point, bounds)
    raised += queued(point, bounds.pool_tokens if bounds else None, prefill)
    if bounds is not None:
        raised += (finding for law in _BOUNDED for finding in law(point, bounds))
    slipped = next((finding for finding in raised if finding.law == "unit"), None)
    if slipped is None:
        yield from raised
        return
    yield slipped
    yield from (finding for finding in raised if finding.law in ("percentiles rise", "reply length", "requests sent"))


def _placed(number: int, point: Point, finding: Finding) -> Found:
    return Found(number, point.row["file"] or "", point.row["place"] or "", finding)


def _not_checked(points: Sequence[Point], keys: Sequence[Key | None], bounds: Mapping[Key, Bounds]) -> dict[str, int]:
    reasons = Counter[str]()
    for point, key in zip(points, keys, strict=True):
        if key is None:
            lacks = missing(point)
            reasons[f"no {', '.join(lacks)}" if lacks else "a model or device that the catalogue does not know"] += 1
        elif key not in bounds:
            reasons["a model that cannot be sized, or a format that the device cannot compute in"] += 1
    return dict(reasons)
