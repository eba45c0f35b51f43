"""Laws of the device: no token sooner than the weights can be read, no more work than the peak."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from lambdamax.audit.finding import Finding, Side, is_unit_slip, unit_slip
from lambdamax.audit.point import Point
from lambdamax.benchmarks.labels import gpu_of, model_of, size_of, stated_size, weight_dtype_of
from lambdamax.catalog import Catalog
from lambdamax.engine import Floats, Replicas
from lambdamax.replicas import NATIVE, Deployment, ReplicaRow

# Sustained serving above this share of the dense peak has not been published; GEMMs alone reach about 0.8 of it.
MOST_FLOPS_SHARE: Final = 0.8
# The part of the work that is prefill from which a too fast row is taken for cached or shorter prompts.
PREFILL_DOMINATES: Final = 0.8
NEEDED: Final = ("model", "gpu", "tp or gpus")
# Formats that a run may have used which does not say: its own, or one of these.
UNSAID: Final = ("fp8", "nvfp4", "mxfp4")
SIXTEEN_BITS: Final = frozenset({"bf16", "fp16", "bfloat16", "float16"})
FOUR_BITS: Final = ("nvfp4", "mxfp4")
# A name rounds, and its count takes in the embedding, which neither is read nor computed with: 7B are 6.5 to 7.6.
SAID_SIZE: Final = 0.85
# Larger degrees are counts of something else: the pool is then taken as that of one device.
LARGEST_TP: Final = 1024
_PEAKS: Final = ("mixer_flops", "mlp_flops", "expert_flops")


@dataclass(frozen=True)
class Bounds:
    """What one device bounds for one model in one format: the best of the format as labelled and as published.

    `read_s` is the time to read what one sequence needs of the weights; `flops` the peak; `token_flop` the work of a
    prompt token, `reply_flop` that of a reply token, head included; `kv_elements` of a context token that every step
    reads, layers with a window or a choice of tokens left out; `pool_tokens` the KV pool of `tp` devices;
    `is_of_name` that only the size in the model's name was known.
    """

    read_s: float
    flops: float
    token_flop: float
    reply_flop: float
    kv_elements: float = 0.0
    bandwidth_bytes_per_s: float = math.inf
    pool_tokens: float | None = None
    is_of_name: bool = False


Key = tuple[str, str, str | None, int]


def keys_of(points: Iterable[Point], catalog: Catalog) -> list[Key | None]:
    """The names that decide the bounds of each of `points`, None where it or the catalogue lacks one."""
    rows = list(points)
    models = {label: model_of(label, catalog) or size_of(label) for label in {point.row["model"] for point in rows}}
    return [_key(point, models[point.row["model"]], catalog) for point in rows]


def _key(point: Point, model: str | None, catalog: Catalog) -> Key | None:
    gpu = gpu_of(point.row["gpu"], catalog)
    if model is None or gpu is None or point.devices is None:
        return None
    tp = point.get("tp")
    whole = int(tp) if tp is not None and tp == int(tp) and tp <= LARGEST_TP else 1
    return model, gpu, weight_dtype_of(point.row["weight_dtype"], catalog), whole


def missing(point: Point) -> tuple[str, ...]:
    """The options that would say what the bounds of `point` need."""
    held = (point.row["model"], point.row["gpu"], point.devices)
    return tuple(name for name, value in zip(NEEDED, held, strict=True) if value is None)


def bounds_of(keys: Iterable[Key], catalog: Catalog) -> Mapping[Key, Bounds]:
    """The bounds of each of `keys` whose model the engine can size, or whose name states a size."""
    wanted = list(dict.fromkeys(keys))
    sizes = {key: size for key in wanted if (size := stated_size(key[0])) is not None}
    named = {key: _of_size(key, size, catalog) for key, size in sizes.items()}
    return named | _of_models([key for key in wanted if key not in named], catalog)


def _of_size(key: Key, billions: float, catalog: Catalog) -> Bounds:
    """A dense model of the size in its name, its formats as for one of the catalogue."""
    size, device = SAID_SIZE * 1e9 * billions, catalog.accelerator(key[1])
    formats = [catalog.weight_dtype(name) for name in (_alike(key[2]) if key[2] else ("bf16", *UNSAID))]
    able = [one for one in formats if one.unsupported_on(device) is None] or [catalog.weight_dtype("bf16")]
    read_s = size * min(one.bits for one in able) / 8 / device.memory_bandwidth_bytes_per_s
    return Bounds(read_s, max(one.peak_on(device) for one in able), 2 * size, 2 * size, is_of_name=True)


def _of_models(wanted: list[Key], catalog: Catalog) -> dict[Key, Bounds]:
    tried = [(key, row) for key in wanted for row in _rows(key, catalog) if row.unsupported is None]
    if not tried:
        return {}
    facts = Replicas.of([row for _, row in tried]).facts()
    found: dict[Key, Bounds] = {}
    for place, (key, row) in enumerate(tried):
        one = _bounds({name: float(values[place]) for name, values in facts.items()}, row)
        found[key] = _widest(found[key], one) if key in found else one
    pools = _pools(list(found), catalog)
    return {key: replace(bounds, pool_tokens=pools.get(key)) for key, bounds in found.items()}


def _rows(key: Key, catalog: Catalog) -> Iterator[ReplicaRow]:
    """On one device, so that no rule of sharding refuses it; the audit divides by the devices."""
    model, gpu, dtype, _ = key
    for one in dict.fromkeys((NATIVE, *(_alike(dtype) if dtype else UNSAID))):
        yield catalog.replica(Deployment(model, gpu, weight_dtype=one))


def _alike(dtype: str) -> tuple[str, ...]:
    """A label of four bits says not which; each device computes in one of them."""
    return FOUR_BITS if dtype in FOUR_BITS else (dtype,)


def _bounds(facts: Mapping[str, float], row: ReplicaRow) -> Bounds:
    prompt = 2 * facts["layer_matmul_params"]
    return Bounds(
        read_s=facts["tpot_floor_s"],
        flops=max(row.fields[name] for name in _PEAKS if row.fields[name] > 0),
        token_flop=prompt,
        reply_flop=prompt + 2 * facts["head_params"],
        kv_elements=sum(block["count"] * block["kv_elements_per_token"] for block in row.blocks if _reads_all(block)),
        bandwidth_bytes_per_s=row.fields["memory_bandwidth_bytes_per_s"],
    )


def _reads_all(block: Mapping[str, float]) -> bool:
    return block["span_tokens"] == 0 and block["attended_tokens"] == 0


def _widest(one: Bounds, other: Bounds) -> Bounds:
    return Bounds(
        min(one.read_s, other.read_s),
        max(one.flops, other.flops),
        min(one.token_flop, other.token_flop),
        min(one.reply_flop, other.reply_flop),
        one.kv_elements,
        one.bandwidth_bytes_per_s,
    )


def _pools(keys: list[Key], catalog: Catalog) -> dict[Key, float]:
    """KV pools at the engine's defaults, of the replicas that fit."""
    rows = [catalog.replica(Deployment(model, gpu, tp, weight_dtype=dtype or NATIVE)) for model, gpu, dtype, tp in keys]
    lengths = np.full(len(rows), 2.0)
    points: dict[str, Floats] = {"isl_tokens": lengths, "osl_tokens": lengths}
    solved = Replicas.of(rows).solve(np.arange(len(rows), dtype=np.uint32), points, 1)
    pools = solved["kv_pool_tokens"]
    return {key: float(pool) for key, pool in zip(keys, pools, strict=True) if np.isfinite(pool)}


# Laws


def token_floor(point: Point, bounds: Bounds) -> Iterator[Finding]:
    """TPOT is no shorter than reading the weights that one sequence needs and the KV of all that decode.

    Both are spread over every device, which is the most that any parallelism can do.
    """
    tpot, devices = point.longest_tpot_s, point.devices
    if tpot is None or devices is None:
        return
    floor_s = (bounds.read_s + _decoding(point) * _context_s(point, bounds)) / devices
    left, right = Side("TPOT", tpot, "s"), Side("reading weights and KV at peak bandwidth", floor_s, "s")
    if left.value >= right.value:
        return
    if point.row["speculative"]:
        verdict = "several tokens a step: with speculative decoding TPOT is not the time of a step"
        yield Finding("note", "bandwidth floor", "tpot_mean_s", left, right, verdict)
    elif is_unit_slip(left.value, right.value):
        yield unit_slip("tpot_mean_s", left, right)
    else:
        verdict = (
            "faster than the memory: tokens are drafted or sent in bunches, or the model, device or format differs"
        )
        yield Finding(_sure(bounds), "bandwidth floor", "tpot_mean_s", left, right, verdict)


def _decoding(point: Point) -> float:
    """Sequences that decode, by rate x (OSL - 1) x TPOT; 0 where that is not known."""
    rate, decode = point.rate_rps, point.decode_s
    return 0.0 if rate is None or decode is None else rate * decode


def _context_s(point: Point, bounds: Bounds) -> float:
    """Time to read the KV of one sequence at half of its reply, in 8 bits unless the row says 16."""
    size = 2.0 if (point.row["kv_dtype"] or "").casefold() in SIXTEEN_BITS else 1.0
    context = (point.get("isl_tokens") or 0.0) + (point.get("osl_tokens") or 0.0) / 2
    return context * bounds.kv_elements * size / bounds.bandwidth_bytes_per_s


def work(point: Point, bounds: Bounds) -> Iterator[Finding]:
    """Rate x work of a request is no more than the dense peak of every device."""
    rate, devices = point.rate_rps, point.devices
    if rate is None or devices is None:
        return
    prefill = rate * _uncached(point) * bounds.token_flop
    decode = rate * ((point.get("osl_tokens") or 1.0) - 1) * bounds.reply_flop
    peak = bounds.flops * devices
    if prefill + decode <= MOST_FLOPS_SHARE * peak:
        return
    left, right = Side("work done", prefill + decode, "FLOP/s"), Side("peak", peak, "FLOP/s")
    severity = _sure(bounds) if prefill + decode > peak else "warning"
    if prefill > PREFILL_DOMINATES * (prefill + decode):
        verdict = "more prefill than the device computes: prompts came from the prefix cache, or are shorter than said"
        yield Finding(severity, "peak FLOP/s", "isl_tokens", left, right, verdict)
    else:
        verdict = "more work than the device does: the rate, the lengths or the number of devices is wrong"
        yield Finding(severity, "peak FLOP/s", "output_tok_s", left, right, verdict)


def prompt_floor(point: Point, bounds: Bounds) -> Iterator[Finding]:
    """TTFT is no shorter than the work of the prompt at the dense peak of every device."""
    ttft, devices, isl = point.ttft_s, point.devices, point.get("isl_tokens")
    if ttft is None or devices is None or isl is None:
        return
    floor = prefill_s(point, bounds)
    if ttft >= floor:
        return
    left, right = Side("TTFT", ttft, "s"), Side("prefill at peak FLOP/s", floor, "s")
    if is_unit_slip(ttft, floor):
        yield unit_slip("ttft_mean_s", left, right)
        return
    verdict = "first token before the prompt can be computed: it came from the prefix cache, or is shorter than said"
    yield Finding(_sure(bounds), "prefill floor", "isl_tokens", left, right, verdict)


def _sure(bounds: Bounds) -> str:
    return "warning" if bounds.is_of_name else "error"


def prefill_s(point: Point, bounds: Bounds) -> float:
    """Work of a prompt at the dense peak of every device [s]."""
    return _uncached(point) * bounds.token_flop / (bounds.flops * (point.devices or 1.0))


def _uncached(point: Point) -> float:
    return max((point.get("isl_tokens") or 0.0) - (point.get("cached_tokens") or 0.0), 0.0)
