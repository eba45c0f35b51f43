"""A measured row as the laws see it: the best value of each quantity that it holds, and how sure that value is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from lambdamax.benchmarks.measured import ratio, scaled

# Means of a run obey the laws exactly; 10 % leaves room for rounding to three digits, warm-up requests left out of
# one number and not the other, and the end of a stream after its last token.
MEANS_TOLERANCE: Final = 0.10
# A median of a skewed latency is 10 to 25 % below its mean, and a source may not say which one it gives.
OTHER_TOLERANCE: Final = 0.30
# Tools print rates with two digits after the point; from 3 % on that error shows in the laws.
HALF_A_DIGIT: Final = 0.005
ROUNDED: Final = 0.03
EPSILON: Final = 1e-9


@dataclass(frozen=True)
class Point:
    """One row of the table of measurements; quantities in the table's units, None where the row does not say."""

    row: Mapping[str, Any]

    def get(self, column: str) -> float | None:
        """The number in `column`; a 0 says nothing that a law could hold against another number."""
        value: float | None = self.row[column]
        return value or None

    @property
    def load(self) -> str | None:
        """What drove the run."""
        load: str | None = self.row["load"]
        return load

    @property
    def notes(self) -> str:
        """What else was said of it."""
        return self.row["notes"] or ""

    @property
    def ttft_s(self) -> float | None:
        """Mean TTFT, or its median where there is no mean."""
        return _first(self.get("ttft_mean_s"), self.get("ttft_p50_s"))

    @property
    def tpot_s(self) -> float | None:
        """TPOT over tokens, else over requests, else its median."""
        return _first(self.get("tpot_token_mean_s"), self.get("tpot_mean_s"), self.get("tpot_p50_s"))

    @property
    def made_of_parts_s(self) -> float | None:
        """TTFT + (OSL - 1) TPOT."""
        osl, ttft, decode = self.get("osl_tokens"), self.ttft_s, self.decode_s
        return None if osl is None or ttft is None or decode is None else ttft + decode

    @property
    def longest_tpot_s(self) -> float | None:
        """TPOT, or what bounds it from above where it was not measured: the whole E2E over the gaps of a reply."""
        osl = self.get("osl_tokens")
        whole = _first(self.get("e2e_mean_s"), self.get("e2e_p50_s"))
        bound = None if osl is None or osl <= 1 else ratio(whole, osl - 1)
        return _first(self.tpot_s, bound)

    @property
    def decode_s(self) -> float | None:
        """(OSL - 1) TPOT: time from the first token to the last."""
        osl = self.get("osl_tokens")
        return None if osl is None or osl <= 1 else scaled(self.tpot_s, osl - 1)

    @property
    def e2e_s(self) -> float | None:
        """Mean E2E as measured, else made of its parts, else its median."""
        return _first(self.get("e2e_mean_s"), self.made_of_parts_s, self.get("e2e_p50_s"))

    @property
    def rate_rps(self) -> float | None:
        """Requests served per second: as stated, or output tokens per second over reply length if that is finer."""
        stated, made = self.get("request_rate_rps"), ratio(self.get("output_tok_s"), self.get("osl_tokens"))
        return made if stated is None or (made is not None and self._is_rounding(stated, made)) else stated

    @property
    def rate_rounding(self) -> float:
        """Relative error of a stated rate that has no more than two digits after the point, else 0."""
        stated = self.get("request_rate_rps")
        if stated is None or round(stated, 2) != stated:
            return 0.0
        return HALF_A_DIGIT / max(stated - HALF_A_DIGIT, HALF_A_DIGIT)

    def _is_rounding(self, stated: float, made: float) -> bool:
        return self.rate_rounding > ROUNDED and abs(stated / made - 1) <= self.rate_rounding + EPSILON

    @property
    def duration_s(self) -> float | None:
        """Length of the run, as stated or requests over their rate."""
        return _first(self.get("duration_s"), ratio(self.get("requests"), self.get("request_rate_rps")))

    @property
    def devices(self) -> float | None:
        """Accelerators that the throughput is of."""
        parts = [self.get("tp"), self.get("pp")]
        return _first(self.get("gpus"), None if parts[0] is None else parts[0] * (parts[1] or 1.0))

    @property
    def has_means(self) -> bool:
        """Whether TTFT and TPOT, or E2E itself, are means as far as the source says."""
        if self.row["statistic"] == "unknown":
            return False
        tpot = _first(self.get("tpot_token_mean_s"), self.get("tpot_mean_s"))
        return self.get("e2e_mean_s") is not None or (self.get("ttft_mean_s") is not None and tpot is not None)

    @property
    def tolerance(self) -> float:
        """Relative difference at which two sides of a law contradict each other."""
        return MEANS_TOLERANCE if self.has_means else OTHER_TOLERANCE


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
