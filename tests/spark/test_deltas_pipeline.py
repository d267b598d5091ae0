"""Deltas through adaptive windows into compaction, from one file: on Spark as in process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from spark.outcomes import add_file, assert_same, in_process, run_now, written
from tidegate import cli
from tidegate.deltas import Add, Create, DeltaChain, Operation, Scale, Sparse, VectorDelta
from tidegate.deltas.operations import rows_from
from tidegate.deltas.table import VectorTable
from tidegate.pipeline import PipelineDefinition
from tidegate.spark import frames
from tidegate.spark.open import open_pipeline
from tidegate.spark.query import settings_of
from tidegate.spark.spark_session import LIST_ROWS

DIMS = 4

DEFINITION = """\
name: embeddings
streams:
  deltas:
    source: {{format: parquet, path: {root}/in{options}}}
    key: shard
    arrival: arrival
    eventtime: {{column: made_at, type: unixtimestamp_ns}}
options:
  mode: {mode}
  shards: 2
  eventtime: {{enabled: true, lateTolerance: 20 ms, watermarkPer: tuple}}
stages:
  - window: {{adaptive: {{min: 10 ms, max: 100 ms, target: 20}}}}
  - compact:
      dims: {dims}
      strategy: {{tieredMerge: {{keepRecent: 3}}}}
      deltaThreshold: 9
      timeThreshold: null
      timeColumn: made_at
sink: {{path: {root}/out}}
"""


def deltas(count: int = 600, vectors: int = 7) -> list[VectorDelta]:
    """A millisecond apart."""
    rng = np.random.default_rng(4)
    out = []
    for n in range(count):
        operation: Operation
        match int(rng.integers(4)):
            case 0:
                operation = Create(rng.integers(-9, 9, DIMS).astype(float))
            case 1:
                operation = Scale(0.5)
            case 2:
                operation = Add([1.0, 2.0], [0, 3])
            case _:
                operation = Sparse([int(rng.integers(DIMS))], [float(n)])
        name = f"v{int(rng.integers(vectors))}"
        out.append(VectorDelta(f"d{n}", name, operation, n * 1_000_000))
    return out


@pytest.fixture
def parts(tmp_path: Path) -> list[pa.Table]:
    """The deltas as they arrive, up to 5 ms out of order, in three files."""
    rows = pa.Table.from_batches([rows_from(deltas())])
    arrived = np.argsort(np.arange(len(rows)) + np.random.default_rng(5).integers(0, 6, len(rows)))
    rows = rows.take(pa.array(arrived))
    shard = [int(name[1:]) % 3 for name in rows.column("vector_id").to_pylist()]
    rows = rows.rename_columns({"time_ns": "made_at"}).append_column("shard", pa.array(shard))
    rows = rows.append_column("arrival", pa.array(np.arange(len(rows))))
    out = [rows.slice(first, 200) for first in range(0, len(rows), 200)]
    for number, part in enumerate(out):
        add_file(part, tmp_path / "in", number)
    return out


def definition(root: Path, mode: str, options: str = "") -> Path:
    file = root / "pipeline.yaml"
    file.write_text(DEFINITION.format(root=root, mode=mode, options=options, dims=DIMS))
    return file


def test_tidegate_run_gives_the_vectors_of_the_chains(
    spark: SparkSession, parts: list[pa.Table], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = definition(tmp_path, "batch")
    monkeypatch.setattr(sys, "argv", ["tidegate", "run", str(file)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert not left.value.code
    _, pipeline = open_pipeline(spark, PipelineDefinition.load(file), streaming=False)
    ours = written(tmp_path / "out", pipeline)
    assert_same(ours, in_process(pipeline, parts))
    assert ours["compactions"]
    assert not {*ours} & {"late", "dropped", "error"}
    store = VectorTable.create(tmp_path / "vectors", DIMS)
    for path in sorted((tmp_path / "out" / "data").rglob("*.parquet")):
        store.upsert(pq.read_table(path, partitioning=None))
    found: dict[str, Any] = {
        row["vector_id"]: row["vector"] for batch in store.vectors() for row in batch.to_pylist()
    }
    for name in {delta.vector_id for delta in deltas()}:
        chain = DeltaChain(name, DIMS)
        chain.process(delta for delta in deltas() if delta.vector_id == name)
        vector = chain.compose()
        assert vector is not None
        assert found.pop(name) == vector.tolist()
    assert not found


def test_as_a_stream_in_three_batches(
    spark: SparkSession, parts: list[pa.Table], tmp_path: Path
) -> None:
    file = definition(tmp_path, "streaming", ", options: {maxFilesPerTrigger: 1}")
    _, pipeline = open_pipeline(spark, PipelineDefinition.load(file), streaming=True)
    run_now(pipeline, tmp_path / "out")
    ours = written(tmp_path / "out", pipeline)
    assert_same(ours, in_process(pipeline, parts, end=False))
    assert ours["data"]


def test_rows_with_lists_come_in_short_batches_and_the_session_stays_as_it_is(
    spark: SparkSession, parts: list[pa.Table], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setting = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(setting)
    assert before is not None
    spark.conf.set(setting, "65536")
    try:
        plain = spark.createDataFrame([(1, 2)], "shard int, made_at long")
        lists = spark.read.parquet(f"{tmp_path}/in")
        for df, limit in ((plain, {}), (lists, {setting: str(LIST_ROWS)})):
            made = frames(df, key="shard", time="made_at").event_time("unixtimestamp_ns")
            assert settings_of(made) == limit
            caplog.clear()
            _ = made.data
            assert ("lists" in caplog.text) == bool(limit), "it is said, not done"
            assert spark.conf.get(setting) == "65536"
        made.write(str(tmp_path / "out"))
        assert spark.conf.get(setting) == "65536"
    finally:
        spark.conf.set(setting, before)


@pytest.mark.apart
@pytest.mark.timeout(500)
def test_the_example_runs(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "examples" / "delta_pipeline.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "made")],
        capture_output=True, text=True, check=True, timeout=400,
    )  # fmt: skip
    assert "200 vectors from 20,193 deltas; in process 200, of which 0 differ" in done.stdout
    assert (tmp_path / "made" / "compaction.svg").read_text().startswith("<svg")
