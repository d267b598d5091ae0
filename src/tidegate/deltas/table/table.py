"""A stored table of deltas: appended to, read as vectors, compacted bucket by bucket.

Per bucket of vectors there are four kinds of Parquet files: `deltas` as they were appended,
`checkpoints` and `pending` as the last compaction left them, and `refused` with a reason each.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from tidegate.core.arrow import concat
from tidegate.core.checks import duration, int_in
from tidegate.core.outcomes import Int64s
from tidegate.core.time import Duration
from tidegate.deltas.admission import DeltaAdmission, ParentLimits
from tidegate.deltas.columns import (
    Chains,
    Composed,
    DeltaRows,
    chains_from_tables,
    checkpoint_schema,
    find_vectors,
    normalise,
    vector_column,
)
from tidegate.deltas.kernels import DeltaVerdict
from tidegate.deltas.neighbours import NearestSearch, Neighbour
from tidegate.deltas.operations import DELTAS, VectorDelta, rows_from
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
    remove_unnamed_files,
    write_data_file,
)
from tidegate.errors import StateError

__all__ = ["Bucket", "DeltaTable", "refused_rows", "vector_schema"]

REFUSED = DELTAS.append(pa.field("reason", pa.string()))
"""The schema of refused deltas: a delta and why it was not let in."""
BATCHES_KEPT = 1000
"""Batch ids remembered to recognise an append that comes again. Fewer, and a replay that reaches
far back is appended twice; more, and every version file grows by their length."""


def vector_schema(dims: int) -> pa.Schema:
    """Vectors as they are handed on: `delta_count` is the version of each."""
    return pa.schema(
        [
            pa.field("vector_id", pa.string()),
            pa.field("vector", pa.list_(pa.float64(), dims)),
            pa.field("deleted", pa.bool_()),
            pa.field("delta_count", pa.int64()),
            pa.field("time_ns", pa.int64()),
        ]
    )


@dataclass(frozen=True)
class Bucket:
    """A bucket in memory: chains with everything admitted, and what became of the appended rows."""

    chains: Chains
    """The chains with all appended deltas admitted."""
    stored: Chains
    """The same vectors as the last compaction left them, without what was appended since."""
    admission: DeltaAdmission
    """What became of each appended row."""
    vec: Int64s
    """The vector of each appended row."""
    files: tuple[DataFile, ...]
    """The files it was read from."""


def refused_rows(rows: pa.RecordBatch, which: Int64s, reasons: list[str]) -> pa.RecordBatch:
    """Rows of the schema `REFUSED`.

    Args:
        rows: a batch of deltas.
        which: the refused ones.
        reasons: why, one sentence each.
    """
    columns = rows.take(pa.array(which)).columns
    return pa.RecordBatch.from_arrays([*columns, pa.array(reasons, pa.string())], schema=REFUSED)


class DeltaTable:
    """Deltas of many vectors on disk. Any number of processes may append, read and compact at once.

    Args:
        path: the folder of a table made by `create`.
        step: called before every change on disk, for tests.

    Raises:
        StateError: there is no table of deltas, or a newer version of Tidegate wrote it.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from tidegate.deltas import Create, Scale
        >>> with TemporaryDirectory() as folder:
        ...     table = DeltaTable.create(f"{folder}/t", dims=2)
        ...     _ = table.append([VectorDelta("a", "v", Create([1.0, 2.0]), 1)])
        ...     _ = table.append([VectorDelta("b", "v", Scale(2.0), 2)])
        ...     table.vector("v").tolist(), table.vector("v", at_ns=1).tolist()
        ([2.0, 4.0], [1.0, 2.0])
    """

    def __init__(self, path: str | Path, step: Step = no_step) -> None:
        self.root = Path(path)
        self.log = VersionLog(self.root, step)
        settings = self.log.latest().settings
        if settings.get("kind") != "deltas":
            raise StateError(f"{path} is a table of {settings.get('kind')}, not of deltas")
        self.dims: int = settings["dims"]
        self.buckets: int = settings["buckets"]
        self.limits = ParentLimits(settings["parent_wait_ns"], settings["max_waiting"])

    @classmethod
    def create(
        cls,
        path: str | Path,
        dims: int,
        *,
        buckets: int = 16,
        parent_wait: Duration = "10 s",
        max_waiting: int = 1000,
    ) -> DeltaTable:
        """A new, empty table.

        Args:
            path: a folder that holds no table yet.
            dims: the length of every vector (at least 1).
            buckets: how many parts the vectors are spread over (at least 1). A compaction handles
                one at a time, on Spark one per task: more parts need less memory and make more,
                smaller files.
            parent_wait: how long (event time) a delta waits for a parent that has not come.
            max_waiting: deltas per vector that may wait at once; more are refused.

        Raises:
            ConfigError: a setting is out of range, or the folder holds a table already.
        """
        settings = {
            "kind": "deltas",
            "dims": int_in("dims", dims, 1),
            "buckets": int_in("buckets", buckets, 1),
            "parent_wait_ns": duration("parent_wait", parent_wait),
            "max_waiting": int_in("max_waiting", max_waiting, 0),
        }
        VersionLog(path).create(settings)
        return cls(path)

    # -- writing ----------------------------------------------------------------------------------

    def append(
        self,
        deltas: pa.RecordBatch | pa.Table | Iterable[VectorDelta],
        batch: str | None = None,
    ) -> pa.RecordBatch:
        """Store deltas in arrival order.

        Args:
            deltas: rows (columns as in `DELTAS`, missing ones are null) or delta objects.
            batch: an id for this append. One that was appended before, among the last 1000, changes
                nothing: so an append can be repeated after a crash. None: always appended.

        Returns:
            The deltas that can never be used, each with its reason; they are stored beside the
            others.

        Raises:
            ConfigError: a column has a type that cannot be read.
        """
        rows = self._rows(deltas)
        if rows.num_rows == 0 or (batch is not None and batch in self.log.latest().batches):
            return pa.RecordBatch.from_pylist([], schema=REFUSED)
        verdict, where = DeltaRows(rows).verdicts(self.dims)
        bad = np.flatnonzero(verdict != DeltaVerdict.OPEN)
        words = [
            DeltaVerdict(verdict[r]).sentence(where=int(where[r]), dims=self.dims)
            for r in bad.tolist()
        ]
        good = np.flatnonzero(verdict == DeltaVerdict.OPEN)
        files = self._split("deltas", rows.take(pa.array(good)))
        told = refused_rows(rows, bad, words)
        if len(bad):
            self.log.step("refused")
            files.append(write_data_file(self.root, "refused", 0, told))
        while True:
            base = self.log.latest()
            if batch is not None and batch in base.batches:
                break  # another writer was first; our files stay unnamed
            seen = base.batches if batch is None else (*base.batches, batch)[-BATCHES_KEPT:]
            try:
                self.log.commit(self.log.following(base, files=(*base.files, *files), batches=seen))
                break
            except VersionConflict:
                continue
        return told

    def _rows(self, deltas: pa.RecordBatch | pa.Table | Iterable[VectorDelta]) -> pa.RecordBatch:
        if isinstance(deltas, pa.Table):
            batches = deltas.combine_chunks().to_batches()
            return normalise(batches[0]) if batches else rows_from([])
        return normalise(deltas) if isinstance(deltas, pa.RecordBatch) else rows_from(deltas)

    def _split(self, kind: str, rows: pa.RecordBatch) -> list[DataFile]:
        """Write rows to one file per bucket, in the order they came."""
        bucket = bucket_of_id(rows.column("vector_id"), self.buckets)
        order = np.argsort(bucket, kind="stable")
        edges = np.searchsorted(bucket[order], np.arange(self.buckets + 1))
        out = []
        for number in np.unique(bucket).tolist():
            part = rows.take(pa.array(order[edges[number] : edges[number + 1]]))
            self.log.step(f"append {number}")
            out.append(write_data_file(self.root, kind, number, part))
        return out

    # -- reading ----------------------------------------------------------------------------------

    def vector(self, vector_id: str, at_ns: int | None = None) -> NDArray[np.float64] | None:
        """Read one vector.

        Args:
            vector_id: its id.
            at_ns: event time, nanoseconds since the epoch; None: now.

        Returns:
            The vector; None if there is none, or it is deleted.

        Raises:
            ConfigError: that time lies before a checkpoint or inside merged deltas.
        """
        number = int(bucket_of_id(pa.array([vector_id]), self.buckets)[0])
        chains = self.load(number, vector_id=vector_id).chains
        if not len(chains):
            return None
        composed = chains.compose(at_ns=at_ns)
        return composed.vectors[0] if composed.exists[0] else None

    def vectors(self, at_ns: int | None = None) -> Iterator[pa.RecordBatch]:
        """Read all vectors, a bucket at a time, so that one bucket must fit into memory.

        Args:
            at_ns: as for `vector`.

        Returns:
            Batches of the schema `vector_schema`, tombstones included.
        """
        for number in range(self.buckets):
            chains = self.load(number).chains
            if len(chains):
                yield _handed_on(chains, chains.compose(at_ns=at_ns))

    def nearest(
        self,
        query: ArrayLike,
        limit: int = 10,
        *,
        at_ns: int | None = None,
        metric: str = "l2",
    ) -> list[Neighbour]:
        """The nearest vectors in the table, now or as of a time, a bucket at a time.

        Args:
            query: the vector to be near to.
            limit: how many to find (at least 1).
            at_ns: event time, nanoseconds since the epoch; None: now.
            metric: `l2` (squared Euclidean distance), `cosine` or `dot` (negated).

        Returns:
            At most `limit` neighbours, nearest first, equally near ones by id.

        Raises:
            ConfigError: a setting is out of range, or that time lies before a checkpoint or inside
                merged deltas: compact with a `retention` as long as the past you ask about.
        """
        search = NearestSearch(query, limit, at_ns=at_ns, metric=metric)
        for number in range(self.buckets):
            chains = self.load(number).chains
            if len(chains):
                search.add(chains)
        return search.found

    def history(self, vector_id: str) -> pa.RecordBatch:
        """What the chain of a vector consists of (`Chains.history`); empty if there is none.

        Args:
            vector_id: the id of the vector.
        """
        number = int(bucket_of_id(pa.array([vector_id]), self.buckets)[0])
        return self.load(number, vector_id=vector_id).chains.history()

    def refused(self) -> pa.RecordBatch:
        """Every delta that was not let in, with its reason."""
        return self._read(self.log.latest().files, "refused", REFUSED)

    @property
    def bytes(self) -> int:
        """Bytes on disk of the newest version, compressed."""
        return self.log.latest().bytes

    def load(
        self, bucket: int, version: Version | None = None, vector_id: str | None = None
    ) -> Bucket:
        """Read a bucket and admit what was appended to it. Nothing is written.

        Args:
            bucket: its number.
            version: the version to read; None: the newest, starting over if it is replaced
                meanwhile.
            vector_id: read this vector only; None: all.

        Raises:
            FileNotFoundError: files of the given `version` are gone.
            VersionConflict: without a version: the bucket was replaced at every one of
                `READ_ATTEMPTS`.
        """
        for _ in range(READ_ATTEMPTS):
            files = (version or self.log.latest()).of_bucket(bucket)
            try:
                return self._load(files, vector_id)
            except FileNotFoundError:
                # compacted and cleaned up meanwhile: the next version has the same vectors
                if version is not None:
                    raise
        raise VersionConflict(f"{self.root}: bucket {bucket} is replaced faster than it is read")

    def _load(self, files: tuple[DataFile, ...], vector_id: str | None) -> Bucket:
        """Read the files of a bucket into chains and admit the appended deltas."""
        only = None if vector_id is None else [("vector_id", "=", vector_id)]
        heads = self._read(files, "checkpoints", checkpoint_schema(self.dims), only)
        pending = self._read(files, "pending", DELTAS, only)
        appended = self._read(files, "deltas", DELTAS, only)
        ids = heads.column("vector_id")
        zeros = np.zeros(len(ids), np.int32)
        both = pa.concat_arrays([pending.column("vector_id"), appended.column("vector_id")])
        place = find_vectors(ids, zeros, both, np.zeros(len(both), np.int32))
        lead = len(pending.column("vector_id"))
        chains = chains_from_tables(heads, pending, np.arange(lead), place[:lead])
        fresh = both.take(pa.array(np.flatnonzero(place < 0))).unique()
        if len(fresh):
            zeros = np.zeros(len(fresh), np.int32)
            new = find_vectors(fresh, zeros, both, np.zeros(len(both), np.int32))
            place = np.where(place < 0, new + len(ids), place)
            chains = chains.plus(Chains.empty(self.dims, fresh))
        vec = place[lead:]
        admission = DeltaAdmission(chains, DeltaRows(appended), vec, self.limits)
        admitted, _ = admission.admit(chains)
        return Bucket(admitted, chains, admission, vec, files)

    def _read(
        self,
        files: Iterable[DataFile],
        kind: str,
        schema: pa.Schema,
        only: list[tuple[str, str, str]] | None = None,
    ) -> pa.RecordBatch:
        """Read the files of one kind as one batch; empty if there are none."""
        parts = [read_data_file(self.root, f, schema, only) for f in files if f.kind == kind]
        found = concat(parts)
        return found if found is not None else pa.RecordBatch.from_pylist([], schema=schema)

    # -- housekeeping -----------------------------------------------------------------------------

    def vacuum(self, grace_s: float = 3600.0) -> list[str]:
        """Remove files that are no part of the table and older than `grace_s` seconds: those of
        writers that died, and those a compaction replaced."""
        named = {file.path for file in self.log.latest().files}
        return remove_unnamed_files(self.root, named, time.time() - grace_s)


def _handed_on(chains: Chains, composed: Composed) -> pa.RecordBatch:
    """Composed vectors as rows of `vector_schema`; ones that never existed are left out, deleted
    ones are zeros."""
    there: Int64s = np.flatnonzero(composed.exists | composed.deleted)
    chosen = pa.array(there)
    vectors = np.where(composed.exists[there][:, None], composed.vectors[there], 0.0)
    return pa.RecordBatch.from_arrays(
        [
            chains.ids.take(chosen),
            vector_column(vectors),
            pa.array(composed.deleted[there]),
            pa.array(chains.total[there]),
            pa.array(chains.newest_ns[there]),
        ],
        schema=vector_schema(chains.dims),
    )
