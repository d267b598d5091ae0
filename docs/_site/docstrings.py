"""For mkdocstrings: docstrings as this code writes them, turned into Markdown that it understands.

- Examples (`>>>`) become code blocks, whatever Markdown would make of their brackets.
- Sections underlined with dashes become lists: `name:` with an indented text below it, or
  `name : text` in one line. (Sections of the form `Args:` are read by mkdocstrings itself.)
- A stage shows its settings. What every stage has because it is an `Operator`, and users never
  call, is left out.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import griffe

SRC = Path(__file__).parents[2] / "src" / "tidegate"


def _protocol() -> set[str]:
    """The names that every operator has: those of the class `Operator`."""
    tree = ast.parse((SRC / "core" / "operator.py").read_text(encoding="utf-8"))
    found = {"name", "version"}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "Operator":
            found |= {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
    return found - {"settings"}


PROTOCOL = _protocol()
SECTIONS = re.compile(r"^(Parameters|Attributes|Returns|Raises|Notes|Examples)\n-{3,}\n", re.M)
ITEM = re.compile(r"^(?P<names>[\w*]+(?:, [\w*]+)*)(?: : (?P<text>.*)|:)$")


def fenced(text: str) -> str:
    """Make a block of code of every run of lines from a `>>>` to the next empty line."""
    out: list[str] = []
    inside = False
    for line in [*text.splitlines(), ""]:
        if not inside and line.lstrip().startswith(">>> "):
            indent = line[: len(line) - len(line.lstrip())]
            out.append(f"{indent}```pycon")
            inside = True
        elif inside and not line.strip():
            out.append("```")
            inside = False
        out.append(line)
    return "\n".join(out[:-1])


def sections(text: str) -> str:
    """Make lists of the sections that are underlined with dashes."""
    first, *rest = SECTIONS.split(text)
    out = [first.rstrip()]
    for head, body in zip(rest[::2], rest[1::2], strict=True):
        out.append(f"**{head}**")
        lines: list[str] = []
        for line in body.strip("\n").splitlines():
            item = ITEM.match(line)
            if item and head in ("Parameters", "Attributes"):
                names = ", ".join(f"`{name}`" for name in item["names"].split(", "))
                lines.append(f"- {names}: {item['text'] or ''}".rstrip())
            else:
                lines.append(f"  {line.strip()}" if line.startswith("    ") else line)
        out.append("\n".join(lines))
    return "\n\n".join(out)


class Docstrings(griffe.Extension):
    """Rewrites the docstring of every object that is shown, and trims stages."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(sections(obj.docstring.value))

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        bases = [str(base).rsplit(".", 1)[-1] for base in cls.bases]
        if cls.name == "Operator" or "Operator" in bases:
            for name in PROTOCOL & set(cls.members):
                del cls.members[name]
