"""The page of windows has every kind, trigger, late policy, aggregate and setting, and the Python
and the YAML form on it are the same. All by registry: what is added without a row fails here."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

import tidegate.windows
from tidegate.core.checks import snake
from tidegate.pipeline.stages import StageContext
from tidegate.pipeline.window_stage import build_window
from tidegate.windows import Accumulation, Aggregate, Memory, MemoryPolicy, Tumbling, Window
from tidegate.windows.aggregates import AGGREGATE_FUNCTIONS
from tidegate.windows.kinds import WINDOW_KINDS
from tidegate.windows.late import LATE_POLICIES
from tidegate.windows.triggers import TRIGGERS

PAGE = (Path(__file__).parents[2] / "docs" / "explain" / "windows.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
NAMES = {name: getattr(tidegate.windows, name) for name in tidegate.windows.__all__}

TABLES: list[tuple[str, dict[str, type[Any]], str]] = [
    ("Every kind, in Python and in a pipeline file", WINDOW_KINDS, "window"),
    ("Every trigger", TRIGGERS, "trigger"),
    ("Every late policy", LATE_POLICIES, "late"),
]
ROWS = [(section, name) for section, known, _ in TABLES for name in known]


def rows_of(section: str) -> dict[str, list[str]]:
    """The cells of the tables of a section, by the words in their first cell."""
    out = {}
    for line in SECTIONS[section].splitlines():
        if line.startswith("| "):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            for word in cells[0].replace("`", "").split(", "):
                out[word] = cells
    return out


def code(cell: str) -> str:
    """The first piece of code in a cell."""
    found = re.search(r"`(.+?)`", cell)
    assert found is not None, cell
    return found[1].replace("\\|", "|")


@pytest.mark.parametrize(("section", "name"), ROWS)
def test_a_row_says_the_same_in_python_and_yaml(section: str, name: str) -> None:
    known, setting = next((k, s) for title, k, s in TABLES if title == section)
    row = rows_of(section)[name.replace("_", " ")]
    made = eval(code(row[2]), dict(NAMES))
    assert type(made) is known[name]
    said = yaml.safe_load(code(row[3]))
    stage = said if setting == "window" else {"tumbling": 1, setting: said}
    if name == "memory_pressure":
        stage["memory"] = {}
    if setting == "trigger":
        stage["late"] = {"reemit": 1}  # a late trigger needs it
    assert getattr(build_window(stage, StageContext()), setting) == made


@pytest.mark.parametrize(("section", "name"), ROWS)
def test_a_row_names_every_setting(section: str, name: str) -> None:
    known = next(k for title, k, _ in TABLES if title == section)
    row = " ".join(rows_of(section)[name.replace("_", " ")])
    words = {snake(word) for word in re.findall(r"\w+", row)}
    settings = [field.name for field in fields(known[name]) if field.init]
    assert {*settings[1:]} <= words  # a single value is the first setting, as the page says


@pytest.mark.parametrize(("section", "name"), ROWS)
def test_a_picture_of_a_run(section: str, name: str) -> None:
    known, setting = next((k, s) for title, k, s in TABLES if title == section)
    wanted = known[name].__name__
    drawn = [text for text in SECTIONS.values() if "![" in text]
    default = setting == "late" and isinstance(Window(Tumbling(1)).late, known[name])
    assert any(f"{wanted}(" in text for text in drawn) or default


def test_every_aggregate_is_there() -> None:
    rows = rows_of("Every aggregate")
    names = {*AGGREGATE_FUNCTIONS, "approx_quantile"}
    assert names <= {*rows}
    for name in sorted(names):
        cells = rows[name]
        said = yaml.safe_load("{" + code(cells[4]) + "}")
        given = {str(key): eval(code(cells[3]), dict(NAMES)) for key in said}
        made = build_window({"tumbling": 1, "aggregates": said}, StageContext())
        assert made.settings() == Window(Tumbling(1), aggregates=given).settings()
    wanted = {field.name for field in fields(Aggregate)} - {"q", "name", "function", "column"}
    assert all(f"{name}=" in SECTIONS["Every aggregate"] for name in wanted)


def test_every_setting_is_there() -> None:
    rows = rows_of("Every setting of the stage")
    for kind in (Window, Memory):
        assert {field.name for field in fields(kind) if field.init} <= {*rows}
    for mode in Accumulation:
        assert mode.value in rows["accumulation"][2]
    for policy in MemoryPolicy:
        assert f"`{policy.value}`" in rows["policy"][2]
