"""A standalone cluster of two workers on loopback, one of which is killed in the middle."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidegate.errors import ConfigError
from tidegate.spark.doctor import _of_failure, examine, findings_table
from tidegate.spark.spark_session import _check_masters

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.recordings import Recording

TESTS = Path(__file__).parent.parent


@pytest.mark.apart
def test_a_cluster_that_loses_a_worker_gives_the_same_results(
    recording: Recording, tmp_path: Path
) -> None:
    path = os.pathsep.join([str(TESTS), str(TESTS.parent / "src")])
    done = subprocess.run(
        [sys.executable, "-m", "spark.cluster_child", str(recording.folder), str(tmp_path)],
        capture_output=True, text=True, timeout=280, env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["executors"] == 2
    ((executor, what, wrong, fix),) = said["findings"]
    assert executor.startswith("executor ")
    assert what == "tidegate"
    assert wrong.startswith("tidegate 0.0.1, here ")
    assert "-m pip install tidegate==" in fix
    assert said["batches"] == recording.files
    assert said["stream"]
    assert said["backfill"]


def test_the_doctor_finds_nothing_wrong_with_this_machine(
    spark: SparkSession, tmp_path: Path
) -> None:
    found = examine(spark, [str(tmp_path)])
    assert found.findings == []
    assert len(found.executors) == 1
    assert findings_table(found).row_count == 1
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="must be a folder that exists"):
        examine(spark, [str(tmp_path / "nowhere")])


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("spark://127.0.0.1:1", "no master answers there"),
        ("spark://127.0.0.1:1,127.0.0.1:2", "no master answers there"),
        ("spark://127.0.0.1:99999", "no master answers there"),
        ("spark://head", "must be spark://host:port"),
        ("spark://", "must be spark://host:port"),
    ],
)
def test_a_master_that_is_not_there_is_told_at_once(address: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        _check_masters(address)


def test_one_master_of_several_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as master:
        _check_masters(f"spark://127.0.0.1:1,127.0.0.1:{master.getsockname()[1]}")


def test_an_executor_without_our_python_is_named() -> None:
    text = (
        "Job aborted due to stage failure: Task 1 in stage 0.0 failed 4 times, most recent "
        "failure: Lost task 1.3 in stage 0.0 (TID 7) (10.0.0.5 executor 1): java.io.IOException: "
        'Cannot run program "/opt/venv/bin/python": error=2, No such file or directory'
    )
    finding = _of_failure(text, RuntimeError(text))
    assert finding.executor == "executor 1 on 10.0.0.5"
    assert finding.wrong == "there is no /opt/venv/bin/python"
    assert "PYSPARK_PYTHON" in finding.fix
