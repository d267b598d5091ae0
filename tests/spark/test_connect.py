"""Spark Connect: the same results from a client that has no Spark in it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidegate.errors import ConfigError
from tidegate.output.epochs import Epochs
from tidegate.spark.batch_writer import query_of
from tidegate.spark.environment.java import use_java
from tidegate.spark.session import _connect

if TYPE_CHECKING:
    from spark.recordings import Recording

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


@contextmanager
def connect_server(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """A Spark Connect server on loopback, in a process of its own; yields its address."""
    import pyspark

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {**SETTINGS, "spark.connect.grpc.binding.port": str(port)}
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [str(submit), "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
               "--master", "local[2,4]"]  # fmt: skip
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, cwd=folder, start_new_session=True
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


@pytest.mark.long
def test_results_are_the_same_on_spark_connect(recording: Recording, tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    environment = {
        **os.environ,
        "JAVA_HOME": str(use_java()),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent / "src")]),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    child = [sys.executable, "-m", "spark.connect_child"]
    with connect_server(tmp_path, environment) as address:
        done = subprocess.run(
            [*child, address, str(recording.folder), str(tmp_path / "out")],
            capture_output=True, text=True, timeout=280, env=environment, cwd=tmp_path,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["equal"] == dict.fromkeys(("stream", "backfill", "summary", "batch"), True)
    assert "is written to by this process" in said["told"]


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("sc://127.0.0.1:1", "no server answers there"),
        ("sc://", "must be sc://host:port"),
        ("sc://[::1:15002", "must be sc://host:port"),
    ],
)
def test_a_server_that_is_not_there_is_told_at_once(address: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        _connect(address, {})


def test_a_server_that_sees_another_folder_is_told(tmp_path: Path) -> None:
    claimed = Epochs.at(str(tmp_path / "client")).claim()
    with pytest.raises(Exception, match="must mean the same place for the client, the server"):
        Epochs.at(str(tmp_path / "server")).joined(claimed.epoch)
    with pytest.raises(Exception, match="must mean the same place for Spark and for Python"):
        query_of(str(tmp_path / "server"))
