"""Write a pipeline from a recording (MCAP, bag) to a training dataset: `init --for training`.

The recording itself says most of it. Its schemas say which topics are cameras (bytes beside a
format or an encoding), joint states (a list `position`) and IMUs; the stamps of its first messages
say how often each topic speaks, how far out of order messages arrive, and so which tolerances are
sensible. What only people know, above all the task, stands in the file with a comment.

    reference     the slowest camera; without one, the slowest topic of numbers
    tolerance     two and a half periods of the topic: one missing message is bridged, two are not
    gap           one and a half periods of the reference: frames of an episode are neighbours
    lateTolerance twice the largest disorder seen, at least 100 ms
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.errors import ConfigError
from tidegate.mcap import McapFile, Selection, schema
from tidegate.mcap.index import Channels
from tidegate.mcap.payload import parse_fields, resolve_fields
from tidegate.mcap.payload.codecs import codec_of
from tidegate.mcap.payload.values import NotDecodableError
from tidegate.pipeline import PipelineDefinition, plan
from tidegate.profile.spans import setting
from tidegate.recordings.bags import bag_definitions, bags_of, read_bag

__all__ = ["training_pipeline"]

FILES_READ = 100
"""Files of a folder whose topics are looked at: enough for a file per topic."""
MESSAGES_READ = 100_000
"""Messages of a file that are looked at for rates and disorder. A few minutes of a robot; more
would not change a period, and reading many GB would take as long as making the dataset."""
TOPICS_NAMED = 5
"""Topics that an error names: a line of text; `tidegate inspect` lists all."""
PERIODS_TOLERATED = 2.5
"""Tolerance of a topic in its own periods."""
LEAST_TOLERANCE_NS = 20_000_000
"""No tolerance is below this: jitter of a computer that does other work as well."""
LEAST_LATE_NS = 100_000_000
"""Late tolerance where hardly any disorder was seen: the next minutes may be worse."""

_VECTORS = (
    ("position", "position", "q"),
    ("linear_acceleration.x", "linear_acceleration.x", "ax"),
    ("linear_acceleration.x", "linear_acceleration.y", "ay"),
    ("linear_acceleration.x", "linear_acceleration.z", "az"),
    ("angular_velocity.x", "angular_velocity.x", "wx"),
    ("angular_velocity.x", "angular_velocity.y", "wy"),
    ("angular_velocity.x", "angular_velocity.z", "wz"),
)
"""Fields of numbers that are looked for: the one that must be there, the field, its column."""


@dataclass
class _Topic:
    """What is known of a topic."""

    name: str
    image: bool = False
    raw: bool = False
    """Whether its images are raw, so that size and encoding are needed too."""
    columns: list[str] = field(default_factory=list)
    """Columns of numbers."""
    period_ns: int = 0


def training_pipeline(path: str | Path, *, out: str = "dataset") -> str:
    """The text of a pipeline file that makes a LeRobot dataset of a recording.

    Args:
        path: An MCAP file, a bag, or a folder of such; the first one is looked at, and of the next
            ones those that have further topics.
        out: The folder of the dataset.

    Raises:
        ConfigError: There is no recording, or none of its topics can become a feature.
    """
    kind, definitions, recordings = _recording(Path(path))
    topics, decode = _topics(definitions)
    clock, late_ns = _measure(recordings, topics)
    usable = [topic for topic in topics if topic.period_ns and (topic.image or topic.columns)]
    if not any(topic.columns for topic in usable):
        expected = "has no topic with numbers that are known here (joint states, IMUs)"
        there = {c.topic for channels in definitions for c in channels.by_id.values()}
        expected += f"; its topics: {', '.join(sorted(there)[:TOPICS_NAMED])}" if there else ""
        expected += f" and {len(there) - TOPICS_NAMED} more" if len(there) > TOPICS_NAMED else ""
        raise ConfigError("path", str(path), expected)
    columns = _columns(definitions, clock, decode)
    cameras = [topic for topic in usable if topic.image]
    reference = max(cameras or usable, key=lambda topic: topic.period_ns)
    others = [topic for topic in usable if topic is not reference]
    if not others:
        raise ConfigError("path", str(path), "has one usable topic only: nothing to align")
    source = (kind, Path(path).absolute())
    text = _pipeline_text(source, out, usable, reference, (clock, late_ns, decode))
    made = PipelineDefinition.from_yaml(text)
    plan(made, {"robot": columns})  # what is written must run
    return text


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
    """The topics of a file with what can be decoded of them, and the fields to decode."""
    found: dict[str, _Topic] = {}
    decode: dict[str, None] = {}
    for channels in definitions:
        for channel in channels.by_id.values():
            if channel.topic in found or "." in channel.topic:
                continue  # a dot would be taken for a path
            try:
                codec = codec_of(channel, channels.schemas.get(channel.schema_id))
            except NotDecodableError:
                continue
            topic = found[channel.topic] = _Topic(channel.topic)

            def type_of(path: str, codec: Any = codec) -> pa.DataType:
                kind = codec.type_of(tuple(path.split(".")))
                return pa.null() if kind is None else kind

            if pa.types.is_binary(type_of("data")):
                topic.raw = pa.types.is_string(type_of("encoding"))
                topic.image = topic.raw or pa.types.is_string(type_of("format"))
            if topic.image:
                decode["data as image"] = None
            if topic.raw:
                decode |= dict.fromkeys(("height", "width", "step", "encoding as pixels"))
            for needed, path, column in _VECTORS:
                kind = type_of(needed)
                numbers = pa.types.is_list(kind) or pa.types.is_floating(kind)
                if numbers and not topic.image:
                    decode[f"{path} as {column}"] = None
                    topic.columns.append(column)
    return list(found.values()), list(decode)


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


def _measure(recordings: list[Iterator[pa.RecordBatch]], topics: list[_Topic]) -> tuple[str, int]:
    """Fill in the periods; return the clock to use and the late tolerance in ns."""
    seen: dict[str, list[np.ndarray]] = {}
    clock, behind, newest, last = "header", 0, None, -1
    for number, batch in _first_messages(recordings):
        if number != last:  # a run has a watermark per file, too
            newest, last = None, number
        stamps = batch.column("header_stamp_ns")
        if stamps.null_count * 100 > len(stamps):
            clock = "log"  # topics without a stamp of their own: only the recorder's clock is whole
            stamps = batch.column("log_time_ns")
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


def _columns(definitions: list[Channels], clock: str, decode: list[str]) -> pa.Schema:
    """The columns that the source will have."""
    chosen: Any = clock
    return schema(chosen, resolve_fields(parse_fields(decode), definitions))


def _pipeline_text(
    source: tuple[str, Path],
    out: str,
    topics: list[_Topic],
    reference: _Topic,
    measured: tuple[str, int, list[str]],
) -> str:
    """The file itself.

    Args:
        source: The format and the path of the recording.
        out: The folder of the dataset.
        topics: What can be used.
        reference: The topic that gives the rows.
        measured: The clock, the late tolerance in ns, and the fields to decode.
    """
    clock, late_ns, decode = measured
    time = "header_stamp_ns" if clock == "header" else "log_time_ns"
    q = json.dumps
    lines = [
        "# Written by `tidegate init --for training`. Run it: tidegate dataset pipeline.yaml",
        "name: training",
        "streams:",
        "  robot:",
        "    source:",
        f"      format: {source[0]}",
        f"      path: {q(str(source[1]))}",
        f"      options: {{clock: {clock}, decode: {q(', '.join(decode))}}}",
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
    state, images = [], []
    for topic in topics:
        state += [f"{topic.name}.{column}" for column in topic.columns]
        if topic.image:
            images.append(topic)
        if topic is reference:
            continue
        method = "nearest" if topic.image else "linear"
        reach = max(int(PERIODS_TOLERATED * topic.period_ns), LEAST_TOLERANCE_NS)
        lines.append(f"        {q(topic.name)}: {{{method}: {_whole_ms(reach)}}}")
    joints = [name for name in state if name.endswith(".q")] or state[:1]
    lines += [
        "  # an episode ends where frames are missing; `marker` and `state` cut too. The action is",
        "  # the next state: if commands were recorded, take them instead",
        f"  - episodes: {{gap: {_whole_ms(reference.period_ns * 3 // 2)}, "
        f"actions: {{action: {{next: {q(joints[0])}}}}}}}",
        "dataset:",
        "  format: lerobot",
        f"  path: {q(out)}",
        f"  fps: {max(1, round(1e9 / reference.period_ns))}",
        "  task: describe the task in one sentence",
        "  features:",
        f"    observation.state: [{', '.join(map(q, state))}]",
        "    action: action",
    ]
    taken: set[str] = set()
    for topic in images:
        words = "_".join("".join(c if c.isalnum() else " " for c in topic.name).split())
        name = words or "camera"
        while name in taken:
            name += "_"
        taken.add(name)
        where = topic.name if topic.raw else f"{topic.name}.image"  # raw: size and encoding too
        lines.append(f"    observation.images.{name}: {q(where)}")
    return "\n".join(lines) + "\n"


def _whole_ms(ns: int) -> str:
    """A duration as a setting, rounded to whole milliseconds where it has some."""
    return setting(max(1_000_000, round(ns / 1_000_000) * 1_000_000))
