"""Rows in any order into windows that do not overlap: the pane of every row.

Steps (`layout.py`) say "rows 3 to 90 join pane 7", which is all there is to say where rows come
sorted by lane and time. Where lanes or groups are mixed that would be a step per row. Then each row
is given the number of its pane, and with groups of its slot, instead; `aggregate_rows.py` moves the
accumulators row by row: the same folds in the same order, so the same floats.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tidegate.core.numba import kernel
from tidegate.core.outcomes import Int32s, Int64s
from tidegate.windows.kernels.aligned import closes_at
from tidegate.windows.kernels.assign import (
    end_of,
    insert,
    lookup,
    next_pane,
    open_pane,
    start_of,
)
from tidegate.windows.kernels.layout import (
    Call,
    Int,
    KernelRows,
    LaneState,
    LateRows,
    RowVerdict,
    Settings,
    Step,
    Steps,
    Verdicts,
)

u = np.uint64
"""An index that is never negative need not be checked for that, which saves a third of the time."""

DENSE = 1 << 22
"""Pairs of pane and group up to which their slots are found in an array (4 bytes each, so 16 MB);
beyond, by hashing, which is slower per row but needs memory for the pairs that occur only."""


class Slots(NamedTuple):
    """All slots of a call: their pane and group, and the next slot of the same pane (or -1)."""

    pane: Int64s
    code: Int64s
    next: Int64s
    """Chain of the slots of a pane, newest first; empty after `split_rows`, which needs none."""


@kernel
def place_rows(
    first: Int,
    rows: KernelRows,
    settings: Settings,
    lanes: LaneState,
    call: Call,
    verdicts: Verdicts,
    joined: Int32s,
) -> Int:
    """Write the pane every row from `first` on joins, or -1; ends early where there is no room.

    Only the watermark closes these windows, so an open one takes whatever falls into it. Most rows
    fall into the window that the row before them in their lane fell into: `near`, `low` and `high`
    remember it per lane.

    Args:
        first: the row to begin with.
        rows: the collection.
        settings: of the stage.
        lanes: the state per lane; serial numbers move on.
        call: the panes of the state with room for new ones.
        verdicts: filled for rows that are late or out of range.
        joined: filled from entry 0 on, which stands for row `first`.

    Returns:
        The first row that is still to be decided; the number of rows when all are.
    """
    panes = call.panes
    near = np.full(len(call.head), -1, np.int64)
    low, high = np.zeros(len(call.head), np.int64), np.zeros(len(call.head), np.int64)
    for i in range(first, len(rows.time)):
        lane, t = rows.lane[i], rows.time[i]
        at = u(lane)
        if t < low[at] or t >= high[at]:
            if t < settings.earliest or t > settings.latest:
                verdicts.status[i] = RowVerdict.OUT_OF_RANGE
                joined[i - first] = -1
                continue
            start = start_of(t, settings)
            if closes_at(start, settings) <= lanes.watermark[lane]:
                discard = settings.policy == LateRows.DISCARD
                verdicts.status[i] = RowVerdict.DISCARDED if discard else RowVerdict.ASIDE
                verdicts.behind[i] = lanes.watermark[lane] - t
                joined[i - first] = -1
                continue
            e = lookup(call.table, panes.lane, panes.start, np.int64(lane), start)
            if call.totals.panes[0] == len(panes.lane) and (e < 0 or panes.fired[e] != 0):
                return i
            if e >= 0 and panes.fired[e] != 0:  # by a control signal: there is no trigger
                e = next_pane(call, settings, e, t)
                insert(call.table, panes.lane, panes.start, e)
            if e < 0:
                end = end_of(start, settings)
                e = open_pane(call, lanes, np.int64(lane), start, end, t, settings.wall, 0)
                insert(call.table, panes.lane, panes.start, e)
            near[at], low[at], high[at] = e, panes.start[e], panes.end[e]
        e = near[at]
        panes.rows[u(e)] += 1
        joined[i - first] = e
    return np.int64(len(rows.time))


@kernel
def split_rows(
    joined: Int32s, codes: Int64s, n_codes: Int, held: Slots, n_panes: Int
) -> tuple[Slots, Int32s]:
    """Turn panes and group codes of rows into slots.

    Args:
        joined: the pane of each row, or -1.
        codes: the group of each row, below `n_codes`.
        n_codes: how many groups there may be.
        held: the slots of the state, which keep their numbers.
        n_panes: how many panes there are.

    Returns:
        All slots, and the slot of each row (or -1).
    """
    index = np.full(n_panes * n_codes, -1, np.int32)
    for s in range(len(held.pane)):
        index[held.pane[s] * n_codes + held.code[s]] = s
    size = len(held.pane)
    slot = np.empty(len(joined), np.int32)
    for i in range(len(joined)):
        if joined[i] < 0:
            slot[i] = -1
            continue
        at = u(np.int64(joined[i]) * n_codes + codes[i])
        if index[at] < 0:
            index[at] = size
            size += 1
        slot[i] = index[at]
    pane, code = np.empty(size, np.int64), np.empty(size, np.int64)
    for x in range(len(index)):
        if index[x] >= 0:
            pane[index[x]] = x // n_codes
            code[index[x]] = x % n_codes
    return Slots(pane, code, np.empty(0, np.int64)), slot


@kernel
def as_steps(joined: Int32s, first: Int) -> Steps:
    """The same as steps: one per run of rows of one pane. For panes with too many groups for
    `DENSE`.

    Args:
        joined: the pane of each row, or -1.
        first: the number of the row that entry 0 stands for.
    """
    n = len(joined)
    what, pane = np.empty(n, np.int64), np.empty(n, np.int64)
    begin, end = np.empty(n, np.int64), np.empty(n, np.int64)
    s = 0
    for i in range(n):
        e = joined[i]
        if e < 0:
            continue
        if s > 0 and pane[s - 1] == e and end[s - 1] == first + i:
            end[s - 1] = first + i + 1
            continue
        what[s] = Step.ROWS
        pane[s] = e
        begin[s] = first + i
        end[s] = first + i + 1
        s += 1
    return Steps(what[:s], pane[:s], begin[:s], end[:s])
