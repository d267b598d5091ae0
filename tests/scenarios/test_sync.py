"""What users of synchronisers run into, told as small stories."""

from __future__ import annotations

import numpy as np
import pytest

from tidegate.sync import ApproximateTime, ExactTime, SyncSet

MS = 1_000_000


def log(periods: int, start: int = 0, topics: int = 3) -> list[tuple[str, int]]:
    """Topics at 10 Hz, 3 ms apart."""
    return [
        (f"t{k}", (start + p * 100 + k * 3) * MS) for p in range(periods) for k in range(topics)
    ]


def names(topics: int = 3) -> list[str]:
    return [f"t{k}" for k in range(topics)]


def played(sync: ApproximateTime | ExactTime, messages: list[tuple[str, int]]) -> list[SyncSet]:
    return [s for topic, t in messages for s in sync.push(topic, t)]


# -- a log played in a loop ---------------------------------------------------------------------


@pytest.mark.parametrize("on_jump", ["all", "topic"])
def test_a_log_played_twice_gives_the_same_sets_twice(on_jump: str) -> None:
    once = log(20)
    sync = ApproximateTime(names(), queue_size=10, max_jump_back="1 s", on_jump=on_jump)
    first = played(sync, once)
    second = played(sync, once)
    assert len(first) == 19
    assert len(second) >= 19
    # No set has a foot on either side, whatever was left over at the jump.
    assert all(s.spread_ns == 6 * MS for s in first + second)
    assert [s.times_ns for s in second[-19:]] == [s.times_ns for s in first]
    assert all(c["jumps"] == 1 for c in sync.counters.values())


def test_without_the_setting_a_looped_log_falls_silent() -> None:
    """What the setting is for: the stale messages of the first round block the second."""
    sync = ApproximateTime(names(), queue_size=10)
    first = played(sync, log(20))
    second = played(sync, log(20))
    assert len(second) < len(first)


def test_topics_that_jump_at_different_moments_are_not_mixed() -> None:
    before, after = log(20), log(20)
    straggling = [*before, *after[:4], ("t2", 2050 * MS), *after[4:]]
    sync = ApproximateTime(names(), queue_size=10, max_jump_back="500 ms")
    sets = played(sync, straggling)
    assert all(s.spread_ns <= 100 * MS for s in sets)
    assert len(sets) > 30


def test_a_jump_is_an_event_and_its_victims_are_named() -> None:
    sync = ApproximateTime(["a", "b"], queue_size=10, max_jump_back=50)
    result = sync.process([0, 0, 1, 0], [100, 200, 90, 10])
    assert result.jumps.tolist() == [[3, 0, 190]]
    reasons = [result.reasons[k] for k in result.unmatched_reasons]
    assert "time_jump" in reasons
    assert sync.counters["a"]["jumps"] == 1


def test_a_step_back_within_the_bound_is_disorder_not_a_jump() -> None:
    sync = ApproximateTime(["a", "b"], queue_size=10, max_jump_back={"a": 50})
    for t in (100, 50, 200, 149):
        sync.push("a", t)
    assert sync.counters["a"]["jumps"] == 1
    assert sync.counters["a"]["disorder"] == 2
    for t in (1000, 0):
        sync.push("b", t)
    assert sync.counters["b"]["jumps"] == 0  # no bound for b


def test_exact_time_goes_on_after_a_loop() -> None:
    once = [(f"t{k}", p * 100 * MS) for p in range(20) for k in range(2)]
    cut_off = once[:-1]  # the last stamp never fills and would outlive everything in the next round
    sync = ExactTime(names(2), queue_size=1, max_jump_back="1 s")
    assert len(played(sync, cut_off)) == 19
    assert len(played(sync, once)) == 20
    assert sync.counters["t0"]["jumps"] == 1
    assert sync.counters["t0"]["time_jump"] == 1


# -- a clock that stands still --------------------------------------------------------------------


@pytest.mark.parametrize("faster", [0, 1, 2])
@pytest.mark.parametrize("queue_size", [1, 3])
def test_equal_stamps_and_overflow_do_not_silence(faster: int, queue_size: int) -> None:
    sync = ApproximateTime(names(), queue_size=queue_size)
    got = []
    for _ in range(1000):
        order = [f"t{faster}"] * 3 + [t for t in names() if t != f"t{faster}"]
        got.append(sum(len(sync.push(topic, 0)) for topic in order))
    assert sum(got[100:]) >= 800


# -- a topic that is off --------------------------------------------------------------------------


def test_a_topic_beyond_the_span_of_the_queues_is_named() -> None:
    sync = ApproximateTime(["a", "b", "late"], queue_size=5)
    for p in range(100):
        for topic in ("a", "b"):
            sync.push(topic, p * 100)
        sync.push("late", p * 100 + 5000)
    found = sync.diagnose()
    assert (found.problem, found.topic) == ("leading", "late")
    assert 4800 < found.by_ns <= 5100
    assert found.refused > 10
    assert "late is" in str(found)
    assert "offset" in str(found)


def test_what_the_diagnosis_says_is_a_cure() -> None:
    sync = ApproximateTime(["a", "b", "late"], queue_size=5, offsets={"late": -5000})
    sets = [
        s for p in range(100) for t, by in (("a", 0), ("b", 0), ("late", 5000))
        for s in sync.push(t, p * 100 + by)
    ]  # fmt: skip
    assert len(sets) == 100
    assert sync.diagnose().problem == "healthy"


def test_patience_gives_sets_even_then() -> None:
    sync = ApproximateTime(["a", "late"], queue_size=5, overflow_patience=4)
    sets = [
        s
        for p in range(200)
        for t, by in (("a", 0), ("late", 5000))
        for s in sync.push(t, p * 100 + by)
    ]
    assert len(sets) > 20


def test_a_silent_topic_is_named_with_how_long_it_has_been_silent() -> None:
    sync = ApproximateTime(["camera", "lidar", "radar"], queue_size=10)
    assert sync.diagnose().problem == "starting"
    for p in range(80):
        sync.push("camera", p * 100 * MS)
        sync.push("lidar", p * 100 * MS + 1)
        if p < 40:
            sync.push("radar", p * 100 * MS + 2)
    found = sync.diagnose()
    assert (found.problem, found.topic) == ("silent", "radar")
    assert found.by_ns == 4000 * MS - 1
    exact = ExactTime(["camera", "radar"], queue_size=10)
    for p in range(5):
        exact.push("camera", p)
    assert exact.diagnose().topic == "radar"


# -- a topic that dies ----------------------------------------------------------------------------


def test_a_dead_optional_topic_leaves_partial_sets() -> None:
    sync = ApproximateTime(
        ["camera", "lidar", "radar"], queue_size=10, optional=["radar"], timeout="250 ms"
    )
    sets = []
    for p in range(40):
        sets += played(sync, [("camera", p * 100 * MS), ("lidar", (p * 100 + 2) * MS)])
        if p < 10 or p >= 30:
            sets += played(sync, [("radar", (p * 100 + 4) * MS)])
    sets += sync.flush()
    with_radar = [s.times_ns[2] is not None for s in sets]
    assert len(sets) == 40
    assert sum(with_radar) == 20
    assert with_radar[:10] == [True] * 10
    assert with_radar[-10:] == [True] * 10
    gap = [s for s in sets if s.times_ns[2] is None]
    assert all(s.payloads[2] is None and s.rows[2] is None for s in gap)
    assert all(s.spread_ns == 2 * MS for s in gap)


def test_a_topic_that_never_came_is_not_waited_for_beyond_the_timeout() -> None:
    sync = ApproximateTime(["a", "b"], queue_size=100, optional="b", timeout=1000)
    sets = [(t, len(sync.push("a", t))) for t in range(0, 3000, 100)]
    assert sum(n for t, n in sets if t <= 1000) == 0  # at the timeout it is still waited for
    assert sum(n for _, n in sets) >= 29
    assert sync.held == {"a": 0, "b": 0}


def test_a_required_topic_is_waited_for_however_long() -> None:
    sync = ApproximateTime(["a", "b", "c"], queue_size=5, optional=["c"], timeout=10)
    assert played(sync, [("a", t) for t in range(0, 1000, 10)]) == []
    assert sync.counters["a"]["overflow"] == 95


def test_flush_gives_partial_sets_where_they_are_allowed() -> None:
    sync = ApproximateTime(["a", "b"], queue_size=100, optional=["b"], timeout="1 h")
    assert [s.times_ns for s in played(sync, [("a", 1), ("a", 2), ("b", 2), ("a", 3)])] == [(2, 2)]
    assert [s.times_ns for s in sync.flush()] == [(3, None)]
    assert sync.unmatched == []
    assert sync.counters["a"]["superseded"] == 1


# -- slow and fast ------------------------------------------------------------------------------


def test_a_camera_and_a_fast_imu() -> None:
    """The imu message nearest to each frame; between frames the others are let go."""
    rng = np.random.default_rng(3)
    frames = np.arange(0, 10_000, 100) * MS
    imu = np.arange(0, 10_000, 5) * MS + rng.integers(-MS, MS, 2000)
    times = np.concatenate([frames, imu])
    topics = np.repeat([0, 1], [len(frames), len(imu)])
    order = np.argsort(times, kind="stable")
    result = ApproximateTime(["camera", "imu"], queue_size=40).process(topics[order], times[order])
    assert len(result) >= 98
    nearest = np.abs(imu[:, None] - result.times_ns[:, 0]).min(axis=0)
    assert np.median(result.spread_ns) <= np.median(nearest) * 1.2
