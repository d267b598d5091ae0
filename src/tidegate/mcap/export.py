"""Results as a playable log: any table of a run, or aligned sets, as an MCAP file.

- A set becomes one message per member, all logged at the time of the set, so that a player shows
  them together; `publish_time` keeps each member's own time. A message on `sets` has its spread.
- A row that carries an encoded payload (`data` with its `encoding`, as the `mcap` source gives it)
  becomes that message again; every other row becomes JSON.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.errors import ConfigError
from tidegate.mcap.reader import McapFile, Selection
from tidegate.mcap.records import Schema
from tidegate.mcap.writer import Compression, McapWriter

__all__ = ["export", "write_table"]


def export(
    out: str | Path,
    file: str | Path,
    *,
    kinds: Sequence[str] = ("data",),
    key: Sequence[str] = (),
    schemas_from: Sequence[str | Path] = (),
    compression: Compression = "zstd",
) -> int:
    """Write tables of a finished or running output folder to `file`; returns the messages written.

    Only batches that are committed count. `key` columns become the first part of every topic.
    `schemas_from` are recordings whose schemas describe payloads that are passed on.
    """
    files = _committed(Path(out), kinds)
    with McapWriter(file, compression=compression) as log:
        exporter = _Exporter(log, tuple(key), _schemas(schemas_from))
        for kind, path in files:
            parquet = pq.ParquetFile(path)
            for batch in parquet.iter_batches():
                exporter.add(batch, kind)
    return exporter.count


def write_table(
    batches: Iterable[pa.RecordBatch],
    file: str | Path,
    *,
    name: str = "data",
    key: Sequence[str] = (),
    schemas_from: Sequence[str | Path] = (),
    compression: Compression = "zstd",
) -> int:
    """Write rows to `file`; each must have its time in `time_ns`. Returns the messages written.

    >>> import tempfile
    >>> from tidegate.mcap import read
    >>> path = tempfile.mkdtemp() + "/log.mcap"
    >>> write_table([pa.record_batch({"time_ns": [7], "speed": [2.5]})], path, name="speeds")
    1
    >>> row = next(read(path)).to_pylist()[0]
    >>> row["topic"], row["log_time_ns"], row["data"]
    ('/speeds', 7, b'{"time_ns": 7, "speed": 2.5}')
    """
    with McapWriter(file, compression=compression) as log:
        exporter = _Exporter(log, tuple(key), _schemas(schemas_from))
        for batch in batches:
            exporter.add(batch, name)
    return exporter.count


def _committed(out: Path, kinds: Sequence[str]) -> list[tuple[str, Path]]:
    commits = sorted((out / "_commits").glob("*.json"))
    if not commits:
        raise ConfigError("out", str(out), "must be the output of a run with at least one batch")
    found = []
    for commit in commits:
        for name in json.loads(commit.read_text())["files"]:
            kind = name.split("/", 1)[0]
            if kind in kinds:
                found.append((kind, out / name))
    return found


def _schemas(files: Sequence[str | Path]) -> dict[str, Schema]:
    found: dict[str, Schema] = {}
    for path in files:
        with McapFile(path) as file:
            if not file.index.indexed:  # its schemas stand among its messages
                for _ in file.batches(Selection()):
                    pass
            for schema in file.channels.schemas.values():
                found.setdefault(schema.name, schema)
    return found


class _Exporter:
    def __init__(
        self, log: McapWriter, key: tuple[str, ...], schemas: Mapping[str, Schema]
    ) -> None:
        self.log = log
        self.key = key
        self.schemas = schemas
        self.count = 0

    def add(self, rows: pa.RecordBatch, name: str) -> None:
        if "time_ns" not in rows.schema.names and name != "error":
            raise ConfigError("table", name, "must have a column time_ns")
        for column in self.key:
            if column not in rows.schema.names:
                raise ConfigError("key", column, f"must be a column of {name}")
        members = [
            field.name
            for field in rows.schema
            if pa.types.is_struct(field.type) and field.type.get_field_index("time_ns") >= 0
        ]
        is_set = bool(members) and "spread_ns" in rows.schema.names
        for row in rows.to_pylist():
            prefix = "".join(f"/{row[column]}" for column in self.key)
            messages = _set(row, members) if is_set else _single(row, name)
            for topic, log_ns, own_ns, content in messages:
                # A row without a time (an error) is shown at the start rather than left out.
                at, sent = max(log_ns or 0, 0), max(own_ns or log_ns or 0, 0)
                self._write(f"{prefix}/{topic.lstrip('/')}", at, sent, content)

    def _write(self, topic: str, log_ns: int, own_ns: int, content: dict[str, Any]) -> None:
        encoding, data, name = content.get("encoding"), content.get("data"), content.get("schema")
        if isinstance(encoding, str) and isinstance(data, bytes):
            known = self.schemas.get(name or "")
            channel = self.log.channel(
                topic,
                schema=name or "",
                schema_encoding=known.encoding if known else "",
                schema_data=known.data if known else b"",
                encoding=encoding,
            )
            sequence = content.get("sequence") or 0
            self.log.message(channel, log_ns, data, own_ns, sequence)
        else:
            channel = self.log.channel(
                topic, schema="tidegate.Row", schema_encoding="jsonschema",
                schema_data=b'{"type": "object"}', encoding="json",
            )  # fmt: skip
            self.log.message(channel, log_ns, json.dumps(content, default=_json).encode(), own_ns)
        self.count += 1


_Message = tuple[str, int | None, int | None, dict[str, Any]]


def _set(row: dict[str, Any], members: Sequence[str]) -> Iterator[_Message]:
    times = {name: row[name]["time_ns"] for name in members if row[name] is not None}
    at = row["time_ns"]
    rest = {name: value for name, value in row.items() if name not in members}
    yield "sets", at, at, {**rest, "times_ns": times}
    for name, own_ns in times.items():
        yield name, at, own_ns, row[name]


def _single(row: dict[str, Any], name: str) -> Iterator[_Message]:
    topic = row.get("topic") if name == "data" else None
    yield topic or name, row.get("time_ns"), None, row


def _json(value: object) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
