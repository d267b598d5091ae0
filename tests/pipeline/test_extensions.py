"""Additions from outside the package, through the public hooks alone: one registration line
each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidegate as tg
from tidegate import triggers
from tidegate.core.state import Column, Layout, State
from tidegate.core.time import UNSET
from tidegate.pipeline import STAGES, explain, formats, json_schema, plan
from tidegate.pipeline.definition import SINK_FORMATS
from tidegate.testing.laws import assert_cut_law, assert_restart_law, play


@dataclass(frozen=True)
class EveryNth(tg.Operator):
    """Keep every `count`-th row of a key, from the first on; `skip_repeats` leaves out rows with
    the time of the row before them."""

    count: int = 2
    skip_repeats: bool = False
    keys: tuple[str, ...] = ()

    name: ClassVar[str] = "every_nth"

    def __post_init__(self) -> None:
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 1:
            raise tg.ConfigError("count", self.count, "must be a whole number of at least 1")

    def layout(self) -> Layout:
        return Layout({"seen": Column(np.int64), "last": Column(np.int64, fill=UNSET)})

    def process(self, state: State, collection: tg.Collection) -> list[Any]:
        seen, last = state["seen"], state["last"]
        kept = []
        for row, (lane, time) in enumerate(
            zip(collection.lane.tolist(), collection.time_ns.tolist(), strict=True)
        ):
            if self.skip_repeats and last[lane] == time:
                continue
            if seen[lane] % self.count == 0:
                kept.append(row)
            seen[lane] += 1
            last[lane] = time
        state.touch(np.unique(collection.lane))
        return [collection.take(np.array(kept, np.int64))] if kept else []


@pytest.fixture
def every_nth() -> Iterator[None]:
    STAGES.register("every_nth", EveryNth)  # this is all it takes
    yield
    STAGES.unregister("every_nth")


DEFINITION = """
streams:
  fleet: {columns: [car, t], key: car, eventtime: {column: t, type: unixtimestamp_ns}}
options: {eventtime: {enabled: true}}
stages:
  - every_nth: {count: 3, skipRepeats: true}
"""


@pytest.mark.usefixtures("every_nth")
def test_an_operator_runs_from_a_pipeline_file() -> None:
    made = plan(tg.PipelineDefinition.from_yaml(DEFINITION))
    assert "PhysicalEveryNth" in explain(made)
    assert "count=3, skip_repeats=true, keys=[car]" in explain(made)
    flow = made.flow()
    rows = pa.record_batch({"car": ["a"] * 8, "t": [1, 1, 2, 3, 4, 4, 5, 6]})
    out = [*flow.process(rows), *flow.end()]
    kept = [o.rows["t"].to_pylist() for o in out if isinstance(o, tg.Collection)]
    assert [time for some in kept for time in some] == [1, 4]


@pytest.mark.usefixtures("every_nth")
def test_its_mistakes_have_a_line_and_editors_know_it() -> None:
    with pytest.raises(tg.ConfigError, match=r"^stages\[0\]\.every_nth\.count: got 0, .*line 6\)$"):
        plan(tg.PipelineDefinition.from_yaml(DEFINITION.replace("count: 3", "count: 0")))
    with pytest.raises(tg.ConfigError, match=r"did you mean count\?.*line 6\)$"):
        plan(tg.PipelineDefinition.from_yaml(DEFINITION.replace("count: 3", "cuont: 3")))
    known = json_schema()["$defs"]["StageDefinition"]["anyOf"][1]["properties"]
    assert {"count", "skipRepeats"} <= set(known["every_nth"]["properties"])


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), min_size=1, max_size=40),
    st.lists(st.integers(0, 40), max_size=5),
    st.integers(1, 4),
    st.booleans(),
)
def test_the_laws_hold_for_it(
    rows: list[tuple[int, int]], at: list[int], count: int, skip: bool
) -> None:
    operator = EveryNth(count, skip)
    lanes = np.array([lane for lane, _ in rows], np.int32)
    times = np.array([time for _, time in rows], np.int64)
    collection = tg.Collection(pa.record_batch({"n": range(len(rows))}), times, lanes, 0)
    assert_cut_law(operator, collection, at, lanes=3)
    assert_restart_law(operator, [collection, collection], lanes=3)
    assert play(operator, [collection], lanes=3)


# -- a trigger ------------------------------------------------------------------------------------


@pytest.fixture
def after_mark() -> Iterator[None]:
    @triggers.trigger("after_mark")  # this is all it takes
    @dataclass(frozen=True)
    class AfterMark(triggers.Trigger):
        """Fires after a row whose column has this value."""

        column: str
        value: str = "end"

        def compile(self, program: triggers.TriggerProgram) -> None:
            program.condition(lambda rows: pc.equal(rows[self.column], self.value), self.name)

    yield
    del triggers.TRIGGERS["after_mark"]


WINDOWS = """
streams:
  fleet: {columns: [car, t, mark], key: car, eventtime: {column: t, type: unixtimestamp_ns}}
options: {eventtime: {enabled: true}}
stages:
  - window: {tumbling: 1 h, aggregates: {n: count}, trigger: {any: [after_mark: mark, count: 100]}}
"""


@pytest.mark.usefixtures("after_mark")
def test_a_trigger_runs_from_a_pipeline_file() -> None:
    flow = plan(tg.PipelineDefinition.from_yaml(WINDOWS)).flow()
    marks = ["a", "end", "b", "c", "end", "d"]
    rows = pa.record_batch({"car": ["x"] * 6, "t": list(range(6)), "mark": marks})
    out = [*flow.process(rows), *flow.end()]
    panes = [o.rows.to_pylist() for o in out if isinstance(o, tg.Collection)]
    fired = [row["trigger"] for pane in panes for row in pane]
    assert fired[:2] == ["after_mark", "after_mark"]
    assert [row["n"] for pane in panes for row in pane][:2] == [2, 3]
    wrong = WINDOWS.replace("after_mark: mark", "after_mark: {colum: x}")
    with pytest.raises(tg.ConfigError, match=r"after_mark\.colum: .*did you mean column.*line 6"):
        plan(tg.PipelineDefinition.from_yaml(wrong))


# -- a sink ---------------------------------------------------------------------------------------


@pytest.fixture
def listed() -> Iterator[list[Any]]:
    """A sink that only remembers what it was made from."""
    pytest.importorskip("pyspark")
    from tidegate.spark import SinkRequest, register_sink
    from tidegate.spark.sinks.registry import SINKS

    made: list[Any] = []

    class Listed:
        def __init__(self, request: SinkRequest) -> None:
            made.append(request)

        def check_unused(self) -> None:
            pass

        def write(self, outcomes: Any, batch: int, query: str) -> Any:
            raise NotImplementedError

    register_sink("listed", Listed)  # this is all it takes
    yield made
    del SINKS["listed"]
    formats.SINKS.pop("listed", None)
    SINK_FORMATS.remove("listed")


def test_a_sink_is_used_by_a_pipeline_file(listed: list[Any]) -> None:
    from tidegate.spark.sinks.registry import SinkSettings, open_sink

    text = "streams: {s: {key: car}}\nsink: {format: listed, path: out, options: {depth: 5}}"
    definition = tg.PipelineDefinition.from_yaml(text)
    assert "option.depth=***" in explain(plan(definition))  # nobody knows whether it is a secret
    open_sink(SinkSettings.of(definition.sink), "out", {})
    assert [(request.path, dict(request.options)) for request in listed] == [
        ("out", {"depth": "5"})
    ]
