"""Vector deltas, adaptive windows and compaction from one YAML file, on Spark.

    python examples/delta_pipeline.py [folder]

The stream of `vector_deltas.py`, split in three shards and a little out of order, is written to
Parquet files. `tidegate run delta_pipeline.yaml` takes it from there. The same file is then run in
process, and both must have made the same vectors. They go to a Delta table, twice, which changes
nothing the second time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from vector_deltas import DIMS, a_stream

from tidegate.core.outcomes import Collection
from tidegate.deltas.table import DeltaLakeVectors, VectorTable
from tidegate.pipeline import PipelineDefinition, plan
from tidegate.report.picture import compaction_picture

DEFINITION = Path(__file__).with_suffix(".yaml")


def a_recording() -> pa.Table:
    """The stream with a shard per document, as it arrived: up to 5 ms out of order."""
    rows = a_stream()
    arrived = np.argsort(np.arange(len(rows)) + np.random.default_rng(1).integers(0, 6, len(rows)))
    table = pa.Table.from_batches([rows]).take(pa.array(arrived))
    shard = [int(name.removeprefix("doc-")) % 3 for name in table.column("vector_id").to_pylist()]
    return (
        table.rename_columns({"time_ns": "made_at"})
        .append_column("shard", pa.array(shard))
        .append_column("arrival", pa.array(np.arange(len(table))))
    )


def newest(tables: list[pa.Table], path: Path) -> dict[str, list[float] | None]:
    """The newest of each vector; None if it is deleted."""
    store = VectorTable.create(path, DIMS)
    for table in tables:
        store.upsert(table)
    rows = [row for batch in store.vectors() for row in batch.to_pylist()]
    return {row["vector_id"]: None if row["deleted"] else row["vector"] for row in rows}


def in_process(recording: pa.Table) -> list[pa.Table]:
    """What the file makes of the recording without Spark, in pieces of 1,000 rows."""
    definition = PipelineDefinition.load(DEFINITION)
    flow = plan(definition, {"deltas": recording.schema}).flow()
    out = [o for piece in recording.to_batches(1_000) for o in flow.process(piece)]
    return [pa.Table.from_batches([o.table()])
            for o in [*out, *flow.end()] if isinstance(o, Collection)]  # fmt: skip


def main(folder: Path) -> int:
    """Run both; gives how many vectors differ."""
    recording = a_recording()
    (folder / "deltas").mkdir(parents=True)
    for number, first in enumerate(range(0, len(recording), 5_000)):
        pq.write_table(recording.slice(first, 5_000), folder / "deltas" / f"{number}.parquet")
    shutil.copy(DEFINITION, folder)
    command = [sys.executable, "-m", "tidegate", "run", DEFINITION.name]
    subprocess.run(command, cwd=folder, check=True, env={**os.environ, "COLUMNS": "100"})
    files = sorted((folder / "out" / "data").rglob("*.parquet"))
    spark = newest([pq.read_table(file, partitioning=None) for file in files], folder / "vectors")
    here = newest(in_process(recording.combine_chunks()), folder / "here")
    wrong = sum(spark.get(name) != vector for name, vector in here.items())
    print(f"{len(spark)} vectors from {len(recording):,} deltas; in process {len(here)}, "
          f"of which {wrong} differ")  # fmt: skip
    if find_spec("deltalake"):
        lake = DeltaLakeVectors(folder / "lake", DIMS)
        print(f"{lake.take_in(folder / 'out')} vectors went to a Delta table; "
              f"replayed: {lake.take_in(folder / 'out')} changed")  # fmt: skip
    compactions = pa.concat_tables(
        pq.read_table(file, partitioning=None)
        for file in sorted((folder / "out" / "compactions").rglob("*.parquet"))
    )
    picture = folder / "compaction.svg"
    picture.write_text(compaction_picture(compactions))
    print(f"picture: {picture}")
    return wrong + abs(len(spark) - len(here))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(main(Path(sys.argv[1])))
    with tempfile.TemporaryDirectory() as made:
        sys.exit(main(Path(made)))
