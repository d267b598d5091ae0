"""Show a plan, as text for people and as JSON for programs. References are shown, secrets are
not."""

from __future__ import annotations

import json
from typing import Any

from tidegate.pipeline import plan_nodes as nodes
from tidegate.pipeline.formats import refusals
from tidegate.pipeline.planner import Plan
from tidegate.pipeline.secrets import show_text

__all__ = ["explain", "explain_json"]


def explain(plan: Plan) -> str:
    """Return a plan as text: its nodes in the order in which rows pass them, with their settings.

    Args:
        plan: From `tidegate.pipeline.plan`.

    >>> from tidegate.pipeline import PipelineDefinition, plan
    >>> print(explain(plan(PipelineDefinition.of({
    ...     "name": "fleet",
    ...     "streams": {"fleet": {"columns": ["car", "t"], "key": "car", "arrival": "t",
    ...                           "eventtime": {"column": "t", "type": "unixtimestamp_ms"}}},
    ...     "options": {"eventtime": {"enabled": True, "lateTolerance": "5 s"}},
    ... }))))
    pipeline fleet: batch, event time
      1 PhysicalDataSource          stream=fleet, key=[car], arrival=[t], columns=[car, t]
      2 PhysicalDecoder             stream=fleet, eventtime.column=t, \
eventtime.type=unixtimestamp_ms, eventtime.index=1
      3 PhysicalEventtimeWatermark  mode=event_time, late_tolerance_ms=5000, late_tolerance=5 s, \
late=side_output, watermark_per=tuple
    """
    facts = explain_json(plan)
    time = "event time" if facts["options"]["eventtime_enabled"] else "processing time"
    lines = [f"pipeline {facts['name']}: {facts['options']['mode']}, {time}"]
    width = max(len(node["operator"]) for node in facts["nodes"])
    for number, node in enumerate(facts["nodes"], 1):
        info = ", ".join(node["info"])
        lines.append(f"{number:>3} {node['operator']:<{width}}  {info}".rstrip())
    lines += [f"note: {note}" for note in facts["notes"]]
    return "\n".join(lines)


def explain_json(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain JSON values: name, options, nodes (operator, facts, info) and notes.

    Args:
        plan: From `tidegate.pipeline.plan`.
    """
    options = plan.definition.options
    made = {
        "name": plan.definition.name,
        "options": {
            "mode": options.mode,
            "trigger": options.trigger,
            "checkpoint": show_text(options.checkpoint),
            "state_key": options.state_key,
            "shards": options.shards,
            "forget_ns": options.forget,
            "eventtime_enabled": bool(options.eventtime.enabled),
            "eventtime_late_tolerance_ms": nodes.milliseconds(options.eventtime.late_tolerance),
        },
        "nodes": [
            {"operator": node.name, "facts": node.facts(), "info": _info(node)}
            for node in plan.nodes
        ],
        "notes": _notes(plan),
    }
    out: dict[str, Any] = json.loads(json.dumps(made, default=str))
    return out


def _info(node: nodes.Node) -> list[str]:
    """Return `name=value` for every fact that is set."""
    return [
        f"{name}={_fact_text(value)}"
        for name, value in node.facts().items()
        if value is not None and value != []
    ]


def _fact_text(value: object) -> str:
    """Return a value as a pipeline file writes it: lists in brackets, true and false in small
    letters.
    """
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_fact_text, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _notes(plan: Plan) -> list[str]:
    """Return what may surprise: stages before the watermark, no arrival order, no key, refusals."""
    watermarks = (nodes.PhysicalEventtimeWatermark, nodes.PhysicalProcessTimeWatermark)
    before: list[str] = []
    for node in plan.nodes:
        if isinstance(node, watermarks):
            break
        if isinstance(node, nodes.PhysicalStage):
            before.append(node.name)
    else:
        before = []
    notes = [
        f"{name} is before the watermark: it gets rows in order of arrival, and rows it holds "
        "back do not advance time"
        for name in before
    ]
    if plan.definition.options.eventtime.enabled and not plan.arrival:
        notes.append(
            "no arrival columns: rows with the same time leave in the order in which Spark "
            "delivers them"
        )
    if plan.definition.options.eventtime.enabled and not plan.key:
        notes.append("no key: all rows share one order and one watermark")
    return [*notes, *refusals(plan.definition)]
