"""The rules of the house, as far as a machine can check them."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from lambdamax import _engine, columns
from lambdamax.catalog import load_catalog
from lambdamax.grid import Grid
from lambdamax.spec import parse_spec

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "python" / "lambdamax"
# By name below the package; a package inside it goes by its own name.
FILES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}
MODULES = sorted(FILES)
RUST = sorted(path for crate in (ROOT / "rust").iterdir() for path in (crate / "src").rglob("*.rs"))
TREES = {name: ast.parse(FILES[name].read_text(encoding="utf-8")) for name in MODULES}

# From the ground up; a module imports only those before it.
PYTHON_FLOORS = [
    *("exceptions", "columns", "units", "facts", "architecture", "accelerators", "dtypes", "engines", "prices"),
    *(
        "profiles",
        "fitted",
        "hub.fields",
        "hub.family",
        "hub.dense_families",
        "hub.expert_families",
        "hub.hybrid_families",
    ),
    *("hub.families", "hub.layers", "hub.feedforward", "hub.mixers", "hub.blocks", "hub.unlike", "hub.extras"),
    *("hub.towers", "hub.dialects", "hub.quantisation", "hub.native", "hub.strays", "hub"),
    *("models", "replicas", "parallelism", "tables", "schemas", "lengths", "overlay"),
    *(
        "catalog",
        "hubclient",
        "adding",
        "names",
        "axes",
        "spec",
        "frames",
        "engine",
        "series",
        "bands",
        "solving",
        "grid",
    ),
    *(
        "freed",
        "group_keys",
        "objectives",
        "store",
        "scan",
        "chunks",
        "reducing",
        "keeping",
        "sweep",
        "frontier",
        "winners",
    ),
    *("maps", "break_even", "elasticity", "robustness", "decode"),
    *("startup_log", "case", "assumptions", "cached", "verdict", "chain"),
    *("operating", "claim", "budget", "explain", "simulate", "demand", "curve", "fluid", "backlog", "ages", "spike"),
    *("finite_run", "played", "checked", "render", "simulated", "model_facts", "listing", "ranking", "choices"),
    *(
        "divided",
        "report.gathered",
        "report.packed",
        "report.views",
        "report.charts",
        "report.provenance",
        "report.page",
    ),
    *("report", "plot", "drawn", "sized", "surges", "grouped", "further", "terminal", "frontier_options"),
    *("sweep_command", "frontier_command", "decode_command", "report_command"),
    *("benchmarks.measured", "benchmarks.content", "benchmarks.shape", "benchmarks.requests", "benchmarks.bench_serve"),
    *("benchmarks.sglang", "benchmarks.guidellm", "benchmarks.aiperf", "benchmarks.inference_perf"),
    *("benchmarks.llmperf", "benchmarks.inferencex", "benchmarks.scrape", "benchmarks.own_csv", "benchmarks.formats"),
    *("benchmarks", "audit.finding", "audit.point", "audit.populations", "audit.tokens", "audit.windows"),
    *("benchmarks.labels", "audit.physics", "audit.curves", "audit", "audit.printed", "auditing"),
    *("calibration", "calibration.published", "calibration.measured", "calibration.rows", "calibration.settings"),
    *("calibration.predicted", "calibration.possible", "calibration.matched", "calibration.freedom"),
    *("calibration.fitting", "calibration.held_out", "calibration.families", "calibration.shipping"),
    *(
        "calibration.errors",
        "calibration.validating",
        "calibration.profile_file",
        "calibration.calibrating",
        "calibration.shown",
    ),
    *("measuring", "cli"),
]
# From the ground up; a module of the core uses none of those after it, and no two use each other.
RUST_GROUND = ("error", "real", "root", "grid", "frontier")
RUST_LADDER = (
    *("accelerator", "parallelism", "memory", "span", "precision", "block", "model", "profile", "step", "replica"),
    *("lengths", "workload", "attention", "ttft", "bursts", "equilibrium", "normal", "mixture", "waiting", "latency"),
    *("capacity", "slo", "sweep"),
)
# What the simulator uses of the core: step times and replicas, and the arithmetic under both.
SHARED_WITH_SIMULATOR = {"iteration", "replica", "real"}
CORE = [path for path in RUST if path.parts[-3] == "lambdamax-core" and path.stem != "lib"]
SIMULATOR = [path for path in RUST if path.parts[-3] == "lambdamax-sim" and path.stem not in ("lib", "invariants")]


def imported(tree: ast.AST) -> set[str]:
    """The modules of the package that a module names in its imports, wherever they stand."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "lambdamax":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lambdamax."):
            found.add((node.module or "").partition(".")[2])
        elif isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[2] for alias in node.names if alias.name.startswith("lambdamax.")}
    return found


@pytest.mark.parametrize("name", PYTHON_FLOORS)
def test_a_python_module_imports_only_floors_below(name: str) -> None:
    below = {*PYTHON_FLOORS[: PYTHON_FLOORS.index(name)], "_engine"}
    assert imported(TREES[name]) <= below


def test_every_module_has_a_floor() -> None:
    assert sorted([*PYTHON_FLOORS, "__init__"]) == MODULES


def test_one_module_alone_calls_the_compiled_engine() -> None:
    assert [name for name, tree in TREES.items() if "_engine" in imported(tree)] == ["engine"]
    assert "_engine" not in (PACKAGE / "__init__.py").read_text(encoding="utf-8")


def code_of(crate: list[Path]) -> dict[str, str]:
    """The text of each module of a crate, tests aside."""
    return {path.stem: path.read_text(encoding="utf-8").split("#[cfg(test)]")[0] for path in crate}


def used_within(crate: list[Path]) -> dict[str, set[str]]:
    """The modules of a crate that each of its modules uses, tests aside."""
    code = code_of(crate)
    return {name: set(re.findall(r"\bcrate::([a-z_]+)", text)) & set(code) - {name} for name, text in code.items()}


def test_rust_modules_stand_on_floors() -> None:
    used = used_within(CORE)
    TopologicalSorter(used).prepare()
    assert {name: used[name] - set(RUST_GROUND) for name in RUST_GROUND if used[name] - set(RUST_GROUND)} == {}
    above = {name: set(RUST_LADDER[place:]) for place, name in enumerate(RUST_LADDER)}
    assert {name: used[name] & above[name] for name in RUST_LADDER if used[name] & above[name]} == {}


def test_simulator_modules_stand_on_floors() -> None:
    used = used_within(SIMULATOR)
    TopologicalSorter(used).prepare()
    floors = re.findall(r"`([a-z]+)`", (ROOT / "rust/lambdamax-sim/src/lib.rs").read_text(encoding="utf-8"))
    assert sorted(floors) == sorted(used)
    above = {name: set(floors[place:]) for place, name in enumerate(floors)}
    assert {name: used[name] & above[name] for name in floors if used[name] & above[name]} == {}


def test_the_simulator_shares_iterations_and_replicas_with_the_solver_and_nothing_else() -> None:
    used = set(re.findall(r"\blambdamax_core::([a-z_]+)", "\n".join(code_of(SIMULATOR).values())))
    assert used == SHARED_WITH_SIMULATOR


@pytest.mark.parametrize("crate", ["lambdamax-core", "lambdamax-sim"])
def test_only_the_binding_knows_python(crate: str) -> None:
    manifest = (ROOT / "rust" / crate / "Cargo.toml").read_text(encoding="utf-8")
    assert not re.search(r"^(pyo3|numpy|polars|arrow)\b", manifest, re.MULTILINE)


def test_every_class_of_the_binding_is_frozen() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in RUST)
    attributes = re.findall(r"#\[pyclass[^\]]*\]", code)
    assert attributes
    assert all("frozen" in attribute for attribute in attributes)


def test_the_stub_names_everything_in_the_engine() -> None:
    tree = ast.parse((PACKAGE / "_engine.pyi").read_text(encoding="utf-8"))
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    targets = [node.target for node in tree.body if isinstance(node, ast.AnnAssign)]
    names = functions | {target.id for target in targets if isinstance(target, ast.Name)}
    assert {name for name in dir(_engine) if not name.startswith("_")} == {name for name in names if name[0] != "_"}


def test_the_front_covers_every_function_of_the_engine() -> None:
    front = (PACKAGE / "engine.py").read_text(encoding="utf-8")
    callables = {name for name in dir(_engine) if not name.startswith("_") and callable(getattr(_engine, name))}
    assert {name for name in callables if f"_engine.{name}" not in front} == set()


def test_a_solved_row_has_the_columns_of_the_dictionary() -> None:
    raw = {"replica": {"model": "qwen3-8b", "gpu": "h100-sxm"}, "workload": {"isl_tokens": 9, "osl_tokens": 9}}
    grid = Grid.of(parse_spec({"name": "one", **raw}), load_catalog())
    solved = grid.solve(0, 1)
    assert solved.columns == [column.name for column in columns.point_columns()]
    assert dict(solved.schema) == grid.schema


def test_every_public_name_is_there_and_a_function_stays_one() -> None:
    import lambdamax.curve
    import lambdamax.finite_run
    import lambdamax.frontier
    import lambdamax.report
    import lambdamax.scan
    import lambdamax.spike
    import lambdamax.sweep

    assert all(hasattr(lambdamax, name) for name in lambdamax.__all__)
    functions = ("curve", "finite_run", "frontier", "load", "report", "scan", "simulate", "solve", "spike", "sweep")
    assert all(callable(getattr(lambdamax, name)) for name in functions)
    assert lambdamax.__version__ == _engine.__version__


def test_explaining_a_point_needs_no_frames() -> None:
    code = "import sys, lambdamax.explain; print(*sorted({'polars', 'pyarrow', 'pydantic'} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert loaded.stdout.strip() == ""


def test_importing_the_package_loads_no_large_library() -> None:
    code = (
        "import sys, lambdamax; print(*sorted({'polars', 'numpy', 'pyarrow', 'pydantic', 'rich'} & set(sys.modules)))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert loaded.stdout.strip() == ""


@pytest.mark.parametrize("name", MODULES)
def test_a_module_says_in_one_line_what_it_is(name: str) -> None:
    docstring = ast.get_docstring(TREES[name])
    assert docstring
    assert docstring.splitlines()[0].endswith((".", ":", "?"))


def test_functions_are_short() -> None:
    lengths = {
        f"{name}.{node.name}": _body_lines(node)
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert statistics.median(lengths.values()) <= 6
    assert statistics.quantiles(lengths.values(), n=10)[-1] <= 25
    assert max(lengths.values()) <= 60


def _body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
