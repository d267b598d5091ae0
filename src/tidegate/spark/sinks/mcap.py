"""MCAP files that any player opens, per kind and micro-batch, exactly once.

    OUT/data/batch=00000012/part-00001-37.mcap

Files are written where the blobs are and moved into place with the batch's commit, as the Parquet
sink does it: a batch that runs again is skipped if it is committed, else replaced. In each file
stand the messages (see `tidegate.mcap.export`) and, attached, the rows as a table.

Payloads that are passed on keep their definitions: those of the recording a row was read from, if
it is under `schemasPath`, else of the first recording there that has the schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, cast

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from tidegate.errors import ConfigError
from tidegate.mcap.export import Exporter, without_payloads
from tidegate.mcap.reader import ROWS_ATTACHMENT
from tidegate.mcap.records import Schema
from tidegate.mcap.writer import COMPRESSIONS, Compression, McapWriter
from tidegate.pipeline.definition import StreamDefinition
from tidegate.pipeline.secrets import resolve
from tidegate.pipeline.security import resolve_path
from tidegate.recordings.definitions import definitions_of, recordings_of
from tidegate.spark import options as o
from tidegate.spark.sinks.parquet import BlobWriter, ParquetSink
from tidegate.spark.sinks.registry import SinkRequest

__all__ = ["McapSink"]


class McapSink(ParquetSink):
    """Writes the packed outcomes of a pipeline to MCAP files, by kind.

    Options: `compression` (zstd, lz4 or none; default zstd), `key` (columns that begin every topic;
    default: the key of the first stream), `schemasPath` (recordings that define the payloads;
    default: those that are read).
    """

    compressions = COMPRESSIONS
    merges = False
    options = ("compression", "key", "schemasPath")

    def __init__(self, request: SinkRequest) -> None:
        request.check_local("mcap")
        super().__init__(request)
        self.key = o.name_list(request.options, "key") or ()
        for name in self.key:
            if name not in self.schemas["data"].names:
                known = ", ".join(self.schemas["data"].names)
                raise ConfigError("sink.options.key", name, f"must be a column: {known}")
        self.places = o.name_list(request.options, "schemasPath") or ()

    @staticmethod
    def defaults_of_streams(streams: Mapping[str, StreamDefinition]) -> dict[str, str]:
        """Options that follow from the streams: topics begin with the key, and recordings that are
        read say what their payloads look like."""
        sources = [stream.source for stream in streams.values() if stream.source is not None]
        paths = [s.path for s in sources if s.path is not None and s.format in ("mcap", "rosbag")]
        found = {"key": ",".join(next(iter(streams.values())).key)}
        if paths:
            found["schemasPath"] = ",".join(
                resolve_path(resolve(path, "path"), "path", pattern=True, written=path)
                for path in paths
            )
        return {name: value for name, value in found.items() if value}

    def _writer(self, staging: str) -> BlobWriter:
        return _McapFiles(
            self.path, staging, self.schemas, self.compression, self.payload, self.key, self.places
        )


@dataclass(frozen=True)
class _McapFiles(BlobWriter):
    """Writes MCAP files instead of Parquet. `key`: columns that begin every topic; `places`: where
    recordings are that define payloads.
    """

    key: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    suffix: ClassVar[str] = "mcap"

    def open(self, file: str, kind: str, fs: pafs.FileSystem) -> Any:
        own = [name for name in self.key if name in self.schemas[kind].names]
        return _McapFile(file, kind, own, _Definitions(self.places), self.compression)


class _McapFile:
    """A log under construction, and the table of its rows."""

    def __init__(
        self, file: str, kind: str, key: list[str], definitions: _Definitions, compression: str
    ) -> None:
        self.kind = kind
        self.log = McapWriter(file, compression=cast(Compression, compression))
        self.exporter = Exporter(self.log, key, definitions)
        self.table = pa.BufferOutputStream()
        self.rows: pq.ParquetWriter | None = None

    def write_batch(self, rows: pa.RecordBatch) -> None:
        """Add rows as messages, and to the attached table: data without payloads, others whole."""
        self.exporter.add(rows, self.kind)
        kept = without_payloads(rows) if self.kind == "data" else rows
        if self.rows is None:
            self.rows = pq.ParquetWriter(self.table, kept.schema, compression="zstd")
        self.rows.write_batch(kept)

    def close(self) -> None:
        """Attach the table and finish the log."""
        if self.rows is not None:
            self.rows.close()
            self.log.attach(
                ROWS_ATTACHMENT, "application/vnd.apache.parquet", self.table.getvalue()
            )
        self.log.close()


@dataclass
class _Definitions:
    """Schemas by the recording a row came from and their name; each recording is opened once."""

    places: tuple[str, ...]
    _of: dict[str, dict[str, Schema]] = field(default_factory=dict)
    _anywhere: dict[str, Schema | None] = field(default_factory=dict)

    def __call__(self, file: str | None, name: str) -> Schema | None:
        if file is not None and self._is_ours(file):
            found = self._in(file).get(name)
            if found is not None:
                return found
        if name not in self._anywhere:
            files = (each for place in self.places for each in recordings_of(place))
            every = (self._in(each).get(name) for each in files)
            self._anywhere[name] = next((one for one in every if one is not None), None)
        return self._anywhere[name]

    def _is_ours(self, file: str) -> bool:
        """A row may claim to come from anywhere; only recordings of the user's are opened."""
        place = Path(file).resolve()
        return any(place.is_relative_to(Path(_plain_part(each)).resolve()) for each in self.places)

    def _in(self, file: str) -> dict[str, Schema]:
        """Return the schemas of a recording by name; none if it is gone."""
        if file not in self._of:
            found: dict[str, Schema] = {}
            if Path(file).exists():
                for channels in definitions_of(file):
                    for schema in channels.schemas.values():
                        found.setdefault(schema.name, schema)
            self._of[file] = found
        return self._of[file]


def _plain_part(place: str) -> str:
    """A path up to its first sign of a pattern."""
    plain = place.removeprefix("file://")
    for sign in "*?[":
        if sign in plain:
            plain = plain.split(sign, 1)[0].rpartition("/")[0]
    return plain or "/"
