"""Read the time in the header of a message without decoding the rest of it.

- ROS 2 (CDR) and ROS 1: the stamp of a `std_msgs/Header` that is the first field, or a first field
  that is a time itself: always at the same offset, so one numpy expression reads all messages.
- JSON: `header.stamp`, `stamp` or `timestamp` with seconds and nanoseconds: a regular expression
  over the whole column, and a parser for the messages it does not match.
- Protobuf: a `google.protobuf.Timestamp` named `timestamp` or `stamp`, at the top or in `header`: a
  kernel follows the field numbers through the wire format.

Clock policy: only the sender's stamp counts. A message without such a stamp, or with nanoseconds
outside [0, 10**9), has none: null, never a guess and never another of its times.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.numba import as_readonly, kernel
from tidegate.mcap.index import Channels
from tidegate.mcap.records import Channel, Schema
from tidegate.mcap.spans import PayloadSpans

__all__ = ["header_stamps"]

Ints = npt.NDArray[np.int64]

NONE = -(2**63)
"""Marks "no stamp" in int64 arrays; the smallest int64, which no real stamp has."""

_ROS_HEADER = re.compile(r"(?:std_msgs/(?:msg/)?)?Header\s+\w+")
_ROS_TIME = re.compile(r"(?:builtin_interfaces/(?:msg/)?Time|time)\s+\w+")
_IDL_FIRST = re.compile(r"struct\s+\w+\s*\{\s*(?:@[^;{}]*?\)\s*)*([\w:]+)\s+\w+\s*;")
"""The type of the first field of each struct in a ROS 2 IDL text, behind any annotations."""
_JSON_STAMP = (
    r'^\s*\{[^{}\[\]]*?(?:"header"\s*:\s*\{[^{}\[\]]*?)?"(?:stamp|timestamp)"\s*:\s*\{\s*'
    r'"secs?"\s*:\s*(?P<sec>-?[0-9]{1,10})\s*,\s*"(?:nsecs?|nanosec|nanos)"\s*:\s*(?P<nano>[0-9]{1,9})\s*[,}]'
)
"""Matches a stamp at the top of a JSON message or in its `header`, if nothing nested comes before
it and seconds come first. The digits are limited so that the cast to int64 cannot fail."""


def header_stamps(
    payloads: pa.Array | PayloadSpans, channel: np.ndarray, channels: Channels
) -> pa.Array:
    """Return the stamps of payloads.

    Args:
        payloads: Binary array without nulls, or where the payloads are.
        channel: The channel id of each payload.
        channels: Definitions; a payload of an unknown channel has no stamp.

    Returns:
        int64 array, ns since 1970; null where there is no stamp.
    """
    spans = payloads if isinstance(payloads, PayloadSpans) else PayloadSpans.of(payloads)
    out = np.full(len(spans.starts), NONE, np.int64)
    for number in np.unique(channel):
        known = channels.by_id.get(int(number))
        if known is None:
            continue
        rows = np.flatnonzero(channel == number)
        some = spans.select(rows)
        out[rows] = _stamps_of(some, known, channels.schemas.get(known.schema_id))
    return pa.array(out, mask=out == NONE)


def _stamps_of(spans: PayloadSpans, channel: Channel, schema: Schema | None) -> Ints:
    """Read the stamps of payloads of one channel; `NONE` where there is none."""
    none = np.full(len(spans.starts), NONE, np.int64)
    if channel.encoding == "json":
        return _json_stamps(spans.array())
    if schema is None:
        return none
    if channel.encoding == "protobuf":
        for path in _timestamp_paths(schema):
            found = np.empty(len(spans.starts), np.int64)
            starts, ends = as_readonly(spans.starts), as_readonly(spans.ends)
            protobuf_stamps(spans.data, starts, ends, np.array(path, np.int64), found)
            none = np.where(none == NONE, found, none)
        return none
    place = _ros_place(schema)
    if place is None or channel.encoding not in ("cdr", "ros1"):
        return none
    # CDR begins with 4 bytes that tell the byte order. A ROS 1 header begins with its sequence
    # number, 4 bytes, before the stamp; a ROS 2 header has none.
    before = 4 if channel.encoding == "cdr" else (4 if place == "header" else 0)
    return _fixed(spans, before, cdr=channel.encoding == "cdr")


def _ros_place(schema: Schema) -> str | None:
    """Return "header" or "time" if that is the first field of a ROS definition, else None.

    Constants (lines with `=`), comments and empty lines are skipped; `===` ends the main message.
    """
    text = schema.data.decode("utf-8", "replace")
    if schema.encoding == "ros2idl":
        # The wanted struct stands last: those it uses are defined before it.
        fields = _IDL_FIRST.findall(text)
        first = fields[-1] if fields else ""
        if first.endswith("std_msgs::msg::Header"):
            return "header"
        return "time" if first.endswith("builtin_interfaces::msg::Time") else None
    for line in text.splitlines():
        line = line.split("#", 1)[0].strip()
        if line.startswith("==="):
            return None
        if not line or "=" in line:
            continue
        if _ROS_HEADER.fullmatch(line):
            return "header"
        return "time" if _ROS_TIME.fullmatch(line) else None
    return None


def _fixed(spans: PayloadSpans, before: int, *, cdr: bool) -> Ints:
    """Read seconds and nanoseconds, 4 bytes each, at a fixed offset of every payload.

    Args:
        spans: The payloads.
        before: Bytes of a payload before its stamp.
        cdr: Whether the payload tells its byte order and seconds are signed (ROS 2). ROS 1 is
            little endian and unsigned.

    Returns:
        ns since 1970; `NONE` for payloads that are too short or have 10**9 nanoseconds or more.
    """
    data, starts, sizes = spans.data, spans.starts, spans.ends - spans.starts
    out = np.full(len(starts), NONE, np.int64)
    rows = np.flatnonzero(sizes >= before + 8)
    if len(rows) == 0:
        return out
    places = starts[rows, None] + before + np.arange(8)
    words = data[places]
    little = np.ascontiguousarray(words).view("<u4").astype(np.int64)
    if cdr:
        # The second byte of a CDR payload is odd for little endian.
        big = np.ascontiguousarray(words).view(">u4").astype(np.int64)
        little = np.where((data[starts[rows] + 1] & 1 == 1)[:, None], little, big)
    seconds, nanos = little[:, 0], little[:, 1]
    if cdr:
        seconds = np.where(seconds >= 2**31, seconds - 2**32, seconds)
    out[rows] = np.where(nanos < 10**9, seconds * 10**9 + nanos, NONE)
    return out


# -- JSON ---------------------------------------------------------------------------------------


def _json_stamps(payloads: pa.Array) -> Ints:
    """Read the stamps of JSON payloads: by the pattern, or else by the parser."""
    found = pc.extract_regex(payloads, _JSON_STAMP)
    out = np.full(len(payloads), NONE, np.int64)
    matched = np.asarray(found.is_valid())
    rows = np.flatnonzero(matched)
    if len(rows):
        some = found.take(pa.array(rows))
        seconds, nanos = (
            pc.struct_field(some, name).cast(pa.string()).cast(pa.int64()).to_numpy()
            for name in ("sec", "nano")
        )
        # More seconds would overflow int64 nanoseconds.
        fits = np.abs(seconds) < 9_223_372_036
        out[rows] = np.where(fits, seconds, 0) * 10**9 + nanos
        out[rows[~fits]] = NONE
    for row in np.flatnonzero(~matched).tolist():
        out[row] = _json_stamp(payloads[row].as_py())
    return out


def _json_stamp(payload: bytes) -> int:
    """Read the stamp of one JSON payload with the parser; `NONE` if there is none.

    This is the slow way, for messages that the pattern does not match: nested values or text before
    the stamp, or fields in another order.
    """
    if b"stamp" not in payload:
        return NONE
    try:
        message = json.loads(payload)
        inside = message.get("header", message)
        stamp: dict[str, Any] = inside.get("stamp", inside.get("timestamp"))
        seconds = next(stamp[name] for name in ("sec", "secs") if name in stamp)
        nanos = next(stamp[n] for n in ("nsec", "nsecs", "nanosec", "nanos") if n in stamp)
        ns = int(seconds) * 10**9 + int(nanos)
    except (ValueError, TypeError, AttributeError, StopIteration, RecursionError):
        return NONE
    return ns if NONE < ns < 2**63 and 0 <= int(nanos) < 10**9 else NONE


# -- protobuf -----------------------------------------------------------------------------------


def _timestamp_paths(schema: Schema) -> list[tuple[int, ...]]:
    """Find the field numbers that lead to a Timestamp, from the descriptors in a protobuf schema.

    Returns:
        Paths of one or two field numbers, in the order in which to try them; empty if there is none
        or the schema cannot be parsed.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError

    try:
        files = FileDescriptorSet.FromString(schema.data)
    except DecodeError:
        return []
    messages = {
        f"{file.package}.{message.name}".lstrip("."): message
        for file in files.file
        for message in file.message_type
    }
    top = messages.get(schema.name)
    if top is None:
        return []
    paths: list[tuple[int, ...]] = []
    for field in top.field:
        if field.name in ("timestamp", "stamp") and field.type_name.endswith("protobuf.Timestamp"):
            paths.append((field.number,))
        inside = messages.get(field.type_name.lstrip("."))
        if field.name == "header" and inside is not None:
            paths += [
                (field.number, each.number)
                for each in inside.field
                if each.name in ("timestamp", "stamp")
                and each.type_name.endswith("protobuf.Timestamp")
            ]
    return paths


@kernel
def protobuf_stamps(
    data: npt.NDArray[np.uint8], starts: Ints, ends: Ints, path: Ints, out: Ints
) -> None:
    """Follow `path` into every payload and read the Timestamp there (seconds = 1, nanos = 2).

    Each level searches the fields of its span for the wanted number and narrows the span to that
    field; the last level is the Timestamp itself. If a field stands twice, the last one counts, as
    protobuf says. Groups (wire types 3 and 4) are not supported: such a payload has no stamp.

    Args:
        data: Bytes of all payloads.
        starts: Where each payload starts.
        ends: Where it ends.
        path: Field numbers from the message to the Timestamp.
        out: Filled with ns since 1970, or -(2**63) where there is no valid stamp. Times before 1970
            count as none.
    """
    for row in range(len(starts)):
        out[row] = -(2**63)
        start = starts[row]
        end = ends[row]
        good = True
        for level in range(len(path) + 1):
            seconds = 0
            nanos = 0
            inner_start = -1
            inner_end = -1
            pos = start
            while good and pos < end:
                # The tag: a varint of at most 5 bytes with the field number and the wire type.
                tag: Any = 0
                shift = 0
                more: Any = True
                while more:
                    if pos >= end or shift > 28:
                        good = False
                        break
                    byte = np.int64(data[pos])
                    tag |= (byte & 127) << shift
                    shift += 7
                    pos += 1
                    more = byte >= 128
                if not good:
                    break
                wire = tag & 7
                number = tag >> 3
                if wire == 0 or wire == 2:
                    # The value of a number, or the length of what follows: a varint of at most 10
                    # bytes. Bits beyond 56 mean a negative or huge number: never a valid second,
                    # and never a valid length.
                    value: Any = 0
                    shift = 0
                    more = True
                    while more:
                        if pos >= end or shift > 63:
                            good = False
                            break
                        byte = np.int64(data[pos])
                        if shift < 56:
                            value |= (byte & 127) << shift
                        elif byte & 127 and wire == 2:
                            good = False
                        elif byte & 127:
                            value = -1
                        shift += 7
                        pos += 1
                        more = byte >= 128
                    if not good:
                        break
                    if wire == 0:
                        if level == len(path):
                            if number == 1:
                                seconds = value
                            elif number == 2:
                                nanos = value
                    else:
                        if value > end - pos:
                            good = False
                            break
                        # Remember the span but go on: a later field of the same number replaces
                        # this one.
                        if level < len(path) and number == path[level]:
                            inner_start = pos
                            inner_end = pos + value
                        pos += value
                elif wire == 1:
                    pos += 8
                elif wire == 5:
                    pos += 4
                else:
                    good = False
            if not good or pos > end:
                good = False
                break
            if level < len(path):
                if inner_start < 0:
                    good = False
                    break
                start = inner_start
                end = inner_end
            elif seconds < 0 or seconds > 9_223_372_035 or nanos < 0 or nanos > 999_999_999:
                good = False
        if good:
            out[row] = seconds * 1_000_000_000 + nanos
