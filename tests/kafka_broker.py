"""A real Kafka broker on loopback, in KRaft mode, from Kafka's own jars.

The jars are fetched once with Maven into `~/.cache/tidegate`. Where that cannot be done, tests that
need a broker are skipped, and say so.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

KAFKA = "4.0.0"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tidegate"
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tidegate</groupId><artifactId>broker</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{version}</version>
  </dependency></dependencies>
</project>
"""
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
"""


class NoBrokerError(Exception):
    """Why there is no broker to test with: one sentence."""


def jars() -> Path:
    """The folder with Kafka's jars, fetched if need be."""
    folder = CACHE / f"kafka-{KAFKA}"
    if (folder / "whole").exists():
        return folder / "libs"
    maven, java = shutil.which("mvn"), shutil.which("java")
    if java is None:
        raise NoBrokerError("no broker: there is no java on the PATH to run Kafka with")
    if maven is None:
        raise NoBrokerError("no broker: there is no mvn on the PATH to fetch Kafka's jars with")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pom.xml").write_text(POM.format(version=KAFKA))
    command = [maven, "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=libs"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    except subprocess.TimeoutExpired:
        raise NoBrokerError("no broker: Kafka's jars did not come within four minutes") from None
    if done.returncode != 0:
        first = (done.stdout + done.stderr).strip().split("\n")[0]
        raise NoBrokerError(f"no broker: Kafka's jars cannot be fetched: {first}")
    (folder / "whole").touch()
    return folder / "libs"


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
        java = shutil.which("java")
        if java is None:
            raise NoBrokerError("no broker: there is no java on the PATH to run Kafka with")
        command = [java, "-Xmx384m", "-cp", f"{jars()}/*", main, *arguments]
        with open(self.folder / "broker.log", "ab") as log:
            return subprocess.Popen(
                [*command, str(self.folder / "server.properties")], stdout=log, stderr=log
            )
