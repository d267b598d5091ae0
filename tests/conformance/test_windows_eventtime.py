"""The recorded window cases of the event-time system, alone and behind the event-time stage."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from cases import load_list
from tidegate.core.chain import Chain
from tidegate.core.flow import Flow
from tidegate.core.operator import Operator
from tidegate.core.outcomes import (
    Collection,
    ControlSignal,
    End,
    Late,
    Outcome,
    StreamError,
    Watermark,
)
from tidegate.core.state import Column, Layout, State
from tidegate.eventtime import Decoder, EventtimeWatermark, TimeColumn
from tidegate.windows import (
    CountWindow,
    LookBack,
    StateWindow,
    Tumbling,
    When,
    Window,
)

MS = 1_000_000


def condition(given: Any) -> Any:
    return given if isinstance(given, bool) else When(given["column"], "==", given["eq"])


def kind_of(config: dict[str, Any]) -> Any:
    match config["kind"]:
        case "tumbling":
            return Tumbling(f"{config['length_ms']} ms")
        case "sliding":
            return LookBack(f"{config['lookback_ms']} ms", f"{config.get('lookahead_ms', 0)} ms")
        case "count":
            return CountWindow(config["count"])
        case "state":
            return StateWindow(
                condition(config["open"]),
                condition(config["emit"]),
                tuple(config.get("partition_by", ())),
            )
    raise AssertionError(config)


def stage_of(config: dict[str, Any]) -> Window:
    aggregates = {a["as"]: (a["fn"], a["column"]) for a in config.get("aggregates", ())}
    return Window(
        kind_of(config["window"]), aggregates=aggregates, group_by=tuple(config.get("group_by", ()))
    )


def collection_of(rows: list[dict[str, Any]]) -> Collection:
    times = np.array([row["ts"] * MS for row in rows], np.int64)
    return Collection.of(pa.RecordBatch.from_pylist(rows), times)


def windows_of(outcomes: list[Outcome], config: dict[str, Any]) -> list[dict[str, Any]]:
    """Output rows as the cases write them: one object per window, its rows or its results."""
    found: dict[Any, dict[str, Any]] = {}
    for outcome in outcomes:
        if not isinstance(outcome, Collection):
            continue
        for row in outcome.rows.to_pylist():
            one = found.setdefault(
                (row["window_id"], row["pane"]),
                {"start": row["window_start_ns"] // MS, "end": row["window_end_ns"] // MS},
            )
            if "trigger_time_ns" in row:
                one["trigger"] = row["trigger_time_ns"] // MS
            names = [a["as"] for a in config.get("aggregates", ())]
            if names:
                keys = [*config.get("group_by", ()), *names]
                one.setdefault("out", []).append({key: row[key] for key in keys})
            else:
                one.setdefault("rows", []).append(row["id"])
    return list(found.values())


CASES = [
    param
    for name in ("tumbling", "sliding", "count", "state")
    for param in load_list(f"eventtime/{name}.json", "cases")
]


@pytest.mark.parametrize("case", CASES)
def test_recorded_window_case(case: dict[str, Any]) -> None:
    stage = stage_of(case["config"])
    chain = Chain((stage,))
    states = chain.open()
    for step in case["steps"]:
        match step["do"]:
            case "collection":
                out = chain.process(states, collection_of(step["rows"]))
            case "watermark":
                out = chain.advance(states, Watermark.at(step["ts"] * MS))
            case "end":
                out = chain.control(states, ControlSignal.end(End(step["mode"])))
        assert windows_of(out, case["config"]) == step["expect"]["windows"], step
        states = [stage.restore(stage.snapshot(states[0]))]  # every case also through a restart
    if case["steps"][-1]["do"] == "end":
        assert all(state.rows(name) == 0 for state in states for name in state.tables)


@dataclass(frozen=True)
class OnChange(Operator):
    """Lets a row pass when a column differs from the row before: a filter of the user's."""

    column: str

    name: ClassVar[str] = "on_change"

    def layout(self) -> Layout:
        return Layout({"last": Column(np.int64, (), -1)})

    def process(self, state: State, collection: Collection) -> list[Outcome]:
        values = collection.rows.column(self.column).to_numpy()
        before = np.concatenate([state["last"][:1], values[:-1]])
        state["last"][0] = values[-1]
        return [collection.take(np.flatnonzero(values != before))]


def of_one_type(rows: list[dict[str, Any]]) -> list[pa.RecordBatch]:
    """The rows in runs whose times are of one Arrow type, so that every kind of value is parsed."""
    out = []
    for _, run in groupby(rows, key=lambda row: type(row.get("event_ts"))):
        part = list(run)
        names = dict.fromkeys(name for row in rows for name in row)
        out.append(pa.RecordBatch.from_pydict({n: [r.get(n) for r in part] for n in names}))
    return out


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("case", load_list("eventtime/eventtime_pipeline.json", "cases"))
def test_recorded_pipeline_case(case: dict[str, Any], in_order: bool) -> None:
    config = case["config"]
    gate = config.get("source_input")
    stages: list[Operator] = [OnChange(gate["columns"][0])] if gate else []
    stages.append(
        EventtimeWatermark(f"{config['late_tolerance_ms']} ms", watermark_per="collection")
    )
    stages.append(replace(stage_of(config), in_order=in_order))
    time = TimeColumn(config["eventtime"]["column"], config["eventtime"]["type"])
    flow = Flow(stages, decoder=Decoder((time,)))
    for step in case["steps"]:
        out: list[Outcome] = []
        if step["do"] == "end":
            out = flow.end(End(step["mode"]))
        else:
            for rows in of_one_type(step["rows"]):
                out += flow.process(rows)
        late = [i for o in out if isinstance(o, Late) for i in o.rows.column("id").to_pylist()]
        assert windows_of(out, config) == step["expect"]["windows"]
        assert late == step["expect"]["late"]
        assert sum(len(o) for o in out if isinstance(o, StreamError)) == step["expect"]["errors"]
