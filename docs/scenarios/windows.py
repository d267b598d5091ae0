"""Windows: spans above are emissions, with what triggered them and how many rows they hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from scenarios.gallery import scenario
from tidegate.core.flow import Flow
from tidegate.core.outcomes import Collection, Dropped, Late
from tidegate.eventtime import Decoder, EventtimeWatermark, TimeColumn
from tidegate.report.picture import ALTERNATING, Picture
from tidegate.windows import (
    Adaptive,
    AfterCount,
    AtWatermark,
    LookBack,
    Reemit,
    Session,
    SideOutput,
    Sliding,
    Tumbling,
    Window,
)

MS = 10**6


def run(
    window: Window, times_ms: list[float], end_ms: int, tolerance_ms: int = 0, **columns: Any
) -> Picture:
    """Rows in this order through the event-time stage and the window stage."""
    stage = EventtimeWatermark(tolerance_ms * MS, watermark_per="tuple")
    flow = Flow([stage, window], decoder=Decoder((TimeColumn("t", "unixtimestamp_ns"),)))
    picture = Picture(["rows"], 0, end_ms * MS)
    emitted: list[dict[str, Any]] = []
    for n, ms in enumerate(times_ms):
        rows = {"id": [n], "t": [round(ms * MS)], **{k: [v[n]] for k, v in columns.items()}}
        _emissions(picture, emitted, flow.process(pa.record_batch(rows), wall_ns=n * MS))
    _emissions(picture, emitted, flow.end())
    ends: list[int] = []
    inside: dict[int, str] = {}
    for number, one in enumerate(emitted):
        colour = "late" if one["revision"] else ALTERNATING[number % len(ALTERNATING)]
        row = next((r for r, end in enumerate(ends) if end <= one["start"]), len(ends))
        ends[row : row + 1] = [one["end"]]
        text = f"{one['trigger']}: {len(one['ids'])}" + (
            f", revision {one['revision']}" if one["revision"] else ""
        )
        picture.span(one["start"], one["end"], text, colour, row)
        for i in one["ids"]:
            inside.setdefault(i, colour)
    for n, ms in enumerate(times_ms):
        if n in inside:
            picture.dot(0, round(ms * MS), inside[n], "dot", f"row {n}")
    picture.explain_used({
        ("data", "span"): "emission, with its trigger and its number of rows",
        ("late", "span"): "revision",
        ("data", "dot"): "row, in the colour of its first window",
        ("late", "diamond"): "late, in no window",
    })  # fmt: skip
    picture.facts["windows"] = [
        (one["start"] / MS, one["end"] / MS, one["trigger"], one["revision"], one["ids"])
        for one in emitted
    ]
    return picture


def _emissions(picture: Picture, emitted: list[dict[str, Any]], out: list[Any]) -> None:
    for outcome in out:
        if isinstance(outcome, Collection):
            for row in outcome.rows.to_pylist():
                which = ("window_start_ns", "window_end_ns", "pane", "revision", "retraction")
                mark = tuple(row[name] for name in which)
                if not emitted or emitted[-1]["mark"] != mark:
                    emitted.append(
                        {
                            "mark": mark,
                            "start": mark[0],
                            "end": mark[1],
                            "revision": mark[3],
                            "trigger": row["trigger"],
                            "ids": [],
                        }
                    )
                emitted[-1]["ids"].append(row["id"])
        elif isinstance(outcome, (Late, Dropped)):
            late: Any = picture.facts.setdefault("late", [])
            late += outcome.rows.column("id").to_pylist()
            for time in outcome.time_ns.tolist():
                picture.dot(0, time, "late", "diamond", "late: in no window")


def steps(start: float, end: float, step: float) -> list[float]:
    return np.arange(start, end, step).tolist()


@scenario("windows", "Tumbling")
def tumbling() -> Picture:
    """Half-open spans side by side: a row on the border belongs to the later one. A window is
    emitted when the watermark reaches its end, the last one by the end of the stream."""
    return run(Window(Tumbling("100 ms")), [*steps(5, 330, 20), 400.0], 420)


@scenario("windows", "Sliding")
def sliding() -> Picture:
    """Overlapping spans: every row is in size / step of them."""
    return run(Window(Sliding("100 ms", "50 ms")), steps(5, 260, 20), 320)


@scenario("windows", "Session")
def session() -> Picture:
    """A session goes on as long as no pause is longer than its gap."""
    times = [10, 25, 40, 55, 160, 170, 185, 290, 300]
    return run(Window(Session("50 ms")), [float(t) for t in times], 360)


@scenario("windows", "A late row bridges two sessions")
def bridge() -> Picture:
    """Rows that are put in order first merge what a pause had kept apart."""
    times = [10, 30, 110, 130, 70, 260, 275]
    return run(Window(Session("50 ms")), [float(t) for t in times], 340, tolerance_ms=80)


@scenario("windows", "Early panes by count")
def early() -> Picture:
    """A trigger emits before the window is complete: here after every four rows, and once more at
    the watermark."""
    window = Window(Tumbling("200 ms"), trigger=AfterCount(4) | AtWatermark())
    return run(window, [*steps(5, 390, 20), 450.0], 460)


@scenario("windows", "Late rows beside")
def beside() -> Picture:
    """By default a row that is too late goes to the late table; the window is not touched."""
    times = [10, 40, 70, 120, 160, 55, 210, 260]
    return run(Window(Tumbling("100 ms"), late=SideOutput()), [float(t) for t in times], 320)


@scenario("windows", "Late rows make a revision")
def revision() -> Picture:
    """With Reemit a window that was emitted comes again with its late rows, as a revision, for as
    long as lateness allows."""
    times = [10, 40, 70, 120, 160, 55, 210, 260]
    return run(Window(Tumbling("100 ms"), late=Reemit("150 ms")), [float(t) for t in times], 320)


@scenario("windows", "Adaptive length")
def adaptive() -> Picture:
    """The length follows the rate so that windows hold about as many rows as wanted, between a
    least and a greatest length."""
    times = [*steps(5, 400, 20), *steps(400, 600, 4), *steps(600, 1000, 20)]
    return run(Window(Adaptive(min="20 ms", max="200 ms", target=10)), times, 1020)


@scenario("windows", "Look back from every row")
def look_back() -> Picture:
    """Every row opens a window that ends with it and reaches back a fixed time."""
    return run(Window(LookBack("60 ms")), [20.0, 50.0, 70.0, 150.0, 170.0], 200)
