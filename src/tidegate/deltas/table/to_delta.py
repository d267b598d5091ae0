"""Vectors handed on to a Delta table: the newest of each, gated by version and by transaction.

Needs the extra `delta`. A batch that names its query and number is written in one commit together
with that number (Delta's application transactions), so a replay finds it and commits nothing. One
that does not is still gated by `delta_count`, as in `VectorTable`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
from numpy.typing import NDArray

from tidegate.core.checks import int_in
from tidegate.deltas.table.vectors import as_vectors, newest_only
from tidegate.errors import ConfigError, StateError
from tidegate.output.commit import CommitLog
from tidegate.output.reader import open_run

__all__ = ["DeltaLakeVectors"]

DIMS = "tidegate.dims"
"""The property of the table that says how long its vectors are: Delta's lists have no length."""

ATTEMPTS = 10
"""Commits of other writers between our reading and our commit before we give up."""


def _deltalake() -> Any:
    try:
        import deltalake
    except ImportError:
        raise ConfigError(
            "sink", "delta", 'needs the package deltalake: pip install "tidegate[delta]"'
        ) from None
    return deltalake


class DeltaLakeVectors:
    """A Delta table of the newest vectors, readable by anything that reads Delta.

    Args:
        path: where the table is or will be: a folder or a URL that deltalake understands.
        dims: the length of every vector (at least 1).

    Raises:
        ConfigError: the package deltalake is missing, or the table has other dimensions.
        StateError: there is a Delta table that is none of ours.
    """

    def __init__(self, path: str | Path, dims: int) -> None:
        self.dims = int_in("dims", dims, 1)
        self.path = str(path)
        self.lake = _deltalake()
        self.schema = pa.schema(
            [
                pa.field("vector_id", pa.string()),
                pa.field("vector", pa.list_(pa.float64())),
                pa.field("deleted", pa.bool_()),
                pa.field("delta_count", pa.int64()),
                pa.field("time_ns", pa.int64()),
            ]
        )
        self.table = self.lake.DeltaTable.create(
            self.path,
            self.schema,
            mode="ignore",
            configuration={DIMS: str(dims)},
            raise_if_key_not_exists=False,
        )
        found = self.table.metadata().configuration.get(DIMS)
        if found is None:
            raise StateError(f"{path} is a Delta table that holds no vectors of ours")
        if found != str(dims):
            raise ConfigError("dims", dims, f"the table {path} has {found}")

    def upsert(
        self, rows: pa.RecordBatch | pa.Table, *, query: str | None = None, batch: int | None = None
    ) -> int:
        """Take in vectors that are newer than the stored ones; gives how many were.

        A `batch` of a `query` that is in already, or comes before one that is, changes nothing.
        """
        if (query is None) != (batch is None):
            missing = "query" if query is None else "batch"
            raise ConfigError(missing, None, "must be given together with the other one")
        new = newest_only(as_vectors(rows, self.dims))
        if not new.num_rows:
            return 0
        source = pa.Table.from_batches([new]).cast(self.schema)
        for _ in range(ATTEMPTS):
            self.table.update_incremental()
            if query is not None and batch is not None and self._holds(query, batch):
                return 0
            try:
                return self._merge(source, query, batch)
            except self.lake.exceptions.CommitFailedError:
                continue  # another writer was first: look again at what the table holds now
        raise StateError(f"{self.path}: others committed {ATTEMPTS} times before us; try again")

    def _holds(self, query: str, batch: int) -> bool:
        last = self.table.transaction_version(query)
        return last is not None and last >= batch

    def _merge(self, source: pa.Table, query: str | None, batch: int | None) -> int:
        properties = None
        if query is not None and batch is not None:
            mark = self.lake.Transaction(query, batch)
            properties = self.lake.CommitProperties(app_transactions=[mark])
        done = (
            self.table.merge(
                source,
                "stored.vector_id = new.vector_id",
                source_alias="new",
                target_alias="stored",
                commit_properties=properties,
            )
            .when_matched_update_all("stored.delta_count < new.delta_count")
            .when_not_matched_insert_all()
            .execute()
        )
        return int(done["num_target_rows_updated"] + done["num_target_rows_inserted"])

    def take_in(self, out: str | Path) -> int:
        """Take in the vectors of a run's output folder (format parquet), batch by batch; gives how
        many were newer. Run again, it takes in only the batches that have come since."""
        count = 0
        if not any(True for _ in CommitLog.at(str(out), "out")):
            return 0
        for commit, rows in open_run(str(out)).rows_by_batch("data"):
            if not self._holds(commit.query, commit.batch):
                count += self.upsert(rows, query=commit.query, batch=commit.batch)
        return count

    def vector(self, vector_id: str) -> NDArray[np.float64] | None:
        """One vector; None if there is none, or it is deleted."""
        # read as views of text, which pyarrow cannot compare yet
        mine = pc.field("vector_id").cast(pa.string()) == vector_id
        found = self._read(columns=["vector", "deleted"], filters=mine)
        if not len(found) or found.column("deleted")[0].as_py():
            return None
        return np.array(found.column("vector")[0].as_py(), np.float64)

    def vectors(self) -> pa.Table:
        """All vectors, tombstones too."""
        return self._read().cast(self.schema)

    def _read(self, **wanted: Any) -> pa.Table:
        self.table.update_incremental()
        place = None
        if "://" not in self.path:
            # Through deltalake's own file system, in Python, a process now and then aborts as it
            # ends (seen with deltalake 1.6 and pyarrow 26).
            place = pafs.SubTreeFileSystem(str(Path(self.path).absolute()), pafs.LocalFileSystem())
        return self.table.to_pyarrow_table(filesystem=place, **wanted)
