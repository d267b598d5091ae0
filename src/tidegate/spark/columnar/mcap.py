"""MCAP files for gate 1: by their message indexes where they will do, else chunk by chunk.

With log time as the clock, and stages that look at nothing but topic, time and the path of the
file, no chunk is decompressed for a decision: `tidegate.mcap.message_index` has it all. Otherwise a
chunk is read once for the decision and, if payload is addressed, once more for what leaves.

A position is (number of the piece in its file, number of the row among those read of it). Rows that
say why something cannot be read count as rows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tidegate.core.arrow import concat, conform
from tidegate.core.time import MIN_NS
from tidegate.mcap import McapFile
from tidegate.mcap.index import Piece
from tidegate.mcap.message_index import IndexedMessages
from tidegate.pipeline.security import check_files_read
from tidegate.spark.columnar.format import (
    ColumnarFormat,
    FileIdentity,
    FilePart,
    Int64s,
    Low,
    identity_of,
)
from tidegate.spark.sources.recording import RecordingSettings, with_path_columns

__all__ = ["McapColumns"]

ROW_BITS = 20
"""Bits of a position that say which row of its piece it is: a chunk of a million messages."""

INDEXED = frozenset({"file", "offset", "position", "topic", "log_time_ns", "schema", "encoding"})
"""The columns that the indexes of a file know, beside those from its path."""

_CHUNK_BYTES_KEPT = 128 * 2**20
"""Bytes of decompressed chunks kept per file: what is attached at a time, and as much again."""

_MCAPS_KEPT = 8
"""Files a worker keeps open, with their pieces."""


@dataclass(frozen=True)
class McapColumns(ColumnarFormat):
    """MCAP files below a path.

    Args:
        settings: The options of the source, with types of decoded fields.
        told: The columns of the rows, in the types Spark has for them.
        roots: The folders that files must be in, links followed; empty: anywhere.
    """

    settings: RecordingSettings
    told: pa.Schema
    roots: tuple[str, ...] = ()

    name = "mcap"

    @property
    def schema(self) -> pa.Schema:
        return self.told

    def narrowed(self, columns: Sequence[str]) -> McapColumns:
        return replace(self, told=pa.schema([self.told.field(name) for name in columns]))

    def files(self) -> list[str]:
        found = sorted(self.settings.files(), key=lambda path: (path.rsplit("/", 1)[-1], path))
        if self.roots:
            check_files_read(found, self.roots)
        return found

    def parts(
        self, path: str, columns: Sequence[str], ordering: Sequence[str], low: Low
    ) -> list[FilePart]:
        opened = _opened_mcap(path, self.settings)
        found: list[FilePart] = []
        by_log = list(ordering) == ["log_time_ns"]
        for number, piece in enumerate(opened.pieces):
            least, rows = MIN_NS, 1000
            if ordering and by_log and piece.start_ns is not None and opened.by_index:
                least = piece.start_ns
            elif ordering:
                seen = [rows for rows, _ in self.read(path, number, number + 1, ordering)]
                least = min((low(each)[0] for each in seen), default=MIN_NS)
                rows = sum(each.num_rows for each in seen)
            size = 40 * rows if self._from_index(opened, columns) else piece.end - piece.start
            found.append(FilePart(number, number + 1, rows, size, least))
        if opened.file.index.faults:
            found.append(FilePart(len(opened.pieces), len(opened.pieces) + 1, 1, 100, MIN_NS))
        return found

    def read(
        self, path: str, start: int, stop: int, columns: Sequence[str]
    ) -> Iterator[tuple[pa.RecordBatch, Int64s]]:
        opened = _opened_mcap(path, self.settings)
        schema = pa.schema([self.told.field(name) for name in columns])
        for number in range(start, stop):
            at = 0
            batches: Iterator[pa.RecordBatch] | list[pa.RecordBatch]
            if number < len(opened.pieces) and self._from_index(opened, columns):
                batches = [opened.from_index(number)]
            else:
                batches = opened.whole(number)
            for batch in batches:
                rows = conform(with_path_columns(batch, path, self.settings), schema)
                if at + rows.num_rows > 1 << ROW_BITS:
                    raise pa.ArrowInvalid(f"a chunk of {path} has more than a million messages")
                yield rows, np.arange(at, at + rows.num_rows, dtype=np.int64) | (number << ROW_BITS)
                at += rows.num_rows

    def fetch(
        self, path: str, positions: Int64s, columns: Sequence[str]
    ) -> Iterator[tuple[pa.RecordBatch, Int64s]]:
        opened = _opened_mcap(path, self.settings)
        schema = pa.schema([self.told.field(name) for name in columns])
        number, row = positions >> ROW_BITS, positions & ((1 << ROW_BITS) - 1)
        for each in np.unique(number).tolist():
            mine = np.flatnonzero(number == each)
            if each > len(opened.pieces):
                raise IndexError(f"{path} has {len(opened.pieces):,} chunks; {each:,} is gone")
            batch = opened.cached(each)
            if batch is None or int(row[mine].max()) >= batch.num_rows:
                raise IndexError(f"chunk {each:,} of {path} has other messages now")
            whole = with_path_columns(batch, path, self.settings)
            yield conform(whole.take(pa.array(row[mine])), schema), mine

    def bytes_per_row(self, columns: Sequence[str]) -> float:
        files = self.files()
        if "data" not in columns or not files:
            return 8.0 * len(columns)
        opened = _opened_mcap(files[0], self.settings)
        for batch in opened.whole(0) if opened.pieces else ():
            return float(batch.nbytes / max(1, batch.num_rows))
        return 0.0

    def _from_index(self, opened: _OpenMcap, columns: Sequence[str]) -> bool:
        """Whether these columns can be had without decompressing a chunk."""
        paths = set(self.told.names) - set(self.settings.selection.schema.names)
        return opened.by_index and set(columns) <= INDEXED | paths


class _OpenMcap:
    """An open file, its pieces, and the rows of those that were read last."""

    def __init__(self, path: str, settings: RecordingSettings) -> None:
        self.path = path
        self.selection = settings.selection
        self.file = McapFile(path)
        self.pieces: list[Piece] = self.file.pieces(self.selection)
        self.indexes = IndexedMessages(self.file)
        plain = self.selection.clock == "log" and self.selection.log_span == (None, None)
        self.by_index = plain and not self.selection.decode and self.indexes.usable()
        self._read: OrderedDict[int, pa.RecordBatch | None] = OrderedDict()

    def whole(self, number: int) -> Iterator[pa.RecordBatch]:
        """Yield all rows of a piece, or those that say what is wrong with the file itself."""
        if number == len(self.pieces):
            return self.file.batches(self.selection, [], faults=True)
        return self.file.batches(self.selection, [self.pieces[number]], faults=False)

    def cached(self, number: int) -> pa.RecordBatch | None:
        """Return all rows of a piece as one batch; the last ones are kept: a set has messages of
        several topics from the same few chunks, and topics are fetched one after the other.
        """
        found = self._read.pop(number, None)
        if found is None:
            found = concat(list(self.whole(number)))
        self._read[number] = found
        while len(self._read) > 1 and self._bytes_kept() > _CHUNK_BYTES_KEPT:
            self._read.popitem(last=False)
        return found

    def _bytes_kept(self) -> int:
        return sum(0 if rows is None else rows.nbytes for rows in self._read.values())

    def from_index(self, number: int) -> pa.RecordBatch:
        """Return the rows of a chunk with what its index knows; all else is null."""
        piece = self.pieces[number]
        found = self.indexes.of(piece)
        assert found is not None
        channels = self.file.channels
        wanted = self.selection.topics
        ids = sorted(int(each) for each in np.unique(found.channel))
        of = {each: channels.by_id[each] for each in ids}
        keep = np.isin(
            found.channel, [n for n, one in of.items() if wanted is None or one.topic in wanted]
        )
        channel = found.channel[keep]
        place = pa.array(np.searchsorted(ids, channel).astype(np.int32))
        names = [channels.schemas.get(of[each].schema_id) for each in ids]
        known = {
            "file": pa.repeat(self.path, len(channel)),
            "offset": pa.array(np.full(len(channel), piece.start, np.int64)),
            "position": pa.array(found.at[keep].astype(np.int64)),
            "topic": pa.array([of[each].topic for each in ids], pa.string()).take(place),
            "log_time_ns": pa.array(found.log[keep].astype(np.int64)),
            "schema": pa.array([n.name if n else None for n in names], pa.string()).take(place),
            "encoding": pa.array([of[each].encoding for each in ids], pa.string()).take(place),
        }
        schema = self.selection.schema
        columns = [
            known[field.name] if field.name in known else pa.nulls(len(channel), field.type)
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)


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
