"""Sources that misbehave: cut off, repeated, out of order, silent, changed, with a clock gone back.

Each scenario runs a stream over such a source and compares with the same rows in process. It
returns what it did and how many rows it compared, and raises AssertionError if one is not where it
belongs.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from faults import recording
from spark.outcomes import assert_same, count, in_process, run_now, written
from spark.recordings import ordered
from tidegate.errors import TidegateError
from tidegate.pipeline.definition import SourceDefinition, StreamDefinition
from tidegate.spark import Frames
from tidegate.spark.open import open_stream_source
from tidegate.spark.query import start

FILES = 4
MONTH_S = 30 * 86_400


class CannotTryError(Exception):
    """What a scenario needs and this machine does not have."""


class Place:
    """A source folder and an output, with the stream between them."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.source, self.out = spark, folder / "in", folder / "out"
        self.parts = recording.slices(FILES, seed=7)

    def put(self, part: pa.Table, number: int) -> Path:
        file = self.source / f"{number:03d}.parquet"
        recording.write_file(part, file, number)
        return file

    def frames(self, **options: str) -> Frames:
        source = SourceDefinition(path=str(self.source), options={"maxFilesPerTrigger": 1})
        rows = open_stream_source(
            self.spark, "fleet", StreamDefinition(source=source), streaming=True
        ).df
        return ordered(rows, **options)

    def check(self, parts: list[pa.Table]) -> int:
        """The output is what these rows give in process, and no row is missing."""
        frames = self.frames()
        expected = in_process(frames, parts, end=False)
        assert_same(written(self.out, frames), expected)
        return sum(count(rows) for rows in expected.values())

    def stops(self, frames: Frames, *words: str, **options: str) -> None:
        """The run stops, and says why in these words."""
        try:
            run_now(frames, self.out, **options)
        except (PySparkException, TidegateError, OSError) as error:
            said = str(error)
        else:
            raise AssertionError(f"the run went on, without a word of {words}")
        assert all(word in said for word in words), f"does not say {words}: {said[:300]}"


def truncated_file(spark: SparkSession, folder: Path) -> tuple[str, int]:
    """A file cut in half stops the run by name; put right, the run goes on."""
    place = Place(spark, folder)
    files = [place.put(part, number) for number, part in enumerate(place.parts)]
    whole = files[2].read_bytes()
    frames = place.frames()  # before the file is cut: a look at the schema may meet it
    files[2].write_bytes(whole[: len(whole) // 2])
    os.utime(files[2], (1_700_000_002,) * 2)
    place.stops(frames, files[2].name)
    place.check(place.parts[:2])
    place.put(place.parts[2], 2)
    run_now(place.frames(), place.out)
    return "stopped at the file by name, then put right", place.check(place.parts)


def repeats(spark: SparkSession, folder: Path) -> tuple[str, int]:
    """A file touched again is not read again; its rows in a new file are rows, most are late."""
    place = Place(spark, folder)
    files = [place.put(part, number) for number, part in enumerate(place.parts)]
    run_now(place.frames(), place.out)
    os.utime(files[0], (1_700_000_100,) * 2)
    place.put(place.parts[1], FILES)
    run_now(place.frames(), place.out)
    rows = place.check([*place.parts, place.parts[1]])
    late = count(written(place.out, place.frames())["late"])
    return f"one file touched, one sent again: {late} late rows delivered", rows


def reorders(spark: SparkSession, folder: Path) -> tuple[str, int]:
    """Files in another order than they were recorded in."""
    place = Place(spark, folder)
    mixed = [place.parts[number] for number in (0, 2, 1, 3)]
    for number, part in enumerate(mixed):
        place.put(part, number)
    run_now(place.frames(), place.out)
    return "files in the order 0, 2, 1, 3", place.check(mixed)


def pauses(spark: SparkSession, folder: Path, seconds: float = 5) -> tuple[str, int]:
    """A stream that gets nothing for a while, and then the rest."""
    place = Place(spark, folder)
    for number in (0, 1):
        place.put(place.parts[number], number)
    commits = place.out / "_commits"
    query = start(place.frames(), str(place.out), mode="continuous", interval="100 milliseconds")
    try:
        for wanted in (2, FILES):
            deadline = time.monotonic() + 120
            while len(list(commits.glob("*.json"))) < wanted:
                assert query.isActive, query.exception()
                assert time.monotonic() < deadline, "the stream does not get on"
                time.sleep(0.05)
            if wanted == 2:
                time.sleep(seconds)
                for number in (2, 3):
                    place.put(place.parts[number], number)
    finally:
        query.stop()
    return f"silent for {seconds:g} s, then went on", place.check(place.parts)


def schema_changes(spark: SparkSession, folder: Path) -> tuple[str, int]:
    """A column more is left aside, a type that does not fit stops the run until it is put right, a
    time column that is missing makes error rows."""
    place = Place(spark, folder)
    more = place.parts[1].append_column("firmware", pa.array(["2.0"] * place.parts[1].num_rows))
    place.put(place.parts[0], 0)
    frames_rows = place.parts[2].num_rows
    place.put(more, 1)
    stamps = pa.array([1.5] * frames_rows, pa.float64())
    index = place.parts[2].schema.get_field_index("stamp")
    place.put(place.parts[2].set_column(index, "stamp", stamps), 2)
    place.stops(place.frames(), "002.parquet", "stamp")
    place.check(place.parts[:2])
    place.put(place.parts[2], 2)
    run_now(place.frames(), place.out)
    place.check(place.parts[:3])
    place.put(place.parts[3].drop_columns(["stamp"]), 3)
    run_now(place.frames(), place.out)
    unread = place.parts[3].set_column(
        index, "stamp", pa.nulls(place.parts[3].num_rows, pa.string())
    )
    return "a column more, a type changed, the time missing", place.check(
        [*place.parts[:3], unread]
    )


def clock_steps_back(spark: SparkSession, folder: Path) -> tuple[str, int]:
    """The second run starts an hour before the first; a file is a month older than those read."""
    place = Place(spark, folder)
    for number in (0, 1):
        place.put(place.parts[number], number)
    run_now(place.frames(forget="10 s"), place.out)
    for number in (2, 3):
        place.put(place.parts[number], number - MONTH_S)
    earlier = time.time_ns() - 3600 * 10**9
    with mock.patch("tidegate.spark.query.time.time_ns", return_value=earlier):
        run_now(place.frames(forget="10 s"), place.out)
    return "driver back by an hour, files back by a month", place.check(place.parts)


SET_CLOCK = Path(__file__).with_name("set_clock.c")
"""What gives a process, and all below it, a clock that can be set."""

TRIGGER_S = 1.0


def clock_set_back(spark: SparkSession, folder: Path) -> tuple[str, int]:
    """The clock of a whole run, Java and workers included, is set back by an hour while it goes on,
    then forward by two. No micro-batch waits for it, no row is lost."""
    library, clock = folder / "set_clock.so", folder / "clock"
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        raise CannotTryError("there is no C compiler that makes a clock to set")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, SET_CLOCK], check=True)
    clock.write_text("0")
    place = Place(spark, folder)
    place.put(place.parts[0], 0)
    (folder / "pipeline.yaml").write_text(
        recording.pipeline(recording.from_folder(place.source), place.out, "parquet")
        .replace("trigger: available_now", f"trigger: {TRIGGER_S:g} s")
        .replace("stages:\n  - synchronize: {topics: [lidar, camera, gps, imu], queueSize: 10, "
                 "maxInterval: 50 ms}\n", "")
    )  # fmt: skip
    own = {**os.environ, "LD_PRELOAD": str(library), "SET_CLOCK": str(clock)}
    command = [sys.executable, "-m", "tidegate", "run", str(folder / "pipeline.yaml")]
    with open(folder / "run.log", "wb") as log:
        run = subprocess.Popen(command, stdout=log, stderr=log, env=own)
    try:
        for number, step in enumerate((None, "-3600", "7200", None)):
            if number:
                place.put(place.parts[number], number)
            deadline = time.monotonic() + 180
            while len(list((place.out / "_commits").glob("*.json"))) <= number:
                said = (folder / "run.log").read_text(errors="replace")[-600:]
                assert run.poll() is None, f"the run ended: {said}"
                assert time.monotonic() < deadline, f"no micro-batch {number}: {said}"
                time.sleep(0.1)
            if step:
                time.sleep(2 * TRIGGER_S)  # Spark has planned its next micro-batch
                clock.write_text(step)
    finally:
        run.send_signal(signal.SIGINT)
        run.wait(timeout=60)
    said = (folder / "run.log").read_text(errors="replace")
    assert "the clock was set back by" in said, said[-600:]
    return "an hour back, then two ahead", place.check(place.parts)
