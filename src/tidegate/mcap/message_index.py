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


class ChunkMessages(NamedTuple):
    """The messages of a chunk in the order of their places: per message its channel, log time in ns
    (unsigned) and offset in the chunk."""

    channel: np.ndarray
    log: np.ndarray
    at: np.ndarray


class IndexedMessages:
    """The message indexes of an open file.

    Args:
        file: The file; must stay open.
    """

    def __init__(self, file: McapFile) -> None:
        self.file = file

    def of(self, piece: Piece) -> ChunkMessages | None:
        """Return the messages of a chunk; None if its index is missing or cannot be true."""
        buf = self.file.buf
        if not piece.chunk or not piece.whole:
            return None
        channels, logs, places = [], [], []
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
            logs.append(entries["log"])
            places.append(entries["at"])
            at = last
        if not channels:
            return None
        place = np.concatenate(places)
        order = np.argsort(place, kind="stable")
        return ChunkMessages(
            np.concatenate(channels)[order], np.concatenate(logs)[order], place[order]
        )

    def usable(self) -> bool:
        """Whether the indexes hold every message of the file: it consists of chunks, all of them
        have one, every channel is known, and they count what the statistics count."""
        index = self.file.index
        total = self._message_count()
        if not index.indexed or index.faults or total is None:
            return False
        count = 0
        for piece in index.pieces:
            found = self.of(piece)
            if found is None:
                return False
            known = self.file.channels.by_id
            if any(int(number) not in known for number in np.unique(found.channel)):
                return False
            if len(found.log) and int(found.log.max()) >= 2**63:
                return False
            count += len(found.log)
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
