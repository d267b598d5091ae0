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
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tidegate.core.adoption import changed_settings, setting_difference
from tidegate.core.columns import LANE
from tidegate.core.ipc import read_batch, write_batch
from tidegate.core.state import Column, Layout, State
from tidegate.errors import StateError

__all__ = [
    "FORMAT",
    "FoundStage",
    "decode",
    "encode",
    "identities",
    "pack",
    "read_stages",
    "unpack",
]

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
        _check_layout(stage, layout, f"{what}, stage {identity['name']}")
        state, at = _read_state(stage, layout, buffers, at, what)
        states.append(state)
    if at != len(buffers):
        raise StateError(f"{what} is corrupt: {len(buffers) - at} buffers belong to no stage")
    return states


def _check_layout(stage: dict[str, Any], layout: Layout, where: str) -> None:
    """Raise a StateError unless a stage in a header has the arrays and tables of a layout."""
    if sorted(name for name, *_ in stage["arrays"]) != sorted(layout.arrays):
        raise StateError(f"{where}: arrays differ from the layout")
    if len(stage["tables"]) != len(layout.tables):
        raise StateError(f"{where}: tables differ from the layout")
    lanes = operator.index(stage["lanes"])
    for name, dtype, shape in stage["arrays"]:
        column = layout.arrays[name]
        if np.dtype(dtype) != np.dtype(column.dtype) or tuple(shape) != (lanes, *column.shape):
            raise StateError(
                f"{where}: array {name} is {dtype} of shape {shape}, "
                f"for {lanes} lanes of {column.shape}"
            )


def _read_state(
    stage: dict[str, Any], layout: Layout, buffers: Sequence[memoryview], at: int, what: str
) -> tuple[State, int]:
    """Read the state of one stage, whose layout has been checked.

    Args:
        stage: its part of the header.
        layout: the layout of the result.
        buffers: all buffers of the envelope.
        at: the number of its first buffer.
        what: the name of the envelope in messages.

    Returns:
        The state, and the number of the first buffer behind it.

    Raises:
        StateError: sizes, lanes or tables do not agree.
    """
    where = f"{what}, stage {stage['name']}"
    lanes = operator.index(stage["lanes"])
    most = len(buffers[at]) if layout.arrays else _LANES_WITHOUT_ARRAYS
    if not 1 <= lanes <= most:
        raise StateError(f"{where}: has {lanes} lanes")
    arrays = {}
    for name, dtype, shape in stage["arrays"]:
        raw = np.frombuffer(buffers[at], dtype)
        if raw.size != int(np.prod(shape)):
            raise StateError(f"{where}: array {name} is cut off")
        arrays[name] = raw.reshape(shape).copy()
        at += 1
    state = State.of_arrays(layout, lanes, arrays)
    for name, present in stage["tables"]:
        if name not in state.tables:
            raise StateError(f"{where}: unknown table {name}")
        if present:
            state.tables[name] = _read_table(buffers[at], lanes, f"{what}, table {name}")
            at += 1
    return state, at


class FoundStage(NamedTuple):
    """A stage as a snapshot has it, whatever wants to use it."""

    name: str
    """The name of the operator."""
    version: int
    """The version of the state."""
    settings: dict[str, Any]
    """The settings it was made with, as plain JSON values."""
    state: State
    """The state, in the layout of its maker."""

    @property
    def identity(self) -> dict[str, Any]:
        """Name, version and settings, as in `Operator.identity`."""
        return {"name": self.name, "version": self.version, "config": self.settings}


def read_stages(
    blob: bytes | memoryview,
    known: Sequence[tuple[dict[str, Any], Layout]] = (),
    what: str = "snapshot",
) -> tuple[list[FoundStage], dict[str, Any]]:
    """Read a blob of `encode` without a chain that fits it: for adoption, and to look inside.

    Args:
        blob: untrusted bytes.
        known: the identity and layout of stages, by position. Arrays that have the name of one
            there start new lanes with its fill; of all others nothing is known but what the
            header says.
        what: its name in messages.

    Returns:
        The stages with their states, and `extra`.

    Raises:
        StateError: it is damaged, or not a snapshot of stages.
    """
    header, buffers = unpack(blob, what)
    try:
        extra, described = header["extra"], header["stages"]
        if not isinstance(extra, dict) or not isinstance(described, list):
            raise StateError(f"{what} is corrupt: its header is not one of ours")
        out, at = [], 0
        for number, stage in enumerate(described):
            name, version, settings = stage["name"], stage["version"], stage["config"]
            if not isinstance(name, str) or not isinstance(settings, dict):
                raise StateError(f"{what} is corrupt: its header is not one of ours (stages)")
            if type(version) is not int or version < 1:
                raise StateError(f"{what}, stage {name}: version {version!r} is not a number")
            like = Layout()
            if number < len(known) and known[number][0]["name"] == name:
                like = known[number][1]
            layout = _described_layout(stage, like, f"{what}, stage {name}")
            state, at = _read_state(stage, layout, buffers, at, what)
            out.append(FoundStage(name, version, settings, state))
        if at != len(buffers):
            raise StateError(f"{what} is corrupt: {len(buffers) - at} buffers belong to no stage")
        return out, extra
    except _BROKEN as error:
        raise StateError(f"{what} is corrupt: its header is not one of ours ({error!r})") from error


def identities(blob: bytes | memoryview) -> list[dict[str, Any]] | None:
    """The identities (name, version, settings) of the stages in a blob of `encode`, without reading
    their states; None if that is not what it is, which `decode` says in a sentence."""
    try:
        header, _ = unpack(blob)
        names = ("name", "version", "config")
        found = [{name: stage[name] for name in names} for stage in header["stages"]]
    except (*_BROKEN, StateError):
        return None
    for each in found:
        if not isinstance(each["name"], str) or not isinstance(each["config"], dict):
            return None
        if type(each["version"]) is not int or each["version"] < 1:
            return None
    return found


def _described_layout(stage: dict[str, Any], like: Layout, where: str) -> Layout:
    """The layout that a header describes.

    Raises:
        StateError: an array is not of plain numbers, or does not have one entry per lane.
    """
    columns = {}
    for name, dtype, shape in stage["arrays"]:
        kind = np.dtype(dtype)
        if kind.kind not in "iufb" or kind.itemsize > 8 or not isinstance(name, str):
            raise StateError(f"{where}: array {name} is {dtype}")
        rest = [operator.index(size) for size in shape]
        if not rest or rest[0] != operator.index(stage["lanes"]) or min(rest) < 0:
            raise StateError(f"{where}: array {name} is {dtype} of shape {shape}")
        known = like.arrays.get(name)
        fill, merge = (0, None) if known is None else (known.fill, known.merge)
        columns[name] = Column(kind, tuple(rest[1:]), fill, merge)
    names = [name for name, _ in stage["tables"]]
    if len(columns) != len(stage["arrays"]) or len(set(names)) != len(names):
        raise StateError(f"{where}: names an array or a table twice")
    return Layout(columns, tuple(names))


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
        changed = changed_settings(found["config"], wanted["config"], name)
        raise StateError(
            f"{what}, stage {name}: made with other settings:\n{setting_difference(changed)}\n"
            "use the same settings, adopt it, or use a new checkpoint"
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
