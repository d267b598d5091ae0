"""What all contestants on Spark share: the session, the recording as files, runs and answers.

A run reads Parquet and ends in Spark's noop sink: every row is made and none is written. Streams
read two files per micro-batch and stop when all is read (available now).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the name everyone uses)
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.window import Window

FILES, FILES_PER_BATCH = 6, 2
SETTINGS = {
    "spark.sql.shuffle.partitions": "2",  # as many as there are cores; 200 would be unfair
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "4g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # as Tidegate's session has it: ten processes less for every file of a checkpoint
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager"
    ),
}


@dataclass(frozen=True)
class Given:
    """The recording for Spark: a folder of files, written in order of arrival."""

    spark: SparkSession
    folder: str
    schema: Any

    @property
    def batch(self) -> DataFrame:
        return self.spark.read.schema(self.schema).parquet(self.folder)

    @property
    def stream(self) -> DataFrame:
        reader = self.spark.readStream.schema(self.schema)
        return reader.option("maxFilesPerTrigger", FILES_PER_BATCH).parquet(self.folder)


def session() -> SparkSession:
    builder = SparkSession.builder.appName("suite").master("local[*]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def prepare(path: str, spark: SparkSession) -> Given:
    folder = Path(path).with_suffix(".files")
    if not folder.exists():  # the first of the contestants writes them
        folder.mkdir()
        table = pq.read_table(path)
        step = -(-table.num_rows // FILES)
        for number in range(FILES):
            pq.write_table(table.slice(number * step, step), folder / f"{number}.parquet")
    return Given(spark, str(folder), spark.read.parquet(str(folder)).schema)


def in_time(df: DataFrame) -> DataFrame:
    """Batch: the rows before which no row of their key was more than 200 ms newer."""
    before = Window.partitionBy("key").orderBy("id").rowsBetween(Window.unboundedPreceding, -1)
    newest = F.max("t").over(before)
    rows = df.withColumn("newest", newest)
    return rows.where("newest is null or t >= newest - 200000000").drop("newest")


def batch_job(make: Callable[[Given], DataFrame]) -> Callable[[Given], Any]:
    """A job on a DataFrame; what it returns can be asked for the rows."""

    def run(given: Given) -> Any:
        df = make(given)
        df.write.format("noop").mode("overwrite").save()
        return df.toArrow

    return run


def stream_job(
    make: Callable[[DataFrame], DataFrame], end: Callable[[StreamingQuery], None] | None = None
) -> Callable[[Given], Any]:
    """A job on a stream; what it returns runs it once more, into files, for the rows.

    `end` ends a query that would run on when all is read.
    """

    def run(given: Given) -> Any:
        _until_read(make(given.stream), "noop", {}, end)

        def rows() -> Any:
            with tempfile.TemporaryDirectory() as folder:
                _until_read(make(given.stream), "parquet", {"path": folder}, end)
                files = sorted(
                    Path(folder).glob("*.parquet"), key=lambda file: file.stat().st_mtime_ns
                )
                return pa.concat_tables([pq.read_table(file) for file in files])

        return rows

    return run


def _until_read(
    df: DataFrame,
    sink: str,
    options: dict[str, str],
    end: Callable[[StreamingQuery], None] | None,
) -> None:
    checkpoint = tempfile.mkdtemp()
    try:
        writer = df.writeStream.format(sink).options(**options).outputMode("append")
        writer = writer.option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        if end is not None:
            end(query)
        query.awaitTermination()
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)


def sorted_answer(table: Any, names: dict[str, str], order: list[str]) -> dict[str, Any]:
    """Columns by the names of the answers, rows in their order."""
    found = {name: table[column].to_numpy() for name, column in names.items()}
    rows = np.lexsort([found[name] for name in reversed(order)])
    return {name: values[rows] for name, values in found.items()}
