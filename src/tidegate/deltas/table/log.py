"""A log of versions: each a JSON file that says which data files the table consists of.

    TABLE/_log/00000003.json     a whole version: settings, files, batches taken in
    TABLE/data/…                 files; only those the newest version names are part of the table

A version is put in place by linking a finished file to its name, which fails if the name is taken:
so of two writers one wins, and a writer that dies at any moment leaves the old version or the new
one, never something between. Needs a file system with hard links (any local one).

Clock policy: none. Versions are ordered by number.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tidegate.errors import ConfigError, StateError

__all__ = ["CommitLog", "DataFile", "Step", "Taken", "Version"]

FORMAT = 1
VERSIONS_KEPT = 20
"""Older version files are removed: a reader that is behind reads the newest one again."""

Step = Callable[[str], None]
"""Called before every step that changes something on disk, by name. Tests kill the writer here."""


def no_step(_: str) -> None:
    """The default: nobody watches."""


class Taken(Exception):  # noqa: N818  (not an error: the caller reads again and retries)
    """Another writer made this version first."""


@dataclass(frozen=True)
class DataFile:
    """One file of the table."""

    path: str
    bucket: int
    kind: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class Version:
    """What the table consists of."""

    number: int
    settings: dict[str, Any]
    files: tuple[DataFile, ...] = ()
    batches: tuple[str, ...] = ()
    """Batch ids that were appended: appending one again changes nothing."""

    def of_bucket(self, bucket: int) -> tuple[DataFile, ...]:
        return tuple(file for file in self.files if file.bucket == bucket)

    @property
    def bytes(self) -> int:
        """Bytes on disk, compressed."""
        return sum(file.bytes for file in self.files)


class CommitLog:
    """The versions of one table."""

    def __init__(self, root: str | Path, step: Step = no_step) -> None:
        self.root = Path(root)
        self.folder = self.root / "_log"
        self.step = step

    def exists(self) -> bool:
        return bool(self._numbers())

    def create(self, settings: dict[str, Any]) -> Version:
        """The first version of a new table."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.root / "data").mkdir(exist_ok=True)
        first = Version(0, settings)
        try:
            self._place(first)
        except Taken:
            raise ConfigError("path", str(self.root), "holds a table already") from None
        return first

    def latest(self) -> Version:
        """The newest version, or a StateError."""
        for _ in range(3):  # an old version may be removed between listing and reading
            numbers = self._numbers()
            if not numbers:
                raise StateError(f"{self.root} holds no table")
            try:
                return self._read(numbers[-1])
            except FileNotFoundError:
                continue
        raise StateError(f"{self.root}: the log cannot be read")

    def commit(self, new: Version) -> Version:
        """Make `new` (numbered after the one it was made from) the newest; `Taken` if it is not."""
        self._place(new)
        for number in self._numbers()[:-VERSIONS_KEPT]:
            (self.folder / f"{number:08d}.json").unlink(missing_ok=True)
        return new

    def following(self, base: Version, **changes: Any) -> Version:
        return replace(base, number=base.number + 1, **changes)

    def _numbers(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        return sorted(int(f.stem) for f in self.folder.glob("[0-9]*.json"))

    def _read(self, number: int) -> Version:
        path = self.folder / f"{number:08d}.json"
        try:
            said = json.loads(path.read_text())
        except json.JSONDecodeError as error:
            raise StateError(f"{path} is corrupt: {error}") from error
        if said.pop("format", 0) > FORMAT:
            raise StateError(f"{path} was written by a newer version; upgrade tidegate")
        said["files"] = tuple(DataFile(**file) for file in said["files"])
        said["batches"] = tuple(said["batches"])
        return Version(**said)

    def _place(self, version: Version) -> None:
        text = json.dumps({"format": FORMAT, **asdict(version)}, separators=(",", ":"))
        draft = self.folder / f".draft-{uuid.uuid4().hex}"
        self.step("draft")
        with open(draft, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        self.step("link")
        try:
            os.link(draft, self.folder / f"{version.number:08d}.json")
        except FileExistsError:
            raise Taken from None
        finally:
            draft.unlink(missing_ok=True)
        self.step("linked")
