"""The batch compaction of a stored table: bucket by bucket, then one commit.

    plan      which buckets have something appended or pending          nothing written
    write     new files for the buckets where a vector needs it         not part of the table yet
    commit    one new version: the old files out, the new ones in       atomic
    clean up  remove the old files                                      no longer part of the table

Killed anywhere, the table is the old one or the new one, with the same vectors; the next run does
what is left. A second run right after the first finds nothing to do and commits nothing. Two runs
at once: a bucket goes to the one that commits first, the other discards its files for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.core.outcomes import Int64s
from tidegate.deltas.columns import Chains, checkpoint_table
from tidegate.deltas.compactor import Compactor
from tidegate.deltas.kernels import Verdict
from tidegate.deltas.strategies import Adaptive
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
    removed: tuple[str, ...]
    added: tuple[DataFile, ...]
    vectors: int
    deltas_before: int
    deltas_after: int
    bytes_before: int
    bytes_after: int
    errors: tuple[str, ...] = ()


@dataclass(frozen=True)
class JobReport:
    """What a whole run did."""

    version: int
    buckets: int
    vectors: int
    deltas_before: int
    deltas_after: int
    bytes_before: int
    bytes_after: int
    conflicts: int
    errors: tuple[str, ...]

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
    """Write the compacted files of a bucket, or None if no vector in it needs it.

    A vector needs it when its chain has reached `delta_threshold` (with `everything`: whenever the
    strategy would change it). The rows of the others are carried over as they are.
    """
    table = DeltaTable(path, step)
    loaded = table.load(bucket, version)
    chains = loaded.chains
    due = chains.pending >= (1 if everything else compactor.delta_threshold)
    if not due.any():
        return None
    forced = chains.pending >= compactor.max_chain_length
    folded = compactor.carry_out(chains, compactor.plan(chains, forced=forced).only(chains, due))
    errors = tuple(f"{chains.ids[v].as_py()}: {text}" for v, text in folded.errors.items())
    if not folded.changed.any():
        return BucketResult(bucket, (), (), 0, 0, 0, 0, 0, errors) if errors else None
    old = [file for file in loaded.files if file.kind != "refused"]
    added = _write(table, bucket, loaded, folded.chains, folded.changed, step)
    result = BucketResult(
        bucket,
        tuple(file.path for file in old),
        tuple(added),
        int(folded.changed.sum()),
        int(chains.pending[folded.changed].sum()),
        int(folded.chains.pending[folded.changed].sum()),
        sum(file.bytes for file in old),
        sum(file.bytes for file in added if file.kind != "refused"),
        errors,
    )
    if isinstance(compactor.strategy, Adaptive) and result.bytes_after >= result.bytes_before:
        _discard(table.root, result.added)  # compressed, it did not get smaller after all
        return None
    return result


def _write(
    table: DeltaTable,
    bucket: int,
    loaded: Bucket,
    compacted: Chains,
    changed: NDArray[np.bool_],
    step: Step,
) -> list[DataFile]:
    stored, admission, vec = loaded.stored, loaded.admission, loaded.vec
    known = (
        stored.has_checkpoint | (stored.sealed_ns != np.iinfo(np.int64).min) | (stored.pending > 0)
    )
    new = _by_id(compacted.take(np.flatnonzero(changed)).plus(
        stored.take(np.flatnonzero(known & ~changed))))  # fmt: skip
    mine = changed[vec]
    left = np.flatnonzero(~mine | (admission.verdict == Verdict.WAITING))
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
    """Bring the results in as one version, those whose input is still there, and clean up."""
    results = list(results)
    errors = tuple(text for result in results for text in result.errors)
    found = [result for result in results if result.added]
    conflicts = 0
    while True:
        base = table.log.latest()
        named = {file.path for file in base.files}
        good = [result for result in found if named.issuperset(result.removed)]
        for result in found:
            if result not in good:
                _discard(table.root, result.added)
                conflicts += 1
        found = good
        if not found:
            break
        removed = {path for result in found for path in result.removed}
        files = tuple(file for result in found for file in result.added)
        files += tuple(file for file in base.files if file.path not in removed)
        try:
            base = table.log.commit(table.log.following(base, files=files))
        except VersionConflict:
            continue
        for path in sorted(removed):
            step(f"remove {path}")
            (table.root / path).unlink(missing_ok=True)
        break
    return JobReport(
        base.number,
        len(found),
        sum(r.vectors for r in found),
        sum(r.deltas_before for r in found),
        sum(r.deltas_after for r in found),
        sum(r.bytes_before for r in found),
        sum(r.bytes_after for r in found),
        conflicts,
        errors,
    )


def compact_table(
    path: str | Path,
    compactor: Compactor | None = None,
    *,
    everything: bool = False,
    step: Step = no_step,
    run: Callable[[list[int], Version], Iterable[BucketResult | None]] | None = None,
) -> JobReport:
    """Compact a stored table. `run` does the buckets elsewhere (Spark); here, one after another."""
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
    for file in files:
        if (root / file.path).exists():
            os.unlink(root / file.path)
