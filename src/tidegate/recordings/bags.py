"""ROS 1 bags (`.bag`) and ROS 2 bags (a folder with `metadata.yaml`, SQLite or MCAP inside), read
by `rosbags` into the columns of the `mcap` source.

`offset` is the number of a message in its bag: there is no other order that all bags keep. What
cannot be read or decoded is a row whose `error` says why.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.outcomes import Int64s
from tidegate.errors import ConfigError
from tidegate.mcap import Selection
from tidegate.mcap.index import Channels
from tidegate.mcap.payload import PayloadDecoder
from tidegate.mcap.reader import take_times
from tidegate.mcap.records import Channel, Schema
from tidegate.mcap.stamps import header_stamps
from tidegate.recordings.bag_limits import limited_reader
from tidegate.recordings.listing import below, paths_named

__all__ = [
    "BagIndex",
    "bag_definitions",
    "bag_size",
    "bags_of",
    "is_whole",
    "read_bag",
    "read_bag_index",
]

MAGIC = b"#ROSBAG V2.0"
"""The first bytes of a ROS 1 bag."""

ROWS = 8_192
"""Messages per Arrow batch; bounds what is in memory while a bag is read."""

BATCH_BYTES = 64 << 20
"""Bytes of payload per Arrow batch, about: 8,192 images are half a gigabyte."""


def bags_of(path: str) -> list[str]:
    """Return the bags that a path names, sorted: itself, those below a folder, or those a pattern
    matches."""
    bags: set[str] = set()
    for place in paths_named(path):
        if place.is_file() or (place / "metadata.yaml").exists():
            bags.add(str(place))
            continue
        bags |= {str(found.parent) for found in below(place, "metadata.yaml")}
        bags |= {str(found) for found in below(place, "*.bag") if found.is_file()}
    return sorted(bags)


def bag_size(path: str) -> tuple[int, int]:
    """Return the size of a bag in bytes, and when it last changed, in ns since 1970."""
    files = [Path(path)] if Path(path).is_file() else list(Path(path).iterdir())
    found = [os.stat(file) for file in files]
    return sum(each.st_size for each in found), max(each.st_mtime_ns for each in found)


def is_whole(path: str) -> bool:
    """Whether a bag is closed and all of it is here, as far as it says so itself: its index can be
    read, and no database in it is shorter than its own head tells."""
    try:
        with _reader(path):
            pass
        return all(_whole_database(file) for file in Path(path).glob("*.db3"))
    except ConfigError:
        raise
    except Exception:  # whatever rosbags meets: it is not whole, or never will be
        return False


def _whole_database(file: Path) -> bool:
    """Return whether an SQLite file has all pages its head counts; a page size of 1 stands for
    65,536.
    """
    with open(file, "rb") as opened:
        head = opened.read(32)
    page = int.from_bytes(head[16:18], "big")
    pages = int.from_bytes(head[28:32], "big")
    return file.stat().st_size >= (65_536 if page == 1 else page) * pages


def bag_definitions(path: str) -> Channels:
    """Return the channels of a bag; none if it cannot be opened (reading it will say why)."""
    try:
        with _reader(path) as bag:
            return _channels(bag.connections)
    except ConfigError:
        raise
    except Exception:  # reading its messages will tell why
        return Channels()


@dataclass(frozen=True)
class BagIndex:
    """The messages of a bag as its index has them, in the order in which `read_bag` yields them.

    Args:
        time_ns: Their log times, ascending.
        channel: Which of `names` each is of.
        names: Topic, type and encoding of every channel.
    """

    time_ns: Int64s
    channel: Int64s
    names: tuple[tuple[str, str, str], ...]

    def rows(self, path: str, first: int, last: int, wanted: pa.Schema) -> pa.RecordBatch:
        """Return messages by their numbers, as rows with these columns; what the index does not
        know is null."""
        count = last - first
        place = pa.array(self.channel[first:last])
        told = [pa.array(column, pa.string()) for column in zip(*self.names, strict=True)]
        topic, schema, encoding = (column.take(place) for column in told)
        known = {
            "file": pa.repeat(path, count), "offset": pa.array(np.arange(first, last)),
            "position": pa.array(np.zeros(count, np.int64)), "topic": topic,
            "log_time_ns": pa.array(self.time_ns[first:last]), "schema": schema,
            "encoding": encoding,
        }  # fmt: skip
        columns = [known.get(each.name, pa.nulls(count, each.type)) for each in wanted]
        return pa.RecordBatch.from_arrays(columns, schema=wanted)


def read_bag_index(path: str, selection: Selection) -> BagIndex | None:
    """Return the log times and topics of all messages of a bag that are selected, without reading a
    message. None where that cannot be done: a bag of several files, in MCAP, or one that cannot be
    opened (reading it will say why).

    Raises ConfigError if the package rosbags is missing.
    """
    try:
        with _reader(path) as bag:
            wanted = _chosen_connections(bag, selection)
            if not wanted:
                return None
            number = {(c.topic, c.msgtype): place for place, c in enumerate(wanted)}
            if hasattr(bag, "indexes"):  # ROS 1
                found = (
                    (entry.time, place)
                    for place, one in enumerate(wanted)
                    for entry in bag.indexes[one.id]
                )
                pairs = sorted(found, key=lambda pair: pair[0])  # ties: by connection
            else:
                (storage,) = bag.storage.storages  # ValueError: several files
                query = "SELECT timestamp, topic_id FROM messages JOIN topics "
                query += "ON messages.topic_id=topics.id ORDER BY timestamp"
                of = {c.id: number.get((c.topic, c.msgtype), -1) for c in storage.connections}
                pairs = [(t, of.get(topic, -1)) for t, topic in storage.dbconn.execute(query)]
            channels = _channels(wanted)
            names = tuple(
                (c.topic, channels.schemas[c.schema_id].name, c.encoding)
                for c in channels.by_id.values()
            )
    except ConfigError:
        raise
    except Exception:  # another kind of bag, or a broken one
        return None
    both = np.array(pairs, np.int64).reshape(-1, 2)
    start, end = selection.log_span
    keep = both[:, 1] >= 0
    keep &= both[:, 0] >= (start if start is not None else both[:, 0])
    keep &= both[:, 0] < (end if end is not None else both[:, 0] + 1)
    return BagIndex(both[keep, 0], both[keep, 1], names)


def _chosen_connections(bag: Any, selection: Selection) -> list[Any]:
    """Return the connections of an open bag whose topics are selected."""
    topics = selection.topics
    return [one for one in bag.connections if topics is None or one.topic in topics]


def read_bag(
    path: str,
    selection: Selection,
    first: int = 0,
    span: tuple[int | None, int | None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a bag as Arrow batches, in order of their log time.

    What cannot be read is a row whose column `error` says why. Raises ConfigError if the package
    rosbags is missing.

    Args:
        path: The bag.
        selection: Which messages.
        first: The number of the first of them in the bag; with a span.
        span: The log times to read, from and before; None: those of the selection.
    """
    count = first
    try:
        with _reader(path) as bag:
            channels = _channels(bag.connections)
            decoder = PayloadDecoder(selection.decode, channels)
            wanted = _chosen_connections(bag, selection)
            if not wanted:
                return
            start, stop = selection.log_span if span is None else span
            found = bag.messages(wanted, start=start, stop=stop)
            failure: Exception | None = None
            while failure is None:
                some, failure = _some_messages(found)
                if some:
                    yield _messages_as_rows(path, some, count, decoder, selection)
                    count += len(some)
                elif failure is None:
                    return
            raise failure
    except (GeneratorExit, ConfigError):
        raise
    except Exception as error:
        # rosbags raises whatever its parsers meet; whichever it is, it is about this bag
        yield _fault(path, count, _bag_fault(path, error), selection)


def _bag_fault(path: str, error: Exception) -> str:
    """Return why a bag cannot be read on: from its file where that tells, else as rosbags says."""
    if Path(path).is_file():
        with open(path, "rb") as opened:
            head = opened.read(len(MAGIC))
        if not head:
            return "the file is empty"
        if head != MAGIC:
            return "the file does not start as a bag"
    words = str(error).strip().split("\n")[0] or type(error).__name__
    if "index" in words.lower():
        words = "its index is damaged: it was cut off or not closed (rosbag reindex mends it)"
    return f"the bag cannot be read on: {words}"


def _some_messages(found: Iterator[Any]) -> tuple[list[Any], Exception | None]:
    """The next messages, (connection, log time, payload) each: few of them where they are large;
    and what keeps those behind them from being read."""
    some: list[Any] = []
    size = 0
    try:
        for message in islice(found, ROWS):
            some.append(message)
            size += len(message[2])
            if size >= BATCH_BYTES:
                break
    except Exception as error:  # whatever rosbags meets; those before it are good
        return some, error
    return some, None


def _reader(path: str) -> Any:
    """Return a context manager that opens a bag of either kind, with limits (see `bag_limits`).
    Entering it raises ConfigError without `rosbags`.
    """

    class _Lazy:
        """Opening a broken bag fails too: it must fail where reading it is guarded."""

        def __enter__(self) -> Any:
            self.bag = limited_reader(path)
            self.bag.open()
            return self.bag

        def __exit__(self, *_: object) -> None:
            self.bag.close()

    return _Lazy()


def _channels(connections: Sequence[Any]) -> Channels:
    """Connections as the channels of an MCAP file, so that header stamps are found the same way."""
    made = Channels()
    for number, one in enumerate(connections, 1):
        ros1 = hasattr(one.ext, "latching")
        kind = one.msgdef.format.name
        data, encoding = one.msgdef.data, "ros1msg" if ros1 else "ros2msg"
        if kind == "IDL":
            encoding = "ros2idl"
        elif kind == "NONE":
            data = _known_definition(one.msgtype)
        made.schemas[number] = Schema(number, one.msgtype, encoding, data.encode())
        serial = "ros1" if ros1 else one.ext.serialization_format
        made.by_id[number] = Channel(number, number, one.topic, serial)
    return made


def _known_definition(msgtype: str) -> str:
    """Older SQLite bags carry no definitions; those of common messages are known."""
    from rosbags.typesys import Stores, get_typestore

    try:
        return str(get_typestore(Stores.LATEST).generate_msgdef(msgtype, ros_version=2)[0])
    except Exception:  # a type of the user's own: it has no definition here
        return ""


def _messages_as_rows(
    path: str, some: list[Any], first: int, decoder: PayloadDecoder, selection: Selection
) -> pa.RecordBatch:
    """Return messages as rows with the columns of the `mcap` source.

    Args:
        path: The bag, for the column `file`.
        some: (connection, log time in ns, payload) triples.
        first: The number of the first of them in its bag.
        decoder: Decodes the fields that are selected; knows the channels.
        selection: Which columns are wanted.
    """
    channels = decoder.channels
    places = {(c.topic, c.schema_id): c for c in channels.by_id.values()}
    by_topic = {(topic, channels.schemas[n].name): c for (topic, n), c in places.items()}
    own = [by_topic[one.topic, one.msgtype] for one, _, _ in some]
    data = pa.array([bytes(raw) for _, _, raw in some], pa.binary())
    number = np.arange(first, first + len(some), dtype=np.int64)
    logged = pa.array([time for _, time, _ in some], pa.int64())
    columns: dict[str, pa.Array] = {
        "file": pa.array([path] * len(some)), "offset": pa.array(number),
        "position": pa.array(np.zeros(len(some), np.int64)),
        "topic": pa.array([c.topic for c in own]), "log_time_ns": logged,
        "publish_time_ns": pa.nulls(len(some), pa.int64()),
        "sequence": pa.nulls(len(some), pa.int64()),
        "schema": pa.array([channels.schemas[c.schema_id].name for c in own]),
        "encoding": pa.array([c.encoding for c in own]), "data": data,
        "error": pa.nulls(len(some), pa.string()),
    }  # fmt: skip
    ids = np.array([c.id for c in own])
    if selection.by_header:
        stamps = header_stamps(data, ids, channels)
        if selection.clock == "header_or_log":
            stamps = pc.coalesce(stamps, logged)
        columns["header_stamp_ns"] = stamps
    if selection.decode:
        decoder.add_to(columns, ids, data)
        take_times(columns)
    wanted = selection.schema
    return pa.RecordBatch.from_arrays([columns[name] for name in wanted.names], schema=wanted)


def _fault(path: str, at: int, reason: str, selection: Selection) -> pa.RecordBatch:
    """Return the one row that says why a bag cannot be read on; all its times are null."""
    wanted = selection.schema
    row = dict.fromkeys(wanted.names)
    row |= {"file": path, "offset": at, "position": 0, "error": reason}
    return pa.RecordBatch.from_pylist([row], schema=wanted)
