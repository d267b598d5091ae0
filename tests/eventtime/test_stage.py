"""The event-time stage by hand: drawings, metrics, settings."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.core import parallel as threads
from tidegate.core.arrow import present
from tidegate.core.outcomes import Collection, Late, Watermark
from tidegate.core.sort import arrange, order_rows
from tidegate.core.time import MAX_NS, MIN_NS, UNSET
from tidegate.errors import ConfigError
from tidegate.eventtime import EventtimeWatermark, ProcessTimeWatermark
from tidegate.eventtime.rules import beyond
from tidegate.testing.marbles import assert_marbles, draw


def test_rows_wait_for_the_tolerance_and_leave_in_order() -> None:
    assert_marbles(EventtimeWatermark("2 s"), """
        in:         b   a   d    f    e   c   |
        data:       .   .   ab   d    .   .   ef
        late:       .   .   .    .    .   c   .
        watermark:  0   .   b    d    .   .   .
    """)  # fmt: skip


def test_without_tolerance_everything_leaves_at_once_and_ties_are_on_time() -> None:
    """Rule 15: the watermark stands 1 ns below the newest, so a row equal to it is on time."""
    assert_marbles(EventtimeWatermark(0), """
        in:         c   ca   d   dd   f   |
        data:       c   c    d   dd   f   .
        late:       .   a    .   .    .   .
    """)  # fmt: skip
    stage = EventtimeWatermark(0)
    state = stage.open()
    rows = pa.record_batch({"id": ["a", "b"]})
    out = stage.process(state, Collection.of(rows, np.array([7, 7])))
    assert [(o.kind, o.time_ns.tolist()) for o in out] == [("data", [7, 7]), ("watermark", [6])]


def test_two_topics_that_share_stamps_lose_no_row() -> None:
    """Found by a user: with tolerance 0, 140 of 140 rows of the second topic were late by 0."""
    stamps = np.repeat(np.arange(140), 2) * 10**8
    stage = EventtimeWatermark(0)
    state = stage.open()
    rows = pa.record_batch({"topic": ["lidar", "camera"] * 140})
    out = [o for at in range(280) for o in stage.process(
        state, Collection.of(rows.slice(at, 1), stamps[at : at + 1]))]  # fmt: skip
    assert sum(len(o) for o in out if o.kind == "data") == 280


def test_an_idle_release_without_tolerance_keeps_ties_on_time() -> None:
    stage = EventtimeWatermark(0, source="s", idle_timeout=100)
    state = stage.open()
    rows = pa.record_batch({"s": ["slow", "fast"]})
    stage.process(state, Collection.of(rows, np.array([10, 50]), 0))
    out = stage.wake(state, 101)
    assert [(o.kind, o.time_ns.tolist()) for o in out] == [("data", [50]), ("watermark", [49])]
    (again,) = stage.process(state, Collection.of(rows.slice(1), np.array([50]), 102))
    assert again.kind == "data"


def test_per_collection_the_rule_of_the_seed_holds() -> None:
    assert_marbles(EventtimeWatermark(0, watermark_per="collection"), """
        in:         c   ca   d   dd   f   |
        data:       c   .    d   .    f   .
        late:       .   ca   .   dd   .   .
        watermark:  c   .    d   .    f   .
    """)  # fmt: skip


def test_lateness_is_judged_before_the_collection_or_row_by_row() -> None:
    assert_marbles(EventtimeWatermark("1 s", watermark_per="collection"), """
        in:    eac   |
        data:  ac    e
        late:  .     .
    """)  # fmt: skip
    assert_marbles(EventtimeWatermark("1 s", watermark_per="tuple"), """
        in:    eac   |
        data:  .     e
        late:  ac    .
    """)  # fmt: skip


def test_late_rows_can_be_dropped_but_are_counted() -> None:
    stage = EventtimeWatermark(0, late="drop", watermark_per="collection")
    assert "late" not in draw(stage, "c a b d |")
    state = stage.open()
    for times in ([30], [10, 20, 30], [40]):
        rows = pa.record_batch({"id": ["x"] * len(times)})
        stage.process(state, Collection.of(rows, np.array(times)))
    metrics = stage.metrics(state)
    assert metrics["late_dropped_count"] == 3
    assert metrics["max_lateness"] == 20


def test_an_idle_stream_lets_go_of_what_it_holds() -> None:
    assert_marbles(EventtimeWatermark("9 s", idle_timeout="2 s"), """
        in:    b   a   .   .   .    d   |
        data:  .   .   .   .   ab   .   d
    """)  # fmt: skip


def test_equal_times_keep_their_order_of_arrival_also_across_collections() -> None:
    stage = EventtimeWatermark(10)
    state = stage.open()
    for name in "abc":
        rows = pa.record_batch({"id": [name, name.upper()]})
        stage.process(state, Collection.of(rows, np.array([5, 5])))
    (out,) = stage.flush(state)
    assert out.rows.column("id").to_pylist() == ["a", "A", "b", "B", "c", "C"]  # type: ignore[union-attr]


def test_a_break_is_no_silence() -> None:
    stage = EventtimeWatermark("9 s", idle_timeout="2 s")
    state = stage.open()
    stage.process(state, Collection.of(pa.record_batch({"v": [1]}), np.array([5]), wall_ns=10**9))
    stage.resume(state, 3600 * 10**9)
    assert stage.wake(state, 3600 * 10**9) == []
    assert stage.wake_at(state) == 3602 * 10**9 + 1
    assert stage.wake(state, 3603 * 10**9) != []


def test_the_slowest_source_that_is_not_idle_sets_the_pace() -> None:
    stage = EventtimeWatermark(0, source="s", idle_timeout=100, watermark_per="collection")
    state = stage.open()

    def push(source: str, time: int, wall: int) -> list[str]:
        rows = pa.record_batch({"s": [source]})
        out = stage.process(state, Collection.of(rows, np.array([time]), wall))
        return [
            f"w{int(o.time_ns[0])}" if isinstance(o, Watermark) else f"{o.kind}{len(o)}"
            for o in out
        ]

    assert push("fast", 10, 0) == ["data1", "w10"]
    assert push("slow", 20, 0) == []
    assert push("fast", 50, 10) == ["data1", "w20"]
    assert push("slow", 30, 20) == ["data1", "w30"]
    assert push("fast", 60, 130) == ["data2", "w60"]  # slow has been silent for 110
    assert push("slow", 40, 140) == ["late1"]
    assert push("fast", 70, 150) == []  # and holds the others back again


def test_metrics_by_the_names_of_the_specification() -> None:
    stage = EventtimeWatermark(10, max_future_skew=1000, watermark_per="collection")
    state = stage.open()
    assert stage.metrics(state)["current_watermark"] == UNSET
    rows = pa.record_batch({"id": list("abcde")})
    stage.process(state, Collection.of(rows, np.array([100, 95, 5000, 120, 101])))
    stage.process(state, Collection.of(rows.slice(0, 1), np.array([90])))
    assert stage.metrics(state) == {
        "rows_held": 1,
        "watermark_lowest": 110,
        "watermark_median": 110,
        "late_dropped_count": 1,
        "watermark_emitted_count": 1,
        "max_timestamp_seen": 120,
        "current_watermark": 110,
        "max_lateness": 20,
        "future_skew_count": 1,
        "refused_source_count": 0,
        "discarded_count": 0,
    }


def test_late_rows_say_how_late() -> None:
    stage = EventtimeWatermark(1)
    state = stage.open()
    rows = pa.record_batch({"id": ["a"]})
    stage.process(state, Collection.of(rows, np.array([51])))
    (late,) = stage.process(state, Collection.of(rows, np.array([20])))
    assert isinstance(late, Late)
    assert late.table().to_pylist() == [
        {"id": "a", "time_ns": 20, "lateness_ns": 30, "watermark_ns": 50}
    ]


def test_a_tolerance_larger_than_time_itself() -> None:
    stage = EventtimeWatermark(MAX_NS, watermark_per="collection")
    state = stage.open()
    rows = pa.record_batch({"id": ["a", "b"]})
    out = stage.process(state, Collection.of(rows, np.array([5, MIN_NS])))
    assert [o.kind for o in out] == ["data", "watermark"]
    assert out[0].rows.column("id").to_pylist() == ["b"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"late_tolerance": "-1 s"}, "late_tolerance: got '-1 s', must be at least 0 ns"),
        ({"late_tolerance": None}, "late_tolerance: got None"),
        ({"late_tolerance": 1.5}, "late_tolerance: got 1.5"),
        ({"late": "keep"}, "late: got 'keep', must be one of side_output, drop"),
        ({"watermark_per": "row"}, "watermark_per: got 'row', must be one of collection, tuple"),
        ({"skew_against": "x"}, "skew_against: got 'x', must be one of rows, clock"),
        ({"max_future_skew": "soon"}, "max_future_skew: got 'soon'"),
        ({"idle_timeout": 0}, "idle_timeout: got 0, must be at least 1 ns"),
        ({"skew_confirm": 0}, "skew_confirm: got 0, must be a whole number of at least 1"),
        ({"max_sources": True}, "max_sources: got True"),
        ({"max_sources": 2.0}, "max_sources: got 2.0"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match="^" + says.replace("(", r"\(")):
        EventtimeWatermark(**settings)


def test_settings_are_frozen_read_once_and_compared_by_value() -> None:
    stage = EventtimeWatermark(timedelta(milliseconds=200))
    assert stage == EventtimeWatermark("200 ms") == EventtimeWatermark(200_000_000)
    assert stage.identity() == EventtimeWatermark("200 ms").identity()
    with pytest.raises(FrozenInstanceError):
        stage.late_tolerance = 0  # type: ignore[misc]


@pytest.mark.parametrize("settings", [{"interval": 0}, {"interval": "x"}, {"offset": None}])
def test_ticker_settings_that_do_not_fit(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        ProcessTimeWatermark(**settings)


def test_the_ticker_is_aligned_to_window_ends_and_needs_no_rows() -> None:
    stage = ProcessTimeWatermark("10 s", offset="3 s")
    state = stage.open(2)
    rows = pa.record_batch({"id": ["a"]})
    assert stage.wake_at(state) is None
    assert stage.wake(state, 10**12) == []  # a lane nobody has seen has no time
    out = stage.process(state, Collection.of(rows, np.array([0]), wall_ns=25 * 10**9))
    assert out[0].time_ns.tolist() == [23 * 10**9 - 1]  # type: ignore[union-attr]
    assert stage.wake_at(state) == 33 * 10**9
    (tick,) = stage.wake(state, 54 * 10**9)
    assert tick.time_ns.tolist() == [53 * 10**9 - 1]  # type: ignore[union-attr]
    # The clock was set back: the row stands behind the watermark, not under it.
    (data,) = stage.process(state, Collection.of(rows, np.array([0]), wall_ns=30 * 10**9))
    assert data.time_ns.tolist() == [53 * 10**9]  # type: ignore[union-attr]
    assert stage.metrics(state)["watermark_emitted_count"] == 2


# -- the kernels alone ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_order_is_by_lane_time_and_arrival(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 6))
    # Both ways to sort: a few rows and nearly sorted ones are moved, many far ones are not.
    rows = int(rng.integers(0, 200)) if seed % 2 else 5000
    span = int(rng.choice([1, 50, 10**6, 10**12, 2**62]))
    lanes = rng.integers(0, count, rows).astype(np.int32)
    times = rng.integers(-span, span, rows)
    if seed % 4 == 2:
        times = np.arange(rows) * 10 + rng.integers(0, 50, rows)
    expected = np.lexsort((np.arange(rows), times, lanes))
    assert order_rows(lanes, times, count).tolist() == expected.tolist()


def test_order_from_the_first_to_the_last_nanosecond() -> None:
    times = np.array([MAX_NS, 0, MIN_NS, -1, MAX_NS, MIN_NS])
    assert order_rows(np.zeros(6, np.int32), times, 1).tolist() == [2, 5, 3, 1, 0, 4]
    often = np.tile(times, 1000)
    expected = np.argsort(often, kind="stable")
    assert order_rows(np.zeros(6000, np.int32), often, 1).tolist() == expected.tolist()


def test_arrange_leaves_out_what_was_refused() -> None:
    lanes = np.array([1, 0, 1, 0, 1], np.int32)
    times = np.array([5, 9, 3, 2, 4])
    codes = np.array([0, 0, 0, 0, 1], np.int8)
    leaving, staying = arrange(lanes, times, codes, np.array([4, 5]), 2)
    assert [column.tolist() for column in leaving] == [[3, 2, 0], [2, 3, 5], [0, 1, 1]]
    assert [column.tolist() for column in staying] == [[1], [9], [0]]


@pytest.mark.parametrize("shape", ["mixed", "sorted", "far", "one lane"])
def test_arrange_by_several_threads_gives_the_same(shape: str) -> None:
    rng = np.random.default_rng(7)
    rows, count = 2 * threads.MANY, 1 if shape == "one lane" else 7
    lanes = rng.integers(0, count, rows).astype(np.int32)
    times = np.arange(rows) * 10 + rng.integers(0, 100, rows)
    if shape == "far":
        times = rng.permutation(times)
    codes = (rng.random(rows) < 0.01).astype(np.int8)
    if shape == "sorted":
        order = np.lexsort((times, lanes))
        lanes, times, codes = lanes[order], times[order], np.zeros(rows, np.int8)
    watermark = rng.integers(rows * 9, rows * 10, count)
    good = np.flatnonzero(codes == 0)
    order = good[np.lexsort((good, times[good], lanes[good]))]
    passed = times[order] <= watermark[lanes[order]]
    was = threads.count()
    try:
        for number in (1, 2, 3, 8):
            threads.use(number)
            for part, rows_of in zip(
                arrange(lanes, times, codes, watermark, count),
                (order[passed], order[~passed]),
                strict=True,
            ):
                assert np.array_equal(part.rows, rows_of)
                assert np.array_equal(part.time_ns, times[rows_of])
                assert np.array_equal(part.lane, lanes[rows_of])
    finally:
        threads.use(was)


def test_present_lanes_and_long_spans() -> None:
    assert present(np.array([4, 1, 4], np.int32), 6).tolist() == [1, 4]
    assert beyond(MAX_NS, MIN_NS) == MAX_NS
    assert beyond(5, -5) == 10
    assert beyond(MAX_NS, 0) == MAX_NS
