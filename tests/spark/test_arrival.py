"""The order law on Spark: a recording in one file, one file per topic or a hundred slices, listed
in any order, split anywhere, on any number of partitions, gives the same outcomes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from spark.outcomes import written
from tidegate.errors import ConfigError
from tidegate.pipeline import PipelineDefinition
from tidegate.spark import Frames, frames
from tidegate.spark.open import open_pipeline

MS = 10**6
TOLERANCE = "50 ms"


def recorded(count: int = 1200) -> pa.Table:
    """Three topics of two vehicles, out of order by less than the tolerance, no two times equal:
    which of two equal ones came first is what no cut can keep."""
    rng = random.Random(7)
    rows = []
    for number in range(count):
        topic = ("gps", "imu", "camera")[number % 3]
        stamp = number * 5 * MS - rng.randrange(45) * MS + number
        rows.append({"car": f"v{number % 2}", "topic": topic, "stamp": stamp, "n": number})
    return pa.Table.from_pylist(rows)


def one_file(table: pa.Table) -> list[pa.Table]:
    return [table]


def per_topic(table: pa.Table) -> list[pa.Table]:
    topics = table.column("topic").to_pylist()
    return [table.filter(pa.array([t == one for t in topics])) for one in ("gps", "imu", "camera")]


def hundred_slices(table: pa.Table) -> list[pa.Table]:
    step = -(-table.num_rows // 100)
    return [table.slice(at, step) for at in range(0, table.num_rows, step)]


def write(parts: list[pa.Table], folder: Path, format: str, *, shuffled: bool) -> None:
    """Files whose names, sizes and ages say nothing about the time of their rows, if shuffled."""
    folder.mkdir(parents=True)
    names = list(range(len(parts)))
    if shuffled:
        random.Random(3).shuffle(names)
    for part, name in zip(parts, names, strict=True):
        if format == "parquet":
            pq.write_table(part, folder / f"{name:03d}.parquet", row_group_size=100)
        elif format == "csv":
            pa_csv.write_csv(part, folder / f"{name:03d}.csv")
        else:
            text = "".join(json.dumps(row) + "\n" for row in part.to_pylist())
            (folder / f"{name:03d}.json").write_text(text)


def read(spark: SparkSession, folder: Path, format: str, *, streaming: bool = False) -> Any:
    reader = (spark.readStream if streaming else spark.read).format(format)
    return reader.schema("car string, topic string, stamp long, n long").load(str(folder))


def pipeline(df: Any) -> Frames:
    return (
        frames(df, key="car", time="stamp", topic="topic")
        .event_time("unixtimestamp_ns", TOLERANCE)
        .synchronize(["gps", "imu", "camera"], queue_size=50)
    )


def outcome(made: Frames, out: Path) -> tuple[list[Any], list[Any], list[Any]]:
    """What a backfill gives: all its tables by one job."""
    made.write(str(out))
    tables = {
        kind: [row for rows in of_keys.values() for row in rows]
        for kind, of_keys in written(out, made).items()
    }
    sets = [
        (row["car"], row["gps"]["n"], row["imu"]["n"], row["camera"]["n"], row["spread_ns"])
        for row in tables["data"]
    ]
    late, dropped = ([row["n"] for row in tables.get(kind, ())] for kind in ("late", "dropped"))
    return sorted(sets), sorted(late), sorted(dropped)


@pytest.fixture(scope="module")
def expected(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Any:
    home = tmp_path_factory.mktemp("one")
    write([recorded()], home / "in", "parquet", shuffled=False)
    found = outcome(pipeline(read(spark, home / "in", "parquet")), home / "out")
    assert found[0]
    assert not found[1]
    return found


@pytest.mark.parametrize(
    ("format", "cut"),
    [("parquet", one_file), ("parquet", per_topic), ("csv", per_topic),
     pytest.param("parquet", hundred_slices, marks=pytest.mark.long),
     pytest.param("json", hundred_slices, marks=pytest.mark.long)],
)  # fmt: skip
def test_no_cut_into_files_changes_a_backfill(
    spark: SparkSession,
    tmp_path: Path,
    expected: Any,
    format: str,
    cut: Callable[[pa.Table], list[pa.Table]],
) -> None:
    write(cut(recorded()), tmp_path / "in", format, shuffled=True)
    settings = {"spark.sql.files.maxPartitionBytes": "3000", "spark.sql.shuffle.partitions": "3"}
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        made = pipeline(read(spark, tmp_path / "in", format))
        assert made.arrival_rule() == (
            "arrival order: a watermark per file, files side by side by event time"
        )
        assert outcome(made, tmp_path / "out") == expected
    finally:
        for name, text in before.items():
            spark.conf.set(name, text or "")


def test_no_cut_changes_an_available_now_run(
    spark: SparkSession, tmp_path: Path, expected: Any
) -> None:
    for cut in (per_topic, hundred_slices):
        home = tmp_path / cut.__name__
        write(cut(recorded()), home / "in", "parquet", shuffled=True)
        made = pipeline(read(spark, home / "in", "parquet", streaming=True))
        query = made.write(str(home / "out"))
        query.awaitTermination()
        late = list((home / "out" / "late").glob("*/*"))
        assert late == []
        sets = pq.read_table(home / "out" / "data", partitioning=None).to_pylist()
        found = sorted((s["car"], s["gps"]["n"], s["imu"]["n"], s["camera"]["n"]) for s in sets)
        assert found, "all but those that wait for the end"
        assert set(found) <= {one[:4] for one in expected[0]}


def test_rows_late_in_their_own_file_are_late(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table({"car": ["a"] * 4, "stamp": [0, 100 * MS, 10 * MS, 200 * MS], "n": range(4)})
    other = pa.table({"car": ["a"] * 2, "stamp": [10 * MS, 20 * MS], "n": [4, 5]})
    write([other, table], tmp_path / "in", "parquet", shuffled=False)
    df = spark.read.parquet(str(tmp_path / "in"))
    made = frames(df, key="car", time="stamp").event_time("unixtimestamp_ns", TOLERANCE)
    assert [row["n"] for row in made.late.collect()] == [2]
    assert [row["n"] for row in made.data.collect()] == [0, 4, 5, 1, 3]


def test_recordings_have_a_watermark_per_file_too(spark: SparkSession, tmp_path: Path) -> None:
    """The column of a source that names the file takes the place of Spark's metadata."""
    df = spark.createDataFrame(
        [("a", 5), ("a", 900), ("b", 5), ("b", 900)], "file string, stamp long"
    )
    told = frames(df, time="stamp", file="file").event_time("unixtimestamp_ns", 10)
    assert told.late.count() == 0
    alone = frames(df, time="stamp").event_time("unixtimestamp_ns", 10)
    assert alone.late.count() == 1
    assert "name the columns that pin it with arrival" in alone.arrival_rule()


YAML = """
streams:
  s:
    source: {{format: {format}, path: {path}{options}}}
    key: car
    topic: topic
    eventtime: {{column: stamp, type: unixtimestamp_ns}}
options: {{mode: {mode}, eventtime: {{enabled: true, lateTolerance: 50 ms, watermarkPer: tuple}}}}
stages:
  - synchronize: {{topics: [gps, imu, camera], queueSize: 50}}
"""


def test_yaml_says_where_slices_are_not_enough(spark: SparkSession, tmp_path: Path) -> None:
    write(per_topic(recorded(60)), tmp_path / "in", "parquet", shuffled=True)

    def rule(mode: str, options: str = "") -> list[str]:
        text = YAML.format(format="parquet", path=tmp_path / "in", mode=mode, options=options)
        definition = PipelineDefinition.from_yaml(text)
        made = open_pipeline(spark, definition, streaming=mode == "streaming")[1]
        return made.notes()

    one, gate = rule("batch")
    assert one.startswith("arrival order: a watermark per file")
    assert gate.startswith("columns are read by Arrow (parquet); payload carried")
    sliced = rule("streaming", ", options: {maxFilesPerTrigger: 1}")
    assert len(sliced) == 2, "slices are exact: there is nothing to warn of"
    limited = rule("streaming", ", options: {maxFilesPerTrigger: 1, mergeSchema: true}")
    assert limited[1].startswith("rows come through Spark")
    assert limited[2] == (
        "streams.s.source.options: maxFilesPerTrigger cuts the recording into micro-batches, and "
        "rows of a later one can be late because of it: leave it out, or declare arrival"
    )


def test_what_is_declared_must_be_there(spark: SparkSession) -> None:
    df = spark.createDataFrame([(1, "a")], "stamp long, car string")
    for name, value in (("key", df.car), ("arrival", df.stamp), ("topic", df.car)):
        with pytest.raises(ConfigError, match=rf"{name}: got Column<'\w+'>, must be (a|the) name"):
            frames(df, **{name: value})
    with pytest.raises(ConfigError, match=r"key: got 'cra', must be a column: .*did you mean car"):
        frames(df, key="cra")
