"""Protobuf payloads, decoded with the descriptors that their schema carries.

A timestamp or a duration is a number of nanoseconds when it is a column; an enum is its name. A
field that is not set is null where protobuf can tell that from zero. Messages, and lists and maps
of them, become JSON text.

Parsing is done by Google's library, which checks all lengths; descriptors go into a pool of their
own, so that definitions of two recordings cannot collide.

The library takes memory for every field of a message, set or not: a type of 10,000 fields makes
80 kB of the 2 bytes of an empty message. So payloads that could take more than `MOST_PARSED` are
walked first and their messages counted; most have far fewer than their size allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from tidegate.mcap.payload.values import (
    NotDecodableError,
    Path,
    TooLargeError,
    ValueBudget,
    check_payload_size,
    column,
    json_text,
)
from tidegate.mcap.records import Schema

__all__ = ["ProtobufCodec"]

_TIMES = ("google.protobuf.Timestamp", "google.protobuf.Duration")
"""Messages that become nanoseconds: both have `seconds` and `nanos`."""

_TYPES = {
    "CPPTYPE_INT32": pa.int32(), "CPPTYPE_UINT32": pa.int64(), "CPPTYPE_INT64": pa.int64(),
    "CPPTYPE_UINT64": pa.int64(), "CPPTYPE_FLOAT": pa.float32(), "CPPTYPE_DOUBLE": pa.float64(),
    "CPPTYPE_BOOL": pa.bool_(), "CPPTYPE_ENUM": pa.string(), "CPPTYPE_STRING": pa.string(),
}  # fmt: skip
"""Column types by protobuf's C++ type. Unsigned numbers get a type with room for them; a uint64
beyond 2**63 - 1 does not fit and gets a reason."""


MOST_PARSED = 1 << 30
"""Bytes that the library may need for one payload, as far as can be told before."""

_FIELD_BYTES, _MESSAGE_BYTES = 8, 64
"""What a field and a message take in the library, at least."""


class ProtobufCodec:
    """Payloads of encoding `protobuf`.

    Args:
        schema: Its data is a FileDescriptorSet, its name the full name of the message type.

    Raises:
        NotDecodableError: the descriptors cannot be parsed, or lack the message or a file it needs.
    """

    def __init__(self, schema: Schema) -> None:
        self.name = schema.name
        try:
            files = {f.name: f for f in FileDescriptorSet.FromString(schema.data).file}
            pool = DescriptorPool()
            for name in list(files):
                _add(pool, files, name)
            self.descriptor: Any = pool.FindMessageTypeByName(schema.name)
            self.message: Any = GetMessageClass(self.descriptor)
            self.message_bytes = _largest_message(self.descriptor)
        except (DecodeError, KeyError, TypeError, ValueError, RecursionError) as error:
            said = str(error).strip().split("\n")[0]
            raise NotDecodableError(f"the protobuf schema {schema.name}: {said}") from error

    def type_of(self, path: Path) -> pa.DataType | None:
        """Return the type of a field; None if there is none. See `Codec.type_of`."""
        found = self._field(path)
        if found is None:
            return None if path else pa.string()
        kind = _kind(found)
        return pa.list_(kind) if _repeated(found) and not _is_message(found) else kind

    def names_in(self, path: Path) -> tuple[str, ...]:
        """Return the names of the fields of a message. See `Codec.names_in`."""
        found = self._field(path)
        if path and (found is None or _repeated(found) or not _is_message(found)):
            return ()
        inside = found.message_type if path else self.descriptor
        return tuple(field.name for field in inside.fields)

    def columns(
        self, payloads: pa.Array, wanted: Sequence[tuple[Path, pa.DataType]]
    ) -> tuple[list[pa.Array], dict[int, str]]:
        """Parse every payload and take the fields. See `Codec.columns`."""
        found: list[list[Any]] = [[] for _ in wanted]
        steps = [self._steps(path) for path, _ in wanted]
        reasons: dict[int, str] = {}
        parse = self.message.FromString
        for row, payload in enumerate(payloads.to_pylist()):
            values: list[Any] = [None] * len(wanted)
            try:
                check_payload_size(payload)
                self._check_messages(payload)
                message = parse(payload)
                budget = ValueBudget()
                values = [_value(message, fields, budget) for fields in steps]
            # ValueError: text that is not UTF-8
            except (DecodeError, TooLargeError, ValueError) as error:
                reasons[row] = f"{self.name} cannot be decoded: {error}"
            for place, value in enumerate(values):
                found[place].append(value)
        made = [
            column(values, kind, reasons, ".".join(path) or "the message")
            for values, (path, kind) in zip(found, wanted, strict=True)
        ]
        return made, reasons

    def _check_messages(self, payload: bytes) -> None:
        """Raise TooLargeError if a payload holds more messages than memory is there for."""
        if len(payload) // 2 * self.message_bytes > MOST_PARSED:
            most = MOST_PARSED // self.message_bytes
            if _count_messages(payload, self.descriptor, most) > most:
                raise TooLargeError(
                    f"it holds more than {most:,} messages of up to {self.message_bytes:,} bytes"
                )

    def _field(self, path: Path) -> Any:
        """Return the descriptor of the field at a path; None for the whole message or an unknown
        path."""
        steps = self._steps(path)
        return steps[-1] if steps else None

    def _steps(self, path: Path) -> list[Any]:
        """Return the descriptors along a path; an empty list if it leads nowhere.

        A path cannot go on below a repeated field: there would be many values.
        """
        at, steps = self.descriptor, []
        for name in path:
            found = None if at is None else at.fields_by_name.get(name)
            if found is None:
                return []
            steps.append(found)
            at = None if _repeated(found) else found.message_type
        return steps


def _add(pool: Any, files: dict[str, Any], name: str) -> None:
    """Add a file to the pool, after the files it depends on. `files` loses what is added."""
    file = files.pop(name, None)
    if file is not None:
        for needed in file.dependency:
            _add(pool, files, needed)
        pool.Add(file)


def _largest_message(descriptor: Any) -> int:
    """Return the bytes that the largest message below a type takes when it is empty."""
    seen, todo, fields = {descriptor.full_name}, [descriptor], 0
    while todo:
        at = todo.pop()
        fields = max(fields, len(at.fields))
        for field in at.fields:
            inside = field.message_type
            if inside is not None and inside.full_name not in seen:
                seen.add(inside.full_name)
                todo.append(inside)
    return _MESSAGE_BYTES + _FIELD_BYTES * fields


def _count_messages(payload: bytes, descriptor: Any, most: int) -> int:
    """Count the messages inside a payload, until there are more than `most`.

    Walks over the wire format: a tag (field number and kind), then a varint, 8 bytes, a length and
    as many bytes, or 4 bytes. What is malformed ends the walk; parsing will say so.
    """
    count = 0
    todo = [(0, len(payload), descriptor)]
    while todo and count <= most:
        at, end, kind = todo.pop()
        while at < end and count <= most:
            tag, at = _varint(payload, at, end)
            size = {1: 8, 5: 4}.get(tag & 7, 0)
            if tag & 7 == 0:
                _, at = _varint(payload, at, end)
            elif tag & 7 == 2:
                size, at = _varint(payload, at, end)
                field = kind.fields_by_number.get(tag >> 3)
                if field is not None and field.message_type is not None:
                    count += 1
                    todo.append((at, min(at + size, end), field.message_type))
            elif tag & 7 == 3:  # a group: its fields follow, and are walked as if they were here
                count += 1
            at += size
    return count


def _varint(payload: bytes, at: int, end: int) -> tuple[int, int]:
    """Read a number of 7 bits per byte; returns it and where it ends, `end` if it does not."""
    value = shift = 0
    while at < end and shift < 70:
        byte = payload[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    return 0, end


def _repeated(field: Any) -> bool:
    """Tell whether a field is a list or a map. New versions of protobuf have no `label`."""
    told = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED) if told is None else bool(told)


def _is_message(field: Any) -> bool:
    """Tell whether the values of a field are messages."""
    return field.message_type is not None


def _kind(field: Any) -> pa.DataType:
    """Return the column type of a single value of a field."""
    if _is_message(field):
        plain_time = field.message_type.full_name in _TIMES and not _repeated(field)
        return pa.int64() if plain_time else pa.string()
    if field.type == field.TYPE_BYTES:
        return pa.binary()
    return next(kind for name, kind in _TYPES.items() if getattr(field, name) == field.cpp_type)


def _value(message: Any, fields: Sequence[Any], budget: ValueBudget) -> Any:
    """Return the value at the end of a path of descriptors; None if it is not set."""
    if not fields:
        return json_text(_plain_message(message, budget))
    for field in fields:
        if field.has_presence and not message.HasField(field.name):
            return None
        message = getattr(message, field.name)
    last = fields[-1]
    if _is_message(last) and last.message_type.full_name in _TIMES and not _repeated(last):
        return message.seconds * 10**9 + message.nanos
    return _plain_value(last, message, budget)


def _plain_message(message: Any, budget: ValueBudget) -> dict[str, Any]:
    """Convert a message to a dict of plain values, without the fields that are not set."""
    fields = message.DESCRIPTOR.fields
    budget.spend(1 + len(fields))
    return {
        field.name: _plain_value(field, getattr(message, field.name), budget)
        for field in fields
        if not (field.has_presence and not message.HasField(field.name))
    }


def _plain_value(field: Any, value: Any, budget: ValueBudget) -> Any:
    """Convert the value of a field: lists to lists, maps to dicts with keys as text."""
    if not _repeated(field):
        return _plain_one(field, value, budget)
    budget.spend(len(value))
    inside = field.message_type
    if inside is not None and inside.GetOptions().map_entry:
        kind = inside.fields_by_name["value"]
        return {str(name): _plain_one(kind, each, budget) for name, each in value.items()}
    return [_plain_one(field, each, budget) for each in value]


def _plain_one(field: Any, value: Any, budget: ValueBudget) -> Any:
    """Convert one value: a message to a dict, an enum to its name (its number if it has none)."""
    if _is_message(field):
        return _plain_message(value, budget)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    return value
