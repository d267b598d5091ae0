"""Sources by the name a definition gives them: `source: {format: mcap, path: ...}`.

A format is a `Source`. To add one: write a module with a `Source` (or a Spark `DataSource` wrapped
in `PythonSource`), and add one line to `SOURCES`, or, from another package, call `register_source`
or publish an entry point in the group `tidegate.sources`. A format that is not listed here is left
to Spark, which knows more of them by the jars of its session.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource

from tidegate.errors import ConfigError
from tidegate.pipeline.formats import register_format
from tidegate.spark.columnar.format import ColumnarInput

__all__ = [
    "SOURCES",
    "PythonSource",
    "Source",
    "SourceRequest",
    "register_source",
    "register_sources",
    "source_of",
]


@dataclass(frozen=True)
class SourceRequest:
    """What a definition says about one source, checked and with references resolved.

    Args:
        format: The name of the format, as in the definition.
        path: A path, pattern or URI; None if the definition has none.
        options: `source.options` as text. May hold secrets: do not show them.
        ddl: The schema as Spark's DDL, or None.
        streaming: Whether a streaming DataFrame is wanted.
        field: Where in the definition the source is, for errors: `streams.NAME.source`.
    """

    format: str
    path: str | None
    options: Mapping[str, str]
    ddl: str | None
    streaming: bool
    field: str


class Source:
    """How the rows of a format are opened. Subclass it and override `open`.

    `file_column` names the column of its rows that says which file they were recorded in, if there
    is one: in a recorded run every file has a watermark of its own.

    Methods are called in this order: `check` before a session exists, `session_settings` when one
    is made, `open` with the session, once per stream of the definition.
    """

    file_column: str | None = None

    def check(self, options: Mapping[str, str], field: str) -> None:
        """Raise ConfigError for what can be found wrong without a session: a broker that does not
        answer. `field` is where in the definition the source is. The default accepts everything."""

    def session_settings(self) -> dict[str, str]:
        """Return Spark settings (jars) that a session needs for this format; by default none."""
        return {}

    def open(self, spark: SparkSession, request: SourceRequest) -> DataFrame:
        """Return the rows, as a batch or streaming DataFrame; runs no job over the data.

        Raises ConfigError for an option that is wrong. Spark's own errors are turned into one
        sentence by the caller.
        """
        raise NotImplementedError

    def columnar(self, request: SourceRequest, df: DataFrame) -> ColumnarInput | str:
        """Return how gate 1 reads the same rows, or why it cannot, in words for `explain`.

        Args:
            request: What `open` was called with.
            df: What `open` returned: its columns are those gate 1 delivers.
        """
        return "the input is not made of files that Tidegate reads itself"


class PythonSource(Source):
    """A source that is a Spark Python data source.

    Args:
        kind: A subclass of pyspark's `DataSource`. It may have an attribute `file_column`, the
            column that names the file of a row.
    """

    def __init__(self, kind: type[DataSource]) -> None:
        self.kind = kind
        self.file_column = getattr(kind, "file_column", None)

    def columnar(self, request: SourceRequest, df: DataFrame) -> ColumnarInput | str:
        """Return what the class says with its static method `columnar`, if it has one."""
        told = getattr(self.kind, "columnar", None)
        return super().columnar(request, df) if told is None else told(request, df)

    def open(self, spark: SparkSession, request: SourceRequest) -> DataFrame:
        """Register the class with the session and load it, with the options and schema of the
        request.
        """
        spark.dataSource.register(self.kind)
        opened = (spark.readStream if request.streaming else spark.read).format(self.kind.name())
        opened = opened.options(**request.options)
        if request.ddl is not None:
            opened = opened.schema(request.ddl)
        return opened.load(request.path) if request.path is not None else opened.load()


SOURCES: dict[str, Source | str] = {
    "kafka": "tidegate.spark.sources.kafka:KafkaSource",
    "mcap": "tidegate.spark.sources.mcap:McapSource",
    "rosbag": "tidegate.spark.sources.rosbag:RosbagSource",
    "spool": "tidegate.spark.sources.spool:SpoolSource",
    "parquet": "tidegate.spark.sources.files:ParquetSource",
    "orc": "tidegate.spark.sources.files:FileSource",
    "text": "tidegate.spark.sources.files:FileSource",
    "avro": "tidegate.spark.sources.files:FileSource",
    "xml": "tidegate.spark.sources.files:FileSource",
    "json": "tidegate.spark.sources.files:LineSource",
    "csv": "tidegate.spark.sources.files:LineSource",
}
"""Formats and where they are: a `Source`, or the `module:Class` of a `Source` or `DataSource`,
which is imported when the format is used."""

ENTRY_POINTS = "tidegate.sources"
"""The entry-point group in which other packages publish formats."""


def register_source(name: str, source: Source | type[DataSource], *, replace: bool = False) -> None:
    """Make a format known under `name`, for definitions and `tidegate run` in this process.

    Args:
        name: What `source.format` says.
        source: A `Source`, or a Spark `DataSource` class.
        replace: Whether a format of that name may be replaced.

    Raises:
        ConfigError: If the name is taken and `replace` is false.

    Example:
        >>> class Nothing(Source):
        ...     def open(self, spark, request):
        ...         return spark.createDataFrame([], "stamp long")
        >>> register_source("nothing", Nothing())
        >>> register_source("nothing", Nothing())
        Traceback (most recent call last):
            ...
        tidegate.errors.ConfigError: name: got 'nothing', is taken; give replace=True to replace it
    """
    if name in SOURCES and not replace:
        raise ConfigError("name", name, "is taken; give replace=True to replace it")
    SOURCES[name] = source if isinstance(source, Source) else PythonSource(source)
    register_format("source", name, replace=True)


def source_of(format: str) -> Source:
    """Return the source of a format: registered, published by a package, or left to Spark.

    >>> source_of("parquet").session_settings()
    {}
    """
    found: object = SOURCES.get(format)
    if found is None:
        published = entry_points(group=ENTRY_POINTS, name=format)
        found = next(iter(published)).load() if published else SOURCES["orc"]
    if isinstance(found, str):
        module, _, name = found.partition(":")
        found = getattr(import_module(module), name)
    if isinstance(found, type):
        found = PythonSource(found) if issubclass(found, DataSource) else found()
    assert isinstance(found, Source)
    return found


def register_sources(spark: SparkSession, *formats: str) -> None:
    """Register our Python data sources (all, or those named) with a session, so that
    `spark.read.format("mcap")` works.

    Raises ConfigError for a format that is not a Python data source.
    """
    for format in formats or ("mcap", "rosbag", "spool"):
        source = source_of(format)
        if not isinstance(source, PythonSource):
            raise ConfigError("format", format, "is not a Python data source")
        spark.dataSource.register(source.kind)
