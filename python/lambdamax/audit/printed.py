"""An audit on a terminal: findings by row, then how many of each law, then what could not be checked."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

from lambdamax.render import print_lines, print_table

_HEADINGS: Final = ("place", "", "law", "both sides", "which number, and what it shows")

if TYPE_CHECKING:
    from rich.console import Console

    from lambdamax.audit import Audit
    from lambdamax.audit.finding import Finding


def print_audit(found: Audit, console: Console) -> None:
    """Write the findings of `found` to `console`, at its width."""
    for file, some in groupby(found.findings, key=lambda one: one.file):
        print_lines(console, [file])
        print_table(console, _HEADINGS, [(one.place, *_line(one.finding)) for one in some], text=range(5))
        console.print()
    print_lines(console, _summary(found))


def _line(finding: Finding) -> tuple[str, ...]:
    sides = f"{finding.left}; {finding.right}"
    return finding.severity, finding.law, sides, f"{finding.column}: {finding.verdict}"


def _summary(found: Audit) -> list[str]:
    rows = f"{found.rows} row{'s' if found.rows != 1 else ''}"
    total = len(found.findings)
    lines = [f"{rows}, {total or 'no'} finding{'s' if total != 1 else ''}"]
    for severity, laws in found.counts.items():
        if laws:
            lines.append(f"{severity}: " + ", ".join(f"{law} {count}" for law, count in laws.items()))
    for reason, count in found.not_checked.items():
        lines.append(f"device bounds not checked for {count} of them: {reason}")
    if any(reason.startswith("no ") for reason in found.not_checked):
        lines.append("what files do not record can be given: --model, --gpu, --tp or --gpus")
    return lines
