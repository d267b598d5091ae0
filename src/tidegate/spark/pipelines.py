"""Tidegate in Spark's Declarative Pipelines: tables of one state, defined without analysis.

    from tidegate.spark.pipelines import declared, publish

    raw = declared(spark.read.table("raw"), RAW, streaming=False)    # RAW: its columns
    publish("sets", frames(raw, key="vehicle", time="stamp", topic="topic", arrival="log_time")
            .event_time("unixtimestamp_ns", late_tolerance="200 ms")
            .synchronize(["camera", "lidar"]))

makes the tables `sets`, `sets_late`, `sets_error`, `sets_dropped` of the pipeline.

What Spark allows there, found by trying on 4.3:

- While definitions are read nothing may be analysed: `df.columns`, `df.isStreaming` and
  `createDataFrame` raise. Frames need the columns of their input to plan, so they are *declared*.
- The input of a group is analysed by the server all the same, when the table is defined. So a state
  cannot be kept over another table of the pipeline, which does not exist yet: *streaming* frames
  read a source (files, Kafka, a table made elsewhere), and their state lasts from run to run. Over
  a table of the pipeline frames are a *batch*: materialized views, computed anew by every run.
- Every table is a query with a state of its own. Two tables of one pipeline would hold the same
  rows twice, and could disagree. So the step is one table, `NAME_outcomes`, whose rows are packed
  outcomes; the others only unpack it.
- A sink of ours (`foreachBatch`) cannot be used: Spark writes the tables.
- A run takes what there is and ends. With a stage that waits by the wall clock it would not, since
  Spark goes on for as long as a timer may be set: `publish` refuses such stages.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the name everyone uses)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tidegate.errors import ConfigError
from tidegate.spark.connect import is_connect
from tidegate.spark.frames_api import Frames
from tidegate.spark.pack import Unpacker
from tidegate.spark.spark_session import ROCKSDB, STATE_STORE
from tidegate.spark.stateful_step import STEP_TYPE

__all__ = ["declared", "publish"]

OUTCOMES = "outcomes"
"""The suffix of the table that holds the packed outcomes of a state."""


def declared(
    df: DataFrame, schema: StructType | pa.Schema | str, *, streaming: bool = True
) -> DataFrame:
    """Return a DataFrame that knows its columns without asking Spark for them.

    Args:
        df: A DataFrame of a Spark Connect session. A batch need not be analysable yet: it may read
            another table of the pipeline (`spark.read.table("raw")`).
        schema: Its columns: a StructType, an Arrow schema, or DDL (`"vehicle string, stamp long"`;
            not inside a query function, where Spark refuses to read it). If the table turns out to
            have other ones, the pipeline fails when it runs.
        streaming: Whether `df` comes from `readStream`; default True. Wrong, and Spark refuses the
            pipeline.

    Raises:
        ConfigError: A session without Spark Connect, or a schema that is none.
    """
    if not is_connect(df.sparkSession):
        raise ConfigError(
            "df", type(df).__name__, "must be of a Spark Connect session, as spark-pipelines makes"
        )
    from pyspark.sql.connect.dataframe import DataFrame as ConnectFrame

    if isinstance(schema, pa.Schema):
        schema = from_arrow_schema(schema)
    elif isinstance(schema, str):
        schema = StructType.fromDDL(schema)
    if not isinstance(schema, StructType):
        raise ConfigError("schema", schema, "must be a StructType, an Arrow schema or DDL text")
    known: StructType = schema

    class Declared(ConnectFrame):
        """Answers from the declaration what Connect would ask the server for."""

        isStreaming = property(lambda self: streaming)  # noqa: N815  (Spark's name)  # type: ignore

        def toDF(self, *names: str) -> DataFrame:  # noqa: N802  (Spark's name)
            fields = zip(known.fields, names, strict=True)
            renamed = StructType()
            for field, name in fields:
                renamed = renamed.add(name, field.dataType, field.nullable)
            return declared(super().toDF(*names), renamed, streaming=streaming)

    plain = cast(Any, df)
    made = Declared(plain._plan, plain._session)
    made._cached_schema = known  # where Connect keeps what it once asked for
    return cast(DataFrame, made)


def publish(
    name: str, made: Frames, *, tables: dict[str, str] | None = None, comment: str = ""
) -> dict[str, str]:
    """Define the tables of a pipeline's state, all of them from one query.

    Call it where definitions are read, outside every query function.

    Args:
        name: Of the table of results; the others are called `NAME_late`, `NAME_error` and so on,
            and the packed one `NAME_outcomes`.
        made: Frames on what `declared` returned. Give `shards`, or keep
            `spark.sql.shuffle.partitions` as it is: a state cannot change its number of shards.
        tables: Names of tables by kind, instead of those above; a kind that is left out is not
            published. None: every kind there is.
        comment: A description for the catalog.

    Returns:
        The names of the tables, by kind.

    Raises:
        ConfigError: A stage that waits by the wall clock, files as columns, an unknown kind, or a
            Spark without pipelines.
    """
    if made.needs_timers():
        raise ConfigError(
            name, "wall clock",
            "stages that wait by the wall clock (forget, process_time, timeouts) cannot be used in "
            "a declarative pipeline: its runs would not end",
        )  # fmt: skip
    if made.columnar:
        raise ConfigError(
            name, "read(...)", "takes DataFrames there: declared(spark.readStream.table(...), ...)"
        )
    unknown = set(tables or ()) - set(made.schemas)
    if unknown:
        known = ", ".join(made.schemas)
        raise ConfigError("tables", sorted(unknown), f"must be kinds of results: {known}")
    if tables is None:
        tables = {kind: name if kind == "data" else f"{name}_{kind}" for kind in made.schemas}
    packed = f"{name}_{OUTCOMES}"
    streaming = made.is_stream
    fixed = replace(made, wall_ns=time.time_ns(), shards=made.shard_count)
    step = (lambda: fixed.outcomes) if streaming else (lambda: fixed.ungrouped_outcomes)
    told = f"packed outcomes of {name}: read its tables instead"
    _define(packed, step, streaming=streaming, comment=told)
    for kind, table in tables.items():
        rows = _rows_of(made.df.sparkSession, packed, kind, made.schemas[kind], streaming)
        _define(table, rows, streaming=streaming, comment=comment or f"{kind} of {name}")
    return tables


def _define(name: str, query: Callable[[], DataFrame], *, streaming: bool, comment: str) -> None:
    """Define one table of the pipeline: a streaming one, or a materialized view."""
    from pyspark import pipelines

    make = pipelines.table if streaming else pipelines.materialized_view
    conf = {STATE_STORE: ROCKSDB} if streaming else {}
    make(name=name, comment=comment, spark_conf=conf)(query)


def _rows_of(
    spark: SparkSession, packed: str, kind: str, schema: pa.Schema, streaming: bool
) -> Callable[[], DataFrame]:
    """Return the query of one kind: its blobs in the packed table, unpacked."""

    def query() -> DataFrame:
        table = spark.readStream.table(packed) if streaming else spark.read.table(packed)
        blobs = declared(table, STEP_TYPE, streaming=streaming).where(F.col("kind") == kind)
        return blobs.mapInArrow(Unpacker(schema, kind), from_arrow_schema(schema))

    return query
