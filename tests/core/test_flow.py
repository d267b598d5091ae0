"""Keys get lanes, silent ones are forgotten, and only pages that changed are written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.core.columns import LANE
from tidegate.core.flow import Flow
from tidegate.core.operator import Operator
from tidegate.core.outcomes import Collection, End, Outcome
from tidegate.deltas import Compact
from tidegate.errors import ConfigError, StateError
from tidegate.eventtime import Decoder, EventtimeWatermark, ProcessTimeWatermark, TimeColumn
from tidegate.sync import Synchronize

SECONDS = Decoder((TimeColumn("t", "unixtimestamp_s"),))


def make(*stages: Operator, **settings: Any) -> Flow:
    return Flow(
        stages or [EventtimeWatermark("5 s")], **{"key": "k", "decoder": SECONDS, **settings}
    )


def rows(keys: str, first: int = 0) -> pa.RecordBatch:
    return pa.record_batch({"k": list(keys), "t": np.arange(first, first + len(keys))})


def ids(outcomes: list[Outcome]) -> list[tuple[str, int]]:
    return [
        (row["k"], row["t"])
        for outcome in outcomes
        if isinstance(outcome, Collection)
        for row in outcome.rows.to_pylist()
    ]


def test_each_key_has_its_own_order_and_watermark() -> None:
    flow = make()
    out = flow.process(pa.record_batch({"k": list("aabb"), "t": [1, 10, 2, 3]}))
    assert ids(out) == [("a", 1)]
    out = flow.process(pa.record_batch({"k": list("ab"), "t": [5, 5]}))
    assert [o.kind for o in out] == ["watermark", "late"]
    assert ids(flow.end()) == [("a", 10), ("b", 2), ("b", 3), ("b", 5)]


def test_lanes_are_numbered_as_keys_come_and_kept() -> None:
    flow = make()
    flow.process(rows("bca"))
    flow.process(rows("zab"))
    assert [flow.find_lane(key) for key in "bcaz"] == [0, 1, 2, 3]
    assert flow.find_lane("unseen") is None


def test_a_key_of_several_columns() -> None:
    flow = make(key=["k", "n"])
    flow.process(pa.record_batch({"k": list("aab"), "n": [1, 2, None], "t": [1, 2, 3]}))
    flow.process(pa.record_batch({"k": list("ba"), "n": [None, 2], "t": [1, 2]}))
    assert flow.metrics()["keys"] == 3
    assert flow.find_lane("a", 2) == 1
    other = make(key=["k", "n"])
    other.restore(flow.snapshot())
    assert other.find_lane("b", None) == flow.find_lane("b", None) == 2


def test_without_a_key_there_is_one_lane() -> None:
    flow = make(key=None)
    flow.process(rows("abc"))
    assert flow.metrics()["keys"] == 1
    other = make(key=None)
    other.restore(flow.snapshot())
    assert ids(other.end()) == ids(flow.end()) == [("a", 0), ("b", 1), ("c", 2)]


def test_a_key_may_not_have_our_own_name() -> None:
    with pytest.raises(ConfigError, match="key"):
        make(key=LANE)


def test_nothing_in_nothing_out() -> None:
    flow = make()
    assert flow.process(rows("").cast(rows("a").schema)) == []
    assert flow.end() == []
    assert flow.metrics()["rows_in"] == 0
    assert flow.wake_at() is None


def test_counters() -> None:
    flow = make()
    flow.process(pa.record_batch({"k": list("aab"), "t": ["1", "x", None]}))
    metrics = flow.metrics()
    assert (metrics["rows_in"], metrics["parse_error_count"], metrics["keys"]) == (3, 2, 1)
    assert metrics["eventtime_watermark.rows_held"] == 1
    assert metrics["state_bytes"] > 0


def test_a_quick_end_discards_and_counts() -> None:
    flow = make()
    flow.process(rows("aab"))
    assert flow.end(End.QUICK) == []
    assert flow.metrics()["eventtime_watermark.discarded_count"] == 3
    assert flow.metrics()["eventtime_watermark.rows_held"] == 0
    assert flow.end() == []


# -- forgetting ---------------------------------------------------------------------------------


def test_silent_keys_are_flushed_and_their_lanes_used_again() -> None:
    flow = make(forget=100)
    flow.process(rows("ab"), wall_ns=0)
    flow.process(rows("b", 2), wall_ns=60)
    assert flow.wake_at() == 101
    assert ids(flow.wake(101)) == [("a", 0)]
    assert flow.metrics()["keys"] == 1
    flow.process(rows("c"), wall_ns=110)
    assert (flow.find_lane("c"), flow.find_lane("b")) == (0, 1)
    # A lane that is used again knows nothing of the key before: an old time is not late for it.
    assert ids(flow.end()) == [("c", 0), ("b", 1), ("b", 2)]


def test_exactly_at_the_limit_a_key_is_kept() -> None:
    flow = make(forget=100)
    flow.process(rows("a"), wall_ns=0)
    assert flow.wake(100) == []
    assert flow.metrics()["keys"] == 1


def test_memory_is_flat_when_keys_come_and_go() -> None:
    flow = make(forget=10)
    sizes = []
    for step in range(200):
        wall = step * 20
        flow.wake(wall)
        flow.process(pa.record_batch({"k": [f"k{step:03d}"], "t": [step]}), wall)
        sizes.append(flow.metrics()["state_bytes"])
    assert flow.metrics()["keys"] == 1
    assert sizes[-1] <= max(sizes[:5])
    assert flow.lanes.lanes <= 4


# -- pages ----------------------------------------------------------------------------------------


@pytest.fixture
def _pages_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.core.flow.PAGE_LANES", 2)


@pytest.mark.usefixtures("_pages_of_two")
def test_only_pages_that_changed_are_written() -> None:
    flow = make()
    flow.process(rows("abcdef"))
    assert sorted(flow.pages(changed=True)) == [0, 1, 2]
    assert sorted(flow.pages(changed=True)) == [0]  # the counters are always written
    flow.process(rows("e", 9))
    assert sorted(flow.pages(changed=True)) == [0, 2]
    assert sorted(flow.pages()) == [0, 1, 2]


@pytest.mark.usefixtures("_pages_of_two")
def test_a_forgotten_key_is_written_as_such() -> None:
    flow = make(forget=10)
    flow.process(rows("abcd"), wall_ns=0)
    store = flow.pages(changed=True)
    flow.process(rows("a"), wall_ns=50)
    flow.wake(55)
    written = flow.pages(changed=True)
    assert sorted(written) == [0, 1]
    other = make(forget=10)
    other.load({**store, **written})
    assert other.metrics()["keys"] == 1
    assert other.find_lane("a") == 0
    other.process(rows("xyz"), wall_ns=56)
    assert sorted(other.find_lane(key) for key in "axyz") == [0, 1, 2, 3]


@pytest.mark.usefixtures("_pages_of_two")
def test_loading_no_pages_is_a_new_flow() -> None:
    flow = make()
    flow.load({})
    assert ids(flow.process(rows("a")) + flow.end()) == [("a", 0)]


def test_a_snapshot_of_a_stage_is_not_one_of_a_flow() -> None:
    stage = EventtimeWatermark("5 s")
    with pytest.raises(StateError, match="not that of a flow"):
        make().restore(stage.snapshot(stage.open()))
    with pytest.raises(StateError, match="another plan"):
        stage.restore(make().snapshot())


def test_processing_time_in_a_flow() -> None:
    flow = make(ProcessTimeWatermark(10), decoder=Decoder())
    out = flow.process(rows("ab"), wall_ns=14)
    assert [o.kind for o in out] == ["watermark", "data"]
    assert out[1].time_ns.tolist() == [14, 14]  # type: ignore[union-attr]
    assert flow.wake_at() == 20
    (watermark,) = flow.wake(20)
    assert watermark.time_ns.tolist() == [19, 19]  # type: ignore[union-attr]


def test_a_stage_cannot_have_keys_that_the_flow_does_not_keep_apart() -> None:
    """Sets of several vehicles would bear the name of one of them."""
    stages = [EventtimeWatermark("5 s"), Synchronize(["a", "b"], queue_size=3, keys="k")]
    with pytest.raises(ConfigError, match=r"keys: got 'k', is no key of this Flow, so Synchronize"):
        make(*stages, key=None)
    assert make(*stages).keys == ("k",)


def test_a_table_is_one_collection_and_other_things_are_refused() -> None:
    table = pa.Table.from_batches([rows("aba"), rows("b", 30)])
    flow, same = make(), make()
    assert ids(flow.process(table) + flow.end()) == ids(
        same.process(table.combine_chunks().to_batches()[0]) + same.end()
    )
    assert flow.process(table.slice(0, 0)) == []
    with pytest.raises(ConfigError, match=r"rows: got 'list', must be a pyarrow\.RecordBatch or"):
        flow.process([{"k": "a", "t": 1}])  # type: ignore[arg-type]


def test_rows_that_the_next_stage_cannot_read_are_not_restored() -> None:
    """A state that somebody changed: what it holds would end a later call, far from its cause."""
    stages = [EventtimeWatermark("5 s"), Compact(2)]
    flow = make(*stages, key=None)
    delta = {"t": 1, "delta_id": "a", "vector_id": "v", "op": "create", "values": [1.0, 2.0]}
    flow.process(pa.RecordBatch.from_pylist([delta]))
    make(*stages, key=None).restore(flow.snapshot())
    held = flow.states[0].tables["held"]
    place = held.schema.get_field_index("values")
    flow.states[0].tables["held"] = held.set_column(place, "values", pa.array(["1, 2"]))
    with pytest.raises(StateError, match="holds rows with values: got a column of type string"):
        make(*stages, key=None).restore(flow.snapshot())


def test_times_that_look_like_a_wrong_unit_are_told() -> None:
    """Milliseconds that are read as nanoseconds: everything fits together, a million times too
    closely, early in 1970."""
    flow = Flow(
        [EventtimeWatermark("1 s")],
        decoder=Decoder((TimeColumn("t", "unixtimestamp_ns"),)),
    )
    flow.process(pa.record_batch({"t": [1_700_000_000_000, 1_700_000_000_500]}))
    (told,) = flow.warnings()
    assert told.startswith("the newest event time is 1970-01-01T00:28:20.000000500Z: if these are")
    right = make(key=None)
    right.process(pa.record_batch({"t": [0, 5, 1_700_000_000]}))
    assert right.warnings() == []


def test_a_time_column_that_is_not_there_is_refused() -> None:
    """Every row would be an error. One that comes later is no mistake."""
    flow = Flow(
        [EventtimeWatermark("0 ns")],
        decoder=Decoder((TimeColumn("stmp", "unixtimestamp_ns"),)),
    )
    with pytest.raises(ConfigError, match="column: got 'stmp', is not among the columns: stamp, v"):
        flow.process(pa.record_batch({"stamp": [1], "v": [2]}))
    tuples = Flow(
        [EventtimeWatermark("0 ns")],
        decoder=Decoder(
            (TimeColumn("t", "unixtimestamp_ns", "a"), TimeColumn("t", "unixtimestamp_ns", "b"))
        ),
    )
    out = tuples.process(pa.record_batch({"b": [{"t": 7}]}))
    assert [o.kind for o in out if len(o)][:1] == ["data"]
