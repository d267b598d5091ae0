"""The stage: rows and schemas that come and go."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tidegate.core.chain import Chain
from tidegate.core.flow import Flow
from tidegate.core.outcomes import Collection, ControlSignal, Dropped, End, StreamError, Watermark
from tidegate.core.time import UNSET
from tidegate.errors import ConfigError, StateError
from tidegate.eventtime import Decoder, EventtimeWatermark, TimeColumn
from tidegate.sync import Synchronize

STAGE = Synchronize(("camera", "lidar"), queue_size=4, keys=("car",))


def collection(*messages: tuple[str, str | None, int]) -> Collection:
    cars, topics, times = zip(*messages, strict=True)
    rows = pa.record_batch(
        {
            "car": list(cars),
            "topic": pa.array(topics, pa.string()),
            "value": np.arange(len(times)) * 1.5,
            "frame": pa.array([b"x"] * len(times), pa.binary()),
        }
    )
    lanes = np.array([ord(car) - ord("a") for car in cars], np.int32)
    return Collection(rows, np.array(times, np.int64), lanes, wall_ns=77)


MESSAGES = [
    ("a", "camera", 0), ("b", "lidar", 5), ("a", "lidar", 10), ("b", "camera", 7),
    ("a", "camera", 30), ("b", "lidar", 40),
]  # fmt: skip


def test_a_set_is_one_row_with_a_struct_per_topic() -> None:
    state = STAGE.open(2)
    [made] = STAGE.process(state, collection(*MESSAGES))
    assert made.rows.schema.equals(STAGE.schema(collection(*MESSAGES).rows.schema))
    assert made.table().to_pylist() == [
        {
            "car": "a",
            "spread_ns": 10,
            "decided_at_ns": 30,
            "camera": {"value": 0.0, "frame": b"x", "time_ns": 0},
            "lidar": {"value": 3.0, "frame": b"x", "time_ns": 10},
            "time_ns": 10,
        },
        {
            "car": "b",
            "spread_ns": 2,
            "decided_at_ns": 40,
            "camera": {"value": 4.5, "frame": b"x", "time_ns": 7},
            "lidar": {"value": 1.5, "frame": b"x", "time_ns": 5},
            "time_ns": 7,
        },
    ]
    assert made.lane.tolist() == [0, 1]
    assert made.wall_ns == 77
    assert state.rows("held") == 2


def test_a_missing_optional_member_is_a_null_struct() -> None:
    stage = Synchronize(("camera", "lidar"), queue_size=4, optional=("lidar",), timeout=10)
    sent = collection(("a", "camera", 0), ("a", "camera", 20))
    [made] = stage.process(stage.open(), sent)
    assert made.rows.schema.equals(stage.schema(sent.rows.schema))
    rows = made.table().to_pylist()
    assert [row["lidar"] for row in rows] == [None, None]
    assert [row["camera"]["time_ns"] for row in rows] == [0, 20]
    assert [row["decided_at_ns"] for row in rows] == [20, 20]


def test_rows_of_no_topic_are_delivered_and_counted() -> None:
    state = STAGE.open()
    sent = collection(("a", None, 0), ("a", "radar", 1), ("a", "camera", 2))
    errors, dropped = STAGE.process(state, sent)
    assert isinstance(errors, StreamError)
    assert errors.table().to_pylist()[0]["error_column"] == "topic"
    assert isinstance(dropped, Dropped)
    assert dropped.table().to_pylist()[0]["reason"] == "unknown topic"
    assert STAGE.metrics(state)["unknown_topic"] == 1
    assert STAGE.metrics(state)["null_topic"] == 1
    assert STAGE.metrics(state)["rows_held"] == 1


def test_unmatched_rows_may_be_left_out_but_are_counted() -> None:
    sent = collection(*[("a", "camera", t) for t in range(10)], ("a", "radar", 10))
    loud, quiet = STAGE, Synchronize(("camera", "lidar"), queue_size=4, unmatched=False)
    for stage, wanted in ((loud, 7), (quiet, 1)):
        state = stage.open()
        [dropped] = stage.process(state, sent)
        assert len(dropped) == wanted
        assert stage.metrics(state)["overflow"] == 6
        assert stage.counters(state)["camera"]["overflow"] == 6
    assert [o.kind for o in quiet.flush(state)] == []
    assert quiet.metrics(state)["flush"] == 4


def test_dropped_rows_keep_their_own_time_and_columns() -> None:
    stage = Synchronize(("camera", "lidar"), queue_size=1, offsets={"camera": 1000})
    [dropped] = stage.process(stage.open(), collection(("a", "camera", 1), ("a", "camera", 2)))
    assert dropped.table().to_pylist() == [
        {"car": "a", "topic": "camera", "value": 0.0, "frame": b"x", "time_ns": 1,
         "reason": "overflow"}
    ]  # fmt: skip


def test_a_jump_of_the_clock_is_a_table_of_its_own() -> None:
    stage = Synchronize(("camera", "lidar"), queue_size=4, keys=("car",), max_jump_back=5)
    sent = collection(("a", "camera", 100), ("a", "camera", 10))
    out = stage.process(stage.open(), sent)
    [side] = [o for o in out if o.kind == "clock_jump"]
    assert side.table().to_pylist() == [
        {"car": "a", "topic": "camera", "time_ns": 10, "back_ns": 90}
    ]
    assert stage.side_schemas(sent.rows.schema) == {"clock_jump": side.rows.schema}
    assert STAGE.side_schemas(sent.rows.schema) == {}


def test_a_column_that_is_not_there_is_a_mistake_in_the_definition() -> None:
    rows = pa.schema([("car", pa.string()), ("name", pa.string())])
    with pytest.raises(ConfigError, match="topic: got 'topic', must be a column"):
        STAGE.schema(rows)
    with pytest.raises(ConfigError, match="keys: got 'car'"):
        STAGE.schema(pa.schema([("topic", pa.string())]))


def test_the_watermark_waits_for_a_set_that_may_still_come() -> None:
    state = STAGE.open()
    STAGE.process(state, collection(("a", "camera", 10)))
    [mark] = STAGE.advance(state, Watermark.at(15))
    assert mark.time_ns.tolist() == [15]  # the lidar message to come is younger than that
    STAGE.process(state, collection(("a", "lidar", 20)))
    [mark] = STAGE.advance(state, Watermark.at(50))
    assert mark.time_ns.tolist() == [19]  # the set of 10 and 20 is not decided yet
    STAGE.process(state, collection(("a", "camera", 60)))
    [mark] = STAGE.advance(state, Watermark.at(70))
    assert mark.time_ns.tolist() == [70]
    assert STAGE.advance(state, Watermark.at(70)) == []


def test_a_quick_end_says_what_it_discards() -> None:
    state = STAGE.open(2)
    STAGE.process(state, collection(*MESSAGES))
    assert STAGE.discard(state) == {"rows_held": 2}
    assert state.rows("held") == 0
    assert (state["search"] == 0).all()
    assert (state["topics"] == 0).all()
    assert (state["handed"] == UNSET).all()


def test_flush_of_some_lanes_leaves_the_others() -> None:
    state = STAGE.open(2)
    STAGE.process(state, collection(*MESSAGES))
    [gone] = STAGE.flush(state, np.array([1], np.int32))
    assert gone.table().column("car").to_pylist() == ["b"]
    assert state.tables["held"].column("car").to_pylist() == ["a"]
    chain = Chain((STAGE,))
    [rest] = chain.control([state], ControlSignal.end(End.GRACEFUL))
    assert rest.table().column("car").to_pylist() == ["a"]
    assert STAGE.flush(STAGE.open()) == []


def test_lanes_beyond_the_state_make_it_grow() -> None:
    state = STAGE.open(1)
    assert len(STAGE.process(state, collection(*MESSAGES))[0]) == 2
    assert state.lanes >= 2


def test_a_snapshot_of_other_settings_is_refused() -> None:
    blob = STAGE.snapshot(STAGE.open())
    other = Synchronize(("camera", "lidar"), queue_size=5, keys=("car",))
    with pytest.raises(StateError, match="made with other settings"):
        other.restore(blob)
    assert STAGE.restore(blob).lanes == 1


def test_why_a_lane_has_no_sets() -> None:
    state = STAGE.open(2)
    STAGE.process(state, collection(*(("b", "camera", 300 * k) for k in range(4))))
    found = STAGE.diagnose(state, 1)
    assert (found.problem, found.topic, found.by_ns) == ("silent", "lidar", 900)
    assert STAGE.diagnose(state, 0).problem == "starting"


def test_behind_the_event_time_stage_in_a_flow() -> None:
    decoder = Decoder((TimeColumn("t", "unixtimestamp_ms"),))
    stage = Synchronize(("camera", "lidar"), queue_size=10, keys=("car",))
    flow = Flow([EventtimeWatermark("100 ms"), stage], key="car", decoder=decoder)
    rng = np.random.default_rng(2)
    periods = np.repeat(np.arange(50) * 100, 2) + np.tile([0, 7], 50)
    arrival = np.argsort(periods + rng.integers(0, 90, 100), kind="stable")
    rows = pa.record_batch(
        {
            "car": ["a"] * 100,
            "topic": np.tile(["camera", "lidar"], 50)[arrival],
            "t": periods[arrival],
        }
    )
    out = [*flow.process(rows), *flow.end()]
    sets = [row for o in out if o.kind == "data" for row in o.table().to_pylist()]
    assert [s["spread_ns"] for s in sets] == [7_000_000] * 50
    assert [s["camera"]["t"] for s in sets] == list(range(0, 5000, 100))


def test_warm_compiles_without_data() -> None:
    STAGE.compile()
    Synchronize(("camera", "lidar"), queue_size=4, policy="exact").compile()
