"""File systems by path or URI, and small files that appear whole or not at all.

Every path that a user gives (`sink.path`, a checkpoint, a folder of control rows, the argument of
`tidegate view`) is opened here, so that all of them accept the same URIs and fail with the same
sentence.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs

from tidegate.errors import ConfigError

__all__ = ["filesystem", "read_bytes", "write_whole"]


def filesystem(path: str, field: str = "path") -> tuple[pafs.FileSystem, str]:
    """Return the file system of a path or URI, and the path inside it without a trailing slash.

    `path` is a local path (made absolute) or a URI that pyarrow knows: `file://`, `s3://`, `gs://`,
    `hdfs://`. `field` is the setting the path came from; it is named if the URI cannot be opened.

    Raises ConfigError for a URI with an unknown scheme or one that cannot be reached.

    >>> filesystem("/data/out/")[1]
    '/data/out'
    >>> filesystem("nosuch://bucket/out", "sink.path")
    Traceback (most recent call last):
        ...
    tidegate.errors.ConfigError: sink.path: got 'nosuch://bucket/out', cannot be opened: \
Unrecognized filesystem type in URI: nosuch://bucket/out
    """
    if "://" not in path:
        return pafs.LocalFileSystem(), str(Path(path).absolute())
    try:
        fs, root = pafs.FileSystem.from_uri(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise ConfigError(field, path, f"cannot be opened: {error}") from error
    return fs, root.rstrip("/")


def read_bytes(fs: pafs.FileSystem, file: str) -> bytes | None:
    """Return the content of a file, or None if there is no such file.

    >>> read_bytes(pafs.LocalFileSystem(), "/nowhere/at/all") is None
    True
    """
    if fs.get_file_info(file).type != pafs.FileType.File:
        return None
    with fs.open_input_stream(file) as stream:
        return bytes(stream.read())


def write_whole(fs: pafs.FileSystem, file: str, content: bytes) -> None:
    """Write a file so that readers find all of it or nothing, creating its folder if needed.

    The content goes into `.NAME.tmp` beside it first and is then moved into place. A process that
    dies in between leaves the `.tmp` file, which every reader ignores and the next write replaces.

    >>> import tempfile
    >>> file = tempfile.mkdtemp() + "/records/one.json"
    >>> write_whole(pafs.LocalFileSystem(), file, b"{}")
    >>> read_bytes(pafs.LocalFileSystem(), file)
    b'{}'
    """
    folder, _, name = file.rpartition("/")
    fs.create_dir(folder)
    fresh = f"{folder}/.{name.rsplit('.', 1)[0]}.tmp"
    with fs.open_output_stream(fresh) as stream:
        stream.write(content)
    fs.move(fresh, file)
