"""What the README shows is run as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tidegate.pipeline import PipelineDefinition, plan
from tidegate.testing.fleet import fleet

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def block(language: str, containing: str) -> str:
    found = [text for name, text in BLOCKS if name == language and containing in text]
    assert len(found) == 1, f"one {language} block with {containing!r}, found {len(found)}"
    return found[0]


def test_in_process_and_on_dataframes(spark: Any, tmp_path: Path) -> None:
    """The first two of the three ways give the same number of everything; the third one is compared
    in test_three_forms."""
    (tmp_path / "recording").mkdir()
    pq.write_table(fleet(vehicles=2, seconds=3), tmp_path / "recording" / "0.parquet")
    names: dict[str, Any] = {}
    for language, containing in (("python", "tg.Flow("), ("python", "frames(")):
        exec(block(language, containing).replace("demo-out/", f"{tmp_path}/"), names)
    matched = names["matched"]
    assert matched.data.count() == len(names["sets"]) > 20
    for table, kind in ((matched.late, "late"), (matched.errors, "error")):
        assert table.count() == sum(len(o) for o in names["outcomes"] if o.kind == kind)
    assert matched.errors.count() > 0


def test_the_pipeline_file_plans() -> None:
    text = block("yaml", "synchronize")
    names = [node.name for node in plan(PipelineDefinition.from_yaml(text)).nodes]
    assert names == [
        "PhysicalDataSource",
        "PhysicalDecoder",
        "PhysicalEventtimeWatermark",
        "PhysicalSynchronize",
        "PhysicalSink",
    ]


def test_the_commands_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = "".join(text for language, text in BLOCKS if not language)
    used = re.findall(r"^make (\w+)", commands, re.MULTILINE)
    assert used
    assert set(used) <= targets
    help_text = subprocess.run(
        [sys.executable, "-m", "tidegate", "--help"], capture_output=True, text=True, check=True
    ).stdout
    typed = re.findall(r"^(?:\.venv/bin/)?tidegate ([\w-]+)", commands, re.MULTILINE)
    assert {"look", "inspect", "init", "run", "view"} <= set(typed)
    for command in typed:
        assert command in help_text
