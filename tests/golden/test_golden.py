"""Every recorded version is read, and goes on as it would have: snapshots outlive the code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from golden.cases import CASES
from golden.record import FOLDER, first_half, second_half
from tidegate.core.chain import Chain

RECORDED = sorted(
    (folder.name, file.stem) for folder in FOLDER.iterdir() for file in folder.glob("*.json")
)


@pytest.mark.parametrize(("version", "name"), RECORDED)
def test_a_recorded_snapshot_goes_on(version: str, name: str) -> None:
    stages = Chain(CASES[name][0]()).stages
    folder: Path = FOLDER / version
    states = [
        stage.restore((folder / f"{name}.{number}.snapshot").read_bytes())
        for number, stage in enumerate(stages)
    ]
    expected = json.loads((folder / f"{name}.json").read_text())
    assert second_half(name, states) == expected


def test_every_case_is_recorded() -> None:
    assert {name for _, name in RECORDED} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_case_has_something_to_restore(name: str) -> None:
    """A snapshot of nothing would guard nothing: rows wait, or an array has left its fill value."""
    _, states = first_half(name)
    assert any(state.rows(table) for state in states for table in state.tables) or any(
        (state[array] != column.fill).any()
        for state in states
        for array, column in state.layout.arrays.items()
    )
