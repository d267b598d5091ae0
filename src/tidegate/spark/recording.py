"""Open files for `frames`: the same sources as in a pipeline file, through gate 1 where they can.

    from tidegate.spark import frames, read
    out = frames(read("logs/", format="parquet"), key="vehicle", time="stamp").event_time(...)

`spark.read.parquet(...)` works as well; its rows then come through Spark, one by one.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tidegate.errors import ConfigError
from tidegate.spark.columnar.format import ColumnarInput
from tidegate.spark.failures import Py4JJavaError
from tidegate.spark.new_columns import columns_not_read
from tidegate.spark.options import as_texts
from tidegate.spark.sources import SourceRequest, source_of
from tidegate.spark.spark_session import session

__all__ = ["Recording", "open_recording", "read"]


@dataclass(frozen=True)
class Recording:
    """Opened files: as Spark sees their rows, and as gate 1 reads them.

    Args:
        df: The rows, batch or streaming; for looking at them, and where gate 1 cannot be used.
        columnar: How gate 1 reads them, or why it cannot; None: it was not asked.
    """

    df: DataFrame
    columnar: ColumnarInput | str | None = None


def open_recording(spark: SparkSession, request: SourceRequest) -> Recording:
    """Open what a request names. Runs no job over the data.

    Raises ConfigError if it cannot be opened, in one sentence.
    """
    source = source_of(request.format)
    try:
        df = source.open(spark, request)
        return Recording(df, source.columnar(request, df))
    except (PySparkException, Py4JJavaError) as error:
        told = f"{request.field}: {request.format} could not be opened: {_cause(error)}"
        raise ConfigError(
            request.field, request.format, "could not be opened", message=told
        ) from error


def _cause(error: Exception) -> str:
    """Return the sentence that says what happened: ours if one of ours is inside, else Spark's."""
    # A format whose class Spark cannot find is a bare Java exception.
    said = error.java_exception if isinstance(error, Py4JJavaError) else error
    lines = str(said).strip().split("\n")
    for line in lines:
        if "tidegate.errors.ConfigError: " in line:
            return line.split("tidegate.errors.ConfigError: ", 1)[1]
    if isinstance(error, PySparkException) and error.getCondition() == "COLUMN_ALREADY_EXISTS":
        name = (error.getMessageParameters() or {}).get("columnName", "a name")
        return (
            f"{name} is there more than once, or in upper and lower case, which Spark tells apart "
            "only with spark.sql.caseSensitive=true: rename one of them"
        )
    return lines[0]


def read(
    path: str | Path,
    format: str = "parquet",
    *,
    schema: str | None = None,
    streaming: bool = False,
    options: Mapping[str, str | int | float | bool] | None = None,
    spark: SparkSession | None = None,
) -> Recording:
    """Open files for `frames`. Runs no job over the data.

    Args:
        path: A file, a folder, a pattern or a URI.
        format: As in a pipeline file: `parquet` (default), `csv`, `json`, `mcap`, `rosbag`,
            `spool`.
        schema: The columns as Spark's DDL (`"vehicle string, stamp long"`); None: as the files have
            them.
        streaming: Whether files that appear later are read too. Default: those there are now.
        options: Of the source: `maxFilesPerTrigger` and the like.
        spark: The session; None: the running one, or a new one in local mode.

    Returns:
        What `frames` takes.

    Raises:
        ConfigError: For a path that does not exist, or an option that is wrong.
    """
    suffix = Path(str(path)).suffix.lower().removeprefix(".")
    meant = {"jsonl": "json", "ndjson": "json", "bag": "rosbag"}.get(suffix, suffix)
    if format == "parquet" and meant in ("csv", "json", "mcap", "rosbag"):
        expected = f"must be the format of {Path(path).name}: read(path, {meant!r})"
        raise ConfigError("format", format, expected)
    request = SourceRequest(format, str(path), as_texts(options or {}), schema, streaming, "read")
    opened = open_recording(spark or session(), request)
    if schema is None and format == "parquet" and isinstance(opened.columnar, ColumnarInput):
        for name, file in columns_not_read(opened.columnar.format.files(), opened.df.columns):
            warnings.warn(
                f"column {name!r} in {file} is not read: Spark takes the columns of one file; name "
                "those you want with schema=",
                stacklevel=2,
            )
    return opened
