"""Promises of SECURITY.md that can be read off the source: no pickle from disk, private temporary
files, no shell, jars by checksum."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import tidegate

ROOT = Path(tidegate.__file__).parent
FORBIDDEN = {
    "pickle.load": "runs code from what it reads",
    "pickle.loads": "runs code from what it reads",
    "marshal.loads": "crashes on what it reads",
    "shelve.open": "is a pickle",
    "yaml.load": "builds objects",
    "yaml.unsafe_load": "builds objects",
    "yaml.full_load": "builds objects",
    "tempfile.mktemp": "names a file that others can make first",
    "os.system": "is a shell",
    "os.popen": "is a shell",
    "np.load": "may unpickle",
    "torch.load": "unpickles",
    "joblib.load": "unpickles",
}
ALLOWED = {("spark/processor.py", "pickle.loads")}
"""The plan of a step: pickled by the driver, sent by Spark to its own workers, never on disk."""


def calls(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            found.add(ast.unparse(node.func))
            for keyword in node.keywords:
                if keyword.arg == "shell" and ast.unparse(keyword.value) == "True":
                    found.add("shell=True")
    return found


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_dangerous_is_called(path: Path) -> None:
    name = path.relative_to(ROOT).as_posix()
    bad = {c for c in calls(path) if c in FORBIDDEN or c in ("eval", "exec", "shell=True")}
    assert {c for c in bad if (name, c) not in ALLOWED} == set()


def test_every_jar_has_a_checksum() -> None:
    """`Jar("group:artifact:version", sha256)`: the second argument is 64 hex digits, everywhere."""
    jars = []
    for path in ROOT.rglob("*.py"):
        if "Jar(" not in (text := path.read_text(encoding="utf-8")):
            continue
        nodes = ast.walk(ast.parse(text))
        made = [n for n in nodes if isinstance(n, ast.Call) and ast.unparse(n.func) == "Jar"]
        jars += [ast.literal_eval(call.args[1]) for call in made]
    assert len(jars) >= 4
    assert all(re.fullmatch(r"[0-9a-f]{64}", sha256) for sha256 in jars)
