"""Adoption: equal settings change nothing, changed ones hold from then on, the rest is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from golden.cases import CASES, HALF, WHOLE
from tidegate import align
from tidegate.batching import Batch
from tidegate.core import snapshot
from tidegate.core.chain import Chain
from tidegate.core.flow import Flow, regroup
from tidegate.core.operator import Operator
from tidegate.core.outcomes import Collection, Outcome, Watermark
from tidegate.core.snapshot import FoundStage
from tidegate.core.state import State
from tidegate.core.time import parse_duration
from tidegate.deltas import Compact
from tidegate.errors import StateError
from tidegate.eventtime import Decoder, EventtimeWatermark, TimeColumn
from tidegate.sync import Synchronize
from tidegate.testing.laws import cut, rows_of
from tidegate.windows import (
    Adaptive,
    AfterCount,
    AtWatermark,
    CountWindow,
    NextWindow,
    Reemit,
    Session,
    SideOutput,
    Sliding,
    Tumbling,
    Window,
)

MS = 1_000_000


def found(stages: tuple[Operator, ...], states: list[State]) -> list[FoundStage]:
    """The stages as a snapshot has them: through the codec, without a layout of anybody."""
    pairs = [(stage.identity(), state) for stage, state in zip(stages, states, strict=True)]
    return snapshot.read_stages(snapshot.encode(pairs, {}))[0]


def adopted(
    old: tuple[Operator, ...], new: tuple[Operator, ...], parts: list[Collection], at: int
) -> tuple[list[Outcome], list[Outcome]]:
    """Run `old` up to part `at`, let `new` adopt its state, and run the rest. What came out before,
    and what came from the adoption on."""
    first, second = Chain(old), Chain(new)
    states = first.open(2)
    before = [outcome for part in parts[:at] for outcome in first.process(states, part)]
    states, after = second.adopt(found(first.stages, states), states[0].lanes)
    for part in parts[at:]:
        after += second.process(states, part)
    return before, after + second.flush(states)


def straight(stages: tuple[Operator, ...], parts: list[Collection]) -> list[Outcome]:
    chain = Chain(stages)
    states = chain.open(2)
    return [o for part in parts for o in chain.process(states, part)] + chain.flush(states)


@pytest.mark.parametrize("name", CASES)
@examples(max_examples=20, deadline=None)
@given(at=st.lists(st.integers(0, WHOLE), min_size=1, max_size=4), which=st.integers(0, 4))
def test_equal_settings_change_nothing(name: str, at: list[int], which: int) -> None:
    make, rows = CASES[name]
    parts = cut(rows(0, WHOLE), at)
    before, after = adopted(make(), make(), parts, which % (len(parts) + 1))
    assert rows_of(before + after, watermarks=True) == rows_of(
        straight(make(), parts), watermarks=True
    )


# -- the watermark ---------------------------------------------------------------------------------


def collections() -> st.SearchStrategy[Collection]:
    rows = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 80)), min_size=2, max_size=40)

    def build(found: list[tuple[int, int]]) -> Collection:
        lane, time = (list(column) for column in zip(*found, strict=True))
        batch = pa.record_batch({"id": pa.array(range(len(found)))})
        return Collection(batch, np.array(time, np.int64), np.array(lane, np.int32), 0)

    return rows.map(build)


def settings() -> st.SearchStrategy[EventtimeWatermark]:
    return st.builds(
        EventtimeWatermark,
        late_tolerance=st.integers(0, 20),
        late=st.sampled_from(["side_output", "drop"]),
        max_future_skew=st.none() | st.integers(0, 30),
        skew_confirm=st.integers(1, 4),
        idle_timeout=st.none() | st.integers(1, 20),
        hold=st.booleans(),
        late_in_order=st.booleans(),
    )


@examples(deadline=None)
@given(old=settings(), new=settings(), rows=collections(), at=st.integers(0, 40))
def test_any_change_of_the_watermark_keeps_every_row_and_never_goes_back(
    old: EventtimeWatermark, new: EventtimeWatermark, rows: Collection, at: int
) -> None:
    parts = cut(rows, [at])
    before, after = adopted((old,), (new,), parts, 1)
    marks: dict[int, int] = {}
    for outcome in before + after:
        if isinstance(outcome, Watermark):
            for lane, time_ns in zip(outcome.lane.tolist(), outcome.time_ns.tolist(), strict=True):
                assert time_ns > marks.get(lane, -(2**62))
                marks[lane] = time_ns
    left = [
        i for o in before + after if not isinstance(o, Watermark) for i in o.rows["id"].to_pylist()
    ]
    assert len(left) == len(set(left))
    if "drop" not in (old.late, new.late):
        assert sorted(left) == list(range(len(rows)))


@examples(deadline=None)
@given(rows=collections(), at=st.integers(1, 39), wider=st.integers(0, 30))
def test_a_wider_tolerance_changes_nothing_that_was_decided(
    rows: Collection, at: int, wider: int
) -> None:
    """Before the change all is as it was; from it on a row is late only at or below the watermark
    that the old tolerance reached, or the one that the new tolerance reaches."""
    parts = cut(rows, [at])
    if len(parts) < 2:
        return
    old, new = EventtimeWatermark(5), EventtimeWatermark(5 + wider)
    before, after = adopted((old,), (new,), parts, 1)
    chain = Chain((old,))
    states = chain.open(2)
    assert rows_of(before) == rows_of(chain.process(states, parts[0]))
    mark, newest = states[0]["watermark"].copy(), states[0]["newest"][:, 0].copy()
    late = []
    for lane, time_ns, number in zip(
        parts[1].lane, parts[1].time_ns, parts[1].rows["id"].to_pylist(), strict=True
    ):
        if time_ns <= mark[lane]:
            late.append(number)
        newest[lane] = max(newest[lane], time_ns)
        mark[lane] = max(mark[lane], newest[lane] - 5 - wider)
    told = [i for o in after if o.kind == "late" for i in o.rows["id"].to_pylist()]
    assert sorted(told) == sorted(late)


# -- flows -----------------------------------------------------------------------------------------


def make_flow(*stages: Operator, key: str = "key", **more: Any) -> Flow:
    return Flow(stages, key=key, decoder=Decoder((TimeColumn("t", "unixtimestamp_ms"),)), **more)


def some_rows(first: int, last: int, keys: int = 3) -> pa.RecordBatch:
    number = np.arange(first, last)
    return pa.record_batch(
        {"key": number % keys, "t": number * 10 + number * 7919 % 11, "id": number}
    )


def test_a_flow_adopts_what_its_stages_adopt() -> None:
    old, new = make_flow(EventtimeWatermark("1 s")), make_flow(EventtimeWatermark("0 ms"))
    old.process(some_rows(0, 60))
    assert new.adopt(old.snapshot()) == []
    data = [o for o in new.process(some_rows(60, 63)) if o.kind == "data"]
    assert sum(map(len, data)) == 63
    assert new.metrics()["rows_in"] == 63
    again = make_flow(EventtimeWatermark("0 ms"))
    again.restore(new.snapshot())  # all pages name the new settings


def test_a_refused_change_is_shown_in_two_columns_and_changes_nothing() -> None:
    old = make_flow(EventtimeWatermark("1 s"))
    old.process(some_rows(0, 60))
    new = make_flow(EventtimeWatermark("2 s", source="id"))
    with pytest.raises(StateError) as error:
        new.adopt(old.snapshot())
    said = str(error.value)
    assert "eventtime_watermark: source   -             id" in said
    assert "late_tolerance" not in said  # that one could be adopted
    assert new.metrics()["keys"] == 0
    with pytest.raises(StateError, match=r"1000000000 +2000000000"):
        make_flow(EventtimeWatermark("2 s")).restore(old.snapshot())


def test_another_key_is_refused() -> None:
    old = make_flow(EventtimeWatermark("1 s"))
    old.process(some_rows(0, 60))
    with pytest.raises(StateError, match="kept by key"):
        make_flow(EventtimeWatermark("1 s"), key="id").adopt(old.snapshot())


def test_a_removed_stage_lets_go_of_what_it_holds_with_a_reason() -> None:
    old = make_flow(EventtimeWatermark("1 s"))
    old.process(some_rows(0, 60))
    held = old.metrics()["eventtime_watermark.rows_held"]
    new = make_flow()
    out = new.adopt(old.snapshot())
    assert [o.kind for o in out] == ["dropped"]
    assert len(out[0]) == held > 0
    assert set(out[0].reason.to_pylist()) == {"stage_removed"}  # type: ignore[union-attr]
    assert out[0].table().schema.names == ["key", "t", "id", "time_ns", "reason"]


def test_many_pages_are_adopted_and_all_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.core.flow.PAGE_LANES", 4)
    old = make_flow(EventtimeWatermark("1 s"))
    old.process(some_rows(0, 200, keys=30))
    pages = old.pages()
    new = make_flow(EventtimeWatermark("2 s"))
    new.load(pages, adopt=True)
    written = new.pages(changed=True)
    assert sorted(written) == sorted(pages)
    assert len(pages) == 8
    mixed = {**pages, 3: written[3]}
    with pytest.raises(StateError, match="different stages"):
        make_flow(EventtimeWatermark("2 s")).load(mixed, adopt=True)


# -- changed settings, operator by operator --------------------------------------------------------

TOPICS = ("camera", "lidar", "imu")


def tick(first: int, last: int, topics: int = 3) -> Collection:
    """Messages of three topics, one key, in order; the third topic comes rarely."""
    number = np.arange(first, last)
    topic = [TOPICS[n % 3] if n % 3 < topics else TOPICS[0] for n in number]
    rows = pa.record_batch({"topic": topic, "id": number, "value": number / 2.0})
    return Collection.of(rows, number * 10 * MS, int(last) * 10 * MS)


def ids(outcomes: list[Outcome], kind: str = "data") -> list[int]:
    """The ids of rows of one kind; of sets and aligned rows, those of their members."""
    out: list[int] = []
    for outcome in outcomes:
        if outcome.kind != kind or isinstance(outcome, Watermark):
            continue
        for row in outcome.rows.to_pylist():
            members = [row] if "id" in row else [v for v in row.values() if isinstance(v, dict)]
            out += [member["id"] for member in members if member is not None]
    return out


SYNC_CHANGES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"queue_size": 20}, {"queue_size": 40}),
    ({"queue_size": 40}, {"queue_size": 3}),
    ({"queue_size": 5}, {"queue_time": "1 s", "max_queue": 100}),
    ({"max_interval": "50 ms"}, {"max_interval": "5 ms"}),
    ({"max_interval": "5 ms"}, {}),
    ({"age_penalty": 0.1}, {"age_penalty": 3.0}),
    ({}, {"optional": ("imu",), "timeout": "100 ms"}),
    ({"optional": ("imu",), "timeout": "100 ms"}, {}),
    ({"learn_bounds": True}, {"learn_bounds": False}),
    ({"policy": "exact", "queue_size": 30}, {"policy": "exact", "queue_size": 4}),
    ({"policy": "exact", "queue_size": 3}, {"policy": "exact", "queue_size": 50}),
    ({"unmatched": True}, {"diagnosis": True, "max_jump_back": "1 s", "overflow_patience": 3}),
]


@pytest.mark.parametrize(("old", "new"), SYNC_CHANGES)
@pytest.mark.parametrize("topics", [2, 3])
@examples(max_examples=15, deadline=None)
@given(at=st.integers(1, 119), shuffle=st.randoms(use_true_random=False))
def test_a_synchroniser_adopts_and_loses_nothing(
    old: dict[str, Any], new: dict[str, Any], topics: int, at: int, shuffle: Any
) -> None:
    whole = tick(0, 120, topics)
    order = sorted(range(120), key=lambda n: n + shuffle.uniform(0, 9))
    parts = cut(whole.take(np.array(order)), [at])
    before, after = adopted((Synchronize(TOPICS, **old),), (Synchronize(TOPICS, **new),), parts, 1)
    left = ids(before) + ids(after) + ids(before, "dropped") + ids(after, "dropped")
    assert sorted(left) == list(range(120))
    limit = new.get("max_interval")
    for outcome in after:
        if outcome.kind == "data" and limit is not None:
            assert max(outcome.rows["spread_ns"].to_pylist()) <= parse_duration(limit)


def test_a_smaller_queue_lets_the_oldest_go() -> None:
    old, new = Synchronize(TOPICS, queue_size=20), Synchronize(TOPICS, queue_size=2)
    rows = pa.record_batch({"topic": ["camera"] * 10, "id": range(10)})
    part = Collection.of(rows, np.arange(10) * MS)
    _, after = adopted((old,), (new,), [part], 1)
    assert [(o.kind, o.rows["id"].to_pylist(), set(o.reason.to_pylist())) for o in after] == [
        ("dropped", list(range(8)), {"overflow"}),
        ("dropped", [8, 9], {"flush"}),
    ]


def test_a_new_batch_length_holds_from_the_next_window_on() -> None:
    part = tick(0, 400)
    parts = cut(part, [200])
    before, after = adopted((Batch("500 ms"),), (Batch("1 s"),), parts, 1)
    spans = [
        row["batch_end_ns"] - row["batch_start_ns"]
        for o in before + after
        if o.kind == "batch"
        for row in o.rows.to_pylist()
    ]
    lengths = [span // MS for span in spans]
    change = lengths.index(1000)
    assert set(lengths[1:change]) == {500}
    assert set(lengths[change:-1]) == {1000}
    assert sorted(ids(before) + ids(after)) == list(range(400))


def test_a_new_tolerance_of_align_holds_for_points_to_come() -> None:
    def stage(tolerance: str) -> Operator:
        return align.Align({"lidar": align.latest(tolerance)}, reference="camera", missing="drop")

    parts = cut(tick(0, 90), [45])
    _, after = adopted((stage("100 ms"),), (stage("5 ms"),), parts, 1)
    assert ids(after) == []  # lidar comes 20 ms before the next camera
    before, after = adopted((stage("5 ms"),), (stage("100 ms"),), parts, 1)
    assert ids(before) == []
    assert len(ids(after)) > 20


def test_a_new_time_threshold_moves_the_deadlines() -> None:
    _make, rows = CASES["compact"]
    old = Compact(3, keys=("key",), time_threshold="60 s")
    state = old.open(2)
    part = rows(0, HALF)
    old.process(state, part)
    for threshold, due in (("5 s", part.wall_ns + 5 * 10**9), (None, None)):
        new = Compact(3, keys=("key",), time_threshold=threshold)
        [found_stage] = found((old,), [state])
        made = new.adopt(found_stage.settings, found_stage.version, found_stage.state)
        assert new.wake_at(made.state) == due


def tumbling(**more: Any) -> tuple[Operator, ...]:
    more.setdefault("aggregates", {"n": "count", "v": ("sum", "value")})
    return (EventtimeWatermark("50 ms"), Window(Tumbling("200 ms"), **more))


def windows(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    rows = [row for o in outcomes if o.kind == "data" for row in o.rows.to_pylist()]
    return sorted(rows, key=lambda row: (row["window_start_ns"], row["pane"], row["revision"]))


def test_aggregates_hold_for_windows_that_open_from_then_on() -> None:
    parts = cut(tick(0, 100), [50])  # at 500 ms: the window from 400 ms is open, maybe one more
    new = tumbling(aggregates={"n": "count", "top": ("max", "value")})
    before, after = adopted(tumbling(), new, parts, 1)
    whole = windows(straight(new, parts))
    got = windows(before) + windows(after)
    assert [row["n"] for row in got] == [row["n"] for row in whole]
    assert "v" in got[0]
    assert all("v" not in row for row in windows(after))
    open_then = [row["window_start_ns"] // MS for row in got if "top" in row and row["top"] is None]
    assert open_then == [400]
    assert got[3:] == whole[3:]  # windows from 600 ms on are whole


def test_aggregates_of_kept_rows_hold_for_open_windows_too() -> None:
    parts = cut(tick(0, 100), [50])
    old = tumbling(aggregates={"q": ("quantile", "value", 0.5)})
    new = tumbling(aggregates={"q": ("quantile", "value", 0.9), "n": "count"})
    before, after = adopted(old, new, parts, 1)
    assert windows(after) == windows(straight(new, parts))[len(windows(before)) :]


@pytest.mark.parametrize("kind", [Sliding("300 ms", "100 ms"), Session("15 ms"), CountWindow(30)])
def test_other_windows_hide_what_they_did_not_keep(kind: Any) -> None:
    parts = cut(tick(0, 100), [50])

    def stage(**aggregates: Any) -> tuple[Operator, ...]:
        return EventtimeWatermark("50 ms"), Window(kind, aggregates=aggregates)

    new = stage(n="count", top=("max", "value"))
    before, after = adopted(stage(n="count"), new, parts, 1)
    whole = windows(straight(new, parts))[len(windows(before)) :]
    got = windows(after)
    assert [row["n"] for row in got] == [row["n"] for row in whole]
    assert all(a["top"] in (None, b["top"]) for a, b in zip(got, whole, strict=True))
    assert got[0]["top"] is None


WINDOW_CHANGES: list[tuple[Any, Any]] = [
    (Window(Adaptive(target=10)), Window(Adaptive(target=50, max="1 s"))),
    (Window(CountWindow(10)), Window(CountWindow(3))),
    (Window(CountWindow(3)), Window(CountWindow(10))),
    (Window(Tumbling("200 ms")), Window(Tumbling("200 ms"), AtWatermark(early=AfterCount(5)))),
    (Window(Tumbling("200 ms"), AtWatermark(early=AfterCount(5))), Window(Tumbling("200 ms"))),
    (Window(Tumbling("200 ms")), Window(Tumbling("200 ms"), late=Reemit("1 s"))),
    (
        Window(Tumbling("200 ms"), late=Reemit("1 s")),
        Window(Tumbling("200 ms"), late=Reemit("2 s")),
    ),
    (Window(Tumbling("200 ms"), late=Reemit("1 s")), Window(Tumbling("200 ms"))),
    (Window(Tumbling("200 ms")), Window(Tumbling("200 ms"), late=NextWindow())),
]


@pytest.mark.parametrize(("old", "new"), WINDOW_CHANGES)
@examples(max_examples=10, deadline=None)
@given(at=st.integers(1, 119))
@example(at=45)  # a window is open that a trigger has emitted
def test_windows_adopt_and_lose_nothing(old: Operator, new: Operator, at: int) -> None:
    parts = cut(tick(0, 120), [at])
    head = EventtimeWatermark("50 ms")
    before, after = adopted((head, old), (head, new), parts, 1)
    assert set(ids(before) + ids(after)) == set(range(120))
    if not isinstance(new, Window) or new.late == SideOutput():
        assert sorted(ids(before) + ids(after)) == list(range(120))


REFUSED: list[tuple[Operator, Operator, str]] = [
    (Window(Tumbling("1 s")), Window(Tumbling("2 s")), "window.size"),
    (Window(Tumbling("1 s")), Window(CountWindow(3)), "window: window "),
    (Window(Session("1 s")), Window(Session("2 s")), "window.gap"),
    (
        Window(Tumbling("1 s"), aggregates={"n": "count"}),
        Window(Tumbling("1 s"), aggregates={"q": ("quantile", "value", 0.5)}),
        "aggregates",
    ),
    (
        Window(Tumbling("1 s"), AtWatermark(early=AfterCount(5))),
        Window(Tumbling("1 s"), AtWatermark(early=AfterCount(5)), late=Reemit("1 s")),
        "late",
    ),
    (Synchronize(TOPICS), Synchronize(TOPICS[:2]), "topics"),
    (Synchronize(TOPICS), Synchronize(TOPICS, policy="exact"), "policy"),
    (Synchronize(TOPICS), Synchronize(TOPICS, offsets={"imu": "1 ms"}), "offsets"),
    (Batch("1 s"), Batch("1 s", rates="any"), "rates"),
    (Compact(3), Compact(4), "dims"),
    (
        align.Align({"a": "latest"}, grid="30 Hz"),
        align.Align({"a": "latest"}, grid="10 Hz"),
        "grid",
    ),
    (
        align.Align({"a": "latest"}, reference="r"),
        align.Align({"b": "latest"}, reference="r"),
        "topics",
    ),
]


@pytest.mark.parametrize(("old", "new", "setting"), REFUSED)
def test_what_cannot_be_adopted_is_refused_before_anything_runs(
    old: Operator, new: Operator, setting: str
) -> None:
    with pytest.raises(StateError) as error:
        Chain((new,)).check_adoption(Chain((old,)).identities())
    assert setting in str(error.value)
    assert len(str(error.value).splitlines()) <= 6  # only the settings that differ


def test_stages_are_appended_and_removed_at_the_end_and_not_moved() -> None:
    head, batch, sync = EventtimeWatermark("50 ms"), Batch("200 ms"), Synchronize(TOPICS)
    window = tumbling()[1]
    parts = cut(tick(0, 100), [50])
    before, after = adopted((head,), (head, window), parts, 1)
    taken = ids(before) + [row["n"] for row in windows(after)]
    assert len(ids(before)) + sum(row["n"] for row in windows(after)) == 100, taken
    for last in (batch, sync, window, Compact(3), Window(Tumbling("200 ms"))):
        chain = Chain((head, last))
        states = chain.open(1)
        rows = parts[0] if last.name != "compact" else CASES["compact"][1](0, 50)
        chain.process(states, rows)
        held = chain.metrics(states)
        _, out = Chain((head,)).adopt(found(chain.stages, states), 1)
        dropped = [o for o in out if o.kind == "dropped"]
        assert all(r.startswith("stage_removed") for o in dropped for r in o.reason.to_pylist())
        if last.name != "window" or not last.aggregates:
            assert sum(map(len, dropped)) == held[f"{last.name}.rows_held"] > 0
        else:
            assert len(dropped[0]) == held["window.open_windows"] > 0
    with pytest.raises(StateError, match="in another order"):
        Chain((head, sync, batch)).check_adoption(Chain((head, batch, sync)).identities())
    with pytest.raises(StateError, match="in another order"):
        Chain((head, batch, window)).check_adoption(Chain((head, window)).identities())


# -- other shards ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
@examples(max_examples=8, deadline=None)
@given(at=st.integers(1, WHOLE - 1), sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_keys_that_move_to_other_shards_change_nothing(
    name: str, at: int, sizes: list[int]
) -> None:
    make, rows = CASES[name]

    def flow() -> Flow:
        return Flow(make(), key="key", timed=True)

    def run(flows: list[Flow], part: Collection) -> list[Outcome]:
        out = []
        for number, each in enumerate(flows):
            mine = np.flatnonzero(place([part.rows.column("key")], len(part), flows) == number)
            if len(mine):
                out += each.accept(part.take(mine))
        return out

    def place(keys: Any, n: int, flows: list[Flow]) -> Any:
        return np.array([int(str(key)[-1]) % len(flows) for key in keys[0].to_pylist()], np.int64)

    first, second = cut(rows(0, WHOLE), [at])
    flows = [flow()]
    out = run(flows, first)
    for size in sizes:
        new = [flow() for _ in range(size)]
        regroup(flows, new, lambda keys, n, new=new: place(keys, n, new))
        restored = [flow() for _ in new]
        for each, old in zip(restored, new, strict=True):
            each.restore(old.snapshot())
        flows = restored
    out += run(flows, second)
    totals = {
        key: sum(each.metrics()[key] for each in flows)
        for key in ("keys", "eventtime_watermark.rows_in")
        if key in flows[0].metrics()
    }
    out += [outcome for each in flows for outcome in each.end()]
    one = flow()
    whole = one.accept(first) + one.accept(second)
    assert totals == {key: one.metrics()[key] for key in totals}
    whole += one.end()
    assert by_key(out) == by_key(whole)


def by_key(outcomes: list[Outcome]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Rows by key and kind, in order; windows are numbered by lane, so without that number."""
    made: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for outcome in outcomes:
        if not isinstance(outcome, Watermark):
            for row in outcome.table().to_pylist():
                made.setdefault((str(row.get("key")), outcome.kind), []).append(row)
    return made
