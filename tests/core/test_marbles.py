"""What we give to users' tests keeps its own promises: the fleet, the drawings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tidegate.errors import ConfigError
from tidegate.eventtime import EventtimeWatermark
from tidegate.testing.fleet import JUMP_NS, LATENCY_NS, START_NS, UNREADABLE, facts, fleet
from tidegate.testing.marbles import assert_marbles, collection_of, draw

QUIET: dict[str, Any] = {"unreadable": 0, "broken_clock": False}


def test_the_same_seed_is_the_same_recording() -> None:
    assert fleet(2, 3, seed=1).equals(fleet(2, 3, seed=1))
    assert not fleet(2, 3, seed=1).equals(fleet(2, 3, seed=2))


def test_columns_and_their_types() -> None:
    schema = fleet(1, 2).schema
    kinds = [pa.string(), pa.string(), pa.string(), pa.int64(), pa.int64(), pa.float64(),
             pa.binary()]  # fmt: skip
    assert [field.type for field in schema] == kinds
    assert fleet(1, 2, **QUIET).schema.field("stamp").type == pa.int64()
    assert set(pc.binary_length(fleet(1, 2, payload_bytes=7)["payload"]).to_pylist()) == {7}


def test_arrival_is_strictly_increasing_and_rows_are_unique() -> None:
    recording = fleet(5, 20)
    assert (np.diff(recording["log_time"].to_numpy()) > 0).all()
    rows = recording.select(["vehicle", "topic", "seq"])
    assert rows.group_by(["vehicle", "topic", "seq"]).aggregate([]).num_rows == rows.num_rows


def test_rates_drops_and_phases() -> None:
    recording = fleet(4, 50, **QUIET, drops=0.1, seed=3)
    found = facts(recording)
    for topic, hz in {"lidar": 10, "camera": 30, "imu": 100, "gps": 5}.items():
        assert found.by_topic[topic] == pytest.approx(4 * 50 * hz * 0.9, rel=0.05)
    whole = fleet(4, 50, **QUIET, drops=0, late_share=0, disorder=0, jitter=0)
    assert facts(whole).rows == 4 * 50 * 145
    first = whole.group_by(["vehicle", "topic"]).aggregate([("stamp", "min")])["stamp_min"]
    assert len(set(first.to_pylist())) == 16
    assert min(first.to_pylist()) >= START_NS


def test_disorder_stays_below_its_bound_and_late_rows_are_late() -> None:
    recording = fleet(3, 60, **QUIET, seed=9)
    behind = recording["log_time"].to_numpy() - recording["stamp"].to_numpy() - LATENCY_NS
    late = behind >= 5 * 10**9
    assert 0 < late.mean() < 0.004
    assert behind[~late].max() < 200 * 10**6 + recording.num_rows  # ties move on by nanoseconds
    assert behind.min() >= 0
    ordered = facts(fleet(3, 60, **QUIET, late_share=0))
    assert ordered.late == 0
    assert ordered.in_order == ordered.rows
    assert facts(fleet(3, 60, **QUIET, late_share=0), "20 ms").late > 0


def test_bad_rows_and_the_broken_clock() -> None:
    recording = fleet(3, 60, unreadable=20)
    stamps = recording["stamp"].to_pylist()
    bad = [stamp for stamp in stamps if stamp in UNREADABLE]
    assert len(bad) == 20
    assert set(bad) == set(UNREADABLE)
    jumped = [
        vehicle
        for vehicle, stamp, log in zip(
            recording["vehicle"].to_pylist(), stamps, recording["log_time"].to_pylist(), strict=True
        )
        if stamp not in UNREADABLE and int(stamp) > log
    ]
    assert set(jumped) == {"car-00000"}
    assert len(jumped) == facts(recording).skewed > 5
    assert JUMP_NS == 365 * 86400 * 10**9


def test_without_a_guard_one_broken_clock_makes_a_vehicle_late() -> None:
    recording = fleet(2, 30)
    assert facts(recording, skew_guard=False).late > facts(recording).by_vehicle["car-00000"] / 2


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"vehicles": 0}, "vehicles"), ({"seconds": 0}, "seconds"), ({"topics": {}}, "topics"),
        ({"topics": {"x": 0}}, "topics"), ({"drops": 1.5}, "drops"), ({"late_share": -1}, "late_"),
        ({"payload_bytes": -1}, "payload_bytes"), ({"disorder": "x"}, "disorder"),
    ],
)  # fmt: skip
def test_a_fleet_that_cannot_be(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        fleet(**settings)


def test_a_drawing_that_is_wrong_says_what_came() -> None:
    with pytest.raises(AssertionError, match=r"data: drawn \. a, came \. ab"):
        assert_marbles(EventtimeWatermark("9 s"), "in: ba |\ndata: . a")
    with pytest.raises(AssertionError, match="late"):
        assert_marbles(EventtimeWatermark("9 s"), "in: ba |\nlate: b .")


@pytest.mark.parametrize(
    ("drawing", "says"),
    [
        ("data: a", "must have an `in` line"), ("in a b", "a kind, a colon"),
        ("in: a b\ndata: a", "as many steps"), ("in: A", "letters from a to z"),
    ],
)  # fmt: skip
def test_a_drawing_that_cannot_be_read(drawing: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        assert_marbles(EventtimeWatermark(0), drawing)


def test_drawing_parts() -> None:
    assert collection_of("ab", tick=5, wall_ns=3).time_ns.tolist() == [5, 10]
    assert draw(EventtimeWatermark(1), "c |", tick=2) == {
        "data": [".", "c"],
        "watermark": ["2.5", "."],
    }
