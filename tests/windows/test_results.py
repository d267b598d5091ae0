"""What comes out: schema, aggregates of every kind, groups, statistics, ids, watermarks."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.core.outcomes import Collection, Dropped, Late, Outcome, Watermark
from tidegate.windows import (
    Accumulation,
    Adaptive,
    AfterCount,
    AfterTime,
    Aggregate,
    AtWatermark,
    CountWindow,
    Everything,
    Fixed,
    LookBack,
    Memory,
    NextWindow,
    RateChange,
    Reemit,
    Session,
    Sliding,
    StateWindow,
    Tumbling,
    Window,
)

SECOND = 10**9


def collection(times: list[int], wall_ns: int = 0, **columns: Any) -> Collection:
    columns = columns or {"v": list(range(len(times)))}
    return Collection.of(pa.record_batch(columns), np.array(times, np.int64), wall_ns)


def data(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    return [row for o in outcomes if isinstance(o, Collection) for row in o.rows.to_pylist()]


def run(stage: Window, *collections: Collection) -> list[dict[str, Any]]:
    state = stage.open()
    out: list[Outcome] = []
    for each in collections:
        out += stage.process(state, each)
    return data(out + stage.flush(state))


TYPES = {
    "i8": pa.array([3, None, -1], pa.int8()),
    "u32": pa.array([3, 4, 5], pa.uint32()),
    "u64": pa.array([2**64 - 1, 1, 0], pa.uint64()),
    "f32": pa.array([0.5, None, 1.5], pa.float32()),
    "b": pa.array([True, False, None]),
    "ts": pa.array([3, 1, 2], pa.timestamp("us", "UTC")),
    "d32": pa.array([dt.date(2020, 1, 2), None, dt.date(2019, 1, 1)]),
    "t32": pa.array([5, 4, 3], pa.time32("ms")),
    "dur": pa.array([5, 4, 3], pa.duration("ns")),
    "dec": pa.array([Decimal("1.10"), Decimal("2.25"), None], pa.decimal128(10, 2)),
    "str": pa.array(["b", None, "a"]),
    "dict": pa.array(["b", None, "a"]).dictionary_encode(),
    "list": pa.array([[1], None, [2, 3]]),
}

EXPECTED = {
    ("i8", "sum"): 2,
    ("i8", "min"): -1,
    ("u32", "mean"): 4.0,
    ("u64", "max"): 2**64 - 1,
    ("f32", "sum"): 2.0,
    ("f32", "max"): 1.5,
    ("b", "sum"): 1,
    ("b", "min"): False,
    ("b", "count"): 2,
    ("ts", "max"): dt.datetime(1970, 1, 1, 0, 0, 0, 3, dt.UTC),
    ("d32", "min"): dt.date(2019, 1, 1),
    ("t32", "min"): dt.time(0, 0, 0, 3000),
    ("dur", "max"): dt.timedelta(0),
    ("dec", "sum"): Decimal("3.35"),
    ("str", "min"): "a",
    ("str", "count"): 2,
    ("str", "first"): "b",
    ("dict", "last"): "a",
    ("list", "first"): [1],
    ("list", "count"): 2,
}


@pytest.mark.parametrize(("column", "function"), EXPECTED)
def test_types(column: str, function: str) -> None:
    stage = Window(Tumbling(10), aggregates={"x": (function, column)})
    rows = collection([1, 2, 3], **{column: TYPES[column]})
    state = stage.open()
    stage.process(state, rows)
    state = stage.restore(stage.snapshot(state))
    (out,) = stage.flush(state)
    assert isinstance(out, Collection)
    assert out.rows.schema.equals(stage.schema(rows.rows.schema))
    found = out.rows.column("x").to_pylist()[0]
    if column == "dur":
        assert out.rows.column("x").cast(pa.int64()).to_pylist() == [5]
    else:
        assert found == EXPECTED[column, function]


def test_what_arrow_and_users_bring() -> None:
    stage = Window(
        CountWindow(4),
        aggregates={
            "sd": ("stddev", "v"),
            "q": Aggregate("quantile", "v", q=0.25),
            "spread": Aggregate(lambda v: max(v.to_pylist()) - min(v.to_pylist()), "v",
                                type=pa.float64()),
        },
    )  # fmt: skip
    (row,) = run(stage, collection([4, 3, 2, 1], v=[1.0, 2.0, 3.0, 6.0]))
    assert row["sd"] == pytest.approx(np.std([1, 2, 3, 6]))
    assert row["q"] == pytest.approx(np.quantile([1, 2, 3, 6], 0.25))
    assert row["spread"] == 5.0


def test_a_sum_beyond_64_bits_is_null_never_wrong() -> None:
    stage = Window(Tumbling(10), aggregates={"s": ("sum", "v"), "hi": ("max", "v")})
    big = 2**62
    rows = run(stage, collection([1, 2, 11], v=[big, big, big]))
    assert [(r["s"], r["hi"]) for r in rows] == [(None, big), (big, big)]


def test_nan_goes_through_sums_and_is_skipped_by_extremes() -> None:
    stage = Window(Tumbling(10), aggregates={"s": ("sum", "v"), "lo": ("min", "v")})
    nan = float("nan")
    one, two = run(stage, collection([1, 2, 11], v=[nan, 3.0, nan]))
    assert np.isnan(one["s"])
    assert one["lo"] == 3.0
    assert np.isnan(two["lo"])


def test_keys_groups_and_ids() -> None:
    stage = Window(
        Tumbling(10), aggregates={"n": "count"}, keys=("car",), group_by=("topic",), stats=True
    )
    rows = collection([1, 2, 3], car=["x"] * 3, topic=["b", "a", "b"])
    first, second = run(stage, rows)
    assert list(first)[:2] == ["car", "topic"]
    assert (first["topic"], first["n"], second["topic"], second["n"]) == ("a", 1, "b", 2)
    assert first["window_id"] == second["window_id"] == "x/0/10/0"
    assert (second["delta_count"], second["duration_ns"]) == (2, 10)
    assert second["total_bytes"] == 2 * second["avg_delta_size"] > 0


def test_rows_are_distinct_by_id_and_sorted_by_time_then_arrival() -> None:
    stage = Window(Tumbling(10), deduplicate_by="id", stats=True, affected="vec")
    rows = collection([5, 3, 3, 4], id=["a", "b", "c", "a"], vec=[1, 1, 2, 2])
    out = run(stage, rows)
    assert [(r["id"], r["delta_count"], r["vectors_affected"]) for r in out] == [
        ("b", 3, 2),
        ("c", 3, 2),
        ("a", 3, 2),
    ]


def test_triggers_compose_and_name_themselves() -> None:
    both = Window(Everything(), trigger=AfterCount(2) & AfterTime(100))
    state = both.open()
    assert both.process(state, collection([1, 2], 0)) == []
    assert both.wake_at(state) == 100
    assert both.wake(state, 99) == []
    assert {r["trigger"] for r in data(both.wake(state, 100))} == {"count & time"}
    assert both.wake_at(state) is None
    either = Window(Everything(), trigger=AfterTime(100) | AfterCount(2))
    assert [r["trigger"] for r in run(either, collection([1, 2, 3]))] == ["count"] * 2 + [
        "shutdown"
    ]


@pytest.mark.parametrize(
    "stage",
    [
        Window(Everything(), trigger=AfterTime("1 s")),
        Window(Adaptive("10 ms", "1 s", 4)),
        Window(Tumbling("5 s"), trigger=AtWatermark(early=AfterTime("1 s"))),
    ],
)
def test_open_windows_follow_a_clock_that_was_set_back(stage: Window) -> None:
    def ran(step_ns: int) -> list[tuple[list[dict[str, Any]], int | None]]:
        state, wall = stage.open(), 7200 * SECOND
        said = []
        for n in range(4):
            out = stage.process(state, collection([3 * n, 3 * n + 1], wall, v=[n, n]))
            if n == 1:
                wall += step_ns
                stage.resume(state, wall)
            due = stage.wake_at(state)
            said.append((data(out), None if due is None else due - wall))
        return [*said, (data(stage.wake(state, wall + 2 * SECOND)), None)]

    whole, stepped = ran(0), ran(-3600 * SECOND)
    assert [kept(out) for out, _ in stepped] == [kept(out) for out, _ in whole]
    assert [due for _, due in stepped] == [due for _, due in whole]
    assert whole[1][1] == SECOND


def test_after_a_break_an_open_window_is_overdue() -> None:
    stage = Window(Everything(), trigger=AfterTime("1 s"))
    state = stage.open()
    assert stage.process(state, collection([1], 7200 * SECOND)) == []
    stage.resume(state, 7300 * SECOND)
    assert stage.wake_at(state) == 7201 * SECOND
    assert [row["trigger"] for row in data(stage.wake(state, 7300 * SECOND))] == ["time"]


def kept(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without columns of wall time."""
    return [{name: value for name, value in row.items() if "wall" not in name} for row in rows]


def test_early_on_time_and_late_panes() -> None:
    stage = Window(
        Tumbling(10),
        trigger=AtWatermark(early=AfterCount(2), late=AfterCount(2)),
        late=Reemit(20),
        aggregates={"n": "count"},
    )
    state = stage.open()
    out = stage.process(state, collection([1, 2, 3]))
    out += stage.advance(state, Watermark.at(9))
    out += stage.process(state, collection([4]))  # one late row: not yet a revision
    out += stage.process(state, collection([5, 6]))
    out += stage.advance(state, Watermark.at(29))  # 20 after the close: still kept
    assert stage.metrics(state)["open_windows"] == 1
    out += stage.advance(state, Watermark.at(30))
    found = [(r["n"], r["pane"], r["revision"], r["trigger"]) for r in data(out)]
    assert found == [
        (2, 0, 0, "count"),
        (3, 1, 0, "watermark"),
        (5, 2, 1, "count"),
        (6, 3, 2, "late"),
    ]
    assert stage.metrics(state)["open_windows"] == 0
    assert isinstance(stage.process(state, collection([7]))[0], Late)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (Accumulation.DISCARDING, [(2, False), (2, False), (1, False)]),
        (Accumulation.ACCUMULATING, [(2, False), (4, False), (5, False)]),
        (
            Accumulation.RETRACTING,
            [(2, False), (2, True), (4, False), (4, True), (5, False)],
        ),
    ],
)
def test_accumulation(mode: Accumulation, expected: list[tuple[int, bool]]) -> None:
    for extra in ({"n": "count"}, {"n": "count", "q": Aggregate("quantile", "v", q=0.5)}):
        stage = Window(Tumbling(10), trigger=AfterCount(2), accumulation=mode, aggregates=extra)
        out = run(stage, collection([1, 2, 3, 4, 5]))
        assert [(r["n"], r["retraction"]) for r in out] == expected


def test_sessions_merge_through_a_late_row() -> None:
    stage = Window(Session(5), late=Reemit(100, retract=True), aggregates={"n": "count"})
    state = stage.open()
    out = stage.process(state, collection([0, 1, 10, 11]))
    out += stage.advance(state, Watermark.at(16))
    out += stage.process(state, collection([6]))
    seen = [(r["window_start_ns"], r["window_end_ns"], r["n"], r["retraction"], r["revision"])
            for r in data(out)]  # fmt: skip
    assert seen == [
        (0, 6, 2, False, 0),
        (10, 16, 2, False, 0),
        (10, 16, 2, True, 0),
        (0, 6, 2, True, 0),
        (0, 16, 5, False, 1),
    ] or seen == [
        (0, 6, 2, False, 0),
        (10, 16, 2, False, 0),
        (0, 6, 2, True, 0),
        (10, 16, 2, True, 0),
        (0, 16, 5, False, 1),
    ]


def test_the_gap_of_a_session_is_inclusive() -> None:
    stage = Window(Session(5), aggregates={"n": "count"})
    assert [r["n"] for r in run(stage, collection([0, 5, 11]))] == [2, 1]
    state = stage.open()
    stage.process(state, collection([0]))
    assert data(stage.advance(state, Watermark.at(4))) == []  # a row at 5 would still belong
    assert len(data(stage.advance(state, Watermark.at(5)))) == 1


def test_fixed_windows_live_in_wall_time() -> None:
    stage = Window(Fixed(10), aggregates={"n": "count"})
    state = stage.open()
    out = stage.process(state, collection([500, 400], wall_ns=3))
    out += stage.process(state, collection([1], wall_ns=9))
    assert stage.wake_at(state) == 10
    out += stage.advance(state, Watermark.at(10**6))
    assert data(out) == []
    out += stage.wake(state, 10)
    out += stage.process(state, collection([2], wall_ns=4))  # the clock stepped back: it does not
    out += stage.flush(state)
    assert [(r["window_start_ns"], r["n"]) for r in data(out)] == [(0, 3), (10, 1)]


def test_look_back_and_row_times() -> None:
    stage = Window(LookBack(2), aggregates={"n": "count"})
    assert [r["n"] for r in run(stage, collection([5, 4, 6]))] == [1, 1, 3]


def test_rows_outside_a_state_window_are_delivered_as_dropped() -> None:
    stage = Window(StateWindow(False, True))
    out = stage.process(stage.open(), collection([1, 2]))
    assert [type(o) for o in out] == [Dropped]
    assert out[0].reason.to_pylist() == ["no_open_window"] * 2  # type: ignore[union-attr]


def test_watermarks_wait_for_rows_that_are_still_to_leave() -> None:
    stage = Window(Tumbling(10))
    state = stage.open()
    stage.process(state, collection([12, 15]))
    (mark,) = [o for o in stage.advance(state, Watermark.at(18)) if isinstance(o, Watermark)]
    assert mark.time_ns.tolist() == [11]
    (mark,) = [o for o in stage.advance(state, Watermark.at(19)) if isinstance(o, Watermark)]
    assert mark.time_ns.tolist() == [19]
    aggregated = Window(Tumbling(10), aggregates={"n": "count"})
    state = aggregated.open()
    aggregated.process(state, collection([12, 15]))
    (mark,) = aggregated.advance(state, Watermark.at(18))
    assert mark.time_ns.tolist() == [18]  # type: ignore[union-attr]


def test_two_window_stages_one_behind_the_other() -> None:
    from tidegate.core.chain import Chain

    chain = Chain(
        (
            Window(Tumbling(10), aggregates={"n": "count"}),
            Window(Tumbling(100), aggregates={"windows": "count", "rows": ("sum", "n")}),
        )
    )
    states = chain.open()
    out = chain.process(states, collection(list(range(0, 250, 2))))
    out += chain.advance(states, Watermark.at(199))
    assert [(r["windows"], r["rows"]) for r in data(out)] == [(10, 50), (10, 50)]
    assert not [o for o in out if isinstance(o, Late)]
    assert chain.schema(pa.schema([("v", pa.int64())])).names[-2:] == ["windows", "rows"]


def test_rate_change_works_below_one_a_second() -> None:
    second = 10**9
    stage = Window(Everything(), trigger=RateChange(0.5, "60 s"), aggregates={"n": "count"})
    slow = [20 * second * i for i in range(9)]  # 3 a minute
    fast = [180 * second + 5 * second * i for i in range(13)]  # 12 a minute
    rows = run(stage, collection(slow + fast))
    assert [(r["trigger"], r["n"]) for r in rows] == [("rate_change", 22)] or rows[0][
        "trigger"
    ] == "rate_change"
    steady = run(stage, collection([20 * second * i for i in range(40)]))
    assert [r["trigger"] for r in steady] == ["shutdown"]


def test_next_window_for_every_kind() -> None:
    for window in (Tumbling(10), Sliding(20, 10), Session(3), Adaptive(5, 10, 3)):
        stage = Window(window, late=NextWindow())
        state = stage.open()
        stage.process(state, collection([5]))
        stage.advance(state, Watermark.at(60))
        out = stage.process(state, collection([7]))
        out += stage.flush(state)
        assert [(r["v"], r["late"]) for r in data(out)] == [(0, True)], window


def test_a_row_larger_than_the_budget_has_a_reason_of_its_own() -> None:
    stage = Window(Tumbling(10), memory=Memory(100))
    state = stage.open()
    out = stage.process(state, collection([1, 2], v=["x" * 50, "x" * 500]))
    assert [o.reason.to_pylist() for o in out if isinstance(o, Dropped)] == [["too_large"]]
    assert len(data(stage.flush(state))) == 1


def test_groups_when_early_panes_took_every_row() -> None:
    stage = Window(Tumbling(10), AfterCount(2), aggregates={"n": "count"}, group_by=("g",))
    stage.compile()
    state = stage.open()
    out = stage.process(state, collection([1, 2], g=["a", "b"]))
    out += stage.advance(state, Watermark.at(9))
    out += stage.process(state, collection([11, 12], g=["a", "b"]))
    out += stage.flush(state)
    assert [(r["g"], r["n"]) for r in data(out)] == [("a", 1), ("b", 1)] * 2


@pytest.mark.parametrize(
    "stage",
    [
        Window(kind, aggregates=aggregates, group_by=group_by, **more)
        for kind in (Tumbling(10), Sliding(20, 5), Session(4), CountWindow(3), Adaptive(),
                     LookBack(5), StateWindow(lambda rows: 1 / 0, True, ("p",)))
        for aggregates, group_by in (((), ()), ({"n": "count"}, ("city",)),
                                     ({"q": ("stddev", "speed")}, ()))
        for more in ({}, {"deduplicate_by": "id", "stats": True, "affected": "who"})
    ],
)  # fmt: skip
def test_compiling_touches_nothing_of_the_users(stage: Window) -> None:
    stage.compile()
