"""Collections as bytes, for the write-ahead log and for rows on disk: Arrow IPC, nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.core.outcomes import Collection
from tidegate.errors import StateError

_TIME, _LANE, _WALL = "__time", "__lane", b"wall_ns"


def write_rows(collection: Collection) -> bytes:
    """A collection with its times, lanes and wall time."""
    rows = collection.rows
    arrays = [*rows.columns, pa.array(collection.time_ns), pa.array(collection.lane)]
    table = pa.RecordBatch.from_arrays(arrays, names=[*rows.schema.names, _TIME, _LANE])
    table = table.replace_schema_metadata({_WALL: str(collection.wall_ns).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_batch(table)
    return bytes(sink.getvalue())


def read_call(kind: str, body: bytes) -> tuple[str, Any]:
    """What a call was made with: a collection for rows, else nothing."""
    if kind != "rows":
        return kind, None
    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            table = reader.read_next_batch()
        wall = int(table.schema.metadata[_WALL])
        names = [name for name in table.schema.names if name not in (_TIME, _LANE)]
        return kind, Collection(
            table.select(names).replace_schema_metadata(None),
            np.ascontiguousarray(table.column(_TIME).to_numpy()),
            np.ascontiguousarray(table.column(_LANE).to_numpy()),
            wall,
        )
    except (pa.ArrowInvalid, OSError, StopIteration, KeyError, TypeError, ValueError) as error:
        raise StateError(f"a logged collection is unreadable: {error}") from error
