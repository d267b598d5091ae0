"""The codec of snapshots: versioned, checked, and read without running any code.

    magic "TIDE" | u16 format | u32 crc32 of the rest | u32 header length | header (JSON) | buffers

The header names every stage with its version and settings, then its arrays and tables in the order
of the buffers. An unreadable, newer or foreign snapshot is a `StateError` that says which it is.

A snapshot may come from anybody, and a checksum is easily repaired. So nothing is believed: every
size is compared with the bytes that are there before anything is allocated, array types and shapes
must be those of the layout, Arrow checks every offset of a table, and `Operator.invariants` checks
the values before a kernel sees them.
"""

from __future__ import annotations

import json
import operator
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.core.columns import LANE
from tidegate.core.ipc import read_batch, write_batch
from tidegate.core.state import Layout, State
from tidegate.errors import StateError

__all__ = ["FORMAT", "decode", "encode", "pack", "unpack"]

FORMAT = 1
"""The version of this layout. Raised when a reader of today could not read it any more."""

_BROKEN = (
    KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, RecursionError,
    MemoryError,
)  # fmt: skip
"""What Python raises when a header is not what it should be."""

_LANES_WITHOUT_ARRAYS = 1 << 20
"""The most lanes a state without arrays may claim: nothing else bounds them, and each costs a byte.
Far above the lanes of a page (512), far below what would hurt."""

_MAGIC = b"TIDE"
"""The first bytes of every snapshot."""
_HEAD = struct.Struct("<4sHII")
"""Magic, format, checksum, length of the header; little-endian."""


def pack(header: dict[str, Any], buffers: Sequence[bytes | memoryview]) -> bytes:
    """Build an envelope of a JSON header and binary buffers.

    Args:
        header: plain values; the key `sizes` is ours.
        buffers: appended in order, without padding.

    Returns:
        Bytes that `unpack` reads.
    """
    header = {**header, "sizes": [len(buffer) for buffer in buffers]}
    text = json.dumps(header, separators=(",", ":")).encode()
    body = b"".join([text, *buffers])
    return _HEAD.pack(_MAGIC, FORMAT, zlib.crc32(body), len(text)) + body


def unpack(
    blob: bytes | memoryview, what: str = "snapshot"
) -> tuple[dict[str, Any], list[memoryview]]:
    """Read an envelope.

    Args:
        blob: untrusted bytes.
        what: its name in messages.

    Returns:
        The header, and the buffers as views into `blob`.

    Raises:
        StateError: it is cut off, damaged, of another format, or not one of ours; the message says
            which.
    """
    if len(blob) < _HEAD.size:
        raise StateError(f"{what} is corrupt: {len(blob)} bytes, shorter than its own head")
    magic, version, crc, length = _HEAD.unpack_from(blob)
    if magic != _MAGIC:
        raise StateError(f"{what} is corrupt or not one of Tidegate's: it starts with {magic!r}")
    if version > FORMAT:
        raise StateError(
            f"{what} has format {version}, newer than the {FORMAT} this version reads; "
            "upgrade tidegate"
        )
    if version != FORMAT:
        raise StateError(f"{what} has format {version}, which this version does not read")
    body = memoryview(blob)[_HEAD.size :]
    if zlib.crc32(body) != crc:
        raise StateError(f"{what} is corrupt: its checksum does not match")
    try:
        header: dict[str, Any] = json.loads(bytes(body[:length]))
        sizes = [operator.index(size) for size in header["sizes"]]
    except _BROKEN as error:
        raise StateError(f"{what} is corrupt: its header is unreadable ({error!r})") from error
    if length + sum(sizes) != len(body) or min(sizes, default=0) < 0:
        raise StateError(f"{what} is corrupt: it is not as long as its header says")
    buffers, at = [], length
    for size in sizes:
        buffers.append(body[at : at + size])
        at += size
    return header, buffers


def encode(stages: Sequence[tuple[dict[str, Any], State]], extra: dict[str, Any]) -> bytes:
    """Write the states of all stages of a chain into one blob.

    Args:
        stages: the identity of each stage (name, version, settings) and its state, in order.
        extra: further plain values, kept in the header.
    """
    buffers: list[bytes | memoryview] = []
    described = []
    for identity, state in stages:
        arrays, tables = [], []
        for name, array in state.arrays.items():
            arrays.append([name, array.dtype.str, list(array.shape)])
            buffers.append(np.ascontiguousarray(array).tobytes())
        for name, table in state.tables.items():
            tables.append([name, table is not None])
            if table is not None:
                buffers.append(write_batch(table))
        described.append({**identity, "lanes": state.lanes, "arrays": arrays, "tables": tables})
    return pack({"stages": described, "extra": extra}, buffers)


def decode(
    blob: bytes | memoryview,
    expected: Sequence[tuple[dict[str, Any], Layout]],
    what: str = "snapshot",
) -> tuple[list[State], dict[str, Any]]:
    """Read a blob of `encode` for the chain that wants to use it.

    Args:
        blob: untrusted bytes.
        expected: the identity and layout of each stage of that chain, in order.
        what: its name in messages.

    Returns:
        The states, and `extra`.

    Raises:
        StateError: it is damaged, or made by other stages, settings or versions.
    """
    header, buffers = unpack(blob, what)
    try:
        states, extra = _states(header, buffers, expected, what), header["extra"]
        if not isinstance(extra, dict):
            raise StateError(f"{what} is corrupt: its header is not one of ours (extra)")
        return states, extra
    except _BROKEN as error:
        raise StateError(f"{what} is corrupt: its header is not one of ours ({error!r})") from error


def _states(
    header: dict[str, Any],
    buffers: Sequence[memoryview],
    expected: Sequence[tuple[dict[str, Any], Layout]],
    what: str,
) -> list[State]:
    """Build the states from a header and its buffers, believing neither: sizes, types and shapes
    are compared with the layout before anything is allocated.
    Raises:
        StateError: they do not agree."""
    found = header.get("stages")
    if not isinstance(found, list) or len(found) != len(expected):
        names = [stage["name"] for stage in found] if isinstance(found, list) else found
        raise StateError(f"{what} was made by another plan: its stages are {names}")
    states, at = [], 0
    for stage, (identity, layout) in zip(found, expected, strict=True):
        _match(stage, identity, what)
        lanes = operator.index(stage["lanes"])
        most = len(buffers[at]) if layout.arrays else _LANES_WITHOUT_ARRAYS
        if not 1 <= lanes <= most:
            raise StateError(f"{what}, stage {identity['name']}: has {lanes} lanes")
        if sorted(name for name, *_ in stage["arrays"]) != sorted(layout.arrays):
            raise StateError(f"{what}, stage {identity['name']}: arrays differ from the layout")
        if len(stage["tables"]) != len(layout.tables):
            raise StateError(f"{what}, stage {identity['name']}: tables differ from the layout")
        arrays = {}
        for name, dtype, shape in stage["arrays"]:
            column = layout.arrays[name]
            if np.dtype(dtype) != np.dtype(column.dtype) or tuple(shape) != (lanes, *column.shape):
                raise StateError(
                    f"{what}, stage {identity['name']}: array {name} is {dtype} of shape {shape}, "
                    f"for {lanes} lanes of {column.shape}"
                )
            raw = np.frombuffer(buffers[at], dtype)
            if raw.size != int(np.prod(shape)):
                raise StateError(f"{what}, stage {identity['name']}: array {name} is cut off")
            arrays[name] = raw.reshape(shape).copy()
            at += 1
        state = State.of_arrays(layout, lanes, arrays)
        for name, present in stage["tables"]:
            if name not in state.tables:
                raise StateError(f"{what}, stage {identity['name']}: unknown table {name}")
            if present:
                state.tables[name] = _read_table(buffers[at], lanes, f"{what}, table {name}")
                at += 1
        states.append(state)
    if at != len(buffers):
        raise StateError(f"{what} is corrupt: {len(buffers) - at} buffers belong to no stage")
    return states


def _match(found: dict[str, Any], wanted: dict[str, Any], what: str) -> None:
    """Check that a stage in a snapshot is the stage that wants it: same name, version and settings.

    Raises:
        StateError: it is not; the message names the difference.
    """
    name = wanted["name"]
    if found.get("name") != name:
        raise StateError(f"{what} was made by another plan: has {found.get('name')}, wants {name}")
    if found["version"] > wanted["version"]:
        raise StateError(
            f"{what}, stage {name}: version {found['version']} is newer than the "
            f"{wanted['version']} this version reads; upgrade tidegate"
        )
    if found["version"] < wanted["version"]:
        raise StateError(
            f"{what}, stage {name}: version {found['version']} is older than {wanted['version']} "
            "and has no migration; start from a new checkpoint"
        )
    if found["config"] != wanted["config"]:
        raise StateError(
            f"{what}, stage {name}: made with settings {found['config']}, now {wanted['config']}; "
            "use the same settings or a new checkpoint"
        )


def _read_table(buffer: memoryview, lanes: int, what: str) -> pa.RecordBatch:
    """Read a state table and check that its lanes exist.

    Raises:
        StateError: it is damaged, names a column twice, or has rows of other lanes.
    """
    table = read_batch(buffer, what)
    if len(set(table.schema.names)) != len(table.schema.names):
        raise StateError(f"{what}: two of its columns have the same name")
    lane = table.column(LANE).to_numpy()
    if lane.dtype != np.int32 or (len(lane) and not 0 <= lane.min() <= lane.max() < lanes):
        raise StateError(f"{what}: its rows are not all of the {lanes} lanes there are")
    return table
