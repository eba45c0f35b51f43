"""Decode as a division: how fast a device can generate at best, by bytes over bandwidth and FLOPs over peak."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from lambdamax import columns
from lambdamax.catalog import Catalog, load_catalog
from lambdamax.exceptions import Fault, FrameError
from lambdamax.replicas import Deployment, ReplicaRow
from lambdamax.solving import facts, solve

TENSOR_PARALLEL: Final = (1, 2, 4, 8)
_HOUR_S: Final = 3600.0
_MILLION: Final = 1e6
_BITS: Final = 8.0
_WINDOW, _CHUNK = 1.0, 2.0
_ROUNDS: Final = 500
_PEAKS: Final = ("mixer_flops", "mlp_flops", "expert_flops")
_RANKED_BY: Final = "usd_per_mtok_output_bound"
_SIZES: Final = ("weight_bytes_per_gpu", "tpot_floor_s", "ridge_batch", "crossover_batch")
_CURVE_SCHEMA: Final = ("batch", "tpot_bound_s", "output_tok_s_per_gpu_bound", _RANKED_BY, "bound_by")


@dataclass(frozen=True)
class DecodeBound:
    """What one decode step of a replica needs at least, per rank of `tp`; nothing that computes it so can be faster.

    `first_bytes` of weights are read for one sequence, `expert_bytes` are all routed experts, of which a token reads
    the share `expert_share`; `flops_per_token` [FLOP], `peak_flops` [FLOP/s] (the largest of its formats), `bandwidth`
    [bytes/s]; `kv_bytes_per_token` and `spans`, the share of it that layers with an attention span of so many tokens
    have; `state_bytes` of one sequence.
    """

    tp: int
    first_bytes: float
    expert_bytes: float
    expert_share: float
    flops_per_token: float
    peak_flops: float
    bandwidth: float
    kv_bytes_per_token: float
    spans: tuple[tuple[float, float], ...]
    state_bytes: float

    @property
    def floor_s(self) -> float:
        """Least time per output token of one sequence alone, its context apart: bytes over bandwidth [s]."""
        return self.first_bytes / self.bandwidth

    def weight_bytes(self, batch: float) -> float:
        """Weights that `batch` sequences read: experts are E·(1 - (1 - k/E)^B) distinct ones on average."""
        distinct = 1 - math.pow(1 - self.expert_share, batch)
        return self.first_bytes + self.expert_bytes * (distinct - self.expert_share)

    def sequence_bytes(self, context_tokens: float) -> float:
        """What attention reads of one sequence of `context_tokens`, and its recurrent state read and written."""
        kv = sum(share * min(context_tokens, span) for span, share in self.spans)
        return self.kv_bytes_per_token * kv + 2 * self.state_bytes

    def times_s(self, batch: float, context_tokens: float) -> dict[str, float]:
        """Time for weights, for KV and for multiplying, each by itself [s]."""
        return {
            "weights": self.weight_bytes(batch) / self.bandwidth,
            "kv": batch * self.sequence_bytes(context_tokens) / self.bandwidth,
            "compute": batch * self.flops_per_token / self.peak_flops,
        }

    def step_s(self, batch: float, context_tokens: float) -> float:
        """Least time of a step: all bytes over bandwidth, or all FLOPs over peak, whichever is longer [s]."""
        times = self.times_s(batch, context_tokens)
        return max(times["weights"] + times["kv"], times["compute"])

    def bound_by(self, batch: float, context_tokens: float) -> str:
        """What the step waits for: `weights`, `kv` (the larger part of its bytes) or `compute`."""
        times = self.times_s(batch, context_tokens)
        if times["compute"] > times["weights"] + times["kv"]:
            return "compute"
        return "kv" if times["kv"] > times["weights"] else "weights"

    @property
    def ridge_batch(self) -> float:
        """Sequences at which multiplying takes as long as reading the weights: from there on the curve is flat."""
        return self._batch_at(self.flops_per_token / self.peak_flops * self.bandwidth)

    def crossover_batch(self, context_tokens: float) -> float:
        """Sequences of `context_tokens` whose KV is as large as the weights; infinite where none is kept."""
        return self._batch_at(self.sequence_bytes(context_tokens))

    def _batch_at(self, bytes_per_sequence: float) -> float:
        """The B with B·bytes = weights(B): from above, weights grow slower than B."""
        if bytes_per_sequence == 0:
            return math.inf
        batch = self.weight_bytes(math.inf) / bytes_per_sequence
        for _ in range(_ROUNDS):
            batch = self.weight_bytes(batch) / bytes_per_sequence
        return batch

    def batch_for(self, tok_s_per_gpu: float, context_tokens: float) -> tuple[float, str]:
        """The least batch that gives so many output tokens/s per device, and `possible`; else infinity and what forbids
        it at any batch: `compute`, or `kv` (the KV of each token takes longer to read than it may take).
        """
        per_token_s = 1 / (tok_s_per_gpu * self.tp)
        if self.flops_per_token / self.peak_flops > per_token_s:
            return math.inf, "compute"
        spare_bytes = per_token_s * self.bandwidth - self.sequence_bytes(context_tokens)
        if spare_bytes <= 0:
            return math.inf, "kv"
        batch = self.first_bytes / spare_bytes
        for _ in range(_ROUNDS):
            batch = self.weight_bytes(max(batch, 1.0)) / spare_bytes
        return max(batch, 1.0), "possible"


def decode_bound(row: ReplicaRow) -> DecodeBound:
    """The bound of a replica that the catalogue supports."""
    known, fields = facts([row]).row(0, named=True), row.fields
    tp = int(fields["tp"])
    experts = [block for block in row.blocks if block["experts"] > 0]
    held = sum(block["count"] * block["experts"] * block["expert_params"] for block in experts)
    share = experts[0]["experts_per_token"] / experts[0]["experts"] if experts else 1.0
    return DecodeBound(
        tp=tp,
        first_bytes=known["weight_read_bytes"],
        expert_bytes=held * fields["expert_bits"] / _BITS / tp if experts else 0.0,
        expert_share=share,
        flops_per_token=2 * (known["layer_matmul_params"] + known["head_params"]) / tp,
        peak_flops=max(fields[name] for name in _PEAKS),
        bandwidth=fields["memory_bandwidth_bytes_per_s"],
        kv_bytes_per_token=known["kv_bytes_per_token_rank"],
        spans=_spans(row.blocks),
        state_bytes=known["state_bytes"] / tp,
    )


def _spans(blocks: Iterable[Mapping[str, float]]) -> tuple[tuple[float, float], ...]:
    """Attention spans [tokens] with their shares of the KV bytes of a token; a chunk is half full on average."""
    found: dict[float, float] = {}
    for block in blocks:
        span = {_WINDOW: block["span_tokens"], _CHUNK: block["span_tokens"] / 2}.get(block["span_kind"], math.inf)
        span = min(span, block["attended_tokens"]) if block["attended_tokens"] > 0 else span
        found[span] = found.get(span, 0.0) + block["count"] * block["kv_elements_per_token"]
    whole = sum(found.values()) or 1.0
    return tuple((span, elements / whole) for span, elements in found.items() if elements)


def decode(
    model: str,
    gpus: Sequence[str],
    *,
    context_tokens: float,
    tp: Sequence[int] = TENSOR_PARALLEL,
    weight_dtype: str = "native",
    kv_dtype: str = "bf16",
    slo_tpot_s: float | None = None,
    price_plan: str = "on-demand",
    usd_per_hour: Mapping[str, float] | None = None,
    catalog: Catalog | None = None,
) -> pl.DataFrame:
    """Decode as a division, on each of `gpus`: where its curve bends, and what a million output tokens cost at least.

    A step of B sequences with `context_tokens` each takes max((weights(B) + B·KV)/bandwidth, B·FLOPs/peak): every byte
    once at the peak bandwidth, every FLOP at the dense peak, nothing else (no links, launches or prefill). Of the
    degrees `tp` the one with the least cost per million output tokens (without a price: the most tokens/s per device)
    is told. `usd_per_hour` gives prices of one device by `gpu`, in place of the catalogue's median of `price_plan`.

    One row per accelerator, the cheapest first: `gpu`, `tp`, `status` (of the replica: `ok`, `does_not_fit`,
    `unsupported`, `invalid_parallelism`), `weight_bytes_per_gpu` (read for one sequence), `tpot_floor_s`,
    `ridge_batch`, `crossover_batch` (null where nothing is kept), `batch` (the most sequences that memory holds and
    `slo_tpot_s` allows; null where there is none), and there `tpot_bound_s`, `output_tok_s_per_gpu_bound`,
    `usd_per_mtok_output_bound` [USD] and `bound_by`; `usd_per_accelerator_hour`. Raises FrameError for names and
    numbers that are not allowed.
    """
    catalog = catalog or load_catalog()
    _refuse_prices(usd_per_hour or {}, gpus)
    points = decode_points(
        model, gpus, tp, context_tokens, weight_dtype=weight_dtype, kv_dtype=kv_dtype, plan=price_plan
    )
    given = pl.col("gpu").replace_strict(dict(usd_per_hour or {}) or {"": None}, default=None, return_dtype=pl.Float64)
    solved = solve(points.with_columns(given.alias("usd_per_accelerator_hour")), catalog=catalog)
    priced = solved.with_columns(pl.col("cost_usd_per_hour") / pl.col("gpus"))
    rows = [_decode_row(row, context_tokens, slo_tpot_s, catalog) for row in priced.iter_rows(named=True)]
    numbers = dict.fromkeys((*_SIZES, *_CURVE_SCHEMA[:-1], "usd_per_accelerator_hour"), pl.Float64)
    table = pl.DataFrame(rows, schema_overrides={**numbers, "bound_by": pl.String}, infer_schema_length=None)
    return _best_degrees(table, gpus)


def decode_curve(
    model: str,
    gpu: str,
    *,
    context_tokens: float,
    batches: Sequence[float],
    tp: int = 1,
    weight_dtype: str = "native",
    kv_dtype: str = "bf16",
    usd_per_hour: float | None = None,
    catalog: Catalog | None = None,
) -> pl.DataFrame:
    """The batch curve of the bound that `decode` describes, one row per batch, whether memory holds it or not.

    `batch`, `tpot_bound_s`, `output_tok_s_per_gpu_bound`, `usd_per_mtok_output_bound` (null without a price),
    `bound_by`. Raises CatalogError for a replica that cannot be sized.
    """
    at = Deployment(model, gpu, tp=tp, weight_dtype=weight_dtype, kv_dtype=kv_dtype)
    bound = decode_bound((catalog or load_catalog()).replica(at))
    return pl.DataFrame([_at(bound, batch, context_tokens, usd_per_hour) for batch in batches])


def _refuse_prices(prices: Mapping[str, float], gpus: Sequence[str]) -> None:
    allowed = columns.column("usd_per_accelerator_hour")
    faults = [Fault("decode", "usd_per_hour", gpu, f"one of {', '.join(gpus)}") for gpu in prices if gpu not in gpus]
    for gpu, price in prices.items():
        if gpu in gpus and not allowed.admits(price):
            faults.append(Fault("decode", "usd_per_hour", f"{gpu}={price:g}", allowed.allowed))
    if faults:
        raise FrameError(tuple(faults))


def decode_points(
    model: str, gpus: Sequence[str], tp: Sequence[int], context: float, *, weight_dtype: str, kv_dtype: str, plan: str
) -> pl.DataFrame:
    """A point for each device and degree, with room for one sequence of `context` tokens; FrameError for none."""
    if not gpus or not tp:
        raise FrameError((Fault("decode", "gpus" if not gpus else "tp", "nothing", "at least one"),))
    axes = pl.DataFrame({"gpu": list(gpus)}).join(pl.DataFrame({"tp": list(tp)}), how="cross")
    names = {"model": model, "weight_dtype": weight_dtype, "kv_dtype": kv_dtype, "price_plan": plan}
    lengths = {"isl_tokens": float(context), "osl_tokens": 2.0}
    return axes.with_columns(**{name: pl.lit(value) for name, value in {**names, **lengths}.items()})


def _decode_row(point: Mapping[str, Any], context: float, slo_s: float | None, catalog: Catalog) -> dict[str, Any]:
    status = "ok" if point["status"] == "no_price" else point["status"]
    told = {"gpu": point["gpu"], "tp": point["tp"], "status": status}
    price = point["cost_usd_per_hour"]
    names = ("model", "gpu", "tp", "weight_dtype", "kv_dtype")
    row = catalog.replica(Deployment(**{name: point[name] for name in names}))
    if point["status"] in ("unsupported", "invalid_parallelism"):
        return {**told, **dict.fromkeys((*_SIZES, *_CURVE_SCHEMA)), "usd_per_accelerator_hour": price}
    bound = decode_bound(row)
    crossover = bound.crossover_batch(context)
    numbers = (bound.first_bytes, bound.floor_s, bound.ridge_batch, None if math.isinf(crossover) else crossover)
    sizes = dict(zip(_SIZES, numbers, strict=True))
    batch = _largest_batch(bound, point["kv_pool_tokens"] or 0.0, context, slo_s)
    at = _at(bound, batch, context, price) if batch >= 1 else dict.fromkeys(_CURVE_SCHEMA)
    return {**told, **sizes, **at, "usd_per_accelerator_hour": price}


def _largest_batch(bound: DecodeBound, pool_tokens: float, context: float, slo_s: float | None) -> float:
    """Whole sequences that the pool holds and whose step is within the SLO."""
    fits = math.floor(max(pool_tokens, 0.0) / context)
    if slo_s is None or fits < 1 or bound.step_s(fits, context) <= slo_s:
        return float(fits)
    low, high = 0, fits
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if bound.step_s(middle, context) <= slo_s else (low, middle)
    return float(low)


def _at(bound: DecodeBound, batch: float, context: float, price: float | None) -> dict[str, Any]:
    step = bound.step_s(batch, context)
    per_gpu = batch / step / bound.tp
    cost = None if price is None else price / (_HOUR_S * per_gpu) * _MILLION
    return dict(zip(_CURVE_SCHEMA, (float(batch), step, per_gpu, cost, bound.bound_by(batch, context)), strict=True))


def _best_degrees(rows: pl.DataFrame, gpus: Sequence[str]) -> pl.DataFrame:
    """Of each accelerator the degree with the least cost, the cheapest accelerator first."""
    asked = {gpu: place for place, gpu in enumerate(gpus)}
    order = pl.col("gpu").replace_strict(asked, return_dtype=pl.UInt32)
    degree = pl.when(pl.col("batch").is_null()).then(-pl.col("tp")).otherwise(pl.col("tp"))
    best = [pl.col(_RANKED_BY), -pl.col("output_tok_s_per_gpu_bound"), order, degree]
    return rows.sort(best, nulls_last=True).unique("gpu", keep="first", maintain_order=True)
