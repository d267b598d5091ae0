"""Declarative Pipelines: the example project, run by spark-pipelines on a server of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

from spark.connect_server import connect_server, environment
from spark.outcomes import arranged, in_process
from spark.recordings import ordered
from tidegate.errors import ConfigError
from tidegate.spark import frames
from tidegate.spark.pipelines import declared, publish
from tidegate.spark.stateful_step import EachShard

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.recordings import Recording

PROJECT = Path(__file__).parents[2] / "examples" / "declarative_pipeline"


@pytest.mark.long
def test_the_example_project_makes_the_tables_of_one_state(
    spark: SparkSession, recording: Recording, tmp_path: Path
) -> None:
    pytest.importorskip("grpc")
    spec = (PROJECT / "spark-pipeline.yml").read_text()
    storage = "file:///tmp/tidegate-declarative-pipeline"
    assert storage in spec
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "transformations").symlink_to(PROJECT / "transformations")
    (tmp_path / "project" / "spark-pipeline.yml").write_text(
        spec.replace(storage, f"file://{tmp_path}/storage")
    )
    cli = Path(pyspark.__file__).parent / "pipelines" / "cli.py"
    with connect_server(tmp_path, spark_sql_warehouse_dir=str(tmp_path / "tables")) as address:
        done = subprocess.run(
            [sys.executable, str(cli), "run", "--spec", "spark-pipeline.yml"],
            capture_output=True, text=True, timeout=280, cwd=tmp_path / "project",
            env={**environment(), "SPARK_REMOTE": address,
                 "FLEET_RECORDING": str(recording.folder)},
        )  # fmt: skip
    assert "Run is COMPLETED" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]
    rows = recording.table.drop_columns(["payload"])
    made = ordered(spark.read.parquet(str(recording.folder)).drop("payload"), topic="topic")
    made = made.synchronize(["camera", "lidar"])
    expected = in_process(made, [rows])
    for kind in ("data", "late", "error", "dropped"):
        name = "sets" if kind == "data" else f"sets_{kind}"
        table = pq.read_table(tmp_path / "tables" / name).sort_by(
            "time_ns" if kind != "error" else "seq"
        )
        found = arranged([(kind, table)], made.keys)[kind]
        assert {key: len(of_key) for key, of_key in found.items()} == {
            key: len(of_key) for key, of_key in expected[kind].items()
        }
        if kind == "data":
            assert found == expected[kind]
    assert pq.read_table(tmp_path / "tables" / "seconds").num_rows > 10


def test_what_cannot_work_in_a_pipeline_is_told(spark: SparkSession) -> None:
    df = spark.createDataFrame([("a", 1)], "vehicle string, stamp long")
    with pytest.raises(ConfigError, match="must be of a Spark Connect session"):
        declared(df, "vehicle string, stamp long")
    made = frames(df, key="vehicle", time="stamp").event_time("unixtimestamp_ns")
    with pytest.raises(ConfigError, match="must be kinds of results: data, late, error, dropped"):
        publish("sets", made, tables={"lost": "lost"})
    waits = frames(df, key="vehicle", time="stamp", forget="1 min").event_time("unixtimestamp_ns")
    with pytest.raises(ConfigError, match="its runs would not end"):
        publish("sets", waits)


@pytest.mark.parametrize("cut", [1, 2, 3, 7])
def test_each_shard_is_run_once_however_its_rows_are_cut(cut: int) -> None:
    table = pa.table({"shard": pa.array([3, 3, 3, 5, 5, 1, 8], pa.int32()), "row": range(7)})
    seen: list[tuple[set[int], list[int]]] = []

    def run(rows: pa.Table) -> pa.Table:
        seen.append((set(rows["shard"].to_pylist()), rows["row"].to_pylist()))
        return rows

    out = list(EachShard(run)(iter(table.to_batches(max_chunksize=cut))))
    assert seen == [({3}, [0, 1, 2]), ({5}, [3, 4]), ({1}, [5]), ({8}, [6])]
    assert pa.Table.from_batches(out).equals(table)
