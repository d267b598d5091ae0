"""Which pane a row joins where windows grow with their rows and merge when they touch.

`assign_sessions` starts at row `first` and returns the row it got to: short of the end when the
lists it writes into are full, or when two sessions become one (what was emitted before is stored
first, so that a call has either emissions or a merge before them).

The sessions of a lane never touch; their chain is in descending order of start, so that the newest,
which most rows extend, is found first.
"""

from __future__ import annotations

import numpy as np

from tidegate.core.numba import lean_kernel
from tidegate.windows.kernels.assign import add_row, add_step, next_pane, open_pane, rate_changed
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


@lean_kernel
def assign_sessions(
    first: Int,
    rows: KernelRows,
    settings: Settings,
    programs: Programs,
    lanes: LaneState,
    call: Call,
    verdicts: Verdicts,
) -> Int:
    """Decide the rows from `first` on.

    A row joins the session that it touches (at most one gap away, inclusive), extends it, and
    merges it with the one below if that is touched then. A row that touches none opens its own
    session.

    Args:
        first: the row to begin with.
        rows: the collection.
        settings: of the stage; `size` is the gap.
        programs: its triggers.
        lanes: the state per lane; watermarks and serial numbers move on.
        call: the panes of the state with room for new ones; filled with panes, steps and fires.
        verdicts: filled for rows that are late or refused.

    Returns:
        The first row that is still to be decided; the number of rows when all are.
    """
    panes, totals, head = call.panes, call.totals, call.head
    n, times, gap = len(rows.time), rows.time, settings.size
    sized = len(rows.size) > 0
    simple = len(programs.early.op) == 0 and (settings.limit == 0 or not settings.buffered)
    simple = simple and settings.period == 0 and len(rows.mark) == 0
    i = first
    while i < n:
        if totals.panes[0] + 2 > len(panes.lane) or totals.steps[0] + 3 > len(call.steps.what):
            return i
        lane = np.int64(rows.lane[i])
        t = times[i]
        if t < settings.earliest or t > settings.latest:
            verdicts.status[i] = RowVerdict.OUT_OF_RANGE
            i += 1
            continue
        wm = pass_time(call, settings, lanes, rows, i, lane, t)
        # The first session that does not begin after this row could reach it.
        before: Int = np.int64(-1)
        e = head[lane]
        while e >= 0 and (panes.dead[e] != 0 or panes.start[e] > t + gap):
            after = panes.next[e]
            if panes.dead[e] != 0:
                if before < 0:
                    head[lane] = after
                else:
                    panes.next[before] = after
            else:
                before = e
            e = after
        # `end` is the last row time plus the gap, so this is "at most one gap later".
        joins = e >= 0 and panes.end[e] >= t
        bridges = False
        if joins:
            f = panes.next[e]
            while f >= 0 and panes.dead[f] != 0:
                f = panes.next[f]
            bridges = f >= 0 and panes.end[f] >= min(t, panes.start[e])
            if bridges and totals.fires[0] > 0:
                return i
        if not joins and t + gap <= wm:
            expired = settings.lateness == 0 or wm - settings.lateness > t + gap
            if expired and settings.policy != LateRows.NEXT:
                discard = settings.policy == LateRows.DISCARD
                verdicts.status[i] = RowVerdict.DISCARDED if discard else RowVerdict.ASIDE
                verdicts.behind[i] = wm - t
                i += 1
                continue
        bytes_ = rows.size[i] if sized else np.int64(0)
        verdict = admit_to_budget(call, settings, bytes_, 1)
        if verdict != RowVerdict.PLACED:
            verdicts.status[i] = verdict
            i += 1
            continue
        changed = False
        if settings.period != 0:
            changed = rate_changed(lanes, lane, t, settings.period, settings.change)
        late = False
        if not joins:
            start, end = t, t + gap
            late = end <= wm
            flagged = late and settings.lateness == 0
            if flagged:  # NextWindow: a session of its own, that closes as soon as time moves on
                end = wm + 1
            f = open_pane(call, lanes, lane, start, end, t, settings.wall, 0)
            if before >= 0:
                head[lane] = panes.next[f]
                panes.next[f] = panes.next[before]
                panes.next[before] = f
            e = f
            if flagged:
                verdicts.status[i] = RowVerdict.PLACED_LATE
                panes.late[e] += 1
                late = False
            else:
                panes.on_time[e] = 1 if late else 0
        else:
            late = panes.on_time[e] != 0
            if panes.fired[e] != 0:
                p = next_pane(call, settings, e, t)
                if before >= 0:
                    panes.next[before] = p
                else:
                    head[lane] = p
                e = p
            if simple and not late:
                j = add_session_run(call, settings, rows, e, i, lane, before)
                if j > i:
                    i = j
                    continue
            panes.start[e] = min(panes.start[e], t)
            panes.end[e] = max(panes.end[e], t + gap)
        # The row may close the gap to the session below.
        f = panes.next[e]
        while f >= 0 and (panes.dead[f] != 0 or panes.end[f] >= panes.start[e]):
            if panes.dead[f] == 0:
                merge_sessions(call, settings, e, f)
                late = late or panes.on_time[e] != 0
            f = panes.next[f]
            panes.next[e] = f
        if panes.end[e] > wm:
            panes.on_time[e] = 0
            late = False
        if late:
            verdicts.status[i] = RowVerdict.PLACED_LATE
            panes.late[e] += 1
        call.due_at[lane] = min(call.due_at[lane], panes.end[e])
        add_row(call, e, i, t, bytes_, settings.overhead)
        try_fire(call, settings, programs, rows, e, i, late, changed)
        i += 1
        if bridges:
            return i
    return i


@lean_kernel
def add_session_run(
    call: Call, settings: Settings, rows: KernelRows, e: Int, i: Int, lane: Int, before: Int
) -> Int:
    """Add the rows from i on that extend session `e` upwards, if no other session is touched by
    that.

    Args:
        call: the panes and lists.
        settings: of the stage.
        rows: the collection.
        e: the session that row i joins.
        i: the row.
        lane: its lane.
        before: the session above `e` in the lane's chain, or -1.

    Returns:
        The row behind them, or i where the rows must be looked at one by one.
    """
    panes, times, n = call.panes, rows.time, len(rows.time)
    j = i
    start, end = panes.start[e], panes.end[e]
    high = panes.last[e]
    total: Int = np.int64(0)
    sized = len(rows.size) > 0
    while j < n and rows.lane[j] == lane and times[j] >= start and times[j] <= end:
        high = max(high, times[j])
        end = max(end, times[j] + settings.size)
        if sized:
            total += rows.size[j]
        j += 1
    if j == i:
        return i
    below = panes.next[e]
    above_free = before < 0 or panes.start[before] > end
    if not above_free or (below >= 0 and panes.end[below] >= start):
        return i
    panes.end[e] = end
    panes.rows[e] += j - i
    panes.bytes[e] += total
    panes.last[e] = high
    if settings.buffered:
        call.totals.used[0] += total + (j - i) * settings.overhead
    add_step(call, Step.ROWS, e, i, j)
    return j


@lean_kernel
def merge_sessions(call: Call, settings: Settings, e: Int, f: Int) -> None:
    """Session f becomes part of e. What was emitted of f counts only where panes accumulate.

    Pane and revision numbers go on from the larger of the two, so that no number of the merged
    window comes twice.

    Args:
        call: the panes and lists.
        settings: of the stage.
        e: the session that stays.
        f: the session that is dead afterwards.
    """
    panes = call.panes
    panes.start[e] = min(panes.start[e], panes.start[f])
    panes.end[e] = max(panes.end[e], panes.end[f])
    panes.first[e] = min(panes.first[e], panes.first[f])
    panes.last[e] = max(panes.last[e], panes.last[f])
    pane, revision = panes.pane[f], panes.revision[f]
    if panes.fired[f] != 0:
        pane += 1
        if panes.on_time[f] != 0:
            revision += 1
    panes.pane[e] = max(panes.pane[e], pane)
    panes.revision[e] = max(panes.revision[e], revision)
    panes.on_time[e] = max(panes.on_time[e], panes.on_time[f])
    panes.spent[e] |= panes.spent[f]
    if panes.fired[f] == 0 or settings.accumulate:
        if panes.fired[f] == 0:
            panes.rows[e] += panes.rows[f]
            panes.late[e] += panes.late[f]
        panes.bytes[e] += panes.bytes[f]
        panes.emitted[e] += panes.bytes[f] if panes.fired[f] != 0 else panes.emitted[f]
        panes.wall[e] = min(panes.wall[e], panes.wall[f])
        add_step(call, Step.MERGE, e, f, 0)
    panes.dead[f] = 1
