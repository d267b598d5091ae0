"""A worker has the cores of its task, not those of the machine: Tidegate keeps to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import SparkSession


def threads_here(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from tidegate.core import parallel as threads

    for _ in batches:
        yield pa.record_batch({"threads": [threads.count()]})


def test_a_worker_uses_the_cores_of_its_task(spark: SparkSession) -> None:
    cores = int(spark.conf.get("spark.task.cpus", "1") or 1)
    rows = spark.range(2, numPartitions=2).mapInArrow(threads_here, "threads long").collect()
    assert {row.threads for row in rows} == {cores}
