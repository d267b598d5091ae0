"""From a definition to frames: a session that can run it, its sources, its plan.

Whatever is wrong before a row is read is said here, in one sentence that names the field.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidegate.core.seal import StateKey
from tidegate.errors import ConfigError
from tidegate.eventtime import EventtimeTypes
from tidegate.output.filesystem import filesystem
from tidegate.pipeline import PipelineDefinition, Plan, plan
from tidegate.pipeline.definition import SourceDefinition, StreamDefinition
from tidegate.pipeline.formats import source_settings
from tidegate.pipeline.planner import named_types
from tidegate.pipeline.secrets import resolve
from tidegate.pipeline.user_types import known_types
from tidegate.spark.columnar.format import ColumnarInput
from tidegate.spark.control_rows import control_schema
from tidegate.spark.dataflow import check_names_of
from tidegate.spark.frames_api import Frames
from tidegate.spark.pack import arrow_schema
from tidegate.spark.recording import Recording, open_recording
from tidegate.spark.sources import SourceRequest, source_of
from tidegate.spark.spark_session import session

__all__ = [
    "check_sources",
    "open_pipeline",
    "open_stream_source",
    "session_for",
    "session_settings",
    "state_key_of",
]


def session_settings(definition: PipelineDefinition) -> dict[str, str]:
    """Return the Spark settings that the sources of a definition need beyond the usual: jars."""
    formats = {s.source.format for s in definition.streams.values() if s.source is not None}
    settings: dict[str, str] = {}
    for format in sorted(formats):
        settings |= source_of(format).session_settings()
    return settings


def session_for(definition: PipelineDefinition, master: str | None, log: Path) -> SparkSession:
    """Return a session that can run this pipeline: the running one, or a new one.

    `master` is a Spark master, None for local mode; `log` the file for Java's output. Raises
    ConfigError if a connector cannot be fetched.
    """
    running = SparkSession.getActiveSession() is not None  # it has a connector, or never will
    settings = {} if running else session_settings(definition)
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        made = session(master, definition.name, settings, log=log)
    except PySparkException as error:
        missing = re.findall(r"unresolved dependency: ([^:\]]+)", log.read_text(errors="replace"))
        if not settings or not missing:
            raise
        names = ", ".join(
            dict.fromkeys(name.replace("#", ":").replace(";", ":") for name in missing)
        )
        raise ConfigError(
            "spark.jars.packages", settings.get("spark.jars.packages"),
            f"{names} cannot be fetched (log: {log})",
        ) from error  # fmt: skip
    if threading.current_thread() is threading.main_thread():
        # Spark's own handler talks to Java from inside the signal, which may interrupt another such
        # call: Ctrl-C then printed a stack. The commands stop their queries themselves.
        signal.signal(signal.SIGINT, interrupt)
    return made


def open_stream_source(
    spark: SparkSession, name: str, stream: StreamDefinition, *, streaming: bool
) -> Recording:
    """Return the rows of the declared stream `name`, batch or streaming. Runs no job on the data.

    Raises ConfigError if there is no source, or it cannot be opened (in one sentence).
    """
    source = stream.source
    field = f"streams.{name}.source"
    if source is None:
        raise ConfigError(field, None, "is required to run a pipeline")
    path, options = _checked_settings(source, field)
    request = SourceRequest(source.format, path, options, source.ddl, streaming, field)
    return open_recording(spark, request)


def check_sources(definition: PipelineDefinition) -> None:
    """Raise ConfigError for what is missing (a path, a broker) before a session is started for
    nothing.
    """
    for name, stream in definition.streams.items():
        if stream.source is not None:
            _checked_settings(stream.source, f"streams.{name}.source")


def _checked_settings(source: SourceDefinition, field: str) -> tuple[str | None, dict[str, str]]:
    """Path and options of a source with references resolved, if what they name is there."""
    path, options = source_settings(source, field)
    source_of(source.format).check(options, field)
    return path, options


def open_pipeline(
    spark: SparkSession,
    definition: PipelineDefinition,
    *,
    streaming: bool,
    types: EventtimeTypes | None = None,
    control: str | None = None,
) -> tuple[Plan, Frames]:
    """Plan a definition against its sources and make frames of it. No Spark job over the data has
    run.

    Planned twice: without the data first, so that a mistake in the file is reported before a source
    is opened, then with the columns the sources really have.

    Args:
        spark: A session that has the connectors of the sources.
        definition: The pipeline.
        streaming: Whether sources are opened as streams.
        types: Event-time types; None: the built-in ones and those the definition names.
        control: A folder of JSON lines with control rows, for a stream; it is created. None: none.

    Returns:
        The plan, for `explain`, and the frames, to run.

    Raises:
        ConfigError: For whatever does not fit, with the field that says so.
    """
    types = types or known_types(named_types(definition))
    plan(definition, types=types)  # what is wrong without looking at the data is said first
    opened = {
        name: open_stream_source(spark, name, stream, streaming=streaming)
        for name, stream in definition.streams.items()
    }
    found = {name: arrow_schema(recording.df) for name, recording in opened.items()}
    made = plan(definition, found, types=types)
    first, *others = made.inputs
    df = opened[first.stream].df
    rows = None
    if streaming and control is not None:
        fs, folder = filesystem(control)
        fs.create_dir(folder)
        stamps = [time.columns[0] for time in first.decoder.times]
        schema = control_schema(df.schema, made.key, stamps)
        rows = spark.readStream.schema(schema).json(control)
    for each in opened.values():
        check_names_of(each.df)
    trigger = definition.options.trigger
    recorded = not streaming or trigger in (None, "available_now")
    named = {
        source_of(stream.source.format).file_column
        for stream in definition.streams.values()
        if stream.source is not None
    }
    columnar, why_rows = _columnar([opened[each.stream] for each in made.inputs])
    frames = Frames(
        df,
        made.key,
        first.decoder.times[0].columns[0] if first.decoder.times else None,
        made.topic,
        made.arrival,
        types,
        definition.options.shards,
        definition.options.forget,
        first.decoder,
        made.flow_stages(),
        more=tuple((opened[each.stream].df, each.decoder) for each in others),
        control=rows,
        recorded=recorded,
        file=next((name for name in named if name is not None), None),
        warnings=()
        if columnar or made.arrival or not (streaming and recorded)
        else _warn_of_limits(definition),
        state_key=state_key_of(definition),
        columnar=columnar,
        why_rows=why_rows,
        payload=definition.options.payload,
        missing_payload=definition.options.missing_payload,
    )
    return made, frames


def _columnar(recordings: Sequence[Recording]) -> tuple[tuple[ColumnarInput, ...], str | None]:
    """Return the inputs as gate 1 reads them; none, and why, unless it reads all of them."""
    found = [recording.columnar for recording in recordings]
    read = tuple(one for one in found if isinstance(one, ColumnarInput))
    if len(read) == len(found):
        return read, None
    return (), next((why for why in found if isinstance(why, str)), None)


def state_key_of(definition: PipelineDefinition) -> StateKey | None:
    """The key of `options.stateKey`, its reference resolved; None if there is none.

    Raises ConfigError if the reference leads nowhere or the key is too short.
    """
    reference = definition.options.state_key
    if reference is None:
        return None
    return StateKey(resolve(reference, "options.stateKey"), "options.stateKey")


def _warn_of_limits(definition: PipelineDefinition) -> tuple[str, ...]:
    """What to say of options that cut a recording into micro-batches."""
    found = []
    for name, stream in definition.streams.items():
        options = {} if stream.source is None else stream.source.options
        limits = [o for o in options if o.lower() in _LIMITS]
        found += [
            f"streams.{name}.source.options: {limit} cuts the recording into micro-batches, and "
            "rows of a later one can be late because of it: leave it out, or declare arrival"
            for limit in limits
        ]
    return tuple(found)


_LIMITS = ("maxfilespertrigger", "maxbytespertrigger", "maxrowspertrigger")
"""Options, in lower case, that cut what is there into several micro-batches."""
