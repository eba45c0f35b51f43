"""Worked example A: the chain that people compute from one measured point, and its fixed point.

TPOT is the plain bandwidth floor over all the weights times the ratio that the measurement shows; prefill costs
nothing and TTFT stays what it was measured to be. Bytes and FLOPs are those of one accelerator of the replica.
"""

from __future__ import annotations

from dataclasses import dataclass

Numbers = dict[str, float]


@dataclass(frozen=True)
class Measured:
    """A replica as its data sheet has it, the lengths, and one measured point."""

    weight_bytes: float  # of one accelerator: all it holds, the input embedding too
    kv_bytes_per_token: float  # of one accelerator
    bandwidth: float
    peak_flops: float
    total_params: float
    gpus: float
    isl: float
    osl: float
    rate: float
    ttft: float
    tpot: float
    pool_tokens: float

    @property
    def context(self) -> float:
        """Mean context of a request over its decode, in tokens."""
        return self.isl + self.osl / 2

    @property
    def decode_tokens(self) -> float:
        """Output tokens that a decode step makes: the first comes from prefill."""
        return self.osl - 1

    def floor(self, decoding: float) -> float:
        """Seconds to read the weights and the context of this many sequences."""
        return (self.weight_bytes + decoding * self.context * self.kv_bytes_per_token) / self.bandwidth

    @property
    def ratio(self) -> float:
        """Measured TPOT over the floor at the number decoding that Little's law gives."""
        return self.tpot / self.floor(self.rate * self.decode_tokens * self.tpot)


def tpot_at(point: Measured, rate: float) -> float:
    """TPOT = ratio floor(lambda (o-1) TPOT), which is linear in TPOT; infinite past the asymptote."""
    free = 1 - rate / asymptote(point)
    return point.ratio * point.floor(0.0) / free if free > 0 else float("inf")


def asymptote(point: Measured) -> float:
    """The rate at which every extra sequence adds all of its own time."""
    per_sequence = point.ratio * point.context * point.kv_bytes_per_token / point.bandwidth
    return 1 / (point.decode_tokens * per_sequence)


def in_flight_at(point: Measured, rate: float) -> float:
    """L = lambda W."""
    return rate * (point.ttft + point.decode_tokens * tpot_at(point, rate))


def rate_at_tpot(point: Measured, slo: float) -> float:
    """The rate at which TPOT is slo."""
    return asymptote(point) * (1 - point.ratio * point.floor(0.0) / slo)


def rate_at_kv(point: Measured) -> float:
    """The rate at which L times the mean context fills the pool, by bisection."""
    low, high = 0.0, asymptote(point)
    for _ in range(200):
        middle = (low + high) / 2
        if in_flight_at(point, middle) * point.context < point.pool_tokens:
            low = middle
        else:
            high = middle
    return low


def one_number(point: Measured, slo_tpot: float) -> Numbers:
    """Every number of the chain."""
    residence = point.ttft + point.decode_tokens * point.tpot
    decoding = point.rate * point.decode_tokens * point.tpot
    at_kv = rate_at_kv(point)
    kv_per_request = point.context * point.kv_bytes_per_token * point.gpus
    prefill = 2 * point.total_params * point.isl
    peak = point.peak_flops * point.gpus
    return {
        "residence_s": residence,
        "in_flight": point.rate * residence,
        "decoding": decoding,
        "decode_tok_s": decoding / point.tpot,
        "demand_tok_s": point.rate * point.decode_tokens,
        "mean_context_tokens": point.context,
        "kv_in_flight_bytes": point.rate * residence * kv_per_request,
        "naive_rate_rps": point.pool_tokens / (point.context * residence),
        "bandwidth_floor_s": point.floor(decoding),
        "measured_over_floor_ratio": point.ratio,
        "rate_at_kv_rps": at_kv,
        "tpot_at_kv_s": tpot_at(point, at_kv),
        "in_flight_at_kv": in_flight_at(point, at_kv),
        "rate_at_tpot_rps": rate_at_tpot(point, slo_tpot),
        "asymptote_rps": asymptote(point),
        "prefill_flops": prefill,
        "prefill_share_of_peak": point.rate * prefill / peak,
        "tpot_at_rate_s": tpot_at(point, point.rate),
    }
