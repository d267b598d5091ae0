"""Files that Spark itself reads: Parquet, ORC, text, Avro, XML; JSON lines and CSV.

A stream cannot infer its schema: a look at the files that are there already can.

JSON lines and CSV: a line that does not fit the schema keeps its text and the name of its file.
Spark makes nulls of what it cannot read, and says nothing. With two more columns such a row, which
is in the error table if its time could not be read, tells what it was and where it was.

With `TIDEGATE_ROOTS`, links that lead out are refused when a run starts. Spark lists the folder of
a stream again and again and follows links that were added meanwhile, so the file of every row of a
stream is looked at once more: one that leads out ends the run before its rows go anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the name everyone uses)
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.functions import arrow_udf

from tidegate.errors import ConfigError
from tidegate.pipeline.security import check_files_read, current_roots
from tidegate.spark.options import text
from tidegate.spark.sources.registry import Source, SourceRequest

__all__ = ["FileSource", "LineSource"]

NEVER_TOO_OLD = "36500d"
"""Spark leaves out, without a word, files a week older than the newest it has read: all those of a
recorder whose clock went back. A hundred years reach to 1970, where lost clocks start."""

UNPARSED = "line_unparsed"
"""The text of a line that does not fit the schema; null for all others."""

FILE = "line_file"
"""The file of such a line."""


class FileSource(Source):
    """A format of Spark's own, as Spark reads it.

    A stream without a schema in its definition takes that of the files which are there when it
    starts; a stream over an empty folder needs one.
    """

    def open(self, spark: SparkSession, request: SourceRequest) -> DataFrame:
        """Return the rows as Spark reads them."""
        options = _never_too_old(request)
        known: T.StructType | str | None = request.ddl
        if request.streaming and known is None and request.path is not None:
            seen = spark.read.format(request.format).options(**options).load(request.path)
            known = seen.schema
        opened = (spark.readStream if request.streaming else spark.read).format(request.format)
        opened = opened.options(**options)
        if known is not None:
            opened = opened.schema(known)
        rows = opened.load(request.path) if request.path is not None else opened.load()
        return _inside_roots(rows, request)


class LineSource(FileSource):
    """JSON lines and CSV, with their bad lines in `line_unparsed` and `line_file`.

    If the options `mode` or `columnNameOfCorruptRecord` say what to do with bad lines, Spark's own
    behaviour is left as it is.
    """

    def open(self, spark: SparkSession, request: SourceRequest) -> DataFrame:
        """Return the rows with the two columns. Raises ConfigError if the schema is not that of a
        row.
        """
        if any(text(request.options, name) for name in ("mode", "columnNameOfCorruptRecord")):
            return super().open(spark, request)
        options = {**_never_too_old(request), "columnNameOfCorruptRecord": UNPARSED}
        if request.ddl is None:
            seen = spark.read.format(request.format).options(**options).load(request.path)
            known: T.DataType = seen.schema
        else:
            known = T._parse_datatype_string(request.ddl)
        if not isinstance(known, T.StructType):
            raise ConfigError("schema", request.ddl, "must name columns")
        fields = [field for field in known.fields if field.name != UNPARSED]
        schema = T.StructType([*fields, T.StructField(UNPARSED, T.StringType())])
        opened = (spark.readStream if request.streaming else spark.read).format(request.format)
        rows = _inside_roots(opened.options(**options).schema(schema).load(request.path), request)
        file = F.when(F.col(UNPARSED).isNotNull(), F.col("_metadata.file_path"))
        return rows.withColumn(FILE, file)


def _inside_roots(rows: DataFrame, request: SourceRequest) -> DataFrame:
    """Return the rows of a stream; with `TIDEGATE_ROOTS`, those of a file that leads out raise a
    ConfigError on the worker, which ends the run. Costs a column of file names per row.
    """
    roots = current_roots()
    if not request.streaming or not roots or request.path is None:
        return rows

    def check(files: pa.Array) -> pa.Array:
        check_files_read(files.unique().to_pylist(), roots)
        return pa.repeat(True, len(files))

    guard: Any = arrow_udf(check, T.BooleanType())  # type: ignore[call-overload]
    checked = guard.asNondeterministic()
    return rows.where(checked(F.col("_metadata.file_path")))


def _never_too_old(request: SourceRequest) -> Mapping[str, str]:
    """Return the options, for a stream with a `maxFileAge` that no file reaches unless one is
    given.
    """
    if request.streaming and text(request.options, "maxFileAge") is None:
        return {**request.options, "maxFileAge": NEVER_TOO_OLD}
    return request.options
