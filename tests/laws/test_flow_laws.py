"""What a run says adds up; user columns are never touched; a flow refuses what it cannot do."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.batching import Batch
from tidegate.core import columns
from tidegate.core.flow import Flow
from tidegate.core.operator import Operator
from tidegate.core.outcomes import Collection, Dropped, End, Outcome
from tidegate.core.state import Layout, State
from tidegate.errors import ConfigError
from tidegate.eventtime import Decoder, EventtimeWatermark, TimeColumn
from tidegate.sync import Synchronize
from tidegate.windows import Tumbling, Window

SECONDS = Decoder((TimeColumn("t", "unixtimestamp_s"),))


class DropsOdd(Operator):
    """Drops rows with an odd id and expects two topics."""

    name = "drops_odd"

    def layout(self) -> Layout:
        return Layout()

    def process(self, state: State, collection: Collection) -> list[Outcome]:
        odd = collection.rows.column("id").to_numpy() % 2 == 1
        gone, kept = np.flatnonzero(odd), np.flatnonzero(~odd)
        out: list[Outcome] = []
        if len(gone):
            part = collection.take(gone)
            reason = pa.array(["odd"] * len(gone))
            out.append(Dropped(part.rows, part.time_ns, part.lane, reason))
        return [*out, collection.take(kept)] if len(kept) else out

    def settings(self) -> dict[str, Any]:
        return {}

    def expected_names(self) -> dict[str, tuple[str, ...]]:
        return {"topic": ("lidr", "camera")}


rows = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 60), st.booleans()), min_size=1, max_size=20
)


def batch(found: list[tuple[str, int, bool]], first: int = 0) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "k": [key for key, _, _ in found],
            "t": ["bad" if bad else str(time) for _, time, bad in found],
            "id": np.arange(first, first + len(found)),
            "topic": ["lidar", "camera"] * (len(found) // 2) + ["lidar"] * (len(found) % 2),
        }
    )


@settings(max_examples=100, deadline=None)
@given(
    parts=st.lists(st.tuples(rows, st.integers(0, 50)), min_size=1, max_size=5),
    tolerances=st.lists(st.integers(0, 8), min_size=1, max_size=3),
    drops=st.booleans(),
    skew=st.none() | st.integers(1, 20),
    restart=st.booleans(),
    quick=st.booleans(),
)
def test_rows_in_are_rows_out_behind_any_number_of_stages(
    parts: Any, tolerances: list[int], drops: bool, skew: int | None, restart: bool, quick: bool
) -> None:
    """Before and after every call: in = in order + late + errors + dropped + held, for the flow and
    for each stage, also across restarts and when keys are forgotten."""

    def make() -> Flow:
        skews: dict[str, Any] = {} if skew is None else {"max_future_skew": f"{skew} s"}
        stages: list[Operator] = [EventtimeWatermark(f"{t} s", **skews) for t in tolerances]
        return Flow(stages + [DropsOdd()] * drops, key="k", decoder=SECONDS, forget=60)

    flow, seen, came, wall = make(), Counter[str](), 0, 0
    for found, later in parts:
        wall += later
        came += len(found)
        out = flow.process(batch(found, came), wall) + flow.wake(wall)
        for outcome in out:
            seen[outcome.kind] += len(outcome)
        check(flow, came, seen)
        if restart:
            flow, before = make(), flow
            flow.restore(before.snapshot())
    for outcome in flow.end(End.QUICK if quick else End.GRACEFUL):
        seen[outcome.kind] += len(outcome)
    check(flow, came, seen)


def check(flow: Flow, came: int, seen: Counter[str]) -> None:
    said = flow.metrics()
    held = sum(value for name, value in said.items() if name.endswith(".rows_held"))
    gone = sum(value for name, value in said.items() if name.endswith(".discarded_count"))
    assert said["rows_in"] == came
    left = seen["data"] + seen["late"] + seen["error"] + seen["dropped"]
    assert came == left + held + gone
    into = came - said["parse_error_count"]
    for label in flow.chain.labels:
        stage = {n.split(".")[1]: v for n, v in said.items() if n.startswith(label + ".")}
        assert stage["rows_in"] == into
        own_late = stage["late_out"] - stage["late_in"]
        refused = own_late + stage["error_out"] + stage["dropped_out"]
        waits = stage.get("rows_held", 0) + stage.get("discarded_count", 0)
        assert stage["rows_in"] == stage["rows_out"] + refused + waits
        into = stage["rows_out"]
    assert into == seen["data"]


def test_keys_furthest_behind() -> None:
    flow = Flow([EventtimeWatermark("1 s")], key="k", decoder=SECONDS)
    flow.process(pa.record_batch({"k": list("abc"), "t": [100, 10, 50]}))
    assert [(lag.key, lag.lag_ns // 10**9) for lag in flow.lagging(2)] == [("b", 90), ("c", 50)]
    said = flow.metrics()
    names = ("watermark_lowest", "watermark_median", "current_watermark")
    marks = [said[f"eventtime_watermark.{name}"] // 10**9 for name in names]
    assert marks == [9, 49, 99]


def test_names_that_never_occur_are_said() -> None:
    flow = Flow([EventtimeWatermark(0), DropsOdd()], decoder=SECONDS)
    assert flow.warnings() == []
    flow.process(batch([("a", 1, False), ("a", 2, False)]))
    assert flow.warnings() == ["topic 'lidr' was never seen; seen: camera, lidar"]
    assert flow.metrics()["names_never_seen"] == 1
    other = Flow([EventtimeWatermark(0), DropsOdd()], decoder=SECONDS)
    other.restore(flow.snapshot())
    assert other.warnings() == flow.warnings()


def test_a_stage_that_needs_time_and_gets_none_is_refused() -> None:
    for decoder in (None, Decoder()):
        with pytest.raises(ConfigError, match=r"needs the time of each row.*pass decoder=Decoder"):
            Flow([EventtimeWatermark(0)], decoder=decoder)


def test_columns_that_appear_in_the_middle_by_choice() -> None:
    first, second = pa.record_batch({"t": [1]}), pa.record_batch({"t": [2], "new": ["x"]})
    flow = Flow([EventtimeWatermark("9 s")], decoder=SECONDS)
    out = flow.process(first) + flow.process(second) + flow.end()
    (data,) = (o for o in out if isinstance(o, Collection))
    assert data.rows.to_pylist() == [{"t": 1, "new": None}, {"t": 2, "new": "x"}]
    strict = Flow([EventtimeWatermark("9 s")], decoder=SECONDS, new_columns="refuse")
    strict.process(first)
    again = Flow([EventtimeWatermark("9 s")], decoder=SECONDS, new_columns="refuse")
    again.restore(strict.snapshot())
    (error,) = again.process(second)
    assert error.table().to_pylist()[0] == {  # type: ignore[union-attr]
        "t": 2, "new": "x", "error_column": "new", "error_value": "x",
        "error_reason": "column 'new' is not among those the stream began with",
    }  # fmt: skip
    assert again.metrics()["new_column_error_count"] == 1
    assert len(again.process(first)) == 0


OURS = sorted(
    value
    for name, value in vars(columns).items()
    if name.isupper() and isinstance(value, str) and name != "PREFIX"
)
NAMES = [
    "__time", "__lane", "__shard", "__time_ns", "__slot", "__where", "__place", "__serial",
    "__late", "__waits", "__bytes", "__next", "a.b", "a`b", "a b", "", "ü", "T", "tidegate_reason",
    *(name for name in OURS if not name.startswith(columns.PREFIX)),
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("hold", [True, False])
def test_user_columns_are_never_touched(name: str, hold: bool) -> None:
    """Any name but ours: data, late, error and dropped rows have the user's values in it."""
    flow = Flow([EventtimeWatermark("1 s", hold=hold), DropsOdd()], key="k", decoder=SECONDS)
    given_rows = pa.record_batch(
        {"k": list("aaaaa"), "t": ["9", "20", "x", "3", "21"], "id": [0, 2, 4, 6, 7],
         "topic": ["lidar"] * 5, name: ["v0", "v2", "v4", "v6", "v7"]}
    )  # fmt: skip
    out = flow.process(given_rows)
    again = Flow([EventtimeWatermark("1 s", hold=hold), DropsOdd()], key="k", decoder=SECONDS)
    again.restore(flow.snapshot())
    found = {}
    kinds = Counter[str]()
    for outcome in out + again.end():
        if outcome.kind != "watermark":
            table = outcome.table()  # type: ignore[union-attr]
            kinds[outcome.kind] += len(outcome)
            values = table.column(table.schema.names.index(name)).to_pylist()
            found.update(zip(table.column("id").to_pylist(), values, strict=True))
    assert kinds == {"data": 2, "late": 1, "error": 1, "dropped": 1}
    assert found == {0: "v0", 2: "v2", 4: "v4", 6: "v6", 7: "v7"}


@pytest.mark.parametrize("name", [name for name in OURS if name.startswith(columns.PREFIX)])
def test_internal_names_are_refused_wherever_they_are_given(name: str) -> None:
    with pytest.raises(ConfigError, match="are internal; rename the column"):
        Flow([], key=name)
    with pytest.raises(ConfigError, match="are internal; rename the column"):
        TimeColumn(name, "iso8601")
    with pytest.raises(ConfigError, match="are internal; rename the column"):
        Flow([]).process(pa.record_batch({name: [1]}))


def test_a_key_that_no_row_has_is_refused() -> None:
    """A misspelt key would put all vehicles into one lane, without a word."""
    flow = Flow([EventtimeWatermark()], key=["car", "vehicel"], decoder=SECONDS)
    with pytest.raises(ConfigError, match="key: got 'vehicel', must be a column of the rows: t, c"):
        flow.process(pa.record_batch({"t": [1], "car": ["a"]}))
    flow.process(pa.record_batch({"t": [1], "car": ["a"], "vehicel": ["b"]}))
    flow.process(pa.record_batch({"t": [2], "car": ["a"]}))  # once seen, it may be missing: null
    assert flow.metrics()["keys"] == 2


@pytest.mark.parametrize(
    "stage", [Synchronize(("a", "b"), queue_size=5), Batch(gated=("a",)), Window(Tumbling("1 s"))]
)
def test_every_stage_that_decides_by_time_is_refused_without_one(stage: Operator) -> None:
    """Found by a user: `Flow([Synchronize(...)])` gave 52 sets of spread 0, all stamps being 0."""
    with pytest.raises(ConfigError, match=rf"{type(stage).__name__} needs the time of each row"):
        Flow([stage])
    if not stage.expected_names():
        return
    flow = Flow([stage], decoder=SECONDS)
    flow.process(pa.record_batch({"t": [1, 2], "topic": ["x", "y"]}))
    assert flow.warnings()[0] == "topic 'a' was never seen; seen: x, y"
