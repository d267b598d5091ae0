"""Read YAML that a stranger may have written, and remember on which line every value is.

Rules:

1. Only plain values come out: text, numbers, true and false, null, lists, mappings. Tags that build
   anything else (`!!python/...`, `!!set`, dates, binary) are refused or stay text.
2. Size is bounded before anything is built. The text is read as a stream of events first, and the
   nesting depth, the number of nodes and the number of nodes after all aliases and merge keys are
   expanded are counted there. A few lines of aliases of aliases would otherwise stand for billions
   of values.
3. A key that is given twice is an error: YAML readers silently keep the last one.
4. Every fault is one ConfigError that names the file and the line. Nothing else is raised.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from pydantic.alias_generators import to_camel

from tidegate.errors import ConfigError

__all__ = [
    "MAX_BYTES",
    "MAX_DEPTH",
    "MAX_NODES",
    "Document",
    "Path",
    "check_yaml_size",
    "dotted",
    "read_yaml",
]

MAX_BYTES = 256 * 1024
"""Longest text, in UTF-8 bytes. A pipeline with 1,000 aggregates has about 60 kB. Reading this much
takes up to 4 s in pure Python; ten times as much would look like a program that hangs."""

MAX_DEPTH = 32
"""Deepest nesting. A definition needs about 10 (a trigger inside a watermark inside a stage). From
about 300 on, Python's recursion limit would end the reader inside PyYAML."""

MAX_NODES = 50_000
"""Most values and keys, with every alias counted as the values it stands for. A definition of
`MAX_BYTES` without aliases stays below it unless it is made of one-letter values."""

Path = tuple[str | int, ...]
"""Where a value is in a document: ("streams", "fleet", "key") or ("stages", 0)."""


@dataclass(frozen=True)
class Document:
    """The plain values of a definition, and where each of them is.

    Attributes:
        value: The values.
        name: The name of the file, None for a definition made in Python.
        lines: Line number (from 1) per path.
    """

    value: Mapping[str, Any]
    name: str | None = None
    lines: Mapping[Path, int] = field(default_factory=dict)

    def where(self, path: Path) -> str:
        """Return ` (fleet.yaml, line 7)` for error texts: the line of the value at `path`, or of
        the nearest one around it. Empty for a definition made in Python."""
        return "" if self.name is None else f" ({self.name}, line {self.line(path)})"

    def where_is(self, field: str) -> str:
        """Return the same for a field by its dotted name; empty if it is not in the file."""
        found = next((path for path in self.lines if path and dotted(path) == field), None)
        return "" if found is None else self.where(found)

    def line(self, path: Path) -> int:
        """Return the line of the value at `path`, or of the nearest one around it."""
        while path not in self.lines and path:
            camel = (*path[:-1], to_camel(str(path[-1])))  # the file may have the other spelling
            path = camel if camel in self.lines else path[:-1]
        return self.lines.get(path, 1)


def read_yaml(text: str, name: str = "pipeline.yaml") -> Document:
    """Read the text of a YAML file whose top is a mapping.

    Args:
        text: The YAML.
        name: The name of the file, for errors.

    Raises:
        ConfigError: For every fault; see the rules of this module.

    >>> read_yaml("a:\\n  b: 1\\n").where(("a", "b"))
    ' (pipeline.yaml, line 2)'
    >>> read_yaml("a: 1\\na: 2\\n")
    Traceback (most recent call last):
        ...
    tidegate.errors.ConfigError: a: is given twice, on lines 1 and 2 of pipeline.yaml
    >>> read_yaml("a: &x [1, 2]\\nb: &y [*x, *x]\\nc: [*y, *y, *y]\\n").value["c"][2]
    [[1, 2], [1, 2]]
    """
    loader = None
    lines: dict[Path, int] = {}
    try:
        check_yaml_size(text, name)
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is not None:
            _note_lines(root, (), lines, name, seen=set())
        value = None if root is None else loader.construct_document(root)
    except yaml.YAMLError as error:
        raise _yaml_error(error, name) from error
    finally:
        if loader is not None:
            loader.dispose()
    if not isinstance(value, dict):
        got = type(value).__name__ if value is not None else "nothing"
        raise ConfigError(
            "definition", got, "must be a mapping", message=f"{name} must be a mapping, got {got}"
        )
    return Document(value, name, lines)


class _Loader(yaml.SafeLoader):
    """The safe loader, without the types a definition has no use for, and with a line for
    faults."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, OverflowError, KeyError, IndexError, AttributeError) as bad:
            shown = f"{node.value!r:.60}" if isinstance(node, yaml.ScalarNode) else node.tag
            raise yaml.constructor.ConstructorError(
                None, None, f"{shown} cannot be read: {bad}", node.start_mark
            ) from bad


_NUMBERS = {
    "tag:yaml.org,2002:int": re.compile(r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$"),
    "tag:yaml.org,2002:float": re.compile(
        r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|\.[0-9]+(?:[eE][-+]?[0-9]+)?"
        r"|\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
}
"""Numbers as everybody means them. YAML 1.1 also reads 12:30:45 as 45045 and 010 as 8; here they
stay text, and so do dates, which the models do not expect as objects."""

_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, _NUMBERS.get(tag, shape))
        for tag, shape in found
        if tag not in ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value")
    ]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag in ("timestamp", "binary", "set", "omap", "pairs"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _Loader.construct_undefined)  # type: ignore[type-var]


@dataclass
class _Open:
    """A list or mapping whose end has not come yet."""

    anchor: str | None
    nodes: int = 1


def check_yaml_size(text: str, name: str) -> None:
    """Refuse a text that is too long, nested too deeply, or too large once aliases are expanded.

    Works on the events of the parser, which keeps no tree and does not recurse.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise _too_large(name, 1, f"has {size:,} bytes, at most {MAX_BYTES:,} are read")
    anchors: dict[str, int] = {}
    opened = [_Open(None, 0)]
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = 1 if event.start_mark is None else event.start_mark.line + 1
        added, anchor = 0, getattr(event, "anchor", None)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchors and any(o.anchor == anchor for o in opened):
                raise _too_large(name, line, f"the alias *{event.anchor} is inside its own value")
            added = anchors.get(str(anchor), 1)  # an undefined one is refused by the composer
        elif isinstance(event, yaml.ScalarEvent):
            added = 1
            if anchor is not None:
                anchors[anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            opened.append(_Open(anchor))
            if len(opened) - 1 > MAX_DEPTH:
                raise _too_large(name, line, f"is nested more than {MAX_DEPTH} levels deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            ended = opened.pop()
            added = ended.nodes
            if ended.anchor is not None:
                anchors[ended.anchor] = ended.nodes
        opened[-1].nodes += added
        if opened[-1].nodes > MAX_NODES:
            raise _too_large(
                name, line, f"has more than {MAX_NODES:,} values, with aliases expanded"
            )


def _too_large(name: str, line: int, what: str) -> ConfigError:
    return ConfigError("definition", name, what, message=f"{name}, line {line}: {what}")


def _note_lines(
    node: yaml.Node, path: Path, lines: dict[Path, int], name: str, seen: set[int]
) -> None:
    """Note the line of every value below `node`, and refuse keys that are given twice."""
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
                    "must be given once",
                    message=f"{field_name}: is given twice, on lines {lines[inner]} and {line} "
                    f"of {name}",
                )
            lines[inner] = line
            _note_lines(value, inner, lines, name, seen)
    elif isinstance(node, yaml.SequenceNode):
        for place, value in enumerate(node.value):
            _note_lines(value, (*path, place), lines, name, seen)


def dotted(path: Path) -> str:
    """Return a path as users write it.

    >>> dotted(("streams", "fleet", "key")), dotted(("stages", 0, "window"))
    ('streams.fleet.key', 'stages[0].window')
    """
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def _yaml_error(error: yaml.YAMLError, name: str) -> ConfigError:
    """A fault that YAML found as a ConfigError: the file, the line, and what is wrong."""
    mark = getattr(error, "problem_mark", None)
    line = "" if mark is None else f", line {mark.line + 1}"
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    if isinstance(error, yaml.reader.ReaderError):  # a character that YAML does not allow
        problem = f"{problem} (at character {error.position + 1})"
    problem = f"{' '.join(str(problem).split()):.200}"
    message = f"{name}{line}: cannot be read as YAML: {problem}"
    return ConfigError("definition", name, "must be YAML", message=message)
