"""The log of files and pieces: what has been found, in which order it is taken.

A piece is what one task reads at least: some row groups, or some chunks. The offset of the source
is the number of pieces that have been read, so it stays small however many files there are; names
and pieces are appended to a log beside the checkpoint before an offset that counts them is
returned. A micro-batch that runs again slices the same log and reads the same rows.

    CHECKPOINT/pieces/00000000.json      one file per look that found something new

**Order.** A live run takes files as they were first seen: by modification time, then by name. A
recorded run takes pieces of all files side by side. Let `low` be the smallest value, in a piece or
any later one of its file, of what orders the run (event time, or the arrival column). Pieces are
taken by `low`; after any number of them no row still to be read has a value below the `low` of the
next piece: the bound. `tidegate.eventtime.slices` holds back what is at or above it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow.fs as pafs

from tidegate.core.time import MAX_NS, MIN_NS
from tidegate.errors import StateError
from tidegate.output.filesystem import filesystem, read_bytes, write_whole

__all__ = ["FOLDER", "FoundFile", "LoggedPiece", "PieceLog", "in_recorded_order"]

FOLDER = "pieces"
"""Where the log is, inside a checkpoint."""


class FoundFile(NamedTuple):
    """A file of the log. Its number is its place there.

    - `input`: which input of the pipeline it belongs to.
    - `path`: absolute.
    - `changed_us`: when it was last modified, microseconds since 1970.
    """

    input: int
    path: str
    changed_us: int


class LoggedPiece(NamedTuple):
    """A part of a file, in the units of its format.

    - `file`: the number of the file.
    - `start`, `stop`: the first part, and the one behind the last: row groups, or bytes.
    - `rows`, `nbytes`: how many rows, and how many bytes of the columns that are read, about.
    - `low`: no row here or later in the file has a smaller value; see above.
    - `fault`: why the file cannot be read; such a piece is one error row. Empty: nothing is wrong.
    - `more`: whether the file could still grow when this was its last piece.
    """

    file: int
    start: int
    stop: int
    rows: int
    nbytes: int
    low: int = MIN_NS
    fault: str = ""
    more: bool = False


class PieceLog:
    """The files and pieces that have been found, in the order in which they are taken.

    Args:
        folder: Where the log is kept, a path or URI; None: in memory, for a batch.
    """

    def __init__(self, folder: str | None) -> None:
        self.files: list[FoundFile] = []
        self.pieces: list[LoggedPiece] = []
        self.known: set[tuple[int, str]] = set()
        """Input and path of every file."""
        self.growing: dict[int, int] = {}
        """The files that may still grow, by their numbers: where their last piece ends."""
        self._segments = 0
        self._lows = self._first = self._last = np.zeros(0, np.int64)
        self._fs: pafs.FileSystem | None = None
        self._root = ""
        if folder is not None:
            self._fs, self._root = filesystem(folder, "checkpoint")
        self.refresh()

    def refresh(self) -> None:
        """Read what has been appended since. Raises StateError if a segment is damaged."""
        if self._fs is None:
            return
        selector = pafs.FileSelector(self._root, allow_not_found=True)
        names = sorted(
            info.path for info in self._fs.get_file_info(selector) if info.base_name[0].isdigit()
        )
        for name in names[self._segments :]:
            content = read_bytes(self._fs, name) or b""
            try:
                read = json.loads(content)
                files = [FoundFile(*each) for each in read["files"]]
                pieces = [LoggedPiece(*each) for each in read["pieces"]]
                known = len(self.files) + len(files)
                sound = all(map(_is_file, files)) and all(_is_piece(one, known) for one in pieces)
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise StateError(f"{name} is corrupt: {content[:80]!r}") from error
            if not sound:
                raise StateError(f"{name} names files or pieces that cannot be: {content[:80]!r}")
            self._add(files, pieces)
        self._segments = len(names)

    def append(self, files: Sequence[FoundFile], pieces: Sequence[LoggedPiece]) -> None:
        """Add files, and pieces in the order in which they are to be taken; durable on return."""
        if not files and not pieces:
            return
        self._add(files, pieces)
        if self._fs is not None:
            content = json.dumps({"files": files, "pieces": pieces}).encode()
            write_whole(self._fs, f"{self._root}/{self._segments:08d}.json", content)
        self._segments += 1

    def _add(self, files: Sequence[FoundFile], pieces: Sequence[LoggedPiece]) -> None:
        """Take over what is new."""
        self.files += files
        self.pieces += pieces
        self.known.update((file.input, file.path) for file in files)
        for piece in pieces:
            if piece.more:
                self.growing[piece.file] = max(piece.stop, self.growing.get(piece.file, 0))
        for piece in pieces:
            if not piece.more:
                self.growing.pop(piece.file, None)

    def bound(self, taken: int) -> int:
        """Return a value that no row of the pieces from number `taken` on is below.

        MAX_NS if there is none left.
        """
        self._index()
        return int(self._lows[taken]) if taken < len(self._lows) else MAX_NS

    def begun(self, taken: int) -> list[int]:
        """Return the files of which some pieces are among the first `taken`, and some are not, or
        may still come."""
        self._index()
        return np.flatnonzero((self._first < taken) & (self._last >= taken)).tolist()

    def _index(self) -> None:
        """Make what `bound` and `begun` look up, once per change of the log."""
        count = len(self.pieces)
        if len(self._lows) == count:
            return
        lows = np.array([piece.low for piece in self.pieces], np.int64)
        self._lows = np.minimum.accumulate(lows[::-1])[::-1]
        of = np.array([piece.file for piece in self.pieces], np.int64)
        self._first = np.full(len(self.files), count, np.int64)
        self._last = np.full(len(self.files), -1, np.int64)
        np.minimum.at(self._first, of, np.arange(count))
        np.maximum.at(self._last, of, np.arange(count))
        self._last[list(self.growing)] = count


def _is_file(file: FoundFile) -> bool:
    """Whether a file of a log that was read can be one. The log is not ours to trust: a file
    outside the folders that a run may read is refused where it is opened."""
    return (
        _is_between(file.input, 0, 2**31)
        and isinstance(file.path, str)
        and "\0" not in file.path
        and _is_between(file.changed_us, MIN_NS, MAX_NS)
    )


def _is_piece(piece: LoggedPiece, files: int) -> bool:
    """Whether a piece read from a log is valid, given how many files the log names."""
    return (
        _is_between(piece.file, 0, files - 1)
        and _is_between(piece.start, 0, MAX_NS)
        and _is_between(piece.stop, piece.start, MAX_NS)
        and all(_is_between(each, 0, MAX_NS) for each in (piece.rows, piece.nbytes))
        and _is_between(piece.low, MIN_NS, MAX_NS)
        and isinstance(piece.fault, str)
        and type(piece.more) is bool
    )


def _is_between(value: object, least: int, most: int) -> bool:
    """Whether a value is a whole number between two others."""
    return type(value) is int and least <= value <= most


def in_recorded_order(
    pieces: Iterable[LoggedPiece], files: Sequence[FoundFile]
) -> list[LoggedPiece]:
    """Return new pieces in the order a recorded run takes them, each with its `low`.

    Args:
        pieces: Of each file in the order of its parts; `low` is that of the piece alone.
        files: All files, by their numbers.
    """
    by_file: dict[int, list[LoggedPiece]] = {}
    for piece in pieces:
        by_file.setdefault(piece.file, []).append(piece)
    found = []
    for parts in by_file.values():
        low = MAX_NS
        for piece in reversed(parts):
            low = min(low, piece.low)
            found.append(piece._replace(low=low))
    return sorted(found, key=lambda one: (one.low, files[one.file].path, one.start))
