"""What came out of a run, as rows per kind and key in order: the form in which runs compare."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.core.arrow import conform
from tidegate.core.flow import Flow
from tidegate.core.outcomes import Outcome, Watermark
from tidegate.spark import Frames
from tidegate.spark.query import start
from tidegate.spark.sinks.parquet import ParquetSink
from tidegate.spark.sinks.registry import SinkRequest

Rows = dict[tuple[Any, ...], list[dict[str, Any]]]
Tables = dict[str, Rows]
"""Per kind, per key: the rows, in the order in which they came out."""


def arranged(tables: Iterable[tuple[str, pa.Table]], keys: Sequence[str]) -> Tables:
    """Rows by kind and key. Errors of one key are told apart by content, not by order: a row with
    no time is reported before the shuffle, one with a wrong time by a stage behind it."""
    out: Tables = defaultdict(lambda: defaultdict(list))
    for kind, table in tables:
        for row in table.to_pylist():
            out[kind][tuple(row[key] for key in keys)].append(row)
    for rows in out["error"].values():
        rows.sort(key=repr)
    return {kind: dict(rows) for kind, rows in out.items() if rows}


def in_process(frames: Frames, parts: Iterable[pa.Table], *, end: bool = True) -> Tables:
    """The same stages without Spark: the tables in order of arrival through one flow."""
    flow = Flow(frames.stages, key=frames.keys, decoder=frames.decoder, forget=frames.forget)
    outcomes: list[Outcome] = []
    for part in parts:
        for batch in part.combine_chunks().to_batches():
            outcomes += flow.process(batch)
    return of_outcomes(frames, outcomes + (flow.end() if end else []))


def of_outcomes(frames: Frames, outcomes: Iterable[Outcome]) -> Tables:
    tables = [
        (o.kind, pa.Table.from_batches([conform(_named(frames, o), frames.schemas[o.kind])]))
        for o in outcomes
        if not isinstance(o, Watermark)
    ]
    return arranged(tables, frames.keys)


def _named(frames: Frames, outcome: Outcome) -> pa.RecordBatch:
    """The rows of an outcome, our columns named as in the tables of the frames."""
    assert not isinstance(outcome, Watermark)
    return outcome.table(frames._taken_names().get(outcome.kind, ()))


def written(out: Path | str, frames: Frames) -> Tables:
    """What a run has committed, batch by batch."""
    tables = []
    for commit in ParquetSink(SinkRequest(str(out), frames.schemas)).commits:
        for file in commit.files:
            table = pq.ParquetFile(Path(out) / file).read()
            tables.append((file.split("/")[0], table))
    return arranged(tables, frames.keys)


def run_now(frames: Frames, out: Path | str, **options: Any) -> list[dict[str, Any]]:
    """Run a stream over what there is, and return its progress reports that saw a batch."""
    query = start(frames, str(out), **options)
    try:
        query.awaitTermination()
        return [json.loads(progress.json) for progress in query.recentProgress]
    finally:
        query.stop()


def say(folder: Path, name: str, value: str | None, **key: Any) -> None:
    """Write one control row."""
    folder.mkdir(parents=True, exist_ok=True)
    number = len(list(folder.glob("*.json")))
    row = {"name": name, "value": value, **key}
    (folder / f"{number:03d}.json").write_text(json.dumps(row) + "\n")


def count(rows: Rows) -> int:
    return sum(len(part) for part in rows.values())


def add_file(table: pa.Table, folder: Path, number: int) -> None:
    """Write the next file of a source. Spark reads files by the time they were modified, in ms, so
    they are set a second apart: written in a loop, two would be equal now and then."""
    folder.mkdir(parents=True, exist_ok=True)
    hidden = folder / f".{number:03d}"
    pq.write_table(table, hidden)
    os.utime(hidden, (1_700_000_000 + number,) * 2)
    hidden.rename(folder / f"{number:03d}.parquet")


def assert_same(ours: Tables, theirs: Tables) -> None:
    """Two runs gave the same rows, kind by kind and key by key, in the same order."""
    for kind in sorted({*ours, *theirs}):
        one, two = ours.get(kind, {}), theirs.get(kind, {})
        for key in sorted({*one, *two}, key=repr):
            a, b = one.get(key, []), two.get(key, [])
            if a == b:
                continue
            place = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
            if place is None:
                place = min(len(a), len(b))
            raise AssertionError(
                f"{kind} {key}: {len(a)} and {len(b)} rows, first different at {place}: "
                f"{a[place : place + 1]} and {b[place : place + 1]}"
            )
