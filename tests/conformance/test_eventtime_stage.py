"""The recorded cases of the event-time stage alone, and of decoder, gate and stage together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from cases import load_list
from tidegate.core.flow import Flow
from tidegate.core.operator import Operator
from tidegate.core.outcomes import Collection, Dropped, End, Late, Outcome, StreamError, Watermark
from tidegate.core.state import Column, Layout, State
from tidegate.eventtime import EventtimeWatermark
from tidegate.pipeline import PipelineDefinition, Stages, plan

MS = 10**6


def stage_of(outcomes: list[Outcome], unit: int = MS) -> list[dict[str, Any]]:
    """Rows and watermarks in order, as the cases write them."""
    out: list[dict[str, Any]] = []
    for outcome in outcomes:
        if isinstance(outcome, Collection):
            out.append({"rows": outcome.rows.column("id").to_pylist()})
        elif isinstance(outcome, Watermark):
            assert outcome.time_ns[0] % unit == 0
            out.append({"watermark": int(outcome.time_ns[0]) // unit})
    # "Watermarks <= 0 that release nothing are left out": what stands before one is then no rows.
    return [
        each
        for place, each in enumerate(out)
        if each.get("watermark", 1) > 0 or (place > 0 and "rows" in out[place - 1])
    ]


def late_of(outcomes: list[Outcome]) -> list[str]:
    return [
        name
        for outcome in outcomes
        if isinstance(outcome, Late)
        for name in outcome.rows.column("id").to_pylist()
    ]


@pytest.mark.parametrize("case", load_list("eventtime/watermark_stage.json", "cases"))
def test_stage(case: dict[str, Any]) -> None:
    # One case reaches the year 2286, which 64-bit nanoseconds do not. The stage compares numbers
    # whatever their unit, so that case runs in microseconds.
    reach = max(row["ts"] for step in case["steps"] for row in step.get("rows", ()) or [{"ts": 0}])
    unit = MS if reach * MS < 2**63 else 1000
    flow = Flow(
        [
            EventtimeWatermark(
                case["config"]["late_tolerance_ms"] * unit, watermark_per="collection"
            )
        ],
        timed=True,
    )
    for step in case["steps"]:
        if step["do"] == "end":
            outcomes = flow.end(End(step["mode"]))
        else:
            rows = pa.record_batch({"id": pa.array([r["id"] for r in step["rows"]], pa.string())})
            times = np.array([row["ts"] * unit for row in step["rows"]], np.int64)
            outcomes = flow.accept(Collection.of(rows, times))
        assert stage_of(outcomes, unit) == step["expect"]["stage"]
        assert late_of(outcomes) == step["expect"]["late"]


@dataclass(frozen=True)
class OnChange(Operator):
    """Lets a row pass when one of the columns differs from the row before: a user's filter."""

    columns: tuple[str, ...]

    name: ClassVar[str] = "on_change"

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))

    def layout(self) -> Layout:
        return Layout({"last": Column(np.float64, (len(self.columns),), np.nan)})

    def process(self, state: State, collection: Collection) -> list[Outcome]:
        keep = np.zeros(len(collection), np.bool_)
        values = np.stack([collection.rows.column(c).to_numpy() for c in self.columns], axis=1)
        for row, lane in enumerate(collection.lane):
            keep[row] = not np.array_equal(state["last"][lane], values[row])
            state["last"][lane] = values[row]
        gone = collection.take(np.flatnonzero(~keep))
        reason = pa.array(["unchanged"] * len(gone), pa.string())
        return [
            collection.take(np.flatnonzero(keep)),
            Dropped(gone.rows, gone.time_ns, gone.lane, reason),
        ]


def flow_of(config: dict[str, Any]) -> Flow:
    """The pipeline of a case up to its window, from a definition."""
    stages = Stages()
    stages.register("on_change", OnChange, needs_time=False)
    stages.register("window", lambda settings, context: Passing())
    gate = config.get("source_input")
    before = [{"on_change": {"columns": gate["columns"]}}] if gate else []
    definition = PipelineDefinition.of(
        {
            "streams": {"stream": {"eventtime": config["eventtime"]}},
            "options": {
                "eventtime": {
                    "enabled": True,
                    "watermarkPer": "collection",
                    "lateTolerance": f"{config['late_tolerance_ms']} ms",
                }
            },
            "stages": [*before, "window"],
        }
    )
    return plan(definition, stages=stages).flow()


@dataclass(frozen=True)
class Passing(Operator):
    """Stands where the window would."""

    name: ClassVar[str] = "passing"

    def layout(self) -> Layout:
        return Layout()

    def process(self, state: State, collection: Collection) -> list[Outcome]:
        return [collection]


def batches(rows: list[dict[str, Any]]) -> list[pa.RecordBatch]:
    """Rows whose times are of one Arrow type each, so that every kind of value reaches a parser."""
    out: list[list[dict[str, Any]]] = []
    kinds: list[type] = []
    for row in rows:
        kind = type(row.get("event_ts"))
        if not out or kinds[-1] is not kind:
            out.append([])
            kinds.append(kind)
        out[-1].append(row)
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [pa.RecordBatch.from_pydict({n: [r.get(n) for r in part] for n in names})
            for part in out]  # fmt: skip


@pytest.mark.parametrize("case", load_list("eventtime/eventtime_pipeline.json", "cases"))
def test_pipeline_up_to_the_window(case: dict[str, Any]) -> None:
    flow = flow_of(case["config"])
    for step in case["steps"]:
        outcomes: list[Outcome] = []
        if step["do"] == "end":
            outcomes = flow.end(End(step["mode"]))
        else:
            for rows in batches(step["rows"]):
                outcomes += flow.process(rows)
        errors = sum(len(o) for o in outcomes if isinstance(o, StreamError))
        assert errors == step["expect"]["errors"]
        assert stage_of(outcomes) == step["expect"]["stage"]
        assert late_of(outcomes) == step["expect"]["late"]
