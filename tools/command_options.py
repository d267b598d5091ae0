"""Write every option of every command into docs/reference/command-line.md, from the program itself.

    python tools/command_options.py

A test writes the page again and compares.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from tidegate.cli import app

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "command-line.md"
BEGIN = "<!-- written by tools/command_options.py -->\n"
END = "<!-- end -->\n"


def commands(group: Any, prefix: str = "tidegate") -> Iterator[tuple[str, Any]]:
    """Every command with its whole name, those of groups too."""
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


def options() -> str:
    """A table per command: option, default, what it does."""
    out = []
    for name, command in commands(typer.main.get_command(app)):
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        rows = [f"| `{p.name.upper()}` | | {getattr(p, 'help', '') or ''} |" for p in arguments]
        for param in command.params:
            if param.param_type_name == "option":
                spelled = ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))
                rows.append(f"| {spelled} | {default(param)} | {param.help or ''} |")
        said = " ".join((command.help or "").split())
        head = f"### {name}\n\n{said}\n\n| option | default | |\n|---|---|---|\n"
        out.append(head + "\n".join(rows) + "\n")
    return "\n".join(out)


def default(param: Any) -> str:
    """The default as one types it; nothing for a switch that is off or a value that is not set."""
    if param.default in (None, False, ()) or param.default is ...:
        return ""
    if param.default is True:
        return f"`{param.opts[0]}`"
    return f"`{param.default}`"


def page() -> str:
    """The page with the options as they are now."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN, 1)
    return before + BEGIN + "\n" + options() + "\n" + END + rest.split(END, 1)[1]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
