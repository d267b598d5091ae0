"""The public names: nouns at the top, the rest in namespaces, all documented, loaded when used."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import tidegate

NAMESPACES = sorted(tidegate._NAMESPACES)
NOUNS = sorted(tidegate._MODULE_OF)
REPOSITORY = Path(__file__).parents[2]


def test_the_list_is_complete_and_sorted() -> None:
    assert sorted(tidegate.__all__) == list(tidegate.__all__)
    assert set(tidegate.__all__) == {*NOUNS, *NAMESPACES, "__version__"}


@pytest.mark.parametrize("name", NOUNS)
def test_every_noun_is_there_and_documented(name: str) -> None:
    value = getattr(tidegate, name)
    assert value.__name__ == name
    assert value.__doc__


@pytest.mark.parametrize("name", NAMESPACES)
def test_every_namespace_is_there_and_documented(name: str) -> None:
    namespace = getattr(tidegate, name)
    assert isinstance(namespace, ModuleType)
    assert namespace.__doc__
    for inner in getattr(namespace, "__all__", ()):
        assert hasattr(namespace, inner), f"tidegate.{name}.{inner}"


def test_an_unknown_name_says_so() -> None:
    with pytest.raises(AttributeError, match="Synchronise"):
        _ = tidegate.Synchronise


def test_import_is_light() -> None:
    heavy = "{'numba', 'pyarrow', 'pyspark', 'numpy'} & set(sys.modules)"
    code = f"import sys, tidegate, tidegate.cli; print(sorted({heavy}))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def _named_in_documents() -> list[str]:
    """`tidegate.windows.Tumbling` and `from tidegate.windows import Tumbling`, wherever written."""
    files = [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")]
    files = [file for file in files if "adr" not in file.parts and "changes" not in file.parts]
    found = set()
    for file in files:
        text = file.read_text(encoding="utf-8")
        found |= set(re.findall(r"(?<![\w./-])tidegate(?:\.[A-Za-z_]\w*)+(?![\w/-])", text))
        for module, names in re.findall(r"from (tidegate[\w.]*) import ([\w, ]+)", text):
            found |= {f"{module}.{name.split(' as ')[0].strip()}" for name in names.split(",")}
    return sorted(found)


FILE_NAMES = ("tidegate.schema.json",)
ENTRY_POINTS = re.compile(r"tidegate\.(eventtime_types|sinks|sources|stages)$")


@pytest.mark.parametrize("name", _named_in_documents())
def test_every_name_in_the_documents_exists_and_is_public(name: str) -> None:
    if name in FILE_NAMES or ENTRY_POINTS.match(name):
        return
    assert not any(part.startswith("_") for part in name.split("."))
    *path, last = name.split(".")
    for depth in range(len(path), 0, -1):
        try:
            found: object = import_module(".".join(path[:depth]))
        except ImportError:
            continue
        for part in [*path[depth:], last]:
            if isinstance(found, ModuleType) and not hasattr(found, part):
                import_module(f"{found.__name__}.{part}")
            found = getattr(found, part)
        return
    pytest.fail(f"{name} is not there")
