"""`tidegate explain --json` of the pipelines that users are shown says what it said."""

from __future__ import annotations

import pytest

from golden.explain import FOLDER, explained, pipelines

PIPELINES = pipelines()


@pytest.mark.parametrize("name", PIPELINES)
def test_a_plan_is_the_recorded_one(name: str) -> None:
    recorded = FOLDER / f"{name}.json"
    assert recorded.exists(), "new: record it with PYTHONPATH=tests python -m golden explain"
    assert explained(PIPELINES[name]) == recorded.read_text()


def test_no_recorded_plan_is_without_its_pipeline() -> None:
    assert {file.stem for file in FOLDER.glob("*.json")} == set(PIPELINES)
