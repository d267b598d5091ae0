"""Workers and drivers that die: nothing is lost and nothing comes twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark.outcomes import add_file, assert_same, count, in_process, run_now, written
from spark.recordings import Recording, ordered, stream_of
from spark.trouble import FailWhile, KillOnce
from tidegate.output.commit import CommitLog
from tidegate.pipeline import PipelineDefinition
from tidegate.spark import Frames
from tidegate.spark.open import open_pipeline
from tidegate.windows import AfterCount, Tumbling


def middle(recording: Recording) -> int:
    """An event time in the third of the four files, in the second micro-batch."""
    times = recording.slices[2]["log_time"].to_pylist()
    return int(times[len(times) // 2])


def windowed(frames: Frames) -> Frames:
    """Rows wait in open windows: a worker dies after it took them and before it emitted them."""
    return frames.window(Tumbling("700 ms"), trigger=AfterCount(60))


@pytest.mark.parametrize("then", [lambda frames: frames, windowed], ids=["rows", "windows"])
def test_a_worker_killed_in_mid_batch(
    then: Callable[[Frames], Frames], spark: SparkSession, recording: Recording, tmp_path: Path
) -> None:
    marker = tmp_path / "killed"
    plain = ordered(stream_of(spark, recording.folder, files=2))
    pipeline = then(plain.then(KillOnce(str(marker), "car-00001", middle(recording))))
    run_now(pipeline, tmp_path / "out")
    assert int(marker.read_text()) != os.getpid()
    expected = in_process(then(plain), recording.slices, end=False)
    assert count(expected["data"]) > 1000
    assert_same(written(tmp_path / "out", pipeline), expected)


def test_a_batch_that_failed_leaves_nothing_in_flows_that_workers_keep(
    spark: SparkSession, recording: Recording, tmp_path: Path
) -> None:
    """One shard fails while the other has run and was kept; the same frames are started again."""
    marker, out = tmp_path / "failing", tmp_path / "out"
    marker.touch()
    plain = ordered(stream_of(spark, recording.folder, files=2))
    pipeline = plain.then(FailWhile(str(marker), "car-00004", middle(recording)))
    with pytest.raises(StreamingQueryException, match="failing as long as the marker is there"):
        run_now(pipeline, out)
    (first,) = CommitLog.at(str(out))
    assert first.batch == 0
    assert len(first.shards) > 1, "all keys are in one shard: nothing is kept"
    marker.unlink()
    run_now(pipeline, out)
    assert_same(written(out, pipeline), in_process(plain, recording.slices, end=False))


PIPELINE = """
name: killed
streams:
  fleet:
    source: {{format: parquet, path: {folder}, options: {{maxFilesPerTrigger: 1}}}}
    key: vehicle
    arrival: log_time
    eventtime: {{column: stamp, type: unixtimestamp_ns}}
options:
  mode: streaming
  trigger: available_now
  eventtime: {{enabled: true, lateTolerance: 200 ms, maxFutureSkew: 1 h, watermarkPer: tuple}}
sink: {{path: {out}}}
"""


@pytest.mark.long
@pytest.mark.timeout(900)  # two drivers, one after the other
def test_a_driver_killed_between_our_commit_and_that_of_spark(
    spark: SparkSession, recording: Recording, tmp_path: Path
) -> None:
    """SIGKILL, then to the end. `make faults` kills at all other points."""
    folder, out, file = tmp_path / "in", tmp_path / "out", tmp_path / "pipeline.yaml"
    for number, part in enumerate(recording.slices):
        add_file(part, folder, number)
    file.write_text(PIPELINE.format(folder=folder, out=out))

    def committed() -> bool:
        return (out / "_commits" / "00000002.json").exists()

    run_and_kill(file, committed)
    assert not (out / "_commits" / "00000003.json").exists()
    done = run_cli(file)
    assert done.returncode == 0, done.stderr
    definition = PipelineDefinition.load(file)
    _, pipeline = open_pipeline(spark, definition, streaming=True)
    expected = in_process(pipeline, recording.slices, end=False)
    assert count(expected["data"]) > 3000
    assert_same(written(out, pipeline), expected)
    assert len(list(out.glob("data/*"))) == 4
    assert not list((out / "_staging").iterdir())


def quick() -> dict[str, str]:
    """The environment of a short run: no thorough compiler."""
    return {**os.environ, "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


def run_cli(file: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidegate", "run", str(file), "--json"]
    return subprocess.run(command, capture_output=True, text=True, env=quick(), timeout=400)


def run_and_kill(file: Path, when: Callable[[], bool]) -> None:
    """Run a pipeline, and kill its driver (and the Java it started) as soon as `when` holds."""
    command = [sys.executable, "-m", "tidegate", "run", str(file)]
    running = subprocess.Popen(
        command,
        env=quick(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 300
        while not when():
            assert running.poll() is None, "the run ended before it could be killed"
            assert time.monotonic() < deadline, "the run never got there"
            time.sleep(0.002)
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
