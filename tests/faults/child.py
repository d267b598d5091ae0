"""A driver that runs several streams, and dies when each is at a touch of its output.

    python -m faults.child FOLDER [SEED MOST]

Without SEED it does not die by itself. With it, every stream gets a touch of its own among its next
MOST ones, and waits there, before or after it; when all that have not ended are there, Python, Java
and workers get a SIGKILL. So each stream dies in another place, and seldom where it only waits for
Spark, which is where most of the time goes.

FOLDER holds a pipeline file per stream. A touch is a call by which a sink changes what is outside:
a folder made or removed, a file moved or opened, a transaction of Delta or Kafka, and the writing
of a batch as a whole. FOLDER gets `STREAM.touches` with a line when each begins (`>`) and is over
(`<`), and `STREAM.ended` when a stream has come to its end. All wait with their first batch until
all are there, so that a kill finds them all at work.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.processes import kill_all

SHORT = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.streaming.pollingDelay": "20ms",
    "spark.driver.memory": "1g",
}
"""A run here lives for seconds: compiling its plans would take longer than they run."""

FILESYSTEM = ("create_dir", "move", "open_output_stream", "delete_dir", "delete_file")


class Gate:
    """Where streams wait for each other: with their first batch, and for their end.

    Args:
        streams: Their names.
    """

    def __init__(self, streams: Iterable[str]) -> None:
        self.all_there = threading.Event()
        self._alive = set(streams)
        self._lock = threading.Lock()

    def leave(self, stream: str) -> None:
        """A stream has come to its point, or its end. All have: SIGKILL Python, Java, workers."""
        with self._lock:
            self._alive.discard(stream)
            if not self._alive:
                kill_all(os.getpid())


@dataclass
class Fault:
    """Holds a stream at one of its touches, for good, and tells the gate. At -1: never."""

    gate: Gate
    stream: str
    at: int = -1
    when: str = ""

    @classmethod
    def drawn(cls, gate: Gate, stream: str, seed: str, most: str) -> Fault:
        """At a touch that this seed and the name of the stream choose among the next `most`."""
        dice = random.Random(f"{seed} {stream}")
        return cls(gate, stream, dice.randint(1, int(most)), dice.choice(("before", "after")))

    def __post_init__(self) -> None:
        self.numbers = itertools.count(1)

    def strike(self, number: int, when: str) -> None:
        if number == self.at and when == self.when:
            self.gate.leave(self.stream)
            threading.Event().wait()


@dataclass
class Touches:
    """The touches of one stream."""

    log: Path
    fault: Fault

    def __post_init__(self) -> None:
        self.waiting = threading.Event()

    def around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def touched(*arguments: Any, **named: Any) -> Any:
            # what a sink does when it is opened keeps others from starting: nothing is held there
            number = next(self.fault.numbers) if self.fault.gate.all_there.is_set() else 0
            self._write(f"> {name}")
            self.fault.strike(number, "before")
            result = call(*arguments, **named)
            self._write(f"< {name}")
            self.fault.strike(number, "after")
            return result

        return touched

    def _write(self, line: str) -> None:
        with open(self.log, "a") as log:
            log.write(f"{line}\n")


class Watched:
    """A file system whose changes are touches."""

    def __init__(self, fs: Any, touches: Touches) -> None:
        self._fs, self._touches = fs, touches

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._fs, name)
        if name not in FILESYSTEM:
            return found

        def named(path: str, *more: Any) -> Any:
            whole = " ".join([path, *(m for m in more if isinstance(m, str))])
            what = next((p for p in ("_commits", "_staging") if p in whole), "table")
            return self._touches.around(f"{name} {what}", found)(path, *more)

        return named


class WatchedLog:
    """A log of commits of which every record written is a touch."""

    def __init__(self, log: Any, touches: Touches) -> None:
        self._log = log
        self.write = touches.around("write _commits", log.write)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def __iter__(self) -> Any:
        return iter(self._log)


def watch(touches: Touches, sink: Any, form: str) -> Any:
    """Put a touch around everything by which this sink changes the world."""
    if form == "kafka":
        plain = sink._call
        sink._call = lambda method, *rest: touches.around(method, plain)(method, *rest)
        sink._send = touches.around("send", sink._send)
    else:
        sink.fs = Watched(sink.fs, touches)
        sink.commits = WatchedLog(sink.commits, touches)
    if form == "delta":
        sink._publish = touches.around("delta transactions", sink._publish)
    write = touches.around("batch", sink.write)

    def write_when_all_are_there(*arguments: Any) -> Any:
        touches.waiting.set()
        touches.fault.gate.all_there.wait()
        return write(*arguments)

    sink.write = write_when_all_are_there
    return sink


def main() -> None:
    import tidegate.spark.query as run
    from tidegate.pipeline import PipelineDefinition
    from tidegate.spark import session
    from tidegate.spark.open import open_pipeline, session_settings
    from tidegate.spark.sinks import SinkSettings, open_sink

    folder, drawn = Path(sys.argv[1]), sys.argv[2:]
    definitions = {file: PipelineDefinition.load(file) for file in sorted(folder.glob("*.yaml"))}
    settings = dict(SHORT)
    for definition in definitions.values():
        settings |= session_settings(definition)
    spark = session("local[2,4]", settings=settings, log=folder / "spark.log")
    started = {}
    gate = Gate(file.stem for file in definitions)
    for file, definition in definitions.items():
        fault = Fault.drawn(gate, file.stem, *drawn) if drawn else Fault(gate, file.stem)
        touches = Touches(file.with_suffix(".touches"), fault)
        assert definition.sink is not None
        assert definition.sink.path is not None
        wanted = SinkSettings.of(definition.sink, definition.streams)

        def opened(*arguments: Any, touches: Touches = touches) -> Any:
            return watch(touches, open_sink(*arguments), arguments[0].format)

        run.open_sink = opened
        _, frames = open_pipeline(spark, definition, streaming=True)
        file.with_suffix(".begun").touch()
        query = started[file] = run.start(frames, definition.sink.path, settings=wanted)
        # One after the other: Spark waits only so long for a Python process it starts.
        while query.isActive and not touches.waiting.wait(0.02):
            pass
    gate.all_there.set()
    while started:
        for file, query in list(started.items()):
            if not query.isActive:
                query.awaitTermination()  # raises what stopped it
                file.with_suffix(".ended").touch()
                del started[file]
                if drawn and started:
                    gate.leave(file.stem)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
