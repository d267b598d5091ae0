"""Input made to hurt: extremes, sixty-four topics, and what would make the search expensive.

Cost is counted in kernel steps (one per topic looked at, per message stepped over), not in seconds.
"""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest

from sync_model import Trace
from tidegate.core.outcomes import Collection
from tidegate.core.time import MAX_NS, MIN_NS
from tidegate.sync import ApproximateTime, ExactTime, Synchronize


def names(n: int) -> list[str]:
    return [f"t{k}" for k in range(n)]


def steps(sync: ApproximateTime | ExactTime) -> int:
    return int(sync._arrays.search[0]["steps"])


def round_robin(n: int, size: int) -> np.ndarray:
    return np.arange(size) % n


def hostile(kind: str, n: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    topics = rng.integers(0, n, size)
    clock = np.arange(size) * 10
    match kind:
        case "all stamps equal":
            return topics, np.zeros(size, np.int64)
        case "one topic silent":
            return topics % (n - 1), clock
        case "silent after its first message":
            silent = np.where(topics == n - 1, 0, topics)
            silent[size // 20] = n - 1
            return silent, clock
        case "one topic a million times faster":
            return np.where(np.arange(size) % 1000 < 997, 0, topics), clock
        case "time running backwards":
            return topics, clock[::-1].copy()
        case "one topic backwards":
            return topics, np.where(topics == 0, clock[::-1], clock)
        case "one clock stands still":
            return topics, np.where(topics == 0, 5, clock)
        case "random stamps":
            return topics, rng.integers(0, 1000, size)
        case "far apart":
            return topics, clock + topics * 100_000
        case "saw teeth":
            return topics, clock % 777
        case "late by a queue":
            return topics, clock - np.where(topics == 0, 10 * n * 90, 0)
    raise AssertionError(kind)


KINDS = [
    "all stamps equal",
    "one topic silent",
    "silent after its first message",
    "one topic a million times faster",
    "time running backwards",
    "one topic backwards",
    "one clock stands still",
    "random stamps",
    "far apart",
    "saw teeth",
    "late by a queue",
]
IN_ORDER = {*KINDS} - {
    "time running backwards",
    "one topic backwards",
    "random stamps",
    "saw teeth",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("queue_size", [10, 100])
def test_cost_is_linear_in_the_messages(kind: str, queue_size: int) -> None:
    cost = []
    for size in (10_000, 40_000):
        sync = ApproximateTime(names(4), queue_size=queue_size)
        sync.process(*hostile(kind, 4, size))
        cost.append(steps(sync) / size)
        assert sum(sync.held.values()) <= 4 * queue_size
    assert cost[1] <= cost[0] * 1.3 + 1
    # Nothing below depends on the queue where topics are in order; out of order a new pivot has to
    # look through the queue of the topic that is.
    per_message = 4 * 12 if kind in IN_ORDER else 4 * (12 + queue_size)
    assert max(cost) <= per_message


@pytest.mark.parametrize("kind", sorted(IN_ORDER))
def test_cost_does_not_grow_with_the_queue(kind: str) -> None:
    cost = {}
    for queue_size in (10, 1000):
        sync = ApproximateTime(names(4), queue_size=queue_size)
        sync.process(*hostile(kind, 4, 20_000))
        cost[queue_size] = steps(sync) / 20_000
    assert cost[1000] <= 4 * 12


@pytest.mark.parametrize("kind", KINDS)
def test_cost_grows_with_the_topics_no_faster_than_they_do(kind: str) -> None:
    cost = {}
    for n in (4, 16, 64):
        sync = ApproximateTime(names(n), queue_size=10)
        sync.process(*hostile(kind, n, 30_000))
        cost[n] = steps(sync) / 30_000 / n
    assert cost[64] <= 1.5 * cost[4] + 4


@pytest.mark.parametrize("kind", KINDS)
def test_exact_time_is_linear_too(kind: str) -> None:
    sync = ExactTime(names(4), queue_size=10)
    sync.process(*hostile(kind, 4, 20_000))
    assert steps(sync) / 20_000 <= 4 * 12


def test_sixty_four_topics() -> None:
    n, periods = 64, 50
    rng = np.random.default_rng(5)
    times = (np.arange(periods) * 1000)[:, None] + rng.integers(0, 200, (periods, n))
    order = np.argsort(times.ravel(), kind="stable")
    topics = np.tile(np.arange(n), periods)[order]
    result = ApproximateTime(names(n), queue_size=5).process(topics, times.ravel()[order])
    assert len(result) == periods - 1
    assert (result.spread_ns < 200).all()
    every = np.tile(np.arange(n), periods)
    same = np.repeat(np.arange(periods) * 10, n)
    assert len(ExactTime(names(n), queue_size=5).process(every, same)) == periods


def test_two_hundred_topics() -> None:
    sync = ApproximateTime(names(200), queue_size=2)
    result = sync.process(round_robin(200, 2000), np.arange(2000))
    assert len(result) == 9


EXTREMES = [MIN_NS, MIN_NS + 1, -1, 0, 1, MAX_NS - 1, MAX_NS]


@pytest.mark.parametrize("interval", [None, 0, MAX_NS])
@pytest.mark.parametrize("penalty", [0.0, 0.1, 2.0**40])
def test_extreme_stamps_in_every_order(interval: int | None, penalty: float) -> None:
    bounds = [MAX_NS, 1]
    for stamps in itertools.permutations(EXTREMES, 5):
        messages = [(k % 2, t) for k, t in enumerate(stamps)]
        trace = Trace(2, 3, penalty, interval, bounds, messages)
        sync = ApproximateTime(
            ["a", "b"],
            queue_size=3,
            age_penalty=penalty,
            max_interval=interval,
            lower_bounds=bounds,
        )
        topics, times = np.array(messages, np.int64).T
        result = sync.process(topics, times)
        assert [tuple(r) for r in result.rows.tolist()] == [s[0] for s in trace.model().sets]
        assert (result.spread_ns >= 0).all()


def test_extreme_stamps_with_every_extra() -> None:
    for stamps in itertools.permutations(EXTREMES, 4):
        sync = ApproximateTime(
            ["a", "b", "c"],
            queue_size=2,
            age_penalty=0.1,
            max_interval=None,
            lower_bounds=[MAX_NS, 0, 0],
            learn_bounds=True,
            optional=["c"],
            timeout=MAX_NS,
            max_jump_back=0,
            offsets=[MAX_NS, MIN_NS, 5],
            overflow_patience=1,
        )
        rows = []
        for k, t in enumerate(stamps * 3):
            rows += [r for s in sync.push("abc"[k % 3], t) for r in s.rows if r is not None]
            rows += [u.row for u in sync.unmatched]
        rows += [r for s in sync.flush() for r in s.rows if r is not None]
        rows += [u.row for u in sync.unmatched]
        assert sorted(rows) == list(range(12))


@pytest.mark.parametrize(
    "topic",
    [
        pa.array(["a", None, "b", "a"]).dictionary_encode(),
        pa.array(["a", None, "b", "a"], pa.large_string()),
        pa.array([1, None, 2, 1], pa.int8()),
        pa.nulls(4, pa.string()),
    ],
    ids=["dictionary", "large", "numbers", "null"],
)
def test_topics_in_any_arrow_type(topic: pa.Array) -> None:
    numbered = pa.types.is_integer(topic.type)
    stage = Synchronize(("1", "2") if numbered else ("a", "b"), queue_size=3)
    rows = pa.record_batch({"topic": topic, "v": [1, 2, 3, 4]})
    out = stage.process(stage.open(), Collection.of(rows, np.array([0, 1, 2, 30])))
    kinds = {o.kind: len(o) for o in out}
    assert kinds == ({"error": 4} if topic.null_count == 4 else {"error": 1, "data": 1})


def test_a_schema_that_grows_between_collections() -> None:
    stage = Synchronize(("a", "b"), queue_size=3)
    state = stage.open()
    stage.process(state, Collection.of(pa.record_batch({"topic": ["a"], "v": [1]}), np.array([0])))
    wider = pa.record_batch({"topic": ["b", "a"], "v": [2, 3], "w": ["x", "y"]})
    [made] = stage.process(state, Collection.of(wider, np.array([1, 20])))
    [row] = made.table().to_pylist()
    assert row["a"] == {"v": 1, "w": None, "time_ns": 0}
    assert row["b"] == {"v": 2, "w": "x", "time_ns": 1}
