"""New batch lengths at their event time, keys of empty batches, snapshots from anybody."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tidegate.batching import (
    AdaptiveBatcher,
    AdaptiveLength,
    Batch,
    Message,
    RateAwareBatcher,
    SimpleBatcher,
)
from tidegate.batching.layout import MAX_CHANGES
from tidegate.core import snapshot
from tidegate.core.outcomes import Collection, ControlSignal, Outcome, Side, StreamError
from tidegate.errors import ContractError, StateError

SECOND = 10**9


def rows_between(first: float, last: float, wall_ns: int = 0) -> Collection:
    """`det` at 10 Hz."""
    numbers = range(int(first * 10), int(last * 10))
    rows = pa.record_batch({"topic": ["det"] * len(numbers), "car": ["c1"] * len(numbers)})
    return Collection.of(rows, np.array(numbers, np.int64) * SECOND // 10, wall_ns)


def summaries(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    return [row for o in outcomes if isinstance(o, Side) for row in o.rows.to_pylist()]


def spans(outcomes: list[Outcome]) -> list[tuple[float, float]]:
    rows = summaries(outcomes)
    return [(r["batch_start_ns"] / SECOND, r["batch_end_ns"] / SECOND) for r in rows]


# -- control signals at their event time ----------------------------------------------------------


@pytest.mark.parametrize("cut", [5.0, 6.0, 7.3, 9.0, 10.0, 10.7])
@pytest.mark.parametrize("time_s", [10.0, 9.4])
def test_a_new_length_holds_from_its_event_time_in_every_cut(cut: float, time_s: float) -> None:
    stage = Batch("1 s")
    state = stage.open()
    out = stage.process(state, rows_between(0, cut))
    signal = ControlSignal("batch_length", "2 s", time_ns=int(time_s * SECOND))
    assert stage.control(state, signal) == []
    out += stage.process(state, rows_between(cut, 20)) + stage.flush(state)
    for start, end in spans(out)[2:-1]:
        assert end - start == (1 if start < 10 else 2)


def test_a_signal_that_comes_too_late_holds_from_the_next_close() -> None:
    stage = Batch("1 s")
    state = stage.open()
    out = stage.process(state, rows_between(0, 8.5))
    stage.control(state, ControlSignal("batch_length", "2 s", time_ns=3 * SECOND))
    out += stage.process(state, rows_between(8.5, 20)) + stage.flush(state)
    for start, end in spans(out)[2:-1]:
        assert end - start == (1 if start < 9 else 2)


def test_several_signals_each_at_its_time() -> None:
    stage = Batch("1 s")
    state = stage.open()
    for time_s, length in ((12, "3 s"), (6, "2 s")):
        stage.control(state, ControlSignal("batch_length", length, time_ns=time_s * SECOND))
    out = stage.process(state, rows_between(0, 30)) + stage.flush(state)
    for start, end in spans(out)[2:-1]:
        assert end - start == (1 if start < 6 else 2 if start < 12 else 3)


def test_a_signal_for_a_silence_holds_behind_it() -> None:
    stage = Batch("1 s")
    state = stage.open()
    out = stage.process(state, rows_between(0, 6))
    stage.control(state, ControlSignal("batch_length", "2 s", time_ns=20 * SECOND))
    out += stage.process(state, rows_between(40, 60)) + stage.flush(state)
    assert {end - start for start, end in spans(out)[2:-1] if start >= 40} == {2}


def test_a_schedule_that_is_full_is_an_error_row() -> None:
    stage = Batch("1 s")
    state = stage.open()
    stage.process(state, rows_between(0, 1))
    for number in range(MAX_CHANGES):
        at = (100 + number) * SECOND
        assert stage.control(state, ControlSignal("batch_length", "2 s", time_ns=at)) == []
    [error] = stage.control(state, ControlSignal("batch_length", "2 s", time_ns=10**12))
    assert isinstance(error, StreamError)
    assert "wait for their time" in error.reason[0].as_py()
    batcher = RateAwareBatcher()
    batcher.process([Message("a", 0)])
    for number in range(MAX_CHANGES):
        batcher.set_batch_length("2 s", time_ns=number + 10)
    with pytest.raises(ContractError, match="wait for their time"):
        batcher.set_batch_length("2 s", time_ns=10**12)


# -- empty batches --------------------------------------------------------------------------------


def test_the_summary_of_an_empty_batch_carries_its_key() -> None:
    """`log` rows move the high-water mark while `det` is silent: empty windows time out."""
    stage = Batch("1 s", gated=("det",), keys=("car",))
    rows = rows_between(0, 6)
    late = np.array([8.9, 9.9, 10.9]) * SECOND
    logs = Collection.of(
        pa.record_batch({"topic": ["log"] * 3, "car": ["c1"] * 3}), late.astype(np.int64)
    )
    for restart in (False, True):
        state = stage.open()
        out = stage.process(state, rows)
        if restart:
            state = stage.restore(stage.snapshot(state))
        out += stage.process(state, logs) + stage.flush(state)
        found = summaries(out)
        assert any(row["rows"] == 0 for row in found)
        assert {row["car"] for row in found} == {"c1"}


# -- snapshots ------------------------------------------------------------------------------------


def bent(stage: Batch, state: Any, rng: random.Random) -> bytes:
    """A snapshot with a few words of its arrays and tables overwritten, and a good checksum."""
    header, buffers = snapshot.unpack(stage.snapshot(state))
    header.pop("sizes")
    raw = [bytearray(buffer) for buffer in buffers]
    for _ in range(rng.randint(1, 4)):
        one = rng.choice([buffer for buffer in raw if len(buffer) >= 8])
        at = rng.randrange(len(one) // 8) * 8
        word = rng.choice([0, 1, -1, 2**31, 2**62, -(2**62), 2**63 - 1, rng.getrandbits(63)])
        one[at : at + 8] = int(word).to_bytes(8, "little", signed=True)
    return snapshot.pack(header, [bytes(buffer) for buffer in raw])


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
@example(374996)  # more streams to wait for than there are: a run of pulses closed for no reason
def test_a_crafted_snapshot_is_an_error_or_harmless(seed: int) -> None:
    """Whatever the words, nothing runs out of bounds: a StateError, or outcomes of some kind."""
    rng = random.Random(seed)
    stage = Batch("1 s", keys=("car",), max_streams=2, max_rows=500)
    state = stage.open(2)
    stage.process(state, rows_between(0, 6.5))
    try:
        state = stage.restore(bent(stage, state, rng))
        stage.invariants(state)
    except StateError:
        return
    stage.process(state, rows_between(6.5, 9))
    stage.flush(state)


@pytest.mark.parametrize(
    ("array", "field"),
    [
        *(("lane", name) for name in ("streams", "changes", "rows", "length", "move")),
        *(("stream", name) for name in ("diffs", "head", "gate", "period", "locked")),
    ],
)
@pytest.mark.parametrize("value", [-1, 2**60])
def test_values_out_of_range_are_named(array: str, field: str, value: int) -> None:
    from tidegate.batching.layout import lane_records, stream_records

    stage = Batch("1 s")
    state = stage.open()
    stage.process(state, rows_between(0, 6.5))
    records = lane_records(state) if array == "lane" else stream_records(state)[:, 0]
    if (array, field, value) == ("stream", "period", 2**60):
        pytest.skip("a period may be long")
    if (array, field, value) == ("stream", "locked", 2**60):
        pytest.skip("a lock may be old")
    records[field][0] = value
    with pytest.raises(StateError, match="corrupt"):
        stage.invariants(stage.restore(stage.snapshot(state)))


@pytest.mark.parametrize("at", [0, 3, 7, 12])
def test_every_in_process_batcher_can_be_restarted(at: int) -> None:
    messages = [Message("det", n * SECOND // 4, n) for n in range(16)]
    want = SimpleBatcher()
    straight = want.process(messages) + want.flush()
    batcher = SimpleBatcher()
    out = batcher.process(messages[:at])
    batcher = SimpleBatcher.restore(batcher.snapshot())
    for message in messages[at:]:
        out += batcher.push(message)
    assert out + batcher.flush() == straight
    assert batcher.advance(10**12) == batcher.tick() == []

    adaptive = AdaptiveBatcher(RateAwareBatcher(), AdaptiveLength())
    adaptive.process(messages[:at])
    adaptive.report(10, "2 s")
    blob = adaptive.snapshot()
    adaptive.report(10, "2 s")
    again = AdaptiveBatcher.restore(blob, RateAwareBatcher.restore, AdaptiveLength())
    again.report(10, "2 s")
    assert again.level == adaptive.level == 2
    assert again.process(messages[at:]) == adaptive.process(messages[at:])
    with pytest.raises(StateError):
        SimpleBatcher.restore(blob)
    with pytest.raises(StateError):
        AdaptiveBatcher.restore(SimpleBatcher().snapshot(), SimpleBatcher.restore, AdaptiveLength())
