"""A pipeline from its definition to the steps that run: definition, planner, plan, explain.

definition.py    what a pipeline is: the model of YAML files and of Python
document.py      YAML with line numbers, safe with files from strangers
errors.py        one ConfigError for what pydantic finds
stages.py        the registry of stages; window_stage.py is the form of `window`
planner.py       from a definition to a plan; plan_nodes.py holds the nodes
explain.py       a plan as text and JSON
json_schema.py   the schema for editors
formats.py       formats and options that a definition may use
security.py      paths, formats and code that a definition may name
secrets.py       references to secrets, and what may be shown
user_types.py    event-time types of the user
run_record.py    what a run writes down about itself
"""

from tidegate.pipeline.definition import PipelineDefinition, StreamDefinition
from tidegate.pipeline.explain import explain, explain_json
from tidegate.pipeline.json_schema import json_schema
from tidegate.pipeline.planner import Plan, plan
from tidegate.pipeline.stages import STAGES, StageContext, Stages

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
