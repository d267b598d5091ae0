"""Kill drivers and workers at random points, go on until all streams end, compare with peace.

Starting a driver is what costs, so each runs several streams: one SIGKILL is a kill point for every
stream that has not ended, each somewhere else in its micro-batch. Half of the kills strike when
each stream is before or after a random touch of its output (see `child`), half a random time after
one. Workers are killed while the streams go on.
"""

from __future__ import annotations

import collections
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from faults import outputs, pipelines, recording
from faults.processes import kill, kill_all, workers

LONGEST_S = 900
"""For one attempt: far more than any needs, so that a run that hangs is an error, not a wait."""

PATIENCE = 3
"""Drivers that may stop by themselves, which is allowed (Spark waits only so long for a Python
process it starts) as long as the next one goes on from there. They are counted."""


@dataclass(frozen=True)
class Target:
    """A sink or a pipeline to be disturbed: its definition for an output of this name, and how to
    read that. `label` is that of the sink or of the pipeline."""

    label: str
    pipeline: Callable[[str], str]
    read: Callable[[str], outputs.Rows]


@dataclass
class Result:
    """What a scenario did, and what was wrong; nothing, if all was well."""

    name: str
    did: str = ""
    rows: int = 0
    wrong: list[str] = field(default_factory=list)
    skipped: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Stream:
    """One output of a target."""

    target: Target
    name: str

    @property
    def file(self) -> str:
        return f"{self.target.label}-{self.name}"


@dataclass
class Attempt:
    """One driver and the streams it runs."""

    process: subprocess.Popen[bytes]
    folder: Path
    streams: Sequence[Stream]

    def touches(self, stream: Stream) -> list[str]:
        file = self.folder / f"{stream.file}.touches"
        return file.read_text().splitlines() if file.exists() else []

    def begun(self, stream: Stream) -> bool:
        return (self.folder / f"{stream.file}.begun").exists()

    def count(self) -> int:
        """Touches of all streams."""
        return sum(t.startswith(">") for s in self.streams for t in self.touches(s))

    def left(self) -> list[Stream]:
        """Streams that have not ended."""
        return [s for s in self.streams if not (self.folder / f"{s.file}.ended").exists()]

    def wait(self, until: Callable[[], bool] = lambda: False, longest_s: float = LONGEST_S) -> bool:
        """Until something holds, or the driver has ended; whether it still runs."""
        deadline = time.monotonic() + longest_s
        while self.process.poll() is None and not until():
            if time.monotonic() > deadline:
                raise AssertionError(f"a driver did not get on within {longest_s} s")
            time.sleep(0.02)
        return self.process.poll() is None

    def kill(self) -> None:
        kill_all(self.process.pid)
        self.process.wait(timeout=60)

    def why(self) -> str:
        """What a driver that stopped by itself said last of it."""
        lines = (self.folder / "run.log").read_text(errors="replace").splitlines()
        said = [line for line in lines if "Error" in line or "Exception" in line]
        return (said or lines or ["it said nothing"])[-1].strip()[:160]

    def check(self) -> None:
        if self.process.returncode != 0:
            log = (self.folder / "run.log").read_text(errors="replace").strip()
            raise AssertionError(f"a driver ended with {self.process.returncode}: {log[-600:]}")


@contextmanager
def attempt(folder: Path, streams: Sequence[Stream], *fault: str) -> Iterator[Attempt]:
    """Start a driver; whatever happens here, nothing of it is left behind."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for stream in streams:
        (folder / f"{stream.file}.yaml").write_text(stream.target.pipeline(stream.name))
    here = str(Path(__file__).parents[1])
    path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    environment = {**os.environ, "PYTHONPATH": path, "JDK_JAVA_OPTIONS": quick}
    command = [sys.executable, "-m", "faults.child", str(folder), *fault]
    with open(folder / "run.log", "ab") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=environment, start_new_session=True
        )
    started = Attempt(process, folder, streams)
    try:
        yield started
    finally:
        if process.poll() is None:
            started.kill()


@dataclass
class Peace:
    """The undisturbed runs, one per sink: what must come out, and how many touches a batch has."""

    rows: dict[str, outputs.Rows]
    per_batch: float

    @classmethod
    def of(cls, targets: Sequence[Target], folder: Path) -> Peace:
        streams = [Stream(target, "peace") for target in targets]
        with attempt(folder / "attempt", streams) as run:
            run.wait()
            run.check()
        rows = {target.label: target.read("peace") for target in targets}
        return cls(rows, run.count() / recording.FILES / len(streams))


class Campaign:
    """Kills over all targets at once, and what they came to per sink."""

    def __init__(
        self,
        targets: Sequence[Target],
        peace: Peace,
        folder: Path,
        seed: int,
        streams: int,
        minutes: float,
    ) -> None:
        self.targets, self.peace, self.folder = targets, peace, folder
        self.dice = random.Random(seed)
        self.streams = streams
        self.starts = self.failed = 0
        self.deadline = time.monotonic() + 60 * minutes

    def kill_drivers(self, kills: int, step: Callable[[int], None]) -> list[Result]:
        """SIGKILL Python, Java and workers until every sink has had `kills` kill points."""
        results = {t.label: Result(f"{t.label}: driver killed") for t in self.targets}
        points = {t.label: collections.Counter[str]() for t in self.targets}
        began = time.monotonic()
        signals = rounds = 0
        try:
            while not rounds or self._more(points, kills):
                streams = self._streams(f"driver-{rounds}")
                rounds += 1
                left = streams
                while left:
                    lowest = min(found.total() for found in points.values())
                    with self._attempt(left, fault=self._more(points, kills)) as run:
                        killed = run.process.returncode < 0
                        left = run.left()
                        if killed:
                            signals += 1
                            for stream in filter(run.begun, left):
                                points[stream.target.label][_point(run.touches(stream))] += 1
                            now = min(found.total() for found in points.values())
                            step(min(now, kills) - min(lowest, kills))
                self._compare(streams, results)
        except AssertionError as error:
            next(iter(results.values())).wrong.append(str(error))
        for sink, result in results.items():
            inside = points[sink].total() - points[sink]["between batches"]
            result.did = (
                f"{points[sink].total()} kill points ({inside} while a batch was written, at "
                f"{len(points[sink])} kinds of points) by {signals} SIGKILLs, {self.starts} "
                f"starts, {self.failed} stopped by themselves, {rounds * self.streams} outputs"
            )
            result.seconds = time.monotonic() - began
        return list(results.values())

    def kill_workers(self, kills: int, step: Callable[[int], None]) -> list[Result]:
        """SIGKILL random workers; tasks are tried again, and the streams go on."""
        results = {t.label: Result(f"{t.label}: worker killed") for t in self.targets}
        began = time.monotonic()
        done = rounds = 0
        stopped: list[str] = []
        try:
            while done < kills:
                streams = left = self._streams(f"worker-{rounds}")
                rounds += 1
                while left:
                    with attempt(self.folder / "attempt", left) as run:
                        while done < kills and run.wait(self._after(run, run.count() + 10)):
                            alive = workers(run.process.pid)
                            if alive and kill(self.dice.choice(alive)):
                                done += 1
                                step(1)
                        run.wait()
                        if run.process.returncode != 0:
                            stopped.append(run.why())
                        if len(stopped) > kills:
                            run.check()
                        left = run.left()
                self._compare(streams, results)
        except AssertionError as error:
            next(iter(results.values())).wrong.append(str(error))
        for result in results.values():
            restarts = f"{len(stopped)} restarts{f' ({stopped})' if stopped else ''}"
            result.did = f"{done} kills among all streams, {restarts}, {rounds} rounds"
            result.seconds = time.monotonic() - began
        return list(results.values())

    def _more(self, points: dict[str, collections.Counter[str]], kills: int) -> bool:
        """Whether there are kills to come, and time for them."""
        late = time.monotonic() > self.deadline
        return not late and min(found.total() for found in points.values()) < kills

    def _streams(self, name: str) -> list[Stream]:
        return [Stream(t, f"{name}-{n}") for t in self.targets for n in range(self.streams)]

    @contextmanager
    def _attempt(self, streams: Sequence[Stream], *, fault: bool) -> Iterator[Attempt]:
        """A driver that has ended: by itself, or by a kill within about a batch of each stream."""
        self.starts += 1
        most = max(2, round(1.5 * self.peace.per_batch))
        nth = self.dice.randint(1, most * len(streams))
        exact = self.dice.random() < 0.5
        told = [str(self.dice.randrange(10**9)), str(most)] if fault and exact else []
        with attempt(self.folder / "attempt", streams, *told) as run:
            if fault and not exact and run.wait(self._after(run, nth)):
                run.kill()
            else:
                run.wait()
            if run.process.returncode > 0:
                self.failed += 1
                if self.failed > PATIENCE:
                    run.check()
            yield run

    def _after(self, run: Attempt, touches: int) -> Callable[[], bool]:
        """Holds at a random time after so many touches."""
        pause = self.dice.uniform(0, 1.5)
        since: list[float] = []

        def reached() -> bool:
            if not since and run.count() >= touches:
                since.append(time.monotonic())
            return bool(since) and time.monotonic() - since[0] >= pause

        return reached

    def _compare(self, streams: Sequence[Stream], results: dict[str, Result]) -> None:
        for stream in streams:
            found = stream.target.read(stream.name)
            result = results[stream.target.label]
            result.rows += outputs.count(found)
            wanted = self.peace.rows[stream.target.label]
            result.wrong += [f"{stream.name}: {d}" for d in outputs.differences(found, wanted)]


def _point(touches: list[str]) -> str:
    """Where a stream was when it died, from its last touch."""
    if not touches or touches[-1] == "< batch":
        return "between batches"
    return touches[-1].replace("> ", "in ").replace("< ", "after ")


READERS = {
    "parquet": outputs.read_parquet,
    "delta": outputs.read_delta,
    "mcap": outputs.read_mcap,
}


def file_target(sink: str, folder: Path) -> Target:
    """A sink that writes files below `folder`."""
    read = READERS[sink]
    source = recording.from_folder(folder / "recording")
    return Target(
        sink,
        lambda name: recording.pipeline(source, folder / sink / name, sink),
        lambda name: read(folder / sink / name),
    )


def pipeline_target(name: str, folder: Path) -> Target:
    """One of `faults.pipelines`, to Parquet; its input must have been written to `folder`."""
    made = pipelines.PIPELINES[name]
    place = name.replace(" ", "-")
    return Target(
        place,
        lambda output: made.text(folder, folder / place / output),
        lambda output: made.read(folder / place / output),
    )


def kafka_target(servers: str, folder: Path) -> Target:
    """Topics of a broker, one set per output."""

    def text(name: str) -> str:
        options = f'{{bootstrap.servers: "{servers}", topic: {name}, key: vehicle}}'
        out = folder / "kafka" / name
        source = recording.from_folder(folder / "recording")
        return recording.pipeline(source, out, "kafka", options)

    return Target("kafka", text, lambda name: outputs.read_kafka(servers, name))
