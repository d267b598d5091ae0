"""Control rows: a setting changed, or the end announced, while a stream runs.

A control row has a `name`, a `value`, and the key columns: with a key it speaks to that key,
without one to all. It travels like data, so it is part of the stream: after a restart it has
happened, once. One that cannot be followed is an error row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812

from tidegate.core.flow import Flow
from tidegate.core.outcomes import ControlSignal, End, Outcome, StreamError
from tidegate.spark.pack import PACKED, PACKED_DDL, Renamed, from_blob, to_blob
from tidegate.spark.shards import shard_of

__all__ = ["BROKEN", "apply_control", "control_schema", "pack_control"]

BROKEN = "_corrupt_record"
"""The column in which Spark puts a line it cannot read. Without it a key of the wrong type would
become null, and a row for one key would be applied to all."""

EFFECTIVE = "time_ns"
"""Optional column of a control row: the event time from which it holds. Null or absent: the row's
own event time, in the column and format of the data; without one, from when it comes."""


def control_schema(
    rows: T.StructType, keys: Sequence[str], times: Sequence[str] = ()
) -> T.StructType:
    """Return the columns of control rows for a pipeline.

    Args:
        rows: The schema of its data, which has the types of the keys.
        keys: The key columns.
        times: The columns that the event time of the data is read from.
    """
    text = [T.StructField(name, T.StringType()) for name in ("name", "value")]
    own = [T.StructField(key, rows[key].dataType) for key in keys]
    time = [] if EFFECTIVE in keys else [T.StructField(EFFECTIVE, T.LongType())]
    taken = {"name", "value", EFFECTIVE, BROKEN, *keys}
    stamps = [
        T.StructField(n, rows[n].dataType) for n in times if n in rows.names and n not in taken
    ]
    return T.StructType([*text, *own, *time, *stamps, T.StructField(BROKEN, T.StringType())])


def pack_control(
    control: DataFrame,
    names: tuple[str, ...],
    keys: Sequence[pa.Field],
    labels: tuple[int, ...],
) -> DataFrame:
    """Return control rows as packed ones: to the shard of their key, or to every shard.

    One that cannot be read goes to shard 0 only, so that it is one error row and not one per shard.

    Args:
        control: Control rows; their columns are numbered (see `pack.plain`).
        names: The names of those columns.
        keys: The key columns, in the types of the data: their hash says the shard.
        labels: What each shard is called in Spark.
    """
    return control.mapInArrow(Renamed(names, _Packer(tuple(keys), labels)), PACKED_DDL)


@dataclass(frozen=True)
class _Packer:
    """mapInArrow: control rows in, one blob per row and shard out."""

    keys: tuple[pa.Field, ...]
    labels: tuple[int, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [
                {
                    "shard": self.labels[shard], "kind": "control", "part": 0, "seq": place,
                    "changed": 0, "file": "", "block": 0,
                    "rows": 1, "blob": to_blob(batch.slice(place, 1)),
                }
                for place in range(batch.num_rows)
                for shard in self._shards(batch.slice(place, 1))
            ]  # fmt: skip
            yield pa.RecordBatch.from_pylist(rows, schema=PACKED)

    def _shards(self, row: pa.RecordBatch) -> Iterable[int]:
        """Return the shards one control row is for."""
        told = row.to_pylist()[0]
        if told["name"] is None or told.get(BROKEN) is not None:
            return (0,)
        if all(told[key.name] is None for key in self.keys):
            return range(len(self.labels))
        columns = [row.column(key.name).cast(key.type) for key in self.keys]
        return (int(shard_of(columns, 1, len(self.labels))[0]),)


def _own_time(flow: Flow, batch: pa.RecordBatch) -> int | None:
    """The event time of a control row, read like that of the data; None if it has none."""
    decoder: Any = flow.decoder
    columns = [] if decoder is None else [c for time in decoder.times for c in time.columns[:1]]
    if not columns or any(
        name not in batch.schema.names or batch.column(name).null_count for name in columns
    ):
        return None
    decoded, _ = decoder.decode(batch)
    return int(decoded.time_ns[0]) if len(decoded) else None


def apply_control(flow: Flow, blob: bytes) -> list[Outcome]:
    """Hand one control row to the flow of a shard.

    Args:
        flow: The flow. Changed.
        blob: One control row, packed.

    Returns:
        What the flow lets out because of it, or one error row if it cannot be followed: unreadable,
        for a key that is not known here, an end of an unknown kind, or a quick end for one key.
    """
    batch = from_blob(blob)
    row = batch.to_pylist()[0]
    if row["name"] is None or row.get(BROKEN) is not None:
        return [_error(flow, batch, "control", row.get(BROKEN), "control row cannot be read")]
    name, value = row["name"], row["value"]
    key = [row[part] for part in flow.keys]
    lane = None
    if any(part is not None for part in key):
        number = flow.find_lane(*key)
        if number is None:
            reason = "control row for a key that is not known"
            return [_error(flow, batch, name, value, reason)]
        lane = np.array([number], np.int32)
    if name != "end":
        time_ns = None if EFFECTIVE in flow.keys else row.get(EFFECTIVE)
        if time_ns is None:
            time_ns = _own_time(flow, batch)
        return flow.control(ControlSignal(name, value, lane, time_ns))
    ways = [way.value for way in End]
    if value is not None and value not in ways:
        reason = f"an end must be one of {', '.join(ways)}"
        return [_error(flow, batch, name, value, reason)]
    how = End(value or End.GRACEFUL)
    if how is End.QUICK and lane is not None:
        # Stages discard all they hold or nothing: for one key it would take the others along.
        return [_error(flow, batch, name, value, "a quick end speaks to all keys, not to one")]
    return flow.control(ControlSignal(name, how, lane))


def _error(flow: Flow, batch: pa.RecordBatch, column: str, value: Any, reason: str) -> StreamError:
    """An error row: the key the control row had, and nothing else of it."""
    where, what, why = (pa.array([text], pa.string()) for text in (column, value, reason))
    rows = pa.record_batch({name: batch.column(name) for name in flow.keys})
    if not flow.keys:
        rows = pa.record_batch({"error_column": where})
    return StreamError(rows, where, what, why, np.array([-1], np.int32))
