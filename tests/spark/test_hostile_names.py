"""No column name is special on Spark either: batch, stream and YAML, all values compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from hostile.test_column_names import NAMES, PLAIN, rotated, rows
from spark.outcomes import arranged, assert_same, in_process
from tidegate.errors import ConfigError
from tidegate.output.reader import open_run
from tidegate.pipeline import PipelineDefinition
from tidegate.spark import Frames, frames, read
from tidegate.spark.open import open_pipeline
from tidegate.windows import Tumbling


def recorded(names: dict[str, str], folder: Path) -> pa.Table:
    folder.mkdir(parents=True)
    table = rows().rename_columns([names[name] for name in PLAIN])
    pq.write_table(table, folder / "rows.parquet")
    return table


def pipeline(df: Any, names: dict[str, str], stage: str, **options: Any) -> Frames:
    made = frames(
        df,
        key=names["key"],
        time=names["time"],
        topic=names["topic"],
        arrival=names["arrival"],
        **options,
    ).event_time("unixtimestamp_ns", 30)
    if stage == "synchronize":
        return made.synchronize(["a", "b"])
    if stage == "batch":
        return made.batch(100)
    return made.window(Tumbling(100)) if stage == "window" else made


def written(out: Path, made: Frames) -> Any:
    run = open_run(str(out))
    tables = []
    for kind in run.kinds:
        files = [file for commit in run.commits for file in commit.files_of(kind)]
        tables += [(kind, pq.ParquetFile(out / file).read()) for file in files]
    return arranged(tables, made.keys)


@pytest.mark.parametrize(
    ("stage", "by"),
    [("order", 0), ("synchronize", 8), ("batch", 16), ("window", 24), ("order", 28)],
)
def test_a_backfill(spark: SparkSession, tmp_path: Path, stage: str, by: int) -> None:
    """Through gate 2, and through gate 1 with payload that stays in the file, where it can."""
    names = rotated(by)
    table = recorded(names, tmp_path / "in")
    made = pipeline(spark.read.parquet(str(tmp_path / "in")), names, stage)
    expected = in_process(made, [table])
    columns = pipeline(read(str(tmp_path / "in"), spark=spark), names, stage, payload="addressed")
    assert columns.gate().startswith("columns are read by Arrow")
    columns.write(str(tmp_path / "columns"))
    assert_same(written(tmp_path / "columns", columns), expected)
    made.write(str(tmp_path / "out"))
    assert_same(written(tmp_path / "out", made), expected)
    found = arranged([("late", made.late.toArrow())], made.keys)
    assert_same(found, {kind: rows for kind, rows in expected.items() if kind == "late"})


@pytest.mark.parametrize(
    ("stage", "by"), [("synchronize", 4), ("batch", 27), ("window", 12), ("order", 20)]
)
def test_a_stream_and_a_definition(
    spark: SparkSession, tmp_path: Path, stage: str, by: int
) -> None:
    names = rotated(by)
    table = recorded(names, tmp_path / "in")
    df = spark.read.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(df.schema).parquet(str(tmp_path / "in"))
    made = pipeline(stream, names, stage)
    expected = in_process(made, [table], end=False)
    made.write(str(tmp_path / "out")).awaitTermination()
    assert_same(written(tmp_path / "out", made), expected)

    settings = {
        "synchronize": {"topics": ["a", "b"], "queueSize": 10}, "batch": {"length": 100},
        "window": {"tumbling": 100}, "order": None,
    }  # fmt: skip
    definition = {
        "streams": {
            "s": {
                "source": {"format": "parquet", "path": str(tmp_path / "in")},
                "key": names["key"], "topic": names["topic"], "arrival": names["arrival"],
                "eventtime": {"column": names["time"], "type": "unixtimestamp_ns"},
            }
        },
        "options": {
            "eventtime": {"enabled": True, "lateTolerance": 30, "watermarkPer": "tuple"},
        },
        "stages": [] if settings[stage] is None else [{stage: settings[stage]}],
    }  # fmt: skip
    text = json.dumps(definition)  # which is YAML too
    planned = open_pipeline(spark, PipelineDefinition.from_yaml(text), streaming=False)[1]
    planned.write(str(tmp_path / "yaml"))
    assert_same(written(tmp_path / "yaml", planned), in_process(planned, [table]))


def test_what_cannot_be_told_apart_is_refused(spark: SparkSession) -> None:
    twice = spark.createDataFrame([(1, 2)], "a int, b int").toDF("a", "a")
    with pytest.raises(ConfigError, match="column: got 'a', appears twice"):
        frames(twice)
    case = spark.createDataFrame([(1, 2)], "a int, b int").toDF("a", "A")
    with pytest.raises(ConfigError, match=r"'A', differs from 'a' only in case.*caseSensitive"):
        frames(case)
    for inside in ("__tidegate_lane int", "s struct<x: int, __tidegate_address: bigint>",
                   "l array<struct<s: struct<__tidegate_lane: int>>>"):  # fmt: skip
        with pytest.raises(ConfigError, match="are internal; rename the column"):
            frames(spark.createDataFrame([], inside))


def test_columns_that_differ_in_case_where_the_session_tells_them_apart(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        table = pa.table({"k": ["x", "y"], "K": [1, 2], "t": [1, 2], "T": ["p", "q"]})
        (tmp_path / "in").mkdir()
        pq.write_table(table, tmp_path / "in" / "a.parquet")
        df = spark.read.parquet(str(tmp_path / "in"))
        made = frames(df, key="k", time="t").event_time("unixtimestamp_ns")
        found = sorted(map(tuple, made.data.select("k", "K", "t", "T").collect()))
        assert found == [("x", 1, 1, "p"), ("y", 2, 2, "q")]
    finally:
        spark.conf.set("spark.sql.caseSensitive", "false")


def test_every_name_takes_every_role() -> None:
    assert {rotated(by)["key"] for by in range(len(NAMES))} == set(NAMES)
