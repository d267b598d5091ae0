"""The list of long cases names tests and cases that exist."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from longer import KEPT, SLOWEST

TESTS = Path(__file__).parents[1]


def test_every_case_that_stays_exists() -> None:
    files = sorted({str(TESTS / name.partition("::")[0]) for name in KEPT})
    made = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", *files],
        capture_output=True, text=True, cwd=TESTS.parent,
    ).stdout  # fmt: skip
    found = {line.removeprefix("tests/") for line in made.splitlines() if "::" in line}
    named = {f"{test}[{case}]" for test, cases in KEPT.items() for case in cases}
    assert sorted(named - found) == []
    assert sorted(set(KEPT) - {name.partition("[")[0] for name in found}) == []


def test_every_slow_file_exists() -> None:
    assert [name for name in SLOWEST if not (TESTS / name).is_file()] == []
