"""Where rows were read, carried through the shuffle.

After a shuffle rows come in any order, so every blob of rows carries where its rows were read: the
file, the block of it, the partition and its number there (`Origin`). From that the step puts rows
into one order before the first stage sees them: `tidegate.eventtime.arrival_order` has the rules.
With a slice of a recorded run comes how far it has read (`BOUND`), and at the end a mark (`END`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (the name everyone uses)

from tidegate.core.columns import FILE
from tidegate.eventtime.slices import Bound

__all__ = [
    "BOUND",
    "END",
    "PARTS",
    "Origin",
    "Packed",
    "bound_of",
    "by_origin",
    "file_column",
]

BOUND = "bound"
"""The kind of a packed row that says how far a recorded run has come; one per shard and batch."""

END = "end of recording"
"""The kind of a packed row that ends a backfill: everything held leaves."""

PARTS = 1_000_000
"""Partition numbers reserved per input: partition p of input i is part i * PARTS + p. Above any
number of partitions Spark is run with; below it, parts of two inputs would share a number and
`part // PARTS` would name the wrong input. 2,147 inputs fit into the int32 column."""

NOT_IN_A_QUERY_FUNCTION = "ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION"
"""What a declarative pipeline answers to an analysis in its definitions. In Spark 4.1 the client
refuses it, with an error of its own; later ones leave it to the server: an AnalysisException."""


class Origin(NamedTuple):
    """Where the rows of a blob were read.

    - `changed`: when the file was last modified, in microseconds since 1970.
    - `file`: its name and a hash of its path; empty where rows do not come from files.
    - `block`: the byte at which the part of the file begins that one task reads.
    """

    changed: int = 0
    file: str = ""
    block: int = 0


class Packed(NamedTuple):
    """A blob of rows of one shard, as it comes out of the shuffle.

    Args:
        kind: `data`, `error` (rows whose time could not be read) or `control`.
        part: The partition it was packed in, plus `PARTS` times the number of the input.
        seq: Its number within that partition, from 0.
        changed: See `Origin`, as for `file` and `block`.
        file: The file its rows were read from.
        block: Where in that file its task began to read, in bytes.
        blob: The rows as Arrow IPC: bytes, or a buffer.
    """

    kind: str
    part: int
    seq: int
    changed: int
    file: str
    block: int
    blob: Any

    @classmethod
    def of(cls, row: Any) -> Packed:
        """Make one from a row of Spark (or any object) with attributes of the same names."""
        return cls(row.kind, row.part, row.seq, row.changed, row.file, row.block, row.blob)


def bound_of(row: Packed) -> Bound:
    """Return the bound that a packed row of kind `BOUND` carries."""
    return Bound(row.changed, frozenset(json.loads(row.file)))


# -- before the shuffle ---------------------------------------------------------------------------


def file_column(df: DataFrame, named: Column | None, *, ties_only: bool = False) -> Column | None:
    """Return a column that says which file each row of `df` was read from; None if nothing tells.

    Asks Spark's analyzer whether `_metadata` can be reached from here; runs no job.

    Args:
        df: The input.
        named: A column of the user's own that names the file (the column `file` of recordings). It
            alone decides then: rows of a file are taken in the order of Spark's partitions.
        ties_only: Whether the file only decides between rows of equal arrival. Its hash will do
            then, and the name, which would travel with every row, is left out.

    Returns:
        A struct of `name`, `id` (a hash of the path), `block` (bytes) and `changed` (microseconds).
    """
    if named is not None:
        name = F.regexp_extract(named.cast("string"), "[^/]*$", 0)
        return _file(F.lit("") if ties_only else name, named, F.lit(0), F.lit(0))
    if any(name.lower() == "_metadata" for name in df.columns):
        return None
    path, block = F.col("_metadata.file_path"), F.col("_metadata.file_block_start")
    if ties_only:
        told = _file(F.lit(""), path, block, F.lit(0))
    else:
        changed = F.unix_micros("_metadata.file_modification_time")
        told = _file(F.col("_metadata.file_name"), path, block, changed)
    try:
        with _unlogged():
            _ = df.select(told).schema
    except AnalysisException:  # not read from files, or too far away from the reading
        return None
    except PySparkException as error:
        if error.getCondition() != NOT_IN_A_QUERY_FUNCTION:
            raise
        return None
    return told


def _file(name: Column, path: Column, start: Column, changed: Column) -> Column:
    """Return the struct that `by_origin` reads. A hash stands for the path: it travels with every
    row.
    """
    return F.struct(
        F.coalesce(name, F.lit("")).alias("name"),
        F.xxhash64(path).alias("id"),
        start.cast("long").alias("block"),
        changed.cast("long").alias("changed"),
    )


@contextmanager
def _unlogged() -> Iterator[None]:
    """Silence pyspark's log inside the block: it logs every failed analysis with its stack, and
    `file_column` asks a question whose answer may be no.
    """
    log = logging.getLogger("DataFrameQueryContextLogger")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def by_origin(rows: pa.RecordBatch) -> Iterator[tuple[Origin, pa.RecordBatch]]:
    """Yield (origin, rows) for every run of rows of one file and block, in order, without a copy.

    The column that tells the file is taken away. Rows without it come out as one run of an
    unknown origin.
    """
    index = rows.schema.get_field_index(FILE)
    if index < 0:
        yield Origin(), rows
        return
    told = rows.column(index)
    rows = rows.remove_column(index)
    ids, blocks = (told.field(name).to_numpy() for name in ("id", "block"))
    edges = np.flatnonzero((ids[1:] != ids[:-1]) | (blocks[1:] != blocks[:-1])) + 1
    for first, last in zip([0, *edges], [*edges, len(ids)], strict=True):
        one = told[int(first)].as_py()
        file = f"{one['name']} {one['id']:x}"
        yield Origin(one["changed"], file, one["block"]), rows.slice(first, last - first)
