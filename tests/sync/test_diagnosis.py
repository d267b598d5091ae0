"""The diagnosis names the guilty topic, and its advice gives sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.core.outcomes import Collection
from tidegate.sync import ApproximateTime, Diagnosis, ExactTime, Synchronize

MS = 1_000_000
PERIOD = 100 * MS
ROUNDS = 120
QUEUE = 10
GUILTS = ["lagging", "leading", "silent", "bursting", "drifting", "stuck"]


def stream(n: int, guilty: int, guilt: str, seed: int = 0) -> list[tuple[str, int]]:
    """`n` topics of 10 Hz in arrival order, one of which misbehaves; arrivals are real time."""
    rng = np.random.default_rng(seed)
    messages = []
    for j in range(n):
        phase = rng.integers(0, 20) * MS
        for k in range(ROUNDS):
            stamp = k * PERIOD + phase + int(rng.integers(0, 5 * MS))
            arrival = stamp + int(rng.integers(0, 3 * MS))
            if j == guilty:
                match guilt:
                    case "lagging":
                        stamp -= 2500 * MS
                    case "leading":
                        stamp += 2500 * MS
                    case "silent":
                        if k > ROUNDS // 2:
                            continue
                    case "bursting":
                        arrival = (k // 20 + 1) * 20 * PERIOD + (k % 20) * MS
                    case "drifting":
                        stamp -= k * 12 * MS
                    case "stuck":
                        if k > ROUNDS // 2:
                            stamp = ROUNDS // 2 * PERIOD
            messages.append((arrival, f"t{j}", stamp))
    messages.sort(key=lambda m: m[0])
    return [(topic, stamp) for _, topic, stamp in messages]


def run(sync: Any, messages: list[tuple[str, int]]) -> int:
    return sum(len(sync.push(topic, stamp)) for topic, stamp in messages)


def names(n: int) -> list[str]:
    return [f"t{j}" for j in range(n)]


@pytest.mark.parametrize("guilt", GUILTS)
@pytest.mark.parametrize("n", range(2, 9))
def test_the_named_topic_is_the_guilty_one_and_the_advice_gives_sets(n: int, guilt: str) -> None:
    for guilty in sorted({0, n // 2, n - 1}):
        messages = stream(n, guilty, guilt, seed=n)
        sync = ApproximateTime(names(n), queue_size=QUEUE)
        run(sync, messages)
        found = sync.diagnose()
        told = f"{guilt} t{guilty} of {n}: {found}"
        if n == 2 and guilt == "leading":  # nobody can say who is right: the one behind is named
            assert (found.problem, found.topic) == ("lagging", f"t{1 - guilty}"), told
        else:
            assert (found.problem, found.topic) == (guilt, f"t{guilty}"), told
        if guilt in ("lagging", "leading"):
            assert abs(found.by_ns - 2500 * MS) < 1.25 * PERIOD, told
        assert str(found).count(f"t{guilty}") or n == 2
        check_advice(n, found, messages, told)


def check_advice(n: int, found: Diagnosis, messages: list[tuple[str, int]], told: str) -> None:
    enough = 0.8 * ROUNDS
    if found.problem in ("silent", "stuck"):
        others = [name for name in names(n) if name != found.topic]
        if len(others) > 1:
            rest = [m for m in messages if m[0] != found.topic]
            assert run(ApproximateTime(others, queue_size=QUEUE), rest) > enough, told
        if found.problem == "silent":
            optional = ApproximateTime(
                names(n), queue_size=QUEUE, optional=[found.topic], timeout="300 ms"
            )
            assert run(optional, messages) > enough, told
        return
    assert found.queue_size is not None
    bridged = ApproximateTime(names(n), queue_size=found.queue_size)
    missing = found.by_ns / PERIOD  # sets that need messages from before the start, or after it
    assert run(bridged, messages) > 0.8 * (ROUNDS - missing), told
    assert bridged.diagnose().problem == "healthy", f"{told}; then {bridged.diagnose()}"
    if found.problem in ("lagging", "leading"):
        shifted = ApproximateTime(
            names(n), queue_size=QUEUE, offsets={str(found.topic): found.offset_ns}
        )
        assert run(shifted, messages) > enough, told
        assert shifted.diagnose().problem == "healthy", told


@pytest.mark.parametrize("n", range(2, 9))
def test_healthy_streams_are_healthy_at_every_moment(n: int) -> None:
    sync = ApproximateTime(names(n), queue_size=QUEUE)
    seen = set()
    for topic, stamp in stream(n, -1, "none", seed=n):
        sync.push(topic, stamp)
        seen.add(sync.diagnose().problem)
    assert seen <= {"starting", "healthy"}
    assert sync.diagnose().problem == "healthy"


def test_a_fast_and_a_slow_topic_are_healthy() -> None:
    sync = ApproximateTime(["imu", "gps"])
    found = []
    for k in range(3000):
        sync.push("imu", k * 5 * MS)
        if k % 200 == 0:
            sync.push("gps", k * 5 * MS + MS)
            found.append(sync.diagnose().problem)
    assert set(found[8:]) == {"healthy"}


def test_a_topic_that_never_came_and_exact_matching() -> None:
    sync = ApproximateTime(["a", "b"], queue_size=4)
    assert sync.diagnose().problem == "starting"
    for k in range(6):
        sync.push("a", k * MS)
    assert (sync.diagnose().problem, sync.diagnose().topic) == ("silent", "b")
    assert sync.diagnose().by_ns == 5 * MS
    exact = ExactTime(["a", "b", "c"], queue_size=4)
    for k in range(100):
        exact.push("a", k * MS)
        exact.push("b", k * MS)
        exact.push("c", (k - 20) * MS)
    found = exact.diagnose()
    assert (found.problem, found.topic) == ("lagging", "c")
    bridged = ExactTime(["a", "b", "c"], queue_size=found.queue_size)
    assert sum(
        len(bridged.push(t, (k - by) * MS))
        for k in range(100)
        for t, by in (("a", 0), ("b", 0), ("c", 20))
    )
    assert bridged.diagnose().problem == "healthy"


def test_the_stage_delivers_a_diagnosis_per_key_when_it_changes() -> None:
    stage = Synchronize(("t0", "t1", "t2"), queue_size=QUEUE, keys=("car",), diagnosis=True)
    state = stage.open(2)
    healthy, lagging = stream(3, -1, "none"), stream(3, 1, "lagging")
    told = []
    for part in range(0, len(healthy), 60):
        for lane, messages in enumerate((healthy, lagging)):
            given = messages[part : part + 60]
            rows = pa.record_batch(
                {"car": [f"car {lane}"] * len(given), "topic": [t for t, _ in given]}
            )
            times = np.array([t for _, t in given])
            lanes = np.full(len(given), lane, np.int32)
            for out in stage.process(state, Collection(rows, times, lanes)):
                if out.kind == "diagnosis":
                    assert out.rows.schema == stage.side_schemas(rows.schema)["diagnosis"]
                    told += out.rows.to_pylist()
    assert [(row["car"], row["problem"]) for row in told if row["car"] == "car 0"] == [
        ("car 0", "healthy")
    ]
    last = [row for row in told if row["car"] == "car 1"][-1]
    assert (last["problem"], last["topic"]) == ("lagging", "t1")
    assert abs(last["by_ns"] - 2500 * MS) < 1.25 * PERIOD
    assert "t1 is" in last["text"]
    assert len(told) <= 4
