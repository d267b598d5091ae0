"""For mkdocstrings: examples in docstrings are code, whatever Markdown makes of their brackets."""

from __future__ import annotations

from typing import Any

import griffe


def fenced(text: str) -> str:
    """Every run of lines from a `>>>` to the next empty line, as a block of code."""
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


class Doctests(griffe.Extension):
    """Rewrites the docstring of every object that is shown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
