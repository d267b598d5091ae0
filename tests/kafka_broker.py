"""Real Kafka brokers on loopback, one or a cluster, in KRaft mode, from Kafka's own jars.

The jars are fetched once from Maven Central into `~/.cache/tidegate`. Where that cannot be done,
tests that need a broker are skipped, and say so.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from tidegate.errors import ConfigError
from tidegate.spark.environment.jars import Jar, fetch
from tidegate.spark.environment.java import use_java

JARS = Path(__file__).with_name("kafka_jars.txt")
"""Kafka 4.0.0 and all it needs: a checksum and coordinates per line."""

PROPERTIES = """
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}/logs
# Tests stamp messages as they like; by default Kafka deletes what is stamped a week ago.
log.retention.ms=-1
num.partitions=1
default.replication.factor={copies}
min.insync.replicas={in_sync}
offsets.topic.replication.factor={copies}
offsets.topic.num.partitions=1
transaction.state.log.replication.factor={copies}
transaction.state.log.min.isr={in_sync}
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
# A broker that was killed may come back when its old session is over, by default after 9 s.
broker.session.timeout.ms=1000
broker.heartbeat.interval.ms=200
"""


class NoBrokerError(Exception):
    """Why there is no broker to test with: one sentence."""


def classpath() -> str:
    """Kafka's jars, fetched if need be."""
    pairs = [line.split() for line in JARS.read_text().splitlines()]
    try:
        return os.pathsep.join(str(file) for file in fetch(Jar(c, s) for s, c in pairs))
    except ConfigError as error:
        raise NoBrokerError(f"no broker: {error.expected}") from error


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@dataclass
class Broker:
    """A broker process; it can be killed and started again on the same logs."""

    folder: Path
    port: int
    node: int = 1
    process: subprocess.Popen[bytes] | None = None

    @classmethod
    def create(cls, folder: Path) -> Broker:
        return Cluster.create(folder, 1).brokers[0]

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self.launch()
        self.await_answer()

    def launch(self) -> None:
        """Start it without waiting: the first of several answers only when others are there."""
        self.process = self._java("kafka.Kafka")

    def await_answer(self) -> None:
        """Return when it takes connections. Raises NoBrokerError if it does not."""
        assert self.process is not None
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.2)
        log = (self.folder / "broker.log").read_text(errors="replace").strip().split("\n")
        self.stop()
        raise NoBrokerError(f"no broker: Kafka did not start: {log[-1]}")

    def stop(self) -> None:
        """At once, as a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(timeout=30)
            self.process = None

    def _java(self, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        java = use_java() / "bin" / "java"
        quick = ["-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        command = [str(java), *quick, "-cp", classpath(), main, *arguments]
        with open(self.folder / "broker.log", "ab") as log:
            return subprocess.Popen(
                [*command, str(self.folder / "server.properties")], stdout=log, stderr=log
            )


@dataclass
class Cluster:
    """Brokers that replicate each other: as many copies of everything as there are brokers, of
    which all but one must be in sync, so one of three may be killed at any time."""

    brokers: list[Broker]

    @classmethod
    def create(cls, folder: Path, number: int) -> Cluster:
        """Format and start this many brokers below a folder."""
        brokers = [
            Broker(folder / f"{node}" if number > 1 else folder, free_port(), node)
            for node in range(1, number + 1)
        ]
        ports = [free_port() for _ in brokers]
        voters = ",".join(f"{b.node}@127.0.0.1:{p}" for b, p in zip(brokers, ports, strict=True))
        name = uuid.uuid4().hex[:22]
        formats = []
        for broker, controller in zip(brokers, ports, strict=True):
            broker.folder.mkdir(exist_ok=True)
            text = PROPERTIES.format(
                port=broker.port, controller=controller, folder=broker.folder, node=broker.node,
                voters=voters, copies=number, in_sync=max(1, number - 1),
            )  # fmt: skip
            (broker.folder / "server.properties").write_text(text)
            formats.append(broker._java("kafka.tools.StorageTool", "format", "-t", name, "-c"))
        for formatting in formats:
            formatting.wait(timeout=90)
        made = cls(brokers)
        try:
            for broker in brokers:
                broker.launch()
            for broker in brokers:
                broker.await_answer()
            made._await_each_other()
        except NoBrokerError:
            made.stop()
            raise
        return made

    @property
    def servers(self) -> str:
        return ",".join(broker.servers for broker in self.brokers)

    def leader(self, topic: str, partition: int) -> Broker:
        """The broker that leads a partition now."""
        from confluent_kafka.admin import AdminClient

        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            said = AdminClient({"bootstrap.servers": self.servers}).list_topics(topic, timeout=30)
            known = said.topics[topic].partitions.get(partition)  # None: made a moment ago
            found = [broker for broker in self.brokers if known and broker.node == known.leader]
            if found:
                return found[0]
            time.sleep(0.2)
        raise AssertionError(f"partition {partition} of {topic} has no leader for a minute")

    def _await_each_other(self) -> None:
        """Return when all are members: a broker takes connections before the others know it."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        if len(self.brokers) == 1:
            return
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            with contextlib.suppress(KafkaException):
                said = AdminClient({"bootstrap.servers": self.servers}).list_topics(timeout=10)
                if len(said.brokers) == len(self.brokers):
                    return
            time.sleep(0.5)
        raise NoBrokerError(f"no cluster: not all {len(self.brokers)} brokers found each other")

    def stop(self) -> None:
        for broker in self.brokers:
            broker.stop()
