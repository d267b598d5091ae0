"""Tell when a file of a running stream has a column that the stream does not read.

The schema of a Spark stream is fixed when it starts: a column that appears in a later file is not
read, and Spark says nothing. Started again, the stream takes it up: rows from there on have it, and
null before. So that nobody misses a column without a word, the files of every micro-batch are
looked at once it is committed: the footer of a Parquet file, the first line of JSON.

Which files those were is in the checkpoint, where Spark's file sources and gate 1 log them:

    sources/0/0, sources/0/1, ..., sources/0/9.compact      "v1", then one JSON object per file
    pieces/                                                 see `PieceLog`

A look never ends a run: what cannot be read is left to Spark.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from tidegate.errors import TidegateError
from tidegate.output.filesystem import filesystem
from tidegate.spark.columnar.pieces import FOLDER as PIECES
from tidegate.spark.columnar.pieces import PieceLog

__all__ = ["NewColumns", "columns_not_read"]

FILES_LOOKED_AT = 16
"""Files per micro-batch that are looked at, newest first: a recorder that changes its columns goes
on with the new ones, and a backfill of 10,000 files does not open each of them twice."""

_FIRST_LINE = 1 << 16
"""Bytes in which the first line of a JSON file must end to be looked at."""


class NewColumns:
    """Looks for columns that a stream does not read; tells each of them once.

    Args:
        checkpoint: The checkpoint of the query. Files logged there already are not looked at.
        columns: The columns of all inputs.
    """

    def __init__(self, checkpoint: str, columns: Iterable[str]) -> None:
        self._checkpoint = checkpoint
        self._known = {name.lower() for name in columns}
        self._seen: set[str] = set()
        self._pieces: PieceLog | None = None
        self._pieces_seen = 0
        self._new_files()

    def look(self) -> list[str]:
        """Return a sentence for every new column in files that were read since the last look."""
        found = []
        for file in self._new_files()[-FILES_LOOKED_AT:]:
            for name in _columns_of(file):
                if name.lower() not in self._known:
                    self._known.add(name.lower())
                    found.append(
                        f"column {name!r} in {unquote(file)} is not read: the stream began without "
                        "it; start the run again to deliver it from there on, null before"
                    )
        return found

    def _new_files(self) -> list[str]:
        """Return the files that were logged since the last call, oldest first."""
        files = []
        try:
            if self._pieces is None:
                self._pieces = PieceLog(f"{self._checkpoint}/{PIECES}")
            self._pieces.refresh()
            files += [found.path for found in self._pieces.files[self._pieces_seen :]]
            self._pieces_seen = len(self._pieces.files)
            fs, root = filesystem(self._checkpoint)
            selector = pafs.FileSelector(f"{root}/sources", recursive=True, allow_not_found=True)
            for info in sorted(fs.get_file_info(selector), key=lambda info: info.path):
                batch = info.base_name.removesuffix(".compact")
                if info.type != pafs.FileType.File or not batch.isdigit():
                    continue
                if info.path not in self._seen:
                    self._seen.add(info.path)
                    with fs.open_input_stream(info.path) as log:
                        files += list(_logged(log.read(), int(batch)))
        except (TidegateError, OSError, pa.ArrowException):
            return files
        # rows of control have columns of their own, which are read by name
        return [file for file in files if "/_control/" not in file]


def columns_not_read(files: Sequence[str], columns: Iterable[str]) -> list[tuple[str, str]]:
    """Return the columns that files have beyond those that are read, each with the first file that
    has it. At most `FILES_LOOKED_AT` files are looked at, the last ones."""
    known = {name.lower() for name in columns}
    found = []
    for file in files[-FILES_LOOKED_AT:]:
        for name in _columns_of(file):
            if name.lower() not in known:
                known.add(name.lower())
                found.append((name, file))
    return found


def _logged(log: bytes, batch: int) -> Iterator[str]:
    """Yield the files of a micro-batch in the log of a file source; a compacted log repeats those
    of all batches before. Yields nothing for the log of another source."""
    for line in log.decode(errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:  # the version, in the first line
            continue
        if not isinstance(entry, dict) or entry.get("batchId") != batch:
            continue
        if isinstance(entry.get("path"), str):
            yield entry["path"]


def _columns_of(file: str) -> list[str]:
    """Return the top-level columns of a Parquet or JSON file; none if they cannot be told."""
    try:
        fs, path = filesystem(file)
        if file.endswith(".parquet"):
            with fs.open_input_file(path) as opened:
                return list(pq.read_schema(opened).names)
        if file.endswith((".json", ".jsonl", ".ndjson")):
            with fs.open_input_stream(path, compression=None) as opened:
                first = json.loads(opened.read(_FIRST_LINE).split(b"\n", 1)[0])
            return list(first) if isinstance(first, dict) else []
    except (TidegateError, OSError, ValueError, RecursionError, pa.ArrowException):
        return []
    return []
