"""Files and spools from a pipeline file; what is missing is one sentence and exit code 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc_csv
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tidegate.errors import ConfigError
from tidegate.pipeline import PipelineDefinition
from tidegate.spark.open import open_pipeline
from tidegate.spark.query import start
from tidegate.spark.recording import read
from tidegate.spool import Landed, Spool

ROWS = [{"vehicle": f"v{n % 2}", "stamp": n * 1000, "x": n * 0.5} for n in range(60)]

PIPELINE = """
streams:
  s:
    source: {source}
    key: {key}
    arrival: {arrival}
    eventtime: {{column: {arrival}, type: unixtimestamp_ns}}
options: {{mode: {mode}, eventtime: {{enabled: true, watermarkPer: tuple}}}}
"""


def opened(spark: SparkSession, source: str, mode: str = "batch", **more: str) -> Any:
    fields = {"key": "vehicle", "arrival": "stamp", **more}
    text = PIPELINE.format(source=source, mode=mode, **fields)
    definition = PipelineDefinition.from_yaml(text)
    return open_pipeline(spark, definition, streaming=mode == "streaming")[1]


def write(folder: Path, format: str) -> None:
    folder.mkdir()
    table = pa.Table.from_pylist(ROWS)
    if format == "parquet":
        pq.write_table(table, folder / "a.parquet")
    elif format == "csv":
        pc_csv.write_csv(table, folder / "a.csv")
    else:
        import json

        (folder / "a.json").write_text("".join(json.dumps(row) + "\n" for row in ROWS))


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_files(spark: SparkSession, tmp_path: Path, format: str) -> None:
    write(tmp_path / "in", format)
    source = f"{{format: {format}, path: {tmp_path / 'in'}"
    if format == "csv":
        source += ", schema: 'vehicle string, stamp long, x double', options: {header: true}"
    made = opened(spark, source + "}").data.select("vehicle", "stamp", "x").collect()
    assert sorted(map(tuple, made)) == sorted((r["vehicle"], r["stamp"], r["x"]) for r in ROWS)


def test_csv_columns_are_matched_by_header(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a b.csv").write_text("vehicle,stamp,x\nv0,1000,0.5\nv1,oops,1.5\n")
    (folder / "b.csv").write_text("x,vehicle,stamp,more\n2.5,v0,3000,z\n")
    (folder / "c.csv").write_text("stamp,vehicle\n2000,v0\n")
    schema = "schema: 'vehicle string, stamp long, x double, more string'"
    source = f"{{format: csv, path: '{folder}', {schema}, options: {{header: true}}}}"
    made = opened(spark, source)
    rows = made.data.select("vehicle", "stamp", "x", "more", "csv_file").collect()
    assert [tuple(row)[:4] for row in sorted(rows, key=lambda row: row.stamp)] == [
        ("v0", 1000, 0.5, None), ("v0", 2000, None, None), ("v0", 3000, 2.5, "z"),
    ]  # fmt: skip
    assert {row.csv_file.rsplit("/", 1)[1] for row in rows} == {"a%20b.csv", "b.csv", "c.csv"}
    bad = made.errors.select("line_unparsed").collect()
    assert [row.line_unparsed for row in bad] == ["v1,oops,1.5"]
    with pytest.raises(ConfigError, match="which a stream cannot read"):
        opened(spark, source, "streaming")


@pytest.mark.parametrize("mode", ["batch", "streaming"])
@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_signs_of_patterns_in_names(
    spark: SparkSession, tmp_path: Path, format: str, mode: str
) -> None:
    """A folder or file of exactly that name is meant, not what it would match as a pattern."""
    folder = tmp_path / "run [2] {x,y}?"
    write(folder, format)
    (tmp_path / "run 2 xa").mkdir()
    (tmp_path / f"run 2 xa/other.{format}").write_text("nothing that can be read")
    options = {"header": "true"} if format == "csv" else {}
    made = read(str(folder), format, schema="vehicle string, stamp long, x double",
                options=options, streaming=mode == "streaming", spark=spark)  # fmt: skip
    if mode == "batch":
        assert {row.stamp for row in made.df.collect()} == {row["stamp"] for row in ROWS}
    else:
        query = made.df.writeStream.format("memory").queryName("signs").trigger(availableNow=True)
        query.start().awaitTermination()
        assert spark.table("signs").count() == len(ROWS)


def test_json_arrays_and_records_inside_a_document(spark: SparkSession, tmp_path: Path) -> None:
    import json

    (tmp_path / "a.json").write_text(json.dumps({"kind": "list", "rows": ROWS[:6]}))
    schema = "schema: 'vehicle string, stamp long, x double'"
    for told in (schema, "schema: null"):
        source = f"{{format: json, path: '{tmp_path}', {told}, options: {{records: rows}}}}"
        made = opened(spark, source).data.select("vehicle", "stamp", "x").collect()
        assert sorted(tuple(row) for row in made) == sorted(tuple(r.values()) for r in ROWS[:6])
    with pytest.raises(ConfigError, match="must name an array of records"):
        opened(spark, f"{{format: json, path: '{tmp_path}', options: {{records: kind}}}}")


def test_keys_that_differ_in_case_only_are_one_sentence(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "a.json").write_text('{"t": 1, "x": 2}\n')
    (tmp_path / "b.json").write_text('{"t": 2, "X": 3}\n')
    with pytest.raises(ConfigError, match="`x` is there more than once, or in upper and lower"):
        read(str(tmp_path), "json", spark=spark)


def test_parquet_timestamps_in_ns_are_read(spark: SparkSession, tmp_path: Path) -> None:
    stamps = pa.array([r["stamp"] for r in ROWS], pa.timestamp("ns"))
    table = pa.Table.from_pylist(ROWS).set_column(1, "stamp", stamps)
    pq.write_table(table, tmp_path / "a.parquet")
    made = opened(spark, f"{{format: parquet, path: '{tmp_path}'}}").data.collect()
    assert sorted(row.stamp for row in made) == sorted(row["stamp"] for row in ROWS)


def test_a_date_and_a_time_of_day_in_two_columns(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("day,clock,v\n01.02.2024,12:30,1\n01.02.2024,12:29,2\n")
    text = f"""
    streams:
      s:
        source: {{format: csv, path: '{tmp_path}', options: {{header: true}},
                  schema: 'day string, clock string, v long'}}
        eventtime: {{column: [day, clock], type: date_time, format: "%d.%m.%Y %H:%M"}}
    options: {{eventtime: {{enabled: true, lateTolerance: 1 h}}}}
    """
    definition = PipelineDefinition.from_yaml(text)
    made = open_pipeline(spark, definition, streaming=False)[1].data.collect()
    assert [(row.v, row.time_ns) for row in made] == [
        (2, 1706790540 * 10**9), (1, 1706790600 * 10**9),
    ]  # fmt: skip


BAD = {
    "json": ("b.json", '{"vehicle": "v0", "stamp": 7000, "x": 1.5}\n{"vehicle": "v0", "sta\n'),
    "csv": ("b.csv", "vehicle,stamp,x\nv0,7000,1.5\nv0,seven,1.5\n"),
}


@pytest.mark.parametrize("format", BAD)
def test_a_bad_line_is_an_error_row_with_its_text_and_its_file(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    write(tmp_path / "in", format)
    name, content = BAD[format]
    (tmp_path / "in" / name).write_text(content)
    options = ", options: {header: true}" if format == "csv" else ""
    schema = f"schema: 'vehicle string, stamp long, x double'{options}"
    made = opened(spark, f"{{format: {format}, path: {tmp_path / 'in'}, {schema}}}")
    (wrong,) = made.errors.collect()
    assert wrong["line_unparsed"] == content.splitlines()[-1]
    assert wrong["line_file"].endswith(f"/in/{name}")
    rows = made.data.select("line_unparsed", "line_file").collect()
    assert len(rows) == len(ROWS) + 1
    assert {tuple(row) for row in rows} == {(None, None)}


def test_a_directory_as_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "in", "json")
    made = opened(spark, f"{{format: json, path: {tmp_path / 'in'}}}", "streaming")
    start(made, str(tmp_path / "out")).awaitTermination()
    assert pq.read_table(tmp_path / "out" / "data").num_rows > 50


def test_a_spool_as_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    with Spool(tmp_path / "spool") as spool:
        spool.append([Landed(f"t{n % 2}", n, b"%d" % n) for n in range(40)])
    source = f"{{format: spool, path: {tmp_path / 'spool'}, options: {{maxRowsPerTrigger: 15}}}}"
    fields = {"key": "topic", "arrival": "offset"}
    made = opened(spark, source, "streaming", **fields)
    query = start(made, str(tmp_path / "out"))
    query.awaitTermination()
    assert len([p for p in query.recentProgress if p.numInputRows]) == 3
    data = pq.read_table(tmp_path / "out" / "data")
    assert sorted(int(p) for p in data["payload"].to_pylist()) == list(range(40))


# -- what is missing ----------------------------------------------------------------------------


def test_a_missing_path_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    source = f"{{path: {tmp_path}/nothing}}"
    text = PIPELINE.format(source=source, key="vehicle", arrival="stamp", mode="batch")
    file.write_text(text + f"sink: {{path: {tmp_path}/out}}\n")
    command = [sys.executable, "-m", "tidegate", "run", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 2
    sentence = f"streams.s.source.path: got '{tmp_path}/nothing', does not exist"
    assert done.stderr.strip() == f"tidegate: {sentence} ({file}, line 4)"


ESCAPES = ["/etc", "{root}/../x", "{root}/link/x", "s3://b/x", "{root}/*/.."]


@pytest.mark.parametrize("path", ESCAPES)
def test_paths_do_not_leave_the_roots(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to("/etc")
    monkeypatch.setenv("TIDEGATE_ROOTS", str(root))
    with pytest.raises(ConfigError, match="must be inside"):
        opened(spark, f"{{path: '{path.format(root=root)}'}}")


def test_paths_inside_the_roots(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "in", "parquet")
    monkeypatch.setenv("TIDEGATE_ROOTS", f"/nowhere:{tmp_path}")
    assert opened(spark, f"{{path: '{tmp_path}/i*'}}").df.count() == 60


def test_a_path_cannot_hide_among_the_options(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "in", "parquet")
    with pytest.raises(ConfigError, match=r"is source\.path, not an option"):
        opened(spark, f"{{options: {{Path: {tmp_path / 'in'}}}}}")


@pytest.mark.parametrize("format", ["parquet", "json"])
def test_a_link_that_is_added_while_a_stream_runs_ends_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    root, outside = tmp_path / "root é", tmp_path / "outside"
    root.mkdir()
    write(root / "in", format)
    write(outside, format)
    monkeypatch.setenv("TIDEGATE_ROOTS", str(root))
    source = f"{{format: {format}, path: '{root / 'in'}'}}"
    made = opened(spark, source, "streaming")
    start(made, str(root / "out")).awaitTermination()
    rows = spark.read.parquet(str(root / "out" / "data")).count()
    (root / "in" / "sub").symlink_to(outside)
    (root / "in" / f"b.{format}").symlink_to(outside / f"a.{format}")
    again = opened_unchecked(spark, source, monkeypatch)
    with pytest.raises(
        (StreamingQueryException, ConfigError), match=r"leads out of .*TIDEGATE_ROOTS"
    ):
        start(again, str(root / "out")).awaitTermination()
    assert spark.read.parquet(str(root / "out" / "data")).count() == rows
    (root / "in" / f"b.{format}").unlink()
    (root / "in" / "sub").unlink()
    (outside / f"a.{format}").rename(root / "in" / f"c.{format}")
    start(opened(spark, source, "streaming"), str(root / "out")).awaitTermination()
    assert spark.read.parquet(str(root / "out" / "data")).count() > rows


def opened_unchecked(spark: SparkSession, source: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stream that was opened before the links were there."""
    with monkeypatch.context() as patch:
        patch.setattr("tidegate.pipeline.formats.refuse_links_out", lambda *_, **__: None)
        return opened(spark, source, "streaming")
