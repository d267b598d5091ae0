"""The recorded definitions: which are refused with which sentence, and what a plan shows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from cases import load_list
from tidegate.core.operator import Operator
from tidegate.core.outcomes import Collection, Outcome
from tidegate.core.state import Layout, State
from tidegate.errors import ConfigError
from tidegate.pipeline import PipelineDefinition, Stages, explain, explain_json, plan

STREAM = "stream_eventtime"


def definition(stream: dict[str, Any], **options: Any) -> PipelineDefinition:
    given = {key: value for key, value in stream.items() if value is not None}
    stages = options.pop("stages", [])
    return PipelineDefinition.of(
        {"streams": {STREAM: given}, "options": {"eventtime": options}, "stages": stages}
    )


@pytest.mark.parametrize("case", load_list("eventtime/planner.json", "errors"))
def test_errors(case: dict[str, Any]) -> None:
    asked = definition(case["stream"], enabled=case["enabled"])
    if case["error"] is None:
        assert [node.name for node in plan(asked).nodes] == [
            "PhysicalDataSource",
            "PhysicalDecoder",
        ]
        return
    with pytest.raises(ConfigError) as caught:
        plan(asked)
    # We know more types than were recorded, and say beyond the recorded sentence which columns
    # and streams there are.
    said = re.sub(r"available: [^)]*", "available: ...", str(caught.value))
    assert said.startswith(re.sub(r"available: [^)]*", "available: ...", case["error"]))
    assert STREAM in said


@dataclass(frozen=True)
class Stateful(Operator):
    """Stands for a function over earlier rows: it needs no time, and sees rows as they arrive."""

    name: ClassVar[str] = "stateful_function"

    def layout(self) -> Layout:
        return Layout()

    def process(self, state: State, collection: Collection) -> list[Outcome]:
        return [collection]


@dataclass(frozen=True)
class Aggregation(Stateful):
    """Stands for a window: it needs time."""

    length: str = "10 s"


# Pipelines here are tables of stages, not SQL: what the recorded plan calls a stateful function and
# a streaming aggregation are stages, and what it projects is left to the table's reader.
STAGES_OF = {
    "SELECT sum(a), lag(a) FROM stream_eventtime GROUP BY tumblingwindow('ss', 10)": [
        "stateful_function",
        {"streaming_aggregation": {"length": "10 s"}},
    ],
    "SELECT a FROM stream_eventtime": [],
}


@pytest.mark.parametrize("case", load_list("eventtime/planner.json", "explain"))
def test_explain(case: dict[str, Any]) -> None:
    known = Stages()
    known.register("stateful_function", Stateful, needs_time=False)
    known.register("streaming_aggregation", Aggregation)
    stream = {
        "columns": ["a", "event_ts"],
        "eventtime": {"column": "event_ts", "type": "unixtimestamp_ms"},
    }
    asked = definition(
        stream,
        enabled=True,
        lateTolerance=f"{case['late_tolerance_ms']} ms",
        stages=STAGES_OF[case["sql"]],
    )
    made = plan(asked, stages=known)
    shown = explain_json(made)
    operators = [node["operator"] for node in shown["nodes"]]
    recorded = [name for name in case["operators"] if name != "PhysicalProject"]
    if "PhysicalEventtimeWatermark" not in recorded:
        # Here we differ on purpose: to put rows in order is what Tidegate is for, so the stage
        # stands behind the decoder also where no window asks for it.
        recorded.append("PhysicalEventtimeWatermark")
    assert operators == recorded
    by_name = {node["operator"]: node["info"] for node in shown["nodes"]}
    assert set(case["decoder_info"]) <= set(by_name["PhysicalDecoder"])
    ours = {"mode=event_time", f"late_tolerance_ms={case['late_tolerance_ms']}"}
    assert ours <= set(by_name["PhysicalEventtimeWatermark"])
    # What the recorded watermark says of its window, the window says of itself.
    if "window=tumbling" in case.get("watermark_info", ()):
        assert "length=10 s" in by_name["PhysicalStreamingAggregation"]
        assert any("order of arrival" in note for note in shown["notes"])  # the recorded trap
    assert case.get("options", {}).items() <= shown["options"].items()
    for name in operators:
        assert name in explain(made)
