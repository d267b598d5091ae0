"""Input nobody would send on purpose: nothing raises, nothing vanishes, nothing is made up."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from tidegate.core.outcomes import Collection, Dropped, Late, Outcome, Watermark
from tidegate.core.time import MAX_NS, MIN_NS, UNSET
from tidegate.errors import StateError
from tidegate.windows import (
    Adaptive,
    CountWindow,
    Everything,
    Fixed,
    LookBack,
    NextWindow,
    Reemit,
    Session,
    Sliding,
    Tumbling,
    Window,
    outputs,
)

KINDS = {
    "tumbling": Tumbling("1 s"),
    "sliding": Sliding("10 s", "3 s"),
    "session": Session("1 s"),
    "fixed": Fixed("1 s"),
    "count": CountWindow(3),
    "everything": Everything(),
    "adaptive": Adaptive(),
    "look back": LookBack("1 s"),
    "look ahead": LookBack("1 s", "1 s"),
}


def rows_at(times: list[int]) -> Collection:
    ids = pa.record_batch({"id": np.arange(len(times)), "v": np.ones(len(times))})
    return Collection.of(ids, np.array(times, np.int64))


def ids_of(outcomes: list[Outcome]) -> Counter[int]:
    left: Counter[int] = Counter()
    for outcome in outcomes:
        if isinstance(outcome, (Collection, Late, Dropped)):
            left.update(outcome.rows.column("id").to_pylist())
    return left


@pytest.mark.parametrize("name", KINDS)
def test_times_at_the_ends_of_int64(name: str) -> None:
    times = [UNSET, MIN_NS, MAX_NS, 0, -1, 1, MAX_NS - 1, 10**18, MIN_NS + 1, 5]
    stage = Window(KINDS[name])
    state = stage.open()
    out = stage.process(state, rows_at(times))
    out += stage.advance(state, Watermark.at(10**18))
    out += stage.flush(state)
    left = ids_of(out)
    assert set(left) == set(range(len(times)))
    ends = [i for i, t in enumerate(times) if abs(t) > 2**62]
    dropped = Counter[int]()
    for outcome in out:
        if isinstance(outcome, Dropped):
            dropped.update(outcome.rows.column("id").to_pylist())
            assert set(outcome.reason.to_pylist()) == {"time_out_of_range"}
    if name not in ("count", "everything", "fixed"):
        assert sorted(dropped) == ends


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("late", [None, NextWindow(), Reemit("5 s")])
def test_a_far_future_row_and_time_running_backwards(name: str, late: object) -> None:
    kind = KINDS[name]
    sequential = name in ("count", "everything", "adaptive", "look back", "look ahead")
    if late is not None and (name == "fixed" or (sequential and isinstance(late, Reemit))):
        pytest.skip("not a setting this window takes")
    stage = Window(kind, late=late) if late else Window(kind)  # type: ignore[arg-type]
    year = 365 * 86400 * 10**9
    state = stage.open()
    out: list[Outcome] = []
    numbers = iter(range(10**6))
    for piece in ([5, 4, 3, 2, 1], [year], [9, 8, 7], [0] * 5, [-year, year + 1]):
        rows = pa.record_batch({"id": [next(numbers) for _ in piece], "v": [1.0] * len(piece)})
        out += stage.process(state, Collection.of(rows, np.array(piece, np.int64)))
        out += stage.advance(state, Watermark.at(max(piece) - 10))
        out += stage.advance(state, Watermark.at(min(piece)))  # a watermark that goes back
    out += stage.flush(state)
    assert set(ids_of(out)) == set(range(16))
    assert all(state.rows(table) == 0 for table in state.tables)


def test_every_row_at_one_instant() -> None:
    stage = Window(Session(1), aggregates={"n": "count"})
    state = stage.open()
    stage.process(state, rows_at([7] * 10_000))
    (out,) = stage.flush(state)
    assert isinstance(out, Collection)
    assert out.rows.column("n").to_pylist() == [10_000]


def test_columns_of_nothing_but_null() -> None:
    stage = Window(
        Tumbling(10),
        aggregates={
            "s": ("sum", "v"),
            "m": ("mean", "v"),
            "f": ("first", "v"),
            "n": ("count", "v"),
        },
        group_by=("g",),
    )
    rows = pa.record_batch({"v": pa.nulls(3, pa.float64()), "g": pa.nulls(3, pa.string())})
    state = stage.open()
    stage.process(state, Collection.of(rows, np.array([1, 2, 3])))
    (out,) = stage.flush(state)
    (row,) = out.rows.to_pylist()  # type: ignore[union-attr]
    assert (row["g"], row["s"], row["m"], row["f"], row["n"]) == (None, None, None, None, 0)


def test_names_that_look_like_ours() -> None:
    names = {"window_id": ["mine"], "pane": [9], "late": [True], "n": [1], "trigger": ["x"]}
    stage = Window(Tumbling(10))
    state = stage.open()
    rows = pa.record_batch(names)
    stage.process(state, Collection.of(rows, np.array([1])))
    (out,) = stage.flush(state)
    assert out.rows.schema.equals(stage.schema(rows.schema))  # type: ignore[union-attr]
    (row,) = out.rows.to_pylist()  # type: ignore[union-attr]
    assert (row["pane"], row["late"], row["window_id"], row["n"]) == (9, True, "mine", 1)
    ours = row["tidegate_pane"], row["tidegate_late"], row["tidegate_window_id"]
    assert ours == (0, False, "0/10/0")
    assert [w.window_id for w in outputs([out])] == ["0/10/0"]


def test_a_hundred_thousand_lanes_and_windows() -> None:
    n = 100_000
    stage = Window(Tumbling(10), aggregates={"n": "count", "s": ("sum", "v")})
    state = stage.open()
    rng = np.random.default_rng(3)
    rows = pa.record_batch({"id": np.arange(n), "v": np.ones(n)})
    lane = rng.permutation(n).astype(np.int32)
    stage.process(state, Collection(rows, rng.integers(0, 1000, n), lane))
    lanes = np.arange(n, dtype=np.int32)
    out = stage.advance(state, Watermark(np.full(n, 2000), lanes))
    data = [o for o in out if isinstance(o, Collection)]
    assert sum(len(o) for o in data) == n
    assert stage.metrics(state)["open_windows"] == 0


def test_more_windows_than_one_call_has_room_for() -> None:
    n = 150_000
    for stage in (
        Window(Tumbling(1), aggregates={"n": "count"}),
        Window(CountWindow(1), aggregates={"n": "count"}),
        Window(Session(1), aggregates={"n": "count"}),
    ):
        state = stage.open()
        rows = pa.record_batch({"id": np.arange(n), "v": np.ones(n)})
        out = stage.process(state, Collection.of(rows, np.arange(n) * 3))
        out += stage.flush(state)
        assert sum(len(o) for o in out) == n


@pytest.mark.parametrize("cut", [0, 10, 40, -1])
def test_a_damaged_snapshot_is_refused(cut: int) -> None:
    stage = Window(Tumbling(10))
    state = stage.open()
    stage.process(state, rows_at([1, 2]))
    blob = stage.snapshot(state)
    with pytest.raises(StateError):
        stage.restore(blob[:cut])
    with pytest.raises(StateError, match="settings"):
        Window(Tumbling(11)).restore(blob)


@pytest.mark.parametrize(
    "times",
    [
        [MAX_NS, MIN_NS, 5, 15],  # a step back so large that its difference overflows
        [1, 2, MAX_NS, MIN_NS, 3],
        [2**62, -(2**62), 7],
        [3, 2, 1],
    ],
)
def test_times_that_only_look_sorted(times: list[int]) -> None:
    stage = Window(Tumbling(10), aggregates={"n": "count"})
    state = stage.open()
    out = stage.process(state, rows_at(times))
    out += stage.flush(state)
    inside = Counter(t // 10 * 10 for t in times if abs(t) < 2**63 - 100)
    found = {r["window_start_ns"]: r["n"] for o in out if isinstance(o, Collection)
             for r in o.rows.to_pylist()}  # fmt: skip
    assert found == dict(inside)
