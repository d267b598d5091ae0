"""Write and read golden snapshots: a snapshot in mid-stream, and what must come out after it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from golden.cases import CASES, HALF, WHOLE
from tidegate.core.chain import Chain
from tidegate.core.operator import Operator
from tidegate.core.outcomes import Outcome
from tidegate.core.state import State
from tidegate.testing.laws import rows_of

FOLDER = Path(__file__).parent / "snapshots"


def shown(outcomes: Sequence[Outcome]) -> list[Any]:
    """Outcomes as JSON values: rows per lane and kind, in order."""
    rows = rows_of(outcomes, watermarks=True)
    return json.loads(
        json.dumps(
            [[lane, kind, found] for (lane, kind), found in sorted(rows.items())], default=repr
        )
    )


def first_half(name: str) -> tuple[Sequence[Operator], list[State]]:
    """Run a case up to its snapshot."""
    make, rows = CASES[name]
    chain = Chain(make())
    states = chain.open(2)
    chain.process(states, rows(0, HALF))
    return chain.stages, states


def second_half(name: str, states: list[State]) -> list[Any]:
    """Go on from restored states to the end of a case."""
    make, rows = CASES[name]
    chain = Chain(make())
    out = chain.process(states, rows(HALF, WHOLE))
    return shown(out + chain.flush(states))


def write(version: str) -> None:
    """Record every case under this version."""
    folder = FOLDER / version
    folder.mkdir(parents=True, exist_ok=True)
    for name in CASES:
        stages, states = first_half(name)
        for number, (stage, state) in enumerate(zip(stages, states, strict=True)):
            (folder / f"{name}.{number}.snapshot").write_bytes(stage.snapshot(state))
        expected = second_half(name, states)
        text = json.dumps(expected, indent=None, separators=(",", ":"))
        (folder / f"{name}.json").write_text(text + "\n")
