"""`mcap` as a stream: a folder that recordings are put into, or that is being recorded into.

A file that is still open (no footer, changed within `settle`) is read up to its last whole chunk,
and goes on when it has grown; one that stays as it is for `settle` is read to its end, and what is
wrong with it is told then.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from tidegate.mcap import McapFile
from tidegate.mcap.index import Piece
from tidegate.spark.sources.mcap import McapRun, read_run
from tidegate.spark.sources.recording_stream import Extent, RecordingStreamReader

__all__ = ["McapStreamReader"]


class McapStreamReader(RecordingStreamReader):
    """Streaming: files as they appear and grow."""

    def files(self) -> list[str]:
        return self.settings.files()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, McapRun)
        return read_run(partition, self.settings, self.names)

    def extent(self, file: str) -> Extent:
        found = os.stat(file)
        settled = time.time_ns() - found.st_mtime_ns >= self.settle_ns
        with McapFile(file) as opened:
            if settled or not opened.index.faults:
                return Extent(found.st_size, True)
            whole = [piece.end for piece in opened.index.pieces if piece.whole]
        return Extent(max(whole, default=0), False)

    def up_to(self, file: str, at: int, extent: Extent, most: int) -> tuple[int, bool, int]:
        """How far `most` bytes lead into a file: at least one piece, and whole ones only."""
        pieces, _ = self._between(file, at, extent.at)
        size = 0
        for place, piece in enumerate(pieces):
            size += piece.end - piece.start
            if size >= most and place + 1 < len(pieces):
                return piece.end, False, size
        return extent.at, extent.end, size

    def runs(self, file: str, at: int, upto: int, end: bool) -> Iterator[McapRun]:
        pieces, indexed = self._between(file, at, upto)
        run: list[Piece] = []
        size = 0
        for piece in pieces:
            if run and indexed and size + piece.end - piece.start > self.settings.partition_bytes:
                yield McapRun(file, tuple(run), False)
                run, size = [], 0
            run.append(piece)
            size += piece.end - piece.start
        if run or end:
            yield McapRun(file, tuple(run), end)

    def _between(self, file: str, at: int, upto: int) -> tuple[list[Piece], bool]:
        """The pieces from `at` up to `upto`, and whether the file has an index."""
        with McapFile(file) as opened:
            pieces = opened.pieces(self.settings.selection)
            indexed = opened.index.indexed
        some = []
        for piece in pieces:
            first, last = piece.start, piece.end
            if not piece.chunk:
                # A run of loose messages may have grown since: it is cut where it was cut before.
                first, last = max(first, at), min(last, upto)
            if at <= first < last <= upto:
                some.append(replace(piece, start=first, end=last, channels=None))
        return some, indexed
