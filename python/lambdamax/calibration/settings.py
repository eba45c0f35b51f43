"""Settings of published runs that their tables leave out: from the scripts that launched them, or from the rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from lambdamax.calibration.rows import Row
from lambdamax.facts import read_rows
from lambdamax.replicas import Deployment, ReplicaRow

SETTINGS_FILE: Final = "published_settings.csv"
KV_DTYPE: Final = "kv_dtype"
POOL_TOKENS: Final = "pool_tokens"
SPLIT_HEADS: Final = "split_heads"
_SEATS: Final = re.compile(r"max_num_seqs=(\d+)")
_VERSION: Final = re.compile(r"-[\d.]+$")


class PublishedSettings:
    """What `published_settings.csv` knows of the runs that a row is of; an empty cell there is any."""

    def __init__(self) -> None:
        """Read the table."""
        self._rows = read_rows(SETTINGS_FILE)

    def of(self, row: Row, at: Deployment, weight_dtype: str) -> dict[str, str]:
        """The settings by name of the run of `row`, whose parts have the names of `at`."""
        return {one["setting"]: one["value"] for one in reversed(list(self._known(row, at, weight_dtype)))}

    def _known(self, row: Row, at: Deployment, weight_dtype: str) -> Iterator[Row]:
        run, when = f"{row['source']} {row['notes']}", row["date"] or ""
        engine = _VERSION.sub("", at.engine)
        for one in self._rows:
            named = one["engine"] in ("", engine), one["gpu"] in ("", at.gpu), one["weight_dtype"] in ("", weight_dtype)
            if all(named) and one["runs"] in run and at.model.startswith(one["model"]) and when >= one["since"]:
                yield one


def seats(settings: dict[str, str], notes: str, tokens: float) -> float | None:
    """The most sequences at once, of `tokens` each: what the notes say, or what a known pool has room for."""
    if POOL_TOKENS in settings:
        return max(float(settings[POOL_TOKENS]) // tokens, 1.0)
    found = _SEATS.search(notes)
    return float(found[1]) if found else None


def is_unsplit(settings: dict[str, str], replica: ReplicaRow, sequences: float) -> bool:
    """Whether a batch is so large that the engine's attention no longer splits a sequence over the device."""
    heads = max(block["query_heads"] for block in replica.blocks) / replica.fields["tp"]
    return SPLIT_HEADS in settings and sequences * heads > float(settings[SPLIT_HEADS])
