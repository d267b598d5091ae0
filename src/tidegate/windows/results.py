"""Emitted windows one by one, for those who want objects rather than tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.core.outcomes import Collection, Outcome

__all__ = ["WindowOutput", "WindowStats", "outputs"]


@dataclass(frozen=True)
class WindowStats:
    """What an emitted window consists of."""

    delta_count: int
    vectors_affected: int | None
    total_bytes: int
    avg_delta_size: float
    duration_ns: int


@dataclass(frozen=True, eq=False)
class WindowOutput:
    """One emission of one window."""

    window_id: str
    start_ns: int
    end_ns: int
    rows: pa.RecordBatch
    trigger: str
    pane: int
    revision: int
    retraction: bool
    stats: WindowStats | None


def outputs(outcomes: Iterable[Outcome]) -> list[WindowOutput]:
    """Emitted windows one by one, from the tables in which they come."""
    made = []
    for outcome in outcomes:
        if not isinstance(outcome, Collection):
            continue
        rows = outcome.rows
        text = rows.select(["window_id", "pane", "retraction"]).to_pydict()
        marks = list(zip(*text.values(), strict=True))
        edges = [i for i in range(len(marks)) if i == 0 or marks[i] != marks[i - 1]]
        for first, last in zip(edges, [*edges[1:], len(marks)], strict=True):
            part = rows.slice(first, last - first)
            head: dict[str, Any] = part.slice(0, 1).to_pylist()[0]
            stats = None
            if "delta_count" in head:
                stats = WindowStats(
                    head["delta_count"],
                    head.get("vectors_affected"),
                    head["total_bytes"],
                    head["avg_delta_size"],
                    head["duration_ns"],
                )
            made.append(
                WindowOutput(
                    head["window_id"],
                    head["window_start_ns"],
                    head["window_end_ns"],
                    part,
                    head["trigger"],
                    head["pane"],
                    head["revision"],
                    head["retraction"],
                    stats,
                )
            )
    return made
