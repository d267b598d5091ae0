"""JSON lines and CSV: a line that does not fit the schema keeps its text and the name of its file.

Spark makes nulls of what it cannot read, and says nothing. With two more columns such a row, which
is in the error table if its time could not be read, tells what it was and where it stood.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the name everyone uses)
from pyspark.sql import types as T  # noqa: N812

from tidegate.errors import ConfigError
from tidegate.spark.sources.options import text

__all__ = ["keeps_lines", "open_lines"]

UNPARSED = "line_unparsed"
"""The text of a line that does not fit the schema; null for all others."""

FILE = "line_file"
"""The file it stands in."""


def keeps_lines(format: str, options: Mapping[str, str]) -> bool:
    """Whether bad lines are to be kept: not if the options say what else to do with them."""
    said = any(text(options, name) for name in ("mode", "columnNameOfCorruptRecord"))
    return format in ("json", "csv") and not said


def open_lines(
    spark: SparkSession,
    format: str,
    path: str | None,
    ddl: str | None,
    options: Mapping[str, str],
    *,
    streaming: bool,
) -> DataFrame:
    """The rows of these files, batch or streaming, with their bad lines."""
    told = {**options, "columnNameOfCorruptRecord": UNPARSED}
    if ddl is None:  # a stream cannot infer its schema; a look at what is there already can
        known: T.DataType = spark.read.format(format).options(**told).load(path).schema
    else:
        known = T._parse_datatype_string(ddl)
    if not isinstance(known, T.StructType):
        raise ConfigError("schema", ddl, "must name columns")
    fields = [field for field in known.fields if field.name != UNPARSED]
    schema = T.StructType([*fields, T.StructField(UNPARSED, T.StringType())])
    opened = (spark.readStream if streaming else spark.read).format(format)
    rows = opened.options(**told).schema(schema).load(path)
    file = F.when(F.col(UNPARSED).isNotNull(), F.col("_metadata.file_path"))
    return rows.withColumn(FILE, file)
