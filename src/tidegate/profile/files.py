"""Read some columns of a file or a folder of files: Parquet, JSON lines, CSV or MCAP.

Files of a folder are read in the order of their names; hidden ones (`.` or `_` first) are skipped,
as Spark does. Everything that cannot be read is a ConfigError that names the path.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.dataset as pads
import pyarrow.json as pajson

from tidegate.errors import ConfigError

__all__ = ["FORMATS", "RecordingFiles", "find_recording"]

FORMATS = {
    ".parquet": "parquet",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".mcap": "mcap",
}
"""Format by the ending of a file name, in lower case."""


@dataclass(frozen=True)
class RecordingFiles:
    """Files of one format.

    Every method raises a ConfigError that names the path if a file cannot be read.

    Args:
        path: The file or folder as the user gave it.
        format: One of the values of `FORMATS`.
        files: The files, sorted by name.
    """

    path: str
    format: str
    files: tuple[Path, ...]

    def head(self, rows: int) -> pa.Table:
        """Return the first `rows` rows with all columns."""
        return self._guarded(lambda: _dataset(self).head(rows))

    def read(self, columns: list[str], limit: int) -> pa.Table:
        """Return up to `limit` rows of these columns, in the order of the files."""
        return self._guarded(lambda: _dataset(self).head(limit, columns=columns))

    def rows(self) -> int:
        """Count the rows of all files."""
        return int(self._guarded(lambda: _dataset(self).count_rows()))

    def _guarded(self, read: Any) -> Any:
        """Call `read` and turn errors of Arrow and of the file system into a ConfigError."""
        try:
            return read()
        except (pa.ArrowException, OSError, ValueError) as error:
            reason = str(error).split("\n")[0]
            raise ConfigError(
                "path", self.path, "must be readable",
                message=f"{self.path}: is not readable as {self.format}: {reason}",
            ) from error  # fmt: skip


def find_recording(path: str) -> RecordingFiles:
    """Find the files of a path.

    Args:
        path: A file, or a folder that is searched with all its subfolders.

    Raises:
        ConfigError: If there are no files of a known format, or files of several formats.
    """
    place = Path(path)
    if not place.exists():
        raise ConfigError("path", path, "does not exist")
    if place.is_file():
        files = [place]
    else:
        files = sorted(p for p in place.rglob("*") if p.is_file() and not _hidden(p, place))
        files = [p for p in files if p.suffix.lower() in FORMATS]
    formats = {FORMATS.get(p.suffix.lower(), "") for p in files}
    if not files or formats == {""}:
        what = ", ".join(FORMATS)
        raise ConfigError("path", path, f"must be a file or a folder of files ending in {what}")
    if len(formats) > 1:
        raise ConfigError("path", path, f"holds several formats: {', '.join(sorted(formats))}")
    return RecordingFiles(path, formats.pop(), tuple(files))


def _hidden(path: Path, root: Path) -> bool:
    """Return whether a part of the path below `root` begins with `.` or `_`."""
    return any(part[0] in "._" for part in path.relative_to(root).parts)


@dataclass(frozen=True)
class _Recording:
    """MCAP files with the methods of a pyarrow dataset that are used here. Payloads are not
    read."""

    files: list[str]

    def head(self, rows: int, columns: list[str] | None = None) -> pa.Table:
        """Return the first `rows` rows, of all columns but the payload or of those named."""
        batches: list[pa.RecordBatch] = []
        found = 0
        for batch in self._batches():
            batches.append(batch.select(columns) if columns else batch)
            found += batch.num_rows
            if found >= rows:
                break
        names = columns or [name for name in _mcap().schema("header").names if name != "data"]
        wanted = pa.schema([_mcap().schema("header").field(name) for name in names])
        return pa.Table.from_batches(batches, wanted).slice(0, rows)

    def count_rows(self) -> int:
        """Count the messages by reading the headers of all of them."""
        return sum(batch.num_rows for batch in self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the messages of all files without their payloads, timed by the header stamp."""
        for file in self.files:
            for batch in _mcap().read(file, clock="header"):
                yield batch.drop_columns(["data"])


def _mcap() -> Any:
    """Return the module `tidegate.mcap`, imported on first use."""
    import tidegate.mcap  # compiles its kernels on import: do it only for a recording

    return tidegate.mcap


def _dataset(source: RecordingFiles) -> Any:
    """Return the files as a pyarrow dataset, or as something with its `head` and `count_rows`."""
    files = [str(file) for file in source.files]
    if source.format == "mcap":
        return _Recording(files)
    if source.format == "parquet":
        return pads.dataset(files, format="parquet")
    if source.format == "csv":
        # Times stay text, as in Spark: the event-time types of the pipeline read them.
        text = pacsv.ConvertOptions(timestamp_parsers=["\x00"])
        return pads.dataset(files, format=pads.CsvFileFormat(convert_options=text))
    options = pajson.ReadOptions(block_size=16 << 20)  # a line longer than a block is refused
    return pads.dataset(files, format=pads.JsonFileFormat(read_options=options))
