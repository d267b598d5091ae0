"""The code and the commands on the pages of the documentation, run as they stand there.

A page is read from top to bottom, in an empty folder:

    ```yaml whose first line is `# NAME.yaml`    is written to that file
    ```python                                    is run, all of a page in one namespace
    ```text behind it                            is what it prints
    ```console                                   lines with `$ ` are run, the others are output

A line `…` in an output stands for any lines. `python tests/report/pages.py README.md` writes the
outputs into a page as they are now.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rich.console import Console

from tidegate import cli

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

NEEDS_SPARK = re.compile(r"^\$ tidegate (?:run|dry-run)\b", re.MULTILINE)


class Ran(NamedTuple):
    """A block that printed something: where the page says so, what it says, and what came."""

    start: int
    end: int
    said: str
    came: str


def run_page(page: Path, folder: Path, *, spark: bool = False) -> list[Ran]:
    """Run a page in a folder. Without `spark`, code and commands that need Spark are left out."""
    text = page.read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    ran: list[Ran] = []
    printed: str | None = None
    with contextlib.chdir(folder):
        for block in BLOCK.finditer(text):
            language, content = block[1], block[2]
            if language == "yaml" and (named := re.match(r"# (\S+\.yaml)\n", content)):
                Path(named[1]).write_text(content, encoding="utf-8")
            elif language == "python":
                printed = _python(content, names) if spark or "spark" not in content else None
            elif language == "text" and printed is not None:
                ran.append(Ran(block.start(2), block.end(2), content, printed))
                printed = None
            elif language == "console" and (spark or not NEEDS_SPARK.search(content)):
                came = "".join(_command(each) for each in _commands(content))
                ran.append(Ran(block.start(2), block.end(2), content, came))
    return ran


def agrees(said: str, came: str) -> bool:
    """Whether an output is what a page says; a line `…` stands for any lines."""
    parts = [re.escape(part) for part in re.split(r"^…\n", said, flags=re.MULTILINE)]
    return re.fullmatch("(?:.*\n)*?".join(parts), came) is not None


def _python(code: str, names: dict[str, Any]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, names)
    return out.getvalue()


def _commands(content: str) -> list[str]:
    return re.findall(r"^\$ (.*)$", content, re.MULTILINE)


def _command(line: str) -> str:
    """A command with its output: in this process, or in one of its own if it starts Spark."""
    arguments = shlex.split(line)
    assert arguments[0] == "tidegate", f"not a command of ours: {line}"
    if NEEDS_SPARK.match(f"$ {line}"):
        source = str(Path(cli.__file__).parents[1])
        environment = {**os.environ, "PYTHONPATH": source, "COLUMNS": "100", "NO_COLOR": "1"}
        done = subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True,
                              timeout=300, env=environment)  # fmt: skip
        code, came = done.returncode, done.stdout
    else:
        with (
            contextlib.redirect_stdout(io.StringIO()) as out,
            pytest.MonkeyPatch.context() as patch,
        ):
            patch.setattr(sys, "argv", arguments)
            patch.setattr(cli, "console", Console(width=100, no_color=True, file=out))
            with pytest.raises(SystemExit) as ended:
                cli.main()
        code, came = int(ended.value.code or 0), out.getvalue()
    assert code == 0, f"{line} ended with {code}"
    lines = [each.rstrip() for each in came.splitlines()]
    return "\n".join([f"$ {line}", *lines]) + "\n"


def rewrite(page: Path) -> None:
    """Write the outputs into a page, but for those that it cuts short."""
    text = page.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        for each in reversed(run_page(page, Path(folder))):
            if not agrees(each.said, each.came):
                print(f"{page}: was\n{each.said}is\n{each.came}")
                if "…\n" not in each.said:
                    text = text[: each.start] + each.came + text[each.end :]
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        rewrite(Path(name).absolute())
