"""Compaction on Spark gives the vectors of the in-process engine: as a stage, and as a job over a
stored table that may be killed anywhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.deltas import (
    Adaptive,
    Add,
    Compactor,
    Create,
    Delete,
    DeltaChain,
    FullMerge,
    Offset,
    Operation,
    Scale,
    Sparse,
    TieredMerge,
    TimeBoundary,
    VectorDelta,
)
from tidegate.deltas.operations import rows_from
from tidegate.deltas.table import DeltaTable, VectorTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DIMS = 5


def some_deltas(vectors: int = 8, count: int = 400) -> list[VectorDelta]:
    rng = np.random.default_rng(3)
    out = []
    for n in range(count):
        operation: Operation
        match int(rng.integers(7)):
            case 0:
                operation = Create(rng.integers(-9, 9, DIMS).astype(float))
            case 1:
                operation = Scale(float(rng.choice([-1.0, 2.0, 0.5])))
            case 2:
                operation = Offset(1.0)
            case 3:
                operation = Delete() if rng.random() < 0.1 else Add([1.0, 2.0], [0, 3])
            case _:
                operation = Sparse([1, 4], rng.integers(-9, 9, 2).astype(float))
        out.append(VectorDelta(f"d{n}", f"v{int(rng.integers(vectors))}", operation, n * 1000))
    return out


def in_process(deltas: list[VectorDelta]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name in {d.vector_id for d in deltas}:
        chain = DeltaChain(name, DIMS)
        chain.process(d for d in deltas if d.vector_id == name)
        vector = chain.compose()
        out[name] = None if vector is None else vector.tolist()
    return out


def vectors_of(table: DeltaTable | VectorTable) -> dict[str, Any]:
    return {
        row["vector_id"]: None if row["deleted"] else row["vector"]
        for batch in table.vectors()
        for row in batch.to_pylist()
    }


def filled(path: Path, deltas: list[VectorDelta]) -> DeltaTable:
    table = DeltaTable.create(path, DIMS, buckets=3)
    for first in range(0, len(deltas), 150):
        table.append(deltas[first : first + 150])
    return table


@pytest.mark.parametrize("strategy", [FullMerge(), TieredMerge(3), TimeBoundary(9000), Adaptive()])
def test_the_job_on_spark_equals_the_one_in_process(
    spark: SparkSession, tmp_path: Path, strategy: Any
) -> None:
    from tidegate.deltas.table import compact_table as here
    from tidegate.spark.compaction import compact_table

    deltas = some_deltas()
    compactor = Compactor(strategy, delta_threshold=12)
    table, other = filled(tmp_path / "spark", deltas), filled(tmp_path / "here", deltas)
    report = compact_table(table.root, compactor, spark=spark)
    mine = here(other.root, compactor)
    assert (report.vectors, report.deltas_before, report.deltas_after) == (
        mine.vectors,
        mine.deltas_before,
        mine.deltas_after,
    )
    assert report.vectors > 0
    for bucket in range(3):
        a, b = table.load(bucket).chains, other.load(bucket).chains
        assert a.ids.equals(b.ids)
        assert a.rows.equals(b.rows)
        assert np.array_equal(a.vectors, b.vectors)
    assert vectors_of(table) == in_process(deltas)
    again = compact_table(table.root, compactor, spark=spark)
    assert (again.version, again.buckets) == (report.version, 0)


class Killed(BaseException):
    """Not an Exception: nothing in the job may catch it."""


def test_the_driver_killed_at_every_step(spark: SparkSession, tmp_path: Path) -> None:
    from tidegate.spark.compaction import compact_table

    deltas = some_deltas()
    compactor = Compactor(TieredMerge(3), delta_threshold=12)
    for number, step in enumerate(["draft", "link", "linked", "remove"]):
        table = filled(tmp_path / f"t{number}", deltas)

        def die(now: str, wanted: str = step) -> None:
            if now.split()[0] == wanted:
                raise Killed(now)

        with pytest.raises(Killed):
            compact_table(table.root, compactor, spark=spark, step=die)
        assert vectors_of(table) == in_process(deltas)
        compact_table(table.root, compactor, spark=spark)
        table.vacuum(grace_s=-10)
        assert vectors_of(table) == in_process(deltas)


def test_the_stage_in_batch_and_streaming(spark: SparkSession, tmp_path: Path) -> None:
    from tidegate.core.flow import Flow
    from tidegate.core.outcomes import Collection
    from tidegate.spark import frames
    from tidegate.spark.query import start

    deltas = some_deltas()
    rows = pa.Table.from_batches([rows_from(deltas)])
    rows = rows.rename_columns([n if n != "time_ns" else "stamp" for n in rows.column_names])
    rows = rows.append_column("shard", pa.array([int(d.vector_id[1:]) % 3 for d in deltas]))
    source = tmp_path / "deltas"
    source.mkdir()
    for n in range(4):
        # A stream takes files by the millisecond they were modified: ties would leave no order.
        pq.write_table(rows.slice(n * 100, 100), source / f"{n}.parquet")
        os.utime(source / f"{n}.parquet", (1_000_000 + n, 1_000_000 + n))
    df = spark.read.parquet(str(source))

    def pipeline(frame: Any) -> Any:
        return (
            frames(frame, key="shard", time="stamp", arrival="stamp")
            .event_time("unixtimestamp_ns")
            .compact(DIMS, strategy="tiered_merge", delta_threshold=12, time_threshold=None)
        )

    batch = pipeline(df)
    found = batch.data.collect()
    last: dict[str, Any] = {}
    for row in sorted(found, key=lambda row: row.delta_count):
        last[row.vector_id] = None if row.deleted else list(row.vector)
        assert row.shard == int(row.vector_id[1:]) % 3
    assert last == in_process(deltas)
    assert batch.table("compactions").count() > 0
    # streaming: no end of the stream, so what came out so far must be what a flow gives so far
    out = tmp_path / "out"
    stream = spark.readStream.schema(df.schema).option("maxFilesPerTrigger", "1")
    query = start(pipeline(stream.parquet(str(source))), str(out))
    assert query.awaitTermination(200)
    store = VectorTable.create(tmp_path / "vectors", DIMS)
    for file in sorted((out / "data").rglob("*.parquet")):
        store.upsert(pq.read_table(file, partitioning=None))
    flow = Flow(batch.stages, key=("shard",), decoder=batch.decoder)
    expected = VectorTable.create(tmp_path / "expected", DIMS)
    for piece in rows.to_batches():
        for outcome in flow.process(piece):
            if isinstance(outcome, Collection):
                expected.upsert(outcome.table())
    assert vectors_of(store) == vectors_of(expected)
    assert vectors_of(store)


def test_the_batch_job_and_the_streaming_stage_agree_on_one_recording(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The same deltas through a stream of micro-batches, and appended to a table that a Spark job
    compacts: the same vectors, bit for bit, the same tombstones, the same versions."""
    from tidegate.deltas import FullMerge
    from tidegate.spark import frames
    from tidegate.spark.compaction import compact_table
    from tidegate.spark.query import start

    last = [VectorDelta(f"z{n}", f"v{900 + n}", Offset(1.0), 10**9) for n in range(3)]
    deltas = [*some_deltas(), *last]  # the last ones let time pass for the others
    rows = rows_from(deltas)
    shard = pa.array([int(d.vector_id[1:]) % 3 for d in deltas])
    source = tmp_path / "deltas"
    source.mkdir()
    table = DeltaTable.create(tmp_path / "table", DIMS, buckets=3)
    size = -(-len(deltas) // 5)
    for n in range(5):
        part = rows.slice(n * size, size)
        table.append(part, batch=str(n))
        named = pa.Table.from_batches([part]).rename_columns(
            [name if name != "time_ns" else "stamp" for name in part.schema.names]
        )
        named = named.append_column("shard", shard.slice(n * size, size))
        pq.write_table(named, source / f"{n}.parquet")
        compact_table(table.root, Compactor(FullMerge(), delta_threshold=1), spark=spark)
    schema = spark.read.parquet(str(source)).schema
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", "1")
    pipeline = (
        frames(stream.parquet(str(source)), key="shard", time="stamp", arrival="stamp")
        .event_time("unixtimestamp_ns")
        .compact(DIMS, strategy="full_merge", delta_threshold=1, time_threshold=None)
    )
    out = tmp_path / "out"
    assert start(pipeline, str(out)).awaitTermination(200)
    streamed: dict[str, tuple[int, bool, list[float] | None]] = {}
    for file in sorted((out / "data").rglob("*.parquet")):
        for row in pq.read_table(file, partitioning=None).to_pylist():
            said = row["delta_count"], row["deleted"], row["vector"]
            if row["vector_id"] not in streamed or streamed[row["vector_id"]] < said:
                streamed[row["vector_id"]] = said
    stored = {
        row["vector_id"]: (
            row["delta_count"], row["deleted"], None if row["deleted"] else row["vector"],
        )
        for part in table.vectors() for row in part.to_pylist()
    }  # fmt: skip
    for name in [f"v{900 + n}" for n in range(3)]:
        stored.pop(name)
        streamed.pop(name, None)
    assert len(stored) > 5
    assert streamed == stored
