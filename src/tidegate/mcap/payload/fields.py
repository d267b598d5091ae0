"""Which fields of the payloads become columns, and of which types.

    pose.position.x                     its type is that of the schema in the file
    pose.position.x double              its type is told
    pose.position.x double as east      so is its name; else it is pose_position_x
    /mode:data as mode                  of one topic; null in the messages of all others. `data as
                                        image` beside it is then read from the others only
    *                                   the whole message as JSON text, in the column `decoded`

Types are fixed before the first message is read. Where they are not told, they are those of the
first recording that has the field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from tidegate.errors import ConfigError
from tidegate.mcap.index import Channels
from tidegate.mcap.payload.codecs import codec_of
from tidegate.mcap.payload.values import NotDecodableError

__all__ = ["Field", "parse_fields", "resolve_fields"]

WHOLE = "*"
"""How a user writes the whole message."""
WHOLE_NAME = "decoded"
"""The column of the whole message, unless `as` gives another name."""

_TYPES = {
    "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "bigint": pa.int64(),
    "float": pa.float32(), "double": pa.float64(), "string": pa.string(), "binary": pa.binary(),
}  # fmt: skip
"""Types as Spark SQL names them. There are no unsigned ones, as in Spark."""

_PATTERN = re.compile(
    r"(?:(?P<topic>[^\s:]+):)?(?P<path>[^\s:]+?)(?:\s+(?!as\b)(?P<type>[\w<>]+))?(?:\s+as\s+(?P<name>\w+))?",
    re.IGNORECASE,
)
"""Maybe a topic, a path, then maybe a type, then maybe `as` and a name. The type may not be the
word `as` itself."""


@dataclass(frozen=True)
class Field:
    """A field of the payload that becomes a column."""

    path: tuple[str, ...]
    """Names from the message down to the field; empty for the whole message."""
    name: str
    """Name of the column."""
    type: pa.DataType | None = None
    """Type of the column; None until `resolve_fields` has found it."""
    topic: str | None = None
    """The topic whose messages it is read from; None for all that have it."""
    besides: frozenset[str] = frozenset()
    """Topics that have a column of their own for this path, and so are left out here."""

    @property
    def text(self) -> str:
        """The field as a user writes it: names joined by dots, or `*`, behind its topic."""
        path = ".".join(self.path) or WHOLE
        return path if self.topic is None else f"{self.topic}:{path}"

    def is_of(self, topic: str) -> bool:
        """Whether it is read from the messages of a topic."""
        return topic not in self.besides if self.topic is None else self.topic == topic


def parse_fields(wanted: str | Sequence[str] | None) -> tuple[Field, ...]:
    """Parse fields as a user writes them.

    Args:
        wanted: One text with commas between fields, or one text per field; None for no fields.

    Returns:
        The fields, in this order. `type` is None where the user gave none.

    Raises:
        ConfigError: a field is malformed, its type is unknown, two columns have the same name, or
            there is no field at all.

    Example:
        >>> [(f.text, f.name, str(f.type)) for f in parse_fields("stamp, v float as speed, *")]
        [('stamp', 'stamp', 'None'), ('v', 'speed', 'float'), ('*', 'decoded', 'string')]
        >>> parse_fields("header.stamp")[0].name, parse_fields("/mode:data as mode")[0].topic
        ('header_stamp', '/mode')
    """
    if wanted is None:
        return ()
    parts = wanted.split(",") if isinstance(wanted, str) else list(wanted)
    found = tuple(_parse_field(part.strip()) for part in parts if part.strip())
    if not found:
        raise ConfigError("decode", wanted, "must name fields, or be * for the whole message")
    names = [field.name for field in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError("decode", wanted, f"names the column {name} twice; use 'as'")
    own = [(field.path, field.topic) for field in found if field.topic is not None]
    return tuple(
        field if field.topic is not None
        else replace(field, besides=frozenset(topic for path, topic in own if path == field.path))
        for field in found
    )  # fmt: skip


def _parse_field(text: str) -> Field:
    """Parse one field, without the spaces around it."""
    match = _PATTERN.fullmatch(text)
    path = match["path"].split(".") if match else []
    if match is None or not all(path):
        raise ConfigError("decode", text, "must be a field: 'pose.x', 'pose.x double as x', or *")
    told = None if match["type"] is None else _parse_type(match["type"].lower())
    if path == [WHOLE]:
        if told not in (None, pa.string()):
            raise ConfigError("decode", text, "the whole message is JSON text: a string")
        return Field((), match["name"] or WHOLE_NAME, pa.string(), match["topic"])
    return Field(tuple(path), match["name"] or "_".join(path), told, match["topic"])


def _parse_type(name: str) -> pa.DataType:
    """Return the type of a name such as `double` or `array<double>`, in lower case."""
    inside = name.removeprefix("array<").removesuffix(">")
    if inside != name and inside in _TYPES and name == f"array<{inside}>":
        return pa.list_(_TYPES[inside])
    if name not in _TYPES:
        known = ", ".join(_TYPES)
        raise ConfigError("decode", name, f"must be one of {known}, or array<...> of these")
    return _TYPES[name]


def resolve_fields(
    fields: Sequence[Field], recordings: Iterable[Channels], topics: Sequence[str] | None = None
) -> tuple[Field, ...]:
    """Give every field a type: the one the user gave, or that of the first recording that has it.

    Recordings are opened one by one, and only while a type is missing.

    Args:
        fields: Fields as `parse_fields` returns them.
        recordings: Definitions of each recording; may be a generator that opens files on the way.
        topics: Consider only channels of these topics; None for all.

    Raises:
        ConfigError: no recording has a field, its schema does not tell the type, or the type
            differs between topics of a recording in a way that no column can hold.
    """
    found: dict[str, pa.DataType] = {}
    reasons: dict[str, None] = {}
    missing = {field.name: field for field in fields if field.type is None}
    for channels in recordings if missing else ():
        for name, field in list(missing.items()):
            here = _type_in(field, channels, topics, reasons)
            if here is None:
                continue
            found[name] = here
            if not pa.types.is_null(here):
                del missing[name]
        if not missing:
            break
    for name, field in missing.items():
        why = "no message there has this field"
        if name in found:
            why = "its schema does not say of which type it is"
        elif reasons:
            why += f" ({next(iter(reasons))})"
        raise ConfigError("decode", field.text, f"{why}; give one: '{field.text} double'")
    return tuple(replace(field, type=found.get(field.name, field.type)) for field in fields)


def _type_in(
    field: Field, channels: Channels, topics: Sequence[str] | None, reasons: dict[str, None]
) -> pa.DataType | None:
    """Return the type of a field over all channels of a recording.

    Args:
        field: The field.
        channels: Definitions of the recording.
        topics: Consider only these; None for all.
        reasons: Extended by why channels cannot be decoded, for the error message. Used as an
            ordered set.

    Returns:
        None if no channel has the field; null if only schemas without types may have it.
    """
    found: pa.DataType | None = None
    for channel in channels.by_id.values():
        if (topics is not None and channel.topic not in topics) or not field.is_of(channel.topic):
            continue
        try:
            here = codec_of(channel, channels.schemas.get(channel.schema_id)).type_of(field.path)
        except NotDecodableError as error:
            reasons[str(error)] = None  # its messages will be error rows that say so
            continue
        if here is not None:
            found = here if found is None else _wider(found, here, field)
    return found


def _wider(one: pa.DataType, other: pa.DataType, field: Field) -> pa.DataType:
    """Return a type that holds the values of both: int64 for integers, float64 for other numbers.

    Raises:
        ConfigError: the types differ and one of them is not a number.
    """
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    numbers = [pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in (one, other)]
    if not all(numbers):
        raise ConfigError(
            "decode", f"{field.text} as {field.name}",
            f"is {one} in one topic and {other} in another: say which topic is meant, as in "
            f"`/topic:{field.text} as {field.name}`",
        )  # fmt: skip
    if pa.types.is_integer(one) and pa.types.is_integer(other):
        return pa.int64()
    return pa.float64()
