"""Read an MCAP file as Arrow batches: chunks picked by time and topic, messages found by a kernel.

Clock policy: three times may stand on a message: when it was recorded (log), when it was sent
(publish), and the one its sender wrote into its header. `clock` says which of them `start_ns` and
`end_ns` speak of; only log times are in the index, so only they let whole chunks be skipped.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.errors import ConfigError, StateError
from tidegate.mcap import records as r
from tidegate.mcap.chunks import PieceMessages, chunk_bytes, messages_of
from tidegate.mcap.index import Channels, Fault, FileIndex, Piece, read_index
from tidegate.mcap.payload import Field, PayloadDecoder, parse_fields, resolve_fields
from tidegate.mcap.stamps import header_stamps

__all__ = [
    "CLOCKS",
    "ROWS_ATTACHMENT",
    "Clock",
    "McapFile",
    "Selection",
    "attached_rows",
    "read",
    "schema",
    "take_times",
]

Clock = Literal["log", "publish", "header"]
CLOCKS: tuple[Clock, ...] = ("log", "publish", "header")

ROWS_ATTACHMENT = "rows.parquet"
"""The attachment in which the MCAP sink keeps the rows of a file as a table."""

TIMES = ("log_time_ns", "publish_time_ns", "header_stamp_ns")


def schema(clock: Clock = "log", decode: Sequence[Field] = ()) -> pa.Schema:
    """The columns of what is read. `header_stamp_ns` is there if the clock is the header's; fields
    that are decoded come last.

    - `file`, `offset`, `position`: where it stands: the file, the chunk (or record) in it, and the
      place among the chunk's decompressed records; together they are the order of the file
    - `error`: null for a message; else why something at `offset` could not be read or decoded.
      Such a row has no times, so event time cannot take it for a message
    """
    fields = [
        ("file", pa.string()), ("offset", pa.int64()), ("position", pa.int64()),
        ("topic", pa.string()), ("log_time_ns", pa.int64()), ("publish_time_ns", pa.int64()),
        ("sequence", pa.int64()), ("schema", pa.string()), ("encoding", pa.string()),
    ]  # fmt: skip
    if clock == "header":
        fields.append(("header_stamp_ns", pa.int64()))
    fields += [("data", pa.binary()), ("error", pa.string())]
    made = pa.schema(fields)
    for each in decode:
        if each.name in made.names:
            raise ConfigError("decode", each.text, f"{each.name} is a column already; use 'as'")
        made = made.append(pa.field(each.name, each.type))
    return made


@dataclass(frozen=True)
class Selection:
    """Which messages are wanted: all of these must hold. Times are half-open."""

    topics: tuple[str, ...] | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    clock: Clock = "log"
    crc: bool = False
    decode: tuple[Field, ...] = ()
    """Fields of the payload that become columns, each with its type."""

    def __post_init__(self) -> None:
        if self.clock not in CLOCKS:
            raise ConfigError("clock", self.clock, f"must be one of {', '.join(CLOCKS)}")

    @property
    def log_span(self) -> tuple[int | None, int | None]:
        """The span of log times, if that is the clock asked about."""
        return (self.start_ns, self.end_ns) if self.clock == "log" else (None, None)

    @property
    def schema(self) -> pa.Schema:
        """The columns of what is read with it."""
        return schema(self.clock, self.decode)


def read(
    path: str | Path,
    topics: Sequence[str] | None = None,
    start_ns: int | None = None,
    end_ns: int | None = None,
    clock: Clock = "log",
    *,
    crc: bool = False,
    decode: str | Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The messages of a file, a batch per chunk, in the order of the file.

    A file that is cut off, has no index or has a broken chunk is read as far as it goes; what could
    not be read is a row whose `error` says why and whose `offset` says where. `crc` checks the
    checksum of every chunk. `decode` names fields of the payload that become columns, such as
    `"pose.position.x, header.frame_id"`, or `"*"` for the whole message as JSON text; a payload
    that cannot be decoded is such a row with an `error` too.
    """
    chosen = None if topics is None else tuple(topics)
    with McapFile(path) as file:
        fields = resolve_fields(parse_fields(decode), file.definitions(), chosen)
        yield from file.batches(Selection(chosen, start_ns, end_ns, clock, crc, fields))


@dataclass
class _Lookup:
    """Per channel id: its place in small arrays of names; derived again when channels are new."""

    version: int = -1
    place: np.ndarray = field(default_factory=lambda: np.zeros(65536, np.int32))
    wanted: np.ndarray = field(default_factory=lambda: np.zeros(65536, bool))
    names: tuple[pa.Array, pa.Array, pa.Array] | None = None


class McapFile:
    """An open file: its index, its channels, and its messages."""

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        with open(path, "rb") as file:
            try:
                self._map: mmap.mmap | bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError:  # a file of no bytes cannot be mapped
                self._map = b""
        self.buf: r.Bytes = np.frombuffer(self._map, np.uint8)
        self.index: FileIndex = read_index(self.buf)
        self._lookup = _Lookup()
        self._skipped: list[Piece] = []
        self._decoder: PayloadDecoder | None = None

    def __enter__(self) -> McapFile:
        return self

    def __exit__(self, *_: object) -> None:
        # Batches may still point into the map; it is unmapped when the last of them is gone.
        self.buf = np.empty(0, np.uint8)
        self._map = b""

    @property
    def channels(self) -> Channels:
        return self.index.channels

    @property
    def topics(self) -> list[str]:
        """The topics known so far: all of them if the file has a summary."""
        return sorted({channel.topic for channel in self.channels.by_id.values()})

    def definitions(self) -> Iterator[Channels]:
        """The channels as far as they are known, and again whenever more are: a file without a
        summary defines them among its messages."""
        yield self.channels
        if not self.index.indexed:
            for piece in self.index.pieces:
                before = self.channels.version
                self._learn([piece])
                if self.channels.version > before:
                    yield self.channels

    def pieces(self, selection: Selection) -> list[Piece]:
        """The pieces that can hold a message of the selection, as far as the index tells."""
        wanted = None
        if selection.topics is not None and self.index.indexed:
            ids = self.channels.by_id.items()
            wanted = {number for number, one in ids if one.topic in selection.topics}
        return [
            piece
            for piece in self.index.pieces
            if piece.may_hold(*selection.log_span)
            and (wanted is None or piece.channels is None or piece.channels & wanted)
        ]

    def batches(
        self, selection: Selection, pieces: Sequence[Piece] | None = None, *, faults: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """The messages of some pieces (all by default); with `faults`, what is wrong with the file
        itself comes last."""
        chosen = self.pieces(selection) if pieces is None else list(pieces)
        if not self.index.indexed:
            picked = set(chosen)
            self._skipped = [piece for piece in self.index.pieces if piece not in picked]
        for piece in chosen:
            yield from self._piece(piece, selection)
        if faults:
            for fault in self.index.faults:
                yield self._fault(fault, selection)

    # -- inside ---------------------------------------------------------------------------------

    def _raw(self, piece: Piece, *, crc: bool = False) -> tuple[r.Bytes | None, Fault | None]:
        if piece.chunk:
            return chunk_bytes(self.buf, piece, crc=crc)
        if piece.end - piece.start >= 2**31:
            return None, Fault(piece.start, "a message of more than 2 GiB")
        return self.buf[piece.start : piece.end], None

    def _piece(self, piece: Piece, selection: Selection) -> Iterator[pa.RecordBatch]:
        raw, fault = self._raw(piece, crc=selection.crc)
        if raw is not None:
            found = messages_of(raw, self.channels)
            if len(found.heads):
                batch = self._batch(piece, found, selection)
                if batch.num_rows:
                    yield batch
            if found.fault is not None and piece.whole:
                fault = Fault(piece.start, f"{found.fault[1]}, {found.fault[0]} bytes into a chunk")
        if fault is not None:
            yield self._fault(fault, selection)

    def _learn(self, pieces: Sequence[Piece]) -> None:
        """Take in the channels that are defined in these pieces."""
        for piece in pieces:
            raw, _ = self._raw(piece)
            if raw is not None:
                messages_of(raw, self.channels)

    def _fault(self, fault: Fault, selection: Selection) -> pa.RecordBatch:
        wanted = selection.schema
        row = dict.fromkeys(wanted.names)
        row |= {"file": self.path, "offset": fault.offset, "position": 0, "error": fault.reason}
        return pa.RecordBatch.from_pylist([row], schema=wanted)

    def _batch(self, piece: Piece, found: PieceMessages, selection: Selection) -> pa.RecordBatch:
        heads = found.heads
        lookup = self._names(selection, heads["channel"])
        keep = lookup.wanted[heads["channel"]]
        if selection.clock != "header":
            keep = _within_span(heads[selection.clock], selection, keep)
        rows = np.flatnonzero(keep)
        everything = len(rows) == len(heads)
        kept = heads if everything else heads[rows]
        place = pa.array(lookup.place[kept["channel"]], pa.int32())
        assert lookup.names is not None
        topic, name, encoding = (names.take(place) for names in lookup.names)
        starts = found.edges[::2]
        position = (starts if everything else starts[rows]) - (r.PREFIX + r.HEAD_BYTES)
        offset: pa.Array = pa.array(np.full(len(rows), piece.start, np.int64))
        if not piece.chunk:
            offset, position = pa.array(position + piece.start), np.zeros(len(rows), np.int64)
        log, publish = (_signed_times(kept[name]) for name in ("log", "publish"))
        payloads = found.payloads(rows)
        columns = {
            "file": pa.repeat(self.path, len(rows)), "offset": offset,
            "position": pa.array(position), "topic": topic, "log_time_ns": log,
            "publish_time_ns": publish, "sequence": pa.array(kept["sequence"].astype(np.int64)),
            "schema": name, "encoding": encoding, "data": payloads,
            "error": self._unusable(kept, lookup),
        }  # fmt: skip
        if selection.clock == "header":
            stamps = header_stamps(payloads, kept["channel"], self.channels)
            columns["header_stamp_ns"] = stamps
        if selection.decode:
            self._decode(columns, kept["channel"], selection.decode)
        take_times(columns)
        wanted = selection.schema
        batch = pa.RecordBatch.from_arrays([columns[n] for n in wanted.names], schema=wanted)
        if selection.clock == "header" and (selection.start_ns, selection.end_ns) != (None, None):
            inside = _stamps_within_span(batch.column("header_stamp_ns"), selection)
            batch = batch.filter(inside)
        return batch

    def _decode(
        self, columns: dict[str, pa.Array], channel: np.ndarray, fields: tuple[Field, ...]
    ) -> None:
        if self._decoder is None or self._decoder.fields != fields:
            self._decoder = PayloadDecoder(fields, self.channels)
        self._decoder.add_to(columns, channel)

    def _names(self, selection: Selection, used: np.ndarray) -> _Lookup:
        if self._skipped and any(int(n) not in self.channels.by_id for n in np.unique(used)):
            # Channels may be defined in chunks that were left out; now they are needed.
            self._learn(self._skipped)
            self._skipped = []
        lookup, channels = self._lookup, self.channels
        if lookup.version == channels.version and lookup.names is not None:
            return lookup
        topics: list[str | None] = [None]
        schemas: list[str | None] = [None]
        encodings: list[str | None] = [None]
        lookup.place[:] = 0
        # What belongs to no channel is kept even if topics are chosen: it is an error to be seen.
        lookup.wanted[:] = True
        for number, channel in channels.by_id.items():
            lookup.place[number] = len(topics)
            lookup.wanted[number] = selection.topics is None or channel.topic in selection.topics
            topics.append(channel.topic)
            known = channels.schemas.get(channel.schema_id)
            schemas.append(known.name if known else None)
            encodings.append(channel.encoding)
        texts = (topics, schemas, encodings)
        first, second, third = (pa.array(names, pa.string()) for names in texts)
        lookup.names, lookup.version = (first, second, third), channels.version
        return lookup

    def _unusable(self, kept: np.ndarray, lookup: _Lookup) -> pa.Array:
        unknown = lookup.place[kept["channel"]] == 0
        beyond = (kept["log"] >= 2**63) | (kept["publish"] >= 2**63)
        if not (unknown.any() or beyond.any()):
            return pa.nulls(len(kept), pa.string())
        reasons = [
            f"a message of channel {number}, which is nowhere defined"
            if no_channel
            else ("a time beyond the year 2262" if too_late else None)
            for number, no_channel, too_late in zip(kept["channel"], unknown, beyond, strict=True)
        ]
        return pa.array(reasons, pa.string())


def take_times(columns: dict[str, pa.Array]) -> None:
    """Take the times from rows with an error."""
    errors = columns["error"]
    if errors.null_count < len(errors):
        for name in set(TIMES) & set(columns):
            columns[name] = pc.if_else(errors.is_null(), columns[name], None)


def _signed_times(values: np.ndarray) -> pa.Array:
    """Unsigned times as int64; one that does not fit is null."""
    plain = np.ascontiguousarray(values)
    beyond = plain >= 2**63
    return pa.array(plain.view(np.int64), mask=beyond if beyond.any() else None)


def _within_span(times: np.ndarray, selection: Selection, keep: np.ndarray) -> np.ndarray:
    if selection.start_ns is not None:
        keep = keep & (times >= max(selection.start_ns, 0))
    if selection.end_ns is not None:
        keep = keep & (times < max(selection.end_ns, 0))
    return keep


def _stamps_within_span(times: pa.Array, selection: Selection) -> pa.Array:
    """Rows in the span, and those without a stamp: nothing says that they are not in it."""
    stamps = times.fill_null(0).to_numpy()
    keep = _within_span(stamps, selection, np.ones(len(times), bool))
    return pa.array(keep | np.asarray(times.is_null()))


def attached_rows(file: str | Path) -> pq.ParquetFile:
    """Open the table that the MCAP sink attached to a file.

    Raises StateError if the file has no such attachment.
    """
    with McapFile(file) as opened:
        buf = opened.buf
        op, at, size = np.empty(4096, np.uint8), np.empty(4096, np.int64), np.empty(4096, np.int64)
        pos, how = 8, r.WHOLE
        while pos < len(buf) - 8 and how == r.WHOLE:
            count, pos, how = r.walk_records(buf, pos, len(buf) - 8, op, at, size)
            for row in np.flatnonzero(op[:count] == r.ATTACHMENT).tolist():
                content = bytes(buf[at[row] : at[row] + size[row]])
                cursor = r.Cursor(content, 16)
                if cursor.text() == ROWS_ATTACHMENT:
                    cursor.text()
                    return pq.ParquetFile(pa.BufferReader(cursor.take(cursor.u64())))
    raise StateError(f"{file} has no table attached: it was not written by the mcap sink")
