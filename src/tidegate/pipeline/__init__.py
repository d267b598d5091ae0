"""A pipeline from its definition to the steps that run: definition, planner, plan, explain."""

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
