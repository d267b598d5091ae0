"""State windows of one key apart by the values of further columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidegate.core.arrow import joint_codes
from tidegate.core.outcomes import Int64s
from tidegate.core.state import State
from tidegate.windows.call import Call
from tidegate.windows.kinds import StateWindow

if TYPE_CHECKING:
    from tidegate.windows.stage import Window


def parts_of(op: Window, state: State, rows: pa.RecordBatch) -> tuple[Int64s, Int64s | None]:
    """A number per partition of a state window: of the rows, and of the windows held."""
    window = op.window
    if not isinstance(window, StateWindow) or not window.partition_by:
        return np.zeros(0, np.int64), None
    held = state.tables["open"]
    columns = []
    for name in window.partition_by:
        parts = [rows.column(name)]
        if held is not None:
            parts.insert(0, held.column(f"part:{name}"))
        columns.append(pa.concat_arrays(parts))
    codes, _ = joint_codes(columns)
    n = 0 if held is None else held.num_rows
    return codes[n:], codes[:n]


def part_columns(op: Window, state: State, rows: pa.RecordBatch, call: Call) -> dict[str, pa.Array]:
    """The partition values of every entry: of the table it came from, or of its first row."""
    window = op.window
    if not isinstance(window, StateWindow) or not window.partition_by:
        return {}
    steps = call.steps[: call.n_steps]
    row = np.arange(call.n_entries)
    first = np.full(call.n_entries, -1, np.int64)
    first[steps[::-1, 1]] = steps[::-1, 2]
    row[call.n_open :] = first[call.n_open :] + call.n_open
    held = state.tables["open"]
    out = {}
    for name in window.partition_by:
        parts = [rows.column(name)]
        if held is not None:
            parts.insert(0, held.column(f"part:{name}"))
        out[f"part:{name}"] = pa.concat_arrays(parts).take(pa.array(row))
    return out


def kept_parts(state: State) -> dict[str, pa.Array]:
    held = state.tables["open"]
    if held is None:
        return {}
    names = [name for name in held.schema.names if name.startswith("part:")]
    return {name: held.column(name) for name in names}
