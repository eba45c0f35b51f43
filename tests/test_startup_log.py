"""The reader of vLLM start-up logs: every shape of every version, several ranks, and files that are no such log."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lambdamax import startup_log
from lambdamax.exceptions import CatalogError
from lambdamax.startup_log import StartupReport, parse_startup_log, read_startup_log

GIB = 2**30


def parse(*lines: str) -> StartupReport:
    return parse_startup_log("\n".join(lines), "server.log")


@pytest.mark.parametrize(
    ("line", "tokens"),
    [
        ("INFO 01-01 10:00:00 [executor_base.py:112] # GPU blocks: 27896, # CPU blocks: 2048", 27896 * 16),
        ("INFO 01-01 10:00:00 executor_base.py:110] # cuda blocks: 5519, # CPU blocks: 9362", 5519 * 16),
        ("# rocm blocks: 40178, # CPU blocks: 4096", 40178 * 16),
        ("INFO [kv_cache_utils.py:566] GPU KV cache size: 446,336 tokens", 446_336),
        ("GPU KV cache size: 1,505,552 tokens   ", 1_505_552),
        ("GPU KV cache size: 446,336 tokens, Maximum concurrency for 8,192 tokens per request: 54.48x", 446_336),
        ("CUDA KV cache size: 900 tokens, Maximum concurrency for 8 tokens per request: 112.50x", 900),
        ("GPU + host KV cache size: 446,336 tokens, Maximum concurrency for 8,192 tokens per request: 54.48x", 446_336),
    ],
)
def test_every_shape_of_the_pool_size(line: str, tokens: int) -> None:
    report = parse("vLLM", line)
    assert report.kv_cache_tokens == tokens
    assert report.lines == (2,)
    assert report.data_parallel == 1


def test_two_line_form_of_a_whole_start_up() -> None:
    report = parse(
        "(EngineCore_DP0 pid=577) INFO [gpu_model_runner.py:2338] Model loading took 14.9889 GiB and 3.508139 seconds",
        "(EngineCore_DP0 pid=577) INFO [gpu_worker.py:298] Available KV cache memory: 54.50 GiB",
        "(EngineCore_DP0 pid=577) INFO [kv_cache_utils.py:864] GPU KV cache size: 446,336 tokens",
        "(EngineCore_DP0 pid=577) INFO [kv_cache.py:868] Maximum concurrency for 8,192 tokens per request: 54.48x",
        "(EngineCore_DP0 pid=577) INFO [gpu_model_runner.py:3118] Graph capturing finished in 18 secs, took 0.54 GiB",
        "INFO [core.py:218] init engine (profile, create kv cache, warmup model) took 31.28 seconds",
    )
    assert report == StartupReport(
        kv_cache_tokens=446_336,
        max_concurrency=54.48,
        max_model_len=8192,
        kv_cache_bytes=54.5 * GIB,
        weight_bytes=14.9889 * GIB,
        cuda_graph_bytes=0.54 * GIB,
        estimated_cuda_graph_bytes=None,
        gpu_blocks=None,
        cpu_blocks=None,
        context_parallel=1,
        init_s=31.28,
        data_parallel=1,
        ranks=("EngineCore_DP0",),
        lines=(1, 2, 3, 4, 5, 6),
    )


def test_v0_engine() -> None:
    report = parse(
        "INFO model_runner.py:1115] Loading model weights took 2.8884 GB",
        "INFO executor_base.py:110] # CUDA blocks: 5517, # CPU blocks: 9362",
        "INFO executor_base.py:115] Maximum concurrency for 32768 tokens per request: 2.69x",
    )
    assert (report.gpu_blocks, report.cpu_blocks, report.kv_cache_tokens) == (5517, 9362, 5517 * 16)
    assert (report.max_model_len, report.max_concurrency) == (32768, 2.69)
    assert report.weight_bytes == 2.8884 * GIB


def test_newest_lines() -> None:
    report = parse(
        "(EngineCore pid=326) INFO [model_runner.py:407] Model loading took 15.0 GiB memory and 5.420225 seconds",
        "(EngineCore pid=326) INFO [gpu_model_runner.py:6365] Estimated CUDA graph memory: 0.61 GiB total",
        "(EngineCore pid=326) INFO [gpu_model_runner.py:5] Graph capturing finished in 1 secs, took -0.02 GiB",
        "(EngineCore pid=326) INFO GPU KV cache size: 9 tokens, Maximum concurrency for 9 tokens per request: 1.00x",
        "(EngineCore pid=9) INFO init engine (profile, create kv cache, warmup model) took 36.07 s (compilation: 19 s)",
    )
    assert report.estimated_cuda_graph_bytes == 0.61 * GIB
    assert report.cuda_graph_bytes == -0.02 * GIB
    assert report.init_s == 36.07
    assert report.weight_bytes == 15 * GIB


def test_the_smallest_rank_counts() -> None:
    report = parse(
        "\x1b[1;36m(Worker_TP0 pid=11)\x1b[0;0m INFO Available KV cache memory: 16.81 GiB",
        "\x1b[1;36m(Worker_TP1 pid=12)\x1b[0;0m INFO Available KV cache memory: 16.42 GiB",
        "(Worker_TP0 pid=11) INFO Model loading took 33.0 GiB memory and 9.1 seconds",
        "(Worker_TP1 pid=12) INFO Model loading took 33.5 GiB memory and 9.1 seconds",
        "(EngineCore_DP0 pid=9) INFO GPU KV cache size: 110,224 tokens",
        "(EngineCore_DP0 pid=9) INFO GPU KV cache size: 107,600 tokens",
    )
    assert report.kv_cache_bytes == 16.42 * GIB
    assert report.weight_bytes == 33.5 * GIB
    assert report.kv_cache_tokens == 107_600
    assert report.ranks == ("Worker_TP0", "Worker_TP1", "EngineCore_DP0")


def test_data_parallel_engines_add_up() -> None:
    report = parse(
        "(EngineCore_DP0 pid=1) INFO GPU KV cache size: 1,000 tokens",
        "(EngineCore_DP0 pid=1) INFO Maximum concurrency for 100 tokens per request: 10.00x",
        "(EngineCore_DP1 pid=2) INFO GPU KV cache size: 960 tokens",
        "(EngineCore_DP1 pid=2) INFO Maximum concurrency for 100 tokens per request: 9.60x",
        "(Worker_DP1_TP0 pid=3) INFO Available KV cache memory: 1.0 GiB",
    )
    assert (report.kv_cache_tokens, report.data_parallel) == (1960, 2)
    assert report.max_concurrency == pytest.approx(19.6)


@pytest.mark.parametrize("word", ["dcp", "cp"])
def test_context_parallel(word: str) -> None:
    report = parse(
        f"INFO Multiplying the GPU KV cache size by the {word}_world_size 2.", "INFO GPU KV cache size: 32 tokens"
    )
    assert (report.context_parallel, report.kv_cache_tokens) == (2, 32)


def test_carriage_returns_of_progress_bars_and_windows() -> None:
    assert parse("Loading: 50%\rGPU KV cache size: 64 tokens\r").kv_cache_tokens == 64
    assert parse("Capturing: 10%\rCapturing: 20%\r", "GPU KV cache size: 64 tokens\r").kv_cache_tokens == 64


@pytest.mark.parametrize("text", ["", "hello", "Available KV cache memory: -0.12 GiB", "KV cache size: many tokens"])
def test_a_log_without_a_pool_size_is_refused(text: str) -> None:
    with pytest.raises(CatalogError, match=r"server\.log.*KV cache"):
        parse(text)


def test_files_that_are_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "server.log"
    with pytest.raises(CatalogError, match=r"readable file|a text file"):
        read_startup_log(log)
    with pytest.raises(CatalogError, match=r"readable file|a text file"):
        read_startup_log(tmp_path)
    log.write_bytes(b"\x7fELF\0\0GPU KV cache size: 64 tokens")
    with pytest.raises(CatalogError, match="binary"):
        read_startup_log(log)
    log.write_bytes(b"\xff\xfe bad bytes \xe4\nGPU KV cache size: 64 tokens\n")
    assert read_startup_log(log).kv_cache_tokens == 64
    monkeypatch.setattr(startup_log, "LARGEST_LOG_BYTES", 10)
    with pytest.raises(CatalogError, match="larger"):
        read_startup_log(log)


@pytest.mark.parametrize(
    "piece", ["(Worker_", "# a blocks: ", "KV cache size: 1,1", "\x1b[1;", "init engine (", "9" * 99]
)
def test_hostile_lines_take_linear_time(piece: str) -> None:
    start = time.process_time()
    with pytest.raises(CatalogError):
        parse(piece * (2**21 // len(piece)), *[piece * 40] * 2000)
    assert time.process_time() - start < 5


@given(st.text(max_size=400))
def test_other_lines_do_not_matter(text: str) -> None:
    assert parse(text, "GPU KV cache size: 64 tokens").kv_cache_tokens >= 0
