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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

ALSO_TEXT = (".txt", ".log", ".dat")
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
        return loaded.with_options(**self._folder_options())

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

    def _folder_options(self) -> dict[str, Any]:
        """Return what tells Spark to read exactly these files of a folder."""
        place = Path(self.path)
        if not place.is_dir() or self.format in ("mcap", "rosbag"):
            return {}
        options: dict[str, Any] = {}
        listed = [p for p in place.rglob("*") if p.is_file() and not _hidden(p, place)]
        if any(file.parent != place for file in self.files):
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
        files = sorted(p for p in place.rglob("*") if p.is_file() and not _hidden(p, place))
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
        alone: Whether the user named this file: then any text is taken for CSV.
    """
    ending = _endings(path.name)
    for compression in COMPRESSIONS:
        plain = ending.removesuffix(compression)
        if plain != ending:
            found = FORMATS.get(plain)
            return found if found in ("csv", "json") else None
    if alone and ending in ALSO_TEXT:
        return "csv"
    return FORMATS.get(ending)


def _hidden(path: Path, root: Path) -> bool:
    """Return whether a part of the path below `root` begins with `.` or `_`."""
    return any(part[0] in "._" for part in path.relative_to(root).parts)


# -- Parquet --------------------------------------------------------------------------------------


def _load_parquet(files: tuple[Path, ...], limit: int) -> LoadedRows:
    """Read Parquet files without their binary columns.

    Timestamps in nanoseconds become integers, because that is how Spark hands them to a run.
    """
    schemas = [pq.read_schema(file) for file in files]
    options = {} if all(s.equals(schemas[0]) for s in schemas) else {"mergeSchema": True}
    whole = pa.unify_schemas(schemas, promote_options="permissive")
    tables, left, total = [], limit, 0
    unreadable: dict[str, int] = {}
    for file, schema in zip(files, schemas, strict=True):
        opened = pq.ParquetFile(file)
        total += opened.metadata.num_rows
        wanted = [f.name for f in schema if not _is_payload(f.type)]
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
        tables.append(_as_spark_reads(table))
    payloads = [field.name for field in whole if _is_payload(field.type)]
    return joined_rows(tables, total, options, unreadable, payloads=payloads)


def _is_payload(kind: pa.DataType) -> bool:
    """Return whether a column holds bytes: images and the like, which are not looked at."""
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _as_spark_reads(table: pa.Table) -> pa.Table:
    """Return a Parquet table with the types that a run gets."""
    for place, field in enumerate(table.schema):
        kind = field.type
        if pa.types.is_dictionary(kind):
            plain = pc.cast(table.column(place), kind.value_type)
            table = table.set_column(place, field.name, plain)
        elif pa.types.is_timestamp(kind) and kind.unit == "ns":
            plain = table.column(place).cast(pa.int64())
            table = table.set_column(place, field.name, plain)
    return table


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
