"""A real Kafka broker on loopback, in KRaft mode, from Kafka's own jars.

The jars are fetched once from Maven Central into `~/.cache/tidegate`. Where that cannot be done,
tests that need a broker are skipped, and say so.
"""

from __future__ import annotations

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
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}/logs
# Tests stamp messages as they like; by default Kafka deletes what is stamped a week ago.
log.retention.ms=-1
num.partitions=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
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
    process: subprocess.Popen[bytes] | None = None

    @classmethod
    def create(cls, folder: Path) -> Broker:
        broker = cls(folder, free_port())
        text = PROPERTIES.format(port=broker.port, controller=free_port(), folder=folder)
        (folder / "server.properties").write_text(text)
        cluster = uuid.uuid4().hex[:22]
        broker._java("kafka.tools.StorageTool", "format", "-t", cluster, "-c").wait(timeout=90)
        broker.start()
        return broker

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self.process = self._java("kafka.Kafka")
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
