"""Messages of a fleet, matched by time, as tables of a declarative pipeline.

FLEET_RECORDING names a folder of Parquet files, as `tidegate demo` makes one (demo-out/recording).
"""

import os
from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812

from tidegate.spark import frames
from tidegate.spark.pipelines import declared, publish
from tidegate.windows import Tumbling

spark = SparkSession.active()

RECORDING = str(Path(os.environ.get("FLEET_RECORDING", "demo-out/recording")).resolve())

RAW = (
    T.StructType()
    .add("vehicle", T.StringType())
    .add("topic", T.StringType())
    .add("stamp", T.StringType())
    .add("log_time", T.LongType())
    .add("seq", T.LongType())
    .add("value", T.DoubleType())
)


@dp.table
def raw() -> DataFrame:
    """The messages, as they were recorded."""
    return spark.readStream.schema(RAW).parquet(RECORDING)


# Another table of the pipeline does not exist yet, so its columns are declared. One query makes all
# of sets, sets_late, sets_error and sets_dropped: materialized views, computed anew by every run.
publish(
    "sets",
    frames(
        declared(spark.read.table("raw"), RAW, streaming=False),
        key="vehicle", time="stamp", topic="topic", arrival="log_time",
    )
    .event_time("unixtimestamp_ns", late_tolerance="200 ms", max_future_skew="1 h")
    .synchronize(["camera", "lidar"]),
)  # fmt: skip


# A state that lasts from run to run is kept over a source, not over a table of the pipeline.
publish(
    "seconds",
    frames(
        declared(spark.readStream.schema(RAW).parquet(RECORDING), RAW),
        key="vehicle", time="stamp", arrival="log_time",
    )
    .event_time("unixtimestamp_ns", late_tolerance="200 ms", max_future_skew="1 h")
    .window(Tumbling("1 s"), aggregates={"messages": "count"}),
    tables={"data": "seconds"},
)  # fmt: skip


@dp.materialized_view
def sets_per_vehicle() -> DataFrame:
    """Tables of Tidegate are tables like any other."""
    return spark.read.table("sets").groupBy("vehicle").count()
