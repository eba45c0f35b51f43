"""A command whose help lists its options in groups, each under a title of its own."""

from __future__ import annotations

from typing import ClassVar, Final

import click

from lambdamax import columns

_OTHERS: Final = "Other options"
_TITLES: Final = {
    "replica": "Replica",
    "workload": "Workload",
    "scheduler": "Scheduler and memory",
    "slo": "What is asked for",
    "price": "Price",
    "load": "Load, and what was measured",
}
GROUPS: Final = {
    "measured_ttft_s": _TITLES["load"],
    "measured_tpot_s": _TITLES["load"],
    "startup_log": _TITLES["scheduler"],
}


class Grouped(click.Command):
    """Options stand under the title of their group: that of `titles`, else that of their column in the dictionary."""

    titles: ClassVar[dict[str, str]] = dict(GROUPS)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, groups in the order of their first option, those of no group last."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            if (record := option.get_help_record(ctx)) is not None:
                groups.setdefault(self._title(option.name or ""), []).append(record)
        others = groups.pop(_OTHERS, [])
        for title, records in (*groups.items(), (_OTHERS, others)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def _title(self, name: str) -> str:
        column = columns.dictionary().get(name)
        return self.titles.get(name) or _TITLES.get(column.group if column else "", _OTHERS)
