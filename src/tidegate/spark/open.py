"""From a definition to frames: open its sources, plan it, and say in one sentence what is wrong."""

from __future__ import annotations

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from tidegate.errors import ConfigError
from tidegate.eventtime import EventtimeTypes
from tidegate.pipeline import PipelineDefinition, Plan, plan
from tidegate.pipeline.definition import SourceDefinition, StreamDefinition
from tidegate.pipeline.formats import source_settings
from tidegate.pipeline.planner import named_types
from tidegate.pipeline.user_types import known_types
from tidegate.spark.control_rows import control_schema
from tidegate.spark.frames import Frames
from tidegate.spark.pack import arrow_schema
from tidegate.spark.sink import filesystem
from tidegate.spark.sources import OURS, register_sources
from tidegate.spark.sources.kafka import check_broker, check_connector, kafka_columns
from tidegate.spark.sources.lines import keeps_lines, open_lines
from tidegate.spark.sources.options import text

__all__ = ["check_sources", "open_pipeline", "open_source"]

FILES = ("parquet", "json", "csv", "orc", "text", "avro", "xml")
"""Spark's own formats of files."""

NEVER_TOO_OLD = "36500d"
"""Spark leaves out, without a word, files a week older than the newest it has read: all those of a
recorder whose clock went back. A hundred years reach to 1970, where lost clocks start."""


def open_source(
    spark: SparkSession, name: str, stream: StreamDefinition, *, streaming: bool
) -> DataFrame:
    """The rows of a declared stream, batch or streaming."""
    source = stream.source
    field = f"streams.{name}.source"
    if source is None:
        raise ConfigError(field, None, "is required to run a pipeline")
    path, options = _checked(source, field)
    kafka = source.format == "kafka"
    if kafka:
        check_connector(spark, field)
    try:
        if source.format in OURS:
            register_sources(spark, source.format)
        if streaming and source.format in FILES and text(options, "maxFileAge") is None:
            options["maxFileAge"] = NEVER_TOO_OLD
        ddl = None if kafka else source.ddl
        if keeps_lines(source.format, options):
            return open_lines(spark, source.format, path, ddl, options, streaming=streaming)
        schema = None
        if streaming and ddl is None and path is not None and source.format not in OURS:
            # A stream cannot infer its schema; a look at what is there already can.
            schema = spark.read.format(source.format).options(**options).load(path).schema
        opened = (spark.readStream if streaming else spark.read).format(source.format)
        opened = opened.options(**options)
        if ddl is not None or schema is not None:
            opened = opened.schema(ddl if ddl is not None else schema)  # type: ignore[arg-type]
        rows = opened.load(path) if path is not None else opened.load()
        return kafka_columns(rows, source.ddl) if kafka else rows
    except (AnalysisException, PySparkException, Py4JJavaError) as error:
        raise ConfigError(
            field, source.format, "could not be opened",
            message=f"{field}: {source.format} could not be opened: {_cause(error)}",
        ) from error  # fmt: skip


def check_sources(definition: PipelineDefinition) -> None:
    """Say what is missing (a path, a broker) before a session is started for nothing."""
    for name, stream in definition.streams.items():
        if stream.source is not None:
            _checked(stream.source, f"streams.{name}.source")


def _checked(source: SourceDefinition, field: str) -> tuple[str | None, dict[str, str]]:
    """Path and options of a source with references resolved, if what they name is there."""
    path, options = source_settings(source, field)
    if source.format == "kafka":
        check_broker(options, field)
    return path, options


def _cause(error: Exception) -> str:
    """The sentence that says what happened: ours if one of ours is inside, else the first."""
    # A format whose class Spark cannot find is a bare Java exception.
    said = error.java_exception if isinstance(error, Py4JJavaError) else error
    lines = str(said).strip().split("\n")
    for line in lines:
        if "tidegate.errors.ConfigError: " in line:
            return line.split("tidegate.errors.ConfigError: ", 1)[1]
    return lines[0]


def open_pipeline(
    spark: SparkSession,
    definition: PipelineDefinition,
    *,
    streaming: bool,
    types: EventtimeTypes | None = None,
    control: str | None = None,
) -> tuple[Plan, Frames]:
    """Plan a definition against its sources and make frames of it. No Spark job has run yet.

    `control` is a folder of JSON lines with control rows, for a stream.
    """
    types = types or known_types(named_types(definition))
    plan(definition, types=types)  # what is wrong without looking at the data is said first
    opened = {
        name: open_source(spark, name, stream, streaming=streaming)
        for name, stream in definition.streams.items()
    }
    made = plan(definition, {name: arrow_schema(df) for name, df in opened.items()}, types=types)
    first, *others = made.inputs
    df = opened[first.stream]
    rows = None
    if streaming and control is not None:
        fs, folder = filesystem(control)
        fs.create_dir(folder)
        schema = control_schema(df.schema, made.key)
        rows = spark.readStream.schema(schema).json(control)
    frames = Frames(
        df,
        made.key,
        first.decoder.times[0].column if first.decoder.times else None,
        made.topic,
        made.arrival,
        types,
        definition.options.shards,
        definition.options.forget,
        first.decoder,
        made.flow_stages(),
        more=tuple((opened[each.stream], each.decoder) for each in others),
        control=rows,
    )
    return made, frames
