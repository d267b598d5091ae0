"""From a stream of vector deltas to a nearest-neighbour query.

    python examples/vector_deltas.py [folder]

Embeddings of 200 documents change all the time: created, nudged, scaled, deleted, some of it twice
and some of it out of order. A stage compacts their chains and hands vectors on; they go to a
Parquet table and to LanceDB, where we look for neighbours. Then the whole stream is replayed, as
after a crash, and nothing changes. Last, a picture of what compaction did.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa

from tidegate.core.outcomes import Collection, Dropped, Outcome, Side
from tidegate.deltas import (
    Add,
    Compact,
    Compactor,
    Create,
    Delete,
    Operation,
    Scale,
    Sparse,
    TieredMerge,
    VectorDelta,
    rows_from,
)
from tidegate.deltas.table import DeltaTable, LanceVectors, VectorTable, compact_table
from tidegate.report.picture import compaction_picture

DIMS, DOCUMENTS, UPDATES = 32, 200, 20_000


def a_stream(seed: int = 5) -> pa.RecordBatch:
    """Deltas in arrival order, a millisecond apart; one in a hundred arrives twice."""
    rng = np.random.default_rng(seed)
    deltas: list[VectorDelta] = []
    for n in range(UPDATES):
        document = n if n < DOCUMENTS else int(rng.integers(DOCUMENTS))
        operation: Operation
        chance = rng.random()
        if n < DOCUMENTS or chance < 0.01:
            operation = Create(rng.standard_normal(DIMS))
        elif chance < 0.012:
            operation = Delete()
        elif chance < 0.03:
            operation = Scale(0.99)
        elif chance < 0.5:
            operation = Add(rng.standard_normal(4) / 10, rng.choice(DIMS, 4, replace=False))
        else:
            operation = Sparse(rng.choice(DIMS, 4, replace=False), rng.standard_normal(4))
        deltas.append(VectorDelta(f"d{n}", f"doc-{document}", operation, n * 1_000_000))
        if rng.random() < 0.01:
            deltas.append(deltas[int(rng.integers(max(0, n - 20), n + 1))])
    return rows_from(deltas)


def compact(rows: pa.RecordBatch) -> list[Outcome]:
    """The stage in process, in collections of 2,000 rows. On Spark: frames(...).compact(32)."""
    stage = Compact(DIMS, TieredMerge(keep_recent=5), delta_threshold=20)
    state = stage.open()
    out: list[Outcome] = []
    for first in range(0, rows.num_rows, 2_000):
        part = rows.slice(first, 2_000)
        out += stage.process(state, Collection.of(part, part.column("time_ns").to_numpy()))
    return out + stage.flush(state)


def past_and_present(folder: Path, lance: LanceVectors, name: str) -> None:
    """Who is near a document now, and who was near it half the stream ago? LanceDB knows the newest
    vectors; the chains know every time inside the retention."""
    rows = a_stream()
    table = DeltaTable.create(folder / "deltas", DIMS, buckets=4)
    table.append(rows)
    half = int(rows.column("time_ns")[rows.num_rows // 2].as_py())
    span = int(rows.column("time_ns")[-1].as_py()) - half
    compact_table(table.root, Compactor(TieredMerge(5), delta_threshold=20, retention=span + 1))
    for label, at_ns in (("now", None), ("half the stream ago", half)):
        query = table.vector(name, at_ns)
        if query is None:
            print(f"  {name} did not exist {label}")
            continue
        found = [near.vector_id for near in table.nearest(query, limit=4, at_ns=at_ns)]
        print(f"  near {name} {label}, from the chains: {', '.join(found)}")
        if at_ns is None:
            same = found == [row["vector_id"] for row in lance.nearest(query, limit=4)]
            print(f"  LanceDB says {'the same' if same else 'something else'}")


def main(folder: Path) -> None:
    outcomes = compact(a_stream())
    vectors = [o.table() for o in outcomes if isinstance(o, Collection)]
    compactions = [o.table() for o in outcomes if isinstance(o, Side)]
    dropped = [o for o in outcomes if isinstance(o, Dropped)]
    print(f"{sum(len(o) for o in dropped)} deltas came twice and were counted once")

    parquet = VectorTable.create(folder / "vectors", DIMS)
    print(f"{sum(parquet.upsert(rows) for rows in vectors)} newer vectors went to Parquet")
    print(f"replayed: {sum(parquet.upsert(rows) for rows in vectors)} changed")

    if find_spec("lancedb"):
        lance = LanceVectors(str(folder / "lance"), DIMS, dtype="float32")
        for rows in vectors:
            lance.upsert(rows)
        print(f"{len(lance)} documents are alive in LanceDB; "
              f"replayed: {sum(lance.upsert(rows) for rows in vectors)} changed")  # fmt: skip
        name, query = next(
            (name, vector)
            for name in (f"doc-{n}" for n in range(DOCUMENTS))
            if (vector := parquet.vector(name)) is not None
        )
        for row in lance.nearest(query, limit=4):
            print(f"  near {name}: {row['vector_id']:8} at distance {row['_distance']:.2f}")
        past_and_present(folder, lance, name)
    else:
        print('no neighbours without LanceDB: pip install "tidegate[lance]"')

    picture = folder / "compaction.svg"
    picture.write_text(compaction_picture(pa.Table.from_batches(compactions)))
    print(f"picture: {picture}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made))
