"""Files that Spark itself reads: Parquet, ORC, text, Avro, XML; JSON lines and CSV.

A stream cannot infer its schema: a look at the files that are there already can.

JSON lines and CSV: a line that does not fit the schema keeps its text and the name of its file.
Spark makes nulls of what it cannot read, and says nothing. With two more columns such a row, which
is in the error table if its time could not be read, tells what it was and where it was.

CSV with a header: columns are matched by their names in the header of each file. Spark goes by
position and takes the names of the first file it looks at, so that two files with their columns in
another order would be mixed up without a word.

    headers of all files ─► files of one header are one read ─► the columns of the schema ─► union

JSON whose records are an array inside an object (`{"features": [...]}`) is read with the option
`records: features`: every element is a row.

With `TIDEGATE_ROOTS`, links that lead out are refused when a run starts. Spark lists the folder of
a stream again and again and follows links that were added meanwhile, so the file of every row of a
stream is looked at once more: one that leads out ends the run before its rows go anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the name everyone uses)
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.functions import arrow_udf

from tidegate.errors import ConfigError
from tidegate.pipeline.security import check_files_read, current_roots, expand, is_local
from tidegate.pipeline.text_files import check_lines, read_header
from tidegate.recordings.listing import below, paths_named
from tidegate.spark.columnar.format import ColumnarInput, Limits
from tidegate.spark.columnar.parquet import ParquetColumns
from tidegate.spark.options import number, text
from tidegate.spark.pack import arrow_schema
from tidegate.spark.sources.registry import Source, SourceRequest

__all__ = ["FileSource", "LineSource", "ParquetSource"]

NEVER_TOO_OLD = "36500d"
"""Spark leaves out, without a word, files a week older than the newest it has read: all those of a
recorder whose clock went back. A hundred years reach to 1970, where lost clocks start."""

UNPARSED = "line_unparsed"
"""The text of a line that does not fit the schema; null for all others."""

FILE = "line_file"
"""The file of such a line."""

CSV_FILE = "csv_file"
"""Where the headers of CSV files differ: the file of every row. Reads of several headers are put
together by a union, behind which Spark no longer tells it."""


class FileSource(Source):
    """A format of Spark's own, as Spark reads it.

    A stream without a schema in its definition takes that of the files which are there when it
    starts; a stream over an empty folder needs one.
    """

    def open(self, spark: SparkSession, request: SourceRequest) -> DataFrame:
        """Return the rows as Spark reads them."""
        options = _never_too_old(request)
        if request.format == "text" and text(request.options, "wholetext") != "true":
            _check_lines(request)
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


class ParquetSource(FileSource):
    """Parquet: through gate 1 where the files are local and no option asks for more than that."""

    def columnar(self, request: SourceRequest, df: DataFrame) -> ColumnarInput | None:
        """Return how Arrow reads the files; None for remote ones, and for folders whose names are
        columns (`day=2026-01-01`).
        """
        path = request.path
        known = {"maxfilespertrigger", "maxbytespertrigger", "recursivefilelookup", "maxfileage"}
        if path is None or any(name.lower() not in known for name in request.options):
            return None
        size = text(request.options, "maxBytesPerTrigger")
        if "://" in path.removeprefix("file://") or not (size is None or size.isdigit()):
            return None
        recursive = (text(request.options, "recursiveFileLookup") or "false").lower() == "true"
        if not recursive and _has_partitions(path):
            return None
        limits = Limits(
            number(request.options, "maxFilesPerTrigger", 1),
            number(request.options, "maxBytesPerTrigger", 1),
        )
        by_case = df.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
        return ColumnarInput(
            ParquetColumns(path, arrow_schema(df), recursive, current_roots(), by_case), limits
        )


def _has_partitions(path: str) -> bool:
    """Whether a folder has folders inside whose names give columns, or a pattern that may."""
    return any(
        "=" in inside.name and inside.is_dir()
        for place in paths_named(path)
        if place.is_dir()
        for inside in place.iterdir()
    )


class LineSource(FileSource):
    """JSON lines and CSV, with their bad lines in `line_unparsed` and `line_file`.

    If the options `mode` or `columnNameOfCorruptRecord` say what to do with bad lines, Spark's own
    behaviour is left as it is.
    """

    file_column = CSV_FILE

    def open(self, spark: SparkSession, request: SourceRequest) -> DataFrame:
        """Return the rows with the two columns.

        Raises ConfigError if the schema is not that of a row, if the headers of CSV files differ in
        a way that cannot be reconciled, or if a line is too long for Spark.
        """
        if text(request.options, "multiLine") != "true" and not text(request.options, "records"):
            _check_lines(request)
        if any(text(request.options, name) for name in ("mode", "columnNameOfCorruptRecord")):
            return super().open(spark, request)
        options = {**_never_too_old(request), "columnNameOfCorruptRecord": UNPARSED}
        inside = options.pop("records", None) if request.format == "json" else None
        known = None if request.ddl is None else T._parse_datatype_string(request.ddl)
        if known is not None and not isinstance(known, T.StructType):
            raise ConfigError("schema", request.ddl, "must name columns")
        if inside is not None:
            return _open_records(spark, request, options, inside, known)
        if request.format == "csv" and text(options, "header") == "true":
            groups = _files_by_header(spark, request, options)
            if _matches_by_name(request, groups, known):
                return _open_by_name(spark, request, options, groups, known)
        if known is None:
            seen = spark.read.format(request.format).options(**options).load(request.path)
            known = seen.schema
        return _open_lines(spark, request, options, known, request.path)


def _open_lines(
    spark: SparkSession,
    request: SourceRequest,
    options: Mapping[str, str],
    known: T.StructType,
    path: str | list[str] | None,
) -> DataFrame:
    """Return the lines of some files with this schema and the two columns about bad lines."""
    fields = [field for field in known.fields if field.name != UNPARSED]
    schema = T.StructType([*fields, T.StructField(UNPARSED, T.StringType())])
    opened = (spark.readStream if request.streaming else spark.read).format(request.format)
    rows = opened.options(**options).schema(schema).load(path)  # type: ignore[arg-type]
    rows = _inside_roots(rows, request)
    file = F.when(F.col(UNPARSED).isNotNull(), F.col("_metadata.file_path"))
    return rows.withColumn(FILE, file)


def _open_records(
    spark: SparkSession,
    request: SourceRequest,
    options: Mapping[str, str],
    inside: str,
    known: T.StructType | None,
) -> DataFrame:
    """Return the elements of the array `inside` of every JSON document as rows.

    Args:
        spark: The session.
        request: What the definition says.
        options: The options without `records`.
        inside: The field that holds the array.
        known: The schema of an element; None: Spark infers it.

    Raises:
        ConfigError: The documents have no such array.
    """
    options = {**options, "multiLine": "true"}
    if known is None:
        seen = spark.read.format("json").options(**options).load(request.path).schema
    else:
        seen = T.StructType([T.StructField(inside, T.ArrayType(known))])
    found = seen[inside].dataType if inside in seen.names else None
    if not isinstance(found, T.ArrayType) or not isinstance(found.elementType, T.StructType):
        raise ConfigError(
            f"{request.field}.options.records", inside,
            f"must name an array of records; the documents have {', '.join(seen.names)}",
        )  # fmt: skip
    opened = (spark.readStream if request.streaming else spark.read).format("json")
    rows = opened.options(**options).schema(T.StructType([seen[inside]])).load(request.path)
    rows = _inside_roots(rows, request)
    return rows.select(F.inline(F.col(f"`{inside}`")))


# -- CSV by header --------------------------------------------------------------------------------


def _files_by_header(
    spark: SparkSession, request: SourceRequest, options: Mapping[str, str]
) -> dict[tuple[str, ...], list[str]]:
    """Return the files by their header, in the order of their names; none for files that are not on
    this machine: Spark reads those by position, as it always does."""
    listed = spark.read.format("csv").options(**options).schema("c string").load(request.path)
    groups: dict[tuple[str, ...], list[str]] = {}
    for uri in sorted(listed.inputFiles()):
        where = urlsplit(uri)
        if where.scheme not in ("", "file"):
            return {}
        file = unquote(where.path)
        header = read_header(file, {n.lower(): v for n, v in options.items()})
        if header:
            groups.setdefault(header, []).append(_PATTERN_SIGNS.sub(r"\\\g<0>", file))
    return groups


_PATTERN_SIGNS = re.compile(r"[\\*?\[\]{}]")
"""What Spark takes for a pattern in a path. A listed file may have them in its name."""


def _matches_by_name(
    request: SourceRequest,
    groups: Mapping[tuple[str, ...], list[str]],
    known: T.StructType | None,
) -> bool:
    """Decide whether columns are matched by name: if headers differ, or if the schema names the
    columns of the one header in another order. A schema with names of its own renames by position.

    Raises:
        ConfigError: Headers differ, and it cannot be told which column is which, or the files are
            to be read as a stream.
    """
    names = {name for header in groups for name in header}
    told = None if known is None else known.names
    if len(groups) < 2:
        return told is not None and set(told) <= names and list(*groups) != told
    first, second = list(groups.items())[:2]
    pair = f"{first[1][0]} and {second[1][0]}"
    if told is not None and not set(told) <= names:
        lost = ", ".join(name for name in told if name not in names)
        raise ConfigError(
            f"{request.field}.schema", lost,
            f"is in the header of no file, and headers differ ({pair}), so that columns cannot be "
            "matched by their position",
        )  # fmt: skip
    if request.streaming:
        raise ConfigError(
            f"{request.field}.path", request.path,
            f"holds CSV files with different headers ({pair}), which a stream cannot read: use "
            "mode: batch, or a stream per header",
        )  # fmt: skip
    if told is None and text(request.options, "inferSchema") == "true":
        raise ConfigError(
            f"{request.field}.options.inferSchema", "true",
            f"needs files with one header; {pair} differ: give a schema (`tidegate init` writes "
            "one)",
        )  # fmt: skip
    return True


def _open_by_name(
    spark: SparkSession,
    request: SourceRequest,
    options: Mapping[str, str],
    groups: Mapping[tuple[str, ...], list[str]],
    known: T.StructType | None,
) -> DataFrame:
    """Return the columns of the schema, each found by its name in the header of its file; null
    where a file has none of that name. Without a schema: all columns of all headers, as text."""
    if known is None:
        names = dict.fromkeys(name for header in groups for name in header)
        known = T.StructType([T.StructField(name, T.StringType()) for name in names])
    types = {field.name: field.dataType for field in known}
    made: DataFrame | None = None
    for header, files in groups.items():
        own = T.StructType([T.StructField(n, types.get(n, T.StringType())) for n in header])
        path = request.path if len(groups) == 1 else files
        rows = _open_lines(spark, request, options, own, path)
        columns = [
            F.col(f"`{n}`") if n in header else F.lit(None).cast(kind).alias(n)
            for n, kind in types.items()
        ]
        columns += [F.col(UNPARSED), F.col(FILE)]
        if len(groups) > 1:
            columns.append(F.col("_metadata.file_path").alias(CSV_FILE))
        rows = rows.select(*columns)
        made = rows if made is None else made.union(rows)
    assert made is not None
    return made


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


def _check_lines(request: SourceRequest) -> None:
    """Measure the lines of the files that are there; see `tidegate.pipeline.text_files`. Those that
    a stream finds later are Spark's to read: one with such a line ends the run."""
    if request.path is None or not is_local(request.path):
        return
    files = [
        str(file)
        for place in expand(request.path.removeprefix("file://"))
        for file in (below(place, "*") if place.is_dir() else [place])
        if file.is_file()
    ]
    check_lines(sorted(files), text(request.options, "lineSep"))


def _never_too_old(request: SourceRequest) -> Mapping[str, str]:
    """Return the options, for a stream with a `maxFileAge` that no file reaches unless one is
    given.
    """
    if request.streaming and text(request.options, "maxFileAge") is None:
        return {**request.options, "maxFileAge": NEVER_TOO_OLD}
    return request.options
