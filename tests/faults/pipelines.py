"""The pipelines that are killed: one per kind of state that has to survive it, all to Parquet.

Each reads a folder of Parquet files, one micro-batch per file. The result of each depends on its
input alone, so that a killed run must give the rows of the undisturbed one, in their order; the one
exception is said where it is made.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from faults import outputs, recording
from tidegate.deltas import Add, Create, Operation, Scale, Sparse, VectorDelta
from tidegate.deltas.operations import rows_from
from tidegate.output.audit import audit_run
from tidegate.output.commit import Commit, CommitLog

DIMS = 4
DELTAS_PER_FILE = 150

TEXT = """
name: {name}
streams:
  in:
    source: {{path: {source}, options: {{maxFilesPerTrigger: 1}}}}
    key: vehicle{topic}
    arrival: log_time
    eventtime: {{column: stamp, type: unixtimestamp_ns}}
options:
  mode: streaming
  trigger: available_now
  shards: 2{options}
  eventtime: {{enabled: true, lateTolerance: {tolerance}, maxFutureSkew: 1 h, watermarkPer: tuple}}
stages:
{stages}
sink: {{path: {out}}}
"""


def record_fleet(folder: Path) -> None:
    recording.record(folder)


def record_deltas(folder: Path) -> None:
    """Deltas of twelve vectors a millisecond apart, up to 5 ms out of order."""
    dice = np.random.default_rng(4)
    made = []
    for n in range(DELTAS_PER_FILE * recording.FILES):
        operation: Operation = Create(dice.integers(-9, 9, DIMS).astype(float))
        if n > 20 and dice.integers(4):
            changes = Scale(0.5), Add([1.0, 2.0], [0, 3]), Sparse([n % DIMS], [float(n)])
            operation = changes[n % 3]
        vector = f"v{int(dice.integers(12))}"
        made.append(VectorDelta(f"d{n}", vector, operation, 10**18 + n * 1_000_000))
    rows = pa.Table.from_batches([rows_from(made)]).rename_columns({"time_ns": "stamp"})
    rows = rows.take(pa.array(np.argsort(np.arange(len(rows)) + dice.integers(0, 6, len(rows)))))
    vehicles = [f"shard-{int(name[1:]) % 3}" for name in rows.column("vector_id").to_pylist()]
    rows = rows.append_column("vehicle", pa.array(vehicles))
    rows = rows.append_column("log_time", pa.array(np.arange(len(rows))))
    for number in range(recording.FILES):
        part = rows.slice(number * DELTAS_PER_FILE, DELTAS_PER_FILE)
        recording.write_file(part, folder / f"{number:03d}.parquet", number)


@dataclass(frozen=True)
class Pipeline:
    """A pipeline, what it reads and how its output is compared.

    Args:
        stages: In YAML, a list item per line.
        record: Writes its input into a folder.
        read: Reads its output.
        tolerance: How late a row may be.
        options: Further lines of `options`.
        topic: Whether rows have one.
    """

    stages: str
    record: Callable[[Path], None] = record_fleet
    read: Callable[[Path], outputs.Rows] = outputs.read_parquet
    tolerance: str = "200 ms"
    options: str = ""
    topic: bool = True

    def source(self, folder: Path) -> Path:
        """The folder of its input; pipelines that read the same share it."""
        return folder / self.record.__name__

    def text(self, folder: Path, out: Path) -> str:
        """Its definition, for one output."""
        return TEXT.format(
            name=out.parent.name, source=self.source(folder), out=out, tolerance=self.tolerance,
            topic="\n    topic: topic" if self.topic else "",
            options=f"\n  {self.options}" if self.options else "", stages=self.stages,
        )  # fmt: skip


def read_balance(out: Path) -> outputs.Rows:
    """What does not depend on the wall clock. A timer that fires in a pause, and a kill is one,
    closes a batch earlier, so more rows may be out: but each once, and all add up to the input."""
    read = outputs.read_parquet(out)
    of_input = {kind: rows for kind, rows in read.items() if kind in outputs.KINDS}
    seen: collections.Counter[tuple[str, str, int]] = collections.Counter()
    for rows in of_input.values():
        for row in (json.loads(text) for texts in rows.values() for text in texts):
            seen[row["vehicle"], row["topic"], row["seq"]] += 1
    twice = sorted(row for row, times in seen.items() if times > 1)
    assert not twice, f"{out.name}: {len(twice)} rows came out twice: {twice[:3]}"
    audit = audit_run(str(out))
    assert audit.passed, f"{out.name}: {audit.lines()}"
    whole = Commit.total(list(CommitLog.at(str(out))))
    total = sum(shard["rows_in"] for shard in whole.shards.values())
    return {"in": {"all": ["row"] * total}}


PIPELINES = {
    "sets": Pipeline(
        "  - synchronize: {topics: [lidar, camera, gps, imu], queueSize: 10, maxInterval: 50 ms}"
    ),
    "retractions": Pipeline(
        "  - window: {tumbling: 500 ms, aggregates: {n: count, mean: [mean, value]},\n"
        "             late: {reemit: {maxLateness: 3 s, retract: true}}}"
    ),
    "batches": Pipeline("  - batch: {length: 1 s, gated: [imu, camera]}"),
    "batches with timers": Pipeline(
        "  - batch: {length: 1 s, gated: [imu, camera], idleClose: 2 s}", read=read_balance
    ),
    # An adaptive window is emitted after `max` by the clock, too, and a kill is a break.
    "deltas": Pipeline(
        "  - window: {adaptive: {min: 10 ms, max: 1 h, target: 20}}\n"
        f"  - compact: {{dims: {DIMS}, strategy: {{tieredMerge: {{keepRecent: 3}}}},\n"
        "              deltaThreshold: 9, timeThreshold: null, timeColumn: stamp}",
        record=record_deltas, tolerance="20 ms", topic=False,
    ),
    "addressed payloads": Pipeline(
        "  - window: {tumbling: 500 ms}", options="payload: addressed"
    ),
}  # fmt: skip
"""By name. `addressed payloads` leaves the payload in its file until rows leave."""


def record(folder: Path) -> None:
    """Write what all of them read."""
    for source, write in {p.source(folder): p.record for p in PIPELINES.values()}.items():
        write(source)
