"""A pipeline from its definition to the steps that run: definition, planner, plan, explain.

definition.py    what a pipeline is: the model of YAML files and of Python
document.py      YAML with line numbers, safe with files from strangers
errors.py        one ConfigError for what pydantic finds
stages.py        the registry of stages; window_stage.py is the form of `window`
planner.py       from a definition to a plan; plan_nodes.py holds the nodes
explanation.py   a plan as text and JSON
editor_schema.py the schema for editors
formats.py       formats and options that a definition may use
security.py      paths, formats and code that a definition may name
secrets.py       references to secrets, and what may be shown
user_types.py    event-time types of the user
run_record.py    what a run writes down about itself

Names are loaded when they are first used: workers need `security`, not pydantic and the operators.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.pipeline.definition import PipelineDefinition, StreamDefinition
    from tidegate.pipeline.editor_schema import json_schema
    from tidegate.pipeline.explanation import explain, explain_json
    from tidegate.pipeline.planner import Plan, plan
    from tidegate.pipeline.stages import STAGES, StageContext, Stages

_MODULE_OF = {
    "PipelineDefinition": "tidegate.pipeline.definition",
    "StreamDefinition": "tidegate.pipeline.definition",
    "json_schema": "tidegate.pipeline.editor_schema",
    "explain": "tidegate.pipeline.explanation",
    "explain_json": "tidegate.pipeline.explanation",
    "Plan": "tidegate.pipeline.planner",
    "plan": "tidegate.pipeline.planner",
    "STAGES": "tidegate.pipeline.stages",
    "StageContext": "tidegate.pipeline.stages",
    "Stages": "tidegate.pipeline.stages",
}
"""The names of this package, by the module that defines them."""

__all__ = [
    "STAGES",
    "PipelineDefinition",
    "Plan",
    "StageContext",
    "Stages",
    "StreamDefinition",
    "explain",
    "explain_json",
    "json_schema",
    "plan",
]


def __getattr__(name: str) -> Any:
    """Load a name when it is first used."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tidegate.pipeline' has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
