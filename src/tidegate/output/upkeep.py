"""`tidegate maintain`: fold, merge and clean up an output that no run is writing to.

It claims the output as a driver does, so it is refused while a run is going on, and a run that is
started meanwhile is refused until it has ended. Delta tables are optimized and vacuumed by Delta's
own library: its log decides which files count, and our records then name the files that the table
has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tidegate.errors import ConfigError
from tidegate.output.commit import Commit, CommitLog, FoldHeader, RunTotals
from tidegate.output.epochs import Epochs
from tidegate.output.maintenance import RETAIN_S, TARGET_BYTES, Maintenance, Tidied, remove_staging
from tidegate.output.reader import open_run

__all__ = ["exclusively", "maintain"]


def maintain(path: str, *, target_bytes: int = TARGET_BYTES, retain_s: float = RETAIN_S) -> Tidied:
    """Fold all records but the newest, merge small files, remove what is left over.

    Args:
        path: The output that a run wrote to.
        target_bytes: Size of merged files, about; default 128 MiB.
        retain_s: For how long files that were merged can still be read by who has listed them, in
            s; default an hour. 0 removes them at once.

    Returns:
        What was done.

    Raises:
        ConfigError: If there is no run, or one is writing; or for Delta tables without the package.
        StateError: If a record is damaged.
    """
    run = open_run(path)
    log = CommitLog(path, run.fs, run.root)
    with exclusively(log) as epoch:
        kinds = {file.split("/")[0] for commit in run.commits for file in commit.files}
        delta = sorted(kind for kind in kinds if (Path(run.root) / kind / "_delta_log").is_dir())
        work = Maintenance(
            log, epoch, merge=not delta, target_bytes=target_bytes, retain_s=retain_s
        )
        news = bool(log.unfolded())  # else all of it was maintained before
        done = work.run(everything=True)
        remove_staging(run.fs, run.root, epoch)
        if delta and news:
            _maintain_delta(run.root, delta, work, done)
        return done


@contextmanager
def exclusively(log: CommitLog) -> Iterator[int]:
    """Hold the lease on an output, as a driver does, while something is done to it beside a run.

    Args:
        log: The records of the output.

    Yields:
        The epoch, for what is written.

    Raises:
        ConfigError: If a run is writing.
    """
    claim = Epochs(log.shown, log.fs, log.root).claim()
    working = [True]
    claim.keep(lambda: working[0])
    try:
        if claim.owes_seal:
            log.seal(claim.epoch)
            claim.sealed()
        yield claim.epoch
    finally:
        working[0] = False
        claim.release()


def _maintain_delta(root: str, kinds: list[str], work: Maintenance, done: Tidied) -> None:
    """Optimize and vacuum the tables, then let one fold name the files that they have now."""
    try:
        import deltalake
    except ImportError as missing:
        raise ConfigError(
            "out", root, "holds Delta tables: pip install 'tidegate[delta]'"
        ) from missing
    now: list[str] = []
    for kind in kinds:
        table: Any = deltalake.DeltaTable(f"{root}/{kind}")
        made = table.optimize.compact(target_size=work.target_bytes)
        done.merged += made["numFilesRemoved"]
        done.into += made["numFilesAdded"]
        place = f"{Path(root).absolute()}/{kind}/"
        now += [f"{kind}/{str(uri).removeprefix('file://').removeprefix(place)}"
                for uri in table.file_uris()]  # fmt: skip
    commits = list(work.log)
    named = Counter(file for commit in commits for file in commit.files)
    if set(now) != set(named):
        commits = [replace(commit, files=[]) for commit in commits]
        commits[-1] = replace(commits[-1], files=sorted(now))
        _refold(work.log, commits, work.epoch)
    for kind in kinds:
        removed = deltalake.DeltaTable(f"{root}/{kind}").vacuum(
            retention_hours=int(work.retain_s / 3600), enforce_retention_duration=False,
            dry_run=False,
        )  # fmt: skip
        done.removed += len(removed)


def _refold(log: CommitLog, commits: list[Commit], epoch: int) -> None:
    """Put all records of a run into one fold."""
    totals = RunTotals.none()
    for commit in commits:
        totals = totals.and_then(commit)
    first, last = commits[0].batch, commits[-1].batch
    ranges = [[commit.batch, commit.batch] for commit in commits]
    log.write_fold(FoldHeader(first, last, ranges, totals), commits, epoch)
    for batch in log.folded_still_there():
        log.remove_folded(batch)
    log.remove_folded()
