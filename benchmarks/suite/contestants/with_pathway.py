"""Pathway: its temporal windows and as-of joins, on the recording in pieces of 1,000 messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pathway as pw

VERSION = pw.__version__
PIECE = 1000


def prepare(path: str) -> Any:
    df = pd.read_parquet(path)
    # Rows with one `__time__` reach the engine together; its watermark moves between them.
    df["__time__"] = df["id"] // PIECE * 2
    return df


def tumbling(df: Any) -> Any:
    """Its watermark is one for all keys, and moves with the pieces."""
    t = _table(df[["key", "topic", "t", "value", "__time__"]])
    late = pw.temporal.common_behavior(cutoff=200_000_000)
    window = pw.temporal.tumbling(duration=10**9)
    groups = t.windowby(t.t, window=window, instance=(t.key, t.topic), behavior=late)
    return _run(
        groups.reduce(
            key=pw.reducers.any(pw.this.key),
            topic=pw.reducers.any(pw.this.topic),
            start=pw.this._pw_window_start,
            n=pw.reducers.count(),
            m=pw.reducers.avg(pw.this.value),
        )
    )


def sessions(df: Any) -> Any:
    """Sessions have no cutoff there: nothing is ever late."""
    t = _table(df.loc[df["topic"] == 3, ["key", "t", "__time__"]])
    window = pw.temporal.session(max_gap=500_000_001)
    return _run(
        t.windowby(t.t, window=window, instance=t.key).reduce(
            key=pw.reducers.any(pw.this.key),
            first=pw.reducers.min(pw.this.t),
            last=pw.reducers.max(pw.this.t),
            n=pw.reducers.count(),
        )
    )


def _table(df: Any) -> Any:
    return pw.debug.table_from_pandas(df)


def _run(table: Any) -> Any:
    found = pw.debug.table_to_pandas(table, include_id=False)
    pw.internals.parse_graph.G.clear()
    return found


JOBS = {"tumbling": tumbling, "sessions": sessions}


def answer(job: str, result: Any) -> dict[str, Any]:
    order = {"tumbling": ["key", "topic", "start"], "sessions": ["key", "first"]}[job]
    result = result.sort_values(order)
    return {name: np.asarray(result[name]) for name in result.columns}
