"""Results, and runs, as a piece of HTML: counts, reasons, a small timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from tidegate.core.time import format_time
from tidegate.report.notebook.drawing import Drawing

__all__ = ["Shown", "show"]

MESSAGES = 2_000
"""Messages read for the picture of a run: `tidegate view` shows them all."""

REASONS = 5
"""Reasons shown, the most frequent ones: some carry a value and are as many as there are rows."""


@dataclass(frozen=True)
class Shown:
    """HTML that a notebook displays; as text it says what was counted."""

    counts: Mapping[str, int]
    html: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return ", ".join(f"{number:,} {name}" for name, number in self.counts.items()) or "nothing"


def show(value: Any, *, topics: Sequence[str] = ()) -> Shown:
    """A small timeline of results: outcomes, sets, batches, windows, lists of them, or the path
    of a run's output. `topics` names the members of sets that do not know their names.

    >>> import tidegate as tg
    >>> sync = tg.ApproximateTime(["camera", "lidar"], queue_size=10)
    >>> sets = [s for t in range(9) for topic in ("camera", "lidar") for s in sync.push(topic, t)]
    >>> show(sets, topics=["camera", "lidar"])
    9 sets
    """
    if isinstance(value, str | Path):
        return _run(str(value))
    drawing = Drawing(topics=tuple(topics))
    drawing.add(value)
    return _shown(drawing)


def _run(path: str) -> Shown:
    from tidegate.profile.roles import Roles
    from tidegate.report.cells import NONE
    from tidegate.report.rows import KINDS, gather
    from tidegate.report.stored import open_run

    run = open_run(path)
    messages = gather(run, Roles(), MESSAGES)
    drawing = Drawing()
    for kind in run.kinds:
        drawing.count(kind, run.rows(kind))
    columns = zip(messages.topic.tolist(), messages.time_ns.tolist(), messages.kind.tolist(),
                  strict=True)  # fmt: skip
    drawing.marks = [(messages.topics[topic] or KINDS[kind], time, KINDS[kind])
                     for topic, time, kind in columns
                     if time != NONE and KINDS[kind] != "error"]  # fmt: skip
    drawing.messages = messages.total
    return _shown(drawing)


def _shown(drawing: Drawing) -> Shown:
    picture, origin, drawn = drawing.picture()
    numbers = " · ".join(f"<b>{n:,}</b> {escape(name)}" for name, n in drawing.counts.items())
    parts = [f"<p>{numbers or 'nothing came out'}</p>"]
    if drawing.reasons:
        most = sorted(drawing.reasons.items(), key=lambda reason: -reason[1])
        reasons = "; ".join(f"{escape(why)}: {n:,}" for why, n in most[:REASONS])
        more = f"; {len(most) - REASONS} more reasons" if len(most) > REASONS else ""
        parts.append(f"<p><small>{reasons}{more}</small></p>")
    if picture is not None:
        all_of = drawing.messages
        thinned = f"; {drawn:,} of {all_of:,} messages are drawn" if drawn < all_of else ""
        parts += [picture.svg(), f"<p><small>from {format_time(origin)}{thinned}</small></p>"]
    return Shown(drawing.counts, f'<div class="tidegate">{"".join(parts)}</div>')
