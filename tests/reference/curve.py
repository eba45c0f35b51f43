"""Sections 5 and 6 of docs/model.md: every quantity of a slot at B decoding sequences in it, explicit in B."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reference.attended import attended
from reference.fields import Row, default, field
from reference.held import Held, held
from reference.shard import Shard
from reference.step import RATIO, Step
from reference.workload import Floats, Workload

# B and what follows from it: float64, or complex128 while a derivative is taken.
Values = NDArray[Any]

MANY_CHUNK_EDGES = 256
TINY = 1e-40


@dataclass(frozen=True)
class Curve:
    """One point's equations as functions of B."""

    step: Step
    load: Workload
    context_s: float  # attention of one decoding sequence, at its length-biased mean context
    own_context_s: float  # the same of a request over its own decode
    prefill_attention_s: Floats  # A of every node
    held: Held
    others: float  # o: by how much less than B a request meets, where the clients are few
    asynchronous: float
    host_s: float
    host_s_per_token: float
    constant_ttft_s: float | None  # a ratio profile's constant

    def chunks(self, b: Values, held: Values | None = None) -> Values:
        """k for every node at every B, shape (len(b), nodes), left-continuous in B; `held` where that is a number."""
        room = self.room(b.real)
        whole = np.maximum(1.0, np.ceil(self.load.uncached / room[:, None]))
        return whole if held is None else np.where(np.isnan(held), whole, held)

    def room(self, b: Values) -> Values:
        """C: the longest chunk at every B."""
        room: Values = self.load.budget - np.where(b.real > 1, b - 1, 0)
        return room

    def held_chunks(self, b: Values) -> Values:
        """k to hold on a piece of B that contains b; NaN for nodes cut so often that their edges are not looked at."""
        return np.where(self.chunk_steps() > MANY_CHUNK_EDGES, np.nan, self.chunks(b))

    def chunk_steps(self) -> Values:
        """How often each node's number of chunks steps up on [0, B_cap]."""
        ends = self.chunks(np.array([0.0, self.load.b_cap]))
        steps: Values = ends[1] - ends[0]
        return steps

    def edges(self) -> Floats:
        """Every B in (0, B_cap) at which some node's number of chunks steps up.

        Nodes with hundreds of steps are left out: one chunk more or less of so many is no visible jump.
        """
        few = self.chunk_steps() <= MANY_CHUNK_EDGES
        found = [np.ones(1)]  # where decodes begin to take room
        for u in self.load.uncached[few]:
            first = max(1.0, np.ceil(u / self.load.budget))
            last = np.ceil(u / self.room(np.array([self.load.b_cap]))[0])
            found.append(self.load.budget + 1 - u / np.arange(first, last + 1))
        edges = np.unique(np.concatenate(found))
        return edges[(edges >= 1) & (edges < self.load.b_cap)]

    def rate(self, b: Values, k: Values | None = None) -> Values:
        """lambda(B) [1/s], with the number of chunks held at k where given."""
        met = self.others * b
        return b / (self.load.d1 * self.decode_s(b) + met * (self.prompts_s(b, k) @ self.load.weight))

    def slope(self, b: Values, k: Values | None = None) -> Values:
        """d lambda/dB by a complex step, which has no cancellation."""
        slope: Values = self.rate(b + 1j * TINY, k).imag / TINY
        return slope

    def decode_s(self, b: Values) -> Values:
        """D(B): the decode step that a request sees."""
        seen = self.others * b + self.step.own
        step: Values = self.step.decode(seen, seen * self.context_s)
        return step

    def prompts_s(self, b: Values, k: Values | None) -> Values:
        """s for every node at every B, shape (len(b), nodes)."""
        if self.constant_ttft_s is not None:
            return np.zeros((len(b), len(self.load.weight)))
        k = self.chunks(b, k)
        column = b[:, None]
        riders, room = self.others * column / self.load.d1, self.room(column)
        seconds: Values = self.step.prompt(self.load.uncached, self.prefill_attention_s, column, room, k)
        return seconds + self.step.prompt_overhead(self.load.uncached, room, riders)

    def at(self, b: Values, k: Values | None = None) -> State:
        """Every quantity at every B, with the number of chunks held at k where given."""
        load, others = self.load, self.others
        s = self.prompts_s(b, k)
        decode, first = self.decode_s(b), self.step.decode(b, b * self.context_s)
        s1, s2 = s @ load.weight, s**2 @ load.weight
        rate = b / (load.d1 * decode + others * b * s1)
        rho = others * rate * s1
        tpot_token = decode / (1 - rho)
        own = self.step.own * (self.own_context_s - self.context_s)
        iteration = first / (1 - rho)
        seen_iteration = iteration + others * rate * s2 / (1 - rho**2)
        k = self.chunks(b, k)
        admitted = k * first[:, None] + s + (rho * seen_iteration)[:, None]
        if self.constant_ttft_s is not None:
            admitted = np.full_like(s, self.constant_ttft_s)
        prefilling = rate * (admitted @ load.weight)
        running = b + prefilling
        busy = -np.expm1(-others * running)
        wait = busy * (seen_iteration / 2 + self.asynchronous * iteration)
        ttft = wait + admitted @ load.weight + self.host_s + self.host_s_per_token * load.mean_prompt
        if self.constant_ttft_s is not None:
            ttft = np.full_like(b, self.constant_ttft_s)
        e2e = ttft + load.d1 * tpot_token
        prefill_kv = rate * (admitted @ (load.weight * self.held.prefilling))
        return State(
            b=b,
            rate=rate,
            rho=rho,
            tpot_token=tpot_token,
            tpot=(decode + own) / (1 - rho),
            ttft=ttft,
            e2e=e2e,
            running=running,
            in_flight=rate * e2e,
            kv=b * self.held.decoding + prefill_kv + self.held.shared,
        )


@dataclass(frozen=True)
class State:
    """The quantities of sections 5 and 6 at an array of B: seconds, requests/s, tokens."""

    b: Values
    rate: Values
    rho: Values
    tpot_token: Values
    tpot: Values
    ttft: Values
    e2e: Values
    running: Values
    in_flight: Values
    kv: Values


def curve(row: Row, part: Shard, step: Step, load: Workload, others: float = 1.0) -> Curve:
    """The curve of a workload on a replica. A ratio profile has no request that sees itself, so none that does not."""
    ttft = field(row, "ttft_s") if field(row, "kind") == RATIO else None
    seen = [(one.decode_s, attended(one.span, load)) for one in step.spans]
    return Curve(
        step=step,
        load=load,
        context_s=sum(seconds * mean.decoding for seconds, mean in seen),
        own_context_s=sum(seconds * mean.request for seconds, mean in seen),
        prefill_attention_s=step.attention(load.prompt, load.cached),
        held=held(part, load),
        others=others if step.own else 1.0,
        asynchronous=default(row, "async_scheduling", 0.0),
        host_s=default(row, "host_latency_s", 0.0),
        host_s_per_token=default(row, "host_latency_per_token_s", 0.0),
        constant_ttft_s=ttft,
    )
