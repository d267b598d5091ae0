"""The footer of a Parquet file as a tree, so that places of columns can be changed.

A footer is one struct in Thrift's compact protocol. Arrow writes and reads it, but offers no way to
change where a column begins, which a file needs whose images were not written by Arrow
(`image_file`). Only footers that Arrow has just written in this process are read here, never one of
a file that somebody else made.

    struct  {number: (type, value)}
    list    (type of its elements, [value, ...])
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

__all__ = ["Kind", "Struct", "read_struct", "varint", "write_struct", "zigzag"]

Struct = dict[int, tuple[int, Any]]
"""The fields of a struct by number."""


class Kind(IntEnum):
    """Types of the compact protocol."""

    TRUE = 1
    FALSE = 2
    I8 = 3
    I16 = 4
    I32 = 5
    I64 = 6
    DOUBLE = 7
    BINARY = 8
    LIST = 9
    SET = 10
    STRUCT = 12


def read_struct(data: bytes) -> Struct:
    """Read a struct.

    Args:
        data: Its bytes, from the first.

    Raises:
        ValueError: It has a type that no footer has.
    """
    return _struct(data, 0)[0]


def write_struct(struct: Struct) -> bytes:
    """Write a struct.

    Args:
        struct: Its fields.

    Example:
        >>> read_struct(write_struct({1: (Kind.I32, -3), 30: (Kind.BINARY, b"ab")}))
        {1: (5, -3), 30: (8, b'ab')}
    """
    out = bytearray()
    last = 0
    for number in sorted(struct):
        kind, value = struct[number]
        if 0 < number - last <= 15:
            out.append((number - last) << 4 | kind)
        else:
            out.append(kind)
            out += zigzag(number)
        last = number
        if kind not in (Kind.TRUE, Kind.FALSE):
            out += _written(kind, value)
    out.append(0)
    return bytes(out)


def varint(value: int) -> bytes:
    """A number of at least 0 in groups of seven bits, the lowest first.

    >>> varint(300).hex()
    'ac02'
    """
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def zigzag(value: int) -> bytes:
    """A signed number as a varint."""
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)


def _written(kind: int, value: Any) -> bytes:
    """The bytes of a value."""
    if kind in (Kind.I16, Kind.I32, Kind.I64):
        return zigzag(value)
    if kind == Kind.BINARY:
        return varint(len(value)) + bytes(value)
    if kind in (Kind.LIST, Kind.SET):
        inner, values = value
        count = len(values)
        head = bytes([count << 4 | inner]) if count < 15 else bytes([240 | inner]) + varint(count)
        return head + b"".join(_written(inner, one) for one in values)
    if kind == Kind.STRUCT:
        return write_struct(value)
    return bytes(value)  # I8, DOUBLE, and the bytes that stand for TRUE and FALSE in lists


def _varint_at(data: bytes, at: int) -> tuple[int, int]:
    """A varint and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _signed_at(data: bytes, at: int) -> tuple[int, int]:
    """A signed number and where it ends."""
    value, at = _varint_at(data, at)
    return (value >> 1) ^ -(value & 1), at


def _value_at(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    """A value and where it ends."""
    if kind in (Kind.I16, Kind.I32, Kind.I64):
        return _signed_at(data, at)
    if kind == Kind.BINARY:
        size, at = _varint_at(data, at)
        return data[at : at + size], at + size
    if kind in (Kind.LIST, Kind.SET):
        count, inner = data[at] >> 4, data[at] & 15
        at += 1
        if count == 15:
            count, at = _varint_at(data, at)
        values = []
        for _ in range(count):
            one, at = _value_at(data, at, inner)
            values.append(one)
        return (inner, values), at
    if kind == Kind.STRUCT:
        return _struct(data, at)
    sizes: dict[int, int] = {Kind.I8: 1, Kind.TRUE: 1, Kind.FALSE: 1, Kind.DOUBLE: 8}
    if kind not in sizes:
        raise ValueError(f"a footer has no type {kind}")
    return data[at : at + sizes[kind]], at + sizes[kind]


def _struct(data: bytes, at: int) -> tuple[Struct, int]:
    """A struct and where it ends."""
    found: Struct = {}
    number = 0
    while data[at]:
        step, kind = data[at] >> 4, data[at] & 15
        at += 1
        if step:
            number += step
        else:
            number, at = _signed_at(data, at)
        value = None
        if kind not in (Kind.TRUE, Kind.FALSE):
            value, at = _value_at(data, at, kind)
        found[number] = kind, value
    return found, at + 1
