"""Counts and order-free hashes of rows: what a step took in and let out, for `tidegate audit`.

A *tally* is a number of rows and the sum, modulo 2**64, of a 64-bit hash of each. A sum does not
depend on order, on cuts into batches or on which task had which row, and it can be subtracted: what
went in less what came out is what is held. One row lost, doubled or changed alters it, except by
an accident of one in 2**64.

What is hashed. A row that passes through keeps the columns it came with and gets others. So the
identity of a row is made of some of its own columns that every table of rows has: up to
`MOST_IDENTITY` numbers, and text where there are too few. Payloads (bytes, lists, structs) are
left out: hashing an image would cost more than all decisions about it, and the numbers beside it
tell it from every other. Times are left out too, for sinks may change their unit; event time
travels as a number. Tables whose rows are not rows that came in (aggregates, side tables) are
hashed by columns of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tidegate.core.hashing import hash_rows

__all__ = [
    "AUDIT",
    "AUDITED",
    "IN",
    "Tallies",
    "Tally",
    "audited_columns",
    "tallies_of_metrics",
    "tally_of",
]

AUDIT = "audit:"
"""The prefix of metrics that carry a tally: `audit:rows:data` its count, `audit:hash:data` its
hash."""

AUDITED = "audited:"
"""The prefix of the metric whose name carries, as JSON, which columns are hashed per kind."""

IN = "in"
"""The name under which rows that came in are tallied, beside the kinds that go out."""

MOST_COLUMNS = 16
"""Columns hashed of a table of aggregates, at most: their names are in every commit record."""

FEWEST_NUMBERS = 2
"""With at least this many columns of numbers, text is not hashed. A single one may be the same in
all rows."""

MOST_IDENTITY = 4
"""Columns that make the identity of a row, at most. A row lost, doubled or swapped for another is
seen by any that differ between rows, such as a sequence number and a time; a change within the
other columns is not."""

_TWO_64 = 2**64


class Tally(NamedTuple):
    """A number of rows and the sum of their hashes, modulo 2**64.

    >>> Tally(2, 7) + Tally(1, 2**64 - 1)
    Tally(rows=3, hash=6)
    >>> Tally(2, 7) - Tally(2, 7)
    Tally(rows=0, hash=0)
    """

    rows: int = 0
    hash: int = 0

    def __add__(self, other: object) -> Tally:
        """Both together."""
        if not isinstance(other, Tally):
            return NotImplemented
        return Tally(self.rows + other.rows, (self.hash + other.hash) % _TWO_64)

    def __sub__(self, other: Tally) -> Tally:
        """What is left of these rows without the others."""
        return Tally(self.rows - other.rows, (self.hash - other.hash) % _TWO_64)


def tally_of(rows: pa.RecordBatch | pa.Table, columns: Sequence[str]) -> Tally:
    """Return the tally of some rows.

    Args:
        rows: The rows, in any order.
        columns: The columns to be hashed, in this order. One that is missing counts as null.

    Example:
        >>> a = pa.record_batch({"n": [1, 2, 3]})
        >>> b = pa.record_batch({"n": pa.array([3, 1, 2], pa.int32()), "more": ["x", "y", "z"]})
        >>> tally_of(a, ["n"]) == tally_of(b, ["n"])
        True
    """
    if rows.num_rows == 0 or not columns:
        return Tally(rows.num_rows)
    arrays = []
    for name in columns:
        index = rows.schema.get_field_index(name)
        if index < 0:
            arrays.append(pa.nulls(rows.num_rows))
        else:
            column = rows.column(index)
            arrays.append(
                column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
            )
    return Tally(rows.num_rows, int(np.sum(hash_rows(arrays), dtype=np.uint64)))


def _is_cheap(kind: pa.DataType) -> bool:
    """Whether values of a type are hashed: numbers, truth values and text."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or _is_text_type(kind)
    )


def _is_text_type(kind: pa.DataType) -> bool:
    """Whether values of a type are text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def audited_columns(rows: pa.Schema, tables: Mapping[str, pa.Schema]) -> dict[str, tuple[str, ...]]:
    """Return, per kind and for `IN`, the columns that are hashed.

    Args:
        rows: The schema of rows that come in.
        tables: The schema of every table that goes out, by kind.

    Returns:
        For `IN` and for every table that holds rows as they came in, the same columns: their
        identity. For others, columns of their own.

    Example:
        >>> came = pa.schema([("car", pa.string()), ("n", pa.int64()), ("image", pa.binary())])
        >>> late = came.append(pa.field("lateness", pa.int64()))
        >>> counts = pa.schema([("car", pa.string()), ("count", pa.int64())])
        >>> audited_columns(came, {"late": late, "counts": counts})
        {'in': ('n', 'car'), 'late': ('n', 'car'), 'counts': ('car', 'count')}
    """
    refused = [tables[kind] for kind in ("late", "error", "dropped") if kind in tables]
    identity = _identity_columns(
        field
        for field in rows
        if _is_cheap(field.type)
        and all(field.name in t.names and t.field(field.name).type == field.type for t in refused)
    )
    out = {IN: identity}
    for kind, table in tables.items():
        same = all(
            name in table.names and table.field(name).type == rows.field(name).type
            for name in identity
        )
        own = tuple(field.name for field in table if _is_cheap(field.type))[:MOST_COLUMNS]
        out[kind] = identity if same and identity else own
    return out


def _identity_columns(fields: Iterable[pa.Field]) -> tuple[str, ...]:
    """Choose the columns that tell rows apart: numbers, and text if there are not enough of them.

    Text costs some twenty times as much as a number: with all six columns of a fleet's messages
    tallies took 13 % of a step, with its numbers 2 % (`benchmarks/audit.py`).
    """
    known = list(fields)
    numbers = [one.name for one in known if not _is_text_type(one.type)]
    text = [one.name for one in known if _is_text_type(one.type)]
    if len(numbers) < FEWEST_NUMBERS:
        numbers += text
    return tuple(numbers[:MOST_IDENTITY])


class Tallies:
    """The tallies of one call of a step.

    Args:
        columns: Per kind the columns to be hashed, from `audited_columns`. Empty: nothing is
            tallied.
    """

    def __init__(self, columns: Mapping[str, Sequence[str]]) -> None:
        self.columns = columns
        self.made: dict[str, Tally] = {}

    def add(self, kind: str, rows: pa.RecordBatch) -> None:
        """Add some rows of a kind; of a kind without columns nothing is kept."""
        if kind in self.columns:
            self.made[kind] = self.made.get(kind, Tally()) + tally_of(rows, self.columns[kind])

    def metrics(self) -> dict[str, int]:
        """Return the tallies as metrics, which are int64: hashes keep their bits."""
        if not self.columns:
            return {}
        out = {AUDITED + json.dumps({kind: list(names) for kind, names in self.columns.items()}): 1}
        for kind, tally in self.made.items():
            out[f"{AUDIT}rows:{kind}"] = tally.rows
            signed = tally.hash - _TWO_64 if tally.hash >= _TWO_64 // 2 else tally.hash
            out[f"{AUDIT}hash:{kind}"] = signed
        return out


def tallies_of_metrics(
    reports: Iterable[Mapping[str, int]],
) -> tuple[dict[str, list[str]], dict[str, Tally]]:
    """Return the hashed columns and the tallies that reports of a shard carry, added up.

    >>> tallies = Tallies({"in": ("n",)})
    >>> tallies.add("in", pa.record_batch({"n": [1, 2]}))
    >>> columns, made = tallies_of_metrics([tallies.metrics(), tallies.metrics()])
    >>> columns, made["in"].rows, made["in"] == tallies.made["in"] + tallies.made["in"]
    ({'in': ['n']}, 4, True)
    """
    columns: dict[str, list[str]] = {}
    made: dict[str, Tally] = {}
    for report in reports:
        for name, value in report.items():
            if name.startswith(AUDITED):
                columns = json.loads(name.removeprefix(AUDITED))
            elif name.startswith(f"{AUDIT}rows:"):
                kind = name.removeprefix(f"{AUDIT}rows:")
                added = Tally(value, report[f"{AUDIT}hash:{kind}"] % _TWO_64)
                made[kind] = made.get(kind, Tally()) + added
    return columns, made
