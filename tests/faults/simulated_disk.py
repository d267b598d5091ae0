"""A disk in memory that can fail in every way a disk can, one operation at a time.

A `Disk` holds files, hard links and folders. It keeps apart what programs see and what would be
left after a power cut: the content of a file counts when it was synced, its name when its folder
was. A `View` is the disk as one process sees it (a pyarrow file system): every operation of that
process is counted, and `before` is called first, which may raise, wait, or change the disk. After
`kill` nothing that the process still does has an effect.

Times are those of the simulated clock, which only runs when somebody sleeps.
"""

from __future__ import annotations

import errno
import io
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs


class CrashError(BaseException):
    """The process dies here. Not an Exception: nothing may catch it."""


@dataclass
class SimulatedClock:
    """Seconds since the simulation began."""

    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Inode:
    """A file: its bytes, those of them that are on disk, and when it was written."""

    content: bytes = b""
    synced: bytes | None = None
    time: float = 0.0


def parent(path: str) -> str:
    return path.rpartition("/")[0]


@dataclass
class Disk:
    """What all processes share."""

    clock: SimulatedClock = field(default_factory=SimulatedClock)
    names: dict[str, Inode] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    durable: dict[str, Inode] = field(default_factory=dict)
    """Names that are on disk."""

    def power_cut(self, dice: random.Random) -> None:
        """Lose what was not synced. Of names created, moved or removed since their folder was
        synced, any may be on disk; of content, any beginning."""
        names = dict(self.durable)
        changed = sorted({
            path for path in {*self.names, *self.durable}
            if self.names.get(path) is not self.durable.get(path)
        })  # fmt: skip
        for path in changed:
            if dice.random() < 0.5:
                now = self.names.get(path)
                if now is None:
                    names.pop(path, None)
                else:
                    names[path] = now
        for inode in names.values():
            if inode.synced is None or inode.synced != inode.content:
                kept = inode.synced or inode.content[: dice.randrange(len(inode.content) + 1)]
                inode.content = inode.synced = kept
        self.names = names
        self.durable = dict(names)
        self.folders = {place for path in names for place in _above(path)}


def _above(path: str) -> list[str]:
    parts = path.split("/")[1:-1]
    return ["/" + "/".join(parts[: n + 1]) for n in range(len(parts))]


Before = Callable[[int, str, str], None]
"""Called before an operation with its number, name and path."""


class View(pafs.FileSystemHandler):
    """The disk as one process sees it."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.calls = 0
        self.dead = False
        self.over = False
        self.doubled = 0
        self.before: Before = lambda number, name, path: None
        self.after: Before = lambda number, name, path: None
        self.log: list[str] = []

    def kill(self) -> None:
        self.dead = True

    def _operation(self, name: str, path: str, effect: Callable[[], Any]) -> Any:
        if self.dead:
            raise CrashError
        self.calls += 1
        number = self.calls
        self.log.append(name)
        self.before(number, name, path)
        if self.dead:
            raise CrashError
        result = effect()
        if number == self.doubled:  # a request sent again: what is heard is the second answer
            result = effect()
        self.after(number, name, path)
        if self.dead:
            raise CrashError
        return result

    # -- what changes the disk -------------------------------------------------------------------

    def create_dir(self, path: str, recursive: bool) -> None:
        self._operation("create_dir", path, lambda: self.disk.folders.update(_above(f"{path}/x")))

    def move(self, src: str, dest: str) -> None:
        def effect() -> None:
            if src not in self.disk.names:
                raise FileNotFoundError(errno.ENOENT, "no such file", src)
            if parent(dest) not in self.disk.folders:
                raise FileNotFoundError(errno.ENOENT, "no such folder", dest)
            self.disk.names[dest] = self.disk.names.pop(src)

        self._operation("move", f"{src} {dest}", effect)

    def link_new(self, src: str, dest: str) -> bool:
        """Give a file a second name; False if that name is taken."""

        def effect() -> bool:
            if dest in self.disk.names:
                return False
            if src not in self.disk.names:
                raise FileNotFoundError(errno.ENOENT, "no such file", src)
            self.disk.names[dest] = self.disk.names[src]
            return True

        return bool(self._operation("link_new", dest, effect))

    def delete_file(self, path: str) -> None:
        def effect() -> None:
            if path not in self.disk.names:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            del self.disk.names[path]

        self._operation("delete_file", path, effect)

    def delete_dir(self, path: str) -> None:
        def effect() -> None:
            if path not in self.disk.folders:
                raise FileNotFoundError(errno.ENOENT, "no such folder", path)
            for name in [n for n in self.disk.names if n.startswith(f"{path}/")]:
                del self.disk.names[name]
            self.disk.folders = {
                f for f in self.disk.folders if f != path and not f.startswith(f"{path}/")
            }

        self._operation("delete_dir", path, effect)

    def remove_empty_folder(self, path: str) -> None:
        def effect() -> None:
            inside = [n for n in (*self.disk.names, *self.disk.folders) if n.startswith(f"{path}/")]
            if inside:
                raise OSError(errno.ENOTEMPTY, "not empty", path)
            self.disk.folders.discard(path)

        self._operation("remove_empty_folder", path, effect)

    def sync(self, path: str) -> None:
        def effect() -> None:
            if path not in self.disk.names:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            inode = self.disk.names[path]
            inode.synced = inode.content

        self._operation("sync", path, effect)

    def sync_folder(self, path: str) -> None:
        def effect() -> None:
            for name in {*self.disk.names, *self.disk.durable}:
                if parent(name) == path:
                    if name in self.disk.names:
                        self.disk.durable[name] = self.disk.names[name]
                    else:
                        del self.disk.durable[name]

        self._operation("sync_folder", path, effect)

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        def effect() -> pa.NativeFile:
            if parent(path) not in self.disk.folders:
                raise FileNotFoundError(errno.ENOENT, "no such folder", path)
            inode = Inode(time=self.disk.clock.now)
            self.disk.names[path] = inode
            return pa.PythonFile(_Written(self, path, inode), mode="w")

        return self._operation("open_output_stream", path, effect)

    # -- what reads it ---------------------------------------------------------------------------

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        return [self._operation("get_file_info", path, lambda p=path: self._info(p))
                for path in paths]  # fmt: skip

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        base = selector.base_dir

        def effect() -> list[pafs.FileInfo]:
            if base not in self.disk.folders:
                if selector.allow_not_found:
                    return []
                raise FileNotFoundError(errno.ENOENT, "no such folder", base)
            inside = [path for path in (*self.disk.names, *self.disk.folders)
                      if parent(path) == base]  # fmt: skip
            return [self._info(path) for path in sorted(inside)]

        return list(self._operation("list", base, effect))

    def _info(self, path: str) -> pafs.FileInfo:
        inode = self.disk.names.get(path)
        if inode is not None:
            return pafs.FileInfo(
                path, pafs.FileType.File, size=len(inode.content), mtime_ns=int(inode.time * 1e9)
            )
        known = path in self.disk.folders
        return pafs.FileInfo(path, pafs.FileType.Directory if known else pafs.FileType.NotFound)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self._operation("read", path, lambda: pa.BufferReader(self._content(path)))

    def open_input_file(self, path: str) -> pa.NativeFile:
        return self.open_input_stream(path)

    def _content(self, path: str) -> bytes:
        if path not in self.disk.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self.disk.names[path].content

    # -- what pyarrow asks of a file system ------------------------------------------------------

    def get_type_name(self) -> str:
        return "simulated"

    def normalize_path(self, path: str) -> str:
        return path

    def delete_dir_contents(self, path: str, missing_dir_ok: bool) -> None:
        raise NotImplementedError

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def copy_file(self, src: str, dest: str) -> None:
        raise NotImplementedError

    def open_append_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other


class _Written(io.BytesIO):
    """A file that is being written; its bytes reach the disk as they come."""

    def __init__(self, view: View, path: str, inode: Inode) -> None:
        super().__init__()
        self.view, self.path, self.inode = view, path, inode

    def write(self, data: Any) -> int:
        added, before = bytes(data), self.inode.content
        if self.view.over:  # the process is gone; only here a writer is still collected and closed
            return len(added)

        def effect() -> None:
            self.inode.content = before + added  # at its place, so that twice is as once
            self.inode.time = self.view.disk.clock.now

        try:
            self.view._operation("write", self.path, effect)
        except OSError as error:
            if error.errno == errno.ENOSPC:  # what still fits is written
                self.inode.content += added[: len(added) // 2]
            raise
        return len(added)
