"""A pipeline over files to a dataset, in this process.

The source is read batch by batch, each batch goes through the flow, and what leaves goes to the
writer: memory holds one batch, the flow's state and the open episodes. Of an MCAP file, images and
other bytes go through the flow as references of 16 bytes; the bytes of those that got into a row
are taken from the file where the dataset is written (`mcap.blocks`).

Where `file` is in the key, no message of a file has anything to do with those of another
(`is_by_file`). Then every file has a flow of its own, and its episodes end with it: a thousand
files take no more memory than one. Else files are read together (`side_by_side`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from tidegate.core.outcomes import Collection, Dropped, Outcome, StreamError
from tidegate.core.time import parse_duration
from tidegate.dataset.lerobot import LeRobotWriter
from tidegate.dataset.side_by_side import FileReader, rows_side_by_side
from tidegate.dataset.tables import LanceWriter, ParquetWriter
from tidegate.errors import ConfigError
from tidegate.eventtime import EventtimeWatermark
from tidegate.eventtime.arrival_order import ArrivalOrder
from tidegate.mcap import Selection
from tidegate.mcap.index import Channels
from tidegate.mcap.payload import parse_fields, resolve_fields
from tidegate.pipeline import PipelineDefinition, Plan, plan
from tidegate.pipeline.definition import DatasetDefinition, StreamDefinition
from tidegate.pipeline.formats import source_settings
from tidegate.recordings.bags import bag_definitions, bags_of, read_bag
from tidegate.recordings.parquet_footer import open_checked

__all__ = [
    "DatasetSummary",
    "Reasons",
    "close_writer",
    "dataset_writer",
    "is_by_file",
    "make_dataset_here",
    "most_frequent",
    "source_files",
    "tally_reasons",
]

ROWS_AT_ONCE = 100_000
"""Rows read from a table at once: enough for the kernels, little against any memory."""
BYTES_AT_ONCE = 64 << 20
"""Bytes read from a Parquet file at once, about: 100,000 rows with images would fill any memory."""


Reasons = dict[str, Counter[str]]
"""By kind of outcome: how many rows have which reason."""


class DatasetSummary(NamedTuple):
    """What became of a recording."""

    path: str
    """The folder of the dataset."""
    written: dict[str, Any]
    """What the writer says: rows, or episodes, frames and rows left out with their reasons."""
    rows_read: int
    """Rows of the source; 0 for a run on Spark, which counts them itself."""
    outcomes: dict[str, int]
    """Rows by kind of outcome: data, late, error, dropped."""
    warnings: list[str]
    """Topics that the pipeline names and the source does not have."""
    reasons: dict[str, dict[str, int]]
    """Of dropped and error rows, by kind: how many have which reason, the most frequent first."""


def make_dataset_here(
    definition: PipelineDefinition,
    wanted: DatasetDefinition,
    path: str | Path,
    files: Sequence[Path] | None = None,
    among: Sequence[Path] | None = None,
) -> DatasetSummary:
    """Run a pipeline to a dataset in this process.

    Args:
        definition: The pipeline; it has one stream.
        wanted: What to make of the rows.
        path: The folder of the dataset.
        files: The files to read. Default: all of the source.
        among: All files of the source, which tell the types of columns: a field may be in no
            message of the files that are read. Default: those that are there now.

    Raises:
        ConfigError: A setting is wrong, or the source cannot be read here.
    """
    counts: Counter[str] = Counter()
    reasons: Reasons = {}
    name, stream = _single_stream(definition)
    source = _open_source(name, stream, among)
    plan(definition, {name: source.schema})  # what is wrong is said of all columns
    needed = _needed_columns(definition, stream, wanted, source.schema)
    rows = source.narrow(needed, _referred(definition, stream, needed, source.schema))
    planned = plan(definition, {name: rows.schema})
    writer = dataset_writer(definition, wanted, path)
    read = 0
    warnings: set[str] | None = None  # of all flows: what only some files lack is no mistake
    chosen = source.files if files is None else list(files)
    for some in [[file] for file in chosen] if is_by_file(definition) else [chosen]:
        flow = planned.flow()
        for batch in rows_side_by_side(some, rows.reader, _arrival_order(planned), planned.decoder):
            read += batch.num_rows
            _hand_over(flow.process(batch), writer, counts, reasons, rows.attach)
        _hand_over(flow.end(), writer, counts, reasons, rows.attach)
        if isinstance(writer, LeRobotWriter):
            writer.end_episodes()
        said = set(flow.warnings())
        warnings = said if warnings is None else warnings & said
    told = sorted(warnings or ())
    if files is not None and isinstance(writer, LeRobotWriter) and writer.is_empty:
        # One of several parts: the others may have frames.
        left = {"left_out": writer.left_out, "reasons": writer.reasons}
        return DatasetSummary(str(path), left, read, dict(counts), told, most_frequent(reasons))
    written = close_writer(writer, counts, reasons)
    return DatasetSummary(str(path), written, read, dict(counts), told, most_frequent(reasons))


def close_writer(writer: Any, counts: Mapping[str, int], reasons: Reasons) -> dict[str, Any]:
    """Close the writer of a dataset, and return what it says.

    Args:
        writer: From `dataset_writer`.
        counts: Rows by kind of outcome.
        reasons: Why rows are dropped or errors.

    Raises:
        ConfigError: There is no frame for a LeRobot dataset; it says what became of the rows.
    """
    if not isinstance(writer, LeRobotWriter) or not writer.is_empty:
        return dict(writer.close())
    told = [
        f"{count:,} {'left out' if kind == 'data' else kind} ({_frequent_in_words(found)})"
        for kind, count, found in (
            ("data", writer.left_out, writer.reasons),
            *((k, counts.get(k, 0), reasons.get(k, {})) for k in ("error", "dropped")),
        )
        if count
    ]
    told += [f"{counts['late']:,} late"] if counts.get("late") else []
    why = f"of the rows, {'; '.join(told)}" if told else "the source has no row"
    raise ConfigError("dataset", None, "", message=f"dataset: there is no frame to write: {why}")


def _frequent_in_words(reasons: Mapping[str, int]) -> str:
    """The most frequent reasons with their counts, in words."""
    found = sorted(reasons.items(), key=lambda item: -item[1])[:3]
    return ", ".join(f"{count:,} × {reason}" for reason, count in found)


def is_by_file(definition: PipelineDefinition) -> bool:
    """Whether files can be processed one by one: MCAP files, with `file` in the key.

    Args:
        definition: The pipeline.
    """
    streams = list(definition.streams.values())
    return (
        len(streams) == 1
        and streams[0].source is not None
        and streams[0].source.format == "mcap"
        and "file" in streams[0].key
    )


def most_frequent(reasons: Reasons) -> dict[str, dict[str, int]]:
    """Counted reasons by kind, the most frequent first.

    >>> most_frequent({"dropped": Counter(["late", "unknown topic", "late"])})
    {'dropped': {'late': 2, 'unknown topic': 1}}
    """
    return {kind: dict(counted.most_common()) for kind, counted in reasons.items()}


def tally_reasons(reasons: Reasons, kind: str, column: pa.Array) -> None:
    """Count the reasons of rows of one kind."""
    for one in column.value_counts().to_pylist():
        reasons.setdefault(kind, Counter())[one["values"] or ""] += one["counts"]


def _hand_over(
    outcomes: list[Outcome],
    writer: Any,
    counts: Counter[str],
    reasons: Reasons,
    attach: Callable[[pa.RecordBatch], pa.RecordBatch],
) -> None:
    """Give the data to the writer, with the bytes it refers to, and count everything."""
    for outcome in outcomes:
        if outcome.kind != "watermark":
            counts[outcome.kind] += len(outcome)
        if isinstance(outcome, Dropped | StreamError):
            tally_reasons(reasons, outcome.kind, outcome.reason)
        if isinstance(outcome, Collection):
            writer.write(attach(outcome.table()))


def dataset_writer(
    definition: PipelineDefinition, wanted: DatasetDefinition, path: str | Path
) -> Any:
    """The writer of a dataset.

    Raises:
        ConfigError: A setting does not belong to the format, or one is missing.
    """
    lerobot = {
        "fps": wanted.fps, "features": wanted.features or None, "task": wanted.task,
        "robot_type": wanted.robot_type, "codec": wanted.codec,
    }  # fmt: skip
    if wanted.format != "lerobot":
        for setting, value in lerobot.items():
            if value is not None:
                raise ConfigError(f"dataset.{setting}", value, "belongs to format lerobot")
        images = wanted.images or "bytes"
        if wanted.format == "parquet":
            return ParquetWriter(path, images=images, columns=wanted.columns)
        return LanceWriter(path, images=images, columns=wanted.columns)
    if wanted.columns:
        raise ConfigError("dataset.columns", wanted.columns, "belong to parquet and lance")
    fps = wanted.fps if wanted.fps is not None else _grid_rate(definition)
    if fps is None:
        raise ConfigError("dataset.fps", None, "is needed where `align` has no grid in Hz")
    if not wanted.features:
        raise ConfigError("dataset.features", None, "are needed for format lerobot")
    settings: dict[str, Any] = {"images": wanted.images, "codec": wanted.codec, "task": wanted.task}
    return LeRobotWriter(
        path,
        fps=fps,
        features=wanted.features,
        robot_type=wanted.robot_type,
        key=next(iter(definition.streams.values())).key,
        **{setting: value for setting, value in settings.items() if value is not None},
    )


def _grid_rate(definition: PipelineDefinition) -> int | None:
    """The rate of the grid that rows are aligned to, if it is a whole number of Hz."""
    for stage in definition.stages:
        grid = stage.settings.get("grid") if isinstance(stage.settings, Mapping) else None
        if stage.name == "align" and isinstance(grid, str) and grid.lower().endswith("hz"):
            number = grid[:-2].strip()
            return int(number) if number.isdecimal() else None
    return None


def _needed_columns(
    definition: PipelineDefinition,
    stream: StreamDefinition,
    wanted: DatasetDefinition,
    schema: pa.Schema,
) -> list[str]:
    """The columns of the source that the dataset is made of; all where that cannot be told.

    A path such as `joint.q` needs the column `q`: `align` makes a struct of each topic's columns.
    Without this every message would be copied with its whole payload, decoded and not.
    """
    paths = [path for given in wanted.features.values() for path in _as_list(given)]
    paths += wanted.columns
    if not paths or not any(stage.name == "align" for stage in definition.stages):
        return list(schema.names)
    if isinstance(wanted.task, Mapping):
        paths += wanted.task.values()
    made: set[str] = set()  # by a stage, not read from the source
    for stage in definition.stages:
        if stage.name == "episodes":
            actions = stage.settings.get("actions") or {}
            made |= set(actions)
            paths += [path for given in actions.values() for path in given.values()]
            paths += [stage.settings["state"]] if "state" in stage.settings else []
        elif stage.name == "align":
            for method in (stage.settings.get("topics") or {}).values():
                for settings in method.values() if isinstance(method, Mapping) else ():
                    if isinstance(settings, Mapping):
                        paths += [f".{column}" for column in settings.get("columns") or ()]
        else:
            return list(schema.names)
    keep = {*stream.key, *stream.arrival, "error"}
    keep |= {stream.topic} if stream.topic is not None else set()
    keep |= {definition.options.eventtime.source or ""}
    if stream.messages:
        return list(schema.names)
    if stream.eventtime is not None:
        keep |= set(_as_list(stream.eventtime.column))
    if wanted.images == "reference":
        keep |= {"file", "offset", "position"}
    for path in paths:
        if path in made:
            continue
        # A topic may have dots in its name, so every end of the path is tried.
        ends = [path[at + 1 :] for at, sign in enumerate(path) if sign == "."]
        found = [end.split(".")[0] for end in ends if end.split(".")[0] in schema.names]
        if not found:
            return list(schema.names)  # a whole topic
        keep |= set(found)
    return [name for name in schema.names if name in keep]


def _referred(
    definition: PipelineDefinition, stream: StreamDefinition, needed: list[str], schema: pa.Schema
) -> list[str]:
    """The columns that stages only hand on, so that references can stand for their bytes.

    A stage that compares values must see them: the key, the topic and the stamp, and the column by
    which `episodes` cuts. Of other stages than these two it is not known.
    """
    if stream.messages or any(s.name not in ("align", "episodes") for s in definition.stages):
        return []
    read = {*stream.key, *stream.arrival, stream.topic, definition.options.eventtime.source}
    if stream.eventtime is not None:
        read |= set(_as_list(stream.eventtime.column))
    for stage in definition.stages:
        if stage.name == "episodes" and "state" in stage.settings:
            parts = str(stage.settings["state"]).split(".")
            if len(parts) == 1:
                return []  # a whole topic, with its bytes
            read |= set(parts)
    return [name for name in needed if pa.types.is_binary(schema.field(name).type)
            and name not in read]  # fmt: skip


def _as_list(given: Any) -> list[str]:
    """One name or several, as a list."""
    return [given] if isinstance(given, str) else list(given)


def _single_stream(definition: PipelineDefinition) -> tuple[str, StreamDefinition]:
    """The only stream of a definition; a ConfigError if there are several."""
    if len(definition.streams) > 1:
        names = ", ".join(definition.streams)
        raise ConfigError("streams", names, "must be one in process; several need --spark")
    return next(iter(definition.streams.items()))


class _SourceRows(NamedTuple):
    """The rows of a source, as the flow gets them."""

    reader: FileReader
    schema: pa.Schema
    attach: Callable[[pa.RecordBatch], pa.RecordBatch]
    """Puts bytes in the place of references, in rows that leave the flow."""


class _Source(NamedTuple):
    """A source that is found, but not read yet."""

    files: list[Path]
    schema: pa.Schema
    narrow: Callable[[Sequence[str], Sequence[str]], _SourceRows]
    """Gives the rows with some columns, and some of these by reference."""


def source_files(name: str, stream: StreamDefinition) -> list[Path]:
    """The files of a stream, by name.

    Raises:
        ConfigError: There is no source, nothing is there, or only Spark can read it.
    """
    field = f"streams.{name}.source"
    if stream.source is None:
        raise ConfigError(field, None, "is required")
    path, _ = source_settings(stream.source, field)
    kind = stream.source.format
    known = ("parquet", "csv", "json", "mcap", "rosbag")
    if kind not in known:
        expected = f"can be read in process if it is one of {', '.join(known)}; else use --spark"
        raise ConfigError(f"{field}.format", kind, expected)
    if path is None:
        raise ConfigError(f"{field}.path", None, "is required")
    if kind == "rosbag":
        bags = [Path(bag) for bag in bags_of(path)]
        if not bags:
            raise ConfigError(f"{field}.path", path, "has no bag to read")
        return bags
    return _files(path, kind, f"{field}.path")


def _open_source(name: str, stream: StreamDefinition, known: Sequence[Path] | None) -> _Source:
    """Look at a source, whose files may be known already.

    Raises:
        ConfigError: There is no source, nothing is there, or only Spark can read it.
    """
    files = source_files(name, stream) if known is None else list(known)
    assert stream.source is not None
    field, kind = f"streams.{name}.source", stream.source.format
    _, options = source_settings(stream.source, field)
    if kind == "mcap":
        return _read_mcap(files, options, field)
    if kind == "rosbag":
        return _read_bags(files, options, field)
    if options:
        raise ConfigError(f"{field}.options", sorted(options), "need --spark for this format")
    from pyarrow import dataset

    opened = dataset.dataset([str(file) for file in files], format=kind)
    parts = dict(zip(files, opened.get_fragments(), strict=True))

    def glance(file: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        at_once = _rows_at_once(file, columns) if kind == "parquet" else ROWS_AT_ONCE
        found: Iterator[pa.RecordBatch] = parts[file].to_batches(
            schema=opened.schema, columns=list(columns), batch_size=at_once, batch_readahead=1
        )
        return found

    def narrow(columns: Sequence[str], _: Sequence[str]) -> _SourceRows:
        schema = pa.schema([opened.schema.field(column) for column in columns])
        reader = FileReader(lambda file: glance(file, columns), glance)
        return _SourceRows(reader, schema, lambda rows: rows)

    return _Source(files, opened.schema, narrow)


def _rows_at_once(file: Path, columns: Sequence[str]) -> int:
    """How many rows of a Parquet file are read at a time: fewer where they hold images."""
    with open_checked(str(file)) as opened:
        known = opened.metadata
    wanted = set(columns)
    size = sum(
        known.row_group(group).column(place).total_uncompressed_size
        for group in range(known.num_row_groups)
        for place in range(known.num_columns)
        if known.row_group(group).column(place).path_in_schema.split(".")[0] in wanted
    )
    return int(min(ROWS_AT_ONCE, max(1, BYTES_AT_ONCE * known.num_rows // max(1, size))))


def _arrival_order(planned: Plan) -> ArrivalOrder:
    """The rule by which rows of several files are put in order, as on Spark."""
    skew, confirm = -1, 1
    for stage in planned.flow_stages():
        if isinstance(stage, EventtimeWatermark) and stage.max_future_skew is not None:
            skew, confirm = parse_duration(stage.max_future_skew), stage.skew_confirm
    return ArrivalOrder(planned.arrival, True, tuple(planned.key), skew, confirm)


def _read_mcap(files: list[Path], options: Mapping[str, str], field: str) -> _Source:
    """MCAP files; options as for Spark's source, as far as they choose messages."""
    from tidegate import mcap
    from tidegate.mcap.blocks import FILES_KEPT, BlockReader

    opened: dict[str, mcap.McapFile] = {}

    def definitions() -> Iterator[Channels]:
        for file in files:
            found = mcap.McapFile(file)
            # Looking at a file without an index changes it: such a one is opened anew.
            if found.index.indexed and len(opened) < FILES_KEPT:
                opened[str(file)] = found
                yield from found.definitions()
                continue
            with found:
                yield from found.definitions()

    selection = _selection(options, field, definitions())
    fields = selection.decode

    def narrow(columns: Sequence[str], referred: Sequence[str]) -> _SourceRows:
        reader = BlockReader(selection, columns, referred, opened)

        def glance(file: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
            decode = tuple(each for each in fields if each.name in columns)
            return BlockReader(replace(selection, decode=decode), columns, ()).batches(file)

        return _SourceRows(FileReader(reader.batches, glance), reader.schema, reader.attach)

    return _Source(files, selection.schema, narrow)


def _read_bags(bags: list[Path], options: Mapping[str, str], field: str) -> _Source:
    """Bags of ROS 1 and ROS 2, with the options of MCAP files; images go through the flow."""
    selection = _selection(options, field, (bag_definitions(str(bag)) for bag in bags))

    def glance(bag: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        decode = tuple(each for each in selection.decode if each.name in columns)
        for rows in read_bag(str(bag), replace(selection, decode=decode)):
            yield rows.select(list(columns))

    def narrow(columns: Sequence[str], _: Sequence[str]) -> _SourceRows:
        schema = pa.schema([selection.schema.field(column) for column in columns])
        reader = FileReader(lambda bag: glance(bag, columns), glance)
        return _SourceRows(reader, schema, lambda rows: rows)

    return _Source(bags, selection.schema, narrow)


def _selection(
    options: Mapping[str, str], field: str, definitions: Iterable[Channels]
) -> Selection:
    """Which messages of recordings are read, and which fields of them.

    Args:
        options: Those of the source.
        field: Its name, for errors.
        definitions: The channels of the recordings, which know the types of fields.

    Raises:
        ConfigError: An option is not known here.
    """
    known = {"topics", "startNs", "endNs", "clock", "crc", "decode"}
    unknown = sorted(set(options) - known)
    if unknown:
        raise ConfigError(f"{field}.options", unknown[0], f"may be {', '.join(sorted(known))} here")
    chosen = options.get("topics")
    topics = None if chosen is None else tuple(one.strip() for one in chosen.split(","))
    clock: Any = options.get("clock", "log")
    start, end = (int(options[n]) if n in options else None for n in ("startNs", "endNs"))
    crc = options.get("crc", "false").lower() == "true"
    fields = resolve_fields(parse_fields(options.get("decode")), definitions, topics)
    return Selection(topics, start, end, clock, crc, fields)


def _files(path: str, kind: str, field: str) -> list[Path]:
    """The files of a source by name: a file, a folder, or a pattern with `*`."""
    found = Path(path)
    endings = {"json": (".json", ".jsonl")}.get(kind, (f".{kind}",))
    if any(sign in path for sign in "*?["):
        anchor = Path(found.anchor) if found.is_absolute() else Path()
        files = sorted(anchor.glob(str(found.relative_to(found.anchor))))
    elif found.is_dir():
        files = sorted(file for file in found.rglob("*") if file.suffix in endings)
        files = [f for f in files if not any(p.startswith((".", "_")) for p in f.parts[-2:])]
    else:
        files = [found] if found.exists() else []
    if not files:
        raise ConfigError(field, path, "has no file to read")
    return files
