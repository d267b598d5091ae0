"""From a definition to a physical plan: every name checked, every stage built, nothing run.

Rules of planning:

- `eventtime.enabled` puts a PhysicalEventtimeWatermark before the first stage that needs time. If
  no stage does, it still stands behind the decoder: to put rows in order is what Tidegate is for,
  with or without a window behind it. (A planner that only serves windows would leave it out.)
- Otherwise time is processing time, what streams declare about event time is not looked at, and a
  PhysicalProcessTimeWatermark is put before the first stage that needs time.
- Stages that do not need time and stand before the watermark see rows in order of arrival, and rows
  they hold back do not advance time. `explain` says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidegate.core.chain import Chain
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
from tidegate.pipeline.definition import PipelineDefinition, StreamDefinition
from tidegate.pipeline.stages import STAGES, StageContext, Stages

__all__ = ["Input", "Plan", "plan"]

DEFAULT_TICK_NS = 10**9
"""The ticker of processing time where no window says how often it is needed: one second."""


RESERVED = frozenset({"time_ns", "__lane", "__time"})
"""Columns that results and states have beside those of the rows."""


@dataclass(frozen=True)
class Input:
    """One stream of a plan: where its rows are and how they get their times."""

    source: nodes.PhysicalDataSource
    decoder: Decoder

    @property
    def stream(self) -> str:
        return self.source.stream


@dataclass(frozen=True)
class Plan:
    """A definition that has been checked, as the steps that run."""

    definition: PipelineDefinition
    inputs: tuple[Input, ...]
    nodes: tuple[nodes.Node, ...]

    @property
    def key(self) -> tuple[str, ...]:
        return self.inputs[0].source.key

    @property
    def topic(self) -> str | None:
        return self.inputs[0].source.topic

    @property
    def arrival(self) -> tuple[str, ...]:
        return self.inputs[0].source.arrival

    @property
    def decoder(self) -> Decoder:
        """The decoder of the first stream. With several streams, each input has its own."""
        return self.inputs[0].decoder

    def flow_stages(self) -> tuple[Operator, ...]:
        """The operators, in order."""
        return tuple(node.operator for node in self.nodes if node.operator is not None)

    def flow(self) -> Flow:
        """A flow that runs this plan in process. With several streams, decode each with its input's
        decoder and hand the collections to `accept`."""
        return Flow(
            self.flow_stages(),
            key=self.key,
            decoder=self.decoder,
            forget=self.definition.options.forget,
        )

    def schema(self, rows: pa.Schema) -> pa.Schema:
        """The schema of the data that comes out."""
        return Chain(self.flow_stages()).schema(rows)

    def side_schemas(self, rows: pa.Schema) -> dict[str, pa.Schema]:
        """The schemas of the tables beside it."""
        return Chain(self.flow_stages()).side_schemas(rows)


def plan(
    definition: PipelineDefinition,
    schemas: Mapping[str, pa.Schema | Sequence[str]] | None = None,
    *,
    types: EventtimeTypes | None = None,
    stages: Stages = STAGES,
) -> Plan:
    """Check `definition` and build its physical plan, or raise a ConfigError.

    `schemas` has the schema (or the column names) of each stream as its data gives it; a stream's
    own `columns` serve where it has none. Without either, columns are not checked here.

    >>> definition = PipelineDefinition.of({"streams": {"s": {"columns": ["t"]}}})
    >>> [node.name for node in plan(definition).nodes]
    ['PhysicalDataSource', 'PhysicalDecoder']
    """
    registry = types or EventtimeTypes()
    enabled = definition.options.eventtime.enabled
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
    steps = _stages(definition, inputs[0].source, stages)
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


def _declares(stream: StreamDefinition) -> bool:
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
        _check_names(definition, name, stream, columns)
    if isinstance(known, pa.Schema):
        _check_keys(definition, name, stream, known)
    times = _times(definition, name, stream, columns, types)
    source = nodes.PhysicalDataSource(
        name, stream.source, columns, tuple(stream.key), stream.topic, tuple(stream.arrival)
    )
    return Input(source, Decoder(times, types))


def _check_names(
    definition: PipelineDefinition, name: str, stream: StreamDefinition, columns: Sequence[str]
) -> None:
    """Columns of ours must not meet columns of the input under the same name."""
    own = set() if stream.eventtime is None else {stream.eventtime.column}
    for column in columns:
        if column in RESERVED - own:
            expected = "is a name Tidegate keeps for itself; rename the column"
            raise ConfigError(
                f"streams.{name}.columns",
                column,
                expected,
                message=f"column `{column}` of stream `{name}` {expected}"
                + definition.where("streams", name),
            )


def _check_keys(
    definition: PipelineDefinition, name: str, stream: StreamDefinition, schema: pa.Schema
) -> None:
    for column in stream.key:
        kind = schema.field(column).type
        if pa.types.is_nested(kind):
            raise ConfigError(
                f"streams.{name}.key",
                column,
                "must be a column of plain values",
                message=f"key `{column}` of stream `{name}` must be a column of plain values, "
                f"is {kind}" + definition.where("streams", name, "key"),
            )


def _times(
    definition: PipelineDefinition,
    name: str,
    stream: StreamDefinition,
    columns: tuple[str, ...] | None,
    types: EventtimeTypes,
) -> tuple[TimeColumn, ...]:
    if not definition.options.eventtime.enabled:
        return ()
    declared = [
        (TimeColumn(inside.eventtime.column, inside.eventtime.type, message), message)
        for message, inside in stream.messages.items()
        if inside.eventtime is not None
    ]
    if stream.eventtime is not None:
        column = stream.eventtime.column
        declared = [(TimeColumn(column, stream.eventtime.type), column)]
    if not declared:
        raise ConfigError(
            f"streams.{name}.eventtime",
            None,
            "is required",
            message=f"eventtime.enabled=true but stream `{name}` does not declare eventtime"
            + definition.where("streams", name),
        )
    for time, place in declared:
        if columns is not None and place not in columns:
            raise _no_column(definition, name, "eventtime.column", place, columns)
        if time.type not in types.list():
            known = ", ".join(types.list())
            raise ConfigError(
                f"streams.{name}.eventtime.type",
                time.type,
                f"must be one of {known}",
                message=f"eventtime.type `{time.type}` not registered (available: {known}) "
                f"in stream `{name}`" + definition.where("streams", name, "eventtime", "type"),
            )
    return tuple(time for time, _ in declared)


def _no_column(
    definition: PipelineDefinition, stream: str, field: str, column: str, columns: Sequence[str]
) -> ConfigError:
    known = ", ".join(columns) or "none"
    return ConfigError(
        f"streams.{stream}.{field}",
        column,
        f"must be one of {known}",
        message=f"{field} `{column}` not found in stream `{stream}` schema (columns: {known})"
        + definition.where("streams", stream, *field.split(".")),
    )


def _agree(definition: PipelineDefinition, inputs: Sequence[Input]) -> None:
    """Streams that run through one pipeline meet in its lanes: they need the same key and topic."""
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


def _stages(
    definition: PipelineDefinition, source: nodes.PhysicalDataSource, stages: Stages
) -> list[nodes.Node]:
    options = definition.options
    context = StageContext(source.key, source.topic, options.eventtime.enabled)
    steps: list[nodes.Node] = []
    first_with_time: int | None = None
    for number, wanted in enumerate(definition.stages):
        path = f"stages[{number}]"
        try:
            stage = stages.resolve(wanted.name)
            operator = stage.build(wanted.settings, context)
        except ConfigError as error:
            raise _inside(error, definition, number, wanted.name) from error
        except TypeError as error:
            # A value of a kind its operator did not expect: its own words, and where it stands.
            message = f"{path}.{wanted.name}: {error}{definition.where('stages', number)}"
            raise ConfigError(path, wanted.settings, str(error), message=message) from error
        if stage.needs_time and first_with_time is None:
            first_with_time = number
        steps.append(nodes.PhysicalStage(stage.node, operator))
    if options.eventtime.enabled:
        settings = options.eventtime.model_dump(exclude={"enabled"})
        behind = steps[first_with_time].operator if first_with_time is not None else None
        hold = behind is None or not behind.accepts_any_order  # a Chain would turn it off: say so
        watermark = EventtimeWatermark(**settings, hold=hold)
        steps.insert(first_with_time or 0, nodes.PhysicalEventtimeWatermark(watermark))
    elif first_with_time is not None:
        ticker = ProcessTimeWatermark(_tick(definition, steps), options.processtime.offset)
        steps.insert(first_with_time, nodes.PhysicalProcessTimeWatermark(ticker))
    return steps


def _inside(
    error: ConfigError, definition: PipelineDefinition, number: int, name: str
) -> ConfigError:
    """The error of a stage, with the place of the stage in the definition before it."""
    unknown_stage = error.field == name
    path = f"stages[{number}]" if unknown_stage else f"stages[{number}].{name}"
    lines = ("stages", number, name, error.field.split(".")[0])
    text = f"{path}.{error}{definition.where(*lines)}"
    return ConfigError(f"{path}.{error.field}", error.value, error.expected, message=text)


def _tick(definition: PipelineDefinition, steps: Sequence[nodes.Node]) -> int:
    """How often processing time ticks: as told, else at the ends of the first window."""
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
    """Let every stage look at the schema it will get, so that it complains before anything runs."""
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
            raise _inside(error, made.definition, number, name) from error
        number += isinstance(node, nodes.PhysicalStage)
