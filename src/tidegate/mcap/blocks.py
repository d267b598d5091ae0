"""Read recordings in blocks, with large fields by reference: only what decides is read.

Theory of operation. A decision needs times, topics and small values; the bytes of an image are
needed where a dataset is written, and only of those images that got into a row. So a reader goes
over a file in *blocks*, runs of neighbouring pieces of about `BLOCK_BYTES`. It makes one batch of
the messages of a block, in which a large field is a reference of 16 bytes (`spans`). `attach` puts
bytes in the place of references: as a view of the block (`pa.binary_view`), so that the writer's
own copy is the first.

    batches(path)  pieces ──► block: one array of bytes ──► rows with references
    attach(rows)   references ──► views of blocks, loaded again where they are gone

A block of uncompressed chunks is the mapped file itself. One of compressed chunks is their
decompressed bytes behind each other. Fields that only a library can read (protobuf, base64 in JSON)
are decoded once, into a block of their own.

Memory. The latest blocks are kept, up to `KEPT_BYTES`; older ones are let go of (mapped pages are
given back to the system) and read again if a reference still leads there, which happens where rows
wait long for a decision. So memory does not grow with the recording.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.numba import as_readonly, kernel
from tidegate.errors import StateError
from tidegate.mcap.chunks import MessageBlock, PieceMessages, messages_of, places_in_file
from tidegate.mcap.index import Fault, Piece
from tidegate.mcap.payload import Field
from tidegate.mcap.reader import McapFile, Selection
from tidegate.mcap.spans import PLACE, REFERENCE, Bytes, Ints, PayloadSpans

__all__ = ["BlockReader"]

BLOCK_BYTES = 96 << 20
"""Bytes of a block. A batch is made per block: smaller ones cost calls (a flow takes about 10 ms
per batch however small), larger ones memory where chunks are compressed."""

KEPT_BYTES = 3 * BLOCK_BYTES
"""Bytes of blocks that are kept. Rows leave soon after their messages came, so what they refer to
is in the last block or two; fewer would be read twice."""

LARGEST_BLOCK = 2**31 - 1
"""Bytes that a block may have: the offset of an Arrow view has 31 bits."""

FILES_KEPT = 8
"""Files kept open: each takes a descriptor, of which a process has about a thousand."""

INLINE = 12
"""Bytes up to which an Arrow view holds its value itself."""


class _Origin(NamedTuple):
    """Where the bytes of a block are from."""

    path: str
    pieces: tuple[Piece, ...]
    mapped: bool
    """Whether the block is a part of the mapped file."""
    parent: int | None = None
    """For bytes that were decoded: the block of their messages."""
    channel: int = 0
    """For these: the channel of the messages."""
    field: Field | None = None
    """For these: the field."""


@dataclass
class _Pieces:
    """Pieces that will become a block."""

    mapped: bool
    pieces: list[Piece] = field(default_factory=list)
    raws: list[Bytes] = field(default_factory=list)
    found: list[PieceMessages] = field(default_factory=list)
    size: int = 0

    def fits(self, piece: Piece, raw: Bytes, mapped: bool) -> bool:
        """Whether a further piece belongs to this block."""
        if not self.pieces:
            return mapped == self.mapped
        after = piece.end - self.pieces[0].start if mapped else self.size + len(raw)
        return mapped == self.mapped and self.size < BLOCK_BYTES and after <= LARGEST_BLOCK

    def add(self, piece: Piece, raw: Bytes, found: PieceMessages) -> None:
        """Add a piece that fits."""
        self.pieces.append(piece)
        self.raws.append(raw)
        self.found.append(found)
        self.size += len(raw)


class BlockReader:
    """Reads MCAP files as rows in which some columns are references to bytes.

    Args:
        selection: Which messages to read and which fields to decode.
        columns: The columns of the rows, of those of `selection.schema`.
        referred: Those of them, of type binary, that are references.
        opened: Files that are open already, by path, at most `FILES_KEPT`; they are used.

    Example:
        reader = BlockReader(Selection(decode=fields), ["topic", "log_time_ns", "image"], ["image"])
        for rows in reader.batches("robot.mcap"):
            write(reader.attach(choose(rows)))
    """

    def __init__(
        self,
        selection: Selection,
        columns: Sequence[str],
        referred: Sequence[str],
        opened: Mapping[str, McapFile] | None = None,
    ) -> None:
        kinds = selection.schema
        decode = tuple(
            replace(each, type=REFERENCE) if each.name in referred else each
            for each in selection.decode
        )
        self.selection = replace(selection, decode=decode)
        self.schema = pa.schema(
            [
                kinds.field(name).with_type(REFERENCE) if name in referred else kinds.field(name)
                for name in columns
            ]
        )
        """The columns of the batches."""
        self._origins: list[_Origin] = []
        self._kept: OrderedDict[int, Bytes] = OrderedDict()
        self._files: OrderedDict[str, McapFile] = OrderedDict(opened or {})

    # -- rows -----------------------------------------------------------------------------------

    def batches(self, path: str | Path) -> Iterator[pa.RecordBatch]:
        """Read a file, one batch per block, in the order of the file.

        What cannot be read is a row with an `error`, behind the messages of its block.

        Args:
            path: The file.

        Yields:
            Batches with the columns of `schema`; none is empty.

        Raises:
            OSError: the file cannot be opened.
        """
        file, wanted = self._file(str(path)), self.schema
        chosen = file.pieces(self.selection)
        file.will_read(chosen)
        waiting = _Pieces(mapped=False)
        faults: list[Fault] = []
        for piece in chosen:
            raw, fault = file.raw(piece, crc=self.selection.crc)
            if raw is not None:
                mapped = _is_within(raw, file.buf)
                if not waiting.fits(piece, raw, mapped):
                    yield from self._rows(file, waiting, faults, wanted)
                    waiting, faults = _Pieces(mapped), []
                found = messages_of(raw, file.channels)
                if found.fault is not None and piece.whole:
                    text = f"{found.fault[1]}, {found.fault[0]} bytes into a chunk"
                    fault = Fault(piece.start, text)
                waiting.add(piece, raw, found)
            if fault is not None:
                faults.append(fault)
        yield from self._rows(file, waiting, [*faults, *file.index.faults], wanted)

    def _rows(
        self, file: McapFile, some: _Pieces, faults: list[Fault], wanted: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a block, and those of faults."""
        if any(len(found.heads) for found in some.found):
            data, bases = _block_bytes(some.pieces, some.raws, some.mapped, file.buf)
            number = self._keep(_Origin(file.path, tuple(some.pieces), some.mapped), data)
            file.decoder(self.selection.decode).keep = self._keep_decoded
            made = file.rows(_block(some, data, bases, number), self.selection, wanted)
            if made.num_rows:
                yield made
        for fault in faults:
            yield file.fault_row(fault, wanted)

    def _file(self, path: str) -> McapFile:
        """An open file, kept for the next call."""
        found = self._files.pop(path, None) or McapFile(path)
        self._files[path] = found
        while len(self._files) > FILES_KEPT:
            self._files.popitem(last=False)
        return found

    # -- blocks ---------------------------------------------------------------------------------

    def _keep(self, origin: _Origin, data: Bytes) -> int:
        """Give a block its number, and let go of those that were not used for long."""
        self._origins.append(origin)
        self._hold(len(self._origins) - 1, data)
        return len(self._origins) - 1

    def _keep_decoded(self, channel: int, field: Field, column: pa.Array, parent: int) -> int:
        """Make a block of bytes that a codec decoded."""
        of = self._origins[parent]
        origin = _Origin(of.path, of.pieces, False, parent, channel, field)
        return self._keep(origin, _bytes_of(column))

    def _hold(self, number: int, data: Bytes) -> None:
        """Keep the bytes of a block; the oldest ones leave."""
        self._kept[number] = data
        while len(self._kept) > 1 and sum(map(len, self._kept.values())) > KEPT_BYTES:
            old, _ = self._kept.popitem(last=False)
            origin = self._origins[old]
            if origin.mapped and origin.path in self._files:
                first, last = origin.pieces[0].start, origin.pieces[-1].end
                self._files[origin.path].release(first, last)

    def _data(self, number: int) -> Bytes:
        """The bytes of a block, read again if they were let go of."""
        data = self._kept.pop(number, None)
        if data is None:
            data = self._load(number)
        self._hold(number, data)
        return data

    def _load(self, number: int) -> Bytes:
        """Read the bytes of a block again.

        Raises:
            StateError: the file has changed.
        """
        origin = self._origins[number]
        file = self._file(origin.path)
        if origin.field is not None:
            assert origin.parent is not None
            return self._decode_again(file, origin, self._data(origin.parent))
        raws = []
        for piece in origin.pieces:
            raw, fault = file.raw(piece)
            if raw is None:
                raise StateError(f"{origin.path} has changed: {fault.reason if fault else ''}")
            raws.append(raw)
        return _block_bytes(origin.pieces, raws, origin.mapped, file.buf)[0]

    def _decode_again(self, file: McapFile, origin: _Origin, data: Bytes) -> Bytes:
        """Decode the field of a channel again, from the block of its messages."""
        assert origin.field is not None
        assert origin.parent is not None
        parent = self._origins[origin.parent]
        some = _Pieces(parent.mapped)
        for piece in parent.pieces:
            raw, _ = file.raw(piece)
            if raw is not None:
                some.add(piece, raw, messages_of(raw, file.channels))
        _, bases = _block_bytes(some.pieces, some.raws, some.mapped, file.buf)
        caught: list[Bytes] = []

        def catch(channel: int, field: Field, column: pa.Array, parent: int) -> int:
            if (channel, field) == (origin.channel, origin.field):
                caught.append(_bytes_of(column))
            return parent

        # The same rows go through the same steps as before, so references fit again.
        file.decoder(self.selection.decode).keep = catch
        file.rows(_block(some, data, bases, origin.parent), self.selection, self.schema)
        return caught[0]

    # -- bytes ----------------------------------------------------------------------------------

    def attach(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Put bytes in the place of references, in columns and in fields of structs.

        Args:
            rows: Rows made of those that were read.

        Returns:
            The rows; what was a reference is a `pa.binary_view`, which keeps its blocks in memory.

        Raises:
            StateError: a file has changed since it was read.
        """
        arrays = [self._attached(column) for column in rows.columns]
        return pa.RecordBatch.from_arrays(arrays, names=rows.schema.names)

    def _attached(self, column: pa.Array) -> pa.Array:
        """A column with bytes for references."""
        kind = column.type
        if kind == REFERENCE:
            return self._views(column)
        if not pa.types.is_struct(kind) or not _holds_references(kind):
            return column
        children = [
            self._attached(pc.struct_field(column, [place])) for place in range(kind.num_fields)
        ]
        mask = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(children, names=[f.name for f in kind], mask=mask)

    def _views(self, column: pa.FixedSizeBinaryArray) -> pa.Array:
        """References as views of their blocks."""
        count = len(column)
        places = np.frombuffer(column.buffers()[1], PLACE)[column.offset : column.offset + count]
        good = np.asarray(column.is_valid())
        views = np.zeros((count, 16), np.uint8)
        buffers: list[pa.Buffer] = []
        for number in np.unique(places["block"][good]).tolist():
            data = self._data(number)
            row = np.flatnonzero(good & (places["block"] == number))
            at, size = places["offset"][row].astype(np.int64), places["size"][row].astype(np.int64)
            _fill_views(data, row, at, size, len(buffers), views)
            buffers.append(pa.py_buffer(data))
        valid = None if good.all() else pa.py_buffer(np.packbits(good, bitorder="little"))
        return pa.Array.from_buffers(
            pa.binary_view(), count, [valid, pa.py_buffer(views), *buffers]
        )


def _is_within(part: Bytes, whole: Bytes) -> bool:
    """Whether an array is a view of another one."""
    start = part.ctypes.data - whole.ctypes.data
    return start >= 0 and start + len(part) <= len(whole)


def _block_bytes(
    pieces: Sequence[Piece], raws: Sequence[Bytes], mapped: bool, buf: Bytes
) -> tuple[Bytes, list[int]]:
    """The bytes of a block, and where each piece starts in them."""
    if mapped:
        first = pieces[0].start
        bases = [raw.ctypes.data - buf.ctypes.data - first for raw in raws]
        return buf[first : pieces[-1].end], bases
    sizes = [len(raw) for raw in raws]
    bases = [sum(sizes[:place]) for place in range(len(sizes))]
    return as_readonly(raws[0] if len(raws) == 1 else np.concatenate(raws)), bases


def _block(some: _Pieces, data: Bytes, bases: list[int], number: int) -> MessageBlock:
    """The messages of several pieces as one block."""
    starts, ends, offsets, positions = [], [], [], []
    for piece, found, base in zip(some.pieces, some.found, bases, strict=True):
        starts.append(found.edges[::2] + base)
        ends.append(found.edges[1::2] + base)
        offset, position = places_in_file(piece, found.edges[::2])
        offsets.append(offset)
        positions.append(position)
    spans = PayloadSpans(data, np.concatenate(starts), np.concatenate(ends), number)
    heads = np.concatenate([found.heads for found in some.found])
    return MessageBlock(spans, heads, np.concatenate(offsets), np.concatenate(positions))


def _bytes_of(column: pa.Array) -> Bytes:
    """The bytes of a binary array that is not a slice."""
    data = column.buffers()[2]
    return as_readonly(np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8))


def _holds_references(kind: pa.DataType) -> bool:
    """Whether a struct type has references inside."""
    inside = [f.type for f in kind]
    return REFERENCE in inside or any(
        pa.types.is_struct(each) and _holds_references(each) for each in inside
    )


@kernel
def _fill_views(
    data: Bytes, row: Ints, at: Ints, size: Ints, buffer: int, views: npt.NDArray[np.uint8]
) -> None:
    """Write Arrow views: 4 bytes of length, and up to `INLINE` bytes the value itself, else its
    first 4 bytes, the number of its buffer and its offset there, 4 bytes each.

    Args:
        data: The bytes of the buffer.
        row: The rows to write.
        at: Per row, where its value starts in `data`.
        size: Per row, the bytes of its value.
        buffer: The number of the buffer.
        views: Written; 16 bytes per row.
    """
    for place in range(len(row)):
        view = views[row[place]]
        start = at[place]
        for byte in range(4):
            view[byte] = (size[place] >> (8 * byte)) & 255
        if size[place] <= INLINE:
            for byte in range(size[place]):
                view[4 + byte] = data[start + byte]
            continue
        for byte in range(4):
            view[4 + byte] = data[start + byte]
            view[8 + byte] = (buffer >> (8 * byte)) & 255
            view[12 + byte] = (start >> (8 * byte)) & 255
