"""An append-only log of messages in segment files, on disk before anyone is told so.

    00000000000000000000.spool     records, one after the other; named by where it begins
    00000000000067108864.spool     the next segment
    durable                        8 bytes: everything before this place is on disk; then 4 bytes,
                                   the checksum of these

A record is: length, checksum, time of receipt, flags, topic, payload. `append` returns when its
records are on disk (fsync), so an acknowledgement sent after it is true. What a crash leaves behind
the last whole record is cut off when the spool is opened again. Readers go no further than
`durable`: what they have read can not change.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from tidegate.errors import ConfigError, StateError

__all__ = ["Landed", "Spool", "durable_end", "read", "schema"]

SEGMENT_BYTES = 64 << 20
"""A segment is closed beyond this: old ones can be deleted whole."""

_HEAD = struct.Struct("<IIqBH")
_CHECKED = struct.Struct("<qBH")
_LARGEST = 256 << 20
"""MQTT's own limit for a message, rounded up; a length beyond it is damage, not a message."""

_NAME = re.compile(r"[0-9]{20}")

DUPLICATE = 1
"""Flag: the sender marked it as sent again, so it may be here twice."""


_Row = tuple[int, str | None, int | None, bool | None, bytes | None, str | None]


@dataclass(frozen=True)
class Landed:
    """One message as it came in."""

    topic: str
    received_ns: int
    payload: bytes
    flags: int = 0


def schema() -> pa.Schema:
    """The columns of a spool. `offset` is a message's place, and the order in which all came."""
    return pa.schema(
        [
            ("offset", pa.int64()), ("topic", pa.string()), ("received_ns", pa.int64()),
            ("duplicate", pa.bool_()), ("payload", pa.binary()), ("error", pa.string()),
        ]
    )  # fmt: skip


class Spool:
    """The writing end. One per folder at a time."""

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
        """Put messages on disk, in this order; returns where the spool ends now."""
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
        for handle in (self._file, self._mark, self._lock):
            if handle >= 0:
                os.close(handle)
        self._file = self._mark = self._lock = -1

    def _write(self, data: bytes) -> None:
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
        os.close(self._file)
        self._begin = self.end
        self._file = os.open(
            self._path(self.end), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600
        )
        _sync_folder(self.folder)

    def _publish(self) -> None:
        # One write of 12 bytes within one sector: a reader sees the old mark or the new one.
        os.pwrite(self._mark, _mark_bytes(self.end), 0)

    def _path(self, begin: int) -> Path:
        return self.folder / f"{begin:020d}.spool"


_MARK_BYTES = 12
_MARK_READS = 3
"""How often a mark that looks damaged is read: a writer may have been in the middle of writing."""


def _mark_bytes(end: int) -> bytes:
    place = struct.pack("<Q", end)
    return place + struct.pack("<I", zlib.crc32(place))


def durable_end(folder: str | Path) -> int:
    """Up to where the spool may be read; 0 if nothing was written yet.

    Raises:
        StateError: the file `durable` is damaged, or names a place behind the last segment. Opening
            the folder with `Spool` writes it anew from the segments.
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
    folder: str | Path, start: int = 0, end: int | None = None, rows: int = 8_192
) -> Iterator[pa.RecordBatch]:
    """The messages from one place up to another (by default all there are), as batches.

    A damaged record is a row with an `error`; the rest of its segment cannot be found again, so
    reading goes on with the next one.
    """
    upto = durable_end(folder) if end is None else end
    segments = _segments(Path(folder))
    if segments and start < segments[0][0]:
        raise StateError(
            f"{folder} begins at {segments[0][0]}; what lay before it, from {start}, was deleted"
        )
    found: list[_Row] = []
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
            if len(found) >= rows:
                yield _batch_of_rows(found)
                found = []
    if found:
        yield _batch_of_rows(found)


def _batch_of_rows(
    rows: list[tuple[int, str | None, int | None, bool | None, bytes | None, str | None]],
) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema(), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema())


def _segments(folder: Path) -> list[tuple[int, Path]]:
    """The segments and where each begins, in order. Files with other names are not ours."""
    found = [path for path in folder.glob("*.spool") if _NAME.fullmatch(path.stem)]
    return sorted((int(path.stem), path) for path in found)


def _encode_landed(message: Landed) -> bytes:
    topic = message.topic.encode()
    if len(topic) > 65_535 or len(message.payload) > _LARGEST:
        raise ConfigError("message", message.topic[:40], "is too large for the spool")
    body = _CHECKED.pack(message.received_ns, message.flags, len(topic)) + topic + message.payload
    length = len(topic) + len(message.payload)
    head = _HEAD.pack(length, zlib.crc32(body), message.received_ns, message.flags, len(topic))
    return head + topic + message.payload


def _parse(data: bytes, at: int) -> tuple[Landed | None, int, str]:
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
    """The bytes of a segment up to the end of its last whole record."""
    data = path.read_bytes()
    at = 0
    while at < len(data):
        record, size, _ = _parse(data, at)
        if record is None:
            break
        at += size
    return at


def _lock(handle: int, folder: Path) -> None:
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise StateError(f"{folder} is written to by another process") from error


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
