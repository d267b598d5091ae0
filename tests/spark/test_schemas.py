"""Columns: what `schemas` promises is what comes out; hostile stamps; a schema that changes."""

from __future__ import annotations

import json
import logging
import warnings
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark.outcomes import add_file, arranged, assert_same, count, in_process, run_now, written
from spark.recordings import Recording, ordered
from spark.trouble import DropEven
from tidegate.errors import ConfigError
from tidegate.eventtime import Decoder, TimeColumn
from tidegate.pipeline import PipelineDefinition
from tidegate.spark import frames, read
from tidegate.spark.columnar.pieces import FoundFile, PieceLog
from tidegate.spark.new_columns import NewColumns
from tidegate.spark.open import open_pipeline
from tidegate.spark.pack import from_blob
from tidegate.windows import Tumbling

WIDE = """
string(vehicle) vehicle, stamp, log_time, seq, cast(seq % 9 as byte) tiny, cast(seq as short) small,
cast(seq as int) whole, cast(value as float) single, value, cast(value as decimal(20,6)) exact,
payload, topic, seq % 2 = 0 even, timestamp_micros(log_time div 1000) at,
to_date(timestamp_micros(log_time div 1000)) day, timestamp_ntz '2026-01-01 00:00:00' wall,
array(seq, seq + 1) pair, map('a', value) named, struct(seq as inner, topic as name) nested,
interval '1' second took, cast(null as string) nothing
"""


def test_schemas_are_what_really_comes_out(spark: SparkSession, recording: Recording) -> None:
    rows = spark.read.parquet(str(recording.folder)).selectExpr(*_fields(WIDE))
    pipeline = ordered(rows).then(DropEven())
    seen: dict[str, pa.Schema] = {}
    for row in pipeline.outcomes.where("blob is not null").collect():
        seen[row.kind] = from_blob(row.blob).schema
    assert set(seen) == {"data", "late", "error", "dropped"} == set(pipeline.schemas)
    for kind, schema in seen.items():
        promised = {field.name: field.type for field in pipeline.schemas[kind]}
        assert {field.name: field.type for field in schema} == promised, kind
    # and as a user gets them, in the promised order
    for kind in ("data", "late", "error", "dropped"):
        table = pipeline.table(kind)
        assert table.columns == pipeline.schemas[kind].names
        assert table.limit(3).count() == 3, kind
    with pytest.raises(ConfigError, match="kind: got 'lost', must be one of data, late"):
        pipeline.table("lost")


DOTTED = {"vehicle": "car.id", "stamp": "header.stamp", "log_time": "log.time", "topic": "a`b",
          "value": "imu.x"}  # fmt: skip


@pytest.mark.parametrize("streaming", [False, True])
def test_columns_whose_names_have_a_dot(
    spark: SparkSession, recording: Recording, tmp_path: Path, streaming: bool
) -> None:
    """As flattened structs are called. Spark reads `car.id` as a field of `car`."""
    plain = spark.read.parquet(str(recording.folder))
    rows = plain
    if streaming:
        rows = spark.readStream.schema(plain.schema).parquet(str(recording.folder))
    dotted = rows.withColumnsRenamed(DOTTED)
    made = frames(dotted, key="car.id", time="header.stamp", topic="a`b", arrival="log.time")
    made = made.event_time("unixtimestamp_ns", "200 ms", max_future_skew="1 h")
    counted = made.window(Tumbling("1 s"), aggregates={"m": ("max", "imu.x")}, group_by="a`b")
    wanted = frames(plain, key="vehicle", time="stamp", topic="topic", arrival="log_time")
    wanted = wanted.event_time("unixtimestamp_ns", "200 ms", max_future_skew="1 h")
    if streaming:
        run_now(made, tmp_path)
        slices = [
            part.rename_columns([DOTTED.get(name, name) for name in part.schema.names])
            for part in recording.slices
        ]
        assert_same(written(tmp_path, made), in_process(made, slices, end=False))
        return
    assert set(counted.data.columns) >= {"car.id", "a`b", "m"}  # and only what they need is read
    found = counted.data.toArrow()
    right = wanted.window(Tumbling("1 s"), aggregates={"m": ("max", "value")}, group_by="topic")
    assert sorted(found["m"].to_pylist()) == sorted(right.data.toArrow()["m"].to_pylist())
    late = made.late.toArrow()
    assert sorted(late["imu.x"].to_pylist()) == sorted(wanted.late.toArrow()["value"].to_pylist())


def _fields(text: str) -> list[str]:
    """Split at commas outside parentheses."""
    out, depth = [""], 0
    for sign in text:
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth == 0:
            out.append("")
        else:
            out[-1] += sign
    return [part.strip() for part in out]


HOSTILE: dict[str, tuple[str, str, list[Any]]] = {
    "text": (
        "string", "unixtimestamp_ns",
        ["1", None, "", " 7 ", "NaN", "-1", "1e3", "true", "0x10", "9223372036854775807",
         "9223372036854775808", "-9223372036854775809", "٣", "1_000", "١", "\x00"],
    ),
    "numbers": (
        "long", "unixtimestamp_s",
        [0, 1, None, -1, 9_223_372_036, 9_223_372_037, 2**63 - 1, -(2**63)],
    ),
    "floats": (
        "double", "unixtimestamp_ms",
        [1.0, None, float("nan"), float("inf"), float("-inf"), 1.5, -0.0, 1e300, -5.0],
    ),
    "decimals": (
        "decimal(38,3)", "unixtimestamp_s",
        [Decimal("1.000"), Decimal("1.001"), Decimal("9" * 35), None],
    ),
    "booleans": ("boolean", "unixtimestamp_s", [True, False, None]),
    "iso": (
        "string", "iso8601",
        ["2026-01-01T00:00:00Z", "1969-12-31T23:59:59Z", "2600-01-01T00:00:00Z", "2026-13-01",
         "yesterday", None, "2026-01-01T00:00:00+25:00"],
    ),
    "structs": ("struct<a: int>", "unixtimestamp_s", [(1,), None]),
}  # fmt: skip


def test_hostile_stamps_are_error_rows_and_counted(spark: SparkSession) -> None:
    """Each column of bad values gives on Spark what it gives in process; no row goes missing."""
    for name, (type_, time_type, values) in HOSTILE.items():
        rows = spark.createDataFrame(
            [(f"v{n % 2}", value, n) for n, value in enumerate(values)],
            f"vehicle string, stamp {type_}, n long",
        )
        declared = frames(rows, key="vehicle", time="stamp", arrival="n")
        try:
            pipeline = declared.event_time(time_type, "100000 d")
        except ConfigError as error:  # only where every row would have been an error
            if "and eventtime type" not in str(error):
                raise
            decoder = Decoder((TimeColumn("stamp", time_type),))
            assert not any(len(decoder.decode(b)[0]) for b in rows.toArrow().to_batches()), name
            continue
        expected = in_process(pipeline, [rows.toArrow()])
        table = pipeline.outcomes.where("blob is not null").collect()
        found = arranged(
            [(row.kind, pa.Table.from_batches([from_blob(row.blob)])) for row in table],
            ["vehicle"],
        )
        total = sum(count(part) for part in found.values())
        assert total == len(values), name
        for row in (row for part in found.get("error", {}).values() for row in part):
            assert row["error_column"] == "stamp"
            assert row["error_reason"], row
            assert (row["error_value"] is None) == (row["stamp"] is None), row
        # NaN is not equal to itself
        assert_same(_printable(found), _printable(expected))


def _printable(tables: Any) -> Any:
    return {
        kind: {
            key: [{name: repr(value) for name, value in row.items()} for row in rows]
            for key, rows in part.items()
        }
        for kind, part in tables.items()
    }


CHANGING = """
streams:
  s:
    source: {{format: parquet, path: {folder}, schema: "{columns}"}}
    key: vehicle
    arrival: n
    eventtime: {{column: stamp, type: unixtimestamp_s}}
options:
  mode: streaming
  eventtime: {{enabled: true, lateTolerance: 10 s, watermarkPer: tuple}}
"""


def test_a_column_that_is_new_one_that_goes_and_one_that_grows(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Rows held from before the change come out after it, with null for what they never had."""
    folder, out = tmp_path / "in", tmp_path / "out"
    first = {"vehicle": ["a", "a"], "stamp": [100, 99], "n": [0, 1], "old": [1, 2]}
    table = pa.table({**first, "grows": pa.array([5, 6], pa.int32())})
    add_file(table, folder, 0)

    def opened(columns: str) -> Any:
        columns = f"vehicle string, stamp long, n long, {columns}"
        text = CHANGING.format(folder=folder, columns=columns)
        return open_pipeline(spark, PipelineDefinition.from_yaml(text), streaming=True)[1]

    before = opened("old long, grows int")
    run_now(before, out)
    assert "data" not in written(out, before)
    later = {"vehicle": ["a", "a"], "stamp": [101, 150], "n": [2, 3], "new": ["x", "y"]}
    add_file(pa.table({**later, "grows": pa.array([2**40, None], pa.int64())}), folder, 1)
    pipeline = opened("grows long, new string")
    run_now(pipeline, out)
    rows = written(out, pipeline)["data"][("a",)]
    shown = [[row.get(name, "none") for name in ("stamp", "old", "new", "grows")] for row in rows]
    assert shown == [[99, "none", None, 6], [100, "none", None, 5], [101, "none", "x", 2**40]]


def test_a_column_that_appears_while_a_stream_runs_is_told(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark does not read it, for the schema is fixed at the start: the run says so, and once."""
    folder, out = tmp_path / "in", tmp_path / "out"
    first = {"vehicle": ["a"], "stamp": [100], "n": [0]}
    add_file(pa.table(first), folder, 0)
    schema = spark.read.parquet(str(folder)).schema

    def run() -> str:
        caplog.clear()
        df = spark.readStream.schema(schema).parquet(str(folder))
        made = frames(df, key="vehicle", time="stamp", arrival="n").event_time("unixtimestamp_s")
        with caplog.at_level(logging.WARNING, "tidegate"):
            made.write(str(out)).awaitTermination()
        return caplog.text

    assert "is not read" not in run()
    add_file(pa.table({**first, "stamp": [101], "pressure": [1.5]}), folder, 1)
    add_file(pa.table({**first, "stamp": [102], "pressure": [2.5]}), folder, 2)
    said = run()
    assert said.count("column 'pressure' in ") == 1
    assert "start the run again to deliver it from there on, null before" in said
    assert "is not read" not in run()  # nothing new was read


def test_a_column_of_a_later_file_is_told_when_files_are_opened(
    spark: SparkSession, tmp_path: Path
) -> None:
    first = {"vehicle": ["a"], "stamp": [100]}
    add_file(pa.table(first), tmp_path, 0)
    add_file(pa.table({**first, "pressure": [1.5]}), tmp_path, 1)
    with pytest.warns(UserWarning, match="column 'pressure' in .* is not read: Spark takes the"):
        read(str(tmp_path), spark=spark)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(str(tmp_path), schema="vehicle string, stamp long, pressure double", spark=spark)


def test_new_columns_in_the_log_of_gate_1_and_of_a_source_are_told(tmp_path: Path) -> None:
    folder, checkpoint = tmp_path / "in é", tmp_path / "checkpoint"
    add_file(pa.table({"n": [1]}), folder, 0)
    add_file(pa.table({"n": [1], "a": [1]}), folder, 1)
    (folder / "2.json").write_text('{"n": 1, "b": 2}\nbroken')
    (folder / "3.json").write_text("broken")
    pieces = PieceLog(str(checkpoint / "pieces"))
    pieces.append([FoundFile(0, str(folder / "000.parquet"), 0)], [])
    watch = NewColumns(str(checkpoint), ["N"])
    assert watch.look() == []
    pieces.append([FoundFile(0, str(folder / "001.parquet"), 1)], [])
    (said,) = watch.look()
    assert said.startswith(f"column 'a' in {folder}/001.parquet is not read: the stream began")
    log = checkpoint / "sources" / "0" / "9.compact"
    log.parent.mkdir(parents=True)
    entries = [{"path": (folder / name).as_uri(), "timestamp": 1, "batchId": batch}
               for name, batch in (("gone.json", 8), ("2.json", 9), ("3.json", 9))]  # fmt: skip
    log.write_text("\n".join(["v1", *map(json.dumps, entries)]))
    (said,) = watch.look()
    assert said.startswith(f"column 'b' in file://{folder}/2.json is not read")
    assert watch.look() == []
