"""The messages of a chunk from its message index, without decompressing it.

Behind every chunk a writer may put one record per channel: the log time and the place of each of
its messages. That is all a decision by log time needs. The records are used only if they can be
complete: all of them together must count as many messages as the statistics of the file say
(`IndexedMessages.usable`), else a message that an index leaves out would be lost without a word.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tidegate.mcap import records as r
from tidegate.mcap.index import Piece
from tidegate.mcap.reader import McapFile

__all__ = ["ChunkMessages", "IndexedMessages"]

_ENTRY = np.dtype([("log", "<u8"), ("at", "<u8")])
"""An entry of a message index: log time in ns, and the offset of the message in its chunk."""

MESSAGES_KEPT = 1_000_000
"""Messages of a file, 18 bytes each, that are kept once they have been read to be counted: they are
asked for next. Of a larger file, the indexes behind the first ones are read twice."""


class ChunkMessages(NamedTuple):
    """The messages of a chunk in the order of their places: per message its channel, log time in ns
    (unsigned) and offset in the chunk; `ids` are the channels that occur."""

    channel: np.ndarray
    log: np.ndarray
    at: np.ndarray
    ids: set[int]


class IndexedMessages:
    """The message indexes of an open file.

    Args:
        file: The file; must stay open.
    """

    def __init__(self, file: McapFile) -> None:
        self.file = file
        self._read: dict[Piece, ChunkMessages] = {}
        """Messages that `usable` has read, until they are asked for."""

    def of(self, piece: Piece) -> ChunkMessages | None:
        """Return the messages of a chunk; None if its index is missing or cannot be true."""
        found = self._read.pop(piece, None)
        return self._messages(piece) if found is None else found

    def _messages(self, piece: Piece) -> ChunkMessages | None:
        buf = self.file.buf
        if not piece.chunk or not piece.whole:
            return None
        channels, logs, places = [], [], []
        ids: set[int] = set()
        at = piece.end
        while at + r.PREFIX <= len(buf) and int(buf[at]) == r.MESSAGE_INDEX:
            length = int.from_bytes(bytes(buf[at + 1 : at + r.PREFIX]), "little")
            first, last = at + r.PREFIX, at + r.PREFIX + length
            if length < 6 or last > len(buf):
                return None
            size = int.from_bytes(bytes(buf[first + 2 : first + 6]), "little")
            if size % _ENTRY.itemsize or first + 6 + size > last:
                return None
            entries = np.frombuffer(bytes(buf[first + 6 : first + 6 + size]), _ENTRY)
            number = int.from_bytes(bytes(buf[first : first + 2]), "little")
            channels.append(np.full(len(entries), number, np.uint16))
            if size:
                ids.add(number)
            logs.append(entries["log"])
            places.append(entries["at"])
            at = last
        if not channels:
            return None
        place = np.concatenate(places)
        order = np.argsort(place, kind="stable")
        return ChunkMessages(
            np.concatenate(channels)[order], np.concatenate(logs)[order], place[order], ids
        )

    def usable(self) -> bool:
        """Whether the indexes hold every message of the file: it consists of chunks, all of them
        have one, every channel is known, and they count what the statistics count."""
        index = self.file.index
        total = self._message_count()
        if not index.indexed or index.faults or total is None:
            return False
        count = 0
        known = self.file.channels.by_id.keys()
        for piece in index.pieces:
            found = self._messages(piece)
            if found is None:
                return False
            if not found.ids <= known:
                return False
            if len(found.log) and int(found.log.max()) >= 2**63:
                return False
            count += len(found.log)
            if count < MESSAGES_KEPT:
                self._read[piece] = found
        return count == total

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
