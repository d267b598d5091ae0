"""Which pane a row joins where windows follow one another: everything, count, state, adaptive.

A lane (or each partition of it, for state windows) has at most one open window, which takes rows in
the order of arrival until it closes; the next row opens the next one.

    everything    until a trigger fires
    count         until it has `target` rows
    state         from a row for which `open` holds to the next one for which `emit` holds
    adaptive      for a length in event time that follows the rate, or until the watermark passes it

`assign_sequential` starts at row `first` and returns the row it got to: short of the end when the
lists it writes into are full. The caller stores what was decided and calls again.

Clock policy: arrival order decides, but for adaptive windows, whose length is in event time and for
which alone a row can be late.
"""

from __future__ import annotations

import numpy as np

from tidegate.core.numba import lean_kernel
from tidegate.windows.kernels.assign import add_row, insert, lookup, open_pane, rate_changed
from tidegate.windows.kernels.firing import admit_to_budget, fire, pass_time, try_fire
from tidegate.windows.kernels.layout import (
    Call,
    Family,
    FiringReason,
    Int,
    KernelRows,
    LaneState,
    LateRows,
    Programs,
    RowVerdict,
    Settings,
    Timing,
    Verdicts,
)
from tidegate.windows.rate import adapted, fitting_duration, recent_rate


@lean_kernel
def assign_sequential(
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
        rows: the collection; `part`, `opens` and `emits` are read for state windows.
        settings: of the stage.
        programs: its triggers.
        lanes: the state per lane; serial numbers, rates and lengths move on.
        call: the panes of the state with room for new ones; filled with panes, steps and fires.
        verdicts: filled for rows that joined no window, or joined one late.

    Returns:
        The first row that is still to be decided; the number of rows when all are.
    """
    panes, totals, n = call.panes, call.totals, len(rows.time)
    family = settings.family
    sized = len(rows.size) > 0
    parted = len(rows.part) > 0
    for i in range(first, n):
        if totals.panes[0] + 2 > len(panes.lane) or totals.steps[0] + 3 > len(call.steps.what):
            return i
        lane = np.int64(rows.lane[i])
        t = rows.time[i]
        if t < settings.earliest or t > settings.latest:
            verdicts.status[i] = RowVerdict.OUT_OF_RANGE
            continue
        part = rows.part[i] if parted else np.int64(0)
        if family == Family.ADAPTIVE:
            wm = lanes.watermark[lane]
            if len(rows.mark) > 0:
                wm = pass_time(call, settings, lanes, rows, i, lane, t)
            if t <= wm:
                if settings.policy != LateRows.NEXT:
                    discard = settings.policy == LateRows.DISCARD
                    verdicts.status[i] = RowVerdict.DISCARDED if discard else RowVerdict.ASIDE
                    verdicts.behind[i] = wm - t
                    continue
                verdicts.status[i] = RowVerdict.PLACED_LATE
        e = lookup(call.table, panes.lane, panes.part, lane, part)
        if e >= 0 and panes.dead[e] != 0:
            e = np.int64(-1)
        if family == Family.STATE and e < 0 and not rows.opens[i]:
            verdicts.status[i] = RowVerdict.OUTSIDE
            continue
        bytes_ = rows.size[i] if sized else np.int64(0)
        verdict = admit_to_budget(call, settings, bytes_, 1)
        if verdict != RowVerdict.PLACED:
            verdicts.status[i] = verdict
            continue
        if e >= 0 and panes.dead[e] != 0:  # flushed to make room
            e = np.int64(-1)
        if family == Family.ADAPTIVE and e >= 0 and t >= panes.end[e]:
            fire(call, settings, e, FiringReason.DURATION, Timing.ON_TIME)
            e = np.int64(-1)
        changed = False
        if settings.period != 0:
            changed = rate_changed(lanes, lane, t, settings.period, settings.change)
        opened = e < 0
        if opened:
            e = open_pane(call, lanes, lane, t, t, t, settings.wall, part)
            insert(call.table, panes.lane, panes.part, e)
        if verdicts.status[i] == RowVerdict.PLACED_LATE:
            panes.late[e] += 1
        add_row(call, e, i, t, bytes_, settings.overhead)
        panes.start[e] = min(panes.start[e], t)
        if family == Family.ADAPTIVE:
            rate = recent_rate(lanes, lane, t, opened, settings.target)
            wanted = fitting_duration(rate, settings.target, settings.shortest, settings.longest)
            if lanes.duration[lane] <= 0.0:
                lanes.duration[lane] = wanted
            else:
                lanes.duration[lane] = adapted(lanes.duration[lane], wanted)
            panes.end[e] = panes.start[e] + np.int64(lanes.duration[lane])
            if panes.end[e] <= t:
                # The rate has jumped: the window is already longer than it should be.
                panes.end[e] = t + 1
                fire(call, settings, e, FiringReason.DURATION, Timing.ON_TIME)
                continue
            call.due_at[lane] = min(call.due_at[lane], panes.end[e] - 1)
        else:
            panes.end[e] = panes.last[e]
        if family == Family.COUNT and panes.rows[e] >= settings.target:
            fire(call, settings, e, FiringReason.COUNT, Timing.ON_TIME)
            continue
        # The row that opens a window never closes it, or a condition that is both would make no
        # window of more than one row.
        if family == Family.STATE and rows.emits[i] and not opened:
            fire(call, settings, e, FiringReason.STATE, Timing.ON_TIME)
            continue
        if len(programs.early.op) > 0:
            try_fire(call, settings, programs, rows, e, i, False, changed)
    return n
