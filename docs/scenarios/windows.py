"""Windows: spans above are emissions, with what triggered them and how many rows they hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from scenarios.gallery import scenario
from tidegate.core.flow import Flow
from tidegate.core.outcomes import Collection, Dropped, Late, Side
from tidegate.eventtime import Decoder, EventtimeWatermark, TimeColumn
from tidegate.report.picture import ALTERNATING, Picture
from tidegate.windows import (
    Adaptive,
    AfterCount,
    AfterSize,
    AfterTime,
    AtWatermark,
    Calendar,
    CountWindow,
    Cumulate,
    Discard,
    Everything,
    Fixed,
    LookBack,
    Memory,
    MemoryPressure,
    NextWindow,
    Once,
    Predicate,
    RateChange,
    Reemit,
    Session,
    SideOutput,
    Sliding,
    StateWindow,
    Tumbling,
    When,
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
        ("data", "ring"): "certificate: the window that ends here is complete",
    })  # fmt: skip
    picture.facts["windows"] = [
        (one["start"] / MS, one["end"] / MS, one["trigger"], one["revision"], one["ids"])
        for one in emitted
    ]
    return picture


def _emissions(picture: Picture, emitted: list[dict[str, Any]], out: list[Any]) -> None:
    for outcome in out:
        if isinstance(outcome, Side):
            for row in outcome.rows.to_pylist():
                text = f"complete after {row['panes']} panes ({row['reason']})"
                picture.dot(0, row["window_end_ns"], "data", "ring", text)
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


@scenario("windows", "Cumulate")
def cumulate() -> Picture:
    """Growing spans with one start: a running total that is told after every step and starts anew
    with every size."""
    return run(Window(Cumulate("200 ms", "50 ms")), steps(5, 390, 20), 410)


@scenario("windows", "Calendar days across a change of clocks")
def calendar() -> Picture:
    """Days of Europe/Berlin: on 29 March 2026 the clocks go forward, and that day has 23 hours.
    Here a millisecond stands for an hour."""
    start = 1_774_652_400 * 10**9  # 2026-03-28 00:00 in Berlin
    stage = Window(Calendar("day", "Europe/Berlin"))
    state = stage.open()
    hours = list(range(0, 72, 3))
    times = np.array([start + hour * 3600 * 10**9 for hour in hours])
    out = stage.process(state, Collection.of(pa.record_batch({"id": hours}), times))
    out += stage.flush(state)
    picture = Picture(["rows"], 0, 75 * MS)
    days: dict[int, list[dict[str, Any]]] = {}
    for one in out:
        if isinstance(one, Collection):
            for row in one.rows.to_pylist():
                days.setdefault(row["window_start_ns"], []).append(row)
    picture.facts["hours"] = []
    for number, rows in enumerate(days.values()):
        first, last = ((rows[0][name] - start) // 3_600_000 for name in
                       ("window_start_ns", "window_end_ns"))  # fmt: skip
        colour = ALTERNATING[number % len(ALTERNATING)]
        picture.span(first, last, f"{(last - first) // MS} hours: {len(rows)}", colour, 0)
        picture.facts["hours"].append((last - first) // MS)
        for row in rows:
            picture.dot(0, row["id"] * MS, colour, "dot", f"hour {row['id']}")
    picture.explain_used({
        ("data", "span"): "a day, with its length and its number of rows",
        ("data", "dot"): "row, in the colour of its day",
    })  # fmt: skip
    return picture


@scenario("windows", "Count")
def count() -> Picture:
    """A fixed number of rows of a key, whenever they come; the rest leaves at the end."""
    times = [10, 20, 30, 90, 100, 160, 170, 180, 190, 240]
    return run(Window(CountWindow(4)), [float(t) for t in times], 280)


@scenario("windows", "State")
def state() -> Picture:
    """From a row that opens to a row that closes; rows outside are delivered as dropped."""
    times = steps(10, 250, 20)
    doors = ["-", "open", "-", "-", "shut", "-", "-", "open", "-", "shut", "-", "open"]
    window = StateWindow(When("door", "==", "open"), When("door", "==", "shut"))
    return run(Window(window), times, 270, door=doors)


@scenario("windows", "Everything until a trigger fires")
def everything() -> Picture:
    """One window that takes every row; when its trigger fires, the next one begins."""
    return run(Window(Everything(), AfterCount(5)), steps(10, 260, 20), 280)


@scenario("windows", "Fixed spans of wall time")
def fixed() -> Picture:
    """Spans of processing time: a row belongs to the time at which it came, so no row is late."""
    return run(Window(Fixed("6 ms")), [float(n) for n in range(20)], 24)


@scenario("windows", "Early panes by wall time")
def by_time() -> Picture:
    """A pane is emitted so long after its first row came, whatever its event time."""
    window = Window(Tumbling("20 ms"), AfterTime("6 ms"))
    return run(window, [float(n) for n in range(20)], 24)


@scenario("windows", "Early panes by size")
def by_size() -> Picture:
    """A pane is emitted once its rows reach a number of bytes: here a row has 16."""
    return run(Window(Tumbling("200 ms"), AfterSize(80)), steps(5, 390, 20), 410)


@scenario("windows", "A rate that changes")
def by_rate() -> Picture:
    """The first row after a period with many more, or fewer, rows than the one before emits."""
    times = [*steps(5, 200, 20), *steps(200, 300, 5), *steps(300, 400, 20)]
    return run(Window(Everything(), RateChange(0.6, "100 ms")), times, 420)


@scenario("windows", "Memory pressure")
def by_memory() -> Picture:
    """When buffered rows fill their share of the budget, open windows emit early panes; a later
    pane has the rest."""
    stage = Window(Tumbling("200 ms"), MemoryPressure(0.8), memory=Memory(1000))
    return run(stage, steps(5, 390, 15), 410)


@scenario("windows", "A condition of your own")
def by_predicate() -> Picture:
    """A pane is emitted after a row for which a condition holds: here every alarm."""
    alarms = [n in (4, 11) for n in range(20)]
    trigger = Predicate(When("alarm", "==", True), "alarm")
    return run(Window(Tumbling("200 ms"), trigger), steps(5, 390, 20), 410, alarm=alarms)


@scenario("windows", "Once")
def once() -> Picture:
    """A preview: the trigger fires at most once per window, the rest comes on time."""
    window = Window(Tumbling("200 ms"), AtWatermark(early=Once(AfterCount(3))))
    return run(window, [*steps(5, 390, 20), 450.0], 460)


@scenario("windows", "Whichever comes first")
def either() -> Picture:
    """`|` fires when either side does, `&` when both do: here after four rows or 6 ms."""
    times = [0, 1, 2, 3, 4, 5, 12, 13, 14, 15, 16, 17, 18, 19]
    return run(
        Window(Everything(), AfterCount(4) | AfterTime("6 ms")), [float(t) for t in times], 24
    )


@scenario("windows", "Late rows dropped")
def dropped() -> Picture:
    """With Discard a late row leaves as dropped, with the reason `late`."""
    times = [10, 40, 70, 120, 160, 55, 210, 260]
    return run(Window(Tumbling("100 ms"), late=Discard()), [float(t) for t in times], 320)


@scenario("windows", "Late rows in the next window")
def next_window() -> Picture:
    """With NextWindow a late row joins the window that is open at its watermark, flagged late."""
    times = [10, 40, 70, 120, 160, 55, 210, 260]
    return run(Window(Tumbling("100 ms"), late=NextWindow()), [float(t) for t in times], 320)


@scenario("windows", "A certificate for every window")
def certificate() -> Picture:
    """With complete=True a side table says when each window is complete, also where early panes
    took every row, and whether it is final."""
    stage = Window(Tumbling("100 ms"), AfterCount(5), complete=True)
    return run(stage, [*steps(5, 230, 20), 320.0], 340)
