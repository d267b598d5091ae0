"""What dry-run prints fits the screen, and says what it left out."""

from __future__ import annotations

import os

import pytest

from tidegate.pipeline import PipelineDefinition, plan
from tidegate.pipeline.explanation import dry_run_text
from tidegate.pipeline.planner import Plan

WIDE = {
    kind: [*(f"signal_{n}: double" for n in range(300)), *more]
    for kind, more in (("data", []), ("late", ["lateness_ns: int64"]))
}
NOTES = [
    f"note {n}: " + "a sentence that goes on for longer than a line does " * 2 for n in range(9)
]


def planned(stages: int) -> Plan:
    return plan(PipelineDefinition.of({
        "name": "fleet",
        "streams": {"fleet": {"columns": ["car", "t", "speed"], "key": "car", "arrival": "t",
                              "eventtime": {"column": "t", "type": "unixtimestamp_ms"}}},
        "options": {"eventtime": {"enabled": True, "lateTolerance": "5 s"}},
        "stages": [{"window": {"tumbling": f"{n + 1} s"}} for n in range(stages)],
    }))  # fmt: skip


@pytest.mark.parametrize("stages", [0, 3, 30])
@pytest.mark.parametrize("notes", [0, 1, 9])
@pytest.mark.parametrize("screen", [(80, 24), (200, 60), (100, 30)])
def test_it_fits(stages: int, notes: int, screen: tuple[int, int]) -> None:
    size = os.terminal_size(screen)
    lines = dry_run_text(planned(stages), NOTES[:notes], WIDE, size).splitlines()
    assert len(lines) < size.lines
    assert max(map(len, lines)) <= size.columns
    assert lines[0] == "pipeline fleet: batch, event time"
    assert "late      those of data, and lateness_ns" in "\n".join(lines)
    assert lines[-1] == "(cut to fit the screen; --full shows everything)"


def test_what_is_short_is_not_cut_and_full_is_everything() -> None:
    made, tables = planned(0), {"data": ["car: string", "t: int64"]}
    assert "--full" not in dry_run_text(made, [], tables, os.terminal_size((200, 60)))
    whole = dry_run_text(planned(30), NOTES, WIDE, None)
    assert "signal_299: double" in whole
    assert all(note in whole for note in NOTES)
    assert whole.count("PhysicalWindow") == 30
