"""Tidegate on DataFrames: declare key, time and arrival, add stages, get DataFrames back.

The same code serves batch and streaming: what `df` is, the results are.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from time import time_ns
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (the name everyone uses)
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type

from tidegate.align import Align
from tidegate.batching.stage import Batch
from tidegate.core.chain import Chain
from tidegate.core.columns import output_names
from tidegate.core.flow import Flow
from tidegate.core.operator import Operator
from tidegate.core.time import Duration
from tidegate.deltas import Compact
from tidegate.errors import ConfigError
from tidegate.eventtime import (
    Decoder,
    EventtimeTypes,
    EventtimeWatermark,
    ProcessTimeWatermark,
    TimeColumn,
)
from tidegate.spark.control_rows import pack_control
from tidegate.spark.pack import (
    PACKED_DDL,
    SHARD,
    Packer,
    Unpacker,
    arrow_schema,
    column,
    limit_list_batches,
    map_rows,
)
from tidegate.spark.processor import ShardProcessor
from tidegate.spark.shards import labels
from tidegate.spark.stateful_step import METRIC, STEP_DDL, FlowRecipe, StepSettings, run_batch
from tidegate.sync import Synchronize
from tidegate.windows import Adaptive, Window, WindowKind

__all__ = ["Frames", "frames"]

BATCH_SHARDS_PER_CORE = 8
"""Shards of a backfill per shuffle partition: all rows of a shard are in memory at once, so there
are more of them than in a stream, where a shard holds only what a micro-batch brings."""


def frames(
    df: DataFrame,
    *,
    key: str | Sequence[str] | None = None,
    time: str | None = None,
    topic: str | None = None,
    arrival: str | Sequence[str] | None = None,
    types: EventtimeTypes | None = None,
    shards: int | None = None,
    forget: Duration | None = None,
) -> Frames:
    """Start a pipeline on a DataFrame, batch or streaming.

    - `key`: what the pipeline is repeated for; order, watermark and state are per key.
    - `time`: the column that carries event time; its type is given to `event_time`.
    - `topic`: the column that names the stream a row belongs to.
    - `arrival`: the column or columns that pin the order of arrival (a log time, a Kafka offset).
      After a shuffle rows come in any order; without it they are taken as Spark's partitions had
      them.
    """
    keys = (key,) if isinstance(key, str) else tuple(key or ())
    arrivals = (arrival,) if isinstance(arrival, str) else tuple(arrival or ())
    for field_name, names in (("key", keys), ("arrival", arrivals), ("time", (time,)),
                              ("topic", (topic,))):  # fmt: skip
        for name in names:
            if name is not None and name not in df.columns:
                raise ConfigError(field_name, name, f"must be a column: {', '.join(df.columns)}")
    if "time_ns" in df.columns and time != "time_ns":
        raise ConfigError("time_ns", "a column of the input", "is the name of ours; rename yours")
    if shards is not None and (isinstance(shards, bool) or not 1 <= shards <= 65_535):
        raise ConfigError("shards", shards, "must be from 1 to 65535")
    return Frames(df, keys, time, topic, arrivals, types or EventtimeTypes(), shards, forget)


@dataclass(frozen=True)
class Frames:
    """A pipeline under construction, and its results. Every method returns a new one."""

    df: DataFrame
    keys: tuple[str, ...]
    time: str | None
    topic: str | None
    arrival: tuple[str, ...]
    types: EventtimeTypes
    shards: int | None
    forget: Duration | None
    decoder: Decoder = field(default_factory=Decoder)
    stages: tuple[Operator, ...] = ()
    more: tuple[tuple[DataFrame, Decoder], ...] = ()
    """Further streams with the same key, each with its own decoder."""
    control: DataFrame | None = None
    """Control rows: `name`, `value` and the key columns; see `tidegate.spark.control_rows`."""
    partitions: int | None = None
    """Shuffle partitions the shards are spread over. Unset: those of the session."""
    wall_ns: int | None = None
    """A clock that stands still: for runs that catch up. Unset, a stream has Spark's own."""
    flow_name: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Under which a worker keeps its flows between micro-batches."""

    # -- stages ---------------------------------------------------------------------------------

    def event_time(
        self,
        type: str = "timestamp",
        late_tolerance: Duration = 0,
        *,
        late: Literal["side_output", "drop"] = "side_output",
        watermark_per: Literal["collection", "tuple"] = "tuple",
        **options: Any,
    ) -> Frames:
        """Put rows in order of their event time, within a tolerance.

        On Spark lateness is judged row by row (`watermark_per="tuple"`), because how rows fall
        into micro-batches must not change results; in a backfill a whole shard would be one
        collection and nothing would ever be late.
        """
        if self.time is None:
            raise ConfigError("time", None, "must name the event-time column: frames(df, time=...)")
        stage = EventtimeWatermark(late_tolerance, late, watermark_per, **options)
        decoder = Decoder((TimeColumn(self.time, type),), self.types)
        return replace(self, decoder=decoder, stages=(*self.stages, stage))

    def process_time(self, interval: Duration = "1 s") -> Frames:
        """Stamp rows with the clock when they are seen; for streams that carry no time."""
        return self.then(ProcessTimeWatermark(interval))

    def synchronize(self, topics: Sequence[str], **options: Any) -> Frames:
        """Sets of one message per topic with nearly the same stamp, per key.

        Each row of `data` is a set: the key, `spread_ns`, `decided_at_ns`, and a struct per topic.
        Options are those of `Synchronize`; messages without a set are in `dropped`, with a reason.
        """
        stage = Synchronize(tuple(topics), topic=self._topic(), keys=self.keys, **options)
        return self.then(stage)

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
        return self.then(stage)

    def batch(
        self, length: Duration = "1 s", *, gated: Sequence[str] | bool = True, **options: Any
    ) -> Frames:
        """Batches that close when the last expected pulse of every gated stream is in, per key.

        `data` has every row with its batch and slot; `table("batch")` has one row per batch that
        says why it closed and what was missing. Options are those of `Batch`. A control row
        `batch_length` changes the length while the stream runs.
        """
        streams = gated if isinstance(gated, bool) else tuple(gated)
        stage = Batch(length, topic=self._topic(), gated=streams, keys=self.keys, **options)
        return self.then(stage)

    def window(self, window: WindowKind | None = None, **options: Any) -> Frames:
        """Windows per key; options (trigger, late, aggregates, group_by ...) are those of `Window`.

        Behind `event_time` rows come in order, so every row itself says what is complete.
        """
        ordered = any(isinstance(stage, EventtimeWatermark) for stage in self.stages)
        options.setdefault("in_order", ordered)
        return self.then(Window(window or Adaptive(), keys=self.keys, **options))

    def compact(self, dims: int, **options: Any) -> Frames:
        """Chains of vector deltas in, vectors out; options are those of `Compact`."""
        return self.then(Compact(dims, keys=self.keys, **options))

    def then(self, *stages: Operator) -> Frames:
        """Any operators, in this order."""
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
        """The rows of one kind: data, late, error, dropped, or a side table by its name."""
        schema = self.schemas.get(kind)
        if schema is None:
            raise ConfigError("kind", kind, f"must be one of {', '.join(self.schemas)}")
        whole = self._narrowed() if kind == "data" else self
        packed = whole.outcomes.where(F.col("kind") == kind).select("blob")
        return packed.mapInArrow(Unpacker(schema), from_arrow_schema(schema))

    @cached_property
    def schemas(self) -> dict[str, pa.Schema]:
        """The columns of every kind of result."""
        rows = self._row_schema
        chain = Chain(self.stages)
        inputs = [rows]
        for stage in self.stages:
            inputs.append(stage.schema(inputs[-1]))
        refused = pa.unify_schemas(inputs[:-1] or [rows], promote_options="permissive")
        time_ns = pa.field("time_ns", pa.int64())
        return {
            "data": _with(inputs[-1], time_ns),
            "late": _with(
                refused,
                time_ns,
                pa.field("lateness_ns", pa.int64()),
                pa.field("watermark_ns", pa.int64()),
            ),
            "error": _with(refused, *_ERROR_FIELDS),
            "dropped": _with(refused, time_ns, pa.field("reason", pa.string())),
            **chain.side_schemas(rows),
        }

    @cached_property
    def outcomes(self) -> DataFrame:
        """The packed results of the step: one row per shard, kind and call. For sinks."""
        count = self.shard_count
        shard_labels = labels(count, self.partition_count)
        # An int and a long that are equal have different hashes: streams must agree on the type.
        keys = [column(name).cast(from_arrow_type(self._row_schema.field(name).type))
                for name in self.keys]  # fmt: skip
        shard = (F.pmod(F.hash(*keys), F.lit(count)) if keys else F.lit(0)).cast("int")
        for df in (self.df, *(more for more, _ in self.more)):
            limit_list_batches(df)
        parts = [
            map_rows(df.withColumn(SHARD, shard), Packer(decoder, shard_labels, number), PACKED_DDL)
            for number, (df, decoder) in enumerate(((self.df, self.decoder), *self.more))
        ]
        if self.control is not None:
            parts.append(pack_control(self.control, self.keys, shard, shard_labels))
        packed = reduce(DataFrame.union, parts)
        stages, names, forget = self.stages, self.keys, self.forget

        def make() -> Flow:
            return Flow(stages, key=names, forget=forget, timed=True)

        step = FlowRecipe(make, self.arrival)
        make().compile()
        if not self.df.isStreaming:
            return packed.groupBy("shard").applyInArrow(run_batch(step, time_ns()), STEP_DDL)
        timers = self.needs_timers()
        told = StepSettings(step, self.flow_name, timers, count, self.wall_ns)
        return packed.groupBy("shard").transformWithState(
            ShardProcessor(told), STEP_DDL, "Append", "ProcessingTime" if timers else "None"
        )

    @property
    def observed(self) -> DataFrame:
        """`outcomes` with our counters in Spark's streaming progress, under the name `tidegate`."""
        rows = F.col("rows")
        metrics = F.when(F.col("kind") == METRIC, F.col("metrics"))
        counts = [
            F.sum(F.when(F.col("kind") == kind, rows).otherwise(0)).alias(f"{kind}_rows")
            for kind in self.schemas
        ]
        levels = [
            F.sum(metrics["rows_in"]).alias("rows_in"),
            F.sum(metrics["keys"]).alias("keys"),
            F.sum(metrics["state_bytes"]).alias("state_bytes"),
            F.max("watermark_ns").alias("watermark_ns"),
        ]
        stages = {stage.name: stage for stage in self.stages}
        for name, stage in stages.items():
            for metric in stage.metrics(stage.open()):
                if metric in HIGHEST:
                    total = F.max(metrics[f"{name}.{metric}"])
                else:
                    total = F.sum(metrics[f"{name}.{metric}"])
                levels.append(total.alias(f"{name}.{metric}"))
        return self.outcomes.observe("tidegate", *counts, *levels)

    @property
    def partition_count(self) -> int:
        """The shuffle partitions that shards are spread over."""
        told = self.partitions or self.df.sparkSession.conf.get("spark.sql.shuffle.partitions")
        return int(told or 2)

    @property
    def shard_count(self) -> int:
        """How many shards the keys are spread over."""
        each = 1 if self.df.isStreaming else BATCH_SHARDS_PER_CORE
        return self.shards or self.partition_count * each

    def _repr_html_(self) -> str:
        """In a notebook: the plan and its tables. Runs no job."""
        from tidegate.report.notebook import plan_html

        head = {"frames on": "a stream" if self.df.isStreaming else "a batch",
                "key": ", ".join(self.keys), "topic": self.topic or "", "time": self.time or "",
                "arrival": ", ".join(self.arrival)}  # fmt: skip
        return plan_html(head, self.stages, self.schemas)

    # -- inside ---------------------------------------------------------------------------------

    def _narrowed(self) -> Frames:
        """This pipeline without the columns that its data is not made of: Spark then does not even
        read them, as it would not for an aggregation of its own."""
        read = Chain(self.stages).input_columns()
        if read is None or self.more:
            return self
        times = {time.message or time.column for time in self.decoder.times}
        wanted = {*read, *self.keys, *self.arrival, *times}
        return replace(
            self, df=self.df.select(*(column(n) for n in self.df.columns if n in wanted))
        )

    def _topic(self) -> str:
        if self.topic is None:
            raise ConfigError("topic", None, "must name the topic column: frames(df, topic=...)")
        return self.topic

    @cached_property
    def _row_schema(self) -> pa.Schema:
        schemas = [arrow_schema(df) for df in (self.df, *(df for df, _ in self.more))]
        try:
            return pa.unify_schemas(schemas, promote_options="permissive")
        except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
            text = f"streams of one pipeline must agree in the types of their columns: {error}"
            raise ConfigError("streams", "columns", text, message=text) from error

    def needs_timers(self) -> bool:
        """Whether any stage may ask to be woken: only then does Spark run empty micro-batches."""
        return self.forget is not None or any(stage.uses_wall_time() for stage in self.stages)


_ERROR_FIELDS = [
    pa.field(name, pa.string()) for name in ("error_column", "error_value", "error_reason")
]

HIGHEST = frozenset({"current_watermark", "max_timestamp_seen", "max_lateness"})
"""Metrics of which the highest over all shards counts; of all others it is the sum."""


def _with(schema: pa.Schema, *fields: pa.Field) -> pa.Schema:
    names = output_names(schema.names, [extra.name for extra in fields])
    for extra in fields:
        schema = schema.append(extra.with_name(names[extra.name]))
    return schema
