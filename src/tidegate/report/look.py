"""The page of a recording that no pipeline has read yet: what one would do with it, without Spark.

    inspect ─► the pipeline that `init` would write ─► its flow, in process ─► a run in a temporary
    folder ─► the same page as of any run

So the page shows what `tidegate run` would make of the file: rows in order, late ones, unusable
ones and why.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
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
from tidegate.profile.rows import LoadedRows
from tidegate.profile.spans import setting
from tidegate.profile.starter import Proof, prove
from tidegate.report.headline import headline
from tidegate.report.page import DEFAULT_LIMIT, first_view, page_text
from tidegate.report.rows import RunMessages, gather_messages
from tidegate.report.thumbnails import Payloads, run_payloads, thumbnails_of

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
    first, loaded = inspect_rows(
        path, roles, time_type=time_type, format=format, zone=zone, limit=limit
    )
    if first.source.format == "parquet":
        loaded = _with_places(loaded)
    proof = prove(first, loaded)
    profile = proof.profile
    with tempfile.TemporaryDirectory(prefix="tidegate-look-") as folder:
        write_run(folder, proof)
        run = replace(open_run(folder), path=profile.source.path)
        messages = gather_messages(run, Roles(), limit)
        images = []
        parquet = partial(_parquet_payloads, profile.source.files, loaded)
        readers: dict[str, Callable[[StoredRun, RunMessages], Payloads]] = {
            "mcap": _mcap_payloads, "rosbag": _bag_payloads, "parquet": parquet,
        }  # fmt: skip
        payloads = readers.get(profile.source.format)
        if payloads is not None:
            images = thumbnails_of(messages, first_view(messages), payloads(run, messages))
        sentence = _first_sentence(proof) or headline(messages, run.counts)
        if proof.rows < profile.rows:
            sentence = (
                f"Read: the first {proof.rows:,} of {plural(profile.rows, 'row')}. {sentence}"
            )
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


PLACE = "look_row_number"
"""Column with the number of a row in the recording, as text, which no page plots."""


def _with_places(loaded: LoadedRows) -> LoadedRows:
    """Return rows of Parquet files that know their numbers, if their files have columns of bytes
    and hold all of their rows."""
    if not loaded.payloads or loaded.unreadable or PLACE in loaded.table.column_names:
        return loaded
    numbers = pa.array(np.arange(loaded.table.num_rows)).cast(pa.string())
    return replace(loaded, table=loaded.table.append_column(PLACE, numbers))


def _parquet_payloads(
    files: Sequence[Path], loaded: LoadedRows, run: StoredRun, messages: RunMessages
) -> Payloads:
    """Return where the payloads of messages are that came from Parquet files: in columns of bytes,
    which are read again row group by row group until `MOST_READ`, or inside structs, which were
    read with the rows."""
    inside = run_payloads(run, messages)
    if PLACE not in loaded.table.column_names or "data" not in run.kinds:
        return inside
    places = run.table("data", (PLACE,))[PLACE].cast(pa.int64()).to_numpy()
    begins = np.searchsorted(loaded.file, np.arange(len(files)))

    def read(wanted: Int64s) -> Iterator[tuple[int, bytes]]:
        yield from inside(wanted)
        rows = places[messages.row[wanted]]
        of_file = loaded.file[rows]
        left = MOST_READ
        for number in dict.fromkeys(of_file.tolist()):
            opened = pq.ParquetFile(files[number])
            columns = [name for name in loaded.payloads if name in opened.schema_arrow.names]
            chosen = np.flatnonzero(of_file == number)
            by_row = dict(zip((rows[chosen] - begins[number]).tolist(), wanted[chosen].tolist(),
                              strict=True))  # fmt: skip
            at = 0
            for batch in opened.iter_batches(PAYLOAD_ROWS, columns=columns):
                for row in range(at, at + batch.num_rows):
                    if row in by_row:
                        found = (batch[name][row - at].as_py() for name in columns)
                        yield from ((by_row[row], data) for data in found if data)
                at += batch.num_rows
                left -= batch.nbytes
                if left < 0:
                    return
                if at > max(by_row):
                    break

    return read


PAYLOAD_ROWS = 64
"""Rows whose payloads are in memory at once."""


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
