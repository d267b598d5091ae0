"""The stages that a definition may use, and how their settings become an operator.

A stage is registered with one line: its name and its operator's class (or `"module:Class"`,
imported when first used). Its YAML form comes with it: the settings are the constructor's
arguments, in either spelling, and what a definition knows anyway, such as the topic column, is
filled in.

    from tidegate.pipeline import STAGES
    STAGES.register("smooth", Smooth)          #   - smooth: {window: 5, keepFirst: true}

For a form of its own, register a factory (settings, context) -> operator instead of a class; its
attribute `settings` lists the names for the JSON Schema, or is a function that returns them.
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
    """What a pipeline knows when it builds a stage.

    Attributes:
        key, topic: The columns of the streams.
        event_time: Whether rows are ordered by event time before the stage.
    """

    key: tuple[str, ...] = ()
    topic: str | None = None
    event_time: bool = False


Factory = Callable[[Mapping[str, Any], StageContext], Operator]


@dataclass(frozen=True)
class Stage:
    """A registered stage.

    Attributes:
        name: Its name in a definition.
        target: The operator's class, `"module:Class"`, or a factory.
        needs_time: Whether a watermark must come before it.
        fill: (argument, field of the context): arguments filled in when the settings leave them
            out.
        defaults: (argument, value): defaults of a pipeline where the operator itself has none.
        any_clock: Whether processing time is as good as event time, so that a definition need not
            choose: compaction orders by version, not by time.
    """

    name: str
    target: str | type[Operator] | Factory
    needs_time: bool = True
    fill: tuple[tuple[str, str], ...] = ()
    defaults: tuple[tuple[str, Any], ...] = ()
    any_clock: bool = False

    @property
    def decides_by_time(self) -> bool:
        """Whether its results depend on which clock the times are from."""
        return self.needs_time and not self.any_clock

    @property
    def node(self) -> str:
        """Its name in a physical plan: `synchronize` becomes PhysicalSynchronize."""
        return "Physical" + "".join(word.capitalize() for word in self.name.split("_"))

    def load(self) -> type[Operator] | Factory:
        """Return the class or factory, imported if necessary."""
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
        """Return the operator with these settings, or raise a ConfigError about the wrong one."""
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
        """Return the names of its settings; None if a factory has no attribute `settings`."""
        target = self.load()
        if isinstance(target, type):
            return list(self.arguments(target))
        named = getattr(target, "settings", None)
        if callable(named):
            named = named()
        return None if named is None else list(named)

    @staticmethod
    def arguments(target: type[Operator]) -> dict[str, inspect.Parameter]:
        """Return the arguments of its constructor, by name."""
        return dict(inspect.signature(target).parameters)


FILL = {"keys": "key", "topic": "topic"}
"""Arguments that are filled in from the streams: one naming in all operators."""


class Stages:
    """A registry of stages, by name.

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
        any_clock: bool = False,
        replace: bool = False,
    ) -> None:
        """Add a stage.

        Args:
            name: Its name in a definition.
            target: The operator's class, `"module:Class"`, or a factory (settings, context) ->
                operator.
            needs_time: Whether a watermark must come before it. True is safe: a stage that does
                not need time gets its rows in order.
            fill: Argument -> field of `StageContext`, filled in when the settings leave it out.
                Without it, arguments called `keys` and `topic` are filled in.
            defaults: Argument -> value, used when the settings leave it out.
            any_clock: See `Stage`.
            replace: Whether a stage of this name may be registered already.

        Raises:
            ConfigError: The name is taken, and `replace` is not set.
        """
        if name in self._stages and not replace:
            raise ConfigError(
                "stages", name, "is registered already; pass replace=True to replace it"
            )
        self._stages[name] = Stage(
            name,
            target,
            needs_time,
            tuple((FILL if fill is None else fill).items()),
            tuple((defaults or {}).items()),
            any_clock,
        )

    def unregister(self, name: str) -> None:
        """Remove a stage, for tests and notebooks; an unknown name is ignored."""
        self._stages.pop(name, None)

    def resolve(self, name: str) -> Stage:
        """Return the stage of this name; ConfigError lists the known ones."""
        if name not in self._stages:
            text = unknown(name, self._stages)
            raise ConfigError(name, name, text, message=f"{name}: {text}")
        return self._stages[name]

    def build(self, name: str, settings: Mapping[str, Any], context: StageContext) -> Operator:
        """Return the operator of a stage with these settings."""
        return self.resolve(name).build(settings, context)

    def list(self) -> list[str]:
        """Return the known names, sorted."""
        return sorted(self._stages)


STAGES = Stages()
"""The stages of definitions. Add your own with `STAGES.register(name, Operator)`."""

STAGES.register("synchronize", "tidegate.sync:Synchronize")
STAGES.register("align", "tidegate.align:Align")
STAGES.register("episodes", "tidegate.align:Episodes")
STAGES.register("batch", "tidegate.batching:Batch")
STAGES.register("window", "tidegate.pipeline.window_stage:build_window")
STAGES.register("compact", "tidegate.deltas:Compact", any_clock=True)
