"""Reading the start-up log of a vLLM server: the KV pool it made, and where the rest of the memory went."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lambdamax.facts import bad, read_bytes

LARGEST_LOG_BYTES: Final = 64 * 2**20
LONGEST_LINE: Final = 4096
BLOCK_TOKENS: Final = 16
GIB: Final = 2**30
WANTED: Final = "a log of vLLM that says how large its KV cache is (KV cache size, or # GPU blocks)"

_NUMBER: Final = r"(\d{1,3}(?:,\d{3}){1,6}|\d{1,19})"
_DECIMAL: Final = r"(-?\d{1,9}(?:\.\d{1,9})?)"
_COLOUR: Final = re.compile(r"\x1b\[[\d;]{0,16}[A-Za-z]")
_RANK: Final = re.compile(
    r"\(((?:EngineCore|Worker|VllmWorker|RayWorker)\w{0,60})"
    r"(?: (?:rank|pid)=\d{1,12}){0,2}(?:, ip=[\d.]{1,40})?\)"
)
_ENGINE: Final = re.compile(r"(?:^|_)DP(\d{1,6})(?:_|$)")

_BLOCKS: Final = re.compile(rf"# [A-Za-z]{{1,16}} blocks: {_NUMBER}(?:, # CPU blocks: {_NUMBER})?")
_POOL: Final = re.compile(rf"KV cache size: {_NUMBER} tokens")
_CONCURRENCY: Final = re.compile(rf"Maximum concurrency for {_NUMBER} tokens per request: {_DECIMAL}x")
_AVAILABLE: Final = re.compile(rf"Available KV cache memory: {_DECIMAL} ?GiB")
_WEIGHTS: Final = re.compile(rf"(?:Model loading|Loading model weights) took {_DECIMAL} ?(?:GiB|GB)")
_GRAPHS: Final = re.compile(rf"Graph capturing finished in {_DECIMAL} secs?, took {_DECIMAL} ?GiB")
_ESTIMATED: Final = re.compile(rf"Estimated CUDA graph memory: {_DECIMAL} ?GiB")
_CONTEXT: Final = re.compile(r"Multiplying the GPU KV cache size by the (?:dcp|cp)_world_size (\d{1,6})")
_INIT: Final = re.compile(rf"init engine \([^)]{{1,80}}\) took {_DECIMAL} s")


@dataclass(frozen=True)
class StartupReport:
    """What one server logged at start; None where it does not say.

    `kv_cache_tokens` and `max_concurrency` count the whole server: the least of what its ranks print, summed over its
    data-parallel engines. Up to 0.20 the tokens are blocks times block size, later concurrency times `max_model_len`.
    They include the factor `context_parallel` where the log has it. Bytes are of one rank: `kv_cache_bytes` the
    smallest, the others the largest. `lines` are the lines that were used, 1-based.
    """

    kv_cache_tokens: int
    max_concurrency: float | None
    max_model_len: int | None
    kv_cache_bytes: float | None
    weight_bytes: float | None
    cuda_graph_bytes: float | None
    estimated_cuda_graph_bytes: float | None
    gpu_blocks: int | None
    cpu_blocks: int | None
    context_parallel: int
    init_s: float | None
    data_parallel: int
    ranks: tuple[str, ...]
    lines: tuple[int, ...]


@dataclass
class _Engine:
    """What one data-parallel engine printed, every value in the order of the lines."""

    tokens: list[float] = field(default_factory=list)
    blocks: list[float] = field(default_factory=list)
    cpu_blocks: list[float] = field(default_factory=list)
    concurrency: list[float] = field(default_factory=list)

    @property
    def pool(self) -> int | None:
        if self.tokens:
            return int(min(self.tokens))
        return int(min(self.blocks)) * BLOCK_TOKENS if self.blocks else None


@dataclass
class _Seen:
    """All that the lines said so far."""

    engines: dict[str, _Engine] = field(default_factory=dict)
    available_gib: list[float] = field(default_factory=list)
    weights_gib: list[float] = field(default_factory=list)
    graphs_gib: list[float] = field(default_factory=list)
    estimated_gib: list[float] = field(default_factory=list)
    model_len: list[float] = field(default_factory=list)
    context: list[float] = field(default_factory=list)
    init_s: list[float] = field(default_factory=list)
    ranks: dict[str, None] = field(default_factory=dict)
    lines: list[int] = field(default_factory=list)


def read_startup_log(path: Path) -> StartupReport:
    """The start-up report in the log at `path`.

    Raises CatalogError if the file cannot be read, is larger than `LARGEST_LOG_BYTES`, is not text, or says nothing of
    a KV cache.
    """
    return parse_startup_log(_read_text(path), str(path))


def parse_startup_log(text: str, name: str) -> StartupReport:
    """The start-up report in `text`, the log that errors call `name`; CatalogError if it says nothing of a KV cache."""
    seen = _Seen()
    for number, line in _lines(text):
        _read_line(seen, number, line)
    pools = [engine.pool for engine in seen.engines.values()]
    sized = [pool for pool in pools if pool is not None]
    if not sized:
        raise bad(name, "content", "no such line", WANTED)
    return _report(seen, sum(sized), len(sized))


def _report(seen: _Seen, tokens: int, engines: int) -> StartupReport:
    available = _least(seen.available_gib)
    return StartupReport(
        kv_cache_tokens=tokens,
        max_concurrency=_total(seen, lambda engine: engine.concurrency),
        max_model_len=_whole(_least(seen.model_len)),
        kv_cache_bytes=_bytes(available),
        weight_bytes=_bytes(_most(seen.weights_gib)),
        cuda_graph_bytes=_bytes(_most(seen.graphs_gib)),
        estimated_cuda_graph_bytes=_bytes(_most(seen.estimated_gib)),
        gpu_blocks=_whole(_total(seen, lambda engine: engine.blocks)),
        cpu_blocks=_whole(_total(seen, lambda engine: engine.cpu_blocks)),
        context_parallel=_whole(_most(seen.context)) or 1,
        init_s=_most(seen.init_s),
        data_parallel=engines,
        ranks=tuple(seen.ranks),
        lines=tuple(seen.lines),
    )


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.split("\n"), start=1):
        after_progress_bar = line.rstrip("\r").rpartition("\r")[2]
        yield number, _COLOUR.sub("", after_progress_bar[:LONGEST_LINE])


def _read_line(seen: _Seen, number: int, line: str) -> None:
    rank = _RANK.search(line)
    label = rank.group(1) if rank else ""
    part = _ENGINE.search(label)
    if _sizes(seen, part.group(1) if part else "", line) + _amounts(seen, line):
        seen.lines.append(number)
        if label:
            seen.ranks[label] = None


def _sizes(seen: _Seen, key: str, line: str) -> int:
    """Adds the pool sizes that `line` states for data-parallel engine `key`; how many there are."""
    pool, blocks, concurrency = _POOL.search(line), _BLOCKS.search(line), _CONCURRENCY.search(line)
    if not (pool or blocks or concurrency):
        return 0
    engine = seen.engines.setdefault(key, _Engine())
    if pool:
        engine.tokens.append(_number(pool.group(1)))
    if blocks:
        engine.blocks.append(_number(blocks.group(1)))
        engine.cpu_blocks += [_number(found) for found in blocks.groups()[1:] if found]
    if concurrency:
        seen.model_len.append(_number(concurrency.group(1)))
        engine.concurrency.append(float(concurrency.group(2)))
    return 1


def _amounts(seen: _Seen, line: str) -> int:
    """Adds the amounts that `line` states for one rank; how many there are."""
    shapes = (
        (_AVAILABLE, 1, seen.available_gib),
        (_WEIGHTS, 1, seen.weights_gib),
        (_GRAPHS, 2, seen.graphs_gib),
        (_ESTIMATED, 1, seen.estimated_gib),
        (_CONTEXT, 1, seen.context),
        (_INIT, 1, seen.init_s),
    )
    found = 0
    for shape, group, values in shapes:
        if match := shape.search(line):
            values.append(float(match.group(group)))
            found += 1
    return found


def _total(seen: _Seen, values: Callable[[_Engine], list[float]]) -> float | None:
    least = [min(values(engine)) for engine in seen.engines.values() if values(engine)]
    return sum(least) if least else None


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _least(values: list[float]) -> float | None:
    return min(values, default=None)


def _most(values: list[float]) -> float | None:
    return max(values, default=None)


def _bytes(gib: float | None) -> float | None:
    return None if gib is None else gib * GIB


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _read_text(path: Path) -> str:
    content = read_bytes(path, LARGEST_LOG_BYTES)
    if b"\0" in content:
        raise bad(path, "content", "binary", "a text file")
    return content.decode("utf-8", errors="replace")
