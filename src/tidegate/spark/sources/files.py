"""Files that Spark itself reads: Parquet, ORC, text, Avro, XML; JSON lines and CSV.

A stream cannot infer its schema: a look at the files that are there already can.

JSON lines and CSV: a line that does not fit the schema keeps its text and the name of its file.
Spark makes nulls of what it cannot read, and says nothing. With two more columns such a row, which
is in the error table if its time could not be read, tells what it was and where it was.

CSV with a header: columns are matched by their names in the header of each file. Spark goes by
position and takes the names of the first file it looks at, so that two files with their columns in
another order would be mixed up without a word.

    headers of all files ─► files of one header are one read ─► the columns of the schema ─► union

CSV with rows above or below its header that are no data: see `skipped_rows`.

JSON whose records are an array inside an object (`{"features": [...]}`) is read with the option
`records: features`: every element is a row.

With `TIDEGATE_ROOTS`, links that lead out are refused when a run starts. Spark lists the folder of
a stream again and again and follows links that were added meanwhile, so the file of every row of a
stream is looked at once more: one that leads out ends the run before its rows go anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the name everyone uses)
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.functions import arrow_udf

from tidegate.errors import ConfigError
from tidegate.pipeline.security import check_files_read, current_roots, expand, is_local
from tidegate.pipeline.text_files import check_lines, read_header, rows_above, rows_below
from tidegate.recordings.listing import below, data_files, paths_named
from tidegate.spark.columnar.csv_lines import CsvColumns
from tidegate.spark.columnar.format import ColumnarInput, Limits
from tidegate.spark.columnar.json_lines import JsonColumns, is_readable_json
from tidegate.spark.columnar.lines import UNREADABLE
from tidegate.spark.columnar.parquet import ParquetColumns
from tidegate.spark.columnar.text_values import is_supported
from tidegate.spark.options import number, text
from tidegate.spark.pack import arrow_schema
from tidegate.spark.sources.registry import Source, SourceRequest
from tidegate.spark.sources.skipped_rows import check_skipped, skips_rows, without_first_rows

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
        options = _reader_options(request)
        if request.format == "text" and not _is_true(request, "wholetext"):
            _check_lines(request)
        known: T.StructType | str | None = request.ddl
        if request.streaming and known is None and request.path is not None:
            seen = spark.read.format(request.format).options(**options).load(_spark_path(request))
            known = seen.schema
        opened = (spark.readStream if request.streaming else spark.read).format(request.format)
        opened = opened.options(**options)
        if known is not None:
            opened = opened.schema(known)
        rows = opened.load(_spark_path(request)) if request.path is not None else opened.load()
        return _inside_roots(rows, request)


class ParquetSource(FileSource):
    """Parquet: through gate 1 where the files are local and no option asks for more than that."""

    def columnar(self, request: SourceRequest, df: DataFrame) -> ColumnarInput | str:
        """Return how Arrow reads the files, or why it does not: see `_why_rows`."""
        why = _why_rows(request, LISTING_OPTIONS)
        if why is not None:
            return why
        assert request.path is not None
        by_case = str(df.sparkSession.conf.get("spark.sql.caseSensitive")).lower() == "true"
        recursive = _is_true(request, "recursiveFileLookup")
        files = ParquetColumns(request.path, arrow_schema(df), recursive, current_roots(), by_case)
        return ColumnarInput(files, _limits(request))


LISTING_OPTIONS = frozenset(
    {"maxfilespertrigger", "maxbytespertrigger", "recursivefilelookup", "maxfileage"}
)
"""Options, in lower case, about which files are taken: gate 1 has them too."""

CSV_OPTIONS = LISTING_OPTIONS | {
    "header", "sep", "delimiter", "quote", "escape", "inferschema", "samplingratio", "preferdate",
    "encoding", "charset", "skiprows", "skiprowsafterheader",
}  # fmt: skip
JSON_OPTIONS = LISTING_OPTIONS | {"encoding", "charset", "samplingratio", "dropfieldifallnull"}
"""Options that gate 1 honours, or that say only how Spark infers a schema."""


def _why_rows(request: SourceRequest, known: frozenset[str]) -> str | None:
    """Return why files cannot come through gate 1: they are remote, an option asks for more than
    it can, or folders have names that are columns (`day=2026-01-01`); None if they can.
    """
    path = request.path
    if path is None or "://" in path.removeprefix("file://"):
        return "the files are not on a file system that is mounted here"
    others = [name for name in request.options if name.lower() not in known]
    if others:
        return f"only Spark's reader has the option {others[0]}"
    size = text(request.options, "maxBytesPerTrigger")
    if not (size is None or size.isdigit()):
        return "the option maxBytesPerTrigger has a unit"
    if not _is_true(request, "recursiveFileLookup") and _has_partitions(path):
        return "names of folders are columns"
    return None


def _is_true(request: SourceRequest, option: str) -> bool:
    """Whether an option is set to true."""
    return (text(request.options, option) or "false").lower() == "true"


def _limits(request: SourceRequest) -> Limits:
    """Return how much a micro-batch takes."""
    return Limits(
        number(request.options, "maxFilesPerTrigger", 1),
        number(request.options, "maxBytesPerTrigger", 1),
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
        where = f"{request.field}.options"
        check_skipped(request.options, request.format, request.ddl is not None, where)
        if not _is_true(request, "multiLine") and not text(request.options, "records"):
            _check_lines(request)
        _allow_charset(spark, request)
        if any(text(request.options, name) for name in ("mode", "columnNameOfCorruptRecord")):
            return super().open(spark, request)
        options = {**_reader_options(request), "columnNameOfCorruptRecord": UNPARSED}
        inside = options.pop("records", None) if request.format == "json" else None
        known = None if request.ddl is None else T._parse_datatype_string(request.ddl)
        if known is not None and not isinstance(known, T.StructType):
            raise ConfigError("schema", request.ddl, "must name columns")
        if inside is not None:
            return _open_records(spark, request, options, inside, known)
        if request.format == "csv" and _is_true(request, "header"):
            groups = _files_by_header(spark, request, options)
            named = known is None and skips_rows(options) and bool(groups)
            if _matches_by_name(request, groups, known) or named:
                return _open_by_name(spark, request, options, groups, known)
        if known is None:
            if skips_rows(options):
                raise ConfigError(f"{request.field}.schema", None, "is needed to skip rows")
            seen = spark.read.format(request.format).options(**options).load(_spark_path(request))
            known = seen.schema
        return _open_lines(spark, request, options, known, _spark_path(request))

    def columnar(self, request: SourceRequest, df: DataFrame) -> ColumnarInput | str:
        """Return how gate 1 reads the lines, or why it does not."""
        return _columnar_lines(request, df)


_PLAIN_CHARSETS = frozenset(
    {"utf-8", "utf8", "us-ascii", "iso-8859-1", "utf-16", "utf-16be", "utf-16le", "utf-32"}
)
"""Encodings that Spark 4 reads without being told to."""


def _allow_charset(spark: SparkSession, request: SourceRequest) -> None:
    """Let Spark read all encodings of Java, if text is in one of those: Spark 4 refuses, by
    default, what every Windows writes (windows-1252)."""
    named = text(request.options, "encoding") or text(request.options, "charset") or "utf-8"
    if named.lower() not in _PLAIN_CHARSETS:
        spark.conf.set("spark.sql.legacy.javaCharsets", "true")


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
    told, skipped = _spark_options(options)
    rows = opened.options(**told).schema(schema).load(path)  # type: ignore[arg-type]
    rows = _inside_roots(without_first_rows(rows, skipped) if skipped else rows, request)
    file = F.when(F.col(UNPARSED).isNotNull(), F.col("_metadata.file_path"))
    return rows.withColumn(FILE, file)


def _spark_options(options: Mapping[str, str]) -> tuple[dict[str, str], int]:
    """Return the options for Spark's reader, and how many rows to take out of the beginning of each
    file behind it: with rows to skip, Spark must not take the first one for the header."""
    if not skips_rows(options):
        return dict(options), 0
    lower = {name.lower(): value for name, value in options.items()}
    header = lower.get("header", "").lower() == "true"
    ours = ("header", "skiprows", "skiprowsafterheader")
    told = {name: value for name, value in options.items() if name.lower() not in ours}
    return told, rows_above(lower) + int(header) + rows_below(lower)


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
        seen = spark.read.format("json").options(**options).load(_spark_path(request)).schema
    else:
        seen = T.StructType([T.StructField(inside, T.ArrayType(known))])
    found = seen[inside].dataType if inside in seen.names else None
    if not isinstance(found, T.ArrayType) or not isinstance(found.elementType, T.StructType):
        raise ConfigError(
            f"{request.field}.options.records", inside,
            f"must name an array of records; the documents have {', '.join(seen.names)}",
        )  # fmt: skip
    opened = (spark.readStream if request.streaming else spark.read).format("json")
    rows = opened.options(**options).schema(T.StructType([seen[inside]])).load(_spark_path(request))
    rows = _inside_roots(rows, request)
    return rows.select(F.inline(F.col(f"`{inside}`")))


# -- CSV by header --------------------------------------------------------------------------------


def _files_by_header(
    spark: SparkSession, request: SourceRequest, options: Mapping[str, str]
) -> dict[tuple[str, ...], list[str]]:
    """Return the files by their header, in the order of their names; none for files that are not on
    this machine: Spark reads those by position, as it always does."""
    listed = (
        spark.read.format("csv").options(**options).schema("c string").load(_spark_path(request))
    )
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


def _spark_path(request: SourceRequest) -> str | None:
    """Return the path for Spark, which takes signs in it for a pattern even if it is the name of a
    file or a folder."""
    path = request.path
    if path is None or not is_local(path) or not _PATTERN_SIGNS.search(path):
        return path
    plain = path.removeprefix("file://")
    return _PATTERN_SIGNS.sub(r"\\\g<0>", plain) if expand(plain) == [Path(plain)] else path


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
    if told is None and _is_true(request, "inferSchema"):
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
        if not set(header) & set(types):
            raise ConfigError(
                f"{request.field}.schema", ", ".join(types)[:200],
                f"names no column of {files[0]}, whose header is {', '.join(header)[:200]!r}",
            )  # fmt: skip
        own = T.StructType([T.StructField(n, types.get(n, T.StringType())) for n in header])
        path = _spark_path(request) if len(groups) == 1 else files
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


# -- gate 1 ---------------------------------------------------------------------------------------


def _columnar_lines(request: SourceRequest, df: DataFrame) -> ColumnarInput | str:
    """Return how gate 1 reads lines of text with the columns of `df`, or why it does not."""
    is_csv = request.format == "csv"
    why = _why_rows(request, CSV_OPTIONS if is_csv else JSON_OPTIONS) or _why_not_text(request)
    if why is not None:
        return why
    assert request.path is not None
    told = arrow_schema(df)
    extra = (UNPARSED, FILE, CSV_FILE)
    names = tuple(name for name in told.names if name not in extra)
    readable = is_supported if is_csv else is_readable_json
    for name in names:
        if not readable(told.field(name).type):
            return f"column {name!r} has a type ({told.field(name).type}) that only Spark reads"
    conf = df.sparkSession.conf
    zone = conf.get("spark.sql.session.timeZone")
    if zone not in ("UTC", "Etc/UTC") and any(_has_zone(field.type) for field in told):
        return f"Spark reads times without a zone as those of {zone}"
    if str(conf.get("spark.sql.legacy.timeParserPolicy")).upper() == "LEGACY":
        return "Spark reads times by its old rules (spark.sql.legacy.timeParserPolicy)"
    recursive = _is_true(request, "recursiveFileLookup")
    roots = current_roots()
    where = (
        request.path,
        told,
        names,
        UNPARSED,
        FILE,
        CSV_FILE if CSV_FILE in told.names else None,
    )
    if not is_csv:
        return ColumnarInput(
            JsonColumns(*where, recursive=recursive, roots=roots), _limits(request)
        )
    options = {name.lower(): value for name, value in request.options.items()}
    reference, by_name = None, CSV_FILE in told.names
    header = _is_true(request, "header")
    if header:
        found = {
            read_header(path, options) for path in data_files(request.path, recursive=recursive)
        }
        found.discard(())
        if len(found) > 1 and not by_name:
            return "the headers of the files differ"
        reference = next(iter(found)) if len(found) == 1 else None
        known = request.ddl is not None and reference is not None
        by_name = by_name or (known and set(names) <= set(reference or ()) and reference != names)
    separator = options.get("sep") or options.get("delimiter") or ","
    files = CsvColumns(
        *where, recursive=recursive, roots=roots, separator=separator.replace("\\t", "\t"),
        escape=options.get("escape", "\\"), header=header, reference=reference, by_name=by_name,
        options=tuple(sorted(options.items())),
    )  # fmt: skip
    return ColumnarInput(files, _limits(request))


def _has_zone(kind: pa.DataType) -> bool:
    """Whether values of a type are times in a zone, or hold some."""
    if pa.types.is_nested(kind):
        return any(_has_zone(kind.field(place).type) for place in range(kind.num_fields))
    return bool(pa.types.is_timestamp(kind) and kind.tz is not None)


def _why_not_text(request: SourceRequest) -> str | None:
    """Return why text cannot be read by gate 1 for what its options say; None if it can."""
    encoding = text(request.options, "encoding") or text(request.options, "charset") or "utf-8"
    if encoding.lower().replace("_", "-") not in ("utf-8", "utf8"):
        return f"text in {encoding} is decoded by Spark"
    separator = text(request.options, "sep") or text(request.options, "delimiter") or ","
    separator = separator.replace("\\t", "\t")
    if len(separator) != 1 or not separator.isascii() or separator in '"\\\r\n\0 ':
        return f"the separator {separator!r} is one that only Spark reads"
    if text(request.options, "quote") not in (None, '"'):
        return "only Spark's reader takes another sign for quotes"
    if text(request.options, "escape") not in (None, "\\", '"'):
        return "only Spark's reader takes that sign to escape quotes"
    assert request.path is not None
    recursive = _is_true(request, "recursiveFileLookup")
    packed = [p for p in data_files(request.path, recursive=recursive) if p.endswith(UNREADABLE)]
    return f"{packed[0]} is compressed in a way that only Spark reads" if packed else None


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


def _reader_options(request: SourceRequest) -> Mapping[str, str]:
    """Return the options for Spark's reader, with those that it would otherwise fill in silently.

    A stream gets a `maxFileAge` that no file reaches. Text of times without a zone is UTC, whatever
    the zone of the session or of this machine.
    """
    options = dict(request.options)
    if request.streaming and text(options, "maxFileAge") is None:
        options["maxFileAge"] = NEVER_TOO_OLD
    if request.format in ("csv", "json", "xml") and text(options, "timeZone") is None:
        options["timeZone"] = "UTC"
    return options
