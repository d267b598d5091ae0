"""The JSON Schema of pipeline files, for editors: completion, descriptions, and errors while
typing.

Save it beside your pipelines (`tidegate schema > tidegate.schema.json`) and name it in their first
line:
`# yaml-language-server: $schema=tidegate.schema.json`
"""

from __future__ import annotations

from typing import Any

from pydantic.alias_generators import to_camel

from tidegate.core.checks import snake
from tidegate.errors import ConfigError
from tidegate.pipeline.definition import PipelineDefinition
from tidegate.pipeline.stages import STAGES, Stage, Stages

__all__ = ["json_schema"]


def json_schema(stages: Stages = STAGES) -> dict[str, Any]:
    """Return the schema of a pipeline file: every field in both spellings, and all known stages.

    Args:
        stages: The stages to list; those of this process if not given, with your own.

    >>> schema = json_schema()
    >>> sorted(schema["properties"])
    ['dataset', 'name', 'options', 'sink', 'stages', 'streams']
    """
    schema = PipelineDefinition.model_json_schema(by_alias=True, mode="validation")
    for model in schema["$defs"].values():
        _both_spellings(model)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Tidegate pipeline"
    schema["description"] = "A pipeline for `tidegate run`."
    schema["$defs"]["StageDefinition"] = {
        "description": "One stage: its name with its settings, or just its name.",
        "anyOf": [
            {"enum": stages.list()},
            {
                "type": "object",
                "minProperties": 1,
                "maxProperties": 1,
                "additionalProperties": False,
                "properties": {
                    name: _settings_schema(stages.resolve(name)) for name in stages.list()
                },
            },
        ],
    }
    return schema


def _both_spellings(model: dict[str, Any]) -> None:
    """`lateTolerance` and `late_tolerance` are one field."""
    properties = model.get("properties", {})
    for name, field in list(properties.items()):
        properties.setdefault(snake(name), field)


def _settings_schema(stage: Stage) -> dict[str, Any]:
    """Return the schema of a stage's settings; any settings where a factory does not list them."""
    try:
        names, target = stage.settings(), stage.load()
    except ConfigError:
        names = None
    if names is None:
        return {"type": ["object", "null"]}
    text = (target.__doc__ or "").strip().split("\n\n")[0]
    return {
        "type": ["object", "null"],
        "description": " ".join(text.split()),
        "additionalProperties": False,
        "properties": {spelt: {} for name in names for spelt in (to_camel(name), name)},
    }
