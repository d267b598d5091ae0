"""The page of a recording that no pipeline has read yet: what one would do with it, without Spark.

    inspect ─► the pipeline that `init` would write ─► its flow, in process ─► a run in a temporary
    folder ─► the same page as of any run

So the page shows what `tidegate run` would make of the file: rows in order, late ones, unusable
ones and why.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.core.outcomes import Int64s, Outcome, Watermark
from tidegate.core.text import plural, span
from tidegate.mcap.reader import McapFile, Selection
from tidegate.output.commit import Commit, CommitLog
from tidegate.output.filesystem import replace_file
from tidegate.output.reader import StoredRun, open_run
from tidegate.pipeline import PipelineDefinition
from tidegate.pipeline.run_record import RECORD, record_text
from tidegate.profile.inspect import inspect_rows
from tidegate.profile.roles import Roles
from tidegate.profile.spans import setting
from tidegate.profile.starter import Proof, prove
from tidegate.report.headline import headline
from tidegate.report.page import DEFAULT_LIMIT, first_view, page_text
from tidegate.report.rows import RunMessages, gather_messages
from tidegate.report.thumbnails import Payloads, thumbnails_of

__all__ = ["LookedAt", "write_look"]

MOST_READ = 256 * 2**20
"""Bytes of messages that are read again for images; then the page is made with those it has."""


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
        images = []
        payloads = {"mcap": _mcap_payloads, "rosbag": _bag_payloads}.get(profile.source.format)
        if payloads is not None:
            images = thumbnails_of(messages, first_view(messages), payloads(run, messages))
        sentence = _first_sentence(proof) or headline(messages, run.counts)
        text = page_text(run, messages, thumbnails=images, sentence=sentence)
    replace_file(to, text)
    return LookedAt(to, len(text.encode()), sentence, len(messages), messages.total, proof)


def _first_sentence(proof: Proof) -> str | None:
    """Return the sentence about a recording that is out of order and can be put in order; None if
    there is more to say, or nothing."""
    profile = proof.profile
    if not profile.disordered or proof.in_order < proof.rows:
        return None
    verb = "arrives" if profile.disordered == 1 else "arrive"
    return (
        f"{profile.disordered:,} of {plural(proof.rows, 'row')} {verb} after a newer one, by up to "
        f"{span(profile.disorder.max)}; with a tolerance of "
        f"{setting(profile.late_tolerance_ns or 0)} all come out in order."
    )


def _mcap_payloads(run: StoredRun, messages: RunMessages) -> Payloads:
    """Return where the payloads of messages are that came from MCAP files.

    The rows of the run say in which file, at which offset of a chunk and at which position in it a
    message is: chunks with a wanted message are read again, each once, until `MOST_READ`.
    """
    names = ("file", "topic", "offset", "position")
    rows = run.table("data", names)

    def read(wanted: Int64s) -> Iterator[tuple[int, bytes]]:
        chunks: dict[tuple[str, int], dict[int, int]] = {}  # messages by position
        topics: dict[tuple[str, int], set[str]] = {}
        for message in wanted.tolist():
            row = int(messages.row[message])
            file, topic, offset, position = (rows[name][row].as_py() for name in names)
            chunks.setdefault((file, offset), {})[position] = message
            topics.setdefault((file, offset), set()).add(topic)
        opened: dict[str, McapFile] = {}
        left = MOST_READ
        with ExitStack() as stack:
            for (file, offset), places in chunks.items():
                if file not in opened:
                    opened[file] = stack.enter_context(McapFile(file))
                pieces = [p for p in opened[file].index.pieces if p.start <= offset < p.end]
                left -= sum(piece.end - piece.start for piece in pieces)
                if left < 0:
                    return
                chosen = Selection(tuple(topics[file, offset]))
                for batch in opened[file].batches(chosen, pieces, faults=False):
                    found = zip(*(batch[name].to_pylist() for name in ("position", "data")),
                                strict=True)  # fmt: skip
                    yield from ((places[at], data) for at, data in found if at in places and data)

    return read


def _bag_payloads(run: StoredRun, messages: RunMessages) -> Payloads:
    """Return where the payloads of messages are that came from bags: these are read from their
    beginning, until the wanted messages or `MOST_READ` bytes of payload have come."""
    from tidegate.recordings.bags import read_bag

    rows = run.table("data", ("file", "offset"))

    def read(wanted: Int64s) -> Iterator[tuple[int, bytes]]:
        places: dict[str, dict[int, int]] = {}  # messages by number
        for message in wanted.tolist():
            row = int(messages.row[message])
            file, number = (rows[name][row].as_py() for name in ("file", "offset"))
            places.setdefault(file, {})[number] = message
        left = MOST_READ
        for file, numbers in places.items():
            for batch in read_bag(file, Selection()):
                left -= batch["data"].nbytes
                found = zip(batch["offset"].to_pylist(), batch["data"].to_pylist(), strict=True)
                yield from ((numbers.pop(at), data) for at, data in found if at in numbers and data)
                if left < 0 or not numbers:
                    break

    return read


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
