"""Vectors in a Delta table: the newest stay, and a replay changes nothing, not even the log."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.deltas.table.table import vector_schema
from tidegate.deltas.table.to_delta import DeltaLakeVectors
from tidegate.errors import ConfigError
from tidegate.output.commit import Commit, StateError

deltalake = pytest.importorskip("deltalake")

Row = tuple[str, list[float] | None, int]


def rows(*given: Row) -> pa.RecordBatch:
    """(id, vector or None if deleted, version)"""
    return pa.RecordBatch.from_pylist(
        [
            {
                "vector_id": name,
                "vector": vector or [0.0, 0.0],
                "deleted": vector is None,
                "delta_count": version,
                "time_ns": version * 10,
            }
            for name, vector, version in given
        ],
        schema=vector_schema(2),
    )


def held(store: DeltaLakeVectors) -> dict[str, Any]:
    return {row["vector_id"]: (row["vector"], row["delta_count"], row["deleted"])
            for row in store.vectors().to_pylist()}  # fmt: skip


def test_a_replayed_batch_commits_nothing(tmp_path: Path) -> None:
    store = DeltaLakeVectors(tmp_path, 2)
    first = rows(("a", [1.0, 2.0], 1), ("b", [3.0, 4.0], 1), ("a", [1.5, 2.0], 2))
    assert store.upsert(first, query="q", batch=0) == 2
    assert store.upsert(rows(("a", [9.0, 9.0], 3)), query="q", batch=1) == 1
    version = store.table.version()
    again = DeltaLakeVectors(tmp_path, 2)  # as after a crash
    assert again.upsert(first, query="q", batch=0) == 0
    assert again.upsert(rows(("a", [9.0, 9.0], 3)), query="q", batch=1) == 0
    # not even with news: the batch of that number was another one
    assert again.upsert(rows(("c", [0.0, 1.0], 7)), query="q", batch=1) == 0
    assert again.table.version() == version
    assert held(again) == {"a": ([9.0, 9.0], 3, False), "b": ([3.0, 4.0], 1, False)}


def test_an_older_version_never_replaces_a_newer_one(tmp_path: Path) -> None:
    store = DeltaLakeVectors(tmp_path, 2)
    assert store.upsert(rows(("a", [1.0, 1.0], 5), ("b", None, 4))) == 2
    late = rows(
        ("a", [0.0, 0.0], 4), ("a", [0.0, 0.0], 5), ("b", [7.0, 7.0], 3), ("c", [2.0, 2.0], 1)
    )
    assert store.upsert(late, query="other", batch=9) == 1
    assert store.vector("b") is None
    assert store.vector("nobody") is None
    found = store.vector("a")
    assert found is not None
    assert found.tolist() == [1.0, 1.0]


def test_a_writer_that_is_behind(tmp_path: Path) -> None:
    one, two = DeltaLakeVectors(tmp_path, 2), DeltaLakeVectors(tmp_path, 2)
    for batch in range(3):  # each finds the table moved on since it last looked
        new = rows(("a", [float(batch), 0.0], batch + 1))
        assert one.upsert(new, query="q", batch=batch) == 1
        assert two.upsert(new, query="q", batch=batch) == 0
    assert held(one) == {"a": ([2.0, 0.0], 3, False)}


def test_two_writers_at_once(tmp_path: Path) -> None:
    def write(name: str) -> int:
        store, count = DeltaLakeVectors(tmp_path, 2), 0
        for batch in range(5):
            version = 2 * batch + (name == "q")
            new = rows(("shared", [float(version), 0.0], version), (name, [1.0, 1.0], batch))
            count += store.upsert(new, query=name, batch=batch)
        return count

    DeltaLakeVectors(tmp_path, 2)
    with ThreadPoolExecutor(2) as pool:
        counts = list(pool.map(write, ["p", "q"]))
    assert all(count >= 5 for count in counts)  # their own vector, each time
    assert held(DeltaLakeVectors(tmp_path, 2)) == {
        "shared": ([9.0, 0.0], 9, False),
        "p": ([1.0, 1.0], 4, False),
        "q": ([1.0, 1.0], 4, False),
    }


def test_the_output_of_a_run_is_taken_in_once(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "_commits").mkdir(parents=True)

    def commit(batch: int, new: pa.RecordBatch) -> None:
        file = out / f"data/batch={batch:08d}/0.parquet"
        file.parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_batches([new]), file)
        said = Commit(batch, "q", {"data": new.num_rows}, files=[str(file.relative_to(out))])
        (out / f"_commits/{batch:08d}.json").write_text(said.to_json())

    store = DeltaLakeVectors(tmp_path / "lake", 2)
    commit(0, rows(("a", [1.0, 1.0], 1)))
    assert store.take_in(out) == 1
    commit(1, rows(("a", [2.0, 2.0], 2), ("b", [1.0, 1.0], 1)))
    assert (store.take_in(out), store.take_in(out)) == (2, 0)
    assert held(store) == {"a": ([2.0, 2.0], 2, False), "b": ([1.0, 1.0], 1, False)}


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    store = DeltaLakeVectors(tmp_path / "a", 2)
    with pytest.raises(ConfigError, match=r"dims: got 3, the table .* has 2"):
        DeltaLakeVectors(tmp_path / "a", 3)
    with pytest.raises(ConfigError, match="batch: got None, must be given together"):
        store.upsert(rows(("a", [1.0, 1.0], 1)), query="q")
    deltalake.write_deltalake(tmp_path / "b", pa.table({"x": [1]}))
    with pytest.raises(StateError, match="holds no vectors of ours"):
        DeltaLakeVectors(tmp_path / "b", 2)
