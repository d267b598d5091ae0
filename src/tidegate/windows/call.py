"""One call of a window kernel: the state as arrays, the lists the kernel writes, and back again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.core.outcomes import Int32s, Int64s
from tidegate.core.state import LANE, State
from tidegate.windows.kernel import link_all
from tidegate.windows.numbers import (
    C_ACCUMULATE,
    C_BUFFERED,
    C_OVERHEAD,
    E_BYTES,
    E_COUNT,
    E_DEAD,
    E_FIRED,
    E_LANE,
    E_PART,
    E_SERIAL,
    E_START,
    FIELDS,
    KEPT,
    N_ENTRIES,
    N_FIRES,
    N_STEPS,
    N_USED,
)
from tidegate.windows.slots import SERIAL

ROOM = 1 << 14
"""New panes per kernel call; a collection that opens more is decided in several calls."""

_KEY = np.int64(1) << 32


@dataclass
class Call:
    """The arrays of one kernel call."""

    cfg: Int64s
    entries: NDArray[Any]
    n_open: int
    counts: Int64s
    steps: NDArray[Any]
    fires: Int64s
    head: Int64s
    due_at: Int64s
    table: Int64s
    first: int = 0
    """The row that `joined` begins with."""
    joined: Int32s | None = None
    """Where rows are not told in steps: the entry each joins, or -1 (`scatter.py`)."""

    @property
    def n_entries(self) -> int:
        return int(self.counts[N_ENTRIES])

    @property
    def n_steps(self) -> int:
        return int(self.counts[N_STEPS])

    @property
    def fired(self) -> Int64s:
        """The emitted entries, in order."""
        return self.fires[: int(self.counts[N_FIRES])]

    @property
    def alive(self) -> NDArray[np.bool_]:
        """Entries that stay in the state."""
        return self.entries[: self.n_entries, E_DEAD] == 0  # type: ignore[no-any-return]

    def keys(self) -> Int64s:
        """(lane, window) of every entry as one number."""
        used = self.entries[: self.n_entries]
        return used[:, E_LANE] * _KEY + used[:, E_SERIAL]  # type: ignore[no-any-return]


def open_call(
    state: State, cfg: Int64s, rows: int, copies: int, parts: Int64s | None, column: int, link: bool
) -> Call:
    """The open windows of the state with room for what `rows` rows may open."""
    held = state.tables["open"]
    n = 0 if held is None else held.num_rows
    room = min(rows, ROOM) * copies + copies + 8 if rows else 0
    entries = np.empty((n + room, FIELDS), np.int64)
    if held is not None and n:
        entries[:n, E_LANE] = held.column(LANE).to_numpy()
        for number, name in enumerate(KEPT):
            entries[:n, E_START + number] = held.column(name).to_numpy()
        entries[:n, E_PART] = 0 if parts is None else parts[:n]
        entries[:n, E_DEAD] = 0
    counts = np.zeros(4, np.int64)
    counts[N_ENTRIES] = n
    if cfg[C_BUFFERED] != 0 and n:
        holding = (entries[:n, E_FIRED] == 0) | (cfg[C_ACCUMULATE] != 0)
        size = entries[:n, E_BYTES] + entries[:n, E_COUNT] * cfg[C_OVERHEAD]
        counts[N_USED] = size[holding].sum()
    size = 16
    while link and size < 2 * (n + room):
        size *= 2
    call = Call(
        cfg,
        entries,
        n,
        counts,
        np.empty((2 * room + 16, 4), np.int64),
        np.empty(n + room, np.int64),
        np.full(state.lanes if link else 0, -1, np.int64),
        np.full(state.lanes if link else 0, np.iinfo(np.int64).min, np.int64),
        np.full(size, -1, np.int64),
    )
    if link:
        order = np.arange(n)
        if column < 0:  # sessions are chained by start, the latest first
            order = np.argsort(entries[:n, E_START], kind="stable")
        link_all(entries, order, call.head, call.table, column)
    return call


def save_call(state: State, call: Call, extra: dict[str, pa.Array] | None = None) -> None:
    """The entries that live on become the state's table of open windows."""
    which = np.flatnonzero(call.alive)
    if len(which) == 0:
        state.tables["open"] = None
        return
    kept = call.entries[which]
    columns: dict[str, Any] = {LANE: pa.array(kept[:, E_LANE].astype(np.int32))}
    for number, name in enumerate(KEPT):
        columns[name] = pa.array(np.ascontiguousarray(kept[:, E_START + number]))
    for name, values in (extra or {}).items():
        columns[name] = values.take(pa.array(which))
    state.tables["open"] = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def table_keys(table: pa.RecordBatch) -> Int64s:
    """(lane, window) of every row of a state table as one number."""
    lane = table.column(LANE).to_numpy().astype(np.int64)
    return lane * _KEY + table.column(SERIAL).to_numpy()  # type: ignore[no-any-return]


def entry_of(call: Call, table: pa.RecordBatch | None) -> Int64s:
    """For each row of a state table: the entry (of those the state held) of its window."""
    if table is None or table.num_rows == 0:
        return np.zeros(0, np.int64)
    wanted = table_keys(table)
    held = call.keys()[: call.n_open]
    if len(held) == len(wanted) and np.array_equal(held, wanted):
        return np.arange(len(held))
    order = np.argsort(held, kind="stable")
    at = np.searchsorted(held, wanted, sorter=order)
    return order[np.minimum(at, len(order) - 1)].astype(np.int64)
