"""Where the files of a batch are, removing what an interrupted run left, and keeping a run tidy.

# What an interrupted run leaves

    OUT/_staging/00000003/00000012/data/part-00001-37.parquet      epoch 3 is writing batch 12
    OUT/data/batch=00000012/e3-part-00001-37.parquet               moved to its table, not committed

A run that dies may leave both. Neither is part of the output (see `commit`); the driver that
writes the batch again removes them first. Which of them it may remove is decided by the epoch in
their names, never by what it believes about other drivers: only its own and earlier ones. Those of
earlier epochs can no longer be committed, for their records are sealed or their drivers are gone;
those of later epochs belong to somebody who has taken over (see `epochs`).

# Folding and merging

A stream writes a record and a few small files per micro-batch: ten million a year. So, as the run
goes, the oldest `FOLD` records are *folded* into one file whenever there are twice as many, ten
folds into a larger one, and the small files of those batches are *merged* into large ones:

    1. merged files are written beside the old ones, under names that hold the epoch, and synced
    2. the fold is created, its name holds the epoch too: it names the merged files instead of the
       old ones
    3. the records that it covers are removed, and their files are moved to `_retired/`; merged
       files of drivers that never wrote their fold are removed

A reader that has listed the records before finds the files in `_retired/` until `RETAIN_S` is over:
it sees the run as it was when it looked. A process that dies after 1 leaves merged files that no
fold names; the next one to fold the same batches removes them, but only when its own fold is there:
a driver that was merely paused may yet write the fold that names them, and it counts until a later
epoch writes one (`commit`). One that dies after 2 leaves records
that a fold covers; they no longer count, and the next one finishes. Rows of a merged file keep the
number of their batch: it holds, as metadata under `BATCHES`, how many rows each batch has.

Whoever reads a folder without the records (any Parquet reader) may see old and merged files side by
side for the moment between 1 and 3.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from tidegate.core.checks import int_in, number_in
from tidegate.errors import StateError
from tidegate.output.commit import Commit, CommitLog, FoldFile, FoldHeader, RunTotals
from tidegate.output.filesystem import (
    now_s,
    remove_empty_folder,
    remove_file,
    sync_file,
    sync_folder,
)
from tidegate.output.parquet_columns import text_columns

__all__ = [
    "BATCHES",
    "RETIRED",
    "STAGING",
    "Maintenance",
    "Tidied",
    "batch_folder",
    "batches_of_file",
    "epoch_of_file",
    "placed_file",
    "remove_batch",
    "remove_folder",
    "remove_staging",
    "staging_folder",
]

STAGING = "_staging"
"""The folder under the output path for files of a batch that is being written."""


RETIRED = "_retired"
"""The folder under the output path for files that were merged into others, by the last batch of
their fold."""

BATCHES = b"tidegate.batches"
"""The metadata of a merged Parquet file: [[batch, rows], ...] in the order of its rows, as JSON."""

FOLD = 100
"""Records that are folded at a time. Below some twenty the work of folding counts; above a thousand
the folder takes longer to list and read than a page should take to be made."""

FANOUT = 10
"""Folds of one size that are folded into a larger one."""

LARGEST_FOLD = 10_000
"""Records of the largest folds: one is read at a time, some ten megabytes of text."""

TARGET_BYTES = 128 * 2**20
"""Bytes of a merged file, about. Readers want tens of megabytes; above some hundreds, a reader of a
few rows waits, and merging holds the disk for seconds."""

RETAIN_S = 3600.0
"""Seconds for which files stay in `_retired/`: longer than anybody reads one table."""


def batch_folder(kind: str, batch: int) -> str:
    """Return the folder of a kind's files of one micro-batch, under the output path.

    Eight digits keep names and numbers in the same order for 100 million micro-batches.

    >>> batch_folder("data", 12)
    'data/batch=00000012'
    """
    return f"{kind}/batch={batch:08d}"


def placed_file(kind: str, batch: int, epoch: int, name: str) -> str:
    """Return the path of a data file under the output.

    >>> placed_file("data", 12, 3, "part-00001-37.parquet")
    'data/batch=00000012/e3-part-00001-37.parquet'
    """
    return f"{batch_folder(kind, batch)}/e{epoch}-{name}"


def epoch_of_file(file: str) -> int:
    """Return the epoch in the name of a data file; 0 for files of versions before there were any.

    >>> epoch_of_file("data/batch=00000012/e3-part-00001-37.parquet")
    3
    >>> epoch_of_file("data/batch=00000012/part-00001-37.parquet")
    0
    """
    found = re.match(r"e(\d+)-", file.rpartition("/")[2])
    return 0 if found is None else int(found[1])


def staging_folder(epoch: int, batch: int) -> str:
    """Return the folder, under the output path, in which a driver writes the files of a batch.

    >>> staging_folder(3, 12)
    '_staging/00000003/00000012'
    """
    return f"{STAGING}/{epoch:08d}/{batch:08d}"


def remove_batch(
    fs: pafs.FileSystem, root: str, kinds: Iterable[str], batch: int, epoch: int
) -> None:
    """Remove what drivers up to this epoch left of a batch in the tables `kinds`.

    Only for a batch without a record, by the driver of `epoch` after it has fenced off the ones
    before it: the files of a batch that has a record are its data.
    """
    for kind in kinds:
        folder = f"{root}/{batch_folder(kind, batch)}"
        for info in fs.get_file_info(pafs.FileSelector(folder, allow_not_found=True)):
            if info.type == pafs.FileType.File and epoch_of_file(info.base_name) <= epoch:
                remove_file(fs, info.path)
        remove_empty_folder(fs, folder)


def remove_staging(fs: pafs.FileSystem, root: str, epoch: int) -> None:
    """Remove staged files of this epoch and of all before it."""
    for info in fs.get_file_info(pafs.FileSelector(f"{root}/{STAGING}", allow_not_found=True)):
        if info.base_name.isdigit() and int(info.base_name) <= epoch:
            remove_folder(fs, info.path)


def remove_folder(fs: pafs.FileSystem, folder: str) -> None:
    """Remove a folder with all that is in it; one that is not there is no error."""
    if fs.get_file_info(folder).type == pafs.FileType.Directory:
        with contextlib.suppress(FileNotFoundError):
            fs.delete_dir(folder)


def batches_of_file(schema: pa.Schema) -> list[tuple[int, int]] | None:
    """Return the batch and the number of rows of every part of a merged file; None for others.

    Raises StateError if what the file says is no list of such pairs.
    """
    said = (schema.metadata or {}).get(BATCHES)
    if said is None:
        return None
    try:
        found = [(int(batch), int(rows)) for batch, rows in json.loads(said)]
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise StateError(f"a merged file does not say which batches it holds: {error}") from error
    if any(not 0 <= number < 2**63 for pair in found for number in pair):
        raise StateError("a merged file does not say which batches it holds: numbers out of range")
    return found


@dataclass
class Tidied:
    """What a round of maintenance did.

    Args:
        folded: Records that were put into folds.
        merged: Small files that were merged.
        into: Files they were merged into.
        removed: Files of earlier rounds, or of drivers that died, that were removed.
    """

    folded: int = 0
    merged: int = 0
    into: int = 0
    removed: int = 0


@dataclass(frozen=True)
class Maintenance:
    """Folds records and merges files of one output, for the driver that holds its epoch.

    Args:
        log: The records.
        epoch: The driver's epoch: merged files carry it.
        merge: Whether Parquet files are merged; False where another format owns them (Delta) or
            they are of another kind (MCAP).
        fold: Records that are folded at a time; default `FOLD`, at least 2.
        target_bytes: Size of merged files; default `TARGET_BYTES`. Files of a quarter of it and
            more are left alone. At least 1.
        retain_s: For how long merged files can still be read under their old names, in s; default
            `RETAIN_S`. 0 removes them at once, also from under a reader.

    Raises:
        ConfigError: For a setting out of its range.
    """

    log: CommitLog
    epoch: int
    merge: bool = True
    fold: int = FOLD
    target_bytes: int = TARGET_BYTES
    retain_s: float = RETAIN_S

    def __post_init__(self) -> None:
        int_in("fold", self.fold, 2)
        int_in("target_bytes", self.target_bytes, 1)
        number_in("retain_s", self.retain_s, 0)

    def is_due(self, unfolded: int) -> bool:
        """Return whether there are enough records to fold: twice what is folded at a time, so that
        the newest stay as they are."""
        return unfolded >= 2 * self.fold

    def run(self, *, everything: bool = False) -> Tidied:
        """Do what is due.

        Args:
            everything: Fold all records but the newest one, however few; for `tidegate maintain`.

        Returns:
            What was done.
        """
        done = Tidied()
        self._finish()
        while True:
            numbers = self.log.unfolded()
            if everything and len(numbers) > 1:
                self._fold(numbers[:-1][: max(self.fold, FOLD)], done)
            elif self.is_due(len(numbers)):
                self._fold(numbers[: self.fold], done)
            else:
                break
        while self._fold_folds():
            pass
        self._finish()
        self._remove_retired(done)
        return done

    # -- inside ---------------------------------------------------------------------------------

    def _fold(self, numbers: Sequence[int], done: Tidied) -> None:
        """Fold these batches, which follow each other, and merge their files."""
        commits = [commit for one in numbers if (commit := self.log.read(one)) is not None]
        before = self.log.folds()
        totals = self.log.header(before[-1]).totals if before else RunTotals.none()
        for commit in commits:
            totals = totals.and_then(commit)
        first, last = commits[0].batch, commits[-1].batch
        if self.merge:
            commits = self._merge(commits, done)
        header = FoldHeader(first, last, _as_ranges([commit.batch for commit in commits]), totals)
        self.log.write_fold(header, commits, self.epoch)
        done.folded += len(commits)
        self._finish()

    def _merge(self, commits: list[Commit], done: Tidied) -> list[Commit]:
        """Write the small files of some batches into large ones; return records that name those."""
        last = commits[-1].batch
        fs, root = self.log.fs, self.log.root
        kept: dict[int, list[str]] = {commit.batch: list(commit.files) for commit in commits}
        kinds = sorted({file.split("/")[0] for commit in commits for file in commit.files})
        for kind in kinds:
            small = [(commit.batch, file) for commit in commits for file in commit.files_of(kind)
                     if self._is_small(file)]  # fmt: skip
            if len(small) < 2:
                continue
            made = self._write_merged(kind, last, small)
            sync_folder(fs, f"{root}/{batch_folder(kind, last)}")
            for batch, file in small:
                kept[batch].remove(file)
            kept[last] += made
            done.merged += len(small)
            done.into += len(made)
        return [replace(commit, files=sorted(kept[commit.batch])) for commit in commits]

    def _is_small(self, file: str) -> bool:
        """Return whether a file is worth merging."""
        size = self.log.fs.get_file_info(f"{self.log.root}/{file}").size
        return file.endswith(".parquet") and size is not None and size < self.target_bytes / 4

    def _write_merged(self, kind: str, last: int, small: list[tuple[int, str]]) -> list[str]:
        """Write files one behind the other into as few as possible; return their names."""
        fs, root = self.log.fs, self.log.root
        groups: list[list[tuple[int, str]]] = [[]]
        size = 0
        for batch, file in small:
            size += fs.get_file_info(f"{root}/{file}").size or 0
            if size > self.target_bytes and groups[-1]:
                groups.append([])
                size = 0
            groups[-1].append((batch, file))
        out = []
        fs.create_dir(f"{root}/{batch_folder(kind, last)}")
        for place, group in enumerate(groups):
            tables = [pq.ParquetFile(f"{root}/{file}", filesystem=fs).read() for _, file in group]
            rows = [
                [batch, table.num_rows] for (batch, _), table in zip(group, tables, strict=True)
            ]
            table = pa.concat_tables(tables, promote_options="permissive")
            metadata = {**(table.schema.metadata or {}), BATCHES: json.dumps(rows).encode()}
            name = placed_file(kind, last, self.epoch, f"merged-{small[0][0]:08d}-{place}.parquet")
            staged = f"{root}/{batch_folder(kind, last)}/.{name.rpartition('/')[2]}.tmp"
            pq.write_table(
                table.replace_schema_metadata(metadata), staged, filesystem=fs, compression="zstd",
                use_dictionary=text_columns(table.schema),
            )  # fmt: skip
            sync_file(fs, staged)
            fs.move(staged, f"{root}/{name}")
            out.append(name)
        return out

    def _remove_unnamed(self, fold: FoldFile, named: set[str]) -> None:
        """Remove merged files of a fold's batches that it does not name: those of drivers that
        died, or were overtaken, before they wrote theirs. Files of later epochs than the fold's
        stay: a fold that names them would count."""
        fs, root = self.log.fs, self.log.root
        for kind in sorted({file.split("/")[0] for file in named}):
            listed = fs.get_file_info(pafs.FileSelector(f"{root}/{kind}", allow_not_found=True))
            for folder in listed:
                number = folder.base_name.removeprefix("batch=")
                if not number.isdigit() or not fold.first <= int(number) <= fold.last:
                    continue
                removed = False
                for info in fs.get_file_info(pafs.FileSelector(folder.path, allow_not_found=True)):
                    name = info.base_name.removeprefix(".")
                    is_merged = re.match(r"e\d+-merged-", name) is not None
                    unnamed = f"{kind}/{folder.base_name}/{info.base_name}" not in named
                    if is_merged and unnamed and epoch_of_file(name) <= fold.epoch:
                        remove_file(fs, info.path)
                        removed = True
                if removed:  # for good, before the records go that made us look here
                    sync_folder(fs, folder.path)

    def _finish(self) -> None:
        """Move files that folds no longer name out of the way, then remove the records that did: in
        this order, so that one who dies in between leaves the names of what is left to do."""
        fs, root = self.log.fs, self.log.root
        named: dict[FoldFile, set[str]] = {}
        still_there = self.log.folded_still_there()
        folds = self.log.folds()  # after it, so that each of them is covered
        touched: set[str] = set()
        left: set[str] = set()
        for batch, commit in still_there.items():
            fold = next(f for f in folds if f.first <= batch <= f.last)
            if fold not in named:
                named[fold] = {name for one in self.log.unfold(fold) for name in one.files}
            for file in () if commit is None else commit.files:
                if file not in named[fold]:
                    target = f"{root}/{RETIRED}/{fold.last:08d}/{file}"
                    fs.create_dir(target.rpartition("/")[0])
                    with contextlib.suppress(FileNotFoundError):  # moved before
                        fs.move(f"{root}/{file}", target)
                    touched.add(target.rpartition("/")[0])
                    left.add(f"{root}/{file.rpartition('/')[0]}")
        for folder in sorted(touched):
            sync_folder(fs, folder)
        for folder in sorted(left):
            if fs.get_file_info(folder).type == pafs.FileType.Directory:
                sync_folder(fs, folder)
                remove_empty_folder(fs, folder)
        for fold, files in named.items():
            self._remove_unnamed(fold, files)
        for batch in still_there:
            self.log.remove_folded(batch)
        self.log.remove_folded()

    def _fold_folds(self) -> bool:
        """Fold the first `FANOUT` neighbouring folds of one size into one; return whether there
        were any."""
        folds = self.log.folds()
        sizes = [fold.last - fold.first + 1 for fold in folds]
        for at in range(len(folds) - FANOUT + 1):
            part = sizes[at : at + FANOUT]
            if max(part) < 2 * min(part) and sum(part) <= LARGEST_FOLD:
                group = folds[at : at + FANOUT]
                commits = [commit for fold in group for commit in self.log.unfold(fold)]
                numbers = [commit.batch for commit in commits]
                totals = self.log.header(group[-1]).totals
                header = FoldHeader(group[0].first, group[-1].last, _as_ranges(numbers), totals)
                self.log.write_fold(header, commits, self.epoch)
                self.log.remove_folded()
                return True
        return False

    def _remove_retired(self, done: Tidied) -> None:
        """Remove retired files whose time is over, by the clock of the file system."""
        fs, root = self.log.fs, self.log.root
        listed = fs.get_file_info(pafs.FileSelector(f"{root}/{RETIRED}", allow_not_found=True))
        retired = [info for info in listed if info.base_name.isdigit()]
        now = now_s(fs, f"{root}/{RETIRED}") if retired and self.retain_s else None
        for info in retired:
            written = info.mtime_ns
            over = now is not None and written is not None and now - written / 1e9 > self.retain_s
            if over or not self.retain_s:
                found = fs.get_file_info(pafs.FileSelector(info.path, recursive=True))
                done.removed += sum(one.type == pafs.FileType.File for one in found)
                remove_folder(fs, info.path)


def _as_ranges(numbers: Sequence[int]) -> list[list[int]]:
    """Return numbers in order as pairs of first and last.

    >>> _as_ranges([0, 1, 2, 5])
    [[0, 2], [5, 5]]
    """
    out: list[list[int]] = []
    for one in numbers:
        if out and one == out[-1][1] + 1:
            out[-1][1] = one
        else:
            out.append([one, one])
    return out
