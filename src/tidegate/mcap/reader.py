"""Read an MCAP file as Arrow batches: chunks chosen by time and topic, messages found by a kernel.

Theory of operation: the file is memory-mapped and indexed once (index.py). Of its pieces, those
that can hold a selected message are decompressed one by one (chunks.py); their messages are
filtered by channel and time, and become one batch per piece. Payloads stay encoded in `data`;
fields that the user names are decoded into further columns (payload/).

Bad data is never an exception. A chunk that cannot be read, a message of an unknown channel and a
payload that cannot be decoded are rows with an `error` and without times.

Clock policy: a message may carry three times: when it was recorded (log), when it was sent
(publish), and the one its sender wrote into its header. `clock` says which of them `start_ns` and
`end_ns` refer to; only log times are in the index, so only they allow whole chunks to be skipped.
No clock of this machine is read.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import ConfigError, StateError
from tidegate.mcap import records as r
from tidegate.mcap.chunks import MessageBlock, chunk_bytes, messages_of
from tidegate.mcap.index import Channels, Fault, FileIndex, Piece, read_index
from tidegate.mcap.payload import Field, PayloadDecoder, parse_fields, resolve_fields
from tidegate.mcap.spans import REFERENCE
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

Clock = Literal["log", "publish", "header", "header_or_log"]
"""Which time of a message `start_ns` and `end_ns` refer to."""
CLOCKS: tuple[Clock, ...] = ("log", "publish", "header", "header_or_log")
"""The values of `clock`."""

ROWS_ATTACHMENT = "rows.parquet"
"""The attachment in which the MCAP sink keeps the rows of a file as a table."""

TIMES = ("log_time_ns", "publish_time_ns", "header_stamp_ns")
"""The columns that hold times of a message; null in rows with an error."""


def schema(clock: Clock = "log", decode: Sequence[Field] = ()) -> pa.Schema:
    """Return the columns that reading gives.

    - `file`, `offset`, `position`: the file, the offset of the chunk (or record) in it, and the
      offset among the chunk's decompressed records; together they are the order of the file
    - `topic`, `schema`, `encoding`: from the channel of the message
    - `log_time_ns`, `publish_time_ns`: ns since 1970; `sequence`: as the sender counted
    - `header_stamp_ns`: only with the clocks `header`, null if the message has no stamp, and
      `header_or_log`, then the log time
    - `data`: the payload as recorded
    - `error`: null for a message; else why something at `offset` could not be read or decoded. Such
      a row has no times, so event time cannot take it for a message
    - the decoded fields, last

    Args:
        clock: The clock of the selection, one of `CLOCKS`.
        decode: Fields of the payload that become columns; each must have its type.

    Raises:
        ConfigError: a decoded field has the name of another column.

    Example:
        >>> schema("header").names[-3:]
        ['header_stamp_ns', 'data', 'error']
    """
    fields = [
        ("file", pa.string()), ("offset", pa.int64()), ("position", pa.int64()),
        ("topic", pa.string()), ("log_time_ns", pa.int64()), ("publish_time_ns", pa.int64()),
        ("sequence", pa.int64()), ("schema", pa.string()), ("encoding", pa.string()),
    ]  # fmt: skip
    if clock.startswith("header"):
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
    """Which messages to read. A message must meet all conditions; times are half-open.

    Raises:
        ConfigError: `clock` is not one of `CLOCKS`.
    """

    topics: tuple[str, ...] | None = None
    """Topics to read, compared exactly; None for all."""
    start_ns: int | None = None
    """First time to read, ns since 1970; None for no lower bound."""
    end_ns: int | None = None
    """End of the times to read, exclusive, ns since 1970; None for no upper bound."""
    clock: Clock = "log"
    """Which time `start_ns` and `end_ns` refer to: `log` (default, can skip chunks), `publish`,
    `header`, or `header_or_log`: the stamp in the header, and of messages that have none, as the
    text of `std_msgs/String`, the log time. The latter suits where both clocks agree."""
    crc: bool = False
    """Whether to check the checksum of every chunk. Off by default: it costs a pass over all bytes.
    """
    decode: tuple[Field, ...] = ()
    """Fields of the payload that become columns, each with its type (see `resolve_fields`)."""

    def __post_init__(self) -> None:
        if self.clock not in CLOCKS:
            raise ConfigError("clock", self.clock, f"must be one of {', '.join(CLOCKS)}")

    @property
    def by_header(self) -> bool:
        """Whether the stamps of headers are read."""
        return self.clock.startswith("header")

    @property
    def log_span(self) -> tuple[int | None, int | None]:
        """`(start_ns, end_ns)` if they refer to log times, else `(None, None)`: no chunk can be
        skipped."""
        return (self.start_ns, self.end_ns) if self.clock == "log" else (None, None)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of batches that are read with this selection."""
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
    """Read the messages of a file, one batch per chunk, in the order of the file.

    A file that is cut off, has no index or has a broken chunk is read as far as possible. What
    could not be read is a row whose `error` says why and whose `offset` says where.

    Args:
        path: The file. It is memory-mapped and must not be truncated while it is read.
        topics: Topics to read, compared exactly; None for all. Unknown ones match nothing.
        start_ns: First time to read, ns since 1970; None for no lower bound.
        end_ns: End of the times to read, exclusive; None for no upper bound.
        clock: Which time these refer to, one of `CLOCKS`. With `header`, messages
            without a stamp are kept.
        crc: Whether to check the checksum of every chunk.
        decode: Fields of the payload that become columns, such as
            `"pose.position.x, header.frame_id"`, or `"*"` for the whole message as JSON text. A
            payload that cannot be decoded is a row with an `error`, too.

    Yields:
        Batches with the columns of `schema(clock, fields)`; none is empty.

    Raises:
        ConfigError: `clock` is unknown, or a field in `decode` is malformed or of unknown type.
        OSError: the file cannot be opened.
    """
    chosen = None if topics is None else tuple(topics)
    with McapFile(path) as file:
        fields = resolve_fields(parse_fields(decode), file.definitions(), chosen)
        yield from file.batches(Selection(chosen, start_ns, end_ns, clock, crc, fields))


@dataclass
class _Lookup:
    """Tables from channel ids to names. Rebuilt when channels were added or topics changed."""

    version: int = -1
    """`Channels.version` that the tables were built from."""
    topics: object = None
    """`Selection.topics` that `wanted` was built from."""
    place: np.ndarray = field(default_factory=lambda: np.zeros(65536, np.int32))
    """By channel id (16 bits, so 65,536 entries): the index into `names`; 0 for an unknown channel.
    """
    wanted: np.ndarray = field(default_factory=lambda: np.zeros(65536, bool))
    """By channel id: whether its messages are selected."""
    names: tuple[pa.Array, pa.Array, pa.Array] | None = None
    """Topics, schema names and encodings; entry 0 of each is null."""


class McapFile:
    """An open file: its index, its channels, and its messages.

    Use it as a context manager. Batches stay valid after it is closed.

    Args:
        path: The file to map into memory. It may be empty or damaged (see `index.faults`).

    Raises:
        OSError: the file cannot be opened.
    """

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

    def release(self, start: int, end: int) -> None:
        """Give the memory of bytes that were read back to the system; they can be read again.

        Pages of a mapped file count as memory of the process until they are needed elsewhere.

        Args:
            start: First byte.
            end: Behind the last one.
        """
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        length = end // mmap.PAGESIZE * mmap.PAGESIZE - first
        if isinstance(self._map, mmap.mmap) and length > 0 and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, first, length)

    @property
    def channels(self) -> Channels:
        """The channels known so far. It grows while a file without a summary is read."""
        return self.index.channels

    @property
    def topics(self) -> list[str]:
        """The topics known so far, sorted: all of them if the file has a summary."""
        return sorted({channel.topic for channel in self.channels.by_id.values()})

    def definitions(self) -> Iterator[Channels]:
        """Yield the channels known so far, and again whenever reading on has found more.

        A file without a summary may define channels inside its chunks. Consumers that stop early,
        because they have found what they need, save the rest of the reading.
        """
        yield self.channels
        if not self.index.indexed:
            for piece in self.index.pieces:
                before = self.channels.version
                self._learn([piece])
                if self.channels.version > before:
                    yield self.channels

    def pieces(self, selection: Selection) -> list[Piece]:
        """Return the pieces that can hold a selected message, as far as the index tells.

        Args:
            selection: Its topics count only if the file has a summary: without one, a piece may
                hold channels that are not yet known.
        """
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
        self,
        selection: Selection,
        pieces: Sequence[Piece] | None = None,
        *,
        faults: bool = True,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Read the messages of some pieces, one batch per piece with at least one selected message.

        Args:
            selection: Which messages to read.
            pieces: Pieces of this file, read in the given order; by default
                `self.pieces(selection)`.
            faults: Whether to yield a row for each fault of the file itself, at the end. A reader
                that splits a file among tasks sets it in one of them only.
            columns: Those wanted, of `selection.schema`; by default all. Without `data`, payloads
                are not copied, and with the clock `header` only their heads are looked at.

        Yields:
            Batches with the columns of `selection.schema`, or `columns`. The fault of a piece is a
            batch of one row, directly behind the messages of that piece.
        """
        chosen = self.pieces(selection) if pieces is None else list(pieces)
        self.will_read(chosen)
        wanted = selection.schema
        if columns is not None:
            wanted = pa.schema([wanted.field(name) for name in columns])
        for piece in chosen:
            yield from self._piece(piece, selection, wanted)
        if faults:
            for fault in self.index.faults:
                yield self.fault_row(fault, wanted)

    def will_read(self, pieces: Sequence[Piece]) -> None:
        """Note which pieces will not be read: they are searched for a channel that is missing.

        Args:
            pieces: Those that will be read.
        """
        if not self.index.indexed:
            picked = set(pieces)
            self._skipped = [piece for piece in self.index.pieces if piece not in picked]

    def raw(self, piece: Piece, *, crc: bool = False) -> tuple[r.Bytes | None, Fault | None]:
        """Return the decompressed bytes of a piece, or a fault."""
        if piece.chunk:
            return chunk_bytes(self.buf, piece, crc=crc)
        # A run is cut at blocks of 4 MiB, so only a single message can make it this long. Arrow's
        # offsets have 32 bits.
        if piece.end - piece.start >= 2**31:
            return None, Fault(piece.start, "a message of more than 2 GiB")
        return self.buf[piece.start : piece.end], None

    # -- inside ---------------------------------------------------------------------------------

    def _piece(
        self, piece: Piece, selection: Selection, wanted: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Yield the batch of a piece, if any message of it is selected, and then its fault."""
        raw, fault = self.raw(piece, crc=selection.crc)
        if raw is not None:
            found = messages_of(raw, self.channels)
            if len(found.heads):
                batch = self.rows(found.block(piece), selection, wanted)
                if batch.num_rows:
                    yield batch
            # A chunk that is cut off ends in the middle of a record by nature; the index reports
            # the cut.
            if found.fault is not None and piece.whole:
                fault = Fault(piece.start, f"{found.fault[1]}, {found.fault[0]} bytes into a chunk")
        if fault is not None:
            yield self.fault_row(fault, wanted)

    def _learn(self, pieces: Sequence[Piece]) -> None:
        """Read these pieces only for the channels that are defined in them."""
        for piece in pieces:
            raw, _ = self.raw(piece)
            if raw is not None:
                messages_of(raw, self.channels)

    def fault_row(self, fault: Fault, wanted: pa.Schema) -> pa.RecordBatch:
        """Make the row of a fault: file, offset and reason; all else is null.

        Args:
            fault: What cannot be read.
            wanted: The columns.
        """
        told = {"file": self.path, "offset": fault.offset, "position": 0, "error": fault.reason}
        row = {name: told.get(name) for name in wanted.names}
        return pa.RecordBatch.from_pylist([row], schema=wanted)

    def rows(self, found: MessageBlock, selection: Selection, wanted: pa.Schema) -> pa.RecordBatch:
        """Make rows of messages: filter by channel and time, build the columns, decode.

        Log and publish times are in the message heads, so these filters come before payloads are
        touched. The header's time is in the payload, so that filter comes last.

        Args:
            found: The messages.
            selection: Which of them to take, and the fields to decode.
            wanted: The columns to make, of those of `selection.schema`. `data` may be of the type
                `REFERENCE`: then payloads are not copied.
        """
        heads = found.heads
        lookup = self._names(selection, heads["channel"])
        keep = lookup.wanted[heads["channel"]]
        if not selection.by_header:
            keep = _within_span(heads[selection.clock], selection, keep)
        if not keep.all():
            found = found.select(np.flatnonzero(keep))
        kept, spans, count = found.heads, found.spans, len(found.heads)
        place = pa.array(lookup.place[kept["channel"]], pa.int32())
        assert lookup.names is not None
        topic, name, encoding = (names.take(place) for names in lookup.names)
        log, publish = (_signed_times(kept[name]) for name in ("log", "publish"))
        columns = {
            "offset": pa.array(found.offset), "position": pa.array(found.position),
            "topic": topic, "log_time_ns": log, "publish_time_ns": publish,
            "sequence": pa.array(kept["sequence"].astype(np.int64)), "schema": name,
            "encoding": encoding, "error": self._unusable(kept, lookup),
        }  # fmt: skip
        if "file" in wanted.names:
            columns["file"] = pa.repeat(self.path, count)
        if "data" in wanted.names:
            by_reference = wanted.field("data").type == REFERENCE
            columns["data"] = spans.references() if by_reference else spans.array()
        if selection.by_header:
            stamps = header_stamps(spans, kept["channel"], self.channels)
            if selection.clock == "header_or_log":
                stamps = pc.coalesce(stamps, log)
            columns["header_stamp_ns"] = stamps
        if selection.decode:
            self._decode(columns, found, selection.decode)
        take_times(columns)
        batch = pa.RecordBatch.from_arrays([columns[n] for n in wanted.names], schema=wanted)
        if selection.by_header and (selection.start_ns, selection.end_ns) != (None, None):
            inside = _stamps_within_span(columns["header_stamp_ns"], selection)
            batch = batch.filter(inside)
        return batch

    def _decode(
        self, columns: dict[str, pa.Array], found: MessageBlock, fields: tuple[Field, ...]
    ) -> None:
        """Add the decoded fields to the columns."""
        self.decoder(fields).add_to(columns, found.heads["channel"], found.spans)

    def decoder(self, fields: tuple[Field, ...]) -> PayloadDecoder:
        """The decoder of some fields; it is kept, because it caches one codec per channel.

        Args:
            fields: Those to decode, each with its type.
        """
        if self._decoder is None or self._decoder.fields != fields:
            self._decoder = PayloadDecoder(fields, self.channels)
        return self._decoder

    def _names(self, selection: Selection, used: np.ndarray) -> _Lookup:
        """Return the lookup tables, rebuilt if channels were added.

        Args:
            selection: Its topics decide which channels are wanted.
            used: Channel ids of the messages at hand. If one is unknown, the pieces that were
                skipped are searched for its definition, once.
        """
        if self._skipped and any(int(n) not in self.channels.by_id for n in np.unique(used)):
            # Channels may be defined in chunks that were left out; now they are needed.
            self._learn(self._skipped)
            self._skipped = []
        lookup, channels = self._lookup, self.channels
        built = (lookup.version, lookup.topics) == (channels.version, selection.topics)
        if built and lookup.names is not None:
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
        lookup.topics = selection.topics
        return lookup

    def _unusable(self, kept: np.ndarray, lookup: _Lookup) -> pa.Array:
        """Return the column `error`: why a message has no channel or no usable time; null if it
        has."""
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
    """Set the times of rows with an error to null, in place.

    Event time must not advance because of a row that could not be read.

    Args:
        columns: Columns by name, with `error` among them; those named in `TIMES` are changed.
    """
    errors = columns["error"]
    if errors.null_count < len(errors):
        for name in set(TIMES) & set(columns):
            columns[name] = pc.if_else(errors.is_null(), columns[name], None)


def _signed_times(values: np.ndarray) -> pa.Array:
    """Convert unsigned times to int64; one of 2**63 or more (after the year 2262) becomes null."""
    plain = np.ascontiguousarray(values)
    beyond = plain >= 2**63
    return pa.array(plain.view(np.int64), mask=beyond if beyond.any() else None)


def _within_span(times: np.ndarray, selection: Selection, keep: np.ndarray) -> np.ndarray:
    """Narrow `keep` to the rows whose time is in the span of the selection.

    Bounds below 0 count as 0, because log and publish times are unsigned.
    """
    if selection.start_ns is not None:
        keep = keep & (times >= max(selection.start_ns, 0))
    if selection.end_ns is not None:
        keep = keep & (times < max(selection.end_ns, 0))
    return keep


def _stamps_within_span(times: pa.Array, selection: Selection) -> pa.Array:
    """Rows whose stamp is in the span, and rows without a stamp: nothing says they are outside."""
    stamps = times.fill_null(0).to_numpy()
    keep = _within_span(stamps, selection, np.ones(len(times), bool))
    return pa.array(keep | np.asarray(times.is_null()))


def attached_rows(file: str | Path) -> bytes:
    """Return the table that the MCAP sink attached to a file.

    Args:
        file: An MCAP file written by the sink.

    Returns:
        The bytes of a Parquet file.

    Raises:
        StateError: the file has no such attachment.
    """
    with McapFile(file) as opened:
        buf = opened.buf
        op, at, size = np.empty(4096, np.uint8), np.empty(4096, np.int64), np.empty(4096, np.int64)
        # The walk starts behind the magic and stops before the one at the end of the file.
        pos, how = 8, r.WHOLE
        while pos < len(buf) - 8 and how == r.WHOLE:
            count, pos, how = r.walk_records(buf, pos, len(buf) - 8, op, at, size)
            for row in np.flatnonzero(op[:count] == r.ATTACHMENT).tolist():
                content = bytes(buf[at[row] : at[row] + size[row]])
                # An attachment begins with two times of 8 bytes; its name, media type and data
                # follow.
                cursor = r.Cursor(content, 16)
                if cursor.text() == ROWS_ATTACHMENT:
                    cursor.text()
                    return bytes(cursor.take(cursor.u64()))
    raise StateError(f"{file} has no table attached: it was not written by the mcap sink")
