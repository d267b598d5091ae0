"""The stages a definition may name, and how their settings become an operator.

A stage is registered under its name with its operator's class (or `"module:Class"`, imported when
first needed) or with a factory. Settings are the constructor's arguments, in either spelling; what
a definition knows anyway, such as the topic column, is filled in from the context.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from tidegate.core.checks import snake
from tidegate.core.operator import Operator
from tidegate.errors import ConfigError
from tidegate.pipeline.errors import unknown

__all__ = ["STAGES", "Stage", "StageContext", "Stages"]


@dataclass(frozen=True)
class StageContext:
    """What a pipeline knows when it builds a stage."""

    key: tuple[str, ...] = ()
    topic: str | None = None
    event_time: bool = False


Factory = Callable[[Mapping[str, Any], StageContext], Operator]


@dataclass(frozen=True)
class Stage:
    """A name, what builds it, and whether it needs time: then a watermark stands before it."""

    name: str
    target: str | type[Operator] | Factory
    needs_time: bool = True
    fill: tuple[tuple[str, str], ...] = ()
    """(argument, field of the context): arguments filled in when the settings leave them out."""
    defaults: tuple[tuple[str, Any], ...] = ()
    """(argument, value): what a pipeline starts with where the operator itself asks."""

    @property
    def node(self) -> str:
        """Its name in a physical plan: `synchronize` is a PhysicalSynchronize."""
        return "Physical" + "".join(word.capitalize() for word in self.name.split("_"))

    def load(self) -> type[Operator] | Factory:
        """The class or factory, imported if need be."""
        if not isinstance(self.target, str):
            return self.target
        module, _, name = self.target.partition(":")
        try:
            found: type[Operator] | Factory = getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                "stages", self.name, f"cannot be loaded from {self.target}: {error}"
            ) from error
        return found

    def build(self, settings: Mapping[str, Any], context: StageContext) -> Operator:
        """The operator with these settings, or a ConfigError about the one that does not fit."""
        target = self.load()
        if not isinstance(target, type):
            return target(settings, context)
        arguments = self.arguments(target)
        given: dict[str, Any] = {}
        for written, value in settings.items():
            name = snake(written)
            if name not in arguments:
                raise ConfigError(written, value, unknown(written, arguments))
            if name in given:
                raise ConfigError(written, value, f"is also given as {name}")
            given[name] = value
        for argument, field in self.fill:
            filled = getattr(context, field)
            if argument in arguments and argument not in given and filled is not None:
                given[argument] = filled
        given = {**dict(self.defaults), **given}
        for name, parameter in arguments.items():
            if parameter.default is inspect.Parameter.empty and name not in given:
                raise ConfigError(name, None, "is required and missing")
        operator: Operator = target(**given)
        return operator

    def settings(self) -> list[str] | None:
        """The names of its settings; None where a factory does not say (`factory.settings`)."""
        target = self.load()
        if isinstance(target, type):
            return list(self.arguments(target))
        named = getattr(target, "settings", None)
        return None if named is None else list(named)

    @staticmethod
    def arguments(target: type[Operator]) -> dict[str, inspect.Parameter]:
        """The arguments of its constructor, by name."""
        return dict(inspect.signature(target).parameters)


class Stages:
    """The stages that are known, by name.

    >>> from tidegate.eventtime import EventtimeWatermark
    >>> stages = Stages()
    >>> stages.register("order", EventtimeWatermark, needs_time=False)
    >>> stages.build("order", {"lateTolerance": "1 s"}, StageContext()).late_tolerance
    1000000000
    >>> stages.build("ordr", {}, StageContext())
    Traceback (most recent call last):
        ...
    tidegate.errors.ConfigError: ordr: is not known here; did you mean order? allowed are order
    """

    def __init__(self) -> None:
        self._stages: dict[str, Stage] = {}

    def register(
        self,
        name: str,
        target: str | type[Operator] | Factory,
        *,
        needs_time: bool = True,
        fill: Mapping[str, str] | None = None,
        defaults: Mapping[str, Any] | None = None,
        replace: bool = False,
    ) -> None:
        """Add a stage. Refuses to replace one unless told to."""
        if name in self._stages and not replace:
            raise ConfigError(
                "stages", name, "is registered already; pass replace=True to replace it"
            )
        self._stages[name] = Stage(
            name,
            target,
            needs_time,
            tuple((fill or {}).items()),
            tuple((defaults or {}).items()),
        )

    def resolve(self, name: str) -> Stage:
        """The stage of this name; an unknown one says which are known."""
        if name not in self._stages:
            text = unknown(name, self._stages)
            raise ConfigError(name, name, text, message=f"{name}: {text}")
        return self._stages[name]

    def build(self, name: str, settings: Mapping[str, Any], context: StageContext) -> Operator:
        return self.resolve(name).build(settings, context)

    def list(self) -> list[str]:
        """The known names, sorted."""
        return sorted(self._stages)


STAGES = Stages()
"""What a definition may use. Add your own with `STAGES.register(name, Operator)`."""

STAGES.register(
    "synchronize",
    "tidegate.sync:Synchronize",
    fill={"topic": "topic", "keys": "key"},
    defaults={"queue_size": 10},
)
STAGES.register("align", "tidegate.align:Align", fill={"topic": "topic", "keys": "key"})
STAGES.register("batch", "tidegate.batching.stage:Batch", fill={"topic": "topic", "keys": "key"})
STAGES.register("window", "tidegate.pipeline.window_stage:build_window")
STAGES.register("compact", "tidegate.deltas:Compact", fill={"keys": "key"})
