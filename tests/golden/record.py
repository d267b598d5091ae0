"""Write and read golden snapshots: a snapshot in mid-stream, and what must come out after it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from golden import in_process, run_folder
from golden.cases import CASES, HALF, WHOLE
from tidegate.core import snapshot
from tidegate.core.chain import Chain
from tidegate.core.operator import Operator
from tidegate.core.outcomes import Outcome
from tidegate.core.state import State
from tidegate.testing.laws import rows_of

FOLDER = Path(__file__).parent / "snapshots"

IN_PROCESS = "in_process"
"""The folder of the snapshots of classes that are used in process."""


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
        (folder / f"{name}.json").write_text(as_text(expected))
    (folder / IN_PROCESS).mkdir(exist_ok=True)
    for name in in_process.CASES:
        blob, after = in_process.snapshot_in_mid_stream(name)
        (folder / IN_PROCESS / f"{name}.snapshot").write_bytes(blob)
        (folder / IN_PROCESS / f"{name}.json").write_text(as_text(after))
    run_folder.write(folder)


def as_text(value: Any) -> str:
    """JSON in one line."""
    return json.dumps(value, separators=(",", ":"), default=repr) + "\n"


def format_of(blob: bytes) -> dict[str, Any]:
    """What a reader of a snapshot relies on, and nothing of what it holds: per stage its version,
    the names, types and shapes of its arrays, and the columns of the tables that have rows."""
    header, _ = snapshot.unpack(blob)
    if "stages" not in header:
        return {"header": sorted(set(header) - {"sizes"})}
    stages, extra = snapshot.read_stages(blob)
    return {
        "extra": sorted(extra),
        "stages": [
            {
                "name": stage.name,
                "version": stage.version,
                "arrays": {
                    name: [array.dtype.str, list(array.shape)]
                    for name, array in stage.state.arrays.items()
                },
                "tables": {
                    name: None if table is None else dict(
                        zip(table.schema.names, map(str, table.schema.types), strict=True)
                    )
                    for name, table in stage.state.tables.items()
                },
            }
            for stage in stages
        ],
    }  # fmt: skip
