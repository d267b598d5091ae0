"""Frames in a notebook: the plan and the tables it makes. Never a row: that would run a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import pyarrow as pa

from tidegate.core.operator import Operator

__all__ = ["plan_html"]


def plan_html(
    head: Mapping[str, str], stages: Sequence[Operator], schemas: Mapping[str, pa.Schema]
) -> str:
    """What is declared, the stages with the settings that were changed, the columns of each kind.

    >>> from tidegate.eventtime import EventtimeWatermark
    >>> html = plan_html({"key": "car"}, [EventtimeWatermark("2 s")], {"data": pa.schema([])})
    >>> "late_tolerance=2000000000" in html, "late=" in html
    (True, False)
    """
    declared = " · ".join(f"{escape(k)} <code>{escape(v)}</code>" for k, v in head.items() if v)
    steps = "".join(
        f"<li><code>{escape(stage.name)}</code> {escape(_changed(stage))}</li>" for stage in stages
    )
    tables = "".join(
        f"<tr><th style='text-align:left'>{escape(kind)}</th>"
        f"<td style='text-align:left'>{escape(', '.join(f'{f.name}: {f.type}' for f in schema))}"
        "</td></tr>"
        for kind, schema in schemas.items()
    )
    return (
        f'<div class="tidegate"><p>{declared}</p><ol>{steps}</ol><table>{tables}</table>'
        "<p><small>a plan: nothing has been computed</small></p></div>"
    )


def _changed(stage: Operator) -> str:
    """The settings that differ from what the stage has by itself."""
    settings = stage.settings()
    fields = getattr(type(stage), "__dataclass_fields__", {})
    own = {name: field.default for name, field in fields.items()}
    shown = {name: value for name, value in settings.items()
             if value not in (None, [], (), {}) and value != own.get(name)}  # fmt: skip
    return ", ".join(f"{name}={value}" for name, value in shown.items())
