"""The page "The code in ten minutes": files and names on it exist, and its code runs."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from tidegate.pipeline import PipelineDefinition, plan
from tidegate.testing.fleet import fleet

HOME = Path(__file__).parents[2]
TEXT = (HOME / "docs" / "code.md").read_text()
PROSE = re.sub(r"```.*?```", "", TEXT, flags=re.S)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`([a-z_/]+/(?:\w+\.py)?)`", PROSE))))
def test_every_file_exists(path: str) -> None:
    assert (HOME / "src" / "tidegate" / path).exists() or (HOME / path).exists()


def test_every_folder_of_the_tree_exists() -> None:
    tree = TEXT.split("```")[1]
    for name in re.findall(r"\b([a-z]+)/", tree.split("src/tidegate/")[1]):
        assert (HOME / "src" / "tidegate" / name).is_dir(), name


@pytest.mark.parametrize(
    ("names", "path"), re.findall(r"`([\w.]+)` \(`([\w/]+\.py)`", PROSE), ids=lambda v: v
)
def test_every_name_is_in_the_file_beside_it(names: str, path: str) -> None:
    value = import_module("tidegate." + path[:-3].replace("/", "."))
    for name in names.split("."):
        assert hasattr(value, name), f"{path} has no {names}"
        value = getattr(value, name)


def test_its_code_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    known = {"rows": fleet(2, 3, seed=1).combine_chunks().to_batches()[0]}
    exec(code, known)
    kinds = {type(outcome).__name__ for outcome in known["outcomes"]}
    assert {"Collection", "Watermark"} <= kinds


def test_its_definition_can_be_planned(tmp_path: Path) -> None:
    (code,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.S)
    (tmp_path / "pipeline.yaml").write_text(code)
    made = plan(PipelineDefinition.load(tmp_path / "pipeline.yaml"))
    assert made.key == ("vehicle",)
