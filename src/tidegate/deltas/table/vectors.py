"""Vectors handed on to a Parquet table: the newest of each, gated by version.

A vector replaces the stored one only if its `delta_count` is greater, so a replay, or a batch that
arrives late, changes nothing. Deleted vectors stay as tombstones, or an old batch would bring them
back.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.core.checks import int_in
from tidegate.deltas.columns import find_vectors
from tidegate.deltas.table.table import vector_schema
from tidegate.deltas.table.versions import (
    READ_ATTEMPTS,
    DataFile,
    Step,
    Version,
    VersionConflict,
    VersionLog,
    bucket_of_id,
    no_step,
    read_data_file,
    write_data_file,
)
from tidegate.errors import StateError

__all__ = ["VectorTable", "as_vectors"]


def as_vectors(rows: pa.RecordBatch | pa.Table, dims: int) -> pa.RecordBatch:
    """Rows of a stage or a delta table as `vector_schema(dims)`; a missing vector becomes zeros."""
    if isinstance(rows, pa.Table):
        batches = rows.combine_chunks().to_batches()
        if not batches:
            return pa.RecordBatch.from_pylist([], schema=vector_schema(dims))
        rows = batches[0]
    schema = vector_schema(dims)
    vector = rows.column("vector")
    if not vector.type.equals(schema.field("vector").type):
        matrix = np.zeros((rows.num_rows, dims))
        there = np.flatnonzero(vector.is_valid().to_numpy(zero_copy_only=False))
        flat = vector.flatten().cast(pa.float64()).to_numpy()
        matrix[there] = flat.reshape(len(there), dims)
        vector = pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), dims)
    columns = [
        vector if field.name == "vector" else rows.column(field.name).cast(field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def newest_only(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Of each vector the row with the greatest version."""
    order = pc.sort_indices(
        rows, sort_keys=[("vector_id", "ascending"), ("delta_count", "ascending")]
    )
    rows = rows.take(order)
    ids = rows.column("vector_id").dictionary_encode().indices.to_numpy()
    last = np.ones(len(ids), np.bool_)
    last[:-1] = ids[1:] != ids[:-1]
    return rows.filter(pa.array(last))


class VectorTable:
    """The newest vectors in Parquet files, one per bucket.

    Args:
        path: the folder of a table made by `create`.
        step: called before every change on disk, for tests.

    Raises:
        StateError: there is no table of vectors.
    """

    def __init__(self, path: str | Path, step: Step = no_step) -> None:
        self.root = Path(path)
        self.log = VersionLog(self.root, step)
        settings = self.log.latest().settings
        if settings.get("kind") != "vectors":
            raise StateError(f"{path} is a table of {settings.get('kind')}, not of vectors")
        self.dims: int = settings["dims"]
        self.buckets: int = settings["buckets"]

    @classmethod
    def create(cls, path: str | Path, dims: int, *, buckets: int = 16) -> VectorTable:
        """A new, empty table.

        Args:
            path: a folder that holds no table yet.
            dims: the length of every vector (at least 1).
            buckets: how many files the vectors are spread over (at least 1). An upsert rewrites the
                files of the vectors it changes.
        """
        settings = {"dims": int_in("dims", dims, 1), "buckets": int_in("buckets", buckets, 1)}
        VersionLog(path).create({"kind": "vectors", **settings})
        return cls(path)

    def upsert(self, rows: pa.RecordBatch | pa.Table) -> int:
        """Take in vectors that are newer than the stored ones; gives how many were."""
        new = newest_only(as_vectors(rows, self.dims))
        if not new.num_rows:
            return 0
        while True:
            base = self.log.latest()
            try:
                added, removed, count = self._merged(base, new)
            except FileNotFoundError:
                continue  # another writer replaced the files meanwhile: start over
            if not count:
                return 0
            kept = tuple(file for file in base.files if file.path not in removed)
            try:
                self.log.commit(self.log.following(base, files=(*kept, *added)))
            except VersionConflict:
                for file in added:
                    (self.root / file.path).unlink(missing_ok=True)
                continue
            for path in removed:
                (self.root / path).unlink(missing_ok=True)
            return count

    def _merged(self, base: Version, new: pa.RecordBatch) -> tuple[list[DataFile], set[str], int]:
        bucket = bucket_of_id(new.column("vector_id"), self.buckets)
        added, removed, count = [], set(), 0
        for number in np.unique(bucket).tolist():
            mine = new.filter(pa.array(bucket == number))
            old = self._bucket(base, number)
            at = find_vectors(
                old.column("vector_id"),
                np.zeros(old.num_rows, np.int32),
                mine.column("vector_id"),
                np.zeros(mine.num_rows, np.int32),
            )
            stored = np.full(mine.num_rows, -1, np.int64)
            stored[at >= 0] = old.column("delta_count").to_numpy()[at[at >= 0]]
            newer = mine.column("delta_count").to_numpy() > stored
            if not newer.any():
                continue
            count += int(newer.sum())
            stays = np.ones(old.num_rows, np.bool_)
            stays[at[newer & (at >= 0)]] = False
            whole_ = pa.concat_batches([old.filter(pa.array(stays)), mine.filter(pa.array(newer))])
            removed |= {file.path for file in base.of_bucket(number)}
            self.log.step(f"vectors {number}")
            added.append(write_data_file(self.root, "vectors", number, whole_.sort_by("vector_id")))
        return added, removed, count

    def _bucket(self, version: Version, number: int, only: Any = None) -> pa.RecordBatch:
        files = version.of_bucket(number)
        if not files:
            return pa.RecordBatch.from_pylist([], schema=vector_schema(self.dims))
        return read_data_file(self.root, files[0], vector_schema(self.dims), only)

    def vector(self, vector_id: str) -> NDArray[np.float64] | None:
        """One vector; None if there is none, or it is deleted."""
        number = int(bucket_of_id(pa.array([vector_id]), self.buckets)[0])
        only = [("vector_id", "=", vector_id), ("deleted", "=", False)]
        row = self._newest_bucket(number, only)
        if not row.num_rows:
            return None
        found: NDArray[np.float64] = row.column("vector").flatten().to_numpy()
        return found

    def vectors(self) -> Iterator[pa.RecordBatch]:
        """All vectors, tombstones too, a bucket at a time."""
        for number in sorted({file.bucket for file in self.log.latest().files}):
            yield self._newest_bucket(number)

    def _newest_bucket(self, number: int, only: Any = None) -> pa.RecordBatch:
        """The rows of a bucket in the newest version; starts over if a writer replaces it."""
        for _ in range(READ_ATTEMPTS):
            try:
                return self._bucket(self.log.latest(), number, only)
            except FileNotFoundError:
                continue
        raise VersionConflict(f"{self.root}: bucket {number} is replaced faster than it is read")
