"""Runs to look at, written as the sink writes them, by the real operators without Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.core.flow import Flow
from tidegate.core.operator import Operator
from tidegate.core.outcomes import Outcome, Watermark
from tidegate.eventtime import Decoder, TimeColumn


def store(
    path: Path,
    stages: Sequence[Operator],
    recording: pa.Table,
    *,
    key: str = "vehicle",
    time: str = "stamp",
    cuts: int = 4,
) -> Path:
    """Run stages over a recording in some cuts; one commit per cut, the last ends the stream."""
    flow = Flow(stages, key=key, decoder=Decoder((TimeColumn(time, "unixtimestamp_ns"),)))
    step = -(-recording.num_rows // cuts)
    rows_in = 0
    for number in range(cuts):
        part = recording.slice(number * step, step).combine_chunks()
        out: list[Outcome] = []
        for batch in part.to_batches():
            rows_in += batch.num_rows
            out += flow.process(batch, wall_ns=number * 10**9)
        if number == cuts - 1:
            out += flow.end()
        _commit(path, number, out, {**flow.metrics(), "rows_in": rows_in})
    return path


def _commit(path: Path, number: int, out: list[Outcome], metrics: dict[str, int | float]) -> None:
    rows: dict[str, int] = {}
    files: list[str] = []
    watermark = None
    tables: dict[str, list[pa.RecordBatch]] = {}
    for outcome in out:
        if isinstance(outcome, Watermark):
            watermark = max(int(outcome.time_ns.max()), watermark or 0)
        elif len(outcome):
            tables.setdefault(outcome.kind, []).append(outcome.table())
    for kind, batches in tables.items():
        folder = path / kind / f"batch={number:08d}"
        folder.mkdir(parents=True, exist_ok=True)
        table = pa.concat_tables([pa.Table.from_batches([b]) for b in batches],
                                 promote_options="permissive")  # fmt: skip
        pq.write_table(table, folder / "part-00000-0.parquet")
        rows[kind] = table.num_rows
        files.append(f"{kind}/batch={number:08d}/part-00000-0.parquet")
    commit = {
        "query": "test", "batch": number, "rows": rows, "watermark_ns": watermark,
        "shards": {"0": {name: int(value) for name, value in metrics.items()}}, "files": files,
    }  # fmt: skip
    (path / "_commits").mkdir(exist_ok=True)
    (path / "_commits" / f"{number:08d}.json").write_text(json.dumps(commit))
