"""Sinks beside Parquet: the same rows, once, whatever dies in between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from tidegate.errors import ConfigError, StateError
from tidegate.pipeline.definition import SINK_FORMATS, PipelineDefinition, SinkDefinition
from tidegate.spark.frames_api import frames
from tidegate.spark.query import run_batch_job, start
from tidegate.spark.sinks import SinkSettings, open_sink
from tidegate.spark.sinks.registry import SINKS, SinkRequest

deltalake = pytest.importorskip("deltalake", reason="pip install 'tidegate[delta]'")


def pipeline(df: DataFrame) -> Any:
    made = frames(df, key="vehicle", time="stamp", arrival="log_time", shards=2)
    return made.event_time("unixtimestamp_ns", "200 ms", max_future_skew="1 h")


def recorded(spark: SparkSession, recording: Any, *, streaming: bool) -> DataFrame:
    if not streaming:
        return spark.read.parquet(str(recording.folder))
    schema = spark.read.parquet(str(recording.folder)).schema
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 2)
    return reader.parquet(str(recording.folder))


def parquet_rows(folder: Path, kind: str) -> list[Any]:
    table = pq.read_table(folder / kind).drop_columns(["batch"])
    return sorted(map(repr, table.to_pylist()))


def delta_rows(folder: Path, kind: str) -> list[Any]:
    # not through deltalake's own file system: with it, the process now and then aborts at its end
    place = pafs.SubTreeFileSystem(str(folder / kind), pafs.LocalFileSystem())
    table = deltalake.DeltaTable(folder / kind).to_pyarrow_table(filesystem=place)
    return sorted(map(repr, table.to_pylist()))


DELTA = SinkSettings("delta")


@pytest.fixture(scope="module")
def wanted(spark: SparkSession, recording: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the Parquet sink makes of the recording, in batch."""
    folder = tmp_path_factory.mktemp("parquet")
    run_batch_job(pipeline(recorded(spark, recording, streaming=False)), str(folder))
    return folder


def test_delta_tables_hold_what_parquet_holds(
    spark: SparkSession, recording: Any, tmp_path: Path, wanted: Path
) -> None:
    commit = run_batch_job(
        pipeline(recorded(spark, recording, streaming=False)), str(tmp_path), DELTA
    )
    for kind in ("data", "late", "error"):
        rows = delta_rows(tmp_path, kind)
        assert rows == parquet_rows(wanted, kind)
        assert len(rows) == commit.rows[kind] > 0
    with pytest.raises(ConfigError, match="must be empty"):
        run_batch_job(pipeline(recorded(spark, recording, streaming=False)), str(tmp_path), DELTA)


class CrashError(Exception):
    pass


@pytest.mark.parametrize("after", ["files", "first table", "all tables"])
def test_delta_after_a_crash(
    spark: SparkSession, recording: Any, tmp_path: Path, wanted: Path, after: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The batch runs again from where it died: nothing lost, nothing twice, table by table."""
    from tidegate.spark.sinks.delta import DeltaSink

    made = pipeline(recorded(spark, recording, streaming=False))
    sink = DeltaSink(SinkRequest(str(tmp_path), made.schemas))
    real = DeltaSink._publish

    def dying(self: Any, batch: int, schemas: Any, files: list[Any]) -> None:
        kinds = sorted({row.kind for row in files})
        done = {"files": [], "first table": kinds[:1], "all tables": kinds}[after]
        real(self, batch, schemas, [row for row in files if row.kind in done])
        raise CrashError

    monkeypatch.setattr(DeltaSink, "_publish", dying)
    with pytest.raises(CrashError):
        sink.write(made.outcomes, 0, "q")
    monkeypatch.setattr(DeltaSink, "_publish", real)
    again = DeltaSink(SinkRequest(str(tmp_path), made.schemas))
    commit = again.write(made.outcomes, 0, "q")
    assert again.write(made.outcomes, 0, "q") == commit
    for kind in ("data", "late", "error"):
        assert delta_rows(tmp_path, kind) == parquet_rows(wanted, kind)
        assert deltalake.DeltaTable(tmp_path / kind).version() == 0
        files = {p.name for p in (tmp_path / kind).rglob("*.parquet")}
        assert len(files) == len(deltalake.DeltaTable(tmp_path / kind).file_uris())
    with pytest.raises(StateError, match="another query"):
        again.write(made.outcomes, 0, "someone else")


def test_delta_as_a_stream(
    spark: SparkSession, recording: Any, tmp_path: Path, wanted: Path
) -> None:
    made = pipeline(recorded(spark, recording, streaming=True))
    start(made, str(tmp_path), settings=DELTA).awaitTermination()
    table = deltalake.DeltaTable(tmp_path / "data")
    assert table.version() == 1
    rows, everything = delta_rows(tmp_path, "data"), parquet_rows(wanted, "data")
    assert set(rows) < set(everything)  # a stream holds back what may still be overtaken
    assert len(rows) == len(set(rows)) > len(everything) * 0.8
    assert delta_rows(tmp_path, "late") == parquet_rows(wanted, "late")


@pytest.mark.parametrize(
    ("definition", "sentence"),
    [
        ({"format": "delta", "options": {"x": 1}}, "sink.options.x: got '***', is not known here;"),
        ({"options": {"compression": "rar"}}, "sink.options.compression: got 'rar', must be one"),
        ({"options": {"x": 1}}, "sink.options.x: got '***', is not known here; al"),
        ({"format": "kafka"}, "sink.options.bootstrap.servers: got None, is required"),
        ({"format": "kafka", "options": {"bootstrap.servers": "h:1", "topic": "t", "key": "x"}},
         "sink.options.key: got 'x', must be a column: vehicle"),
    ],
)  # fmt: skip
def test_wrong_settings(tmp_path: Path, definition: dict[str, Any], sentence: str) -> None:
    schemas = {"data": pa.schema([("vehicle", pa.string())])}
    with pytest.raises(ConfigError) as error:
        open_sink(SinkSettings.of(SinkDefinition(**definition)), str(tmp_path), schemas)
    assert str(error.value).startswith(sentence)


def test_a_format_that_no_sink_has(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"sink\.format: got 'excel', must be one of parquet, delt"
    ):
        SinkSettings("excel")
    file = tmp_path / "pipeline.yaml"
    file.write_text("streams: {s: {key: car}}\nsink:\n  format: excel\n")
    with pytest.raises(ConfigError) as error:  # what `tidegate explain` does first, without Spark
        PipelineDefinition.load(file)
    assert str(error.value) == (
        f"sink.format: got 'excel', must be one of {', '.join(SINKS)} ({file}, line 3)"
    )
    assert list(SINKS) == SINK_FORMATS


def test_settings_do_not_show_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINK_PASSWORD", "hunter2")
    options = {"sasl.password": "${env:SINK_PASSWORD}"}
    settings = SinkSettings.of(SinkDefinition(format="kafka", options=options))
    assert settings.options["sasl.password"] == "hunter2"
    assert "hunter2" not in repr(settings)


def test_every_sink_is_named_in_the_docs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "sources.md").read_text()
    for name in SINKS:
        assert f"format: {name}" in text, json.dumps(sorted(SINKS))
