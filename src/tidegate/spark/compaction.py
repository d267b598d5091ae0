"""The batch compaction of a stored delta table on Spark: a task per bucket, one commit.

Tasks read and write the table's Parquet files themselves, with pyarrow, where they run: nothing is
shuffled and no row crosses into the JVM. So the table must lie where all executors reach it (in
local mode: anywhere). What a task writes is no part of the table until the driver commits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from tidegate.deltas.compactor import Compactor
from tidegate.deltas.table.job import BucketResult, JobReport, compact_bucket
from tidegate.deltas.table.job import compact_table as compact_here
from tidegate.deltas.table.versions import DataFile, Step, Version, no_step
from tidegate.spark.spark_session import session

__all__ = ["compact_table"]


def compact_table(
    path: str | Path,
    compactor: Compactor | None = None,
    *,
    spark: SparkSession | None = None,
    everything: bool = False,
    step: Step = no_step,
) -> JobReport:
    """Compact a stored table with a task per bucket. The same result as in process; safe to kill
    at any moment, to run again, and to run several times at once.

    Args:
        path: the folder of a `DeltaTable`, where all executors reach it.
        compactor: which chains to compact, and how; None: `Compactor()`.
        spark: the session to run on; None: Tidegate's own.
        everything: compact whatever the strategy would change, not only chains that have reached
            `delta_threshold`.
        step: called on the driver before every change on disk, for tests.

    Returns:
        What it did. Buckets that another job compacted first are in `conflicts`.
    """
    compactor = compactor or Compactor()
    engine = spark or session()
    root = str(Path(path).absolute())

    def run(buckets: list[int], version: Version) -> Iterable[BucketResult | None]:
        if not buckets:
            return []

        def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for bucket in batch.column("bucket").to_pylist():
                    made = compact_bucket(root, bucket, version, compactor, everything=everything)
                    text = None if made is None else json.dumps(asdict(made))
                    yield pa.RecordBatch.from_pydict({"result": pa.array([text], pa.string())})

        frame = engine.createDataFrame([(bucket,) for bucket in buckets], "bucket int")
        found = frame.repartition(len(buckets), "bucket").mapInArrow(work, "result string")
        return [
            None if row.result is None else _bucket_result(row.result) for row in found.collect()
        ]

    return compact_here(root, compactor, everything=everything, step=step, run=run)


def _bucket_result(text: str) -> BucketResult:
    said: dict[str, Any] = json.loads(text)
    said["added"] = tuple(DataFile(**file) for file in said["added"])
    said["removed"], said["errors"] = tuple(said["removed"]), tuple(said["errors"])
    return BucketResult(**said)
