"""Versions of a stored table, and the Parquet files they consist of.

    TABLE/_log/00000003.json     a whole version: settings, files, batches taken in
    TABLE/data/...               files; only those the newest version names are part of the table

A version is put in place by linking a finished file to its name, which fails if the name is taken:
so of two writers one wins, and a writer that dies at any moment leaves the old version or the new
one, never something between. Needs a file system with hard links (any local one).

Files are never changed, only added and removed. A file that the newest version no longer names may
vanish at any moment: whoever reads an older version must be ready for `FileNotFoundError` and start
over from the newest one (`VersionConflict` is what the user of a job gets to see).

Vectors are spread over buckets by a hash of their id, the same in every process and for ever: it is
part of the format.

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

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tidegate.core.numba import as_readonly, kernel
from tidegate.core.outcomes import Int64s
from tidegate.errors import ConfigError, StateError, TidegateError

__all__ = [
    "READ_ATTEMPTS",
    "DataFile",
    "Step",
    "Version",
    "VersionConflict",
    "VersionLog",
    "bucket_of_id",
    "no_step",
    "read_data_file",
    "remove_unnamed_files",
    "write_data_file",
]

FORMAT = 1
"""The format of a version file. A newer one is refused: it may mean something else."""

VERSIONS_KEPT = 20
"""Older version files are removed. A reader needs only the newest one; fewer than two would let a
reader find nothing between listing the folder and opening the file."""

READ_ATTEMPTS = 50
"""How often a reader starts over when a file it was about to read is gone, because a newer version
replaced it. Every time means another commit in between: this often in a row does not happen."""

ROWS_PER_GROUP = 65_536
"""Rows in a Parquet row group. Small enough that reading one vector skips most of a large file by
the ids in its footer; smaller, and the footer itself becomes what is read."""

Step = Callable[[str], None]
"""Called before every step that changes something on disk, by name. Tests kill the writer here."""


def no_step(_: str) -> None:
    """The default `Step`: nobody watches."""


class VersionConflict(TidegateError):  # noqa: N818  (of two writers one loses: nothing is wrong)
    """Another writer made this version first, or replaced the files this one was made from."""


@dataclass(frozen=True)
class DataFile:
    """One file of the table."""

    path: str
    """Relative to the folder of the table."""
    bucket: int
    """The bucket its vectors belong to."""
    kind: str
    """`deltas`, `checkpoints`, `pending` or `refused`; in a table of vectors, `vectors`."""
    rows: int
    """How many rows it has."""
    bytes: int
    """On disk, compressed."""


@dataclass(frozen=True)
class Version:
    """What the table consists of."""

    number: int
    """Counts up from 0 without a gap."""
    settings: dict[str, Any]
    """What `create` was given."""
    files: tuple[DataFile, ...] = ()
    """All files of the table."""
    batches: tuple[str, ...] = ()
    """Batch ids that were appended: appending one again changes nothing."""

    def of_bucket(self, bucket: int) -> tuple[DataFile, ...]:
        """The files of one bucket."""
        return tuple(file for file in self.files if file.bucket == bucket)

    @property
    def bytes(self) -> int:
        """Bytes on disk, compressed."""
        return sum(file.bytes for file in self.files)


class VersionLog:
    """The versions of one table: which files it consists of, now and before.

    Args:
        root: the folder of the table.
        step: called before every change on disk, for tests.
    """

    def __init__(self, root: str | Path, step: Step = no_step) -> None:
        self.root = Path(root)
        self.folder = self.root / "_log"
        self.step = step

    def exists(self) -> bool:
        """Whether there is a table."""
        return bool(self._numbers())

    def create(self, settings: dict[str, Any]) -> Version:
        """Write the first version of a new table.

        Args:
            settings: kept in every version; plain values that JSON can hold.

        Raises:
            ConfigError: the folder holds a table already.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.root / "data").mkdir(exist_ok=True)
        first = Version(0, settings)
        try:
            self._link(first)
        except VersionConflict:
            raise ConfigError("path", str(self.root), "holds a table already") from None
        return first

    def latest(self) -> Version:
        """Read the newest version. Starts over if a writer removes the file between listing and
        reading.

        Raises:
            StateError: there is no table, its log is corrupt, or a newer Tidegate wrote it.
        """
        for _ in range(READ_ATTEMPTS):
            numbers = self._numbers()
            if not numbers:
                raise StateError(f"{self.root} holds no table")
            try:
                return self._read(numbers[-1])
            except FileNotFoundError:
                continue
        raise StateError(f"{self.root}: the log cannot be read")

    def commit(self, new: Version) -> Version:
        """Make `new` the newest version, and remove version files beyond `VERSIONS_KEPT`.

        Args:
            new: numbered one above the version it was made from (`following`).

        Raises:
            VersionConflict: another writer has made this number; nothing has changed.
        """
        self._link(new)
        for number in self._numbers()[:-VERSIONS_KEPT]:
            (self.folder / f"{number:08d}.json").unlink(missing_ok=True)
        return new

    def following(self, base: Version, **changes: Any) -> Version:
        """The version after `base`, with these fields changed."""
        return replace(base, number=base.number + 1, **changes)

    def _numbers(self) -> list[int]:
        """The numbers of all version files, ascending."""
        if not self.folder.is_dir():
            return []
        return sorted(int(f.stem) for f in self.folder.glob("[0-9]*.json"))

    def _read(self, number: int) -> Version:
        """Read one version file.

        Raises:
            FileNotFoundError: it was removed meanwhile.
            StateError: it is corrupt or of a newer format.
        """
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

    def _link(self, version: Version) -> None:
        """Put a version in place: write a draft, flush it to disk, then link it to its name.

        The link fails if the name exists, which a rename would not: that is what makes commits
        atomic.
        """
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
            raise VersionConflict(
                f"{self.root}: another writer made version {version.number} first"
            ) from None
        finally:
            draft.unlink(missing_ok=True)
        self.step("linked")


# -- files ----------------------------------------------------------------------------------------


def write_data_file(
    root: Path, kind: str, bucket: int, rows: pa.RecordBatch | pa.Table
) -> DataFile:
    """Write rows to a new Parquet file: lossless, zstd. It is no part of the table until a version
    names it.

    Args:
        root: the folder of the table.
        kind: `deltas`, `checkpoints`, `pending`, `refused` or `vectors`; the first part of its
            name.
        bucket: the bucket of the rows.
        rows: what to write.
    """
    name = f"data/{kind}-{bucket:04d}-{uuid.uuid4().hex}.parquet"
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
    (root / "data").mkdir(parents=True, exist_ok=True)
    pq.write_table(
        table,
        root / name,
        compression="zstd",
        row_group_size=ROWS_PER_GROUP,
        # Floats barely repeat: bytes of equal weight side by side compress, a dictionary does not.
        use_dictionary=[f.name for f in table.schema if pa.types.is_string(f.type)],
        use_byte_stream_split=[
            f"{f.name}.list.element"
            for f in table.schema
            if hasattr(f.type, "value_type") and pa.types.is_floating(f.type.value_type)
        ],
    )
    return DataFile(name, bucket, kind, table.num_rows, (root / name).stat().st_size)


def read_data_file(
    root: Path, file: DataFile, schema: pa.Schema, filters: Any = None
) -> pa.RecordBatch:
    """Read a file as one batch.

    Args:
        root: the folder of the table.
        file: the file.
        schema: what the columns are cast to.
        filters: as for `pyarrow.parquet.read_table`; None: all rows.

    Raises:
        FileNotFoundError: a newer version has replaced it; start over from the newest.
    """
    table = pq.read_table(root / file.path, filters=filters, partitioning=None).cast(schema)
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=schema)


def remove_unnamed_files(root: Path, named: set[str], older_than_s: float) -> list[str]:
    """Remove data files that no version names.

    Args:
        root: the folder of the table.
        named: paths to keep, relative to `root`.
        older_than_s: only files last changed before this (seconds since the epoch): younger ones
            may be of a writer that has not committed yet.

    Returns:
        The paths that were removed.
    """
    gone = []
    for path in sorted((root / "data").glob("*.parquet")):
        name = f"data/{path.name}"
        try:
            if name not in named and path.stat().st_mtime < older_than_s:
                path.unlink()
                gone.append(name)
        except FileNotFoundError:  # another process cleans up as well
            continue
    return gone


# -- buckets --------------------------------------------------------------------------------------

_FNV_SEED = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)
_FNV_MIX = np.uint64(0xFF51AFD7ED558CCD)


@kernel
def _bucket_numbers(offsets: NDArray[np.int32], text: NDArray[np.uint8], buckets: int) -> Int64s:
    """FNV-1a of each text, mod the number of buckets."""
    out = np.empty(len(offsets) - 1, np.int64)
    for k in range(len(out)):
        h = _FNV_SEED
        for j in range(offsets[k], offsets[k + 1]):
            h = (h ^ np.uint64(text[j])) * _FNV_PRIME
        # FNV leaves the last letter in few bits; ids often differ in nothing else.
        h = (h ^ (h >> np.uint64(33))) * _FNV_MIX
        out[k] = np.int64((h ^ (h >> np.uint64(29))) % np.uint64(buckets))
    return out


def bucket_of_id(ids: pa.Array, buckets: int) -> Int64s:
    """The bucket of each vector id.

    >>> bucket_of_id(pa.array(["vec-1", "vec-2", "vec-1"]), 16).tolist()
    [8, 7, 8]
    """
    ids = ids.cast(pa.string())
    if not len(ids):
        return np.empty(0, np.int64)
    if ids.offset:
        ids = pa.concat_arrays([ids])
    _, offsets, text = ids.buffers()
    ends = np.frombuffer(offsets, np.int32)[ids.offset : ids.offset + len(ids) + 1]
    raw = np.frombuffer(text, np.uint8) if text is not None else np.empty(0, np.uint8)
    with np.errstate(over="ignore"):  # the hash wraps around; only seen without the JIT
        return _bucket_numbers(as_readonly(ends), as_readonly(raw), buckets)
