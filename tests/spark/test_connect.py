"""Spark Connect and declarative pipelines: the same results from a client without Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow.parquet as pq
import pyspark
import pytest

from faults import outputs
from spark import connect_formats
from spark.connect_server import connect_server, environment
from spark.outcomes import arranged, in_process
from spark.recordings import ordered
from tidegate.errors import ConfigError
from tidegate.output.epochs import Epochs
from tidegate.spark.batch_writer import query_of
from tidegate.spark.spark_session import _connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.recordings import Recording


PROJECT = Path(__file__).parents[2] / "examples" / "declarative_pipeline"


class Server(NamedTuple):
    """A server that the tests here share: its address, and the folder of its tables."""

    address: str
    tables: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip("grpc")
    folder = tmp_path_factory.mktemp("connect")
    tables = folder / "tables"
    with connect_server(folder, spark_sql_warehouse_dir=str(tables)) as address:
        yield Server(address, tables)


@pytest.mark.apart
def test_results_are_the_same_on_spark_connect(
    server: Server, recording: Recording, tmp_path: Path
) -> None:
    child = [sys.executable, "-m", "spark.connect_child"]
    done = subprocess.run(
        [*child, server.address, str(recording.folder), str(tmp_path / "out")],
        capture_output=True, text=True, timeout=280, env=environment(), cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["equal"] == dict.fromkeys(("stream", "backfill", "summary", "batch"), True)
    assert "is written to by this process" in said["told"]


@pytest.mark.apart
@pytest.mark.timeout(600)
def test_every_format_gives_on_spark_connect_what_it_gives_without(
    server: Server, spark: SparkSession, tmp_path: Path
) -> None:
    """Sources in batches and as streams, sinks, and datasets, from pipeline files."""
    pytest.importorskip("rosbags", reason="pip install 'tidegate[rosbag]'")
    names = connect_formats.write_definitions(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "spark.connect_formats", server.address, str(tmp_path)],
        capture_output=True, text=True, timeout=400, env=environment(), cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {}
    for name in names:
        connect_formats.run(tmp_path, name, "local", None)
        one, two = (connect_formats.read(name, tmp_path / name / w) for w in ("connect", "local"))
        assert outputs.count(two) > 40, name
        assert outputs.differences(one, two) == [], name


@pytest.mark.apart
def test_the_example_project_makes_the_tables_of_one_state(
    server: Server, spark: SparkSession, recording: Recording, tmp_path: Path
) -> None:
    spec = (PROJECT / "spark-pipeline.yml").read_text()
    storage = "file:///tmp/tidegate-declarative-pipeline"
    assert storage in spec
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "transformations").symlink_to(PROJECT / "transformations")
    (tmp_path / "project" / "spark-pipeline.yml").write_text(
        spec.replace(storage, f"file://{tmp_path}/storage")
    )
    cli = Path(pyspark.__file__).parent / "pipelines" / "cli.py"
    done = subprocess.run(
        [sys.executable, str(cli), "run", "--spec", "spark-pipeline.yml"],
        capture_output=True, text=True, timeout=280, cwd=tmp_path / "project",
        env={**environment(), "SPARK_REMOTE": server.address,
             "FLEET_RECORDING": str(recording.folder)},
    )  # fmt: skip
    assert "Run is COMPLETED" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]
    rows = recording.table.drop_columns(["payload"])
    made = ordered(spark.read.parquet(str(recording.folder)).drop("payload"), topic="topic")
    made = made.synchronize(["camera", "lidar"])
    expected = in_process(made, [rows])
    for kind in ("data", "late", "error", "dropped"):
        name = "sets" if kind == "data" else f"sets_{kind}"
        table = pq.read_table(server.tables / name).sort_by("time_ns" if kind != "error" else "seq")
        found = arranged([(kind, table)], made.keys)[kind]
        assert {key: len(of_key) for key, of_key in found.items()} == {
            key: len(of_key) for key, of_key in expected[kind].items()
        }
        if kind == "data":
            assert found == expected[kind]
    assert pq.read_table(server.tables / "seconds").num_rows > 10


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
