"""Find the chunks and messages of a file: from its chunk index, or by walking over it.

Theory of operation: the result is a list of pieces in file order. A piece is one chunk, or a run of
top-level message records. Readers decompress and parse one piece at a time, and skip those that
cannot hold what they want.

1. If the file ends with a footer that points to a summary, the chunk index in it gives the chunks
   with their time spans and channels (`_from_summary`).
2. The index is used only if it can be true: entries must not overlap, must lie in the data section
   and must point at chunk records of the stated length. The gaps between chunks are walked, so that
   no message is missed because the index leaves it out (`_cover`).
3. Otherwise, and for a file that was cut off, all top-level records are walked from the start
   (`_walk_top_level`). That touches only the 9 bytes before each record, so it is fast, but
   channels that are defined inside chunks become known only when these are read.

Times here are log times, in ns since 1970.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from tidegate.mcap import records as r

__all__ = ["Channels", "Fault", "FileIndex", "Piece", "read_index"]

LOOSE_BYTES = 4 << 20
"""Messages outside chunks are read in runs of about this size, so that memory stays bounded."""

_INDEX_HEAD = struct.Struct("<QQQQI")
"""A chunk index up to the offsets of its message indexes: the span of log times, where the chunk is
and its length, and the bytes of these offsets."""

_MESSAGE_INDEX = bytes([r.MESSAGE_INDEX])
"""The opcode of the records that say where in a chunk the messages of a channel are."""

_CHUNK_HEAD = 9 + 8 + 8 + 8 + 4 + 4
"""Bytes of a chunk record up to the name of its compression."""


@dataclass(frozen=True)
class Fault:
    """Something in a file that cannot be read. Readers deliver it as a row with an `error`."""

    offset: int
    """Where in the file, in bytes from its start."""
    reason: str
    """Why, in words for a user."""


@dataclass(frozen=True)
class Piece:
    """A chunk, or a run of records outside chunks: bytes `start` to `end` of the file."""

    start: int
    """Offset of the first byte of the (first) record, its opcode."""
    end: int
    """Offset behind the last byte."""
    chunk: bool
    """True for a chunk record, False for top-level records."""
    start_ns: int | None = None
    """The smallest log time in a chunk; None if unknown, as for every run outside chunks."""
    end_ns: int | None = None
    """The largest log time in a chunk (inclusive); None if unknown."""
    channels: frozenset[int] | None = None
    """The channels with messages in it, if the index says so."""
    whole: bool = True
    """False for a chunk that the end of the file cuts off."""

    def may_hold(self, start_ns: int | None, end_ns: int | None) -> bool:
        """Tell whether a message with a log time in [start_ns, end_ns) can be in this piece.

        Args:
            start_ns: First log time wanted; None for no lower bound.
            end_ns: End of the span, exclusive; None for no upper bound.

        Returns:
            False only if the times of the chunk rule it out. A piece without times may hold
            anything.
        """
        if self.start_ns is None or self.end_ns is None or not self.chunk:
            return True
        after = start_ns is None or self.end_ns >= start_ns
        return after and (end_ns is None or self.start_ns < end_ns)


@dataclass
class Channels:
    """The channels and schemas of a file, as far as they are known. Grows while a file is read."""

    by_id: dict[int, r.Channel] = field(default_factory=dict)
    """Channels by the number that messages carry."""
    schemas: dict[int, r.Schema] = field(default_factory=dict)
    """Schemas by the number that channels carry."""
    version: int = 0
    """Grows by one with every new entry. Compare it to find out whether derived tables are stale.
    """

    def learn(self, op: int, content: bytes) -> None:
        """Add the schema or channel of a record; other opcodes are ignored.

        The first definition of an id wins: the format says that all of them agree, and a topic must
        not change its name in the middle of a file.

        Args:
            op: Opcode of the record.
            content: Content of the record, without opcode and length.

        Raises:
            MalformedError: the content cannot be parsed.
        """
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
    """Chunks and runs of messages, in file order, without overlaps."""
    channels: Channels
    """What is defined in the summary or at the top level. Reading pieces may add to it."""
    faults: list[Fault]
    """What stopped or disturbed the walk; empty for a good file."""
    indexed: bool
    """True if channels and times came from the summary. Then every piece can be read on its own;
    else a piece may use channels that an earlier piece defines."""


def read_index(buf: r.Bytes) -> FileIndex:
    """Build the index of a file.

    Args:
        buf: All bytes of the file, usually a memory map.

    Returns:
        The index. It never raises for bad content: a file that is empty, not MCAP, cut off or
        without a footer gives the pieces found so far and a fault.
    """
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
    """Build the index from the summary section.

    Returns:
        None if there is no footer, no summary, no chunk or no channel in it, or if `_cover` finds
        that the entries cannot be true. The caller then walks the file.

    Raises:
        MalformedError: a record of the summary is damaged; the caller walks then, too.
    """
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
    # The summary offset section, if there is one, comes behind the summary; it is of no use here.
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
    """Turn a chunk index record into a piece.

    The record maps channels to the offsets of their message indexes. Only the channel ids are used;
    a record without any says nothing about channels, hence None instead of an empty set.
    """
    if len(content) < _INDEX_HEAD.size:
        raise r.MalformedError("a chunk index is too short")
    start_ns, end_ns, start, length, size = _INDEX_HEAD.unpack_from(content)
    cursor = r.Cursor(content, _INDEX_HEAD.size)
    offsets = cursor.take(size)
    cursor.u64()
    # Entries have 10 bytes; an incomplete one at the end is left out.
    ids = np.frombuffer(
        offsets[: len(offsets) // 10 * 10], np.dtype([("id", "<u2"), ("at", "<u8")])
    )
    channels = frozenset(ids["id"].tolist()) or None
    return Piece(start, start + length, True, start_ns, end_ns, channels)


def _cover(buf: r.Bytes, chunks: list[Piece], end: int, channels: Channels) -> FileIndex | None:
    """Join the indexed chunks with the pieces between them, which are found by walking.

    Args:
        buf: All bytes of the file.
        chunks: Chunks of the index, sorted by their start.
        end: Where the data section ends: the start of the summary.
        channels: Extended by what is defined between the chunks.

    Returns:
        None if the index is wrong: chunks that overlap, lie outside the data section, do not start
        with a chunk record of that length, or are separated by damaged records.
    """
    pieces: list[Piece] = []
    pos = 8
    op, at, size = np.empty(4096, np.uint8), np.empty(4096, np.int64), np.empty(4096, np.int64)
    for chunk in chunks:
        if chunk.start < pos or chunk.end > end or buf[chunk.start] != r.CHUNK:
            return None
        if _length(buf, chunk.start) != chunk.end - chunk.start - r.PREFIX:
            return None
        count, reached, how = r.walk_records(buf, pos, chunk.start, op, at, size)
        # Behind most chunks are their message indexes, and nothing else.
        rest = op[:count].tobytes().strip(_MESSAGE_INDEX)
        if rest or reached < chunk.start or how != r.WHOLE:
            between, faults, ended = _walk_top_level(buf, pos, chunk.start, channels)
            if faults or ended:
                return None
            pieces += between
        pieces.append(chunk)
        pos = chunk.end
    after, faults, _ = _walk_top_level(buf, pos, end, channels)
    return FileIndex(pieces + after, channels, faults, True)


def _length(buf: r.Bytes, pos: int) -> int:
    """Read the content length of the record at `pos`."""
    return int.from_bytes(bytes(buf[pos + 1 : pos + 9]), "little")


def _records(buf: r.Bytes, pos: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield opcode, content offset and content size of every record between `pos` and `end`.

    Raises:
        MalformedError: the walk ended early. What was found before has been yielded.
    """
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
    """Walk over top-level records between `pos` and `end`.

    Args:
        buf: All bytes of the file.
        pos: Offset of the first record.
        end: Offset at which to stop.
        channels: Extended by the schemas and channels that are met.

    Returns:
        The pieces, the faults, and whether a data-end or footer record was met. A damaged schema or
        channel is a fault but does not stop the walk; a damaged record does.
    """
    pieces: list[Piece] = []
    faults: list[Fault] = []
    size = 65536
    op, at, length = np.empty(size, np.uint8), np.empty(size, np.int64), np.empty(size, np.int64)
    while pos < end:
        count, after, how = r.walk_records(buf, pos, end, op, at, length)
        stops = np.flatnonzero((op[:count] == r.DATA_END) | (op[:count] == r.FOOTER))
        ended = len(stops) > 0
        if ended:
            count = int(stops[0])
        for row in np.flatnonzero((op[:count] == r.SCHEMA) | (op[:count] == r.CHANNEL)):
            content = bytes(buf[at[row] : at[row] + length[row]])
            try:
                channels.learn(int(op[row]), content)
            except r.MalformedError as error:
                faults.append(Fault(int(at[row]) - r.PREFIX, str(error)))
        found = list(_pieces(buf, op[:count], at[:count], length[:count]))
        if pieces and found and _is_one_run(pieces[-1], found[0]):
            found[0] = replace(found[0], start=pieces.pop().start)
        pieces += found
        if ended:
            return pieces, faults, True
        pos = after
        # A recorder that died leaves its last chunk cut off. What can be decompressed of it is
        # read.
        if how == r.CUT and pos < end and buf[pos] == r.CHUNK and end - pos >= _CHUNK_HEAD:
            pieces.append(_chunk_piece(buf, pos, end, whole=False))
        if how != r.WHOLE:
            return pieces, [*faults, Fault(pos, r.REASONS[how])], False
    return pieces, faults, False


def _is_one_run(piece: Piece, after: Piece) -> bool:
    """Whether two pieces are one run of messages that was cut only because so many records are
    looked at in one go. Without it, pieces would depend on where a walk begins."""
    if piece.chunk or after.chunk:
        return False
    return piece.start // LOOSE_BYTES == after.start // LOOSE_BYTES


def _pieces(buf: r.Bytes, op: r.Bytes, at: r.Ints, length: r.Ints) -> Iterator[Piece]:
    """Yield every chunk as one piece, and the messages between chunks in runs.

    A run ends at a chunk and where the next message starts in another block of `LOOSE_BYTES` bytes.
    Other records between messages may be inside a run; reading skips them.
    """
    rows = np.flatnonzero((op == r.CHUNK) | (op == r.MESSAGE))
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
    """Make the piece of a chunk record, with the time span from its head if that can be read."""
    cursor = r.Cursor(bytes(buf[start + r.PREFIX : start + r.PREFIX + 16]))
    try:
        start_ns, end_ns = cursor.u64(), cursor.u64()
    except r.MalformedError:
        return Piece(start, end, True, whole=whole)
    return Piece(start, end, True, start_ns, end_ns, whole=whole)
