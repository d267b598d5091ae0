"""Several files of a recording as one sequence of rows, in the order of arrival that a run on Spark
has: by arrival columns, else with a watermark per file (`tidegate.eventtime.arrival_order`).

Files are read side by side, a batch at a time: always of the file that may have the next row. Rows
wait until no file can bring one that belongs before them (`tidegate.eventtime.slices`). For that,
every file has a bound, which no row still to be read of it is below:

- Where all rows of a file have one key, the bound is how far event time has come in it: that never
  goes back. Before anything is read it is the time of the first row.
- Otherwise a row of a key that has not been seen yet may still come with any time, and an arrival
  column may go back and forth. Then key, time and arrival of all files are read once before, and
  the bound is the smallest value of what is left.

Memory holds a batch of each file that is being read, however many there are and however long: files
that follow each other are opened one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tidegate.core.broken_text import set_broken_text_apart
from tidegate.core.columns import TIME
from tidegate.core.numba import as_readonly
from tidegate.core.outcomes import Int64s
from tidegate.core.time import MAX_NS, UNSET
from tidegate.eventtime import Decoder
from tidegate.eventtime.arrival_order import ArrivalOrder, file_progress
from tidegate.eventtime.slices import Bound, Slices, arrival_values

__all__ = ["FileReader", "rows_side_by_side"]


class FileReader(NamedTuple):
    """How the files of a source are read."""

    batches: Callable[[Path], Iterator[pa.RecordBatch]]
    """Yields the rows of a file, in their order."""
    glance: Callable[[Path, Sequence[str]], Iterator[pa.RecordBatch]]
    """Yields the rows of a file with some columns only, in batches that may be cut otherwise."""


def rows_side_by_side(
    files: Sequence[Path], reader: FileReader, order: ArrivalOrder, decoder: Decoder
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all files in order of arrival.

    Args:
        files: The files, in any order.
        reader: Reads them.
        order: The rule, for a recorded run.
        decoder: Reads event time; with none the files are read one after the other.

    Yields:
        Batches with the columns that were read; those whose time cannot be read come at once.
    """
    named = sorted(files, key=lambda file: f"{file.name} {file.absolute()}")
    if not order.columns and (len(files) < 2 or not decoder.reads_time):
        for file in named:
            yield from reader.batches(file)
        return
    unread = {
        f"{number:08d}": _OpenFile(file, reader, order, decoder)
        for number, file in enumerate(named)
    }
    slices = Slices(order)
    begun: set[str] = set()
    while unread:
        name = min(unread, key=lambda each: (unread[each].bound, each))
        rows = unread[name].read()
        begun.add(name)
        parts = []
        if rows is None:
            del unread[name]
            begun.discard(name)
        else:
            timed, unreadable = with_times(rows, decoder)
            if unreadable is not None:
                yield unreadable
            unread[name].advance(timed)
            parts = [timed] if timed.num_rows else []
        until = min((each.bound for each in unread.values()), default=MAX_NS)
        for ordered in slices.admit(parts, [name] * len(parts), Bound(until, frozenset(begun))):
            yield ordered.drop_columns([TIME])


def with_times(
    rows: pa.RecordBatch, decoder: Decoder
) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
    """The rows with their time in a column of ours, and those whose time or text is unreadable."""
    unreadable = []
    try:
        rows.validate(full=True)
    except pa.ArrowInvalid:
        rows, broken = set_broken_text_apart(rows)
        unreadable += [] if broken is None else [broken.rows]
    collection, errors = decoder.decode(rows)
    unreadable += [] if errors is None else [errors.rows]
    timed = collection.rows.append_column(TIME, pa.array(collection.time_ns))
    return timed, pa.concat_batches(unreadable) if unreadable else None


class _OpenFile:
    """A file that is being read, and its bound."""

    def __init__(
        self, file: Path, reader: FileReader, order: ArrivalOrder, decoder: Decoder
    ) -> None:
        self.file, self.reader, self.order, self.decoder = file, reader, order, decoder
        self._rows: Iterator[pa.RecordBatch] | None = None
        self._newest, self._suspects = np.full(1, UNSET, np.int64), np.zeros(1, np.int64)
        self._seen = 0
        self._lows: Int64s | None = None
        if order.columns or order.keys:
            self._ends, self._lows = self._look()
        self.bound = self._first_bound()

    def read(self) -> pa.RecordBatch | None:
        """The next rows; None at the end."""
        if self._rows is None:
            self._rows = self.reader.batches(self.file)
        rows = next(self._rows, None)
        self._seen += 0 if rows is None else rows.num_rows
        return rows

    def advance(self, timed: pa.RecordBatch) -> None:
        """Move the bound past rows that were read."""
        if self._lows is not None:
            self.bound = self._low_after(self._seen)
            return
        time_ns = timed.column(TIME).to_numpy()
        file_progress(
            as_readonly(np.zeros(len(time_ns), np.int64)), as_readonly(time_ns),
            self.order.skew_ns, self.order.skew_confirm, self._newest, self._suspects,
            np.empty(len(time_ns), np.int64),
        )  # fmt: skip
        if self._newest[0] != UNSET:
            self.bound = int(self._newest[0])

    def _first_bound(self) -> int:
        """The bound before anything is read."""
        if self._lows is not None:
            return self._low_after(0)
        times = self.decoder.times
        if any(time.message is not None for time in times):
            columns: Sequence[str] = [time.message for time in times if time.message is not None]
        else:
            columns = [column.split(".")[0] for time in times for column in time.columns]
        for rows in self.reader.glance(self.file, columns):
            timed, _ = with_times(rows, self.decoder)
            if timed.num_rows:
                return int(timed.column(TIME)[0].as_py())
        return MAX_NS

    def _look(self) -> tuple[Int64s, Int64s]:
        """Read what orders the rows of the file once: where its parts end, and the smallest value
        in each part and all behind it."""
        ends, lows = [], []
        columns = list(self.order.columns[:1])
        if not columns:
            columns = [column.split(".")[0] for t in self.decoder.times for column in t.columns]
        count = 0
        for rows in self.reader.glance(self.file, columns):
            count += rows.num_rows
            ends.append(count)
            if self.order.columns:
                value = arrival_values(rows, self.order.columns[0])
            else:
                timed, _ = with_times(rows, self.decoder)
                value = timed.column(TIME).to_numpy()
            lows.append(int(value.min()) if len(value) else MAX_NS)
        low = np.minimum.accumulate(np.array(lows, np.int64)[::-1])[::-1]
        return np.array(ends, np.int64), low

    def _low_after(self, rows: int) -> int:
        """The smallest value of what is left behind this many rows."""
        assert self._lows is not None
        part = int(np.searchsorted(self._ends, rows, "right"))
        return int(self._lows[part]) if part < len(self._lows) else MAX_NS
