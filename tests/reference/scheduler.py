"""The rules of docs/simulator.md, step by step and request by request, without a prefix cache: judges the simulator."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from reference.step import Step

BLOCK = 16


@dataclass(eq=False)
class Request:
    """One request and what it has come to."""

    arrival_s: float
    prompt: int
    output: int
    generated: int = 0
    computed: int = 0
    first_s: float | None = None
    last_s: float = 0.0
    preemptions: int = 0
    is_decoding: bool = False  # whether it has emitted a token since it was last admitted

    @property
    def length(self) -> int:
        """Tokens it has so far; it emits the next when all of them are computed."""
        return self.prompt + self.generated


@dataclass(frozen=True)
class Rules:
    """The scheduler's settings."""

    budget: int
    seats: int
    blocks: int
    threshold: int = 0
    reserve: bool = True
    watermark: float = 0.0
    one_ahead: bool = False


@dataclass
class Engine:
    """One replica."""

    its: Step
    rules: Rules
    running: list[Request] = field(default_factory=list)
    waiting: deque[Request] = field(default_factory=deque)
    retiring: list[Request] = field(default_factory=list)

    def replay(self, requests: list[Request]) -> None:
        """Run until every request has its last token."""
        coming, now, seen = deque(requests), 0.0, 0.0
        while coming or self.waiting or self.running or self.retiring:
            while coming and coming[0].arrival_s <= seen:
                self.waiting.append(coming.popleft())
            planned = self.plan()
            self.retiring.clear()
            if not self.running:
                if coming and not self.waiting:
                    now = max(now, coming[0].arrival_s)
                seen = now
                continue
            start, now = now, now + self.seconds(planned)
            seen = start if self.rules.one_ahead else now
            for request, tokens in planned.items():
                self.compute(request, tokens, now)

    def plan(self) -> dict[Request, int]:
        """Tokens of each request in the coming step; decides who holds blocks and seats."""
        planned: dict[Request, int] = {}
        left, place, thrown_out = self.rules.budget, 0, False
        while place < len(self.running):
            request = self.running[place]
            tokens = self.wanted(request, left)
            planned[request] = 0
            while tokens and self.needed(request, tokens) > self.free(planned):
                thrown_out = True
                victim = self.running.pop()
                planned.pop(victim, None)
                victim.computed, victim.is_decoding, victim.preemptions = 0, False, victim.preemptions + 1
                self.waiting.appendleft(victim)
                if victim is request:
                    break
            else:
                planned[request] = tokens
                left -= tokens
            place += 1
        if not thrown_out:
            self.admit(planned, left)
        return {request: tokens for request, tokens in planned.items() if tokens}

    def admit(self, planned: dict[Request, int], left: int) -> None:
        """From the head of the queue, until one does not fit."""
        spare = int(self.rules.watermark * self.rules.blocks)
        while self.waiting and left and len(self.running) + len(self.retiring) < self.rules.seats:
            request = self.waiting[0]
            tokens = self.wanted(request, left)
            sequence = request.length if self.rules.reserve else tokens
            if -(-sequence // BLOCK) + spare > self.free(planned):
                return
            self.running.append(self.waiting.popleft())
            planned[request] = tokens
            left -= tokens

    def wanted(self, request: Request, left: int) -> int:
        """Tokens it takes if `left` are left of the budget."""
        tokens = request.length - request.computed
        return min(tokens, left, self.rules.threshold or tokens)

    def needed(self, request: Request, tokens: int) -> int:
        """Blocks to allocate for so many tokens more."""
        return -(-(request.computed + tokens) // BLOCK) - -(-request.computed // BLOCK)

    def free(self, planned: dict[Request, int]) -> int:
        """Blocks that nobody holds, with what has been planned so far."""
        held = sum(-(-(request.computed + planned.get(request, 0)) // BLOCK) for request in self.running)
        return self.rules.blocks - held - sum(-(-request.computed // BLOCK) for request in self.retiring)

    def seconds(self, planned: dict[Request, int]) -> float:
        """The step's time."""
        decodes = [request for request in planned if request.is_decoding]
        prompts = {request: tokens for request, tokens in planned.items() if not request.is_decoding}
        (span,) = self.its.spans
        total = self.its.decode(len(decodes), span.decode_s * sum(request.length for request in decodes))
        chunk = sum(prompts.values())
        total += self.its.gemm(len(decodes) + chunk, len(decodes)) - self.its.gemm(len(decodes), len(decodes))
        total += self.its.link_s_per_token * chunk + self.its.prefill_overhead_s * (chunk > 0)
        for request, tokens in prompts.items():
            pairs = tokens * (request.computed + tokens / 2)
            total += span.pair_s * pairs * (1 + self.its.half_tokens / request.length)
            total += self.its.head_s_per_row * (request.computed + tokens == request.length)
        return float(total)

    def compute(self, request: Request, tokens: int, now: float) -> None:
        """The end of the step for one request."""
        request.computed += tokens
        if request.computed < request.length:
            return
        request.generated += 1
        request.is_decoding = True
        request.last_s = now
        if request.first_s is None:
            request.first_s = now
        if request.generated == request.output:
            self.running.remove(request)
            if self.rules.one_ahead:
                self.retiring.append(request)
