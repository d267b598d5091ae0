"""MCAP files for gate 1: by their message indexes where they will do, else chunk by chunk.

With log time as the clock, and stages that look at nothing but topic, time and the path of the
file, no chunk is decompressed for a decision: `tidegate.mcap.message_index` has it all. Otherwise a
chunk is read once for the decision and, if payload is addressed, once more for what leaves.

A piece of a file is a chunk, or a run of messages outside chunks. A part is a span of bytes: of one
piece, or of several chunks that are decided by their indexes. An empty span at the end of a file
stands for what is wrong with the file itself. A position is (number of the piece in its file,
number of the row among those of it). Rows that say why something cannot be read count too.

A stream follows a file that is still open (no footer, changed within `settle`): it is read up to
its last whole chunk, and goes on when it has grown. Pieces keep their numbers then: a file only
gets longer, and the only piece that can grow is a run of messages at its end.

Clock policy: the wall clock decides only whether a file that is still open is waited for.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tidegate.core.arrow import concat
from tidegate.core.time import MIN_NS
from tidegate.mcap import McapFile
from tidegate.mcap.index import Piece
from tidegate.mcap.message_index import ChunkMessages, IndexedMessages
from tidegate.pipeline.security import check_files_read
from tidegate.spark.columnar.format import (
    FileIdentity,
    FilePart,
    Int64s,
    Low,
    NewParts,
    identity_of,
)
from tidegate.spark.columnar.recorded import RecordingColumns
from tidegate.spark.sources.recording import RecordingSettings

__all__ = ["McapColumns"]

ROW_BITS = 20
"""Bits of a position that say which row of its piece it is: a chunk of a million messages."""

ROWS_PER_PART = 65_536
"""Messages of chunks that are decided by their indexes, per part. A chunk has a few hundred: one by
one they took ten times as long. More, and files that are read side by side wait for each other with
more rows."""

_CHUNK_BYTES_KEPT = 128 * 2**20
"""Bytes of decompressed chunks kept per file: what is attached at a time, and as much again."""

_MCAPS_KEPT = 8
"""Files a worker keeps open, with their pieces."""


@dataclass(frozen=True)
class McapColumns(RecordingColumns):
    """MCAP files below a path. A stream follows a file without a footer until it has not changed
    for `settle_ns`."""

    name = "mcap"

    def files(self) -> list[str]:
        found = sorted(self.settings.files(), key=lambda path: (path.rsplit("/", 1)[-1], path))
        if self.roots:
            check_files_read(found, self.roots)
        return found

    def parts(
        self, path: str, columns: Sequence[str], ordering: Sequence[str], low: Low
    ) -> list[FilePart]:
        opened = _opened_mcap(path, self.settings)
        return self._parts(opened, 0, opened.end, columns, ordering, low)

    def new_parts(
        self, path: str, after: int, columns: Sequence[str], ordering: Sequence[str], low: Low
    ) -> NewParts:
        changed_ns = identity_of(path).changed_ns
        opened = _opened_mcap(path, self.settings)
        asked = (columns, ordering, low)
        if not opened.file.index.faults or time.time_ns() - changed_ns >= self.settle_ns:
            parts = self._parts(opened, after, opened.end, *asked)
            if not parts or parts[-1].start < opened.end:  # also if nothing is wrong: it is over
                parts.append(FilePart(opened.end, opened.end, 0, 0, MIN_NS))
            return NewParts(parts)
        whole = max((piece.end for piece in opened.pieces if piece.whole), default=0)
        parts = self._parts(opened, after, whole, *asked)
        return NewParts([part for part in parts if part.start < part.stop], more=True)

    def _parts(
        self, opened: _OpenMcap, after: int, upto: int,
        columns: Sequence[str], ordering: Sequence[str], low: Low,
    ) -> list[FilePart]:  # fmt: skip
        """Return the parts between two bytes of a file, and the fault of the file at its end."""
        found: list[FilePart] = []
        indexed = opened.by_index and self.are_indexed(columns)
        by_log = list(ordering) == ["log_time_ns"] and opened.by_index
        for number, piece in enumerate(opened.pieces):
            start, stop = max(piece.start, after), min(piece.end, upto)
            if start >= stop or piece not in opened.selected:
                continue
            least, rows = MIN_NS, 1000
            if indexed:
                rows = int(opened.indexes.counts[number])
            if by_log and piece.start_ns is not None:
                least = piece.start_ns
            elif ordering:
                seen = [rows for rows, _ in self.read(opened.path, start, stop, ordering)]
                least = min((low(each)[0] for each in seen), default=MIN_NS)
                rows = sum(each.num_rows for each in seen)
            last = found[-1] if found else None
            if indexed and last is not None and last.rows + rows <= ROWS_PER_PART:
                both = last.rows + rows
                found[-1] = FilePart(last.start, stop, both, 40 * both, min(last.low, least))
            else:
                found.append(
                    FilePart(start, stop, rows, 40 * rows if indexed else stop - start, least)
                )
        if opened.file.index.faults and upto >= opened.end:
            found.append(FilePart(opened.end, opened.end, 1, 100, MIN_NS))
        return found

    def read(
        self, path: str, start: int, stop: int, columns: Sequence[str]
    ) -> Iterator[tuple[pa.RecordBatch, Int64s]]:
        opened = _opened_mcap(path, self.settings)
        numbers = opened.numbers(start, stop)
        if numbers.stop <= len(opened.pieces) and opened.by_index and self.are_indexed(columns):
            batch, chunk, row = opened.from_index(numbers, columns)
            self._check_rows(path, row)
            yield self.in_columns(batch, path, columns), row | (chunk << ROW_BITS)
            return
        own = {name for name in opened.selection.schema.names if name in columns}
        for number in numbers:
            at = 0
            for batch in opened.whole(number, stop, list({*own, "offset"})):
                row = np.arange(at, at + batch.num_rows, dtype=np.int64)
                self._check_rows(path, row)
                at += batch.num_rows
                if number < len(opened.pieces) and start > opened.pieces[number].start:
                    # a run of messages that was read up to here before, and has grown since
                    new = batch.column("offset").to_numpy() >= start
                    batch, row = batch.filter(pa.array(new)), row[new]
                yield self.in_columns(batch, path, columns), row | (number << ROW_BITS)

    def _check_rows(self, path: str, row: Int64s) -> None:
        """Raise pa.ArrowInvalid if a row has a number that a position has no room for."""
        if len(row) and int(row.max()) >= 1 << ROW_BITS:
            raise pa.ArrowInvalid(f"a chunk of {path} has more than a million messages")

    def fetch(
        self, path: str, positions: Int64s, columns: Sequence[str]
    ) -> Iterator[tuple[pa.RecordBatch, Int64s]]:
        opened = _opened_mcap(path, self.settings)
        number, row = positions >> ROW_BITS, positions & ((1 << ROW_BITS) - 1)
        for each in np.unique(number).tolist():
            mine = np.flatnonzero(number == each)
            if each > len(opened.pieces):
                raise IndexError(f"{path} has {len(opened.pieces):,} chunks; {each:,} is gone")
            batch = opened.cached(each)
            if batch is None or int(row[mine].max()) >= batch.num_rows:
                raise IndexError(f"chunk {each:,} of {path} has other messages now")
            yield self.in_columns(batch.take(pa.array(row[mine])), path, columns), mine

    def bytes_per_row(self, columns: Sequence[str]) -> float:
        files = self.files()
        if "data" not in columns or not files:
            return 8.0 * len(columns)
        opened = _opened_mcap(files[0], self.settings)
        for batch in opened.whole(0) if opened.pieces else ():
            return float(batch.nbytes / max(1, batch.num_rows))
        return 0.0


class _OpenMcap:
    """An open file, its pieces, and the rows of those that were read last."""

    def __init__(self, path: str, settings: RecordingSettings) -> None:
        self.path = path
        self.selection = settings.selection
        self.file = McapFile(path)
        self.end = len(self.file.buf)
        self.pieces: list[Piece] = self.file.index.pieces
        self.selected = set(self.file.pieces(self.selection))
        """The pieces that can hold a message that is wanted."""
        self.indexes = IndexedMessages(self.file)
        plain = self.selection.clock == "log" and self.selection.log_span == (None, None)
        self.by_index = plain and not self.selection.decode and self.indexes.usable()
        self._read: OrderedDict[int, pa.RecordBatch | None] = OrderedDict()

    def numbers(self, start: int, stop: int) -> range:
        """Return the numbers of the pieces that have bytes of a span; for an empty span, the one
        behind the last piece: what is wrong with the file.
        """
        if start == stop:
            return range(len(self.pieces), len(self.pieces) + 1)
        first = bisect_left(self.pieces, True, key=lambda piece: piece.end > start)
        return range(first, bisect_left(self.pieces, stop, key=lambda piece: piece.start))

    def whole(
        self, number: int, stop: int | None = None, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a piece, up to byte `stop` of the file, or those that say what is wrong
        with the file itself. `columns`: those that are wanted; None: all.
        """
        if number == len(self.pieces):
            return self.file.batches(self.selection, [], faults=True, columns=columns)
        piece = self.pieces[number]
        if stop is not None and stop < piece.end:
            piece = replace(piece, end=stop)
        return self.file.batches(self.selection, [piece], faults=False, columns=columns)

    def cached(self, number: int) -> pa.RecordBatch | None:
        """Return all rows of a piece as one batch; the last ones are kept: a set has messages of
        several topics from the same few chunks, and topics are fetched one after the other.
        """
        found = self._read.pop(number, None)
        new = found is None
        if found is None:
            found = concat(list(self.whole(number)))
        self._read[number] = found
        while new and len(self._read) > 1 and self._bytes_kept() > _CHUNK_BYTES_KEPT:
            self._read.popitem(last=False)
        return found

    def _bytes_kept(self) -> int:
        return sum(0 if rows is None else rows.nbytes for rows in self._read.values())

    def from_index(
        self, numbers: range, wanted: Sequence[str]
    ) -> tuple[pa.RecordBatch, Int64s, Int64s]:
        """Return the selected messages of chunks, with those of the wanted columns that indexes
        know; per message the number of its chunk, and of its row in it."""
        found = self.indexes.between(numbers.start, numbers.stop)
        by_id = self.file.channels.by_id
        ids = np.flatnonzero(np.bincount(found.channel, minlength=1)).tolist()
        topics = self.selection.topics
        asked = [topics is None or by_id[each].topic in topics for each in ids]
        if not all(asked):
            chosen = np.zeros(1 << 16, np.bool_)
            chosen[ids] = asked
            keep = np.flatnonzero(chosen[found.channel])
            found = ChunkMessages(*(column[keep] for column in found))
        place = np.zeros(1 << 16, np.int32)
        place[ids] = np.arange(len(ids))
        of_channel = pa.array(place[found.channel])
        channels = [by_id[each] for each in ids]

        def named(values: list[str | None]) -> pa.DictionaryArray:
            return pa.DictionaryArray.from_arrays(of_channel, pa.array(values, pa.string()))

        schemas = self.file.channels.schemas
        starts = np.array([piece.start for piece in self.pieces[numbers.start : numbers.stop]])
        known: dict[str, Callable[[], pa.Array]] = {
            "file": lambda: pa.repeat(self.path, len(found.log)),
            "offset": lambda: pa.array(starts[found.piece - numbers.start]),
            "position": lambda: pa.array(found.at),
            "topic": lambda: named([one.topic for one in channels]),
            "log_time_ns": lambda: pa.array(found.log),
            "schema": lambda: named(
                [one.name if (one := schemas.get(each.schema_id)) else None for each in channels]
            ),
            "encoding": lambda: named([one.encoding for one in channels]),
        }
        names = [name for name in wanted if name in known]
        batch = pa.RecordBatch.from_arrays([known[name]() for name in names], names=names)
        row = np.arange(len(found.piece)) - np.searchsorted(found.piece, found.piece)
        return batch, found.piece, row


_OPEN_MCAPS: OrderedDict[tuple[str, RecordingSettings], tuple[FileIdentity, _OpenMcap]] = (
    OrderedDict()
)
"""The files this worker has open, least recently used first, each with what it was when opened."""


def _opened_mcap(path: str, settings: RecordingSettings) -> _OpenMcap:
    """Return an open file, kept for the next call; one that was replaced is opened anew."""
    now = identity_of(path)
    known, opened = _OPEN_MCAPS.pop((path, settings), (None, None))
    if opened is None or known != now:
        opened = _OpenMcap(path, settings)
    _OPEN_MCAPS[path, settings] = now, opened
    while len(_OPEN_MCAPS) > _MCAPS_KEPT:
        _OPEN_MCAPS.popitem(last=False)
    return opened
