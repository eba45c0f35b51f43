"""The fluid balance while a spike lasts, with the ages of requests: prompts go first, answers take their time.

The plain balance (`fluid.py`) serves from the first second as the steady curve would. In a spike it is too kind: seats
that fill at once hold young requests, none of which is nearly done, and a queue of prompts takes time from the answers.
Here A(t) have had their first token, and V(t) tokens have come out for whoever was there all along:

    dV/dt = (1 − a·s)/D(B)            a = dA/dt, limited by arrivals, by seats, and by the token budget of a full step
    finished(t) = Σ weight·A(the time at which V was V(t) − tokens)
    B = A − finished
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, Self

import numpy as np

from lambdamax.budget import computed_tokens
from lambdamax.case import Case
from lambdamax.engine import Floats
from lambdamax.fluid import Flow, Service
from lambdamax.operating import Operating

_CURVE_POINTS: Final = 512
_LENGTHS: Final = 16
_STEPS: Final = 1_000
_LONGEST_STEPS: Final = 6_000
_STEPS_PER_RESIDENCE: Final = 128


@dataclass(frozen=True)
class Pace:
    """How fast answers and prompts go, by the number decoding, up to the limit.

    `step_s` is D, `prompt_s` the time that one prompt takes of the replica, `budget_share` the share of a step's token
    budget that one prompt takes, all slots together; `tokens` are the lengths of answers after the first token.
    """

    decoding: Floats
    rate_rps: Floats
    step_s: Floats
    prompt_s: Floats
    budget_share: float
    tokens: Floats

    @classmethod
    def of(cls, case: Case, operating: Operating) -> Self:
        """Read off the solver's curve."""
        found = operating.at(operating.limit_rps * np.linspace(0, 1, _CURVE_POINTS)[1:])
        tokens = computed_tokens(case) / (case.point("max_num_batched_tokens") * case.slots)
        return cls(
            decoding=np.maximum.accumulate(found["decoding"]),
            rate_rps=found["rate_rps"],
            step_s=found["tpot_token_mean_s"] * (1 - found["prefill_share"]),
            prompt_s=found["prefill_share"] / found["rate_rps"],
            budget_share=tokens,
            tokens=_output_lengths(case),
        )

    def at(self, decoding: float) -> tuple[float, float]:
        """D and the time of one prompt."""
        step, prompt = (float(np.interp(decoding, self.decoding, values)) for values in (self.step_s, self.prompt_s))
        return step, prompt


def _output_lengths(case: Case) -> Floats:
    """Equally likely lengths of answers after the first token."""
    if case.lengths is not None:
        return np.array(case.lengths.output_slices(_LENGTHS)) - 1
    return _lengths(case.point("osl_tokens") - 1, case.point("osl_cv"))


def _lengths(mean: float, cv: float) -> Floats:
    """Equally likely lengths with the given mean: the middles of the lognormal's slices."""
    if not cv > 0:
        return np.array([mean])
    spread = math.sqrt(math.log1p(cv * cv))
    middles = [NormalDist().inv_cdf((place + 0.5) / _LENGTHS) for place in range(_LENGTHS)]
    found = np.exp(spread * np.array(middles))
    return np.asarray(mean * found / found.mean())


def surge(service: Service, pace: Pace, rate_rps: float, spiked_rps: float, duration_s: float) -> Flow:
    """Requests in flight from the equilibrium at `rate_rps` through `duration_s` of `spiked_rps`."""
    before = min(rate_rps, service.limit_rps)
    past = _Past.steady(pace, before, _step_s(service, duration_s))
    waiting, rows = 0.0, [(0.0, past.decoding, 0.0)]
    for _ in range(math.ceil(duration_s / past.step_s)):
        arriving = waiting + spiked_rps * past.step_s
        admitted = past.admit(pace, arriving)
        waiting = arriving - admitted
        rows.append((rows[-1][0] + past.step_s, past.decoding, waiting))
    times, decoding, queue = (np.array(values) for values in zip(*rows, strict=True))
    # Beside the decoding, those being prefilled or at a boundary, in the share that they have at the limit.
    in_flight = queue + decoding * service.full / pace.decoding[-1]
    served = in_flight[0] + spiked_rps * times - in_flight
    return Flow(service, times, in_flight, served)


def _step_s(service: Service, duration_s: float) -> float:
    """A step that divides the spike."""
    residence_s = service.full / service.limit_rps
    steps = max(_STEPS, min(_LONGEST_STEPS, math.ceil(duration_s / residence_s * _STEPS_PER_RESIDENCE)))
    return duration_s / steps


class _Past:
    """First tokens A and token progress V at every step so far, and how far each length of answer has come."""

    def __init__(self, first: list[float], progress: list[float], lengths: Sequence[float], step_s: float) -> None:
        self.first, self.progress, self.lengths, self.step_s = first, progress, lengths, step_s
        self.places = [0] * len(lengths)
        self.decoding = first[-1] - self._finished()

    @classmethod
    def steady(cls, pace: Pace, rate_rps: float, step_s: float) -> Self:
        """A long time at `rate_rps`: both grow by the same in every step."""
        decoding = float(np.interp(rate_rps, pace.rate_rps, pace.decoding))
        step, prompt = pace.at(decoding)
        speed = (1 - rate_rps * prompt) / step
        steps = math.ceil(float(pace.tokens.max()) / speed / step_s) + 2
        times = step_s * np.arange(-steps, 1)
        return cls((rate_rps * times).tolist(), (speed * times).tolist(), pace.tokens.tolist(), step_s)

    def admit(self, pace: Pace, arriving: float) -> float:
        """One step in which at most `arriving` have their first token; how many have."""
        step, prompt = pace.at(self.decoding)
        fastest = self.step_s / (prompt + step * pace.budget_share)
        admitted = min(arriving, fastest, max(float(pace.decoding[-1]) - self.decoding, 0.0))
        self.first.append(self.first[-1] + admitted)
        self.progress.append(self.progress[-1] + (self.step_s - admitted * prompt) / step)
        self.decoding = self.first[-1] - self._finished()
        return admitted

    def _finished(self) -> float:
        """All answers that are complete, over the lengths."""
        return math.fsum(self._done(which) for which in range(len(self.lengths))) / len(self.lengths)

    def _done(self, which: int) -> float:
        """First tokens that came at least one answer of this length ago."""
        sought, place = self.progress[-1] - self.lengths[which], self.places[which]
        while self.progress[place + 1] < sought:
            place += 1
        self.places[which] = place
        part = (sought - self.progress[place]) / (self.progress[place + 1] - self.progress[place])
        return self.first[place] + part * (self.first[place + 1] - self.first[place])
