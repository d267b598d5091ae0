"""Which files a path names, and their rows: Parquet, JSON, CSV, MCAP or bags, read without Spark.

    find_recording ─► RecordingFiles ─► load ─► LoadedRows: the rows, and what a pipeline must be
                                                told to read the same ones

Files of a folder are read in the order of their names; hidden ones (`.` or `_` first) are skipped,
as Spark does. What cannot be found or read is a DataError that names the path.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.core.broken_text import set_broken_text_apart
from tidegate.errors import ConfigError, DataError
from tidegate.profile.rows import LoadedRows, joined_rows
from tidegate.profile.text_csv import load_csv
from tidegate.profile.text_json import load_json

__all__ = ["FORMATS", "RecordingFiles", "find_recording"]

FORMATS = {
    ".parquet": "parquet",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".geojson": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".tab": "csv",
    ".mcap": "mcap",
    ".bag": "rosbag",
}
"""Format by the ending of a file name, in lower case."""

ALSO_TEXT = (".txt", ".log", ".dat", ".lvm", ".asc", ".prn", ".out", ".psv")
"""Endings that are read as CSV if such a file is named itself. In a folder they are left alone: it
may be a README."""

COMPRESSIONS = (".gz", ".bz2", ".zst")
"""Endings of compressed text that both Arrow and Spark read. Spark reads .lz4 as an empty file."""


@dataclass(frozen=True)
class RecordingFiles:
    """Files of one format.

    Args:
        path: The file or folder as the user gave it.
        format: One of the values of `FORMATS`.
        files: The files, sorted by name; for a ROS 2 bag its folder.
    """

    path: str
    format: str
    files: tuple[Path, ...]

    def load(self, limit: int) -> LoadedRows:
        """Read up to `limit` rows of all columns but payloads, in the order of the files.

        Raises:
            DataError: A file is damaged, or is not of its format.
        """
        readers: dict[str, Callable[[tuple[Path, ...], int], LoadedRows]] = {
            "csv": load_csv,
            "json": load_json,
            "parquet": _load_parquet,
            "mcap": _load_mcap,
            "rosbag": _load_bags,
        }
        try:
            loaded = readers[self.format](self.files, limit)
        except (pa.ArrowException, OSError, ValueError, EOFError) as error:
            if isinstance(error, ConfigError):
                raise
            raise DataError(f"{self.path} {self._fault(error)}") from error
        except DataError as error:
            alone = len(self.files) == 1 and str(error).startswith(self.files[0].name)
            if alone:  # the sentence begins with the name of the only file already
                rest = str(error)[len(self.files[0].name) :]
                raise DataError(f"{self.files[0]}{rest}") from error
            raise DataError(f"{self.path}: {error}") from error
        if loaded.table.num_rows == 0 and loaded.unreadable:
            reason, _ = max(loaded.unreadable.items(), key=lambda item: item[1])
            what = "message" if self.format in ("mcap", "rosbag") else "row"
            raise DataError(f"{self.path}: no {what} can be read: {reason}")
        return self._with_folder_columns(loaded).with_options(**self._folder_options())

    def _fault(self, error: Exception) -> str:
        """Return what is wrong with the files, from what their reader said."""
        if isinstance(error, PermissionError):
            return "may not be read by this user"
        reason = str(error).split("\n")[0]
        if re.search(r"(?i)truncated|end-of-stream|ended before", reason):
            return "is cut off: the compressed data end too early"
        if re.search(
            r"(?i)incorrect header|not a .*frame|unknown frame|magic.*bz|bz.*magic", reason
        ):
            return "is not compressed in the way its name says"
        if self.format == "parquet" and "file size is 0 bytes" in reason:
            return "is empty"
        if self.format == "parquet" and re.search(r"magic bytes|file size is", reason):
            return "is cut off, or is no Parquet file: it has no footer"
        return f"is not readable as {self.format}: {reason}"

    def _folder_columns(self) -> dict[str, list[str | None]]:
        """Return the columns in the names of folders (`device=a/day=2024-03-01`), as Spark takes
        them: their values per file. None unless all files are in folders of the same columns."""
        place = Path(self.path)
        if not place.is_dir() or self.format in ("mcap", "rosbag"):
            return {}
        found = [
            [part.partition("=") for part in file.relative_to(place).parts[:-1]]
            for file in self.files
        ]
        names = [tuple(name for name, _, _ in parts) for parts in found]
        if (
            not names[0]
            or len(set(names)) > 1
            or not all(s for parts in found for _, s, _ in parts)
        ):
            return {}
        return {
            name: [_folder_value(parts[number][2]) for parts in found]
            for number, name in enumerate(names[0])
        }

    def _with_folder_columns(self, loaded: LoadedRows) -> LoadedRows:
        """Return the rows with the columns in the names of folders, which replace those of the same
        name in the files."""
        table = loaded.table
        for name, values in self._folder_columns().items():
            column = _folder_column(values, dates=self.format == "parquet").take(loaded.file)
            if name in table.column_names:
                table = table.drop_columns([name])
            table = table.append_column(name, column)
        return replace(loaded, table=table)

    def _folder_options(self) -> dict[str, Any]:
        """Return what tells Spark to read exactly these files of a folder."""
        place = Path(self.path)
        if not place.is_dir() or self.format in ("mcap", "rosbag"):
            return {}
        options: dict[str, Any] = {}
        listed = [p for p in place.rglob("*") if p.is_file() and not _hidden(p, place)]
        if any(file.parent != place for file in self.files) and not self._folder_columns():
            options["recursiveFileLookup"] = True
        if len(listed) > len(self.files):
            endings = sorted({_endings(file.name) for file in self.files})
            joined = ",".join(endings)
            options["pathGlobFilter"] = f"*{{{joined}}}" if len(endings) > 1 else f"*{joined}"
        return options


def find_recording(path: str) -> RecordingFiles:
    """Find the files of a path.

    Args:
        path: A file, or a folder that is searched with all its subfolders. A folder with a
            `metadata.yaml` is a ROS 2 bag.

    Raises:
        DataError: There is nothing at that path, no file of a known format, or files of several
            formats.
    """
    place = Path(path)
    if not path or not place.exists():
        raise DataError(f"{path or 'an empty path'}: there is no such file or folder")
    if place.is_file():
        files = [place]
    else:
        try:
            files = sorted(p for p in place.rglob("*") if p.is_file() and not _hidden(p, place))
        except OSError as error:
            where = error.filename or path
            raise DataError(f"{where} cannot be looked into: {error.strerror}") from error
        bags = sorted({p.parent for p in files if p.suffix == ".db3"})
        if bags:
            return RecordingFiles(path, "rosbag", tuple(bags))
        files = [p for p in files if _format_of(p) is not None]
    formats = {_format_of(p, alone=place.is_file()) for p in files}
    if not files or None in formats:
        what = "a file of another kind" if not place.is_dir() else "a folder without recordings"
        raise DataError(
            f"{path} is {what}; what can be read ends in {', '.join(FORMATS)}, and compressed "
            f"text in {', '.join(COMPRESSIONS)} behind that"
        )
    if len(formats) > 1:
        counts = Counter(str(_format_of(p)) for p in files)
        named = ", ".join(f"{count:,} × {each}" for each, count in sorted(counts.items()))
        raise DataError(f"{path} holds several kinds of files ({named}); name one of the files")
    return RecordingFiles(path, str(formats.pop()), tuple(files))


def _endings(name: str) -> str:
    """Return the ending of a file name, with that of a compression before it: `.csv.gz`."""
    parts = name.lower().rsplit(".", 2)
    last = f".{parts[-1]}" if len(parts) > 1 else ""
    return f".{parts[1]}{last}" if last in COMPRESSIONS and len(parts) == 3 else last


def _format_of(path: Path, *, alone: bool = False) -> str | None:
    """Return the format of a file by its name; None if it is not known.

    Args:
        path: The file.
        alone: Whether the user named this file: then any text is taken for CSV, or for JSON.
    """
    ending = _endings(path.name)
    for compression in COMPRESSIONS:
        plain = ending.removesuffix(compression)
        if plain != ending:
            found = FORMATS.get(plain)
            return found if found in ("csv", "json") else None
    if alone and ending in ALSO_TEXT:
        return "json" if _holds_json(path) else "csv"
    return FORMATS.get(ending)


def _holds_json(path: Path) -> bool:
    """Return whether a text file begins as JSON records do: servers write them to `.log` too."""
    with path.open("rb") as opened:
        head = opened.read(4096)
    return re.match(rb"\s*(\[\s*)?\{\s*\"", head.removeprefix(b"\xef\xbb\xbf")) is not None


def _hidden(path: Path, root: Path) -> bool:
    """Return whether a part of the path below `root` begins with `.` or `_`."""
    return any(part[0] in "._" for part in path.relative_to(root).parts)


def _folder_value(text: str) -> str | None:
    """Return the value in the name of a folder, as Spark writes it."""
    return None if text == "__HIVE_DEFAULT_PARTITION__" else unquote(text)


def _folder_column(values: list[str | None], *, dates: bool) -> pa.Array:
    """Return the values of folders with the type that Spark gives them.

    Args:
        values: One per file.
        dates: Whether dates become dates: text formats have a schema, in which they are text.
    """
    there = [value for value in values if value is not None]
    kind = pa.string()
    if there and all(re.fullmatch(r"-?[0-9]{1,9}", value) for value in there):
        kind = pa.int32() if dates else pa.int64()
    elif dates and there and all(re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", v) for v in there):
        kind = pa.date32()
    return pa.array(values, pa.string()).cast(kind)


# -- Parquet --------------------------------------------------------------------------------------


def _load_parquet(files: tuple[Path, ...], limit: int) -> LoadedRows:
    """Read Parquet files without their binary columns.

    Timestamps in nanoseconds become integers, because that is how Spark hands them to a run. Times
    of day are left out: Spark refuses a file with them, unless a schema does not name them.
    """
    schemas = [pq.read_schema(file) for file in files]
    options = {} if all(s.equals(schemas[0]) for s in schemas) else {"mergeSchema": True}
    whole = pa.unify_schemas(schemas, promote_options="permissive")
    clocks = tuple(field.name for field in whole if pa.types.is_time(field.type))
    tables, left, total = [], limit, 0
    unreadable: dict[str, int] = {}
    for file, schema in zip(files, schemas, strict=True):
        opened = pq.ParquetFile(file)
        total += opened.metadata.num_rows
        wanted = [f.name for f in schema if not _is_payload(f.type) and f.name not in clocks]
        parts = []
        for batch in opened.iter_batches(columns=wanted) if left > 0 else ():
            kept, broken = set_broken_text_apart(batch.slice(0, left))  # errors in a run
            for reason in [] if broken is None else broken.reason.to_pylist():
                unreadable[reason] = unreadable.get(reason, 0) + 1
            parts.append(kept)
            left -= min(left, batch.num_rows)
            if left <= 0:
                break
        some = pa.schema([schema.field(name) for name in wanted])
        table = pa.Table.from_batches(parts, schema=some) if parts else some.empty_table()
        tables.append(_as_spark_reads(table, _int96_columns(opened)))
    payloads = [field.name for field in whole if _is_payload(field.type)]
    rows = joined_rows(tables, total, options, unreadable, payloads=payloads)
    if not clocks:
        return rows
    note = f"{', '.join(clocks)}: times of day, which Spark does not read from Parquet; left out"
    return replace(rows, notes=(note,), left_out=clocks)


def _int96_columns(opened: pq.ParquetFile) -> set[str]:
    """Return the columns that have the old type for times of Spark, Hive and Impala."""
    columns = (opened.schema.column(n) for n in range(len(opened.schema)))
    return {column.path for column in columns if column.physical_type == "INT96"}


def _is_payload(kind: pa.DataType) -> bool:
    """Return whether a column holds bytes: images and the like, which are not looked at."""
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _as_spark_reads(table: pa.Table, int96: set[str]) -> pa.Table:
    """Return a Parquet table with the types that a run gets.

    Args:
        table: The columns as Arrow reads them.
        int96: Columns of the old type for times, which Arrow calls nanoseconds.
    """
    for place, field in enumerate(table.schema):
        kind = pa.timestamp("us", "UTC") if field.name in int96 else _spark_type_of(field.type)
        if not kind.equals(field.type):
            plain = pc.cast(table.column(place), kind, safe=False)
            table = table.set_column(place, field.name, plain)
    return table


_UNSIGNED = {
    pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}  # fmt: skip
"""What Spark makes of unsigned integers, which it does not have."""


def _spark_type_of(kind: pa.DataType) -> pa.DataType:
    """Return the type that Spark gives a column of a Parquet file."""
    if pa.types.is_dictionary(kind):
        return _spark_type_of(kind.value_type)
    if pa.types.is_timestamp(kind):
        zone = None if kind.tz is None else "UTC"
        return pa.int64() if kind.unit == "ns" else pa.timestamp("us", zone)
    if pa.types.is_duration(kind):
        return pa.int64()
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([f.with_type(_spark_type_of(f.type)) for f in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(_spark_type_of(kind.value_type)))
    return _UNSIGNED.get(kind, kind)


# -- recordings -----------------------------------------------------------------------------------


def _load_mcap(files: tuple[Path, ...], limit: int) -> LoadedRows:
    """Read MCAP files without their payloads."""
    import tidegate.mcap  # compiles its kernels on import: do it only for a recording

    def batches() -> Iterator[pa.RecordBatch]:
        for file in files:
            yield from tidegate.mcap.read(str(file), clock="header")

    return _load_recording(batches(), limit)


def _load_bags(files: tuple[Path, ...], limit: int) -> LoadedRows:
    """Read ROS bags without their payloads; needs the package rosbags."""
    from tidegate.mcap import Selection
    from tidegate.recordings.bags import read_bag

    def batches() -> Iterator[pa.RecordBatch]:
        for file in files:
            yield from read_bag(str(file), Selection(clock="header"))

    return _load_recording(batches(), limit)


def _load_recording(batches: Iterator[pa.RecordBatch], limit: int) -> LoadedRows:
    """Gather the messages of a recording; rows that only say what is damaged are counted apart."""
    kept: list[pa.RecordBatch] = []
    unreadable: dict[str, int] = {}
    found = total = 0
    for batch in batches:
        plain = batch.drop_columns(["data"])
        bad = pc.is_valid(plain.column("error"))
        if pc.any(bad).as_py():
            for reason in plain.column("error").drop_null().to_pylist():
                unreadable[reason] = unreadable.get(reason, 0) + 1
            plain = plain.filter(pc.invert(bad))
        total += plain.num_rows
        if found < limit:
            kept.append(plain.slice(0, limit - found))
            found += kept[-1].num_rows
    table = pa.Table.from_batches(kept) if kept else pa.table({})
    file = np.zeros(table.num_rows, np.int64)
    if table.num_rows:
        encoded = table["file"].combine_chunks().dictionary_encode()
        file = np.asarray(encoded.indices).astype(np.int64)
    return LoadedRows(table, file, total, {}, unreadable, payloads=["data"])
