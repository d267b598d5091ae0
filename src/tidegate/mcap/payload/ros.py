"""ROS definitions as plain messages, and the program that a kernel runs over their payloads.

`rosbags` parses the text of a definition, and only that. Its own decoders are Python source made
from the definition and executed; a definition comes out of a file that cannot be trusted.

A program is a list of steps: skip a fixed number of bytes, a string, a sequence of plain values, a
loop. The kernel (ros_walk.py) follows it through every payload, checks every length, and notes the
offset and size of the wanted fields.

Definitions are hostile input, too. Limits on their text, on the number of steps and on the size of
a field keep a small file from taking all memory; recursion is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from rosbags.interfaces import Nodetype
from rosbags.typesys import Stores, get_types_from_idl, get_types_from_msg, get_typestore

from tidegate.mcap.payload.ros_walk import FIXED, LOOP, LOOP_END, SEQUENCE, TEXT, WalkSteps
from tidegate.mcap.payload.values import NotDecodableError, Path
from tidegate.mcap.records import Schema

__all__ = [
    "SIZES",
    "TIMES",
    "Part",
    "RosMessage",
    "WalkProgram",
    "WalkStep",
    "compile_program",
    "message_of",
]

SIZES = {
    "bool": 1, "byte": 1, "char": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4,
    "uint32": 4, "int64": 8, "uint64": 8, "float32": 4, "float64": 8,
}  # fmt: skip
"""Bytes of the plain types; all but `string` that are not here cannot be read."""

TIMES = ("builtin_interfaces/msg/Time", "builtin_interfaces/msg/Duration")
"""Messages that become a number of nanoseconds: seconds and nanoseconds, 4 bytes each."""

MOST_STEPS = 20_000
"""Limit of steps per program. A real message has some hundred; a definition that unfolds to more is
meant to exhaust memory."""

MOST_BYTES = 2**31 - 1
"""Of one field of fixed size: no payload is larger, and sums stay far from the end of int64."""

MOST_TEXT = 1 << 20
"""Limit of a definition, in bytes. The largest known ones have some ten thousand, and parsing is
slow: without the limit, opening a file could take minutes."""

MESSAGES_KEPT = 64
"""Definitions that are parsed once per process: more than a robot has topics of different types,
and few enough that the largest texts take 64 MB."""

_SEPARATOR = "=" * 80
"""The line between definitions, as `rosbags` expects it; files have lines of other lengths."""


@dataclass(frozen=True)
class Part:
    """A field of a message."""

    name: str
    base: str | None
    """Plain type, a key of `SIZES` or `string`; None if the field is a message."""
    message: RosMessage | None
    """The message type; None if the field is plain."""
    count: int | None
    """None for one value, 0 for a sequence of any length, else the length of a fixed array."""


@dataclass(frozen=True)
class RosMessage:
    """The fields of a message, in the order in which they are serialized."""

    name: str
    parts: tuple[Part, ...]

    def find(self, path: Path) -> Part | None:
        """Return the field at a path that leads through single messages only; None if there is
        none."""
        at: RosMessage | None = self
        found: Part | None = None
        for name in path:
            parts = () if at is None else at.parts
            found = next((part for part in parts if part.name == name), None)
            if found is None:
                return None
            at = found.message if found.count is None else None
        return found


def message_of(schema: Schema) -> RosMessage:
    """Parse the definition in a schema record, with all messages that it uses.

    Args:
        schema: Of encoding `ros1msg`, `ros2msg` or `ros2idl`.

    Raises:
        NotDecodableError: the definition is too large, cannot be parsed, lacks a message it uses,
            contains itself, or uses a type that cannot be read.
    """
    if len(schema.data) > MOST_TEXT or (schema.encoding == "ros2idl" and b"<<" in schema.data):
        # The second: rosbags works out constants, and 1 << 10**12 would take all memory.
        raise NotDecodableError(f"the definition of {schema.name}: too large, or with shifts in it")
    return _parsed_definition(schema.name, schema.encoding, schema.data)


@lru_cache(MESSAGES_KEPT)
def _parsed_definition(schema_name: str, encoding: str, data: bytes) -> RosMessage:
    """Parse a definition. The same few come with every file, and are needed several times for each:
    to find the types of columns, and to read."""
    text = re.sub(r"^={3,}\s*$", _SEPARATOR, data.decode("utf-8", "replace"), flags=re.M)
    name = _full(schema_name)
    try:
        if encoding == "ros2idl":
            found: dict[str, Any] = {}
            for piece in re.sub(r"^\s*(IDL:|#).*$", "", text, flags=re.M).split(_SEPARATOR):
                found |= get_types_from_idl(piece)
        else:
            found = get_types_from_msg(text if text.endswith("\n") else text + "\n", name)
    except Exception as error:
        # rosbags raises whatever its parsers meet; whichever it is, it is about this definition
        said = (str(error).strip() or type(error).__name__).split("\n")[0]
        raise NotDecodableError(f"the definition of {schema_name}: {said[:200]}") from error
    ros1 = encoding == "ros1msg"
    store = get_typestore(Stores.ROS1_NOETIC if ros1 else Stores.LATEST)
    # A definition may leave out what everyone knows, such as a Header or a time.
    return _Builder({**store.fielddefs, **found}).build(name, ())


def _full(name: str) -> str:
    """Return a type name in the form `package/msg/Name`; ROS 1 leaves out `msg`."""
    parts = name.split("/")
    return f"{parts[0]}/msg/{parts[1]}" if len(parts) == 2 else name


@dataclass
class _Builder:
    """Builds messages from what `rosbags` has parsed, each once."""

    types: dict[str, Any]
    """Definitions by name, as `rosbags` has them: the constants, and the fields with their
    descriptions."""
    made: dict[str, RosMessage] = field(default_factory=dict)
    """Messages that are finished, by name."""

    def build(self, name: str, inside: tuple[str, ...]) -> RosMessage:
        """Return the message of a name.

        Args:
            name: Full name, `package/msg/Name`.
            inside: Names of the messages around it, to detect one that contains itself.
        """
        if name in self.made:
            return self.made[name]
        if name not in self.types:
            raise NotDecodableError(f"{name} is nowhere defined")
        if name in inside or len(inside) > 50:
            raise NotDecodableError(f"{name} contains itself")
        parts = [self._part(one, desc, (*inside, name)) for one, desc in self.types[name][1]]
        self.made[name] = RosMessage(name, tuple(parts))
        return self.made[name]

    def _part(self, name: str, desc: tuple[Any, Any], inside: tuple[str, ...]) -> Part:
        """Make one field from its description."""
        count: int | None = None
        kind, of = desc
        if kind in (Nodetype.ARRAY, Nodetype.SEQUENCE):
            inner, size = of
            count = int(size) if kind == Nodetype.ARRAY else 0
            kind, of = inner
        if kind == Nodetype.NAME:
            message = self.build(str(of), inside)
            # In ROS 1 such an element has no bytes, so the payload's length would not bound the
            # loop.
            if count is not None and not message.parts:
                raise NotDecodableError(f"{name} is an array of messages without fields")
            return Part(name, None, message, count)
        base = str(of[0])
        if base != "string" and base not in SIZES:
            raise NotDecodableError(f"{name} is of type {base}, which cannot be read")
        return Part(name, base, None, count)


class WalkStep(NamedTuple):
    """One step of a program; its fields are those of `WalkSteps`."""

    kind: int
    align: int = 1
    size: int = 1
    slot: int = -1
    repeat: int = 0
    jump: int = 0


@dataclass
class WalkProgram:
    """Steps for the kernel, and the field that each is about."""

    steps: list[WalkStep] = field(default_factory=list)
    """The steps, in the order in which the kernel takes them."""
    names: list[str] = field(default_factory=list)
    """The name of the field of each step, for error messages."""
    depth: int = 0
    """Levels of nested loops, plus one: the size of the kernel's stack."""

    @property
    def arrays(self) -> WalkSteps:
        """The steps as the kernel takes them."""
        table = np.array(self.steps, np.int64).reshape(-1, len(WalkStep._fields))
        return WalkSteps(*np.ascontiguousarray(table.T))


def compile_program(message: RosMessage, wanted: Sequence[Path], *, cdr: bool) -> WalkProgram:
    """Compile the program that finds some fields of a message.

    Args:
        message: The message type.
        wanted: Paths of plain fields, texts, arrays of plain values and times, none inside a
            sequence of messages. The slot of each is its index here.
        cdr: True for ROS 2, where values are aligned to their size; False for ROS 1.

    Raises:
        NotDecodableError: more than `MOST_STEPS` steps, or a field of more than `MOST_BYTES`.
    """
    program = WalkProgram()
    slots = {path: slot for slot, path in enumerate(wanted)}
    _compile(program, message, (), slots, cdr, 1)
    if cdr and not message.parts:
        # CDR has no empty messages: one byte stands for nothing.
        _step(program, WalkStep(FIXED), "")
    return program


def _compile(
    program: WalkProgram,
    message: RosMessage,
    at: Path,
    slots: dict[Path, int],
    cdr: bool,
    depth: int,
) -> None:
    """Append the steps of a message.

    Args:
        program: Extended.
        message: The message type.
        at: Path of the message; empty at the top.
        slots: Slot by path of the wanted fields.
        cdr: Whether values are aligned.
        depth: Levels of loops around it, plus one.
    """
    program.depth = max(program.depth, depth)
    for part in message.parts:
        path = (*at, part.name)
        name, slot = ".".join(path), slots.get(path, -1)
        if part.message is not None:
            if part.count is None and slot >= 0:  # a time: two numbers of 4 bytes
                _step(program, WalkStep(FIXED, 4 if cdr else 1, 8, slot), name)
            elif part.count is None:
                _compile(program, part.message, path, slots, cdr, depth)
                if cdr and not part.message.parts:
                    _step(program, WalkStep(FIXED), name)
            else:
                _loop(program, part, path, cdr, depth)
        elif part.base == "string" and part.count is None:
            _step(program, WalkStep(TEXT, slot=slot), name)
        elif part.base == "string":
            _loop(program, part, path, cdr, depth)
        else:
            size = SIZES[part.base or ""]
            if part.count == 0:
                _step(program, WalkStep(SEQUENCE, size if cdr else 1, size, slot), name)
            else:
                total = size * (part.count or 1)
                if total > MOST_BYTES:
                    raise NotDecodableError(f"{name} has {total} bytes")
                _step(program, WalkStep(FIXED, size if cdr else 1, total, slot), name)


def _loop(program: WalkProgram, part: Part, path: Path, cdr: bool, depth: int) -> None:
    """Append a loop over the elements of an array of strings or messages.

    Nothing inside a loop can be wanted, because it would have many values per message.
    """
    name = ".".join(path)
    start = len(program.steps)
    begin = WalkStep(LOOP, repeat=part.count or 0)
    _step(program, begin, name)
    program.depth = max(program.depth, depth + 1)
    if part.message is None:
        _step(program, WalkStep(TEXT), name)
    else:
        _compile(program, part.message, path, {}, cdr, depth + 1)
    _step(program, WalkStep(LOOP_END, jump=start + 1), name)
    program.steps[start] = begin._replace(jump=len(program.steps))


def _step(program: WalkProgram, step: WalkStep, name: str) -> None:
    """Append a step, or merge it with the one before.

    Raises:
        NotDecodableError: the program would have more than `MOST_STEPS` steps.
    """
    if program.steps and _mergeable(program.steps[-1], step):
        last = program.steps[-1]
        program.steps[-1] = last._replace(size=last.size + step.size)
        program.names[-1] = f"{program.names[-1].split(' to ')[0]} to {name}"
        return
    if len(program.steps) >= MOST_STEPS:
        raise NotDecodableError(f"a message of more than {MOST_STEPS} fields")
    program.steps.append(step)
    program.names.append(name)


def _mergeable(one: WalkStep, other: WalkStep) -> bool:
    """Tell whether two neighbouring steps can be skipped at once: fixed, not wanted, equally
    aligned.

    The size of the first must be a multiple of the alignment, or there would be a gap between them.
    """
    if not (one.kind == other.kind == FIXED and one.slot == other.slot == -1):
        return False
    together = one.align == other.align and one.size % one.align == 0
    return together and one.size + other.size <= MOST_BYTES
