"""Where the messages of a file are: from its chunk index, or by walking over it.

The index is used only where it can be true: every entry must lie in the data section, and what it
leaves uncovered is walked. A file without an index, or one that was cut off, is walked from its
start, which touches only the head of every record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tidegate.mcap import records as r

__all__ = ["Channels", "Fault", "FileIndex", "Piece", "read_index"]

LOOSE_BYTES = 4 << 20
"""Messages outside chunks are read in runs of about this size, so that memory stays bounded."""

_CHUNK_HEAD = 9 + 8 + 8 + 8 + 4 + 4
"""Bytes of a chunk record up to the name of its compression."""


@dataclass(frozen=True)
class Fault:
    """Something in a file that cannot be read: where it is and why."""

    offset: int
    reason: str


@dataclass(frozen=True)
class Piece:
    """A chunk, or a run of records outside chunks: bytes `start` to `end` of the file."""

    start: int
    end: int
    chunk: bool
    start_ns: int | None = None
    end_ns: int | None = None
    channels: frozenset[int] | None = None
    """The channels with messages in it, if the index says so."""
    whole: bool = True
    """False for a chunk that the end of the file cuts off."""

    def may_hold(self, start_ns: int | None, end_ns: int | None) -> bool:
        """Whether a message with a log time in [start_ns, end_ns) can be in it."""
        if self.start_ns is None or self.end_ns is None or not self.chunk:
            return True
        after = start_ns is None or self.end_ns >= start_ns
        return after and (end_ns is None or self.start_ns < end_ns)


@dataclass
class Channels:
    """Channels and schemas as they become known."""

    by_id: dict[int, r.Channel] = field(default_factory=dict)
    schemas: dict[int, r.Schema] = field(default_factory=dict)
    version: int = 0
    """Grows with every change, so that what was derived is derived again."""

    def learn(self, op: int, content: bytes) -> None:
        """Take in a schema or channel record. The first of an id stands: the format says they all
        agree, and a topic must not change its name in the middle of a file."""
        if op == r.SCHEMA:
            schema = r.parse_schema(content)
            if self.schemas.setdefault(schema.id, schema) is schema:
                self.version += 1
        elif op == r.CHANNEL:
            channel = r.parse_channel(content)
            if self.by_id.setdefault(channel.id, channel) is channel:
                self.version += 1


@dataclass
class FileIndex:
    """The pieces of a file in order, its channels so far, and what is wrong with it."""

    pieces: list[Piece]
    channels: Channels
    faults: list[Fault]
    indexed: bool
    """Whether channels and times came from the summary: then pieces can be read apart."""


def read_index(buf: r.Bytes) -> FileIndex:
    """The index of a file, given as all its bytes (a memory map)."""
    size = len(buf)
    if size < len(r.MAGIC) or bytes(buf[:8]) != r.MAGIC:
        what = "is empty" if size == 0 else "does not start as an MCAP file"
        return FileIndex([], Channels(), [Fault(0, f"the file {what}")], False)
    try:
        found = _from_summary(buf)
    except r.MalformedError:
        found = None
    if found is not None:
        return found
    channels = Channels()
    pieces, faults, ended = _walk_top_level(buf, 8, size, channels)
    if not ended and not faults:
        faults = [Fault(size, "the file ends without its footer: it was cut off or not closed")]
    return FileIndex(pieces, channels, faults, False)


def _from_summary(buf: r.Bytes) -> FileIndex | None:
    size = len(buf)
    foot = r.PREFIX + 20
    if size < 16 + foot or bytes(buf[-8:]) != r.MAGIC:
        return None
    cursor = r.Cursor(bytes(buf[size - 8 - foot : size - 8]))
    if cursor.number("<B") != r.FOOTER or cursor.u64() != 20:
        return None
    summary = cursor.u64()
    offsets = cursor.u64()
    if not 8 <= summary < size - 8 - foot:
        return None
    last = offsets if summary < offsets < size else size - 8 - foot
    channels = Channels()
    chunks: list[Piece] = []
    for op, at, length in _records(buf, summary, last):
        if op in (r.SCHEMA, r.CHANNEL):
            channels.learn(op, bytes(buf[at : at + length]))
        elif op == r.CHUNK_INDEX:
            chunks.append(_chunk_index(bytes(buf[at : at + length])))
    if not chunks or not channels.by_id:
        return None
    chunks.sort(key=lambda piece: piece.start)
    return _cover(buf, chunks, summary, channels)


def _chunk_index(content: bytes) -> Piece:
    cursor = r.Cursor(content)
    start_ns, end_ns, start, length = (cursor.u64() for _ in range(4))
    offsets = cursor.take(cursor.u32())
    cursor.u64()
    ids = np.frombuffer(
        offsets[: len(offsets) // 10 * 10], np.dtype([("id", "<u2"), ("at", "<u8")])
    )
    channels = frozenset(int(number) for number in ids["id"]) or None
    return Piece(start, start + length, True, start_ns, end_ns, channels)


def _cover(buf: r.Bytes, chunks: list[Piece], end: int, channels: Channels) -> FileIndex | None:
    """The chunks with what lies between them, which is walked: nothing is left out unseen."""
    pieces: list[Piece] = []
    pos = 8
    for chunk in chunks:
        if chunk.start < pos or chunk.end > end or buf[chunk.start] != r.CHUNK:
            return None
        if _length(buf, chunk.start) != chunk.end - chunk.start - r.PREFIX:
            return None
        between, faults, ended = _walk_top_level(buf, pos, chunk.start, channels)
        if faults or ended:
            return None
        pieces += between
        pieces.append(chunk)
        pos = chunk.end
    after, faults, _ = _walk_top_level(buf, pos, end, channels)
    return FileIndex(pieces + after, channels, faults, True)


def _length(buf: r.Bytes, pos: int) -> int:
    return int.from_bytes(bytes(buf[pos + 1 : pos + 9]), "little")


def _records(buf: r.Bytes, pos: int, end: int) -> Iterator[tuple[int, int, int]]:
    op, at, size = np.empty(4096, np.uint8), np.empty(4096, np.int64), np.empty(4096, np.int64)
    while True:
        count, pos, how = r.walk_records(buf, pos, end, op, at, size)
        yield from zip(op[:count].tolist(), at[:count].tolist(), size[:count].tolist(), strict=True)
        if how != r.WHOLE:
            raise r.MalformedError(r.REASONS[how])
        if pos >= end:
            return


def _walk_top_level(
    buf: r.Bytes, pos: int, end: int, channels: Channels
) -> tuple[list[Piece], list[Fault], bool]:
    """Pieces of a stretch of top-level records, what is wrong, and whether its end was reached."""
    pieces: list[Piece] = []
    faults: list[Fault] = []
    size = 65536
    op, at, length = np.empty(size, np.uint8), np.empty(size, np.int64), np.empty(size, np.int64)
    while pos < end:
        count, after, how = r.walk_records(buf, pos, end, op, at, length)
        stops = np.flatnonzero(np.isin(op[:count], (r.DATA_END, r.FOOTER)))
        ended = len(stops) > 0
        if ended:
            count = int(stops[0])
        for row in np.flatnonzero(np.isin(op[:count], (r.SCHEMA, r.CHANNEL))):
            content = bytes(buf[at[row] : at[row] + length[row]])
            try:
                channels.learn(int(op[row]), content)
            except r.MalformedError as error:
                faults.append(Fault(int(at[row]) - r.PREFIX, str(error)))
        pieces += _pieces(buf, op[:count], at[:count], length[:count])
        if ended:
            return pieces, faults, True
        pos = after
        if how == r.CUT and pos < end and buf[pos] == r.CHUNK and end - pos >= _CHUNK_HEAD:
            pieces.append(_chunk_piece(buf, pos, end, whole=False))
        if how != r.WHOLE:
            return pieces, [*faults, Fault(pos, r.REASONS[how])], False
    return pieces, faults, False


def _pieces(buf: r.Bytes, op: r.Bytes, at: r.Ints, length: r.Ints) -> Iterator[Piece]:
    """Chunks one by one; messages between them in runs that start in the same stretch of bytes."""
    rows = np.flatnonzero(np.isin(op, (r.CHUNK, r.MESSAGE)))
    if len(rows) == 0:
        return
    chunk, starts, ends = op[rows] == r.CHUNK, at[rows] - r.PREFIX, at[rows] + length[rows]
    stretch = starts // LOOSE_BYTES
    new = np.ones(len(rows), bool)
    new[1:] = chunk[1:] | chunk[:-1] | (stretch[1:] != stretch[:-1])
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(rows)) - 1
    for one, other in zip(first.tolist(), last.tolist(), strict=True):
        if chunk[one]:
            yield _chunk_piece(buf, int(starts[one]), int(ends[one]), whole=True)
        else:
            yield Piece(int(starts[one]), int(ends[other]), False)


def _chunk_piece(buf: r.Bytes, start: int, end: int, *, whole: bool) -> Piece:
    cursor = r.Cursor(bytes(buf[start + r.PREFIX : start + r.PREFIX + 16]))
    try:
        start_ns, end_ns = cursor.u64(), cursor.u64()
    except r.MalformedError:
        return Piece(start, end, True, whole=whole)
    return Piece(start, end, True, start_ns, end_ns, whole=whole)
