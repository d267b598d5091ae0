"""The records of an MCAP file: their layout, and the kernels that walk over them.

A record is an opcode (1 byte), a length (8 bytes, little endian) and that many bytes of content.
An MCAP file is the magic, a run of records, and the magic again. Schema, channel and message
records stand at the top level or, compressed, inside chunk records.

Rules:

- Nothing in a file is trusted. Every length is checked against the bytes that are there before it
  is used, and a walk that cannot go on says where and why instead of raising.
- Kernels only find positions. They never copy payloads and never allocate; the caller passes
  arrays that are large enough for the worst case.
- Inside a record, `Cursor` reads field by field and raises `MalformedError`. Callers turn that into
  a `Fault` (an error row); it never reaches a user.

All offsets are bytes from the start of the buffer passed in: a whole file, or one decompressed
chunk.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tidegate.core.numba import kernel

__all__ = [
    "HEAD",
    "MAGIC",
    "Channel",
    "Cursor",
    "MalformedError",
    "Schema",
    "parse_channel",
    "parse_schema",
    "walk_messages",
    "walk_records",
]

MAGIC = b"\x89MCAP0\r\n"
"""The first and the last 8 bytes of every MCAP file."""

# Opcodes, as the MCAP specification numbers them. 0 is invalid; unknown ones are skipped.
HEADER, FOOTER, SCHEMA, CHANNEL, MESSAGE, CHUNK = 1, 2, 3, 4, 5, 6
MESSAGE_INDEX, CHUNK_INDEX, ATTACHMENT, STATISTICS, DATA_END = 7, 8, 9, 11, 15
ATTACHMENT_INDEX, METADATA, METADATA_INDEX, SUMMARY_OFFSET = 10, 12, 13, 14

PREFIX = 9
"""Bytes of opcode and length before the content of a record."""

HEAD = np.dtype(
    [("channel", "<u2"), ("sequence", "<u4"), ("log", "<u8"), ("publish", "<u8")], align=False
)
"""The fixed fields of a message record before its payload; times are ns since 1970, unsigned."""

HEAD_BYTES = HEAD.itemsize
"""22. The kernels below write it as a literal, as they do with `PREFIX`."""

WHOLE, CUT, BAD_OPCODE, BAD_MESSAGE = 0, 1, 2, 3
"""How a walk ended: at the end; inside a record; at an opcode 0; at a message without a head."""

REASONS = {
    CUT: "the file ends inside a record",
    BAD_OPCODE: "a record with opcode 0, which does not exist",
    BAD_MESSAGE: "a message record shorter than its head",
}
"""How a walk ended, in words for the column `error`."""

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


@kernel
def walk_records(
    buf: Bytes,
    pos: int,
    end: int,
    op: npt.NDArray[np.uint8],
    at: npt.NDArray[np.int64],
    size: npt.NDArray[np.int64],
) -> tuple[int, int, int]:
    """Find the records between `pos` and `end`, up to as many as the arrays can hold.

    Call it again with the returned position to go on. The three arrays must have the same length.

    Args:
        buf: The bytes to walk over.
        pos: Offset of the opcode of the first record.
        end: Offset behind the last byte that may be read.
        op: Filled with the opcode of each record.
        at: Filled with the offset of each record's content (behind opcode and length).
        size: Filled with the length of each record's content, in bytes.

    Returns:
        The number of records found, the offset at which the walk stopped (the start of the record
        that was not read), and how it ended: `WHOLE`, also when the arrays are full, `CUT` or
        `BAD_OPCODE`.
    """
    count = 0
    while count < len(op):
        if pos >= end:
            return count, pos, 0
        if pos + 9 > end:
            return count, pos, 1
        if buf[pos] == 0:
            return count, pos, 2
        # The length is read from its low 7 bytes: with the highest byte 0 it cannot overflow int64,
        # and no file is larger. The comparison is written so that no sum can overflow either.
        length: Any = 0
        for place in range(6, -1, -1):
            length = length * 256 + np.int64(buf[pos + 1 + place])
        if buf[pos + 8] != 0 or length > end - pos - 9:
            return count, pos, 1
        op[count] = buf[pos]
        at[count] = pos + 9
        size[count] = length
        count += 1
        pos += 9 + length
    return count, pos, 0


@kernel
def walk_messages(
    buf: Bytes,
    pos: int,
    end: int,
    head: npt.NDArray[np.uint8],
    edge: npt.NDArray[np.int64],
    other: npt.NDArray[np.int64],
) -> tuple[int, int, int, int]:
    """Find all messages, schemas and channels among the records between `pos` and `end`.

    Args:
        buf: The bytes to walk over: a decompressed chunk or a run of top-level records.
        pos: Offset of the opcode of the first record.
        end: Offset behind the last byte that may be read.
        head: Filled with the 22 bytes of each message's `HEAD`, one row per message. Needs a row
            for every 31 bytes of input, the size of the smallest message record.
        edge: Filled with two offsets per message: where its payload starts and where it ends.
        other: Filled with the offset of the opcode of each schema or channel record. Needs an entry
            for every 9 bytes of input, the size of the smallest record.

    Returns:
        The number of messages, the number of entries in `other`, the offset at which the walk
        stopped, and how it ended: `WHOLE`, `CUT`, `BAD_OPCODE` or `BAD_MESSAGE`.
    """
    count = 0
    others = 0
    while pos < end:
        if pos + 9 > end:
            return count, others, pos, 1
        code = buf[pos]
        if code == 0:
            return count, others, pos, 2
        length: Any = 0
        for place in range(6, -1, -1):
            length = length * 256 + np.int64(buf[pos + 1 + place])
        if buf[pos + 8] != 0 or length > end - pos - 9:
            return count, others, pos, 1
        if code == 5:
            if length < 22:
                return count, others, pos, 3
            for place in range(22):
                head[count, place] = buf[pos + 9 + place]
            edge[2 * count] = pos + 31
            edge[2 * count + 1] = pos + 9 + length
            count += 1
        elif code == 3 or code == 4:
            other[others] = pos
            others += 1
        pos += 9 + length
    return count, others, pos, 0


class MalformedError(Exception):
    """A record does not fit its layout. Becomes an error row; never reaches a user."""


@dataclass
class Cursor:
    """Reads the fields of a record one after the other, and never beyond its end.

    Every method moves `pos` forward by what it read and raises `MalformedError` if the record is
    too short for that.

    >>> cursor = Cursor(b"\\x02\\x00\\x03\\x00\\x00\\x00gps")
    >>> cursor.u16(), cursor.text()
    (2, 'gps')
    """

    buf: bytes
    """The content of one record."""
    pos: int = 0
    """Offset of the next field, in bytes."""

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes.

        Raises:
            MalformedError: fewer than `count` bytes are left.
        """
        if count > len(self.buf) - self.pos:
            raise MalformedError("a field reaches beyond its record")
        self.pos += count
        return self.buf[self.pos - count : self.pos]

    def number(self, layout: str) -> int:
        """Return the next number, in a `struct` layout with exactly one field, such as `"<H"`."""
        size = struct.calcsize(layout)
        return int(struct.unpack(layout, self.take(size))[0])

    def u16(self) -> int:
        """Return the next unsigned number of 2 bytes."""
        return self.number("<H")

    def u32(self) -> int:
        """Return the next unsigned number of 4 bytes."""
        return self.number("<I")

    def u64(self) -> int:
        """Return the next unsigned number of 8 bytes."""
        return self.number("<Q")

    def text(self) -> str:
        """Return the next string: its length (4 bytes), then UTF-8. Invalid bytes become U+FFFD."""
        return self.take(self.u32()).decode("utf-8", "replace")


@dataclass(frozen=True)
class Schema:
    """A schema record: how the payloads of some channels are laid out."""

    id: int
    """Unique within a file, from 1. Channels with schema id 0 have no schema."""
    name: str
    """The message type, such as `sensor_msgs/msg/Imu`."""
    encoding: str
    """How `data` is written: `ros1msg`, `ros2msg`, `ros2idl`, `protobuf`, `jsonschema`, or empty.
    """
    data: bytes
    """The definition itself, in that encoding; not yet parsed."""


@dataclass(frozen=True)
class Channel:
    """A channel record: one topic of a file, with the encoding of its messages."""

    id: int
    """Unique within a file; the number that messages carry."""
    schema_id: int
    """The `Schema.id` of its payloads; 0 if there is none."""
    topic: str
    encoding: str
    """How the payloads are written: `cdr`, `ros1`, `protobuf`, `json`, or anything else."""


def parse_schema(content: bytes) -> Schema:
    """Parse the content of a schema record.

    Raises:
        MalformedError: a field reaches beyond the end of the content.
    """
    cursor = Cursor(content)
    return Schema(cursor.u16(), cursor.text(), cursor.text(), cursor.take(cursor.u32()))


def parse_channel(content: bytes) -> Channel:
    """Parse the content of a channel record; its metadata, which comes last, is not read.

    Raises:
        MalformedError: a field reaches beyond the end of the content.
    """
    cursor = Cursor(content)
    return Channel(cursor.u16(), cursor.u16(), cursor.text(), cursor.text())
