"""How many requests per second a fleet of LLM replicas can serve, what stops it, and what that costs.

The public names are loaded when first used, so that `import lambdamax` stays fast.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from lambdamax.exceptions import (
    BenchmarkError,
    CatalogError,
    Fault,
    FrameError,
    LambdamaxError,
    MeasurementError,
    QuestionError,
    SimulationError,
    SpecError,
    StoreError,
    UnknownName,
)

if TYPE_CHECKING:
    from lambdamax.benchmarks import read_benchmarks as read_benchmarks
    from lambdamax.break_even import break_even as break_even
    from lambdamax.calibration.calibrating import Calibration as Calibration
    from lambdamax.calibration.calibrating import calibrate as calibrate
    from lambdamax.calibration.validating import Validation as Validation
    from lambdamax.calibration.validating import validate as validate
    from lambdamax.case import Question as Question
    from lambdamax.catalog import load_catalog as load_catalog
    from lambdamax.claim import check_claim as check_claim
    from lambdamax.curve import curve as curve
    from lambdamax.decode import decode as decode
    from lambdamax.decode import decode_curve as decode_curve
    from lambdamax.demand import replicas_for as replicas_for
    from lambdamax.elasticity import elasticities as elasticities
    from lambdamax.engine import __version__ as __version__
    from lambdamax.finite_run import finite_run as finite_run
    from lambdamax.frontier import frontier as frontier
    from lambdamax.frontier import kept_goal as kept_goal
    from lambdamax.frontier import pareto as pareto
    from lambdamax.frontier import write_frontier as write_frontier
    from lambdamax.maps import binding_map as binding_map
    from lambdamax.maps import winner_map as winner_map
    from lambdamax.report import report as report
    from lambdamax.robustness import robustness as robustness
    from lambdamax.scan import scan as scan
    from lambdamax.simulate import Simulation as Simulation
    from lambdamax.simulate import simulate as simulate
    from lambdamax.solving import load as load
    from lambdamax.solving import solve as solve
    from lambdamax.spec import Spec as Spec
    from lambdamax.spec import read_spec as read_spec
    from lambdamax.spike import spike as spike
    from lambdamax.sweep import SweepResult as SweepResult
    from lambdamax.sweep import sweep as sweep

__all__ = [
    "BenchmarkError",
    "Calibration",
    "CatalogError",
    "Fault",
    "FrameError",
    "LambdamaxError",
    "MeasurementError",
    "Question",
    "QuestionError",
    "Simulation",
    "SimulationError",
    "Spec",
    "SpecError",
    "StoreError",
    "SweepResult",
    "UnknownName",
    "Validation",
    "__version__",
    "binding_map",
    "break_even",
    "calibrate",
    "check_claim",
    "check_frontier",
    "curve",
    "decode",
    "decode_curve",
    "elasticities",
    "finite_run",
    "frontier",
    "kept_goal",
    "load",
    "load_catalog",
    "pareto",
    "read_benchmarks",
    "read_spec",
    "replicas_for",
    "report",
    "robustness",
    "scan",
    "simulate",
    "solve",
    "spike",
    "sweep",
    "validate",
    "winner_map",
    "write_frontier",
]

_HOMES: Final = {
    "Calibration": "calibration.calibrating",
    "Question": "case",
    "Simulation": "simulate",
    "Spec": "spec",
    "SweepResult": "sweep",
    "Validation": "calibration.validating",
    "__version__": "engine",
    "check_frontier": "winners",
    "binding_map": "maps",
    "break_even": "break_even",
    "check_claim": "claim",
    "calibrate": "calibration.calibrating",
    "curve": "curve",
    "decode": "decode",
    "decode_curve": "decode",
    "elasticities": "elasticity",
    "finite_run": "finite_run",
    "frontier": "frontier",
    "kept_goal": "frontier",
    "load": "solving",
    "load_catalog": "catalog",
    "pareto": "frontier",
    "read_benchmarks": "benchmarks",
    "read_spec": "spec",
    "replicas_for": "demand",
    "report": "report",
    "robustness": "robustness",
    "scan": "scan",
    "simulate": "simulate",
    "solve": "solving",
    "spike": "spike",
    "sweep": "sweep",
    "winner_map": "maps",
    "write_frontier": "frontier",
    "validate": "calibration.validating",
}


class _Package(ModuleType):
    """Keeps a public function's name its own where the module that holds it has the same name."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    setattr(sys.modules[__name__], name, value)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


sys.modules[__name__].__class__ = _Package
