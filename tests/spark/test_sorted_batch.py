"""A batch that Spark sorts because it may not fit in memory has the outcomes of one that does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from tidegate.spark import frames
from tidegate.spark.frames_api import Frames
from tidegate.spark.sorted_batch import is_large


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of five keys in three files, with times that are late, null and out of order."""
    folder = tmp_path_factory.mktemp("sorted")
    rng = np.random.default_rng(5)
    for file in range(3):
        count = 400
        stamp = np.arange(count) * 1000 + rng.integers(-3000, 3000, count) + file * 50_000
        rows = pa.table(
            {
                "key": [f"k{n}" for n in rng.integers(0, 5, count)],
                "topic": [f"t{n}" for n in rng.integers(0, 2, count)],
                "stamp": pa.array(stamp, mask=rng.random(count) < 0.02),
                "arrival": pa.array(rng.integers(0, 300, count), mask=rng.random(count) < 0.02),
                "id": np.arange(count) + file * 1000,
                "payload": [f"payload of {n + file * 1000}" for n in range(count)],
            }
        )
        pq.write_table(rows, folder / f"{file}.parquet", row_group_size=100)
    return folder


def everything(made: Frames) -> dict[str, list[Any]]:
    def rows(df: DataFrame) -> list[Any]:
        return sorted(str(row.asDict(recursive=True)) for row in df.collect())

    return {kind: rows(made.table(kind)) for kind in ("data", "late", "error", "dropped")}


SHAPES: dict[str, Callable[[DataFrame], Frames]] = {
    "a watermark per file": lambda df: frames(
        df, key="key", time="stamp", topic="topic"
    ).event_time("unixtimestamp_ns", "1 us"),
    "arrival columns": lambda df: frames(
        df, key="key", time="stamp", topic="topic", arrival=["arrival", "id"]
    ).event_time("unixtimestamp_ns", "1 us"),
    # As in a CSV file whose columns are all text: 10 comes after 9.
    "arrival columns of text": lambda df: frames(
        df.selectExpr("*", "string(arrival) as seq", "string(id / 10.0) as tenth"),
        key="key",
        time="stamp",
        topic="topic",
        arrival=["seq", "tenth"],
    ).event_time("unixtimestamp_ns", "1 us"),
    "sets": lambda df: (
        frames(df, key="key", time="stamp", topic="topic", arrival="arrival")
        .event_time("unixtimestamp_ns", "5 us")
        .synchronize(["t0", "t1"], max_interval="3 us")
    ),
    "no files": lambda df: frames(
        df.repartition(1).sortWithinPartitions("id"), key="key", time="stamp", topic="topic"
    ).event_time("unixtimestamp_ns", "1 us"),
}


def test_numbers_in_text_arrive_as_numbers_do(spark: SparkSession, files: Path) -> None:
    df = spark.read.parquet(str(files))
    as_text, as_numbers = (
        [[row["id"] for row in made.table(kind).collect()] for kind in ("data", "late")]
        for made in (SHAPES["arrival columns of text"](df), SHAPES["arrival columns"](df))
    )
    assert as_text == as_numbers
    assert as_text[1]


@pytest.mark.parametrize("shape", SHAPES)
def test_same_outcomes_as_in_memory(
    spark: SparkSession, files: Path, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    df = spark.read.parquet(str(files))
    made = SHAPES[shape](df)
    assert not made._is_sorted_by_spark
    expected = everything(made)
    assert all(expected[kind] for kind in ("data", "error"))
    monkeypatch.setattr("tidegate.spark.sorted_batch.LARGE", 0)
    made = SHAPES[shape](df)
    assert made._is_sorted_by_spark
    assert everything(made) == expected


def test_spark_says_how_large_a_batch_is(spark: SparkSession, files: Path) -> None:
    small = spark.read.parquet(str(files))
    assert not is_large(small)
    assert is_large(small.crossJoin(small.selectExpr("id as other")).crossJoin(
        small.selectExpr("id as third")))  # fmt: skip
