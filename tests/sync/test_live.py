"""Live use: threads, callbacks, stamps of every kind, ticks, queues bounded by time."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tidegate.errors import ConfigError, ContractError
from tidegate.sync import ApproximateTime, ClockJump, ExactTime, SyncSet, Unmatched

MS = 1_000_000


@pytest.mark.apart
def test_many_threads_push_for_a_minute() -> None:
    """The short test again and again, with more threads than topics, flushes and looks between."""
    until = time.monotonic() + 60
    rounds = 0
    while time.monotonic() < until:
        sync = ApproximateTime(["a", "b", "c", "d"], queue_size=50)
        lock, seen = threading.Lock(), Counter[Any]()

        def feed(
            topic: str, first: int, sync: Any = sync, lock: Any = lock, seen: Any = seen
        ) -> None:
            for k in range(first, 3000, 2):
                made = sync.push(topic, k * 100, (topic, k * 100))
                left = sync.unmatched
                if k % 500 == 0:
                    made = [*made, *sync.flush()]
                    left = [*left, *sync.unmatched]
                    assert sum(sync.held.values()) >= 0
                    sync.diagnose()
                with lock:
                    for one in made:
                        expected = zip(sync.topics, one.times_ns, strict=True)
                        assert one.payloads == tuple(expected)
                        seen.update(one.payloads)
                    assert all(each.payload == (each.topic, each.time_ns) for each in left)
                    seen.update(each.payload for each in left)

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            threads = [
                threading.Thread(target=feed, args=(topic, first))
                for topic in sync.topics
                for first in (0, 1)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(interval)
        for one in sync.flush():
            seen.update(one.payloads)
        seen.update(each.payload for each in sync.unmatched)
        assert set(seen.values()) == {1}
        assert len(seen) == 4 * 3000
        assert sync._payloads == {}
        rounds += 1
    assert rounds > 0


@pytest.mark.parametrize("cls", [ApproximateTime, ExactTime])
def test_many_threads_push_at_once_and_no_set_has_a_foreign_payload(cls: Any) -> None:
    topics = ["a", "b", "c", "d"]
    sync = cls(topics, queue_size=200)
    sets: list[SyncSet] = []
    left: list[Unmatched] = []
    size = 4000

    def feed(topic: str) -> None:
        for k in range(size):
            sets.extend(sync.push(topic, k * 100, (topic, k * 100)))
            left.extend(sync.unmatched)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=feed, args=(topic,)) for topic in topics]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    sets += sync.flush()
    left += sync.unmatched
    for one in sets:
        assert one.payloads == tuple((t, s) for t, s in zip(topics, one.times_ns, strict=True))
    assert all(u.payload == (u.topic, u.time_ns) for u in left)
    seen = Counter(p for one in sets for p in one.payloads) + Counter(u.payload for u in left)
    assert set(seen.values()) == {1}
    assert len(seen) == len(topics) * size
    assert sync._payloads == {}


def test_callbacks_run_outside_the_lock_and_may_push() -> None:
    got: list[Any] = []

    def again(one: SyncSet) -> None:
        got.append(one.times_ns)
        if len(got) == 1:
            assert sync.push("a", 60) == []  # would never return under the lock

    sync = ApproximateTime(
        ["a", "b"],
        queue_size=3,
        max_jump_back=50,
        on_set=again,
        on_unmatched=lambda u: got.append((u.topic, u.reason)),
        on_clock_jump=lambda j: got.append(("jump", j.topic, j.back_ns)),
    )
    for message in [("a", 0), ("b", 1), ("a", 30), ("b", 100), ("b", 20)]:
        sync.push(*message)
    assert got[0] == (0, 1)
    assert ("b", "time_jump") in got
    assert ("jump", "b", 80) in got


def test_a_clock_jump_is_reported_by_push_as_by_process() -> None:
    messages = [("a", 1000), ("b", 1001), ("a", 10)]
    for cls in (ApproximateTime, ExactTime):
        sync = cls(["a", "b"], queue_size=5, max_jump_back=100)
        for message in messages:
            sync.push(*message)
        assert sync.clock_jumps == [ClockJump("a", 10, 990, 2)]
        sync.push("b", 12)
        assert sync.clock_jumps == [ClockJump("b", 12, 989, 3)]
        other = cls(["a", "b"], queue_size=5, max_jump_back=100)
        result = other.process([0, 1, 0], [t for _, t in messages])
        assert result.jumps.tolist() == [[2, 0, 990]]


def test_stamps_of_every_kind() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    ns = 1767323045678901000
    same = [
        ns,
        np.int64(ns),
        moment,
        moment.astimezone(timezone(timedelta(hours=5))),
        np.datetime64("2026-01-02T03:04:05.678901"),
        SimpleNamespace(sec=1767323045, nanosec=678901000),
        SimpleNamespace(secs=1767323045, nsecs=678901000),
        SimpleNamespace(nanoseconds=ns),
    ]
    for stamp in same:
        sync = ExactTime(["a", "b"], queue_size=1)
        sync.push("a", stamp)
        assert sync.push("b", ns)[0].times_ns == (ns, ns)
    sync = ApproximateTime(["a", "b"])
    for stamp, says in [
        (1.5, "is a float"),
        (np.float32(1), "is a float"),
        (datetime(2026, 1, 1), "no time zone"),
        ("now", "is not a time"),
        (None, "is not a time"),
        (True, "is not a time"),
        (2**63, "64-bit"),
        (-(2**63), "64-bit"),
    ]:
        with pytest.raises(ContractError, match=says):
            sync.push("a", stamp)
        with pytest.raises(ContractError, match=says):
            sync.tick(stamp)
    with pytest.raises(ContractError, match="floats"):
        sync.process([0], [0.5])
    assert sync.held == {"a": 0, "b": 0}


def test_settings_are_keyword_only() -> None:
    with pytest.raises(TypeError):
        ApproximateTime(["a", "b"], 10, 0.05)  # type: ignore[misc]


def test_a_tick_lets_an_optional_topic_time_out_in_silence() -> None:
    sync = ApproximateTime(["a", "b", "c"], queue_size=9, optional=["c"], timeout=10)
    for message in [("a", 0), ("b", 1), ("a", 9)]:
        assert sync.push(*message) == []
    assert sync.tick(9) == []
    assert [s.times_ns for s in sync.tick(12)] == [(0, 1, None)]
    assert sync.tick(5) == []  # time does not go back
    assert ExactTime(["a", "b"], queue_size=1).tick(5) == []


def fast_and_late(**settings: Any) -> int:
    """A 200 Hz topic beside one that comes 60 ms late."""
    sync = ApproximateTime(["imu", "camera"], **settings)
    messages = [(k * 5 * MS, "imu", k * 5 * MS) for k in range(2000)]
    messages += [(k * 50 * MS + 60 * MS, "camera", k * 50 * MS) for k in range(195)]
    messages.sort()
    return sum(len(sync.push(topic, stamp)) for _, topic, stamp in messages)


def test_a_fast_topic_beside_a_late_one_does_not_starve_by_default() -> None:
    assert fast_and_late(queue_size=10) < 20
    assert fast_and_late() > 190
    assert fast_and_late(queue_time="20 ms") < 20


def test_queues_bounded_by_time_hold_no_more_than_they_say() -> None:
    sync = ApproximateTime(["a", "b"], queue_time=100, max_queue=50)
    for t in range(0, 1000, 10):
        sync.push("a", t)
        assert sync.held["a"] <= 11
    few = ApproximateTime(["a", "b"], queue_time=10_000, max_queue=5)
    for t in range(0, 1000, 10):
        few.push("a", t)
    assert few.held == {"a": 5, "b": 0}
    future = ApproximateTime(["a", "b"], queue_time=100, max_queue=20)
    future.push("a", 10**15)  # one wrong stamp
    for t in range(0, 1000, 10):
        future.push("a", t)
        future.push("b", t + 1)
    assert future.counters["b"]["matched"] > 60  # as soon as that one has left
    with pytest.raises(ConfigError, match="queue_time: got 5, not together with queue_size"):
        ApproximateTime(["a", "b"], queue_size=5, queue_time=5)
