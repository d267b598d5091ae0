"""Collections as bytes, for the write-ahead log and for rows on disk: Arrow IPC and nothing else.

The times and lanes of a collection are written as two columns behind its own (names in
`core.columns`), its wall time as metadata of the schema. What cannot be read is a StateError.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tidegate.core.columns import LANE, TIME
from tidegate.core.outcomes import Collection
from tidegate.errors import StateError

__all__ = ["read_batch", "read_batches", "read_collection", "write_batch", "write_collection"]

_WALL = b"wall_ns"
"""Where the metadata of a schema keep the wall time of a collection."""

_ALIGNED = 8
"""Bytes that the values of a column are aligned to, as far as the bytes they lie in are."""


def write_batch(rows: pa.RecordBatch) -> bytes:
    """One batch as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def read_batch(body: bytes | memoryview, what: str = "a table") -> pa.RecordBatch:
    """The reverse of `write_batch`. The bytes may come from anybody: Arrow checks every offset
    before the batch is returned, and whatever is wrong is a StateError that starts with `what`.

    What is written here is never compressed, and what is compressed is refused: a kilobyte could
    stand for gigabytes.
    """
    for batch in read_batches(body, what):
        return batch
    raise StateError(f"{what} is unreadable: it has no rows")


def read_batches(body: bytes | memoryview, what: str) -> Iterator[pa.RecordBatch]:
    """Yield the batches of an Arrow stream, each checked as in `read_batch`."""
    stream = pa.py_buffer(body)
    if stream.address % _ALIGNED:
        stream = pa.py_buffer(bytes(body))  # Arrow warns of columns that begin anywhere
    try:
        _refuse_compressed(stream, what)
        with pa.ipc.open_stream(stream) as reader:
            for batch in reader:
                batch.validate(full=True)
                _ = batch.schema.names  # raises where a name is no text
                yield batch
    except (pa.ArrowException, OSError, StopIteration, ValueError, MemoryError) as error:
        raise StateError(f"{what} is unreadable: {error}") from error


_RECORD_BATCH, _DICTIONARY = "record batch", "dictionary"
"""Kinds of Arrow messages that have a body."""


def _refuse_compressed(stream: pa.Buffer, what: str) -> None:
    """Raise StateError if a message of an Arrow stream has a compressed body.

    Only the flatbuffers in front of the bodies are read. Each table begins with the distance to its
    vtable, which holds two sizes and then the place of every field, 0 for one that is not there:

        Message          header is field 2
        DictionaryBatch  its record batch is field 1
        RecordBatch      the compression is field 3
    """
    for message in pa.ipc.MessageReader.open_stream(stream):
        if message.type in (_RECORD_BATCH, _DICTIONARY):
            meta = memoryview(message.metadata)
            batch = _inside(meta, int.from_bytes(meta[:4], "little"), 2)
            if message.type == _DICTIONARY:
                batch = _inside(meta, batch, 1)
            if _field(meta, batch, 3):
                raise StateError(f"{what} is unreadable: it is compressed")


def _field(meta: memoryview, table: int, number: int) -> int:
    """Return where a field of a flatbuffer table is, 0 if it is not there."""
    vtable = table - int.from_bytes(meta[table : table + 4], "little", signed=True)
    size = int.from_bytes(meta[vtable : vtable + 2], "little")
    slot = 4 + 2 * number
    if vtable < 0 or slot + 2 > size:
        return 0
    place = int.from_bytes(meta[vtable + slot : vtable + slot + 2], "little")
    return table + place if place else 0


def _inside(meta: memoryview, table: int, number: int) -> int:
    """Return where the table that a field refers to is. Raises ValueError if it is nowhere."""
    place = _field(meta, table, number)
    if not place or place + 4 > len(meta):
        raise ValueError("a message without its header")
    return place + int.from_bytes(meta[place : place + 4], "little")


def write_collection(collection: Collection) -> bytes:
    """A collection with its times, lanes and wall time."""
    rows = collection.rows
    arrays = [*rows.columns, pa.array(collection.time_ns), pa.array(collection.lane)]
    table = pa.RecordBatch.from_arrays(arrays, names=[*rows.schema.names, TIME, LANE])
    return write_batch(table.replace_schema_metadata({_WALL: str(collection.wall_ns).encode()}))


def read_collection(body: bytes | memoryview) -> Collection:
    """The reverse of `write_collection`, or a StateError.

    >>> rows = Collection.of(pa.record_batch({"v": [1]}), np.array([7]), wall_ns=9)
    >>> again = read_collection(write_collection(rows))
    >>> again.rows.to_pydict(), again.time_ns, again.wall_ns
    ({'v': [1]}, array([7]), 9)
    """
    table = read_batch(body, "a logged collection")
    try:
        wall = int(table.schema.metadata[_WALL])
        time = np.ascontiguousarray(table.column(TIME).to_numpy())
        lane = np.ascontiguousarray(table.column(LANE).to_numpy())
    except (KeyError, TypeError, ValueError, pa.ArrowInvalid) as error:
        raise StateError(f"a logged collection is unreadable: {error}") from error
    if time.dtype != np.int64 or lane.dtype != np.int32:
        raise StateError("a logged collection is unreadable: times or lanes of another type")
    rows = table.drop_columns([TIME, LANE]).replace_schema_metadata(None)
    return Collection(rows, time, lane, wall)
