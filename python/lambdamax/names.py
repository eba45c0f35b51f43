"""Names in sweep files and frames, looked up in the catalogue."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from lambdamax.catalog import Catalog
from lambdamax.columns import Column
from lambdamax.exceptions import CatalogError, UnknownName

_LISTED: Final = 12
_ENDINGS: Final = {"model": ".json", "profile": ".toml", "lengths": ".csv"}
_FILES: Final = {
    "model": ", or the path of a config.json",
    "profile": ", or the path of a .toml",
    "lengths": ", or the path of a .csv",
}


def is_path(column: Column, name: str, folder: Path = Path()) -> bool:
    """Whether `name` is a file that stands for a catalogue entry; a hub id has a slash as well, but no ending."""
    ending = _ENDINGS.get(column.name)
    return ending is not None and (name.casefold().endswith(ending) or ("/" in name and (folder / name).exists()))


def label(column: Column, name: str, catalog: Catalog) -> str:
    """What a solved point calls `name`: the model it stands for, the stem of a profile's file, else itself."""
    if column.name == "model":
        return catalog.model(name).name
    return Path(name).stem if is_path(column, name) else name


def refusal(column: Column, name: str, catalog: Catalog) -> str | None:
    """Why the catalogue does not know `name`, as what is allowed in its place; None if it does."""
    lookup = _LOOKUPS.get(column.name)
    if lookup is None:
        return None if name in known(column, catalog) else allowed(column, catalog, name)
    try:
        lookup(catalog, name)
    except UnknownName:
        return allowed(column, catalog, name)
    except CatalogError as error:
        return f"a readable {column.name} file ({error})"
    return None


def allowed(column: Column, catalog: Catalog, name: str = "") -> str:
    """The names allowed in `column`: all of them if they are few, else those close to `name`."""
    names = known(column, catalog)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    file = _FILES.get(column.name, "")
    if len(names) <= _LISTED:
        return f"one of {', '.join(names)}{file}"
    return f"a known {column.name}, such as {', '.join(close or names[:3])}{file}"


def known(column: Column, catalog: Catalog) -> tuple[str, ...]:
    """The names the catalogue has for `column`."""
    lists: dict[str, Callable[[], Iterable[str]]] = {
        "model": lambda: catalog.models,
        "gpu": lambda: catalog.accelerators,
        "weight_dtype": lambda: catalog.weight_dtypes,
        "kv_dtype": lambda: catalog.kv_dtypes,
        "engine": lambda: catalog.engines,
        "profile": lambda: ("auto", "default", *catalog.profiles),
        "lengths": lambda: catalog.lengths,
        "price_plan": lambda: catalog.plans,
        "provider": lambda: ("median", *catalog.providers),
    }
    return tuple(dict.fromkeys(lists[column.name]()))


_LOOKUPS: Final[dict[str, Callable[[Catalog, str], object]]] = {
    "model": lambda catalog, name: catalog.model(name),
    "profile": lambda catalog, name: catalog.profile(name, catalog.accelerators[0]),
    "lengths": lambda catalog, name: catalog.length_table(name),
}
