"""Commands and definitions that need Spark but no process of their own: they share the session."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark.outcomes import add_file, assert_same, in_process, run_now, written
from spark.recordings import Recording
from tidegate import cli
from tidegate.errors import ConfigError
from tidegate.output.epochs import Epochs, Owner
from tidegate.output.summary import Summary
from tidegate.pipeline import PipelineDefinition
from tidegate.spark.open import open_pipeline
from tidegate.spark.runner import open_definition

PIPELINE = """\
name: cars
streams:
  cars:
    source: {{format: parquet, path: {root}/in}}
    key: vehicle
    arrival: log_time
    eventtime: {{column: stamp, type: unixtimestamp_ns}}
options:
  eventtime: {{enabled: true, lateTolerance: 200 ms, watermarkPer: tuple}}
sink: {{path: {root}/out}}
"""

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tidegate", *arguments])
        with pytest.raises(SystemExit) as left:
            cli.main()
        said = capsys.readouterr()
        return int(left.value.code or 0), said.out, said.err

    return run


@pytest.fixture
def pipeline(recording: Recording, tmp_path: Path) -> Path:
    add_file(recording.slices[0], tmp_path / "in", 0)
    file = tmp_path / "pipeline.yaml"
    file.write_text(PIPELINE.format(root=tmp_path))
    return file


def test_dry_run_shows_the_tables_and_writes_nothing(command: Command, pipeline: Path) -> None:
    code, out, _ = command("dry-run", str(pipeline), "--json")
    assert code == 0
    tables = json.loads(out)["tables"]
    assert "time_ns: int64" in tables["data"]
    assert "lateness_ns: int64" in tables["late"]
    code, out, _ = command("dry-run", str(pipeline))
    assert code == 0
    assert "PhysicalEventtimeWatermark" in out
    assert len(out.splitlines()) < 24
    assert max(map(len, out.splitlines())) <= 80
    code, whole, _ = command("dry-run", str(pipeline), "--full")
    assert "time_ns: int64" in whole
    assert "lateness_ns: int64" in whole
    assert {path.name for path in pipeline.parent.iterdir()} == {"in", "pipeline.yaml"}


WRONG = {
    "a column that is not there": (
        ("column: stamp", "column: time"),
        ["eventtime.column `time` not found in stream `cars`", "vehicle, topic, stamp", "line 7"],
    ),
    "a key that is not there": (("key: vehicle", "key: car"), ["key `car`", "line 5"]),
    "a source that is not there": (("/in}", "/nowhere}"), ["cars.source.path", "does not exist"]),
    "a source with nothing in it": (("/in}", "/empty}"), ["streams.cars.source", "parquet"]),
    "a format Spark does not have": (
        ("format: parquet", "format: stone"),
        ["streams.cars.source", "stone"],
    ),
    "no sink": (("sink:", "#"), ["sink.path", "--out"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_only_spark_can_see_is_one_sentence_too(
    command: Command, pipeline: Path, case: str
) -> None:
    (old, new), words = WRONG[case]
    (pipeline.parent / "empty").mkdir()
    text = pipeline.read_text()
    assert old in text
    pipeline.write_text(text.replace(old, new))
    code, out, err = command("run", str(pipeline))
    assert (code, out) == (2, ""), err
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("tidegate: ")
    for word in words:
        assert word in lines[0], lines[0]
    assert not (pipeline.parent / "out").exists()


def test_an_output_given_as_a_uri(
    spark: SparkSession, recording: Recording, pipeline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables, checkpoint and control rows all go there, and nowhere else."""
    monkeypatch.chdir(pipeline.parent)
    text = pipeline.read_text().replace("options:", "options:\n  mode: streaming")
    definition = PipelineDefinition.from_yaml(text)
    out = (pipeline.parent / "out").as_uri()
    _, opened = open_pipeline(spark, definition, streaming=True, control=f"{out}/_control")
    run_now(opened, out)
    expected = in_process(opened, recording.slices[:1], end=False)
    assert_same(written(pipeline.parent / "out", opened), expected)
    assert {path.name for path in pipeline.parent.iterdir()} == {"in", "out", "pipeline.yaml"}


def test_streams_whose_columns_cannot_agree(spark: SparkSession, tmp_path: Path) -> None:
    add_file(pa.table({"k": ["a"], "t": [1]}), tmp_path / "one", 0)
    add_file(pa.table({"k": [1], "t": [1]}), tmp_path / "two", 0)
    streams = {
        name: {
            "source": {"path": str(tmp_path / name)},
            "key": "k",
            "eventtime": {"column": "t", "type": "unixtimestamp_s"},
        }
        for name in ("one", "two")
    }
    options = {"eventtime": {"enabled": True}}
    definition = PipelineDefinition.of({"streams": streams, "options": options})
    with pytest.raises(ConfigError, match=r"must agree in the types of their columns.*k"):
        _ = open_pipeline(spark, definition, streaming=False)[1].schemas


def test_sums_and_highest_values_over_shards() -> None:
    """Two shards at noon are not at midnight."""
    names = ("rows_in", "eventtime_watermark.current_watermark", "eventtime_watermark.max_lateness")
    shards = {0: dict(zip(names, (3, 100, 7), strict=True)), 5: dict.fromkeys(names, 90)}
    assert Summary("out", shards=shards).to_json()["metrics"] == {
        "rows_in": 93,
        "eventtime_watermark.current_watermark": 100,
        "eventtime_watermark.max_lateness": 90,
    }


def test_a_topic_that_never_came_is_told(
    command: Command, pipeline: Path, recording: Recording
) -> None:
    """A misspelt topic makes no set; the summary says which name, and which there were."""
    text = pipeline.read_text().replace(
        "    key: vehicle\n", "    key: vehicle\n    topic: topic\n"
    )
    text = text.replace("sink:", "stages:\n  - synchronize: {topics: [camera, lidr]}\nsink:")
    pipeline.write_text(text)
    code, out, err = command("run", str(pipeline), "--json")
    assert code == 0, err
    (warning,) = json.loads(out)["warnings"]
    topics = ", ".join(sorted(set(recording.slices[0]["topic"].to_pylist())))
    assert warning == f"topic 'lidr' was never seen; seen: {topics}"
    pipeline.write_text(text.replace("/out", "/again"))
    code, out, err = command("run", str(pipeline))
    assert code == 0
    assert "'lidr' was never seen" in " ".join((out + err).split())


def test_a_run_that_fails_ends_with_exit_code_2(command: Command, pipeline: Path) -> None:
    """What only a worker meets, here a file whose pages were damaged: one sentence, and the log."""
    (file,) = (pipeline.parent / "in").glob("*.parquet")
    data = bytearray(file.read_bytes())
    data[4:2000] = bytes(1996)  # the footer stays: the schema can still be read
    file.write_bytes(data)
    code, out, err = command("run", str(pipeline))
    assert code == 2
    assert out == ""
    (line,) = [line for line in err.splitlines() if line.startswith("tidegate: ")]
    assert "Traceback" not in err
    assert "Py4J" not in line
    assert "(stack: " in " ".join(err.split())


def test_an_output_that_another_run_writes_to_is_refused_before_spark_starts(
    pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Owner("another", "ship", "elsewhere", 17, 4)
    replace(Epochs.at(str(tmp_path / "out")), owner=other).claim()
    monkeypatch.setattr("tidegate.spark.runner.session_for", lambda *_: pytest.fail("started"))
    with pytest.raises(ConfigError, match=r"written to by process 17 on ship.*line 10\)"):
        open_definition(PipelineDefinition.load(pipeline))
    with pytest.raises(BaseException, match="started"):
        open_definition(PipelineDefinition.load(pipeline), take_over=True)
