"""A pipeline as Spark runs it: DataFrames in, the stateful step, packed outcomes out.

    df ─► pack by shard ─► shuffle ─► step ─► outcomes: one row per shard, kind and call
                                                 │
                      `table(kind)` unpacks one kind; a sink (`tidegate.spark.query`) writes all

`Dataflow` is what `frames()` and a definition are turned into; `tidegate.spark.frames_api.Frames`
adds the methods by which users build one.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from time import time_ns

import pyarrow as pa
from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F  # noqa: N812  (the name everyone uses)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from tidegate.core.chain import Chain, check_time
from tidegate.core.columns import (
    ERROR_COLUMN,
    ERROR_REASON,
    ERROR_VALUE,
    FILE,
    LATENESS,
    REASON,
    TIME_NS,
    WATERMARK,
    check_columns,
    output_names,
)
from tidegate.core.flow import Flow
from tidegate.core.hashing import compile_hashing
from tidegate.core.operator import Operator
from tidegate.core.seal import StateKey
from tidegate.core.time import Duration, parse_duration
from tidegate.errors import ConfigError, StateError
from tidegate.eventtime import Decoder, EventtimeTypes, EventtimeWatermark
from tidegate.eventtime.arrival_order import ArrivalOrder, compile_arrival
from tidegate.output.savepoint import PAGE_SCHEMA, Savepoint, write_beginning
from tidegate.output.summary import HIGHEST, LOWEST
from tidegate.output.tally import audited_columns
from tidegate.spark.arrival import file_column
from tidegate.spark.blob_files import BlobFiles, blob_files
from tidegate.spark.columnar.format import ColumnarInput
from tidegate.spark.columnar.gate import Payload, Reading, choose_columns, ordering_columns
from tidegate.spark.columnar.payload import MissingPayload, PayloadAttacher
from tidegate.spark.columnar.pieces import PieceLog
from tidegate.spark.columnar.source import GateInput, GatePlan, open_gate
from tidegate.spark.connect import cores_of
from tidegate.spark.control_rows import pack_control
from tidegate.spark.pack import PACKED_TYPE, Packer, Renamed, Unpacker, arrow_schema, plain
from tidegate.spark.processor import ShardProcessor
from tidegate.spark.read_limits import no_steps
from tidegate.spark.shards import labels, shard_of
from tidegate.spark.sorted_batch import LARGE, RowPacker, is_large, row_type, sorted_outcomes
from tidegate.spark.stateful_step import (
    METRIC,
    STEP_TYPE,
    TOKEN_PAGE,
    EachShard,
    FlowRecipe,
    StepSettings,
    run_batch,
)

__all__ = ["Dataflow", "check_names_of"]

BATCH_SHARDS = 8
"""Shards of a batch per shuffle partition. All rows of a shard are in memory at once, so there
are more of them than in a stream, where a shard holds only what a micro-batch brings. With fewer, a
large batch runs out of memory; with many more, the cost of a group (a millisecond) counts."""

STREAM_SHARDS = 4
"""Shards of a stream per shuffle partition. A checkpoint keeps its shards for ever, and a partition
holds whole ones: with one each, a stream begun on two cores could never use more. More cost about a
millisecond each per micro-batch."""

ERROR_FIELDS = (ERROR_COLUMN, ERROR_VALUE, ERROR_REASON)
"""The columns that an error row has beside its own: which column, its value, and why."""


@dataclass(frozen=True)
class Dataflow:
    """Inputs, stages and settings of a pipeline, and the DataFrames it makes of them. Immutable.

    Args:
        df: The input, batch or streaming.
        keys: The key columns; order, watermark and state are per key. Empty: all rows are one key.
        time: The event-time column, or the path of a field of a struct; None: rows carry no time.
        topic: The column that names the stream of a row; None if no stage needs it.
        arrival: The columns that pin the order of arrival; empty: file and position.
        types: The event-time types that `decoder` may name.
        shards: Into how many parts the keys are divided. None: see `shard_count`.
        forget: A key silent for this long (wall time) is flushed and freed. None: never.
        decoder: Reads the event time of `df`; the default reads none.
        stages: The operators, in order.
        more: Further inputs with the same key, each with its own decoder.
        control: Control rows (`name`, `value` and the key columns); see `control_rows`.
        partitions: The partitions that the labels of the shards were chosen for. None: see
            `label_partitions`.
        recorded: Whether a stream runs over something recorded (available-now); a batch always
            does. See `tidegate.spark.arrival`.
        wall_ns: One fixed wall time, for runs that catch up. None: Spark's processing time.
        file: The column that names the file a row was recorded in; None: Spark is asked.
        warnings: Sentences about the definition that are logged before a run.
        columnar: The inputs as gate 1 reads them, one per input; empty: rows come through gate 2.
        why_rows: Why they do, in words for `explain`; None: the input is a DataFrame.
        payload: How columns travel that no stage looks at; see `tidegate.spark.columnar.gate`.
        missing_payload: What to do where a file is changed or gone before its rows left.
        log: Where a stream keeps the log of files it has found; None: it has none yet.
        ends: Whether a batch runs as a stream that ends with a flush.
        state_key: Seals the pages of a stream's state; None: they are not sealed.
        keep_timers: Whether the checkpoint was made with timers: Spark can neither add nor take
            them away, so they stay although no stage needs them any more.
        initial: The state a new query starts from, for these shards; None: an empty one.
        flow_name: The name under which a worker keeps its flows between micro-batches.
        read_at_once: Whether outcomes are read within their micro-batch, as a sink does, and never
            kept. Their blobs may then stay in files; see `tidegate.spark.blob_files`.
    """

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
    control: DataFrame | None = None
    partitions: int | None = None
    recorded: bool = False
    wall_ns: int | None = None
    file: str | None = None
    warnings: tuple[str, ...] = ()
    state_key: StateKey | None = None
    columnar: tuple[ColumnarInput, ...] = ()
    why_rows: str | None = None
    payload: Payload = "auto"
    missing_payload: MissingPayload = "stop"
    log: str | None = None
    ends: bool = False
    keep_timers: bool = False
    initial: Savepoint | None = None
    flow_name: str = field(default_factory=lambda: uuid.uuid4().hex)
    read_at_once: bool = False

    def inputs(self) -> Iterator[tuple[DataFrame, Decoder]]:
        """Yield every input with its decoder."""
        yield self.df, self.decoder
        yield from self.more

    # -- results --------------------------------------------------------------------------------

    def table(self, kind: str) -> DataFrame:
        """Return the rows of one kind: data, late, error, dropped, or a side table by its name.

        Raises ConfigError if there is no such kind.
        """
        schema = self.schemas.get(kind)
        if schema is None:
            raise ConfigError("kind", kind, f"must be one of {', '.join(self.schemas)}")
        for doubt in self._doubts:
            warnings.warn(doubt, stacklevel=4)
        whole = self._narrowed() if kind == "data" else self
        if whole.is_stream:  # rows leave Python within the micro-batch
            whole = replace(whole, read_at_once=True)
        packed = whole.outcomes.where(F.col("kind") == kind).select("blob")
        unpacker = Unpacker(schema, kind, whole.attacher)
        return packed.mapInArrow(unpacker, from_arrow_schema(schema))

    @cached_property
    def schemas(self) -> dict[str, pa.Schema]:
        """The Arrow schema of every kind of result. Runs no job."""
        data, refused = self._stage_rows
        time = pa.field(TIME_NS, pa.int64())
        return {
            "data": _with(data, time),
            "late": _with(
                refused, time, pa.field(LATENESS, pa.int64()), pa.field(WATERMARK, pa.int64())
            ),
            "error": _with(refused, *(pa.field(name, pa.string()) for name in ERROR_FIELDS)),
            "dropped": _with(refused, time, pa.field(REASON, pa.string())),
            **Chain(self.stages).side_schemas(self._row_schema),
        }

    @cached_property
    def _stage_rows(self) -> tuple[pa.Schema, pa.Schema]:
        """The columns of what the last stage hands on, and of rows that any stage refuses."""
        inputs = [self._row_schema]
        for stage in self.stages:
            inputs.append(stage.schema(inputs[-1]))
        refused = pa.unify_schemas(inputs[:-1] or inputs, promote_options="permissive")
        return inputs[-1], refused

    @cached_property
    def outcomes(self) -> DataFrame:
        """The packed results of the step: one row per shard, kind and call. For sinks."""
        recipe = self._recipe()
        recipe.make().compile()
        compile_arrival()
        compile_hashing()
        if not self.is_stream and self._is_sorted_by_spark:
            return self._sorted_outcomes(recipe)
        packed = self._packed(recipe)
        if not self.is_stream:
            return packed.groupBy("shard").applyInArrow(run_batch(recipe, time_ns()), STEP_TYPE)
        timers = self.needs_timers()
        settings = StepSettings(
            recipe, self.flow_name, timers, self.shard_count, self.wall_ns,
            self.blob_files if self.read_at_once else None,
        )  # fmt: skip
        return packed.groupBy("shard").transformWithState(
            ShardProcessor(settings),
            STEP_TYPE,
            "Append",
            "ProcessingTime" if timers else "None",
            None if self.initial is None else self._initial_rows(self.initial, timers),
        )

    @cached_property
    def _is_sorted_by_spark(self) -> bool:
        """Whether a batch is too large for a shard of it to be in memory at once."""
        if self.control is not None or any(reading.addressed for reading in self.readings):
            return False
        if self.readings:
            return sum(piece.nbytes for piece in self._static.pieces) >= LARGE
        return any(is_large(df) for df, _ in self.inputs())

    def _sorted_outcomes(self, recipe: FlowRecipe) -> DataFrame:
        """`outcomes` of a batch whose rows Spark sorts; see `tidegate.spark.sorted_batch`."""
        schema, names = self._row_schema, recipe.taken["error"]
        placed, files = [], bool(self.more)
        for number, (df, decoder) in enumerate(self.inputs()):
            packer = RowPacker(
                decoder, self.labels, self._key_fields(), number, names, columns=schema
            )
            mapped, has_file = self._mapped(df, packer, row_type(schema))
            files = files or has_file
            placed.append(mapped)
        return sorted_outcomes(
            placed, schema, recipe, time_ns(), partitions=self.partition_count, files=files
        )

    @cached_property
    def ungrouped_outcomes(self) -> DataFrame:
        """`outcomes` of a batch without a group: shards are sorted, and each is run when its rows
        are all there. For Declarative Pipelines, where Spark analyses the input of a group at once,
        though it may be a table that does not exist yet.
        """
        recipe = self._recipe()
        recipe.make().compile()
        compile_arrival()
        compile_hashing()
        packed = self._packed(recipe).repartition(self.partition_count, "shard")
        each = EachShard(run_batch(recipe, time_ns()))
        return packed.sortWithinPartitions("shard").mapInArrow(each, STEP_TYPE)

    def _initial_rows(self, saved: Savepoint, timers: bool) -> GroupedData:
        """Return the pages of a savepoint by shard, each shard with a token, as
        `ShardProcessor.handleInitialState` takes them."""
        token = f"{self.shard_count}:{uuid.uuid4().hex}".encode()
        rows = [
            {"shard": shard, "page": page, "blob": blob, "wake": timers and page == TOKEN_PAGE}
            for shard, pages in saved.pages.items()
            for page, blob in {**pages, TOKEN_PAGE: token}.items()
        ]
        schema = pa.schema([*PAGE_SCHEMA, pa.field("wake", pa.bool_())])
        table = pa.Table.from_pylist(rows, schema=schema)
        return self.df.sparkSession.createDataFrame(table).groupBy("shard")

    def saved_state(self, path: str) -> Savepoint:
        """Read a savepoint and arrange it for the shards and settings of this pipeline.

        Args:
            path: The folder or URI of the savepoint.

        Raises:
            StateError: It is damaged or cannot be adopted; or rows would leave it because of
                changed settings, which only a running stream can deliver.
        """
        saved, shards = Savepoint.read(path), self.shard_count
        own = self.labels
        if set(saved.pages) <= set(own) and saved.shards == shards:
            return saved
        made, outcomes = saved.regrouped(
            self._recipe().make, own, lambda keys, n: shard_of(keys, n, shards)
        )
        if any(len(outcome) for outcome in outcomes):
            raise StateError(
                f"{path} was made with other settings, and rows would leave because of the change: "
                "start with the old settings, then change them"
            )
        return made

    def note_beginning(self, out: str) -> None:
        """Write into a new output what its state begins with, if that is a savepoint."""
        if self.initial is not None:
            write_beginning(out, self.initial, self._recipe().make)

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
        chain = Chain(self.stages)
        for name, stage in zip(chain.labels, chain.stages, strict=True):
            for metric in stage.metrics(stage.open()):
                add = F.max if metric in HIGHEST else F.min if metric in LOWEST else F.sum
                levels.append(add(metrics[f"{name}.{metric}"]).alias(f"{name}.{metric}"))
        return self.outcomes.observe("tidegate", *counts, *levels)

    # -- settings that follow from others ---------------------------------------------------------

    @property
    def is_stream(self) -> bool:
        """Whether Spark runs it in micro-batches: a stream, or a batch that runs as one."""
        return self.df.isStreaming or self.ends

    @cached_property
    def readings(self) -> tuple[Reading, ...]:
        """What gate 1 reads of every input; empty where rows come through gate 2."""
        if self.no_gate() is not None:
            return ()
        always = [*self.keys, *self.arrival, *([self.topic] if self.topic else [])]
        return tuple(
            choose_columns(
                one, decoder, stages=self.stages, always=always, payload=self.payload,
                recorded=self.arrival_order.recorded,
            )
            for one, (_, decoder) in zip(self.columnar, self.inputs(), strict=True)
        )  # fmt: skip

    def no_gate(self) -> str | None:
        """Return why rows come through gate 2; None if they come through gate 1."""
        if not self.columnar:
            return self.why_rows or "the input is not made of files that Tidegate reads itself"
        if self.is_stream and self.log is None:
            return "a stream keeps a log of its files: use write(), which knows where"
        return None

    def gate(self) -> str:
        """Return a sentence that says how rows come to the step. Runs no job."""
        why = replace(self, log=self.log or "").no_gate()
        if why is not None:
            return f"rows come through Spark: {why}"
        one, *_ = readings = replace(self, log=self.log or "").readings
        formats = ", ".join(sorted({each.format.name for each in self.columnar}))
        most = max(readings, key=lambda reading: reading.row_bytes)
        return f"columns are read by Arrow ({formats}); {(most if most.addressed else one).why}"

    @cached_property
    def _static(self) -> PieceLog:
        """The files of a batch, found once: addresses name them by their numbers."""
        log = PieceLog(None)
        self._gate_plan(self._recipe(), find=False).look(log)
        return log

    @cached_property
    def attacher(self) -> PayloadAttacher | None:
        """What gives rows their payload where they leave; None if all of them carry it.

        A stream always has one: rows that an earlier run left in the state may have addresses.
        """
        addressed = any(reading.addressed for reading in self.readings)
        if not self.readings or not (addressed or self.is_stream):
            return None
        return PayloadAttacher(
            tuple(one.format for one in self.columnar),
            self.schemas,
            self.log if self.is_stream else None,
            () if self.is_stream else tuple(self._static.files),
            self.missing_payload,
            max(reading.row_bytes for reading in self.readings),
            self.flow_name,
        )

    @property
    def partition_count(self) -> int:
        """The shuffle partitions of the session, over which shards are spread.

        A platform may set `spark.sql.shuffle.partitions` to `auto`, which leaves the number to it;
        the shards of a state need a fixed one: that of the cores.
        """
        spark = self.df.sparkSession
        told = spark.conf.get("spark.sql.shuffle.partitions") or ""
        return int(told) if told.isdigit() else cores_of(spark)

    @property
    def shard_count(self) -> int:
        """How many shards the keys are divided into: `shards`, or `STREAM_SHARDS` or
        `BATCH_SHARDS` per shuffle partition."""
        each = STREAM_SHARDS if self.is_stream else BATCH_SHARDS
        return self.shards or self.partition_count * each

    @property
    def label_partitions(self) -> int:
        """The partitions over which the labels of shards spread evenly: those of the checkpoint, or
        as many as there are shards where these fill all shuffle partitions alike. Then they fill
        every divisor alike, too: eight shards on two partitions, rescaled to four or eight."""
        if self.partitions is not None:
            return self.partitions
        even = self.shard_count % self.partition_count == 0
        return self.shard_count if even else self.partition_count

    @cached_property
    def labels(self) -> tuple[int, ...]:
        """The label of each shard: the group that Spark knows it by."""
        return labels(self.shard_count, self.label_partitions)

    def needs_timers(self) -> bool:
        """Whether any stage may ask to be woken: only then does Spark run empty micro-batches."""
        if self.ends:  # a backfill has one fixed clock
            return False
        return (
            self.keep_timers
            or self.forget is not None
            or any(stage.uses_wall_time() for stage in self.stages)
        )

    @cached_property
    def arrival_order(self) -> ArrivalOrder:
        """The rule by which rows are put in order of arrival."""
        recorded = self.recorded or not self.df.isStreaming
        skew, confirm = -1, 1
        for stage in self.stages:
            if isinstance(stage, EventtimeWatermark) and stage.max_future_skew is not None:
                skew, confirm = parse_duration(stage.max_future_skew), stage.skew_confirm
        return ArrivalOrder(self.arrival, recorded, self.keys, skew, confirm)

    def arrival_rule(self) -> str:
        """Return a sentence that says in which order rows are taken. Runs no job."""
        files = all(self._file_column(df, df.columns) is not None for df, _ in self.inputs())
        return self.arrival_order.describe(files)

    def notes(self) -> list[str]:
        """Return what is worth saying before a run: the order of arrival, the gate, warnings."""
        steps = no_steps() if self.readings and self.is_stream else []
        sorts = not self.is_stream and not self.columnar and self._is_sorted_by_spark
        pieces = ["Spark sorts the rows, and stages take them in pieces: the batch may not fit in "
                  "memory"] if sorts else []  # fmt: skip
        return [self.arrival_rule(), self.gate(), *pieces, *self.warnings, *steps, *self._doubts]

    @cached_property
    def _doubts(self) -> list[str]:
        """What stages say about settings that are probably not meant."""
        rows, found = self._row_schema, list[str]()
        for stage in self.stages:
            found += stage.notes(rows)
            rows = stage.schema(rows)
        return found

    # -- inside ---------------------------------------------------------------------------------

    def _recipe(self) -> FlowRecipe:
        """Return how workers make the flow of a shard. Raises ConfigError if a stage needs a time
        and no stage before it gives one.
        """
        stages, keys, forget, state_key = self.stages, self.keys, self.forget, self.state_key
        timed = any(decoder.times for _, decoder in self.inputs())
        check_time(stages, timed, 'frames(df, time="stamp", ...).event_time("timestamp")')

        def make() -> Flow:
            return Flow(stages, key=keys, forget=forget, timed=timed, state_key=state_key)

        return FlowRecipe(make, self.arrival_order, self._taken_names(), self._audited())

    def _audited(self) -> dict[str, tuple[str, ...]]:
        """Return which columns are hashed for `tidegate audit`: of those that rows carry through
        the step, with one type in all inputs."""
        schemas = [arrow_schema(df) for df, _ in self.inputs()]
        left_behind = {
            name
            for reading, schema in zip(self.readings, schemas, strict=False)
            if reading.addressed
            for name in schema.names
            if name not in reading.columns
        }
        agreed = [
            field
            for field in self._row_schema
            if field.name not in left_behind
            and all(s.field(field.name).type == field.type for s in schemas
                    if field.name in s.names)
        ]  # fmt: skip
        tables = {
            kind: pa.schema([field for field in table if field.name not in left_behind])
            for kind, table in self.schemas.items()
        }
        return audited_columns(pa.schema(agreed), tables)

    def _taken_names(self) -> dict[str, tuple[str, ...]]:
        """Per kind the names that our columns must keep clear of, so that a batch of rows without
        some column names them as the whole table does."""
        data, refused = self._stage_rows
        others = tuple(refused.names)
        return {"data": tuple(data.names), "late": others, "error": others, "dropped": others}

    def _packed(self, recipe: FlowRecipe) -> DataFrame:
        """Return all inputs as blobs by shard.

        Columns are numbered before Spark sees them and named again inside Python (see
        `pack.plain`); the file of a row, if known, travels as one more column.
        """
        parts = []
        if self.readings:
            plan = self._gate_plan(recipe)
            parts.append(open_gate(self.df.sparkSession, plan, streaming=self.is_stream))
        for number, (df, decoder) in enumerate(() if self.readings else self.inputs()):
            parts.append(self._mapped(df, self._packer(number, decoder, recipe), PACKED_TYPE)[0])
        if self.control is not None:
            parts.append(self._packed_control())
        return reduce(DataFrame.union, parts)

    def _mapped(self, df: DataFrame, packer: Packer, made: StructType) -> tuple[DataFrame, bool]:
        """Return the rows of an input as a packer makes them, and whether their file is known."""
        names = tuple(df.columns)
        numbered = df.toDF(*(plain(place) for place in range(len(names))))
        file = self._file_column(numbered, names)
        columns = [F.col(name) for name in numbered.columns]
        if file is not None:
            columns.append(file.alias(FILE))
        inside = (*names, FILE)[: len(columns)]
        told = numbered if file is None else numbered.select(*columns)
        return told.mapInArrow(Renamed(inside, packer), made), file is not None

    def _gate_plan(self, recipe: FlowRecipe, *, find: bool = True) -> GatePlan:
        """Return the plan of gate 1. `find`: whether a batch looks for its files now."""
        order = self.arrival_order
        inputs = []
        for number, (one, reading) in enumerate(zip(self.columnar, self.readings, strict=True)):
            decoder = list(self.inputs())[number][1]
            packer = self._packer(number, decoder, recipe)
            ordering = ordering_columns(order, decoder, one.format.schema)
            inputs.append(
                GateInput(
                    one.format, reading.columns, reading.addressed, packer, ordering or (),
                    one.limits,
                )
            )  # fmt: skip
        found = self._static if find and not self.is_stream else None
        return GatePlan(
            tuple(inputs), self.labels, order.recorded and self.is_stream, bool(order.columns),
            self.log, cores_of(self.df.sparkSession), self.ends,
            None if found is None else (tuple(found.files), tuple(found.pieces)),
        )  # fmt: skip

    @cached_property
    def blob_files(self) -> BlobFiles | None:
        """Where the blobs of a stream may stay between its stages; None: they are carried."""
        return blob_files(self.df.sparkSession) if self.is_stream else None

    def _packer(self, number: int, decoder: Decoder, recipe: FlowRecipe) -> Packer:
        """Return what packs the rows of one input."""
        taken = recipe.taken["error"]
        return Packer(decoder, self.labels, self._key_fields(), number, taken, self.blob_files)

    def _packed_control(self) -> DataFrame:
        """Return the control rows as blobs. Raises ConfigError if one of their columns is
        missing.
        """
        assert self.control is not None
        names = tuple(self.control.columns)
        numbered = self.control.toDF(*(plain(place) for place in range(len(names))))
        missing = [name for name in ("name", "value", *self.keys) if name not in names]
        if missing:
            raise ConfigError("control", list(names), f"must have the columns {missing}")
        return pack_control(numbered, names, self._key_fields(), self.labels)

    def _key_fields(self) -> tuple[pa.Field, ...]:
        """Return the key columns in the types that all inputs agree on."""
        return tuple(self._row_schema.field(name) for name in self.keys)

    def _file_column(self, df: DataFrame, names: Sequence[str]) -> Column | None:
        """The file of a row; `names` are the columns of `df`, which may be numbered."""
        if self.file is None or self.file not in names:
            return file_column(df, None, ties_only=bool(self.arrival))
        column = df.columns[list(names).index(self.file)]
        return file_column(df, _column_named(column), ties_only=bool(self.arrival))

    def _narrowed(self) -> Dataflow:
        """This pipeline without the columns that its data is not made of: Spark then does not even
        read them, as it would not for an aggregation of its own."""
        read = Chain(self.stages).input_columns()
        if read is None or self.more:
            return self
        times = self.decoder.columns_of(self.df.columns)
        wanted = {*read, *self.keys, *self.arrival, *times, self.file}
        kept = [name for name in self.df.columns if name in wanted]
        if len({name.lower() for name in kept}) < len(kept):
            return self
        df = self.df.select(*(_column_named(name) for name in kept))
        columnar = tuple(one._replace(format=one.format.narrowed(kept)) for one in self.columnar)
        return replace(self, df=df, columnar=columnar)

    @cached_property
    def _row_schema(self) -> pa.Schema:
        """The columns of all inputs together. Raises ConfigError if a column has types that do not
        agree.
        """
        schemas = [arrow_schema(df) for df, _ in self.inputs()]
        try:
            return pa.unify_schemas(schemas, promote_options="permissive")
        except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
            text = f"streams of one pipeline must agree in the types of their columns: {error}"
            raise ConfigError("streams", "columns", text, message=text) from error


def check_names_of(df: DataFrame) -> None:
    """Raise ConfigError if the columns of a DataFrame cannot be told apart, or one is internal.

    Every other name is allowed, with dots, backticks, spaces and in any script.
    """
    check_columns(df.columns)
    check_columns(_fields_inside(df.schema), "field of a struct")
    sensitive = str(df.sparkSession.conf.get("spark.sql.caseSensitive")).lower() == "true"
    seen: dict[str, str] = {}
    for name in df.columns:
        same = name if sensitive else name.lower()
        if seen.get(same) == name:
            raise ConfigError("column", name, "appears twice; rename one of the two")
        if same in seen:
            raise ConfigError(
                "column", name,
                f"differs from {seen[same]!r} only in case, which this session cannot tell apart: "
                "rename one of the two, or set spark.sql.caseSensitive to true",
            )  # fmt: skip
        seen[same] = name


def _fields_inside(kind: DataType) -> Iterator[str]:
    """Yield the names of all fields of structs inside the columns: an address of ours in the struct
    of a topic must not be taken for the user's, nor theirs for ours."""
    if isinstance(kind, StructType):
        for each in kind.fields:
            if isinstance(each.dataType, StructType):
                yield from each.dataType.names
            yield from _fields_inside(each.dataType)
    elif isinstance(kind, ArrayType):
        yield from _fields_inside(kind.elementType)
    elif isinstance(kind, MapType):
        yield from _fields_inside(kind.valueType)


def _column_named(name: str) -> Column:
    """The column of this very name: Spark reads a dot as a field of a struct."""
    return F.col("`" + name.replace("`", "``") + "`")


def _with(schema: pa.Schema, *fields: pa.Field) -> pa.Schema:
    """Return a schema with more fields at its end, renamed where a name is taken."""
    names = output_names(schema.names, [extra.name for extra in fields])
    for extra in fields:
        schema = schema.append(extra.with_name(names[extra.name]))
    return schema
