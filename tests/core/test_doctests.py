"""Every example in a docstring runs, without Spark."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import tidegate


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(["tidegate", *(part for part in parts if part != "__init__")])


NEEDS_SPARK = ("tidegate.spark", "tidegate.cli", "tidegate.__main__", "tidegate.report.vendor")
ROOT = Path(tidegate.__file__).parent
MODULES = sorted(
    name for path in ROOT.rglob("*.py") if not (name := _name(path)).startswith(NEEDS_SPARK)
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    module = import_module(name)
    outcome = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert outcome.failed == 0


def test_there_are_modules_to_look_at() -> None:
    assert "tidegate.core.flow" in MODULES
    assert "tidegate.pipeline.planner" in MODULES
