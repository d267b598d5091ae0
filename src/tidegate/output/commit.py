"""The commit record: the proof that a micro-batch is whole.

    OUT/_commits/00000012.json        the record of batch 12
    OUT/_commits/00000012.4.json      the same, if epoch 4 took over while batch 12 was written
    OUT/_commits/00000000-00000099.4.fold the records of batches 0 to 99, in one file, by epoch 4

A sink writes the files of a micro-batch first and this record last. A file that no record names is
not part of the output: whoever reads a run reads its records, and only the files they list. This
module is the only one that reads or writes them, so that the sinks, the page, the MCAP export and
the delta tables agree about what is there.

    {"batch": 12, "query": "5d1f...", "rows": {"data": 900, "late": 3}, "watermark_ns": 17...,
     "shards": {"0": {"rows_in": 903, ...}}, "files": ["data/batch=00000012/part-00000-37.parquet"],
     "behind": {"0": {"truck-7": 17...}}, "epoch": 1}

Records are created exclusively: of two drivers, one writes it. A driver that takes over from one
that may still wake up closes the next record to it (`CommitLog.seal`): it creates `00000012.json`
as `{"sealed_by": 4}` and will write its own record as `00000012.4.json`. If epoch 5 takes over from
epoch 4 before that, `00000012.4.json` is sealed in turn. So the records of a batch are a chain of
seals that ends in a record or in nothing, and every link is decided by one exclusive creation.

Old records are folded into larger files (`tidegate.output.maintenance`), so that a folder of a
hundred thousand batches is as quick to list as one of ten. A fold is gzip-compressed lines of JSON:
the first says which batches it holds and what the whole run had done up to the last of them, each
other one is a record. What a fold covers counts, whatever else stands under the same numbers: a
driver of the past that finds the seal of a folded batch gone and writes a record there is ignored.
Of folds that share a batch the one of the latest epoch counts, of one epoch the largest: a driver
of the past that wakes up and writes the fold it was about to write changes nothing.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from itertools import zip_longest
from typing import Any, NamedTuple

import pyarrow.fs as pafs

from tidegate.errors import StateError
from tidegate.output.filesystem import create_whole, filesystem, read_bytes, remove_file
from tidegate.output.tally import AUDIT, AUDITED, tallies_of_metrics

__all__ = ["BEHIND", "FOLDER", "SEEN", "Commit", "CommitLog", "FoldFile", "FoldHeader", "RunTotals"]

FOLDER = "_commits"
"""The folder of the records under the output path."""

_HARMLESS = "it stops here, and nothing of the other run was touched"
"""The end of a sentence about a run that was overtaken."""


MOST_FOLDED = 10_000_000
"""Batches of a fold: four months of one every second. A few bytes may claim more than there is
memory for their numbers."""

LONGEST_LINE = 64 << 20
"""Bytes of a record in a fold. One of 10,000 shards has about 10 MB; a megabyte of gzip may hold a
line of a gigabyte."""

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
    - `audit`: of each of those shards, per kind and for rows that came in, how many rows and the
      sum of their hashes; see `tidegate.output.tally`.
    - `audited`: which columns were hashed, per kind.
    - `epoch`: the epoch of the driver that wrote it; see `tidegate.output.epochs`. 0 if there was
      none.
    """

    batch: int
    query: str
    rows: dict[str, int] = field(default_factory=dict)
    watermark_ns: int | None = None
    shards: dict[int, dict[str, int]] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    behind: dict[int, dict[str, int]] = field(default_factory=dict)
    seen: dict[str, list[str]] = field(default_factory=dict)
    epoch: int = 0
    audit: dict[int, dict[str, list[int]]] = field(default_factory=dict)
    audited: dict[str, list[str]] = field(default_factory=dict)

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
                or `BEHIND`, and tallies, are no numbers to add up; they are unpacked into those
                fields.
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
        audited: dict[str, list[str]] = {}
        audit: dict[int, dict[str, list[int]]] = {}
        for shard in {shard for shard, _, _ in triples}:
            columns, made = tallies_of_metrics(values for own, values, _ in triples if own == shard)
            audited |= columns
            if columns:
                audit[shard] = {kind: list(tally) for kind, tally in made.items()}
        for shard, values, _ in triples:
            shards[shard] = {
                n: v for n, v in values.items() if not n.startswith((BEHIND, SEEN, AUDIT, AUDITED))
            }
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
            audit=audit, audited=audited,
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
        # In one line: only then does the fast encoder write it.
        return json.dumps({each.name: getattr(self, each.name) for each in fields(self)})

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
            for added in ("behind", "seen", "audit", "audited"):
                said.setdefault(added, {})
            said.setdefault("epoch", 0)
            _check_fields(said)
            for part in ("shards", "behind", "audit"):
                said[part] = {int(shard): metrics for shard, metrics in said[part].items()}
            return cls(**said)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise StateError(f"{name} is corrupt or newer than this version: {error}") from error


_FIELDS: dict[str, type | tuple[type, ...]] = {
    "batch": int, "query": str, "rows": dict, "watermark_ns": (int, type(None)), "shards": dict,
    "files": list, "behind": dict, "seen": dict, "epoch": int,
    "audit": dict, "audited": dict,
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
    if not all(map(_is_audit, said["audit"].values())):
        raise ValueError("the tallies of a shard are not pairs of whole numbers")
    for part in ("audited", "seen"):
        if not all(map(_are_names, said[part].values())):
            raise ValueError(f"its {part} columns are not lists of names")
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


def _are_names(names: Any) -> bool:
    """Return whether this is a list of text."""
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def _is_audit(tallies: Any) -> bool:
    """Return whether these are the tallies of a shard: rows and hash, per kind."""
    return isinstance(tallies, dict) and all(
        isinstance(pair, list) and len(pair) == 2 and all(type(n) is int for n in pair)
        for pair in tallies.values()
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
        listed = self._listed()
        folded = [number for fold in listed.folds for number in self.header(fold).numbers()]
        return folded + [batch for batch, links in listed.plain.items() if any(links.values())]

    def read(self, batch: int) -> Commit | None:
        """Return the record of a batch, or None if that batch is not whole.

        Raises StateError if the record cannot be read or belongs to another batch.
        """
        for fold in self._listed(plain=False).folds:
            if fold.first <= batch <= fold.last:
                return next((one for one in self.unfold(fold) if one.batch == batch), None)
        return self._end_of_chain(batch).commit

    def __iter__(self) -> Iterator[Commit]:
        """Yield the records of all whole batches, in order."""
        listed = self._listed()
        for fold in listed.folds:
            yield from self.unfold(fold)
        yield from self._plain(listed)

    def newer(self, after: int = -1) -> tuple[RunTotals | None, list[Commit]]:
        """Return what has come since a batch. Costs the same however long the run is.

        Args:
            after: The last batch that is known already; default -1: none is.

        Returns:
            What the run had done at the end of its last fold, if that ends after `after`; else
            None. And the records since, or those after `after`.
        """
        listed = self._listed()
        header = None
        if listed.folds and listed.folds[-1].last > after:
            header = self.header(listed.folds[-1])
        fresh = {batch: links for batch, links in listed.plain.items()
                 if header is not None or batch > after}  # fmt: skip
        return (None if header is None else header.totals), list(
            self._plain(listed._replace(plain=fresh))
        )

    def totals(self) -> RunTotals:
        """Return what the run has done so far. Costs the same however long the run is.

        >>> import tempfile
        >>> log = CommitLog.at(tempfile.mkdtemp())
        >>> log.write(Commit(0, "q", {"data": 5}))
        >>> log.totals().rows
        {'data': 5}
        """
        folded, newer = self.newer()
        done = RunTotals.none() if folded is None else folded
        for commit in newer:
            done = done.and_then(commit)
        return done

    def _plain(self, listed: _Listed) -> Iterator[Commit]:
        """Yield the records that are not folded, in order."""
        for number, links in listed.plain.items():
            if any(links.values()):
                commit = self._end_of_chain(number).commit or self.read(number)
                if commit is not None:  # folded since we looked, or damaged by hand
                    yield commit

    # -- folds ----------------------------------------------------------------------------------

    def folds(self) -> list[FoldFile]:
        """Return the folds that count, in order; no two of them hold the same batch."""
        return self._listed(plain=False).folds

    def unfolded(self) -> list[int]:
        """Return the numbers of the whole batches that have a record of their own, in order."""
        return [batch for batch, links in self._listed().plain.items() if any(links.values())]

    def header(self, fold: FoldFile) -> FoldHeader:
        """Return the first line of a fold. Raises StateError if it is damaged."""
        with self._fold_lines(fold) as lines:
            return FoldHeader.from_json(next(lines, b""), f"{self.shown}/{FOLDER}/{fold.name}")

    def unfold(self, fold: FoldFile) -> Iterator[Commit]:
        """Yield the records of a fold, in order. Raises StateError if it is damaged."""
        name = f"{self.shown}/{FOLDER}/{fold.name}"
        with self._fold_lines(fold) as lines:
            expected = FoldHeader.from_json(next(lines, b""), name).numbers()
            for number, line in zip_longest(expected, lines):
                if number is None or line is None:
                    raise StateError(f"{name} is corrupt or newer than this version: it lacks rows")
                commit = Commit.from_json(line, name)
                if commit.batch != number:
                    raise StateError(f"{name} is corrupt: it has batch {commit.batch} twice or not")
                yield commit

    def write_fold(self, header: FoldHeader, commits: Iterable[Commit], epoch: int) -> bool:
        """Write a fold unless this epoch has one of these batches; return whether it has now.

        Records that it covers stay until `remove_folded`.
        """
        lines = [header.to_json(), *(commit.to_json() for commit in commits)]
        content = gzip.compress("\n".join(lines).encode(), compresslevel=6, mtime=0)
        name = f"{header.first:08d}-{header.last:08d}.{epoch}.fold"
        return create_whole(self.fs, f"{self.root}/{FOLDER}/{name}", content)

    def folded_still_there(self) -> dict[int, Commit | None]:
        """Return the batches that a fold covers and that still have files of their own here, in
        order, each with its record (None if only seals are left)."""
        listed = self._listed(everything=True)
        out: dict[int, Commit | None] = {}
        for batch, links in listed.plain.items():
            if any(fold.first <= batch <= fold.last for fold in listed.folds):
                records = [read_bytes(self.fs, self._file(name))
                           for name, is_record in links.items() if is_record]  # fmt: skip
                found = [content for content in records if content is not None]
                text = found[-1].decode(errors="replace") if found else None
                out[batch] = None if text is None else Commit.from_json(text, f"batch {batch}")
        return out

    def remove_folded(self, batch: int | None = None) -> None:
        """Remove the record and the seals of a batch that a fold covers; None: folds that do not
        count, because another one holds their batches."""
        if batch is None:
            for fold in self._listed(plain=False).covered:
                remove_file(self.fs, f"{self.root}/{FOLDER}/{fold.name}")
            return
        for name in self._listed(everything=True).plain.get(batch, {}):
            remove_file(self.fs, self._file(name))

    @contextmanager
    def _fold_lines(self, fold: FoldFile) -> Iterator[Iterator[bytes]]:
        """Open the lines of a fold; only what is read of them is decompressed."""
        content = read_bytes(self.fs, f"{self.root}/{FOLDER}/{fold.name}")
        try:
            with gzip.open(io.BytesIO(content or b"")) as opened:
                yield _bounded_lines(opened)
        except (OSError, EOFError, zlib.error) as error:
            raise StateError(
                f"{self.shown}/{FOLDER}/{fold.name} is corrupt or newer than this version: {error}"
            ) from error

    def write(self, commit: Commit) -> None:
        """Write the record of a batch: from now on the batch is part of the output.

        Writing the same record again changes nothing.

        Raises:
            StateError: If the batch has another record, or a later epoch than that of `commit` has
                closed it to us.
        """
        content = commit.to_json().encode()
        while True:
            end = self._end_of_chain(commit.batch)
            if any(fold.first <= commit.batch <= fold.last for fold in self.folds()):
                raise StateError(
                    f"{self.shown}: another run committed batch {commit.batch} and folded it while "
                    f"epoch {commit.epoch} was writing it; {_HARMLESS}"
                )
            if end.commit is not None and end.commit != commit:
                raise StateError(
                    f"{self.shown}: another run (epoch {end.commit.epoch}) committed batch "
                    f"{commit.batch} while epoch {commit.epoch} was writing it; {_HARMLESS}"
                )
            if end.sealed_by > commit.epoch:
                raise StateError(
                    f"{self.shown}: epoch {commit.epoch} of this run was taken over by epoch "
                    f"{end.sealed_by} while it was writing batch {commit.batch}; {_HARMLESS}"
                )
            if end.commit is not None or create_whole(self.fs, self._file(end.name), content):
                remove_file(self.fs, f"{self.root}/{FOLDER}/.{commit.batch:08d}.tmp")
                return

    def seal(self, epoch: int) -> int:
        """Close the next record to all earlier epochs; return the number of its batch.

        When this returns, whatever drivers of earlier epochs have committed is there to be read,
        and they can commit nothing more.

        >>> import tempfile
        >>> log = CommitLog.at(tempfile.mkdtemp())
        >>> log.write(Commit(0, "q", epoch=1))
        >>> log.seal(2)
        1
        >>> log.numbers()
        [0]
        >>> log.write(Commit(1, "q", epoch=1))
        Traceback (most recent call last):
            ...
        tidegate.errors.StateError: ...: epoch 1 of this run was taken over by epoch 2 while it \
was writing batch 1; it stops here, and nothing of the other run was touched
        >>> log.write(Commit(1, "q", epoch=2))
        >>> log.numbers()
        [0, 1]
        """
        listed = self._listed()
        known = [fold.last for fold in listed.folds]
        known += [batch for batch, links in listed.plain.items() if any(links.values())]
        batch = max(known, default=-1) + 1
        while True:
            end = self._end_of_chain(batch)
            if end.commit is not None:
                batch += 1
            elif end.sealed_by > epoch:
                raise StateError(f"{self.shown}: epoch {epoch} was taken over by {end.sealed_by}")
            elif end.sealed_by == epoch or create_whole(
                self.fs, self._file(end.name), _seal_text(epoch)
            ):
                return batch

    # -- inside ---------------------------------------------------------------------------------

    def _listed(self, *, plain: bool = True, everything: bool = False) -> _Listed:
        """List the folder: folds that count, and links of batches that no fold covers.

        Args:
            plain: Whether links are wanted; without them nothing is read.
            everything: Also list the links of batches that a fold covers.
        """
        folder = pafs.FileSelector(f"{self.root}/{FOLDER}", allow_not_found=True)
        found: dict[int, dict[str, Any]] = {}
        folds: list[FoldFile] = []
        for info in self.fs.get_file_info(folder):
            name = info.base_name.removesuffix(".json")
            if name.startswith("."):
                continue
            if name == info.base_name:
                said = re.fullmatch(r"(\d+)-(\d+)\.(\d+)\.fold", name)
                if said is not None:
                    first, last, epoch = map(int, said.groups())
                    folds.append(FoldFile(first, last, epoch, name))
            elif not re.fullmatch(r"\d+(\.\d+)?", name):
                raise StateError(f"{self.shown}/{FOLDER}/{name}.json is not a commit of tidegate")
            else:
                found.setdefault(int(name.split(".")[0]), {})[name] = info
        counting: list[FoldFile] = []
        for fold in sorted(folds, key=lambda one: (-one.epoch, one.first - one.last)):
            if not any(fold.first <= one.last and one.first <= fold.last for one in counting):
                counting.append(fold)
        counting.sort()
        covered = [fold for fold in folds if fold not in counting]
        links: dict[int, dict[str, bool]] = {}
        for batch in sorted(found) if plain else ():
            if everything or not any(f.first <= batch <= f.last for f in counting):
                links[batch] = {name: self._is_record(name, info)
                                for name, info in found[batch].items()}  # fmt: skip
        return _Listed(counting, covered, links)

    def _is_record(self, name: str, info: pafs.FileInfo) -> bool:
        """Return whether a link is a record and not a seal; most are told apart by their size."""
        short = info.size is not None and info.size <= _LONGEST_SEAL
        return not (short and _sealed_by(read_bytes(self.fs, self._file(name))) is not None)

    def _end_of_chain(self, batch: int) -> _Link:
        """Follow the seals of a batch to its record, or to where the next link would be."""
        name, sealed_by = f"{batch:08d}", 0
        while True:
            content = read_bytes(self.fs, self._file(name))
            if content is None:
                return _Link(name, sealed_by, None)
            by = _sealed_by(content)
            if by is None:
                commit = Commit.from_json(
                    content.decode(errors="replace"), f"{self.shown}/{FOLDER}/{name}.json"
                )
                if commit.batch != batch:
                    raise StateError(
                        f"{self.shown}/{FOLDER}/{name}.json is the record of batch {commit.batch}"
                    )
                return _Link(name, sealed_by, commit)
            if by <= sealed_by:
                raise StateError(f"{self.shown}/{FOLDER}/{name}.json is sealed by epoch {by} again")
            name, sealed_by = f"{batch:08d}.{by}", by

    def _file(self, name: str) -> str:
        """Return the path of a record or seal by its name."""
        return f"{self.root}/{FOLDER}/{name}.json"


def _bounded_lines(opened: gzip.GzipFile) -> Iterator[bytes]:
    """Yield the lines of a fold. Raises OSError for one that is too long."""
    while line := opened.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise OSError(f"a line has more than {LONGEST_LINE:,} bytes")
        yield line


class FoldFile(NamedTuple):
    """A fold by the name of its file: the first and the last batch that it covers, and the epoch
    that wrote it."""

    first: int
    last: int
    epoch: int
    name: str


class _Listed(NamedTuple):
    """What is in the folder: folds that count, folds that do not, and per batch the
    names of its links and whether each is a record."""

    folds: list[FoldFile]
    covered: list[FoldFile]
    plain: dict[int, dict[str, bool]]


class RunTotals(NamedTuple):
    """What a run has done up to some batch, from its first.

    - `batches`: how many.
    - `rows`: rows that came out, per kind.
    - `watermark_ns`: the highest watermark; None before there is one.
    - `shards`, `behind`, `seen`: as in `Commit`, each as it was last reported.
    """

    batches: int
    rows: dict[str, int]
    watermark_ns: int | None
    shards: dict[int, dict[str, int]]
    behind: dict[int, dict[str, int]]
    seen: dict[str, list[str]]

    @classmethod
    def none(cls) -> RunTotals:
        """Return what a run has done before its first batch."""
        return cls(0, {}, None, {}, {}, {})

    def and_then(self, commit: Commit) -> RunTotals:
        """Return these and one more batch.

        >>> RunTotals.none().and_then(Commit(0, "q", {"data": 2})).and_then(Commit(1, "q")).rows
        {'data': 2}
        """
        rows = {kind: self.rows.get(kind, 0) + commit.rows.get(kind, 0)
                for kind in {**self.rows, **commit.rows}}  # fmt: skip
        marks = [mark for mark in (self.watermark_ns, commit.watermark_ns) if mark is not None]
        seen = {column: sorted({*self.seen.get(column, ()), *commit.seen.get(column, ())})
                for column in {**self.seen, **commit.seen}}  # fmt: skip
        return RunTotals(
            self.batches + 1, rows, max(marks, default=None), self.shards | commit.shards,
            self.behind | commit.behind, seen,
        )  # fmt: skip


class FoldHeader(NamedTuple):
    """The first line of a fold.

    - `first`, `last`: the batches at its ends.
    - `ranges`: the batches it holds, as pairs of first and last; there may be gaps.
    - `totals`: what the run had done after the last of them.
    """

    first: int
    last: int
    ranges: list[list[int]]
    totals: RunTotals

    def numbers(self) -> list[int]:
        """Return the numbers of all batches it holds."""
        return [number for first, last in self.ranges for number in range(first, last + 1)]

    def check_ranges(self) -> None:
        """Raise ValueError unless the ranges are numbers in order, and not too many to list."""
        ends = [-1, *(end for each in self.ranges for end in each)]
        if any(type(end) is not int for end in ends) or any(len(each) != 2 for each in self.ranges):
            raise ValueError("its ranges are not pairs of numbers")
        if any(a >= b for a, b in zip(ends[:-1:2], ends[1::2], strict=True)) or any(
            first > last for first, last in self.ranges
        ):
            raise ValueError("its ranges are not in order")
        if sum(last - first + 1 for first, last in self.ranges) > MOST_FOLDED:
            raise ValueError(f"it claims more than {MOST_FOLDED:,} batches")

    def to_json(self) -> str:
        """Return the header as one line."""
        return json.dumps({**self._asdict(), "totals": self.totals._asdict()})

    @classmethod
    def from_json(cls, line: bytes, name: str) -> FoldHeader:
        """Read a header; `name` is the fold, for the StateError that a damaged one raises."""
        try:
            said = json.loads(line)
            totals = said.pop("totals")
            batches = totals.pop("batches")
            _check_fields({**vars(Commit(0, "")), **totals, "batch": batches})
            for part in ("shards", "behind"):
                totals[part] = {int(shard): values for shard, values in totals[part].items()}
            made = cls(**said, totals=RunTotals(batches, **totals))
            made.check_ranges()
            return made
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise StateError(f"{name} is corrupt or newer than this version: {error}") from error


class _Link(NamedTuple):
    """The last link of a batch's chain: its name, the epoch that sealed the link before it (0 if
    none), and its record; None if nothing is there."""

    name: str
    sealed_by: int
    commit: Commit | None


_LONGEST_SEAL = 64
"""Bytes of a seal, at most. Records are longer: listing a folder tells most of them apart without
reading them."""


def _seal_text(epoch: int) -> bytes:
    """Return the content of a seal."""
    return json.dumps({"sealed_by": epoch}).encode()


def _sealed_by(content: bytes | None) -> int | None:
    """Return the epoch of a seal; None for anything else."""
    found = re.fullmatch(rb'\{"sealed_by": (\d{1,18})\}', content or b"")
    return None if found is None else int(found[1])
