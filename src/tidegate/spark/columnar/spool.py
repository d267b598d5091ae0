"""The spool for gate 1: one growing file, though it is kept in segments.

A part is a span of offsets of the spool, and a position an offset, of which an address has 40 bits:
a terabyte. Rows with an address therefore carry their whole offset too, and what is read again is
compared with it. Payloads are read for a decision, since a checksum covers them, but not carried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.core.arrow import conform
from tidegate.core.time import MAX_NS
from tidegate.errors import StateError
from tidegate.spark.columnar.format import ColumnarFormat, FilePart, Int64s, Low, NewParts
from tidegate.spool import log as spool

__all__ = ["SpoolColumns"]

PART_BYTES = 8 * 2**20
"""Bytes of a part, about: what one task reads at least."""

OFFSET_BITS = 40
"""Bits of an offset that an address holds."""


@dataclass(frozen=True)
class SpoolColumns(ColumnarFormat):
    """The messages of a spool.

    Args:
        folder: The folder of the spool.
        told: The columns of the rows.
        rows: The most rows of a part; None: as many as `PART_BYTES` hold.
        roots: The folders that the spool must be in; empty: anywhere.
    """

    folder: str
    told: pa.Schema
    rows: int | None = None
    roots: tuple[str, ...] = ()

    name = "spool"
    always_read = ("offset",)

    @property
    def schema(self) -> pa.Schema:
        return self.told

    def narrowed(self, columns: Sequence[str]) -> SpoolColumns:
        kept = [self.told.field(name) for name in columns]
        return SpoolColumns(self.folder, pa.schema(kept), self.rows, self.roots)

    def files(self) -> list[str]:
        self.check_inside(self.folder)
        return [self.folder]

    def parts(
        self, path: str, columns: Sequence[str], ordering: Sequence[str], low: Low
    ) -> list[FilePart]:
        return self._parts(path, 0, spool.durable_end(path), ordering, low)

    def new_parts(
        self, path: str, after: int, columns: Sequence[str], ordering: Sequence[str], low: Low
    ) -> NewParts:
        parts = self._parts(path, after, spool.durable_end(path), ordering, low)
        return NewParts(parts, more=True)

    def _parts(
        self, path: str, start: int, end: int, ordering: Sequence[str], low: Low
    ) -> list[FilePart]:
        """Return the parts between two offsets. Every record is read: where one is damaged, the
        rest of its segment is skipped, and no part may begin there.
        """
        found: list[FilePart] = []
        first, rows, least = start, 0, MAX_NS
        columns = [*dict.fromkeys(("offset", *ordering))]
        for batch in spool.read(path, start, end, self.rows or 8_192, columns=columns):
            offsets = batch.column("offset").to_numpy()
            if rows and (int(offsets[0]) - first > PART_BYTES or self.rows is not None):
                found.append(FilePart(first, int(offsets[0]), rows, int(offsets[0]) - first, least))
                first, rows, least = int(offsets[0]), 0, MAX_NS
            rows += batch.num_rows
            if ordering:
                least = min(least, low(batch.select(list(ordering)))[0])
        if rows:
            found.append(FilePart(first, end, rows, end - first, least))
        return found if ordering else [part._replace(low=part.start) for part in found]

    def read(
        self, path: str, start: int, stop: int, columns: Sequence[str]
    ) -> Iterator[tuple[pa.RecordBatch, Int64s]]:
        schema = pa.schema([self.told.field(name) for name in columns])
        wanted = [*dict.fromkeys(("offset", *columns))]
        for batch in spool.read(path, start, stop, columns=wanted):
            position = batch.column("offset").to_numpy() & ((1 << OFFSET_BITS) - 1)
            yield conform(batch, schema), position

    def fetch(
        self, path: str, positions: Int64s, columns: Sequence[str]
    ) -> Iterator[tuple[pa.RecordBatch, Int64s]]:
        schema = pa.schema([self.told.field(name) for name in columns])
        try:
            end = spool.durable_end(path)
            # The newest offset with these bits: no spool keeps a terabyte.
            turn = 1 << OFFSET_BITS
            offsets = positions + (end - 1 - positions) // turn * turn
            order = np.argsort(offsets, kind="stable")
            for some in np.array_split(order, -(-len(order) // 1024) or 1):
                if len(some) == 0:
                    return
                yield conform(spool.records_at(path, offsets[some].tolist()), schema), some
        except StateError as error:
            raise OSError(str(error)) from error

    def bytes_per_row(self, columns: Sequence[str]) -> float:
        if "payload" not in columns:
            return 8.0 * len(columns)
        for batch in spool.read(self.folder, spool.first_offset(self.folder)):
            return float(batch.nbytes / batch.num_rows)
        return 0.0
