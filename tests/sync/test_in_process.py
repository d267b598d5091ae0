"""The synchronisers as a user holds them: push, process, flush, counters, snapshots."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tidegate.core.time import MAX_NS, MIN_NS, UNSET
from tidegate.errors import ContractError, StateError
from tidegate.sync import ApproximateTime, ExactTime

CAMERA_LIDAR = [("camera", 0), ("lidar", 10), ("camera", 30), ("lidar", 42), ("camera", 60)]


def test_sets_carry_times_payloads_and_the_delay_of_the_decision() -> None:
    sync = ApproximateTime(["camera", "lidar"], queue_size=10)
    sets = [s for topic, t in CAMERA_LIDAR for s in sync.push(topic, t, f"{topic}@{t}")]
    first, second = sets
    assert first.payloads == ("camera@0", "lidar@10")
    assert (first.times_ns, first.spread_ns, first.time_ns) == ((0, 10), 10, 10)
    assert (first.decided_at, first.decided_at_ns, first.delay_ns) == (2, 30, 20)
    assert second.rows == (2, 3)
    assert sync.held == {"camera": 1, "lidar": 0}


def test_the_tail_is_delivered_by_flush_and_the_rest_says_why() -> None:
    sync = ApproximateTime(["camera", "lidar"], queue_size=10)
    for topic, t in [*CAMERA_LIDAR, ("lidar", 63), ("lidar", 64)]:
        sync.push(topic, t, t)
    [tail] = sync.flush()
    assert (tail.times_ns, tail.decided_at, tail.decided_at_ns) == ((60, 63), -1, 64)
    [left] = sync.unmatched
    assert (left.topic, left.time_ns, left.payload, left.reason) == ("lidar", 64, 64, "flush")
    assert sync.held == {"camera": 0, "lidar": 0}
    assert sync.flush() == []
    assert sync.unmatched == []


def test_a_flushed_synchroniser_starts_anew_and_keeps_counting() -> None:
    sync = ApproximateTime(["a", "b"], queue_size=3, max_jump_back=10)
    for t in (1000, 2000):
        sync.push("a", t)
        sync.push("b", t + 1)
    sync.flush()
    assert sync.push("a", 5) == []
    assert sync.push("b", 6) == []
    assert [s.rows for s in sync.flush()] == [(4, 5)]
    assert sync.counters["a"]["received"] == 3
    assert sync.counters["a"]["jumps"] == 0


def test_every_reason_for_leaving_without_a_set() -> None:
    sync = ApproximateTime(["a", "b"], queue_size=2, max_interval=50)
    seen = {}
    for topic, t in [
        ("a", 0), ("b", 100),  # a@0 is too old for the interval
        ("a", 90), ("a", 95), ("b", 300),  # a@90 is superseded by a@95
        ("b", 310), ("b", 320),  # b@300 overflows
        ("a", 330), ("a", 331), ("a", 340),
    ]:  # fmt: skip
        sync.push(topic, t)
        seen.update({(u.topic, u.time_ns): u.reason for u in sync.unmatched})
    sync.flush()
    seen.update({(u.topic, u.time_ns): u.reason for u in sync.unmatched})
    assert seen["a", 0] == "too_old"
    assert seen["a", 90] == "superseded"
    assert "overflow" in seen.values()
    reasons = [reason.name.lower() for reason in sync.matcher.reasons]
    counted = {r: sum(c[r] for c in sync.counters.values()) for r in reasons}
    assert {r: list(seen.values()).count(r) for r in counted} == counted


def test_arrays_and_single_messages_may_alternate() -> None:
    sync = ApproximateTime(["camera", "lidar"], queue_size=10)
    sync.push("camera", 0, "frame")
    result = sync.process([1, 0], [10, 30])
    assert result.rows.tolist() == [[0, 1]]
    assert result.delay_ns.tolist() == [20]
    [s] = [s for t in (42, 60) for s in sync.push("lidar" if t == 42 else "camera", t, t)]
    assert s.payloads == (None, 42)  # camera@30 came in an array, without a payload
    assert sync._payloads == {4: 60}  # nothing is kept for messages that have left


def test_process_takes_nothing_and_refuses_nonsense() -> None:
    sync = ApproximateTime(["a", "b"], queue_size=2)
    empty = sync.process([], [])
    assert len(empty) == 0
    assert empty.rows.shape == (0, 2)
    with pytest.raises(ContractError, match="0 to 1"):
        sync.process([2], [0])
    with pytest.raises(ContractError, match="every time set"):
        sync.process([0], [UNSET])
    with pytest.raises(ContractError, match="topics and"):
        sync.process([0, 1], [0])
    with pytest.raises(ContractError, match="no topic 'c'; the topics are a, b"):
        sync.push("c", 0)
    with pytest.raises(ContractError, match="not a time"):
        sync.push("a", 2**63)
    with pytest.raises(ContractError, match="is a float, which cannot hold a time"):
        sync.push("a", 1.5)
    assert sync.counters["a"]["received"] == 0


def test_offsets_shift_decisions_and_not_what_is_delivered() -> None:
    messages = [("a", 0), ("b", 101), ("a", 50)]
    sync = ApproximateTime(["a", "b"], queue_size=5, offsets={"b": "-100 ns"}, max_interval=20)
    [one] = [s for m in messages for s in sync.push(*m)]
    assert (one.times_ns, one.spread_ns, one.offsets_ns) == ((0, 101), 1, (0, -100))
    assert (one.time_ns, one.decided_at_ns, one.delay_ns) == (101, 50, 49)
    sync.push("b", 1101)
    sync.push("a", 2000)
    assert [(u.topic, u.time_ns, u.reason) for u in sync.unmatched] == [("b", 1101, "too_old")]
    by_array = ApproximateTime(["a", "b"], queue_size=5, offsets={"b": -100})
    result = by_array.process([0, 1, 0], [0, 101, 50])
    assert result.times_ns.tolist() == [[0, 101]]
    assert result.offsets_ns.tolist() == [0, -100]
    exact = ExactTime(["a", "b"], queue_size=5, offsets={"b": -100})
    exact.push("a", 0)
    assert exact.push("b", 100)[0].times_ns == (0, 100)


def test_offsets_stop_at_the_ends_of_time() -> None:
    late = ApproximateTime(["a", "b"], queue_size=5, offsets=["1 s", "-1 s"])
    assert late.push("a", MAX_NS) == []
    result = late.process([1, 0], [MIN_NS, 0])
    assert result.times_ns.tolist() in ([], [[MAX_NS, MIN_NS]])
    assert late.process([1], [MIN_NS + 5]).times_ns.size + sum(late.held.values()) > 0


def test_learned_bounds_decide_earlier_and_alike() -> None:
    period = 100
    messages = [(k % 2, k // 2 * period + 10 * (k % 2)) for k in range(400)]
    topics, times = np.array(messages).T
    plain = ApproximateTime(["a", "b"], queue_size=10).process(topics, times)
    learned = ApproximateTime(["a", "b"], queue_size=10, learn_bounds=True).process(topics, times)
    assert plain.rows.tolist() == learned.rows.tolist()[: len(plain)]
    assert np.median(plain.delay_ns) == period - 10
    assert np.median(learned.delay_ns) == 0
    assert (learned.delay_ns[:20] == period - 10).all()  # nothing is assumed before it was seen


def test_learned_bounds_shrink_at_once_when_a_gap_does() -> None:
    sync = ApproximateTime(["a", "b"], queue_size=10, learn_bounds=True)
    for k in range(100):
        sync.push("a", 100 * k)
    assert sync.counters["a"]["too_close"] == 0
    sync.push("a", 9910)
    sync.push("a", 9920)
    assert sync.counters["a"]["too_close"] == 1


def test_given_bounds_that_do_not_hold_are_counted() -> None:
    sync = ApproximateTime(["a", "b"], queue_size=10, lower_bounds={"a": 50})
    for t in (0, 50, 99, 200, 150):
        sync.push("a", t)
    assert sync.counters["a"]["too_close"] == 1
    assert sync.counters["a"]["disorder"] == 1


@pytest.mark.parametrize("cls", [ApproximateTime, ExactTime])
def test_a_snapshot_carries_settings_state_and_payloads(cls: type) -> None:
    sync = cls(["a", "b"], queue_size=4)
    messages = [("a", 0), ("b", 0), ("a", 10), ("b", 10), ("a", 20), ("b", 20), ("a", 25)]
    for cut in range(len(messages)):
        sync, straight = cls(["a", "b"], queue_size=4), cls(["a", "b"], queue_size=4)
        wanted = [straight.push(t, at, f"{t}{at}") for t, at in messages]
        got = [sync.push(t, at, f"{t}{at}") for t, at in messages[:cut]]
        sync = cls.restore(sync.snapshot())
        got += [sync.push(t, at, f"{t}{at}") for t, at in messages[cut:]]
        assert got == wanted
        assert sync.counters == straight.counters


def test_payloads_of_any_kind_with_a_codec() -> None:
    sync = ApproximateTime(["a", "b"], queue_size=4)
    sync.push("a", 0, {"x": [1]})
    with pytest.raises(ContractError, match="dict needs `dump`"):
        sync.snapshot()
    blob = sync.snapshot(dump=lambda value: json.dumps(value).encode())
    with pytest.raises(ContractError, match="load"):
        ApproximateTime.restore(blob)
    back = ApproximateTime.restore(blob, load=json.loads)
    back.push("b", 1, b"raw")
    back = ApproximateTime.restore(
        back.snapshot(dump=lambda v: json.dumps(str(v)).encode()), json.loads
    )
    assert back.push("a", 9)[0].payloads == ("{'x': [1]}", "b'raw'")


def test_a_snapshot_of_another_kind_or_a_broken_one_is_refused() -> None:
    blob = ExactTime(["a", "b"], queue_size=4).snapshot()
    with pytest.raises(StateError, match="ExactTime, not of ApproximateTime"):
        ApproximateTime.restore(blob)
    with pytest.raises(StateError, match="checksum"):
        ExactTime.restore(blob[:-1] + bytes([blob[-1] ^ 1]))
    with pytest.raises(StateError, match="shorter"):
        ExactTime.restore(b"")


def test_exact_time_replaces_a_message_that_comes_twice() -> None:
    sync = ExactTime(["left", "right"], queue_size=2)
    sync.push("left", 5, "first")
    sync.push("left", 5, "second")
    assert [(u.payload, u.reason) for u in sync.unmatched] == [("first", "replaced")]
    assert sync.push("right", 5, "R")[0].payloads == ("second", "R")
    assert sync.flush() == []
