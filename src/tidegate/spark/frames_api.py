"""Tidegate on DataFrames: declare key, time and arrival, add stages, get DataFrames back.

The same code serves batch and streaming: what `df` is, the results are.

    out = (
        frames(df, key="vehicle", time="stamp", topic="topic", arrival="log_time")
        .event_time("unixtimestamp_ns", late_tolerance="200 ms")
        .synchronize(["camera", "lidar"])
    )
    out.data.show()                   # a batch: each table is a DataFrame
    query = out.write("out/")         # a stream: one query and one state for all tables
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Literal, get_args

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from tidegate.align import Align, Episodes
from tidegate.batching.stage import Batch
from tidegate.core.checks import int_in, names, one_of
from tidegate.core.operator import Operator
from tidegate.core.seal import StateKey
from tidegate.core.time import Duration, parse_duration
from tidegate.deltas import Compact
from tidegate.errors import ConfigError
from tidegate.eventtime import (
    Decoder,
    EventtimeTypes,
    EventtimeWatermark,
    ProcessTimeWatermark,
    TimeColumn,
)
from tidegate.output.commit import Commit
from tidegate.spark.columnar.format import ColumnarInput
from tidegate.spark.columnar.gate import Payload
from tidegate.spark.columnar.payload import MissingPayload
from tidegate.spark.dataflow import Dataflow, check_names_of
from tidegate.spark.pack import arrow_schema
from tidegate.spark.query import run_batch_job, settings_of, start
from tidegate.spark.recording import Recording
from tidegate.spark.sinks import SinkSettings
from tidegate.sync import Synchronize
from tidegate.windows import Adaptive, Window, WindowKind

__all__ = ["Frames", "frames"]

log = logging.getLogger(__name__)

MOST_SHARDS = 65_535
"""The largest number of shards: `pack` sorts rows by shard as 16-bit integers."""


def frames(
    df: DataFrame | Recording,
    *,
    key: str | Sequence[str] | None = None,
    time: str | None = None,
    topic: str | None = None,
    arrival: str | Sequence[str] | None = None,
    file: str | None = None,
    types: EventtimeTypes | None = None,
    shards: int | None = None,
    forget: Duration | None = None,
    payload: Payload = "auto",
    missing_payload: MissingPayload = "stop",
    state_key: str | bytes | None = None,
) -> Frames:
    """Start a pipeline on a DataFrame, batch or streaming. Runs no job.

    Args:
        df: The input: a DataFrame, or what `tidegate.spark.read` returns. What it is (batch or
            streaming), the results are.
        key: The column or columns a pipeline is repeated for; order, watermark and state are per
            key. None: all rows are of one key.
        time: The column that carries event time, or a field of a struct (`header.stamp`); its type
            is given to `event_time`, which must come before every stage that needs time.
        topic: The column that names the stream a row belongs to; needed by `synchronize`, `align`
            and `batch`.
        arrival: The column or columns that pin the order of arrival (a log time, a Kafka offset).
            None: the file and the position in it; `arrival_rule()` says which rule holds.
        file: A column that names the file a row was recorded in, where Spark cannot tell: the
            column `file` of the sources `mcap` and `rosbag`. Each file has a watermark of its own
            in a recorded run.
        types: Event-time types of your own; None: the built-in ones.
        shards: Into how many parts keys are divided, from 1 to 65535. None: four per shuffle
            partition (a stream), eight (a batch). Fixed by the first run of a checkpoint.
        forget: A key silent for this long (wall time) is flushed and freed. None: never.
        state_key: A secret of at least 16 bytes that seals the state of a stream: state in the
            checkpoint that somebody else wrote is a StateError. None: it is not sealed. Give it
            from the environment, never in full in code.
        payload: How columns of files that no stage looks at travel: `carried` with their rows, or
            `addressed`, left in the file and fetched when the row leaves. Default `auto`: addressed
            in recorded runs where they are large.
        missing_payload: Where a file is changed or gone before its rows left: `stop` (default) ends
            the run with its name, `error` delivers such rows as errors.

    Returns:
        A pipeline without stages; its methods add them.

    Raises:
        ConfigError: If a column does not exist or is not given by its name, if two columns cannot
            be told apart, or a number is out of range.
    """
    columnar: tuple[ColumnarInput, ...] = ()
    why_rows = None
    if isinstance(df, Recording):
        if isinstance(df.columnar, ColumnarInput):
            columnar = (df.columnar,)
        else:
            why_rows = df.columnar
        df = df.df
    one_of("payload", payload, get_args(Payload))
    one_of("missing_payload", missing_payload, get_args(MissingPayload))
    check_names_of(df)
    for field_name, value in (("time", time), ("topic", topic), ("file", file)):
        if value is not None and not isinstance(value, str):
            raise ConfigError(field_name, value, "must be the name of a column, as text")
    keys, arrivals = _names_of("key", key), _names_of("arrival", arrival)
    declared = [("key", keys), ("arrival", arrivals), ("topic", (topic,)), ("file", (file,))]
    for field_name, wanted in declared:
        for name in wanted:
            if name is not None and name not in df.columns:
                raise ConfigError(field_name, name, f"must be a column{_suggest(name, df.columns)}")
    if time is not None:
        _check_time_column(df, time)
    if shards is not None:
        int_in("shards", shards, 1, MOST_SHARDS)
    if forget is not None:
        parse_duration(forget, "forget", minimum=1)
    return Frames(
        df, keys, time, topic, arrivals, types or EventtimeTypes(), shards, forget, file=file,
        state_key=None if state_key is None else StateKey(state_key),
        columnar=columnar, why_rows=why_rows, payload=payload, missing_payload=missing_payload,
    )  # fmt: skip


@dataclass(frozen=True)
class Frames(Dataflow):
    """A pipeline under construction, and its results. Every method returns a new one.

    Made by `frames(df, ...)`. A batch gives each table as a DataFrame (`data`, `late`, `errors`,
    `dropped`, `table(name)`). A stream has one state: `write` runs one query for all of its tables.
    """

    _handed_out: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The table that a stream has given out; new for every Frames."""

    # -- stages ---------------------------------------------------------------------------------

    def event_time(
        self,
        type: str = "timestamp",
        late_tolerance: Duration = 0,
        *,
        late: Literal["side_output", "drop"] = "side_output",
        watermark_per: Literal["collection", "tuple"] = "tuple",
        zone: str | None = None,
        format: str | None = None,
        **options: Any,
    ) -> Frames:
        """Put rows in order of their event time, within a tolerance.

        Args:
            type: How the time column is read (`timestamp`, `unixtimestamp_ns`, `iso8601`, ...). A
                column that this type can never read is a ConfigError.
            late_tolerance: How long rows are held back for later ones, in event time; a row further
                behind is late. Default 0: rows must come in order.
            late: `side_output` delivers late rows in the table `late`, `drop` only counts them.
            watermark_per: `tuple` judges lateness row by row, because how rows fall into
                micro-batches must not change results; `collection` is offered for comparison: in a
                backfill a whole shard would be one collection and nothing would ever be late.
            zone: The IANA zone of times without one; None: UTC, never the session's.
            format: The layout of text for the type `date_time`, as in `datetime.strptime`.
            **options: Further settings of `EventtimeWatermark` (`max_future_skew`, `source`,
                `idle_timeout`, ...).

        Raises:
            ConfigError: Without `frames(df, time=...)`, or for a wrong setting.
        """
        if self.time is None:
            raise ConfigError("time", None, "must name the event-time column: frames(df, time=...)")
        stage = EventtimeWatermark(late_tolerance, late, watermark_per, **options)
        decoder = Decoder((TimeColumn(self.time, type, zone=zone, format=format),), self.types)
        decoder.check_schema(arrow_schema(self.df))
        return replace(self, decoder=decoder, stages=(*self.stages, stage))

    def process_time(self, interval: Duration = "1 s") -> Frames:
        """Stamp rows with the clock when they are seen; for streams that carry no time.

        Args:
            interval: How often the watermark moves, in event time equal to the clock; default 1 s.
        """
        return self.then(ProcessTimeWatermark(interval))

    def synchronize(self, topics: Sequence[str], **options: Any) -> Frames:
        """Sets of one message per topic with nearly the same stamp, per key.

        Each row of `data` is a set: the key, `spread_ns`, `decided_at_ns`, and a struct per topic.
        Messages without a set are in `dropped`, with a reason.

        Args:
            topics: The topics a set is made of.
            **options: Further settings of `Synchronize` (`queue_size`, `max_interval`, ...).

        Raises:
            ConfigError: Without `topic`, or without a stage before it that gives rows a time.
        """
        stage = Synchronize(names("topics", topics), topic=self._topic(), keys=self.keys, **options)
        return self._timed("synchronize", 'synchronize(["camera", "lidar"])').then(stage)

    def align(
        self,
        topics: Mapping[str, Any],
        *,
        reference: str | None = None,
        grid: str | Duration | None = None,
        **options: Any,
    ) -> Frames:
        """What every stream was at the times of a reference topic, or on a grid, per key.

        Args:
            topics: A method per topic, such as `{"joint": align.latest("50 ms")}`.
            reference: The topic whose messages give the times. Either this or `grid`.
            grid: A rate (`"30 Hz"`) or a period (`"20 ms"`) instead.
            **options: The other settings of `tidegate.align.Align`.

        Returns:
            Frames whose `data` has one row per point: the key, the reference message, and per topic
            a struct of its columns with `time_ns`, `offset_ns` and `missing`. Messages that no row
            used are in `dropped`, offsets per topic in `table("offsets")`.
        """
        stage = Align(
            topics, reference=reference, grid=grid, topic=self._topic(), keys=self.keys, **options
        )
        return self._timed("align", "align(...)").then(stage)

    def episodes(self, **options: Any) -> Frames:
        """Rows numbered by episode and frame, per key, with actions made of the next row.

        Args:
            **options: The settings of `tidegate.align.Episodes`: `gap`, `marker`, `state`,
                `within`, `actions`, `last`.

        Returns:
            Frames whose `data` has `episode`, `frame`, `episode_time_ns` and the actions. Rows that
            are part of no episode are in `dropped`, one row per episode in `table("episodes")`.

        Raises:
            ConfigError: A setting is wrong, or no stage before it gives rows a time.
        """
        stage = Episodes(keys=self.keys, **options)
        return self._timed("episodes", 'episodes(gap="2 s")').then(stage)

    def batch(
        self, length: Duration = "1 s", *, gated: str | Sequence[str] | bool = True, **options: Any
    ) -> Frames:
        """Batches that close when the last expected pulse of every gated stream is in, per key.

        - `length`: how long a batch is, in event time; default 1 s.
        - `gated`: the streams a batch waits for; True: all that were seen, False: none.
        - `options`: further settings of `Batch`.

        `data` has every row with its batch and slot; `table("batch")` has one row per batch that
        says why it closed and what was missing. A control row `batch_length` changes the length
        while the stream runs. Raises ConfigError without `topic`, or without a time.
        """
        streams = gated if isinstance(gated, bool) else names("gated", gated)
        stage = Batch(length, topic=self._topic(), gated=streams, keys=self.keys, **options)
        return self._timed("batch", 'batch("1 s")').then(stage)

    def window(self, window: WindowKind | None = None, **options: Any) -> Frames:
        """Windows per key.

        Behind `event_time` rows come in order, so every row itself says what is complete.

        Args:
            window: The kind (`Tumbling`, `Session`, ...); None: `Adaptive`.
            **options: Trigger, late, aggregates, group_by and the other settings of `Window`.

        Raises:
            ConfigError: Without a stage before it that gives rows a time, or for a wrong setting.
        """
        ordered = any(isinstance(stage, EventtimeWatermark) for stage in self.stages)
        options.setdefault("in_order", ordered)
        stage = Window(window or Adaptive(), keys=self.keys, **options)
        return self._timed("window", "window(...)").then(stage)

    def compact(self, dims: int, **options: Any) -> Frames:
        """Chains of vector deltas in, vectors out.

        Args:
            dims: The length of the vectors.
            **options: Further settings of `Compact`.
        """
        return self.then(Compact(dims, keys=self.keys, **options))

    def then(self, *stages: Operator) -> Frames:
        """Add any operators, in this order. Their settings, keys included, are the caller's affair.

        Raises ConfigError on a stream for a stage that could wait for ever (`Operator.unbounded`).
        """
        for stage in stages:
            if self.df.isStreaming and (why := stage.unbounded()) is not None:
                raise ConfigError(stage.name, "a stream", why, message=why)
        return replace(self, stages=(*self.stages, *stages))

    # -- results --------------------------------------------------------------------------------

    @property
    def data(self) -> DataFrame:
        """What the last stage hands on."""
        return self.table("data")

    @property
    def late(self) -> DataFrame:
        """Rows that came too late, with `lateness_ns`."""
        return self.table("late")

    @property
    def errors(self) -> DataFrame:
        """Rows that could not be used, with `error_column`, `error_value` and `error_reason`."""
        return self.table("error")

    @property
    def dropped(self) -> DataFrame:
        """Rows a stage let go, each with its `reason`."""
        return self.table("dropped")

    def table(self, kind: str) -> DataFrame:
        """Return the rows of one kind.

        A stream gives one of its tables only: two of them, written apart, would be two queries with
        two states that read the input twice. `write` writes all of them with one state; the columns
        of the others are in `schemas`.

        Args:
            kind: `data`, `late`, `error`, `dropped`, or a side table by its name.

        Raises:
            ConfigError: For an unknown kind, or a second table of a stream.
        """
        if self.df.isStreaming and kind in self.schemas:
            first = self._handed_out.setdefault("kind", kind)
            if first != kind:
                raise ConfigError(
                    "table", kind,
                    f"would be a second query with a state of its own, beside that of {first}: "
                    "write all tables of a stream with one state by frames.write(path)",
                )  # fmt: skip
        for name, value in settings_of(self).items():
            log.warning(
                "columns hold lists, which Spark hands over slowly in long batches: "
                "spark.conf.set(%r, %s) makes it fast, and frames.write(path) does so by itself",
                name, value,
            )  # fmt: skip
        return super().table(kind)

    def write(
        self,
        path: str,
        *,
        format: str = "parquet",
        options: Mapping[str, str] | None = None,
        checkpoint: str | None = None,
        trigger: Duration | Literal["available_now"] = "available_now",
        name: str | None = None,
    ) -> StreamingQuery | Commit:
        """Write all tables under `path`, one folder per kind, exactly once: one query, one state.

        Args:
            path: A folder or URI. A batch needs an empty one.
            format: `parquet` (default), `delta`, `kafka`, `mcap`, or a registered one.
            options: The sink's own options, as text.
            checkpoint: Where a stream keeps its state; None: `path`/_checkpoint.
            trigger: Of a stream: `available_now` (default) reads what is there and ends; a duration
                such as `"1 s"` runs for ever, with at least that between two micro-batches.
            name: Of the query, in Spark's user interface.

        Returns:
            The running query of a stream, or the commit record of a batch when it is done.

        Raises:
            ConfigError: If `path` holds another run, or for a wrong setting.
            StateError: If the checkpoint of a stream cannot be used.
        """
        settings = SinkSettings(format, dict(options or {}))
        if not self.df.isStreaming:
            return run_batch_job(self, path, settings)
        if trigger == "available_now":
            return start(self, path, checkpoint=checkpoint, name=name, settings=settings)
        interval = f"{parse_duration(trigger, 'trigger', minimum=1) // 10**6} milliseconds"
        return start(
            self, path, checkpoint=checkpoint, mode="continuous", interval=interval, name=name,
            settings=settings,
        )  # fmt: skip

    def _repr_html_(self) -> str:
        """In a notebook: the plan and its tables. Runs no job."""
        from tidegate.report.notebook import plan_html

        head = {"frames on": "a stream" if self.df.isStreaming else "a batch",
                "key": ", ".join(self.keys), "topic": self.topic or "", "time": self.time or "",
                "order": self.arrival_rule().removeprefix("arrival order: ")}  # fmt: skip
        return plan_html(head, self.stages, self.schemas)

    # -- inside ---------------------------------------------------------------------------------

    def _topic(self) -> str:
        """Return the topic column. Raises ConfigError if none was named."""
        if self.topic is None:
            raise ConfigError("topic", None, "must name the topic column: frames(df, topic=...)")
        return self.topic

    def _timed(self, what: str, line: str) -> Frames:
        """Return this pipeline if its rows have a time when they come to a stage that needs one.

        Args:
            what: The stage that needs it, for the error.
            line: How the call of that stage is written, for the example in the error.

        Raises:
            ConfigError: If no stage so far gives rows a time; it shows the line to add.
        """
        if any(isinstance(s, EventtimeWatermark | ProcessTimeWatermark) for s in self.stages):
            return self
        given = "" if self.time is not None else 'frames(df, time="stamp", ...)'
        raise ConfigError(
            "time", self.time,
            f"{what} needs rows with a time: add the line that reads it, "
            f'{given}.event_time("timestamp", late_tolerance="200 ms").{line}, or .process_time() '
            "for the clock",
        )  # fmt: skip


def _names_of(field_name: str, value: object) -> tuple[str, ...]:
    """Return one name or several as a tuple. Raises ConfigError, with an example, for anything
    else, such as a pyspark Column.
    """
    try:
        return names(field_name, value)
    except ConfigError as error:
        text = f'{error.expected}, as text: {field_name}="vehicle"'
        raise ConfigError(field_name, value, text) from None


def _suggest(name: str, columns: Sequence[str]) -> str:
    """Return the end of an error sentence: the columns there are, and the one that is nearest."""
    near = get_close_matches(name, columns, 1)
    meant = f"; did you mean {near[0]}?" if near else ""
    return f": {', '.join(columns)}{meant}"


def _check_time_column(df: DataFrame, name: str) -> None:
    """Raise ConfigError unless `name` is a column, or the path of a field of a struct."""
    if name in df.columns:
        return
    kind: pa.DataType = pa.struct(list(arrow_schema(df)))
    above = ""
    for part in name.split("."):
        known = [one.name for one in kind] if pa.types.is_struct(kind) else []
        if part not in known:
            paths = [f"{above}{one}" for one in known] or list(df.columns)
            raise ConfigError("time", name, f"must be a column{_suggest(name, paths)}")
        kind, above = kind.field(part).type, f"{above}{part}."
