"""Every setting of every stage, missing, misspelt and of the wrong type: a ConfigError that names
the setting, the value and what is expected. The settings come from the registries, so that a new
one is tried without a line here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields
from typing import Any

import pytest
from pydantic import BaseModel

from tidegate.core.checks import snake
from tidegate.errors import ConfigError
from tidegate.pipeline import PipelineDefinition
from tidegate.pipeline.definition import (
    DatasetDefinition,
    EventtimeDefinition,
    EventtimeOptions,
    Options,
    ProcesstimeOptions,
    SinkDefinition,
    SourceDefinition,
    StreamDefinition,
)
from tidegate.pipeline.stages import STAGES, StageContext
from tidegate.windows import Aggregate, Memory
from tidegate.windows.kinds import WINDOW_KINDS
from tidegate.windows.late import LATE_POLICIES
from tidegate.windows.triggers import TRIGGERS

CONTEXT = StageContext(("vehicle",), "topic", event_time=True)

GOOD: dict[str, dict[str, Any]] = {
    "synchronize": {"topics": ["a", "b"]},
    "align": {"topics": {"b": "latest"}, "reference": "a"},
    "episodes": {"gap": "1 s"},
    "batch": {"length": "1 s"},
    "window": {"tumbling": "1 s"},
    "compact": {"dims": 3},
}
"""The fewest settings that make each stage."""

NOWHERE_RIGHT = ([[]], [None], {"no such": {}}, object(), float("nan"), 10**40, b"bytes")
"""Values that are right for no setting."""

SOMEWHERE_RIGHT = ("\u2603 no", "", -7, -1.5, True, {}, 2**62)
"""Values that are right for some settings: accepted, or refused in a sentence."""

MAPPINGS = {("episodes", "actions")}
"""Settings that take any names."""


def every_setting() -> Iterator[tuple[str, str]]:
    for stage in GOOD:
        for setting in STAGES.resolve(stage).settings() or ():
            yield stage, setting


def build(stage: str, settings: Mapping[str, Any]) -> Any:
    return STAGES.resolve(stage).build(settings, CONTEXT)


def test_every_stage_is_tried() -> None:
    assert set(GOOD) == set(STAGES.list())
    for stage, settings in GOOD.items():
        build(stage, settings)


@pytest.mark.parametrize(("stage", "setting"), [*every_setting()])
def test_a_setting_of_the_wrong_type(stage: str, setting: str) -> None:
    others = dict(GOOD[stage])
    if (stage == "window" and setting in WINDOW_KINDS) or (stage, setting) == ("align", "grid"):
        del others["tumbling" if stage == "window" else "reference"]  # one or the other
    for value in NOWHERE_RIGHT:
        if (stage, setting) in MAPPINGS and isinstance(value, dict):
            continue
        with pytest.raises(ConfigError) as refused:
            build(stage, {**others, setting: value})
        assert re.split(r"[.\[]", refused.value.field)[0] == setting, f"{value!r}: {refused.value}"
        assert len(refused.value.expected) > 10
    for value in SOMEWHERE_RIGHT:
        with suppress(ConfigError):
            build(stage, {**others, setting: value})


@pytest.mark.parametrize(("stage", "setting"), [*every_setting()])
def test_a_misspelt_setting(stage: str, setting: str) -> None:
    for wrong in (setting[:-1] + "_" + setting[-1], setting + "z"):
        with pytest.raises(ConfigError, match="is not known here") as refused:
            build(stage, {**GOOD[stage], wrong: 1})
        assert refused.value.field == wrong
        assert "did you mean" in str(refused.value)


@pytest.mark.parametrize(
    ("stage", "setting"),
    [("synchronize", "topics"), ("align", "topics"), ("align", "reference"), ("compact", "dims")],
)
def test_a_missing_setting(stage: str, setting: str) -> None:
    rest = {name: value for name, value in GOOD[stage].items() if name != setting}
    with pytest.raises(ConfigError, match=setting):
        build(stage, rest)


# -- what is inside a window stage ---------------------------------------------------------------


def nested() -> Iterator[tuple[str, type[Any], Any]]:
    """Where a value stands, its class, and the settings of a window around it."""
    for name, kind in WINDOW_KINDS.items():
        yield name, kind, lambda inner, name=name: {name: inner}
    for name, kind in TRIGGERS.items():
        yield f"trigger.{name}", kind, lambda inner, name=name: {"trigger": {name: inner}}
    for name, kind in LATE_POLICIES.items():
        yield f"late.{name}", kind, lambda inner, name=name: {"late": {name: inner}}
    yield "memory", Memory, lambda inner: {"memory": inner}
    mean = {"function": "mean", "column": "v"}
    yield "aggregates.n", Aggregate, lambda inner: {"aggregates": {"n": {**mean, **inner}}}


@pytest.mark.parametrize(("path", "kind", "around"), [*nested()], ids=lambda value: str(value)[:30])
def test_values_inside_a_window(path: str, kind: type[Any], around: Any) -> None:
    window = {} if path in WINDOW_KINDS else GOOD["window"]
    for field in (field for field in fields(kind) if field.init):
        for value in (*NOWHERE_RIGHT, *SOMEWHERE_RIGHT):
            settings = {**window, **around({field.name: value})}
            refused = ""
            try:
                build("window", settings)
            except ConfigError as error:
                refused = error.field
            label = (path, field.name) == ("aggregates.n", "name")  # whatever it is
            if refused or (not label and value in (NOWHERE_RIGHT[0], NOWHERE_RIGHT[2])):
                assert refused.startswith(path.split(".")[0]), settings
        with pytest.raises(ConfigError, match="is not known here"):
            build("window", {**window, **around({field.name + "z": 1})})
    required = [
        f.name for f in fields(kind) if f.init and f.default is f.default_factory is MISSING
    ]
    if required and path != "aggregates.n":
        with pytest.raises(ConfigError):
            build("window", {**window, **around({})})


# -- what is around the stages -------------------------------------------------------------------

PARTS: dict[str, type[BaseModel]] = {
    "options": Options,
    "options.eventtime": EventtimeOptions,
    "options.processtime": ProcesstimeOptions,
    "streams.s": StreamDefinition,
    "streams.s.eventtime": EventtimeDefinition,
    "streams.s.source": SourceDefinition,
    "sink": SinkDefinition,
    "dataset": DatasetDefinition,
}


def definition_with(path: str, name: str, value: object) -> dict[str, Any]:
    """A small definition with one value somewhere in it."""
    made: dict[str, Any] = {
        "streams": {
            "s": {
                "source": {"format": "parquet", "path": "in"},
                "eventtime": {"column": "t", "type": "unixtimestamp_ns"},
            }
        }
    }
    part = made
    for step in path.split("."):
        part = part.setdefault(step, {})
    part[name] = value
    return made


@pytest.mark.parametrize("path", PARTS)
def test_the_rest_of_a_definition(path: str) -> None:
    for name, field in PARTS[path].model_fields.items():
        written = field.alias or name
        for value in ([[{}]], {"no such": {"no": 1}}, object()):
            with pytest.raises(ConfigError) as refused:
                PipelineDefinition.of(definition_with(path, written, value))
            assert snake(f"{path}.{written}") in snake(str(refused.value)), refused.value
        with pytest.raises(ConfigError, match=f"{written}z.*is not known here"):
            PipelineDefinition.of(definition_with(path, f"{written}z", 1))
