"""Every example in a docstring of `tidegate.spark` runs; none needs a session."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import tidegate.spark
from tidegate.pipeline import definition, formats
from tidegate.spark.sinks import SINKS
from tidegate.spark.sources import SOURCES

ROOT = Path(tidegate.spark.__file__).parent
MODULES = sorted(
    "tidegate.spark." + ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in ROOT.rglob("*.py")
    if path.name != "__init__.py"
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    tables: list[Any] = [SINKS, SOURCES, formats.SINKS, formats.SOURCES]
    kept, names = [dict(table) for table in tables], list(definition.SINK_FORMATS)
    try:
        assert doctest.testmod(import_module(name), optionflags=doctest.ELLIPSIS).failed == 0
    finally:  # examples register formats
        for table, before in zip(tables, kept, strict=True):
            table.clear()
            table.update(before)
        definition.SINK_FORMATS[:] = names
