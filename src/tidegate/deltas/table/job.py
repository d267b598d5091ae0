"""The batch compaction of a stored table: bucket by bucket, then one commit.

    plan      which buckets have something appended or pending          nothing written
    write     new files for the buckets where a vector needs it         not part of the table yet
    commit    one new version: the old files out, the new ones in       atomic
    clean up  remove the old files                                      no longer part of the table

Killed anywhere, the table is the old one or the new one, with the same vectors; the next run does
what is left. A second run right after the first finds nothing to do and commits nothing.

Two runs at once: a bucket goes to the one that commits first. The other one finds the files it read
(or wanted to read) replaced, discards its own for that bucket and says so in its report: a sentence
per bucket, not an exception, because nothing is wrong and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.core.outcomes import Int64s
from tidegate.deltas.columns import Chains, checkpoint_table
from tidegate.deltas.compactor import Compactor
from tidegate.deltas.kernels import DeltaVerdict
from tidegate.deltas.table.table import Bucket, DeltaTable, refused_rows
from tidegate.deltas.table.versions import (
    DataFile,
    Step,
    Version,
    VersionConflict,
    no_step,
    write_data_file,
)

__all__ = ["BucketResult", "JobReport", "commit_buckets", "compact_bucket", "compact_table"]


@dataclass(frozen=True)
class BucketResult:
    """What compacting one bucket wrote, and what that replaces."""

    bucket: int
    """The number of the bucket."""
    read_version: int
    """The version of the table it was made from."""
    removed: tuple[str, ...] = ()
    """Paths of the files it replaces."""
    added: tuple[DataFile, ...] = ()
    """The files it wrote."""
    vectors: int = 0
    """Vectors that were compacted."""
    deltas_before: int = 0
    """Pending deltas of those vectors before."""
    deltas_after: int = 0
    """Pending deltas after."""
    bytes_before: int = 0
    """Bytes on disk before, compressed, without refused rows."""
    bytes_after: int = 0
    """The same after."""
    errors: tuple[str, ...] = ()
    """Vectors that were left as they are, and why."""
    lost: bool = False
    """Another job replaced the files before they could be read."""


@dataclass(frozen=True)
class JobReport:
    """What a whole run did."""

    version: int
    """The newest version of the table when the run ended."""
    buckets: int
    """Buckets that were rewritten."""
    vectors: int
    """Vectors that were compacted."""
    deltas_before: int
    """Pending deltas of those vectors before."""
    deltas_after: int
    """Pending deltas of those vectors after."""
    bytes_before: int
    """Bytes on disk of the rewritten buckets before, compressed."""
    bytes_after: int
    """The same after."""
    conflicts: tuple[str, ...]
    """A sentence for each bucket that another job compacted first."""
    errors: tuple[str, ...]
    """A sentence for each vector that was left as it is, because a delta cannot be applied."""

    @property
    def space_saved(self) -> int:
        """Bytes on disk, compressed, in the buckets that were rewritten."""
        return self.bytes_before - self.bytes_after


def compact_bucket(
    path: str | Path,
    bucket: int,
    version: Version,
    compactor: Compactor,
    *,
    everything: bool = False,
    step: Step = no_step,
) -> BucketResult | None:
    """Write the compacted files of a bucket. They become part of the table with `commit_buckets`.

    Args:
        path: the folder of the table.
        bucket: the number of the bucket.
        version: the version to work on.
        compactor: which chains to compact, and how.
        everything: compact whatever the strategy would change; False: only chains that have reached
            `delta_threshold`. Rows of other vectors are carried over unchanged.
        step: called before every change on disk, for tests.

    Returns:
        What was written; None if no vector needs it.
    """
    table = DeltaTable(path, step)
    try:
        loaded = table.load(bucket, version)
    except FileNotFoundError:
        return BucketResult(bucket, version.number, lost=True)
    chains = loaded.chains
    due = chains.pending >= (1 if everything else compactor.delta_threshold)
    if not due.any():
        return None
    forced = chains.pending >= compactor.max_chain_length
    done = compactor.carry_out(chains, compactor.plan(chains, forced=forced).only(chains, due))
    changed = done.changed
    errors = tuple(f"{chains.ids[v].as_py()}: {text}" for v, text in done.errors.items())
    if not changed.any():
        return BucketResult(bucket, version.number, errors=errors) if errors else None
    old = [file for file in loaded.files if file.kind != "refused"]
    added = _write_bucket(table, bucket, loaded, done.chains, changed, step)
    result = BucketResult(
        bucket,
        version.number,
        removed=tuple(file.path for file in old),
        added=tuple(added),
        vectors=int(changed.sum()),
        deltas_before=int(chains.pending[changed].sum()),
        deltas_after=int(done.chains.pending[changed].sum()),
        bytes_before=sum(file.bytes for file in old),
        bytes_after=sum(file.bytes for file in added if file.kind != "refused"),
        errors=errors,
    )
    if compactor.strategy.only_if_smaller and result.bytes_after >= result.bytes_before:
        _discard(table.root, result.added)  # compressed, it did not get smaller after all
        return None
    return result


def _write_bucket(
    table: DeltaTable,
    bucket: int,
    loaded: Bucket,
    compacted: Chains,
    changed: NDArray[np.bool_],
    step: Step,
) -> list[DataFile]:
    """Write the new files of a bucket; none of them is part of the table yet.

    Args:
        table: the table.
        bucket: the number of the bucket.
        loaded: the bucket as it was read.
        compacted: its chains after the compaction.
        changed: vectors that the compaction changed. The others are written as they were stored,
            and what was appended to them stays an appended row.
        step: called before every file.
    """
    stored, admission, vec = loaded.stored, loaded.admission, loaded.vec
    known = (
        stored.has_checkpoint | (stored.sealed_ns != np.iinfo(np.int64).min) | (stored.pending > 0)
    )
    new = _by_id(compacted.take(np.flatnonzero(changed)).plus(
        stored.take(np.flatnonzero(known & ~changed))))  # fmt: skip
    mine = changed[vec]
    left = np.flatnonzero(~mine | (admission.verdict == DeltaVerdict.WAITING))
    refused = admission.refused()
    out = np.sort(refused[mine[refused]])
    added = []
    step(f"checkpoints {bucket}")
    added.append(write_data_file(table.root, "checkpoints", bucket, checkpoint_table(new)))
    if new.rows.num_rows:
        step(f"pending {bucket}")
        added.append(write_data_file(table.root, "pending", bucket, new.rows))
    if len(left):
        step(f"deltas {bucket}")
        rows = admission.rows.take(pa.array(left))
        added.append(write_data_file(table.root, "deltas", bucket, rows))
    if len(out):
        step(f"refused {bucket}")
        rows = refused_rows(admission.rows, out, admission.reasons(out))
        added.append(write_data_file(table.root, "refused", bucket, rows))
    return added


def _by_id(chains: Chains) -> Chains:
    """Sorted by vector id, so that a reader of one vector can skip the rest of a file."""
    order: Int64s = np.argsort(np.array(chains.ids.to_pylist(), object), kind="stable")
    return chains.take(order)


def commit_buckets(
    table: DeltaTable, results: Iterable[BucketResult], step: Step = no_step
) -> JobReport:
    """Bring the results of a run in as one version, and remove the files they replace.

    Args:
        table: the table.
        results: what `compact_bucket` gave. A result whose input files are no longer part of the
            table is discarded and reported as a conflict.
        step: called before every change on disk, for tests.
    """
    results = list(results)
    errors = tuple(text for result in results for text in result.errors)
    conflicts = [result for result in results if result.lost]
    found = [result for result in results if result.added]
    base = table.log.latest()
    while found:
        named = {file.path for file in base.files}
        replaced = [result for result in found if not named.issuperset(result.removed)]
        for result in replaced:
            _discard(table.root, result.added)
        conflicts += replaced
        found = [result for result in found if result not in replaced]
        if not found:
            break
        removed = {path for result in found for path in result.removed}
        files = tuple(file for result in found for file in result.added)
        files += tuple(file for file in base.files if file.path not in removed)
        try:
            base = table.log.commit(table.log.following(base, files=files))
        except VersionConflict:
            base = table.log.latest()  # an append, or a job for other buckets: look again
            continue
        for path in sorted(removed):
            step(f"remove {path}")
            (table.root / path).unlink(missing_ok=True)
        break
    return JobReport(
        version=base.number,
        buckets=len(found),
        vectors=sum(r.vectors for r in found),
        deltas_before=sum(r.deltas_before for r in found),
        deltas_after=sum(r.deltas_after for r in found),
        bytes_before=sum(r.bytes_before for r in found),
        bytes_after=sum(r.bytes_after for r in found),
        conflicts=tuple(_conflict_sentence(r) for r in conflicts),
        errors=errors,
    )


def _conflict_sentence(result: BucketResult) -> str:
    """The sentence of the report about a bucket that another job compacted first."""
    conflict = VersionConflict(
        f"bucket {result.bucket}: another job replaced its files after version "
        f"{result.read_version}; this run discarded its work for it, and nothing is lost"
    )
    return f"{type(conflict).__name__}: {conflict}"


def compact_table(
    path: str | Path,
    compactor: Compactor | None = None,
    *,
    everything: bool = False,
    step: Step = no_step,
    run: Callable[[list[int], Version], Iterable[BucketResult | None]] | None = None,
) -> JobReport:
    """Compact a stored table. Safe to kill at any moment, to run again, and to run several times at
    once: every vector stays what it is.

    Args:
        path: the folder of a `DeltaTable`.
        compactor: which chains to compact, and how; None: `Compactor()`. Its `time_threshold` does
            not count: a table has no wall clock.
        everything: compact whatever the strategy would change, not only chains that have reached
            `delta_threshold`.
        step: called before every change on disk, for tests.
        run: does the buckets elsewhere (on Spark); None: here, one after the other.

    Returns:
        What it did. Buckets that another job compacted first are in `conflicts`.

    Raises:
        StateError: there is no table, or it cannot be read.
    """
    compactor = compactor or Compactor()
    table = DeltaTable(path, step)
    version = table.log.latest()
    buckets = sorted({f.bucket for f in version.files if f.kind in ("deltas", "pending")})
    if run is None:
        made: Iterable[BucketResult | None] = (
            compact_bucket(path, number, version, compactor, everything=everything, step=step)
            for number in buckets
        )
    else:
        made = run(buckets, version)
    return commit_buckets(table, [result for result in made if result is not None], step)


def _discard(root: Path, files: Iterable[DataFile]) -> None:
    """Remove files that no version names."""
    for file in files:
        (root / file.path).unlink(missing_ok=True)
