"""Write a pipeline from a recording (MCAP, bag) to a training dataset: `init --for training`.

The recording itself says most of it. Its schemas say which topics are cameras (bytes beside a
format or an encoding), joint states (a list `position`) and IMUs, and which fields of all others
are floats: poses, velocities, forces. The stamps of its first messages say how often each topic
speaks, how far out of order messages arrive, and so which tolerances are sensible. What only people
know, above all the task, stands in the file with a comment.

    topics        those with images or floats; others are not read
    action        topics whose name speaks of commands; without one, the next state
    reference     the slowest camera; without one, the slowest topic of numbers that is no command
    method        commands hold until the next one (`latest`), images, angles and quaternions are
                  those of the nearest message, other numbers lie between two (`linear`)
    tolerance     two and a half periods of the topic: one missing message is bridged, two are not
    gap           one and a half periods of the reference: frames of an episode are neighbours
    lateTolerance twice the largest disorder seen, at least 100 ms
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import ConfigError
from tidegate.mcap import Clock, McapFile, Selection, schema
from tidegate.mcap.index import Channels
from tidegate.mcap.payload import parse_fields, resolve_fields
from tidegate.mcap.payload.codecs import Codec, codec_of
from tidegate.mcap.payload.values import NotDecodableError
from tidegate.pipeline import PipelineDefinition, plan
from tidegate.profile.spans import setting
from tidegate.profile.time_columns import clocks_agree
from tidegate.profile.yaml_text import quoted
from tidegate.recordings.bags import bag_definitions, bags_of, read_bag

__all__ = ["training_pipeline"]

FILES_READ = 100
"""Files of a folder whose topics are looked at: enough for a file per topic."""
MESSAGES_READ = 100_000
"""Messages of a file that are looked at for rates and disorder. A few minutes of a robot; more
would not change a period, and reading many GB would take as long as making the dataset."""
TOPICS_NAMED = 5
"""Topics that an error or a comment names: a line of text; `tidegate inspect` lists all."""
PERIODS_TOLERATED = 2.5
"""Tolerance of a topic in its own periods."""
LEAST_TOLERANCE_NS = 20_000_000
"""No tolerance is below this: jitter of a computer that does other work as well."""
LEAST_LATE_NS = 100_000_000
"""Late tolerance where hardly any disorder was seen: the next minutes may be worse."""

MOST_NUMBERS = 64
"""Columns of numbers per topic. A topic with more logs everything, not the state of a robot."""
MOST_FIELDS = 1000
"""Fields of a schema that are looked at: one that contains itself has no end."""

_COMMANDS = frozenset(
    ("action", "actions", "cmd", "cmds", "command", "commands", "desired", "goal", "setpoint",
     "setpoints", "target", "teleop")
)  # fmt: skip
"""Words in the name of a topic that carries commands."""

_ANGLES = frozenset(("bearing", "course", "heading", "pitch", "roll", "theta", "yaw"))
"""Names of fields that jump by a turn, where what lies between two values is neither."""

_VECTORS = (
    ("position", "position", "q"),
    ("linear_acceleration.x", "linear_acceleration.x", "ax"),
    ("linear_acceleration.x", "linear_acceleration.y", "ay"),
    ("linear_acceleration.x", "linear_acceleration.z", "az"),
    ("angular_velocity.x", "angular_velocity.x", "wx"),
    ("angular_velocity.x", "angular_velocity.y", "wy"),
    ("angular_velocity.x", "angular_velocity.z", "wz"),
)
"""Fields of joint states and IMUs: the one that must be there, the field, its column. Of these
topics nothing else is taken: velocities and efforts are often empty, orientations unknown."""


@dataclass
class _Topic:
    """What is known of a topic."""

    name: str
    codec: Codec
    image: bool = False
    raw: bool = False
    """Whether its images are raw, so that size and encoding are needed too."""
    columns: list[str] = field(default_factory=list)
    """Columns of numbers."""
    turns: bool = False
    """Whether some of them are angles or a quaternion: numbers between two of them are neither."""
    period_ns: int = 0

    @property
    def commands(self) -> bool:
        """Whether its name speaks of commands."""
        return not _COMMANDS.isdisjoint(re.split(r"[^a-z]+", self.name.lower()))

    @property
    def method(self) -> str:
        """The align method that suits its values."""
        if self.commands:
            return "latest"
        return "nearest" if self.image or self.turns else "linear"

    def type_of(self, path: str) -> pa.DataType:
        """Return the type of a field; null if there is none."""
        kind = self.codec.type_of(tuple(path.split(".")))
        return pa.null() if kind is None else kind


def training_pipeline(
    path: str | Path, *, out: str = "dataset", file: str = "pipeline.yaml"
) -> str:
    """The text of a pipeline file that makes a LeRobot dataset of a recording.

    Args:
        path: An MCAP file, a bag, or a folder of such; the first one is looked at, and of the next
            ones those that have further topics.
        out: The folder of the dataset.
        file: The file it will be written to, for the command in its first line.

    Raises:
        ConfigError: There is no recording, or none of its topics can become a feature.
    """
    kind, definitions, recordings = _recording(Path(path))
    topics, decode = _topics(definitions)
    clock, late_ns = _measure(recordings, topics)
    usable = [topic for topic in topics if topic.period_ns]
    if not any(topic.columns for topic in usable):
        expected = "has no topic with numbers in fields that its schema names"
        there = _topic_names(definitions)
        expected += f"; its topics: {_some(there)}" if there else ""
        raise ConfigError("path", str(path), expected)
    columns = _columns(definitions, clock, decode, [topic.name for topic in usable])
    cameras = [topic for topic in usable if topic.image]
    states = [topic for topic in usable if not topic.commands]
    reference = max(cameras or states or usable, key=lambda topic: topic.period_ns)
    others = [topic for topic in usable if topic is not reference]
    if not others:
        raise ConfigError("path", str(path), "has one usable topic only: nothing to align")
    source = (kind, Path(path).absolute())
    names = {topic.name for topic in usable}
    unread = [name for name in _topic_names(definitions) if name not in names]
    run = f"# Written by `tidegate init --for training`. Run it: tidegate dataset {file}\n"
    text = run + _pipeline_text(source, out, usable, reference, (clock, late_ns, decode), unread)
    made = PipelineDefinition.from_yaml(text)
    plan(made, {"robot": columns})  # what is written must run
    return text


def _topic_names(definitions: list[Channels]) -> list[str]:
    """The names of all topics, sorted."""
    return sorted({c.topic for channels in definitions for c in channels.by_id.values()})


def _some(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - TOPICS_NAMED} more" if len(names) > TOPICS_NAMED else ""
    return ", ".join(names[:TOPICS_NAMED]) + more


def _recording(path: Path) -> tuple[str, list[Channels], list[Iterator[pa.RecordBatch]]]:
    """The format of a recording, the channels of its files, and the messages of those files that
    have a topic which the ones before have not.

    Raises:
        ConfigError: There is neither an MCAP file nor a bag.
    """
    files = sorted(path.rglob("*.mcap")) if path.is_dir() else [path]
    chosen = Selection(clock="header")
    definitions: list[Channels] = []
    messages: list[Iterator[pa.RecordBatch]] = []
    known: set[str] = set()

    def is_new(found: list[Channels]) -> bool:
        topics = {c.topic for channels in found for c in channels.by_id.values()} - known
        known.update(topics)
        return bool(topics)

    if files and files[0].suffix == ".mcap" and files[0].exists():
        for file in files[:FILES_READ]:
            opened = McapFile(file)
            found = list(opened.definitions())
            if is_new(found):
                definitions += found
                messages.append(opened.batches(chosen))
        return "mcap", definitions, messages
    bags = bags_of(str(path)) if path.is_dir() or path.suffix == ".bag" else []
    if not bags or not path.exists():
        raise ConfigError("path", str(path), "must be an MCAP file, a bag, or a folder of them")
    for bag in bags[:FILES_READ]:
        if is_new(found := [bag_definitions(bag)]):
            definitions += found
            messages.append(read_bag(bag, chosen))
    return "rosbag", definitions, messages


def _topics(definitions: list[Channels]) -> tuple[list[_Topic], list[str]]:
    """The topics that can become features, and the fields to decode.

    A field is decoded in every topic that has it; one that has another type in a topic that was
    chosen before, as `data` has in images, is decoded in its own topic, to a column of its own:
    cameras come first, then joints and IMUs.
    """
    decode: dict[str, str] = {}  # by column
    chosen: list[_Topic] = []
    there = _decodable(definitions)
    for topic in there:
        if pa.types.is_binary(topic.type_of("data")):
            topic.raw = pa.types.is_string(topic.type_of("encoding"))
            topic.image = topic.raw or pa.types.is_string(topic.type_of("format"))
        if topic.image:
            decode["image"] = "data as image"
            chosen.append(topic)
        if topic.raw:
            decode |= {"height": "height", "width": "width", "step": "step"}
            decode["pixels"] = "encoding as pixels"
    for numbers in (_known_numbers, _other_numbers):
        for topic in there:
            found = [] if topic.image or topic.columns else numbers(topic)
            alone = any(_clash(path, topic, other) for path, _ in found for other in chosen)
            for path, plain in found:
                column = f"{_column_part(topic.name)}_{plain}" if alone else plain
                named = "" if column == path else f" as {column}"
                of = f"{topic.name}:" if alone else ""
                decode[column] = f"{of}{path} {_TYPE_TEXT[topic.type_of(path)]}{named}"
                topic.columns.append(column)
            if found:
                chosen.append(topic)
    return chosen, list(decode.values())


def _decodable(definitions: list[Channels]) -> list[_Topic]:
    """The topics whose payloads can be decoded and whose names can stand in a path."""
    found: dict[str, _Topic] = {}
    for channels in definitions:
        for channel in channels.by_id.values():
            name = channel.topic
            if name in found or any(sign in name for sign in ".,:"):  # signs between names
                continue
            with suppress(NotDecodableError):
                found[name] = _Topic(
                    name, codec_of(channel, channels.schemas.get(channel.schema_id))
                )
    return list(found.values())


def _column_part(topic: str) -> str:
    """The name of a topic as a part of the name of a column."""
    return "_".join("".join(c if c.isalnum() else " " for c in topic).split())


_TYPE_TEXT = {
    pa.float32(): "double", pa.float64(): "double",
    pa.list_(pa.float32()): "array<double>", pa.list_(pa.float64()): "array<double>",
}  # fmt: skip
"""Types of fields of numbers, with the type of their column as `decode` writes it."""


_OWN = frozenset(schema("header").names)
"""Columns that every recording has, `data` among them."""


def _known_numbers(topic: _Topic) -> list[tuple[str, str]]:
    """Paths and columns of a joint state or an IMU."""
    return [
        (path, column) for needed, path, column in _VECTORS if topic.type_of(needed) in _TYPE_TEXT
    ]


def _other_numbers(topic: _Topic) -> list[tuple[str, str]]:
    """Paths and columns of all floats and lists of floats of a message, covariances left out."""
    found: list[tuple[str, str]] = []
    waiting: list[tuple[str, ...]] = [()]
    for _ in range(MOST_FIELDS):
        if not waiting:
            break
        path = waiting.pop()
        if path and topic.type_of(".".join(path)) in _TYPE_TEXT:
            column = "_".join(path)
            found.append((".".join(path), f"{column}_value" if column in _OWN else column))
        inside = topic.codec.names_in(path)
        topic.turns |= set(inside) == set("xyzw") or not _ANGLES.isdisjoint(inside)
        wanted = [name for name in inside if name.isidentifier() and "covariance" not in name]
        waiting += [(*path, name) for name in reversed(wanted)]
    columns = [column for _, column in found]
    return found if len(set(columns)) == len(columns) <= MOST_NUMBERS else []


def _clash(path: str, topic: _Topic, other: _Topic) -> bool:
    """Whether a field of a topic is in another one, of a type that its column cannot hold."""
    there = other.type_of(path)
    if pa.types.is_null(there):
        return False
    return _TYPE_TEXT.get(there) != _TYPE_TEXT[topic.type_of(path)]


def _first_messages(
    recordings: list[Iterator[pa.RecordBatch]],
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The first messages of every recording, each batch with the number of its recording."""
    for number, batches in enumerate(recordings):
        count = 0
        for batch in batches:
            yield number, batch
            count += batch.num_rows
            if count >= MESSAGES_READ:
                break


def _measure(recordings: list[Iterator[pa.RecordBatch]], topics: list[_Topic]) -> tuple[Clock, int]:
    """Fill in the periods; return the clock to use and the late tolerance in ns."""
    found = list(_first_messages(recordings))
    clock = _usable_clock([batch for _, batch in found], {topic.name for topic in topics})
    seen: dict[str, list[np.ndarray]] = {}
    behind, newest, last = 0, None, -1
    for number, batch in found:
        if number != last:  # a run has a watermark per file, too
            newest, last = None, number
        stamps = batch.column("log_time_ns" if clock == "log" else "header_stamp_ns")
        if clock == "header_or_log":
            stamps = pc.coalesce(stamps, batch.column("log_time_ns"))
        good = np.asarray(stamps.is_valid().to_numpy(zero_copy_only=False))
        times = np.asarray(stamps.fill_null(0).to_numpy(), np.int64)
        names = np.asarray(batch.column("topic").fill_null("").to_pylist(), object)
        for name in set(names.tolist()):
            seen.setdefault(name, []).append(times[good & (names == name)])
        if good.any():
            first = newest if newest is not None else times[good][0]
            running = np.maximum(np.maximum.accumulate(times[good]), first)
            behind = max(behind, int((running - times[good]).max()))
            newest = running[-1]
    for topic in topics:
        times = np.sort(np.concatenate(seen.get(topic.name, [np.empty(0, np.int64)])))
        if len(times) > 1:
            topic.period_ns = int(np.median(np.diff(times)))
    return clock, max(LEAST_LATE_NS, 2 * behind)


def _usable_clock(batches: list[pa.RecordBatch], topics: set[str]) -> Clock:
    """The clock that every message of some topics has: that of headers; where some have no header,
    the recorder's for those, if both clocks agree, else for all."""
    wanted = pa.array(sorted(topics), pa.string())
    parts = [
        batch.filter(pc.is_in(batch.column("topic"), wanted)).select(
            ["header_stamp_ns", "log_time_ns"]
        )
        for batch in batches
    ]
    if not parts:
        return "header"
    messages = pa.Table.from_batches(parts)
    stamps = messages["header_stamp_ns"]
    if stamps.null_count * 100 <= len(stamps):
        return "header"
    return "header_or_log" if clocks_agree(stamps, messages["log_time_ns"]) else "log"


def _columns(
    definitions: list[Channels], clock: str, decode: list[str], topics: list[str]
) -> pa.Schema:
    """The columns that the source will have."""
    chosen: Any = clock
    return schema(chosen, resolve_fields(parse_fields(decode), definitions, topics))


def _pipeline_text(
    source: tuple[str, Path],
    out: str,
    topics: list[_Topic],
    reference: _Topic,
    measured: tuple[str, int, list[str]],
    unread: list[str],
) -> str:
    """The file itself, without its first line.

    Args:
        source: The format and the path of the recording.
        out: The folder of the dataset.
        topics: What can be used.
        reference: The topic that gives the rows.
        measured: The clock, the late tolerance in ns, and the fields to decode.
        unread: Topics that are left out.
    """
    clock, late_ns, decode = measured
    time = "log_time_ns" if clock == "log" else "header_stamp_ns"
    q = quoted
    lines = [
        "name: training",
        "streams:",
        "  robot:",
        *([f"    # not read: {_some(unread).encode('unicode_escape').decode()}"] if unread else []),
        "    source:",
        f"      format: {source[0]}",
        f"      path: {q(str(source[1]))}",
        "      options:",
        f"        clock: {clock}",
        f"        topics: {q(', '.join(topic.name for topic in topics))}",
        f"        decode: {q(', '.join(decode))}",
        "    topic: topic",
        f"    eventtime: {{column: {time}, type: unixtimestamp_ns}}",
        "options:",
        "  mode: batch",
        f"  eventtime: {{enabled: true, lateTolerance: {_whole_ms(late_ns)}}}",
        "stages:",
        f"  # a row per message of {reference.name}, about every {_whole_ms(reference.period_ns)}",
        "  - align:",
        f"      reference: {q(reference.name)}",
        "      missing: drop",
        "      topics:",
    ]
    state: list[str] = []
    action: list[str] = []
    images = []
    for topic in topics:
        numbers = [f"{topic.name}.{column}" for column in topic.columns]
        (action if topic.commands else state).extend(numbers)
        if topic.image:
            images.append(topic)
        if topic is reference:
            continue
        reach = max(int(PERIODS_TOLERATED * topic.period_ns), LEAST_TOLERANCE_NS)
        lines.append(f"        {q(topic.name)}: {{{topic.method}: {_whole_ms(reach)}}}")
    gap = f"gap: {_whole_ms(reference.period_ns * 3 // 2)}"
    lines.append("  # an episode ends where frames are missing; `marker` and `state` cut too")
    if clock == "header" and unread:
        lines.append("  # (topics without a header have a time with `clock: header_or_log`)")
    if state and action:
        lines.append(f"  - episodes: {{{gap}}}")
    else:  # no commands, or nothing else
        state, action = state or action, ["action"]
        joints = [name for name in state if name.endswith(".q")] or state[:1]
        following = f"actions: {{action: {{next: {q(joints[0])}}}}}"
        lines += [
            "  # no topic speaks of commands: the action is the next state",
            f"  - episodes: {{{gap}, {following}}}",
        ]
    lines += [
        "dataset:",
        "  format: lerobot",
        f"  path: {q(out)}",
        f"  fps: {max(1, round(1e9 / reference.period_ns))}",
        "  task: describe the task in one sentence",
        "  features:",
        f"    observation.state: [{', '.join(map(q, state))}]",
        f"    action: [{', '.join(map(q, action))}]",
    ]
    taken: set[str] = set()
    for topic in images:
        name = _column_part(topic.name) or "camera"
        while name in taken:
            name += "_"
        taken.add(name)
        where = topic.name if topic.raw else f"{topic.name}.image"  # raw: size and encoding too
        lines.append(f"    observation.images.{name}: {q(where)}")
    return "\n".join(lines) + "\n"


def _whole_ms(ns: int) -> str:
    """A duration as a setting, rounded to whole milliseconds where it has some."""
    return setting(max(1_000_000, round(ns / 1_000_000) * 1_000_000))
