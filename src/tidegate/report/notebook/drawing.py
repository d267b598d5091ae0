"""What results say about time, gathered for one small picture: marks, spans, links, counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.batching.message import MessageBatch
from tidegate.core.outcomes import Collection, Dropped, Int64s, Late, Side, StreamError, Watermark
from tidegate.core.time import MIN_NS
from tidegate.errors import ConfigError
from tidegate.profile.roles import TOPIC_NAMES
from tidegate.report.scenarios.picture import Picture
from tidegate.sync.results import SyncResult, SyncSet
from tidegate.windows.results import WindowOutput

__all__ = ["MOST", "Drawing"]

MOST = 500
"""Marks in a picture: more make a cell slow and cannot be told apart at this size."""

LANES = 12
"""Lanes in a picture; the topics beyond share one."""

_SPANS = (
    ["window_start_ns", "window_end_ns", "trigger"],
    ["batch_start_ns", "batch_end_ns", "batch_reason"],
)
"""The columns by which rows say in which window or batch they are."""

_COLOUR = {"data": "c0", "late": "late", "dropped": "dropped"}
_SHAPE = {"data": "dot", "late": "diamond", "dropped": "ring"}


@dataclass
class Drawing:
    """Collects; `picture` draws it. Times in nanoseconds since the epoch."""

    topics: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    marks: list[tuple[str, int, str]] = field(default_factory=list)
    spans: dict[tuple[int, int, str], None] = field(default_factory=dict)
    links: list[list[tuple[str, int]]] = field(default_factory=list)
    watermark_ns: int | None = None
    messages: int = 0
    """How many there are, drawn or not."""

    def add(self, value: Any) -> None:
        """One result of any operator, or several."""
        match value:
            case Collection() | Late() | Dropped():
                self._add_rows(value)
            case StreamError():
                self.count("error", len(value))
                self._explain(value.reason)
            case Side():
                self.count(value.name, len(value))
            case Watermark():
                known = value.time_ns[value.time_ns > MIN_NS]
                if len(known):
                    self.watermark_ns = max(int(known.max()), self.watermark_ns or MIN_NS)
            case SyncSet():
                self.count("sets", 1)
                names = self.topics or tuple(f"topic {n + 1}" for n in range(len(value.times_ns)))
                self._set(list(zip(names, value.times_ns, strict=True)))
            case SyncResult():
                self.count("sets", len(value))
                for times, rows in zip(value.times_ns.tolist(), value.rows.tolist(), strict=True):
                    there = [time if row >= 0 else None
                             for time, row in zip(times, rows, strict=True)]  # fmt: skip
                    self._set(list(zip(value.topics, there, strict=True)))
                self.count("unmatched", len(value.unmatched_rows))
                self._mark_unmatched(value)
            case MessageBatch():
                self.count("batches", 1)
                self.count("messages", len(value.messages))
                self.spans[value.start_ns, value.end_ns, value.reason] = None
                self.messages += len(value.messages)
                self.marks += [(m.stream, m.time_ns, "data") for m in value.messages]
            case WindowOutput():
                self.count("windows", 1)
                self.count("rows", value.rows.num_rows)
                self.spans[value.start_ns, value.end_ns, value.trigger] = None
            case Iterable() if not isinstance(value, str | bytes):
                for inner in value:
                    self.add(inner)
            case _:
                raise ConfigError(
                    "value", type(value).__name__, "must be results of Tidegate, or a run's path"
                )

    def count(self, name: str, number: int) -> None:
        if number:
            self.counts[name] = self.counts.get(name, 0) + number

    # -- rows -------------------------------------------------------------------------------------

    def _add_rows(self, value: Collection | Late | Dropped) -> None:
        names = value.rows.schema.names
        if isinstance(value, Dropped):
            self._explain(value.reason)
        if isinstance(value, Collection) and "spread_ns" in names:
            self.count("sets", len(value))
            members = [f.name for f in value.rows.schema
                       if pa.types.is_struct(f.type)
                       and f.type.get_field_index("time_ns") >= 0]  # fmt: skip
            for row in value.rows.select(members).to_pylist():
                self._set([(name, row[name] and row[name]["time_ns"]) for name in members])
            return
        self.count(value.kind, len(value))
        if isinstance(value, Collection):
            for span in _SPANS:
                if set(span) <= set(names):
                    columns = [column.to_pylist() for column in value.rows.select(span).columns]
                    self.spans |= dict.fromkeys(zip(*columns, strict=True))
        self._mark(value.rows, value.time_ns, value.kind)

    def _mark(self, rows: pa.RecordBatch, times: Int64s, kind: str) -> None:
        topic = next((name for name in TOPIC_NAMES if name in rows.schema.names), None)
        self.messages += len(times)
        real = np.flatnonzero(times > MIN_NS)
        chosen = real[_places(len(real), MOST)]
        texts: Sequence[Any] = [kind] * len(chosen)
        if topic is not None:
            texts = rows.column(topic).take(pa.array(chosen)).to_pylist()
        self.marks += [(str(text), int(times[row]), kind)
                       for text, row in zip(texts, chosen.tolist(), strict=True)]  # fmt: skip

    def _mark_unmatched(self, value: SyncResult) -> None:
        self.messages += len(value.unmatched_rows)
        for reason, number in enumerate(np.bincount(value.unmatched_reasons).tolist()):
            if number:
                name = value.reasons[reason]
                self.reasons[name] = self.reasons.get(name, 0) + number
        for place in _places(len(value.unmatched_rows), MOST):
            topic = value.topics[value.unmatched_topics[place]]
            self.marks.append((topic, int(value.unmatched_times_ns[place]), "dropped"))

    def _set(self, members: list[tuple[str, int | None]]) -> None:
        there = [(name, int(time)) for name, time in members if time is not None]
        self.links.append(there)
        self.messages += len(there)
        self.marks += [(name, time, "data") for name, time in there]

    def _explain(self, reasons: pa.Array) -> None:
        for found in reasons.value_counts().to_pylist():
            reason = str(found["values"])
            self.reasons[reason] = self.reasons.get(reason, 0) + int(found["counts"])

    # -- the picture ------------------------------------------------------------------------------

    def picture(self) -> tuple[Picture | None, int, int]:
        """The picture, the time it counts from, and how many marks it shows of all that came."""
        marks = _thinned(self.marks)
        links = [self.links[n] for n in _places(len(self.links), MOST // 4)]
        times = [time for _, time, _ in marks] + [t for s in self.spans for t in s[:2]]
        if not times:
            return None, 0, 0
        origin, last = min(times), max(times)
        margin = max((last - origin) // 40, 1)
        names = list(dict.fromkeys(name for name, *_ in sorted(marks))) or ["windows"]
        lanes = names if len(names) <= LANES else [*names[: LANES - 1], "others"]
        place = {name: min(n, len(lanes) - 1) for n, name in enumerate(names)}
        drawn = Picture(lanes, -margin, last - origin + margin, lane_height=26)
        spans = list(self.spans)
        for start, end, text in (spans[n] for n in _places(len(spans), MOST // 4)):
            drawn.span(start - origin, end - origin, text, "c2")
        for link in links:
            drawn.link([(place[name], time - origin) for name, time in link], "c1")
        for name, time, kind in marks:
            drawn.dot(place[name], time - origin, _COLOUR[kind], _SHAPE[kind])
        if self.watermark_ns is not None and origin <= self.watermark_ns <= last:
            drawn.line(self.watermark_ns - origin, "watermark")
        return drawn, origin, len(marks)


def _places(count: int, most: int) -> list[int]:
    """Of so many, the places of at most so many, evenly spread."""
    if count <= most:
        return list(range(count))
    return [int(place) for place in np.linspace(0, count - 1, most)]


def _thinned(marks: list[tuple[str, int, str]]) -> list[tuple[str, int, str]]:
    """What one looks for (late, dropped) is kept first."""
    rare = [mark for mark in marks if mark[2] != "data"]
    rest = [mark for mark in marks if mark[2] == "data"]
    kept = [rare[n] for n in _places(len(rare), MOST // 2)]
    return [rest[n] for n in _places(len(rest), MOST - len(kept))] + kept
