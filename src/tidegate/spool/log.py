"""An append-only log of messages in segment files, on disk before the sender is told so.

    00000000000000000000.spool     records, one after the other; named by where it begins
    00000000000067108864.spool     the next segment
    durable                        8 bytes: everything before this offset is on disk; then 4 bytes,
                                   the checksum of these
    lock                           held by the one process that writes

A record is: length, checksum, time of receipt, flags, topic length; then topic and payload. An
offset counts the bytes of all segments from the very first, so it stays valid when old segments are
deleted.

Rules:

- `append` returns when its records are on disk (fsync), so an acknowledgement sent after it is
  true.
- What a crash leaves behind the last whole record is cut off when the spool is opened again.
- Readers go no further than `durable`: what they have read cannot change.
- Old segments may be deleted, oldest first; reading from before them is an error.

Clock policy: no clock is read here. `received_ns` is the caller's.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from tidegate.errors import ConfigError, StateError

__all__ = ["Landed", "Spool", "durable_end", "first_offset", "read", "records_at", "schema"]

SEGMENT_BYTES = 64 << 20
"""Bytes after which a new segment is started. Segments are deleted whole, and the last one is read
whole when a spool is opened: larger ones make both coarser, smaller ones make many files."""

_HEAD = struct.Struct("<IIqBH")
"""Length of topic and payload, CRC-32, time of receipt, flags, length of the topic: 19 bytes."""
_CHECKED = struct.Struct("<qBH")
"""The part of the head that the checksum covers, before topic and payload."""
_LARGEST = 256 << 20
"""MQTT's own limit for a message, rounded up; a length beyond it is damage, not a message."""

_NAME = re.compile(r"[0-9]{20}")
"""The offset of a segment with 20 digits, so that names sort like numbers."""

DUPLICATE = 1
"""Flag: the sender marked it as sent again, so the spool may hold it twice."""


BATCH_BYTES = 64 << 20
"""Bytes of records per batch of rows that are read, about: 8,192 images would not fit in memory."""


_Row = tuple[int, str | None, int | None, bool | None, bytes | None, str | None]
"""A row with the columns of `schema`."""


@dataclass(frozen=True)
class Landed:
    """One message as it came in."""

    topic: str
    """At most 65,535 bytes as UTF-8."""
    received_ns: int
    """When it was received, by the wall clock of the receiver, ns since 1970."""
    payload: bytes
    """At most 256 MiB."""
    flags: int = 0
    """0 or `DUPLICATE`; one byte."""


def schema() -> pa.Schema:
    """Return the columns of a spool.

    `offset` identifies a message and gives the order of arrival. `error` is null for a message; in
    a row that stands for a damaged record, all but `offset` and `error` are null.
    """
    return pa.schema(
        [
            ("offset", pa.int64()), ("topic", pa.string()), ("received_ns", pa.int64()),
            ("duplicate", pa.bool_()), ("payload", pa.binary()), ("error", pa.string()),
        ]
    )  # fmt: skip


class Spool:
    """The writing end of a spool. Only one per folder at a time; a lock file ensures it.

    Opening repairs what a crash left: an incomplete record at the end is cut off, and `durable` is
    written again.

    Args:
        folder: The folder of the spool; created if it does not exist.
        segment_bytes: Start a new segment before one would grow beyond this; at least 1. The
            messages of one `append` stay together, so a single call may exceed it.

    Raises:
        ConfigError: `segment_bytes` is below 1.
        StateError: another process writes to the folder.
        OSError: the folder cannot be written to.
    """

    def __init__(self, folder: str | Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        if segment_bytes < 1:
            raise ConfigError("segment_bytes", segment_bytes, "must be at least 1")
        self.folder = Path(folder)
        self.segment_bytes = segment_bytes
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        _lock(self._lock, self.folder)
        segments = _segments(self.folder)
        begin, path = segments[-1] if segments else (0, self._path(0))
        self._begin = begin
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        whole = _whole(path)
        os.ftruncate(self._file, whole)
        os.fsync(self._file)
        _sync_folder(self.folder)
        self.end = begin + whole
        self._mark = os.open(self.folder / "durable", os.O_RDWR | os.O_CREAT, 0o600)
        self._publish()
        os.ftruncate(self._mark, _MARK_BYTES)  # it may have been damaged

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def append(self, messages: Sequence[Landed]) -> int:
        """Put messages on disk, in this order.

        Args:
            messages: If empty, nothing happens.

        Returns:
            The offset at which the spool ends now.

        Raises:
            ConfigError: a topic or payload is too large; then none of the messages is written.
            OSError: the disk is full or failed. Acknowledge nothing, and open the spool again
                before appending more.
        """
        if messages:
            data = b"".join(_encode_landed(message) for message in messages)
            if self.end > self._begin and self.end - self._begin + len(data) > self.segment_bytes:
                self._roll()
            self._write(data)
            os.fsync(self._file)
            self.end += len(data)
            self._publish()
        return self.end

    def close(self) -> None:
        """Close the files and release the lock. Calling it again does nothing."""
        for handle in (self._file, self._mark, self._lock):
            if handle >= 0:
                os.close(handle)
        self._file = self._mark = self._lock = -1

    def _write(self, data: bytes) -> None:
        """Write all bytes at the end of the segment, or none."""
        start = os.lseek(self._file, 0, os.SEEK_END)
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError:
            # A full disk leaves part of a record; without it the spool is as it was.
            os.ftruncate(self._file, start)
            raise

    def _roll(self) -> None:
        """Start the next segment. Synced, or a crash could lose its name."""
        os.close(self._file)
        self._begin = self.end
        self._file = os.open(
            self._path(self.end), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600
        )
        _sync_folder(self.folder)

    def _publish(self) -> None:
        """Tell readers how far they may read. Not synced: opening the spool writes it again."""
        # One write of 12 bytes within one sector: a reader sees the old mark or the new one.
        os.pwrite(self._mark, _mark_bytes(self.end), 0)

    def _path(self, begin: int) -> Path:
        """The file of the segment that begins at an offset."""
        return self.folder / f"{begin:020d}.spool"


_MARK_BYTES = 12
"""Bytes of the file `durable`: an offset and its checksum."""
_MARK_READS = 3
"""How often to read a mark that looks damaged: a writer may have been in the middle of writing it.
"""


def _mark_bytes(end: int) -> bytes:
    """The content of the file `durable` for an offset."""
    place = struct.pack("<Q", end)
    return place + struct.pack("<I", zlib.crc32(place))


def durable_end(folder: str | Path) -> int:
    """Return the offset up to which a spool may be read; 0 if nothing was written yet.

    Args:
        folder: The folder of the spool.

    Raises:
        StateError: the file `durable` is damaged, or names an offset behind the last segment.
            Opening the folder with `Spool` writes it again from the segments.
    """
    path = Path(folder) / "durable"
    remedy = "open the folder with tidegate.spool.Spool to write it anew"
    for _ in range(_MARK_READS):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return 0
        if not data:  # created, and not yet written
            return 0
        if len(data) == _MARK_BYTES and data == _mark_bytes(struct.unpack_from("<Q", data)[0]):
            break
    else:
        raise StateError(f"{path} is damaged; {remedy}")
    end = int(struct.unpack_from("<Q", data)[0])
    segments = _segments(Path(folder))
    there = segments[-1][0] + segments[-1][1].stat().st_size if segments else 0
    if end > there:
        raise StateError(f"{path} says {end}, but the segments end at {there}; {remedy}")
    return end


def read(
    folder: str | Path,
    start: int = 0,
    end: int | None = None,
    rows: int = 8_192,
    *,
    columns: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read messages between two offsets.

    A damaged record is a row with an `error`. Where the next record begins is then unknown, so the
    rest of that segment is skipped and reading goes on with the next one.

    Args:
        folder: The folder of the spool.
        start: Offset of the first message: 0 (default), or one that `append`, `durable_end` or the
            column `offset` gave. Any other one reads as a damaged record.
        end: Offset to stop at, exclusive; by default `durable_end(folder)`.
        rows: Largest number of rows per batch; bounds the memory of a batch, not of a segment,
            which is read whole.
        columns: Those wanted, of `schema()`; by default all.

    Yields:
        Batches with the columns of `schema()`, or `columns`; none is empty, and none has more than
        64 MiB of payload, but for a single message that is larger.

    Raises:
        StateError: `start` lies in a segment that was deleted, or `durable` is damaged.
    """
    upto = durable_end(folder) if end is None else end
    segments = _segments(Path(folder))
    if segments and start < segments[0][0]:
        raise StateError(
            f"{folder} begins at {segments[0][0]}; what lay before it, from {start}, was deleted"
        )
    found: list[_Row] = []
    gathered = 0
    for number, (begin, path) in enumerate(segments):
        last = segments[number + 1][0] if number + 1 < len(segments) else upto
        if last <= start or begin >= upto:
            continue
        with open(path, "rb") as file:
            data = file.read(min(last, upto) - begin)
        at = max(start - begin, 0)
        while at < len(data):
            record, size, reason = _parse(data, at)
            if record is None:
                found.append((begin + at, None, None, None, None, reason))
                break
            again = bool(record.flags & DUPLICATE)
            found.append(
                (begin + at, record.topic, record.received_ns, again, record.payload, None)
            )
            at += size
            gathered += size
            if len(found) >= rows or gathered >= BATCH_BYTES:
                yield _batch_of_rows(found, columns)
                found, gathered = [], 0
    if found:
        yield _batch_of_rows(found, columns)


def records_at(folder: str | Path, offsets: Sequence[int]) -> pa.RecordBatch:
    """Return the messages at these offsets, one row each, in this order. Where there is no whole
    record, `error` says so.

    Raises:
        StateError: an offset lies before the first segment: it was deleted.
    """
    segments = _segments(Path(folder))
    begins = [begin for begin, _ in segments]
    found: list[_Row] = []
    opened: tuple[int, bytes] | None = None
    for offset in offsets:
        number = bisect_right(begins, offset) - 1
        if number < 0:
            raise StateError(f"{folder} begins later than at {offset}, which was deleted")
        if opened is None or opened[0] != number:
            opened = number, segments[number][1].read_bytes()
        record, _, reason = _parse(opened[1], offset - begins[number])
        if record is None:
            found.append((offset, None, None, None, None, reason))
            continue
        again = bool(record.flags & DUPLICATE)
        found.append((offset, record.topic, record.received_ns, again, record.payload, None))
    return _batch_of_rows(found, None)


def first_offset(folder: str | Path) -> int:
    """Return the offset at which a spool begins: 0 unless old segments were deleted."""
    segments = _segments(Path(folder))
    return segments[0][0] if segments else 0


def _batch_of_rows(rows: list[_Row], columns: Sequence[str] | None) -> pa.RecordBatch:
    """Turn rows into a batch with these columns; None: all."""
    whole = schema()
    wanted = whole if columns is None else pa.schema([whole.field(name) for name in columns])
    values = dict(zip(whole.names, zip(*rows, strict=True), strict=True))
    arrays = [pa.array(values[field.name], field.type) for field in wanted]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _segments(folder: Path) -> list[tuple[int, Path]]:
    """List the segments as (offset, path), in order. Files with other names are ignored."""
    found = [path for path in folder.glob("*.spool") if _NAME.fullmatch(path.stem)]
    return sorted((int(path.stem), path) for path in found)


def _encode_landed(message: Landed) -> bytes:
    """Write a message as a record.

    Raises:
        ConfigError: the topic or the payload is too large.
    """
    topic = message.topic.encode()
    if len(topic) > 65_535 or len(message.payload) > _LARGEST:
        raise ConfigError("message", message.topic[:40], "is too large for the spool")
    body = _CHECKED.pack(message.received_ns, message.flags, len(topic)) + topic + message.payload
    length = len(topic) + len(message.payload)
    head = _HEAD.pack(length, zlib.crc32(body), message.received_ns, message.flags, len(topic))
    return head + topic + message.payload


def _parse(data: bytes, at: int) -> tuple[Landed | None, int, str]:
    """Parse the record at an offset of a segment.

    Args:
        data: Bytes of the segment.
        at: Offset in `data`.

    Returns:
        The message, the bytes of its record and "", or None, 0 and the reason. Nothing is trusted:
        lengths are checked before use, and the checksum covers all but itself and the length.
    """
    if len(data) - at < _HEAD.size:
        return None, 0, "a record that ends in its head"
    length, crc, received_ns, flags, topic_length = _HEAD.unpack_from(data, at)
    begin = at + _HEAD.size
    if length > _LARGEST + 65_535 or topic_length > length or begin + length > len(data):
        return None, 0, "a record that ends beyond its segment"
    inside = data[begin : begin + length]
    if zlib.crc32(inside, zlib.crc32(_CHECKED.pack(received_ns, flags, topic_length))) != crc:
        return None, 0, "a record whose checksum is wrong"
    topic = inside[:topic_length].decode("utf-8", "replace")
    return Landed(topic, received_ns, inside[topic_length:], flags), _HEAD.size + length, ""


def _whole(path: Path) -> int:
    """Return the bytes of a segment up to the end of its last whole record."""
    data = path.read_bytes()
    at = 0
    while at < len(data):
        record, size, _ = _parse(data, at)
        if record is None:
            break
        at += size
    return at


def _lock(handle: int, folder: Path) -> None:
    """Take the lock of a folder, or raise StateError. It ends with the process."""
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise StateError(f"{folder} is written to by another process") from error


def _sync_folder(folder: Path) -> None:
    """Sync the names in a folder to disk; syncing a file alone does not cover its name."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
