"""What README and docs show is what happens: their code and commands are run, outputs compared."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from pages import ROOT, agrees, run_page

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


@pytest.mark.long
@pytest.mark.spark
def test_the_start_page_on_spark(tmp_path: Path) -> None:
    for each in run_page(ROOT / "docs/start.md", tmp_path, spark=True):
        assert agrees(each.said, each.came), f"it says\n{each.said}but it is\n{each.came}"


def test_an_output_may_be_cut_short() -> None:
    assert agrees("a\n…\nd\n", "a\nb\nc\nd\n")
    assert not agrees("a\n…\nd\n", "a\nb\nc\n")
    assert not agrees("a\n", "a\nb\n")


def test_the_badges_are_what_the_repository_says() -> None:
    spec = importlib.util.spec_from_file_location("badges", ROOT / "tools" / "badges.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    readme = (ROOT / "README.md").read_text()
    for name, drawn in module.badges().items():
        assert f"docs/pictures/{name}" in readme
        assert (module.PICTURES / name).read_text() == drawn, "run: python tools/badges.py"
