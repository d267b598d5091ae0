"""`tidegate run --watch`: edits of the file while the stream runs, through the real entry point."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

PIPELINE = """\
name: cars
streams:
  cars:
    source: {{format: parquet, path: {root}/in}}
    key: car
    arrival: n
    eventtime: {{column: t, type: unixtimestamp_s}}
options:
  mode: streaming
  trigger: 300 ms
  eventtime: {{enabled: true, lateTolerance: 2 s}}
sink: {{path: {root}/out}}
"""

ENVIRONMENT = {
    **os.environ,
    "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "COLUMNS": "200",
    "NO_COLOR": "1",
}


class Running:
    """A run in a process of its own, and what it has said so far."""

    def __init__(self, pipeline: Path) -> None:
        self.pipeline = pipeline
        self.said = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tidegate", "run", str(pipeline), "--watch"],
            stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT,
        )  # fmt: skip
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said += line

    def until(self, what: str) -> None:
        self.wait_for(lambda: what in self.said)

    def wait_for(self, condition: object) -> None:
        assert callable(condition)
        deadline = time.monotonic() + 200
        while not condition():
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.1)

    def edit(self, old: str, new: str) -> None:
        text = self.pipeline.read_text()
        assert old in text
        self.said = ""
        self.pipeline.write_text(text.replace(old, new))

    def rows(self, kind: str) -> list[int]:
        """The numbers `n` of the rows that are committed, in order."""
        out = self.pipeline.parent / "out"
        files = [file for commit in sorted((out / "_commits").glob("*.json"))
                 for file in json.loads(commit.read_text())["files"]
                 if file.startswith(f"{kind}/")]  # fmt: skip
        return [n for file in files for n in pq.read_table(out / file)["n"].to_pylist()]


def add(root: Path, number: int, t: list[int | None], u: list[int | None]) -> None:
    first = number * 10
    rows = pa.table(
        {
            "car": pa.array(["a"] * len(t)),
            "t": pa.array(t, pa.int64()),
            "u": pa.array(u, pa.int64()),
            "n": pa.array(range(first, first + len(t)), pa.int64()),
        }
    )
    draft = root / f".{number}.parquet"
    pq.write_table(rows, draft)
    draft.rename(root / f"{number}.parquet")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    (tmp_path / "in").mkdir()
    add(tmp_path / "in", 0, [1, 5], [None, None])
    file = tmp_path / "pipeline.yaml"
    file.write_text(PIPELINE.format(root=tmp_path))
    made = Running(file)
    yield made
    made.process.kill()
    made.process.wait()


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_edits_are_taken_up_or_refused_and_the_stream_goes_on(running: Running) -> None:
    source = running.pipeline.parent / "in"
    running.wait_for(lambda: running.rows("data") == [0])

    running.edit("trigger: 300 ms", "trigger: soon")
    running.until("not taken up, going on as before: options.trigger: got 'soon'")
    running.edit("trigger: soon", "trigger: 300 ms")

    running.edit("    key: car", "    key: n")
    running.until("the state is kept by ('car',)")
    running.edit("    key: n", "    key: car")

    running.edit("lateTolerance: 2 s", "lateTolerance: 9 s")
    running.until("taken up after this micro-batch")
    running.edit("lateTolerance: 9 s", "lateTolerance: 2 s")
    running.until("taken up after this micro-batch")

    running.edit("path: " + str(source.parent / "out"), "path: /tmp/elsewhere")
    running.until("sink: got ('parquet', '/tmp/elsewhere'), cannot change while it runs")
    running.edit("path: /tmp/elsewhere", "path: " + str(source.parent / "out"))

    running.edit(f"path: {source}}}", f"path: {source}, options: {{maxFilesPerTrigger: -1}}}}")
    running.until("not taken up, going on as before: maxFilesPerTrigger: got -1")
    running.edit(", options: {maxFilesPerTrigger: -1}", "")

    add(source, 1, [7, None], [None, None])  # the old pipeline is still the one that runs
    running.wait_for(lambda: running.rows("error") == [11])
    assert running.rows("data") == [0, 1]

    running.edit("column: t", "column: u")
    running.until("taken up after this micro-batch")
    record = source.parent / "out" / "_tidegate" / "pipeline.json"
    running.wait_for(lambda: json.loads(record.read_text())["roles"]["time"] == "u")
    add(source, 2, [None, None], [8, 20])  # the new one reads its times, and has the old one's rows
    running.wait_for(lambda: running.rows("data") == [0, 1, 10, 20])
    assert running.rows("error") == [11]

    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(100) == 130
    assert "Traceback" not in running.said


@pytest.mark.parametrize("options", ["mode: streaming", "mode: batch"])
def test_a_run_that_ends_has_nothing_to_watch(tmp_path: Path, options: str) -> None:
    (tmp_path / "in").mkdir()
    add(tmp_path / "in", 0, [1], [1])
    file = tmp_path / "pipeline.yaml"
    text = PIPELINE.format(root=tmp_path)
    file.write_text(text.replace("mode: streaming\n  trigger: 300 ms", options))
    done = subprocess.run(
        [sys.executable, "-m", "tidegate", "run", str(file), "--watch"],
        capture_output=True, text=True, env=ENVIRONMENT, timeout=100,
    )  # fmt: skip
    assert done.returncode == 2
    assert "watch: got" in done.stderr
    assert "needs a stream that goes on" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()
