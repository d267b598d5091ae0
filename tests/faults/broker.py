"""Kill the broker that a run reads from and writes to, start it again, compare with peace.

One stream goes from Kafka to Kafka, one from Kafka to Parquet. A SIGKILL strikes at a random time
after a random touch of an output; the broker comes back on the same logs a random time later. The
run should go on by itself; if it stops, which is allowed, the next one must go on from there.
"""

from __future__ import annotations

import base64
import json
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from faults import outputs, recording
from faults.kills import PATIENCE, Attempt, Result, Stream, Target, attempt
from kafka_broker import Broker

TOPIC = "faults-in"
PARTITIONS = 3
ROWS_PER_BATCH = 300
LONGEST_AWAY_S = 4.0
"""Far below the minute that Spark's and our own clients wait for a broker."""

SOURCE = """
    source:
      format: kafka
      options: {{kafka.bootstrap.servers: "{servers}", subscribe: {topic},
                 startingOffsets: earliest, maxOffsetsPerTrigger: {rows}}}
      schema: {schema}
    key: vehicle
    topic: topic
    arrival: [kafka_timestamp_ns, kafka_partition, kafka_offset]
"""
SCHEMA = (
    "vehicle string, topic string, stamp string, log_time long, seq long, value double, "
    "payload string"
)


def fill(servers: str) -> int:
    """Send the recording, each vehicle to one partition; how many messages those are."""
    import confluent_kafka as ck
    from confluent_kafka.admin import AdminClient, NewTopic

    made = AdminClient({"bootstrap.servers": servers})
    made.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(60)
    producer = ck.Producer({"bootstrap.servers": servers, "linger.ms": 50})
    rows = [row for part in recording.slices() for row in part.to_pylist()]
    for row in rows:
        came_in, vehicle = row["log_time"] // 10**6, row["vehicle"]
        row["payload"] = base64.b64encode(row["payload"]).decode()
        place = int(vehicle.rpartition("-")[2]) % PARTITIONS
        producer.produce(TOPIC, json.dumps(row), vehicle, partition=place, timestamp=came_in)
    assert producer.flush(60) == 0, "the broker does not take the recording"
    return len(rows)


def targets(servers: str, folder: Path) -> list[Target]:
    """Kafka to Kafka and Kafka to Parquet."""
    source = SOURCE.format(servers=servers, topic=TOPIC, rows=ROWS_PER_BATCH, schema=SCHEMA)

    def text(sink: str, name: str) -> str:
        options = f'{{bootstrap.servers: "{servers}", topic: {name}-out, key: vehicle}}'
        out = folder / f"from-kafka-{sink}" / name
        return recording.pipeline(source, out, sink, options if sink == "kafka" else "")

    return [
        Target(
            "kafka",
            lambda name: text("kafka", name),
            lambda name: outputs.read_kafka(servers, f"{name}-out"),
        ),
        Target(
            "parquet",
            lambda name: text("parquet", name),
            lambda name: outputs.read_parquet(folder / "from-kafka-parquet" / name),
        ),
    ]


def kill_broker(
    broker: Broker, folder: Path, kills: int, seed: int, step: Callable[[int], None]
) -> list[Result]:
    """SIGKILL the broker so many times while streams read from it and write to it."""
    dice = random.Random(seed)
    began = time.monotonic()
    sent = fill(broker.servers)
    both = targets(broker.servers, folder)
    results = {t.label: Result(f"kafka to {t.label}: broker killed") for t in both}
    done = rounds = 0
    stopped: list[str] = []
    try:
        peace = _run([Stream(target, "calm") for target in both], folder)
        for target in both:
            found = outputs.count(peace[target.label])
            assert found > sent // 2, f"{target.label}: {found} rows of {sent} messages in peace"
        while done < kills:
            streams = left = [Stream(target, f"broken-{seed}-{rounds}") for target in both]
            rounds += 1
            while left:
                with attempt(folder / "attempt", left) as run:
                    while done < kills and run.wait(_later(run, dice)):
                        broker.stop()
                        time.sleep(dice.uniform(0, LONGEST_AWAY_S))
                        broker.start()
                        done += 1
                        step(1)
                    run.wait()
                    if run.process.returncode != 0:
                        stopped.append(run.why())
                    if len(stopped) > PATIENCE:
                        run.check()
                    left = run.left()
            for stream in streams:
                rows = stream.target.read(stream.name)
                result = results[stream.target.label]
                result.rows += outputs.count(rows)
                differences = outputs.differences(rows, peace[stream.target.label])
                result.wrong += [f"{stream.name}: {each}" for each in differences]
    except AssertionError as error:
        next(iter(results.values())).wrong.append(str(error))
    for result in results.values():
        result.did = (
            f"{done} SIGKILLs of the broker in {rounds} runs, {len(stopped)} runs stopped"
            f"{f' ({stopped})' if stopped else ''}"
        )
        result.seconds = time.monotonic() - began
    return list(results.values())


def _run(streams: Sequence[Stream], folder: Path) -> dict[str, outputs.Rows]:
    with attempt(folder / "attempt", streams) as run:
        run.wait()
        run.check()
    return {stream.target.label: stream.target.read(stream.name) for stream in streams}


def _later(run: Attempt, dice: random.Random) -> Callable[[], bool]:
    """Holds some touches from now."""
    wanted = run.count() + dice.randint(5, 40)
    return lambda: run.count() >= wanted
