"""Shard labels, proven against Spark's own hash partitioning."""

from __future__ import annotations

from collections import Counter

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the name everyone uses)

from spark.recordings import Recording, ordered, stream_of
from tidegate.spark.shards import labels, partition_of

NUMBERS = (*range(-300, 300), 2**31 - 1, -(2**31), 65_535, 1_000_003)


def test_partition_of_is_where_spark_puts_a_group(spark: SparkSession) -> None:
    counts = (1, 2, 3, 7, 200)
    hashed = [F.pmod(F.hash("label"), F.lit(n)).alias(f"of_{n}") for n in counts]
    rows = spark.createDataFrame([(n,) for n in NUMBERS], "label int").select("label", *hashed)
    for row in rows.collect():
        for partitions in counts:
            assert partition_of(row.label, partitions) == row[f"of_{partitions}"], row


def test_labels_go_round_the_partitions_of_a_real_shuffle(spark: SparkSession) -> None:
    for count, partitions in ((1, 2), (7, 3), (16, 4)):
        chosen = labels(count, partitions)
        assert len(set(chosen)) == count
        rows = spark.createDataFrame([(label,) for label in chosen], "label int")
        shuffled = rows.repartition(partitions, "label").select(
            "label", F.spark_partition_id().alias("partition")
        )
        where = {row.label: row.partition for row in shuffled.collect()}
        assert [where[label] for label in chosen] == [n % partitions for n in range(count)]


def test_a_stream_can_be_rescaled_evenly_to_four_times_its_partitions(
    spark: SparkSession, recording: Recording
) -> None:
    made = ordered(stream_of(spark, recording.folder))
    assert made.partition_count == 2
    assert made.shard_count == 8
    for partitions in (1, 2, 4, 8):
        held = Counter(partition_of(label, partitions) for label in made.labels)
        assert set(held.values()) == {8 // partitions}, partitions
    for shards, partitions in ((6, 6), (7, 2), (1, 2)):  # told ones need not divide evenly
        told = ordered(stream_of(spark, recording.folder), shards=shards)
        assert (told.shard_count, told.label_partitions) == (shards, partitions)
