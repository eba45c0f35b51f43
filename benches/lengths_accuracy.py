"""The solver beside the simulator on the shipped tables of real lengths, at shares of what the replica sustains.

Run: python benches/lengths_accuracy.py [--quick]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from lambdamax.case import Case, Question
from lambdamax.catalog import load_catalog
from lambdamax.simulate import Simulation, simulate
from lambdamax.verdict import sustainable_rate_rps

REPLICAS = (("llama-3.1-8b-instruct", "h100-sxm", 1), ("llama-3.3-70b-instruct", "h100-sxm", 4))
SHARES = (0.3, 0.6, 0.8)
NUMBERS = ("ttft_mean_s", "tpot_mean_s", "tpot_token_mean_s", "in_flight")


def found(lengths: str, model: str, gpu: str, tp: int) -> Iterator[Simulation]:
    """Simulations at each of `SHARES`, to 2 % or so many requests; `--quick` shorter ones."""
    requests = 10_000 if "--quick" in sys.argv[1:] else 400_000
    limit = sustainable_rate_rps(Case(Question(model, gpu, tp=tp, lengths=lengths)))
    for share in SHARES:
        asked = Question(model, gpu, tp=tp, lengths=lengths, rate_rps=share * limit)
        yield simulate(asked, precision=0.02, requests=requests)


def errors(one: Simulation) -> list[float]:
    """How far the solver is from the simulator, relative."""
    solved = one.mean_field or {}
    return [solved[name] / one.numbers[name] - 1 for name in NUMBERS]


def main() -> int:
    """One line for each table, replica and share."""
    print(f"{'lengths':22} {'model':23} load  {'  '.join(NUMBERS)}  verdict")
    for lengths in load_catalog().lengths:
        for replica in REPLICAS:
            for share, one in zip(SHARES, found(lengths, *replica), strict=True):
                cells = "  ".join(
                    f"{100 * error:+{len(name) - 1}.1f}%" for name, error in zip(NUMBERS, errors(one), strict=True)
                )
                print(f"{lengths:22} {replica[0]:23} {share:.1f}   {cells}  {one.status}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
