"""A family's own way of writing a config, read as the usual one: names, nested objects, lists of one value a layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lambdamax.hub.family import Family
from lambdamax.hub.fields import LONGEST_LIST, Fields, NotSizedError


def spoken(fields: Fields, family: Family) -> Fields:
    """`fields` as `family` means them; refused if a key has a value for which its layers are built otherwise."""
    fields = replace(fields, own=family.names)
    for name in family.inside:
        fields = _unfolded(fields, name)
    for name in family.by_layer:
        fields = _evened(fields, name)
    fields.asked.update(family.harmless)
    _refuse_others(fields, family)
    return fields


def _unfolded(fields: Fields, name: str) -> Fields:
    """`fields` with the keys of the object `name` beside their own."""
    table = fields.table(name)
    return fields if table is None else replace(fields, config={**table.config, **fields.config})


def _evened(fields: Fields, name: str) -> Fields:
    """`fields` with the one value of the list `name`, one entry a layer."""
    value = fields.get(name)[1]
    if not isinstance(value, list):
        return fields
    if not 1 <= len(value) <= LONGEST_LIST or any(type(item) is not int for item in value):
        raise fields.fault(name, value, "a whole number, or a list of one for each layer")
    if len(set(value)) > 1:
        raise NotSizedError(f"{fields.prefix}{name} differs from layer to layer: that is not read in this family")
    return replace(fields, config={**fields.config, name: value[0]})


def _refuse_others(fields: Fields, family: Family) -> None:
    for name, read in family.only.items():
        _refuse(fields, name, read)
    for name, other in family.same.items():
        _refuse(fields, name, (fields.get(other)[1],))


def _refuse(fields: Fields, name: str, read: tuple[Any, ...]) -> None:
    value = fields.get(name)[1]
    if value is not None and not any(type(value) is type(one) and value == one for one in read):
        allowed = ", ".join(str(one)[:64] for one in read)
        raise NotSizedError(f"{fields.prefix}{name} = {str(value)[:64]}: only {allowed} is read in this family")
