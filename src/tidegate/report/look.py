"""The page of a recording that no pipeline has read yet: what one would do with it, without Spark.

    inspect ─► the pipeline that `init` would write ─► its flow, in process ─► a run in a temporary
    folder ─► the same page as of any run

So the page shows what `tidegate run` would make of the file: rows in order, late ones, unusable
ones and why.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.core.outcomes import Outcome, Watermark
from tidegate.output.commit import Commit, CommitLog
from tidegate.output.reader import open_run
from tidegate.pipeline import PipelineDefinition
from tidegate.pipeline.run_record import RECORD, record_text
from tidegate.profile.inspect import inspect_rows
from tidegate.profile.roles import Roles
from tidegate.profile.starter import Proof, prove
from tidegate.report.headline import headline
from tidegate.report.page import DEFAULT_LIMIT, page_text
from tidegate.report.rows import gather_messages

__all__ = ["LookedAt", "write_look"]


@dataclass(frozen=True, eq=False)
class LookedAt:
    """What `write_look` found and wrote.

    Attributes:
        page: The HTML file.
        bytes: Its size.
        headline: The sentence on top of the page.
        shown, total: Messages in the page, and messages that were read.
        proof: What the pipeline that `init` would write does with the rows; `proof.profile` is what
            `inspect` says.
    """

    page: str
    bytes: int
    headline: str
    shown: int
    total: int
    proof: Proof

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `tidegate look --json`."""
        proof = self.proof
        return {
            "page": self.page, "bytes": self.bytes, "headline": self.headline,
            "messages": self.shown, "of": self.total,
            "pipeline": {"rows": proof.rows, "in_order": proof.in_order, "late": proof.late,
                         "errors": proof.errors, "changes": list(proof.changes)},
            "profile": proof.profile.to_json(),
        }  # fmt: skip


def write_look(
    path: str,
    to: str,
    roles: Roles | None = None,
    *,
    time_type: str | None = None,
    format: str | None = None,
    zone: str | None = None,
    limit: int = DEFAULT_LIMIT,
) -> LookedAt:
    """Write the page of a recording.

    Args:
        path: A file or folder of CSV, JSON, Parquet, MCAP or bags.
        to: The HTML file to write; an existing file is replaced.
        roles: Columns the user names; the others are guessed.
        time_type, format, zone: How the time column is read, as for `inspect`.
        limit: Most rows read, and most messages in the page.

    Raises:
        ConfigError: There is no such path or column, or no column is surely the time.
        DataError: A file is damaged, or is not of its format.
    """
    made = inspect_rows(path, roles, time_type=time_type, format=format, zone=zone, limit=limit)
    proof = prove(*made)
    profile = proof.profile
    with tempfile.TemporaryDirectory(prefix="tidegate-look-") as folder:
        write_run(folder, proof)
        run = replace(open_run(folder), path=profile.source.path)
        messages = gather_messages(run, Roles(), limit)
        text = page_text(run, messages)
        sentence = headline(messages, run.counts)
    Path(to).write_text(text, encoding="utf-8")
    return LookedAt(to, len(text.encode()), sentence, len(messages), messages.total, proof)


def write_run(folder: str, proof: Proof) -> None:
    """Write what came out of a pipeline in process as a run: tables, record, commit.

    Args:
        folder: An empty folder.
        proof: The pipeline and its outcomes.
    """
    files, rows = [], {}
    for kind, table in _rows_by_kind(proof.outcomes):
        place = f"{kind}/part-00000.parquet"
        (Path(folder) / kind).mkdir()
        pq.write_table(table, Path(folder) / place)
        files.append(place)
        rows[kind] = table.num_rows
    record = Path(folder) / RECORD
    record.parent.mkdir()
    record.write_text(record_text(PipelineDefinition.from_yaml(proof.text)), encoding="utf-8")
    marks = [int(o.time_ns.max()) for o in proof.outcomes if isinstance(o, Watermark) and len(o)]
    metrics = [(0, {"rows_in": proof.rows}, max(marks, default=None))]
    CommitLog.at(folder).write(Commit.of(0, "look", rows, metrics, files))


def _rows_by_kind(outcomes: Iterable[Outcome]) -> list[tuple[str, pa.Table]]:
    """Return the rows of all outcomes by kind."""
    found: dict[str, list[pa.RecordBatch]] = {}
    for outcome in outcomes:
        if not isinstance(outcome, Watermark) and len(outcome):
            found.setdefault(outcome.kind, []).append(outcome.table())
    return [
        (kind, pa.concat_tables([pa.Table.from_batches([b]) for b in batches],
                                promote_options="permissive"))
        for kind, batches in found.items()
    ]  # fmt: skip
