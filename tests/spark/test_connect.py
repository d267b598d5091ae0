"""Spark Connect: the same results from a client that has no Spark in it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark.connect_server import connect_server, environment
from tidegate.errors import ConfigError
from tidegate.output.epochs import Epochs
from tidegate.spark.batch_writer import query_of
from tidegate.spark.session import _connect

if TYPE_CHECKING:
    from spark.recordings import Recording


@pytest.mark.long
def test_results_are_the_same_on_spark_connect(recording: Recording, tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    child = [sys.executable, "-m", "spark.connect_child"]
    with connect_server(tmp_path) as address:
        done = subprocess.run(
            [*child, address, str(recording.folder), str(tmp_path / "out")],
            capture_output=True, text=True, timeout=280, env=environment(), cwd=tmp_path,
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
