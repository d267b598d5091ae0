"""ROS bags for gate 1: by their index where that will do, else message by message.

A position is the number of a message in its bag, in the order of log time, and a part is a span of
them. A bag whose index can be read without its messages (ROS 1; ROS 2 in one SQLite file) is cut
into parts, and with log time as the clock no message is read for a decision. Any other bag is one
part. As a stream, a bag is waited for until it is closed and all of it is there, or has not changed
for `settle`.

Clock policy: the wall clock decides only whether a bag that is still open is waited for.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.core.text import plural
from tidegate.core.time import MIN_NS
from tidegate.mcap import Selection
from tidegate.recordings.bags import (
    BagIndex,
    bag_size,
    bags_of,
    is_whole,
    read_bag,
    read_bag_index,
)
from tidegate.spark.columnar.format import FilePart, Int64s, Low, NewParts
from tidegate.spark.columnar.recorded import RecordingColumns

__all__ = ["BagColumns"]

ALL_MESSAGES = 1 << 39
"""The end of the part that is a whole bag: more messages than a bag can have."""

_INDEXES_KEPT = 8
"""Bags whose indexes a worker keeps: 16 bytes per message."""


@dataclass(frozen=True)
class BagColumns(RecordingColumns):
    """ROS bags below a path. A stream takes a bag that was not closed when it has not changed for
    `settle_ns`."""

    name = "rosbag"

    def files(self) -> list[str]:
        found = sorted(
            bags_of(self.settings.path), key=lambda path: (path.rsplit("/", 1)[-1], path)
        )
        for path in found:
            self.check_inside(path)
        return found

    def parts(
        self, path: str, columns: Sequence[str], ordering: Sequence[str], low: Low
    ) -> list[FilePart]:
        index = _index_of(path, self.settings.selection)
        nbytes, _ = bag_size(path)
        if index is None:
            least = MIN_NS
            if ordering:
                seen = self.read(path, 0, ALL_MESSAGES, ordering)
                least = min((low(rows)[0] for rows, _ in seen), default=MIN_NS)
            return [FilePart(0, ALL_MESSAGES, 1000, nbytes, least)]
        count = len(index.time_ns)
        found = []
        each = max(1, int(count * min(1.0, self.settings.partition_bytes / max(1, nbytes))))
        first = 0
        while first < count:
            # messages of one time stay together: a part is read as a span of log times
            last = min(count, first + each)
            last = int(np.searchsorted(index.time_ns, index.time_ns[last - 1], "right"))
            least = MIN_NS
            if ordering:
                seen = self.read(path, first, last, ordering)
                least = min((low(rows)[0] for rows, _ in seen), default=MIN_NS)
            size = nbytes * (last - first) // count
            size = 40 * (last - first) if self.are_indexed(columns) else size
            found.append(FilePart(first, last, last - first, size, least))
            first = last
        return found

    def new_parts(
        self, path: str, after: int, columns: Sequence[str], ordering: Sequence[str], low: Low
    ) -> NewParts:
        _, changed_ns = bag_size(path)
        if time.time_ns() - changed_ns < self.settle_ns and not is_whole(path):
            return NewParts([], more=True)
        return NewParts(self.parts(path, columns, ordering, low))

    def read(
        self, path: str, start: int, stop: int, columns: Sequence[str]
    ) -> Iterator[tuple[pa.RecordBatch, Int64s]]:
        selection = self.settings.selection
        index = _index_of(path, selection)
        if index is not None and stop < ALL_MESSAGES and self.are_indexed(columns):
            batch = index.rows(path, start, min(stop, len(index.time_ns)), selection.schema)
            yield self.in_columns(batch, path, columns), np.arange(start, start + batch.num_rows)
            return
        for batch in self._messages(path, index, start, stop):
            yield self.in_columns(batch, path, columns), batch.column("offset").to_numpy()

    def fetch(
        self, path: str, positions: Int64s, columns: Sequence[str]
    ) -> Iterator[tuple[pa.RecordBatch, Int64s]]:
        if len(positions) == 0:
            return
        index = _index_of(path, self.settings.selection)
        if index is not None and int(positions.max()) > len(index.time_ns):
            raise IndexError(f"{path} has {plural(len(index.time_ns), 'message')}")
        order = np.argsort(positions, kind="stable")
        wanted, last = positions[order], int(positions.max()) + 1
        found = 0
        for batch in self._messages(path, index, int(wanted[0]), last):
            numbers = batch.column("offset").to_numpy()
            where = np.searchsorted(numbers, wanted)
            here = np.flatnonzero((where < len(numbers)) & (wanted >= numbers[0]))
            here = here[numbers[where[here]] == wanted[here]]
            if len(here):
                found += len(here)
                rows = batch.take(pa.array(where[here]))
                yield self.in_columns(rows, path, columns), order[here]
            if int(numbers[-1]) + 1 >= last:
                break
        if found < len(positions):
            raise IndexError(f"{path} has other messages now")

    def bytes_per_row(self, columns: Sequence[str]) -> float:
        files = self.files()
        if "data" not in columns or not files:
            return 8.0 * len(columns)
        for batch in read_bag(files[0], self.settings.selection):
            return float(batch.nbytes / max(1, batch.num_rows))
        return 0.0

    def _messages(
        self, path: str, index: BagIndex | None, start: int, stop: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield messages from number `start`, or one of the same log time, up to `stop` at
        least."""
        selection = self.settings.selection
        if index is None or len(index.time_ns) == 0:
            return read_bag(path, selection)
        times = index.time_ns
        begin = int(times[min(start, len(times) - 1)])
        end = int(times[stop - 1]) + 1 if 0 < stop <= len(times) else selection.end_ns
        return read_bag(path, selection, int(np.searchsorted(times, begin)), (begin, end))


_INDEXES: OrderedDict[tuple[str, tuple[int, int], Selection], BagIndex | None] = OrderedDict()
"""The indexes this worker has read, least recently used first; a bag that changed is another."""


def _index_of(path: str, selection: Selection) -> BagIndex | None:
    """Return the index of a bag, kept for the next call; None if it has none that can be used."""
    name = (path, bag_size(path), selection)
    if name not in _INDEXES:
        _INDEXES[name] = read_bag_index(path, selection)
    _INDEXES.move_to_end(name)
    while len(_INDEXES) > _INDEXES_KEPT:
        _INDEXES.popitem(last=False)
    return _INDEXES[name]
