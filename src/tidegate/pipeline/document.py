"""A YAML document that remembers on which line everything stands, so that an error can say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from pydantic.alias_generators import to_camel

from tidegate.errors import ConfigError

__all__ = ["Document", "Path", "dotted", "read"]

Path = tuple[str | int, ...]
"""Where a value stands: ("streams", "fleet", "key") or ("stages", 0)."""


@dataclass(frozen=True)
class Document:
    """The plain values of a definition, the name of its file, and the line of each value."""

    value: Mapping[str, Any]
    name: str | None = None
    lines: Mapping[Path, int] = field(default_factory=dict)

    def where(self, path: Path) -> str:
        """` (fleet.yaml, line 7)`: the line of the value, or of the nearest that stands around it;
        nothing for a definition made in Python."""
        return "" if self.name is None else f" ({self.name}, line {self.line(path)})"

    def where_is(self, field: str) -> str:
        """The same for a field by its dotted name; nothing if it does not stand in the file."""
        found = next((path for path in self.lines if path and dotted(path) == field), None)
        return "" if found is None else self.where(found)

    def line(self, path: Path) -> int:
        while path not in self.lines and path:
            camel = (*path[:-1], to_camel(str(path[-1])))  # the file may have the other spelling
            path = camel if camel in self.lines else path[:-1]
        return self.lines.get(path, 1)


def read(text: str, name: str = "pipeline.yaml") -> Document:
    """Read YAML safely: plain values only, and a key that stands twice is an error.

    >>> read("a:\\n  b: 1\\n").where(("a", "b"))
    ' (pipeline.yaml, line 2)'
    >>> read("a: 1\\na: 2\\n")
    Traceback (most recent call last):
        ...
    tidegate.errors.ConfigError: a: stands twice, on lines 1 and 2 of pipeline.yaml
    """
    loader = None
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        lines: dict[Path, int] = {}
        if root is not None:
            _walk(root, (), lines, name, seen=set())
        value = None if root is None else loader.construct_document(root)
    except yaml.YAMLError as error:
        raise _unreadable(error, name) from error
    finally:
        if loader is not None:
            loader.dispose()
    if not isinstance(value, dict):
        got = type(value).__name__ if value is not None else "nothing"
        raise ConfigError(
            "definition", value, "must be a mapping", message=f"{name} must be a mapping, got {got}"
        )
    return Document(value, name, lines)


def _walk(node: yaml.Node, path: Path, lines: dict[Path, int], name: str, seen: set[int]) -> None:
    lines.setdefault(path, node.start_mark.line + 1)
    if id(node) in seen:  # an alias (`*x`): its lines are known already
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*path, str(key.value))
            line = key.start_mark.line + 1
            if inner in lines and key.value != "<<":
                field_name = dotted(inner)
                raise ConfigError(
                    field_name,
                    key.value,
                    "must stand once",
                    message=f"{field_name}: stands twice, on lines {lines[inner]} and {line} "
                    f"of {name}",
                )
            lines[inner] = line
            _walk(value, inner, lines, name, seen)
    elif isinstance(node, yaml.SequenceNode):
        for place, value in enumerate(node.value):
            _walk(value, (*path, place), lines, name, seen)


def dotted(path: Path) -> str:
    """`streams.fleet.key`, `stages[0].window`.

    >>> dotted(("stages", 0, "window"))
    'stages[0].window'
    """
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def _unreadable(error: yaml.YAMLError, name: str) -> ConfigError:
    mark = getattr(error, "problem_mark", None)
    line = "" if mark is None else f", line {mark.line + 1}"
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    if isinstance(error, yaml.reader.ReaderError):  # a character no YAML may have
        problem = f"{problem} (at character {error.position + 1})"
    message = f"{name}{line}: cannot be read as YAML: {problem}"
    return ConfigError("definition", name, "must be YAML", message=message)
