"""Results as a playable log: any table of a run, or aligned sets, as MCAP messages.

- A set becomes one message per member, all logged at the time of the set, so that a player shows
  them together; `publish_time` keeps each member's own time. A message on `sets` has its spread.
- A row of `data` that carries an encoded payload (`data` with its `encoding`, as the `mcap` source
  gives it) becomes that message again; every other row, and one with an `error`, becomes JSON.

What a message has no place for (a batch's number, decoded fields, where it was read) is attached:
the rows as a Parquet table, without the payloads that are messages already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.errors import ConfigError
from tidegate.mcap.payload.values import json_text
from tidegate.mcap.reader import McapFile
from tidegate.mcap.records import Schema
from tidegate.mcap.writer import Compression, McapWriter
from tidegate.output.commit import CommitLog

__all__ = ["Exporter", "export", "without_payloads", "write_table"]

Definitions = Callable[[str | None, str], Schema | None]
"""Finds a schema by the file a row came from (None if unknown) and the schema's name."""


def export(
    out: str | Path,
    file: str | Path,
    *,
    kinds: Sequence[str] = ("data",),
    key: Sequence[str] = (),
    schemas_from: Sequence[str | Path] = (),
    compression: Compression = "zstd",
) -> int:
    """Write tables of a finished or running output folder to an MCAP file.

    Only batches that are committed count.

    Args:
        out: The output folder of a run.
        file: The MCAP file to write; it appears when it is whole.
        kinds: Tables to write, such as `data`, `late` or `error`; folders of these names in `out`.
        key: Columns whose values become the first parts of every topic, such as `vehicle`.
        schemas_from: Recordings whose schemas describe payloads that are passed on; without them a
            player gets the payloads but cannot decode those that need a schema. For a schema name
            in several recordings, the first counts.
        compression: `zstd`, `lz4` or `none`.

    Returns:
        The number of messages written.

    Raises:
        ConfigError: `out` has no committed batch or already holds MCAP files, a table has no
            `time_ns`, or a key is not a column.
    """
    files = _committed(Path(out), kinds)
    with McapWriter(file, compression=compression) as log:
        exporter = Exporter(log, key, _schemas(schemas_from))
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
    """Write rows to an MCAP file, one message per row (several for aligned sets).

    Args:
        batches: The rows; each batch must have the column `time_ns` (ns since 1970).
        file: The MCAP file to write; it appears when it is whole.
        name: Topic of rows that have none of their own. Only under the default `data` are the
            column `topic` and encoded payloads of rows used.
        key: Columns whose values become the first parts of every topic.
        schemas_from: Recordings whose schemas describe payloads that are passed on.
        compression: `zstd`, `lz4` or `none`.

    Returns:
        The number of messages written.

    Raises:
        ConfigError: a batch has no `time_ns` or lacks a column of `key`.

    Example:
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
        exporter = Exporter(log, key, _schemas(schemas_from))
        for batch in batches:
            exporter.add(batch, name)
    return exporter.count


def _committed(out: Path, kinds: Sequence[str]) -> list[tuple[str, Path]]:
    """List the committed files of these kinds, in the order of their batches: (kind, path).

    Raises:
        ConfigError: nothing is committed, or the run wrote MCAP files itself.
    """
    commits = list(CommitLog.at(str(out), "out"))
    if not commits:
        raise ConfigError("out", str(out), "must be the output of a run with at least one batch")
    for commit in commits:
        logs = [name for name in commit.files if name.endswith(".mcap")]
        if logs:
            raise ConfigError("out", str(out), f"holds MCAP files already: {logs[0]}")
    return [(name.split("/", 1)[0], out / name)
            for commit in commits for name in commit.files
            if name.split("/", 1)[0] in kinds]  # fmt: skip


def _schemas(files: Sequence[str | Path]) -> Definitions:
    """Collect the schemas of recordings by name; the first of a name counts."""
    found: dict[str, Schema] = {}
    for path in files:
        with McapFile(path) as file:
            for channels in file.definitions():
                for schema in channels.schemas.values():
                    found.setdefault(schema.name, schema)
    return lambda _, name: found.get(name)


class Exporter:
    """Turns the rows of a run into messages of a log.

    Args:
        log: The file to write to. The caller closes it.
        key: Columns whose values become the first parts of every topic.
        definitions: Finds the schemas of payloads that are passed on; without it they have a schema
            name but no definition.
    """

    def __init__(
        self, log: McapWriter, key: Sequence[str] = (), definitions: Definitions | None = None
    ) -> None:
        self.log = log
        self.key = tuple(key)
        self.definitions = definitions
        self.count = 0

    def add(self, rows: pa.RecordBatch, name: str) -> None:
        """Write the rows of one kind.

        Args:
            rows: Must have `time_ns`, except for the kind `error`, and every key column.
            name: The kind. Only rows of `data` keep their own topic and payload.

        Raises:
            ConfigError: a column is missing.
        """
        if "time_ns" not in rows.schema.names and name != "error":
            raise ConfigError("table", name, "must have a column time_ns")
        for column in self.key:
            if column not in rows.schema.names:
                raise ConfigError("key", column, f"must be a column of {name}")
        members = _members(rows.schema)
        for row in rows.to_pylist():
            prefix = "".join(f"/{row[column]}" for column in self.key)
            messages = _set_messages(row, members) if members else _row_messages(row, name)
            for topic, log_ns, own_ns, content in messages:
                # A row without a time (an error) is shown at the start rather than left out.
                at, sent = max(log_ns or 0, 0), max(own_ns or log_ns or 0, 0)
                self._write(f"{prefix}/{topic.lstrip('/')}", at, sent, content, name == "data")

    def _write(
        self, topic: str, log_ns: int, own_ns: int, content: dict[str, Any], playable: bool
    ) -> None:
        """Write one message: the recorded payload if there is one, else the row as JSON."""
        encoding, data, name = content.get("encoding"), content.get("data"), content.get("schema")
        playable = playable and content.get("error") is None
        if playable and isinstance(encoding, str) and isinstance(data, bytes):
            known = None
            if name and self.definitions is not None:
                known = self.definitions(content.get("file"), name)
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
            self.log.message(channel, log_ns, json_text(content).encode(), own_ns)
        self.count += 1


_Message = tuple[str, int | None, int | None, dict[str, Any]]
"""Topic, log time, own time (None: the log time) and content of a message to write."""


def _members(schema: pa.Schema) -> list[str]:
    """Names of the member columns if the rows are aligned sets, else an empty list.

    A set has the column `spread_ns`; its members are structs with a `time_ns`.
    """
    if "spread_ns" not in schema.names:
        return []
    return [
        field.name
        for field in schema
        if pa.types.is_struct(field.type) and field.type.get_field_index("time_ns") >= 0
    ]


def _set_messages(row: dict[str, Any], members: Sequence[str]) -> Iterator[_Message]:
    """Yield the messages of a set: all but the members on `sets`, then one per member."""
    times = {name: row[name]["time_ns"] for name in members if row[name] is not None}
    at = row["time_ns"]
    rest = {name: value for name, value in row.items() if name not in members}
    yield "sets", at, at, {**rest, "times_ns": times}
    for name, own_ns in times.items():
        yield name, at, own_ns, row[name]


def _row_messages(row: dict[str, Any], name: str) -> Iterator[_Message]:
    """Yield the message of a row; its topic is the row's own for `data`, else the kind."""
    topic = row.get("topic") if name == "data" else None
    yield topic or name, row.get("time_ns"), None, row


# -- the attached table -------------------------------------------------------------------------


def without_payloads(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows without `data`, where that became a message unchanged.

    Applies to rows and to members of sets, wherever `data` stands beside an `encoding`.
    """
    made = rows
    for name in _members(rows.schema):
        place = made.schema.get_field_index(name)
        member = made.column(place)
        kept = _but_payload([member.type.field(n).name for n in range(member.type.num_fields)])
        inside = [pc.struct_field(member, each) for each in kept]
        small = pa.StructArray.from_arrays(inside, names=kept, mask=member.is_null())
        made = made.set_column(place, name, small)
    return made.select(_but_payload(made.schema.names))


def _but_payload(names: list[str]) -> list[str]:
    """Names without `data`, if `encoding` shows that it is an encoded payload."""
    return [name for name in names if name != "data"] if "encoding" in names else names
