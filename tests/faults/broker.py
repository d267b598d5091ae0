"""Kill a broker that a run reads from and writes to, start it again, compare with peace.

One stream goes from Kafka to Kafka, one from Kafka to Parquet. A SIGKILL strikes at a random time
after a random touch of an output; the broker comes back on the same logs a random time later. Of
several brokers it strikes the leader of a partition that is read: another one then leads it. The
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
from kafka_broker import Broker, Cluster

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


def fill(servers: str, copies: int) -> int:
    """Send the recording, each vehicle to one partition; how many messages those are."""
    import confluent_kafka as ck
    from confluent_kafka.admin import AdminClient, NewTopic

    made = AdminClient({"bootstrap.servers": servers})
    made.create_topics([NewTopic(TOPIC, PARTITIONS, copies)])[TOPIC].result(60)
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
    cluster: Cluster, folder: Path, kills: int, seed: int, step: Callable[[int], None]
) -> list[Result]:
    """SIGKILL a leader so many times while streams read from it and write to it."""
    dice = random.Random(seed)
    began = time.monotonic()
    sent = fill(cluster.servers, len(cluster.brokers))
    both = targets(cluster.servers, folder)
    which = "broker killed" if len(cluster.brokers) == 1 else "leader killed"
    results = {t.label: Result(f"kafka to {t.label}: {which}") for t in both}
    changes = 0
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
                        partition = dice.randrange(PARTITIONS)
                        broker = cluster.leader(TOPIC, partition)
                        broker.stop()
                        time.sleep(dice.uniform(0, LONGEST_AWAY_S))
                        if len(cluster.brokers) > 1:
                            changes += _other_leader(cluster, partition, broker)
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
            f"{done} SIGKILLs among {len(cluster.brokers)} brokers in {rounds} runs, {changes} "
            f"changes of leader, {len(stopped)} runs stopped{f' ({stopped})' if stopped else ''}"
        )
        result.seconds = time.monotonic() - began
    return list(results.values())


def _other_leader(cluster: Cluster, partition: int, before: Broker) -> bool:
    """Wait until another broker leads a partition; whether one does."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if cluster.leader(TOPIC, partition).node != before.node:
            return True
        time.sleep(0.2)
    return False


def _run(streams: Sequence[Stream], folder: Path) -> dict[str, outputs.Rows]:
    with attempt(folder / "attempt", streams) as run:
        run.wait()
        run.check()
    return {stream.target.label: stream.target.read(stream.name) for stream in streams}


def _later(run: Attempt, dice: random.Random) -> Callable[[], bool]:
    """Holds some touches from now."""
    wanted = run.count() + dice.randint(5, 40)
    return lambda: run.count() >= wanted
