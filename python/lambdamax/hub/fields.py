"""The keys of one config.json, each checked as it is asked for, and a record of which were."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lambdamax.facts import bad

# Instead of a key: the part is there in every model of the family.
ALWAYS: Final = "always"

# Largest size of each kind that is believed: far above any model, and low enough for exact sums in float64.
MOST_LAYERS: Final = 1_000
MOST_HEADS: Final = 1_024
MOST_HEAD_DIM: Final = 4_096
MOST_HIDDEN: Final = 262_144
MOST_WIDTH: Final = 4_194_304
MOST_EXPERTS: Final = 16_384
MOST_VOCABULARY: Final = 16_777_216
LONGEST_CONTEXT: Final = 2**40
# A list of layers may be longer than the layers (draft layers), not endlessly so.
LONGEST_LIST: Final = 4 * MOST_LAYERS


class NotSizedError(Exception):
    """The config is well formed and this version cannot size it; the text names the field that says so."""


@dataclass(frozen=True)
class Fields:
    """The keys of one config, checked as they are asked for; missing ones come from the class `defaults`.

    `prefix` leads the names in errors (`text_config.`); `own` are the family's names for the usual ones, asked first;
    `asked` collects every name that was asked for.
    """

    config: Mapping[str, Any]
    defaults: Mapping[str, Any]
    file: str
    prefix: str = ""
    asked: set[str] = field(default_factory=set)
    own: Mapping[str, str] = field(default_factory=dict)

    def get(self, *names: str) -> tuple[str, Any]:
        """The first of `names` that is set, and its value; the first name and None if none is.

        A class default counts only where the config has none of the names: null there means "none", not "default".
        """
        if self.own:
            names = tuple(dict.fromkeys(alias for name in names for alias in (self.own.get(name, name), name)))
        self.asked.update(names)
        stated = any(name in self.config for name in names)
        source = self.config if stated else self.defaults
        key = next((name for name in names if source.get(name) is not None), names[0])
        return key, source.get(key)

    def has(self, *names: str) -> bool:
        """Whether the config or its class sets one of `names` to something."""
        return is_set(self.get(*names)[1])

    def states(self, name: str) -> bool:
        """Whether the config itself has a value under `name`, class defaults left aside."""
        self.asked.add(name)
        return self.config.get(name) is not None

    def fault(self, key: str, value: object, allowed: str) -> Exception:
        """The error about `key`, with its whole path."""
        return bad(self.file, self.prefix + key[:64], _brief(value), allowed)

    def size(self, most: int, *names: str) -> int:
        """A whole number from 1 to `most` under one of `names`, which must be set."""
        key, value = self.get(*names)
        if type(value) is not int or not 1 <= value <= most:
            raise self.fault(key, value, f"a whole number from 1 to {most}")
        return value

    def optional_size(self, most: int, *names: str) -> int | None:
        """As `size`, None if no name is set or the value is 0."""
        _, value = self.get(*names)
        unset = value is None or (type(value) is int and value == 0)
        return None if unset else self.size(most, *names)

    def flag(self, name: str, default: bool = False) -> bool:
        """A true or false under `name`, `default` if it is neither in the config nor a class default."""
        key, value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fault(key, value, "true or false")
        return value

    def on(self, key: str) -> bool:
        """Whether a part is there: with no key never, with ALWAYS always, else as the flag `key` says."""
        return key == ALWAYS or bool(key and self.flag(key))

    def names(self, name: str, layers: int, known: Iterable[str]) -> list[str] | None:
        """The words of the first `layers` layers, each of `known`; None if `name` is not set."""
        values = self._list(name, layers)
        strange = next((value for value in values or () if value not in known), None)
        if strange is not None:
            raise NotSizedError(f"{self.prefix}{name} holds {str(strange)[:64]!r}: a layer of a kind that is not read")
        return values

    def marks(self, name: str, layers: int) -> list[bool] | None:
        """A list of 0 and 1 for the first `layers` layers, None if `name` is no list."""
        if not isinstance(self.get(name)[1], list):
            return None
        values = self._list(name, layers) or []
        if any(type(value) is not int or value not in (0, 1) for value in values):
            raise self.fault(name, values, "a 0 or 1 for each layer")
        return [value == 1 for value in values]

    def indices(self, name: str, layers: int, first: int = 0) -> set[int] | None:
        """The layers that `name` lists, counted from `first` there and from 0 here; None if it is not set."""
        key, value = self.get(name)
        if value is None:
            return None
        last = layers - 1 + first
        if not isinstance(value, list) or len(value) > LONGEST_LIST:
            raise self.fault(key, value, f"a list of layers from {first} to {last}")
        if any(type(item) is not int or not first <= item <= last for item in value):
            raise self.fault(key, value, f"layers from {first} to {last}")
        return {item - first for item in value}

    def table(self, name: str) -> Fields | None:
        """The object under `name` as fields of its own, None if it is not set."""
        value = self.get(name)[1]
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.fault(name, value, "an object, or null")
        return Fields(value, {}, self.file, f"{self.prefix}{name}.")

    def _list(self, name: str, layers: int) -> list[Any] | None:
        value = self.get(name)[1]
        if value is None:
            return None
        if not isinstance(value, list) or not layers <= len(value) <= LONGEST_LIST:
            raise self.fault(name, value, f"a list of at least {layers} entries, one for each layer")
        return [item if isinstance(item, str | int) else str(item)[:64] for item in value[:layers]]


def _brief(value: object) -> object:
    """`value` with what is nested in it left out, so that a message stays short."""
    if isinstance(value, list):
        return [item if isinstance(item, str | int | float | None) else type(item).__name__ for item in value[:8]]
    return f"an object of {len(value)} keys" if isinstance(value, Mapping) else value


def is_set(value: object) -> bool:
    """Whether `value` says something: 0, false, null and what is empty do not."""
    return bool(value)
