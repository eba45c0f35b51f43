"""A vendor's claim of so many output tokens per second and device: at which batch, context and precision can it be?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import polars as pl

from lambdamax.case import Question
from lambdamax.catalog import Catalog, load_catalog
from lambdamax.decode import TENSOR_PARALLEL, decode_bound, decode_points
from lambdamax.exceptions import Fault, FrameError
from lambdamax.replicas import Deployment
from lambdamax.solving import solve

CONTEXTS: Final = (256.0, 2048.0, 8192.0, 32768.0)
# From the best to the worst that can be said of a claim.
VERDICTS: Final = ("possible", "memory", "kv", "compute", "does_not_fit")
_KV_DTYPES: Final = ("bf16", "fp8")
_SCHEMA: Final = {
    **{"weight_dtype": pl.String, "kv_dtype": pl.String, "context_tokens": pl.Float64, "verdict": pl.String},
    **{"tp": pl.Int64, "batch": pl.Int64, "tpot_bound_s": pl.Float64, "batch_that_fits": pl.Int64},
}


@dataclass(frozen=True)
class Claim:
    """A claim [output tokens/s per device] and what `check_claim` says of it."""

    tok_s_per_gpu: float
    table: pl.DataFrame

    def as_json(self) -> dict[str, Any]:
        """The claim and the rows of the table."""
        return {"tok_s_per_gpu": self.tok_s_per_gpu, "rows": self.table.to_dicts()}


def claim_about(question: Question, tok_s_per_gpu: float, catalog: Catalog) -> Claim:
    """The claim for the model and the accelerator of `question`, with its mean context among others, and its SLO."""
    own = question.numbers["isl_tokens"] + question.numbers["osl_tokens"] / 2
    contexts, degrees = sorted({*CONTEXTS, own}), sorted({*TENSOR_PARALLEL, question.tp})
    slo = question.numbers.get("slo_tpot_s")
    shared: dict[str, Any] = {"tp": degrees, "slo_tpot_s": slo, "catalog": catalog}
    table = check_claim(question.model, question.gpu, tok_s_per_gpu, contexts_tokens=contexts, **shared)
    return Claim(tok_s_per_gpu, table)


def check_claim(
    model: str,
    gpu: str,
    tok_s_per_gpu: float,
    *,
    contexts_tokens: Sequence[float] = CONTEXTS,
    tp: Sequence[int] = TENSOR_PARALLEL,
    slo_tpot_s: float | None = None,
    catalog: Catalog | None = None,
) -> pl.DataFrame:
    """Where `gpu` can give `tok_s_per_gpu` output tokens/s per device in decode at all, by the bound of `decode`.

    A batch B of sequences gives B/(tp·step) tokens/s per device, so the claim C needs a step of at most B/(C·tp): it is
    impossible at any batch where multiplying for a token takes longer than 1/(C·tp), or reading the KV of its context
    does; else the least batch is weights(B)/(bandwidth/(C·tp) - KV), and the time per token there is B/(C·tp): no
    replica that keeps the claim answers faster. Of the degrees `tp` the one with the least time per token is told.

    One row per weight format that the device computes in, KV format and context: `weight_dtype`, `kv_dtype`,
    `context_tokens`, `verdict` (`possible`; `memory`: the KV of that batch does not fit; `kv` or `compute`: forbidden
    at any batch; `does_not_fit`: the weights do not), `tp`, `batch`, `tpot_bound_s` (the tightest TPOT SLO that
    survives; both null where there is no batch), `batch_that_fits`, and with `slo_tpot_s` `survives_slo`. Raises
    FrameError for names and numbers that are not allowed.
    """
    if not 0 < tok_s_per_gpu < math.inf:
        allowed = "a number above 0 [tokens/s]"
        raise FrameError((Fault("claim", "tok_s_per_gpu", f"{tok_s_per_gpu:g}", allowed),))
    catalog = catalog or load_catalog()
    found: list[dict[str, Any]] = []
    for weight_dtype, kv_dtype, context in product(catalog.weight_dtypes, _KV_DTYPES, contexts_tokens):
        formats = {"weight_dtype": weight_dtype, "kv_dtype": kv_dtype}
        points = decode_points(model, [gpu], tp, context, **formats, plan="on-demand")
        tried = list(_tried(solve(points, catalog=catalog), tok_s_per_gpu, context, catalog))
        if tried:
            best = min(tried, key=lambda row: (VERDICTS.index(row["verdict"]), row["tpot_bound_s"] or math.inf))
            found.append({**formats, "context_tokens": context, **best})
    table = pl.DataFrame(found, schema=_SCHEMA)
    if slo_tpot_s is None:
        return table
    survives = (pl.col("verdict") == "possible") & (pl.col("tpot_bound_s") <= slo_tpot_s)
    return table.with_columns(survives.fill_null(value=False).alias("survives_slo"))


def _tried(solved: pl.DataFrame, claim: float, context: float, catalog: Catalog) -> Iterator[dict[str, Any]]:
    for point in solved.iter_rows(named=True):
        if point["status"] not in ("unsupported", "invalid_parallelism"):
            yield _judged(point, claim, context, catalog)


def _judged(point: Mapping[str, Any], claim: float, context: float, catalog: Catalog) -> dict[str, Any]:
    names = ("model", "gpu", "tp", "weight_dtype", "kv_dtype")
    bound = decode_bound(catalog.replica(Deployment(**{name: point[name] for name in names})))
    least, verdict = bound.batch_for(claim, context)
    fits = math.floor(max(point["kv_pool_tokens"] or 0.0, 0.0) / context)
    batch = None if math.isinf(least) else math.ceil(least - 1e-9)
    if fits < 1:
        verdict = "does_not_fit"
    elif batch is not None and batch > fits:
        verdict = "memory"
    tpot = None if batch is None else bound.step_s(batch, context)
    return {"verdict": verdict, "tp": point["tp"], "batch": batch, "tpot_bound_s": tpot, "batch_that_fits": fits}
