"""The tables of a run, as they are under its output path: only what was committed, kind by kind.

Works while the run goes on: what is committed does not change. Reads Parquet files (which is what
the Delta sink writes too) and the tables attached to files of the MCAP sink.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from tidegate.core.columns import MICRO_BATCH
from tidegate.core.outcomes import Int64s
from tidegate.errors import ConfigError, StateError
from tidegate.mcap.reader import attached_rows
from tidegate.output.commit import Commit, CommitLog, RunTotals
from tidegate.output.filesystem import filesystem, read_bytes
from tidegate.output.maintenance import RETIRED, batches_of_file
from tidegate.pipeline.run_record import RECORD, RunRecord
from tidegate.recordings.parquet_footer import open_checked

__all__ = ["RunFollower", "StoredRun", "open_run", "run_totals"]

SAMPLE_ROWS = 20_000
"""Rows of a sample: enough to tell the roles of columns, read in well under a second."""


@dataclass(frozen=True)
class StoredRun:
    """A run's commits and, on demand, its tables.

    Args:
        path: As the user gave it, for errors.
        fs: The file system the run is on.
        root: The path inside `fs`.
        commits: Those whose rows are read, in order.
        earlier: Commits before those: counted, but their rows are not read (see `newest`).
    """

    path: str
    fs: pafs.FileSystem
    root: str
    commits: list[Commit]
    earlier: tuple[Commit, ...] = ()

    @property
    def kinds(self) -> list[str]:
        """The kinds there are rows to read of, sorted."""
        return sorted({file.split("/", 1)[0] for commit in self.commits for file in commit.files})

    @property
    def all_commits(self) -> list[Commit]:
        """The commits of the whole run, in order."""
        return [*self.earlier, *self.commits]

    @property
    def counts(self) -> dict[str, int]:
        """Rows of every kind, of the whole run."""
        kinds = sorted({kind for commit in self.all_commits for kind in commit.rows})
        return {kind: self.rows(kind) for kind in kinds}

    def rows(self, kind: str) -> int:
        """Return how many rows of a kind the whole run wrote."""
        return sum(commit.rows.get(kind, 0) for commit in self.all_commits)

    def newest(self, rows: int) -> StoredRun:
        """Return the same run with only its last commits to read.

        What it costs to look at a run must not grow with the run.

        Args:
            rows: The most rows to read, over all kinds; at least one commit is kept even if it is
                larger.
        """
        kept, total = 0, 0
        for commit in reversed(self.commits):
            total += sum(commit.rows.values())
            if kept and total > rows:
                break
            kept += 1
        cut = len(self.commits) - kept
        return replace(self, commits=self.commits[cut:], earlier=tuple(self.commits[:cut]))

    def schema(self, kind: str) -> pa.Schema:
        """Return the schema of a kind's table: that of its newest file."""
        file = next(file for c in reversed(self.commits) for file in c.files_of(kind))
        return self._opened(file).schema_arrow

    def sample(self, kind: str) -> pa.Table:
        """Return the first rows of a kind, at most `SAMPLE_ROWS`."""
        file = next(file for commit in self.commits for file in commit.files_of(kind))
        opened = self._opened(file)
        for batch in opened.iter_batches(batch_size=SAMPLE_ROWS):
            return pa.Table.from_batches([batch])
        return opened.schema_arrow.empty_table()

    def table(self, kind: str, columns: Sequence[str]) -> pa.Table:
        """Return some columns of a kind, in the order of the commits, and the commit of each row.

        Args:
            kind: One of `kinds`; another raises StopIteration, as there is no file to take columns
                from.
            columns: Those the newest file does not have are left out. A file written before a
                column was there gives nulls for it. `camera.speed` is a field of a struct: the
                struct then has only the fields that are named.

        Raises:
            StateError: If a file that was committed cannot be read.
        """
        schema = self.schema(kind)
        wanted = [name for name in columns if _has_column(schema, name)]
        parts = []
        for commit in self.commits:
            for file in commit.files_of(kind):
                opened = self._opened(file)
                own = [name for name in wanted if _has_column(opened.schema_arrow, name)]
                part = opened.read(columns=own)
                inside = batches_of_file(opened.schema_arrow) or [(commit.batch, part.num_rows)]
                if sum(count for _, count in inside) != part.num_rows:
                    raise StateError(f"{self.path}: {file} has other rows than it says")
                numbers, rows = (np.array(each, np.int64) for each in zip(*inside, strict=True))
                micro = np.repeat(numbers, rows)
                parts.append(part.append_column(MICRO_BATCH, pa.array(micro)))
        return pa.concat_tables(parts, promote_options="permissive").combine_chunks()

    def batches(
        self, kind: str, columns: Sequence[str], nbytes: int = 64 * 2**20
    ) -> Iterator[pa.RecordBatch]:
        """Yield some columns of a kind in the order of the commits, a few rows at a time.

        Rows of one key come in the order in which they left: a key is in one file per commit.

        Args:
            kind: One of `kinds`.
            columns: Those that every file has.
            nbytes: About how many bytes a batch has; a single larger row is a batch of its own.
                A row group of a file is in memory at a time.

        Raises:
            StateError: If a file that was committed cannot be read.
        """
        for commit in self.commits:
            for file in commit.files_of(kind):
                opened = self._opened(file)
                for number in range(opened.metadata.num_row_groups):
                    # One by one: `iter_batches` was seen to hold all row groups of a file.
                    rows = opened.read_row_group(number, columns=list(columns), use_threads=False)
                    at_once = max(1, int(nbytes * rows.num_rows / max(1, rows.nbytes)))
                    yield from rows.to_batches(max_chunksize=at_once)

    def payloads(
        self, kind: str, columns: Sequence[str], rows: Int64s, most_bytes: int = 256 * 2**20
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the bytes of some rows of a kind, each with its place in `rows`.

        Row groups are read whole, those of the rows that come first in `rows` first, until
        `most_bytes` have been read: a page that shows a few images must not read all of a run.

        Args:
            kind: One of `kinds`.
            columns: Columns of bytes, inside structs as `camera.data`. Of each row, every one that
                is not null is given.
            rows: Numbers of rows, as `table` counts them.
            most_bytes: When to stop, in uncompressed bytes; one row group is always read.

        Raises:
            StateError: If a file that was committed cannot be read.
        """
        begins = 0
        groups: list[tuple[int, int, str, int]] = []  # first row, end, file, row group in it
        for file in (file for commit in self.commits for file in commit.files_of(kind)):
            metadata = self._opened(file).metadata
            for number in range(metadata.num_row_groups):
                count = metadata.row_group(number).num_rows
                groups.append((begins, begins + count, file, number))
                begins += count
        ends = np.array([end for _, end, _, _ in groups], np.int64)
        of_row = np.searchsorted(ends, rows, "right")
        left = most_bytes
        for each in dict.fromkeys(of_row[of_row < len(groups)].tolist()):
            first, _, file, number = groups[each]
            opened = self._opened(file)
            there = [name for name in columns if _has_column(opened.schema_arrow, name)]
            group = opened.metadata.row_group(number)
            chunks = (group.column(place) for place in range(group.num_columns))
            size = sum(c.total_uncompressed_size for c in chunks if c.path_in_schema in there)
            if not there or (size > left and left < most_bytes):
                continue
            left -= size
            table = opened.read_row_group(number, columns=there)
            for name in there:
                head, *inner = name.split(".", 1)
                values = table.column(name if name in table.column_names else head)
                if name not in table.column_names:
                    values = pc.struct_field(values, inner)
                for place in np.flatnonzero(of_row == each).tolist():
                    value = values[int(rows[place]) - first].as_py()
                    if value is not None:
                        yield place, bytes(value)

    def file_rows(self, file: str, columns: Sequence[str]) -> pa.Table:
        """Return some columns of a file that a commit names; those it does not have are left out.

        Raises StateError if it cannot be read.
        """
        opened = self._opened(file)
        return opened.read(columns=[name for name in columns if name in opened.schema_arrow.names])

    def rows_by_batch(self, kind: str) -> Iterator[tuple[Commit, pa.Table]]:
        """Yield every batch that has rows of a kind, in order, with those rows: also where files of
        several batches were merged.

        Raises StateError if a file that was committed cannot be read or lacks rows.
        """
        waiting = deque(commit for commit in self.commits if commit.rows.get(kind, 0))
        parts: dict[int, list[pa.Table]] = {}
        for commit in self.commits:
            for file in commit.files_of(kind):
                rows = self._opened(file).read()
                inside = batches_of_file(rows.schema) or [(commit.batch, rows.num_rows)]
                rows = rows.replace_schema_metadata(None)
                at = 0
                for batch, count in inside:
                    parts.setdefault(batch, []).append(rows.slice(at, count))
                    at += count
            while waiting and _count(parts.get(waiting[0].batch, ())) == waiting[0].rows[kind]:
                done = waiting.popleft()
                yield done, pa.concat_tables(parts.pop(done.batch), promote_options="permissive")
        if waiting:
            raise StateError(
                f"{self.path}: files of {kind} hold fewer rows than the record of batch "
                f"{waiting[0].batch} says"
            )

    def record(self) -> RunRecord | None:
        """Return what the run wrote down about itself; None for runs of older versions."""
        content = self.text(RECORD)
        return None if content is None else RunRecord.read(content, f"{self.path}/{RECORD}")

    def text(self, name: str) -> bytes | None:
        """Return the content of a file under the output (with `../`: beside it); None if absent."""
        if name.startswith("../"):
            return read_bytes(self.fs, f"{self.root.rsplit('/', 1)[0]}/{name[3:]}")
        return read_bytes(self.fs, f"{self.root}/{name}")

    def _retired(self, file: str) -> str:
        """Return where a file is that was merged into another since the records were read."""
        folder = pafs.FileSelector(f"{self.root}/{RETIRED}", allow_not_found=True)
        for info in self.fs.get_file_info(folder):
            place = f"{info.path}/{file}"
            if self.fs.get_file_info(place).type == pafs.FileType.File:
                return place
        return f"{self.root}/{file}"

    def _opened(self, file: str) -> pq.ParquetFile:
        """Open a Parquet file, or the table that is attached to a log."""
        try:
            if file.endswith(".mcap"):
                return open_checked(attached_rows(f"{self.root}/{file}"))
            try:
                return self._parquet(f"{self.root}/{file}")
            except FileNotFoundError:
                return self._parquet(self._retired(file))
        except (OSError, pa.ArrowInvalid) as error:
            raise StateError(f"{self.path}: {file} is committed but unreadable: {error}") from error

    def _parquet(self, place: str) -> pq.ParquetFile:
        """Open a Parquet file by its place in the file system; a local one may be a stranger's."""
        if isinstance(self.fs, pafs.LocalFileSystem):
            return open_checked(place)
        return pq.ParquetFile(place, filesystem=self.fs)


def _has_column(schema: pa.Schema, name: str) -> bool:
    """Whether a schema has a column, or a field of a struct as `struct.field`."""
    if name in schema.names:
        return True
    head, _, inner = name.partition(".")
    if head not in schema.names or not pa.types.is_struct(schema.field(head).type):
        return False
    return bool(schema.field(head).type.get_field_index(inner) >= 0)


def _count(tables: Sequence[pa.Table]) -> int:
    """Return the rows of all tables together."""
    return sum(table.num_rows for table in tables)


class RunFollower:
    """Follows what a run does, reading each record once.

    Args:
        path: The output of the run; there need not be one yet.

    Example:
        >>> import tempfile
        >>> out = tempfile.mkdtemp()
        >>> follower = RunFollower(out)
        >>> follower.totals() is None
        True
        >>> CommitLog.at(out).write(Commit(0, "q", {"data": 5}))
        >>> follower.totals().rows
        {'data': 5}
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._fs, self._root = filesystem(path, "out")
        self._place: str | None = None
        self._totals = RunTotals.none()
        self._last = -1

    def totals(self) -> RunTotals | None:
        """Return what the run has done so far, all of it added up; None before its first commit.

        Lists the records and reads those that are new (at first: the first line of the newest fold
        and the records since), so it costs the same however long the run is.

        Raises StateError if a commit record is damaged.
        """
        for place in (self._root, f"{self._root}/results"):
            if self._place in (None, place):
                shown = self.path if place == self._root else f"{self.path}/results"
                folded, newer = CommitLog(shown, self._fs, place).newer(self._last)
                if folded is not None:
                    self._totals = folded
                for commit in newer:
                    self._totals = self._totals.and_then(commit)
                    self._last = commit.batch
                if self._totals.batches:
                    self._place = place
                    return self._totals
        return None


def run_totals(path: str) -> RunTotals | None:
    """Return what a run has done so far; see `RunFollower.totals`."""
    return RunFollower(path).totals()


def open_run(path: str) -> StoredRun:
    """Open the run whose tables are under `path`, or under `path`/results as the demo leaves them.

    Raises ConfigError if there is no finished batch, StateError if a commit record is damaged.
    """
    fs, root = filesystem(path, "out")
    for place in (root, f"{root}/results"):
        commits = list(CommitLog(path if place == root else f"{path}/results", fs, place))
        if commits:
            return StoredRun(path, fs, place, commits)
    raise ConfigError(
        "out", path, "",
        message=f"{path}: holds no run (there is no _commits folder with a finished batch in it); "
        "give the path that `tidegate run` wrote to",
    )  # fmt: skip
