"""The messages of chunks from their message indexes, without decompressing a chunk.

Behind every chunk a writer may put one record per channel: the log time and the place of each of
its messages. That is all a decision by log time needs. The records are used only if they can be
complete: all of them together must count as many messages as the statistics of the file say
(`IndexedMessages.usable`), else a message that an index leaves out would be lost without a word.

Kernels walk over the records: a file has one per chunk and channel, and Python would take longer
for one than a kernel for all its entries. `count_messages` checks everything that `fill_messages`
relies on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tidegate.core.numba import kernel
from tidegate.mcap import records as r
from tidegate.mcap.reader import McapFile

__all__ = ["ChunkMessages", "IndexedMessages"]

_ENTRY = 16
"""Bytes of an entry of a message index: log time in ns, and the offset of the message in its chunk,
8 bytes each."""

_HEAD = r.PREFIX + 6
"""Bytes of a message index before its entries: opcode and length, channel (2), their size (4)."""


class ChunkMessages(NamedTuple):
    """Messages of consecutive pieces of a file, piece by piece, in the order of their places.

    - `piece`: per message the number of its piece.
    - `channel`: its channel.
    - `log`: its log time in ns.
    - `at`: its offset in its chunk.
    """

    piece: r.Ints
    channel: r.Ints
    log: r.Ints
    at: r.Ints


class IndexedMessages:
    """The message indexes of an open file.

    Args:
        file: The file; must stay open.
    """

    def __init__(self, file: McapFile) -> None:
        self.file = file
        pieces = file.index.pieces
        self._ends = np.array([piece.end for piece in pieces], np.int64)
        self.counts = np.zeros(len(pieces), np.int64)
        """How many messages the indexes of each piece have, once `usable` has said that they do."""

    def usable(self) -> bool:
        """Whether the indexes hold every message of the file: it consists of chunks, all of them
        have one, every channel is known, and they count what the statistics count."""
        index = self.file.index
        total = self._message_count()
        if not index.indexed or index.faults or total is None:
            return False
        if not all(piece.chunk and piece.whole for piece in index.pieces):
            return False
        known = np.zeros(1 << 16, np.bool_)
        known[list(self.file.channels.by_id)] = True
        whole = count_messages(self.file.buf, self._ends, known, self.counts)
        return bool(whole) and int(self.counts.sum()) == total

    def between(self, first: int, last: int) -> ChunkMessages:
        """Return the messages of the pieces with these numbers, `last` excluded. Only if the
        indexes are usable."""
        counts = self.counts[first:last]
        total = int(counts.sum())
        channel, log, at = (np.empty(total, np.int64) for _ in range(3))
        fill_messages(self.file.buf, self._ends[first:last], channel, log, at)
        piece = np.repeat(np.arange(first, last), counts)
        order = np.lexsort((at, piece))  # the entries of a chunk stand channel by channel
        return ChunkMessages(piece, channel[order], log[order], at[order])

    def _message_count(self) -> int | None:
        """Return how many messages the statistics of the file count; None without them."""
        buf = self.file.buf
        tail = len(buf) - len(r.MAGIC) - 20 - r.PREFIX
        if tail < 0 or int(buf[tail]) != r.FOOTER:
            return None
        at = int.from_bytes(bytes(buf[tail + r.PREFIX : tail + r.PREFIX + 8]), "little")
        while 0 < at < tail:
            length = int.from_bytes(bytes(buf[at + 1 : at + r.PREFIX]), "little")
            if int(buf[at]) == r.STATISTICS and length >= 8:
                return int.from_bytes(bytes(buf[at + r.PREFIX : at + r.PREFIX + 8]), "little")
            at += r.PREFIX + length
        return None


@kernel
def _read_unsigned(buf: r.Bytes, at: int, size: int) -> int:
    """Return an unsigned number of `size` bytes that is below 2^63."""
    value: Any = np.int64(0)
    for place in range(size - 1, -1, -1):
        value = value * 256 + np.int64(buf[at + place])
    return value  # type: ignore[no-any-return]


@kernel
def count_messages(buf: r.Bytes, ends: r.Ints, known: np.ndarray, counts: r.Ints) -> bool:
    """Count the messages that the indexes of each chunk name, and check what they say.

    Args:
        buf: The bytes of the file.
        ends: Where each chunk ends and its indexes begin.
        known: By channel, whether the file defines it.
        counts: Filled with the number of messages of each chunk.

    Returns:
        Whether every chunk has an index and all of them can be true: records and entries inside the
        file, known channels, log times and offsets below 2^63.
    """
    for piece in range(len(ends)):
        at = ends[piece]
        found = False
        counts[piece] = 0
        while at + r.PREFIX <= len(buf) and buf[at] == r.MESSAGE_INDEX:
            if buf[at + 8] != 0:  # the highest byte of its length: longer than any file
                return False
            length = _read_unsigned(buf, at + 1, 7)
            if length < 6 or length > len(buf) - at - r.PREFIX:
                return False
            size = _read_unsigned(buf, at + r.PREFIX + 2, 4)
            if size % _ENTRY != 0 or size > length - 6:
                return False
            if size > 0 and not known[_read_unsigned(buf, at + r.PREFIX, 2)]:
                return False
            first = at + _HEAD
            for entry in range(first, first + size, _ENTRY):
                if buf[entry + 7] >= 128 or buf[entry + 15] >= 128:
                    return False
            counts[piece] += size // _ENTRY
            at += r.PREFIX + length
            found = True
        if not found:
            return False
    return True


@kernel
def fill_messages(buf: r.Bytes, ends: r.Ints, channel: r.Ints, log: r.Ints, at: r.Ints) -> None:
    """Fill arrays with the messages of chunks, chunk by chunk, in the order of their indexes.

    Args:
        buf: The bytes of the file, in which `count_messages` found nothing wrong.
        ends: Where each chunk ends.
        channel: Filled with the channel of each message. All three are as long as the counts say.
        log: Filled with its log time in ns.
        at: Filled with its offset in its chunk.
    """
    row = 0
    for piece in range(len(ends)):
        pos = ends[piece]
        while pos + r.PREFIX <= len(buf) and buf[pos] == r.MESSAGE_INDEX:
            number = _read_unsigned(buf, pos + r.PREFIX, 2)
            size = _read_unsigned(buf, pos + r.PREFIX + 2, 4)
            first = pos + _HEAD
            for entry in range(first, first + size, _ENTRY):
                channel[row] = number
                log[row] = _read_unsigned(buf, entry, 8)
                at[row] = _read_unsigned(buf, entry + 8, 8)
                row += 1
            pos += r.PREFIX + _read_unsigned(buf, pos + 1, 7)
