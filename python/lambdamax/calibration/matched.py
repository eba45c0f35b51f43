"""Measured rows as questions to the engine: a deployment, a load and what was measured there, or why it is left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import polars as pl

from lambdamax.calibration.possible import impossible
from lambdamax.calibration.published import PublishedNames, minor
from lambdamax.calibration.rows import CLOSED, OPEN, STATIC, Load, Measured, Row
from lambdamax.calibration.settings import KV_DTYPE, PublishedSettings, is_unsplit, seats
from lambdamax.catalog import Catalog
from lambdamax.exceptions import CatalogError
from lambdamax.replicas import Deployment, ReplicaRow

# Notes that say why a row is not what the engine answers; the first that fits counts.
_LEFT_OUT: Final = tuple(
    (reason, re.compile(pattern, re.IGNORECASE))
    for reason, pattern in (
        ("disaggregated serving", r"disagg"),
        ("marked as inconsistent or ambiguous", r"AUTO-|FLAG"),
        ("speculative decoding", r"speculative|\bMTP\b|eagle|medusa"),
        ("not a steady state", r"not steady state"),
        ("several replicas behind one address", r"\d replicas"),
        ("a burst: the number in flight is not known", r"\bburst|all-at-once|(submitted|queued) at once"),
        ("a burst: the number in flight is not known", r"max[a-z]*[- ]throughput"),
    )
)
_STATIC: Final = re.compile(r"static batch|num_prompts=batch", re.IGNORECASE)
_SATURATED: Final = re.compile(r"saturated server", re.IGNORECASE)
_OWN_DP: Final = re.compile(r"; dp=(\d+)(?:;|$)")
_DRAWN: Final = re.compile(r"range ratio 0\.8")
MEAN_OF_DRAWN: Final = 0.9


@dataclass(frozen=True)
class Matching:
    """The rows that can be compared, and how many were `skipped` for which reason, the most first."""

    rows: tuple[Measured, ...]
    skipped: Mapping[str, int]

    @property
    def read(self) -> int:
        """All rows there were."""
        return len(self.rows) + sum(self.skipped.values())


class _LeftOutError(Exception):
    """Why a row cannot be compared."""


def match(table: pl.DataFrame, catalog: Catalog) -> Matching:
    """The rows of `table`, which has the columns of `measured.SCHEMA`, in terms of `catalog`."""
    matcher = _Matcher(catalog)
    rows: list[Measured] = []
    skipped: Counter[str] = Counter()
    for row in table.iter_rows(named=True):
        try:
            rows.append(matcher.measured(row))
        except _LeftOutError as reason:
            skipped[str(reason)] += 1
    reasons = impossible(rows)
    skipped.update(filter(None, reasons))
    kept = tuple(row for row, reason in zip(rows, reasons, strict=True) if reason is None)
    return Matching(kept, dict(skipped.most_common()))


class _Matcher:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._names = PublishedNames(catalog)
        self._settings = PublishedSettings()
        self._replicas: dict[Deployment, ReplicaRow] = {}

    def measured(self, row: Row) -> Measured:
        notes = row["notes"] or ""
        _refuse(next((reason for reason, pattern in _LEFT_OUT if pattern.search(notes)), None))
        at = self._deployment(row, notes)
        settings = self._settings.of(row, at, self._replica(at).weight_dtype)
        if not row["kv_dtype"]:
            at = replace(at, kv_dtype=settings.get(KV_DTYPE, at.kv_dtype))
        load = self._set(self._load(row, notes), settings, at, notes)
        results = _results(row, load, notes)
        _refuse(None if results else "no time and no rate published")
        return Measured(at, self._replica(at), row["engine_version"] or "", load, results, _curve(row, at, load), row)

    def _deployment(self, row: Row, notes: str) -> Deployment:
        model = _known("model", row["model"], self._names.model(row["model"] or ""))
        gpu = _known("accelerator", row["gpu"], self._names.gpu(row["gpu"] or ""))
        engine = _known("engine", row["engine"], self._names.engine(row["engine"] or "", row["engine_version"]))
        formats = self._names.weight_dtype(row["weight_dtype"], model, notes)
        _refuse(None if formats else f"unknown weight format: {row['weight_dtype']}")
        kv = _known("KV format", row["kv_dtype"], self._names.kv_dtype(row["kv_dtype"]))
        model, weights = formats or (model, "")
        tp, pp, dp, ep = _degrees(row, notes)
        return Deployment(model, gpu, tp, pp, dp, ep, weights, kv, engine)

    def _set(self, load: Load, settings: dict[str, str], at: Deployment, notes: str) -> Load:
        most = seats(settings, notes, load.isl_tokens + load.osl_tokens)
        return replace(load, seats=most, unsplit=is_unsplit(settings, self._replica(at), load.concurrency or 0.0))

    def _replica(self, at: Deployment) -> ReplicaRow:
        if at not in self._replicas:
            try:
                self._replicas[at] = self._catalog.replica(at)
            except CatalogError as error:
                raise _LeftOutError(f"no such replica: {error}") from error
        _refuse(self._replicas[at].unsupported and "unsupported by the engine")
        return self._replicas[at]

    def _load(self, row: Row, notes: str) -> Load:
        isl = float(row["isl"] or self._names.prompt_tokens(notes) or 0.0)
        _refuse(None if isl >= 1 and row["osl"] and row["osl"] >= 2 else "lengths not published")
        drawn = MEAN_OF_DRAWN if _DRAWN.search(notes) else 1.0
        clients, rate = row["concurrency"], row["request_rate"]
        kind = STATIC if _STATIC.search(notes) else CLOSED
        if clients and clients >= 1:
            return Load(kind, drawn * isl, max(drawn * row["osl"], 2.0), float(clients), None)
        _refuse(None if rate and rate > 0 else "no load published")
        return Load(OPEN, drawn * isl, max(drawn * row["osl"], 2.0), None, float(rate))


def _refuse(reason: str | None) -> None:
    if reason:
        raise _LeftOutError(reason)


def _known(kind: str, published: str | None, name: str | None) -> str:
    _refuse(None if name else f"unknown {kind}: {published or 'blank'}")
    return name or ""


def _degrees(row: Row, notes: str) -> tuple[int, int, int, int]:
    """tp, pp, dp, ep. Where the notes have `dp=` as a clause, tp is what is left of the devices."""
    gpus, tp = int(row["gpus"] or 0), int(row["tp"] or 0)
    pp, ep = int(row["pp"] or 1), int(row["ep"] or 1)
    tp = tp or (1 if gpus == 1 else 0)
    _refuse(None if tp and gpus % (tp * pp or 1) == 0 else "parallelism not published")
    dp = max(gpus // (tp * pp), 1)
    own = _OWN_DP.search(notes)
    if own and gpus % (int(own[1]) * pp) == 0 and gpus > 0:
        dp = int(own[1])
        tp = gpus // (dp * pp)
    _refuse(None if ep in (1, tp * dp) else "experts sharded both ways")
    return tp, pp, dp, ep


def _results(row: Row, load: Load, notes: str) -> dict[str, float]:
    """What can be compared. A static batch has a throughput and, alone, a TPOT; gaps of a saturated server are none."""
    alone = load.concurrency == 1
    has_tpot = not _SATURATED.search(notes) and (load.kind != STATIC or alone)
    found = {
        "tpot": (row["tpot_mean_s"] or row["tpot_p50_s"]) if has_tpot else None,
        "ttft": row["ttft_mean_s"] if load.kind != STATIC else None,
        "output_tok_s": row["output_tok_s"] if load.kind != OPEN else None,
        "request_rate": row["request_throughput"] if load.kind != OPEN and not row["output_tok_s"] else None,
    }
    return {metric: float(value) for metric, value in found.items() if value and value > 0}


def _curve(row: Row, at: Deployment, load: Load) -> str:
    lengths = (load.isl_tokens, load.osl_tokens) if row["isl"] else (row["source_url"],)
    parts = (at.model, at.gpu, at.tp, at.pp, at.dp, at.ep, at.weight_dtype, at.engine, minor(row["engine_version"]))
    return " ".join(map(str, (*parts, *lengths)))
