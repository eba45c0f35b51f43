"""Sections 5 and 6 of docs/model.md: every quantity of a slot at B decoding sequences in it, explicit in B."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reference.attended import attended
from reference.bursts import at_least, excess
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
    burst_cv: float  # c where arrivals come in bursts that the curve knows of, else 1
    some_experts: bool  # whether a token passes some of the experts, not all
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
        return self.at(b, k).rate

    def slope(self, b: Values, k: Values | None = None) -> Values:
        """d lambda/dB by a complex step, which has no cancellation."""
        return self.slopes(b, k).rate

    def slopes(self, b: Values, k: Values | None = None) -> State:
        """d/dB of every quantity by a complex step. `b` and `held` are the point's own."""
        moved = self.at(b + 1j * TINY, k)
        slopes = {name: values.imag / TINY for name, values in vars(moved).items() if name not in ("b", "held")}
        return State(b=b, held=moved.held, **slopes)

    def company(self, b: Values) -> Values:
        """h: the prompt tokens of others that a chunk finds before it."""
        if self.some_experts:
            return 0.0 * b
        coming = self.others * b * self.load.mean_uncached / self.load.d1
        return coming / 2 * at_least(1 - coming / self.room(b), 0.0)

    def prompts_s(self, b: Values, k: Values) -> Values:
        """s for every node at every B, shape (len(b), nodes), cut in k chunks."""
        if self.constant_ttft_s is not None:
            return np.zeros((len(b), len(self.load.weight)))
        there = (b[:, None], self.company(b)[:, None])
        room, riders = self.room(b)[:, None], self.others * b[:, None] / self.load.d1
        seconds: Values = self.step.prompt(self.load.uncached, self.prefill_attention_s, there, room, k)
        return seconds + self.step.prompt_overhead(self.load.uncached, room, riders)

    def peers_s(self, smooth: Smooth) -> Values:
        """K: prefill of those that come in a burst with a request and before it."""
        share = 0.75 * smooth.s1 / (1 - smooth.rho)
        alone = smooth.seen_iteration / 2
        wait, peers = alone, 0.0 * alone
        for _ in range(3):
            peers = excess(smooth.rate * wait, self.burst_cv) * share
            wait = alone + at_least(peers, 0.0)
        return peers

    def smooth(self, b: Values, s: Values) -> Smooth:
        """The state in which prefill is spread evenly."""
        load, met = self.load, self.others * b
        s1, s2 = s @ load.weight, s**2 @ load.weight
        first = self.step.decode(b, b * self.context_s)
        surplus = excess(b, self.burst_cv)
        surplus = surplus / (1 + at_least(surplus, 0.0) * s1 / (load.d1 * first))
        seen = met + self.step.own + surplus
        decode = self.step.decode(seen, seen * self.context_s)
        residence = load.d1 * decode + met * s1
        rate, rho = b / residence, met * s1 / residence
        return Smooth(
            s1=s1,
            s2=s2,
            first=first,
            surplus=surplus,
            decode=decode,
            residence=residence,
            rate=rate,
            rho=rho,
            seen_iteration=first / (1 - rho) + rate * s2 / (1 - rho**2),
        )

    def decode_slope(self, b: Values, surplus: Values) -> Values:
        """dD/dB at the same kappa, by a complex step."""
        seen = self.others * (b + 1j * TINY) + self.step.own + surplus
        slope: Values = self.step.decode(seen, seen * self.context_s).imag / TINY
        return slope

    def wake_s(self, b: Values, smooth: Smooth, peers: Values) -> Values:
        """X: what the longer iterations in the wake of a request's own prefill add to its decode."""
        load = self.load
        if self.others < 1:
            return 0.0 * b
        rho, left = smooth.rho, 1 - smooth.rho**2
        own = at_least(rho * (smooth.s1 + peers), 0.0)
        queued = rho**2 * self.others * smooth.rate * smooth.s2 / left
        falling = own + queued * (3 - rho**2) / left
        push = (own + queued) * smooth.residence / (smooth.residence + falling)
        full = load.d1 * smooth.decode * self.room(b) / load.mean_uncached - self.others * b * smooth.first
        most = load.d1 * smooth.s1 / smooth.residence * at_least(full, 0.0)
        both = push + most
        return push * most / np.where(both == 0, 1.0, both)

    def at(self, b: Values, k: Values | None = None) -> State:
        """Every quantity at every B, with the number of chunks held at k where given."""
        load, others, weight = self.load, self.others, self.load.weight
        chunks = self.chunks(b, k)
        s = self.prompts_s(b, chunks)
        smooth = self.smooth(b, s)
        peers = self.peers_s(smooth)
        later = (1 - smooth.rho) / 2 * at_least(smooth.surplus * smooth.s1 - at_least(peers, 0.0), 0.0)
        wake = self.wake_s(b, smooth, peers)
        decoding = smooth.residence + wake + later
        rate, rho = b / decoding, others * b * smooth.s1 / decoding
        iteration = smooth.first / (1 - rho)
        seen_iteration = iteration + others * rate * smooth.s2 / (1 - rho**2)
        riders = at_least(rho * seen_iteration + peers, 0.0)
        admitted = chunks * smooth.first[:, None] + s + riders[:, None]
        if self.constant_ttft_s is not None:
            admitted = np.full_like(s, self.constant_ttft_s)
        running = b + rate * (admitted @ weight)
        busy = -np.expm1(-others * running)
        host = self.host_s + self.host_s_per_token * load.mean_prompt
        ttft = busy * (seen_iteration / 2 + self.asynchronous * iteration) + admitted @ weight + host
        if self.constant_ttft_s is not None:
            ttft = np.full_like(b, self.constant_ttft_s)
        own = self.step.own * (self.own_context_s - self.context_s)
        sharing = load.d1 - load.missing * load.fade / (load.fade + rho / (1 - rho))
        return State(
            b=b,
            held=chunks,
            rate=rate,
            rho=rho,
            decode=smooth.decode,
            decoding=decoding,
            first=smooth.first,
            prompts=s,
            surplus=smooth.surplus,
            peers=peers,
            iteration=iteration,
            seen_iteration=seen_iteration,
            riders=riders,
            busy=busy,
            tpot_token=decoding / load.d1,
            tpot=(decoding - wake) / load.d1 + wake / sharing + own / (1 - rho),
            ttft=ttft,
            e2e=ttft + decoding,
            running=running,
            kv=b * self.held.decoding + rate * (admitted @ (weight * self.held.prefilling)) + self.held.shared,
        )


@dataclass(frozen=True)
class Smooth:
    """Section 5 with prefill spread evenly: the quantities with an index M, and those before them."""

    s1: Values
    s2: Values
    first: Values  # T0
    surplus: Values  # kappa
    decode: Values  # D
    residence: Values  # M
    rate: Values
    rho: Values
    seen_iteration: Values  # E[X]


@dataclass(frozen=True)
class State:
    """The quantities of sections 5 and 6 at an array of B: seconds, requests/s, tokens. Some have a column per node."""

    b: Values
    held: Values  # k, per node
    rate: Values
    rho: Values
    decode: Values  # D
    decoding: Values  # C_d
    first: Values  # T0
    prompts: Values  # s, per node
    surplus: Values  # kappa
    peers: Values  # K
    iteration: Values  # E[T]
    seen_iteration: Values  # E[X]
    riders: Values  # R
    busy: Values
    tpot_token: Values
    tpot: Values
    ttft: Values  # with a seat
    e2e: Values  # with a seat
    running: Values
    kv: Values


def curve(row: Row, part: Shard, step: Step, load: Workload, others: float | None = None) -> Curve:
    """The curve of a workload on a replica; `others` is None for arrivals from outside.

    A ratio profile has no request that sees itself, so none that does not; and no bursts.
    """
    ttft = field(row, "ttft_s") if field(row, "kind") == RATIO else None
    seen = [(one.decode_s, attended(one.span, load)) for one in step.spans]
    return Curve(
        step=step,
        load=load,
        context_s=sum(seconds * mean.decoding for seconds, mean in seen),
        own_context_s=sum(seconds * mean.request for seconds, mean in seen),
        prefill_attention_s=step.attention(load.prompt, load.cached),
        held=held(part, load),
        others=others if step.own and others is not None else 1.0,
        burst_cv=load.arrival_cv if step.own and others is None else 1.0,
        some_experts=part.untouched > 0,
        asynchronous=default(row, "async_scheduling", 0.0),
        host_s=default(row, "host_latency_s", 0.0),
        host_s_per_token=default(row, "host_latency_per_token_s", 0.0),
        constant_ttft_s=ttft,
    )
