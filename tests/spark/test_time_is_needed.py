"""No time, no decision: a stage that needs time and gets none is refused with the line to add."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tidegate.errors import ConfigError
from tidegate.spark import Frames, frames

ROWS = [("v", "a", 1), ("v", "b", 2)]


@pytest.fixture(scope="module")
def df(spark: SparkSession) -> Any:
    return spark.createDataFrame(ROWS, "car string, topic string, stamp long")


@pytest.mark.parametrize("stage", ["synchronize", "batch", "window"])
@pytest.mark.parametrize("declared", [{"time": "stamp"}, {}])
def test_a_stage_that_needs_time_is_refused_without(
    df: Any, stage: str, declared: dict[str, str]
) -> None:
    made = frames(df, key="car", topic="topic", **declared)
    with pytest.raises(ConfigError) as error:
        _ = made.synchronize(["a", "b"]) if stage == "synchronize" else getattr(made, stage)()
    said = str(error.value)
    assert f"{stage} needs rows with a time: add the line that reads it" in said
    assert '.event_time("timestamp", late_tolerance="200 ms")' in said
    assert ('frames(df, time="stamp", ...)' in said) == (not declared)


def test_processing_time_is_the_clock(df: Any) -> None:
    before = time.time_ns()
    for made in (frames(df, key="car"), frames(df, key="car").process_time()):
        stamps = {row.time_ns for row in made.data.collect()}
        assert all(before <= stamp <= time.time_ns() for stamp in stamps)
        assert len(stamps) == 1


def test_a_column_that_its_type_can_never_read(df: Any) -> None:
    made = frames(df, time="stamp")
    with pytest.raises(
        ConfigError, match="column `stamp` is int64, and eventtime type `timestamp` reads"
    ):
        made.event_time()
    with pytest.raises(ConfigError, match=r"for int64 use one of .*unixtimestamp_ns"):
        made.event_time("iso8601")
    made.event_time("unixtimestamp_ms")
    frames(df, time="car").event_time("iso8601")  # text: only data can tell


def test_a_time_inside_a_struct(spark: SparkSession) -> None:
    df = spark.createDataFrame(
        [((5,), 1), ((3,), 2), (None, 3)], "header struct<stamp: long>, n int"
    )
    made = frames(df, time="header.stamp").event_time("unixtimestamp_ns", 10)
    assert [row.n for row in made.data.collect()] == [2, 1]
    assert [row.n for row in made.errors.collect()] == [3]
    with pytest.raises(ConfigError, match=r"must be a column: header\.stamp; did you mean"):
        frames(df, time="header.stmap")


def test_shuffle_partitions_left_to_the_platform(spark: SparkSession, df: Any) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    real = spark.conf.get

    class Told:
        """A session of a platform that sets the number itself."""

        isStreaming = False  # noqa: N815  (Spark's name)
        sparkSession = type(  # noqa: N815
            "S", (), {"conf": type("C", (), {"get": staticmethod(lambda name: "auto")}),
                      "sparkContext": spark.sparkContext}
        )  # fmt: skip

    assert real is not None
    assert before is not None
    made = frames(df, key="car")
    told = Frames(Told(), (), None, None, (), made.types, None, None)  # type: ignore[arg-type]
    assert told.partition_count == spark.sparkContext.defaultParallelism
    assert told.shard_count == 8 * told.partition_count


def test_tables_of_a_stream_are_one_query(spark: SparkSession, tmp_path: Any) -> None:
    rate = spark.readStream.format("rate").load()
    made = frames(rate, time="timestamp").event_time()
    _ = made.data
    _ = made.data
    with pytest.raises(ConfigError) as error:
        _ = made.late
    assert str(error.value) == (
        "table: got 'late', would be a second query with a state of its own, beside that of data: "
        "write all tables of a stream with one state by frames.write(path)"
    )
    assert made.then().late.isStreaming, "another Frames is another query"
    assert "lateness_ns" in made.schemas["late"].names
