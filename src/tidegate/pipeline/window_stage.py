"""The `window` stage as a definition writes it.

    - window:
        tumbling: 10 s                      # one kind of window: a value, or its settings
        trigger: {any: [{count: 100}, {time: 50 ms}]}
        late: {reemit: {maxLateness: 5 s}}
        aggregates: {n: count, speed: [mean, value], p99: [quantile, value, 0.99]}
        groupBy: [topic]

Kinds, triggers and late policies are the small values of `tidegate.windows`, by the names they are
registered under there (`@window_kind`, `@trigger`, `@late_policy`). A single value is the first
setting of its class; a mapping names them; nothing takes the defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import reduce
from operator import and_, or_
from typing import Any

from tidegate.core.checks import snake
from tidegate.core.operator import Operator
from tidegate.errors import ConfigError
from tidegate.pipeline.errors import unknown
from tidegate.pipeline.stages import StageContext
from tidegate.windows import Accumulation, Aggregate, Memory, Window
from tidegate.windows.kinds import WINDOW_KINDS
from tidegate.windows.late import LATE_POLICIES
from tidegate.windows.triggers import TRIGGERS, Trigger

__all__ = ["SETTINGS", "build_window"]

SETTINGS = tuple(
    field.name for field in fields(Window) if field.init and field.name not in ("window", "keys")
)
"""Settings beside the kind of window. `keys` is not one: it is the key of the streams."""


def build_window(settings: Mapping[str, Any], context: StageContext) -> Operator:
    """A `Window` from plain values.

    Args:
        settings: One kind of window by its name, and any of `SETTINGS`, in either spelling.
        context: The key of the streams, and whether rows come in order of event time.

    Raises:
        ConfigError: A name is not known, two kinds are given, or a value is refused. The field
            names the whole path, such as `trigger.any`.

    >>> stage = build_window({"tumbling": "1 s", "trigger": {"any": [{"count": 3}, "time 1"]}},
    ...                      StageContext())
    Traceback (most recent call last):
        ...
    tidegate.errors.ConfigError: trigger.any: got 'time 1', is not known here; did you mean time? \
allowed are all, any, count, memory_pressure, once, predicate, rate_change, size, time, watermark
    >>> build_window({"tumbling": "1 s"}, StageContext()).window
    Tumbling(size=1000000000, offset=0)
    """
    given = {snake(name): value for name, value in settings.items()}
    kinds = [name for name in given if name in WINDOW_KINDS]
    for written in settings:
        if snake(written) not in (*WINDOW_KINDS, *SETTINGS):
            text = unknown(written, (*WINDOW_KINDS, *SETTINGS))
            raise ConfigError(written, settings[written], text)
    if len(kinds) > 1:
        raise ConfigError(
            kinds[1], given[kinds[1]], f"one kind of window only; {kinds[0]} is given"
        )
    made: dict[str, Any] = {
        name: value for name, value in given.items() if name not in WINDOW_KINDS
    }
    if kinds:
        made["window"] = _make(WINDOW_KINDS[kinds[0]], given[kinds[0]], kinds[0])
    readers: dict[str, Callable[[Any], Any]] = {
        "trigger": lambda value: _trigger(value, "trigger"),
        "late": lambda value: _named(LATE_POLICIES, value, "late"),
        "aggregates": _aggregates,
        "memory": lambda value: _make(Memory, value, "memory"),
        "accumulation": _accumulation,
    }
    for name, read in readers.items():
        if made.get(name) is not None:
            made[name] = read(made[name])
    made.setdefault("in_order", context.event_time)
    return Window(keys=context.key, **made)


def _names() -> tuple[str, ...]:
    """Every name the stage knows now: kinds of window may be registered at any time."""
    return (*WINDOW_KINDS, *SETTINGS)


build_window.settings = _names  # type: ignore[attr-defined]


def _trigger(value: Any, path: str) -> Trigger:
    """Return a trigger from plain values; `any` and `all` combine a list, others may hold triggers.

    Args:
        value: A name, or a mapping of one name to its settings.
        path: Where it is in the settings, for errors.
    """
    name, inner = _name_and_settings(value, path, (*TRIGGERS, "all", "any"))
    if name in ("all", "any"):
        if not isinstance(inner, list) or not inner:
            raise ConfigError(f"{path}.{name}", inner, "must be a list of triggers")
        parts = [_trigger(part, f"{path}.{name}") for part in inner]
        return reduce(or_ if name == "any" else and_, parts)
    kind = TRIGGERS[name]
    if len(kind.inner) == 1:  # once: {count: 3}
        inner = {kind.inner[0]: _trigger(inner, f"{path}.{name}")}
    elif kind.inner:
        given = {} if inner is None else inner
        if not isinstance(given, Mapping):
            text = f"must be a mapping: {', '.join(kind.inner)}"
            raise ConfigError(f"{path}.{name}", inner, text)
        inner = {
            which: _trigger(part, f"{path}.{name}.{which}")
            for which, part in given.items()
            if part is not None
        }
    made: Trigger = _make(kind, inner, f"{path}.{name}")
    return made


def _named(known: Mapping[str, type[Any]], value: Any, path: str) -> Any:
    """Return an instance of one of the `known` classes, by its name and settings."""
    name, inner = _name_and_settings(value, path, known)
    return _make(known[name], inner, f"{path}.{name}")


def _name_and_settings(value: Any, path: str, known: Any) -> tuple[str, Any]:
    """Split `"discard"` or `{"reemit": ...}` into the name in snake case and its settings."""
    name, inner = value, None
    if isinstance(value, Mapping):
        if len(value) != 1:
            raise ConfigError(path, dict(value), "must be one name with its settings")
        name, inner = next(iter(value.items()))
    if not isinstance(name, str) or snake(name) not in known:
        raise ConfigError(path, name, unknown(str(name), known))
    return snake(name), inner


def _make(target: type[Any], value: Any, path: str) -> Any:
    """Return an instance of `target` from plain values.

    Args:
        target: A dataclass.
        value: None or true for the defaults, a mapping of its fields, or the value of its first
            field.
        path: Where it is in the settings, for errors.
    """
    allowed = [field.name for field in fields(target) if field.init]
    given: dict[str, Any] = {}
    if isinstance(value, Mapping):
        for written, inner in value.items():
            if snake(written) not in allowed:
                raise ConfigError(f"{path}.{written}", inner, unknown(written, allowed))
            nested = getattr(target, "nested", {}).get(snake(written))
            if nested is not None and isinstance(inner, Mapping):
                inner = _make(nested, inner, f"{path}.{written}")
            given[snake(written)] = inner
    elif value is not None and value is not True:
        if not allowed:
            raise ConfigError(path, value, "has no settings")
        given[allowed[0]] = value
    try:
        return target(**given)
    except ConfigError as error:
        field = path if error.field.startswith(path) else f"{path}.{error.field}"
        raise ConfigError(field, error.value, error.expected) from error
    except TypeError:
        missing = [name for name in allowed if name not in given]
        text = f"must be given: {', '.join(missing)}"
        raise ConfigError(path, value, text) from None


def _aggregates(value: Any) -> Any:
    """Return aggregates as `Window` takes them: a name, a tuple of name and arguments, or an
    Aggregate.
    """
    if not isinstance(value, Mapping):
        raise ConfigError("aggregates", value, "must be like {n: count, speed: [mean, value]}")
    out: dict[str, Any] = {}
    for name, what in value.items():
        if isinstance(what, Mapping):
            out[name] = _make(Aggregate, what, f"aggregates.{name}")
        else:
            out[name] = tuple(what) if isinstance(what, list) else what
    return out


def _accumulation(value: Any) -> Accumulation:
    """Return the mode of this name; an unknown one is a ConfigError that lists all."""
    try:
        return Accumulation(value)
    except ValueError:
        known = ", ".join(mode.value for mode in Accumulation)
        raise ConfigError("accumulation", value, f"must be one of {known}") from None
