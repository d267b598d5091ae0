"""Long runs: memory and state stay flat over simulated days in process, and over many micro-batches
on Spark."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from faults import recording
from faults.kills import LONGEST_S, Stream, attempt, file_target
from faults.processes import memory_by_role, rss
from tidegate.core.flow import Flow
from tidegate.output.commit import CommitLog
from tidegate.pipeline import PipelineDefinition, plan

SLACK_BYTES = 24 * 2**20
"""What an allocator may keep for itself: a leak of a shard per micro-batch is far more."""

VEHICLES = 4
MINUTES_PER_CALL = 30
DAY_S = 86_400
RATES_HZ = {"lidar": 1.0, "camera": 2.0, "imu": 4.0}

DEFINITION = """
streams:
  fleet:
    key: vehicle
    topic: topic
    arrival: log_time
    eventtime: {column: stamp, type: unixtimestamp_ns}
options:
  eventtime: {enabled: true, lateTolerance: 2 s, maxFutureSkew: 1 h, watermarkPer: tuple}
stages:
  - synchronize: {topics: [lidar, camera, imu], queueSize: 10, maxInterval: 500 ms}
"""


def messages(first_s: int, seconds: int, seed: int) -> pa.RecordBatch:
    """What a small fleet sends in this time, with jitter, out of order by up to a second."""
    dice = np.random.default_rng(seed)
    times, names, cars = [], [], []
    for vehicle in range(VEHICLES):
        for topic, rate in RATES_HZ.items():
            count = int(seconds * rate)
            every = (first_s + np.arange(count) / rate) * 1e9 + dice.uniform(0, 1e8, count)
            times.append(every.astype(np.int64))
            names += [topic] * count
            cars += [f"car-{vehicle}"] * count
    stamp = np.concatenate(times)
    arrival = stamp + dice.integers(0, 10**9, len(stamp))
    rows = pa.record_batch(
        {"vehicle": cars, "topic": names, "stamp": stamp, "log_time": arrival, "payload": cars}
    )
    return rows.take(pa.array(np.argsort(arrival, kind="stable")))


def flat(name: str, samples: Sequence[int], slack: int = SLACK_BYTES) -> str:
    """The highest of the last third is no more than that of the second, but for some slack."""
    third = len(samples) // 3
    assert third, f"{name}: {len(samples)} samples are too few"
    before, after = max(samples[third : 2 * third]), max(samples[2 * third :])
    assert after <= 1.05 * before + slack, f"{name} grew from {before:,} to {after:,} bytes"
    return f"{name} {before / 2**10:,.0f} then {after / 2**10:,.0f} KiB"


def in_process(days: int, step: Callable[[], None]) -> tuple[str, int]:
    """Simulated days through one flow, half an hour of messages at a time."""
    definition = PipelineDefinition.from_yaml(DEFINITION)
    made = plan(definition, {"fleet": messages(0, 1, 0).schema})
    flow = Flow(made.flow_stages(), key=made.key, decoder=made.inputs[0].decoder)
    seconds = MINUTES_PER_CALL * 60
    memory, state, rows_in = [], [], 0
    for number in range(days * DAY_S // seconds):
        batch = messages(1_767_225_600 + number * seconds, seconds, number)
        rows_in += batch.num_rows
        flow.process(batch)
        memory.append(rss(os.getpid()))
        state.append(int(flow.metrics()["state_bytes"]))
        step()
    said = [flat("memory", memory), flat("state", state, slack=2**16)]
    return f"{days} days, {rows_in:,} rows: {', '.join(said)}", 0


def on_spark(batches: int, folder: Path, step: Callable[[], None]) -> tuple[str, int]:
    """Many small micro-batches: memory of driver, Java and workers, and the bytes of state.

    Memory is looked at every two seconds, and written to `folder`/memory.csv with the micro-batches
    done by then, so that a run that was stopped tells something too.
    """
    rows_in = recording.record(folder / "recording", files=batches)
    target = file_target("parquet", folder)
    stream = Stream(target, "soak")
    log = CommitLog.at(str(folder / "parquet" / "soak"))
    memory: dict[str, list[int]] = {"driver": [], "Java": [], "workers": []}
    done, next_look = 0, 0.0

    with attempt(folder / "attempt", [stream]) as run, open(folder / "memory.csv", "w") as told:

        def sample() -> bool:
            nonlocal done, next_look
            if time.monotonic() < next_look:
                return False
            next_look = time.monotonic() + 2.0
            totals, since = log.newer()
            committed = len(since) + (0 if totals is None else totals.batches)
            while done < committed:
                done += 1
                step()
            if done:
                held = memory_by_role(run.process.pid)
                for role, samples in memory.items():
                    samples.append(held[role])
                print(done, *held.values(), sep=",", file=told, flush=True)
            return False

        run.wait(sample, longest_s=LONGEST_S + 5 * batches)
        run.check()
    state = [sum(shard["state_bytes"] for shard in one.shards.values()) for one in log]
    assert len(state) == batches, f"{len(state)} records of {batches} micro-batches"
    said = [flat(role, samples[:-1]) for role, samples in memory.items()]
    said.append(flat("state", state, slack=2**16))
    return f"{batches} micro-batches, {rows_in:,} rows: {', '.join(said)}", 0
