"""Where a percentile of TTFT may lie: anywhere on a piece on which its tail is flat, for rounding decides where.

The 16 prompt nodes of a lognormal law are symmetric, so that half of the requests have a prompt below the eighth and
half above: the tail is flat at a half from one to the next, and every t between them is a median.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from reference.fields import Blocks, Row, given
from reference.latency import first_token, ttft
from reference.limits import limit_roots, where_full
from reference.loads import share_of_others
from reference.operating import TTFT_PERCENTILES, Answer
from reference.replica import replica
from reference.waiting import no_wait, seat_wait

# Relative change of the share that is later.
A_HAIR = 1e-11


def ttft_ranges(
    row: Row, blocks: Blocks, point: Row, answer: Answer, names: Iterable[str]
) -> dict[str, tuple[float, float]]:
    """The smallest and the largest percentile when the share that is later changes by a hair, at a solved answer."""
    clients = given(point, "concurrency")
    solvable = replica(row, blocks, point, None if clients is None else share_of_others(row, blocks, clients))
    assert not isinstance(solvable, str)
    decoding, rate = answer["decoding"], answer.get("rate_rps", answer.get("max_rate_rps"))
    wait_s = answer["seat_wait_s"]
    assert isinstance(decoding, float)
    assert isinstance(rate, float)
    if not isinstance(wait_s, float):
        return {}
    state = solvable.curve.at(np.array([decoding / solvable.slots]))
    if clients is None:
        ceiling = where_full(solvable, limit_roots(solvable, {})).ceiling
        wait = seat_wait(solvable.curve, state, np.array([rate / solvable.slots]), ceiling)
    else:
        wait = no_wait(state, wait_s)
    law = ttft(first_token(solvable.curve, state), wait)
    shares = {name: 1 - TTFT_PERCENTILES[name] / 100 for name in names}
    return {
        name: (float(law.quantile(left * (1 + A_HAIR))[0]), float(law.quantile(left * (1 - A_HAIR))[0]))
        for name, left in shares.items()
    }
