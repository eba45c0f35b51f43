"""The simulator's rules as loops over arrays, every running request looked at in every step; Numba compiles them.

No prefix cache, no jumps, scheduling not ahead; else as docs/simulator.md says. All of it works on lists as well, which
are faster where Numba does not compile it. `costs` are the first eleven of `coefficients.COEFFICIENTS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numba
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Columns = tuple[Any, ...]

BLOCK: Final = 16
WEIGHTS, LAYER, HEAD, EXPONENT, FIXED, SEQUENCE, KAPPA, LINK, ATTENTION, HALF, OVERHEAD = range(11)
# Columns of a request, columns of its times, and counters of the replica.
PROMPT, OUTPUT, GENERATED, COMPUTED, HELD, TOKENS, DECODING, RUNNING, FRONT = range(9)
ARRIVAL, FIRST, LAST = range(3)
N, N_FRONT, QUEUE, ARRIVED, DONE, FREE, LEFT, THROWN_OUT, STEPS = range(9)
Step = Callable[..., Any]


def loops(compile_: Callable[[Step], Step]) -> Step:  # noqa: PLR0915, Numba cannot compile one loop twice over
    """The replay of a trace, its parts passed through `compile_`."""

    def go_on(columns: Columns, k: Any) -> None:
        """The running requests, in the order of admission; the last ones are thrown out where blocks end."""
        running, place = columns[RUNNING], 0
        while place < k[N]:
            i = running[place]
            want = min(columns[PROMPT][i] + columns[GENERATED][i] - columns[COMPUTED][i], k[LEFT])
            need = (columns[COMPUTED][i] + want + BLOCK - 1) // BLOCK - columns[HELD][i]
            while need > k[FREE] and k[N] > place:
                throw_out(columns, k)
            if k[N] == place:
                return
            k[FREE] -= need
            columns[HELD][i] += need
            columns[TOKENS][i] = want
            k[LEFT] -= want
            place += 1

    def throw_out(columns: Columns, k: Any) -> None:
        k[N] -= 1
        victim = columns[RUNNING][k[N]]
        k[FREE] += columns[HELD][victim]
        for column in (HELD, COMPUTED, TOKENS, DECODING):
            columns[column][victim] = 0
        columns[FRONT][k[N_FRONT]] = victim
        k[N_FRONT] += 1
        k[THROWN_OUT] = 1

    def admit(columns: Columns, k: Any, seats: int) -> None:
        """From the head of the queue: those thrown out, the last one first, then arrivals."""
        while k[N] < seats and k[LEFT] > 0 and (k[N_FRONT] > 0 or k[QUEUE] < k[ARRIVED]):
            i = columns[FRONT][k[N_FRONT] - 1] if k[N_FRONT] > 0 else k[QUEUE]
            length = columns[PROMPT][i] + columns[GENERATED][i]
            if (length + BLOCK - 1) // BLOCK > k[FREE]:
                return
            k[N_FRONT if k[N_FRONT] > 0 else QUEUE] += -1 if k[N_FRONT] > 0 else 1
            columns[TOKENS][i] = min(length, k[LEFT])
            columns[HELD][i] = (columns[TOKENS][i] + BLOCK - 1) // BLOCK
            k[FREE] -= columns[HELD][i]
            k[LEFT] -= columns[TOKENS][i]
            columns[RUNNING][k[N]] = i
            k[N] += 1

    def seconds(columns: Columns, k: Any, costs: Any) -> float:
        """The step's time."""
        prompt, generated, computed, tokens = columns[PROMPT], columns[GENERATED], columns[COMPUTED], columns[TOKENS]
        batch, context, chunks, total = 0, 0, 0, costs[FIXED]
        for place in range(k[N]):
            i = columns[RUNNING][place]
            if columns[DECODING][i]:
                batch += tokens[i]
                context += (computed[i] + 1) * tokens[i]
            elif tokens[i] > 0:
                length = prompt[i] + generated[i]
                chunks += tokens[i]
                pairs = tokens[i] * (computed[i] + 0.5 * tokens[i])
                total += costs[ATTENTION] * pairs * (1.0 + costs[HALF] / length)
                total += costs[HEAD] * (computed[i] + tokens[i] == length)
        total += costs[OVERHEAD] * (chunks > 0)
        compute = costs[LAYER] * (batch + chunks) + costs[HEAD] * batch
        gemms = (costs[WEIGHTS] ** costs[EXPONENT] + compute ** costs[EXPONENT]) ** (1.0 / costs[EXPONENT])
        return total + gemms + costs[SEQUENCE] * batch + costs[KAPPA] * context + costs[LINK] * chunks

    def emit(columns: Columns, times: Columns, k: Any, now: float) -> None:
        """The end of a step."""
        computed, generated, kept = columns[COMPUTED], columns[GENERATED], 0
        for place in range(k[N]):
            i = columns[RUNNING][place]
            computed[i] += columns[TOKENS][i]
            columns[TOKENS][i] = 0
            if computed[i] == columns[PROMPT][i] + generated[i]:
                generated[i] += 1
                columns[DECODING][i] = 1
                times[LAST][i] = now
                times[FIRST][i] = min(times[FIRST][i], now)
            if generated[i] < columns[OUTPUT][i]:
                columns[RUNNING][kept] = i
                kept += 1
            else:
                k[FREE] += columns[HELD][i]
                k[DONE] += 1
        k[N] = kept

    def replay(columns: Columns, times: Columns, k: Any, costs: Any, limits: tuple[int, int]) -> None:
        arrival, now, (budget, seats) = times[ARRIVAL], 0.0, limits
        while k[DONE] < len(arrival):
            while k[ARRIVED] < len(arrival) and arrival[k[ARRIVED]] <= now:
                k[ARRIVED] += 1
            k[LEFT], k[THROWN_OUT] = budget, 0
            go_on(columns, k)
            if k[THROWN_OUT] == 0:
                admit(columns, k, seats)
            if k[N] > 0:
                now += seconds(columns, k, costs)
                emit(columns, times, k, now)
                k[STEPS] += 1
            elif k[N_FRONT] == 0:
                now = arrival[k[ARRIVED]]

    throw_out, admit, seconds, emit = (compile_(part) for part in (throw_out, admit, seconds, emit))
    go_on = compile_(go_on)
    return compile_(replay)


_compiled: Final = loops(numba.njit)
_plain: Final = loops(lambda part: part)


def replay(
    trace: tuple[Floats, ...], costs: Floats, limits: tuple[int, int, int], *, compiled: bool
) -> tuple[Floats, Floats, int]:
    """First and last token of every request [s], and the steps; `limits` are token budget, seats and blocks."""
    count, (budget, seats, blocks) = len(trace[0]), limits
    lengths = [column.astype(np.int64) for column in trace[1:]]
    columns = [*lengths, *(np.zeros(count, np.int64) for _ in range(7))]
    times = [trace[0], np.full(count, np.inf), np.zeros(count)]
    counters = np.zeros(9, np.int64)
    counters[FREE] = blocks
    if compiled:
        _compiled(tuple(columns), tuple(times), counters, costs, (budget, seats))
        return times[FIRST], times[LAST], int(counters[STEPS])
    lists, time_lists, counter_list = _lists(columns), _lists(times), counters.tolist()
    _plain(lists, time_lists, counter_list, costs.tolist(), (budget, seats))
    return np.array(time_lists[FIRST]), np.array(time_lists[LAST]), counter_list[STEPS]


def _lists(columns: list[NDArray[Any]]) -> tuple[list[Any], ...]:
    return tuple(column.tolist() for column in columns)
