"""`lambdamax audit`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from lambdamax.terminal import catalog_option, json_option, print_json, stdout_console

_FACTS: Final = (
    ("model", "NAME", "Model: a catalogue name or a hub id."),
    ("gpu", "ID", "Accelerator: a catalogue id."),
    ("engine", "NAME", "Serving engine."),
    ("engine_version", "VERSION", "Version of the serving engine."),
    ("weight_dtype", "FORMAT", "Number format of the weights."),
    ("kv_dtype", "FORMAT", "Number format of the KV cache."),
)
_COUNTS: Final = (
    ("gpus", "Accelerators that the throughput is of."),
    ("tp", "Tensor-parallel ranks of one replica."),
    ("pp", "Pipeline-parallel stages of one replica."),
    ("ep", "Expert-parallel ranks of one replica."),
)


def facts_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options for what files of benchmarks do not record."""
    for name, metavar, help in reversed(_FACTS):
        command = click.option("--" + name.replace("_", "-"), name, metavar=metavar, help=help)(command)
    for name, help in reversed(_COUNTS):
        command = click.option(f"--{name}", type=click.IntRange(1), metavar="N", help=help)(command)
    forced = "Read every file as this format.  [default: what its content shows]"
    return click.option("--format", metavar="NAME", help=forced)(command)


@click.command(short_help="Check benchmark files: which numbers cannot be true.")
@click.argument("files", nargs=-1, required=True, metavar="FILES...", type=click.Path(path_type=Path))
@facts_options
@catalog_option
@json_option
def audit(files: tuple[Path, ...], own: Path | None, as_json: bool, **facts: Any) -> None:
    """Check results of benchmarks against the laws that every run obeys.

    Reads results of vLLM, SGLang, GuideLLM, AIPerf, genai-perf, inference-perf, llmperf and InferenceX, a scrape of
    /metrics, and CSV tables. Says which numbers contradict each other or the device, and what they show. The options
    say what a file does not record. Findings are no errors: the status is 0.
    """
    from lambdamax.audit import audit as check
    from lambdamax.benchmarks import read_benchmarks
    from lambdamax.benchmarks.labels import refuse_unknown
    from lambdamax.catalog import load_catalog

    catalog = load_catalog(own)
    refuse_unknown(facts, catalog)
    found = check(read_benchmarks(files, **facts), catalog)
    if as_json:
        print_json(found.as_json())
        return
    from lambdamax.audit.printed import print_audit

    print_audit(found, stdout_console())
