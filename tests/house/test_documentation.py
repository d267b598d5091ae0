"""Every public class, function and setting says what it is, in the place where a reader looks."""

from __future__ import annotations

import ast
import enum
import inspect
import json
import re
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from house.count import this_package, undocumented

ALLOWED = json.loads((Path(__file__).parent / "allowed.json").read_text())
NAMESPACES = [
    "tidegate", "tidegate.eventtime", "tidegate.sync", "tidegate.batching", "tidegate.windows",
    "tidegate.triggers", "tidegate.deltas", "tidegate.deltas.table", "tidegate.spark",
    "tidegate.testing", "tidegate.mcap", "tidegate.spool", "tidegate.ros2", "tidegate.profile",
    "tidegate.report", "tidegate.output", "tidegate.pipeline", "tidegate.align", "tidegate.dataset",
    "tidegate.testing.laws", "tidegate.warm",
]  # fmt: skip


def public_objects() -> dict[str, Any]:
    """Every class and function that a namespace exports, by qualified name, once each."""
    found: dict[str, Any] = {}
    for namespace in NAMESPACES:
        try:
            module = import_module(namespace)
        except ModuleNotFoundError as error:
            if error.name and error.name.startswith("tidegate"):
                continue
            raise
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                found[f"{value.__module__}.{value.__qualname__}"] = value
    return dict(sorted(found.items()))


OBJECTS = public_objects()


@cache
def classes_of(module: str) -> dict[str, ast.ClassDef]:
    """The classes of a module by name. `inspect.getsource` would parse it for every class."""
    source = Path(str(import_module(module).__file__)).read_text()
    return {node.name: node for node in ast.walk(ast.parse(source)) if type(node) is ast.ClassDef}


@cache
def bare_names() -> frozenset[str]:
    """Public names without a docstring."""
    return frozenset(undocumented(this_package()))


def described_fields(cls: type) -> set[str]:
    """Names with a string literal right below them, in the class and the classes it extends."""
    out: set[str] = set()
    for parent in cls.__mro__:
        if not parent.__module__.startswith("tidegate"):
            continue
        body = classes_of(parent.__module__)[parent.__name__].body
        for before, after in pairwise(body):
            text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if text and isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name):
                out.add(before.target.id)
    return out


def undescribed(value: Any) -> list[str]:
    """The parameters of a class or function that no docstring describes."""
    if inspect.isclass(value) and issubclass(value, Exception | enum.Enum):
        return []
    try:
        parameters = inspect.signature(value).parameters
    except (TypeError, ValueError):
        return []
    texts = [value.__doc__ or ""]
    known: set[str] = set()
    if inspect.isclass(value):
        texts += [cls.__init__.__doc__ or "" for cls in value.__mro__[:-1]]  # type: ignore[misc]
        texts += [cls.__doc__ or "" for cls in value.__mro__[1:-1]]
        known = described_fields(value)
    text = "\n".join(texts)
    return [name for name in parameters if name not in known and not described(name, text)]


def described(name: str, text: str) -> bool:
    """Whether a line of a docstring begins with this name, alone or among others, and a colon."""
    one = rf"\*{{0,2}}`?{re.escape(name)}`?"
    line = rf"^\s*(`?\w+`?, )*{one}(, `?\w+`?)*( \([^)]*\))?:\s"
    return re.search(line, text, re.MULTILINE) is not None


@pytest.mark.parametrize("name", OBJECTS)
def test_every_setting_is_described(name: str) -> None:
    missing = {f"{name}.{setting}" for setting in undescribed(OBJECTS[name])}
    assert missing <= set(ALLOWED["undescribed settings"])


def test_every_public_name_has_a_docstring() -> None:
    assert sorted(bare_names() - set(ALLOWED["without a docstring"])) == []


def test_the_allow_lists_hold_nothing_that_is_described() -> None:
    """What has been described leaves the list: it only shrinks."""
    assert sorted(set(ALLOWED["without a docstring"]) - bare_names()) == []
    missing = {f"{name}.{setting}" for name in OBJECTS for setting in undescribed(OBJECTS[name])}
    assert sorted(set(ALLOWED["undescribed settings"]) - missing) == []


def test_the_check_itself_finds() -> None:
    def partly(one: int, two: int) -> None:
        """Add.

        Args:
            one: The first.
        """

    assert undescribed(partly) == ["two"]
