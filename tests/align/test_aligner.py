"""Align message by message: the same rows as for the whole recording, in any order within the
tolerance, over snapshots, and with nothing lost."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate import align
from tidegate.align import AlignedRow, Aligner
from tidegate.core.outcomes import Dropped, Late
from tidegate.errors import ConfigError, StateError

SETTINGS: dict[str, Any] = {
    "topics": {"joint": align.linear(20), "imu": align.nearest(10)},
    "reference": "camera",
}
messages = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from(("camera", "joint", "imu")), st.integers(0, 100)),
    max_size=40,
)


def rows_of(returned: list[Any]) -> list[AlignedRow]:
    return [one for one in returned if isinstance(one, AlignedRow)]


@settings(deadline=None)
@given(messages, st.sets(st.integers(0, 40)))
def test_pushed_one_by_one_equals_the_recording(
    sent: list[tuple[int, str, int]], restarts: set[int]
) -> None:
    # Times span 100 ns, and a row equal to the watermark is late: one more, and none is.
    aligner = Aligner(**SETTINGS, late_tolerance=101)
    out: list[Any] = []
    for number, (lane, topic, t) in enumerate(sent):
        if number in restarts:
            blob, aligner = aligner.snapshot(), Aligner(**SETTINGS, late_tolerance=101)
            aligner.restore(blob)
        out += aligner.push(topic, t, {"v": float(number)}, lane=lane)
    out += aligner.flush()
    table = [
        {"lane": lane, "topic": topic, "t": t, "v": float(number)}
        for number, (lane, topic, t) in enumerate(sent)
    ]
    for lane in (0, 1):
        mine = [row for row in table if row["lane"] == lane]
        if not any(row["topic"] == "camera" for row in mine):
            assert not [row for row in rows_of(out) if row.lane == lane]
            continue
        with pytest.warns() if len({r["topic"] for r in mine}) < 3 else nullcontext():
            expected = align.rows(mine, topic="topic", time="t", **SETTINGS)
        found = [row for row in rows_of(out) if row.lane == lane]
        assert [row.time_ns for row in found] == expected["time_ns"].to_pylist()
        for topic in ("camera", "joint", "imu"):
            assert [row.values[topic]["v"] for row in found] == [
                one["v"] for one in expected[topic].to_pylist()
            ]


def test_a_promise_decides_rows_and_makes_late_ones() -> None:
    aligner = Aligner({"joint": align.latest(50)}, reference="camera", late_tolerance=1000)
    assert aligner.push("joint", 90, {"v": 1.0}) == []
    assert aligner.push("camera", 100) == []
    [row] = aligner.advance(100)
    assert isinstance(row, AlignedRow)
    assert (row.time_ns, row.values["joint"]["v"]) == (100, 1.0)
    assert aligner.advance(50) == []  # a promise that says less than the one before
    [late] = aligner.push("camera", 100)
    assert isinstance(late, Late)
    assert aligner.push("other", 200) == []
    dropped = aligner.advance(300)
    assert [one.reason.to_pylist() for one in dropped if isinstance(one, Dropped)] == [
        ["topic is not aligned"]
    ]
    assert aligner.offsets().to_pylist()[0]["values"] == 1
    assert aligner.metrics()["align.aligned_rows"] == 1


def test_a_silent_lane_is_not_waited_for() -> None:
    aligner = Aligner(
        {"joint": align.latest(50)}, reference="camera", late_tolerance=1000, idle_timeout=10
    )
    assert aligner.push("joint", 90, {"v": 1.0}, wall_ns=1) == []
    assert aligner.push("camera", 100, wall_ns=2) == []
    assert aligner.wake_at() == 13
    assert aligner.tick(12) == []
    rows = aligner.tick(13) + aligner.push("joint", 101, {"v": 2.0}, wall_ns=14)
    assert [row.time_ns for row in rows_of(rows)] == [100]


def test_many_at_once_with_lanes() -> None:
    import pyarrow as pa

    aligner = Aligner({"joint": align.latest(50)}, reference="camera")
    rows = pa.record_batch({"topic": ["joint", "camera", "joint"], "v": [1.0, 2.0, 3.0]})
    out = aligner.process(rows, np.array([1, 2, 3]), np.array([0, 0, 1], np.int32))
    assert out == []
    [row] = rows_of(aligner.flush())
    assert (row.lane, row.values["joint"]["v"]) == (0, 1.0)


@pytest.mark.parametrize(
    ("given_settings", "field"),
    [
        ({"topics": {"joint": "linear"}, "reference": "camera"}, "topics"),
        ({**SETTINGS, "keys": ("robot",)}, "keys"),
        ({**SETTINGS, "colour": 1}, "settings"),
    ],
)
def test_wrong_settings(given_settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        Aligner(**given_settings)


def test_a_foreign_snapshot_is_refused() -> None:
    aligner = Aligner(**SETTINGS)
    with pytest.raises(StateError):
        aligner.restore(b"nonsense")
    with pytest.raises(StateError):
        aligner.restore(Aligner({"joint": align.latest(1)}, reference="camera").snapshot())
