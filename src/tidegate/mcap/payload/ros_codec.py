"""ROS 1 and ROS 2 payloads: plain fields, texts, arrays and times by the kernel; whole messages and
whatever else value by value, once the kernel has found that a payload is sound."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.mcap.payload import ros
from tidegate.mcap.payload.ros_walk import REASONS, gather, walk_payloads
from tidegate.mcap.payload.values import Path, cast_column, column, follow
from tidegate.mcap.records import Schema
from tidegate.mcap.stamps import payload_bytes

__all__ = ["RosCodec"]

_NUMPY = {"bool": "u1", "byte": "u1", "char": "u1", "int8": "i1", "uint8": "u1", "int16": "i2",
          "uint16": "u2", "int32": "i4", "uint32": "u4", "int64": "i8", "uint64": "u8",
          "float32": "f4", "float64": "f8"}  # fmt: skip

_COLUMN = {"bool": pa.bool_(), "uint32": pa.int64(), "int64": pa.int64(), "uint64": pa.int64(),
           "float32": pa.float32(), "float64": pa.float64(), "string": pa.string()}  # fmt: skip
"""Types of columns; the small integers are int32. Spark has no unsigned ones."""

_BYTES = ("byte", "char", "uint8", "int8")
"""Arrays of these are bytes: an image, a point cloud."""


class RosCodec:
    """Payloads of encoding `cdr` (ROS 2) and `ros1`."""

    def __init__(self, schema: Schema, *, cdr: bool) -> None:
        self.cdr = cdr
        self.message = ros.message_of(schema)
        self._programs: dict[tuple[Path, ...], ros.WalkProgram] = {}
        self._program(())  # a definition that cannot be followed is refused here

    def type_of(self, path: Path) -> pa.DataType | None:
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

    def columns(
        self, payloads: pa.Array, wanted: Sequence[tuple[Path, pa.DataType]]
    ) -> tuple[list[pa.Array], dict[int, str]]:
        fast = tuple(path for path, _ in wanted if self._is_fast(path))
        walked = self._walk(payloads, fast)
        reasons = walked.reasons(self.message.name)
        slow = [] if len(fast) == len(wanted) else self._values(payloads, reasons)
        made = []
        for path, kind in wanted:
            name = ".".join(path)
            if path in fast:
                found = self._column(walked, fast.index(path), path, reasons)
                made.append(cast_column(found, kind, reasons, name))
            else:
                values = [follow(value, path) for value in slow]
                made.append(column(values, kind, reasons, name))
        return made, reasons

    # -- inside ---------------------------------------------------------------------------------

    def _is_fast(self, path: Path) -> bool:
        part = self.message.find(path)
        if part is None or part.message is not None:
            return part is not None and _is_time(part)
        return part.base != "string" or part.count is None

    def _program(self, fast: tuple[Path, ...]) -> ros.WalkProgram:
        if fast not in self._programs:
            self._programs[fast] = ros.compile_program(self.message, fast, cdr=self.cdr)
        return self._programs[fast]

    def _walk(self, payloads: pa.Array, fast: tuple[Path, ...]) -> _Walked:
        data, offsets = payload_bytes(payloads)
        program = self._program(fast)
        count = len(payloads)
        at, size = np.zeros((count, len(fast)), np.int64), np.zeros((count, len(fast)), np.int64)
        how, where = np.zeros(count, np.int64), np.zeros(count, np.int64)
        walk_payloads(data, offsets, program.array, program.depth, self.cdr, at, size, how, where)
        swap = np.zeros(count, bool)
        if self.cdr and len(data):
            swap = (how == 0) & (data[np.minimum(offsets[:-1] + 1, len(data) - 1)] == 0)
        size[how != 0] = 0
        return _Walked(data, at, size, how, where, swap, program)

    def _column(self, walked: _Walked, slot: int, path: Path, reasons: dict[int, str]) -> pa.Array:
        part = self.message.find(path)
        assert part is not None
        good = walked.how == 0
        if part.message is not None:
            words = walked.numbers(slot, "u4", 8)[0].reshape(-1, 2).astype(np.int64)
            seconds, nanos = words[:, 0], words[:, 1]
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

    def _values(self, payloads: pa.Array, reasons: dict[int, str]) -> list[Any]:
        """Every sound payload as plain values; None for the others."""
        found: list[Any] = []
        for row, payload in enumerate(payloads):
            if row in reasons:
                found.append(None)
                continue
            try:
                found.append(_Reader(payload.as_buffer().to_pybytes(), self.cdr).read(self.message))
            except UnicodeDecodeError as error:
                reasons[row] = f"{self.message.name} cannot be decoded: {error}"
                found.append(None)
        return found


def _is_time(part: ros.Part) -> bool:
    message = part.message
    if message is None or part.count is not None or message.name not in ros.TIMES:
        return False
    return [inside.base for inside in message.parts] in (["int32", "uint32"], ["uint32", "uint32"],
                                                         ["int32", "int32"])  # fmt: skip


def _wide(base: str, numbers: np.ndarray) -> pa.Array:
    kind = _COLUMN.get(base, pa.int32())
    if base == "bool":
        return pa.array(numbers != 0)
    if base == "uint64":
        return pa.array(numbers.astype(np.int64))
    return pa.array(numbers.astype(kind.to_pandas_dtype(), copy=False))


@dataclass(frozen=True)
class _Walked:
    """Where the fields of payloads are, and how each payload ended."""

    data: np.ndarray
    at: np.ndarray
    size: np.ndarray
    how: np.ndarray
    where: np.ndarray
    swap: np.ndarray
    program: ros.WalkProgram

    def reasons(self, name: str) -> dict[int, str]:
        found = {}
        for row in np.flatnonzero(self.how).tolist():
            how, where = int(self.how[row]), int(self.where[row])
            field = self.program.names[where] if how == 1 else ""
            reason = REASONS[how].format(name=field or "its first byte", left=where)
            found[row] = f"{name} cannot be decoded: {reason}"
        return found

    def raw(self, slot: int, element: int, kind: pa.DataType) -> pa.Array:
        """The bytes of a field; null where the payload is broken."""
        out, edges = self._bytes(slot, element, 0)
        buffers = [None, pa.py_buffer(edges.astype(np.int32)), pa.py_buffer(out)]
        made = pa.Array.from_buffers(kind, len(self.how), buffers)
        return pc.if_else(pa.array(self.how == 0), made, None) if self.how.any() else made

    def numbers(self, slot: int, kind: str, fixed: int) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of a field and where those of each row begin. With `fixed` bytes every row
        has them, a broken one zeros."""
        out, edges = self._bytes(slot, int(kind[1]), fixed)
        return out.view(f"<{kind}"), edges // int(kind[1])

    def _bytes(self, slot: int, element: int, fixed: int) -> tuple[np.ndarray, np.ndarray]:
        edges = np.zeros(len(self.how) + 1, np.int64)
        np.cumsum(self.size[:, slot], out=edges[1:])
        out = np.empty(int(edges[-1]), np.uint8)
        gather(self.data, np.ascontiguousarray(self.at[:, slot]), edges, element, self.swap, out)
        if fixed and self.how.any():
            whole = np.zeros((len(self.how), fixed), np.uint8)
            whole[self.how == 0] = out.reshape(-1, fixed)
            out = whole.reshape(-1)
        return out, edges


class _Reader:
    """Reads the values of a payload that the kernel has walked to its end: every length is good."""

    def __init__(self, payload: bytes, cdr: bool) -> None:
        self.cdr = cdr
        self.order = ">" if cdr and payload[1] == 0 else "<"
        self.buf = payload[4:] if cdr else payload
        self.pos = 0

    def read(self, message: ros.RosMessage) -> dict[str, Any]:
        if self.cdr and not message.parts:
            self.pos += 1
        return {part.name: self._part(part) for part in message.parts}

    def _part(self, part: ros.Part) -> Any:
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
        self._align(4)
        (value,) = struct.unpack_from(self.order + "I", self.buf, self.pos)
        self.pos += 4
        return int(value)

    def _align(self, size: int) -> None:
        if self.cdr:
            self.pos += -self.pos % size


_STRUCT = {"bool": "?", "byte": "B", "char": "B", "int8": "b", "uint8": "B", "int16": "h",
           "uint16": "H", "int32": "i", "uint32": "I", "int64": "q", "uint64": "Q", "float32": "f",
           "float64": "d"}  # fmt: skip
