"""Which panes a row joins where windows start at multiples of a step: tumbling, sliding, fixed.

`assign_aligned` starts at row `first` and returns the row it got to: short of the end when the
lists it writes into are full. The caller stores what was decided and calls again.

Most rows fall into the window of the row before them, and most stages fire by the watermark only.
For these (`simple`) a run of rows that fall into one open window is one step, found by comparing
times; nothing else is looked at per row.

All other rows take the long way, one by one: move the lane's watermark as far as the row says,
check the memory budget, then visit its windows from the earliest to the latest. A window that is
closed is skipped; one that was emitted goes on with its next pane; triggers are evaluated after
each. A row all of whose windows are closed is late, and `settings.policy` decides about it.

Clock policy: row times choose windows, the lane's watermark closes them. Wall time enters only as
the time of a pane's first row, for `AfterTime`.
"""

from __future__ import annotations

import numpy as np

from tidegate.core.numba import lean_kernel
from tidegate.core.outcomes import Int64s
from tidegate.windows.kernels.assign import (
    add_row,
    add_step,
    end_of,
    floor_to,
    insert,
    lookup,
    next_pane,
    open_pane,
    rate_changed,
    start_of,
)
from tidegate.windows.kernels.firing import admit_to_budget, pass_time, try_fire
from tidegate.windows.kernels.layout import (
    Call,
    Int,
    KernelRows,
    LaneState,
    LateRows,
    Programs,
    RowVerdict,
    Settings,
    Step,
    Verdicts,
)

RUN_BLOCK = 64
"""Rows of a long run that are compared at once, without a branch: enough for the vectors of a
processor, few enough that the last block of a run is not much in vain."""

SAMPLES = 1 << 10
"""Pairs of neighbours that `seems_ascending` looks at: a few microseconds, and rows out of order by
chance do not escape it."""


@lean_kernel
def seems_ascending(times: Int64s) -> bool:
    """Are these times in order, as far as a sample of neighbours tells? Looking at all of them
    would cost as much as deciding the rows, and the answer only chooses between two ways to the
    same result.

    Args:
        times: of the rows; at least one.
    """
    i, step = 0, max(1, len(times) // SAMPLES)
    while i + 1 < len(times):
        if times[i + 1] < times[i]:
            return False
        i += step
    return True


@lean_kernel
def closes_at(start: Int, settings: Settings) -> Int:
    """The watermark at which the last window over this (sub-)window is complete.

    Args:
        start: of the window, or of the sub-window where overlapping windows are combined.
        settings: of the stage; `span` is 0 unless sub-windows are combined.
    """
    if settings.span != 0:
        return floor_to(start, settings.stride, settings.offset) + settings.span - 1
    return end_of(start, settings) - 1


@lean_kernel
def end_of_run(rows: KernelRows, i: Int, lane: Int, start: Int, end: Int, alone: bool) -> Int:
    """The first row from i on that does not fall into [start, end) of this lane.

    Args:
        rows: the collection.
        i: a row that does.
        lane: its lane.
        start: of its window.
        end: of its window.
        alone: there is only one lane.
    """
    times, n = rows.time, len(rows.time)
    j = i
    if alone:  # one lane: its number need not be looked at
        near = min(n, i + RUN_BLOCK // 4)
        while j < near and times[j] >= start and times[j] < end:
            j += 1
        if j < near:
            return j
        while j + RUN_BLOCK <= n and all_within(times[j : j + RUN_BLOCK], start, end):
            j += RUN_BLOCK
        while j < n and times[j] >= start and times[j] < end:
            j += 1
    else:
        lanes = rows.lane
        while j < n and times[j] >= start and times[j] < end and lanes[j] == lane:
            j += 1
    return j


@lean_kernel
def all_within(times: Int64s, start: Int, end: Int) -> bool:
    """Whether all these times are in [start, end).

    Args:
        times: any.
        start: the first time that is.
        end: the first that no longer is.
    """
    outside = False
    for i in range(len(times)):
        outside |= (times[i] < start) | (times[i] >= end)
    return not outside


@lean_kernel
def add_run(call: Call, settings: Settings, rows: KernelRows, e: Int, i: Int, j: Int) -> None:
    """Rows [i, j) join the pane, in one step.

    Args:
        call: the panes and lists.
        settings: of the stage.
        rows: the collection.
        e: the pane.
        i: the first row.
        j: the row behind the last.
    """
    panes = call.panes
    if settings.tracked:  # first and last hold the watermark back while rows wait
        low, high = panes.first[e], panes.last[e]
        for q in range(i, j):
            low = min(low, rows.time[q])
            high = max(high, rows.time[q])
        panes.first[e] = low
        panes.last[e] = high
    total = np.int64(0)
    if len(rows.size) > 0:
        for q in range(i, j):
            total += rows.size[q]
    panes.rows[e] += j - i
    panes.bytes[e] += total
    if settings.buffered:
        call.totals.used[0] += total + (j - i) * settings.overhead
    add_step(call, Step.ROWS, e, i, j)


@lean_kernel
def assign_aligned(
    first: Int,
    rows: KernelRows,
    settings: Settings,
    programs: Programs,
    lanes: LaneState,
    call: Call,
    verdicts: Verdicts,
) -> Int:
    """Decide the rows from `first` on.

    Args:
        first: the row to begin with.
        rows: the collection.
        settings: of the stage; `size`, `step` and `offset` say where windows are.
        programs: its triggers.
        lanes: the state per lane; watermarks and serial numbers move on.
        call: the panes of the state with room for new ones; filled with panes, steps and fires.
        verdicts: filled for rows that are late or refused; `PLACED` (0) for all others.

    Returns:
        The first row that is still to be decided; the number of rows when all are.
    """
    panes, totals, n = call.panes, call.totals, len(rows.time)
    size, step, offset = settings.size, settings.step, settings.offset
    copies = (size + step - 1) // step
    alone = len(call.head) == 1
    sized = len(rows.size) > 0
    simple = (
        copies == 1
        and len(programs.early.op) == 0
        and (settings.limit == 0 or not settings.buffered)
        and settings.period == 0
    )
    i = first
    while i < n:
        # A row may open a pane in each of its windows, and make a copy and a run in each.
        if totals.panes[0] + copies + 1 > len(panes.lane):
            return i
        if totals.steps[0] + 2 * copies + 2 > len(call.steps.what):
            return i
        lane = np.int64(rows.lane[i])
        t = rows.time[i]
        if t < settings.earliest or t > settings.latest:
            verdicts.status[i] = RowVerdict.OUT_OF_RANGE
            i += 1
            continue
        wm = pass_time(call, settings, lanes, rows, i, lane, t)
        newest = start_of(t, settings)
        if simple and len(rows.mark) == 0 and closes_at(newest, settings) > wm:
            e = lookup(call.table, panes.lane, panes.start, lane, newest)
            if e < 0:
                end = end_of(newest, settings)
                e = open_pane(call, lanes, lane, newest, end, t, settings.wall, 0)
                insert(call.table, panes.lane, panes.start, e)
            elif panes.fired[e] != 0:  # by a control signal: there is no trigger
                e = next_pane(call, settings, e, t)
                panes.next[e] = call.head[lane]
                call.head[lane] = e
                insert(call.table, panes.lane, panes.start, e)
            j = end_of_run(rows, i, lane, newest, panes.end[e], alone)
            add_run(call, settings, rows, e, i, j)
            i = j
            continue
        bytes_ = rows.size[i] if sized else np.int64(0)
        verdict = admit_to_budget(call, settings, bytes_, copies)
        if verdict != RowVerdict.PLACED:
            verdicts.status[i] = verdict
            i += 1
            continue
        changed = False
        if settings.period != 0:
            changed = rate_changed(lanes, lane, t, settings.period, settings.change)
        placed = False
        flagged = False
        # Where the step does not divide the size, the earliest candidate may end before the row.
        s = newest - (copies - 1) * step
        if end_of(s, settings) <= t:
            s += step
        while True:
            if s > newest:
                # Every window of this row is closed. Should it go into the next one to close?
                if placed or settings.policy != LateRows.NEXT:
                    break
                # The window that contains wm + 1; of overlapping ones that which ends first.
                s = start_of(wm + 1, settings)
                if len(settings.edges) == 0:
                    s = floor_to(wm + 1 - size, step, offset) + step
                flagged = True
            e = lookup(call.table, panes.lane, panes.start, lane, s)
            late = False
            if e < 0 or panes.dead[e] != 0:
                late = closes_at(s, settings) <= wm
                end = end_of(s, settings)
                if late and (settings.lateness == 0 or wm - settings.lateness > end - 1):
                    s += step
                    continue
                e = open_pane(call, lanes, lane, s, end, t, settings.wall, 0)
                panes.on_time[e] = 1 if late else 0
                insert(call.table, panes.lane, panes.start, e)
                due = end + (settings.lateness if late else np.int64(-1))
                call.due_at[lane] = min(call.due_at[lane], due)
            else:
                late = panes.on_time[e] != 0
                if panes.fired[e] != 0:
                    p = next_pane(call, settings, e, t)
                    panes.next[p] = call.head[lane]
                    call.head[lane] = p
                    insert(call.table, panes.lane, panes.start, p)
                    e = p
            placed = True
            if late or flagged:
                panes.late[e] += 1
                verdicts.status[i] = RowVerdict.PLACED_LATE
            add_row(call, e, i, t, bytes_, settings.overhead)
            try_fire(call, settings, programs, rows, e, i, late, changed)
            if flagged:
                break
            s += step
        if not placed:
            discard = settings.policy == LateRows.DISCARD
            verdicts.status[i] = RowVerdict.DISCARDED if discard else RowVerdict.ASIDE
            verdicts.behind[i] = wm - t
        i += 1
    return i
