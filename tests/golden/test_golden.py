"""Every recorded version is read, and goes on as it would have: snapshots outlive the code."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any, ClassVar

import pytest

from golden import in_process, run_folder
from golden.cases import CASES
from golden.record import FOLDER, IN_PROCESS, first_half, format_of, second_half
from tidegate import __version__
from tidegate.core.chain import Chain
from tidegate.core.state import State
from tidegate.errors import StateError
from tidegate.eventtime import EventtimeWatermark

RECORDED = sorted(
    (folder.name, file.stem)
    for folder in FOLDER.iterdir()
    for file in folder.glob("*.json")
    if file.name != run_folder.EXPECTED
)

RECORDED_IN_PROCESS = sorted(
    (folder.name, file.stem)
    for folder in FOLDER.iterdir()
    for file in (folder / IN_PROCESS).glob("*.json")
)

CHANGED = """the format of this state has changed since it was recorded. One of the old format must
still be read, and one of the new format be refused by old code: raise `version` of the operator,
write its `migrate`, and record the next version of the package (`make golden`)"""


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


@pytest.mark.parametrize(("version", "name"), RECORDED_IN_PROCESS)
def test_a_recorded_snapshot_goes_on_in_process(version: str, name: str) -> None:
    folder = FOLDER / version / IN_PROCESS
    after = in_process.after_snapshot(name, (folder / f"{name}.snapshot").read_bytes())
    expected = json.loads((folder / f"{name}.json").read_text())
    assert json.loads(json.dumps(after, default=repr)) == expected


def test_every_case_is_recorded() -> None:
    assert {name for _, name in RECORDED} == set(CASES)
    assert {name for _, name in RECORDED_IN_PROCESS} == set(in_process.CASES)


@pytest.mark.parametrize("name", CASES)
def test_the_format_of_a_version_is_frozen(name: str) -> None:
    """What is written today is what the recording of today's version of the state says."""
    stages, states = first_half(name)
    for number, (stage, state) in enumerate(zip(stages, states, strict=True)):
        recorded = (FOLDER / __version__ / f"{name}.{number}.snapshot").read_bytes()
        was, now = format_of(recorded), format_of(stage.snapshot(state))
        if was["stages"][0]["version"] == now["stages"][0]["version"]:
            assert now == was, CHANGED


@pytest.mark.parametrize("name", in_process.CASES)
def test_the_format_in_process_is_frozen(name: str) -> None:
    blob, _ = in_process.snapshot_in_mid_stream(name)
    recorded = (FOLDER / __version__ / IN_PROCESS / f"{name}.snapshot").read_bytes()
    assert format_of(blob) == format_of(recorded), CHANGED


def test_every_table_is_in_some_recording() -> None:
    """The columns of a table without rows are not recorded. `unknown` of windows only has rows
    after other aggregates were adopted (tests/laws/test_adoption.py)."""
    rows: dict[str, int] = defaultdict(int)
    for name in CASES:
        for stage, state in zip(*first_half(name), strict=True):
            for table in state.tables:
                rows[f"{stage.name}.{table}"] += state.rows(table)
    assert [table for table, count in rows.items() if not count] == ["window.unknown"]


class NextVersion(EventtimeWatermark):
    """Event time as a later version may have it: the state counts late rows twice."""

    version: ClassVar[int] = EventtimeWatermark.version + 1

    def migrate(
        self, version: int, settings: dict[str, Any], state: State
    ) -> tuple[dict[str, Any], State]:
        assert version == EventtimeWatermark.version
        state["late_count"][:] *= 2
        return settings, state


def test_an_older_version_is_migrated_and_a_newer_one_refused() -> None:
    now = EventtimeWatermark("50 ms", idle_timeout="1 s")
    later = NextVersion("50 ms", idle_timeout="1 s")
    blob = (FOLDER / "0.1.0" / "eventtime.0.snapshot").read_bytes()
    late = now.restore(blob)["late_count"].sum()
    migrated = later.restore(blob)
    assert migrated["late_count"].sum() == 2 * late > 0
    with pytest.raises(StateError, match="newer than the 2 this version reads; upgrade tidegate"):
        now.restore(later.snapshot(migrated))


@pytest.mark.parametrize("name", CASES)
def test_a_case_has_something_to_restore(name: str) -> None:
    """A snapshot of nothing would guard nothing: rows wait, or an array has left its fill value."""
    _, states = first_half(name)
    assert any(state.rows(table) for state in states for table in state.tables) or any(
        (state[array] != column.fill).any()
        for state in states
        for array, column in state.layout.arrays.items()
    )


@pytest.mark.parametrize("name", sorted(CASES))
def test_figures_fit_into_int64(name: str) -> None:
    """Before the first row and in mid-stream: on Spark they travel as `bigint`."""
    stages, states = CASES[name][0](), first_half(name)[1]
    for stage, state in zip(stages, states, strict=True):
        for of in (stage.open(2), state):
            for figure, value in stage.metrics(of).items():
                assert -(2**63) <= int(value) < 2**63, (stage.name, figure)
