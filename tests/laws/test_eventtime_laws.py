"""The laws, for the event-time and the processing-time stage and for flows of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.core import flow as flow_module
from tidegate.core.flow import Flow
from tidegate.core.outcomes import Collection, Late, Outcome, Watermark
from tidegate.core.time import UNSET
from tidegate.eventtime import (
    Decoder,
    EventtimeWatermark,
    ProcessTimeWatermark,
    TimeColumn,
)
from tidegate.testing.fleet import facts, fleet
from tidegate.testing.laws import assert_cut_law, assert_restart_law, cut, play, rows_of

LANES = 3


def collections(max_size: int = 40, wall: int = 0) -> st.SearchStrategy[Collection]:
    rows = st.lists(
        st.tuples(st.integers(0, LANES - 1), st.integers(-20, 80), st.integers(0, 2)),
        min_size=1,
        max_size=max_size,
    )

    def build(found: list[tuple[int, int, int]]) -> Collection:
        lane, time, source = (list(column) for column in zip(*found, strict=True))
        batch = pa.record_batch({"id": pa.array(range(len(found))), "source": pa.array(source)})
        return Collection(batch, np.array(time, np.int64), np.array(lane, np.int32), wall)

    return rows.map(build)


def stages(**fixed: Any) -> st.SearchStrategy[EventtimeWatermark]:
    fields: dict[str, Any] = {
        "late_tolerance": st.integers(0, 15),
        "watermark_per": st.sampled_from(["collection", "tuple"]),
        "max_future_skew": st.none() | st.integers(0, 30),
        "skew_confirm": st.integers(1, 4),
        "source": st.none() | st.just("source"),
        "max_sources": st.integers(1, 3),
        "idle_timeout": st.none() | st.integers(1, 20),
    }
    return st.builds(EventtimeWatermark, **{**fields, **fixed})


def series() -> st.SearchStrategy[list[Collection]]:
    """Collections at different wall times."""
    return st.lists(st.tuples(collections(12), st.integers(0, 40)), min_size=1, max_size=5).map(
        lambda parts: [Collection(c.rows, c.time_ns, c.lane, wall) for c, wall in parts]
    )


cuts = st.lists(st.integers(0, 100), max_size=6)


@settings(max_examples=150, deadline=None)
@given(stage=stages(watermark_per=st.just("tuple")), collection=collections(), at=cuts)
def test_cut(stage: EventtimeWatermark, collection: Collection, at: list[int]) -> None:
    assert_cut_law(stage, collection, at, lanes=LANES)


@settings(max_examples=100, deadline=None)
@given(stage=stages(watermark_per=st.just("tuple")), given_series=series(), at=cuts)
def test_cut_over_time(stage: EventtimeWatermark, given_series: Any, at: list[int]) -> None:
    pieces = [piece for collection in given_series for piece in cut(collection, at)]
    whole = rows_of(play(stage, given_series, lanes=LANES), watermarks=True)
    assert rows_of(play(stage, pieces, lanes=LANES), watermarks=True) == whole


def sequence(outcomes: list[Outcome]) -> dict[int, list[tuple[str, int]]]:
    """Data and late rows of each lane in the one order in which they leave."""
    out: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for outcome in outcomes:
        if isinstance(outcome, Collection | Late):
            ids = outcome.rows.column("id").to_pylist()
            for lane, ident in zip(outcome.lane.tolist(), ids, strict=True):
                out[lane].append((outcome.kind, ident))
    return dict(out)


@settings(max_examples=200, deadline=None)
@given(
    stage=stages(watermark_per=st.just("tuple"), late_in_order=st.just(True), hold=st.booleans()),
    collection=collections(),
    at=cuts,
)
def test_late_rows_leave_between_the_data(
    stage: EventtimeWatermark, collection: Collection, at: list[int]
) -> None:
    """In one sequence with the data, whatever the cut; behind the watermark that made them late,
    and before any other."""
    whole = play(stage, [collection], lanes=LANES)
    watermark = np.full(LANES, UNSET)
    for outcome in whole:
        if isinstance(outcome, Watermark):
            assert (outcome.time_ns > watermark[outcome.lane]).all()
            watermark[outcome.lane] = outcome.time_ns
        elif isinstance(outcome, Late):
            assert (outcome.watermark_ns == watermark[outcome.lane]).all()
            assert (outcome.watermark_ns - outcome.time_ns == outcome.lateness_ns).all()
        elif isinstance(outcome, Collection):
            assert (outcome.time_ns > watermark[outcome.lane]).all()
    assert sequence(play(stage, cut(collection, at), lanes=LANES)) == sequence(whole)


def test_cut_per_collection_is_the_documented_exception() -> None:
    rows = pa.record_batch({"id": [1, 2]})
    collection = Collection.of(rows, np.array([17, 2]))
    stage = EventtimeWatermark(7, watermark_per="collection")
    assert (0, "late") not in rows_of(play(stage, [collection]))
    assert (0, "late") in rows_of(play(stage, cut(collection, [1])))


@settings(max_examples=100, deadline=None)
@given(stage=stages(), given_series=series())
def test_restart(stage: EventtimeWatermark, given_series: Any) -> None:
    assert_restart_law(stage, given_series, lanes=LANES)


@settings(max_examples=150, deadline=None)
@given(stage=stages(), given_series=series())
def test_conservation(stage: EventtimeWatermark, given_series: list[Collection]) -> None:
    """Every row leaves once, or is in the state; after the end the state holds none."""
    state = stage.open(LANES)
    came: Counter[tuple[int, int]] = Counter()
    left: Counter[tuple[int, int]] = Counter()
    for number, collection in enumerate(given_series):
        marked = pa.record_batch(
            {"id": pa.array(np.arange(len(collection)) + 1000 * number),
             "source": collection.rows.column("source")}
        )  # fmt: skip
        came.update(zip(collection.lane.tolist(), marked.column("id").to_pylist(), strict=True))
        left.update(_ids(stage.process(state, _with(collection, marked))))
        assert sum(left.values()) + stage.metrics(state)["rows_held"] == sum(came.values())
    left.update(_ids(stage.flush(state)))
    assert left == came
    assert stage.metrics(state)["rows_held"] == 0


@settings(max_examples=100, deadline=None)
@given(stage=stages(late=st.just("drop")), given_series=series())
def test_dropped_late_rows_are_counted(stage: EventtimeWatermark, given_series: Any) -> None:
    state = stage.open(LANES)
    outcomes = [o for c in given_series for o in stage.process(state, c)] + stage.flush(state)
    delivered = sum(1 for _ in _ids(outcomes))
    assert all(o.kind != "late" for o in outcomes)
    late = stage.metrics(state)["late_dropped_count"]
    assert delivered + late == sum(len(c) for c in given_series)


@settings(max_examples=150, deadline=None)
@given(stage=stages(), given_series=series())
def test_order_watermark_and_bound(stage: EventtimeWatermark, given_series: Any) -> None:
    """Rows leave in order; none at or below a watermark that went before; watermarks rise; what is
    held is above the watermark, and with one source within the tolerance of the newest."""
    state = stage.open(LANES)
    last = np.full(LANES, UNSET)
    watermark = np.full(LANES, UNSET)
    for collection in given_series:
        for outcome in stage.process(state, collection):
            if isinstance(outcome, Watermark):
                assert (outcome.time_ns > watermark[outcome.lane]).all()
                watermark[outcome.lane] = outcome.time_ns
            elif isinstance(outcome, Collection):
                for lane, time in zip(outcome.lane, outcome.time_ns, strict=True):
                    assert time > watermark[lane]
                    assert time >= last[lane]
                    last[lane] = time
        held = state.tables["held"]
        if held is not None:
            lane = held.column("__tidegate_lane").to_numpy()
            time = held.column("__tidegate_time_ns").to_numpy()
            assert (time > state["watermark"][lane]).all()
            if stage.source is None:
                newest = state["newest"][lane, 0]
                assert (newest - time < max(stage.late_tolerance, 1)).all()
    assert (watermark == state["watermark"]).all()


@settings(max_examples=100, deadline=None)
@given(stage=stages(), given_series=series(), lane=st.integers(0, LANES - 1))
def test_a_key_alone_gives_the_same_as_among_others(
    stage: EventtimeWatermark, given_series: list[Collection], lane: int
) -> None:
    alone = [c.take(np.flatnonzero(c.lane == lane)) for c in given_series]
    among = rows_of(play(stage, given_series, lanes=LANES), watermarks=True)
    expected = {place: rows for place, rows in among.items() if place[0] == lane}
    single = play(stage, [c for c in alone if len(c)], lanes=LANES)
    assert rows_of(single, watermarks=True) == expected


@settings(max_examples=50, deadline=None)
@given(stage=stages(idle_timeout=st.just(10)), given_series=series())
def test_all_idle_holds_nothing(stage: EventtimeWatermark, given_series: list[Collection]) -> None:
    state = stage.open(LANES)
    for collection in given_series:
        stage.process(state, collection)
    due = stage.wake_at(state)
    while due is not None:
        before = due
        stage.wake(state, due)
        due = stage.wake_at(state)
        assert due is None or due > before
    assert state.rows("held") == 0
    assert stage.wake(state, 10**6) == []


@settings(max_examples=100, deadline=None)
@given(
    walls=st.lists(st.tuples(st.booleans(), st.integers(0, 60)), min_size=1, max_size=10),
    interval=st.integers(1, 12),
    offset=st.integers(-5, 5),
)
def test_processing_time_never_runs_backwards(walls: Any, interval: int, offset: int) -> None:
    """Whatever the clock does: stamps and watermarks rise, no row is at or below a watermark, and
    every watermark is the last moment of a window."""
    stage = ProcessTimeWatermark(interval, offset)
    state = stage.open(LANES)
    last, watermark = UNSET, UNSET
    rows = pa.record_batch({"id": [1, 2]})
    for wakes, wall in walls:
        if wakes:
            outcomes = stage.wake(state, wall)
        else:
            outcomes = stage.process(state, Collection.of(rows, np.zeros(2, np.int64), wall))
        for outcome in outcomes:
            if isinstance(outcome, Watermark):
                assert len(outcome) == 1
                assert outcome.time_ns[0] > watermark
                assert (outcome.time_ns[0] + 1 - offset) % interval == 0
                watermark = int(outcome.time_ns[0])
            else:
                assert isinstance(outcome, Collection)
                assert outcome.time_ns.min() > watermark
                assert outcome.time_ns.min() >= max(last, wall)
                last = int(outcome.time_ns.max())


@settings(max_examples=50, deadline=None)
@given(given_series=series(), at=cuts, interval=st.integers(1, 20))
def test_processing_time_laws(given_series: Any, at: list[int], interval: int) -> None:
    stage = ProcessTimeWatermark(interval)
    assert_restart_law(stage, given_series, lanes=LANES)
    assert_cut_law(stage, given_series[0], at, lanes=LANES)
    sizes = [len(o) for o in play(stage, given_series, lanes=LANES) if isinstance(o, Collection)]
    assert sum(sizes) == sum(len(c) for c in given_series)


# -- flows: keys, pages, forgetting ------------------------------------------------------------


@pytest.fixture(autouse=True)
def _small_pages() -> Iterator[None]:
    """Pages of two lanes, so that a few keys make several pages."""
    before, flow_module.PAGE_LANES = flow_module.PAGE_LANES, 2
    yield
    flow_module.PAGE_LANES = before


KEYS = ["a", "b", "c", None, "e", "f", "g"]
keyed = st.lists(
    st.tuples(
        st.lists(
            st.tuples(st.sampled_from(KEYS), st.integers(0, 50) | st.just("bad")),
            min_size=1, max_size=10,
        ),
        st.integers(0, 30),
    ),
    min_size=1, max_size=8,
)  # fmt: skip


def make_flow() -> Flow:
    decoder = Decoder((TimeColumn("t", "unixtimestamp_ns"),))
    stage = EventtimeWatermark(5, watermark_per="tuple", idle_timeout=60)
    return Flow([stage], key="key", decoder=decoder, forget=40)


def batch(rows: list[tuple[str | None, object]]) -> pa.RecordBatch:
    keys, times = zip(*rows, strict=True)
    return pa.record_batch(
        {"key": pa.array(keys, pa.string()), "t": pa.array([str(t) for t in times]),
         "id": pa.array(range(len(rows)))}
    )  # fmt: skip


def by_key(outcomes: list[Outcome]) -> dict[Any, list[Any]]:
    """What came out, per key and kind, in order. Lanes differ between flows; keys do not."""
    out: dict[Any, list[Any]] = {}
    for outcome in outcomes:
        if not isinstance(outcome, Watermark):
            for row in outcome.table().to_pylist():
                out.setdefault((row["key"], outcome.kind), []).append(row)
    return out


def run(steps: Any, *, restart: str = "never") -> dict[Any, list[Any]]:
    flow, out, wall = make_flow(), [], 0
    pages: dict[int, bytes] = {}
    for rows, later in steps:
        wall += later
        due = flow.wake_at()
        if due is not None and due <= wall:
            out += flow.wake(wall)
        out += flow.process(batch(rows), wall)
        if restart == "pages":
            pages |= flow.pages(changed=True)
            flow = make_flow()
            flow.load(pages)
        elif restart == "snapshot":
            blob, flow = flow.snapshot(), make_flow()
            flow.restore(blob)
    counters = flow.metrics()
    assert counters["rows_in"] == sum(len(rows) for rows, _ in steps)
    return by_key(out + flow.end())


@pytest.mark.parametrize("how", ["pages", "snapshot"])
@settings(max_examples=100, deadline=None)
@given(steps=keyed)
def test_flow_restart(how: str, steps: Any) -> None:
    assert run(steps, restart=how) == run(steps)


@settings(max_examples=100, deadline=None)
@given(steps=keyed)
def test_flow_conserves_and_keeps_keys_apart(steps: Any) -> None:
    out = run(steps)
    rows = [row for given_rows, _ in steps for row in given_rows]
    assert sum(map(len, out.values())) == len(rows)
    for key in KEYS:
        alone = [
            ([row for row in given_rows if row[0] == key], later) for given_rows, later in steps
        ]
        wanted = {place: [r["t"] for r in found] for place, found in out.items() if place[0] == key}
        single: list[tuple[Any, int]] = []
        waited = 0
        for given_rows, later in alone:
            waited += later
            if given_rows:
                single.append((given_rows, waited))
                waited = 0
        found = run(single) if single else {}
        assert {place: [r["t"] for r in rows] for place, rows in found.items()} == wanted


@settings(max_examples=50, deadline=None)
@given(steps=keyed, at=cuts)
def test_flow_cut(steps: Any, at: list[int]) -> None:
    rows = [row for given_rows, _ in steps for row in given_rows]
    edges = sorted({0, len(rows), *(a % (len(rows) + 1) for a in at)})
    pieces = [(rows[a:b], 0) for a, b in pairwise(edges) if b > a]
    whole, parts = run([(rows, 0)]), run(pieces)
    assert {p: [r["t"] for r in found] for p, found in parts.items()} == {
        p: [r["t"] for r in found] for p, found in whole.items()
    }


def test_fleet_comes_out_as_its_facts_say() -> None:
    recording = fleet(vehicles=5, seconds=30, seed=3)
    expected = facts(recording)
    assert expected.late > 0
    assert expected.skewed > 0
    flow = Flow(
        [EventtimeWatermark("200 ms", watermark_per="tuple", max_future_skew="1 h")],
        key="vehicle",
        decoder=Decoder((TimeColumn("stamp", "unixtimestamp_ns"),)),
    )
    out: list[Outcome] = []
    for rows in recording.to_batches(max_chunksize=997):
        out += flow.process(rows)
    kinds: Counter[str] = Counter()
    for outcome in out + flow.end():
        kinds[outcome.kind] += len(outcome)
    assert kinds["data"] == expected.in_order
    assert kinds["late"] == expected.late
    assert kinds["error"] == expected.unreadable + expected.skewed
    metrics = flow.metrics()
    assert metrics["rows_in"] == expected.rows
    assert metrics["parse_error_count"] == expected.unreadable
    assert metrics["eventtime_watermark.future_skew_count"] == expected.skewed
    assert metrics["eventtime_watermark.max_timestamp_seen"] == expected.newest_ns


def _ids(outcomes: list[Outcome]) -> Iterator[tuple[int, int]]:
    for outcome in outcomes:
        if not isinstance(outcome, Watermark):
            ids = outcome.rows.column("id").to_pylist()
            yield from zip(outcome.lane.tolist(), ids, strict=True)


def _with(collection: Collection, rows: pa.RecordBatch) -> Collection:
    return Collection(rows, collection.time_ns, collection.lane, collection.wall_ns)
