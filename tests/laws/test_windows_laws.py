"""The laws for windows: cut, restart, conservation, retractions add up, and a plain model."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate.core.chain import Chain
from tidegate.core.outcomes import Collection, Dropped, Late, Outcome, Watermark
from tidegate.eventtime import EventtimeWatermark
from tidegate.testing.laws import assert_cut_law, assert_restart_law, cut, rows_of
from tidegate.windows import (
    Accumulation,
    Adaptive,
    AfterCount,
    AfterSize,
    AfterTime,
    Aggregate,
    AtWatermark,
    Calendar,
    CountWindow,
    Cumulate,
    Discard,
    Everything,
    LookBack,
    Memory,
    MemoryPressure,
    NextWindow,
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

FEW = settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)

SUMS = {"n": "count", "s": ("sum", "v"), "lo": ("min", "w"), "hi": ("max", "v"),
        "m": ("mean", "v"), "a": ("first", "id"), "z": ("last", "id")}  # fmt: skip
LISTED = {**SUMS, "q": Aggregate("quantile", "v", q=0.3), "d": ("count_distinct", "g"),
          "t": Aggregate(lambda values: len(values), "g", type=pa.int64())}  # fmt: skip
MORE = {"n": "count", "t": ("top", "v", 3), "b": Aggregate("top", "id", n=2, by="w"),
        "q": ("approx_quantile", "v", 0.9)}  # fmt: skip
BIG = Predicate(When("v", ">", 90.0), "big")

STAGES = {
    "tumbling": Window(Tumbling(10), aggregates=SUMS, keys=("k",)),
    "tumbling grouped": Window(Tumbling(10, 3), aggregates=SUMS, group_by=("g", "k")),
    "tumbling rows": Window(Tumbling(10)),
    "tumbling by rows": Window(Tumbling(10), aggregates=LISTED, group_by=("g",), stats=True),
    "tumbling, distinct ids": Window(Tumbling(10), aggregates=SUMS, deduplicate_by="g"),
    "tumbling, early": Window(
        Tumbling(10), trigger=AtWatermark(early=AfterCount(3)) | BIG, aggregates=SUMS, in_order=True
    ),
    "tumbling, accumulating": Window(
        Tumbling(10), trigger=AfterCount(2), aggregates=SUMS, group_by=("g",), in_order=True,
        accumulation=Accumulation.ACCUMULATING,
    ),
    "tumbling rows, retracting": Window(
        Tumbling(10), trigger=AfterCount(2) | BIG, in_order=True,
        accumulation=Accumulation.RETRACTING,
    ),
    "sliding": Window(Sliding(20, 5), aggregates=SUMS),
    "sliding grouped": Window(Sliding(21, 6, 2), aggregates=SUMS, group_by=("g",)),
    "sliding rows": Window(Sliding(20, 10)),
    "sliding, early": Window(
        Sliding(20, 10), trigger=AfterCount(4), aggregates=SUMS, in_order=True
    ),
    "session": Window(Session(4), aggregates=SUMS, group_by=("g",)),
    "session rows": Window(Session(4)),
    "session, early": Window(Session(4), trigger=AfterCount(3), aggregates=SUMS, in_order=True),
    "session, retracting": Window(
        Session(4), trigger=AfterCount(3), aggregates=SUMS, in_order=True,
        accumulation=Accumulation.RETRACTING,
    ),
    "tumbling, earliest": Window(
        Tumbling(10), aggregates=SUMS, group_by=("g",), timestamp="earliest"
    ),
    "tumbling, latest": Window(Tumbling(10), aggregates=LISTED, timestamp="latest"),
    "tumbling, complete": Window(
        Tumbling(10), trigger=AfterCount(2), aggregates=SUMS, keys=("k",), complete=True,
        in_order=True,
    ),
    "session, complete": Window(Session(4), aggregates=SUMS, complete=True),
    "sliding, complete, earliest": Window(
        Sliding(20, 5), aggregates=SUMS, complete=True, timestamp="earliest"
    ),
    "cumulate": Window(Cumulate(20, 5, 3), aggregates=SUMS),
    "cumulate grouped": Window(Cumulate(20, 5), aggregates=SUMS, group_by=("g",)),
    "cumulate rows": Window(Cumulate(12, 4)),
    "calendar": Window(Calendar("day", "Europe/Berlin"), aggregates=SUMS, group_by=("g",)),
    "top and sketch": Window(Sliding(20, 10), aggregates=MORE, group_by=("g",)),
    "count": Window(CountWindow(3), aggregates=SUMS, group_by=("g",)),
    "count rows": Window(CountWindow(4), stats=True, affected="g"),
    "state": Window(
        StateWindow(When("v", ">", 50.0), When("v", "<", 20.0), ("g",)), aggregates=SUMS
    ),
    "state rows": Window(StateWindow(When("v", ">", 50.0), lambda rows: [True] * rows.num_rows)),
    "everything": Window(
        Everything(), trigger=AfterCount(5) | AfterSize(200) | RateChange(0.5, 7), aggregates=SUMS
    ),
    "both": Window(Everything(), trigger=AfterCount(2) & BIG, aggregates=SUMS),
    "adaptive": Window(Adaptive(2, 50, 4), aggregates=SUMS),
    "adaptive rows": Window(Adaptive(2, 50, 4), trigger=AtWatermark() | AfterCount(6)),
    "looking back": Window(LookBack(8), aggregates=SUMS),
    "looking back rows": Window(LookBack(8)),
    "looking both ways": Window(LookBack(5, 5), aggregates=LISTED, group_by=("g",)),
    "memory, one lane": Window(Tumbling(50), memory=Memory(400), in_order=True),
}  # fmt: skip


@st.composite
def rows(draw: Any, lanes: int = 3, most: int = 60) -> Collection:
    n = draw(st.integers(1, most))
    span = draw(st.sampled_from([20, 100, 400]))
    start = draw(st.sampled_from([0, -50, 10**18]))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    values = rng.normal(50, 40, n)
    batch = pa.record_batch(
        {
            "id": pa.array(np.arange(n)),
            "v": pa.array(values, mask=rng.random(n) < 0.1),
            "w": pa.array(rng.integers(-5, 5, n), pa.int32(), mask=rng.random(n) < 0.2),
            "g": pa.array([[None, "a", "b"][i] for i in rng.integers(0, 3, n)], pa.string()),
        }
    )
    lane = rng.integers(0, lanes, n).astype(np.int32)
    batch = batch.append_column("k", pa.array([f"key {number}" for number in lane]))
    return Collection(batch, start + rng.integers(0, span, n), lane)


def arranged(collection: Collection) -> Collection:
    """In time order per lane, as behind the event-time stage; lanes one after the other."""
    return collection.take(np.lexsort((collection.time_ns, collection.lane)))


def single(collection: Collection) -> Collection:
    return Collection(collection.rows, collection.time_ns, np.zeros(len(collection), np.int32))


def alone(name: str, collection: Collection) -> Collection:
    return single(collection) if "one lane" in name else collection


@pytest.mark.parametrize("name", STAGES)
@FEW
@given(collection=rows(), at=st.lists(st.integers(0, 60), max_size=6))
def test_cut(name: str, collection: Collection, at: list[int]) -> None:
    assert_cut_law(STAGES[name], alone(name, collection), at, lanes=3)


@pytest.mark.parametrize("name", STAGES)
@FEW
@given(collection=rows(), at=st.lists(st.integers(0, 60), max_size=6))
def test_cut_behind_the_event_time_stage(name: str, collection: Collection, at: list[int]) -> None:
    """Watermarks then fall wherever the cuts put them: the outcome is the same all the same."""
    stage = STAGES[name]
    if not (not stage.program.fires_on_rows or stage.in_order) and "rows" not in name:
        stage = Window(
            stage.window, stage.trigger, stage.late, stage.aggregates, stage.group_by, in_order=True
        )
    time = EventtimeWatermark(15, watermark_per="tuple")
    assert_cut_law([time, stage], single(collection), at, lanes=3)


@pytest.mark.parametrize("name", STAGES)
@FEW
@given(collection=rows(), at=st.lists(st.integers(0, 60), max_size=6))
def test_restart(name: str, collection: Collection, at: list[int]) -> None:
    pieces = cut(alone(name, collection), at)
    assert_restart_law(STAGES[name], pieces, lanes=3)
    time = EventtimeWatermark(15)
    assert_restart_law([time, STAGES[name]], pieces, lanes=3)


WHOLE = {
    name: Window(window, late=late, trigger=trigger, memory=memory)
    for name, window, late, trigger, memory in (
        ("tumbling", Tumbling(10), SideOutput(), AtWatermark(), None),
        ("tumbling, early", Tumbling(10), Discard(), AfterCount(3), None),
        ("tumbling, next", Tumbling(10), NextWindow(), AtWatermark(), None),
        ("session", Session(4), Discard(), AtWatermark(), None),
        ("session, next", Session(4), NextWindow(), AfterCount(3), None),
        ("count", CountWindow(3), SideOutput(), AtWatermark(), None),
        ("adaptive", Adaptive(2, 50, 4), SideOutput(), AtWatermark(), None),
        ("state", StateWindow(When("v", ">", 50.0), When("v", "<", 20.0)), SideOutput(),
         AtWatermark(), None),
        ("flushed", Tumbling(50), SideOutput(), MemoryPressure(0.5), Memory(300)),
        ("rejected", Tumbling(50), SideOutput(), AtWatermark(), Memory(300, policy="reject")),
    )
}  # fmt: skip


def drive(stage: Window, collection: Collection, marks: list[tuple[int, int]]) -> list[Outcome]:
    """Rows in pieces with watermarks between them that owe nothing to the rows."""
    chain = Chain((stage,))
    states = chain.open(3)
    out: list[Outcome] = []
    start = int(collection.time_ns.min())
    edges = [0, *sorted(at % (len(collection) + 1) for at, _ in marks), len(collection)]
    behind = [start + by for _, by in marks]
    for number, (first, last) in enumerate(pairwise(edges)):
        if last > first:
            out += chain.process(states, collection.take(np.arange(first, last)))
        if number < len(behind):
            mark = Watermark(np.full(3, behind[number]), np.arange(3, dtype=np.int32))
            out += chain.advance(states, mark)
    out += chain.flush(states)
    assert all(states[0].rows(name) == 0 for name in states[0].tables)
    return out


MARKS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 120)), max_size=5)


@pytest.mark.parametrize("name", WHOLE)
@FEW
@given(collection=rows(), marks=MARKS)
def test_conservation(name: str, collection: Collection, marks: list[tuple[int, int]]) -> None:
    """Every row leaves exactly once: in a window, late, or dropped with a reason."""
    left: Counter[int] = Counter()
    for outcome in drive(WHOLE[name], collection, marks):
        if isinstance(outcome, (Collection, Late, Dropped)):
            left.update(outcome.rows.column("id").to_pylist())
    assert left == Counter(range(len(collection)))


@pytest.mark.parametrize("window", [Tumbling(10), Session(4), Sliding(20, 10)])
@pytest.mark.parametrize("group_by", [(), ("g",)])
@FEW
@given(collection=rows(), marks=MARKS)
def test_retractions_add_up(
    window: Any, group_by: tuple[str, ...], collection: Collection, marks: list[tuple[int, int]]
) -> None:
    """What was emitted minus what was taken back is the last revision, and the last revision is
    what one who saw every row that was not too late would have worked out."""
    stage = Window(
        window,
        trigger=AfterCount(3) | AtWatermark(),
        late=Reemit(30, retract=True),
        aggregates={"n": "count", "s": ("sum", "w")},
        group_by=group_by,
    )
    out = drive(stage, collection, marks)
    balance: Counter[Any] = Counter()
    current: dict[Any, Any] = {}
    for outcome in out:
        if not isinstance(outcome, Collection):
            continue
        for lane, row in zip(outcome.lane.tolist(), outcome.rows.to_pylist(), strict=True):
            key = lane, row.get("g"), row["window_start_ns"], row["window_end_ns"]
            balance[key] += -row["n"] if row["retraction"] else row["n"]
            if row["retraction"]:
                assert current.pop(key) == (row["n"], row["s"])  # exactly what was said before
            else:
                assert key not in current
                current[key] = row["n"], row["s"]
    assert +balance == Counter({key: n for key, (n, _) in current.items()})
    late = sum(len(o) for o in out if isinstance(o, Late))
    copies = 2 if isinstance(window, Sliding) else 1
    assert sum(n for n, _ in current.values()) <= copies * (len(collection) - late)
    if copies == 1:
        assert sum(n for n, _ in current.values()) == len(collection) - late


def model(window: Any, collection: Collection) -> dict[Any, list[int]]:
    """Rows per (lane, start, end), worked out the slow way."""
    out: dict[Any, list[int]] = defaultdict(list)
    order = np.lexsort((np.arange(len(collection)), collection.time_ns, collection.lane))
    last: dict[int, Any] = {}
    for i in order.tolist():
        lane, t = int(collection.lane[i]), int(collection.time_ns[i])
        if isinstance(window, Session):
            open_ = last.get(lane)
            if open_ is None or t > open_[1]:
                open_ = last[lane] = [t, t, []]
            open_[1] = t + window.gap
            open_[2].append(i)
            out.pop((lane, open_[0], None), None)
            out[lane, open_[0], None] = open_[2]
            continue
        if isinstance(window, Cumulate):
            start = (t - window.offset) // window.size * window.size + window.offset
            for end in range(start + window.step, start + window.size + 1, window.step):
                if end > t:
                    out[lane, start, end].append(i)
            continue
        step = getattr(window, "step", window.size)
        start = (t - window.offset) // step * step + window.offset
        while start + window.size > t:
            out[lane, start, start + window.size].append(i)
            start -= step
    return out


@pytest.mark.parametrize(
    "window",
    [
        Tumbling(7),
        Tumbling(10, 4),
        Sliding(20, 5),
        Sliding(21, 6, 2),
        Session(4),
        Cumulate(20, 4, 3),
    ],
)
@pytest.mark.parametrize("how", ["incremental", "buffered", "direct"])
@FEW
@given(collection=rows(), at=st.lists(st.integers(0, 60), max_size=3))
def test_against_a_plain_model(
    window: Any, how: str, collection: Collection, at: list[int]
) -> None:
    aggregates = dict(SUMS)
    if how == "buffered":
        aggregates["q"] = Aggregate("quantile", "v", q=0.5)
    # A memory budget keeps overlapping windows apart instead of putting them together at the end.
    memory = Memory() if how == "direct" else None
    stage = Window(window, aggregates=aggregates, memory=memory)
    state = stage.open(3)
    out: list[Outcome] = []
    for piece in cut(collection, at):
        out += stage.process(state, piece)
    out += stage.flush(state)
    got = rows_of(out)
    expected = model(window, collection)
    assert sum(len(found) for found in got.values()) == len(expected)
    v = collection.rows.column("v").to_pylist()
    w = collection.rows.column("w").to_pylist()
    for (lane, start, end), ids in expected.items():
        (row,) = [
            r
            for r in got[lane, "data"]
            if r["window_start_ns"] == start and end in (None, r["window_end_ns"])
        ]
        assert row["n"] == len(ids)
        known = [v[i] for i in ids if v[i] is not None]
        assert row["s"] == (pytest.approx(sum(known)) if known else None)
        assert row["hi"] == max(known, default=None)
        assert row["lo"] == min((w[i] for i in ids if w[i] is not None), default=None)
        assert (row["a"], row["z"]) == (ids[0], ids[-1])
        if how == "buffered":
            assert row["q"] == (pytest.approx(float(np.median(known))) if known else None)


@FEW
@given(collection=rows(), at=st.lists(st.integers(0, 60), max_size=4))
def test_time_triggers_fire_alike_whether_or_not_the_timer_ran(
    collection: Collection, at: list[int]
) -> None:
    """A row that comes after a deadline finds the pane as a timer at the deadline left it."""
    stage = Window(Tumbling(50), trigger=AfterTime(10), aggregates=SUMS)

    def run(timers: bool) -> Any:
        state = stage.open(3)
        out: list[Outcome] = []
        for number, piece in enumerate(cut(collection, at)):
            wall = number * 7
            while timers and (due := stage.wake_at(state)) is not None and due <= wall:
                out += stage.wake(state, due)
            out += stage.process(state, Collection(piece.rows, piece.time_ns, piece.lane, wall))
        return rows_of(out + stage.flush(state))

    assert run(False) == run(True)


LATE_STAGES = {
    "reemit": Window(Tumbling(10), late=Reemit(20), aggregates=SUMS),
    "reemit rows": Window(Tumbling(10), late=Reemit(20)),
    "reemit, grouped": Window(Tumbling(10), late=Reemit(20), aggregates=SUMS, group_by=("g",)),
    "reemit, retracting": Window(Tumbling(10), late=Reemit(20, retract=True), aggregates=SUMS),
    "reemit, discarding": Window(
        Tumbling(10), late=Reemit(20), accumulation=Accumulation.DISCARDING, aggregates=SUMS
    ),
    "reemit, early and late firings": Window(
        Tumbling(10), AtWatermark(early=AfterCount(2), late=AfterCount(2)), Reemit(20),
        aggregates=SUMS, in_order=True,
    ),
    "reemit, complete": Window(Tumbling(5), late=Reemit(20), aggregates=SUMS, complete=True),
    "reemit, late firings": Window(
        Tumbling(5), AtWatermark(late=AfterCount(3)), Reemit(20), aggregates=SUMS
    ),
    "reemit, sliding": Window(Sliding(20, 5), late=Reemit(10), aggregates=SUMS),
    "reemit, session": Window(Session(4), late=Reemit(20, retract=True), aggregates=SUMS),
    "next window": Window(Tumbling(10), late=NextWindow(), aggregates=SUMS),
    "next window rows": Window(Tumbling(10), late=NextWindow()),
    "next window, early": Window(
        Tumbling(10), AfterCount(3), NextWindow(), aggregates=SUMS, in_order=True
    ),
    "next window, sliding": Window(Sliding(20, 5), late=NextWindow(), aggregates=SUMS),
    "next window, session": Window(Session(4), late=NextWindow(), aggregates=SUMS),
    "next window, adaptive": Window(Adaptive(2, 50, 4), late=NextWindow(), aggregates=SUMS),
    "next window, look back": Window(LookBack(8), late=NextWindow(), aggregates=SUMS),
    "next window, count": Window(CountWindow(3), late=NextWindow(), aggregates=SUMS),
    "discard": Window(Tumbling(10), late=Discard(), aggregates=SUMS),
    "aside": Window(Session(4), late=SideOutput()),
}  # fmt: skip


@pytest.mark.parametrize("name", LATE_STAGES)
@FEW
@given(collection=rows(), at=st.lists(st.integers(0, 60), max_size=6), tolerance=st.integers(0, 9))
def test_late_rows_obey_the_cut_law(
    name: str, collection: Collection, at: list[int], tolerance: int
) -> None:
    """Every revision, not only the last: a late row is judged by the watermark it was late for."""
    time = EventtimeWatermark(tolerance)
    assert_cut_law([time, LATE_STAGES[name]], single(collection), at, lanes=3)
    pieces = cut(single(collection), at)
    assert_restart_law([time, LATE_STAGES[name]], pieces, lanes=3)
