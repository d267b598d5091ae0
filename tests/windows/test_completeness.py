"""Completeness certificates, timestamp combiners, top-N and sketches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.core.outcomes import Collection, Outcome, Side, Watermark
from tidegate.errors import ConfigError
from tidegate.pipeline.editor_schema import json_schema
from tidegate.windows import (
    AfterCount,
    Aggregate,
    CountWindow,
    Cumulate,
    NextWindow,
    QuantileSketch,
    Reemit,
    Session,
    Sliding,
    Tumbling,
    Window,
    WindowKind,
    window_kind,
)
from tidegate.windows.kernels.layout import Family
from tidegate.windows.kinds import WINDOW_KINDS


def run(stage: Window, times: list[int], marks: list[int], **columns: Any) -> list[Outcome]:
    state = stage.open()
    rows = pa.record_batch({"v": np.arange(len(times)) * 1.0, **columns})
    out = stage.process(state, Collection.of(rows, np.array(times)))
    for mark in marks:
        out += stage.advance(state, Watermark.at(mark))
    return out + stage.flush(state)


def certificates(out: list[Outcome]) -> list[dict[str, Any]]:
    return [row for one in out if isinstance(one, Side) for row in one.rows.to_pylist()]


def test_a_window_whose_rows_left_early_is_still_certified() -> None:
    stage = Window(Tumbling(10), AfterCount(2), aggregates={"n": "count"}, complete=True)
    out = run(stage, [1, 2, 3, 4], [9])
    assert sum(len(one) for one in out if isinstance(one, Collection)) == 2
    (row,) = certificates(out)
    assert (row["window_start_ns"], row["panes"], row["reason"]) == (0, 2, "watermark")
    assert row["final"]
    assert row["open_until_ns"] is None


def test_lateness_says_until_when_and_then_that_it_is_over() -> None:
    stage = Window(Tumbling(10), aggregates={"n": "count"}, late=Reemit(5), complete=True)
    out = run(stage, [1], [9, 14, 15])
    first, last = certificates(out)
    assert (first["reason"], first["final"], first["open_until_ns"]) == ("watermark", False, 15)
    assert (last["reason"], last["final"]) == ("expired", True)


def test_one_step_of_the_watermark_certifies_in_the_order_of_many() -> None:
    stage = Window(Tumbling(10), aggregates={"n": "count"}, late=Reemit(20), complete=True)
    one, many = (certificates(run(stage, [1, 12], marks)) for marks in ([40], [9, 19, 30, 40]))
    assert one == many
    said = [(row["window_end_ns"], row["reason"]) for row in one]
    assert said == [(10, "watermark"), (20, "watermark"), (10, "expired"), (20, "expired")]


def test_the_end_certifies_what_was_open() -> None:
    out = run(Window(Session(4), complete=True), [1, 20], [8])
    assert [row["reason"] for row in certificates(out)] == ["watermark", "end"]


@pytest.mark.parametrize("window", [Tumbling(10), Sliding(20, 5), Session(4)])
@settings(deadline=None)
@given(times=st.lists(st.integers(0, 100), min_size=1, max_size=30), mark=st.integers(0, 120))
def test_every_window_has_one_final_certificate(window: Any, times: list[int], mark: int) -> None:
    stage = Window(window, AfterCount(3), aggregates={"n": "count"}, late=Reemit(7), complete=True)
    out = run(stage, times, [mark])
    emitted = {
        (row["window_start_ns"], row["window_end_ns"])
        for one in out
        if isinstance(one, Collection)
        for row in one.rows.to_pylist()
    }
    final = [
        (row["window_start_ns"], row["window_end_ns"]) for row in certificates(out) if row["final"]
    ]
    assert len(final) == len(set(final))
    if isinstance(window, Session):  # a session that grew after an early pane has another end now
        assert {start for start, _ in final} <= {start for start, _ in emitted}
    else:
        assert set(final) == emitted


@pytest.mark.parametrize(("timestamp", "expected"), [("end", 9), ("earliest", 2), ("latest", 7)])
@pytest.mark.parametrize("extra", [{}, {"q": ("quantile", "v", 0.5)}])
def test_timestamp(timestamp: str, expected: int, extra: dict[str, Any]) -> None:
    stage = Window(Tumbling(10), aggregates={"n": "count", **extra}, timestamp=timestamp)
    state = stage.open()
    rows = pa.record_batch({"v": [1.0, 2.0, 3.0]})
    stage.process(state, Collection.of(rows, np.array([4, 2, 7])))
    handed = [one for one in stage.advance(state, Watermark.at(8)) if isinstance(one, Watermark)]
    held = min(8, expected - 1) if timestamp != "end" else 8
    assert [int(one.time_ns[0]) for one in handed] == [min(held, 1) if held < 8 else 8]
    (made, *_) = stage.advance(state, Watermark.at(9))
    assert isinstance(made, Collection)
    assert made.time_ns.tolist() == [expected]


def test_top() -> None:
    aggregates = {"top": ("top", "v", 2), "who": Aggregate("top", "name", n=2, by="w")}
    stage = Window(Tumbling(10), aggregates=aggregates)
    out = run(stage, [1, 2, 3, 11], [], name=["a", "b", "c", "d"], w=pa.array([5, None, 5, None]))
    rows = [row for one in out if isinstance(one, Collection) for row in one.rows.to_pylist()]
    assert [(row["top"], row["who"]) for row in rows] == [([2.0, 1.0], ["a", "c"]), ([3.0], [])]


@settings(deadline=None)
@given(
    values=st.lists(st.floats(allow_nan=False, width=32), min_size=1, max_size=60),
    q=st.floats(0, 1),
    at=st.integers(0, 60),
)
def test_the_sketch_keeps_its_error_and_merges_exactly(
    values: list[float], q: float, at: int
) -> None:
    sketch = QuantileSketch(q, error=0.02)
    whole = sketch.add(sketch.init(), pa.array(values))
    parts = [sketch.add(sketch.init(), pa.array(part, pa.float64()))
             for part in (values[:at], values[at:])]  # fmt: skip
    assert sketch.merge(*parts) == whole == sketch.merge(*parts[::-1])
    exact = sorted(values)[max(1, int(np.ceil(q * len(values)))) - 1]
    found = sketch.finish(whole)
    if np.isinf(exact):
        assert found == exact
    else:
        assert found is not None
        assert abs(found - exact) <= 0.02 * abs(exact) * (1 + 1e-9)


def test_a_sketch_without_values() -> None:
    sketch = QuantileSketch(0.5)
    state = sketch.add(sketch.init(), pa.array([None, float("nan")], pa.float64()))
    assert sketch.finish(state) is None


@pytest.mark.parametrize(
    ("given_", "field"),
    [
        ({"window": CountWindow(3), "complete": True}, "complete"),
        ({"window": Cumulate(10, 5), "trigger": AfterCount(2)}, "trigger"),
        ({"window": Cumulate(10, 5), "late": NextWindow()}, "late"),
        ({"window": Tumbling(10), "timestamp": "earliest"}, "timestamp"),
        ({"window": Tumbling(10), "timestamp": "middle"}, "timestamp"),
    ],
)
def test_what_contradicts_is_refused(given_: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as error:
        Window(**given_)
    assert error.value.field == field


def test_cumulate_steps_must_fit() -> None:
    with pytest.raises(ConfigError, match="divide"):
        Cumulate(10, 3)


def test_the_json_schema_lists_kinds_registered_later() -> None:
    @window_kind("per_shift")
    class PerShift(WindowKind):
        family = Family.ALIGNED

    try:
        assert '"perShift"' in str(json_schema()).replace("'", '"')
    finally:
        del WINDOW_KINDS["per_shift"]
    assert "perShift" not in str(json_schema())
