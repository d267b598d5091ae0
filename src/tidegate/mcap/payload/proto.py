"""Protobuf payloads, decoded with the descriptors that their schema carries.

A timestamp or a duration is a number of nanoseconds when it is a column; an enum is its name. A
field that is not set is null where protobuf can tell that from zero. Messages, and lists and maps
of them, become JSON text.

Parsing is done by Google's library, which checks all lengths; descriptors go into a pool of their
own, so that definitions of two recordings cannot collide.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from tidegate.mcap.payload.values import NotDecodableError, Path, column, json_text
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
                message = parse(payload)
                values = [_value(message, fields) for fields in steps]
            except (DecodeError, ValueError) as error:  # ValueError: text that is not UTF-8
                reasons[row] = f"{self.name} cannot be decoded: {error}"
            for place, value in enumerate(values):
                found[place].append(value)
        made = [
            column(values, kind, reasons, ".".join(path) or "the message")
            for values, (path, kind) in zip(found, wanted, strict=True)
        ]
        return made, reasons

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


def _value(message: Any, fields: Sequence[Any]) -> Any:
    """Return the value at the end of a path of descriptors; None if it is not set."""
    if not fields:
        return json_text(_plain_message(message))
    for field in fields:
        if field.has_presence and not message.HasField(field.name):
            return None
        message = getattr(message, field.name)
    last = fields[-1]
    if _is_message(last) and last.message_type.full_name in _TIMES and not _repeated(last):
        return message.seconds * 10**9 + message.nanos
    return _plain_value(last, message)


def _plain_message(message: Any) -> dict[str, Any]:
    """Convert a message to a dict of plain values, without the fields that are not set."""
    return {
        field.name: _plain_value(field, getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
        if not (field.has_presence and not message.HasField(field.name))
    }


def _plain_value(field: Any, value: Any) -> Any:
    """Convert the value of a field: lists to lists, maps to dicts with keys as text."""
    if not _repeated(field):
        return _plain_one(field, value)
    inside = field.message_type
    if inside is not None and inside.GetOptions().map_entry:
        kind = inside.fields_by_name["value"]
        return {str(name): _plain_one(kind, each) for name, each in value.items()}
    return [_plain_one(field, each) for each in value]


def _plain_one(field: Any, value: Any) -> Any:
    """Convert one value: a message to a dict, an enum to its name (its number if it has none)."""
    if _is_message(field):
        return _plain_message(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    return value
