"""What is worked out per window and group.

`count sum mean min max first last` of numbers, booleans and times are kept up to date as rows
arrive; no row is buffered for them. `quantile`, every further aggregation that Arrow knows
(`stddev`, `count_distinct`, ...) and functions of your own see the rows of a window when it emits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tidegate.errors import ConfigError

__all__ = ["Aggregate", "parse_aggregates"]

INCREMENTAL = ("count", "sum", "mean", "min", "max", "first", "last")
"""Needs no rows, only accumulators."""


@dataclass(frozen=True)
class Aggregate:
    """One column of the result: a function of one input column, by name or your own.

    `function` is `count`, `sum`, `mean`, `min`, `max`, `first`, `last`, `quantile` (with `q`), any
    other name of an Arrow group aggregation, or a callable from an Arrow array (the values of one
    window and group, sorted by time) to one value of the Arrow type `type`.
    """

    function: str | Callable[[pa.Array], Any] = field(repr=False)
    column: str | None = None
    q: float | None = None
    type: pa.DataType | None = None
    name: str = ""

    def __post_init__(self) -> None:
        what = self.function
        label = what if isinstance(what, str) else getattr(what, "__qualname__", "function")
        object.__setattr__(self, "name", self.name or label)
        if not isinstance(what, str):
            if not callable(what):
                raise ConfigError("function", what, "must be a name or a function")
            if self.type is None:
                raise ConfigError("type", None, "must be given for a function of your own")
        if self.column is None and what != "count":
            raise ConfigError("column", None, f"must be given for {label}")
        if what == "quantile":
            if not isinstance(self.q, (int, float)) or not 0 <= self.q <= 1:
                raise ConfigError("q", self.q, "must be between 0 and 1 for a quantile")
        elif self.q is not None:
            raise ConfigError("q", self.q, "is only for a quantile")

    def incremental(self, rows: pa.Schema) -> bool:
        """Can this be kept up to date without the rows?"""
        if self.function not in INCREMENTAL:
            return False
        if self.column is None or self.function in ("first", "last", "count"):
            return True
        return storage_of(column_type(rows, self.column)) is not None

    def result(self, rows: pa.Schema) -> pa.DataType:
        """The exact type of the result column, or a ConfigError where it has no meaning."""
        if self.function == "count":
            if self.column is not None:
                column_type(rows, self.column)
            return pa.int64()
        assert self.column is not None
        kind = column_type(rows, self.column)
        if self.function in ("first", "last"):
            return kind
        if not isinstance(self.function, str):
            assert self.type is not None
            return self.type
        number = (
            pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_floating(kind)
        )
        if self.function == "quantile" and number:
            return pa.float64()
        if self.function in ("sum", "mean") and number and storage_of(kind) is not None:
            if self.function == "mean" or pa.types.is_floating(kind):
                return pa.float64()
            return pa.int64()
        if self.function in ("min", "max") and storage_of(kind) is not None:
            return kind
        try:
            empty = pa.table({"slot": pa.array([], pa.int64()), "v": pa.array([], kind)})
            made = empty.group_by("slot").aggregate([("v", self.function)])
            return made.schema.field(f"v_{self.function}").type
        except (pa.ArrowKeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ConfigError(
                "aggregates",
                f"{self.function}({self.column})",
                f"must be an aggregation Arrow knows for {kind}: {error}",
            ) from error


def column_type(rows: pa.Schema, name: str, field: str = "aggregates") -> pa.DataType:
    at = rows.get_field_index(name)
    if at < 0:
        raise ConfigError(field, name, f"must be a column of the input: {', '.join(rows.names)}")
    return rows.field(at).type


def storage_of(kind: pa.DataType) -> str | None:
    """How a column is accumulated: as `int` or `float` (64 bits), or not at all (None)."""
    types = pa.types
    if types.is_floating(kind):
        return "float"
    if types.is_uint64(kind):
        return None  # beyond int64: left to Arrow, which is exact there
    if types.is_integer(kind) or types.is_boolean(kind) or types.is_temporal(kind):
        return None if types.is_interval(kind) else "int"
    return None


def parse_aggregates(given: object) -> tuple[tuple[str, Aggregate], ...]:
    """Names and aggregates, from a mapping such as `{"n": "count", "mean_v": ("mean", "v")}`.

    >>> parse_aggregates({"n": "count"})[0][0]
    'n'
    """
    if given is None:
        return ()
    items = given.items() if isinstance(given, Mapping) else given
    if not isinstance(items, tuple) and not hasattr(items, "__iter__"):
        raise ConfigError("aggregates", given, 'must be like {"n": "count", "m": ("mean", "v")}')
    out = []
    for item in items:
        if not isinstance(item, tuple) or len(item) != 2:
            raise ConfigError("aggregates", item, 'must be like {"m": ("mean", "v")}')
        name, what = item
        if isinstance(what, Aggregate):
            made = what
        elif isinstance(what, str):
            made = Aggregate(what)
        elif isinstance(what, tuple) and 2 <= len(what) <= 3:
            made = Aggregate(what[0], what[1], *(what[2:]))
        else:
            raise ConfigError(f"aggregates.{name}", what, 'must be like ("mean", "v")')
        out.append((str(name), made))
    if len({name for name, _ in out}) != len(out):
        raise ConfigError("aggregates", given, "must have different names")
    return tuple(out)
