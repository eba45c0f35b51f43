"""What the tests of the report share: a small sweep, one with hostile names, and their packed numbers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import lambdamax
from lambdamax.catalog import load_catalog
from lambdamax.facts import DATA
from lambdamax.report.gathered import Gathered, gather
from lambdamax.report.packed import Packed, pack

SPEC = """
name = "small"
question = "Which accelerator for chat?"
[replica]
model = ["llama-3.1-8b-instruct", "qwen3-32b"]
gpu = ["h100-sxm", "mi300x", "b200-sxm", "mi355x", "a10"]
tp = [1, 2]
weight_dtype = ["bf16", "fp8"]
[workload]
isl_tokens = [500, 1000, 4000]
osl_tokens = [100, 200, 400]
[slo]
ttft_s = [0.5, 2]
tpot_s = [0.03, 0.05]
[price]
plan = ["on-demand", "reserved"]
"""

HOSTILE_MODEL = "<img src=x onerror=window.pwned=1>"
HOSTILE_TEXT = "</script><script>window.pwned=2</script><!-- {{ 7 * 7 }} \u2028 |x| & \"'"


def swept(directory: Path, text: str = SPEC) -> Path:
    """The sweep of a spec in `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    spec = directory / "spec.toml"
    spec.write_text(text, encoding="utf-8")
    return lambdamax.sweep(spec, directory / "out", progress=False).directory


def hostile(directory: Path) -> Path:
    """A sweep whose name, question and model are out to do harm: the model is called as its directory is."""
    home = directory / HOSTILE_MODEL
    home.mkdir(parents=True)
    shutil.copy(DATA / "model_configs" / "qwen3-8b.json", home / "config.json")
    named = json.dumps(HOSTILE_TEXT)
    models = f"[{json.dumps(f'{HOSTILE_MODEL}/config.json')}, 'qwen3-8b']"
    return swept(
        directory,
        f"name = {named}\nquestion = {named}\n[replica]\nmodel = {models}\ngpu = ['h100-sxm', 'mi300x']\n"
        "[workload]\nisl_tokens = [500, 1000]\nosl_tokens = 100\n[slo]\ntpot_s = [0.03, 0.05]\n",
    )


def numbers(directory: Path, most_cells: int = 1 << 15) -> tuple[Gathered, Packed]:
    """What a report of the sweep in `directory` says, as frames and as the page has it."""
    found = gather(directory, load_catalog(), most_cells)
    return found, pack(found, load_catalog())
