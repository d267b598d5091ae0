"""Align in process, without Spark: a whole recording in one call, or message by message.

A *recording* (`rows`, `align_recording`) is complete, so nothing in it is late: all rows are put in
order first, per key, and aligned in one pass. Rows whose time cannot be read are told by a warning
and kept in the result's `errors`; everything else that did not become a value is in `dropped`.

`Aligner` takes messages as they come, for a node, a notebook or a test. Clock policy: none is read.
Event time comes with every message. A message is *late* when it is at or below the watermark of its
lane, which stands `late_tolerance` behind the newest message and is moved on by `advance`. Wall
time comes in by `tick`, and matters only with `idle_timeout`: a lane that has been silent for that
long is not waited for. Every call returns all that it implies: aligned rows whose values can no
longer change, and the messages that did not become part of one, each with its reason.

Both drive the stage `Align`, so their rows are those of a pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.align.methods import Method
from tidegate.align.recorded import read_recording, warn_about
from tidegate.align.stage import Align
from tidegate.core import snapshot
from tidegate.core.arrow import as_text, factorize
from tidegate.core.chain import Chain
from tidegate.core.checks import names
from tidegate.core.flow import never_seen
from tidegate.core.outcomes import (
    Collection,
    Dropped,
    Int32s,
    Int64s,
    Late,
    Outcome,
    StreamError,
    Watermark,
)
from tidegate.core.time import Duration
from tidegate.errors import ConfigError, StateError
from tidegate.eventtime import Decoder, EventtimeWatermark, TimeColumn

__all__ = ["Aligned", "AlignedRow", "Aligner", "align_recording", "rows"]


class Aligned(NamedTuple):
    """What became of a recording. One whose `never_seen` is not empty is probably misspelt."""

    data: pa.Table
    """One row per point: key, `time_ns`, the reference, and a struct per topic."""
    dropped: pa.Table
    """Messages and points that did not become part of a row, with their `reason`."""
    errors: pa.Table
    """Rows that could not be used, with `error_column`, `error_value` and `error_reason`."""
    offsets: pa.Table
    """Per key and topic: how many values, how many missing, and how far from their rows."""
    never_seen: list[str]
    """A sentence for every topic that the settings name and the recording does not have."""


def rows(
    recording: Any,
    *,
    topic: str,
    time: str,
    topics: Mapping[str, Method | Mapping[str, Any] | str],
    key: str | Sequence[str] = (),
    type: str | None = None,
    reference: str | None = None,
    grid: str | Duration | None = None,
    origin: Duration = 0,
    max_gap: Duration | None = None,
    missing: str = "null",
) -> pa.Table:
    """Every topic's value at the times of a reference topic, or on a grid.

    Args:
        recording: A `pyarrow.Table` or batch, a DataFrame of pandas or polars, a list of dicts, or
            the path of a Parquet, CSV, JSON-lines or MCAP file.
        topic: The column that holds the topic.
        time: The column that holds the time.
        topics: A method per topic: `{"joint": latest("50 ms")}`.
        key: The column or columns that tell robots, vehicles or runs apart.
        type: The event-time type of the column. Default: timestamps as they are, integers as
            nanoseconds since 1970.
        reference: The topic whose messages give the times. Either this or `grid`.
        grid: A rate or a period instead.
        origin: Where the grid has a point.
        max_gap: How long a grid goes on without messages.
        missing: `null` or `drop`: what becomes of a row where a topic has no value.

    Returns:
        One row per point: the key, `time_ns`, the reference message, and per topic a struct of its
        columns with `time_ns`, `offset_ns` and `missing`.

    Raises:
        ConfigError: A setting or a column is wrong.

    Example:
        >>> recording = [
        ...     {"topic": "camera", "stamp": 100, "v": 1.0},
        ...     {"topic": "joint", "stamp": 90, "v": 2.0},
        ...     {"topic": "joint", "stamp": 110, "v": 4.0},
        ... ]
        >>> table = rows(recording, topic="topic", time="stamp", reference="camera",
        ...              topics={"joint": "linear"})
        >>> table.column("joint").to_pylist()[0]["v"]
        3.0
    """
    stage = Align(
        topics, reference=reference, grid=grid, origin=origin, max_gap=max_gap, missing=missing,
        unused=False, topic=topic, keys=names("key", key),
    )  # fmt: skip
    made = align_recording(stage, recording, time=time, type=type)
    warn_about(made.errors, made.never_seen)
    return made.data


def align_recording(stage: Align, recording: Any, *, time: str, type: str | None = None) -> Aligned:
    """Align a recording and keep everything that left.

    Args:
        stage: What to align, and how.
        recording: As for `rows`.
        time: The column that holds the time.
        type: Its event-time type; default as for `rows`.

    Returns:
        The aligned rows, and what did not become part of them.

    Raises:
        ConfigError: The recording cannot be read, lacks a column that `time`, `topic` or `keys`
            names, or needs a `type` for its time column.
    """
    batch = read_recording(recording)
    wanted = [("time", time), ("topic", stage.topic), *(("key", key) for key in stage.keys)]
    for setting, column in wanted:
        if batch.schema.get_field_index(column) < 0:
            have = ", ".join(batch.schema.names)
            raise ConfigError(setting, column, f"must be a column of the recording: {have}")
    kind = _time_type(batch.schema.field(time).type, time, type)
    collection, errors = Decoder((TimeColumn(time, kind),)).decode(batch)
    out: list[Outcome] = [] if errors is None else [errors]
    lane = np.zeros(len(collection), np.int64)
    if stage.keys:
        lane = factorize([collection.rows.column(key) for key in stage.keys]).codes
    out += stage.align_all(collection.rows, collection.time_ns, lane)
    return Aligned(
        _outcome_table(out, "data", stage.schema(batch.schema)),
        _outcome_table(out, "dropped", batch.schema),
        _outcome_table(out, "error", batch.schema),
        _outcome_table(out, "offsets", stage.side_schemas(batch.schema)["offsets"]),
        _never_seen(stage, batch, out),
    )


def _never_seen(stage: Align, batch: pa.RecordBatch, out: list[Outcome]) -> list[str]:
    """A sentence for every topic that the settings name and the recording does not have.

    Where every topic has become a value or was left unused, each was there, and the column need
    not be read again.
    """
    statistics = _outcome_table(out, "offsets", stage.side_schemas(batch.schema)["offsets"])
    there = statistics.filter(pc.greater(pc.add(statistics["values"], statistics["unused"]), 0))
    aligned = any(o.kind == "data" and len(o) for o in out)
    if aligned and set(there["topic"].to_pylist()) == set(stage.topics):
        return []
    seen = set(as_text(batch.column(stage.topic)).unique().to_pylist()) - {None}
    return never_seen(stage.expected_names(), {stage.topic: seen})


def _outcome_table(outcomes: list[Outcome], kind: str, schema: pa.Schema) -> pa.Table:
    """All outcomes of one kind as one table; an empty one of `schema` where there are none."""
    made = [pa.Table.from_batches([o.table()]) for o in outcomes if o.kind == kind]  # type: ignore[union-attr]
    if not made:
        return schema.empty_table()
    return pa.concat_tables(made, promote_options="permissive")


def _time_type(kind: pa.DataType, column: str, given: str | None) -> str:
    """The event-time type of the time column: the one given, else the one its Arrow type implies.

    Args:
        kind: The Arrow type of the column.
        column: Its name, for the error.
        given: What the user wrote, if anything.

    Raises:
        ConfigError: The column is neither a timestamp nor an integer, and no type was given: text
            and floats have several readings, and a guess would be silent.
    """
    if given is not None:
        return given
    if pa.types.is_timestamp(kind):
        return "timestamp"
    if pa.types.is_integer(kind):
        return "unixtimestamp_ns"
    raise ConfigError(
        "type", None, f'is needed: {column} is {kind}; give for example type="iso8601"'
    )


class AlignedRow(NamedTuple):
    """What every topic was at one moment."""

    time_ns: int
    """The moment: the time of the reference message, or of the point of the grid."""
    values: dict[str, dict[str, Any]]
    """Per topic (the reference included) its columns, with `time_ns` (when the value was measured),
    `offset_ns` (that minus the moment) and `missing` (why there is no value, else None)."""
    lane: int = 0
    """The number of the key, as given to `push`."""


ReturnedRow = AlignedRow | Late | Dropped | StreamError
"""What calls for single messages return: aligned rows, and messages that are part of none."""


class Aligner:
    """Rows at the times of a reference topic or on a grid, from messages that you hand in.

    Args:
        topics: A method per topic, as for `Align`.
        late_tolerance: How far a message may be behind the newest one of its lane. Default 0:
            messages of all topics come in the order of their times. Larger values delay rows by as
            much.
        idle_timeout: A lane without a message for longer than this (wall time, told by `tick`) is
            not waited for. Default None: it is.
        settings: Those of `Align`: `reference` or `grid`, `origin`, `max_gap`, `missing`,
            `unused`.

    Raises:
        ConfigError: A setting is wrong, or a method looks ahead without a tolerance: a silent topic
            would then hold every row back.

    Example:
        >>> from tidegate.align import linear
        >>> aligner = Aligner({"joint": linear("50 ns")}, reference="camera")
        >>> aligner.push("joint", 90, {"angle": 2.0})
        []
        >>> aligner.push("camera", 100)
        []
        >>> [row] = aligner.push("joint", 110, {"angle": 4.0})
        >>> row.time_ns, row.values["joint"]["angle"], row.values["joint"]["offset_ns"]
        (100, 3.0, -10)
    """

    def __init__(
        self,
        topics: Mapping[str, Method | Mapping[str, Any] | str],
        *,
        late_tolerance: Duration = 0,
        idle_timeout: Duration | None = None,
        **settings: Any,
    ) -> None:
        for name in ("keys", "topic"):
            if name in settings:
                raise ConfigError(name, settings[name], "is given with each message: lane, topic")
        try:
            self.operator = Align(topics, **settings)
        except TypeError as error:
            raise ConfigError("settings", sorted(settings), str(error)) from error
        unbounded = self.operator.unbounded()
        if unbounded is not None:
            raise ConfigError("topics", dict(topics), unbounded)
        watermark = EventtimeWatermark(late_tolerance, idle_timeout=idle_timeout)
        self._chain = Chain((watermark, self.operator))
        self._states = self._chain.open()
        self._schema: pa.Schema | None = None

    def push(
        self,
        topic: str,
        time_ns: int,
        message: Mapping[str, Any] | None = None,
        *,
        lane: int = 0,
        wall_ns: int = 0,
    ) -> list[ReturnedRow]:
        """Take in one message.

        Args:
            topic: Its topic. Messages of topics that are not aligned leave as dropped.
            time_ns: Its event time, in nanoseconds since 1970.
            message: Its columns. A column that another topic has and this one has not is null.
            lane: The number of its key, from 0: robots are told apart by it.
            wall_ns: The wall time; needed with `idle_timeout`.

        Returns:
            Aligned rows that are now decided, in order, and messages that are part of none.
        """
        row = {"topic": topic, **(message or {})}
        fresh = pa.RecordBatch.from_pylist([row]).schema
        kinds = [self._schema, fresh] if self._schema is not None else [fresh]
        self._schema = pa.unify_schemas(kinds, promote_options="permissive")
        rows = pa.RecordBatch.from_pylist([row], schema=self._schema)
        lanes = np.full(1, lane, np.int32)
        return _returned_rows(self.process(rows, np.array([time_ns], np.int64), lanes, wall_ns))

    def process(
        self,
        rows: pa.RecordBatch,
        time_ns: Int64s,
        lane: Int32s | None = None,
        wall_ns: int = 0,
    ) -> list[Outcome]:
        """Take in many messages, in the order of arrival.

        Args:
            rows: A batch with a column `topic` and those of the messages.
            time_ns: The event time of each row.
            lane: The number of each row's key, int32; None: all have key 0.
            wall_ns: The wall time; needed with `idle_timeout`.

        Returns:
            Aligned rows as a `Collection`, side tables, late and dropped rows.
        """
        lanes = np.zeros(rows.num_rows, np.int32) if lane is None else lane
        collection = Collection(rows, np.asarray(time_ns, np.int64), lanes, wall_ns)
        return _without_watermarks(self._chain.process(self._states, collection))

    def advance(self, time_ns: int, *, lane: int = 0) -> list[ReturnedRow]:
        """Promise that no message at or before this time will come any more.

        Args:
            time_ns: The watermark. One below the present watermark changes nothing.
            lane: The number of the key.

        Returns:
            The rows that are decided by it.
        """
        return _returned_rows(self._chain.advance(self._states, Watermark.at(time_ns, lane)))

    def tick(self, wall_ns: int) -> list[ReturnedRow]:
        """Tell the wall time: lanes silent for longer than `idle_timeout` are not waited for.

        Args:
            wall_ns: The wall time, in nanoseconds since 1970.

        Returns:
            The rows that are decided by it.
        """
        return _returned_rows(self._chain.wake(self._states, wall_ns))

    def wake_at(self) -> int | None:
        """The wall time at which `tick` is next due; None without `idle_timeout`."""
        return self._chain.wake_at(self._states)

    def flush(self) -> list[ReturnedRow]:
        """End: decide every row from the messages there are."""
        return _returned_rows(self._chain.flush(self._states))

    def offsets(self) -> pa.Table:
        """Per topic and lane: how many values, how many missing, and how far from their rows."""
        return self.operator.offset_table(self._states[1])

    def metrics(self) -> dict[str, int | float]:
        """Counters: aligned rows, values, missing values, unused and held messages."""
        return self._chain.metrics(self._states)

    def snapshot(self) -> bytes:
        """The state as bytes, to be written down and given to `restore`."""
        stages = zip(self._chain.stages, self._states, strict=True)
        return snapshot.pack({"aligner": 1}, [stage.snapshot(state) for stage, state in stages])

    def restore(self, blob: bytes) -> None:
        """Go on from a snapshot of an aligner with the same settings.

        Args:
            blob: Made by `snapshot`.

        Raises:
            StateError: It is damaged, or of other settings.
        """
        header, buffers = snapshot.unpack(blob)
        if header.get("aligner") != 1 or len(buffers) != len(self._chain.stages):
            raise StateError("snapshot is not that of an aligner")
        self._states = [
            stage.restore(bytes(buffer))
            for stage, buffer in zip(self._chain.stages, buffers, strict=True)
        ]


def _without_watermarks(outcomes: list[Outcome]) -> list[Outcome]:
    """What a caller sees: the chain's own watermarks are of no use to him."""
    return [outcome for outcome in outcomes if not isinstance(outcome, Watermark)]


def _returned_rows(outcomes: list[Outcome]) -> list[ReturnedRow]:
    """Aligned rows one by one, and beside them the messages that are part of none."""
    out: list[ReturnedRow] = []
    for outcome in outcomes:
        if isinstance(outcome, Collection):
            times, lanes = outcome.time_ns.tolist(), outcome.lane.tolist()
            for row, time_ns, lane in zip(outcome.rows.to_pylist(), times, lanes, strict=True):
                out.append(AlignedRow(time_ns, row, lane))
        elif isinstance(outcome, Late | Dropped | StreamError):
            out.append(outcome)
    return out
