"""`mcap` as a stream: a folder that recordings are put into, or that is being recorded into.

The offset says for every file how far it has been read: `number` is its place in the order in which
files were first seen, `at` the byte before which everything has been delivered, `end` whether the
file is finished with. A file that is still open (no footer, changed within `settle`) is read up to
its last whole chunk, and goes on when it has grown; one that stays as it is for `settle` is read to
its end, and what is wrong with it is told then.

Clock policy: the wall clock decides only whether an open file is waited for.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from tidegate.errors import ConfigError
from tidegate.mcap import McapFile
from tidegate.mcap.index import Piece
from tidegate.spark.sources import options as o
from tidegate.spark.sources.mcap import McapRun, Settings, checked_names, read_run

__all__ = ["McapStreamReader"]

Offset = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class _Extent:
    """How far a file can be read now."""

    at: int
    end: bool


class McapStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streaming: files as they appear and grow, at most so much per micro-batch."""

    def __init__(
        self, settings: Settings, names: Sequence[str], options: Mapping[str, str]
    ) -> None:
        self.settings = settings
        self.names = checked_names(settings, names)
        self.max_files = o.number(options, "maxFilesPerTrigger", 1)
        self.max_bytes = o.number(options, "maxBytesPerTrigger", 1)
        if self.max_files is not None and self.max_bytes is not None:
            raise ConfigError("maxBytesPerTrigger", self.max_bytes, "excludes maxFilesPerTrigger")
        self.settle_ns = o.duration(options, "settle", "30 s")
        self.target: dict[str, _Extent] | None = None

    def initialOffset(self) -> Offset:  # noqa: N802  (Spark's names, here and below)
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self.max_files is not None:
            return ReadMaxFiles(self.max_files)
        return ReadAllAvailable() if self.max_bytes is None else ReadMaxBytes(self.max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self.target = self._extents(self.settings.files())

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        # Files that are finished with are not opened again: there may be thousands.
        finished = {file for file, done in start.items() if done["end"]}
        there = set(self.settings.files())
        extents = self._extents(there - finished) if self.target is None else self.target
        # One that is finished with and gone from the folder need not be remembered.
        now = {file: dict(done) for file, done in start.items() if file not in finished - there}
        for file in finished - there:
            extents.pop(file, None)
        number = max((done["number"] for done in start.values()), default=-1) + 1
        known = sorted(now, key=lambda file: now[file]["number"])
        new = sorted(file for file in extents if file not in start)
        files_left = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        bytes_left = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        moved = False
        for file in [*known, *new]:
            extent = extents.get(file)
            before = now.get(file, {"number": number, "at": 0, "end": False})
            if extent is None or before["end"]:
                continue
            if (files_left is not None and files_left <= 0) or (
                bytes_left is not None and bytes_left <= 0
            ):
                break
            at, end = extent.at, extent.end
            if bytes_left is not None:
                at, end, taken = self._up_to(file, before["at"], extent, bytes_left)
                bytes_left -= taken
            if (at, end) == (before["at"], before["end"]):
                continue
            if file not in now:
                number += 1
            now[file] = {**before, "at": at, "end": end}
            files_left = None if files_left is None else files_left - 1
            moved = True
        return now if moved else start

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        found: list[InputPartition] = []
        for file in sorted(end, key=lambda name: end[name]["number"]):
            before = start.get(file, {"at": 0, "end": False})
            if not before["end"]:
                found += self._runs(file, before["at"], end[file]["at"], end[file]["end"])
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, McapRun)
        return read_run(partition, self.settings, self.names)

    # -- inside ---------------------------------------------------------------------------------

    def _extents(self, files: Iterable[str]) -> dict[str, _Extent]:
        found = {}
        for file in files:
            # One that is deleted while we look was never begun: there is nothing to go on with.
            with contextlib.suppress(FileNotFoundError):
                found[file] = self._extent(file)
        return found

    def _extent(self, file: str) -> _Extent:
        found = os.stat(file)
        settled = time.time_ns() - found.st_mtime_ns >= self.settle_ns
        with McapFile(file) as opened:
            if settled or not opened.index.faults:
                return _Extent(found.st_size, True)
            whole = [piece.end for piece in opened.index.pieces if piece.whole]
        return _Extent(max(whole, default=0), False)

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

    def _up_to(self, file: str, at: int, extent: _Extent, most: int) -> tuple[int, bool, int]:
        """How far `most` bytes lead into a file: at least one piece, and whole ones only."""
        pieces, _ = self._between(file, at, extent.at)
        size = 0
        for place, piece in enumerate(pieces):
            size += piece.end - piece.start
            if size >= most and place + 1 < len(pieces):
                return piece.end, False, size
        return extent.at, extent.end, size

    def _runs(self, file: str, at: int, upto: int, end: bool) -> Iterator[McapRun]:
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
