"""The pieces of batching on their own, and the stage as a pipeline sees it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.batching import (
    AdaptiveBatcher,
    AdaptiveLength,
    Batch,
    Message,
    RateAwareBatcher,
    SimpleBatcher,
    kernel,
    names,
    report,
)
from tidegate.batching.held import HeldRows, OutputBuffers, kernel_call
from tidegate.batching.kernel import append, empty_heap, pop_heap, push_heap, sort_rows
from tidegate.batching.layout import ROW, Place, state_columns
from tidegate.core.chain import Chain
from tidegate.core.outcomes import Collection, ControlSignal, End, Outcome, Side, Watermark
from tidegate.core.state import Layout, State

SECOND = 10**9


def collection(
    seconds: float, *, first: float = 0, rate: int = 10, wall_ns: int = 0, lane: int = 0
) -> Collection:
    """One stream `det` and a `log` row every half second."""
    rows = [(n * SECOND // rate, "det") for n in range(int(first * rate), int(seconds * rate))]
    rows += [(n * SECOND // 2 + 1, "log") for n in range(int(first * 2), int(seconds * 2))]
    rows.sort()
    batch = pa.record_batch(
        {"topic": [topic for _, topic in rows], "car": ["c1"] * len(rows), "n": range(len(rows))}
    )
    times = np.array([t for t, _ in rows], np.int64)
    return Collection(batch, times, np.full(len(rows), lane, np.int32), wall_ns)


def _summaries(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    return [row for o in outcomes if isinstance(o, Side) for row in o.rows.to_pylist()]


STAGE = Batch("1 s", gated=("det",), keys=("car",))


def test_schemas_are_exact() -> None:
    whole = collection(5)
    data, side = STAGE.process(STAGE.open(), whole)
    assert isinstance(data, Collection)
    assert isinstance(side, Side)
    assert data.rows.schema == STAGE.schema(whole.rows.schema)
    assert side.rows.schema == STAGE.side_schemas(whole.rows.schema)["batch"]
    assert data.rows.schema.names == [
        *whole.rows.schema.names,
        *("batch_id", "batch_start_ns", "batch_end_ns", "batch_reason", "slot", "batch_late"),
    ]


def test_rows_say_their_batch_and_slot() -> None:
    data, side = STAGE.process(STAGE.open(), collection(6))
    rows = data.table().to_pylist()
    last = [row for row in rows if row["batch_id"] == rows[-1]["batch_id"]]
    assert [row["slot"] for row in last if row["topic"] == "det"] == list(range(10))
    assert {row["slot"] for row in last if row["topic"] == "log"} == {None}
    assert {row["batch_reason"] for row in last} == {"gate"}
    assert not any(row["batch_late"] for row in last)
    times = [row["time_ns"] for row in last]
    assert times == sorted(times)
    summary = side.rows.to_pylist()[-1]
    assert summary["car"] == "c1"
    assert summary["complete"]
    assert summary["rows"] == len(last)
    det, log = sorted(summary["streams"], key=lambda part: part["stream"])
    assert (det["stream"], det["expected"], det["missing"]) == ("det", 10, 0)
    assert det["rate_hz"] == pytest.approx(10)
    assert (log["stream"], log["expected"], log["rate_hz"]) == ("log", None, None)


def test_late_rows_are_marked() -> None:
    state = STAGE.open()
    STAGE.process(state, collection(6))
    late = collection(1)
    out = STAGE.process(state, late) + STAGE.process(state, collection(8, first=6))
    rows = [row for o in out if isinstance(o, Collection) for row in o.table().to_pylist()]
    assert sum(row["batch_late"] for row in rows) == len(late)
    assert all(row["time_ns"] < row["batch_start_ns"] for row in rows if row["batch_late"])


def test_batch_length_by_control_applies_at_the_next_close() -> None:
    state = STAGE.open(2)
    for lane in (0, 1):
        STAGE.process(state, collection(6, lane=lane))
    assert STAGE.control(state, ControlSignal("batch_length", "2 s", np.array([1], np.int32))) == []
    spans = {}
    for lane in (0, 1):
        out = STAGE.process(state, collection(13, first=6, lane=lane))
        [side] = [o for o in out if isinstance(o, Side)]
        rows = side.rows.to_pylist()
        spans[lane] = [(r["batch_end_ns"] - r["batch_start_ns"]) / SECOND for r in rows]
    assert set(spans[0]) == {1}
    assert spans[1] == [1, 2, 2, 2]


def test_control_before_the_first_row() -> None:
    state = STAGE.open()
    STAGE.control(state, ControlSignal("batch_length", 500_000_000))
    out = STAGE.process(state, collection(6))
    rows = _summaries(out)
    assert rows[-1]["batch_end_ns"] - rows[-1]["batch_start_ns"] == SECOND // 2


def test_stall_by_wall_deadline() -> None:
    stage = Batch("1 s", gated=("det",))
    state = stage.open()
    assert stage.wake_at(state) is None
    stage.process(state, collection(6, wall_ns=100 * SECOND))
    far = Collection.of(
        pa.record_batch({"topic": ["det"], "car": ["c1"], "n": [0]}),
        np.array([300 * SECOND], np.int64),
        wall_ns=101 * SECOND,
    )
    stage.process(state, far)
    stage.process(state, collection(7, first=6, wall_ns=102 * SECOND))
    due = stage.wake_at(state)
    assert due == 110 * SECOND
    assert stage.wake(state, due - 1) == []
    stage.wake(state, due)
    out = stage.process(state, collection(9, first=7, wall_ns=due))
    [side] = [o for o in out if isinstance(o, Side)]
    assert side.rows.column("batch_reason")[0].as_py() == "stall"
    assert stage.wake_at(state) == due + 10 * SECOND


def test_a_break_is_no_stall() -> None:
    def reasons_after(pause: int, *, resume: bool) -> list[str]:
        stage = Batch("1 s", gated=("det",))
        state = stage.open()
        stage.process(state, collection(6, wall_ns=100 * SECOND))
        rows = pa.record_batch({"topic": ["det"], "car": ["c1"], "n": [0]})
        stage.process(state, Collection.of(rows, np.array([300 * SECOND]), wall_ns=101 * SECOND))
        stage.process(state, collection(7, first=6, wall_ns=102 * SECOND))
        again = (102 + pause) * SECOND
        if resume:
            stage.resume(state, again)
            assert stage.wake_at(state) == again + 10 * SECOND
        out = stage.wake(state, again)
        out += stage.process(state, collection(9, first=7, wall_ns=again))
        return [row["batch_reason"] for row in _summaries(out)]

    assert reasons_after(5000, resume=True) == reasons_after(0, resume=False)
    assert "stall" in reasons_after(5000, resume=False)


def test_watermarks_are_held_back() -> None:
    chain = Chain((STAGE,))
    states = chain.open()
    chain.process(states, collection(6.5))
    held = states[0].tables["held"]
    assert held is not None
    earliest = int(held.column("__tidegate_time_ns").to_numpy().min())
    [mark] = chain.advance(states, Watermark.at(6 * SECOND + 400_000_000))
    assert isinstance(mark, Watermark)
    assert mark.time_ns.tolist() == [earliest - 1]
    assert chain.advance(states, Watermark.at(6 * SECOND + 400_000_000)) == []
    *_, last = chain.flush(states)
    assert isinstance(last, Watermark)
    assert last.time_ns.tolist() == [6 * SECOND + 400_000_000]


def test_flush_numbers_go_on() -> None:
    state = STAGE.open()
    STAGE.process(state, collection(6.5))
    first = _summaries(STAGE.flush(state))
    assert {row["batch_reason"] for row in first} == {"flush"}
    assert STAGE.flush(state) == []
    again = _summaries(STAGE.process(state, collection(1)))
    assert again[0]["batch_id"] == first[-1]["batch_id"] + 1
    assert again[0]["batch_reason"] == "first"


def test_quick_end_says_what_it_forgot() -> None:
    chain = Chain((STAGE,))
    states = chain.open()
    chain.process(states, collection(6.5))
    waiting = STAGE.metrics(states[0])["rows_held"]
    assert waiting > 0
    assert STAGE.discard(states[0]) == {"rows": waiting}
    assert chain.control(states, ControlSignal.end(End.GRACEFUL)) == []


def test_metrics() -> None:
    state = STAGE.open()
    STAGE.process(state, collection(6))
    metrics = STAGE.metrics(state)
    assert metrics["streams"] == 2
    assert metrics["streams_gating"] == 1
    assert metrics["batches"] >= 5


def test_new_columns_between_collections() -> None:
    """A schema may grow: rows that wait get nulls."""
    state = STAGE.open()
    STAGE.process(state, collection(6.5))
    wider = collection(8, first=6.5)
    rows = wider.rows.append_column("extra", pa.array([1.5] * len(wider)))
    out = STAGE.process(state, Collection(rows, wider.time_ns, wider.lane))
    [data] = [o for o in out if isinstance(o, Collection)]
    assert data.rows.column("extra").null_count > 0
    assert data.rows.column("extra").null_count < len(data)


def test_dictionary_and_number_streams() -> None:
    for topics in (pa.array(["a"] * 50).dictionary_encode(), pa.array([7] * 50)):
        rows = pa.record_batch({"topic": topics})
        times = np.arange(50) * SECOND // 10
        out = Batch().process(Batch().open(), Collection.of(rows, times))
        names = {p["stream"] for r in out[1].table().to_pylist() for p in r["streams"]}
        assert names == {str(topics[0].as_py())}


# -- in process -----------------------------------------------------------------------------------


def test_properties_before_and_after_the_first_message() -> None:
    batcher = RateAwareBatcher("2 s")
    assert batcher.window_ns is None
    assert batcher.poll() is None
    assert batcher.process([]) == []
    assert batcher.tick() == []
    assert batcher.flush() == []
    batcher.set_batch_length("1 s")
    assert batcher.batch_length_ns == SECOND
    assert batcher.poll([Message("a", 5)]) is not None
    assert batcher.window_ns == (5, 5 + SECOND)
    batcher.set_batch_length("3 s")
    assert batcher.batch_length_ns == SECOND


def test_an_empty_batch_is_still_a_batch() -> None:
    """A batch without messages must not look like no batch."""
    batcher = SimpleBatcher("1 s")
    batcher.poll([Message("a", 0)])
    batch = batcher.poll([Message("a", 3 * SECOND)])
    assert batch
    assert batch.messages == []


def test_simple_process_leaves_empty_windows_out() -> None:
    batcher = SimpleBatcher("1 s")
    times = [0, 100, 500 * SECOND, 500 * SECOND + 1, 501 * SECOND + 1]
    batches = batcher.process([Message("a", t) for t in times])
    assert [(b.id, len(b.messages)) for b in batches] == [(0, 1), (1, 1), (2, 2)]
    assert batches[-1].start_ns == 500 * SECOND


def test_simple_process_is_not_dragged_away_by_one_stamp() -> None:
    batcher = SimpleBatcher("1 s")
    times = [n * SECOND // 10 for n in range(100)]
    times.insert(50, 10**18)
    batches = batcher.process([Message("a", t) for t in times])
    assert len(batches) >= 9
    assert batcher.window_ns is not None
    assert batcher.window_ns[1] <= 13 * SECOND
    assert sum(len(b.messages) for b in batches + batcher.flush()) == 101


def test_adaptive_levels() -> None:
    length = AdaptiveLength("1 s", pulse_rate_hz=14)
    climbed = [length.report(1, length.length_ns + 1) for _ in range(8)]
    assert climbed == [0, 2, 2, 4, 4, 6, 6, 6]
    assert length.length_ns == 8 * SECOND
    assert [length.report(1, length.length_ns * 7 // 10) for _ in range(4)] == [6] * 4  # inclusive
    assert [length.report(1, length.length_ns * 7 // 10 - 1) for _ in range(3)] == [6, 6, 5]
    assert [length.report(1, length.length_ns) for _ in range(3)] == [5] * 3  # just kept up


def test_adaptive_idle() -> None:
    length = AdaptiveLength("1 s")
    length.report(1, "2 s", wall_ns=0)
    length.report(1, "2 s", wall_ns=0)
    assert length.report(None, 0, wall_ns=6 * SECOND - 1) == 2
    assert length.report(0, 0, wall_ns=6 * SECOND) == 1
    assert length.report(0, 0, wall_ns=6 * SECOND + 3 * length.length_ns) == 0
    assert length.report(0, 0, wall_ns=10**12) == 0


def test_adaptive_drives_its_batcher() -> None:
    batcher = AdaptiveBatcher(RateAwareBatcher(), AdaptiveLength("1 s", pulse_rate_hz=10))
    det = [Message("det", n * SECOND // 10, n, True) for n in range(200)]
    first = batcher.process(det[:60])
    for _ in range(2):
        batcher.report(len(first[-1].messages), "1.1 s")
    later = batcher.process(det[60:]) + batcher.flush()
    assert 2 * SECOND in {b.end_ns - b.start_ns for b in later}
    assert [m.payload for b in first + later for m in b.messages] == list(range(200))


# -- rows that wait -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_heap_and_sorting(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 200))
    rows = np.zeros(n, ROW)
    rows["time"] = rng.integers(0, 50, n)
    want = sorted(range(n), key=lambda i: (rows["time"][i], i))
    state = State(Layout(state_columns(1)))
    held = HeldRows(state, rows[:0])
    call = kernel_call(length_ns=1, timeout=1, max_rows=1, wall_ns=0)
    arrays = OutputBuffers(state, rows, held._lists, call).arrays
    lists, over = arrays.lists[0], int(Place.OVER)
    for row in rng.permutation(n):
        push_heap(rows, lists, over, row)
    assert [pop_heap(rows, lists) for _ in range(n)] == want
    numbers = rng.permutation(n)
    sort_rows(rows, numbers, 0, n, numbers.copy(), True)
    assert numbers.tolist() == want
    half = n // 2
    for row in range(half):
        append(rows, lists, over, row)
    for row in range(half, n):
        push_heap(rows, lists, over, row)
    empty_heap(arrays, 0, 0)
    order, row = [], int(lists["head"][over])
    while row >= 0:
        order.append(row)
        row = int(rows["next"][row])
    assert order == list(range(n))
    assert lists["heap"] == -1


def test_state_is_plain_arrays_and_tables() -> None:
    state = STAGE.open(3)
    assert isinstance(state, State)
    STAGE.process(state, collection(6, lane=2))
    assert set(state.tables) == {"held", "names", "keys"}
    assert state["lane"][:2].sum() == 0


def test_compiling_leaves_nothing_for_later() -> None:
    """`tidegate warm` and `compile()` promise that a live program never waits for the compiler."""
    Batch().compile()
    called = (
        *(kernel.run_rows, kernel.settle_lanes, kernel.change_windows, kernel.load_rows),
        *(kernel.waiting_rows, kernel.earliest_times, kernel.schedule_length),
        *(kernel.group_by_lane, report.spread_rows, report.transpose, names.number_names),
    )
    for function in called:
        if hasattr(function, "overloads"):  # not without the JIT
            assert function.overloads, function
