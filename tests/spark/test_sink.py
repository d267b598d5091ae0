"""The sink: a batch is written once, whole or not at all, and only by its own query."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark.outcomes import assert_same, in_process, run_now, written
from spark.recordings import Recording, ordered, stream_of
from tidegate.errors import ConfigError, StateError
from tidegate.spark import Frames
from tidegate.spark.query import run_batch_job, start
from tidegate.spark.sinks.parquet import ParquetSink
from tidegate.spark.sinks.registry import SinkRequest


@pytest.fixture(scope="module")
def batch(spark: SparkSession, recording: Recording) -> Frames:
    return ordered(spark.read.parquet(str(recording.folder)))


@pytest.fixture(scope="module")
def outcomes(batch: Frames) -> DataFrame:
    """The packed results, computed once."""
    cached = batch.outcomes.cache()
    cached.count()
    return cached


def files(out: Path) -> dict[str, int]:
    """Every file but those of Spark's checkpoint and the claims of drivers, and when it was
    written."""
    return {
        str(file.relative_to(out)): file.stat().st_mtime_ns
        for file in out.rglob("*")
        if file.is_file() and not {"_checkpoint", "_epochs"} & set(file.parts)
    }


def test_a_batch_written_twice_is_written_once(
    batch: Frames, outcomes: DataFrame, tmp_path: Path
) -> None:
    sink = ParquetSink(SinkRequest(str(tmp_path), batch.schemas))
    first = sink.write(outcomes, 4, "query-1")
    before = files(tmp_path)
    assert sink.write(outcomes, 4, "query-1") == first
    assert files(tmp_path) == before
    assert list(sink.commits) == [first]
    listed = {name for name in before if not name.startswith("_")}
    assert listed == set(first.files)
    assert {name.split("/")[0] for name in listed} == {"data", "late", "error"}


def test_what_a_dead_run_left_of_a_batch_is_removed_and_written_anew(
    batch: Frames, outcomes: DataFrame, recording: Recording, tmp_path: Path
) -> None:
    """Died half way: some files moved, some still staged, no commit."""
    sink = ParquetSink(SinkRequest(str(tmp_path), batch.schemas))
    whole = sink.write(outcomes, 0, "query-1")
    (tmp_path / "_commits" / "00000000.json").unlink()
    (tmp_path / "_commits" / ".00000000.tmp").write_text('{"half')
    moved = tmp_path / next(name for name in whole.files if name.startswith("late/"))
    staged = tmp_path / "_staging" / "00000001" / "00000000" / "late" / moved.name
    staged.parent.mkdir(parents=True)
    moved.rename(staged)
    (tmp_path / "data" / "batch=00000000" / "part-00009-99.parquet").write_bytes(b"PAR1 half")
    again = sink.write(outcomes, 0, "query-1")
    assert again.rows == whole.rows
    assert {name for name in files(tmp_path) if not name.startswith("_")} == set(again.files)
    assert_same(written(tmp_path, batch), in_process(batch, [recording.table]))
    assert [path.name for path in (tmp_path / "_commits").iterdir()] == ["00000000.json"]


def test_an_output_of_another_query_is_refused(
    batch: Frames, outcomes: DataFrame, tmp_path: Path
) -> None:
    sink = ParquetSink(SinkRequest(str(tmp_path), batch.schemas))
    sink.write(outcomes, 0, "query-1")
    before = files(tmp_path)
    with pytest.raises(StateError, match=r"holds batch 0 of another query \(query-1\)"):
        sink.write(outcomes, 0, "query-2")
    with pytest.raises(ConfigError, match=r"sink\.path: .* must be empty; it holds 1 batch"):
        run_batch_job(batch, str(tmp_path))
    assert files(tmp_path) == before


def test_a_commit_that_cannot_be_read_stops_the_run(
    batch: Frames, outcomes: DataFrame, tmp_path: Path
) -> None:
    sink = ParquetSink(SinkRequest(str(tmp_path), batch.schemas))
    sink.write(outcomes, 0, "query-1")
    for text in ('{"query": "query-1"', '{"query": "query-1", "batch": 0}', "[]"):
        (tmp_path / "_commits" / "00000000.json").write_text(text)
        before = files(tmp_path)
        with pytest.raises(StateError, match=r"00000000\.json"):
            sink.write(outcomes, 0, "query-1")
        assert files(tmp_path) == before


def test_a_new_checkpoint_for_an_old_output_is_refused(
    spark: SparkSession, recording: Recording, tmp_path: Path
) -> None:
    """The rows of the old query stay; those of the new one would come a second time."""
    out = tmp_path / "out"
    pipeline = ordered(stream_of(spark, recording.folder, files=4))
    run_now(pipeline, out, name="first")
    commits = list(ParquetSink(SinkRequest(str(out), pipeline.schemas)).commits)
    assert [commit.batch for commit in commits] == [0]
    before = files(out)
    with pytest.raises(StreamingQueryException, match="of another query"):
        run_now(pipeline, out, checkpoint=str(tmp_path / "elsewhere"))
    assert files(out) == before


def test_batch_and_stream_are_not_mistaken_for_each_other(
    spark: SparkSession, recording: Recording, batch: Frames, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="needs a batch DataFrame"):
        run_batch_job(ordered(stream_of(spark, recording.folder)), str(tmp_path / "out"))
    with pytest.raises(ConfigError, match="needs a streaming DataFrame"):
        start(batch, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
