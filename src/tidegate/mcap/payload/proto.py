"""Protobuf payloads, by the descriptors that their schema carries.

A timestamp or a duration is a number of nanoseconds; an enum is its name. What is not set is null
where protobuf keeps that apart from zero.
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

_TYPES = {
    "CPPTYPE_INT32": pa.int32(), "CPPTYPE_UINT32": pa.int64(), "CPPTYPE_INT64": pa.int64(),
    "CPPTYPE_UINT64": pa.int64(), "CPPTYPE_FLOAT": pa.float32(), "CPPTYPE_DOUBLE": pa.float64(),
    "CPPTYPE_BOOL": pa.bool_(), "CPPTYPE_ENUM": pa.string(), "CPPTYPE_STRING": pa.string(),
}  # fmt: skip


class ProtobufCodec:
    """Payloads of encoding `protobuf`."""

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
        found = self._field(path)
        if found is None:
            return None if path else pa.string()
        kind = _kind(found)
        return pa.list_(kind) if _repeated(found) and not _is_message(found) else kind

    def columns(
        self, payloads: pa.Array, wanted: Sequence[tuple[Path, pa.DataType]]
    ) -> tuple[list[pa.Array], dict[int, str]]:
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
        steps = self._steps(path)
        return steps[-1] if steps else None

    def _steps(self, path: Path) -> list[Any]:
        """The fields along a path; none if it leads nowhere."""
        at, steps = self.descriptor, []
        for name in path:
            found = None if at is None else at.fields_by_name.get(name)
            if found is None:
                return []
            steps.append(found)
            at = None if _repeated(found) else found.message_type
        return steps


def _add(pool: Any, files: dict[str, Any], name: str) -> None:
    """A file after those it needs."""
    file = files.pop(name, None)
    if file is not None:
        for needed in file.dependency:
            _add(pool, files, needed)
        pool.Add(file)


def _repeated(field: Any) -> bool:
    told = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED) if told is None else bool(told)


def _is_message(field: Any) -> bool:
    return field.message_type is not None


def _kind(field: Any) -> pa.DataType:
    if _is_message(field):
        plain_time = field.message_type.full_name in _TIMES and not _repeated(field)
        return pa.int64() if plain_time else pa.string()
    if field.type == field.TYPE_BYTES:
        return pa.binary()
    return next(kind for name, kind in _TYPES.items() if getattr(field, name) == field.cpp_type)


def _value(message: Any, fields: Sequence[Any]) -> Any:
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
    return {
        field.name: _plain_value(field, getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
        if not (field.has_presence and not message.HasField(field.name))
    }


def _plain_value(field: Any, value: Any) -> Any:
    if not _repeated(field):
        return _plain_one(field, value)
    inside = field.message_type
    if inside is not None and inside.GetOptions().map_entry:
        kind = inside.fields_by_name["value"]
        return {str(name): _plain_one(kind, each) for name, each in value.items()}
    return [_plain_one(field, each) for each in value]


def _plain_one(field: Any, value: Any) -> Any:
    if _is_message(field):
        return _plain_message(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    return value
