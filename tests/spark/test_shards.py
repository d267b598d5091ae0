"""Shard labels, proven against Spark's own hash partitioning."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the name everyone uses)

from tidegate.spark.shards import labels, partition_of

NUMBERS = (*range(-300, 300), 2**31 - 1, -(2**31), 65_535, 1_000_003)


@pytest.mark.parametrize("partitions", [1, 2, 3, 7, 200])
def test_partition_of_is_where_spark_puts_a_group(spark: SparkSession, partitions: int) -> None:
    ours = [partition_of(number, partitions) for number in NUMBERS]
    rows = spark.createDataFrame([(n,) for n in NUMBERS], "label int")
    hashed = rows.select(F.pmod(F.hash("label"), F.lit(partitions)).alias("p")).collect()
    assert [row.p for row in hashed] == ours


@pytest.mark.parametrize(("count", "partitions"), [(1, 2), (2, 2), (7, 3), (16, 4)])
def test_labels_go_round_the_partitions_of_a_real_shuffle(
    spark: SparkSession, count: int, partitions: int
) -> None:
    chosen = labels(count, partitions)
    assert len(set(chosen)) == count
    rows = spark.createDataFrame([(label,) for label in chosen], "label int")
    shuffled = rows.repartition(partitions, "label").select(
        "label", F.spark_partition_id().alias("partition")
    )
    where = {row.label: row.partition for row in shuffled.collect()}
    assert [where[label] for label in chosen] == [n % partitions for n in range(count)]
