"""Show a plan, as text for people and as JSON for programs. References are shown, secrets are
not."""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from tidegate.core.text import plural
from tidegate.pipeline import plan_nodes as nodes
from tidegate.pipeline.formats import refusals
from tidegate.pipeline.planner import Plan
from tidegate.pipeline.secrets import show_text

__all__ = ["dry_run_text", "explain", "explain_json"]

FEWEST_LINES = 12
"""Lines that are used even of a lower terminal: fewer would leave out the tables altogether."""

_TWICE = re.compile(r"\b(\w+)_ms=[\d.]+, (?=\1=)")
"""A duration in milliseconds whose next fact is the same in its own unit."""

NARROWEST = 40
"""Characters of a line that are used even of a narrower terminal, which then wraps them."""


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


def dry_run_text(
    plan: Plan,
    notes: Sequence[str],
    tables: Mapping[str, Sequence[str]],
    screen: os.terminal_size | None,
) -> str:
    """Return what `tidegate dry-run` prints: the plan, notes on its sources, the tables.

    Args:
        plan: From `tidegate.pipeline.plan`.
        notes: What the opened sources say.
        tables: The columns of every table, each as `name: type`.
        screen: Columns and lines to fit into, the last line left for the prompt; None: everything.
            Below 40 columns or 12 lines those are used. What is cut says so, with the option that
            shows it.
    """
    steps = explain(plan).splitlines()
    if screen is None:
        listed = [f"  {kind:8s} {', '.join(columns)}" for kind, columns in tables.items()]
        return "\n".join([*steps, *notes, "tables:", *listed])
    width = max(screen.columns, NARROWEST)
    shown = [_TWICE.sub("", line) for line in steps if not line.startswith("note: ")]
    said = [*(line for line in steps if line.startswith("note: ")), *notes]
    data = tables.get("data", ())
    named = [
        _table_line(kind, columns, width, () if kind == "data" else data)
        for kind, columns in tables.items()
    ]
    # The tables are what a dry run is for: they stay; steps and notes share the other lines.
    rest = max(screen.lines, FEWEST_LINES) - len(named) - 3
    wrapped = [textwrap.wrap(note, width, subsequent_indent="  ") for note in said]
    kept, left_out = _leading(wrapped, max(rest - len(shown), rest // 3))
    if left_out:
        kept[-1] = f"  and {plural(left_out, 'more note')}"
    cut = [_cut_end(line, width) for line in shown]
    lines = [*_middle_left_out(cut, rest - len(kept)), *kept, "tables:", *named]
    if left_out or any(line.endswith(("…", " more", " more steps")) for line in lines):
        lines.append("(cut to fit the screen; --full shows everything)")
    return "\n".join(lines)


def _table_line(kind: str, columns: Sequence[str], width: int, data: Sequence[str] = ()) -> str:
    """Return the names of the columns of a table, as many as fit into the width.

    A table that begins with the columns of `data` only names the others.

    >>> _table_line("data", ["car: string", "t: int64", "speed: double"], 40)
    '  data      3 columns: car, t, speed'
    >>> _table_line("data", ["latitude: double", "longitude: double", "t: int64"], 40)
    '  data      3 columns: latitude, 2 more'
    >>> _table_line("late", ["car: string", "lateness_ns: int64"], 60, ["car: string"])
    '  late      those of data, and lateness_ns'
    """
    names = [column.split(": ", 1)[0] for column in columns]
    head = f"  {kind:8s}  {plural(len(names), 'column')}: "
    if data and list(columns[: len(data)]) == list(data) and len(columns) > len(data):
        names = names[len(data) :]
        head = f"  {kind:8s}  those of data, and "
    shown = list(names)
    while True:
        more = [f"{len(names) - len(shown)} more"] if len(shown) < len(names) else []
        line = head + ", ".join([*shown, *more])
        if len(line) <= width or not shown:
            return _cut_end(line, width)
        shown.pop()


def _cut_end(line: str, width: int) -> str:
    """Return a line that fits into the width, with an ellipsis where it was cut.

    >>> _cut_end("abcdef", 4), _cut_end("abc", 4)
    ('abc…', 'abc')
    """
    return line if len(line) <= width else f"{line[: width - 1]}…"


def _leading(blocks: Sequence[list[str]], room: int) -> tuple[list[str], int]:
    """Return the lines of the first blocks that fit, and how many blocks do not.

    Where some do not, the last line is left free for the sentence that says so.

    >>> _leading([["a"], ["b", "c"], ["d"]], 3)
    (['a', ''], 2)
    """
    if sum(map(len, blocks)) <= room:
        return [line for block in blocks for line in block], 0
    kept: list[str] = []
    for number, block in enumerate(blocks):
        if len(kept) + len(block) > room - 1:
            return [*kept, ""], len(blocks) - number
        kept += block
    return kept, 0


def _middle_left_out(lines: list[str], room: int) -> list[str]:
    """Return at most `room` lines: the first and the last ones, with a line that counts the rest.

    >>> _middle_left_out(["1", "2", "3", "4", "5"], 4)
    ['1', '2', '  … 2 more steps', '5']
    """
    if len(lines) <= room:
        return lines
    after = (room - 1) // 2
    before = room - 1 - after
    left_out = f"{len(lines) - before - after:,} more steps"
    return [*lines[:before], f"  … {left_out}", *lines[len(lines) - after :]]


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
