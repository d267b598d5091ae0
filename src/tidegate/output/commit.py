"""The commit record: the proof that a micro-batch is whole.

    OUT/_commits/00000012.json

A sink writes the files of a micro-batch first and this record last. A file that no record names is
not part of the output: whoever reads a run reads its records, and only the files they list. This
module is the only one that reads or writes them, so that the sinks, the page, the MCAP export and
the delta tables agree about what is there.

    {"batch": 12, "query": "5d1f...", "rows": {"data": 900, "late": 3}, "watermark_ns": 17...,
     "shards": {"0": {"rows_in": 903, ...}}, "files": ["data/batch=00000012/part-00000-37.parquet"],
     "behind": {"0": {"truck-7": 17...}}}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow.fs as pafs

from tidegate.errors import StateError
from tidegate.output.filesystem import filesystem, read_bytes, write_whole

__all__ = ["BEHIND", "FOLDER", "SEEN", "Commit", "CommitLog"]

FOLDER = "_commits"
"""The folder of the records under the output path."""


SEEN = "seen:"
"""The prefix of metrics that carry a column and a value as JSON; see `Commit.seen`."""

BEHIND = "behind:"
"""The prefix of metrics that name a key and carry its watermark; see `Commit.behind`."""


@dataclass(frozen=True)
class Commit:
    """What one micro-batch wrote.

    - `batch`: Spark's number of the micro-batch; 0 for a backfill, which is one batch.
    - `query`: the id of the streaming query (kept in its checkpoint), or `batch` for a backfill. A
      batch that runs again after a crash is recognised by (query, batch).
    - `rows`: rows written, per kind (data, late, error, dropped, side tables).
    - `watermark_ns`: the highest watermark of all shards; None before there is one.
    - `shards`: the metrics of every shard that took part, by shard number. A shard without input in
      this batch is missing: it still stands where it stood.
    - `behind`: of each of those shards, the keys whose watermarks are lowest and their watermarks.
    - `seen`: values that occurred, by column, where a setting names values (topics); see
      `tidegate.core.flow.never_seen`.
    - `files`: paths under the output, sorted. Empty where rows are not kept in files (Kafka).
    """

    batch: int
    query: str
    rows: dict[str, int] = field(default_factory=dict)
    watermark_ns: int | None = None
    shards: dict[int, dict[str, int]] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    behind: dict[int, dict[str, int]] = field(default_factory=dict)
    seen: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        batch: int,
        query: str,
        rows: dict[str, int],
        metrics: Iterable[tuple[int, dict[str, int], int | None]] = (),
        files: Iterable[str] = (),
    ) -> Commit:
        """Make the record of a batch from its row counts and what shards reported.

        Args:
            batch: The number of the micro-batch.
            query: The id of the query.
            rows: Rows written, per kind.
            metrics: (shard, metrics, watermark in ns or None) triples. Names that begin with `SEEN`
                or
                `BEHIND` are no numbers to add up; they are unpacked into those fields.
            files: Paths under the output, in any order.

        Example:
            >>> made = Commit.of(0, "batch", {"data": 2}, [(0, {"rows_in": 2}, 7), (1, {}, None)])
            >>> made.watermark_ns
            7
        """
        triples = list(metrics)
        marks = [mark for _, _, mark in triples if mark is not None]
        shards: dict[int, dict[str, int]] = {}
        behind: dict[int, dict[str, int]] = {}
        seen: dict[str, set[str]] = {}
        for shard, values, _ in triples:
            shards[shard] = {n: v for n, v in values.items() if not n.startswith((BEHIND, SEEN))}
            for name in (name for name in values if name.startswith(SEEN)):
                column, value = json.loads(name.removeprefix(SEEN))
                seen.setdefault(column, set()).add(value)
            behind[shard] = {
                name.removeprefix(BEHIND): mark
                for name, mark in values.items()
                if name.startswith(BEHIND)
            }
        return cls(
            batch, query, rows, max(marks, default=None), shards, sorted(files), behind,
            {column: sorted(values) for column, values in seen.items()},
        )  # fmt: skip

    @classmethod
    def total(cls, commits: Sequence[Commit]) -> Commit:
        """Return what several records of one run sum up to: all rows and files, and of every shard
        its last report. Nothing gives an empty record of batch 0.

        >>> one, two = Commit(0, "q", {"data": 2}), Commit(1, "q", {"data": 3, "late": 1})
        >>> Commit.total([one, two]).rows
        {'data': 5, 'late': 1}
        """
        if not commits:
            return cls(0, "")
        last = commits[-1]
        rows: dict[str, int] = {}
        made = cls(last.batch, last.query, rows)
        marks = [commit.watermark_ns for commit in commits if commit.watermark_ns is not None]
        made = replace(made, watermark_ns=max(marks, default=None))
        for commit in commits:
            for kind, count in commit.rows.items():
                rows[kind] = rows.get(kind, 0) + count
            made.shards.update(commit.shards)
            made.behind.update(commit.behind)
            made.files.extend(commit.files)
            for column, names in commit.seen.items():
                made.seen[column] = sorted({*made.seen.get(column, ()), *names})
        return made

    def files_of(self, kind: str) -> list[str]:
        """Return the files of one kind.

        >>> Commit(0, "batch", files=["data/a.parquet", "late/a.parquet"]).files_of("late")
        ['late/a.parquet']
        """
        return [file for file in self.files if file.startswith(f"{kind}/")]

    def to_json(self) -> str:
        """Return the record as text; `from_json` reads it back."""
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes, name: str) -> Commit:
        """Read a record. `name` is where it came from, for the error.

        Raises StateError if the text is not JSON, a field is missing, unknown (written by a newer
        version) or of the wrong type.

        >>> Commit.from_json('{"batch": 1', "out/_commits/00000001.json")
        Traceback (most recent call last):
            ...
        tidegate.errors.StateError: out/_commits/00000001.json is corrupt or newer than this \
version: Expecting ',' delimiter: line 1 column 12 (char 11)
        """
        try:
            said = json.loads(text)
            if not isinstance(said, dict):
                raise ValueError("it is not a JSON object")
            for added in ("behind", "seen"):
                said.setdefault(added, {})
            _check_fields(said)
            for part in ("shards", "behind"):
                said[part] = {int(shard): metrics for shard, metrics in said[part].items()}
            return cls(**said)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise StateError(f"{name} is corrupt or newer than this version: {error}") from error


_FIELDS: dict[str, type | tuple[type, ...]] = {
    "batch": int, "query": str, "rows": dict, "watermark_ns": (int, type(None)), "shards": dict,
    "files": list, "behind": dict, "seen": dict,
}  # fmt: skip
"""The fields of a record and their types in JSON. A new one must be added here and to `Commit`."""


def _check_fields(said: dict[str, Any]) -> None:
    """Raise ValueError, with a sentence that goes into a StateError, if a record is not as it must
    be.
    """
    missing = sorted(_FIELDS.keys() - said.keys())
    unknown = sorted(said.keys() - _FIELDS.keys())
    wrong = sorted(name for name in _FIELDS.keys() & said.keys()
                   if not isinstance(said[name], _FIELDS[name]))  # fmt: skip
    for what, names in (("lacks", missing), ("has unknown", unknown), ("has malformed", wrong)):
        if names:
            raise ValueError(f"it {what} {', '.join(names)}")
    if not _are_counts(said["rows"]) or not 0 <= said["batch"] <= _INT64:
        raise ValueError("its counts are not whole numbers")
    if not all(map(_are_metrics, said["shards"].values())):
        raise ValueError("the metrics of a shard are not whole numbers")
    strange = [file for file in said["files"] if not _is_inside(file)]
    if strange:
        raise ValueError(f"it names a file that is not under the output: {str(strange[0])[:80]!r}")


_INT64 = 2**63 - 1
"""The largest int64: every count and metric of a record must fit into one."""


def _are_counts(rows: dict[str, Any]) -> bool:
    """Return whether all values are whole numbers from 0; True and 1.0 are not."""
    return all(type(count) is int and 0 <= count <= _INT64 for count in rows.values())


def _are_metrics(metrics: Any) -> bool:
    """Return whether these are the metrics of a shard: whole numbers, of either sign."""
    return isinstance(metrics, dict) and all(
        type(value) is int and -_INT64 - 1 <= value <= _INT64 for value in metrics.values()
    )


def _is_inside(file: Any) -> bool:
    """Is this KIND/NAME, below the output? A record from a stranger must not make us read
    `../../etc/passwd`."""
    if not isinstance(file, str) or "\\" in file or "\0" in file:
        return False
    parts = file.split("/")
    return len(parts) > 1 and not any(part in ("", ".", "..") for part in parts)


@dataclass(frozen=True)
class CommitLog:
    """The commit records under one output path.

    `shown` is the path as the user wrote it, for errors; `root` the path inside `fs`.

    >>> import tempfile
    >>> log = CommitLog.at(tempfile.mkdtemp())
    >>> log.write(Commit(0, "batch", {"data": 5}))
    >>> [(commit.batch, commit.rows) for commit in log]
    [(0, {'data': 5})]
    >>> log.read(1) is None
    True
    """

    shown: str
    fs: pafs.FileSystem
    root: str

    @classmethod
    def at(cls, path: str, field: str = "path") -> CommitLog:
        """Open the records under a path or URI; there need not be any yet. `field` is the setting
        that named the path, for errors."""
        fs, root = filesystem(path, field)
        return cls(path, fs, root)

    def numbers(self) -> list[int]:
        """Return the numbers of all batches that are whole, in order."""
        folder = pafs.FileSelector(f"{self.root}/{FOLDER}", allow_not_found=True)
        names = [info.base_name for info in self.fs.get_file_info(folder)]
        found = [name[:-5] for name in names if name.endswith(".json") and name[0] != "."]
        strange = sorted(name for name in found if not name.isdigit())
        if strange:
            raise StateError(f"{self.shown}/{FOLDER}/{strange[0]}.json is not a commit of tidegate")
        return sorted(int(name) for name in found)

    def read(self, batch: int) -> Commit | None:
        """Return the record of a batch, or None if that batch is not whole.

        Raises StateError if the record cannot be read or belongs to another batch.
        """
        content = read_bytes(self.fs, self._file(batch))
        if content is None:
            return None
        name = f"{self.shown}/{FOLDER}/{batch:08d}.json"
        commit = Commit.from_json(content.decode(errors="replace"), name)
        if commit.batch != batch:
            raise StateError(f"{name} is the record of batch {commit.batch}")
        return commit

    def __iter__(self) -> Iterator[Commit]:
        """Yield the records of all whole batches, in order."""
        for number in self.numbers():
            commit = self.read(number)
            if commit is not None:
                yield commit

    def write(self, commit: Commit) -> None:
        """Write the record of a batch: from now on the batch is part of the output."""
        write_whole(self.fs, self._file(commit.batch), commit.to_json().encode())

    def _file(self, batch: int) -> str:
        return f"{self.root}/{FOLDER}/{batch:08d}.json"
