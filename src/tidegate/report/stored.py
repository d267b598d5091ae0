"""The tables of a run, as they lie under its output path: only what was committed, kind by kind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import yaml

from tidegate.core.columns import MICRO_BATCH
from tidegate.errors import ConfigError, StateError
from tidegate.mcap.export import attached_rows
from tidegate.pipeline.run_record import RECORD, RunRecord
from tidegate.profile.roles import Roles

__all__ = ["MICRO_BATCH", "StoredRun", "open_run"]


@dataclass(frozen=True)
class StoredRun:
    """A run's commits and, on demand, its tables."""

    path: str
    fs: Any
    root: str
    commits: list[dict[str, Any]]
    earlier: tuple[dict[str, Any], ...] = ()
    """Commits before those: counted, but their rows are not read."""

    @property
    def kinds(self) -> list[str]:
        """The kinds there are rows to read of."""
        found = {file.split("/", 1)[0] for commit in self.commits for file in commit["files"]}
        return sorted(found)

    @property
    def all_commits(self) -> list[dict[str, Any]]:
        return [*self.earlier, *self.commits]

    @property
    def counts(self) -> dict[str, int]:
        """Rows of every kind, of the whole run."""
        kinds = sorted({kind for commit in self.all_commits for kind in commit["rows"]})
        return {kind: self.rows(kind) for kind in kinds}

    def rows(self, kind: str) -> int:
        return sum(commit["rows"].get(kind, 0) for commit in self.all_commits)

    def newest(self, rows: int) -> StoredRun:
        """The same run with only its last commits to read: at most so many rows, at least one
        commit. What it costs to look at a run must not grow with the run."""
        kept, total = 0, 0
        for commit in reversed(self.commits):
            total += sum(commit["rows"].values())
            if kept and total > rows:
                break
            kept += 1
        cut = len(self.commits) - kept
        return replace(self, commits=self.commits[cut:], earlier=tuple(self.commits[:cut]))

    def schema(self, kind: str) -> pa.Schema:
        """The schema of a kind's table: that of its newest file."""
        file = next(f for c in reversed(self.commits) for f in c["files"] if _is_of(f, kind))
        return self._opened(file).schema_arrow

    def sample(self, kind: str) -> pa.Table:
        """The first rows of a kind."""
        file = next(f for c in self.commits for f in c["files"] if _is_of(f, kind))
        opened = self._opened(file)
        for batch in opened.iter_batches(batch_size=20_000):
            return pa.Table.from_batches([batch])
        return opened.schema_arrow.empty_table()

    def table(self, kind: str, columns: Sequence[str]) -> pa.Table:
        """These columns of a kind, in the order of the commits, and the commit of each row.

        A file written before a column was there gives nulls for it."""
        wanted = [name for name in columns if name in self.schema(kind).names]
        parts = []
        for commit in self.commits:
            for file in commit["files"]:
                if not _is_of(file, kind):
                    continue
                opened = self._opened(file)
                own = [name for name in wanted if name in opened.schema_arrow.names]
                part = opened.read(columns=own)
                micro = np.full(part.num_rows, commit["batch"], np.int64)
                parts.append(part.append_column(MICRO_BATCH, pa.array(micro)))
        return pa.concat_tables(parts, promote_options="permissive").combine_chunks()

    def _opened(self, file: str) -> pq.ParquetFile:
        """A table as it lies there, or as it is attached to a log."""
        try:
            if file.endswith(".mcap"):
                return attached_rows(f"{self.root}/{file}")
            return pq.ParquetFile(f"{self.root}/{file}", filesystem=self.fs)
        except (OSError, pa.ArrowInvalid) as error:
            raise StateError(f"{self.path}: {file} is committed but unreadable: {error}") from error

    def record(self) -> RunRecord | None:
        """What the run wrote down about itself; runs of older versions did not."""
        text = self._text(f"{self.root}/{RECORD}")
        return None if text is None else RunRecord.read(text, f"{self.path}/{RECORD}")

    def declared_roles(self) -> Roles:
        """What the run wrote down, else what a pipeline's file in the output or beside it says."""
        record = self.record()
        if record is not None:
            return Roles(record.key, record.topic, None, next(iter(record.arrival), None))
        parent = self.root.rsplit("/", 1)[0]
        for place in (f"{self.root}/pipeline.yaml", f"{parent}/pipeline.yaml"):
            text = self._text(place)
            if text is not None:
                return _roles_of(text)
        return Roles()

    def _text(self, place: str) -> bytes | None:
        if self.fs.get_file_info(place).type != pafs.FileType.File:
            return None
        with self.fs.open_input_stream(place) as stream:
            return bytes(stream.read())


def open_run(path: str) -> StoredRun:
    """The run whose tables lie under `path`, or under `path`/results as the demo leaves them."""
    fs, root = _filesystem(path)
    for place in (root, f"{root}/results"):
        files = fs.get_file_info(pafs.FileSelector(f"{place}/_commits", allow_not_found=True))
        names = sorted(f.path for f in files if f.base_name.endswith(".json"))
        if names:
            return StoredRun(path, fs, place, [_commit(fs, name) for name in names])
    raise ConfigError(
        "out", path, "",
        message=f"{path}: holds no run (there is no _commits folder with a finished batch in it); "
        "give the path that `tidegate run` wrote to",
    )  # fmt: skip


def _commit(fs: Any, name: str) -> dict[str, Any]:
    try:
        with fs.open_input_stream(name) as stream:
            commit: dict[str, Any] = json.loads(stream.read())
        if not {"batch", "rows", "files", "shards"} <= commit.keys():
            raise ValueError("fields are missing")
    except (ValueError, AttributeError) as error:
        raise StateError(f"{name}: is not a commit of tidegate: {error}") from error
    return commit


def _filesystem(path: str) -> tuple[Any, str]:
    if "://" in path:
        try:
            fs, root = pafs.FileSystem.from_uri(path)
        except (pa.ArrowInvalid, OSError) as error:
            raise ConfigError("out", path, f"cannot be opened: {error}") from error
        return fs, root.rstrip("/")
    from pathlib import Path

    return pafs.LocalFileSystem(), str(Path(path).absolute())


def _roles_of(text: bytes) -> Roles:
    """A file that is not ours, or broken, says nothing here: `tidegate explain` is for that."""
    try:
        streams = yaml.safe_load(text)["streams"]
        stream = next(iter(streams.values()))
        key, arrival = stream.get("key") or (), stream.get("arrival") or ()
        keys = (key,) if isinstance(key, str) else tuple(key)
        first = arrival if isinstance(arrival, str) else next(iter(arrival), None)
        return Roles(keys, stream.get("topic"), None, first)
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, StopIteration):
        return Roles()


def _is_of(file: str, kind: str) -> bool:
    return file.startswith(f"{kind}/")
