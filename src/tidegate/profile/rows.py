"""The rows of a recording in memory, and what a pipeline must be told to read the same ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.core.outcomes import Int64s

__all__ = ["LoadedRows", "joined_rows", "spark_ddl"]


@dataclass(frozen=True, eq=False)
class LoadedRows:
    """Rows as a run gets them.

    Attributes:
        table: The rows, with the types a run gets; without payloads.
        file: Number of the file of each row, from 0.
        total: Rows there are in all files, also those beyond the limit.
        options: Options of the source that make Spark read the same.
        unreadable: Lines and parts of files that hold no row, by reason.
        text: Columns of numbers that a text format holds as text, by name: the run gets text if the
            schema says so, and text keeps all digits.
        payloads: Columns of bytes that were not read.
        notes: Sentences about how the files were read.
        left_out: Columns that Spark cannot read: the pipeline has a schema without them.
        units: Of columns of text files, the unit that stands below their names.
    """

    table: pa.Table
    file: Int64s
    total: int
    options: Mapping[str, Any] = field(default_factory=dict)
    unreadable: Mapping[str, int] = field(default_factory=dict)
    text: Mapping[str, pa.ChunkedArray] = field(default_factory=dict)
    payloads: Sequence[str] = ()
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    units: Mapping[str, str] = field(default_factory=dict)

    def with_options(self, **options: Any) -> LoadedRows:
        """Return the same rows with further options."""
        return replace(self, options={**self.options, **options})

    def as_text(self, names: Sequence[str]) -> LoadedRows:
        """Return the same rows with these columns as text; those that are text already stay."""
        table = self.table
        for name in names:
            place = table.schema.get_field_index(name)
            if place < 0 or pa.types.is_string(table.schema.field(place).type):
                continue
            column = self.text.get(name)
            if column is None:
                column = table.column(place).cast(pa.string())
            table = table.set_column(place, name, column)
        return replace(self, table=table)


def joined_rows(
    tables: Sequence[pa.Table],
    total: int,
    options: Mapping[str, Any],
    unreadable: Mapping[str, int] | None = None,
    *,
    text: Mapping[str, pa.ChunkedArray] | None = None,
    payloads: Sequence[str] = (),
    notes: tuple[str, ...] = (),
) -> LoadedRows:
    """Return the rows of several files as one table: all columns, null where a file lacks one."""
    table = pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})
    counts = [each.num_rows for each in tables]
    file = np.repeat(np.arange(len(tables), dtype=np.int64), counts)
    return LoadedRows(table, file, total, options, unreadable or {}, text or {}, payloads, notes)


def spark_ddl(schema: pa.Schema) -> str:
    """Return a schema in Spark's notation.

    A column without any value is text. Types that Spark does not have (unsigned 64-bit integers,
    times of day) become the nearest that holds all values, or text.

    >>> spark_ddl(pa.schema([("t", pa.int64()), ("a b", pa.struct([("x", pa.float64())]))]))
    '`t` BIGINT, `a b` STRUCT<`x`: DOUBLE>'
    """
    return ", ".join(f"{_quoted(field.name)} {_spark_type(field.type)}" for field in schema)


def _quoted(name: str) -> str:
    """Return a column name between backticks."""
    return f"`{name.replace('`', '``')}`"


def _spark_type(kind: pa.DataType) -> str:
    """Return Spark's name of an Arrow type."""
    if pa.types.is_struct(kind):
        inner = ", ".join(f"{_quoted(f.name)}: {_spark_type(f.type)}" for f in kind)
        return f"STRUCT<{inner}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"ARRAY<{_spark_type(kind.value_type)}>"
    if pa.types.is_boolean(kind):
        return "BOOLEAN"
    if pa.types.is_date(kind):
        return "DATE"
    if pa.types.is_timestamp(kind):
        return "TIMESTAMP_NTZ" if kind.tz is None else "TIMESTAMP"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    return _SPARK_NAMES.get(kind, "STRING")


_SPARK_NAMES = {
    pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INT", pa.int64(): "BIGINT",
    pa.float32(): "FLOAT", pa.float64(): "DOUBLE", pa.binary(): "BINARY",
}  # fmt: skip
"""Spark's names of plain types."""
