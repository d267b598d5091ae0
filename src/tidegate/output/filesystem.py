"""File systems by path or URI, and small files that appear whole or not at all.

Every path that a user gives (`sink.path`, a checkpoint, a folder of control rows, the argument of
`tidegate view`) is opened here, so that all of them accept the same URIs and fail with the same
sentence.

Three ways to write, from weak to strong:

    open_output_stream   pyarrow's: a crash leaves half of a file
    write_whole          readers find all of it or nothing; the last of two writers wins
    create_whole         the same, and the first of two writers wins: the other is told

What is returned from the last two is on disk, not only in the memory of the kernel: content and
folder are synced. `sync_file` does the same for a file that was written otherwise.

Exclusive creation is the one primitive that two drivers need to agree on who is in charge (see
`tidegate.output.epochs`). A local or mounted file system has it (a hard link to a name that exists
fails). pyarrow has no call for it on object stores: there, `create_whole` looks, writes, and reads
back what is there, which two drivers that write within the same milliseconds can both pass.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs

from tidegate.errors import ConfigError

__all__ = [
    "create_whole",
    "filesystem",
    "mount",
    "now_s",
    "read_bytes",
    "remove_empty_folder",
    "remove_file",
    "replace_file",
    "sync_file",
    "sync_folder",
    "write_whole",
]

_MOUNTED: dict[str, pafs.FileSystem] = {}
"""File systems of this process by scheme; see `mount`."""


def mount(scheme: str, fs: pafs.FileSystem | None) -> None:
    """Let URIs of a scheme name a file system of this process; None takes it away again.

    For simulations of disks that fail. Workers of Spark are other processes and do not see it.

    Args:
        scheme: The part of a URI before `://`. One that pyarrow knows is hidden by ours.
        fs: The file system. The part of the URI after `://`, with a slash before it, is the path
            inside it.

    >>> from pyarrow.fs import LocalFileSystem
    >>> mount("here", LocalFileSystem())
    >>> filesystem("here://tmp/out")[1]
    '/tmp/out'
    >>> mount("here", None)
    """
    _MOUNTED.pop(scheme, None)
    if fs is not None:
        _MOUNTED[scheme] = fs


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
    scheme, found, inside = path.partition("://")
    if not found:
        return pafs.LocalFileSystem(), str(Path(path).absolute())
    if scheme in _MOUNTED:
        return _MOUNTED[scheme], f"/{inside.strip('/')}"
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
    try:
        with fs.open_input_stream(file) as stream:
            return bytes(stream.read())
    except FileNotFoundError:  # removed since we looked
        return None


def now_s(fs: pafs.FileSystem, folder: str) -> float | None:
    """Return the time by the clock that stamps files in a folder, in s; None if it stamps none.

    A file is written and removed for it: the clock of a mounted disk is that of another machine.

    >>> import tempfile
    >>> now = now_s(pafs.LocalFileSystem(), tempfile.mkdtemp())
    >>> now is not None and now > 1_700_000_000
    True
    """
    probe = f"{folder}/.{uuid.uuid4().hex}.tmp"
    with fs.open_output_stream(probe) as stream:
        stream.write(b"now")
    stamped = fs.get_file_info(probe).mtime_ns
    fs.delete_file(probe)
    return None if stamped is None else stamped / 1e9


def write_whole(fs: pafs.FileSystem, file: str, content: bytes) -> None:
    """Write a file so that readers find all of it or nothing, creating its folder if needed.

    The content goes into `.NAME.tmp` beside it first and is then moved into place. A process that
    dies in between leaves the `.tmp` file, which every reader ignores and the next write replaces.
    Only for files with one writer at a time: two would share the `.tmp` file.

    >>> import tempfile
    >>> file = tempfile.mkdtemp() + "/records/one.json"
    >>> write_whole(pafs.LocalFileSystem(), file, b"{}")
    >>> read_bytes(pafs.LocalFileSystem(), file)
    b'{}'
    """
    folder, _, name = file.rpartition("/")
    fs.create_dir(folder)
    fresh = f"{folder}/.{name.rsplit('.', 1)[0]}.tmp"
    _write_synced(fs, fresh, content)
    fs.move(fresh, file)
    sync_folder(fs, folder)


def replace_file(path: str, text: str) -> None:
    """Write a local text file under a new name and put it in place of the one that is there.

    A link of that name is replaced, never followed: in a folder from somebody else it may lead to a
    file of the user's.

    Raises:
        ConfigError: It cannot be written.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "mine").write_text("kept"), (folder / "page.html").symlink_to(folder / "mine")
    (4, None)
    >>> replace_file(str(folder / "page.html"), "new")
    >>> (folder / "mine").read_text(), (folder / "page.html").read_text()
    ('kept', 'new')
    """
    fresh = Path(path).parent / f".{uuid.uuid4().hex}.tmp"
    try:
        with fresh.open("x", encoding="utf-8") as file:
            file.write(text)
        fresh.replace(path)
    except OSError as error:
        raise ConfigError("page", path, f"cannot be written: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)


def create_whole(fs: pafs.FileSystem, file: str, content: bytes) -> bool:
    """Write a file unless there is one of that name; its folder is created if needed.

    Args:
        fs: The file system; see above for what object stores cannot promise.
        file: The path inside it.
        content: All of the content. If it is unlike anybody else's (it holds an epoch, or a random
            number), a creation whose answer got lost is recognised as our own.

    Returns:
        Whether the file that is there now is ours.

    >>> import tempfile
    >>> file = tempfile.mkdtemp() + "/records/one.json"
    >>> create_whole(pafs.LocalFileSystem(), file, b"first")
    True
    >>> create_whole(pafs.LocalFileSystem(), file, b"second")
    False
    >>> read_bytes(pafs.LocalFileSystem(), file)
    b'first'
    """
    folder, _, name = file.rpartition("/")
    fs.create_dir(folder)
    # A name of its own: the link shares its bytes, so a second writer must not reach them.
    fresh = f"{folder}/.{name.rsplit('.', 1)[0]}.{uuid.uuid4().hex}.tmp"
    if isinstance(fs, pafs.LocalFileSystem):
        created = _link_local(fs, fresh, file, content)
    elif isinstance(fs, pafs.PyFileSystem) and hasattr(fs.handler, "link_new"):
        _write_synced(fs, fresh, content)
        created = bool(fs.handler.link_new(fresh, file))
        remove_file(fs, fresh)
    else:
        created = read_bytes(fs, file) is None
        if created:
            with fs.open_output_stream(file) as stream:
                stream.write(content)
    if created:
        sync_folder(fs, folder)
    return read_bytes(fs, file) == content


def _link_local(fs: pafs.FileSystem, fresh: str, file: str, content: bytes) -> bool:
    """Create a local file by a hard link; where there are none, by opening it exclusively."""
    try:
        _write_synced(fs, fresh, content)
        os.link(fresh, file)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
            raise
        with contextlib.suppress(FileExistsError), open(file, "xb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
    finally:
        Path(fresh).unlink(missing_ok=True)
    return True


def _write_synced(fs: pafs.FileSystem, file: str, content: bytes) -> None:
    """Write a file in place and wait until it is on disk."""
    with fs.open_output_stream(file) as stream:
        stream.write(content)
    sync_file(fs, file)


def remove_file(fs: pafs.FileSystem, file: str) -> None:
    """Remove a file; one that is not there is no error."""
    if fs.get_file_info(file).type == pafs.FileType.File:
        with contextlib.suppress(FileNotFoundError):
            fs.delete_file(file)


def remove_empty_folder(fs: pafs.FileSystem, folder: str) -> None:
    """Remove a folder if nothing is in it. pyarrow's `delete_dir` would remove what another driver
    puts there meanwhile; object stores have no folders to remove.
    """
    with contextlib.suppress(OSError):
        if isinstance(fs, pafs.LocalFileSystem):
            Path(folder).rmdir()
        elif isinstance(fs, pafs.PyFileSystem) and hasattr(fs.handler, "remove_empty_folder"):
            fs.handler.remove_empty_folder(folder)


def sync_file(fs: pafs.FileSystem, file: str) -> None:
    """Wait until the content of a file is on disk. Object stores answer when it is: nothing to do.

    Without it a power cut may leave a file that a commit names empty or half written: a file
    system may write names to disk before contents.
    """
    if isinstance(fs, pafs.LocalFileSystem):
        _sync_local(file)
    elif isinstance(fs, pafs.PyFileSystem) and hasattr(fs.handler, "sync"):
        fs.handler.sync(file)


def sync_folder(fs: pafs.FileSystem, folder: str) -> None:
    """Wait until the names in a folder (files created, moved, removed) are on disk."""
    if isinstance(fs, pafs.LocalFileSystem):
        _sync_local(folder)
    elif isinstance(fs, pafs.PyFileSystem) and hasattr(fs.handler, "sync_folder"):
        fs.handler.sync_folder(folder)


def _sync_local(path: str) -> None:
    """fsync a file or folder; file systems that cannot do so for folders are left alone."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(opened)
