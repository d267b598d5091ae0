"""`tidegate audit`: prove from a run's records and files that no row was lost, doubled or changed.

Every commit record says, per shard, how many rows came in and went out of each kind, with a hash of
each that does not depend on order (`tidegate.output.tally`), and where its counters stand. An audit
goes through the records in order and asks of each batch:

1. **Nothing is missing between batches.** The counter of rows that a shard has ever taken in must
   have grown by exactly the rows that came in with this batch. A batch that was lost, or whose
   state was rolled back, breaks it here.
2. **Files hold what the step let out.** The rows of every file are read, counted and hashed, and
   compared with what the shards reported.
3. **Every row is in one place.** All rows that ever came in = rows that went out as they came, as
   data, late, error or dropped + rows discarded by a quick end + rows held. Where stages make
   something new of rows (sets, windows, compaction), the rest was used in results: it may not be
   negative. Where they do not, it must be nought, or what it was when the last stage that did was
   removed; and whenever nothing is held and there never was such a stage, the hash of all that came
   in must be the hash of all that went out.

An output that began with a savepoint has counters that began elsewhere: `_beginning.json` says
where they stood, and rows that were held then count as rows that came in.

What it does not prove: that the source handed every row to the step (Spark and the source's own
offsets answer for that), and that columns outside a row's identity are unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidegate.core.text import plural
from tidegate.errors import StateError
from tidegate.output.commit import Commit
from tidegate.output.maintenance import batches_of_file
from tidegate.output.reader import StoredRun, open_run
from tidegate.output.savepoint import read_beginning
from tidegate.output.summary import Summary
from tidegate.output.tally import IN, Tally, tally_of

__all__ = ["AuditReport", "audit_run"]

CONSERVING = frozenset({"eventtime_watermark", "batch"})
"""Stages that hand on every row once as it came, or drop it with a reason. Synchronisation makes
sets of rows, windows and compaction make new rows."""


@dataclass
class AuditReport:
    """What an audit found.

    Args:
        path: The output, as the user gave it.
        batches: Records that were read.
        unaudited: Records without tallies: of versions before there were any. Their rows are
            counted, not hashed.
        tallies: All that came in (`in`) and went out, by kind.
        held: Rows that stages hold.
        held_before: Rows that they held when the output began with a savepoint.
        used: Rows that went into results and did not come out themselves.
        files: Files that were read.
        failed_batch: The first batch that does not add up; None if all do.
        failures: What is wrong with it, a sentence each.
    """

    path: str
    batches: int = 0
    unaudited: int = 0
    tallies: dict[str, Tally] = field(default_factory=dict)
    held: int = 0
    held_before: int = 0
    used: int = 0
    files: int = 0
    failed_batch: int | None = None
    failures: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether every batch adds up."""
        return not self.failures

    def to_json(self) -> dict[str, object]:
        """Return the report as plain values, for `tidegate audit --json`."""
        return {
            "out": self.path, "passed": self.passed, "batches": self.batches,
            "unaudited": self.unaudited, "files": self.files,
            "rows": {kind: tally.rows for kind, tally in self.tallies.items()},
            "hashes": {kind: f"{tally.hash:016x}" for kind, tally in self.tallies.items()},
            "held": self.held, "held_before": self.held_before, "used": self.used,
            "failed_batch": self.failed_batch, "failures": self.failures,
        }  # fmt: skip

    def lines(self) -> list[str]:
        """Return the report as sentences for a terminal."""
        if not self.passed:
            return [f"batch {self.failed_batch} does not add up:", *self.failures]
        came = self.tallies.get(IN, Tally()).rows
        out = [f"{kind} {tally.rows:,}" for kind, tally in self.tallies.items() if kind != IN]
        said = [
            f"{plural(self.batches, 'batch', 'batches')} and {plural(self.files, 'file')} add up",
            f"rows in {came:,}"
            + (f" + held before {self.held_before:,}" if self.held_before else "")
            + f" = {', '.join(out) or 'none out'}, held {self.held:,}"
            + (f", used in results {self.used:,}" if self.used else ""),
        ]
        if self.unaudited:
            verb = "carries" if self.unaudited == 1 else "carry"
            number = plural(self.unaudited, "batch", "batches")
            said.append(f"{number} {verb} no hashes: compared by count")
        return said


def audit_run(path: str, *, files: bool = True) -> AuditReport:
    """Check a run; see above for what.

    Args:
        path: The output that a run wrote to. It may be running: what is committed is checked.
        files: Whether files are read and hashed too. Default True; without, records are compared
            with each other only, which takes milliseconds.

    Returns:
        The report. It ends at the first batch that does not add up.

    Raises:
        ConfigError: If there is no run.
        StateError: If a record is damaged.
    """
    run = open_run(path)
    report = AuditReport(path)
    began = read_beginning(path)
    summary = Summary(path, before=began)
    counters = {shard: metrics.get("rows_in", 0) for shard, metrics in began.items()}
    balance = _Balance()
    stored = _Files(run, report) if files and any(c.files for c in run.commits) else None
    for commit in run.commits:
        failures = _continues(commit, counters)
        report.batches += 1
        report.unaudited += not commit.audited
        summary.add(commit)
        for tallies in commit.audit.values():
            for kind, pair in tallies.items():
                report.tallies[kind] = report.tallies.get(kind, Tally()) + Tally(*pair)
        if stored is not None:
            failures += stored.differ(commit)
        failures += balance.of(summary, report, commit)
        if stored is not None and commit is run.commits[-1]:
            failures += stored.left_over()
        if failures:
            report.failed_batch, report.failures = commit.batch, failures
            break
    return report


def _continues(commit: Commit, counters: dict[int, int]) -> list[str]:
    """Compare what came in with how far the counters of shards have moved. Changes `counters`."""
    out = []
    for shard, metrics in sorted(commit.shards.items()):
        now, before = metrics.get("rows_in", 0), counters.get(shard, 0)
        counters[shard] = now
        if not commit.audited:
            continue
        came = commit.audit.get(shard, {}).get(IN, [0, 0])[0]
        if now - before != came:
            out.append(
                f"shard {shard} has taken in {plural(now, 'row')} in all and {before:,} before "
                f"this batch, which brought {came:,}: {_signed(now - before - came)} not "
                "accounted for"
            )
    return out


def _signed(rows: int) -> str:
    """Return how many rows differ, with sign and verb.

    >>> _signed(1), _signed(-2000)
    ('+1 row is', '-2,000 rows are')
    """
    return f"{rows:+,} {'row is' if abs(rows) == 1 else 'rows are'}"


class _Files:
    """What the files of a run hold, per kind and batch.

    Files of several batches that were merged say which of their rows belong to which. Those that
    Delta's library made do not: what they hold is compared with the sum of the batches that have no
    other file.

    Args:
        run: The run whose files are read.
        report: Gets the number of files.
    """

    def __init__(self, run: StoredRun, report: AuditReport) -> None:
        self.found: dict[tuple[str, int], Tally] = {}
        self.loose: dict[str, Tally] = {}
        self.unreadable: dict[int, list[str]] = {}
        for commit in run.commits:
            for file in commit.files:
                report.files += 1
                kind = file.split("/")[0]
                try:
                    self._read(run, commit, kind, file)
                except StateError as error:
                    self.unreadable.setdefault(commit.batch, []).append(str(error))

    def _read(self, run: StoredRun, commit: Commit, kind: str, file: str) -> None:
        """Tally one file."""
        columns = commit.audited.get(kind, [])
        rows = run.file_rows(file, columns)
        if not file.startswith(f"{kind}/batch="):
            self.loose[kind] = self.loose.get(kind, Tally()) + tally_of(rows, columns)
            return
        at = 0
        for batch, count in batches_of_file(rows.schema) or [(commit.batch, rows.num_rows)]:
            part = tally_of(rows.slice(at, count), columns)
            self.found[kind, batch] = self.found.get((kind, batch), Tally()) + part
            at += count

    def differ(self, commit: Commit) -> list[str]:
        """Compare the files of a batch with what its shards let out."""
        out = self.unreadable.get(commit.batch, [])
        if out:
            return out
        # A row whose payload is gone leaves the step as data and is written as an error: tables of
        # rows are compared together.
        passed = [kind for kind, names in commit.audited.items()
                  if kind != IN and names == commit.audited.get(IN)]  # fmt: skip
        together = len(passed) > 1 and not any(kind in self.loose for kind in passed)
        if together:
            found = _sum(self.found.get((kind, commit.batch), Tally()) for kind in passed)
            let_out = _sum(_reported(commit, kind) for kind in passed)
            together = found == let_out
        for kind in sorted({*commit.rows, *(k for t in commit.audit.values() for k in t)} - {IN}):
            reported = _reported(commit, kind)
            stored = self.found.get((kind, commit.batch))
            if stored is None and kind in self.loose:
                self.loose[kind] -= reported if commit.audited else Tally(commit.rows.get(kind, 0))
            elif together and kind in passed:
                out += _compare(kind, stored or Tally(), commit, stored or Tally())
            else:
                out += _compare(kind, stored or Tally(), commit, reported)
        return out

    def left_over(self) -> list[str]:
        """Sentences for rows of tables that no batch let out, or that batches let out in vain."""
        return [f"{kind}: its table and its batches differ by {plural(abs(tally.rows), 'row')}"
                for kind, tally in self.loose.items() if tally != Tally()]  # fmt: skip


def _reported(commit: Commit, kind: str) -> Tally:
    """Return what the shards of a batch let out of a kind."""
    return _sum(Tally(*tallies.get(kind, (0, 0))) for tallies in commit.audit.values())


def _sum(tallies: Iterable[Tally]) -> Tally:
    """Return all tallies together."""
    total = Tally()
    for one in tallies:
        total += one
    return total


def _compare(kind: str, found: Tally, commit: Commit, reported: Tally) -> list[str]:
    """Sentences for what a kind's files and what was said about them differ in."""
    said = commit.rows.get(kind, 0)
    if found.rows != said:
        return [f"{kind}: its files hold {plural(found.rows, 'row')}, the record says {said:,}"]
    if not commit.audited or kind not in commit.audited:
        return []
    if found.rows != reported.rows:
        return [
            f"{kind}: its files hold {plural(found.rows, 'row')}, shards let out {reported.rows:,}"
        ]
    if found.hash != reported.hash:
        return [
            f"{kind}: its files hold other rows than shards let out: hash {found.hash:016x}, not "
            f"{reported.hash:016x}"
        ]
    return []


class _Balance:
    """Asks after every batch whether every row that ever came in is in one place.

    Where a stage that makes something new of rows was removed, nothing can be said about the rows
    it used. From the batch on that finds it gone in all shards, all further rows must be there.
    """

    def __init__(self) -> None:
        self.used_before: int | None = 0
        """Rows that stages which are gone have used; None while there is such a stage."""
        self.always = True
        """Whether there has never been such a stage."""

    def of(self, summary: Summary, report: AuditReport, commit: Commit) -> list[str]:
        """Return what is wrong after a batch, in sentences."""
        report.held, report.held_before = summary.held, summary.held_before
        data = summary.rows.get("data", 0)
        report.used = summary.used
        if not _conserves(summary.shards):
            self.used_before, self.always = None, False
            if summary.used < 0:
                return [f"{plural(-summary.used, 'row')} went out or are held that never came in"]
            return []
        if self.used_before is None:
            self.used_before = summary.used - data
        report.used = self.used_before
        missing = summary.used - data - self.used_before
        if missing:
            return [
                f"of {plural(summary.rows_in + summary.held_before, 'row')} that came in, {data:,} "
                f"went out as data, {summary.late:,} late, {summary.errors:,} as errors, "
                f"{summary.dropped:,} dropped, {summary.discarded:,} discarded and "
                f"{summary.held:,} are held: "
                + (f"{missing:,} are missing" if missing > 0 else f"{-missing:,} are too many")
            ]
        delivered = summary.late == summary.rows.get("late", 0) and not summary.discarded
        if summary.held or not delivered or report.unaudited:
            return []
        if summary.held_before or not self.always:
            return []  # rows went out that came in elsewhere, or as something else
        identity = commit.audited.get(IN)
        rest = report.tallies.get(IN, Tally())
        for kind, tally in report.tallies.items():
            if kind != IN and commit.audited.get(kind) == identity:
                rest -= tally
        return [] if rest == Tally() else ["the rows that went out are not those that came in"]


def _conserves(shards: Mapping[int, Mapping[str, int]]) -> bool:
    """Return whether all stages, by the names of their metrics, hand on every row once."""
    labels = {name.split(".", 1)[0] for metrics in shards.values() for name in metrics
              if "." in name}  # fmt: skip
    return bool(labels) and {label.rstrip("0123456789").removesuffix("_") for label in labels} <= (
        CONSERVING
    )
