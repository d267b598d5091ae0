"""Sets of an MCAP recording with images: by its message indexes, beside the stock reader that only
iterates over the messages.

    python benchmarks/mcap_sets.py [--megabytes 1000] [--rounds 3]

In process, one thread each: the decision (indexes, event time, sets), the decision with the payload
of all sets fetched, and `mcap.reader` going over every message. Medians of rounds in turns, by the
clock and of CPU time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from mcap.reader import make_reader

from tidegate.core.arrow import conform
from tidegate.core.flow import Flow
from tidegate.core.outcomes import Collection
from tidegate.eventtime import EventtimeWatermark
from tidegate.mcap import McapWriter
from tidegate.spark.columnar.mcap import McapColumns
from tidegate.spark.columnar.source import address_of
from tidegate.spark.sources.recording import RecordingSettings
from tidegate.sync import Synchronize

TOPICS = ("/camera", "/lidar", "/imu")
RATES = (30, 10, 200)
SIZES = (200_000, 400_000, 300)
AT_A_TIME = 50
"""Sets whose payload is fetched in one go: some 30 MB, as sinks do it."""


def record(path: Path, megabytes: int) -> int:
    """A camera of 200 kB at 30 Hz, a lidar of 400 kB at 10 Hz and an IMU; how many messages."""
    rng = np.random.default_rng(0)
    seconds = megabytes * 1e6 / sum(rate * size for rate, size in zip(RATES, SIZES, strict=True))
    stamps, topics = [], []
    for number, rate in enumerate(RATES):
        times = (np.arange(int(seconds * rate)) * 1e9 / rate).astype(np.int64)
        stamps.append(times + rng.integers(0, 3_000_000, len(times)))
        topics.append(np.full(len(times), number))
    stamp, topic = np.concatenate(stamps), np.concatenate(topics)
    bodies = [rng.bytes(size) for size in SIZES]
    with McapWriter(str(path), compression="lz4") as writer:
        channels = [writer.channel(name) for name in TOPICS]
        for row in np.argsort(stamp, kind="stable").tolist():
            writer.message(channels[topic[row]], int(stamp[row]), bodies[topic[row]])
    return len(stamp)


def decide(path: str, *, payload: bool) -> int:
    """The sets of a recording; optionally with the payload of every message of a set."""
    from tidegate.spark.columnar import mcap as gate

    gate._OPEN_MCAPS.clear()
    settings = RecordingSettings.of({"path": path})
    of = McapColumns(settings, settings.schema)
    columns = ["topic", "log_time_ns"]
    parts = of.parts(path, columns, ["log_time_ns"], lambda rows: (0, True))
    plain = pa.schema([of.schema.field(name) for name in columns])
    stages = [EventtimeWatermark("5 ms"), Synchronize(TOPICS)]
    flow = Flow(stages, timed=True)
    rows, at = [], []
    for part in parts:
        for batch, positions in of.read(path, part.start, part.stop, columns):
            rows.append(conform(batch, plain))
            at.append(positions)
    table = pa.concat_batches(rows).append_column("at", pa.array(address_of(0, np.concatenate(at))))
    times = table.column("log_time_ns").to_numpy()
    made = flow.accept(Collection.of(table, times)) + flow.end()
    sets = [outcome.rows for outcome in made if outcome.kind == "data"]
    if payload:
        for batch in sets:
            for first in range(0, batch.num_rows, AT_A_TIME):
                for topic in TOPICS:
                    wanted = batch.slice(first, AT_A_TIME).column(topic).field("at").to_numpy()
                    for _ in of.fetch(path, wanted, ["data"]):
                        pass
    return sum(batch.num_rows for batch in sets)


def iterate(path: str) -> int:
    """The stock reader, going over every message."""
    with open(path, "rb") as file:
        return sum(1 for _ in make_reader(file).iter_messages())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "drive.mcap"
        messages = record(path, given.megabytes)
        jobs: dict[str, Callable[[], int]] = {
            "sets, by the indexes": lambda: decide(str(path), payload=False),
            "sets, with their payload": lambda: decide(str(path), payload=True),
            "stock reader, only iterating": lambda: iterate(str(path)),
        }
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
        for number in range(given.rounds + 1):
            for name, job in jobs.items():
                began, spent = time.perf_counter(), time.process_time()
                found = job()
                if number:
                    took = time.perf_counter() - began, time.process_time() - spent
                    times[name].append(took)
                else:
                    print(f"{name}: {found:,}")
        medians = {
            name: [statistics.median(column) for column in zip(*taken, strict=True)]
            for name, taken in times.items()
        }
        stock = medians["stock reader, only iterating"]
        size, load = path.stat().st_size / 1e6, os.getloadavg()[0]
        print(f"{size:,.0f} MB, {messages:,} messages, load {load:.1f}")
        for name, (clock, cpu) in medians.items():
            print(
                f"{name}: {clock:.3f} s, {cpu:.3f} s of CPU; the stock reader takes "
                f"{stock[0] / clock:.1f} and {stock[1] / cpu:.1f} times as long"
            )


if __name__ == "__main__":
    main()
