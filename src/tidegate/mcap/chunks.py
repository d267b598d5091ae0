"""From the bytes of a piece of a file to its messages.

`chunk_bytes` decompresses a chunk, `messages_of` finds the messages in the result. Payloads are not
copied here: `PieceMessages` and `MessageBlock` keep the bytes, and where each payload is in them.

Sizes that a file claims are checked before memory is taken: a chunk may not claim more than
`LARGEST_CHUNK`, nor, if it is large, more than honest data of that size (`most_decompressed`).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tidegate.mcap import records as r
from tidegate.mcap.index import Channels, Fault, Piece
from tidegate.mcap.spans import PayloadSpans

__all__ = [
    "LARGEST_CHUNK",
    "MessageBlock",
    "PieceMessages",
    "chunk_bytes",
    "messages_of",
    "most_decompressed",
    "places_in_file",
]

LARGEST_CHUNK = 2**31 - 1
"""Bytes of a chunk, decompressed: Arrow's 32-bit offsets end there, and a file that claims more is
a trap for the memory of whoever reads it."""

_FREE_BYTES = 256 << 20
"""Bytes that anything compressed may decompress to, however small it is: black images and silence
pack 10,000 times, but recorders write chunks of a few MB. This much memory every reader has."""

_LARGE_RATIO = 1_000
"""How many times its size data beyond `_FREE_BYTES` may be. Recordings pack 2 to 50 times; a bomb
of zstd 30,000 times, one of bzip2 a million times."""

_PARTIAL_STEP = 1 << 16
"""Bytes per read from a chunk that is cut off. What was read before the cut is kept, so a smaller
step loses less at the end; a larger one saves calls."""

_CODECS = {"zstd": "zstd", "lz4": "lz4"}
"""Compression names of MCAP and how Arrow calls them."""


def most_decompressed(packed: int, *, whole_file: bool = False) -> int:
    """Return how many bytes some compressed bytes may become; more is a trap for memory or disk.

    Args:
        packed: Number of compressed bytes.
        whole_file: True for a file that goes to disk, which has no limit of its own.

    >>> most_decompressed(1_000), most_decompressed(10**6), most_decompressed(10**9)
    (268435456, 1000000000, 2147483647)
    """
    most = max(_FREE_BYTES, packed * _LARGE_RATIO)
    return most if whole_file else min(most, LARGEST_CHUNK)


def chunk_bytes(buf: r.Bytes, piece: Piece, *, crc: bool) -> tuple[r.Bytes | None, Fault | None]:
    """Decompress the records of a chunk.

    Args:
        buf: All bytes of the file.
        piece: The chunk. With `whole=False` everything up to the cut is returned, and no fault: the
            walk that found the cut reports it.
        crc: Whether to compare the checksum. A stored checksum of 0 means that there is none.

    Returns:
        The bytes and None, or None and a fault that says why the chunk cannot be read.
    """
    # 256 bytes are enough for every head whose compression name can be known.
    head = bytes(buf[piece.start + r.PREFIX : min(piece.end, piece.start + r.PREFIX + 256)])
    cursor = r.Cursor(head)
    try:
        cursor.take(16)
        size, wanted_crc, codec = cursor.u64(), cursor.u32(), cursor.text()
        length = cursor.u64()
    except r.MalformedError as error:
        return None, Fault(piece.start, f"a chunk whose head cannot be read: {error}")
    start = piece.start + r.PREFIX + cursor.pos
    if size > LARGEST_CHUNK:
        return None, Fault(piece.start, f"a chunk of {size} bytes; {LARGEST_CHUNK} are allowed")
    packed = buf[start : min(start + length, piece.end)]
    if codec and codec not in _CODECS:
        return None, Fault(piece.start, f"a chunk compressed with {codec!r}, which is not known")
    if not piece.whole:
        most = min(size, most_decompressed(len(packed)))
        return _partial(packed, _CODECS.get(codec), most), None
    if len(packed) < length:
        return None, Fault(piece.start, "a chunk shorter than it says")
    if not codec:
        raw = packed
    else:
        if size > most_decompressed(len(packed)):
            return None, Fault(
                piece.start, f"{len(packed)} bytes that decompress to {size}, which is not read"
            )
        try:
            made = pa.Codec(_CODECS[codec]).decompress(pa.py_buffer(packed), decompressed_size=size)
        except (OSError, pa.ArrowException) as error:
            return None, Fault(
                piece.start, f"a chunk that does not decompress: {_first_line(error)}"
            )
        raw = np.frombuffer(made, np.uint8)
    if crc and wanted_crc and zlib.crc32(raw.data) != wanted_crc:
        return None, Fault(piece.start, "a chunk whose checksum is wrong")
    return raw, None


def _first_line(error: Exception) -> str:
    """The first line of an error message; Arrow adds details that mean nothing to a user."""
    return str(error).strip().split("\n")[0]


def _partial(packed: r.Bytes, codec: str | None, size: int) -> r.Bytes:
    """Decompress as much as possible of a chunk that is cut off.

    Args:
        packed: The compressed bytes up to the cut.
        codec: Arrow's name of the compression; None if the bytes are not compressed.
        size: Bytes that the whole chunk would have; never more are returned.
    """
    if codec is None:
        return packed
    parts = []
    left = size
    stream = pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(packed)), codec)
    try:
        while left > 0 and (part := stream.read(min(_PARTIAL_STEP, left))):
            parts.append(part)
            left -= len(part)
    except (OSError, pa.ArrowException):
        pass  # the cut itself; it is reported by the walk that found it
    return np.frombuffer(b"".join(parts), np.uint8)


class MessageBlock(NamedTuple):
    """Messages of one or several pieces, in file order: what rows are made of."""

    spans: PayloadSpans
    """Their payloads, all in the same bytes."""
    heads: np.ndarray
    """One `records.HEAD` per message."""
    offset: r.Ints
    """Per message the offset of its chunk in the file, or its own outside chunks."""
    position: r.Ints
    """Per message its offset among the decompressed records of its chunk; 0 outside chunks."""

    def select(self, rows: r.Ints) -> MessageBlock:
        """Some of the messages, by row number."""
        return MessageBlock(
            self.spans.select(rows), self.heads[rows], self.offset[rows], self.position[rows]
        )


def places_in_file(piece: Piece, starts: r.Ints) -> tuple[r.Ints, r.Ints]:
    """Return `offset` and `position` of messages, as rows have them.

    In a chunk, messages share its offset and differ in position. Outside, each has its own offset.

    Args:
        piece: The piece that holds the messages.
        starts: Where their payloads start in the decompressed bytes of the piece.
    """
    position = starts - (r.PREFIX + r.HEAD_BYTES)
    if piece.chunk:
        return np.full(len(starts), piece.start, np.int64), position
    return position + piece.start, np.zeros(len(starts), np.int64)


@dataclass(frozen=True)
class PieceMessages:
    """The messages of a piece: their heads, and their payloads as slices of the piece."""

    raw: r.Bytes
    """The bytes of the piece, decompressed."""
    heads: np.ndarray
    """One `records.HEAD` per message, in file order."""
    edges: r.Ints
    """Two offsets into `raw` per message: start and end of the payload."""
    fault: tuple[int, str] | None
    """Offset in `raw` at which the walk stopped before its end, and why; None if all is well."""

    def block(self, piece: Piece) -> MessageBlock:
        """The messages as a block of their own.

        Args:
            piece: The piece they are from.
        """
        starts, ends = self.edges[::2], self.edges[1::2]
        offset, position = places_in_file(piece, starts)
        return MessageBlock(PayloadSpans(self.raw, starts, ends), self.heads, offset, position)


def messages_of(raw: r.Bytes, channels: Channels) -> PieceMessages:
    """Find the messages of a piece.

    Args:
        raw: The bytes of the piece, decompressed; less than 2**31 of them.
        channels: Extended by the schemas and channels among the records.

    Returns:
        The messages up to the first damaged record, and the fault if there is one.
    """
    # Room for the worst case: nothing but messages without payload, and nothing but empty records.
    most = len(raw) // (r.PREFIX + r.HEAD_BYTES) + 1
    head = np.empty((most, r.HEAD_BYTES), np.uint8)
    edge = np.empty(2 * most, np.int64)
    other = np.empty(len(raw) // r.PREFIX + 1, np.int64)
    count, others, pos, how = r.walk_messages(raw, 0, len(raw), head, edge, other)
    fault = None if how == r.WHOLE else (int(pos), r.REASONS[how])
    for place in other[:others].tolist():
        length = int.from_bytes(bytes(raw[place + 1 : place + 9]), "little")
        content = bytes(raw[place + r.PREFIX : place + r.PREFIX + length])
        try:
            channels.learn(int(raw[place]), content)
        except r.MalformedError as error:
            fault = fault or (place, str(error))
    heads = head[:count].reshape(-1).view(r.HEAD)
    return PieceMessages(raw, heads, edge[: 2 * count], fault)
