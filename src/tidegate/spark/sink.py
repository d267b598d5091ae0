"""The Parquet sink: one table per kind of outcome, exactly once.

    OUT/data/batch=00000012/part-00001-37.parquet     one folder per kind and micro-batch
    OUT/_commits/00000012.json                        written last: the batch is whole
    OUT/_staging/                                     files of a batch that is being written
    OUT/_checkpoint/                                  Spark's own, unless told otherwise

Spark may run a micro-batch again after a crash. A batch whose commit is there is not written again;
one without it is removed and written anew, from the same input and the same state, so the rows are
the same. Files are written where the blobs are, by pyarrow, and moved into place by the driver.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from tidegate.errors import ConfigError, StateError
from tidegate.spark.pack import fit, from_blob

__all__ = ["BlobWriter", "Commit", "ParquetSink", "filesystem", "run_for_state"]

MANIFEST_DDL = (
    "kind string, shard int, rows long, watermark_ns long, metrics map<string,bigint>, file string"
)


@dataclass(frozen=True)
class Commit:
    """What one micro-batch wrote: rows per kind, where time stands, the stages' metrics."""

    batch: int
    rows: dict[str, int]
    watermark_ns: int | None
    shards: dict[int, dict[str, int]]
    files: list[str]

    def to_json(self, query: str) -> str:
        return json.dumps({"query": query, **self.__dict__}, indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> tuple[str, Commit]:
        fields = json.loads(text)
        query = fields.pop("query")
        fields["shards"] = {int(shard): metrics for shard, metrics in fields["shards"].items()}
        return query, cls(**fields)


class ParquetSink:
    """Writes the packed outcomes of a pipeline to one Parquet table per kind."""

    def __init__(self, path: str, schemas: dict[str, pa.Schema], *, compression: str = "zstd"):
        self.fs, self.root = filesystem(path)
        self.path = path
        self.schemas = schemas
        self.compression = compression
        self._before_checked = False

    # -- the two entry points -------------------------------------------------------------------

    def write(self, outcomes: DataFrame, batch: int, query: str) -> Commit:
        """Write one micro-batch, or find that it is written already."""
        found = self._read_commit(batch)
        if found is not None:
            owner, commit = found
            if owner != query:
                raise StateError(
                    f"{self.path} holds batch {batch} of another query ({owner}); "
                    "use another output path, or the checkpoint that belongs to it"
                )
            run_for_state(outcomes)
            self._delete(f"{self.root}/_staging/{batch:08d}")
            return commit
        self._check_before(batch)
        self._remove(batch)
        writer = self._writer(f"{self.root}/_staging/{batch:08d}")
        manifest = outcomes.mapInArrow(writer, MANIFEST_DDL).collect()
        return self._commit(batch, query, manifest)

    def check_unused(self) -> None:
        """Refuse an output that holds another run's rows, before anything starts."""
        commits = self.commits()
        if commits:
            raise ConfigError(
                "sink.path", self.path, f"must be empty; it holds {len(commits)} batches already"
            )

    def commits(self) -> list[Commit]:
        """All batches that are whole, in order."""
        return [found[1] for n in self._numbers() if (found := self._read_commit(n))]

    def _numbers(self) -> list[int]:
        files = self.fs.get_file_info(
            pafs.FileSelector(f"{self.root}/_commits", allow_not_found=True)
        )
        return sorted(int(f.base_name[:-5]) for f in files if f.base_name.endswith(".json"))

    # -- the commit -----------------------------------------------------------------------------

    def _commit(self, batch: int, query: str, manifest: list[Any]) -> Commit:
        rows: dict[str, int] = {}
        files: list[str] = []
        shards: dict[int, dict[str, int]] = {}
        watermarks = []
        placed: list[Any] = []
        for row in manifest:
            if row.metrics is not None:
                shards[row.shard] = dict(row.metrics)
                if row.watermark_ns is not None:
                    watermarks.append(row.watermark_ns)
                continue
            rows[row.kind] = rows.get(row.kind, 0) + row.rows
            if self._holds(row.kind, batch):
                continue
            placed.append(row)
            folder = f"{self.root}/{row.kind}/batch={batch:08d}"
            self.fs.create_dir(folder)
            self.fs.move(row.file, f"{folder}/{row.file.rsplit('/', 1)[1]}")
            files.append(f"{row.kind}/batch={batch:08d}/{row.file.rsplit('/', 1)[1]}")
        self._publish(batch, self.schemas, placed)
        commit = Commit(batch, rows, max(watermarks, default=None), shards, sorted(files))
        self.fs.create_dir(f"{self.root}/_commits")
        final = f"{self.root}/_commits/{batch:08d}.json"
        with self.fs.open_output_stream(f"{self.root}/_commits/.{batch:08d}.tmp") as stream:
            stream.write(commit.to_json(query).encode())
        self.fs.move(f"{self.root}/_commits/.{batch:08d}.tmp", final)
        self._delete(f"{self.root}/_staging/{batch:08d}")
        return commit

    def _writer(self, staging: str) -> BlobWriter:
        """What writes the files, on the workers; see `tidegate.spark.sinks.mcap` for another."""
        return BlobWriter(self.path, staging, self.schemas, self.compression)

    # What a table format over the same files adds: see `tidegate.spark.sinks.delta`.

    def _holds(self, kind: str, batch: int) -> bool:
        """Whether a table has this batch already, though the batch as a whole has no commit."""
        return False

    def _publish(self, batch: int, schemas: dict[str, pa.Schema], files: list[Any]) -> None:
        """Make files that have been placed part of their tables."""

    def _read_commit(self, batch: int) -> tuple[str, Commit] | None:
        path = f"{self.root}/_commits/{batch:08d}.json"
        if self.fs.get_file_info(path).type == pafs.FileType.NotFound:
            return None
        with self.fs.open_input_stream(path) as stream:
            text = stream.read().decode(errors="replace")
        try:
            return Commit.from_json(text)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StateError(f"{path} is corrupt or newer than this version: {error}") from error

    def _check_before(self, batch: int) -> None:
        """Refuse to go on if the record of the batch before is damaged or lost: Spark has finished
        with that batch, so it would never be written again, and readers would miss its rows."""
        if self._before_checked:
            return
        if self._numbers() and batch > 0 and self._read_commit(batch - 1) is None:
            raise StateError(
                f"{self.path}/_commits has no record of batch {batch - 1}, which is done; "
                "put it back, or use another output path and checkpoint"
            )
        self._before_checked = True

    def _remove(self, batch: int) -> None:
        """Whatever a run that died left of this batch."""
        for kind in self.schemas:
            if not self._holds(kind, batch):
                self._delete(f"{self.root}/{kind}/batch={batch:08d}")
        self._delete(f"{self.root}/_staging/{batch:08d}")

    def _delete(self, folder: str) -> None:
        if self.fs.get_file_info(folder).type == pafs.FileType.Directory:
            self.fs.delete_dir(folder)


@dataclass(frozen=True)
class BlobWriter:
    """mapInArrow: blobs in, a Parquet file per kind and task out, and a manifest of them."""

    path: str
    staging: str
    schemas: dict[str, pa.Schema]
    compression: str
    suffix: ClassVar[str] = "parquet"

    def open(self, file: str, kind: str, fs: pafs.FileSystem) -> Any:
        """A file of a kind, with `write_batch` and `close`."""
        schema = self.schemas[kind]
        return pq.ParquetWriter(file, schema, filesystem=fs, compression=self.compression)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        part, attempt = (context.partitionId(), context.taskAttemptId()) if context else (0, 0)
        fs, _ = filesystem(self.path)
        writers: dict[str, tuple[str, Any]] = {}
        counts: dict[str, int] = {}
        metrics: list[dict[str, Any]] = []
        for batch in batches:
            for row in _rows(batch):
                if row["blob"] is None:
                    metrics.append({**row, "file": None})
                    continue
                kind = row["kind"]
                if kind not in writers:
                    folder = f"{self.staging}/{kind}"
                    fs.create_dir(folder)
                    file = f"{folder}/part-{part:05d}-{attempt}.{self.suffix}"
                    writers[kind] = (file, self.open(file, kind, fs))
                rows = fit(from_blob(row["blob"]), self.schemas[kind])
                writers[kind][1].write_batch(rows)
                counts[kind] = counts.get(kind, 0) + rows.num_rows
        for _, writer in writers.values():
            writer.close()
        manifest = [
            {"kind": kind, "rows": counts[kind], "file": file}
            for kind, (file, _) in writers.items()
        ]
        yield pa.RecordBatch.from_pylist(manifest + metrics, schema=_MANIFEST)


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


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows of a step's output; blobs stay where they are, in the batch's own memory."""
    names = ["kind", "shard", "rows", "watermark_ns", "metrics"]
    blobs = batch.column(batch.schema.get_field_index("blob"))
    for row, blob in zip(batch.select(names).to_pylist(), blobs, strict=True):
        yield {**row, "blob": blob.as_buffer() if blob.is_valid else None}


def run_for_state(outcomes: DataFrame) -> None:
    """Run a batch that is written already, and write nothing.

    A driver that died between our commit and Spark's runs the batch again. Spark then wants to see
    the state of every partition committed again, or refuses to go on, now and at every restart.
    """
    outcomes.write.format("noop").mode("overwrite").save()


def filesystem(path: str) -> tuple[pafs.FileSystem, str]:
    """The file system of a path or URI, and the path in it."""
    if "://" in path:
        fs, root = pafs.FileSystem.from_uri(path)
        return fs, root
    from pathlib import Path

    return pafs.LocalFileSystem(), str(Path(path).absolute())
