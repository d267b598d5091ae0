"""How many file borders one collection crosses: the figures of ADR 12 are kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "borders.py"
MOST = {"window": 60, "compact": 120, "synchronize": 50}
"""Border crossings of one collection through a flow: times read, keys found, put in order, then the
operator. Above, a reader has to keep too many files open; so does the interpreter."""


def test_few_borders_are_crossed() -> None:
    made = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True
    ).stdout
    found = {}
    for line in made.splitlines():
        name, how, crossings, *_ = line.split()
        if how == "in_flow":
            found[name] = int(crossings)
    assert found.keys() == MOST.keys()
    assert {name: count for name, count in found.items() if count > MOST[name]} == {}
