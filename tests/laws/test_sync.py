"""Laws of synchronisation: cut, restart, conservation, bound, lanes apart, no starvation."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.core.outcomes import Collection, Watermark
from tidegate.core.state import State
from tidegate.sync import ApproximateTime, ExactTime, Synchronize
from tidegate.testing.laws import assert_cut_law, assert_restart_law, cut, play, rows_of

TOPICS = ("a", "b", "c")
STAGES = {
    "plain": Synchronize(TOPICS, queue_size=3, keys=("car",)),
    "bounds": Synchronize(
        TOPICS, queue_size=4, age_penalty=0.2, max_interval=12, lower_bounds={"a": 3, "c": 2}
    ),
    "learning": Synchronize(TOPICS, queue_size=4, learn_bounds=True),
    "optional": Synchronize(TOPICS, queue_size=3, optional=("b", "c"), timeout=9),
    "jumps": Synchronize(TOPICS, queue_size=3, max_jump_back=6),
    "jump of one": Synchronize(TOPICS, queue_size=3, max_jump_back={"a": 2}, on_jump="topic"),
    "everything": Synchronize(
        TOPICS,
        queue_size=2,
        age_penalty=0.5,
        max_interval=20,
        lower_bounds={"a": 2},
        learn_bounds=True,
        optional=("b",),
        timeout=7,
        max_jump_back=9,
        on_jump="all",
        offsets={"c": -3},
        overflow_patience=3,
        keys=("car",),
    ),
    "exact": Synchronize(TOPICS, queue_size=3, policy="exact", max_jump_back=8),
    "by time": Synchronize(TOPICS, queue_time=9, max_queue=5, keys=("car",)),
    "exact by time": Synchronize(TOPICS, queue_time=6, max_queue=4, policy="exact"),
    "exact, shifted": Synchronize(TOPICS, queue_size=2, policy="exact", offsets={"b": 2}),
}
stages = pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)


@st.composite
def collections(draw: Any) -> Collection:
    """A few lanes, mostly in order, with unknown topics and topics that are null."""
    size = draw(st.integers(1, 80))
    steps = draw(st.lists(st.integers(-6, 8), min_size=size, max_size=size))
    topics = draw(
        st.lists(st.sampled_from([*TOPICS * 4, "odd", None]), min_size=size, max_size=size)
    )
    lanes = draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))
    rows = pa.record_batch(
        {
            "car": [f"car {lane}" for lane in lanes],
            "topic": pa.array(topics, pa.string()),
            "number": np.arange(size),
        }
    )
    return Collection(rows, np.cumsum(steps).astype(np.int64), np.array(lanes, np.int32))


def numbers(rows: Any, kind: str) -> list[int]:
    """The input rows that left as `kind`."""
    if kind == "data":
        return [m["number"] for row in rows for t in TOPICS if (m := row[t]) is not None]
    return [row["number"] for row in rows]


@stages
@given(collections(), st.lists(st.integers(0, 80), max_size=6))
@settings(max_examples=25, deadline=None)
def test_any_cut_gives_the_same(stage: Synchronize, collection: Collection, at: list[int]) -> None:
    assert_cut_law(stage, collection, at, lanes=3)


@stages
@given(collections(), st.lists(st.integers(0, 80), max_size=6))
@settings(max_examples=20, deadline=None)
def test_a_restart_changes_nothing(
    stage: Synchronize, collection: Collection, at: list[int]
) -> None:
    assert_restart_law(stage, cut(collection, at), lanes=3)


@stages
@given(collections(), st.lists(st.integers(0, 80), max_size=4))
@settings(max_examples=25, deadline=None)
def test_every_message_leaves_once(
    stage: Synchronize, collection: Collection, at: list[int]
) -> None:
    out = rows_of(play(stage, cut(collection, at), lanes=3))
    left = Counter(
        n for (_, kind), rows in out.items() if kind != "clock_jump" for n in numbers(rows, kind)
    )
    assert left == Counter(range(len(collection)))
    for lane, _ in out:
        for row in out.get((lane, "data"), []):
            assert all(row[t]["number"] is not None for t in TOPICS if row[t] is not None)


@stages
@given(collections(), st.lists(st.integers(0, 80), max_size=4))
@settings(max_examples=20, deadline=None)
def test_the_state_stays_within_its_bound(
    stage: Synchronize, collection: Collection, at: list[int]
) -> None:
    state = stage.open(3)
    counted = 0
    for part in cut(collection, at):
        stage.process(state, part)
        counted += len(part)
        held = state.tables["held"]
        assert held is not None
        pairs = held.select(["__tidegate_lane", "topic"]).to_pylist()
        per_lane = Counter(tuple(pair.values()) for pair in pairs)
        assert all(n <= stage.queue for n in per_lane.values())
        metrics = stage.metrics(state)
        known = metrics["received"] + metrics["unknown_topic"] + metrics["null_topic"]
        assert known == counted
        assert metrics["rows_held"] == held.num_rows
        gone = sum(metrics[reason.name.lower()] for reason in stage.matcher.reasons)
        assert metrics["received"] == metrics["matched"] + gone + metrics["rows_held"]
    stage.flush(state)
    assert state.rows("held") == 0
    assert stage.metrics(state)["rows_held"] == 0


@stages
@given(collections())
@settings(max_examples=20, deadline=None)
def test_lanes_do_not_touch_each_other(stage: Synchronize, collection: Collection) -> None:
    together = rows_of(play(stage, [collection], lanes=3))
    for lane in range(3):
        mine = np.flatnonzero(collection.lane == lane)
        if len(mine):
            alone = rows_of(play(stage, [collection.take(mine)], lanes=3))
            assert alone == {key: rows for key, rows in together.items() if key[0] == lane}


@stages
@given(collections(), st.integers(0, 80))
@settings(max_examples=15, deadline=None)
def test_a_state_in_pages_is_the_same_state(
    stage: Synchronize, collection: Collection, at: int
) -> None:
    first, *rest = cut(collection, [at])
    states = [stage.open(3), stage.open(3)]
    for state in states:
        stage.process(state, first)
    first, second = states[1].pages([0, 2, 3])
    pages = {2: second, 0: first}
    states[1] = State.of_pages(stage.layout(), pages)
    outs = []
    for state in states:
        out = [o for part in rest for o in stage.process(state, part)] + stage.flush(state)
        outs.append(rows_of(out))
    assert outs[0] == outs[1]


@stages
@given(collections(), st.integers(0, 80), st.integers(-20, 60))
@settings(max_examples=20, deadline=None)
def test_no_set_undercuts_the_watermark_handed_on(
    stage: Synchronize, collection: Collection, at: int, time_ns: int
) -> None:
    """Behind an event-time stage: rows in order, and none at or below a watermark after it."""
    order = np.lexsort((np.arange(len(collection)), collection.time_ns, collection.lane))
    ordered = collection.take(order)
    before, after = (
        ordered.take(np.flatnonzero(ordered.time_ns <= time_ns)),
        ordered.take(np.flatnonzero(ordered.time_ns > time_ns)),
    )
    state = stage.open(3)
    if len(before):
        stage.process(state, before)
    mark = Watermark(np.full(3, time_ns), np.arange(3, dtype=np.int32))
    handed = {
        lane: t
        for o in stage.advance(state, mark)
        for lane, t in zip(o.lane.tolist(), o.time_ns.tolist(), strict=True)
    }
    assert all(t <= time_ns for t in handed.values())
    assert stage.advance(state, mark) == []
    out = (stage.process(state, after) if len(after) else []) + stage.flush(state)
    for o in out:
        if isinstance(o, Collection):
            for lane, t in zip(o.lane.tolist(), o.time_ns.tolist(), strict=True):
                assert t > handed.get(lane, -(2**63))


@given(
    st.integers(2, 4),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from(["equal", "skewed", "random", "backwards", "one stuck"]),
    st.randoms(use_true_random=False),
)
@settings(max_examples=25, deadline=None)
def test_sets_keep_coming_while_every_topic_delivers(
    n: int, queue_size: int, patience: int, kind: str, rnd: Any
) -> None:
    sync = ApproximateTime(
        [f"t{k}" for k in range(n)], queue_size=queue_size, overflow_patience=patience
    )
    offsets = [rnd.randrange(-100, 100) for _ in range(n)]
    weights = [rnd.choice([1, 1, 5]) for _ in range(n)]
    since = [0] * n
    for step in range(400):
        topic = rnd.choices(range(n), weights)[0]
        stamp = {
            "equal": 0,
            "skewed": step + offsets[topic],
            "random": rnd.randrange(50),
            "backwards": offsets[topic] - step,
            "one stuck": step if topic else 7,
        }[kind]
        since[topic] += 1
        if sync.push(f"t{topic}", stamp):
            since = [0] * n
        assert min(since) <= 2 * (queue_size + 1) * (patience + 2)


@pytest.mark.parametrize("cls", [ApproximateTime, ExactTime])
@pytest.mark.parametrize("disorder", [0, 3])
def test_a_million_messages_none_lost_none_doubled(cls: type, disorder: int) -> None:
    rng = np.random.default_rng(7)
    size = 1_000_000
    topics = rng.integers(0, 5, size)
    times = np.cumsum(rng.integers(0, 2, size)) + rng.integers(-disorder, disorder + 1, size)
    sync = cls([f"t{k}" for k in range(5)], queue_size=7)
    result = sync.process(topics, times)
    left = sync.flush()
    tail = [row for s in left for row in s.rows]
    tail += [u.row for u in sync.unmatched]
    every = np.concatenate([result.rows.ravel(), result.unmatched_rows, np.array(tail, np.int64)])
    assert np.array_equal(np.sort(every), np.arange(size))
    assert (topics[result.rows] == np.arange(5)).all()
    assert (times[result.rows] == result.times_ns).all()
    assert (result.times_ns.max(axis=1) - result.times_ns.min(axis=1) == result.spread_ns).all()
    assert len(result) > 1000
