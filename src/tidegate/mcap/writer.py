"""Write an MCAP file that any player opens: chunked, compressed, with index and statistics.

Layout: magic, header, then definitions (schemas and channels, outside chunks) and chunks, each with
its message indexes behind it; data end; the summary (definitions again, chunk indexes, attachment
indexes, statistics); footer and magic. A reader that seeks needs only the end of the file; one that
streams meets every definition before the first message that uses it.

The file appears under its name only when it is whole and on disk; until then it is `NAME.partial`.
A crash leaves that partial file behind, which can be read as far as it was written.

No clock is read: all times come from the caller, in ns since 1970.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import ConfigError, ContractError
from tidegate.mcap import records as r

__all__ = ["COMPRESSIONS", "Compression", "McapWriter"]

Compression = Literal["zstd", "lz4", "none"]
"""How chunks are compressed: `zstd` packs best, `lz4` unpacks fastest, `none` leaves them readable.
"""
COMPRESSIONS: tuple[Compression, ...] = ("zstd", "lz4", "none")
"""The values of `compression`."""

CHUNK_BYTES = 4 << 20
"""Bytes of a chunk before compression. A reader unpacks a whole chunk for a single message, so
larger chunks make seeking slow and need memory; smaller ones pack worse and make the index long."""

_RECORD = np.dtype([("op", "u1"), ("length", "<u8"), *r.HEAD.descr], align=False)
"""A message record up to its payload: opcode, length and head. Written by columns, not one by one.
"""
_INDEX_ENTRY = np.dtype([("time", "<u8"), ("at", "<u8")])
"""An entry of a message index: log time, and offset in the decompressed chunk."""


@dataclass(frozen=True)
class _Chunk:
    """What the summary says about a chunk that was written."""

    start_ns: int
    """Smallest log time."""
    end_ns: int
    """Largest log time (inclusive)."""
    at: int
    """Offset of the chunk record in the file."""
    length: int
    """Bytes of the chunk record, with opcode and length."""
    indexes: dict[int, int]
    """By channel: the offset of its message index record."""
    index_length: int
    """Bytes of all message index records behind the chunk."""
    packed: int
    """Bytes of the records, compressed."""
    size: int
    """Bytes of the records, not compressed."""


class McapWriter:
    """A file under construction. Use it as a context manager: an exception inside leaves no file.

    Messages are written in the order of the calls; log times need not increase.

    Args:
        path: The file to write. An existing one is replaced when this one is closed.
        compression: `zstd` (default), `lz4` or `none`.
        chunk_bytes: Bytes of a chunk before compression, from 1 to 2**30. A message that is larger
            gets a chunk of its own.
        profile: The MCAP profile for the header, such as `ros2`; empty (default) for none.

    Raises:
        ConfigError: `compression` or `chunk_bytes` has another value.
        OSError: the file cannot be created.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        compression: Compression = "zstd",
        chunk_bytes: int = CHUNK_BYTES,
        profile: str = "",
    ) -> None:
        if compression not in COMPRESSIONS:
            raise ConfigError("compression", compression, f"must be one of {COMPRESSIONS}")
        if not 1 <= chunk_bytes <= 1 << 30:
            raise ConfigError("chunk_bytes", chunk_bytes, "must be from 1 to 2**30")
        self.path = Path(path)
        self._part = self.path.with_name(self.path.name + ".partial")
        self._codec = None if compression == "none" else pa.Codec(compression)
        self._codec_name = "" if compression == "none" else compression
        self._chunk_bytes = chunk_bytes
        self._file = open(self._part, "wb")  # noqa: SIM115  (closed by close and __exit__)
        self._at = 0
        self._schemas: dict[tuple[str, str, bytes], int] = {}
        self._definitions: list[bytes] = []
        self._channels: dict[tuple[Any, ...], int] = {}
        self._chunks: list[_Chunk] = []
        self._attached: list[bytes] = []
        self._counts: dict[int, int] = {}
        self._one: list[tuple[int, int, int, int, bytes]] = []
        self._one_bytes = 0
        self._write(
            r.MAGIC + _encode_record(r.HEADER, _encode_text(profile) + _encode_text("tidegate"))
        )

    def __enter__(self) -> McapWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()
            self._part.unlink(missing_ok=True)

    def channel(
        self,
        topic: str,
        *,
        schema: str = "",
        schema_encoding: str = "",
        schema_data: bytes = b"",
        encoding: str = "json",
    ) -> int:
        """Return the id of a channel, and define it on first use. The same arguments give the same
        id.

        Args:
            topic: Name of the topic.
            schema: Name of the message type. If empty, the channel has no schema and the next two
                arguments are ignored.
            schema_encoding: How `schema_data` is written, such as `ros2msg` or `jsonschema`.
            schema_data: The definition of the type.
            encoding: How the payloads are written, such as `cdr`, `protobuf` or `json`.

        Raises:
            ContractError: the file would have more than 65,535 channels; ids have 16 bits.
        """
        schema_id = 0
        if schema:
            named = (schema, schema_encoding, schema_data)
            if named not in self._schemas:
                number = len(self._schemas) + 1
                content = (
                    struct.pack("<H", number) + _encode_text(schema) + _encode_text(schema_encoding)
                )
                content += struct.pack("<I", len(schema_data)) + schema_data
                self._define(_encode_record(r.SCHEMA, content))
                self._schemas[named] = number
            schema_id = self._schemas[named]
        wanted = (topic, schema_id, encoding)
        if wanted not in self._channels:
            number = len(self._channels) + 1
            if number > 65_535:
                raise ContractError("an MCAP file has at most 65,535 channels")
            content = (
                struct.pack("<HH", number, schema_id) + _encode_text(topic) + _encode_text(encoding)
            )
            self._define(_encode_record(r.CHANNEL, content + struct.pack("<I", 0)))
            self._channels[wanted] = number
        return self._channels[wanted]

    def message(
        self,
        channel: int,
        log_time_ns: int,
        data: bytes,
        publish_time_ns: int | None = None,
        sequence: int = 0,
    ) -> None:
        """Write one message. It is buffered until a chunk is full; `messages` is faster for many.

        Args:
            channel: An id that `channel` returned. It is not checked.
            log_time_ns: When it was recorded, ns since 1970; not negative.
            data: The payload.
            publish_time_ns: When it was sent; by default the log time.
            sequence: A number of the sender's choice; its low 32 bits are kept.

        Raises:
            ContractError: a time is negative. Raised when the buffer is written, maybe by a later
                call.
        """
        sent = log_time_ns if publish_time_ns is None else publish_time_ns
        self._one.append((channel, log_time_ns, sent, sequence, data))
        self._one_bytes += len(data) + _RECORD.itemsize
        if self._one_bytes >= self._chunk_bytes:
            self._flush()

    def messages(
        self,
        channel: npt.ArrayLike,
        log_time_ns: npt.ArrayLike,
        data: pa.Array,
        publish_time_ns: npt.ArrayLike | None = None,
        sequence: npt.ArrayLike = 0,
    ) -> None:
        """Write many messages given as columns, in this order.

        Args:
            channel: Ids that `channel` returned; one for all, or one per message.
            log_time_ns: When each was recorded, ns since 1970; not negative.
            data: The payloads: a binary array without nulls. Its length is the number of messages.
            publish_time_ns: When each was sent; by default the log times.
            sequence: One number for all, or one per message; the low 32 bits are kept.

        Raises:
            ContractError: a time is negative; then none of these messages is written.
        """
        self._flush()
        self._columns(channel, log_time_ns, data, publish_time_ns, sequence)

    def attach(self, name: str, media_type: str, data: bytes | pa.Buffer) -> None:
        """Put a file of another kind into this one; players ignore it.

        Args:
            name: Its file name.
            media_type: Its MIME type.
            data: Its content.
        """
        self._flush()
        times = struct.pack("<QQ", 0, 0)
        told = _encode_text(name) + _encode_text(media_type)
        content = b"".join((times, told, struct.pack("<Q", len(data)), bytes(data)))
        at = self._at
        self._write(_encode_record(r.ATTACHMENT, content + struct.pack("<I", zlib.crc32(content))))
        entry = struct.pack("<QQ", at, self._at - at) + times + struct.pack("<Q", len(data)) + told
        self._attached.append(_encode_record(r.ATTACHMENT_INDEX, entry))

    def close(self) -> None:
        """Write what is buffered, the summary and the footer, sync to disk, and rename the file.

        Calling it again does nothing.
        """
        if self._file.closed:
            return
        self._flush()
        self._write(_encode_record(r.DATA_END, struct.pack("<I", 0)))
        summary = self._summary()
        start = self._at if summary else 0
        self._write(summary)
        foot = struct.pack("<BQQQ", r.FOOTER, 20, start, 0)
        checksum = zlib.crc32(summary + foot)
        self._write(foot + struct.pack("<I", checksum) + r.MAGIC)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._part, self.path)

    # -- inside ---------------------------------------------------------------------------------

    def _write(self, data: bytes) -> None:
        """Append bytes to the file and keep track of the offset."""
        self._file.write(data)
        self._at += len(data)

    def _define(self, record: bytes) -> None:
        """Write a schema or channel record now, and keep it for the summary."""
        # Definitions stand outside chunks, before the first message that needs them.
        self._flush()
        self._definitions.append(record)
        self._write(record)

    def _flush(self) -> None:
        """Write the messages that `message` has buffered."""
        if self._one:
            one, self._one, self._one_bytes = self._one, [], 0
            channel, log, publish, sequence, data = zip(*one, strict=True)
            self._columns(channel, log, pa.array(data, pa.binary()), publish, sequence)

    def _columns(
        self,
        channel: npt.ArrayLike,
        log_time_ns: npt.ArrayLike,
        data: pa.Array,
        publish_time_ns: npt.ArrayLike | None,
        sequence: npt.ArrayLike,
    ) -> None:
        """Write columns of messages, cut into chunks. The arguments are those of `messages`."""
        count = len(data)
        if count == 0:
            return
        heads = np.zeros(count, _RECORD)
        heads["op"] = r.MESSAGE
        sizes = pc.binary_length(data).to_numpy(zero_copy_only=False).astype(np.int64)
        heads["length"] = sizes + r.HEAD_BYTES
        heads["channel"] = channel
        heads["sequence"] = np.asarray(sequence, np.int64) & 0xFFFFFFFF
        log = np.asarray(log_time_ns, np.int64)
        sent = log if publish_time_ns is None else np.asarray(publish_time_ns, np.int64)
        if (log < 0).any() or (sent < 0).any():
            raise ContractError("MCAP has no times before 1970")
        heads["log"], heads["publish"] = log, sent
        # Where each chunk ends: a record belongs to the chunk in which it starts.
        starts = np.cumsum(sizes + _RECORD.itemsize) - (sizes + _RECORD.itemsize)
        first = 0
        while first < count:
            last = int(np.searchsorted(starts, starts[first] + self._chunk_bytes))
            last = max(last, first + 1)
            self._chunk(heads[first:last], data.slice(first, last - first))
            first = last

    def _chunk(self, heads: npt.NDArray[Any], data: pa.Array) -> None:
        """Write one chunk and its message indexes.

        Args:
            heads: One `_RECORD` per message.
            data: The payloads, as many as there are heads.
        """
        count = len(heads)
        offsets = np.arange(count + 1, dtype=np.int32) * _RECORD.itemsize
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(heads))]
        head = pa.Array.from_buffers(pa.binary(), count, buffers)
        # Arrow joins each head with its payload: one pass in C++ instead of a Python loop over
        # messages.
        joined = pc.binary_join_element_wise(head, data.cast(pa.binary()), b"")
        edges = np.frombuffer(joined.buffers()[1], np.int32)[: count + 1]
        raw = joined.buffers()[2].slice(int(edges[0]), int(edges[-1] - edges[0]))
        packed = bytes(raw) if self._codec is None else bytes(self._codec.compress(raw))
        low, high = int(heads["log"].min()), int(heads["log"].max())
        content = struct.pack("<QQQI", low, high, len(raw), zlib.crc32(raw))
        content += _encode_text(self._codec_name) + struct.pack("<Q", len(packed)) + packed
        at = self._at
        self._write(_encode_record(r.CHUNK, content))
        length = self._at - at
        indexes: dict[int, int] = {}
        entry = np.empty(count, _INDEX_ENTRY)
        entry["time"], entry["at"] = heads["log"], edges[:-1] - edges[0]
        for number in np.unique(heads["channel"]).tolist():
            some = entry[heads["channel"] == number]
            indexes[number] = self._at
            body = struct.pack("<HI", number, some.nbytes) + some.tobytes()
            self._write(_encode_record(r.MESSAGE_INDEX, body))
            self._counts[number] = self._counts.get(number, 0) + len(some)
        index_length = self._at - at - length
        self._chunks.append(
            _Chunk(low, high, at, length, indexes, index_length, len(packed), len(raw))
        )

    def _summary(self) -> bytes:
        """Build the summary section: definitions, chunk and attachment indexes, statistics."""
        parts = list(self._definitions)
        for c in self._chunks:
            places = b"".join(struct.pack("<HQ", n, at) for n, at in c.indexes.items())
            content = struct.pack("<QQQQI", c.start_ns, c.end_ns, c.at, c.length, len(places))
            content += places + struct.pack("<Q", c.index_length) + _encode_text(self._codec_name)
            parts.append(
                _encode_record(r.CHUNK_INDEX, content + struct.pack("<QQ", c.packed, c.size))
            )
        parts += self._attached
        counts = b"".join(struct.pack("<HQ", n, m) for n, m in self._counts.items())
        low = min((c.start_ns for c in self._chunks), default=0)
        high = max((c.end_ns for c in self._chunks), default=0)
        sizes = (self._schemas, self._channels, self._attached, (), self._chunks)
        content = struct.pack("<QHIIII", sum(self._counts.values()), *(len(each) for each in sizes))
        content += struct.pack("<QQI", low, high, len(counts)) + counts
        parts.append(_encode_record(r.STATISTICS, content))
        return b"".join(parts)


def _encode_record(op: int, content: bytes) -> bytes:
    """A record: opcode, length and content."""
    return struct.pack("<BQ", op, len(content)) + content


def _encode_text(value: str) -> bytes:
    """A string as MCAP writes it: its length in bytes (4 bytes), then UTF-8."""
    data = value.encode()
    return struct.pack("<I", len(data)) + data
