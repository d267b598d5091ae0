"""Which panes a row joins where windows start at multiples of a step: tumbling, sliding, fixed.

`assign_aligned` starts at row `first` and returns the row it got to: short of the end when the
lists it writes into are full. The caller stores what was decided and calls again.

Most rows fall into the window of the row before them, and most stages fire by the watermark only.
For these (`simple`) a run of rows that fall into one open window is one step, found by comparing
times, or by bisection where they are known to ascend; nothing else is looked at per row.
"""

from __future__ import annotations

import numpy as np

from tidegate.core.numba import lean_kernel
from tidegate.core.outcomes import Int64s
from tidegate.windows.kernels.assign import (
    add_row,
    add_step,
    floor_to,
    insert,
    lookup,
    next_pane,
    open_pane,
    rate_changed,
)
from tidegate.windows.kernels.firing import admit, pass_time, try_fire
from tidegate.windows.kernels.layout import (
    Call,
    Int,
    LaneState,
    LateRows,
    Programs,
    Rows,
    Settings,
    Step,
    Verdict,
    Verdicts,
)


@lean_kernel
def ascending(times: Int64s, first: Int) -> bool:
    """Are the times from `first` on in order? Without a branch, so that it runs at memory speed: a
    sign bit remembers any step back, and any time so large that a difference could overflow."""
    rest = times[first:]  # counted from 0: no index can be negative, so the loop is vectorised
    signs = rest[-1] ^ (rest[-1] << 1)
    for i in range(len(rest) - 1):
        signs |= (rest[i + 1] - rest[i]) | (rest[i] ^ (rest[i] << 1))
    return bool(signs >= 0)


@lean_kernel
def first_at(times: Int64s, low: Int, high: Int, end: Int) -> Int:
    """The first row of [low, high) at or after `end`, in times that ascend."""
    while low < high:
        middle = (low + high) // 2
        if times[middle] < end:
            low = middle + 1
        else:
            high = middle
    return low


@lean_kernel
def closes_at(start: Int, settings: Settings) -> Int:
    """The watermark at which the last window over this (sub-)window is complete."""
    if settings.span != 0:
        return floor_to(start, settings.stride, settings.offset) + settings.span - 1
    return start + settings.size - 1


@lean_kernel
def end_of_run(
    rows: Rows, i: Int, lane: Int, start: Int, end: Int, alone: bool, ordered: bool
) -> Int:
    """The first row from i on that does not fall into [start, end) of this lane."""
    times, n = rows.time, len(rows.time)
    if ordered:  # by bisection: most times need not be looked at again
        return first_at(times, i, n, end)
    j = i
    if alone:  # one lane: its number need not be looked at
        while j < n and times[j] >= start and times[j] < end:
            j += 1
    else:
        lanes = rows.lane
        while j < n and times[j] >= start and times[j] < end and lanes[j] == lane:
            j += 1
    return j


@lean_kernel
def add_run(call: Call, settings: Settings, rows: Rows, e: Int, i: Int, j: Int) -> None:
    """Rows [i, j) join the pane, in one step."""
    panes = call.panes
    if settings.buffered:  # first and last hold the watermark back while rows wait
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
    rows: Rows,
    settings: Settings,
    programs: Programs,
    lanes: LaneState,
    call: Call,
    verdicts: Verdicts,
) -> Int:
    """Decide the rows from `first` on; returns the first one that is still to be decided."""
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
    ordered = alone and simple and (settings.ascending or ascending(rows.time, first))
    i = first
    while i < n:
        if totals.panes[0] + copies + 1 > len(panes.lane):
            return i
        if totals.steps[0] + 2 * copies + 2 > len(call.steps.what):
            return i
        lane = np.int64(rows.lane[i])
        t = rows.time[i]
        if t < settings.earliest or t > settings.latest:
            verdicts.status[i] = Verdict.OUT_OF_RANGE
            i += 1
            continue
        wm = pass_time(call, settings, lanes, rows, i, lane, t)
        newest = floor_to(t, step, offset)
        if simple and len(rows.mark) == 0 and closes_at(newest, settings) > wm:
            e = lookup(call.table, panes.lane, panes.start, lane, newest)
            if e < 0:
                e = open_pane(call, lanes, lane, newest, newest + size, t, settings.wall, 0)
                insert(call.table, panes.lane, panes.start, e)
            elif panes.fired[e] != 0:  # by a control signal: there is no trigger
                e = next_pane(call, settings, e, t)
                panes.next[e] = call.head[lane]
                call.head[lane] = e
                insert(call.table, panes.lane, panes.start, e)
            j = end_of_run(rows, i, lane, newest, newest + size, alone, ordered)
            add_run(call, settings, rows, e, i, j)
            i = j
            continue
        bytes_ = rows.size[i] if sized else np.int64(0)
        verdict = admit(call, settings, bytes_, copies)
        if verdict != Verdict.PLACED:
            verdicts.status[i] = verdict
            i += 1
            continue
        changed = False
        if settings.period != 0:
            changed = rate_changed(lanes, lane, t, settings.period, settings.change)
        placed = False
        flagged = False
        s = newest - (copies - 1) * step
        if s + size <= t:
            s += step
        while True:
            if s > newest:
                # Every window of this row is closed. Should it go into the next one to close?
                if placed or settings.policy != LateRows.NEXT:
                    break
                s = floor_to(wm + 1 - size, step, offset) + step
                flagged = True
            e = lookup(call.table, panes.lane, panes.start, lane, s)
            late = False
            if e < 0 or panes.dead[e] != 0:
                late = closes_at(s, settings) <= wm
                if late and (settings.lateness == 0 or wm - settings.lateness > s + size - 1):
                    s += step
                    continue
                e = open_pane(call, lanes, lane, s, s + size, t, settings.wall, 0)
                panes.on_time[e] = 1 if late else 0
                insert(call.table, panes.lane, panes.start, e)
                due = s + size + (settings.lateness if late else np.int64(-1))
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
                verdicts.status[i] = Verdict.PLACED_LATE
            add_row(call, e, i, t, bytes_, settings.overhead)
            try_fire(call, settings, programs, rows, e, i, late, changed)
            if flagged:
                break
            s += step
        if not placed:
            discard = settings.policy == LateRows.DISCARD
            verdicts.status[i] = Verdict.DISCARDED if discard else Verdict.ASIDE
            verdicts.behind[i] = wm - t
        i += 1
    return i
