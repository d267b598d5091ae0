"""A kind, a trigger, a late policy and an aggregation from outside the package: one class each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.core.outcomes import Collection, Dropped
from tidegate.pipeline.stages import StageContext
from tidegate.pipeline.window_stage import build_window
from tidegate.testing.laws import assert_cut_law, assert_restart_law, cut
from tidegate.windows import (
    Aggregate,
    AggregateFunction,
    Fold,
    LatePolicy,
    Session,
    Sliding,
    Trigger,
    TriggerProgram,
    Tumbling,
    Window,
    aggregate_function,
    late_policy,
    trigger,
    window_kind,
)
from tidegate.windows.aggregates import AGGREGATE_FUNCTIONS
from tidegate.windows.kernels.layout import LateRows, Op
from tidegate.windows.kinds import WINDOW_KINDS
from tidegate.windows.late import LATE_POLICIES
from tidegate.windows.triggers import TRIGGERS


def rows(times: list[int]) -> Collection:
    return Collection.of(pa.record_batch({"v": [float(t) for t in times]}), np.array(times))


@pytest.fixture
def registries() -> Any:
    """What a test registers is gone after it."""
    every = (WINDOW_KINDS, TRIGGERS, LATE_POLICIES, AGGREGATE_FUNCTIONS)
    before = [dict(registry) for registry in every]
    yield
    for registry, old in zip(every, before, strict=True):
        registry.clear()
        registry.update(old)  # type: ignore[arg-type]


@pytest.mark.usefixtures("registries")
def test_one_class_each_also_in_yaml() -> None:
    @window_kind("daily")
    @dataclass(frozen=True)
    class Daily(Tumbling):
        size: Any = "1 d"

    @trigger("dozen")
    @dataclass(frozen=True)
    class Dozen(Trigger):
        dozens: int = 1

        def compile(self, program: TriggerProgram) -> None:
            program.measure(Op.COUNT, 12 * self.dozens, self.name)

    @late_policy("forget_it")
    @dataclass(frozen=True)
    class ForgetIt(LatePolicy):
        rows = LateRows.DISCARD

    @aggregate_function("span")
    class Span(AggregateFunction):
        def result_type(self, kind: Any, column: str | None) -> pa.DataType:
            return pa.float64()

        def over_rows(
            self, values: Any, edges: Any, which: Any, aggregate: Any, kind: Any
        ) -> pa.Array:
            parts = [values[int(edges[s]) : int(edges[s + 1])].to_pylist() for s in which]
            return pa.array([max(part) - min(part) for part in parts], kind)

    stage = build_window(
        {"daily": True, "trigger": {"dozen": 1}, "late": "forgetIt",
         "aggregates": {"s": ["span", "v"]}}, StageContext(),
    )  # fmt: skip
    assert isinstance(stage, Window)
    state = stage.open()
    out = stage.process(state, rows(list(range(30))))
    out += stage.flush(state)
    data = [row for o in out if isinstance(o, Collection) for row in o.rows.to_pylist()]
    assert [(r["s"], r["trigger"]) for r in data] == [
        (11.0, "dozen"), (11.0, "dozen"), (5.0, "shutdown"),
    ]  # fmt: skip
    from tidegate.core.outcomes import Watermark

    stage.advance(state, Watermark.at(86_400 * 10**9))
    assert isinstance(stage.process(state, rows([5]))[0], Dropped)
    assert_cut_law(stage, rows(list(range(40))), [3, 17, 18])


class SumOfSquares(Fold):
    """A fold with a state of two numbers."""

    type = pa.float64()
    state_type = pa.list_(pa.float64())

    def init(self) -> Any:
        return [0.0, 0.0]

    def add(self, state: Any, values: pa.Array) -> Any:
        found = [v for v in values.to_pylist() if v is not None]
        return [state[0] + len(found), state[1] + sum(v * v for v in found)]

    def merge(self, left: Any, right: Any) -> Any:
        return [left[0] + right[0], left[1] + right[1]]

    def finish(self, state: Any) -> Any:
        return state[1] / state[0] if state[0] else None


@pytest.mark.parametrize("window", [Tumbling(10), Sliding(20, 5), Session(4)], ids=repr)
def test_a_fold_is_merged_and_kept_without_buffering_rows(window: Any) -> None:
    fold = Aggregate(SumOfSquares(), "v")
    plain = Aggregate(lambda v: float(np.mean(np.square(v.to_numpy()))), "v", type=pa.float64())
    times = [1, 2, 3, 8, 9, 14, 15, 33, 21, 22, 23, 24, 40, 41]

    def run(aggregate: Aggregate) -> list[Any]:
        stage = Window(window, aggregates={"x": aggregate})
        state = stage.open()
        out: list[Any] = []
        for piece in cut(rows(times), [4, 9]):
            out += stage.process(state, piece)
            state = stage.restore(stage.snapshot(state))
        assert (stage.metrics(state)["rows_held"] == 0) == (aggregate is fold)
        out += stage.flush(state)
        return [row for o in out for row in o.rows.select(["window_id", "x"]).to_pylist()]

    assert run(fold) == [pytest.approx(row) for row in run(plain)]
    assert_restart_law(Window(window, aggregates={"x": fold}), cut(rows(times), [5]))
