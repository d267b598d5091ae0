"""Event time: each line is one arrival, its dot stands at its event time, the dashed line is the
watermark. What lies left of the watermark when it arrives is late."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from scenarios.gallery import scenario
from tidegate.core.flow import Flow
from tidegate.core.outcomes import Collection, Late, StreamError, Watermark
from tidegate.core.time import UNSET
from tidegate.eventtime import Decoder, EventtimeWatermark, TimeColumn
from tidegate.report.picture import Picture

MS = 10**6


def run(
    times_ms: list[Any],
    stage: EventtimeWatermark,
    *,
    end_ms: int,
    sources: str = "",
    walls: Any = None,
) -> Picture:
    """One row after the other through the stage, drawn as it decided."""
    names = [chr(ord("a") + n) for n in range(len(times_ms))]
    flow = Flow([stage], decoder=Decoder((TimeColumn("t", "unixtimestamp_ns"),)))
    lanes = [f"{name}   {sources[n] if sources else ''}" for n, name in enumerate(names)]
    picture = Picture([*lanes, "end"], 0, end_ms * MS, lane_height=24, lanes_title="arrivals ↓")
    facts: dict[str, Any] = {"in order": "", "late": {}, "errors": [], "watermarks": []}
    picture.facts = facts
    mark = UNSET
    kinds: dict[str, str] = {}
    for n, given in enumerate(times_ms):
        value = str(given * MS) if isinstance(given, int) else given
        rows = {"id": [names[n]], "t": pa.array([value], pa.string())}
        if sources:
            rows["source"] = [sources[n]]
        wall = walls[n] * MS if walls else n
        out = [*flow.wake(wall), *flow.process(pa.record_batch(rows), wall_ns=wall)]
        kinds |= _note(picture, n, out)
        marks = [int(o.time_ns.max()) for o in out if isinstance(o, Watermark)]
        mark = max([mark, *marks])
        facts["watermarks"].append(None if mark == UNSET else round(mark / MS))
        if mark != UNSET:
            picture.stair(n, mark)
    kinds |= _note(picture, len(times_ms), flow.end())
    for n, given in enumerate(times_ms):
        kind = kinds.get(names[n], "in order")
        at = given * MS if isinstance(given, int) else 0
        shape = {"late": "diamond", "error": "cross"}.get(kind, "dot")
        colour = {"late": "late", "error": "error"}.get(kind, "data")
        picture.dot(n, at, colour, shape, f"{names[n]} at {given} ms: {kind}")
    picture.explain_used({
        ("data", "dot"): "row at its event time", ("late", "diamond"): "late",
        ("error", "cross"): "error", ("mark", "line"): "watermark after each arrival",
    })  # fmt: skip
    return picture


def _note(picture: Picture, lane: int, out: list[Any]) -> dict[str, str]:
    """Write beside a line what left with that arrival; return the rows that are late or errors.

    A row ahead of its source is held until the next rows confirm or refute it, so an error may be
    reported beside a later line than that of its row."""
    facts: dict[str, Any] = picture.facts
    kinds: dict[str, str] = {}
    for outcome in out:
        if isinstance(outcome, Collection) and len(outcome):
            names = " ".join(outcome.rows.column("id").to_pylist())
            facts["in order"] = (facts["in order"] + " " + names).strip()
            picture.note(lane, picture.end_ns, f"leaves: {names}")
        elif isinstance(outcome, Late):
            (name,) = outcome.rows.column("id").to_pylist()
            late = round(int(outcome.lateness_ns[0]) / MS)
            kinds[name] = "late"
            facts["late"][name] = late
            picture.note(lane, picture.end_ns, f"{name} is late by {late} ms")
        elif isinstance(outcome, StreamError):
            (name,) = outcome.rows.column("id").to_pylist()
            reason = outcome.reason.to_pylist()[0]
            kinds[name] = "error"
            facts["errors"].append(reason)
            picture.note(lane, picture.end_ns, f"{name} is an error: {reason[:44]}")
    return kinds


def stage(tolerance: int, **more: Any) -> EventtimeWatermark:
    return EventtimeWatermark(tolerance * MS, watermark_per="tuple", **more)


@scenario("event-time", "Disorder within the tolerance")
def within() -> Picture:
    """A row waits until the newest time less the late tolerance has passed it; then it leaves
    in order."""
    return run([10, 30, 20, 50, 40, 70, 60, 90], stage(25), end_ms=120)


@scenario("event-time", "Too late")
def too_late() -> Picture:
    """What arrives at or below the watermark is delivered as late, with how far below it was:
    never lost, never out of order."""
    return run([10, 30, 60, 25, 80, 70, 100], stage(20), end_ms=130)


@scenario("event-time", "Exactly at the watermark")
def equality() -> Picture:
    """The watermark says that nothing at or before it will come: a row exactly on it is late,
    one nanosecond above is not."""
    return run([10, 50, 30, 31], stage(20), end_ms=70)


@scenario("event-time", "No tolerance")
def none() -> Picture:
    """With a tolerance of zero every row that is older than the newest is late; a row with the
    same time as the newest is on time."""
    return run([10, 30, 20, 40, 35, 60], stage(0), end_ms=80)


@scenario("event-time", "A clock that jumps ahead")
def jump() -> Picture:
    """A row further ahead than maxFutureSkew is held until the rows after it confirm or refute it.
    Refuted, it is reported and does not move time; without this guard one wrong clock makes every
    other row late."""
    return run([10, 30, 86_400_000, 20, 50, 40], stage(25, max_future_skew="1 s"), end_ms=80)


@scenario("event-time", "A stamp that cannot be read")
def unreadable() -> Picture:
    """Bad data is no exception: the row comes out as an error with its column, value and
    reason, and the rest goes on."""
    return run([10, "n/a", 30, None, 20, 50], stage(15), end_ms=70)


@scenario("event-time", "Two partitions, one slow")
def partitions() -> Picture:
    """With a source column every partition has its own newest time, and the watermark follows
    the slowest: reading one file faster than another makes nothing late."""
    return run([10, 10, 60, 80, 30, 100, 50, 70], stage(10, source="source"), end_ms=130,
               sources="xyxxyxyy")  # fmt: skip


@scenario("event-time", "A partition falls silent")
def idle() -> Picture:
    """A partition unseen for idleTimeout (wall time) is not waited for any more."""
    return run([10, 10, 30, 50, 70, 90], stage(10, source="source", idle_timeout="100 ms"),
               end_ms=120, sources="xyxxxx", walls=[0, 0, 20, 40, 250, 260])  # fmt: skip
