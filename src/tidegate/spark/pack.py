"""Rows to blobs before the shuffle, outcomes to blobs after the step, blobs back to rows.

A group in Spark costs about a millisecond and a row through Python's row interface a few
microseconds, whatever is in them. So rows of one shard travel as Arrow IPC blobs of thousands, and
only blobs meet the shuffle and the state API.

Columns of the user's are addressed by their number here, never by their name: a name may hold dots,
backticks and spaces, and Spark compares names without regard to case (`plain`, `Renamed`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructType
from pyspark.version import __version__

from tidegate.core.arrow import coalesce, conform
from tidegate.core.broken_text import set_broken_text_apart
from tidegate.core.columns import TIME, TIME_NS
from tidegate.core.outcomes import with_columns
from tidegate.eventtime import Decoder
from tidegate.spark.arrival import PARTS, Origin, by_origin
from tidegate.spark.blob_files import BlobFiles, opened_blob
from tidegate.spark.requirement import version_of
from tidegate.spark.shards import shard_of

__all__ = [
    "PACKED",
    "PACKED_DDL",
    "PACKED_TYPE",
    "Attaches",
    "Packer",
    "Renamed",
    "Unpacker",
    "arrow_schema",
    "from_blob",
    "holds_lists",
    "plain",
    "task_partition",
    "to_blob",
    "to_blobs",
]

Mapped = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A function for `mapInArrow`: an iterator of batches in, an iterator of batches out."""

ROWS_PER_BLOB = 32_768
"""Rows gathered before they are split by shard. Spark hands over 65,536 at a time, split as they
are; only smaller batches are joined, because joining is a copy."""

BYTES_PER_BLOB = 64 * 2**20
"""Where rows are large (images), this ends a blob instead: 32,768 of 1 MB would not fit in memory,
and no column of Arrow's plain binary type can hold more than 2 GB."""

PACKED = pa.schema(
    [
        ("shard", pa.int32()),
        ("kind", pa.string()),
        ("part", pa.int32()),
        ("seq", pa.int32()),
        ("changed", pa.int64()),
        ("file", pa.string()),
        ("block", pa.int64()),
        ("rows", pa.int64()),
        ("blob", pa.binary()),
    ]
)
"""A blob of rows on its way to the step. `kind` is data, error or control; for the columns from
`part` to `block` see `tidegate.spark.arrival.Packed`."""

PACKED_DDL = (
    "shard int, kind string, part int, seq int, changed long, file string, block long, rows long, "
    "blob binary"
)
"""`PACKED` as Spark writes it. The two must name the same columns in the same order."""

PACKED_TYPE = from_arrow_schema(PACKED)
"""`PACKED` as Spark has types: on Spark Connect text would be sent to the server to be read."""


def arrow_schema(df: DataFrame) -> pa.Schema:
    """Return the columns of a DataFrame as Spark hands them to Python: timestamps in the session's
    zone.

    All are nullable, even where Spark knows better: an error row has null where it has no value.
    Raises pyspark's error for a type that Arrow does not have.
    """
    zone = df.sparkSession.conf.get("spark.sql.session.timeZone")
    if version_of(__version__) < (4, 2):  # its function knows UTC only, its rows the session's zone
        schema = in_zone(to_arrow_schema(df.schema), zone or "UTC")
    else:
        schema = to_arrow_schema(df.schema, timezone=zone)
    return pa.schema([field.with_nullable(True) for field in schema])


def in_zone(schema: pa.Schema, zone: str) -> pa.Schema:
    """Return a schema with another zone for timestamps that have one, at any depth.

    >>> in_zone(pa.schema([("t", pa.list_(pa.timestamp("us", "UTC")))]), "Asia/Tokyo").types
    [ListType(list<item: timestamp[us, tz=Asia/Tokyo]>)]
    """
    return pa.schema([field.with_type(_type_in_zone(field.type, zone)) for field in schema])


def _type_in_zone(kind: pa.DataType, zone: str) -> pa.DataType:
    """Return a type with another zone for its timestamps; see `in_zone`."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, zone)
    if pa.types.is_list(kind):
        item = kind.value_field
        return pa.list_(item.with_type(_type_in_zone(item.type, zone)))
    if pa.types.is_map(kind):
        return pa.map_(_type_in_zone(kind.key_type, zone), _type_in_zone(kind.item_type, zone))
    if pa.types.is_struct(kind):
        return pa.struct(list(in_zone(pa.schema(list(kind)), zone)))
    return kind


def holds_lists(df: DataFrame) -> bool:
    """Whether a column holds lists or maps, at any depth of structs.

    Before every row Java measures what it has gathered so far, and for that walks over all null
    lists at the end of a column: 200,000 rows with three such columns took 45 s of CPU in batches
    of 65,536 rows and 2.2 s in batches of 1,024. See `limit_list_batches` in
    `tidegate.spark.spark_session`.
    """
    kinds = {kind for field in df.schema for kind in _kinds(field.dataType)}
    return bool(kinds & {ArrayType, MapType})


def _kinds(kind: DataType) -> set[type[DataType]]:
    """Return the types inside a column: of a struct those of its fields, else its own."""
    if isinstance(kind, StructType):
        return {inner for field in kind for inner in _kinds(field.dataType)}
    return {type(kind)}


def plain(place: int) -> str:
    """Return the name under which Spark sees the column with this number."""
    return f"column_{place}"


@dataclass(frozen=True)
class Renamed:
    """A function of mapInArrow that sees the columns under the user's names.

    Spark sees `plain` names only: the user's may hold dots, backticks, or differ only in case.

    Args:
        names: The names, in the order of the columns; as many as the batches have.
        function: What is called with the renamed batches.
    """

    names: tuple[str, ...]
    function: Mapped

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        names = list(self.names)
        return self.function(batch.rename_columns(names) for batch in batches)


def to_blob(rows: pa.RecordBatch, files: BlobFiles | None = None) -> pa.BinaryScalar:
    """Return a batch as Arrow IPC, with its schema. For `files` see `to_blobs`.

    The result is a scalar, which Arrow takes into a column without a copy. It takes a memoryview
    too, but never gives back its memory (seen in pyarrow 26), and bytes would be one more copy.
    """
    return to_blobs([rows], files)[0]


def to_blobs(pieces: Sequence[pa.RecordBatch], files: BlobFiles | None = None) -> pa.BinaryArray:
    """Return each batch as Arrow IPC, all in one column.

    Args:
        pieces: The batches.
        files: Where they may stay, so that the column only says where they are; None: they are
            carried. See `tidegate.spark.blob_files`.

    Sizes are measured first, then everything is written once into its place: a stream that grows
    as it is written to is copied over and over, and took fifteen times as long. Offsets are int32,
    so all blobs of one call must stay below 2 GiB together.
    """
    pieces = [_time_once(_small_codes(piece)) for piece in pieces]
    if files is not None:
        size = sum(piece.nbytes for piece in pieces)
        staying = files.column(lambda sink, n: _write_ipc(pieces[n], sink), len(pieces), size)
        if staying is not None:
            return staying
    offsets = np.zeros(len(pieces) + 1, np.int32)
    for place, piece in enumerate(pieces):
        counted = pa.MockOutputStream()
        _write_ipc(piece, counted)
        offsets[place + 1] = offsets[place] + counted.size()
    memory = pa.allocate_buffer(int(offsets[-1]))
    sink = pa.FixedSizeBufferWriter(memory)
    for piece in pieces:
        _write_ipc(piece, sink)
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(pieces), [None, pa.py_buffer(offsets), memory]
    )


def _write_ipc(rows: pa.RecordBatch, sink: pa.NativeFile) -> None:
    """Write a batch as an IPC stream: schema, one record batch, end."""
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)


def from_blob(blob: bytes) -> pa.RecordBatch:
    """Return the batch that `to_blob` wrote, without a copy: it keeps the memory of `blob` alive,
    or maps the file that it is in.

    Example:
        >>> from_blob(to_blob(pa.record_batch({"a": [1, 2]})).as_buffer()).to_pydict()
        {'a': [1, 2]}
    """
    with pa.ipc.open_stream(opened_blob(pa.py_buffer(blob))) as reader:
        return _time_again(_without_codes(reader.read_next_batch()))


_SAME = b"tidegate.same"
"""Metadata of a blob: place and name of its time column, and the column that has its values."""


def _time_once(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows without their time column, if another one has the same values: event time in ns
    is often a column of the rows as it is, and every byte travels through Java several times.
    """
    place = max(rows.schema.get_field_index(name) for name in (TIME, TIME_NS))
    time = None if place < 0 else _plain_int64(rows.column(place))
    if time is None or len(time) == 0:
        return rows
    for twin, column in enumerate(rows.columns):
        values = None if twin == place else _plain_int64(column)
        if values is not None and values[0] == time[0] and np.array_equal(values, time):
            told = json.dumps([place, rows.schema.field(place).name, twin - (twin > place)])
            metadata = {**(rows.schema.metadata or {}), _SAME: told}
            return rows.remove_column(place).replace_schema_metadata(metadata)
    return rows


def _plain_int64(column: pa.Array) -> Any:
    """Return the numbers of an int64 column without nulls; None for any other."""
    plain = pa.types.is_int64(column.type) and column.null_count == 0
    return column.to_numpy() if plain else None


def _time_again(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows with the time column that `_time_once` left out."""
    metadata = dict(rows.schema.metadata or {})
    told = metadata.pop(_SAME, None)
    if told is None:
        return rows
    place, name, twin = json.loads(told)
    return rows.replace_schema_metadata(metadata or None).add_column(place, name, rows.column(twin))


def _small_codes(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows whose dictionary codes are no wider than their dictionaries need."""
    for place, field in enumerate(rows.schema):
        if pa.types.is_dictionary(field.type):
            column = rows.column(place)
            count = len(column.dictionary)
            width = pa.int8() if count <= 2**7 else pa.int16() if count <= 2**15 else pa.int32()
            coded = pa.DictionaryArray.from_arrays(column.indices.cast(width), column.dictionary)
            rows = rows.set_column(place, field.with_type(coded.type), coded)
    return rows


def _without_codes(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows with text instead of dictionary codes: codes travel, stages see text."""
    for place, field in enumerate(rows.schema):
        if pa.types.is_dictionary(field.type):
            text = rows.column(place).dictionary_decode()
            rows = rows.set_column(place, field.with_type(text.type), text)
    return rows


@dataclass(frozen=True)
class Packer:
    """mapInArrow: rows in, one blob per shard and batch out.

    The event time is read here, before the shuffle, where there is no state to wait for: rows whose
    time cannot be read become blobs of kind `error`.

    Args:
        decoder: Reads the event time. One without time columns leaves that to the step's clock.
        labels: What each shard is called in Spark; see `tidegate.spark.shards`.
        keys: The key columns, in the types that all inputs agree on: their hash says the shard.
        input: Which of several inputs this is; keeps their parts apart.
        taken: Names that the columns of error rows must keep clear of.
        files: Where blobs may stay; None: they are carried.
    """

    decoder: Decoder
    labels: tuple[int, ...]
    keys: tuple[pa.Field, ...] = ()
    input: int = 0
    taken: tuple[str, ...] = ()
    files: BlobFiles | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        seq = 0
        for gathered in coalesce(batches, rows=ROWS_PER_BLOB, nbytes=BYTES_PER_BLOB):
            for origin, rows in by_origin(gathered):
                made = self.blobs(rows, origin, task_partition(), seq)
                seq += made.num_rows
                yield made

    def blobs(
        self, rows: pa.RecordBatch, origin: Origin, partition: int, seq: int
    ) -> pa.RecordBatch:
        """Return rows of one origin as rows of `PACKED`: a blob per kind and shard.

        Args:
            rows: The rows, in order of their position.
            origin: Where they were read.
            partition: The number of the task that reads them.
            seq: The number of the first blob within that task.
        """
        return self._packed(self._split(rows), origin, partition, seq)

    def error_blob(self, rows: pa.RecordBatch, origin: Origin) -> pa.RecordBatch:
        """Return error rows, as `StreamError.table` makes them, as rows of `PACKED`."""
        return self._packed(self._by_shard("error", rows), origin, 0, 0)

    def _packed(
        self,
        split: Iterable[tuple[str, int, pa.RecordBatch]],
        origin: Origin,
        partition: int,
        seq: int,
    ) -> pa.RecordBatch:
        """Return (kind, shard, rows) triples as rows of `PACKED`."""
        kinds, shards, pieces = zip(*split, strict=True)
        count = len(pieces)
        part = self.input * PARTS + partition
        return pa.RecordBatch.from_arrays(
            [
                pa.array([self.labels[shard] for shard in shards], pa.int32()),
                pa.array(kinds, pa.string()),
                pa.array(np.full(count, part, np.int32)),
                pa.array(np.arange(seq, seq + count, dtype=np.int32)),
                pa.array(np.full(count, origin.changed, np.int64)),
                pa.array([origin.file] * count, pa.string()),
                pa.array(np.full(count, origin.block, np.int64)),
                pa.array([piece.num_rows for piece in pieces], pa.int64()),
                to_blobs(pieces, self.files),
            ],
            schema=PACKED,
        )

    def _split(self, rows: pa.RecordBatch) -> Iterator[tuple[str, int, pa.RecordBatch]]:
        """Yield (kind, shard, rows) for rows of one origin, errors first."""
        rows, broken = set_broken_text_apart(rows)
        if broken is not None:
            yield from self._by_shard("error", broken.table(self.taken))
            if rows.num_rows == 0:
                return
        if not self.decoder.times:  # the step stamps them, by its clock
            yield from self._by_shard("data", rows)
            return
        collection, errors = self.decoder.decode(rows)
        if errors is not None:
            yield from self._by_shard("error", errors.table(self.taken))
        if len(collection):
            timed = with_columns(collection.rows, {TIME: collection.time_ns})
            yield from self._by_shard("data", timed)

    def _by_shard(
        self, kind: str, rows: pa.RecordBatch
    ) -> Iterator[tuple[str, int, pa.RecordBatch]]:
        """Yield (kind, shard, rows) per shard, in order of the shards; rows of a shard keep their
        order.

        A batch of one shard only, as with a single key, is passed on without a copy.
        """
        shard = shard_of(self._key_columns(rows), rows.num_rows, len(self.labels))
        if len(shard) and (shard == shard[0]).all():
            yield kind, int(shard[0]), rows
            return
        # A stable sort of small integers is a radix sort: linear, and rows of a shard keep their
        # order.
        order = np.argsort(shard, kind="stable")
        edges = np.flatnonzero(np.diff(shard[order])) + 1
        rows = rows.take(pa.array(order))
        for first, last in zip([0, *edges], [*edges, len(order)], strict=True):
            yield kind, int(shard[order[first]]), rows.slice(first, last - first)

    def _key_columns(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """Return the key columns in the types all inputs agree on: a number that is an integer in
        one input and a float in another must hash alike.
        """
        columns = [rows.column(rows.schema.get_field_index(key.name)) for key in self.keys]
        return [
            column if _is_of(column.type, key.type) else column.cast(key.type)
            for column, key in zip(columns, self.keys, strict=True)
        ]


def _is_of(kind: pa.DataType, told: pa.DataType) -> bool:
    """Whether values of a type hash as those of another do: codes of a value hash as the value."""
    return bool((kind.value_type if pa.types.is_dictionary(kind) else kind).equals(told))


def task_partition() -> int:
    """Return the number of the Spark partition this runs in; 0 outside a task, as in tests."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else int(context.partitionId())


class Attaches(Protocol):
    """What gives rows the payload that they did not carry; see `columnar.payload`."""

    def attach(self, kind: str, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield rows of a kind in its full schema, and error rows for payload that is missing."""


@dataclass(frozen=True)
class Unpacker:
    """mapInArrow: blobs in, their rows out, with exactly the columns of `schema`.

    Columns that a blob lacks are null, and types are cast: blobs of one kind differ where inputs
    do.

    Args:
        schema: The columns of the table.
        kind: What the table holds.
        payload: Gives rows the payload they did not carry; None: they carry it.
    """

    schema: pa.Schema
    kind: str = "data"
    payload: Attaches | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for blob in batch.column(batch.schema.get_field_index("blob")):
                rows = from_blob(blob.as_buffer())
                if self.payload is None:
                    yield conform(rows, self.schema)
                    continue
                for kind, whole in self.payload.attach(self.kind, rows):
                    if kind == self.kind:
                        yield whole
