"""The reader of config.json on anything at all: sizes, a reason or one kind of error, and never much work."""

from __future__ import annotations

import builtins
import copy
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lambdamax.architecture import Architecture, Unsupported, block_facts
from lambdamax.exceptions import CatalogError
from lambdamax.facts import DATA
from lambdamax.hub import model_types, read_architecture, read_config

CONFIGS = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted((DATA / "model_configs").iterdir())
}
FAMILIES = {
    name: entry["config"]
    for name, entry in json.loads(
        (Path(__file__).parent / "golden" / "family_configs.json").read_text(encoding="utf-8")
    ).items()
    if name != "_about"
}
BOTH = {**CONFIGS, **FAMILIES}
# One config of each shape, for the slower tests.
SHAPES = {(config["model_type"], "quantization_config" in config): config for config in BOTH.values()}
IDS = ["-".join((model_type, "quantised" if quantised else "plain")) for model_type, quantised in SHAPES]
HOSTILE: list[Any] = [
    None,
    True,
    -1,
    0,
    10**9,
    10**400,
    1.5,
    float("nan"),
    float("inf"),
    "",
    "../../../etc/passwd",
    "\0\n\x1b[31m",
    "x" * 10_000,
    [],
    [None] * 3,
    ["full_attention"] * 5_000,
    [0, 1] * 20_000,
    [10**30],
    {},
    {"a": {"a": {"a": [1]}}},
    {"weights": {"num_bits": 4}},
]
SLOWEST_S = 5.0


def attempt(config: Any, limit_s: float = SLOWEST_S) -> Architecture | Unsupported | None:
    """What the reader says, None for its one kind of error; in time, and in few words."""
    start = time.perf_counter()
    found = said(lambda: read_architecture(config, "config.json"))
    assert time.perf_counter() - start < limit_s
    return found


def said(read: Callable[[], Architecture | Unsupported]) -> Architecture | Unsupported | None:
    try:
        found = read()
    except CatalogError as error:
        message = str(error)
    else:
        check(found)
        return found
    assert "config.json: " in message
    assert len(message) < 1_000
    return None


def check(found: Architecture | Unsupported) -> None:
    if isinstance(found, Unsupported):
        assert 0 < len(found.reason) < 500
    if isinstance(found, Architecture):
        assert 0 < found.active_params <= found.total_params < 2**53
        assert len(found.blocks) <= 1_000
        facts = [block_facts(block, found.hidden_size) for block in found.blocks]
        assert all(value >= 0 and value < 2**53 for fact in facts for value in fact.values())


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every key and of the first entries of every list."""
    items = (
        list(value.items())
        if isinstance(value, dict)
        else list(enumerate(value[:2]))
        if isinstance(value, list)
        else []
    )
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def spread(paths: list[Any], most: int) -> list[Any]:
    """At most `most` of `paths`, evenly from all of them."""
    return paths[:: max(1, -(-len(paths) // most))]


def holding(config: Any, path: tuple[Any, ...]) -> tuple[Any, Any]:
    """A copy of `config`, new only along `path`, and the holder of its last key."""
    copied = copy.copy(config)
    holder = copied
    for key in path[:-1]:
        holder[key] = copy.copy(holder[key])
        holder = holder[key]
    return copied, holder


def changed(config: Any, path: tuple[Any, ...], value: Any) -> Any:
    copied, holder = holding(config, path)
    holder[path[-1]] = value
    return copied


def dropped(config: Any, path: tuple[Any, ...]) -> Any:
    copied, holder = holding(config, path)
    del holder[path[-1]]
    return copied


@pytest.mark.parametrize("config", SHAPES.values(), ids=IDS)
def test_keys_with_hostile_values(config: dict[str, Any]) -> None:
    """Each key with a fifth of the values, another fifth than the key before."""
    for turn, path in enumerate(spread(list(places(config)), 16)):
        for value in HOSTILE[turn % 5 :: 5]:
            attempt(changed(config, path, value))


@pytest.mark.parametrize("config", SHAPES.values(), ids=IDS)
def test_keys_left_out(config: dict[str, Any]) -> None:
    for path in spread(list(places(config)), 20):
        attempt(dropped(config, path))


@pytest.mark.parametrize("config", SHAPES.values(), ids=IDS)
def test_truncations_of_a_file(config: dict[str, Any], tmp_path: Path) -> None:
    content = json.dumps(config).encode()
    path = tmp_path / "config.json"
    for cut in range(0, len(content), max(1, len(content) // 12)):
        path.write_bytes(content[:cut])
        with pytest.raises(CatalogError):
            read_config(path)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([1, 2, 8, 64, 4096]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=4,
)
KEYS = sorted({str(key) for config in BOTH.values() for path in places(config) for key in path if isinstance(key, str)})


@settings(max_examples=120, deadline=None)
@given(
    name=st.sampled_from(sorted(BOTH)),
    model_type=st.none() | st.sampled_from(model_types()) | st.text(max_size=12),
    changes=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=6),
    nested=st.booleans(),
)
def test_real_configs_with_any_changes(
    name: str, model_type: str | None, changes: dict[str, Any], nested: bool
) -> None:
    config = BOTH[name]
    inner = {"text_config": {**config["text_config"], **changes}} if nested and "text_config" in config else changes
    named = {} if model_type is None else {"model_type": model_type}
    attempt({**config, **inner, **named})


@settings(max_examples=80, deadline=None)
@given(config=st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=12), JSON, max_size=8))
def test_any_object(config: dict[str, Any]) -> None:
    attempt(config)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "config.json"
    path.write_bytes(content)
    said(lambda: read_config(path)[0])


def nested(depth: int) -> dict[str, Any]:
    inner: dict[str, Any] = {}
    for _ in range(depth):
        inner = {"text_config": inner, "model_type": "llama4"}
    return inner


def test_the_work_is_bounded() -> None:
    llama = CONFIGS["llama-3.1-8b"]
    moe = CONFIGS["qwen3-235b-a22b-nvfp4"]
    many = [f"model.layers.{layer}.self_attn*" for layer in range(50_000)]
    assert attempt({**llama, "num_hidden_layers": 10**9}) is None
    attempt({**llama, "layer_types": ["full_attention"] * 500_000})
    attempt({**CONFIGS["step-3.7-flash"], "moe_layers_enum": "1," * 1_000_000})
    attempt({**CONFIGS["nemotron-h-56b-base-8k"], "hybrid_override_pattern": "M" * 1_000_000})
    attempt({**moe, "_hf_quant_config": {"quantization": {"quant_algo": "NVFP4", "exclude_modules": many}}}, limit_s=10)
    attempt(
        {**llama, "quantization_config": {"quant_method": "fp8", "modules_to_not_convert": ["self_attn"] * 50_000}}, 10
    )
    attempt({**llama, "quantization_config": {"quant_method": "fp8", "modules_to_not_convert": ["re:(a+)+$" * 10_000]}})
    attempt(nested(500))


def test_a_name_in_a_config_opens_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    read_architecture(CONFIGS["llama-3.1-8b"], "config.json")  # the package's own data is read once

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("a file was opened")

    openers: list[tuple[Any, str]] = [(builtins, "open"), (os, "open"), (os, "stat"), (Path, "open")]
    for owner, opener in openers:
        monkeypatch.setattr(owner, opener, refused)
    for key in ("model_type", "architectures", "auto_map", "quantization_config", "hf_quant_config", "text_config"):
        for value in (
            "../secret",
            "/etc/passwd",
            ["/etc/passwd"],
            {"path": "/etc/passwd", "quantization": {"a": "/x"}},
        ):
            attempt({**CONFIGS["llama-3.1-8b"], key: value})


def same(call: Callable[[], Any]) -> bool:
    return bool(call() == call())


def test_a_config_is_left_as_it_was_and_read_the_same_twice() -> None:
    for config in CONFIGS.values():
        before = copy.deepcopy(config)
        assert same(lambda config=config: read_architecture(config, "config.json"))  # type: ignore[misc]
        assert config == before
