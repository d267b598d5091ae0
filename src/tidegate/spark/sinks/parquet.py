"""The Parquet sink: one table per kind of outcome, exactly once.

    OUT/data/batch=00000012/e1-part-00001-37.parquet  one folder per kind and micro-batch
    OUT/_commits/00000012.json                        written last: the batch is whole
    OUT/_staging/                                     files of a batch that is being written
    OUT/_epochs/                                      who writes here; see `tidegate.output.epochs`
    OUT/_checkpoint/                                  Spark's own, unless told otherwise

Spark may run a micro-batch again after a crash. A batch whose commit is there is not written again;
one without it is removed and written anew, from the same input and the same state, so the rows are
the same. Files are written where the blobs are, by pyarrow, and moved into place by the driver.
What is named by a commit is on disk: files and folders are synced before the record is created.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from tidegate.core.arrow import conform, cut_by_bytes
from tidegate.core.text import plural
from tidegate.errors import ConfigError, StateError
from tidegate.output.commit import FOLDER, Commit, CommitLog
from tidegate.output.epochs import LEASE_S, Claim, Epochs
from tidegate.output.filesystem import filesystem, sync_file, sync_folder
from tidegate.output.maintenance import (
    FOLD,
    Maintenance,
    batch_folder,
    placed_file,
    remove_batch,
    remove_staging,
    staging_folder,
)
from tidegate.output.parquet_columns import text_columns
from tidegate.spark.pack import Attaches, from_blob
from tidegate.spark.sinks.registry import SinkRequest, commit_state_only

__all__ = ["BlobWriter", "ParquetSink"]

log = logging.getLogger(__name__)

GROUP_BYTES = 64 * 2**20
"""Bytes of a row group, about. Readers hold one whole, several times over while they decode it; all
rows of a micro-batch in one took a gigabyte where they had images. Rows without payload stay far
below."""

COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "none")

MANIFEST_DDL = (
    "kind string, shard int, rows long, watermark_ns long, metrics map<string,bigint>, file string"
)
"""What a writing task returns: a row per file, and the metrics rows of the step as they came."""


class ParquetSink:
    """Writes the packed outcomes of a pipeline to one Parquet table per kind.

    Option `compression`: zstd (default: half the size of snappy here at the same speed), snappy,
    gzip, lz4 or none.
    """

    compressions: ClassVar[tuple[str, ...]] = COMPRESSIONS
    options: ClassVar[tuple[str, ...]] = ("compression",)
    attaches_payload: ClassVar[bool] = True
    merges: ClassVar[bool] = True
    """Whether small files of old batches are merged as the run goes."""

    def __init__(self, request: SinkRequest) -> None:
        request.check_options(*self.options)
        self.compression = request.options.get("compression", "zstd")
        if self.compression not in self.compressions:
            expected = f"must be one of {self.compressions}"
            raise ConfigError("sink.options.compression", self.compression, expected)
        self.path = request.path
        self.schemas = request.schemas
        self.payload = request.payload
        self.commits = CommitLog.at(request.path, "sink.path")
        self.fs, self.root = self.commits.fs, self.commits.root
        self.epochs = Epochs(request.path, self.fs, self.root)
        self._take_over = request.take_over
        self._claim: Claim | None = None
        self._before_checked = False
        self.fold = FOLD
        self._since_tidied: int | None = None

    # -- the two entry points -------------------------------------------------------------------

    def write(self, outcomes: DataFrame, batch: int, query: str) -> Commit:
        """Write one micro-batch, or find that it is written already.

        A sink that nobody has claimed for a run claims the output for itself, without a lease.

        Raises:
            StateError: If another driver has taken over, the batch is that of another query, or a
                record is damaged.
        """
        claim = self._claim or self._claim_now(lease_s=0)
        claim.check()
        commit = self.commits.read(batch)
        if commit is not None:
            if commit.query != query:
                raise StateError(
                    f"{self.path} holds batch {batch} of another query ({commit.query}); "
                    "use another output path, or the checkpoint that belongs to it"
                )
            commit_state_only(outcomes)
            remove_staging(self.fs, self.root, claim.epoch)
            return commit
        self._check_before(batch)
        kinds = [kind for kind in self.schemas if not self._holds(kind, batch)]
        remove_batch(self.fs, self.root, kinds, batch, claim.epoch)
        remove_staging(self.fs, self.root, claim.epoch)
        writer = self._writer(f"{self.root}/{staging_folder(claim.epoch, batch)}")
        manifest = outcomes.mapInArrow(writer, MANIFEST_DDL).collect()
        return self._commit(claim, batch, query, manifest)

    def claim(self) -> Claim:
        """Claim the output for a run. Raises ConfigError if another driver is writing there."""
        claim = self._claim_now(lease_s=LEASE_S)
        with contextlib.suppress(OSError):  # every batch does it too; this is for a run without one
            remove_staging(self.fs, self.root, claim.epoch)
        return claim

    def join(self, epoch: int) -> None:
        """Write under an epoch that another process has claimed for this run, and renews.

        Raises StateError if it is not there: this is not the folder that was claimed.
        """
        self._claim = self.epochs.joined(epoch)

    def check_free(self) -> None:
        """Raise ConfigError if another driver is writing there; claims nothing."""
        self.epochs.check_free(take_over=self._take_over)

    def check_unused(self) -> None:
        """Raise ConfigError if the output holds another run's rows."""
        held = len(self.commits.numbers())
        if held:
            some = plural(held, "batch", "batches")
            raise ConfigError(
                "sink.path", self.path,
                f"must be empty; it holds {some} of a run: give another path, or remove this "
                "one to run it again",
            )  # fmt: skip

    # -- the commit -----------------------------------------------------------------------------

    def _claim_now(self, lease_s: float) -> Claim:
        """Claim the next epoch, and fence off the drivers before it if they may wake up."""
        self._claim = claim = self.epochs.claim(lease_s=lease_s, take_over=self._take_over)
        if claim.owes_seal:
            self._fence(claim.epoch)
            self.commits.seal(claim.epoch)
            claim.sealed()
        self._tidy(claim)  # what the driver before left undone
        return claim

    def _commit(self, claim: Claim, batch: int, query: str, manifest: list[Any]) -> Commit:
        """Move the files of a batch into their tables, then write its record."""
        rows: dict[str, int] = {}
        files: list[str] = []
        placed: list[Placed] = []
        held: set[str] = set()
        written = [row for row in manifest if row.metrics is None]
        for row in written:
            rows[row.kind] = rows.get(row.kind, 0) + row.rows
            if self._holds(row.kind, batch):
                held.add(row.kind)
                continue
            file = placed_file(row.kind, batch, claim.epoch, row.file.rsplit("/", 1)[1])
            placed.append(Placed(row.kind, row.rows, file))
            self.fs.create_dir(f"{self.root}/{batch_folder(row.kind, batch)}")
            self.fs.move(row.file, f"{self.root}/{file}")
            files.append(file)
        for kind in {one.kind for one in placed}:
            sync_folder(self.fs, f"{self.root}/{batch_folder(kind, batch)}")
            sync_folder(self.fs, f"{self.root}/{kind}")
        for kind in sorted(held):
            files += self._held_files(kind, batch)
        self._publish(claim.epoch, batch, placed)
        metrics = [
            (row.shard, row.metrics, row.watermark_ns)
            for row in manifest
            if row.metrics is not None
        ]
        commit = replace(Commit.of(batch, query, rows, metrics, files), epoch=claim.epoch)
        with claim.lock:
            if claim.ended:  # this process has claimed the output anew: the lock is our fence
                claim.check()
            self.commits.write(commit)
        remove_staging(self.fs, self.root, claim.epoch)
        self._tidy(claim)
        return commit

    def _tidy(self, claim: Claim) -> None:
        """Fold records and merge files, every `fold` batches. What goes wrong with it must not end
        a run: it is logged, and tried again that many batches later."""
        if self._since_tidied is not None and self._since_tidied + 1 < self.fold:
            self._since_tidied += 1
            return
        self._since_tidied = 0
        try:
            self.maintenance(claim.epoch).run()
        except (OSError, StateError) as error:
            log.warning("%s was not tidied up: %s", self.path, error)

    def maintenance(self, epoch: int) -> Maintenance:
        """Return what keeps this output tidy, for the driver of an epoch."""
        return Maintenance(self.commits, epoch, merge=self.merges, fold=self.fold)

    def _writer(self, staging: str) -> BlobWriter:
        """What writes the files, on the workers; see `tidegate.spark.sinks.mcap` for another."""
        return BlobWriter(self.path, staging, self.schemas, self.compression, self.payload)

    # What a table format over the same files adds: see `tidegate.spark.sinks.delta`.

    def _holds(self, kind: str, batch: int) -> bool:
        """Whether a table has this batch already, though the batch as a whole has no commit."""
        return False

    def _held_files(self, kind: str, batch: int) -> list[str]:
        """The files, under the output, with which a table got a batch that it holds already."""
        return []

    def _publish(self, epoch: int, batch: int, files: Sequence[Placed]) -> None:
        """Make files that have been placed part of their tables."""

    def _fence(self, epoch: int) -> None:
        """Make sure that drivers before this epoch can add nothing to the tables."""

    def _check_before(self, batch: int) -> None:
        """Refuse to go on if the record of the batch before is damaged or lost: Spark has finished
        with that batch, so it would never be written again, and readers would miss its rows."""
        if self._before_checked:
            return
        if batch > 0 and self.commits.numbers() and self.commits.read(batch - 1) is None:
            raise StateError(
                f"{self.path}/{FOLDER} has no record of batch {batch - 1}, which is done; "
                "put it back, or use another output path and checkpoint"
            )
        self._before_checked = True


class Placed(NamedTuple):
    """A file that was moved to its table: kind, rows, and path under the output."""

    kind: str
    rows: int
    file: str


@dataclass(frozen=True)
class BlobWriter:
    """mapInArrow: blobs in, a file per kind and task out, and a manifest of them.

    The name of a file holds the number of Spark's attempt, so two attempts of a task never write
    the same file; only files of the manifest are moved into place.

    Args:
        path: The output path or URI; says which file system.
        staging: The folder, inside that file system, in which files are written.
        schemas: The Arrow schema of every kind.
        compression: As the file format calls it.
        payload: Gives rows the payload they did not carry; None: they carry it.
    """

    path: str
    staging: str
    schemas: dict[str, pa.Schema]
    compression: str
    payload: Attaches | None = None
    suffix: ClassVar[str] = "parquet"

    def open(self, file: str, kind: str, fs: pafs.FileSystem) -> Any:
        """Return a new file of a kind, an object with `write_batch` and `close`."""
        schema = self.schemas[kind]
        return pq.ParquetWriter(
            file, schema, filesystem=fs, compression=self.compression,
            use_dictionary=text_columns(schema),
        )  # fmt: skip

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        part, attempt = (context.partitionId(), context.taskAttemptId()) if context else (0, 0)
        fs, _ = filesystem(self.path)
        writers: dict[str, tuple[str, Any]] = {}
        counts: dict[str, int] = {}
        metrics: list[dict[str, Any]] = []
        for batch in batches:
            for row in _outcome_rows(batch):
                if row["blob"] is None:
                    metrics.append({**row, "file": None})
                    continue
                for kind, rows in self._rows(row):
                    if kind not in writers:
                        folder = f"{self.staging}/{kind}"
                        fs.create_dir(folder)
                        file = f"{folder}/part-{part:05d}-{attempt}.{self.suffix}"
                        writers[kind] = (file, self.open(file, kind, fs))
                    for group in cut_by_bytes(rows, GROUP_BYTES):
                        writers[kind][1].write_batch(group)
                    counts[kind] = counts.get(kind, 0) + rows.num_rows
        for file, writer in writers.values():
            writer.close()
            sync_file(fs, file)
        manifest = [
            {"kind": kind, "rows": counts[kind], "file": file}
            for kind, (file, _) in writers.items()
        ]
        yield pa.RecordBatch.from_pylist(manifest + metrics, schema=_MANIFEST)

    def _rows(self, row: dict[str, Any]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows of a blob in the schema of their kind, with the payload they lack."""
        kind, rows = row["kind"], from_blob(row["blob"])
        if self.payload is None:
            yield kind, conform(rows, self.schemas[kind])
        else:
            yield from self.payload.attach(kind, rows)


_MANIFEST = pa.schema(
    [
        ("kind", pa.string()),
        ("shard", pa.int32()),
        ("rows", pa.int64()),
        ("watermark_ns", pa.int64()),
        ("metrics", pa.map_(pa.string(), pa.int64())),
        ("file", pa.string()),
    ]
)
"""`MANIFEST_DDL` as an Arrow schema."""


def _outcome_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows of a step's output; blobs stay where they are, in the batch's own memory."""
    names = ["kind", "shard", "rows", "watermark_ns", "metrics"]
    blobs = batch.column(batch.schema.get_field_index("blob"))
    for row, blob in zip(batch.select(names).to_pylist(), blobs, strict=True):
        yield {**row, "blob": blob.as_buffer() if blob.is_valid else None}
