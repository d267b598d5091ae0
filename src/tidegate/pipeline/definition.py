"""What a pipeline is: streams, options, stages, sink. YAML and Python use this one model.

Every field may be written `late_tolerance` or `lateTolerance`. A field that does not exist, a value
of the wrong type and a choice that is not offered are each one ConfigError: the field, the value,
what is allowed, and for a file the line.

The text below each field is its documentation: it appears in the JSON Schema (`tidegate schema`)
and in the reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
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
from tidegate.pipeline.secrets import HIDDEN, is_whole_reference, scrub, shown

__all__ = [
    "DatasetDefinition",
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
        "description": 'A span of time, such as "200 ms", "5 s" or "10 minutes"; a bare number is '
        "nanoseconds.",
        "anyOf": [
            {"type": "integer"},
            {
                "type": "string",
                "pattern": r"^\s*([Ii][Nn][Tt][Ee][Rr][Vv][Aa][Ll]\s+)?\d+(\.\d+)?\s*[A-Za-zµ]+",
            },
        ],
    }
)
_NAMES_SCHEMA = WithJsonSchema(
    {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
)


def _positive(value: object) -> int:
    return parse_duration(value, minimum=1)


def _as_name_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _time_names(value: object) -> object:
    if isinstance(value, list | tuple) and len(value) < 2:
        return value[0] if value else ""
    return value


def _scalar(value: object) -> object:
    """Refuse lists and mappings as the value of an option."""
    if not isinstance(value, str | int | float | bool):
        raise ConfigError("", value, "must be text, a number, true or false")
    return value


Span = Annotated[int, BeforeValidator(parse_duration), _DURATION_SCHEMA]
"""A duration of at least 0, in nanoseconds."""
LongerSpan = Annotated[int, BeforeValidator(_positive), _DURATION_SCHEMA]
"""A duration of at least 1 ns."""
Names = Annotated[list[str], BeforeValidator(_as_name_list), _NAMES_SCHEMA]
"""One column, or a list of columns."""
TimeNames = Annotated[str | list[str], BeforeValidator(_time_names), _NAMES_SCHEMA]
"""One column, or several that are read as one value."""
Scalar = Annotated[
    Any,
    BeforeValidator(_scalar),
    WithJsonSchema({"type": ["string", "number", "integer", "boolean"]}),
]
"""The value of an option. Sources and sinks get all of them as text."""


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

    # pydantic builds models inside models without this __init__, so that an error keeps the whole
    # path to its field. RootModel marks its own __init__ in the same way.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @model_validator(mode="before")
    @classmethod
    def _one_spelling(cls, value: Any) -> Any:
        """Refuse a field that is given in both spellings, `late_tolerance` and `lateTolerance`."""
        if isinstance(value, Mapping):
            for name, info in cls.model_fields.items():
                if info.alias and info.alias != name and name in value and info.alias in value:
                    said = shown(name, value[name])
                    raise ConfigError(name, said, f"is also given as {info.alias}")
        return value


class EventtimeDefinition(_Model):
    """The column with the event time, and how its values are read."""

    column: TimeNames
    """The column with the time of each row. `header.stamp` is the field `stamp` of the struct
    column `header`, unless there is a column of that whole name. A list (`[date, time]`) is joined
    as text, with a blank between the columns, and read as one value."""
    type: str
    """How the values are read: `unixtimestamp_s`, `unixtimestamp_ms`, `unixtimestamp_us`,
    `unixtimestamp_ns`, `unixtimestamp_s_float`, `unixtimestamp_ms_float`, `unixtimestamp_us_float`,
    `unixtimestamp_s_us` and `unixtimestamp_s_ns` (two columns), `iso8601`, `timestamp`, `date`,
    `date_time`, `year_month_day`, or a type of your own (`tidegate run --types`)."""
    zone: str | None = None
    """The zone of times that have none, such as `Europe/Berlin`. Default: UTC, never the zone of
    the machine or the session."""
    format: str | None = None
    """The layout of the text for type `date_time`, such as `%d.%m.%Y %H:%M:%S`."""


class MessageDefinition(_Model):
    """One of several messages of a row, in a struct column of that name."""

    eventtime: EventtimeDefinition | None = None
    """The event time inside this message. A row has the time of its first message that has one."""


class SourceDefinition(_Model):
    """Where the rows of a stream come from."""

    format: str = "parquet"
    """`parquet`, `csv`, `json`, `orc`, `xml`, `text`, `avro`, `delta`, `kafka`, `mcap`, `rosbag` or
    `spool`. Any other format of Spark must be allowed when the run is started:
    `--allow-format NAME`."""
    path: str | None = None
    """A file, a folder or a pattern (`logs/*.mcap`), local or a URI that Spark reads. `${env:NAME}`
    and `${file:path}` are replaced when the run starts."""
    options: dict[str, Scalar] = Field(default_factory=dict)
    """Options of the format. `${env:NAME}` and `${file:path}` are replaced when the run starts:
    that is how to give a password. An option that is not listed for the format is refused."""
    ddl: str | None = Field(default=None, alias="schema")
    """The schema in Spark's notation (`vehicle string, stamp long`). Needed for Kafka values, and
    for files of text whose types must not be guessed."""


class StreamDefinition(_Model):
    """One input of the pipeline. All streams of a pipeline need the same key and topic columns."""

    source: SourceDefinition | None = None
    """Where its rows come from. Required to run; `explain` does without."""
    columns: list[str] | None = None
    """The names of its columns, for `explain` without data. A run takes them from the data."""
    key: Names = Field(default_factory=list)
    """The columns that identify a vehicle, an instrument, a shard. Each key has its own order,
    watermark and state. Without a key, all rows share one."""
    topic: str | None = None
    """The column that names the topic of a message. Needed by `synchronize` and `batch`."""
    arrival: Names = Field(default_factory=list)
    """The columns that give the order of arrival, most significant first: a log time, an offset.
    Spark does not keep the order of rows, so without them rows of equal time have no fixed
    order."""
    eventtime: EventtimeDefinition | None = None
    """The event time of its rows. Required if `options.eventtime.enabled` is true."""
    messages: dict[str, MessageDefinition] = Field(default_factory=dict)
    """For rows that hold several messages, each in a struct column: the event time inside each."""

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        """Refuse an event time for the stream and for its messages, and columns named twice."""
        if self.eventtime is not None and self.messages:
            raise ConfigError(
                "messages",
                sorted(self.messages),
                "eventtime is also declared for the stream; declare it inside the messages only",
            )
        for name in ("key", "arrival"):
            columns = getattr(self, name)
            if len(set(columns)) < len(columns):
                raise ConfigError(name, columns, "names a column twice")
        return self


class EventtimeOptions(_Model):
    """How rows are put in order of event time."""

    enabled: bool | None = None
    """true: rows are ordered by their event time. false: by the time at which they are seen
    (processing time), and what streams declare about event time is ignored. There is no default
    where it matters: a stream that declares event time, or a stage that needs time, without this
    setting is refused."""
    late_tolerance: Span = 0
    """How far behind the newest time of its key a row may arrive and still be put in order. Rows
    wait that long, so it is also the delay. `tidegate inspect` suggests a value. Default 0: only
    rows that arrive in order are on time."""
    late: Literal["side_output", "drop"] = "side_output"
    """What happens to late rows: `side_output` writes them to the table `late` with their lateness,
    `drop` only counts them."""
    watermark_per: Literal["collection", "tuple"] = "tuple"
    """`tuple` judges every row by the rows before it, so that results do not depend on how the
    input is cut into micro-batches; `collection` judges a micro-batch by the watermark before
    it."""
    max_future_skew: Span | None = None
    """A row further ahead than this has a wrong clock: it becomes an error row and does not move
    the watermark. Default: no limit, so one row a year ahead makes all rows after it late."""
    skew_against: Literal["rows", "clock"] = "rows"
    """What `max_future_skew` is measured against: the newest row of the key, or the system
    clock."""
    skew_confirm: int = Field(default=10, ge=1)
    """How many rows that agree with each other confirm a jump ahead: after a pause of the
    recording, the clock is right and the rows are accepted. At 1, every wrong clock is believed;
    default 10."""
    source: str | None = None
    """A column that names the partition a row comes from, such as `kafka_partition`. Each source
    then has its own watermark, and the slowest one counts. Default: one watermark per key."""
    max_sources: int = Field(default=16, ge=1)
    """Most sources per key; rows of further ones are errors. Bounds the state. Default 16."""
    idle_timeout: LongerSpan | None = None
    """A source that has not sent a row for this long (wall-clock time) no longer holds the
    watermark back. Default: it is waited for without limit."""


class ProcesstimeOptions(_Model):
    """The watermark of processing time."""

    interval: LongerSpan | None = None
    """Time between two watermarks. Default: the length (or step) of the first window, else 1 s."""
    offset: Annotated[
        int, BeforeValidator(lambda v: parse_duration(v, minimum=None)), _DURATION_SCHEMA
    ] = 0
    """Shifts the watermarks from whole multiples of the interval since 1970. May be negative."""


class Options(_Model):
    """How the pipeline runs."""

    eventtime: EventtimeOptions = EventtimeOptions()
    """How rows are put in order of event time."""
    processtime: ProcesstimeOptions = ProcesstimeOptions()
    """The watermark of processing time, where event time is not enabled."""
    mode: Literal["batch", "streaming"] = "batch"
    """`batch` reads the existing data once; `streaming` waits for more, or ends after the existing
    data with `trigger: available_now`."""
    trigger: str | None = None
    """Streaming: `available_now`, or the time between micro-batches, such as `1 s`. Default:
    `available_now`."""
    checkpoint: str | None = None
    """Streaming: the folder in which Spark keeps progress and state. Default: below the sink's
    path."""
    shards: int | None = Field(default=None, ge=1)
    """Number of groups the keys are divided into; each has a state of its own and is worked on by
    one core at a time. It stays with a checkpoint for ever. Default: four per shuffle partition of
    a stream, eight of a batch. Fewer than cores leave some idle, each costs about 1 ms per
    micro-batch."""
    forget: LongerSpan | None = None
    """A key without rows for this long (wall-clock time) is flushed and its state freed. Default:
    never, so the state grows with the number of keys."""
    payload: Literal["auto", "addressed", "carried"] = "auto"
    """How columns travel that no stage looks at: `carried` with their rows, or `addressed`: left in
    their file and fetched when the row leaves. Default `auto`: addressed in runs over recorded
    files where they are large."""
    missing_payload: Literal["stop", "error"] = "stop"
    """What happens where a file with addressed payload is changed or gone before its rows have
    left: `stop` ends the run with the name of the file, `error` delivers such rows as errors."""
    state_key: str | None = None
    """Streaming: a reference to a secret of at least 16 bytes, `${env:NAME}` or `${file:path}`,
    that seals the state in the checkpoint: a page that was changed or made without the key stops
    the run with a StateError. The key itself is refused here and is never shown or recorded.
    Default: the state is checked, but not sealed."""

    @field_validator("state_key", mode="before")
    @classmethod
    def _only_a_reference(cls, value: object) -> object:
        """Refuse a key that is written out, without showing it."""
        if value is not None and not is_whole_reference(value):
            raise ConfigError(
                "state_key", HIDDEN, "must be a reference, ${env:NAME} or ${file:path}, not a key"
            )
        return value

    @field_validator("trigger", mode="after")
    @classmethod
    def _trigger(cls, value: str | None) -> str | None:
        """Check that a trigger is `available_now` or a duration; it stays as it was written."""
        if value is not None and value != "available_now":
            try:
                parse_duration(value)
            except ConfigError as error:
                expected = 'must be available_now or a duration such as "1 s"'
                raise ConfigError("trigger", value, expected) from error
        return value

    @model_validator(mode="after")
    def _streaming_only(self) -> Self:
        """Refuse settings that only a stream has, in a batch."""
        for name in ("trigger", "checkpoint", "state_key"):
            if self.mode == "batch" and getattr(self, name) is not None:
                raise ConfigError(name, getattr(self, name), "needs mode: streaming")
        return self


class StageDefinition(_Model):
    """A stage by name, with its settings: `{"synchronize": {...}}`, or just `"compact"`."""

    name: str
    """`align`, `episodes`, `synchronize`, `batch`, `window`, `compact`, or a stage of your own
    (`STAGES.register`)."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """The settings of the stage: the arguments of its class, in either spelling."""

    @model_validator(mode="before")
    @classmethod
    def _unfold(cls, value: Any) -> Any:
        """Read the three ways to write a stage: a name, a name with settings, or both as fields."""
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


SINK_FORMATS = ["parquet", "delta", "kafka", "mcap"]
"""What `sink.format` may be: what `tidegate.spark.sinks` can write (a test compares the two), and
formats that were added by `tidegate.spark.register_sink` or an entry point `tidegate.sinks`."""


class SinkDefinition(_Model):
    """Where the tables go: one per kind of outcome (data, late, error, ...), below `path`."""

    format: str = Field(default="parquet", examples=SINK_FORMATS[:])
    """`parquet`, `delta`, `kafka`, `mcap`, or one that installed code registered."""
    path: str | None = None
    """The folder of the tables, local or a URI. `--out` replaces it."""
    options: dict[str, Scalar] = Field(default_factory=dict)
    """Options of the format: `compression` for parquet, `bootstrap.servers` and `topic` for kafka.
    An option that is not listed for the format is refused."""

    @field_validator("format")
    @classmethod
    def _format(cls, value: str) -> str:
        """Check that the format can be written here: built in, registered, or an entry point."""
        if value not in SINK_FORMATS and not entry_points(group="tidegate.sinks", name=value):
            raise ConfigError("format", value, f"must be one of {', '.join(SINK_FORMATS)}")
        return value


class DatasetDefinition(_Model):
    """What `tidegate dataset` makes of the rows: a dataset to train on."""

    format: Literal["lerobot", "parquet", "lance"] = "lerobot"
    """`lerobot` (layout v3.0), `parquet` or `lance` (the rows as they are)."""
    path: str | None = None
    """The folder of the dataset, new or empty. `--out` replaces it."""
    images: Literal["video", "image", "bytes", "reference"] | None = None
    """lerobot: `video` (default; encoded by PyAV) or `image` (JPEG and PNG as they are). parquet
    and lance: `bytes` (default) or `reference` (file, offset and position in the MCAP)."""
    columns: Names = Field(default_factory=list)
    """parquet and lance: the columns to write, such as `camera.image`; all if there is none. Times
    and offsets of these topics are kept as well, and with `reference` their places."""
    fps: int | None = Field(default=None, ge=1)
    """lerobot: frames per second. Not needed where rows are aligned to a grid in Hz."""
    features: dict[str, str | list[str]] = Field(default_factory=dict)
    """lerobot: per feature its column or columns, such as `observation.state: joint.position`."""
    task: str | dict[str, str] | None = None
    """lerobot: what the robot does, one sentence; or `{column: name}`."""
    robot_type: str | None = None
    """lerobot: the kind of robot."""
    codec: str | None = None
    """lerobot: the video encoder, `libx264` (default) or `libsvtav1`."""


_RECORDING = re.compile(
    r"\.(csv|tsv|tab|parquet|mcap|bag|db3|jsonl|ndjson|geojson)(\.(gz|bz2|zst))?$"
)
"""Names of files that are data, and never a pipeline."""


class PipelineDefinition(_Model):
    """A whole pipeline: what `tidegate run` runs.

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
dataset, name, options, sink, stages, streams (pipeline.yaml, line 2)
    """

    name: str = Field(default="pipeline", min_length=1)
    """The name of the pipeline, in logs and on the page."""
    streams: dict[str, StreamDefinition] = Field(min_length=1)
    """The inputs, by name. At least one."""
    options: Options = Options()
    """How the pipeline runs: event time, batch or streaming, checkpoint."""
    stages: list[StageDefinition] = Field(default_factory=list)
    """What happens to the rows, in order. Without stages, rows are put in order of their time."""
    sink: SinkDefinition | None = None
    """Where the tables go. Required to run, unless `--out` is given."""
    dataset: DatasetDefinition | None = None
    """What `tidegate dataset` makes of the rows; `tidegate run` does not look at it."""

    _document: document.Document = PrivateAttr(default_factory=lambda: document.Document({}))

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Self:
        """Make a definition from plain values, as a YAML or JSON file gives them.

        Raises ConfigError for the first mistake, and says how many more there are.
        """
        return cls._checked(document.Document(value))

    @classmethod
    def from_yaml(cls, text: str, name: str = "pipeline.yaml") -> Self:
        """Make a definition from the text of a YAML file called `name`; errors name its lines."""
        return cls._checked(document.read_yaml(text, name))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Make a definition from a YAML file. At most `document.MAX_BYTES` are read.

        Raises:
            ConfigError: For every fault; one that names `tidegate init` if the file is a recording.
        """
        place = Path(path)
        if place.exists() and (place.is_dir() or _RECORDING.search(place.name.lower())):
            raise ConfigError(
                "definition", str(path), "must be a pipeline file",
                message=f"{path} is {'a folder' if place.is_dir() else 'data'}, not a pipeline "
                f"file: write one with: tidegate init {path}",
            )  # fmt: skip
        try:
            with Path(path).open("rb") as file:
                text = file.read(document.MAX_BYTES + 1).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
            raise ConfigError(
                "definition", str(path), "must be readable",
                message=f"{path}: cannot be read: {reason}",
            ) from error  # fmt: skip
        return cls.from_yaml(text, str(path))

    @classmethod
    def _checked(cls, source: document.Document) -> Self:
        """Validate a document, and turn the first mistake into a ConfigError with its line."""
        try:
            made = cls.model_validate(source.value)
        except ValidationError as error:
            raise config_error(error, cls, source) from None
        made._document = source
        return made

    def __eq__(self, other: object) -> bool:
        """Two definitions are equal if they describe the same pipeline, whatever file they are
        from."""
        return isinstance(other, PipelineDefinition) and self.model_dump() == other.model_dump()

    def where(self, *path: str | int) -> str:
        """Return the file and line of a field, for errors; empty if this was made in Python."""
        return self._document.where(path)

    @contextmanager
    def located(self) -> Iterator[None]:
        """Add the line to every ConfigError about a field that is raised inside, and replace what
        references stood for by the references.

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
