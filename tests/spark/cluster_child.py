"""Runs pipelines on a standalone cluster of two workers; started by `test_cluster.py`.

Prints one JSON object: what the doctor said of a bad worker, and whether results are those of the
operators in process although a worker was killed in the middle.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark

from spark.outcomes import in_process, written
from spark.recordings import ordered, stream_of
from tidegate.spark import read, session
from tidegate.spark.doctor import examine
from tidegate.spark.environment.java import use_java
from tidegate.spark.query import run_batch_job, start

SETTINGS = {
    "spark.cores.max": "2",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.python.daemon.module": "pyspark.daemon",  # so that the doctor finds what is missing
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
}


class Cluster:
    """A master and its workers, each a process on loopback."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.master = f"spark://127.0.0.1:{self.port}"
        self._start("master", ["master.Master", "--port", str(self.port)], {})
        until(lambda: _answers(self.port))

    def add(self, name: str, environment: dict[str, str] | None = None) -> None:
        """Start a worker with one core."""
        own = ["worker.Worker", self.master, "--cores", "1", "--memory", "700m"]
        work = ["--work-dir", str(self.folder / name)]
        self._start(name, [*own, *work], environment or {})

    def kill(self, name: str) -> None:
        """Kill a worker and its executors, as when a machine is gone."""
        worker = self.processes.pop(name)
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    def _start(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        binary = Path(pyspark.__file__).parent / "bin" / "spark-class"
        whole = [str(binary), f"org.apache.spark.deploy.{command[0]}", *command[1:],
                 "--host", "127.0.0.1", "--webui-port", "0"]  # fmt: skip
        own = {**os.environ, "SPARK_DAEMON_MEMORY": "256m", **environment,
               "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}  # fmt: skip
        with (self.folder / f"{name}.log").open("w") as log:
            self.processes[name] = subprocess.Popen(
                whole, env=own, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )


def until(holds: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


def _answers(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


def run(cluster: Cluster, folder: Path, out: Path) -> dict[str, Any]:
    # a worker with another tidegate: what a forgotten upgrade looks like
    (out / "old" / "tidegate").mkdir(parents=True)
    (out / "old" / "tidegate" / "__init__.py").write_text("__version__ = '0.0.1'\n")
    cluster.add("good")
    cluster.add("bad", {"PYTHONPATH": str(out / "old")})
    spark = session(cluster.master, "tidegate-cluster-test", SETTINGS, log=out / "spark.log")
    until(lambda: spark.sparkContext.defaultParallelism == 2)
    found = examine(spark, [str(out)])
    cluster.kill("bad")
    cluster.add("second")
    parts = [pq.read_table(file) for file in sorted(folder.glob("*.parquet"))]
    said: dict[str, Any] = {
        "executors": len(found.executors),
        "findings": [[one.executor, one.what, one.wrong, one.fix] for one in found.findings],
    }

    # a stream; a machine is gone after its first micro-batch
    committed: list[int] = []
    stream = ordered(stream_of(spark, folder, files=1))
    query = start(stream, str(out / "stream"), on_commit=lambda one: committed.append(one.batch))
    until(lambda: bool(committed) or not query.isActive)
    cluster.kill("second")
    query.awaitTermination()
    said["batches"] = len(committed)
    said["stream"] = written(out / "stream", stream) == in_process(stream, parts, end=False)

    # a backfill on what is left, and a machine that joins while it runs
    cluster.add("third")
    backfill = ordered(read(str(folder), spark=spark))
    run_batch_job(backfill, str(out / "backfill"))
    expected = in_process(backfill, [pa.concat_tables(parts)])
    said["backfill"] = written(out / "backfill", backfill) == expected
    spark.stop()
    return said


def main(folder: Path, out: Path) -> dict[str, Any]:
    os.environ["JAVA_HOME"] = str(use_java())
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    cluster = Cluster(out)
    try:
        return run(cluster, folder, out)
    finally:
        for name in list(cluster.processes):
            cluster.kill(name)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]))))
