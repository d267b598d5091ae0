"""Kafka in and out, against a real broker on loopback; skipped, with the reason, without one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Row

from kafka_broker import Broker, NoBrokerError, free_port
from tidegate.errors import ConfigError, StateError
from tidegate.pipeline import PipelineDefinition
from tidegate.spark.open import session_settings
from tidegate.spark.pack import to_blob

ck = pytest.importorskip("confluent_kafka", reason="pip install 'tidegate[kafka]'")

minutes = pytest.mark.skipif(
    "TIDEGATE_SLOW" not in os.environ, reason="a minute or more: TIDEGATE_SLOW=1 runs it"
)

MESSAGES = 900
LAG_MS = 500
"""Partition 2 comes in so much later than the others, once it has begun."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    try:
        made = Broker.create(tmp_path_factory.mktemp("kafka"))
    except NoBrokerError as error:
        pytest.skip(str(error))
    yield made
    made.stop()


def produce(broker: Broker, first: int, last: int) -> None:
    """Message n: event time n ms, partition n % 3, in order within each partition."""
    producer = ck.Producer({"bootstrap.servers": broker.servers, "linger.ms": 50})
    for n in range(first, last):
        came_in = 1_700_000_000_000 + n + (LAG_MS if n % 3 == 2 and n > 10 else 0)
        value = json.dumps({"vehicle": f"v{n // 3 % 2}", "stamp": n * 10**6, "n": n})
        producer.produce("readings", value, key=f"k{n}", partition=n % 3, timestamp=came_in)
    assert producer.flush(30) == 0


def consumed(broker: Broker, topic: str) -> list[Any]:
    """All committed messages of a topic."""
    consumer = ck.Consumer(
        {
            "bootstrap.servers": broker.servers, "group.id": "test", "enable.partition.eof": True,
            "isolation.level": "read_committed", "enable.auto.commit": False,
        }
    )  # fmt: skip
    parts = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign([ck.TopicPartition(topic, part, 0) for part in parts])
    found, ended = [], 0
    while ended < len(parts):
        message = consumer.poll(30)
        assert message is not None
        if message.error() is None:
            found.append((message.key(), json.loads(message.value())))
        else:
            ended += 1
    consumer.close()
    return found


PIPELINE = """
name: readings
streams:
  readings:
    source:
      format: kafka
      options: {{kafka.bootstrap.servers: "{servers}", subscribe: readings,
                 startingOffsets: earliest, maxOffsetsPerTrigger: 400}}
      schema: vehicle string, stamp long, n long
    key: vehicle
    arrival: [kafka_timestamp_ns, kafka_partition, kafka_offset]
    eventtime: {{column: stamp, type: unixtimestamp_ns}}
options:
  mode: streaming
  trigger: available_now
  eventtime: {{enabled: true, lateTolerance: 20 ms, watermarkPer: tuple, source: kafka_partition}}
sink: {sink}
"""


def run_command(tmp_path: Path, text: str) -> list[str]:
    file = tmp_path / "pipeline.yaml"
    file.write_text(text)
    return [sys.executable, "-m", "tidegate", "run", str(file), "--json"]


def tidegate(tmp_path: Path, text: str) -> tuple[int, str, dict[str, Any]]:
    command = run_command(tmp_path, text)
    quick = {**os.environ, "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=quick)
    return done.returncode, done.stderr, json.loads(done.stdout) if done.stdout else {}


def create_topic(broker: Broker, name: str, partitions: int) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker.servers})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)


@pytest.fixture(scope="module")
def readings(broker: Broker) -> Broker:
    """A broker with a topic of three partitions, and one value that is no JSON."""
    create_topic(broker, "readings", 3)
    produce(broker, 0, MESSAGES)
    bad = ck.Producer({"bootstrap.servers": broker.servers})
    bad.produce("readings", b"no JSON at all", partition=1, timestamp=1_700_000_000_500)
    bad.flush(30)
    return broker


def run_or_skip(tmp_path: Path, text: str) -> dict[str, Any]:
    code, error, made = tidegate(tmp_path, text)
    if "cannot be fetched" in error:
        assert code == 2
        pytest.skip(f"no connector: {error.strip()}")
    assert code == 0, error
    return made


@pytest.mark.long
@pytest.mark.timeout(600)
def test_in_and_out(readings: Broker, tmp_path: Path) -> None:
    options = f'{{bootstrap.servers: "{readings.servers}", topic: fleet, key: vehicle}}'
    sink = f"{{format: kafka, path: {tmp_path / 'state'}, options: {options}}}"
    made = run_or_skip(tmp_path, PIPELINE.format(servers=readings.servers, sink=sink))
    sent = consumed(readings, "fleet.data")
    numbers = [row["n"] for _, row in sent]
    assert len(set(numbers)) == len(numbers) == made["rows"]["data"] == MESSAGES - made["held"]
    assert {key.decode() for key, _ in sent} == {"v0", "v1"}
    for vehicle in ("v0", "v1"):
        mine = [row["stamp"] for _, row in sent if row["vehicle"] == vehicle]
        assert mine == sorted(mine)
    # Partition 2 is half a second behind, far beyond the tolerance: only a watermark for each
    # partition keeps its rows from being late.
    assert made["rows"].get("late", 0) == 0
    assert made["batches"] >= 3
    assert [row["kafka_unparsed"] for _, row in consumed(readings, "fleet.error")] == [
        "no JSON at all"
    ]
    assert len(consumed(readings, "fleet.commits")) == made["batches"]


@pytest.mark.long
@minutes
@pytest.mark.timeout(600)
def test_a_second_run_goes_on_where_the_first_was(readings: Broker, tmp_path: Path) -> None:
    broker, out = readings, tmp_path / "out"
    text = PIPELINE.format(servers=broker.servers, sink=f"{{path: {out}}}")
    first = run_or_skip(tmp_path, text)
    assert first["rows_in"] == MESSAGES + 1
    assert first["batches"] >= 3
    assert first["rows"].get("late", 0) == 0
    assert first["rows"]["data"] + first["held"] == MESSAGES
    (wrong,) = pq.read_table(out / "error").to_pylist()
    assert wrong["kafka_unparsed"] == "no JSON at all"
    assert (wrong["kafka_partition"], wrong["kafka_offset"]) == (1, MESSAGES // 3)

    produce(broker, MESSAGES, MESSAGES + 300)
    second = run_or_skip(tmp_path, text)
    data = pq.read_table(out / "data")
    assert data.num_rows + second["held"] == MESSAGES + 300
    numbers = data["n"].to_pylist()
    assert len(set(numbers)) == len(numbers)
    for vehicle in ("v0", "v1"):
        rows = sorted(data.to_pylist(), key=lambda row: row["batch"])
        mine = [row["stamp"] for row in rows if row["vehicle"] == vehicle]
        assert mine == sorted(mine)


@pytest.mark.long
@minutes
@pytest.mark.timeout(600)
def test_a_partition_that_falls_silent_is_not_waited_for(broker: Broker, tmp_path: Path) -> None:
    create_topic(broker, "silent", 2)
    producer = ck.Producer({"bootstrap.servers": broker.servers})

    def send(first: int, last: int, partition: int) -> None:
        for n in range(first, last):
            value = json.dumps({"vehicle": "v", "stamp": n * 10**6, "n": n})
            producer.produce("silent", value, partition=partition, timestamp=1_700_000_000_000 + n)
        assert producer.flush(30) == 0

    def wait_for(kind: str, number: int) -> None:
        deadline = time.monotonic() + 240
        while True:
            files = sorted((tmp_path / "out" / kind).rglob("*.parquet"))
            found = [n for file in files for n in pq.read_table(file)["n"].to_pylist()]
            if number in found:
                return
            assert run.poll() is None, run.stderr.read() if run.stderr else ""
            assert time.monotonic() < deadline, f"{number} does not come out as {kind}: {found}"
            time.sleep(0.2)

    send(0, 10, 0)
    send(0, 10, 1)
    text = PIPELINE.format(servers=broker.servers, sink=f"{{path: {tmp_path}/out}}")
    text = text.replace("subscribe: readings", "subscribe: silent")
    text = text.replace("available_now", "500 ms")
    text = text.replace("source: kafka_partition", "source: kafka_partition, idleTimeout: 3 s")
    command = run_command(tmp_path, text)
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        while not list((tmp_path / "out" / "_commits").glob("*.json")):
            assert run.poll() is None, run.stderr.read() if run.stderr else ""
            time.sleep(0.2)
        send(10, 300, 0)  # partition 1 says nothing more
        wait_for("data", 270)
        send(20, 21, 1)  # and then something old
        wait_for("late", 20)
    finally:
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=120)
    assert run.returncode == 130


SCHEMAS = {"data": pa.schema([("vehicle", pa.string()), ("n", pa.int64()), ("raw", pa.binary())])}


class Outcomes:
    """As much of a DataFrame as the sink asks for: two blobs, and death before the second."""

    def __init__(self, first: int, *, dies: bool = False) -> None:
        self.first = first
        self.dies = dies

    @property
    def write(self) -> Outcomes:
        return self

    def format(self, name: str) -> Outcomes:
        assert name == "noop"
        return self

    def mode(self, _: str) -> Outcomes:
        return self

    def save(self) -> None:
        """Rows of a batch that is written already are still computed, for the state behind them."""
        self.computed = True

    def toLocalIterator(self) -> Iterator[Row]:  # noqa: N802  (Spark's name)
        for place in range(2):
            if self.dies and place == 1:
                raise RuntimeError("a worker died")
            n = self.first + place
            rows = pa.record_batch([["v"], [n], [b"\x00\xff"]], schema=SCHEMAS["data"])
            yield Row(
                kind="data", shard=0, blob=to_blob(rows).as_py(), metrics=None, watermark_ns=None
            )
        yield Row(kind="metric", shard=0, blob=None, metrics={"rows_in": 2}, watermark_ns=7)


def sink(broker: Broker, topic: str, **options: str) -> Any:
    from tidegate.spark.sinks.kafka import KafkaSink
    from tidegate.spark.sinks.registry import SinkRequest

    given = {"bootstrap.servers": broker.servers, "topic": topic, **options}
    return KafkaSink(SinkRequest("", SCHEMAS, given))


def numbers_in(broker: Broker, topic: str) -> list[int]:
    return [row["n"] for _, row in consumed(broker, f"{topic}.data")]


def test_a_batch_that_runs_again_is_written_once(broker: Broker) -> None:
    one = sink(broker, "again")
    commit = one.write(Outcomes(0), 0, "q")
    assert (commit.rows, commit.watermark_ns) == ({"data": 2}, 7)
    one.write(Outcomes(0), 0, "q")  # by the same driver
    sink(broker, "again").write(Outcomes(0), 0, "q")  # by one that knows nothing
    other = sink(broker, "again")
    other.write(Outcomes(2), 1, "q")
    assert numbers_in(broker, "again") == [0, 1, 2, 3]
    assert consumed(broker, "again.data")[0][1]["raw"] == "AP8="
    with pytest.raises(StateError, match="Kafka refused"):
        one.write(Outcomes(2), 1, "q")  # a driver thought dead comes back
    assert numbers_in(broker, "again") == [0, 1, 2, 3]


def test_a_batch_that_dies_in_the_middle_leaves_nothing(broker: Broker) -> None:
    with pytest.raises(RuntimeError, match="a worker died"):
        sink(broker, "middle").write(Outcomes(0, dies=True), 0, "q")
    sink(broker, "middle").write(Outcomes(0), 0, "q")
    assert numbers_in(broker, "middle") == [0, 1]


def test_a_backfill_is_not_written_over_another(broker: Broker) -> None:
    first = sink(broker, "backfill")
    first.check_unused()
    first.write(Outcomes(0), 0, "batch")
    with pytest.raises(ConfigError, match="must be unused"):
        sink(broker, "backfill").check_unused()


def test_no_retention_takes_commits_away(broker: Broker) -> None:
    from confluent_kafka.admin import AdminClient, ConfigResource

    sink(broker, "kept").write(Outcomes(0), 0, "q")
    asked = ConfigResource(ConfigResource.Type.TOPIC, "kept.commits")
    admin = AdminClient({"bootstrap.servers": broker.servers})
    (found,) = admin.describe_configs([asked]).values()
    assert found.result(30)["cleanup.policy"].value == "compact"


def test_options_the_client_refuses_are_wrong_before_anything_runs(broker: Broker) -> None:
    with pytest.raises(ConfigError, match='No such configuration property: "colour"'):
        sink(broker, "wrong", colour="red")
    with pytest.raises(ConfigError, match="names code to run"):
        sink(broker, "wrong", **{"plugin.library.paths": "/tmp/any.so"})


def test_a_broker_that_dies_and_comes_back(broker: Broker) -> None:
    one = sink(broker, "crash")
    one.write(Outcomes(0), 0, "q")
    broker.stop()
    broker.start()
    one.write(Outcomes(2), 1, "q")
    assert numbers_in(broker, "crash") == [0, 1, 2, 3]


# -- without a broker ---------------------------------------------------------------------------


def test_no_broker_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    port = free_port()
    text = PIPELINE.format(servers=f"127.0.0.1:{port}", sink=f"{{path: {tmp_path}/out}}")
    code, error, _ = tidegate(tmp_path, text)
    assert code == 2
    assert error.strip() == (
        "tidegate: streams.readings.source.options.kafka.bootstrap.servers: got "
        f"'127.0.0.1:{port}', no broker answers (127.0.0.1:{port}: Connection refused) "
        f"({tmp_path}/pipeline.yaml, line 7)"
    )


def test_no_broker_for_a_sink_is_said_at_once(tmp_path: Path) -> None:
    gone = Broker(tmp_path, free_port())
    with pytest.raises(ConfigError, match=r"sink\.options\.bootstrap\.servers.*no broker answers"):
        sink(gone, "nowhere")


def test_only_a_pipeline_that_names_kafka_gets_the_connector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TIDEGATE_KAFKA_PACKAGE", "a.jar,b.jar")
    kafka = PipelineDefinition.from_yaml("streams: {s: {source: {format: kafka}}}")
    files = PipelineDefinition.from_yaml("streams: {s: {source: {path: x}}}")
    assert session_settings(kafka) == {"spark.jars": "a.jar,b.jar"}
    assert session_settings(files) == {}
