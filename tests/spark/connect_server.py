"""A Spark Connect server for tests: on loopback, on a free port, in a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tidegate.spark.environment.java import use_java

TESTS = Path(__file__).parent.parent

SETTINGS = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.python.daemon.module": "tidegate.spark.environment.daemon",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


def environment() -> dict[str, str]:
    """What a server, and a client beside it, need in their environment."""
    return {
        **os.environ,
        "JAVA_HOME": str(use_java()),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent / "src")]),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


@contextmanager
def connect_server(folder: Path, **more: str) -> Iterator[str]:
    """Start one with further settings, their dots as underscores; yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {name.replace("_", "."): value for name, value in more.items()}
    settings = {**SETTINGS, **own, "spark.connect.grpc.binding.port": str(port)}
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [str(submit), "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
               "--master", "local[2,4]"]  # fmt: skip
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            command, env=environment(), stdout=log, stderr=log, cwd=folder, start_new_session=True
        )
    try:
        for _ in range(600):
            with socket.socket() as asked:
                if asked.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert server.poll() is None, (folder / "server.log").read_text()[-3000:]
            time.sleep(0.2)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
