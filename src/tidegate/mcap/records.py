"""The records of an MCAP file: their layout, and the kernels that walk over them.

A record is an opcode (1 byte), a length (8 bytes, little endian) and that many bytes. Nothing in a
file is trusted: every length is checked against what is there before it is used, and a walk that
cannot go on says where and why instead of raising.
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

HEADER, FOOTER, SCHEMA, CHANNEL, MESSAGE, CHUNK = 1, 2, 3, 4, 5, 6
MESSAGE_INDEX, CHUNK_INDEX, ATTACHMENT, STATISTICS, DATA_END = 7, 8, 9, 11, 15
ATTACHMENT_INDEX, METADATA, METADATA_INDEX, SUMMARY_OFFSET = 10, 12, 13, 14

PREFIX = 9
"""Bytes of opcode and length before the content of a record."""

HEAD = np.dtype(
    [("channel", "<u2"), ("sequence", "<u4"), ("log", "<u8"), ("publish", "<u8")], align=False
)
"""What stands before the payload of a message."""

HEAD_BYTES = HEAD.itemsize

WHOLE, CUT, BAD_OPCODE, BAD_MESSAGE = 0, 1, 2, 3
"""How a walk ended: at the end; inside a record; at an opcode 0; at a message without a head."""

REASONS = {
    CUT: "the file ends inside a record",
    BAD_OPCODE: "a record with opcode 0, which does not exist",
    BAD_MESSAGE: "a message record shorter than its head",
}

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
    """Opcode, content place and content size of records from `pos`, as many as fit into the arrays.

    Returns how many, where the walk stands, and how it ended.
    """
    count = 0
    while count < len(op):
        if pos >= end:
            return count, pos, 0
        if pos + 9 > end:
            return count, pos, 1
        if buf[pos] == 0:
            return count, pos, 2
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
    """The messages of a run of records: heads, and the two edges of each payload.

    `other` gets the places of schema and channel records. Returns how many messages, how many
    others, where the walk stands, and how it ended.
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
    """A record whose inside does not fit its layout. Becomes an error row, never leaves here."""


@dataclass
class Cursor:
    """Reads fields one after the other, and never beyond the end."""

    buf: bytes
    pos: int = 0

    def take(self, count: int) -> bytes:
        if count > len(self.buf) - self.pos:
            raise MalformedError("a field reaches beyond its record")
        self.pos += count
        return self.buf[self.pos - count : self.pos]

    def number(self, layout: str) -> int:
        size = struct.calcsize(layout)
        return int(struct.unpack(layout, self.take(size))[0])

    def u16(self) -> int:
        return self.number("<H")

    def u32(self) -> int:
        return self.number("<I")

    def u64(self) -> int:
        return self.number("<Q")

    def text(self) -> str:
        return self.take(self.u32()).decode("utf-8", "replace")


@dataclass(frozen=True)
class Schema:
    """How the payloads of some channels are laid out."""

    id: int
    name: str
    encoding: str
    data: bytes


@dataclass(frozen=True)
class Channel:
    """One topic of a file."""

    id: int
    schema_id: int
    topic: str
    encoding: str


def parse_schema(content: bytes) -> Schema:
    """A schema record."""
    cursor = Cursor(content)
    return Schema(cursor.u16(), cursor.text(), cursor.text(), cursor.take(cursor.u32()))


def parse_channel(content: bytes) -> Channel:
    """A channel record, without its metadata."""
    cursor = Cursor(content)
    return Channel(cursor.u16(), cursor.u16(), cursor.text(), cursor.text())
