"""ROS 1 and ROS 2 payloads.

Two ways lead to a column:

- fast: plain fields, texts, arrays of plain values and times. A kernel finds them in all payloads,
  another copies them; no Python per message.
- slow: whole messages and arrays of messages or texts, as JSON text. `_Reader` reads value by
  value.

The kernel walks over every payload in both cases and finds out whether it is sound. `_Reader` runs
only over sound payloads and so needs no checks of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.numba import as_readonly
from tidegate.mcap.payload import ros
from tidegate.mcap.payload.ros_walk import (
    ENDS_INSIDE,
    GOOD,
    REASONS,
    FoundFields,
    gather,
    walk_payloads,
)
from tidegate.mcap.payload.values import Path, cast_column, column, follow
from tidegate.mcap.records import Schema
from tidegate.mcap.spans import REFERENCE, PayloadSpans, references

__all__ = ["RosCodec"]

_NUMPY = {"bool": "u1", "byte": "u1", "char": "u1", "int8": "i1", "uint8": "u1", "int16": "i2",
          "uint16": "u2", "int32": "i4", "uint32": "u4", "int64": "i8", "uint64": "u8",
          "float32": "f4", "float64": "f8"}  # fmt: skip
"""numpy types of the plain ROS types, without byte order. `byte` and `char` are unsigned."""

_COLUMN = {"bool": pa.bool_(), "uint32": pa.int64(), "int64": pa.int64(), "uint64": pa.int64(),
           "float32": pa.float32(), "float64": pa.float64(), "string": pa.string()}  # fmt: skip
"""Types of columns; the small integers are int32. Spark has no unsigned ones."""

_BYTES = ("byte", "char", "uint8", "int8")
"""Arrays of these are bytes: an image, a point cloud."""


class RosCodec:
    """Payloads of encoding `cdr` (ROS 2) and `ros1`.

    Args:
        schema: The definition of the message.
        cdr: True for ROS 2's CDR, False for ROS 1's serialization.

    Raises:
        NotDecodableError: the definition cannot be read, or is too large to follow.
    """

    def __init__(self, schema: Schema, *, cdr: bool) -> None:
        self.cdr = cdr
        self.message = ros.message_of(schema)
        self._programs: dict[tuple[Path, ...], ros.WalkProgram] = {}
        self._program(())  # a definition that cannot be followed is refused here

    def type_of(self, path: Path) -> pa.DataType | None:
        """Return the type of a field; None if there is none. See `Codec.type_of`.

        Times are int64 nanoseconds, other messages JSON text, arrays of single bytes binary.
        """
        if not path:
            return pa.string()
        part = self.message.find(path)
        if part is None:
            return None
        if part.message is not None:
            return pa.int64() if _is_time(part) else pa.string()
        kind = _COLUMN.get(part.base or "", pa.int32())
        if part.count is None:
            return kind
        return pa.binary() if part.base in _BYTES else pa.list_(kind)

    def names_in(self, path: Path) -> tuple[str, ...]:
        """Return the names of the fields of a message; a time has none. See `Codec.names_in`."""
        at: ros.RosMessage | None = self.message
        if path:
            part = self.message.find(path)
            plain = part is None or part.count is not None or _is_time(part)
            at = None if plain else part.message  # type: ignore[union-attr]
        return () if at is None else tuple(part.name for part in at.parts)

    def columns(
        self, payloads: pa.Array, wanted: Sequence[tuple[Path, pa.DataType]]
    ) -> tuple[list[pa.Array], dict[int, str]]:
        """Decode the fields, the fast ones by the kernel. See `Codec.columns`."""
        return self.columns_in(PayloadSpans.of(payloads), wanted)

    def columns_in(
        self, spans: PayloadSpans, wanted: Sequence[tuple[Path, pa.DataType]]
    ) -> tuple[list[pa.Array], dict[int, str]]:
        """Decode the fields of payloads where they are, without copying these first.

        Args:
            spans: The payloads.
            wanted: Path and column type of each field. Of the type `REFERENCE`, a field that
                `holds_bytes` is not read but referred to.

        Returns:
            As for `Codec.columns`.
        """
        fast = tuple(path for path, _ in wanted if self._is_fast(path))
        walked = self._walk(spans, fast)
        reasons = walked.reasons(self.message.name)
        slow = [] if len(fast) == len(wanted) else self._values(spans, reasons)
        made = []
        for path, kind in wanted:
            name = ".".join(path)
            if kind == REFERENCE:
                made.append(walked.references(fast.index(path), spans.block))
            elif path in fast:
                found = self._column(walked, fast.index(path), path, reasons)
                made.append(cast_column(found, kind, reasons, name))
            else:
                values = [follow(value, path) for value in slow]
                made.append(column(values, kind, reasons, name))
        return made, reasons

    def holds_bytes(self, path: Path) -> bool:
        """Tell whether a field is an array of single bytes, which can be referred to."""
        part = self.message.find(path)
        return part is not None and part.count is not None and part.base in _BYTES

    # -- inside ---------------------------------------------------------------------------------

    def _is_fast(self, path: Path) -> bool:
        """Tell whether the kernel can deliver a field."""
        part = self.message.find(path)
        if part is None or part.message is not None:
            return part is not None and _is_time(part)
        return part.base != "string" or part.count is None

    def _program(self, fast: tuple[Path, ...]) -> ros.WalkProgram:
        """Return the program that finds these fields; compiled once per set of fields."""
        if fast not in self._programs:
            self._programs[fast] = ros.compile_program(self.message, fast, cdr=self.cdr)
        return self._programs[fast]

    def _walk(self, spans: PayloadSpans, fast: tuple[Path, ...]) -> _Walked:
        """Run the kernel: find the fields `fast` in every payload."""
        data = spans.data
        program = self._program(fast)
        count = len(spans.starts)
        at, size = np.zeros((count, len(fast)), np.int64), np.zeros((count, len(fast)), np.int64)
        how, where = np.zeros(count, np.int64), np.zeros(count, np.int64)
        found = FoundFields(at, size, how, where)
        starts, ends = as_readonly(spans.starts), as_readonly(spans.ends)
        walk_payloads(data, starts, ends, program.arrays, program.depth, self.cdr, found)
        swap = np.zeros(count, bool)
        if self.cdr and len(data):
            # The second byte of CDR is 0 for big endian. The minimum only keeps the index of an
            # empty payload at the end inside the array; such a payload has failed already.
            swap = (how == GOOD) & (data[np.minimum(starts + 1, len(data) - 1)] == 0)
        size[how != GOOD] = 0
        return _Walked(data, at, size, how, where, swap, program)

    def _column(self, walked: _Walked, slot: int, path: Path, reasons: dict[int, str]) -> pa.Array:
        """Make the column of a fast field.

        Args:
            walked: Result of the kernel.
            slot: Slot of the field.
            path: Path of the field.
            reasons: Extended by rows with a uint64 that does not fit int64, or text that is not
                UTF-8.
        """
        part = self.message.find(path)
        assert part is not None
        good = walked.how == GOOD
        if part.message is not None:
            words = walked.numbers(slot, "u4", 8)[0].reshape(-1, 2).astype(np.int64)
            seconds, nanos = words[:, 0], words[:, 1]
            # ROS 2 times and all durations are signed; a ROS 1 time is not.
            if self.cdr or part.message.name == ros.TIMES[1]:
                seconds = np.where(seconds >= 2**31, seconds - 2**32, seconds)
                nanos = np.where(nanos >= 2**31, nanos - 2**32, nanos)
            return pa.array(seconds * 10**9 + nanos, mask=~good)
        if part.base == "string" or (part.count is not None and part.base in _BYTES):
            found = walked.raw(slot, 1, pa.binary())
            if part.base != "string":
                return found
            return cast_column(found, pa.string(), reasons, ".".join(path))
        kind = _NUMPY[part.base or ""]
        numbers, edges = walked.numbers(slot, kind, 0 if part.count is not None else int(kind[1]))
        wide = _wide(part.base or "", numbers)
        if part.count is None:
            beyond = (numbers >= 2**63) & good if kind == "u8" else np.zeros(0, bool)
            for row in np.flatnonzero(beyond).tolist():
                reasons.setdefault(row, f"{'.'.join(path)} is {numbers[row]}, beyond 64 bits")
            return pc.if_else(pa.array(good), wide, None)
        if kind == "u8" and (numbers >= 2**63).any():
            places = np.searchsorted(edges, np.flatnonzero(numbers >= 2**63), side="right") - 1
            for row in np.unique(places).tolist():
                reasons.setdefault(row, f"{'.'.join(path)} has a number beyond 64 bits")
        return pa.ListArray.from_arrays(pa.array(edges.astype(np.int32)), wide)

    def _values(self, spans: PayloadSpans, reasons: dict[int, str]) -> list[Any]:
        """Return every sound payload as plain values; None for the others.

        Text that is not UTF-8 adds to `reasons`.
        """
        found: list[Any] = []
        for row, (start, end) in enumerate(zip(spans.starts, spans.ends, strict=True)):
            if row in reasons:
                found.append(None)
                continue
            try:
                payload = spans.data[start:end].tobytes()
                found.append(_Reader(payload, self.cdr).read(self.message))
            except UnicodeDecodeError as error:
                reasons[row] = f"{self.message.name} cannot be decoded: {error}"
                found.append(None)
        return found


def _is_time(part: ros.Part) -> bool:
    """Tell whether a field is a single time or duration of two 4-byte numbers.

    A file may define a message of that name with other fields; that is a message like any other.
    """
    message = part.message
    if message is None or part.count is not None or message.name not in ros.TIMES:
        return False
    return [inside.base for inside in message.parts] in (["int32", "uint32"], ["uint32", "uint32"],
                                                         ["int32", "int32"])  # fmt: skip


def _wide(base: str, numbers: np.ndarray) -> pa.Array:
    """Convert numbers to the column type; there are no unsigned columns. uint64 wraps: the caller
    reports."""
    kind = _COLUMN.get(base, pa.int32())
    if base == "bool":
        return pa.array(numbers != 0)
    if base == "uint64":
        return pa.array(numbers.astype(np.int64))
    return pa.array(numbers.astype(kind.to_pandas_dtype(), copy=False))


@dataclass(frozen=True)
class _Walked:
    """Where the fields of payloads are, and how each payload ended. See `walk_payloads`."""

    data: np.ndarray
    """Bytes of all payloads."""
    at: np.ndarray
    """Per row and slot: offset of the field."""
    size: np.ndarray
    """Per row and slot: bytes of the field; 0 in rows that failed."""
    how: np.ndarray
    """Per row: `GOOD`, or a key of `REASONS`."""
    where: np.ndarray
    """Per row: the step, or the bytes left over, that the reason is about."""
    swap: np.ndarray
    """Per row: whether it is big endian."""
    program: ros.WalkProgram
    """The program that was run; it has the names of its steps."""

    def reasons(self, name: str) -> dict[int, str]:
        """Return the reason for every row that failed.

        Args:
            name: Name of the message type, for the text.
        """
        found = {}
        for row in np.flatnonzero(self.how).tolist():
            how, where = int(self.how[row]), int(self.where[row])
            field = self.program.names[where] if how == ENDS_INSIDE else ""
            reason = REASONS[how].format(name=field or "its first byte", left=where)
            found[row] = f"{name} cannot be decoded: {reason}"
        return found

    def raw(self, slot: int, element: int, kind: pa.DataType) -> pa.Array:
        """Return the bytes of a field as an array of type `kind`; null where the payload failed."""
        out, edges = self._bytes(slot, element, 0)
        buffers = [None, pa.py_buffer(edges.astype(np.int32)), pa.py_buffer(out)]
        made = pa.Array.from_buffers(kind, len(self.how), buffers)
        return pc.if_else(pa.array(self.how == GOOD), made, None) if self.how.any() else made

    def references(self, slot: int, block: int) -> pa.Array:
        """Return where the bytes of a field are; null where the payload failed."""
        return references(block, self.at[:, slot], self.size[:, slot], self.how == GOOD)

    def numbers(self, slot: int, kind: str, fixed: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of a field, and where those of each row start.

        Args:
            slot: Slot of the field.
            kind: numpy type without byte order, such as `f8`.
            fixed: 0 for arrays of any length. Else the bytes that every row has; then failed rows
                have zeros, so that the result has a row for each.
        """
        out, edges = self._bytes(slot, int(kind[1]), fixed)
        return out.view(f"<{kind}"), edges // int(kind[1])

    def _bytes(self, slot: int, element: int, fixed: int) -> tuple[np.ndarray, np.ndarray]:
        """Copy the bytes of a field, little endian, and return them with the edges of the rows."""
        edges = np.zeros(len(self.how) + 1, np.int64)
        np.cumsum(self.size[:, slot], out=edges[1:])
        out = np.empty(int(edges[-1]), np.uint8)
        gather(self.data, np.ascontiguousarray(self.at[:, slot]), edges, element, self.swap, out)
        if fixed and self.how.any():
            whole = np.zeros((len(self.how), fixed), np.uint8)
            whole[self.how == GOOD] = out.reshape(-1, fixed)
            out = whole.reshape(-1)
        return out, edges


class _Reader:
    """Reads the values of a payload that the kernel has found to be sound: every length is good.

    Args:
        payload: One payload.
        cdr: True for ROS 2, False for ROS 1.
    """

    def __init__(self, payload: bytes, cdr: bool) -> None:
        self.cdr = cdr
        self.order = ">" if cdr and payload[1] == 0 else "<"
        self.buf = payload[4:] if cdr else payload
        self.pos = 0

    def read(self, message: ros.RosMessage) -> dict[str, Any]:
        """Read a message as a dict of plain values."""
        if self.cdr and not message.parts:
            self.pos += 1
        return {part.name: self._part(part) for part in message.parts}

    def _part(self, part: ros.Part) -> Any:
        """Read a field: one value, a list, or bytes for arrays of single bytes."""
        if part.count is None:
            return self._one(part)
        many = part.count or self._count()
        if part.base is None or part.base == "string":
            return [self._one(part) for _ in range(many)]
        kind = np.dtype(self.order + _NUMPY[part.base])
        if many:
            self._align(kind.itemsize)
        found = np.frombuffer(self.buf, kind, many, self.pos)
        self.pos += found.nbytes
        if part.base in _BYTES:
            return found.tobytes()
        return (found != 0).tolist() if part.base == "bool" else found.tolist()

    def _one(self, part: ros.Part) -> Any:
        """Read one value of a field's type."""
        if part.message is not None:
            return self.read(part.message)
        if part.base == "string":
            many = self._count()
            text = self.buf[self.pos : self.pos + many]
            self.pos += many
            return (text[:-1] if self.cdr and text[-1:] == b"\0" else text).decode()
        base = part.base or ""
        self._align(ros.SIZES[base])
        (value,) = struct.unpack_from(self.order + _STRUCT[base], self.buf, self.pos)
        self.pos += ros.SIZES[base]
        return value

    def _count(self) -> int:
        """Read the length of a sequence or string."""
        self._align(4)
        (value,) = struct.unpack_from(self.order + "I", self.buf, self.pos)
        self.pos += 4
        return int(value)

    def _align(self, size: int) -> None:
        """Skip to a multiple of `size`; ROS 1 does not align."""
        if self.cdr:
            self.pos += -self.pos % size


_STRUCT = {"bool": "?", "byte": "B", "char": "B", "int8": "b", "uint8": "B", "int16": "h",
           "uint16": "H", "int32": "i", "uint32": "I", "int64": "q", "uint64": "Q", "float32": "f",
           "float64": "d"}  # fmt: skip
"""`struct` codes of the plain ROS types."""
