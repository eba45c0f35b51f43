"""How long `lambdamax --help` and `import lambdamax` take, against an interpreter that does nothing."""

from __future__ import annotations

import argparse
import subprocess
import sys
from functools import partial
from typing import Final

from timing import interleaved, verdict

HELP: Final = "lambdamax --help"
IMPORT: Final = "import lambdamax"
NOTHING: Final = "pass"
COMMANDS: Final = {
    NOTHING: "pass",
    IMPORT: "import lambdamax",
    HELP: "import sys; from lambdamax.cli import main; sys.argv = ['lambdamax', '--help']; main()",
}
AIMS_S: Final = {HELP: 0.25, IMPORT: 0.3}


def run(code: str) -> None:
    """Run `code` in a fresh interpreter."""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    """Time every command in turn; `lambdamax --help` is what its console script runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="five rounds in place of 15")
    rounds = 5 if parser.parse_args().quick else 15
    times = interleaved({name: partial(run, code) for name, code in COMMANDS.items()}, rounds)
    for name in COMMANDS:
        least, ratio = times.least(name), times.ratio(name, NOTHING)
        said = f"  {verdict(least, AIMS_S[name], ' s', at_most=True)}" if name in AIMS_S else ""
        print(f"{name:18s} {least:6.3f} s best {times.median(name):6.3f} s median {ratio:6.2f} x pass{said}")


if __name__ == "__main__":
    main()
