"""A sweep file as frozen types, checked in full before anything is solved."""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictInt,
    StrictStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from lambdamax import columns
from lambdamax.axes import Counts, Mistake, Names, Numbers, Values, allowed_axis, numbers, refuse, show, texts
from lambdamax.catalog import Catalog, load_catalog
from lambdamax.columns import Column
from lambdamax.exceptions import CatalogError, Fault, SpecError

GIVEN: Final = "given"
MAX_POINTS: Final = 2**53
_PART_ROWS: Final = (1_024, 4_194_304)
_LISTED_OFFERS: Final = 12
_LEFT_OUT: Final = ()


class _Table(BaseModel):
    """A table of a sweep file, each of whose keys is an axis: one value, a list, or a range."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
    group: ClassVar[str]

    @field_validator("*", mode="before")
    @classmethod
    def _expand(cls, value: object, info: ValidationInfo) -> Values:
        column = _column_of(cls.group, info.field_name or "")
        if column.name in columns.MOMENTS and _lengths_told(column, value, info):
            return ()
        if column.is_text:
            return texts(column, value, *_Context.of(info))
        return numbers(column, value)


class Replica(_Table):
    """`[replica]`: what a replica is made of."""

    group: ClassVar[str] = "replica"

    model: Names
    """Models by catalogue name, or by the path of a config.json relative to the sweep file."""
    gpu: Names
    """Accelerators by catalogue id."""
    tp: Counts = (1,)
    """Tensor-parallel ranks."""
    pp: Counts = (1,)
    """Pipeline-parallel stages."""
    dp: Counts = (1,)
    """Data-parallel ranks."""
    ep: Counts = (1,)
    """Expert-parallel ranks: 1, or tp times dp."""
    weight_dtype: Names = ("native",)
    """Number formats of the weights."""
    kv_dtype: Names = ("bf16",)
    """Number formats of the KV cache."""
    engine: Names = ("vllm",)
    """Serving engines."""
    profile: Names = ("auto",)
    """Efficiency profiles: `auto`, `default`, a catalogue name, or the path of a .toml relative to the sweep file."""


class Workload(_Table):
    """`[workload]`: what the requests look like."""

    group: ClassVar[str] = "workload"

    lengths: Names = ()
    """Empirical laws, in place of the next four: catalogue names, or paths of .csv files relative to the sweep file."""
    isl_tokens: Numbers = Field(default=_LEFT_OUT, validate_default=True)
    """Mean prompt lengths [tokens]."""
    osl_tokens: Numbers = Field(default=_LEFT_OUT, validate_default=True)
    """Mean output lengths [tokens]."""
    isl_cv: Numbers = (0.0,)
    """Coefficients of variation of the prompt length."""
    osl_cv: Numbers = (0.0,)
    """Coefficients of variation of the output length."""
    prefix_tokens: Numbers = (0.0,)
    """Lengths of a prefix common to prompts [tokens]."""
    prefix_hit_share: Numbers = ()
    """Shares of prompts that hit the common prefix or, without one, of each prompt that is in the cache."""
    arrival_cv: Numbers = (1.0,)
    """Coefficients of variation of the gaps between arrivals; 1 is Poisson."""


class Scheduler(_Table):
    """`[scheduler]`: how the serving engine is set; what is left out takes the engine's default."""

    group: ClassVar[str] = "scheduler"

    max_num_seqs: Counts = ()
    """Seats."""
    max_num_batched_tokens: Counts = ()
    """Token budgets of one iteration."""
    memory_utilization: Numbers = ()
    """Shares of the accelerator's memory that the engine may use."""
    memory_bytes: Numbers = ()
    """Memory of one accelerator [bytes]."""
    reserved_bytes: Numbers = ()
    """Memory of one accelerator kept from weights and KV [bytes]."""
    kv_cache_tokens: Numbers = ()
    """KV pools as the engine reported them at start, for a whole replica [tokens]."""


class Slo(_Table):
    """`[slo]`: what the service has to keep; what is left out is not asked for."""

    group: ClassVar[str] = "slo"

    ttft_s: Numbers = ()
    """Largest times to first token, at `percentile` [s]."""
    tpot_s: Numbers = ()
    """Largest mean times per output token [s]."""
    e2e_s: Numbers = ()
    """Largest times from arrival to the last token, at `percentile` [s]."""
    percentile: Numbers = (0.0,)
    """Percentiles of TTFT and of end-to-end latency that the SLOs hold; 0 is the mean."""
    utilization_cap: Numbers = (0.9,)
    """Shares of the smallest of the compute, KV and seat limits that may be used."""


class Price(_Table):
    """`[price]`: what an accelerator costs, by the catalogue or as given."""

    group: ClassVar[str] = "price"

    plan: Names = ("on-demand",)
    """Plans: on-demand, reserved or spot."""
    provider: Names = ("median",)
    """Providers by catalogue name, or `median`."""
    usd_per_accelerator_hour: Numbers = ()
    """Prices you know [USD/h], in place of the catalogue's; leave out `plan` and `provider`."""


class Output(BaseModel):
    """`[output]`: how the data set is laid out."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    part_rows: StrictInt = Field(default=262_144, ge=_PART_ROWS[0], le=_PART_ROWS[1])
    """Rows of one Parquet part."""


class Spec(BaseModel):
    """A sweep: its grid is the product of every axis."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: StrictStr
    """What the sweep is called."""
    question: StrictStr = ""
    """The question that it answers."""
    catalog: StrictStr = ""
    """A directory with facts of your own, relative to the sweep file."""
    replica: Replica
    workload: Workload
    scheduler: Scheduler = Scheduler()
    slo: Slo = Slo()
    price: Price = Price()
    output: Output = Output()

    @property
    def axes(self) -> dict[str, Values]:
        """The values of every axis by column name, slowest first; an input left to the engine is absent."""
        return _axes(dict(self))

    @property
    def points(self) -> int:
        """The size of the grid."""
        return math.prod(map(len, self.axes.values()))

    @model_validator(mode="after")
    def _whole(self, info: ValidationInfo) -> Self:
        refuse(list(_whole_mistakes(dict(self), _Context.of(info).catalog)))
        return self


def read_spec(path: str | Path, *, catalog: Catalog | None = None) -> Spec:
    """The sweep file at `path`; SpecError naming every fault at once. Names are looked up as `parse_spec` does."""
    path = Path(path)
    return parse_spec(_read_toml(path), file=str(path), folder=path.parent, catalog=catalog)


def parse_spec(
    content: Mapping[str, Any], *, file: str = "spec", folder: Path = Path(), catalog: Catalog | None = None
) -> Spec:
    """The spec with that `content`; paths in it are relative to `folder`, faults are reported as of `file`.

    Names are looked up in `catalog`, else in the one that the spec names, else in the shipped one.
    """
    content = _with_catalog_found(content, folder)
    context = _Context(catalog or _catalog_named_in(content, file), folder)
    try:
        return Spec.model_validate(content, context=context)
    except ValidationError as error:
        rest = _rest_of_the_mistakes(error, content, context)
        raise SpecError((*_faults(error, file), *(Fault(file, *mistake) for mistake in rest))) from None


def catalog_of(spec: Spec) -> Catalog:
    """The catalogue that `spec` names, else the shipped one; CatalogError if it cannot be read."""
    return load_catalog(spec.catalog or None)


def _with_catalog_found(content: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    named = content.get("catalog")
    return {**content, "catalog": str(folder / named)} if isinstance(named, str) and named else content


def _catalog_named_in(content: Mapping[str, Any], file: str) -> Catalog:
    """The faults of a catalogue are told before those of the sweep file, whose names it may define."""
    named = content.get("catalog")
    try:
        return load_catalog(named if isinstance(named, str) and named else None)
    except CatalogError as error:
        faults = (Fault(file, "catalog", show(named), f"a catalogue without faults: {line}") for line in _lines(error))
        raise SpecError(tuple(faults)) from None


def _lines(error: CatalogError) -> list[str]:
    return str(error).splitlines()


class _Context(NamedTuple):
    catalog: Catalog
    folder: Path

    @classmethod
    def of(cls, info: ValidationInfo) -> _Context:
        return info.context if isinstance(info.context, cls) else cls(load_catalog(), Path())


def _read_toml(path: Path) -> dict[str, Any]:
    text = ""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        return tomllib.loads(text)
    except OSError as error:
        allowed = f"a readable sweep file ({error.strerror})"
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        allowed = f"a sweep file in UTF-8 (line {line} is not)"
    except tomllib.TOMLDecodeError as error:
        end = f"at line {text.count(chr(10)) + 1}, column {len(text) - text.rfind(chr(10))}"
        allowed = f"a TOML file: {error}".replace("at end of document", end)
    except RecursionError:
        allowed = "a TOML file, not nested as deeply"
    raise SpecError((Fault(str(path), "", "", allowed),))


def _lengths_told(column: Column, value: object, info: ValidationInfo) -> bool:
    """Whether a law tells what a moment of the lengths is; lengths are told once, and at least once."""
    told = bool(info.data.get("lengths", True))
    if told and value != _LEFT_OUT:
        refuse([Mistake("", show(value), "nothing beside lengths, which tell it")])
    if not told and value == _LEFT_OUT:
        refuse([Mistake("", "nothing", f"{allowed_axis(column)} (required, unless lengths are given)")])
    return told


def _column_of(group: str, field: str) -> Column:
    key = f"{group}.{field}"
    return next(column for column in columns.of_groups(group) if column.key == key)


# The whole


def _axes(parts: Mapping[str, Any]) -> dict[str, Values]:
    """The values of every axis of the tables in `parts`, by column name."""
    found = ((column.name, _values(parts, column)) for column in columns.inputs() if column.group in parts)
    return {name: values for name, values in found if values}


def _values(parts: Mapping[str, Any], column: Column) -> Values:
    table, field = column.key.split(".")
    if column.is_text and table == "price" and parts["price"].usd_per_accelerator_hour:
        return (GIVEN,)
    if column.name in columns.MOMENTS and parts[table].lengths:
        return ()
    values: Values = getattr(parts[table], field)
    return values


def _rest_of_the_mistakes(error: ValidationError, content: Mapping[str, Any], context: _Context) -> Iterator[Mistake]:
    """What is wrong between the tables that are right, where another is not, so that pydantic does not look."""
    if any(details["loc"] for details in error.errors()):
        tables = ((name, _table(name, content, context)) for name in _TABLES)
        yield from _whole_mistakes({name: table for name, table in tables if table is not None}, context.catalog)


def _table(name: str, content: Mapping[str, Any], context: _Context) -> BaseModel | None:
    try:
        return _TABLES[name].model_validate(content.get(name, {}), context=context)
    except ValidationError:
        return None


def _whole_mistakes(parts: Mapping[str, Any], catalog: Catalog) -> Iterator[Mistake]:
    yield from _size_mistakes(_axes(parts))
    if "price" in parts:
        yield from _price_mistakes(parts["price"], parts.get("replica"), catalog)


def _size_mistakes(axes: Mapping[str, Values]) -> Iterator[Mistake]:
    points = math.prod(map(len, axes.values()))
    if points > MAX_POINTS:
        longest = sorted(axes.items(), key=lambda axis: -len(axis[1]))[:3]
        listed = ", ".join(f"{columns.column(name).key} ({len(values)})" for name, values in longest)
        yield Mistake("grid", f"{points} points", f"at most {MAX_POINTS} points; the longest axes are {listed}")


def _price_mistakes(price: Price, replica: Replica | None, catalog: Catalog) -> Iterator[Mistake]:
    """Prices that were asked for and do not exist; without a `[price]` table the status `no_price` says so."""
    named = price.model_fields_set & {"plan", "provider"}
    if price.usd_per_accelerator_hour:
        for field in sorted(named):
            value = show(getattr(price, field))
            yield Mistake(f"price.{field}", value, "nothing beside usd_per_accelerator_hour")
    elif named and replica is not None:
        yield from _unpriced(price, replica, catalog)


def _unpriced(price: Price, replica: Replica, catalog: Catalog) -> Iterator[Mistake]:
    pairs = [(plan, provider) for plan in price.plan for provider in price.provider]
    for gpu in replica.gpu:
        if all(catalog.price(gpu, *pair) is None for pair in pairs):
            asked = f"no price for {gpu} ({' or '.join(f'{plan} of {provider}' for plan, provider in pairs)})"
            yield Mistake("price", asked, _priced(gpu, catalog) + "; or usd_per_accelerator_hour")


def _priced(gpu: str, catalog: Catalog) -> str:
    offers = [
        f"{plan} of {provider}"
        for plan in catalog.plans
        for provider in dict.fromkeys(("median", *catalog.providers))
        if catalog.price(gpu, plan, provider) is not None
    ]
    return ", ".join(offers[:_LISTED_OFFERS]) or "a gpu with a price"


# Faults


def _faults(error: ValidationError, file: str) -> Iterator[Fault]:
    for details in error.errors():
        key = ".".join(map(str, details["loc"]))
        yield from _faults_of(details, key, file)


def _faults_of(details: ErrorDetails, key: str, file: str) -> Iterator[Fault]:
    if details["type"] == "mistakes":
        for mistake in details["ctx"]["mistakes"]:
            yield Fault(file, key + mistake.suffix, mistake.value, mistake.allowed)
    elif details["type"] == "extra_forbidden":
        yield Fault(file, key, show(details["input"]), _allowed_keys(details["loc"]))
    elif details["type"] == "missing":
        yield Fault(file, key, "nothing", f"{_allowed_value(key)} (required)")
    else:
        yield Fault(file, key, show(details["input"]), _allowed_value(key))


def _allowed_keys(location: tuple[int | str, ...]) -> str:
    table: type[BaseModel] = Spec
    for name in location[:-1]:
        table = _TABLES[str(name)]
    close = difflib.get_close_matches(str(location[-1]), table.model_fields, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"the keys {', '.join(table.model_fields)}{hint}"


def _allowed_value(key: str) -> str:
    if key in _TABLES:
        return f"a table with the keys {', '.join(_TABLES[key].model_fields)}"
    if key in ("name", "question", "catalog"):
        return "text"
    if key == "output.part_rows":
        return f"a whole number from {_PART_ROWS[0]} to {_PART_ROWS[1]}"
    column = _column_of(*key.split("."))
    return f"{column.meaning}" if column.is_text else allowed_axis(column)


_TABLES: Final[dict[str, type[BaseModel]]] = {
    "replica": Replica,
    "workload": Workload,
    "scheduler": Scheduler,
    "slo": Slo,
    "price": Price,
    "output": Output,
}
