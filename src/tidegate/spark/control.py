"""Control rows: a setting changed, or the end announced, while a stream runs.

A control row has a `name`, a `value`, and the key columns: with a key it speaks to that key,
without one to all. It travels like data, so it is part of the stream: after a restart it has
happened, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (the name everyone uses)
from pyspark.sql import types as T  # noqa: N812

from tidegate.core.flow import Flow
from tidegate.core.model import ControlSignal, End, Outcome, StreamError
from tidegate.errors import ConfigError
from tidegate.spark.pack import PACKED, PACKED_DDL, SHARD, from_blob, to_blob

__all__ = ["apply_control", "control_schema", "pack_control"]


def control_schema(rows: T.StructType, keys: Sequence[str]) -> T.StructType:
    """The columns of control rows for a pipeline with these keys."""
    text = [T.StructField("name", T.StringType()), T.StructField("value", T.StringType())]
    return T.StructType(text + [T.StructField(key, rows[key].dataType) for key in keys])


def pack_control(control: DataFrame, keys: Sequence[str], labels: tuple[int, ...]) -> DataFrame:
    """Control rows as packed ones: to the shard of their key, or to every shard."""
    missing = [name for name in ("name", "value", *keys) if name not in control.columns]
    if missing:
        raise ConfigError("control", control.columns, f"must have the columns {missing}")
    everyone = F.sequence(F.lit(0), F.lit(len(labels) - 1))
    shards = everyone
    if keys:
        given = F.greatest(*(F.col(key).isNotNull() for key in keys), F.lit(False))
        one = F.array(F.pmod(F.hash(*(F.col(key) for key in keys)), F.lit(len(labels))))
        shards = F.when(given, one).otherwise(everyone)
    exploded = control.withColumn(SHARD, F.explode(shards))
    return exploded.mapInArrow(_Packer(labels), PACKED_DDL)


@dataclass(frozen=True)
class _Packer:
    labels: tuple[int, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [
                {
                    "shard": self.labels[row[SHARD]], "kind": "control", "part": 0, "seq": place,
                    "rows": 1, "blob": to_blob(batch.slice(place, 1).drop_columns([SHARD])),
                }
                for place, row in enumerate(batch.select([SHARD]).to_pylist())
            ]  # fmt: skip
            yield pa.RecordBatch.from_pylist(rows, schema=PACKED)


def apply_control(flow: Flow, blob: bytes) -> list[Outcome]:
    """Hand one control row to the flow; one for a key that is not known is an error row."""
    batch = from_blob(blob)
    row = batch.to_pylist()[0]
    key = [row[name] for name in flow.keys]
    lane = None
    if any(part is not None for part in key):
        number = flow.find_lane(*key)
        if number is None:
            rows = batch.select(list(flow.keys))
            reason = "control row for a key that is not known"
            column, value, why = (
                pa.array([text], pa.string()) for text in (row["name"], row["value"], reason)
            )
            return [StreamError(rows, column, value, why, np.array([-1], np.int32))]
        lane = np.array([number], np.int32)
    setting: object = row["value"]
    if row["name"] == "end":
        setting = End(row["value"] or "graceful")
    return flow.control(ControlSignal(row["name"], setting, lane))
