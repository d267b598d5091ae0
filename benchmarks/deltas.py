"""Figures of deltas and compaction, measured side by side in one run.

    python benchmarks/deltas.py [compose] [engine] [stage] [storage] [spark] [--rows N]

Contestants take turns and the median counts. Without names, everything but `spark` runs.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from suite.usage import cpu_seconds

from tidegate.core.numba import as_readonly
from tidegate.core.outcomes import Collection
from tidegate.deltas import (
    Adaptive,
    Checkpoint,
    Compact,
    Compactor,
    DeltaChain,
    FullMerge,
    Sparse,
    TieredMerge,
    VectorDelta,
)
from tidegate.deltas.admission import DeltaAdmission, ParentLimits
from tidegate.deltas.columns import Chains, DeltaRows, normalise
from tidegate.deltas.kernels import merge_runs
from tidegate.deltas.operations import DELTAS
from tidegate.deltas.table import DeltaTable, compact_table

RNG = np.random.default_rng(7)


def medians(contestants: dict[str, Callable[[], object]], rounds: int = 7) -> dict[str, float]:
    """CPU seconds per call (a busy machine does not count), the contestants taking turns; the first
    round only warms up."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 1):
        for name, call in contestants.items():
            start = time.process_time()
            call()
            if turn:
                times[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def sparse_rows(n: int, vectors: int, dims: int, wide: int, first: int = 0) -> pa.RecordBatch:
    """`n` sparse deltas of `wide` dims in time order, spread over the vectors at random."""
    vector = RNG.integers(vectors, size=n)
    ids = pa.array(np.char.add("d", (first + np.arange(n)).astype("U10")))
    # `wide` different places: a random start and a stride that never meets itself
    start, stride = RNG.integers(dims, size=(n, 1)), 2 * RNG.integers(dims // 2, size=(n, 1)) + 1
    places = ((start + stride * np.arange(wide)) % dims).astype(np.int32)
    offsets = pa.array(np.arange(0, n * wide + 1, wide, dtype=np.int32))
    rows = pa.RecordBatch.from_pydict(
        {
            "delta_id": ids,
            "vector_id": pa.array(np.char.add("vec-", vector.astype("U7"))),
            "op": pa.array(["sparse"] * n),
            "time_ns": (first + np.arange(n)) * 1_000_000,
            "origin": pa.array(["bench"] * n),
            "indices": pa.ListArray.from_arrays(offsets, pa.array(places.reshape(-1))),
            "values": pa.ListArray.from_arrays(offsets, pa.array(RNG.standard_normal(n * wide))),
        }
    )
    return normalise(rows)


def compose() -> None:
    """100 sparse deltas (16 of 768 dims) on a checkpoint, against the numpy assignments alone."""
    dims, base = 768, RNG.standard_normal(768)
    parts = [(RNG.choice(dims, 16, replace=False), RNG.standard_normal(16)) for _ in range(100)]
    deltas = [VectorDelta(f"d{n}", "v", Sparse(i, v), n) for n, (i, v) in enumerate(parts)]
    chain = DeltaChain("v", checkpoint=Checkpoint(base))
    chain.process(deltas)

    def numpy_alone() -> np.ndarray:
        x = base.copy()
        for i, v in parts:
            x[i] = v
        return x

    assert np.array_equal(numpy_alone(), chain.compose())
    took: dict[str, list[float]] = {}
    for turn in range(301):
        one_more = DeltaChain("v", checkpoint=Checkpoint(base))
        one_more.process(deltas[:99])
        one_more.compose()
        one_more.push(deltas[99])
        all_new = DeltaChain("v", checkpoint=Checkpoint(base))
        all_new.process(deltas)
        calls: list[tuple[str, Callable[[], object]]] = [
            ("numpy", numpy_alone),
            ("again", chain.compose),
            ("first after an append of 1", one_more.compose),
            ("first after an append of 100", all_new.compose),
            ("first after a restore", DeltaChain.restore(chain.snapshot()).compose),
        ]
        # whoever comes first pays for caches that others have used meanwhile
        for name, call in calls[turn % 5 :] + calls[: turn % 5]:
            start = time.thread_time()
            call()
            took.setdefault(name, []).append(time.thread_time() - start)
    print("compose 100 sparse deltas, 16 of 768 dims (wanted: at most 3x numpy):")
    alone = statistics.median(took["numpy"])
    for name, values in took.items():
        us = statistics.median(values)
        print(f"  {name:30} {us * 1e6:6.0f} us of CPU = {us / alone:.2f}x")


def admitted(rows: pa.RecordBatch, dims: int) -> tuple[Chains, pa.RecordBatch, np.ndarray]:
    words = rows.column("vector_id").dictionary_encode()
    vec = words.indices.to_numpy().astype(np.int64)
    empty = Chains.empty(dims, words.dictionary)
    admission = DeltaAdmission(empty, DeltaRows(rows), vec, ParentLimits(10**10, 1000))
    return admission.admit(empty)[0], rows, vec


def engine(rows: int = 1_000_000) -> None:
    """The columnar engine on 100,000 vectors x 128 dims."""
    dims, vectors, wide = 128, 100_000, 8
    batch = sparse_rows(rows, vectors, dims, wide)
    chains, _, vec = admitted(batch, dims)
    full, tiered = Compactor(FullMerge()), Compactor(TieredMerge(3), delta_threshold=4)

    def fresh() -> Chains:
        return Chains(*(getattr(chains, f) for f in Chains.__dataclass_fields__))

    def run_compose() -> None:
        fresh().compose()

    def run_full() -> None:
        c = fresh()
        full.carry_out(c, full.plan(c))

    def run_tiered() -> None:
        c = fresh()
        tiered.carry_out(c, tiered.plan(c))

    def run_merge() -> None:
        c = fresh()
        runs = c.start[:-1][c.pending > 0], c.start[1:][c.pending > 0]
        merge_runs(c.source.arrays, c.index, *map(as_readonly, runs), dims, rows * wide)

    def run_admit() -> None:
        empty = Chains.empty(dims, chains.ids)
        DeltaAdmission(empty, DeltaRows(batch), vec, ParentLimits(10**10, 1000)).admit(empty)

    out = np.zeros((len(chains), dims))
    flat_index = (chains.vec.repeat(wide), DeltaRows(chains.rows).arrays.indices)

    values = DeltaRows(chains.rows).arrays.values

    def numpy_scatter() -> None:
        out[flat_index] = values

    took = medians(
        {"compose": run_compose, "full merge": run_full, "tiered merge": run_tiered,
         "merge without base": run_merge, "admit (check, dedup, order)": run_admit,
         "one numpy scatter of all values": numpy_scatter}, 3)  # fmt: skip
    print(f"engine, {rows:,} sparse deltas ({wide} of {dims}) over {vectors:,} vectors:")
    for name, seconds in took.items():
        print(f"  {name:34} {rows / seconds / 1e6:6.2f} M deltas/s")


def stage(rows: int = 300_000) -> None:
    """The pipeline stage, collections of 50,000 rows."""
    dims, vectors = 128, 2_000
    batch = sparse_rows(rows, vectors, dims, 8)
    stage_ = Compact(dims)

    def run() -> None:
        state = stage_.open()
        for first in range(0, rows, 50_000):
            part = batch.slice(first, 50_000)
            stage_.process(state, Collection.of(part, part.column("time_ns").to_numpy()))

    took = medians({"stage": run}, 2)
    print(f"stage: {rows / took['stage'] / 1e6:.2f} M deltas/s, {vectors:,} vectors in one lane")


def storage(rows: int = 300_000) -> None:
    """Bytes on disk. Workload: sparse updates of 16 of 128 dims, 1,000 vectors, random values."""
    dims, vectors = 128, 1_000
    batch = sparse_rows(rows, vectors, dims, 16)
    print(f"storage, {rows:,} sparse updates (16 of {dims} dims) of {vectors:,} vectors, zstd:")
    with tempfile.TemporaryDirectory() as folder:
        for strategy in (TieredMerge(10), FullMerge(), Adaptive(10)):
            table = DeltaTable.create(Path(folder) / strategy.name, dims, buckets=4)
            table.append(batch)
            before = table.bytes
            compact_table(table.root, Compactor(strategy))
            print(f"  {strategy.name:14} {before / 1e6:7.1f} MB -> {table.bytes / 1e6:6.1f} MB "
                  f"= {before / table.bytes:.1f}x smaller")  # fmt: skip
        # few updates of wide vectors: a checkpoint would be larger than the deltas
        rare = sparse_rows(20_000, 1_000, 768, 2)
        for strategy in (TieredMerge(1), Adaptive(1)):
            table = DeltaTable.create(Path(folder) / f"rare-{strategy.name}", 768, buckets=4)
            table.append(rare)
            before = table.bytes
            compact_table(table.root, Compactor(strategy, delta_threshold=5))
            print(f"  rare updates (2 of 768 dims, 20 each), {strategy.name:13} "
                  f"{before / 1e6:5.2f} MB -> {table.bytes / 1e6:5.2f} MB")  # fmt: skip


def spark(rows: int = 2_000_000, vectors: int = 100_000, dims: int = 128, turns: int = 3) -> None:
    """The batch job against a Spark groupBy-applyInArrow that only concatenates."""
    from pyspark.sql import functions as F  # noqa: N812

    from tidegate.spark import session
    from tidegate.spark.compaction import compact_table as compact_on_spark

    engine_ = session(settings={"spark.driver.memory": "6g"})
    with tempfile.TemporaryDirectory() as folder:
        table = DeltaTable.create(Path(folder) / "t", dims, buckets=16)
        for first in range(0, rows, 500_000):
            piece = sparse_rows(min(500_000, rows - first), vectors, dims, 4, first)
            table.append(piece, batch=str(first))
        files = [str(table.root / f.path) for f in table.log.latest().files]
        print(f"spark, {rows:,} deltas (4 of {dims} dims) over {vectors:,} vectors, "
              f"{table.bytes / 1e6:.0f} MB in {len(files)} files:")  # fmt: skip
        frame = engine_.read.parquet(*files)

        def same(part: pa.Table) -> pa.Table:
            return pa.concat_tables([part]).drop(["bucket"])

        def concatenate() -> None:
            # our limit of bytes per hop makes Java count null lists anew at every row
            engine_.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(2**31 - 1))
            keyed = frame.withColumn("bucket", F.pmod(F.hash("vector_id"), F.lit(16)))
            made = keyed.groupBy("bucket").applyInArrow(same, frame.schema)
            made.write.mode("overwrite").parquet(f"{folder}/concatenated")

        def compacting() -> None:
            report = compact_on_spark(
                table.root, Compactor(FullMerge(), delta_threshold=2), spark=engine_
            )
            assert report.vectors, report

        ours, theirs = [], []
        base = table.log.latest()
        keep = {f.path: (table.root / f.path).read_bytes() for f in base.files}
        for turn in range(turns):
            theirs.append(_both_clocks(concatenate))
            ours.append(_both_clocks(compacting))
            print(f"  turn {turn}, seconds (CPU): concatenation {theirs[-1][0]:.1f} "
                  f"({theirs[-1][1]:.1f}), compaction {ours[-1][0]:.1f} ({ours[-1][1]:.1f})",
                  flush=True)  # fmt: skip
            if turn < turns - 1:  # back to the uncompacted table
                for path, content in keep.items():
                    (table.root / path).write_bytes(content)
                newest = table.log.latest()
                table.log.commit(table.log.following(newest, files=base.files))
        for place, clock in enumerate(("wall", "CPU")):
            a = statistics.median(took[place] for took in ours[1:])
            b = statistics.median(took[place] for took in theirs[1:])
            print(f"  per second of {clock}: compaction {rows / a / 1e6:.2f} M rows, groupBy-"
                  f"applyInArrow that only concatenates {rows / b / 1e6:.2f} M rows: "
                  f"{b / a:.2f} of it")  # fmt: skip


def _both_clocks(call: Callable[[], None]) -> tuple[float, float]:
    """Seconds by the clock, and CPU seconds of this process and all it started."""
    start, cpu = time.perf_counter(), cpu_seconds()
    call()
    return time.perf_counter() - start, cpu_seconds() - cpu


ALL = {"compose": compose, "engine": engine, "stage": stage, "storage": storage, "spark": spark}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(ALL))
    parser.add_argument("--rows", type=int, help="rows of engine, stage, storage and spark")
    parser.add_argument("--turns", type=int, default=3, help="turns of spark; the first warms up")
    options = parser.parse_args()
    assert DELTAS.names[0] == "delta_id"
    for name in options.names or [n for n in ALL if n != "spark"]:
        if name == "spark":
            spark(options.rows or 2_000_000, turns=max(2, options.turns))
        elif options.rows and name != "compose":
            ALL[name](options.rows)  # type: ignore[call-arg]
        else:
            ALL[name]()
