"""Open a bag that may come from a stranger: `rosbags` with limits.

`rosbags` checks what it reads, but decompresses whatever it meets, and trusts a database to be made
of plain tables. Three small files can then take all memory, all disk or all time:

- a chunk, message or file that decompresses to much more than it is: 1 kB of bzip2 can hold 1 GB;
- a database whose `schema` or `message_definitions` is a view, or whose `data` is a generated
  column: SQL of the stranger's choice runs, and may never end;
- a `metadata.yaml` in which aliases of aliases stand for billions of values.

Each is refused in a sentence before it costs anything. `rosbags` has no setting for the first, so
its tables of decompressors are changed, once per process: what they return stays the same.
"""

from __future__ import annotations

import bz2
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tidegate.errors import ConfigError
from tidegate.mcap.chunks import most_decompressed
from tidegate.pipeline.document import check_yaml_size

__all__ = ["limited_reader"]

MOST_METADATA = 16 << 20
"""Bytes of `metadata.yaml`: one with 10,000 files has about 3 MB."""

_ALIAS = re.compile(r"(?:^|[\s\[{,])\*\w", re.MULTILINE)
"""An alias in YAML. What ROS writes has none; with one, the text is counted before it is read."""


class BagLimitError(Exception):
    """A bag claims too much; the text says what. It becomes the reason of an error row."""


def limited_reader(path: str) -> Any:
    """Return a reader of `rosbags` for a bag of either kind, not yet opened.

    Raises:
        ConfigError: The package rosbags is missing.
        BagLimitError: `metadata.yaml` is too large. Reading raises it for all other limits.
    """
    try:
        from rosbags import rosbag1
    except ImportError as error:
        raise ConfigError(
            "format", "rosbag", "needs the package rosbags: pip install 'tidegate[rosbag]'"
        ) from error
    _limit_decompression()
    if path.endswith(".bag"):
        return rosbag1.Reader(path)
    _check_metadata(Path(path) / "metadata.yaml")
    return _checked_reader()(path)


def _check_metadata(file: Path) -> None:
    """Raise BagLimitError for a `metadata.yaml` that is too large, also with aliases expanded."""
    if not file.is_file():
        return  # rosbags says so
    if file.stat().st_size > MOST_METADATA:
        raise BagLimitError(f"metadata.yaml has more than {MOST_METADATA:,} bytes")
    text = file.read_text(errors="replace")
    if _ALIAS.search(text):
        try:
            check_yaml_size(text, "metadata.yaml")
        except Exception as error:  # also what YAML itself says
            raise BagLimitError(str(error)) from error


@cache
def _checked_reader() -> type[Any]:
    """Return the reader of ROS 2 bags, whose databases are looked at before they are used."""
    from rosbags.rosbag2 import reader, storage_sqlite3

    class PlainTables(storage_sqlite3.Sqlite3Reader):
        """A database of plain tables, or a BagLimitError."""

        def open(self) -> None:
            _check_tables(Path(str(self.path)))
            super().open()

    folders = {**reader.DirectoryReader.STORAGE_PLUGINS, "sqlite3": PlainTables}
    folder: Any = type("Folder", (reader.DirectoryReader,), {"STORAGE_PLUGINS": folders})
    kinds = {**reader.Reader.STORAGE_PLUGINS, "dir": folder, ".db3": PlainTables}
    return type("Bag", (reader.Reader,), {"STORAGE_PLUGINS": kinds})


def _check_tables(file: Path) -> None:
    """Raise BagLimitError if a database has anything but tables, indexes and stored columns.

    Only the schema is read, and nothing of it is run.
    """
    import apsw  # rosbags needs it

    connection = apsw.Connection(
        f"{file.absolute().as_uri()}?immutable=1",
        flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI,
    )
    try:
        cursor = connection.cursor()
        for kind, name, sql in cursor.execute("SELECT type, name, sql FROM sqlite_master"):
            if kind == "view" or re.match(r"\s*create\s+virtual", str(sql), re.IGNORECASE):
                raise BagLimitError(f"{name!r:.40} in the database is not a plain table")
            if kind == "table" and re.search(r"\bas\s*\(", str(sql), re.IGNORECASE):
                raise BagLimitError(f"{name!r:.40} in the database has columns that are computed")
    finally:
        connection.close()


@cache
def _limit_decompression() -> None:
    """Replace the decompressors of `rosbags` by ones that stop at `most_decompressed`."""
    from rosbags.rosbag1 import reader as bag1
    from rosbags.rosbag2 import reader as bag2
    from rosbags.rosbag2 import storage_mcap

    module: Any = bag2
    zstd = module.zstd
    unpack_zstd = _limited(lambda: zstd.ZstdDecompressor())
    unpack_lz4 = _limited(_lz4)
    bag1.decompressors["bz2"] = _limited(bz2.BZ2Decompressor)
    bag1.decompressors["lz4"] = unpack_lz4
    storage_mcap.DECOMPRESSORS["lz4"] = lambda data, _: unpack_lz4(data)
    storage_mcap.DECOMPRESSORS["zstd"] = lambda data, _: unpack_zstd(data)
    module.zstd = _LimitedZstd(zstd, unpack_zstd)


def _lz4() -> Any:
    """Return a decompressor of LZ4 frames."""
    from lz4.frame import LZ4FrameDecompressor  # type: ignore[import-untyped]

    return LZ4FrameDecompressor()


def _limited(make: Callable[[], Any]) -> Callable[[bytes], bytes]:
    """Return a function that decompresses bytes, and raises BagLimitError where they hold too much.

    `make` returns a decompressor with `decompress(data, max_length)`, `eof` and `unused_data`. Data
    may be several frames, one behind the other.
    """

    def unpack(data: bytes) -> bytes:
        most = most_decompressed(len(data))
        parts: list[bytes] = []
        left = most
        while data:
            frame = make()
            part = frame.decompress(data, left + 1)
            while True:
                left -= len(part)
                parts.append(part)
                if left < 0:
                    raise BagLimitError(
                        f"{len(data):,} bytes decompress to more than {most:,}, which is not read"
                    )
                if frame.eof:
                    break
                part = frame.decompress(b"", left + 1)
                if not part and not frame.eof:
                    raise BagLimitError("compressed data that is cut off")
            data = frame.unused_data or b""
        return b"".join(parts)

    return unpack


class _LimitedZstd:
    """The part of the module `zstd` that the reader of ROS 2 bags uses, with limits."""

    def __init__(self, zstd: Any, unpack: Callable[[bytes], bytes]) -> None:
        self._zstd = zstd
        self.decompress = unpack

    def open(self, file: Any, mode: str) -> Any:
        """Open a compressed file for reading; reading more of it than is allowed raises."""
        size = file.seek(0, 2)
        file.seek(0)
        return _LimitedFile(self._zstd.open(file, mode), most_decompressed(size, whole_file=True))


class _LimitedFile:
    """A decompressed file that ends with a BagLimitError behind `most` bytes."""

    def __init__(self, file: Any, most: int) -> None:
        self._file, self._most, self._left = file, most, most

    def __enter__(self) -> _LimitedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, as the file does."""
        part: bytes = self._file.read(size if size >= 0 else self._left + 1)
        self._left -= len(part)
        if self._left < 0:
            raise BagLimitError(f"a file decompresses to more than {self._most:,} bytes")
        return part
