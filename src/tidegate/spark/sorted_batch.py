"""A batch that does not fit in memory: Spark sorts its rows, and the stages run over pieces.

    rows ─► event time, shard, position ─► shuffle by shard ─► sort in order of arrival ─► flow

Otherwise all rows of a shard are in memory at once. Here Spark's own sort puts them in order, which
spills to disk, and a flow takes them as they come: memory is that of a piece and of what the stages
hold, whatever the size of a shard. It costs about half as much again on small rows, so `is_large`
says where it is worth it.

Where every file has a watermark of its own, the order is known only when the rows of a file have
been seen in the order of their positions: then there are two sorts, with `FileProgress` between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import groupby, pairwise
from operator import itemgetter

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (the name everyone uses)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tidegate.core.arrow import coalesce, conform
from tidegate.core.columns import TIME
from tidegate.core.flow import Flow
from tidegate.eventtime.arrival_order import (
    BYTES_PER_PIECE,
    JOIN_ROWS,
    NUMBER_DIGITS,
    NUMBER_TEXT,
    ArrivalOrder,
)
from tidegate.eventtime.slices import Slices
from tidegate.output.tally import IN
from tidegate.spark.arrival import PARTS, Origin, by_origin
from tidegate.spark.connect import estimated_bytes
from tidegate.spark.pack import (
    BYTES_PER_BLOB,
    ROWS_PER_BLOB,
    Packer,
    from_blob,
    plain,
    task_partition,
    to_blob,
)
from tidegate.spark.stateful_step import (
    STEP_SCHEMA,
    STEP_TYPE,
    FlowRecipe,
    packed_rows,
    run_piece,
    tables,
)

__all__ = ["LARGE", "RowPacker", "is_large", "row_type", "sorted_outcomes"]

LARGE = 512 * 2**20
"""Bytes of input, as Spark estimates them, at which Spark sorts a batch. All of it may
be of one key, Parquet files are several times as large in memory, and above 2 GiB no Arrow column
of text or bytes can hold them."""

PLACED = pa.schema(
    [
        ("shard", pa.int32()),
        ("part", pa.int32()),
        ("file", pa.string()),
        ("block", pa.int64()),
        ("seq", pa.int64()),
        ("blob", pa.binary()),
        ("time", pa.int64()),
        ("progress", pa.int64()),
        ("first", pa.int64()),
    ]
)
"""What stands before the columns of a row: its shard, where it was read (`part` to `seq`, see
`tidegate.spark.arrival`), its event time, and what orders it in a recorded run. Rows whose time
cannot be read travel as a `blob`."""

POSITION = ("file", "block", "part", "seq")
"""The columns that say where a row was read: the order of rows that nothing else tells apart."""


def is_large(df: DataFrame) -> bool:
    """Whether Spark estimates that a batch has `LARGE` bytes or more; runs no job. An estimate that
    Spark does not make counts as large.
    """
    return estimated_bytes(df) >= LARGE


@dataclass(frozen=True)
class RowPacker(Packer):
    """mapInArrow: rows in, rows out with what `PLACED` says of them before their columns.

    Args:
        columns: The columns of all inputs together.
    """

    columns: pa.Schema = field(default_factory=lambda: pa.schema([]))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        seq = 0
        for gathered in coalesce(batches, rows=ROWS_PER_BLOB, nbytes=BYTES_PER_BLOB):
            for origin, rows in by_origin(gathered):
                for kind, shard, some in self._split(rows):
                    made = self._placed(kind, shard, some, origin, seq)
                    seq += made.num_rows
                    yield made

    def _placed(
        self, kind: str, shard: int, rows: pa.RecordBatch, origin: Origin, seq: int
    ) -> pa.RecordBatch:
        """Return rows of one shard behind their place; error rows as one blob."""
        index = rows.schema.get_field_index(TIME)
        blob = time = None
        if kind == "data":
            count = rows.num_rows
            time = None if index < 0 else rows.column(index)
            own = conform(rows if index < 0 else rows.remove_column(index), self.columns)
        else:
            count, blob = 1, pa.array([to_blob(rows)], pa.binary())
            own = pa.RecordBatch.from_arrays(
                [pa.nulls(1, each.type) for each in self.columns], schema=self.columns
            )
        told = {
            "shard": pa.array(np.full(count, self.labels[shard], np.int32)),
            "part": pa.array(np.full(count, self.input * PARTS + task_partition(), np.int32)),
            "file": pa.repeat(origin.file, count),
            "block": pa.array(np.full(count, origin.block, np.int64)),
            "seq": pa.array(np.arange(seq, seq + count)),
            "blob": blob,
            "time": time,
        }
        placed = [told.get(each.name) for each in PLACED]
        return _behind_place(
            [
                pa.nulls(count, each.type) if column is None else column
                for column, each in zip(placed, PLACED, strict=True)
            ],
            own,
        )


def _behind_place(placed: Sequence[pa.Array], rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return columns of `PLACED` and those of the rows, numbered, as one batch."""
    names = [*PLACED.names, *(plain(place) for place in range(rows.num_columns))]
    return pa.RecordBatch.from_arrays([*placed, *rows.columns], names=names)


def sorted_outcomes(
    placed: Sequence[DataFrame], columns: pa.Schema, recipe: FlowRecipe, wall_ns: int, *,
    partitions: int, files: bool,
) -> DataFrame:  # fmt: skip
    """Return the outcomes of a batch, packed as the step does.

    Args:
        placed: The inputs, by a `RowPacker` each.
        columns: The columns of all inputs together.
        recipe: How flows are made, and what pins the order of arrival.
        wall_ns: When the job was planned: one clock for all shards, and for a task run again.
        partitions: How many partitions the shards are spread over.
        files: Whether several files may have rows, each with a watermark of its own.
    """
    order = recipe.arrival
    by_position = [F.col("shard"), *(F.col(name) for name in POSITION)]
    rows = reduce(DataFrame.union, placed).repartition(partitions, "shard")
    if order.columns:
        arrival = [
            each.asc_nulls_last() for name in order.columns for each in _spark_order(name, columns)
        ]
        rows = rows.sortWithinPartitions("shard", *arrival, *POSITION)
    elif files and order.recorded:
        rows = rows.sortWithinPartitions(*by_position)
        rows = rows.mapInArrow(FileProgress(columns, order, len(placed)), row_type(columns))
        rows = rows.sortWithinPartitions("shard", "progress", "first", *POSITION)
    else:
        rows = rows.sortWithinPartitions(*by_position)
    return rows.mapInArrow(SortedShards(columns, recipe, wall_ns), STEP_TYPE)


def _spark_order(name: str, columns: pa.Schema) -> list[Column]:
    """Return what Spark sorts an arrival column by, as `ArrivalOrder` does: of text, the numbers in
    it first."""
    place = columns.get_field_index(name)
    column = F.col(plain(place))
    if not pa.types.is_string(columns.field(place).type):
        return [column]
    decimal = f"decimal({NUMBER_DIGITS[0]},{NUMBER_DIGITS[1]})"
    return [F.when(column.rlike(NUMBER_TEXT), column.cast(decimal)), column]


def row_type(columns: pa.Schema) -> StructType:
    """Return the columns of placed rows, as Spark has types."""
    numbered = [each.with_name(plain(place)) for place, each in enumerate(columns)]
    return from_arrow_schema(pa.schema([*PLACED, *numbered]))


@dataclass(frozen=True)
class FileProgress:
    """mapInArrow: rows in the order of their positions in, the same rows out with how far event
    time has come in their file, for their key. Memory: a few numbers per file and key.

    Args:
        columns: The columns of all inputs together.
        order: The rule that orders a recorded run.
        inputs: How many inputs there are.
    """

    columns: pa.Schema
    order: ArrivalOrder
    inputs: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        known: Slices | None = None
        last = None
        for shard, batch in _by_shard(batches):
            if known is None or shard != last:
                known, last = Slices(self.order), shard
            errors = batch.filter(batch.column("blob").is_valid())
            if errors.num_rows:  # they have no time: anywhere will do
                yield errors
                batch = batch.filter(batch.column("blob").is_null())
            if batch.num_rows == 0:
                continue
            rows = _own_rows(batch, self.columns)
            names = batch.column("file").to_pylist()
            inputs = (batch.column("part").to_numpy() // PARTS).tolist()
            sources = [f"{number} {name}" for number, name in zip(inputs, names, strict=True)]
            edges = [0, *(n for n in range(1, len(sources)) if sources[n] != sources[n - 1])]
            parts = [rows.slice(a, b - a) for a, b in pairwise([*edges, len(sources)])]
            progress, first = known.values(rows, parts, [sources[place] for place in edges])
            # files come one after the other, those of all inputs that share a name together
            known.forget_files(frozenset(f"{n} {names[-1]}" for n in range(self.inputs)))
            told = {"progress": pa.array(progress), "first": pa.array(first)}
            columns = [told.get(name, batch.column(name)) for name in batch.schema.names]
            yield pa.RecordBatch.from_arrays(columns, schema=batch.schema)


@dataclass(frozen=True)
class SortedShards:
    """mapInArrow: rows in order of arrival, shard after shard, in; their outcomes out, packed.

    Args:
        columns: The columns of all inputs together.
        recipe: How flows are made.
        wall_ns: The wall time of the run.
    """

    columns: pa.Schema
    recipe: FlowRecipe
    wall_ns: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for shard, parts in groupby(_by_shard(batches), key=itemgetter(0)):
            flow = self.recipe.make()
            made = self._run(flow, (part for _, part in parts))
            for row in packed_rows(shard, made, flow, audited=self.recipe.audited):
                yield pa.RecordBatch.from_pylist([row], schema=STEP_SCHEMA)

    def _run(
        self, flow: Flow, parts: Iterator[pa.RecordBatch]
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield kind and rows of what the rows of one shard become, up to the end of the flow."""
        errors: list[pa.RecordBatch] = []

        def data() -> Iterator[pa.RecordBatch]:
            for part in parts:
                blobs = part.column("blob")
                if blobs.null_count == part.num_rows:
                    yield _own_rows(part, self.columns)
                    continue
                errors.extend(from_blob(blob.as_buffer()) for blob in blobs.drop_null())
                rest = part.filter(blobs.is_null())
                if rest.num_rows:
                    yield _own_rows(rest, self.columns)

        def told() -> Iterator[tuple[str, pa.RecordBatch]]:
            while errors:
                some = errors.pop(0)
                flow.counters["rows_in"] += some.num_rows
                flow.counters["parse_error_count"] += some.num_rows
                yield IN, some
                yield "error", self.recipe.arrival.rows(some)

        for rows in coalesce(data(), rows=JOIN_ROWS, nbytes=BYTES_PER_PIECE):
            yield from told()
            yield from run_piece(self.recipe, flow, rows, self.wall_ns)
        yield from told()
        yield from tables(flow.end(), self.recipe.taken)


def _by_shard(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield batches sorted by shard in runs of one shard each."""
    for batch in batches:
        shards = batch.column(batch.schema.get_field_index("shard")).to_numpy()
        edges = [0, *(np.flatnonzero(np.diff(shards)) + 1).tolist(), batch.num_rows]
        for start, stop in pairwise(edges if batch.num_rows else []):
            yield int(shards[start]), batch.slice(start, stop - start)


def _own_rows(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Return placed rows under the user's names, with their event time if they have one."""
    own = batch.columns[len(PLACED) :]
    rows = conform(pa.RecordBatch.from_arrays(own, names=columns.names), columns)
    time = batch.column("time")
    return rows if time.null_count == len(time) else rows.append_column(TIME, time)
