"""What a pipeline is: streams, options, stages, sink. YAML and Python are this one model.

Every field may be written `late_tolerance` or `lateTolerance`. A field that does not exist, a value
that does not fit and a choice that is not offered are each one ConfigError sentence: where, what
was found, what is allowed, and for a file on which line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.alias_generators import to_camel

from tidegate.core.time import parse_duration
from tidegate.errors import ConfigError
from tidegate.pipeline import document
from tidegate.pipeline.errors import config_error
from tidegate.pipeline.secrets import scrub

__all__ = [
    "EventtimeDefinition",
    "EventtimeOptions",
    "MessageDefinition",
    "Options",
    "PipelineDefinition",
    "ProcesstimeOptions",
    "SinkDefinition",
    "SourceDefinition",
    "StageDefinition",
    "StreamDefinition",
]

_DURATION_SCHEMA = WithJsonSchema(
    {
        "description": 'a span of time, such as "200 ms" or "5 s"; a bare number is nanoseconds',
        "anyOf": [
            {"type": "integer"},
            {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*(ns|us|µs|ms|s|min|m|h|d)\s*$"},
        ],
    }
)
_NAMES_SCHEMA = WithJsonSchema(
    {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
)


def _positive(value: object) -> int:
    return parse_duration(value, minimum=1)


def _names(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _scalar(value: object) -> object:
    if not isinstance(value, str | int | float | bool):
        raise ConfigError("", value, "must be text, a number, true or false")
    return value


Span = Annotated[int, BeforeValidator(parse_duration), _DURATION_SCHEMA]
"""A duration of at least 0, kept in nanoseconds."""
LongerSpan = Annotated[int, BeforeValidator(_positive), _DURATION_SCHEMA]
"""A duration of at least 1 ns."""
Names = Annotated[list[str], BeforeValidator(_names), _NAMES_SCHEMA]
"""One column or a list of them."""
Scalar = Annotated[
    Any,
    BeforeValidator(_scalar),
    WithJsonSchema({"type": ["string", "number", "integer", "boolean"]}),
]
"""An option of a Spark format: it gets them all as text."""


class _Model(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise config_error(error, type(self), document.Document(fields)) from None

    # Models inside models are built by pydantic itself, not through this __init__: an error then
    # keeps the whole path to its field. RootModel marks its own __init__ in the same way.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @model_validator(mode="before")
    @classmethod
    def _one_spelling(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            for name, info in cls.model_fields.items():
                if info.alias and info.alias != name and name in value and info.alias in value:
                    raise ConfigError(name, value[name], f"is also given as {info.alias}")
        return value


class EventtimeDefinition(_Model):
    """Which column carries event time, and the name of the type that reads it."""

    column: str
    """The column with the time of each row."""
    type: str
    """A registered event-time type, such as `unixtimestamp_ms` or `iso8601`."""


class MessageDefinition(_Model):
    """One of several messages a tuple may carry, each in a struct column named after it."""

    eventtime: EventtimeDefinition | None = None


class SourceDefinition(_Model):
    """Where rows come from: any format that Spark reads."""

    format: str = "parquet"
    path: str | None = None
    options: dict[str, Scalar] = Field(default_factory=dict)
    """Options of the format; `${env:NAME}` and `${file:path}` are looked up when the run starts."""
    ddl: str | None = Field(default=None, alias="schema")
    """The schema as Spark writes it (`vehicle string, stamp long`), for formats that need one."""


class StreamDefinition(_Model):
    """One declared stream."""

    source: SourceDefinition | None = None
    columns: list[str] | None = None
    """The columns of its rows, if they cannot be taken from the data."""
    key: Names = Field(default_factory=list)
    """What order, watermark and state are kept for, one by one: a vehicle, an instrument."""
    topic: str | None = None
    """The column that names the topic of a message."""
    arrival: Names = Field(default_factory=list)
    """The columns that pin arrival order, most significant first: a log time, an offset."""
    eventtime: EventtimeDefinition | None = None
    messages: dict[str, MessageDefinition] = Field(default_factory=dict)
    """For tuples of several messages: the struct columns, and the event time inside each."""

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.eventtime is not None and self.messages:
            raise ConfigError(
                "messages",
                sorted(self.messages),
                "eventtime is declared for the stream already; declare it inside the messages",
            )
        for name in ("key", "arrival"):
            columns = getattr(self, name)
            if len(set(columns)) < len(columns):
                raise ConfigError(name, columns, "names a column twice")
        return self


class EventtimeOptions(_Model):
    """How rows are put in order of event time."""

    enabled: bool = False
    """Off: processing time, and what streams declare about event time is not looked at."""
    late_tolerance: Span = 0
    """How far behind the newest time a row may arrive and still be put in order."""
    late: Literal["side_output", "drop"] = "side_output"
    watermark_per: Literal["collection", "tuple"] = "tuple"
    """`tuple` judges every row by those before it, so how rows fall into micro-batches changes
    nothing; `collection` judges a whole collection by the watermark before it."""
    max_future_skew: Span | None = None
    """A row further ahead than this is reported and does not move time."""
    skew_against: Literal["rows", "clock"] = "rows"
    skew_confirm: int = Field(default=10, ge=1)
    source: str | None = None
    """A column that names the partition a row came from: each then has its own watermark."""
    max_sources: int = Field(default=16, ge=1)
    idle_timeout: LongerSpan | None = None
    """A source unseen for so long is not waited for."""


class ProcesstimeOptions(_Model):
    """The ticker of processing time."""

    interval: LongerSpan | None = None
    """Time between watermarks. Unset: the length of the first window, else 1 s."""
    offset: Annotated[
        int, BeforeValidator(lambda v: parse_duration(v, minimum=None)), _DURATION_SCHEMA
    ] = 0


class Options(_Model):
    """How the pipeline runs."""

    eventtime: EventtimeOptions = EventtimeOptions()
    processtime: ProcesstimeOptions = ProcesstimeOptions()
    mode: Literal["batch", "streaming"] = "batch"
    """`batch` reads what there is once; `streaming` goes on, or catches up with `available_now`."""
    trigger: str | None = None
    """Streaming: `available_now`, or the time between micro-batches, such as `1 s`."""
    checkpoint: str | None = None
    """Streaming: where Spark keeps progress and state."""
    shards: int | None = Field(default=None, ge=1)
    """How many groups the keys are spread over. Unset: one per core."""
    forget: LongerSpan | None = None
    """A key unseen for so long (wall time) is flushed and its state freed."""

    @field_validator("trigger", mode="after")
    @classmethod
    def _trigger(cls, value: str | None) -> str | None:
        if value is not None and value != "available_now":
            try:
                parse_duration(value)
            except ConfigError as error:
                expected = 'must be available_now or a duration such as "1 s"'
                raise ConfigError("trigger", value, expected) from error
        return value

    @model_validator(mode="after")
    def _streaming_only(self) -> Self:
        for name in ("trigger", "checkpoint"):
            if self.mode == "batch" and getattr(self, name) is not None:
                raise ConfigError(name, getattr(self, name), "needs mode: streaming")
        return self


class StageDefinition(_Model):
    """A stage by name, with its settings: `{"synchronize": {...}}`, or just `"compact"`."""

    name: str
    settings: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _unfold(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, Mapping) and "name" not in value:
            if len(value) != 1:
                raise ConfigError("", dict(value), "must be one name with its settings")
            name, settings = next(iter(value.items()))
            return {"name": name, "settings": {} if settings is None else settings}
        return value

    @model_serializer
    def _fold(self) -> dict[str, Any]:
        return {self.name: self.settings}


SinkFormat = Literal["parquet", "delta", "kafka", "mcap"]
"""What `tidegate.spark.sinks` can write; a test compares the two."""


class SinkDefinition(_Model):
    """Where the tables go: one per kind (data, late, error, ...), under `path`."""

    format: SinkFormat = "parquet"
    path: str | None = None
    options: dict[str, Scalar] = Field(default_factory=dict)


class PipelineDefinition(_Model):
    """A whole pipeline.

    >>> pipeline = PipelineDefinition.from_yaml('''
    ... name: fleet
    ... streams:
    ...   fleet:
    ...     key: vehicle
    ...     eventtime: {column: stamp, type: unixtimestamp_ns}
    ... options:
    ...   eventtime: {enabled: true, lateTolerance: 200 ms}
    ... ''')
    >>> pipeline.options.eventtime.late_tolerance
    200000000
    >>> PipelineDefinition.from_yaml("streams: {fleet: {}}\\nstage: []")
    Traceback (most recent call last):
        ...
    tidegate.errors.ConfigError: stage: is not known here; did you mean stages? allowed are \
name, options, sink, stages, streams (pipeline.yaml, line 2)
    """

    name: str = Field(default="pipeline", min_length=1)
    streams: dict[str, StreamDefinition] = Field(min_length=1)
    options: Options = Options()
    stages: list[StageDefinition] = Field(default_factory=list)
    sink: SinkDefinition | None = None

    _document: document.Document = PrivateAttr(default_factory=lambda: document.Document({}))

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Self:
        """From plain values, as a YAML or JSON file gives them."""
        return cls._checked(document.Document(value))

    @classmethod
    def from_yaml(cls, text: str, name: str = "pipeline.yaml") -> Self:
        """From the text of a YAML file; errors name its lines."""
        return cls._checked(document.read(text, name))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """From a YAML file."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
            raise ConfigError(
                "definition", str(path), "must be readable",
                message=f"{path}: cannot be read: {reason}",
            ) from error  # fmt: skip
        return cls.from_yaml(text, str(path))

    @classmethod
    def _checked(cls, source: document.Document) -> Self:
        try:
            made = cls.model_validate(source.value)
        except ValidationError as error:
            raise config_error(error, cls, source) from None
        made._document = source
        return made

    def __eq__(self, other: object) -> bool:
        """The same pipeline, wherever it was written down."""
        return isinstance(other, PipelineDefinition) and self.model_dump() == other.model_dump()

    def where(self, *path: str | int) -> str:
        """The file and line of a field, for errors; empty if this was made in Python."""
        return self._document.where(path)

    @contextmanager
    def located(self) -> Iterator[None]:
        """What turns out to be wrong with a field inside gets the line on which it stands.

        >>> pipeline = PipelineDefinition.from_yaml("streams: {s: {}}\\nsink: {path: out}")
        >>> with pipeline.located():
        ...     raise ConfigError("sink.path", "out", "must be empty")
        Traceback (most recent call last):
            ...
        tidegate.errors.ConfigError: sink.path: got 'out', must be empty (pipeline.yaml, line 2)
        """
        try:
            yield
        except ConfigError as error:
            place = self._document.where_is(error.field)
            if place in str(error):
                place = ""
            said = scrub(f"{error}{place}")
            if said == str(error):
                raise
            value = scrub(error.value) if isinstance(error.value, str) else error.value
            # Not `from error`: its text has what the references stood for.
            raise ConfigError(error.field, value, scrub(error.expected), message=said) from None
