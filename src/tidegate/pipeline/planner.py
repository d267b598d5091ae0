"""From a definition to a physical plan: every name is checked, every stage is built, nothing runs.

Rules of planning:

1. **No time, no decision.** A stream that declares event time, or a stage that decides by time,
   needs `options.eventtime.enabled` to be set. Without it the plan is refused, and the error names
   the line to add.
2. `enabled: true` puts a PhysicalEventtimeWatermark before the first stage that needs time. If no
   stage does, it comes right after the decoder: putting rows in order is useful without a window.
3. `enabled: false` means processing time: what streams declare about event time is ignored, and a
   PhysicalProcessTimeWatermark is put before the first stage that needs time.
4. Stages before the watermark see rows in order of arrival, and rows they hold back do not advance
   time. `explain` says so.
5. What the schema can tell is told here and not by the rows: columns that do not exist, a time
   column whose type the declared event-time type can never read, keys that are lists, internal
   names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidegate.core.chain import Chain
from tidegate.core.columns import check_columns
from tidegate.core.flow import Flow
from tidegate.core.operator import Operator
from tidegate.errors import ConfigError
from tidegate.eventtime import (
    Decoder,
    EventtimeTypes,
    EventtimeWatermark,
    ProcessTimeWatermark,
    TimeColumn,
)
from tidegate.pipeline import plan_nodes as nodes
from tidegate.pipeline.definition import (
    EventtimeDefinition,
    PipelineDefinition,
    StreamDefinition,
)
from tidegate.pipeline.stages import STAGES, StageContext, Stages
from tidegate.pipeline.user_types import known_types

__all__ = ["Input", "Plan", "named_types", "plan"]

DEFAULT_TICK_NS = 10**9
"""Time between two watermarks of processing time, where no window tells how often they are needed.
One second: shorter costs a micro-batch each, longer delays results."""


@dataclass(frozen=True)
class Input:
    """One stream of a plan: where its rows are, and how they get their times.

    Args:
        source: The stream's columns and source.
        decoder: Reads the time of each row. Streams may have different time columns.
    """

    source: nodes.PhysicalDataSource
    decoder: Decoder

    @property
    def stream(self) -> str:
        """The name of the stream in the definition."""
        return self.source.stream


@dataclass(frozen=True)
class Plan:
    """A definition that has been checked, as the nodes that run.

    Args:
        definition: What was planned.
        inputs: The streams, in the order of the definition; at least one.
        nodes: Source and decoder of every stream, then the stages with the watermark among them,
            then the sink if there is one.
    """

    definition: PipelineDefinition
    inputs: tuple[Input, ...]
    nodes: tuple[nodes.Node, ...]

    @property
    def key(self) -> tuple[str, ...]:
        """The key columns, the same for all streams."""
        return self.inputs[0].source.key

    @property
    def topic(self) -> str | None:
        """The topic column, the same for all streams."""
        return self.inputs[0].source.topic

    @property
    def arrival(self) -> tuple[str, ...]:
        """The arrival columns of the first stream."""
        return self.inputs[0].source.arrival

    @property
    def decoder(self) -> Decoder:
        """The decoder of the first stream. With several streams, each input has its own."""
        return self.inputs[0].decoder

    def flow_stages(self) -> tuple[Operator, ...]:
        """Return the operators, in order."""
        return tuple(node.operator for node in self.nodes if node.operator is not None)

    def flow(self) -> Flow:
        """Return a flow that runs this plan in process. With several streams, decode each with the
        decoder of its input and give the collections to `accept`."""
        return Flow(
            self.flow_stages(),
            key=self.key,
            decoder=self.decoder,
            forget=self.definition.options.forget,
        )

    def schema(self, rows: pa.Schema) -> pa.Schema:
        """Return the schema of the data that comes out, for rows of this schema.

        Raises:
            ConfigError: A stage cannot work with these columns.
        """
        return Chain(self.flow_stages()).schema(rows)

    def side_schemas(self, rows: pa.Schema) -> dict[str, pa.Schema]:
        """Return the schemas of the tables beside the data: late rows, errors, ..."""
        return Chain(self.flow_stages()).side_schemas(rows)


def plan(
    definition: PipelineDefinition,
    schemas: Mapping[str, pa.Schema | Sequence[str]] | None = None,
    *,
    types: EventtimeTypes | None = None,
    stages: Stages = STAGES,
) -> Plan:
    """Check a definition and build its physical plan.

    Args:
        definition: What to plan.
        schemas: Per stream the schema (or the column names) of its data. A stream that is not in
            it has the columns of its definition; without either, columns are not checked.
        types: The event-time types; if not given, the built-in ones and those of `--types`.
        stages: The stages that a definition may use.

    Raises:
        ConfigError: For the first thing that is wrong, with the line of the file.

    >>> definition = PipelineDefinition.of({"streams": {"s": {"columns": ["t"]}}})
    >>> [node.name for node in plan(definition).nodes]
    ['PhysicalDataSource', 'PhysicalDecoder']
    """
    registry = types or known_types(named_types(definition))
    enabled = _event_time(definition, stages)
    if enabled and not any(_declares(stream) for stream in definition.streams.values()):
        names = ", ".join(definition.streams)
        message = (
            f"eventtime.enabled=true but no stream declares eventtime (streams: {names})"
            + definition.where("options", "eventtime", "enabled")
        )
        raise ConfigError(
            "options.eventtime.enabled", True, "needs a stream with eventtime", message=message
        )
    inputs = []
    for name, stream in definition.streams.items():
        known = (schemas or {}).get(name)
        inputs.append(_input(definition, name, stream, known, registry))
    _agree(definition, inputs)
    _check_source_column(definition, inputs)
    steps = _plan_stages(definition, inputs[0].source, stages)
    out: list[nodes.Node] = []
    for each in inputs:
        columns = each.source.columns
        out += [each.source, nodes.PhysicalDecoder(each.stream, each.decoder, columns)]
    out += steps
    if definition.sink is not None:
        out.append(nodes.PhysicalSink(definition.sink))
    made = Plan(definition, tuple(inputs), tuple(out))
    _check_schemas(made, schemas or {})
    return made


def _event_time(definition: PipelineDefinition, stages: Stages) -> bool:
    """Decide between event time and processing time; refuse a definition that leaves it open."""
    enabled = definition.options.eventtime.enabled
    if enabled is not None:
        return enabled
    line = "`options: {eventtime: {enabled: true}}`"
    for name, stream in definition.streams.items():
        if _declares(stream):
            expected = f"must be set: add {line}, or `enabled: false` to ignore the declaration"
            raise ConfigError(
                "options.eventtime.enabled",
                None,
                expected,
                message=f"stream `{name}` declares eventtime, but options.eventtime.enabled is not "
                f"set: add {line}, or `enabled: false` for processing time"
                + definition.where("streams", name, "eventtime"),
            )
    for number, wanted in enumerate(definition.stages):
        if wanted.name in stages.list() and stages.resolve(wanted.name).decides_by_time:
            raise ConfigError(
                "options.eventtime.enabled",
                None,
                "must be set",
                message=f"stages[{number}].{wanted.name} decides by time, and no stream declares "
                f"one: add `eventtime: {{column: ..., type: ...}}` to every stream and {line}, or "
                "`options: {eventtime: {enabled: false}}` for the time at which rows are seen"
                + definition.where("stages", number),
            )
    return False


def named_types(definition: PipelineDefinition) -> list[str]:
    """Return the event-time types that a definition uses."""
    declared = [stream.eventtime for stream in definition.streams.values()]
    for stream in definition.streams.values():
        declared += [message.eventtime for message in stream.messages.values()]
    return [each.type for each in declared if each is not None]


def _declares(stream: StreamDefinition) -> bool:
    """Return whether a stream declares event time, for its rows or inside one of its messages."""
    return stream.eventtime is not None or any(
        message.eventtime is not None for message in stream.messages.values()
    )


def _input(
    definition: PipelineDefinition,
    name: str,
    stream: StreamDefinition,
    known: pa.Schema | Sequence[str] | None,
    types: EventtimeTypes,
) -> Input:
    """Check one stream against its columns and return it with its decoder.

    Args:
        definition: The whole definition, for lines in errors and the choice of the clock.
        name: The name of the stream.
        stream: Its definition.
        known: The schema or the column names of its data. None: what the definition lists, if
            anything.
        types: The event-time types that may be used.
    """
    columns: tuple[str, ...] | None = None
    if known is not None:
        columns = tuple(known.names if isinstance(known, pa.Schema) else known)
    elif stream.columns is not None:
        columns = tuple(stream.columns)
    if columns is not None:
        wanted = [("key", column) for column in stream.key]
        wanted += [("topic", stream.topic)] if stream.topic is not None else []
        wanted += [("arrival", column) for column in stream.arrival]
        for field, column in wanted:
            if column not in columns:
                raise _no_column(definition, name, field, column, columns)
        _check_names(definition, name, columns)
    if isinstance(known, pa.Schema):
        _check_keys(definition, name, stream, known)
    times = _time_columns(definition, name, stream, known if known is not None else columns, types)
    source = nodes.PhysicalDataSource(
        name, stream.source, columns, tuple(stream.key), stream.topic, tuple(stream.arrival)
    )
    return Input(source, Decoder(times, types))


def _check_names(definition: PipelineDefinition, name: str, columns: Sequence[str]) -> None:
    """Refuse the few names that are internal; all others belong to the user."""
    try:
        check_columns(columns, f"streams.{name}.columns")
    except ConfigError as error:
        message = f"{error}{definition.where('streams', name)}"
        raise ConfigError(error.field, error.value, error.expected, message=message) from None


def _check_keys(
    definition: PipelineDefinition, name: str, stream: StreamDefinition, schema: pa.Schema
) -> None:
    """Key, topic and arrival columns must hold plain values: they are compared and sorted."""
    used = [("key", column) for column in stream.key]
    used += [("topic", stream.topic)] if stream.topic is not None else []
    used += [("arrival", column) for column in stream.arrival]
    for field, column in used:
        kind = schema.field(column).type
        if pa.types.is_nested(kind):
            raise ConfigError(
                f"streams.{name}.{field}",
                column,
                "must be a column of plain values",
                message=f"{field} `{column}` of stream `{name}` must be a column of plain values, "
                f"is {kind}" + definition.where("streams", name, field),
            )


def _check_source_column(definition: PipelineDefinition, inputs: Sequence[Input]) -> None:
    """`options.eventtime.source` must be a column of every stream."""
    column = definition.options.eventtime.source
    if column is None or not definition.options.eventtime.enabled:
        return
    for each in inputs:
        columns = each.source.columns
        if columns is not None and column not in columns:
            known = ", ".join(columns) or "none"
            raise ConfigError(
                "options.eventtime.source",
                column,
                f"must be one of {known}",
                message=f"options.eventtime.source `{column}` not found in stream `{each.stream}` "
                f"schema (columns: {known})" + definition.where("options", "eventtime", "source"),
            )


def _time_columns(
    definition: PipelineDefinition,
    name: str,
    stream: StreamDefinition,
    known: pa.Schema | Sequence[str] | None,
    types: EventtimeTypes,
) -> tuple[TimeColumn, ...]:
    """Return the declarations of event time of a stream, checked against its schema as far as it is
    known; none for processing time.

    Raises:
        ConfigError: Nothing is declared, a column or type does not exist, or the type can never
            read the column.
    """
    if not definition.options.eventtime.enabled:
        return ()
    columns = known.names if isinstance(known, pa.Schema) else known
    declared = [
        _time_column(definition, name, inside.eventtime, message)
        for message, inside in stream.messages.items()
        if inside.eventtime is not None
    ]
    if stream.eventtime is not None:
        declared = [_time_column(definition, name, stream.eventtime)]
    if not declared:
        raise ConfigError(
            f"streams.{name}.eventtime",
            None,
            "is required",
            message=f"eventtime.enabled=true but stream `{name}` does not declare eventtime"
            + definition.where("streams", name),
        )
    for time in declared:
        for place in time.columns if time.message is None else (time.message,):
            if columns is not None and place not in columns and place.split(".")[0] not in columns:
                raise _no_column(definition, name, "eventtime.column", place, columns)
        if time.type not in types.list():
            available = ", ".join(types.list())
            raise ConfigError(
                f"streams.{name}.eventtime.type",
                time.type,
                f"must be one of {available}",
                message=f"eventtime.type `{time.type}` not registered (available: {available}) "
                f"in stream `{name}`" + definition.where("streams", name, "eventtime", "type"),
            )
    if isinstance(known, pa.Schema):
        try:
            Decoder(tuple(declared), types).check_schema(known)
        except ConfigError as error:
            raise _error_in_stream(error, definition, name) from error
    return tuple(declared)


def _time_column(
    definition: PipelineDefinition,
    name: str,
    declared: EventtimeDefinition,
    message: str | None = None,
) -> TimeColumn:
    """Return one declaration as the decoder takes it; errors get the stream and the line."""
    try:
        column = declared.column if isinstance(declared.column, str) else tuple(declared.column)
        return TimeColumn(column, declared.type, message, declared.zone, declared.format)
    except ConfigError as error:
        raise _error_in_stream(error, definition, name) from error


def _error_in_stream(
    error: ConfigError, definition: PipelineDefinition, stream: str
) -> ConfigError:
    """Return an error about `eventtime.type` and the like, with the stream and the line."""
    where = definition.where("streams", stream, *error.field.split("."))
    return ConfigError(
        f"streams.{stream}.{error.field}",
        error.value,
        error.expected,
        message=f"{error} in stream `{stream}`{where}",
    )


def _no_column(
    definition: PipelineDefinition, stream: str, field: str, column: str, columns: Sequence[str]
) -> ConfigError:
    """Return the error for a column that the stream does not have, with those it has."""
    known = ", ".join(columns) or "none"
    return ConfigError(
        f"streams.{stream}.{field}",
        column,
        f"must be one of {known}",
        message=f"{field} `{column}` not found in stream `{stream}` schema (columns: {known})"
        + definition.where("streams", stream, *field.split(".")),
    )


def _agree(definition: PipelineDefinition, inputs: Sequence[Input]) -> None:
    """Refuse streams whose key or topic differs from the first stream's.

    Their rows meet in the same stages, which know one key and one topic column.
    """
    first = inputs[0]
    for other in inputs[1:]:
        for field in ("key", "topic"):
            ours, theirs = getattr(first.source, field), getattr(other.source, field)
            if ours != theirs:
                path = f"streams.{other.stream}.{field}"
                shown = list(theirs) if isinstance(theirs, tuple) else theirs
                wanted = list(ours) if isinstance(ours, tuple) else ours
                expected = f"must be {wanted!r}, as in stream `{first.stream}`"
                where = definition.where("streams", other.stream, field)
                message = f"{path}: got {shown!r}, {expected}{where}"
                raise ConfigError(path, shown, expected, message=message)


def _plan_stages(
    definition: PipelineDefinition, source: nodes.PhysicalDataSource, stages: Stages
) -> list[nodes.Node]:
    """Build the operators of the stages and put the watermark before the first that needs time.

    Args:
        definition: What to plan.
        source: The first stream: its key and topic are those of all.
        stages: The stages that may be used.

    Raises:
        ConfigError: A stage is not known, or its operator refuses its settings. Any other exception
            of an operator becomes one too, so that a user's class cannot break `explain` without a
            line.
    """
    options = definition.options
    context = StageContext(source.key, source.topic, bool(options.eventtime.enabled))
    steps: list[nodes.Node] = []
    first_with_time: int | None = None
    for number, wanted in enumerate(definition.stages):
        path = f"stages[{number}]"
        try:
            stage = stages.resolve(wanted.name)
            operator = stage.build(wanted.settings, context)
            endless = operator.unbounded() if options.mode == "streaming" else None
            if endless is not None:
                raise ConfigError("mode", "streaming", endless)
        except ConfigError as error:
            raise _error_in_stage(error, definition, number, wanted.name) from error
        except Exception as error:
            # A value the operator did not expect, or an operator of somebody else's that fails:
            # its own words, and the line.
            said = f"{type(error).__name__}: {error}"
            message = f"{path}.{wanted.name}: {said}{definition.where('stages', number)}"
            raise ConfigError(path, wanted.settings, said, message=message) from error
        if stage.needs_time and first_with_time is None:
            first_with_time = number
        steps.append(nodes.PhysicalStage(stage.node, operator))
    if options.eventtime.enabled:
        settings = options.eventtime.model_dump(exclude={"enabled"})
        behind = steps[first_with_time].operator if first_with_time is not None else None
        # A Chain would turn buffering off before a stage that accepts any order: show it in the
        # plan.
        hold = behind is None or not behind.accepts_any_order
        watermark = EventtimeWatermark(**settings, hold=hold)
        steps.insert(first_with_time or 0, nodes.PhysicalEventtimeWatermark(watermark))
    elif first_with_time is not None:
        ticker = ProcessTimeWatermark(_tick(definition, steps), options.processtime.offset)
        steps.insert(first_with_time, nodes.PhysicalProcessTimeWatermark(ticker))
    return steps


def _error_in_stage(
    error: ConfigError, definition: PipelineDefinition, number: int, name: str
) -> ConfigError:
    """Return the error of a stage, with the place of the stage in the definition before it."""
    unknown_stage = error.field == name
    path = f"stages[{number}]" if unknown_stage else f"stages[{number}].{name}"
    lines = ("stages", number, name, error.field.split(".")[0])
    text = f"{path}.{error}{definition.where(*lines)}"
    return ConfigError(f"{path}.{error.field}", error.value, error.expected, message=text)


def _tick(definition: PipelineDefinition, steps: Sequence[nodes.Node]) -> int:
    """Return the ns between two watermarks of processing time: as told, else from the first window.

    More often is no use, because no window ends in between; less often delays results.
    """
    told = definition.options.processtime.interval
    if told is not None:
        return told
    for step in steps:
        window = getattr(step.operator, "window", None)
        for span in ("step", "size", "interval"):
            every = getattr(window, span, None)
            if isinstance(every, int):
                return every
    return DEFAULT_TICK_NS


def _check_schemas(made: Plan, schemas: Mapping[str, pa.Schema | Sequence[str]]) -> None:
    """Let every stage look at the schema it will get, so that it complains before anything runs.

    Does nothing unless the full schema of every stream is known.
    """
    known = [schema for schema in schemas.values() if isinstance(schema, pa.Schema)]
    if len(known) < len(made.inputs):
        return
    try:
        rows = pa.unify_schemas(known, promote_options="permissive")
    except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
        text = f"streams of one pipeline must agree in the types of their columns: {error}"
        raise ConfigError("streams", "columns", text, message=text) from error
    number = 0
    for node in made.nodes:
        if node.operator is None:
            continue
        try:
            node.operator.side_schemas(rows)
            rows = node.operator.schema(rows)
        except ConfigError as error:
            if not isinstance(node, nodes.PhysicalStage):
                raise
            name = made.definition.stages[number].name
            raise _error_in_stage(error, made.definition, number, name) from error
        number += isinstance(node, nodes.PhysicalStage)
