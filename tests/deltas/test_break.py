"""What is to be delivered after a time by the clock, when a run has a break or its clock is set."""

from __future__ import annotations

from tidegate.core.outcomes import Collection, Outcome
from tidegate.core.state import State
from tidegate.deltas import Compact, Create, FullMerge, Offset, VectorDelta
from tidegate.deltas.operations import rows_from

SECOND = 10**9


def deltas(*vectors: str) -> Collection:
    made = [
        delta
        for name in vectors
        for delta in (
            VectorDelta(f"{name}1", name, Create([1.0]), 1),
            VectorDelta(f"{name}2", name, Offset(1.0), 2),
        )
    ]
    rows = rows_from(made)
    return Collection.of(rows, rows.column("time_ns").to_numpy(), 7200 * SECOND)


def started(now_ns: int) -> tuple[Compact, State]:
    """A stage to which a run that goes on at this time came back."""
    stage = Compact(1, FullMerge(), delta_threshold=100, time_threshold="10 s")
    state = stage.open()
    assert stage.process(state, deltas("a", "b")) == []
    stage.resume(state, now_ns)
    return stage, state


def test_after_a_break_deltas_are_overdue() -> None:
    stage, state = started(10_800 * SECOND)
    assert stage.wake_at(state) == 7210 * SECOND
    assert vectors(stage.wake(state, 10_800 * SECOND)) == ["a", "b"]


def test_a_clock_that_was_set_back_is_followed() -> None:
    now = 3600 * SECOND
    stage, state = started(now)
    assert stage.wake_at(state) == now + 10 * SECOND
    assert stage.wake(state, now + 10 * SECOND - 1) == []
    assert vectors(stage.wake(state, now + 10 * SECOND)) == ["a", "b"]
    assert stage.wake_at(state) is None
    stage.resume(state, now)  # nothing waits
    assert stage.wake_at(state) is None


def vectors(outcomes: list[Outcome]) -> list[str]:
    return [
        name
        for one in outcomes
        if isinstance(one, Collection)
        for name in one.rows.column("vector_id").to_pylist()
    ]
