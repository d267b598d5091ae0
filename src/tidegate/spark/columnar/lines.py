"""Lines of text files for gate 1: where they begin and end, in pieces, and again by their address.

    file ─► blocks of whole lines ─► `rows_of` of the format (csv_lines, json_lines) ─► columns

Lines end where Spark's reader ends them: at a newline, a carriage return, or both together. A byte
order mark at the beginning of a file is no text. A position is the byte at which a line begins; the
n-th row of a line that holds several (a JSON array) is n bytes further, which is still inside it.

Files that end in .gz, .bz2 or .zst are decompressed. Such a file is one piece, and a position is a
byte of what it holds: to fetch a row, everything before it is decompressed once more.
"""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from tidegate.core.arrow import conform
from tidegate.core.time import MAX_NS
from tidegate.errors import ConfigError
from tidegate.pipeline.security import check_files_read
from tidegate.pipeline.text_files import LONGEST_LINE, check_lines
from tidegate.recordings.listing import data_files
from tidegate.spark.columnar.format import (
    ColumnarFormat,
    FileIdentity,
    FilePart,
    Int64s,
    Low,
    identity_of,
)

__all__ = [
    "COMPRESSED", "MARK", "UNREADABLE", "Lines", "TextColumns", "decoded", "file_uri",
    "split_lines",
]  # fmt: skip

COMPRESSED = (".gz", ".bz2", ".zst")
"""Endings of files that are decompressed."""

UNREADABLE = (".lz4", ".snappy", ".deflate", ".xz", ".lzo", ".br")
"""Endings of compressed files that only Spark reads: Hadoop frames some of them in its own way."""

_BLOCK = 8 << 20
"""Bytes of text parsed at a time. Less, and the cost per call counts; more only takes memory."""

PIECE_BYTES = 32 << 20
"""Bytes of a piece of a file. A recording is taken in slices of at least one piece per file."""

_GAP = 64 << 10
"""Bytes between two lines that are fetched, up to which the gap is read as well."""

MARK = b"\xef\xbb\xbf"
"""The byte order mark of UTF-8."""

_FILES_KNOWN = 64
"""Files of which a worker remembers how to read them."""


class Lines(NamedTuple):
    """Some lines of a file, blank ones left out.

    - `data`: bytes that hold them.
    - `starts`, `ends`: where each begins and ends in `data`, without what ends the line.
    - `base`: the position of the first byte of `data` in the file.
    """

    data: bytes
    starts: Int64s
    ends: Int64s
    base: int

    def text(self, line: int) -> bytes:
        """Return the bytes of a line."""
        return self.data[self.starts[line] : self.ends[line]]

    def joined(self) -> bytes:
        """Return the lines one after the other, each with a newline behind it."""
        if not len(self.starts):
            return b""
        if bool((self.starts[1:] - self.ends[:-1] == 1).all()):  # as they are in the file
            found = self.data[self.starts[0] : self.ends[-1]]
            if b"\r" not in found:
                return found + b"\n"
        return b"\n".join([self.text(line) for line in range(len(self.starts))]) + b"\n"

    def some(self, keep: Any) -> Lines:
        """Return those of the lines that a mask or indices choose."""
        return self._replace(starts=self.starts[keep], ends=self.ends[keep])


def split_lines(data: bytes, *, at_end: bool) -> tuple[Int64s, Int64s, int]:
    r"""Return where lines begin and end, and how many bytes they take with what ends them.

    Args:
        data: Text that begins with a line.
        at_end: Whether nothing follows: then the rest behind the last end is a line too.

    >>> starts, ends, used = split_lines(b"a\r\nbc\rd\n\ne", at_end=False)
    >>> [(int(s), int(e)) for s, e in zip(starts, ends)], used
    ([(0, 1), (3, 5), (6, 7), (8, 8)], 9)
    """
    view = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(view == 10)
    following = ends + 1
    if b"\r" in data:
        returns = np.flatnonzero(view == 13)
        if len(returns) and returns[-1] == len(view) - 1 and not at_end:
            returns = returns[:-1]  # a newline may follow
        paired = np.zeros(len(returns), np.bool_)
        inside = returns + 1 < len(view)
        paired[inside] = view[returns[inside] + 1] == 10
        alone = ends[~np.isin(ends - 1, returns[paired])]
        ends = np.concatenate([alone, returns])
        following = np.concatenate([alone + 1, returns + 1 + paired])
        order = np.argsort(ends)
        ends, following = ends[order], following[order]
    starts = np.concatenate([np.zeros(1, np.int64), following])
    used = int(starts[-1])
    if at_end and used < len(data):
        ends = np.concatenate([ends, [len(data)]])
        used = len(data)
    else:
        starts = starts[:-1]
    return starts.astype(np.int64), ends.astype(np.int64), used


_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")


def decoded(line: bytes) -> str:
    r"""Return the text of a line. What is not UTF-8 is replaced as Java does it: of half a pair of
    UTF-16, three bytes are one mark.

    >>> decoded(b"a\xff b\xed\xa0\x80")
    'a\ufffd b\ufffd'
    """
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return _SURROGATE.sub(b"\xef\xbf\xbd", line).decode("utf-8", "replace")


def _without_blank(lines: Lines) -> Lines:
    """Return the lines that have a character above a space: Spark skips the others."""
    starts, ends = lines.starts, lines.ends
    keep = ends > starts
    if not keep.any():
        return lines.some(keep)
    view = np.frombuffer(lines.data, np.uint8)
    first = view[np.minimum(starts, len(view) - 1)]
    last = view[np.maximum(ends - 1, 0)]
    for line in np.flatnonzero(keep & (first <= 32) & (last <= 32)).tolist():
        keep[line] = max(lines.text(line)) > 32
    return lines if keep.all() else lines.some(keep)


def file_uri(path: str) -> str:
    """Return a path as Spark names a file in `_metadata.file_path`.

    >>> file_uri("/data/a b.csv")
    'file:/data/a%20b.csv'
    """
    return "file:" + "".join(
        letter if ord(letter) > 127 else quote(letter, safe="/!$&'()*+,;=:@~-._") for letter in path
    )


@dataclass(frozen=True)
class TextColumns(ColumnarFormat):
    """Files of lines below a path. Subclasses say what a line is.

    Args:
        path: A file, a folder or a pattern.
        told: The columns of the rows, in the types Spark has for them.
        names: The columns that lines hold, in the order of the schema.
        unparsed: The column for the text of lines that do not fit.
        file: The column for the file of such lines.
        every_file: The column for the file of every row; None: there is none.
        recursive: Whether folders inside the folder are looked into.
        roots: The folders that files must be in, links followed; empty: anywhere.
    """

    path: str
    told: pa.Schema
    names: tuple[str, ...]
    unparsed: str
    file: str
    every_file: str | None = None
    recursive: bool = False
    roots: tuple[str, ...] = ()
    whole: pa.Schema = field(default=None, kw_only=True)
    """The columns before `narrowed` left some out: a position in a line counts all of them."""

    def __post_init__(self) -> None:
        if self.whole is None:
            object.__setattr__(self, "whole", self.told)

    @property
    def schema(self) -> pa.Schema:
        return self.told

    def narrowed(self, columns: Sequence[str]) -> TextColumns:
        return replace(self, told=pa.schema([self.told.field(name) for name in columns]))

    def files(self) -> list[str]:
        found = data_files(self.path, recursive=self.recursive)
        if self.roots:  # again at every look: a link may have been put there since
            check_files_read(found, self.roots)
        return found

    # -- what a kind of text says ---------------------------------------------------------------

    @abstractmethod
    def prepare(self, path: str) -> Any:
        """Return what must be known of a file before its lines are read; kept by `known`.

        Raises pa.ArrowInvalid if the file cannot be read as the others are.
        """

    @abstractmethod
    def rows_of(
        self, lines: Lines, columns: Sequence[str], about: Any
    ) -> tuple[pa.RecordBatch, Int64s, Int64s]:
        """Return the rows of some lines with these columns; for each the number of its line, and
        its own number within it. `about` is what `prepare` returned.
        """

    def heading(self, about: Any) -> int:
        """Return how many lines at the beginning of a file are no rows; by default none."""
        return 0

    # -- reading --------------------------------------------------------------------------------

    def parts(
        self, path: str, columns: Sequence[str], ordering: Sequence[str], low: Low
    ) -> list[FilePart]:
        if path.endswith(UNREADABLE):
            raise pa.ArrowInvalid("it is compressed in a way that only Spark reads")
        try:
            check_lines([path])
        except ConfigError as error:
            raise pa.ArrowInvalid(str(error)) from error
        self._about(path)
        if path.endswith(COMPRESSED):
            rows, size, least = self._measure(path, 0, MAX_NS, ordering, low)
            return [FilePart(0, size, rows, size, least)] if size else []
        found = []
        for start, stop in _cut_at_line_ends(path, PIECE_BYTES):
            if ordering:
                rows, size, least = self._measure(path, start, stop, ordering, low)
            else:
                rows, size, least = (stop - start) // 50, stop - start, 0
            found.append(FilePart(start, stop, rows, size, least))
        return found

    def _measure(
        self, path: str, start: int, stop: int, ordering: Sequence[str], low: Low
    ) -> tuple[int, int, int]:
        """Return rows, bytes and the smallest value of a part, by reading it."""
        rows, size, least = 0, 0, MAX_NS
        about = self._about(path)
        for lines, used in self._blocks(path, start, stop, self.heading(about)):
            size += used
            rows += len(lines.starts)
            if ordering and len(lines.starts):
                least = min(least, low(self._columns(path, lines, ordering)[0])[0])
        return rows, size, least

    def read(
        self, path: str, start: int, stop: int, columns: Sequence[str]
    ) -> Iterator[tuple[pa.RecordBatch, Int64s]]:
        if not path.endswith(COMPRESSED) and os.path.getsize(path) < stop:
            raise pa.ArrowInvalid(f"it had {stop:,} bytes when it was found, and is shorter now")
        for lines, _ in self._blocks(path, start, stop, self.heading(self._about(path))):
            if len(lines.starts):
                rows, line, index = self._columns(path, lines, columns)
                yield rows, lines.base + lines.starts[line] + index

    def _columns(
        self, path: str, lines: Lines, columns: Sequence[str]
    ) -> tuple[pa.RecordBatch, Int64s, Int64s]:
        """Return the rows of some lines as `rows_of`, with the columns that name the file."""
        inside = [name for name in columns if name != self.every_file]
        needed = inside if self.file not in inside else [*inside, self.unparsed]
        asked = list(dict.fromkeys(name for name in needed if name != self.file))
        rows, line, index = self.rows_of(lines, asked, self._about(path))
        uri = file_uri(path)
        if self.file in inside:
            bad = rows.column(self.unparsed).is_valid()
            named = pa.compute.if_else(bad, pa.scalar(uri), pa.scalar(None, pa.string()))
            rows = rows.append_column(self.file, named)
        if self.every_file is not None and self.every_file in columns:
            rows = rows.append_column(self.every_file, pa.repeat(uri, rows.num_rows))
        schema = pa.schema([self.whole.field(name) for name in columns])
        return conform(rows, schema), line, index

    def _blocks(
        self, path: str, start: int, stop: int, heading: int
    ) -> Iterator[tuple[Lines, int]]:
        """Yield the lines between two positions that are borders of lines, and their bytes."""
        with _open_bytes(path) as opened:
            if not path.endswith(COMPRESSED):
                opened.seek(start)
            at, rest, left = start, b"", heading if start == 0 else 0
            while True:
                more = opened.read(min(_BLOCK, stop - at - len(rest)))
                data = rest + more
                at_end = not more or at + len(data) >= stop
                if not more and at + len(data) < stop < MAX_NS:
                    raise pa.ArrowInvalid(f"it had {stop:,} bytes when it was found")
                skip = len(MARK) if at == 0 and data.startswith(MARK) else 0
                starts, ends, used = split_lines(data[skip:], at_end=at_end)
                if not at_end and len(data) - used > LONGEST_LINE:
                    raise pa.ArrowInvalid(f"a line has more than {LONGEST_LINE >> 20} MiB")
                lines = _without_blank(Lines(data, starts + skip, ends + skip, at))
                if left:
                    dropped = min(left, len(lines.starts))
                    lines, left = lines.some(np.s_[dropped:]), left - dropped
                used = used + skip if used else 0
                if used or at_end:
                    yield lines, used
                if at_end:
                    return
                at, rest = at + used, data[used:]

    def check_whole(self, path: str, positions: Int64s, changed_us: int) -> None:
        """Refuse the last line of a file that was modified if nothing ends it: the file may have
        been cut there, and half a line of CSV reads as a row with a shorter field."""
        if path.endswith(COMPRESSED) or len(positions) == 0:
            return
        size, changed_ns = identity_of(path)[1:]
        if changed_ns // 1000 == changed_us or size == 0:
            return
        with open(path, "rb") as opened:
            opened.seek(size - 1)
            if opened.read(1) not in b"\r\n" and positions.max() >= _line_start(opened, size - 1):
                raise IndexError(f"the line at {positions.max():,} may have been cut off")

    def fetch(
        self, path: str, positions: Int64s, columns: Sequence[str]
    ) -> Iterator[tuple[pa.RecordBatch, Int64s]]:
        order = np.argsort(positions, kind="stable")
        wanted = positions[order]
        if len(wanted) and wanted[0] < 0:
            raise IndexError(f"{path} has no line at {wanted[0]:,}")
        spread = self._packed_lines if path.endswith(COMPRESSED) else _lines_at
        for lines, first, last in spread(path, wanted):
            at = np.searchsorted(lines.starts + lines.base, wanted[first:last], "right") - 1
            needed, which = np.unique(at, return_inverse=True)
            rows, line, index = self._columns(path, lines.some(needed), columns)
            number = wanted[first:last] - (lines.starts[at] + lines.base)
            # The rows of a line are adjacent: count on from the first one.
            before = np.searchsorted(line, which, "left")
            place = before + number
            inside = place < rows.num_rows
            if (
                not inside.all()
                or not (line[place] == which).all()
                or not (index[place] == number).all()
            ):
                raise IndexError(f"{path} has other lines now")
            yield rows.take(pa.array(place)), order[first:last]

    def _packed_lines(self, path: str, wanted: Int64s) -> Iterator[tuple[Lines, int, int]]:
        """Yield lines of a compressed file and which of the sorted positions are in them."""
        first = 0
        for lines, used in self._blocks(path, 0, MAX_NS, 0):
            last = int(np.searchsorted(wanted, lines.base + used))
            if last > first:
                yield lines, first, last
            first = last
        if first < len(wanted):
            raise IndexError(f"{path} has no line at {wanted[first]:,}")

    def bytes_per_row(self, columns: Sequence[str]) -> float:
        files = self.files()
        if not files or any(path.endswith(COMPRESSED) for path in files):
            return 0.0
        wanted = [name for name in columns if name in self.names]
        try:
            for lines, _ in self._blocks(files[0], 0, os.path.getsize(files[0]), 1):
                few = lines.some(np.s_[:1000])
                if len(few.starts):
                    rows, *_ = self._columns(files[0], few, wanted)
                    return float(rows.nbytes / max(1, rows.num_rows))
        except (OSError, ValueError, pa.ArrowException):
            pass
        return 0.0

    def _about(self, path: str) -> Any:
        """Return what `prepare` says of a file, kept while the file is the same."""
        now = identity_of(path)
        kept = _KNOWN.pop((path, self), None)
        about = kept[1] if kept is not None and kept[0] == now else self.prepare(path)
        _KNOWN[path, self] = now, about
        while len(_KNOWN) > _FILES_KNOWN:
            _KNOWN.popitem(last=False)
        return about


_KNOWN: OrderedDict[tuple[str, TextColumns], tuple[FileIdentity, Any]] = OrderedDict()
"""What is known of the files read last, least recently used first."""


def _open_bytes(path: str) -> Any:
    """Open a file for reading bytes, decompressed by its ending."""
    if path.endswith(COMPRESSED):
        return pa.input_stream(path, compression="detect", buffer_size=1 << 20)
    return open(path, "rb")


def _cut_at_line_ends(path: str, nbytes: int) -> list[tuple[int, int]]:
    """Return offsets of line starts in a plain file, about `nbytes` apart."""
    size = os.path.getsize(path)
    borders = [0]
    with open(path, "rb") as opened:
        while size - borders[-1] > nbytes * 3 // 2:
            border = _next_border(opened, borders[-1] + nbytes, size)
            if border >= size:
                break
            borders.append(border)
    return list(zip(borders, [*borders[1:], size], strict=True)) if size else []


def _next_border(opened: Any, at: int, size: int) -> int:
    """Return where the first line begins behind a position; `size` if none does."""
    while at < size:
        opened.seek(at)
        block = opened.read(_GAP + 1)
        ends = [place for sign in (b"\n", b"\r") if (place := block.find(sign)) >= 0]
        if ends:
            first = min(ends)
            if block[first : first + 1] == b"\n":
                return int(at + first + 1)
            if first + 1 < len(block) or at + first + 1 >= size:
                pair = block[first + 1 : first + 2] == b"\n"
                return int(at + first + 1 + pair)
            at += first
            continue
        at += len(block)
    return size


def _lines_at(path: str, wanted: Int64s) -> Iterator[tuple[Lines, int, int]]:
    """Yield lines of a plain file and which of the sorted positions are in them. Raises IndexError
    if a position is not inside a line.
    """
    size = os.path.getsize(path)
    if len(wanted) and wanted[-1] >= size:
        raise IndexError(f"{path} has {size:,} bytes; the line at {wanted[-1]:,} is gone")
    with open(path, "rb") as opened:
        first = 0
        while first < len(wanted):
            # A position may be some bytes inside its line: go back to where the line begins.
            start = _line_start(opened, int(wanted[first]))
            gaps = np.diff(wanted[first:]) > _GAP
            last = first + 1 + (int(np.argmax(gaps)) if gaps.any() else len(gaps))
            limit = int(np.searchsorted(wanted, start + _BLOCK))
            last = max(first + 1, min(last, limit))
            stop = _next_border(opened, int(wanted[last - 1]), size)
            opened.seek(start)
            data = opened.read(stop - start)
            starts, ends, _ = split_lines(data, at_end=True)
            yield Lines(data, starts, ends, start), first, last
            first = last


def _line_start(opened: Any, at: int) -> int:
    """Return where the line begins that holds a position."""
    top = at
    while at > 0:
        low = max(0, at - 256)
        opened.seek(low)
        block = opened.read(at - low)
        found = max(block.rfind(b"\n"), block.rfind(b"\r"))
        if found >= 0:
            return int(low + found + 1)
        if top - low > LONGEST_LINE:
            raise IndexError(f"there is no line at {top:,}")
        at = low
    return 3 if _has_mark(opened) and top >= 3 else 0


def _has_mark(opened: Any) -> bool:
    """Whether a file begins with a byte order mark."""
    opened.seek(0)
    return bool(opened.read(len(MARK)) == MARK)
