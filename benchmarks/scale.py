"""What a run costs, as a model: fitted on small runs, checked on runs it was not fitted on.

    python benchmarks/scale.py [--batches 6]

A micro-batch of n rows with b bytes each, of k keys, takes

    work = n * row + n * b * byte + k * key
    CPU  = fixed + work                                  on any number of cores
    wall = fixed + work / (c if c == 1 else c * shared)  on c cores

seconds, each with constants of its own. They come from runs on one core and on two (event time,
Parquet read as columns, noop sink, blobs through Spark as on a cluster); then other sizes, rows and
numbers of keys are run and compared. Beside it, in process: CPU time per row of the source and of
the step, bytes of a row on its way, and state per key. `docs/scale.md` says what follows from it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from suite.streams import TOPICS, when
from suite.usage import cpu_seconds

from tidegate.core.columns import TIME
from tidegate.core.flow import Flow
from tidegate.core.operator import Operator
from tidegate.eventtime import Decoder, EventtimeWatermark, TimeColumn
from tidegate.spark.arrival import Origin
from tidegate.spark.columnar.parquet import ParquetColumns
from tidegate.spark.pack import Packer, from_blob, to_blob
from tidegate.spark.shards import labels
from tidegate.sync import Synchronize


class Point(NamedTuple):
    """One run: rows per micro-batch, bytes of payload per row, keys."""

    rows: int
    payload: int
    keys: int


FITTED = (
    Point(10_000, 0, 100),
    Point(200_000, 0, 100),
    Point(800_000, 0, 100),
    Point(100_000, 500, 100),
    Point(200_000, 0, 20_000),
    Point(10_000, 0, 5_000),
)
CHECKED = (
    Point(50_000, 0, 1_000),
    Point(400_000, 0, 100),
    Point(400_000, 100, 1_000),
    Point(40_000, 1_500, 100),
    Point(500_000, 20, 10_000),
)
ROW_BYTES = 29
"""Bytes of a row of the recording beside its payload, in a blob: key, topic, three numbers."""


def write_files(folder: Path, point: Point, files: int) -> None:
    """A recording of one micro-batch per file, 100 ms out of order; payload does not compress."""
    rng = np.random.default_rng(0)
    step = 10**9 // (100 * point.keys)
    for number in range(files):
        place = np.arange(point.rows) + number * point.rows
        stamp = place * step + rng.integers(0, 100_000_000, point.rows)
        columns = {
            "id": place,
            "key": pa.array(rng.integers(0, point.keys, point.rows), pa.int32()),
            "name": pa.array(TOPICS).take(pa.array(rng.integers(0, len(TOPICS), point.rows))),
            "t": stamp,
            "value": rng.random(point.rows),
        }
        if point.payload:
            size = point.payload
            bytes_ = pa.py_buffer(rng.bytes(size * point.rows))
            fixed = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(size), point.rows, [None, bytes_]
            )
            columns["payload"] = fixed.cast(pa.binary())
        pq.write_table(pa.table(columns), folder / f"{number:05d}.parquet", compression="none")


class Took(NamedTuple):
    """Seconds of a micro-batch: by the clock, and of CPU in all processes."""

    wall: float
    cpu: float


def measured(spark: Any, point: Point, batches: int) -> Took:
    """What a micro-batch takes: the median by the clock, the mean of CPU, without the first two."""
    from tidegate.spark import blob_files, frames, read

    blob_files.LEAST_BYTES = 2**62  # as on a cluster: blobs go through Spark
    with tempfile.TemporaryDirectory() as name:
        folder, checkpoint = Path(name) / "recording", Path(name) / "checkpoint"
        folder.mkdir()
        write_files(folder, point, batches)
        opened = read(str(folder), streaming=True, options={"maxFilesPerTrigger": "1"}, spark=spark)
        made = frames(opened, key="key", time="t", topic="name", arrival="id", payload="carried")
        made = made.event_time("unixtimestamp_ns", "200 ms")
        made = replace(made, log=f"{checkpoint}-pieces", recorded=True)
        writer = made.outcomes.writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        spent = {-1: cpu_seconds()}
        while query.isActive:
            last = query.lastProgress
            if last is not None and last["batchId"] not in spent:
                spent[last["batchId"]] = cpu_seconds()
            time.sleep(0.02)
        done = [dict(part) for part in query.recentProgress if part["numInputRows"]]
        clock = statistics.median(p["durationMs"]["triggerExecution"] for p in done[2:]) / 1000
        first, last_seen = min(n for n in spent if n > 0), max(spent)
        return Took(clock, (spent[last_seen] - spent[first]) / (last_seen - first))


def measure_on(cores: int, batches: int) -> None:
    """Run every point in a session with this many cores; prints one JSON line each."""
    from tidegate.spark import session

    spark = session(master=f"local[{cores}]", settings={"spark.sql.shuffle.partitions": str(cores)})
    for warm in (Point(300_000, 0, 100), Point(20_000, 200, 1_000)):
        measured(spark, warm, 6)
    for point in (*FITTED, *CHECKED):
        print(json.dumps([cores, *point, *measured(spark, point, batches)]), flush=True)


# -- the model ------------------------------------------------------------------------------------


class Model(NamedTuple):
    """The constants, in seconds; `shared`: what a second core is worth beside the first."""

    fixed: float
    row: float
    byte: float
    key: float
    shared: float

    def seconds(self, cores: int, point: Point) -> float:
        """Wall time of a micro-batch."""
        work = point.rows * (self.row + (ROW_BYTES + point.payload) * self.byte)
        work += point.keys * self.key
        return self.fixed + work / (cores * (self.shared if cores > 1 else 1.0))


def fit(runs: list[tuple[int, Point, float]], *, wall: bool) -> Model:
    """The model with the least relative errors; no constant is negative. CPU time does not become
    less with a second core: there, two cores are worth one."""
    best: Model | None = None
    least = np.inf
    for shared in np.linspace(0.5, 1.0, 51) if wall else np.array([0.5]):
        speed = [cores * (shared if cores > 1 else 1.0) for cores, _, _ in runs]
        rows = np.array(
            [
                [1, p.rows / s, p.rows * (ROW_BYTES + p.payload) / s, p.keys / s]
                for (_, p, _), s in zip(runs, speed, strict=True)
            ]
        )
        took = np.array([seconds for _, _, seconds in runs])
        weighted = rows / took[:, None]
        found = _not_negative(weighted, np.ones(len(took)))
        error = float(np.sum((weighted @ found - 1) ** 2))
        if error < least:
            best, least = Model(*found, float(shared)), error
    assert best is not None
    return best


def _not_negative(rows: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Least squares without negative constants: the worst one is left out until none is."""
    used = list(range(rows.shape[1]))
    while True:
        found = np.linalg.lstsq(rows[:, used], wanted, rcond=None)[0]
        if (found >= 0).all():
            out = np.zeros(rows.shape[1])
            out[used] = found
            return out
        del used[int(np.argmin(found * np.abs(rows[:, used]).sum(axis=0)))]


# -- in process -----------------------------------------------------------------------------------


def stages() -> dict[str, float]:
    """CPU seconds per million rows of the source and the step, and bytes per row between them."""
    point = Point(500_000, 0, 100)
    with tempfile.TemporaryDirectory() as name:
        write_files(Path(name), point, 1)
        path = f"{name}/00000.parquet"
        schema = pq.read_schema(path).remove_metadata()
        of = ParquetColumns(name, schema)
        decoder = Decoder((TimeColumn("t", "unixtimestamp_ns"),))
        packer = Packer(decoder, labels(2, 2), (schema.field("key"),))

        def source() -> list[pa.RecordBatch]:
            read = of.read(path, 0, 1, schema.names)
            return [packer.blobs(rows, Origin(), 0, 0) for rows, _ in read]

        cpu_source, packed = _least_cpu(source)
        blobs = [blob.as_buffer() for batch in packed for blob in batch.column("blob")]

        def step() -> list[Any]:
            stage = EventtimeWatermark("200 ms", watermark_per="tuple")
            flow = Flow((stage,), key="key", decoder=decoder)
            return [
                to_blob(outcome.table())
                for blob in blobs
                for outcome in flow.process(from_blob(blob).drop_columns([TIME]))
                if len(outcome) and outcome.kind == "data"
            ]

        cpu_step, out = _least_cpu(step)
    millions = point.rows / 1e6
    return {
        "source: read, split, pack (CPU s per million rows)": cpu_source / millions,
        "step: unpack, event time, pack (CPU s per million rows)": cpu_step / millions,
        "bytes of a row on its way to the step": sum(len(b) for b in blobs) / point.rows,
        "bytes of a row on its way out": sum(len(b.as_buffer()) for b in out) / point.rows,
    }


def _least_cpu(run: Any, rounds: int = 4) -> tuple[float, Any]:
    least, made = np.inf, run()
    for _ in range(rounds):
        began = time.process_time()
        made = run()
        least = min(least, time.process_time() - began)
    return least, made


def state_per_key(keys: int = 20_000, per_key: int = 20) -> dict[str, float]:
    """Bytes of state per key of event time alone and with sets, and bytes per row that is held."""
    rng = np.random.default_rng(0)
    rows = keys * per_key
    stamp = np.sort(rng.integers(0, per_key * 10_000_000, rows))
    batch = pa.record_batch(
        {
            "key": pa.array(rng.integers(0, keys, rows), pa.int32()),
            "name": pa.array(TOPICS).take(pa.array(rng.integers(0, len(TOPICS), rows))),
            "t": stamp,
        }
    )
    found = {}
    decoder = Decoder((TimeColumn("t", "unixtimestamp_ns"),))
    stage = EventtimeWatermark("20 ms", watermark_per="tuple")
    chains: dict[str, tuple[Operator, ...]] = {
        "event time": (stage,),
        "event time and sets": (stage, _sets()),
    }
    for name, chain in chains.items():
        flow = Flow(chain, key="key", decoder=decoder)
        for _ in flow.process(batch):
            pass
        found[name] = sum(len(page) for page in flow.pages().values()) / keys
    return found


def _sets() -> Synchronize:
    return Synchronize(tuple(TOPICS), topic="name", keys=("key",), queue_size=4)


# -- what follows ---------------------------------------------------------------------------------

HALF_IDLE = 0.5
"""How busy a core of a cluster may be: the rest is for stragglers and for catching up."""

NODE_BYTES = 2.5e9
"""Bytes a second that a machine reads or writes: a network of 25 Gbit/s, four fifths of it used."""


def questions(model: Model, state: dict[str, float]) -> dict[str, str]:
    """What larger runs take by the model of CPU time, if a core of a cluster does what one does
    here."""

    def cores(rows_per_s: float, row_bytes: float, keys: float = 0.0, every_s: float = 10.0) -> int:
        work = rows_per_s * (model.row + row_bytes * model.byte) + keys * model.key / every_s
        return int(np.ceil(work / HALF_IDLE))

    fleet = 10_000 * 20e6
    decisions = 10_000 * 500.0
    petabyte = 1e15
    return {
        "1 M rows/s of 100 bytes": f"{cores(1e6, 100)} cores",
        "1 M keys, 1 M rows/s, a micro-batch every 10 s": (
            f"{cores(1e6, 100, 1e6)} cores, {state['event time'] / 1e3:.1f} GB of state, "
            f"{state['event time and sets'] / 1e3:.1f} GB with sets"
        ),
        "10,000 vehicles, 500 messages/s and 20 MB/s each: decisions": f"{cores(decisions, 40)} "
        f"cores, {decisions * 40 / 1e9:.1f} GB/s shuffled; their payload: "
        f"{2 * fleet / NODE_BYTES:.0f} machines to read it once and write it once",
        "1 PB of logs, 200 kB per message: decisions": (
            f"{petabyte / 2e5 * (model.row + 40 * model.byte) / 3600:,.0f} core hours; payload: "
            f"{2 * petabyte / NODE_BYTES / 3600:,.0f} machine hours to read and write it"
        ),
    }


def show(name: str, runs: list[tuple[int, Point, float]], *, wall: bool) -> Model:
    """Fit a model, print it beside all runs, and return it."""
    model = fit([run for run in runs if run[1] in FITTED], wall=wall)
    print(
        f"{name}: fixed {model.fixed * 1e3:.0f} ms per micro-batch, {model.row * 1e9:.0f} ns per "
    )
    print(f"row, {model.byte * 1e9:.2f} ns per byte, {model.key * 1e6:.2f} us per key and batch;")
    print(f"two cores are worth {2 * model.shared:.2f}")
    print("| cores | rows | payload | keys | used to fit | measured s | model s | error |")
    print("|---|---|---|---|---|---|---|---|")
    errors = []
    for cores, point, seconds in runs:
        said = model.seconds(cores, point)
        fitted, error = point in FITTED, said / seconds - 1
        errors += [] if fitted else [abs(error)]
        print(
            f"| {cores} | {point.rows:,} | {point.payload} | {point.keys:,} | "
            f"{'yes' if fitted else 'no'} | {seconds:.2f} | {said:.2f} | {error:+.0%} |"
        )
    print(
        f"on runs it was not fitted on: median error {statistics.median(errors):.0%}, "
        f"largest {max(errors):.0%}"
    )
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("--cores", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.cores:
        measure_on(given.cores, given.batches)
        return
    runs: list[tuple[int, Point, Took]] = []
    print(f"{when()}, {given.batches} micro-batches per run", file=sys.stderr)
    for cores in (1, 2):
        command = [sys.executable, __file__, "--cores", str(cores), "--batches", str(given.batches)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for line in child.stdout:
                print(line.strip(), file=sys.stderr)
                number, rows, payload, keys, *seconds = json.loads(line)
                runs.append((number, Point(rows, payload, keys), Took(*seconds)))
    model = show("CPU", [(cores, point, took.cpu) for cores, point, took in runs], wall=False)
    show("wall", [(cores, point, took.wall) for cores, point, took in runs], wall=True)
    for what, number in stages().items():
        print(f"{what}: {number:.3g}")
    state = state_per_key()
    for what, number in state.items():
        print(f"state per key, {what}: {number:,.0f} bytes")
    for what, answer in questions(model, state).items():
        print(f"{what}: {answer}")


if __name__ == "__main__":
    main()
