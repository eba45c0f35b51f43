"""Everything that lambdamax raises, in one tree."""

from __future__ import annotations

from dataclasses import dataclass


class LambdamaxError(Exception):
    """Base of every error of this package: the user's mistake, told in words the user can act on."""


@dataclass(frozen=True)
class Fault:
    """One mistake: where it is (`file`, `key`), what was found (`value`) and what is `allowed`."""

    file: str
    key: str
    value: str
    allowed: str

    def __str__(self) -> str:
        """One line: the place, the value, what is allowed."""
        found = f"{self.key} = {self.value}" if self.value else self.key
        where = f"{self.file}: {found}" if found else self.file
        return f"{where}: allowed: {self.allowed}"


class _FaultsError(LambdamaxError):
    """An error that reports every mistake at once, one line each."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        self.faults = faults
        super().__init__("\n".join(map(str, faults)))


class SpecError(_FaultsError):
    """A sweep file cannot be used; `faults` holds every reason."""


class FrameError(_FaultsError):
    """A frame of points cannot be solved; `faults` holds every reason."""


class CatalogError(LambdamaxError):
    """A fact about a model, an accelerator, a price or a profile is missing or cannot be read."""


class UnknownName(CatalogError):  # noqa: N818
    """The catalogue holds nothing under that name."""


class StoreError(LambdamaxError):
    """A directory of parts cannot be written, resumed or read."""


class SimulationError(_FaultsError):
    """A simulation cannot be run as asked; `faults` holds every reason."""


class QuestionError(_FaultsError):
    """A question about one point cannot be answered as asked; `faults` holds every reason."""


class BenchmarkError(_FaultsError):
    """Files of benchmarks cannot be read, or lack what is asked of them; `faults` holds every reason."""


class MeasurementError(_FaultsError):
    """Measurements cannot be read or used; `faults` holds every reason."""
