"""One question, put to the catalogue and to the engine, with all that they answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Final

from lambdamax.catalog import AUTO_PROFILE, Catalog, load_catalog
from lambdamax.columns import MOMENTS, Column, inputs, of_groups
from lambdamax.engine import Answer, Control, Floats, OneReplica, Simulated, Trace
from lambdamax.exceptions import CatalogError, Fault
from lambdamax.facts import bad
from lambdamax.lengths import LengthTable
from lambdamax.names import label, refusal
from lambdamax.replicas import DEGREES, Deployment, ReplicaRow
from lambdamax.startup_log import read_startup_log

Value = float | int | str | None
GIVEN: Final = "given"
_PRICE: Final = "usd_per_accelerator_hour"
_RATIO_PROFILE: Final = 1.0
_FREE_AFTER_LOAD: Final = 2.0
_UNLIMITED: Final = {"memory_bytes": 1e18, "max_num_seqs": 1e12, "max_num_batched_tokens": 1e15, "utilization_cap": 1.0}


@dataclass(frozen=True)
class Question:
    """One point, the load asked about, and what was measured at that load.

    `lengths` is an empirical law by name or path, in place of `isl_tokens`, `osl_tokens` and their CVs.
    `numbers` holds the numeric point inputs that were given, by column name, in SI units. At most one of `rate_rps` and
    `concurrency` is given; both measurements [s] or neither, and with them a load. `network_s` and `router_s` are
    what a request spends before it reaches the replica. `pool_source` says where a given `kv_cache_tokens` comes from.
    """

    model: str
    gpu: str
    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    weight_dtype: str = "native"
    kv_dtype: str = "bf16"
    engine: str = "vllm"
    profile: str = "auto"
    lengths: str | None = None
    price_plan: str = "on-demand"
    provider: str = "median"
    numbers: Mapping[str, float] = field(default_factory=dict)
    rate_rps: float | None = None
    concurrency: float | None = None
    think_time_s: float = 0.0
    measured_ttft_s: float | None = None
    measured_tpot_s: float | None = None
    network_s: float = 0.0
    router_s: float = 0.0
    pool_source: str = ""

    def with_pool_of(self, startup_log: Path) -> Question:
        """The same question with the KV pool that a vLLM server logged at start.

        Raises CatalogError if the log says nothing of a pool, or is of another number of data-parallel ranks.
        """
        report = read_startup_log(startup_log)
        if report.data_parallel != self.dp:
            allowed = f"the log of a server with DP {self.dp}, as asked"
            raise bad(startup_log, "data-parallel engines", report.data_parallel, allowed)
        numbers = {**self.numbers, "kv_cache_tokens": float(report.kv_cache_tokens)}
        return replace(self, numbers=numbers, pool_source=str(startup_log))


class Case:
    """What is known about a question: `row` and `profile` from the catalogue; the rest from the engine.

    Numbers are floats in SI units, NaN where there is none. Raises `CatalogError` that names every unknown name.
    """

    def __init__(self, question: Question, catalog: Catalog | None = None, lengths: LengthTable | None = None) -> None:
        """Look up and solve `question`; `catalog` None is the shipped one, `lengths` a law that has no name."""
        catalog = catalog or load_catalog()
        self.question = question
        self.row = _replica_row(catalog, question)
        self.model = catalog.model(question.model)
        picked = question.profile == AUTO_PROFILE
        self.profile = catalog.profile(self.row.profile if picked else question.profile, question.gpu)
        self.points = dict(question.numbers)
        self.lengths = lengths if question.lengths is None else catalog.length_table(question.lengths)
        self.labels: dict[str, Value] = {c.name: None for c in _names()}
        self.labels |= {c.name: label(c, name, catalog) for c, name in _named(question)}
        self._look_up_price(catalog)
        self._replica = OneReplica(self.row, self.lengths)
        self.facts = self._replica.facts
        solved = self._replica.solve(self.points)
        self.answer = solved.numbers | self.row.band(solved.numbers["max_rate_rps"])
        self.labels["provenance"] = self.row.provenance
        self.status, self.binding_limit, self.next_limit = solved.status, solved.binding_limit, solved.next_limit

    def _look_up_price(self, catalog: Catalog) -> None:
        """A price that the user gave has no plan, and its provider is `given`."""
        asked = self.question
        if _PRICE in asked.numbers:
            self.labels |= {"price_plan": None, "provider": GIVEN}
        elif (price := catalog.price(asked.gpu, asked.price_plan, asked.provider)) is not None:
            self.points[_PRICE] = price.usd_per_accelerator_hour

    def point(self, name: str) -> float:
        """A number of the answer or an input: as the engine filled it in, else as given."""
        return self.answer.get(name, self.points.get(name, math.nan))

    @cached_property
    def residence_s(self) -> float:
        """The measured mean time in the system, NaN without a measurement."""
        ttft, tpot = self.question.measured_ttft_s, self.question.measured_tpot_s
        return math.nan if ttft is None or tpot is None else ttft + (self.point("osl_tokens") - 1) * tpot

    @cached_property
    def asked_rate_rps(self) -> float:
        """The rate given, else the one that the measurement makes of the given concurrency, N/(W + Z)."""
        if self.question.rate_rps is not None:
            return self.question.rate_rps
        return (self.question.concurrency or math.nan) / (self.residence_s + self.question.think_time_s)

    @property
    def gpus(self) -> int:
        """Devices of the replica."""
        return self.question.tp * self.question.pp * self.question.dp

    @property
    def slots(self) -> int:
        """Independent batches of the replica."""
        return self.question.pp * self.question.dp

    @property
    def fraction_is_of_the_rest(self) -> bool:
        """Whether the engine's memory fraction is of what weights and reserve leave, not of the whole memory."""
        return self.row.fields["memory_fraction_of"] == _FREE_AFTER_LOAD

    @property
    def left_bytes(self) -> float:
        """What weights and reserve leave for KV on the fullest rank; negative where they do not fit."""
        taken = self.facts["weight_shard_bytes"] + self.point("reserved_bytes")
        memory, share = self.point("memory_bytes"), self.point("memory_utilization")
        return share * (memory - taken) if self.fraction_is_of_the_rest else share * memory - taken

    @cached_property
    def computed_pool_tokens(self) -> float:
        """The KV pool that follows from memory, weights and reserve, whether or not one was given."""
        return self._replica.solve({**self.points, "kv_cache_tokens": math.nan}).numbers["kv_pool_tokens"]

    @property
    def clients_at_max_rate(self) -> float:
        """Clients of a closed loop that the replica admits at the largest rate, rate·(W + Z); NaN in an open loop."""
        think_s = math.nan if self.question.concurrency is None else self.question.think_time_s
        return self.answer["max_rate_rps"] * (self.answer["e2e_mean_s"] + think_s)

    @property
    def at_load(self) -> dict[str, float] | None:
        """The operating point at the load asked about, if any."""
        return None if self._loaded is None else self._loaded.numbers

    @property
    def load_status(self) -> str | None:
        """What became of the load asked about, if any: `ok`, `unstable`, `saturated`, or why there is no answer."""
        return None if self._loaded is None else self._loaded.status

    @cached_property
    def one_number(self) -> dict[str, float] | None:
        """The chain that holds one measured/floor ratio, where there is a measurement and a pool."""
        if math.isnan(self.residence_s) or math.isnan(self.answer["kv_pool_tokens"]):
            return None
        return self._one_number(self.point("osl_tokens"), self.question.measured_tpot_s or math.nan)

    def prompt_nodes(self) -> tuple[Floats, Floats] | None:
        """Weights and lengths of the prompt nodes of an empirical law, if there is one."""
        return None if self.lengths is None else self._replica.prompt_nodes()

    def one_number_at(self, rate_rps: float, osl_tokens: float) -> dict[str, float]:
        """The operating point that the held ratio predicts at another rate or output length, memory unlimited."""
        row, points = self.held_ratio()
        return OneReplica(row).load({**points, "rate_rps": rate_rps, "osl_tokens": osl_tokens}).numbers

    def held_ratio(self) -> tuple[ReplicaRow, dict[str, float]]:
        """The replica whose TPOT is the bandwidth floor times the measured ratio, and this point, memory unlimited.

        It knows an empirical law by its moments, as people do who compute by hand.
        """
        held = self.one_number or {}
        ratio = {"measured_over_floor_ratio": held.get("measured_over_floor_ratio", math.nan)}
        ttft = {"ttft_s": self.question.measured_ttft_s or 0.0}
        row = replace(self.row, fields={**self.row.fields, "kind": _RATIO_PROFILE, **ratio, **ttft})
        told = {} if self.lengths is None else self.lengths.moments
        return row, {**self.points, **told, **_UNLIMITED}

    def full_model_at(self, rate_rps: float) -> dict[str, float]:
        """The operating point that the full model predicts at another rate; NaN where it is unstable."""
        return self._replica.load({**self.points, "rate_rps": rate_rps}).numbers

    def one_number_for(self, osl_tokens: float, tpot_s: float) -> dict[str, float]:
        """The chain for another output length that was (or would be) measured at `tpot_s`."""
        return self._one_number(osl_tokens, tpot_s)

    def simulate(
        self, load: Mapping[str, float], control: Control, trace: Trace | None = None, threads: int = 0
    ) -> Simulated:
        """What a simulation of this point comes to under `load`, or of the requests of `trace`."""
        return self._replica.simulate({**self.points, **load}, control, trace, threads)

    @cached_property
    def _loaded(self) -> Answer | None:
        asked = self.question
        if asked.rate_rps is not None:
            return self._replica.load({**self.points, "rate_rps": asked.rate_rps})
        if asked.concurrency is not None:
            closed = {"concurrency": asked.concurrency, "think_time_s": asked.think_time_s}
            return self._replica.load({**self.points, **closed})
        return None

    def _one_number(self, osl_tokens: float, tpot_s: float) -> dict[str, float]:
        lengths = {"isl_tokens": self.point("isl_tokens"), "osl_tokens": osl_tokens}
        measured = {"measured_ttft_s": self.question.measured_ttft_s or 0.0, "measured_tpot_s": tpot_s}
        limits = {"kv_pool_tokens": self.answer["kv_pool_tokens"], "slo_tpot_s": self.point("slo_tpot_s")}
        return self._replica.one_number(**lengths, rate_rps=self.asked_rate_rps, **measured, **limits)


def _replica_row(catalog: Catalog, asked: Question) -> ReplicaRow:
    """The replica asked for; all names that the catalogue does not know are told at once."""
    faults = [_fault(column, name, why) for column, name in _named(asked) if (why := refusal(column, name, catalog))]
    faults += _length_faults(asked)
    if faults:
        raise CatalogError("\n".join(map(str, faults)))
    texts = {column.name: getattr(asked, column.name) for column in of_groups("replica") if column.is_text}
    return catalog.replica(Deployment(**texts, **{name: getattr(asked, name) for name in DEGREES}))


def _length_faults(asked: Question) -> list[Fault]:
    """Lengths are told once: by a law, or by their means."""
    told = [name for name in MOMENTS if name in asked.numbers]
    if asked.lengths is not None and told:
        return [
            Fault("command line", _flag(name), f"{asked.numbers[name]:g}", "nothing beside --lengths") for name in told
        ]
    return []


def _named(asked: Question) -> list[tuple[Column, str]]:
    """The names that a question gives."""
    return [(column, name) for column in _names() if (name := getattr(asked, column.name)) is not None]


def _names() -> tuple[Column, ...]:
    return tuple(column for column in inputs() if column.is_text)


def _fault(column: Column, name: str, allowed: str) -> Fault:
    return Fault("command line", _flag(column.name), repr(name), allowed)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
