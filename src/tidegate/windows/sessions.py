"""Which pane a row joins where windows grow with their rows and merge when they touch.

Starts at row `first` and returns the row it got to: short of the end when the arrays it writes into
are full. The caller stores what was decided and calls again.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidegate.core.numba import kernel
from tidegate.core.outcomes import Int32s, Int64s
from tidegate.windows.firing import admit, settle_lane, try_fire
from tidegate.windows.kernel import add_row, add_step, next_pane, open_entry, rate_changed
from tidegate.windows.numbers import (
    ASIDE,
    C_ACCUMULATE,
    C_BUFFERED,
    C_CHANGE,
    C_EARLIEST,
    C_IN_ORDER,
    C_LATENESS,
    C_LATEST,
    C_LIMIT,
    C_OVERHEAD,
    C_PERIOD,
    C_POLICY,
    C_SIZE,
    C_WALL,
    DISCARDED,
    E_BYTES,
    E_COUNT,
    E_DEAD,
    E_END,
    E_FIRED,
    E_FIRST,
    E_LAST,
    E_LATE,
    E_NEXT,
    E_ONTIME,
    E_PANE,
    E_REVISION,
    E_START,
    E_WALL,
    N_ENTRIES,
    N_FIRES,
    N_STEPS,
    N_USED,
    OUT_OF_RANGE,
    PLACED,
    PLACED_LATE,
    POLICY_DISCARD,
    POLICY_NEXT,
    STACK,
    STEP_MERGE,
    Int,
    Matrix,
)


@kernel
def assign_sessions(
    first: Int,
    lanes: Int32s,
    times: Int64s,
    sizes: Int64s,
    predicates: Matrix,
    program: Int64s,
    late_program: Int64s,
    cfg: Int64s,
    watermark: Int64s,
    serial: Int64s,
    rates: Matrix,
    entries: Matrix,
    counts: Int64s,
    head: Int64s,
    due_at: Int64s,
    steps: Matrix,
    fires: Int64s,
    status: NDArray[np.int8],
    behind: Int64s,
) -> Int:
    """Sessions. Those of a lane never touch; their chain is in descending order of start."""
    n = len(times)
    stack = np.zeros(STACK, np.int64)
    gap = cfg[C_SIZE]
    sized = len(sizes) > 0
    in_order = cfg[C_IN_ORDER] != 0
    simple = len(program) == 0 and (cfg[C_LIMIT] == 0 or cfg[C_BUFFERED] == 0)
    simple = simple and cfg[C_PERIOD] == 0
    i = first
    while i < n:
        if counts[N_ENTRIES] + 2 > len(entries) or counts[N_STEPS] + 3 > len(steps):
            return i
        lane = lanes[i]
        t = times[i]
        if t < cfg[C_EARLIEST] or t > cfg[C_LATEST]:
            status[i] = OUT_OF_RANGE
            i += 1
            continue
        if in_order and t - 1 > watermark[lane]:
            watermark[lane] = t - 1
            if t - 1 >= due_at[lane]:
                settle_lane(entries, counts, fires, cfg, head, due_at, lane, t - 1)
        wm = watermark[lane]
        # The first session that does not begin after this row could reach it.
        before: Int = -1
        e = head[lane]
        while e >= 0 and (entries[e, E_DEAD] != 0 or entries[e, E_START] > t + gap):
            after = entries[e, E_NEXT]
            if entries[e, E_DEAD] != 0:
                if before < 0:
                    head[lane] = after
                else:
                    entries[before, E_NEXT] = after
            else:
                before = e
            e = after
        joins = e >= 0 and entries[e, E_END] >= t
        bridges = False
        if joins:
            f = entries[e, E_NEXT]
            while f >= 0 and entries[f, E_DEAD] != 0:
                f = entries[f, E_NEXT]
            bridges = f >= 0 and entries[f, E_END] >= min(t, entries[e, E_START])
            # What was emitted before two sessions become one is settled first, so that a call has
            # either emissions or a merge before them.
            if bridges and counts[N_FIRES] > 0:
                return i
        if not joins and t + gap <= wm:
            expired = cfg[C_LATENESS] == 0 or wm - cfg[C_LATENESS] > t + gap
            if expired and cfg[C_POLICY] != POLICY_NEXT:
                status[i] = DISCARDED if cfg[C_POLICY] == POLICY_DISCARD else ASIDE
                behind[i] = wm - t
                i += 1
                continue
        bytes_ = sizes[i] if sized else np.int64(0)
        verdict = admit(entries, counts, fires, cfg, bytes_, 1)
        if verdict != PLACED:
            status[i] = verdict
            i += 1
            continue
        changed = False
        if cfg[C_PERIOD] != 0:
            changed = rate_changed(rates[lane], t, cfg[C_PERIOD], cfg[C_CHANGE])
        late = False
        if not joins:
            start, end = t, t + gap
            late = end <= wm
            flagged = late and cfg[C_LATENESS] == 0
            if flagged:  # NextWindow: a session of its own, that closes as soon as time moves on
                end = wm + 1
            f = open_entry(entries, counts, serial, head, lane, start, end, t, cfg[C_WALL], 0)
            if before >= 0:
                head[lane] = entries[f, E_NEXT]
                entries[f, E_NEXT] = entries[before, E_NEXT]
                entries[before, E_NEXT] = f
            e = f
            if flagged:
                status[i] = PLACED_LATE
                entries[e, E_LATE] += 1
                late = False
            else:
                entries[e, E_ONTIME] = 1 if late else 0
        else:
            late = entries[e, E_ONTIME] != 0
            if entries[e, E_FIRED] != 0:
                p = next_pane(entries, counts, steps, cfg, e, t)
                if before >= 0:
                    entries[before, E_NEXT] = p
                else:
                    head[lane] = p
                e = p
            if simple and not late:
                j = i
                end = entries[e, E_END]
                start = entries[e, E_START]
                total: Int = np.int64(0)
                high = entries[e, E_LAST]
                while j < n and lanes[j] == lane and times[j] >= start and times[j] <= end:
                    high = max(high, times[j])
                    end = max(end, times[j] + gap)
                    if sized:
                        total += sizes[j]
                    j += 1
                if j > i:
                    below = entries[e, E_NEXT]
                    above_free = before < 0 or entries[before, E_START] > end
                    if above_free and (below < 0 or entries[below, E_END] < start):
                        entries[e, E_END] = end
                        entries[e, E_COUNT] += j - i
                        entries[e, E_BYTES] += total
                        entries[e, E_LAST] = high
                        if cfg[C_BUFFERED] != 0:
                            counts[N_USED] += total + (j - i) * cfg[C_OVERHEAD]
                        add_step(steps, counts, 0, e, i, j)
                        i = j
                        continue
            entries[e, E_START] = min(entries[e, E_START], t)
            entries[e, E_END] = max(entries[e, E_END], t + gap)
        # The row may close the gap to the session below.
        f = entries[e, E_NEXT]
        while f >= 0 and (entries[f, E_DEAD] != 0 or entries[f, E_END] >= entries[e, E_START]):
            if entries[f, E_DEAD] == 0:
                _merge(entries, counts, steps, cfg, e, f)
                late = late or entries[e, E_ONTIME] != 0
            f = entries[f, E_NEXT]
            entries[e, E_NEXT] = f
        if entries[e, E_END] > wm:
            entries[e, E_ONTIME] = 0
            late = False
        if late:
            status[i] = PLACED_LATE
            entries[e, E_LATE] += 1
        due_at[lane] = min(due_at[lane], entries[e, E_END])
        add_row(entries, counts, steps, e, i, t, bytes_, cfg[C_OVERHEAD])
        try_fire(
            stack,
            entries,
            counts,
            fires,
            cfg,
            program,
            late_program,
            predicates,
            e,
            i,
            late,
            changed,
        )
        i += 1
        if bridges:
            return i
    return i


@kernel
def _merge(entries: Matrix, counts: Int64s, steps: Matrix, cfg: Int64s, e: Int, f: Int) -> None:
    """Session f becomes part of e. What was emitted of f counts only where panes accumulate."""
    entries[e, E_START] = min(entries[e, E_START], entries[f, E_START])
    entries[e, E_END] = max(entries[e, E_END], entries[f, E_END])
    entries[e, E_FIRST] = min(entries[e, E_FIRST], entries[f, E_FIRST])
    entries[e, E_LAST] = max(entries[e, E_LAST], entries[f, E_LAST])
    pane, revision = entries[f, E_PANE], entries[f, E_REVISION]
    if entries[f, E_FIRED] != 0:
        pane += 1
        if entries[f, E_ONTIME] != 0:
            revision += 1
    entries[e, E_PANE] = max(entries[e, E_PANE], pane)
    entries[e, E_REVISION] = max(entries[e, E_REVISION], revision)
    entries[e, E_ONTIME] = max(entries[e, E_ONTIME], entries[f, E_ONTIME])
    if entries[f, E_FIRED] == 0 or cfg[C_ACCUMULATE] != 0:
        if entries[f, E_FIRED] == 0:
            entries[e, E_COUNT] += entries[f, E_COUNT]
            entries[e, E_LATE] += entries[f, E_LATE]
        entries[e, E_BYTES] += entries[f, E_BYTES]
        entries[e, E_WALL] = min(entries[e, E_WALL], entries[f, E_WALL])
        add_step(steps, counts, STEP_MERGE, e, f, 0)
    entries[f, E_DEAD] = 1
